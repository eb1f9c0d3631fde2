"""Recorded runs, as episodes of steps of which is known what was observed next."""

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from relive._arguments import type_name
from relive._open import find_kind, open_kind
from relive.bridge.infos import MASK, InfoColumns
from relive.bridge.spaces import LeafType, nested
from relive.errors import InvalidError, UnsupportedError
from relive.model.kinds import KINDS
from relive.store.paths import expand, is_remote

EXTRAS: Final = "extras"
"""The key of infos that has the extras of steps."""

_RUN, _RUNS = "run", "runs"
"""The kinds that can be read."""
_FIELDS: Final = {"observation": "observations", "action": "actions"}
"""The fields of a run that have the observations and actions of transitions."""
_INFO: Final = "info."
_PART_BYTES: Final = 64 << 20
_MAX_PART: Final = 1 << 16
_INFO_BYTES: Final = 1 << 10
"""About how much memory an info without arrays needs."""
_CACHE_BYTES: Final = 256 << 20

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Segment:
    """Steps of an episode that follow each other, without one between them that was dropped."""

    start: int
    stop: int
    """Where the steps are in the order of episodes."""
    number: int
    """The number of the episode in its run."""
    first_step: int
    """The index of the first step in the episode."""


@dataclass(frozen=True, slots=True)
class Part:
    """Consecutive steps of a segment."""

    observations: Any
    """One more than there are steps if the segment ends with this part: what was seen last."""
    actions: Any
    rewards: npt.NDArray[np.float64]
    terminations: npt.NDArray[np.bool_]
    truncations: npt.NDArray[np.bool_]
    infos: dict[str, Any]
    """One more than there are steps if the segment begins with this part: that of the reset."""
    begins: bool
    """Whether the segment begins with this part."""
    ends: bool
    """Whether the segment ends with this part."""


def open_runs(source: Any) -> list[Any]:
    """Return the runs of a source: a `ReplayRun`, a `ReplayRoot`, a path, or a list of these."""
    if isinstance(source, list | tuple):
        return [run for item in source for run in open_runs(item)]
    if isinstance(source, str | os.PathLike):
        return [run for path in expand(source) for run in _opened(path)]
    run: Any
    runs: Any
    run, runs = (KINDS[kind].load() for kind in (_RUN, _RUNS))
    if isinstance(source, run):
        return [source]
    if isinstance(source, runs):
        return list(source.values())
    raise UnsupportedError(
        f"only recorded runs can be converted to a Minari dataset, got {type_name(type(source))}",
        hint="pass a ReplayRun, the path of its `.h5` file, or a directory of runs",
    )


def _opened(path: str) -> list[Any]:
    # A `Path`, since text such as `a/b` may also be the name of a published dataset.
    kind, paths = find_kind(path if is_remote(path) else Path(path))
    if kind.name not in {_RUN, _RUNS}:
        raise UnsupportedError(
            f"`{path}` is {kind.title}, but only recorded runs can be converted to a Minari dataset"
        )
    opened = open_kind(kind, paths)
    return [opened] if kind.name == _RUN else list(opened.values())


