"""The run of a root that the steps of a run of the source are written to.

What a step has beside arrays and `info` is kept as JSON: what the first step of an episode has in
the metadata of the episode, and what differs from it in `info["__original__"]` of a step.
"""

import contextlib
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from relive._native import Step
from relive.errors import UnknownNameError
from relive.replay.columns import ENCODED, ColumnSpec, flatten
from relive.replay.config import ReplayConfig
from relive.replay.migrate.blobs import DamagedError, is_exact_integer, is_same
from relive.replay.migrate.catalog import OriginalEpisode, OriginalRun
from relive.replay.migrate.migration import CopiedEpisode
from relive.replay.migrate.rows import COLUMNS, ORIGINAL, StepValues, as_ts_ns
from relive.replay.storage.connection import Database
from relive.replay.storage.layout import database_path
from relive.replay.storage.tables import EpisodeRow, RunTables, migrated_from
from relive.replay.writing.steps import ACTIONS, EXTRAS, FRAMES, INFO, OBSERVATIONS, End
from relive.replay.writing.writer import RunWriter

_MAX_FIELDS: Final = 8
"""How many shapes of observations, frames or actions of a run are arrays; others are JSON."""
_WRITE_STEPS: Final = 64
_WRITE_BYTES: Final = 8 << 20
_COMMIT_STEPS: Final = 1000
_COMMIT_BYTES: Final = 32 << 20


def info_field(key: str) -> str:
    """Return the field of a large array of an info."""
    return INFO + key.translate(ENCODED)


@dataclass(slots=True)
class _Placed:
    """Where the values of a step go."""

    arrays: dict[str, Any]
    columns: dict[str, Any]
    fields: dict[str, str | None]
    """The fields of arrays that do not have the shape of the first; None for those in `columns`."""

    @property
    def extras(self) -> dict[str, Any]:
        """The arrays that are in fields of their own."""
        return {
            place.removeprefix(EXTRAS): self.arrays[name]
            for name, place in self.fields.items()
            if place is not None
        }

    def regular(self, name: str) -> Any:
        """Return the array of a field; None if it is somewhere else."""
        return None if name in self.fields else self.arrays.get(name)


