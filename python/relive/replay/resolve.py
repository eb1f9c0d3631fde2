"""References to arrays of runs, and what they refer to."""

import contextlib
import os
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from relive._arguments import as_int
from relive.errors import (
    ClosedError,
    CorruptError,
    InvalidError,
    NotFoundError,
    OutOfRangeError,
    ReliveError,
    UnknownFieldError,
    UnknownNameError,
)
from relive.model.ref import Ref
from relive.replay.arrays import VALID, RunArrays
from relive.replay.columns import ColumnSpec, unflatten
from relive.replay.source import RunSource, source_of
from relive.replay.storage.connection import Database
from relive.replay.storage.layout import (
    arrays_path,
    check_run_id,
    database_path,
    is_hdf5,
    is_run_id,
    replay_root,
    run_ids,
)

SCHEME: Final = "h5"


@dataclass(frozen=True, order=True, slots=True)
class FrameRef:
    """A row of an array of a run: `h5://run_abc123/frames/1523`.

    Example:
        >>> from relive.replay import FrameRef
        >>> FrameRef.parse("h5://run-1/frames/12")
        FrameRef(run_id='run-1', dataset='frames', index=12)
        >>> FrameRef.parse("h5://run-1/frames/12junk") is None
        True
    """

    run_id: str
    dataset: str
    """The field, or a leaf of one: `observations.image`."""
    index: int
    """The number of the step in its run."""

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Parse a reference; None if the text is not one."""
        try:
            ref = Ref.parse(text)
            if ref.scheme != SCHEME:
                return None
            return cls(check_run_id(ref.container), ref.field, ref.index)
        except InvalidError:
            return None

    def to_uri(self) -> str:
        """Return the reference as text."""
        return str(Ref(SCHEME, self.run_id, self.dataset, self.index))

    def __str__(self) -> str:
        """Return the reference as text."""
        return self.to_uri()


class FrameResolver:
    """Reads what references refer to. Thread-safe.

    A reference that is malformed, or to an unknown run, field or step, is None; `strict=True`
    raises an error instead. Damage always raises an error. Steps that were recorded after the
    first read are found too.

    Args:
        replay_dir: The directory `replay` of a root.
        max_open_files: How many runs stay open; the one that was used least recently is closed.

    Example:
        >>> import tempfile
        >>> from relive.replay import FrameResolver, ReplayRecorder
        >>> root = tempfile.mkdtemp()
        >>> with ReplayRecorder(root, "run-1") as recorder:
        ...     refs = [recorder.step([number], 0, 1.0).observation for number in (5, 6, 7)]
        >>> with FrameResolver(root + "/replay") as resolver:
        ...     found = resolver.resolve_batch([refs[2], None, refs[0], "h5://run-1/frames/0"])
        >>> found
        [array([7]), None, array([5]), None]
    """

    def __init__(self, replay_dir: str | os.PathLike[str], max_open_files: int = 10) -> None:
        self._root = replay_root(replay_dir)
        self._max_open = as_int("max_open_files", max_open_files, at_least=1)
        self._lock = threading.Lock()
        self._open: OrderedDict[str, RunSource] = OrderedDict()
        self._decoded = 0
        """Chunks that were decoded by sources that are not open any more."""
        self._is_closed = False

    def resolve(self, ref: str | FrameRef | None, *, strict: bool = False) -> Any:
        """Return what a reference refers to: an array, or nested arrays; or else None."""
        return self.resolve_batch([ref], strict=strict)[0]

    def resolve_batch(
        self, refs: Iterable[str | FrameRef | None], *, strict: bool = False
    ) -> list[Any]:
        """Return what each reference refers to, in their order.

        Each chunk that is needed is read and decoded once.
        """
        if self._is_closed:
            raise ClosedError("the resolver is closed")
        wanted = list(refs)
        results: list[Any] = [None] * len(wanted)
        runs: dict[str, list[tuple[int, FrameRef]]] = {}
        for place, ref in enumerate(wanted):
            parsed = self._parsed(ref, strict=strict)
            if parsed is not None:
                runs.setdefault(parsed.run_id, []).append((place, parsed))
        for run_id, group in runs.items():
            if not strict and not is_run_id(run_id):
                continue
            try:
                source = self._current(run_id, [ref for _, ref in group])
            except (NotFoundError, UnknownNameError):
                if strict:
                    raise
                continue
            _read(source, group, results, strict=strict)
        return results

    def has_run(self, run_id: str) -> bool:
        """Check whether there is a run of this id."""
        try:
            return run_id in self.list_runs()
        except NotFoundError:
            return False

    def list_runs(self) -> list[str]:
        """Return the ids of all runs, sorted: those of the database, and other closed files."""
        files = run_ids(self._root)
        known: dict[str, str] = {}
        # The database does not exist, or has no tables yet.
        with (
            contextlib.suppress(NotFoundError),
            Database.open(database_path(self._root)) as database,
        ):
            known = dict(database.rows("SELECT run_id, status FROM runs"))
        found = {
            run_id for run_id, status in known.items() if status != "deleted" and is_run_id(run_id)
        }
        found |= {run_id for run_id in files if is_hdf5(arrays_path(self._root, run_id))}
        return sorted(found)

    def get_run_info(self, run_id: str) -> dict[str, Any] | None:
        """Return the status, the steps, the episodes and the fields of a run; None without it."""
        if not is_run_id(run_id):
            return None
        try:
            source = self._source(run_id).refreshed()
        except (NotFoundError, UnknownNameError):
            return None
        run = source.run
        return {
            "run_id": run.run_id,
            "uid": run.uid,
            "status": (
                "interrupted" if run.status == "recording" and not source.is_live else run.status
            ),
            "total_steps": run.steps,
            "total_episodes": len(source.episodes),
            "created_ns": run.created_ns,
            "datasets": {
                spec.name: {"dtype": spec.dtype, "shape": spec.shape}
                for specs in source.arrays.fields.values()
                for spec in specs
            },
        }

    @property
    def decoded(self) -> int:
        """How many chunks were decoded so far."""
        with self._lock:
            opened = self._open.values()
            return self._decoded + sum(source.arrays.decoded for source in opened)

    def close(self) -> None:
        """Close all runs. May be called again."""
        with self._lock:
            self._is_closed = True
            while self._open:
                self._forget(self._open.popitem()[1])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the directory; another process opens the runs again."""
        return FrameResolver, (self._root / "replay", self._max_open)

    def _parsed(self, ref: str | FrameRef | None, *, strict: bool) -> FrameRef | None:
        if ref is None or isinstance(ref, FrameRef):
            return ref
        parsed = FrameRef.parse(ref)
        if parsed is None and strict:
            raise InvalidError(
                f"{ref!r} is not a reference to an array of a run",
                hint="for example h5://run_abc123/frames/1523",
            )
        return parsed

    def _source(self, run_id: str) -> RunSource:
        with self._lock:
            source = self._open.get(run_id)
            if source is not None:
                self._open.move_to_end(run_id)
                return source
        return self._keep(run_id, self._opened(check_run_id(run_id)))

    def _opened(self, run_id: str) -> RunSource:
        path = arrays_path(self._root, run_id)
        try:
            return source_of(path)
        except CorruptError:
            # A recorder makes the file, and commits the run with its first steps.
            if is_hdf5(path) or run_id in self.list_runs():
                raise
            raise UnknownNameError(f"no run has the id {run_id!r}") from None

    def _keep(self, run_id: str, source: RunSource) -> RunSource:
        with self._lock:
            if run_id in self._open:
                self._forget(self._open.pop(run_id))
            self._open[run_id] = source
            while len(self._open) > self._max_open:
                self._forget(self._open.popitem(last=False)[1])
        return source

    def _forget(self, source: RunSource) -> None:
        self._decoded += source.arrays.decoded

    def _current(self, run_id: str, refs: Sequence[FrameRef]) -> RunSource:
        """Return a run that has what the references are to, or else the run as it is now."""
        source = self._source(run_id)
        if not source.is_valid():
            with self._lock:
                self._open.pop(run_id, None)
                self._forget(source)
            return self._source(run_id)
        if all(_has(source, ref) for ref in refs):
            return source
        return self._keep(run_id, source.refreshed())


