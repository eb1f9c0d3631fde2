"""The array lane: the columns of a run in an HDF5 file, and their chunks."""

import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from relive._arguments import as_text
from relive._native import PlainColumns, RunArraysReader, RunArraysWriter, RunPlanes, StepArrays
from relive.errors import InvalidError, TooLargeError, UnknownFieldError
from relive.replay.columns import (
    ColumnSpec,
    Keys,
    Leaf,
    RowsOf,
    StackAxis,
    chunk_rows,
    conversion_hint,
    flatten,
    leaf_name,
    names_of,
    unflatten,
)
from relive.replay.config import ReplayConfig
from relive.replay.storage.files import missing_arrays
from relive.replay.storage.tables import Batch, Growth, RunTables
from relive.store.atomic import storage_error

FINAL: Final = "final."
"""Begins the names of fields that have what was seen after the last step of an episode."""
VALID: Final = "valid."
"""Begins the names of fields that say which rows of another field exist."""

SCALARS: Final = frozenset(
    {"rewards", "terminated", "truncated", "episode", "step_index", "ts_ns", "final.episode"}
)
"""Fields of one number per row, which are appended for many rows at once."""

_ARGUMENTS: Final = {
    "frames": "frame",
    "observations": "observation",
    "final.frames": "next_frame",
    "final.observations": "next_observation",
}
"""The arguments whose values must have one shape and dtype, by field."""
_STACKED: Final = "observations"
"""The field whose leaves may be stacks."""
_MIN_STACK: Final = 2
_COLORS: Final = 3
_MAX_STACK: Final = 16
_MIN_PLANE_BYTES: Final = 256
_READ_THREADS: Final = 2

Present = tuple[str, ...]
"""The names of the fields that a row has."""
SmallDataset = tuple[str, str, list[int], bytes]
"""Path, dtype, shape and bytes."""


