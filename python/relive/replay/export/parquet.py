"""Writes the steps of runs as a Parquet file."""

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from relive._arguments import check_choice
from relive.errors import InvalidError, UnknownNameError, UnsupportedError
from relive.model.report import Progress
from relive.replay.columns import ColumnSpec
from relive.replay.export.target import check_target
from relive.replay.manage.runs import list_runs
from relive.replay.source import DatabaseSource, RunSource, root_of, source_of
from relive.replay.storage.connection import Database
from relive.replay.storage.layout import check_stored_run_id, database_path
from relive.replay.storage.tables import STEP_COLUMNS, StepRow
from relive.store.atomic import whole_file

if TYPE_CHECKING:
    import pyarrow as pa

FORMS: Final = ("list", "binary")
"""How arrays are stored: as lists of a fixed size, or as their bytes."""

_MAX_ROWS: Final = 1 << 16
_BLOCK_BYTES: Final = 32 << 20
_INTEGERS: Final = frozenset({"step_index", "row", "ts_ns"})
_FLAGS: Final = frozenset({"terminated", "truncated"})


def export_parquet(
    root: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    run_id: str | None = None,
    arrays: Sequence[str] = (),
    form: str = "list",
    overwrite: bool = False,
    progress: Progress | None = None,
) -> int:
    """Write the steps of a run, or of all runs, as a Parquet file; return how many there are.

    The columns are those of the table `steps`. The file appears when it is complete.

    Args:
        root: The directory of the runs, or the `.h5` file of a run.
        target: The `.parquet` file to write. The files of the runs themselves are an
            `InvalidError`.
        run_id: The id of a run; None is all runs, in the order in which they began, or the run of
            the file.
        arrays: Arrays to add as further columns: the name of a field, such as `observations`, which
            stands for all of its leaves, or of one leaf, such as `observations.image`. A step
            without a value has null.
        form: `list` for lists of a fixed size, which have the shape of the array if it has several
            axes, or `binary` for the bytes of the array in C order, little-endian; the dtype and
            the shape are then in the metadata of the column.
        overwrite: Replace an existing file.
        progress: Called with the number of steps so far, and of all steps.
    """
    import pyarrow as pa
    from pyarrow import parquet as pq

    check_choice("form", form, FORMS)
    sources: list[RunSource]
    if run_id is not None or Path(root).suffix == ".h5":
        sources = [source_of(root, run_id)]
    else:
        database = database_path(root_of(root))
        ids = [check_stored_run_id(run.run_id, database) for run in list_runs(root)]
        sources = [source_of(root, each) for each in ids]
    path = check_target(target, (".parquet",), sources)
    columns = _columns(sources, arrays)
    schema = pa.schema(
        [
            *(pa.field(name, _step_type(name)) for name in STEP_COLUMNS if name != "action"),
            *(_array_field(name, spec, form) for name, spec in columns.items()),
        ]
    )
    place = STEP_COLUMNS.index("action")
    schema = schema.insert(place, pa.field("action", _action_type(sources)))
    total = sum(source.run.steps for source in sources)
    done = 0
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(whole_file(path, overwrite=overwrite))
        writer = stack.enter_context(pq.ParquetWriter(file, schema))
        for source in sources:
            for rows in _blocks(source.run.steps, columns):
                writer.write_table(_table(source, rows, schema, columns, form))
                done += len(rows)
                if progress is not None:
                    progress(done, total)
    return done


def _columns(sources: Sequence[RunSource], names: Sequence[str]) -> dict[str, ColumnSpec]:
    """Return the array columns to write, by name; all runs that have one agree about it."""
    found: dict[str, ColumnSpec] = {}
    for name in names:
        is_known = False
        for source in sources:
            for spec in _specs(source):
                if name not in {spec.field, spec.name}:
                    continue
                is_known = True
                known = found.setdefault(spec.name, spec)
                if (known.dtype, known.shape) != (spec.dtype, spec.shape):
                    raise InvalidError(
                        f"`{spec.name}` has the dtype {known.dtype!r} and the shape {known.shape} "
                        f"in one run, but {spec.dtype!r} and {spec.shape} in run "
                        f"{source.run.run_id!r}",
                        hint="export the runs one by one",
                    )
        if not is_known:
            listed = sorted({spec.name for source in sources for spec in _specs(source)})
            raise UnknownNameError(
                f"no run has an array {name!r}", hint=f"the arrays are: {', '.join(listed)}"
            )
    taken = sorted(set(found) & set(STEP_COLUMNS))
    for name in taken:  # flags and numbers of steps, which are columns anyway
        del found[name]
    return found


def _specs(source: RunSource) -> Iterator[ColumnSpec]:
    if source.run.steps and source.run.arrays_end:
        for specs in source.arrays.fields.values():
            yield from (spec for spec in specs if spec.rows_of == "steps")


