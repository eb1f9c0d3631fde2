"""Compares the steps of the source with the runs of a root, bit by bit and in both lanes."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from relive.errors import CorruptError, UnknownFieldError, UnknownNameError
from relive.replay.columns import flatten
from relive.replay.migrate.blobs import DamagedError, is_same, short
from relive.replay.migrate.catalog import OriginalEpisode, OriginalRun
from relive.replay.migrate.migration import CopiedEpisode, Migration
from relive.replay.migrate.report import MigrationProblem
from relive.replay.migrate.rows import BLOBS, COLUMNS, ORIGINAL, StepValues
from relive.replay.migrate.target import info_field
from relive.replay.resolve import FrameRef
from relive.replay.source import DatabaseSource
from relive.replay.storage.connection import Database
from relive.replay.storage.tables import STEP_COLUMNS, migrated_from
from relive.replay.storage.values import stored_reward
from relive.replay.writing.steps import ACTIONS, REWARDS

_MISSING: Final = "the root does not have the step"
_WINDOW_STEPS: Final = 256
_WINDOW_BYTES: Final = 8 << 20
_MICROSECOND_NS: Final = 1000

_Window = Sequence[tuple[int, StepValues]]


def verify(migration: Migration, database: Database) -> None:
    """Compare every step of the source with the root."""
    migration.report.verified = 0
    for run in migration.catalog.runs():
        _verify_run(migration, database, run)
    migration.progress("verify", migration.steps, migration.steps)


def _verify_run(migration: Migration, database: Database, run: OriginalRun) -> None:
    report = migration.report
    known = migration.known_run(database, run)
    if known is not None and known.status == "deleted":
        if run.run_id not in report.skipped_runs:  # it was deleted after the copy
            report.skipped_runs.append(run.run_id)
        migration.catalog.leave_out_run(run)
        return
    compared: _RunComparison | None = None
    try:
        compared = _RunComparison(migration, database, run)
    except UnknownNameError:
        pass  # every step of it is missing
    except CorruptError as error:
        report.add_problem(MigrationProblem(run.run_id, "", "", None, error.message))
        return
    steps = 0
    for episode in migration.catalog.episodes(run):
        steps += migration.catalog.count(episode)
        copied = migration.copied(database, episode)
        names = [episode.segment(number) for number in range(copied.segments)]
        may_be_late = compared is not None and compared.has_all(episode.agent_id, names, copied)
        # Steps are copied in their order: one that is missing before the last one came later.
        late_before = copied.last if may_be_late else 0
        for window in _windows(migration, episode):
            _compare_window(migration, compared, episode, names, window, late_before=late_before)
    if compared is not None:
        report.extra += max(0, compared.steps - steps)
        report.uncompared = tuple(sorted({*report.uncompared, *compared.uncompared}))


def _compare_window(
    migration: Migration,
    compared: "_RunComparison | None",
    episode: OriginalEpisode,
    names: Sequence[str],
    window: _Window,
    *,
    late_before: int,
) -> None:
    report = migration.report
    late = 0
    if compared is None:
        found = [(step_index, _MISSING) for step_index, _ in window]
    else:
        found = compared.differences(episode.agent_id, names, window)
    for step_index, message in found:
        if message == _MISSING and step_index < late_before:
            migration.catalog.leave_out(migration.catalog.rows(episode, step_index)[0])
            late += 1
        else:
            report.add_problem(_problem(episode, step_index, message))
    report.verified = (report.verified or 0) + len(window) - late
    migration.progress("verify", report.verified, max(report.verified, migration.steps))


def _windows(
    migration: Migration, episode: OriginalEpisode
) -> Iterator[list[tuple[int, StepValues]]]:
    """Iterate over the steps of an episode in parts that fit into memory."""
    window: list[tuple[int, StepValues]] = []
    nbytes = 0
    for step_index, rowid in migration.catalog.steps(episode):
        try:
            values = migration.values(episode, step_index, rowid)
        except DamagedError as error:
            migration.catalog.leave_out(rowid)
            if not migration.skip_damaged:
                migration.report.add_problem(_problem(episode, step_index, str(error)))
            continue
        if values is None:
            continue
        window.append((step_index, values))
        nbytes += values.nbytes
        if len(window) == _WINDOW_STEPS or nbytes >= _WINDOW_BYTES:
            yield window
            window, nbytes = [], 0
    if window:
        yield window


def _problem(episode: OriginalEpisode, step_index: int, message: str) -> MigrationProblem:
    run_id, agent_id = episode.run.run_id, episode.agent_id
    return MigrationProblem(run_id, episode.episode_id, agent_id, step_index, message)


class _DifferenceError(Exception):
    """A step of the root is not that of the source."""


@dataclass(frozen=True, slots=True)
class _Pair:
    """A row of the source, and where the root has its step."""

    step_index: int
    values: StepValues
    episode: tuple[str, str]
    """Its episode and agent in the root."""
    row: int


class _RunComparison:
    """Compares rows of the source with the steps of one run."""

    def __init__(self, migration: Migration, database: Database, run: OriginalRun) -> None:
        self._source = DatabaseSource(migration.root, run.run_id)
        self.steps = self._source.run.steps
        """How many steps the run has."""
        self._arrays = self._source.arrays
        self._database = database
        self._run_id = run.run_id
        self._absent = set(BLOBS).difference(migration.source.columns)
        """Columns of arrays that the source does not have."""
        # Of a run that was recorded here, only the values that every recorder has are compared.
        self._is_migrated = migrated_from(self._source.run) == run.name
        self._shared = {
            (row.episode_id, row.agent_id): json.loads(row.metadata or "{}").get("columns", {})
            for row in self._source.episodes
            if self._is_migrated
        }

    @property
    def uncompared(self) -> list[str]:
        """The columns that the source does not have, and whose arrays the run has."""
        fields = self._arrays.fields
        return [
            column for name, column in COLUMNS.items() if column in self._absent and name in fields
        ]

    def has_all(self, agent_id: str, episodes: Sequence[str], copied: CopiedEpisode) -> bool:
        """Check whether the run has every step of an episode that was copied to it."""
        count = 0
        for episode in episodes:
            ((steps,),) = self._database.rows(
                "SELECT count(*) FROM steps WHERE run_id = ? AND episode_id = ? AND agent_id = ?",
                (self._run_id, episode, agent_id),
            )
            count += steps
        return self._is_migrated and count == copied.steps

    def differences(
        self, agent_id: str, episodes: Sequence[str], window: _Window
    ) -> list[tuple[int, str]]:
        """Return the steps that differ, each with what differs."""
        places = self._places(agent_id, episodes, window)
        found = {index: _MISSING for index, _ in window if index not in places}
        pairs = [
            _Pair(index, values, (places[index][0], agent_id), places[index][1])
            for index, values in window
            if index in places
        ]
        try:
            for place, message in self._compare(pairs):
                found.setdefault(pairs[place].step_index, message)
        except (CorruptError, UnknownFieldError) as error:  # damage, or a run without arrays
            for pair in pairs:
                found.setdefault(pair.step_index, error.message)
        return sorted(found.items())

    def _places(
        self, agent_id: str, episodes: Sequence[str], window: _Window
    ) -> dict[int, tuple[str, int]]:
        """Return the episode and row that the root has for each step index."""
        places: dict[int, tuple[str, int]] = {}
        for episode in episodes:
            for step_index, row in self._database.rows(
                "SELECT step_index, row FROM steps WHERE run_id = ? AND episode_id = ? "
                "AND agent_id = ? AND step_index BETWEEN ? AND ?",
                (self._run_id, episode, agent_id, window[0][0], window[-1][0]),
            ):
                places[step_index] = episode, row
        return places

    def _compare(self, pairs: Sequence[_Pair]) -> Iterator[tuple[int, str]]:
        """Iterate over the positions of steps that differ, and what differs."""
        if not pairs:
            return
        rows = np.array([pair.row for pair in pairs], np.int64)
        arrays: dict[str, list[tuple[int, Any]]] = {}
        scalars = self._array_scalars(rows)
        for place, (pair, row) in enumerate(zip(pairs, self._source.step_rows(rows), strict=True)):
            stored = dict(zip(STEP_COLUMNS, row, strict=True))
            try:
                _compare_scalars(pair, stored)
                _compare_scalars(pair, {name: scalars[name][place] for name in scalars})
                expected = self._compare_documents(pair, stored)
            except _DifferenceError as error:
                yield place, str(error)
                continue
            for name, value in expected.items():
                arrays.setdefault(name, []).append((place, value))
        for name, wanted in arrays.items():
            yield from self._compare_field(name, wanted, rows)
        for name in COLUMNS:
            yield from self._unexpected(name, arrays.get(name, ()), rows)

    def _array_scalars(self, rows: npt.NDArray[np.int64]) -> dict[str, list[Any]]:
        """Return the scalars that the array lane has."""
        has_reward = self._arrays.are_valid(REWARDS, rows).tolist()
        rewards = self._arrays.read(REWARDS, rows).tolist()
        names = ("terminated", "truncated", "ts_ns", "step_index")
        return {
            # SQLite has no NaN.
            "reward": [
                stored_reward(r) if has else None
                for r, has in zip(rewards, has_reward, strict=True)
            ],
            **{name: self._arrays.read(name, rows).tolist() for name in names},
        }

    def _compare_documents(self, pair: _Pair, stored: Mapping[str, Any]) -> dict[str, Any]:
        """Compare everything of a step that is JSON; return its arrays by field."""
        values = pair.values
        if not self._is_migrated:
            return dict(values.arrays)
        info = json.loads(stored["info"] or "{}")
        original = info.pop(ORIGINAL, {})
        fields = original.get("fields", {})
        columns = {**self._shared[pair.episode], **original.get("columns", {})}
        wanted = dict(values.columns)
        arrays: dict[str, Any] = {}
        for name, value in values.arrays.items():
            place = fields.get(name, name)
            if place is None:
                wanted[COLUMNS[name]] = values.documents[name]
            else:
                arrays[place] = value
        for name in sorted({*columns, *wanted} - self._absent):
            _check_same(f"`{name}`", columns.get(name), wanted.get(name))
        _compare_action(arrays.get(ACTIONS), stored)
        return {**arrays, **self._compare_info(pair, info)}

    def _compare_info(self, pair: _Pair, info: Mapping[str, Any]) -> dict[str, Any]:
        """Compare an info; return its large arrays by field."""
        values = pair.values
        arrays: dict[str, Any] = {}
        for key in sorted({*info, *values.info}):
            large = values.large.get(key)
            ref = FrameRef(self._run_id, info_field(key), pair.row).to_uri()
            if large is not None and info.get(key) == ref:
                arrays[info_field(key)] = large
            else:
                _check_same(f"info[{key!r}]", info.get(key), values.info.get(key))
        return arrays

    def _compare_field(
        self, name: str, wanted: Sequence[tuple[int, Any]], rows: npt.NDArray[np.int64]
    ) -> Iterator[tuple[int, str]]:
        """Compare the arrays of a field."""
        part = rows[[place for place, _ in wanted]]
        are_valid = self._arrays.are_valid(name, part)
        specs = self._arrays.fields.get(name, ())
        found = {spec.name: self._arrays.read(spec.name, part) for spec in specs}
        for number, (place, value) in enumerate(wanted):
            leaves = {leaf.name: leaf.array for leaf in flatten(name, value)}
            if not are_valid[number]:
                yield place, f"the root does not have the value of `{name}`"
            elif leaves.keys() != found.keys():
                yield place, f"`{name}` has other keys"
            else:
                for leaf, array in leaves.items():
                    if not _is_array_equal(name, array, np.asarray(found[leaf][number])):
                        yield place, f"`{leaf}` has another value"

    def _unexpected(
        self, name: str, wanted: Sequence[tuple[int, Any]], rows: npt.NDArray[np.int64]
    ) -> Iterator[tuple[int, str]]:
        """Find values of a field that only the root has."""
        if COLUMNS[name] in self._absent:
            return
        places = {place for place, _ in wanted}
        for place in np.flatnonzero(self._arrays.are_valid(name, rows)).tolist():
            if place not in places:
                yield place, f"the root has a value of `{name}`, but the source has none"


def _compare_scalars(pair: _Pair, stored: Mapping[str, Any]) -> None:
    values = pair.values
    for name, expected in (
        ("reward", values.reward),
        ("terminated", values.terminated),
        ("truncated", values.truncated),
        ("step_index", pair.step_index),
    ):
        if stored[name] != expected:
            raise _DifferenceError(f"`{name}` is {stored[name]!r}, expected {expected!r}")
    if stored["ts_ns"] // _MICROSECOND_NS != values.ts_ns // _MICROSECOND_NS:
        raise _DifferenceError(f"`ts_ns` is {stored['ts_ns']}, expected {values.ts_ns}")


def _compare_action(action: Any, stored: Mapping[str, Any]) -> None:
    """Compare an action that is a number with that in the database."""
    if isinstance(action, np.ndarray) and not action.shape and stored["action_ref"] is None:
        got = np.asarray(stored["action"])
        if not _is_number_equal(action, got):
            raise _DifferenceError(f"`action` is {got.item()!r}, expected {action.item()!r}")


def _check_same(what: str, got: Any, expected: Any) -> None:
    if not is_same(got, expected):
        raise _DifferenceError(f"{what} is {short(got)}, expected {short(expected)}")


def _is_array_equal(name: str, one: npt.NDArray[Any], other: npt.NDArray[Any]) -> bool:
    if name == ACTIONS and _is_number_equal(one, other):
        return True
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    # A number of JSON that is NaN has lost its other bits.
    is_nan = not one.shape and one.dtype.kind == "f" and bool(np.isnan(one) and np.isnan(other))
    return is_nan or one.tobytes() == other.tobytes()


def _is_number_equal(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> bool:
    """Compare numbers; SQLite may have made an integer of a float."""
    are_numbers = (
        not one.shape and not other.shape and {one.dtype.kind, other.dtype.kind} <= {*"bif"}
    )
    return are_numbers and bool(one == other)