def _columns(source: RunSource, field: str) -> Sequence[ColumnSpec]:
    """Return the columns of a field, or the one column of a leaf; none if both are unknown."""
    arrays = source.arrays
    if field in arrays.fields:
        return arrays.fields[field]
    spec = arrays.columns.get(field)
    return [spec] if spec is not None and spec.field in arrays.fields else []


def _count(source: RunSource, spec: ColumnSpec) -> int:
    """Return how many rows a column has."""
    return source.run.steps if spec.rows_of == "steps" else source.run.ends


def _has(source: RunSource, ref: FrameRef) -> bool:
    specs = _columns(source, ref.dataset)
    return bool(specs) and ref.index < _count(source, specs[0])


class _Rows:
    """The rows that are needed of each column, which are read all at once."""

    def __init__(self) -> None:
        self._rows: dict[str, list[int]] = {}
        self._values: dict[str, npt.NDArray[Any]] = {}

    def add(self, column: str, row: int) -> tuple[str, int]:
        """Note a row; return what `value` takes."""
        rows = self._rows.setdefault(column, [])
        rows.append(row)
        return column, len(rows) - 1

    def value(self, arrays: RunArrays, column: str, place: int) -> Any:
        """Return a row that was noted."""
        if column not in self._values:
            self._values[column] = arrays.read(column, np.array(self._rows[column], np.int64))
        return self._values[column][place]


def _read(
    source: RunSource,
    group: Sequence[tuple[int, FrameRef]],
    results: list[Any],
    *,
    strict: bool,
) -> None:
    """Fill in the results of references to one run."""
    arrays = source.arrays
    rows = _Rows()
    found = []
    for place, ref in group:
        specs = _columns(source, ref.dataset)
        if not specs or not 0 <= ref.index < _count(source, specs[0]):
            if strict:
                raise _missing(source, ref, specs)
            continue
        flag = VALID + specs[0].field
        valid = rows.add(flag, ref.index) if flag in arrays.fields else None
        is_leaf = ref.dataset not in arrays.fields
        leaves = [(() if is_leaf else spec.keys, rows.add(spec.name, ref.index)) for spec in specs]
        found.append((place, ref, valid, leaves))
    for place, ref, valid, leaves in found:
        if valid is None or rows.value(arrays, *valid):
            results[place] = unflatten((keys, rows.value(arrays, *at)) for keys, at in leaves)
        elif strict:
            raise UnknownNameError(f"step {ref.index} of run {ref.run_id!r} has no {ref.dataset}")


def _missing(source: RunSource, ref: FrameRef, specs: Sequence[ColumnSpec]) -> ReliveError:
    """Return the error of a reference to a field or a row that a run does not have."""
    if specs:
        what = "steps" if specs[0].rows_of == "steps" else "last observations"
        count = _count(source, specs[0])
        return OutOfRangeError(
            f"index {ref.index} is out of range: run {ref.run_id!r} has {count} {what}"
        )
    names = sorted({*source.arrays.fields, *source.arrays.columns})
    return UnknownFieldError(
        f"run {ref.run_id!r} has no field {ref.dataset!r}; the fields are "
        f"{', '.join(map(repr, names)) or 'none'}"
    )