def _blocks(count: int, columns: Mapping[str, ColumnSpec]) -> Iterator[npt.NDArray[np.int64]]:
    """Iterate over all rows, in parts that need little memory."""
    row_bytes = sum(
        int(np.prod(spec.shape, dtype=np.int64)) * np.dtype(spec.dtype).itemsize
        for spec in columns.values()
    )
    size = max(1, min(_MAX_ROWS, _BLOCK_BYTES // max(1, row_bytes)))
    for start in range(0, count, size):
        yield np.arange(start, min(start + size, count))


def _table(
    source: RunSource,
    rows: npt.NDArray[np.int64],
    schema: "pa.Schema",
    columns: Mapping[str, ColumnSpec],
    form: str,
) -> "pa.Table":
    import pyarrow as pa

    steps = source.step_rows(rows)
    made = [
        _step_array(name, place, steps, schema.field(name).type)
        for place, name in enumerate(STEP_COLUMNS)
    ]
    for name, spec in columns.items():
        kind = schema.field(name).type
        made.append(_array(source, spec, rows, kind, form))
    return pa.Table.from_arrays(made, schema=schema)


def _step_array(name: str, place: int, steps: Sequence[StepRow], kind: "pa.DataType") -> "pa.Array":
    import pyarrow as pa

    values: list[Any] = [step[place] for step in steps]
    if name in _FLAGS:
        values = [bool(value) for value in values]
    elif name == "action" and kind == pa.string():
        values = [None if value is None else str(value) for value in values]
    elif name == "action" and kind == pa.float64():
        values = [None if value is None else float(value) for value in values]
    return pa.array(values, kind)


def _step_type(name: str) -> "pa.DataType":
    import pyarrow as pa

    if name in _INTEGERS:
        return pa.int64()
    if name in _FLAGS:
        return pa.bool_()
    return pa.float64() if name == "reward" else pa.string()


def _action_type(sources: Sequence[RunSource]) -> "pa.DataType":
    """Return integers or floats if all actions of the runs are numbers, and else text."""
    import pyarrow as pa

    kinds: set[str] = set()
    for source in sources:
        in_database = isinstance(source, DatabaseSource)
        kinds |= _database_kinds(source) if in_database else _array_kinds(source)
    if kinds <= {"null", "integer"}:
        return pa.int64()
    return pa.float64() if kinds <= {"null", "integer", "real"} else pa.string()


def _database_kinds(source: RunSource) -> set[str]:
    """Return the types that the actions of a run have in its database."""
    root = source.path.parent.parent
    with Database.open(database_path(root)) as database:
        rows = database.rows(
            "SELECT DISTINCT typeof(action) FROM steps WHERE run_id = ? AND row < ?",
            (source.run.run_id, source.run.steps),
        )
    return {kind for (kind,) in rows}


def _array_kinds(source: RunSource) -> set[str]:
    """Return the types that the actions of a run would have in a database."""
    specs = [spec for spec in _specs(source) if spec.field == "actions"]
    if not specs:
        return set()
    if len(specs) > 1 or specs[0].shape or specs[0].keys:
        return {"text"}
    return {"integer" if np.dtype(specs[0].dtype).kind in "biu" else "real"}


def _array_field(name: str, spec: ColumnSpec, form: str) -> "pa.Field":
    import pyarrow as pa

    dtype = np.dtype(spec.dtype)
    if form == "binary":
        size = int(np.prod(spec.shape, dtype=np.int64)) * dtype.itemsize
        about = {"dtype": spec.dtype, "shape": str(list(spec.shape))}
        return pa.field(name, pa.binary(size or -1), metadata=about)
    try:
        item = pa.from_numpy_dtype(dtype)
    except pa.ArrowNotImplementedError:
        raise UnsupportedError(
            f"`{name}` has the dtype {dtype}, which Parquet cannot have in a list",
            hint="write arrays as binary",
        ) from None
    if not spec.shape:
        return pa.field(name, item)
    if 0 in spec.shape:
        return pa.field(name, pa.list_(item))  # Parquet has no lists of the fixed size 0
    if len(spec.shape) == 1:
        return pa.field(name, pa.list_(item, spec.shape[0]))
    return pa.field(name, pa.fixed_shape_tensor(item, spec.shape))


def _array(
    source: RunSource,
    spec: ColumnSpec,
    rows: npt.NDArray[np.int64],
    kind: "pa.DataType",
    form: str,
) -> "pa.Array":
    import pyarrow as pa

    if spec.name not in {each.name for each in _specs(source)}:
        return pa.nulls(len(rows), kind)
    values = source.arrays.read(spec.name, rows)
    missing = ~source.arrays.are_valid(spec.field, rows)
    if form == "binary":
        texts = [
            None if is_missing else value.tobytes()
            for value, is_missing in zip(values, missing, strict=True)
        ]
        return pa.array(texts, kind)
    flat = pa.array(values.reshape(-1))
    mask = pa.array(missing) if missing.any() else None
    if not spec.shape:
        return pa.array(values, mask=missing)
    storage = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    if 0 in spec.shape:
        return pa.array([None if gone else [] for gone in missing], kind)
    lists = pa.FixedSizeListArray.from_arrays(flat, type=storage, mask=mask)
    return lists if storage is kind else pa.ExtensionArray.from_storage(kind, lists)
