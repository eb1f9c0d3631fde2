"""What a thing to convert is, and the stream of its rows."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from relive._arguments import type_name
from relive.bridge.convert import KINDS
from relive.bridge.fingerprint import file_identity
from relive.bridge.options import Choice
from relive.bridge.read.arrays import ColumnStream, ListReader, NpzStream, SourceStream
from relive.bridge.rows import RowReader, RowStream
from relive.bridge.stream import Stream
from relive.errors import InvalidError, InvalidTypeError, UnsupportedError
from relive.model.ragged import Ragged
from relive.model.source import Source
from relive.store.arrays import ArraySource
from relive.store.atomic import storage_error
from relive.store.paths import expand
from relive.store.remote.file import is_remote

__all__ = ["Reading", "find_kind", "open_stream"]

_HEAD: Final = 512
_SUFFIXES: Final = {
    ".array_record": "array_record",
    ".arrayrecord": "array_record",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
    ".mdb": "lmdb",
    ".npz": "npz",
    ".parquet": "parquet",
    ".tar": "tar",
    ".tar.bz2": "tar",
    ".tar.gz": "tar",
    ".tar.xz": "tar",
    ".tgz": "tar",
    ".tfrecord": "tfrecord",
    ".tfrecord.gz": "tfrecord",
    ".tfrecords": "tfrecord",
}
_MAGICS: Final = (
    (0, b"A2PACK\0\0", "pack"),
    (0, b"\x93NUMPY", "npy"),
    (0, b"PAR1", "parquet"),
    (0, b"ARROW1", "arrow"),
    (257, b"ustar", "tar"),
)


@dataclass(frozen=True, slots=True)
class Reading:
    """How a source is read: the options of `convert` that are about it."""

    kind: str | None = None
    decode: Any = None
    size: int | tuple[int, int] | None = None
    steps: bool = False
    sample: int = 1000
    workers: int = 2
    batch: int | None = None


def open_stream(source: Any, choice: Choice, reading: Reading) -> Stream:
    """Give the rows of whatever `source` is; what nothing is known for is an error."""
    if isinstance(source, str | os.PathLike):
        return _at_paths(expand(source), choice, reading)
    if isinstance(source, list | tuple) and source and _all(source, str | os.PathLike):
        return _at_paths([path for one in source for path in expand(one)], choice, reading)
    stream = _in_memory(source, choice, reading)
    if reading.kind is not None:
        raise InvalidError(f"kind={reading.kind!r} is about files, not {type_name(type(source))}")
    for option in ("decode", "size"):
        if getattr(reading, option) is not None:
            raise InvalidError(f"{option}= is about files, not {type_name(type(source))}")
    return stream


def _in_memory(  # noqa: PLR0911 - one line per kind
    source: Any, choice: Choice, reading: Reading
) -> Stream:
    batch, sample = reading.batch, reading.sample
    if reading.steps:
        return SourceStream(_steps(source), batch)
    if isinstance(source, Source):
        return SourceStream(source, batch)
    if isinstance(source, Mapping) and not hasattr(source, "column_names"):
        return ColumnStream(source, choice, batch=batch, sample=sample)
    if isinstance(source, np.ndarray | Ragged):
        return ColumnStream({"data": source}, choice, batch=batch, sample=sample)
    if type(source).__module__.partition(".")[0] == "datasets":
        return _dataset(source, choice, batch)
    if hasattr(source, "__arrow_c_stream__"):
        import pyarrow as pa

        from relive.bridge.read.tables import TableStream

        return TableStream(pa.table(source), choice, batch)
    if isinstance(source, Sequence) and _all(source, Mapping):
        if not source:
            raise InvalidError("the list of rows is empty: nothing says which fields there are")
        return _rows(ListReader(source), choice, reading)
    if hasattr(source, "__array__"):
        return ColumnStream({"data": source}, choice, batch=batch, sample=sample)
    raise InvalidTypeError(
        f"{type_name(type(source))} cannot be converted",
        hint="give a path, an array, a dict of arrays, a list of rows, a pyarrow table, a "
        "datasets.Dataset or a relive Source",
    )


def _dataset(source: Any, choice: Choice, batch: int | None) -> Stream:
    from relive.bridge.read.tables import HuggingFace

    name = type(source).__name__
    if name == "DatasetDict":
        raise UnsupportedError(
            "a DatasetDict has several datasets", hint=f"convert one: {[*source]}"
        )
    if name != "Dataset":
        raise UnsupportedError(
            f"a datasets.{name} has no rows by number", hint="load it without streaming=True"
        )
    return HuggingFace(source, choice, batch)


def _at_paths(paths: list[str], choice: Choice, reading: Reading) -> Stream:
    if reading.kind is not None and reading.kind not in KINDS:
        raise InvalidError(f"unknown kind {reading.kind!r}", hint=f"one of {', '.join(KINDS)}")
    kinds = [reading.kind or find_kind(path) for path in paths]
    kind = kinds[0]
    for other, path in zip(kinds, paths, strict=True):
        if other != kind:
            raise UnsupportedError(
                f"`{paths[0]}` is {kind} and `{path}` is {other}",
                hint="files of one kind are converted together",
            )
    _check_options(kind, reading)
    return _OPENERS[kind](paths, choice, reading)


def find_kind(path: str) -> str:
    """Tell what is at a path, one of `KINDS`: by its first bytes, or else by its name."""
    if is_remote(path):
        if path.endswith(".a2pack"):
            return "pack"
        raise UnsupportedError(
            f"`{path}` is not on this machine, and only packs are read from afar",
            hint="copy it here first",
        )
    place = Path(path)
    if place.is_dir():
        return _folder_kind(place)
    try:
        with place.open("rb") as file:
            head = file.read(_HEAD)
    except OSError as error:
        raise storage_error(error, path, "opened") from error
    for at, magic, kind in _MAGICS:
        if head[at : at + len(magic)] == magic:
            return kind
    return _kind_by_name(place.name, head, path)


def _folder_kind(place: Path) -> str:
    for name, kind in (
        ("meta.json", "records"),
        ("data.mdb", "lmdb"),
        ("state.json", "huggingface"),
        ("dataset_dict.json", "huggingface"),
    ):
        if (place / name).is_file():
            return kind
    return "images"


def _kind_by_name(name: str, head: bytes, path: str) -> str:
    from relive.bridge.read.tfrecord import looks_like_tfrecord

    lower = name.lower()
    for suffix, kind in sorted(_SUFFIXES.items(), key=lambda pair: -len(pair[0])):
        if lower.endswith(suffix):
            return kind
    for part, kind in ((".tfrecord", "tfrecord"), (".array_record", "array_record")):
        if f"{part}-" in lower:  # shards are called x.tfrecord-00000-of-00010
            return kind
    if looks_like_tfrecord(head):
        return "tfrecord"
    raise UnsupportedError(
        f"`{path}` is nothing that can be converted, by its first bytes and by its name",
        hint=f"say what it is, kind= one of {', '.join(KINDS)}",
    )


_TAKES: Final = {
    "decode": {"array_record", "images", "lmdb", "tar", "tfrecord"},
    "size": {"images", "tar"},
    "steps": {"pack"},
}


def _check_options(kind: str, reading: Reading) -> None:
    for option, kinds in _TAKES.items():
        value = getattr(reading, option)
        if value is not None and value is not False and kind not in kinds:
            raise InvalidError(f"{option}= is for {', '.join(sorted(kinds))}, and this is {kind}")


def _rows(reader: RowReader[Any], choice: Choice, reading: Reading) -> Stream:
    return RowStream(
        reader,
        choice,
        sample=reading.sample,
        workers=reading.workers,
        batch=reading.batch,
    )


def _one(paths: list[str], kind: str) -> str:
    if len(paths) > 1:
        raise UnsupportedError(f"{len(paths)} paths were given, and {kind} is converted one by one")
    return paths[0]


def _named_decoder(decode: Any, /, default: Any = None, **named: Any) -> Any:
    """Give what `decode` stands for: a name that this kind knows, a function, or the default."""
    if decode is None or decode is False:
        return default
    if isinstance(decode, str):
        if decode not in named:
            known = ", ".join(map(repr, named)) or "no names"
            raise InvalidError(f"decode={decode!r} is unknown here; there is {known}")
        return named[decode]
    if decode is True and "image" in named:
        return True
    if callable(decode) or isinstance(decode, Mapping):
        return decode
    raise InvalidTypeError(f"decode is a name or a function, not {decode!r}")


def _npy(paths: list[str], _: Choice, reading: Reading) -> Stream:
    from relive.load.compose import Concat

    sources = [ArraySource(path) for path in paths]
    joined = Concat(*sources) if len(sources) > 1 else sources[0]
    return SourceStream(joined, reading.batch, file_identity(paths))


def _npz(paths: list[str], _: Choice, reading: Reading) -> Stream:
    return NpzStream(_one(paths, "a .npz archive"), reading.batch)


def _parquet(paths: list[str], choice: Choice, reading: Reading) -> Stream:
    from relive.bridge.read.tables import ParquetFiles

    return ParquetFiles(paths, choice, reading.batch)


def _arrow(paths: list[str], choice: Choice, reading: Reading) -> Stream:
    from relive.bridge.read.tables import ArrowFiles

    return ArrowFiles(paths, choice, reading.batch)


def _huggingface(paths: list[str], choice: Choice, reading: Reading) -> Stream:
    from relive.bridge.read.tables import saved_dataset

    return saved_dataset(_one(paths, "a saved dataset"), choice, reading.batch)


def _pack(paths: list[str], _: Choice, reading: Reading) -> Stream:
    from relive.store.pack import PackReader

    reader = PackReader.open(paths)
    # What is far away has no time of change; its values are looked at.
    files = file_identity(paths) if all(part.local for part in reader.parts) else None
    return SourceStream(reader.steps() if reading.steps else reader, reading.batch, files)


def _steps(source: Any) -> Source:
    from relive.store.pack import PackReader

    if not isinstance(source, PackReader):
        raise InvalidError(f"steps= is for packs, not a {type(source).__name__}")
    return source.steps()


def _records(paths: list[str], _: Choice, reading: Reading) -> Stream:
    from relive.store.records import RecordStore

    path = Path(_one(paths, "a record store"))
    files = file_identity(sorted(file for file in path.rglob("*") if file.is_file()))
    return SourceStream(RecordStore.open(path), reading.batch, files)


def _images(paths: list[str], choice: Choice, reading: Reading) -> Stream:
    from relive.bridge.read.image_folder import ImageFolder

    decode = _named_decoder(reading.decode, bytes=False, image=True)
    folder = _one(paths, "a folder of images")
    return _rows(ImageFolder(folder, decode=decode, size=reading.size), choice, reading)


def _tar(paths: list[str], choice: Choice, reading: Reading) -> Stream:
    from relive.bridge.read.webdataset import TarReader

    decode = _named_decoder(reading.decode, bytes=False, image=True)
    return _rows(TarReader(paths, decode=decode, size=reading.size), choice, reading)


def _tfrecord(paths: list[str], choice: Choice, reading: Reading) -> Stream:
    from relive.bridge.read.tfrecord import TFRecordReader

    decode = _named_decoder(reading.decode, "example", bytes="bytes", example="example")
    return _rows(TFRecordReader(paths, decode=decode), choice, reading)


def _array_record(paths: list[str], choice: Choice, reading: Reading) -> Stream:
    from relive.bridge.read.array_record import ArrayRecordReader

    decode = _named_decoder(reading.decode, "bytes", bytes="bytes", example="example")
    return _rows(ArrayRecordReader(paths, decode=decode), choice, reading)


def _lmdb(paths: list[str], choice: Choice, reading: Reading) -> Stream:
    from relive.bridge.read.array_record import LmdbReader

    decode = _named_decoder(reading.decode, None, bytes=None)
    return _rows(LmdbReader(_one(paths, "a database"), decode=decode), choice, reading)


_OPENERS: Final[Mapping[str, Callable[[list[str], Choice, Reading], Stream]]] = {
    "array_record": _array_record,
    "arrow": _arrow,
    "huggingface": _huggingface,
    "images": _images,
    "lmdb": _lmdb,
    "npy": _npy,
    "npz": _npz,
    "pack": _pack,
    "parquet": _parquet,
    "records": _records,
    "tar": _tar,
    "tfrecord": _tfrecord,
}


def _all(items: Iterable[Any], kind: Any) -> bool:
    return all(isinstance(item, kind) for item in items)
