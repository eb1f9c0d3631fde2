"""`relive.convert`: other formats into record stores, Parquet and NumPy files; runs for Minari."""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from relive._arguments import as_int, check_choice
from relive.bridge.options import FieldChanges, FieldSelection, ReadOptions, parse_fields
from relive.bridge.stream import ColumnBatch, Stream
from relive.errors import InvalidError, InvalidTypeError, UnsupportedError
from relive.model.columns.cast import Column, cast_column
from relive.model.report import Progress
from relive.model.schema import Field, codec_name
from relive.model.source import pick_fields
from relive.store.paths import absolute_path, local_path

KINDS: Final = (
    "array_record",
    "arrow",
    "huggingface",
    "images",
    "lmdb",
    "npy",
    "npz",
    "pack",
    "parquet",
    "records",
    "tar",
    "tfrecord",
)
"""The formats that can be read from a path."""
TARGETS: Final = ("minari", "npy", "parquet", "records")
"""The formats that can be written."""

_SUFFIXES: Final = {".npy": "npy", ".parquet": "parquet"}
_NOT_WRITTEN: Final = frozenset(
    {".a2pack", ".array_record", ".arrow", ".feather", ".h5", ".hdf5", ".json", ".jsonl", ".mdb"}
    | {".npz", ".tar", ".tfrecord", ".tfrecords", ".tgz", ".zarr", ".zip"}
)
_SMALL_BYTES: Final = 256
"""Rows of a fixed size below this are not worth compressing one by one."""


@dataclass(frozen=True, slots=True)
class Conversion:
    """The result of a conversion.

    `bytes` is the size of all files, `fields` are the stored fields. `resumed_from` is the
    number of rows that an earlier, interrupted conversion had written, and `skipped` the
    number of damaged rows that were left out. `left_out` is the number of steps of runs that are
    not in a Minari dataset, because it is not known what was observed after them.

    Example:
        >>> import relive
        >>> relive.convert([{"x": 1}, {"x": 2}], "x.parquet")
        Conversion(x.parquet: 2 rows, ... bytes: x)
    """

    path: Path
    rows: int
    bytes: int
    fields: dict[str, Field]
    resumed_from: int = 0
    skipped: int = 0
    left_out: int = 0

    def __repr__(self) -> str:
        """Return the path, the number of rows and the fields on one line."""
        names = ", ".join(self.fields)
        return f"Conversion({self.path}: {self.rows} rows, {self.bytes} bytes: {names})"


