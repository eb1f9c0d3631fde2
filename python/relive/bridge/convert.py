"""`relive.convert`: other people's formats into record stores, and back to Parquet and NumPy."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from relive._arguments import as_int
from relive.errors import InvalidError, InvalidTypeError, UnsupportedError
from relive.model.schema import Field, codec_name

if TYPE_CHECKING:
    from relive.bridge.options import FieldChoice

__all__ = ["KINDS", "TARGETS", "Conversion", "convert"]

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
"""What can be at a path."""
TARGETS: Final = ("npy", "parquet", "records")
"""What can be written."""

_SUFFIXES: Final = {".npy": "npy", ".parquet": "parquet"}
_NOT_WRITTEN: Final = frozenset(
    {".a2pack", ".array_record", ".arrow", ".feather", ".h5", ".hdf5", ".json", ".jsonl", ".mdb"}
    | {".npz", ".tar", ".tfrecord", ".tfrecords", ".tgz", ".zarr", ".zip"}
)
_COMPRESSION: Final = {"raw": "NONE", "deflate": "GZIP", "zstd": "ZSTD", "lz4": "LZ4"}


@dataclass(frozen=True, slots=True)
class Conversion:
    """What a conversion made: `bytes` are those of all files, `fields` the stored ones.

    `resumed_from` is the row at which it went on with what an interrupted one had left.
    """

    path: Path
    rows: int
    bytes: int
    fields: dict[str, Field]
    resumed_from: int = 0

    def __repr__(self) -> str:
        """Give the place, the number of rows and the fields, on one line."""
        names = ", ".join(self.fields)
        return f"Conversion({self.path}: {self.rows} rows, {self.bytes} bytes: {names})"


def convert(
    source: Any,
    path: str | os.PathLike[str],
    *,
    to: str | None = None,
    kind: str | None = None,
    fields: "FieldChoice" = None,
    codec: str | Mapping[str, str] | None = None,
    level: int | None = None,
    decode: str | bool | Callable[..., Any] | Mapping[str, Callable[..., Any]] | None = None,
    size: int | tuple[int, int] | None = None,
    steps: bool = False,
    sample: int = 1000,
    batch: int | None = None,
    workers: int = 2,
    limit: int | None = None,
    overwrite: bool = False,
    progress: Callable[[int, int | None], object] | None = None,
) -> Conversion:
    """Convert a source to a record store, a Parquet file or a `.npy` file; give what was made.

    The rows are read once, in bounded memory, and what is written appears whole or not at all.
    A conversion to a record store that was interrupted goes on where it ended when it is called
    again with the same source and options. Rows that do not fit their fields are an
    `InvalidError` that names row and field.

    Args:
        source: An array, a dict of arrays, a list of rows, a `Source`, a pyarrow table or what
            Arrow can make one of, a `datasets.Dataset`; or a path, a glob pattern or a list of
            paths: `.npy`, `.npz`, Parquet, Arrow, a pack, a record store, array_record, tar
            (WebDataset), TFRecord, LMDB, a saved Hugging Face dataset, a folder of images.
        path: Where to; a name ending in `.parquet` or `.npy` says what to write, any other is
            that of a record store.
        to: "records", "parquet" or "npy", where the name does not say it.
        kind: What is at the path of `source`, where its bytes and its name do not say it.
        fields: Names to pick, in that order; or a dict of what to change, field by field: a new
            name, a `Field` to convert to, both as a pair, or None to leave it out.
        codec: For every field that has something to compress, or a dict for some of them.
        level: How hard to compress.
        decode: "image", "example" or "bytes", or a function that makes values of bytes; what
            is possible depends on the kind.
        size: To resize decoded images to: pixels, or (height, width).
        steps: Whether the rows of a pack are the single steps of its runs.
        sample: How many rows are looked at to see which fields there are.
        batch: The most rows at a time; by default what has about 16 MiB.
        workers: Threads that decode, and threads that compress.
        limit: Stop after so many rows.
        overwrite: Replace what is at `path`, and begin again what an interrupted conversion of
            something else has left.
        progress: Is told after every batch how many rows are done, and of how many, or None.
    """
    target, form = _target(path, to)
    for name, number in (("sample", sample), ("workers", workers)):
        as_int(name, number, at_least=1)
    if limit is not None:
        as_int("limit", limit)
    if batch is not None:
        as_int("batch", batch, at_least=1)
    if progress is not None and not callable(progress):
        raise InvalidTypeError(f"progress is a function, not {progress!r}")
    from relive.bridge.detect import Reading, open_stream
    from relive.bridge.options import Chosen, parse_choice, with_codecs

    choice = parse_choice(fields)
    reading = Reading(kind, decode, size, steps, sample, workers, batch)
    stream = Chosen(open_stream(source, choice, reading), choice, limit)
    stored, resumed = dict(stream.fields), 0
    if form == "records":
        from relive.bridge.write.record_store import write_store

        stored = with_codecs(stored, codec, level)
        rows, resumed = write_store(
            stream, target, stored, workers=workers, overwrite=overwrite, progress=progress
        )
    elif form == "parquet":
        from relive.bridge.write.parquet import write_parquet

        rows = write_parquet(
            stream,
            target,
            compression=_compression(codec),
            level=level,
            overwrite=overwrite,
            progress=progress,
        )
    else:
        from relive.bridge.write.npy import write_npy

        if codec is not None and codec_name(str(codec)) != "raw":
            raise UnsupportedError("a .npy file is not compressed")
        rows = write_npy(stream, target, overwrite=overwrite, progress=progress)
    return Conversion(target, rows, _file_bytes(target), stored, resumed)


def _target(path: str | os.PathLike[str], to: str | None) -> tuple[Path, str]:
    if not isinstance(path, str | os.PathLike):
        raise InvalidTypeError(f"a path to write to is needed, not {path!r}")
    target = Path(path)
    suffix = target.suffix.lower()
    if to is not None:
        if to not in TARGETS:
            raise InvalidError(f"to is one of {', '.join(TARGETS)}, not {to!r}")
        return target, to
    if suffix in _NOT_WRITTEN:
        raise UnsupportedError(
            f"`{target}`: {suffix} is not written",
            hint="a name without it is that of a record store; .parquet and .npy are written, too",
        )
    return target, _SUFFIXES.get(suffix, "records")


def _compression(codec: str | Mapping[str, str] | None) -> str:
    if isinstance(codec, Mapping):
        raise UnsupportedError("a Parquet file is compressed as a whole", hint='codec="zstd"')
    return _COMPRESSION[codec_name(codec or "zstd")]


def _file_bytes(target: Path) -> int:
    if not target.is_dir():
        return target.stat().st_size
    return sum(file.stat().st_size for file in target.rglob("*") if file.is_file())