class TargetRun:
    """Writes the steps of one run of the source. It continues episodes that are open."""

    def __init__(self, root: Path, run: OriginalRun, config: ReplayConfig) -> None:
        self._writer = RunWriter(root, run.run_id, config)
        self._writer.keep_open()  # they are continued
        self._streams = self._writer.streams
        self.irregular = 0
        self.split = 0
        self._is_real = run.is_real
        self._fields: dict[str, dict[frozenset[Any], str]] = {name: {} for name in COLUMNS}
        """The field of each shape, for observations, frames and actions."""
        self._open: dict[tuple[str, str], EpisodeRow] = {}
        self._segments = 0
        self._episode: EpisodeRow | None = None
        self._shared: dict[str, Any] = {}
        """The columns of the first step of the episode."""
        self._last_ns = 0
        """The time of the last step of the run."""
        self._items: list[Step | End] = []
        self._item_bytes = 0
        self._open_bytes = 0
        try:
            self._continue(root, run.name)
        except BaseException:
            self.release()
            raise

    @property
    def migrated_from(self) -> str | None:
        """The id of the run in the database that it was migrated from."""
        return migrated_from(self._writer.run)

    def enter_episode(self, episode: OriginalEpisode, copied: CopiedEpisode) -> None:
        """Go to an episode; if it is open, it is continued."""
        self._segments = copied.segments
        if not copied.is_open:
            return
        name = episode.segment(copied.segments - 1)
        row = self._episode = self._open.pop((name, episode.agent_id))
        stream = self._streams.stream(0, episode.agent_id)
        stream.episode, stream.step_index = row, copied.last + 1
        stream.dropped, stream.total_reward = row.dropped, row.total_reward
        metadata = json.loads(row.metadata or "{}")
        self._shared = metadata.get("columns", {})
        if episode.end is not None:
            row.metadata = json.dumps({**metadata, "end": episode.end})

    def add(self, episode: OriginalEpisode, step_index: int, values: StepValues) -> None:
        """Write a step of the episode that was entered."""
        stream = self._streams.stream(0, episode.agent_id)
        if self._episode is None:
            self._begin(episode, values)
        placed = self._placed(values)
        step = self._streams.step(
            stream,
            observation=placed.regular(OBSERVATIONS),
            action=placed.regular(ACTIONS),
            reward=values.reward,
            terminated=values.terminated,
            truncated=values.truncated,
            frame=placed.regular(FRAMES),
            info=self._info(values, placed),
            next_observation=None,
            next_frame=None,
            extras=placed.extras,
            step_index=step_index,
            ts_ns=values.ts_ns,
        )
        self.irregular += len(placed.fields)
        self._last_ns = max(self._last_ns, values.ts_ns)
        self._streams.advance(stream, step)
        self._put(step)
        if step.end is not None:
            self._episode = None

    def leave_episode(self, episode: OriginalEpisode) -> None:
        """Leave an episode open, or end it if the source has its end."""
        stream = self._streams.stream(0, episode.agent_id)
        if episode.end is not None:
            end = self._streams.end(stream, terminated=bool(episode.end.get("terminated")))
            if end is not None:
                with contextlib.suppress(DamagedError):
                    end.ts_ns = as_ts_ns(episode.end.get("timestamp"))
                self._put(end)
        stream.episode = self._episode = None

    def save(self) -> None:
        """Commit everything so far."""
        self._write_items()
        self._open_bytes = 0
        self._writer.commit()

    def complete(self) -> None:
        """Commit everything, and complete the file of the run. A run without steps is removed."""
        self._write_items()
        if self._writer.run.steps:
            self._writer.finish("finished", self._last_ns)
        else:
            self._writer.remove()

    def release(self) -> None:
        """Close the files, and unlock the run."""
        self._writer.release()

    def _continue(self, root: Path, name: str) -> None:
        """Read which episodes are open, and which fields there are."""
        run_id = self._writer.run_id
        with Database.open(database_path(root)) as database:
            try:
                known = RunTables.load(database, run_id)
            except UnknownNameError:
                self._writer.run.git = None  # what is checked out now did not make the steps
                self._writer.run.metadata = json.dumps({"migrated": {"run_id": name}})
                return
            times = "SELECT coalesce(max(ts_ns), 0) FROM steps WHERE run_id = ?"
            ((self._last_ns,),) = database.rows(times, (run_id,))
        for episode in known.episodes:
            if episode.ended_ns is None:
                self._open[episode.episode_id, episode.agent_id] = replace(episode)
        self._continue_fields(known.columns)

    def _continue_fields(self, columns: list[ColumnSpec]) -> None:
        shapes: dict[str, set[Any]] = {}
        for spec in columns:
            if spec.rows_of == "steps":
                shapes.setdefault(spec.field, set()).add((spec.keys, spec.dtype, spec.shape))
        for name, fields in self._fields.items():
            for place in range(_MAX_FIELDS):
                found = shapes.get(_field(name, place))
                if found is not None:
                    fields[frozenset(found)] = _field(name, place)
        if ACTIONS in shapes:
            self._is_real = shapes[ACTIONS] == {((), "<f8", ())}

    def _begin(self, episode: OriginalEpisode, values: StepValues) -> None:
        """Begin an episode, or what follows after it ended."""
        if not self._streams.next_row:
            self._describe_run(values)
        self._shared = {name: part for name, part in values.columns.items() if part is not None}
        metadata: dict[str, Any] = {"columns": self._shared}
        if episode.end is not None:
            metadata["end"] = episode.end
        if self._segments:
            metadata["continues"] = episode.segment(self._segments - 1)
            self.split += 1
        seed = values.columns.get("episode_seed")
        if not isinstance(seed, int) or seed < 0:
            seed = None
        stream = self._streams.stream(0, episode.agent_id)
        name = episode.segment(self._segments)
        self._episode = self._streams.begin(stream, name, seed, metadata)
        self._episode.started_ns = values.ts_ns
        self._segments += 1

    def _describe_run(self, values: StepValues) -> None:
        """Set what the run has from its first step."""
        run = self._writer.run
        game, spaces = (values.columns.get(name) for name in ("game_id", "space_signature"))
        run.created_ns = values.ts_ns
        run.env_id = game if isinstance(game, str) else None
        run.spaces = None if spaces is None else json.dumps(spaces)

    def _placed(self, values: StepValues) -> _Placed:
        placed = _Placed(dict(values.arrays), dict(values.columns), {})
        action = placed.arrays.get(ACTIONS)
        if self._is_real and isinstance(action, np.ndarray) and is_exact_integer(action):
            placed.arrays[ACTIONS] = action.astype(np.float64)
        for name, value in placed.arrays.items():
            place = self._place(name, value)
            if place is None:
                placed.columns[COLUMNS[name]] = values.documents[name]
            if place != name:
                placed.fields[name] = place
        return placed

    def _place(self, name: str, value: Any) -> str | None:
        """Return the field for a value of this shape; None if there are too many shapes."""
        shape = frozenset(
            (leaf.keys, leaf.array.dtype.str, leaf.array.shape) for leaf in flatten(name, value)
        )
        known = self._fields[name]
        if shape not in known:
            if len(known) == _MAX_FIELDS:
                return None
            known[shape] = _field(name, len(known))
        return known[shape]

    def _info(self, values: StepValues, placed: _Placed) -> dict[str, Any]:
        """Return the info of a step, with everything that has no other place."""
        info = {**values.info, **self._large(values)}
        names = sorted({*placed.columns, *self._shared})
        columns = {
            name: placed.columns.get(name)
            for name in names
            if not is_same(placed.columns.get(name), self._shared.get(name))
        }
        original = {"columns": columns, "fields": placed.fields}
        original = {name: part for name, part in original.items() if part}
        return {**info, ORIGINAL: original} if original else info

    def _large(self, values: StepValues) -> dict[str, Any]:
        """Return the arrays of an info that the run can store as arrays."""
        lane = self._streams.lane
        large = values.large.items()
        return {
            key: array
            for key, array in large
            if lane is not None and lane.accepts(info_field(key), array)
        }

    def _put(self, item: Step | End) -> None:
        self._items.append(item)
        self._item_bytes += item.nbytes
        if len(self._items) >= _WRITE_STEPS or self._item_bytes >= _WRITE_BYTES:
            self._write_items()
        if self._writer.pending_steps >= _COMMIT_STEPS or self._open_bytes >= _COMMIT_BYTES:
            self.save()

    def _write_items(self) -> None:
        if self._items:
            self._writer.write(self._items)
            self._open_bytes += self._item_bytes
        self._items, self._item_bytes = [], 0


def _field(name: str, place: int) -> str:
    """Return the field for values of the first shape, the second one, and so on."""
    return f"{EXTRAS}{name}_{place + 1}" if place else name