class RunEpisodes:
    """The episodes of a run, without the steps of which is not known what was observed next.

    These are the steps that `ReplayRun.transitions` has. An episode in which steps were dropped is
    several segments.
    """

    def __init__(self, run: Any) -> None:
        self.run = run
        """The run."""
        fields = run.arrays.fields
        for name, field in _FIELDS.items():
            if field not in fields:
                raise InvalidError(
                    f"run {run.run_id!r} has no {name}s in its arrays",
                    hint=f"a Minari dataset needs the {name} of every step",
                )
        self.leaves = {name: self._leaves(field, name) for name, field in _FIELDS.items()}
        """The arrays of observations and actions, by their name in the transitions."""
        extras = [spec for name, specs in fields.items() if _is_extra(name) for spec in specs]
        self._extras = {
            spec.name: LeafType(
                (spec.field.removeprefix(f"{EXTRAS}."), *spec.keys),
                np.dtype(spec.dtype),
                tuple(spec.shape),
            )
            for spec in extras
        }
        self._transitions = run.transitions(
            fields=[
                *("observation", "next_observation", "action", *self._extras),
                *("index", "episode", "step_index", "terminated", "truncated"),
            ],
            cache_bytes=_CACHE_BYTES,
        )
        count = len(self._transitions)
        names = ["index", "episode", "step_index", "terminated", "truncated"]
        found = self._transitions.gather(np.arange(count), names)
        self._order: Rows = np.argsort(found["episode"], kind="stable")
        """The positions of the transitions, episode by episode."""
        self._rows: Rows = found["index"][self._order]
        self._terminated = found["terminated"][self._order]
        self._truncated = found["truncated"][self._order]
        has_action = run.arrays.are_valid("actions", self._rows)
        if not has_action.all():
            row = int(self._rows[np.argmin(has_action)])
            raise InvalidError(
                f"run {run.run_id!r}: step {row} has no action",
                hint="a Minari dataset needs the action of every step",
            )
        episode = found["episode"][self._order].astype(np.int64)
        index = found["step_index"][self._order]
        begins = np.ones(count, np.bool_)
        begins[1:] = (episode[1:] != episode[:-1]) | (index[1:] != index[:-1] + 1)
        starts = np.flatnonzero(begins)
        stops = np.append(starts, count)[1:]
        self.segments = [
            Segment(*each)
            for each in zip(
                starts.tolist(),
                stops.tolist(),
                episode[starts].tolist(),
                index[starts].tolist(),
                strict=True,
            )
        ]
        """The segments, in the order of their episodes and steps."""
        self._infos_from = 0
        self._infos: list[dict[str, Any]] = []

    def __len__(self) -> int:
        """Return the number of steps in all segments."""
        return len(self._order)

    @cached_property
    def step_bytes(self) -> int:
        """How many bytes a step takes in arrays."""
        leaves = [leaf for found in self.leaves.values() for leaf in found.values()]
        return sum(map(_leaf_bytes, [*leaves, *self._extras.values()])) + self._info_bytes

    @cached_property
    def _info_bytes(self) -> int:
        return sum(
            math.prod(spec.shape) * np.dtype(spec.dtype).itemsize
            for name, specs in self.run.arrays.fields.items()
            if name.startswith(_INFO)
            for spec in specs
        )

    def action_bounds(self) -> list[LeafType]:
        """Return the arrays of actions, with the bounds of those that are one integer."""
        leaves = []
        for name, leaf in self.leaves["action"].items():
            if leaf.dtype.kind not in "iu" or leaf.shape or not len(self):
                leaves.append(leaf)
                continue
            values = self._transitions.gather(self._order, [name])[name]
            low, high = min(0, int(values.min())), max(0, int(values.max()))
            leaves.append(LeafType(leaf.keys, leaf.dtype, leaf.shape, low, high))
        return leaves

    def about(self, segment: Segment) -> dict[str, Any]:
        """Return what is known about the episode of a segment."""
        row = self._episodes[segment.number]
        metadata = {} if row.metadata is None else _parsed(row.metadata)
        is_first = segment.first_step == 0
        return {
            "run_id": self.run.run_id,
            "episode_id": row.episode_id,
            "agent_id": row.agent_id,
            "env_index": row.env_index,
            "first_step": segment.first_step,
            "seed": row.seed if is_first else None,
            "options": metadata.pop("options", None) if is_first else None,
            "reset_info": metadata.pop("info", None) if is_first else None,
            "metadata": metadata,
        }

    def parts(self, segment: Segment, reset_info: Any) -> Iterator[Part]:
        """Iterate over a segment in parts that need little memory."""
        columns = InfoColumns()
        reset = [reset_info] if isinstance(reset_info, Mapping) else [{}]
        columns.add(reset, steps=False)
        size = self._part_rows
        for start in range(segment.start, segment.stop, size):
            columns.add(self._infos_of(start, min(start + size, segment.stop)))
        extras = self._extras_of(segment)
        for start in range(segment.start, segment.stop, size):
            stop = min(start + size, segment.stop)
            begins, ends = start == segment.start, stop == segment.stop
            yield self._part(start, stop, columns, extras, reset, begins=begins, ends=ends)

    def _part(
        self,
        start: int,
        stop: int,
        columns: InfoColumns,
        extras: dict[str, tuple[LeafType, bool]],
        reset: list[Any],
        *,
        begins: bool,
        ends: bool,
    ) -> Part:
        places = self._order[start:stop]
        observations = self._observations(places, ends=ends)
        actions = self._transitions.gather(places, list(self.leaves["action"]))
        terminated = self._terminated[start:stop].copy()
        truncated = self._truncated[start:stop].copy()
        if ends and not terminated[-1]:
            truncated[-1] = True
        infos = columns.columns([*(reset if begins else []), *self._infos_of(start, stop)])
        if extras:
            name = EXTRAS
            while name in infos:
                name += "_"
            infos[name] = self._extra_columns(start, stop, extras, begins=begins)
        return Part(
            observations,
            nested((leaf.keys, actions[name]) for name, leaf in self.leaves["action"].items()),
            self._rewards(self._rows[start:stop]),
            terminated,
            truncated,
            infos,
            begins,
            ends,
        )

    def _observations(self, places: Rows, *, ends: bool) -> Any:
        count = len(places)
        leaves = self.leaves["observation"]
        made = {
            name: np.empty((count + ends, *leaf.shape), leaf.dtype) for name, leaf in leaves.items()
        }
        out = {name: array[:count] for name, array in made.items()}
        self._transitions.gather(places, list(out), out=out)
        if ends:
            last = self._transitions.gather(places[-1:], [f"next_{name}" for name in made])
            for name, array in made.items():
                array[count] = last[f"next_{name}"][0]
        return nested((leaf.keys, made[name]) for name, leaf in leaves.items())

    def _rewards(self, rows: Rows) -> npt.NDArray[np.float64]:
        arrays = self.run.arrays
        if "rewards" not in arrays.fields:
            return np.full(len(rows), np.nan)
        rewards: npt.NDArray[np.float64] = arrays.read("rewards", rows).astype(np.float64)
        rewards[~arrays.are_valid("rewards", rows)] = np.nan
        return rewards

    def _extras_of(self, segment: Segment) -> dict[str, tuple[LeafType, bool]]:
        """Return the extras that steps of a segment have, and whether all of them do."""
        rows = self._rows[segment.start : segment.stop]
        found = {}
        for name, leaf in self._extras.items():
            are_valid = self.run.arrays.are_valid(self.run.arrays.field_of(name), rows)
            if are_valid.any():
                found[name] = leaf, bool(are_valid.all())
        return found

    def _extra_columns(
        self, start: int, stop: int, extras: dict[str, tuple[LeafType, bool]], *, begins: bool
    ) -> dict[str, Any]:
        values = self._transitions.gather(self._order[start:stop], list(extras))
        made: dict[str, Any] = {}
        for name, (leaf, is_whole) in extras.items():
            rows = self._rows[start:stop]
            are_valid = self.run.arrays.are_valid(self.run.arrays.field_of(name), rows)
            missing: Any = np.nan if leaf.dtype.kind in "fc" else 0
            column = np.full((begins + len(rows), *leaf.shape), missing, leaf.dtype)
            column[begins:][are_valid] = values[name][are_valid]
            below = made
            *folders, last = map(str, leaf.keys)
            for folder in folders:
                below = below.setdefault(folder, {})
            below[last] = column
            if not is_whole:
                below[MASK + last] = np.concatenate((np.zeros(int(begins), np.bool_), are_valid))
        return made

    def _infos_of(self, start: int, stop: int) -> Sequence[dict[str, Any]]:
        """Return infos of steps in the order of episodes, of which many are read at once."""
        if not self._infos_from <= start <= stop <= self._infos_from + len(self._infos):
            end = min(max(stop, start + self._part_rows), len(self))
            self._infos_from, self._infos = start, self.run.infos(self._rows[start:end])
        return self._infos[start - self._infos_from : stop - self._infos_from]

    @cached_property
    def _part_rows(self) -> int:
        row_bytes = self.step_bytes + _INFO_BYTES
        return max(1, min(_MAX_PART, _PART_BYTES // row_bytes))

    @cached_property
    def _episodes(self) -> dict[int, Any]:
        return {row.number: row for row in self.run.source.episodes}

    def _leaves(self, field: str, name: str) -> dict[str, LeafType]:
        return {
            name + spec.name.removeprefix(field): LeafType(
                tuple(spec.keys), np.dtype(spec.dtype), tuple(spec.shape)
            )
            for spec in self.run.arrays.fields[field]
        }


def _is_extra(field: str) -> bool:
    return field.startswith(f"{EXTRAS}.")


def _leaf_bytes(leaf: LeafType) -> int:
    return math.prod(leaf.shape) * leaf.dtype.itemsize


def _parsed(text: str) -> dict[str, Any]:
    found = json.loads(text)
    return found if isinstance(found, dict) else {}