def convert(
    source: Any,
    path: str | os.PathLike[str],
    *,
    to: str | None = None,
    kind: str | None = None,
    fields: FieldChanges = None,
    codec: str | Mapping[str, str] | None = None,
    level: int | None = None,
    decode: str | bool | Callable[..., Any] | Mapping[str, Callable[..., Any]] | None = None,
    size: int | tuple[int, int] | None = None,
    mode: str | None = None,
    steps: bool = False,
    sample: int = 1000,
    batch: int | None = None,
    workers: int = 2,
    limit: int | None = None,
    errors: str = "raise",
    overwrite: bool = False,
    progress: Progress | None = None,
    minari: Mapping[str, Any] | None = None,
) -> Conversion:
    """Convert a source to a record store, a Parquet file or a `.npy` file; or runs for Minari.

    The rows are read once and in bounded memory. The result appears at `path` when it is
    complete. An interrupted conversion to a record store continues when it is called again
    with the same source and options. A row that does not fit its fields is an `InvalidError`
    that names the row and the field.

    `to="minari"` makes a dataset of Minari from recorded runs, which has the steps that
    `ReplayRun.transitions` has. Of the other arguments it takes `overwrite`, `progress` and
    `minari`.

    Args:
        source: An array, a dict of arrays, a list of rows, a `Source`, a pyarrow table or
            anything Arrow can make one of, a `datasets.Dataset`; or a path, a glob pattern or
            a list of paths: `.npy`, `.npz`, Parquet, Arrow, a pack, a record store,
            array_record, tar (WebDataset), TFRecord, LMDB, a saved Hugging Face dataset, a
            folder of images. For Minari a `ReplayRun`, the path of its `.h5` file, a directory
            of runs, or a list of these.
        path: The target. A name that ends in `.parquet` or `.npy` selects that format, any
            other name a record store. A Minari dataset is a folder, which Minari finds if it is
            `MINARI_DATASETS_PATH/<dataset id>`.
        to: "records", "parquet", "npy" or "minari"; by default the name of the target decides,
            which never is "minari".
        kind: The format of the files at `source`; by default their content and names decide.
        fields: Names of the fields to keep, in that order; or a dict of changes by field: a
            new name, a `Field` to convert to, a pair of both, or None to drop the field.
        codec: The codec of every field that is worth compressing, or a dict for some of them.
        level: The compression level.
        decode: "image", "example" or "bytes", or a function from bytes to values. Which names
            are possible depends on the format.
        size: The size to resize decoded images to: pixels, or (height, width).
        mode: The mode to convert decoded images to: "L", "LA", "RGB" or "RGBA"; "P" keeps the
            indices of palettes, and "CMYK" its four channels. By default images keep their
            depth and channels, and images of different modes are an error.
        steps: Whether the rows of a pack are the single steps of its runs.
        sample: The number of rows from which fields are inferred.
        batch: The number of rows read at a time; by default about 16 MiB.
        workers: The number of threads that decode, and of those that compress.
        limit: The maximum number of rows.
        errors: "skip" leaves out rows that are damaged or cannot be decoded, and counts them;
            damage that hides where the next row starts is always an error.
        overwrite: Whether to replace an existing target, and to discard the unfinished
            conversion of another source.
        progress: Called after each batch with the number of rows written and the total, which
            is None if it is unknown.
        minari: What Minari notes about a dataset, as `minari.create_dataset_from_buffers` takes
            it: `dataset_id`, `author`, `author_email`, `algorithm_name`, `code_permalink`,
            `description`, `requirements`, `env`, `eval_env`, `observation_space`,
            `action_space`, `ref_min_score`, `ref_max_score`. By default the id is the end of the
            path, and the environment and the spaces are those that were recorded.

    Returns:
        The path, the number of rows, the size and the fields of the result.

    Example:
        >>> import numpy as np
        >>> import relive
        >>> rows = [{"name": "a", "x": [1, 2]}, {"name": "b", "x": [3, 4]}]
        >>> made = relive.convert(rows, "points")
        >>> made.rows, made.fields
        (2, {'name': Field('str'), 'x': Field('int64', (2,))})
        >>> relive.convert("points", "x.npy", fields=["x"]).rows
        2
        >>> np.load("x.npy").tolist()
        [[1, 2], [3, 4]]
    """
    target, form = _target(path, to)
    as_int("sample", sample, at_least=1)
    as_int("workers", workers, at_least=1)
    if limit is not None:
        as_int("limit", limit)
    if batch is not None:
        as_int("batch", batch, at_least=1)
    check_choice("errors", errors, ("raise", "skip"))
    if progress is not None and not callable(progress):
        raise InvalidTypeError(f"`progress` must be a function, got {progress!r}")
    if form == "minari":
        defaults: dict[str, Any] = {
            "codec": codec,
            "decode": decode,
            "fields": fields,
            "kind": kind,
        }
        defaults |= {"level": level, "limit": limit, "mode": mode, "size": size, "batch": batch}
        defaults |= {"steps": steps or None, "errors": None if errors == "raise" else errors}
        given = [name for name, value in defaults.items() if value is not None]
        return _convert_runs(source, target, given, minari, overwrite=overwrite, progress=progress)
    if minari is not None:
        raise InvalidError("`minari` can be used only with to='minari'")
    from relive.bridge.detect import open_stream

    selection = parse_fields(fields)
    options = ReadOptions(
        selection, kind, decode, size, mode, steps, sample, workers, batch, errors
    )
    stream = _SelectedStream(open_stream(source, options), options, limit)
    stored, resumed = dict(stream.fields), 0
    if form == "records":
        from relive.bridge.write.record_store import write_store

        stored = _with_codecs(stored, codec, level)
        rows, resumed = write_store(
            stream, target, stored, workers=workers, overwrite=overwrite, progress=progress
        )
    elif form == "parquet":
        from relive.bridge.write.parquet import write_parquet

        if isinstance(codec, Mapping):
            raise UnsupportedError(
                "`codec` must be a string for a Parquet file, got a dict",
                hint='a Parquet file has one codec for all fields, such as codec="zstd"',
            )
        codec = codec_name(codec or "zstd")
        rows = write_parquet(
            stream, target, codec=codec, level=level, overwrite=overwrite, progress=progress
        )
    else:
        from relive.bridge.write.npy import write_npy

        if codec is not None and codec_name(str(codec)) != "raw":
            raise UnsupportedError(f"a .npy file cannot be compressed, but `codec` is {codec!r}")
        rows = write_npy(stream, target, overwrite=overwrite, progress=progress)
    return Conversion(target, rows, _file_bytes(target), stored, resumed, stream.skipped)


def _convert_runs(
    source: Any,
    target: Path,
    given: list[str],
    options: Mapping[str, Any] | None,
    *,
    overwrite: bool,
    progress: Progress | None,
) -> Conversion:
    """Convert runs to a Minari dataset; `given` are arguments that it does not take."""
    if given:
        raise InvalidError(f"`{given[0]}` cannot be used with to='minari'")
    from relive.bridge.read.runs import open_runs
    from relive.bridge.write.minari import write_minari

    made = write_minari(
        open_runs(source), target, options=options, overwrite=overwrite, progress=progress
    )
    return Conversion(target, made.steps, _file_bytes(target), made.fields, left_out=made.left_out)


