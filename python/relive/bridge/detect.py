"""Detect what a source is, and open it."""

import os
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numpy as np

from relive._arguments import check_choice, type_name
from relive.bridge.convert import KINDS
from relive.bridge.options import ReadOptions
from relive.bridge.read.arrays import ColumnStream, ListReader
from relive.bridge.rows import RowStream
from relive.bridge.stream import Stream
from relive.errors import InvalidError, InvalidTypeError, UnsupportedError
from relive.model.ragged import Ragged
from relive.model.source import Source
from relive.store.atomic import open_reader, storage_error
from relive.store.paths import expand, is_remote

_HEAD_BYTES: Final = 512
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
_FOLDERS: Final = {
    "meta.json": "records",
    "data.mdb": "lmdb",
    "state.json": "huggingface",
    "dataset_dict.json": "huggingface",
}
_MODULES: Final = {
    "images": "image_folder",
    "npy": "sources",
    "pack": "sources",
    "records": "sources",
    "tar": "webdataset",
}
"""The module of `relive.bridge.read` with `open_<kind>`, if its name is not the kind itself."""
_OPTIONS: Final = {
    "decode": ("array_record", "images", "lmdb", "tar", "tfrecord"),
    "size": ("images", "tar"),
    "mode": ("images", "tar"),
    "steps": ("pack",),
}
"""The options that only some kinds have."""


def open_stream(source: Any, options: ReadOptions) -> Stream:
    """Return the rows of a source."""
    if isinstance(source, str | os.PathLike):
        return _open_paths(expand(source), options)
    if (
        isinstance(source, list | tuple)
        and source
        and all(isinstance(item, str | os.PathLike) for item in source)
    ):
        return _open_paths([path for item in source for path in expand(item)], options)
    for option in ("kind", "decode", "size", "mode"):
        if getattr(options, option) is not None:
            raise InvalidError(
                f"`{option}` can be used only with files, but the source is "
                f"{type_name(type(source))}"
            )
    return _open_object(source, options)


def _open_paths(paths: list[str], options: ReadOptions) -> Stream:
    if options.kind is not None:
        check_choice("kind", options.kind, KINDS)
    kind = options.kind or detect_kind(paths[0])
    for path in paths[1:] if options.kind is None else ():
        if (other := detect_kind(path)) != kind:
            raise UnsupportedError(
                f"`{paths[0]}` has the format {kind}, but `{path}` has the format {other}",
                hint="convert files of one format at a time",
            )
    for option, kinds in _OPTIONS.items():
        if getattr(options, option) not in (None, False) and kind not in kinds:
            raise InvalidError(
                f"`{option}` can be used only with the formats {', '.join(kinds)}, but the source "
                f"has the format {kind}"
            )
    module = import_module(f"relive.bridge.read.{_MODULES.get(kind, kind)}")
    stream: Stream = getattr(module, f"open_{kind}")(paths, options)
    return stream


def _open_object(source: Any, options: ReadOptions) -> Stream:
    if isinstance(source, Source) or options.steps:
        from relive.bridge.read.sources import open_source

        return open_source(source, options)
    if isinstance(source, Mapping) and not hasattr(source, "column_names"):
        return ColumnStream(source, options)
    if type(source).__module__.partition(".")[0] == "datasets":
        from relive.bridge.read.huggingface import open_dataset

        return open_dataset(source, options)
    if hasattr(source, "__arrow_c_stream__"):
        import pyarrow as pa

        from relive.bridge.read.tables import MemoryTable

        return MemoryTable(pa.table(source), options)
    if isinstance(source, Sequence) and all(isinstance(row, Mapping) for row in source):
        return RowStream(ListReader(source), options)
    if isinstance(source, np.ndarray | Ragged) or hasattr(source, "__array__"):
        return ColumnStream({"data": source}, options)
    raise InvalidTypeError(
        f"cannot convert {type_name(type(source))}",
        hint="pass a path, an array, a dict of arrays, a list of rows, a pyarrow table, a "
        "datasets.Dataset or a relive Source",
    )


def detect_kind(path: str) -> str:
    """Return the format of what is at a path, one of `KINDS`: by its first bytes or its name."""
    if is_remote(path):
        if path.endswith(".a2pack"):
            return "pack"
        raise UnsupportedError(
            f"cannot convert `{path}`: only packs can be converted over the network",
            hint="copy it to this machine first",
        )
    if Path(path).is_dir():
        names = (kind for name, kind in _FOLDERS.items() if Path(path, name).is_file())
        return next(names, "images")
    try:
        with open_reader(Path(path)) as file:
            head = file.read(_HEAD_BYTES)
    except OSError as error:
        raise storage_error(error, path, "open") from error
    for at, magic, kind in _MAGICS:
        if head[at : at + len(magic)] == magic:
            return kind
    return _kind_by_name(path, head)


def _kind_by_name(path: str, head: bytes) -> str:
    from relive.bridge.read.tfrecord import is_tfrecord

    name = Path(path).name.lower()
    for suffix, kind in _SUFFIXES.items():
        if name.endswith(suffix):
            return kind
    for kind in ("tfrecord", "array_record"):
        if f".{kind}-" in name:  # shards have names like x.tfrecord-00000-of-00010
            return kind
    if is_tfrecord(head):
        return "tfrecord"
    raise UnsupportedError(
        f"cannot convert `{path}`: unrecognized format",
        hint=f"pass the format as kind=, one of {', '.join(KINDS)}",
    )