class ArrayLane:
    """The arrays of one run while it is recorded.

    One thread at a time calls `copy`, and one calls everything else.
    """

    def __init__(self, path: Path, config: ReplayConfig, tables: RunTables) -> None:
        self._config = config
        self._adding = threading.Lock()  # held while a column is made
        self._columns: dict[str, tuple[int, ColumnSpec]] = {}
        self._specs: list[ColumnSpec] = []
        self._leaves: dict[str, tuple[str, ...]] = {}
        """The names of the leaves of each field."""
        self._presents: dict[Present, Present] = {}
        self._plain = PlainColumns(self._presents)
        self._seen: dict[RowsOf, set[str]] = {"steps": set(), "ends": set()}
        """The fields that some row has."""
        self._valid: dict[RowsOf, set[str]] = {"steps": set(), "ends": set()}
        """The fields that some row does not have."""
        self._paths: list[str] = []
        end = tables.run.arrays_end
        if end and not path.exists():
            _make_again(path, tables)
        self._writer = RunArraysWriter(path, end=end or None, threads=config.workers)
        if tables.columns:
            self._continue(path, tables)
        self._added = self._described = len(self._specs)

    def copy(
        self, stream: int, values: dict[str, Any], last: Mapping[str, Any] | None = None
    ) -> tuple[StepArrays, Present]:
        """Return copies of the arrays of a row, and the names of the fields that are not None.

        `last` are values of `final` fields that will be copied after these. If they do not fit to
        these, nothing is changed.
        """
        copied = self._plain.copy(stream, values)
        if copied is not None:
            return copied
        arrays: list[tuple[int, npt.NDArray[Any]]] = []
        present = []
        nested = []
        for field, value in values.items():
            if value is None:
                continue
            leaves = flatten(field, value)
            if leaves:  # an empty dict has none
                present.append(field)
                self._check(field, leaves)
                nested.append((field, leaves))
        for field, value in (last or {}).items():
            before = [leaves for name, leaves in nested if FINAL + name == field]
            if before and value is not None and field not in self._leaves:
                _check_like(field, flatten(field, value), _layout(before[0]))
        # Only now that nothing is refused: columns keep the dtype and shape of their first row.
        for field, leaves in nested:
            self._leaves.setdefault(field, names_of(leaves))
            for leaf in leaves:
                known = self._columns.get(leaf.name) or self._new(field, leaf.keys, leaf.array)
                arrays.append((known[0], leaf.array))
                if not leaf.keys:  # from the next step on
                    self._plain.add(field, known[0], leaf.array.dtype, list(leaf.array.shape))
        key = tuple(present)
        return StepArrays(stream, arrays), self._presents.setdefault(key, key)

    def accepts(self, field: str, array: npt.NDArray[Any]) -> bool:
        """Check whether a field can have this array, as all of its arrays are like the first."""
        known = self._columns.get(field)
        if known is not None:
            return known[1].shape == array.shape and known[1].dtype == array.dtype.str
        try:
            as_text("a field", field)
            self._spec(field, (), array, "steps").check_storable()
        except (InvalidError, TooLargeError):
            return False
        return "\0" not in field

    def append(
        self,
        items: Sequence[Any],
        first_row: int,
        first_end: int,
        scalars: Mapping[str, npt.NDArray[Any]],
    ) -> None:
        """Append the arrays of steps and ends of episodes, which are in rows of their own.

        `scalars` are rows of further fields, one for each step.
        """
        columns = []
        for field, values in scalars.items():
            known = self._columns.get(field) or self._new(field, (), values[0], "steps")
            columns.append((known[0], first_row, values))
        self._add_columns()
        self._writer.append_items(items, first_end, columns)

    def append_rows(
        self, field: str, first_row: int, values: npt.NDArray[Any], rows_of: RowsOf = "steps"
    ) -> None:
        """Append consecutive rows of a field."""
        known = self._columns.get(field) or self._new(field, (), values[0], rows_of)
        self._add_columns()
        self._writer.append_rows(known[0], first_row, np.ascontiguousarray(values))

    def append_validity(
        self, first_row: int, presents: Sequence[Present], rows_of: RowsOf = "steps"
    ) -> None:
        """Note which fields consecutive rows have."""
        seen, first = self._seen[rows_of] - SCALARS, presents[0]
        is_same = presents.count(first) == len(presents)
        if is_same and seen == set(first) and not self._valid[rows_of] - SCALARS:
            return
        for field in sorted(seen.union(*presents)):
            flags = np.array([field in present for present in presents])
            self.append_flags(field, first_row, flags, rows_of)

    def append_flags(
        self, field: str, first_row: int, flags: npt.NDArray[np.bool_], rows_of: RowsOf = "steps"
    ) -> None:
        """Note which of consecutive rows have a field. One that every row has needs no note."""
        seen, valid = self._seen[rows_of], self._valid[rows_of]
        if field not in valid:
            if flags.all() and (field in seen or first_row == 0):
                seen.add(field)
                return
            if field in seen and first_row > 0:
                self.append_rows(VALID + field, 0, np.ones(first_row, np.bool_), rows_of)
            valid.add(field)
        seen.add(field)
        self.append_rows(VALID + field, first_row, flags, rows_of)

    def commit(self, batch: Batch) -> None:
        """Write full chunks, and add to a batch what must be committed with the rows so far."""
        self._add(batch, self._writer.commit())

    def finish(
        self,
        batch: Batch,
        attributes: Mapping[str, str | int],
        datasets: Iterable[SmallDataset],
        *,
        steps: int,
        ends: int,
    ) -> None:
        """Write everything that is left, and the metadata of HDF5."""
        self._add_columns()
        self._add(batch, self._writer.finish(steps, ends, dict(attributes), list(datasets)))

    def write_snapshot(self, attributes: Mapping[str, str | int]) -> None:
        """Write metadata of HDF5, so that other programs can read the full chunks so far."""
        self._writer.write_snapshot(dict(attributes), [])

    def sync(self) -> None:
        """Make what was written survive a power cut."""
        self._writer.sync()

    @property
    def columns(self) -> list[tuple[int, ColumnSpec]]:
        """The columns so far, with their numbers."""
        return list(enumerate(self._specs))

    @property
    def metadata(self) -> tuple[int, int, int] | None:
        """Offset, bytes and CRC-32C of the metadata of HDF5 that was written last."""
        return self._writer.metadata

    @property
    def end(self) -> int:
        """Where the next bytes of the file go."""
        return self._writer.end

    def _check(self, field: str, leaves: Sequence[Leaf]) -> None:
        """Raise an `InvalidError` unless a value has the leaves that its field had before."""
        names = names_of(leaves)
        known_names = self._leaves.get(field, names)
        if names != known_names and set(names) != set(known_names):
            raise InvalidError(
                f"`{field}` must have the same keys in every step, got "
                f"{', '.join(names)} instead of {', '.join(known_names)}",
                hint="use another run_id for another environment",
            )
        for leaf in leaves:
            known = self._columns.get(leaf.name)
            if known is not None:
                known[1].check(leaf.array)
            else:
                self._spec(field, leaf.keys, leaf.array, _rows_of(field)).check_storable()
        if field in _ARGUMENTS and field not in self._leaves:
            other = field.removeprefix(FINAL) if field.startswith(FINAL) else FINAL + field
            if other in self._leaves:
                _check_like(field, leaves, self._layout_of(other))

    def _layout_of(self, field: str) -> "_Layout":
        """Return the shape and dtype of each leaf of a field."""
        specs = [self._columns[name][1] for name in self._leaves[field]]
        return {_below(spec.name): (spec.shape, spec.dtype) for spec in specs}

    def _continue(self, path: Path, tables: RunTables) -> None:
        """Continue the columns of a run that was recorded before."""
        arrays = RunArrays(path, tables)
        for number, spec in enumerate(tables.columns):
            first = len(self._paths)
            states = [arrays.open_rows(first + place) for place in range(len(spec.paths))]
            planes = states[0][0] if len(states) > 1 else 0
            self._paths += self._writer.add_column(spec.described(), planes=planes)
            for place, (name, (rows, opened)) in enumerate(zip(spec.paths, states, strict=True)):
                chunks = sorted(tables.chunks.get(name, ()))
                self._writer.restore(first + place, chunks, rows, opened)
            self._specs.append(spec)
            self._columns[spec.name] = (number, spec)
            self._leaves[spec.field] = (*self._leaves.get(spec.field, ()), spec.name)
            if spec.field.startswith(VALID):
                self._valid[spec.rows_of].add(spec.field.removeprefix(VALID))
            elif any(rows for rows, _ in states):
                self._seen[spec.rows_of].add(spec.field)

    def _add_columns(self) -> None:
        """Add the columns to the file that `copy` made."""
        while self._added < len(self._specs):
            spec = self._specs[self._added]
            self._paths += self._writer.add_column(spec.described())
            self._added += 1

    def _add(self, batch: Batch, made: tuple[list[Any], list[Any]]) -> None:
        chunks, tails = made
        for number in range(self._described, self._added):
            batch.columns.append((number, self._specs[number]))
        self._described = self._added
        for field, *chunk in chunks:
            path, first, rows = self._paths[field], chunk[0], chunk[1]
            batch.chunks.append((path, tuple(chunk)))
            # Rows of a commit that failed are in the chunk now.
            batch.tails = [
                tail
                for tail in batch.tails
                if tail[0] != path or not first <= tail[1][0] < first + rows
            ]
        batch.tails += [(self._paths[tail[0]], tail[1:]) for tail in tails]

    def _new(
        self, field: str, keys: Keys, array: npt.NDArray[Any], rows_of: RowsOf | None = None
    ) -> tuple[int, ColumnSpec]:
        """Make a column like a first array of it."""
        name = leaf_name(field, keys)
        rows_of = rows_of or _rows_of(field)
        with self._adding:
            known = self._columns.get(name)
            if known is None:
                spec = self._spec(field, keys, array, rows_of)
                # No call between these two, so that Ctrl-C does not separate them.
                known = self._columns[name] = (len(self._specs), spec)
                self._specs.append(spec)
            return known

    def _spec(self, field: str, keys: Keys, array: npt.NDArray[Any], rows_of: RowsOf) -> ColumnSpec:
        codec, level = self._config.codec_of(leaf_name(field, keys))
        stack, planes_of = self._stack(field, keys, array)
        depth = 1 if stack is None else array.shape[0 if stack == "first" else -1]
        return ColumnSpec(
            field,
            keys,
            array.dtype.str,
            array.shape,
            self._config.chunk_rows or chunk_rows(array.nbytes // depth),
            codec,
            level,
            shuffle=codec != "raw" and array.dtype.itemsize > 1,
            stack=stack,
            rows_of=rows_of,
            planes_of=planes_of,
        )

    def _stack(
        self, field: str, keys: Keys, array: npt.NDArray[Any]
    ) -> tuple[StackAxis, int | None]:
        """Return the axis along which an array is a stack, and the column that has its planes."""
        if field == FINAL + _STACKED:
            known = self._columns.get(leaf_name(_STACKED, keys))
            if known is None or known[1].stack is None:
                return None, None
            known[1].check(array)
            return known[1].stack, known[0]
        return (_stack_axis(array) if field == _STACKED else None), None


class RunArrays:
    """The committed arrays of a run, read by row. A snapshot. Thread-safe."""

    def __init__(self, path: Path, tables: RunTables) -> None:
        self._columns = {spec.name: (n, spec) for n, spec in enumerate(tables.columns)}
        self._fields: dict[str, list[ColumnSpec]] = {}
        columns = []
        for spec in tables.columns:
            parts = [
                (tables.chunks.get(name, []), tables.tails.get(name, [])) for name in spec.paths
            ]
            columns.append((spec.described(), parts))
            if any(chunks or tails for chunks, tails in parts):
                self._fields.setdefault(spec.field, []).append(spec)
        self._native = RunArraysReader(path, columns)
        self._path, self._run_id = path, tables.run.run_id
        self._has_chunks = any(tables.chunks.values())
        self._has_file = not self._has_chunks or path.exists()

    @property
    def is_missing(self) -> bool:
        """Whether the file does not exist, although chunks are in it."""
        return not self._has_file

    @property
    def _reader(self) -> RunArraysReader:
        """What reads parts. Without the file there is none, if chunks are in it."""
        if not self._has_file:
            raise missing_arrays(self._path, self._run_id)
        return self._native

    def extended(self, growth: Growth) -> "RunArrays":
        """Return the arrays with what was committed since. What was verified stays so."""
        made = object.__new__(RunArrays)
        made._columns = self._columns
        fields = {name: list(specs) for name, specs in self._fields.items()}
        added = []
        for _, spec in self._columns.values():
            parts = [
                (growth.chunks.get(path, []), growth.tails.get(path, [])) for path in spec.paths
            ]
            added += parts
            known = fields.setdefault(spec.field, [])
            if spec not in known and any(chunks or tails for chunks, tails in parts):
                known.append(spec)
        order = {name: number for name, (number, _) in self._columns.items()}
        for specs in fields.values():
            specs.sort(key=lambda spec: order[spec.name])
        made._fields = {name: specs for name, specs in fields.items() if specs}
        made._native = self._native.extended(added)
        made._path, made._run_id = self._path, self._run_id
        made._has_chunks = self._has_chunks or any(growth.chunks.values())
        # What was opened stays open, also if its name is removed.
        is_open = self._has_chunks and self._has_file
        made._has_file = is_open or not made._has_chunks or made._path.exists()
        return made

    @property
    def fields(self) -> dict[str, list[ColumnSpec]]:
        """The columns of each field that some row has."""
        return self._fields

    @property
    def columns(self) -> Mapping[str, ColumnSpec]:
        """The columns, by name."""
        return {name: spec for name, (_, spec) in self._columns.items()}

    def field_of(self, name: str) -> str:
        """Return the field that a column is a leaf of."""
        return self._known(name)[1].field

    @property
    def decoded(self) -> int:
        """How many chunks were decoded so far."""
        return self._native.decoded

    def read(self, name: str, rows: Sequence[int] | npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return rows of a column, in any order and with repeats; a missing row is zeros."""
        number, spec = self._known(name)
        out = np.empty((len(rows), *spec.shape), np.dtype(spec.dtype))
        wanted = np.ascontiguousarray(rows, np.uint64)
        self._reader.read(number, wanted, out, threads=_READ_THREADS)
        return out

    def number_of(self, name: str) -> int:
        """Return the number of a column."""
        return self._known(name)[0]

    def read_numbers(self, name: str, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
        """Return the numbers of the planes of rows of a column of stacks, from 1 on."""
        number, _ = self._known(name)
        return self._reader.read_numbers(number, np.ascontiguousarray(rows, np.uint64))

    def planes(
        self, *, cache_bytes: int, mapped: bool, before: RunPlanes | None = None
    ) -> RunPlanes:
        """Return what reads planes; see `RunPlanes`."""
        return RunPlanes(self._reader, cache_bytes=cache_bytes, mapped=mapped, before=before)

    def read_field(self, field: str, rows: Sequence[int] | npt.NDArray[Any]) -> Any:
        """Return rows of a field with all of its leaves, nested as they were recorded."""
        specs = self._fields.get(field, ())
        return unflatten((spec.keys, self.read(spec.name, rows)) for spec in specs)

    def are_valid(
        self, field: str, rows: Sequence[int] | npt.NDArray[Any]
    ) -> npt.NDArray[np.bool_]:
        """Return which of the rows have a field."""
        if field not in self._fields:
            return np.zeros(len(rows), np.bool_)
        if VALID + field not in self._fields:
            return np.ones(len(rows), np.bool_)
        return self.read(VALID + field, rows)

    def _known(self, name: str) -> tuple[int, ColumnSpec]:
        try:
            return self._columns[name]
        except KeyError:
            raise UnknownFieldError(
                f"unknown field {name!r}; the fields are {', '.join(map(repr, self._columns))}"
            ) from None

    def open_rows(self, number: int) -> tuple[int, bytes]:
        """Return how many rows a dataset has, and the bytes of a last chunk that is not full."""
        return self._reader.open_rows(number)


def _rows_of(field: str) -> RowsOf:
    return "ends" if field.startswith(FINAL) else "steps"


_Layout = dict[str, tuple[tuple[int, ...], str]]
"""Shape and dtype of each leaf of a field, by its name without the field."""


def _layout(leaves: Iterable[Leaf]) -> _Layout:
    return {_below(leaf.name): (leaf.array.shape, leaf.array.dtype.str) for leaf in leaves}


def _below(name: str) -> str:
    """Return the name of a leaf without its field: `.image`, for example."""
    _, dot, keys = name.removeprefix(FINAL).partition(".")
    return dot + keys


def _check_like(field: str, leaves: Sequence[Leaf], wanted: _Layout) -> None:
    """Raise an `InvalidError` unless what was seen last is like what was seen before."""
    found = _layout(leaves)
    if found == wanted:
        return
    other = field.removeprefix(FINAL) if field.startswith(FINAL) else FINAL + field
    name, like = _ARGUMENTS[field], _ARGUMENTS[other]
    if found.keys() != wanted.keys():
        keys, wanted_keys = (
            ", ".join(key[1:] for key in layout if key) or "no keys" for layout in (found, wanted)
        )
        raise InvalidError(f"`{name}` must have the keys of `{like}`, {wanted_keys}, got {keys}")
    for key, (shape, dtype) in found.items():
        if wanted[key] != (shape, dtype):
            raise InvalidError(
                f"`{name}{key}` must have the dtype {wanted[key][1]!r} and the shape "
                f"{wanted[key][0]} of `{like}{key}`, got {dtype!r} and {shape}",
                hint=conversion_hint(field, dtype, wanted[key][1])
                if wanted[key][0] == shape
                else None,
            )


def _make_again(path: Path, tables: RunTables) -> None:
    """Make the file of a run that has no chunks in it; raise a `NotFoundError` if it has."""
    if any(tables.chunks.values()):
        raise missing_arrays(path, tables.run.run_id)
    try:
        path.touch()
    except OSError as error:
        raise storage_error(error, path, "create") from error


def _stack_axis(array: npt.NDArray[Any]) -> StackAxis:
    """Return the axis along which the first observation is a stack of planes.

    At the start of an episode all planes of a stack but the newest are equal: they repeat the
    first plane, or are empty. Three planes along the last axis are the colors of a picture, which
    are equal if it is gray.
    """
    if array.ndim < 3:  # noqa: PLR2004 - a plane has two dimensions
        return None
    axes: tuple[tuple[StackAxis, int], ...] = (("last", -1), ("first", 0))
    for axis, number in axes:
        depth = array.shape[number]
        if not _MIN_STACK <= depth <= _MAX_STACK or array.nbytes < depth * _MIN_PLANE_BYTES:
            continue
        if axis == "last" and depth == _COLORS:
            continue
        planes = np.moveaxis(array, number, 0)
        # Of two planes both must be equal: any picture has one plane that equals itself.
        older = planes if depth == _MIN_STACK else planes[:-1]
        if (older == planes[:1]).all():
            return axis
    return None