def _target(path: str | os.PathLike[str], to: str | None) -> tuple[Path, str]:
    if not isinstance(path, str | os.PathLike):
        raise InvalidTypeError(f"`path` must be a string or a Path, got {path!r}")
    target = Path(os.path.expanduser(local_path(path)))  # noqa: PTH111 - raises for no user
    if not (isinstance(path, str) and path.lower().startswith("file://")):
        absolute_path(path, "the result of a conversion")  # a URI, or not a path
    if to is not None:
        check_choice("to", to, TARGETS)
        return target, to
    suffix = target.suffix.lower()
    if suffix in _NOT_WRITTEN:
        raise UnsupportedError(
            f"cannot write `{target}`: {suffix} files are not supported as a target",
            hint="use a name without a suffix for a record store, or .parquet or .npy",
        )
    return target, _SUFFIXES.get(suffix, "records")


def _file_bytes(target: Path) -> int:
    if not target.is_dir():
        return target.stat().st_size
    return sum(file.stat().st_size for file in target.rglob("*") if file.is_file())


class _SelectedStream(Stream):
    """The selected fields of a stream, renamed and cast, and its first `limit` rows."""

    def __init__(self, stream: Stream, options: ReadOptions, limit: int | None) -> None:
        self._stream = stream
        self._limit = limit
        self._skips = options.errors == "skip"
        selection = options.fields
        selection.check([*stream.fields, *selection.dropped])
        names = selection.only or [name for name in stream.fields if selection.keeps(name)]
        kept = pick_fields(stream.fields, names)
        self._names = {name: selection.names.get(name, name) for name in kept}
        self._casts = _casts(kept, selection)
        self.fields: dict[str, Field] = {}
        for name, field in kept.items():
            new = self._names[name]
            if new in self.fields:
                raise InvalidError(f"two converted fields would have the name {new!r}")
            self.fields[new] = selection.types.get(name, field)
        if not self.fields:
            known = ", ".join(map(repr, stream.fields)) or "none"
            raise InvalidError(
                "no fields are selected for conversion",
                hint=f"the fields of the source are {known}",
            )
        self.total = stream.total
        if limit is not None and stream.total is not None:
            self.total = min(stream.total, limit)

    @property
    def skipped(self) -> int:  # type: ignore[override]  # the stream counts
        """How many damaged rows were left out."""
        return self._stream.skipped

    @property
    def fingerprint(self) -> Mapping[str, Any]:
        """That of the stream, and of the selection."""
        fields = {name: f"{new}: {self.fields[new]!r}" for name, new in self._names.items()}
        skips = {"errors": "skip"} if self._skips else {}
        return {**self._stream.fingerprint, "fields": fields, "limit": self._limit, **skips}

    def batches(self, start: int = 0) -> Iterator[ColumnBatch]:
        """Yield the rows from `start` on."""
        done = start
        if self._limit is not None and done >= self._limit:
            return
        for batch in self._from(start):
            rows = batch.rows if self._limit is None else min(batch.rows, self._limit - done)
            part = batch.slice(0, rows)
            columns = {
                new: self._column(name, part.columns[name], done)
                for name, new in self._names.items()
            }
            yield ColumnBatch(rows, columns)
            done += rows
            if done == self._limit:
                return

    def _from(self, start: int) -> Iterator[ColumnBatch]:
        if not (self._skips and start):
            yield from self._stream.batches(start)
            return
        # Rows may have been left out, so only reading again shows which rows were written.
        for batch in self._stream.batches():
            known = min(start, batch.rows)
            start -= known
            if known < batch.rows:
                yield batch.slice(known, batch.rows)

    def _column(self, name: str, column: Column, first: int) -> Column:
        target = self._casts.get(name)
        return column if target is None else cast_column(name, target, list(column), first)


def _casts(kept: Mapping[str, Field], selection: FieldSelection) -> dict[str, Field]:
    """Return the fields that were requested in another type than they have."""

    def layout(field: Field) -> Any:
        return field.dtype, field.shape, int(field.ragged)

    return {
        name: selection.types[name]
        for name, field in kept.items()
        if name in selection.types and layout(selection.types[name]) != layout(field)
    }


def _with_codecs(
    fields: Mapping[str, Field], codec: str | Mapping[str, str] | None, level: int | None
) -> dict[str, Field]:
    """Return the fields with the requested codecs.

    One name applies to every field worth compressing: values of any size, and rows of at least
    256 bytes. A dict names the fields.
    """
    if codec is None:
        return dict(fields)
    if isinstance(codec, Mapping):
        pick_fields(fields, list(codec))
        codecs = {name: codec_name(value) for name, value in codec.items()}
    else:
        default = codec_name(codec)
        codecs = {
            name: default
            for name, field in fields.items()
            if field.nbytes is None or field.nbytes >= _SMALL_BYTES
        }
    result = dict(fields)
    for name, chosen in codecs.items():
        field = fields[name]
        dtype: Any = field.dtype
        options: Any = {} if level is None or chosen == "raw" else {"level": level}
        result[name] = Field(dtype, field.shape, chosen, field.ragged, **options)
    return result
