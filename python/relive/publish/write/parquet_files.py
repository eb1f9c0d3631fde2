"""Local Parquet files that are published as they are: finding them, and reading their footers."""

import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from relive.errors import (
    InvalidError,
    NotFoundError,
    SchemaError,
    UnsupportedError,
)
from relive.publish.write.table_schema import SharedSchema, conformed
from relive.store.atomic import open_reader, storage_error
from relive.store.digest import file_changed
from relive.store.paths import Location, expand, is_remote

if TYPE_CHECKING:
    import pyarrow as pa

_SUFFIXES: Final = (".parquet", ".parq", ".pq")
_HIDDEN: Final = (".", "_")
_PARTITION: Final = re.compile(r"([^=]+)=.*")
_WILD: Final = frozenset("*?[")
_MAGIC: Final = b"PAR1"
_ENCRYPTED: Final = b"PARE"
_TAIL: Final = 8
_READ_AHEAD: Final = 64 << 10
_BATCH_ROWS: Final = 16 << 10


class FileIdentity(NamedTuple):
    """What changes when a file is changed."""

    size: int
    mtime_ns: int
    inode: int
    ctime_ns: int

    @classmethod
    def of(cls, path: str | os.PathLike[str]) -> "FileIdentity":
        """Return the identity of the file at a path."""
        try:
            status = os.stat(path)  # noqa: PTH116 - faster than a Path
        except OSError as error:
            raise storage_error(error, path, "read") from error
        return cls(status.st_size, status.st_mtime_ns, status.st_ino, status.st_ctime_ns)


class ParquetInput(NamedTuple):
    """A Parquet file on this machine, by its footer."""

    path: Path
    identity: FileIdentity
    rows: int
    schema: "pa.Schema"
    footer_bytes: int
    footer_digest: str

    def check_unchanged(self) -> None:
        """Raise an `UnfinishedError` if the file changed since its footer was read."""
        if FileIdentity.of(self.path) != self.identity:
            raise file_changed(self.path)


class FoundFile(NamedTuple):
    """A file that a location names."""

    path: Path
    partitions: tuple[str, ...] = ()
    """Columns named in directories of its path, as `year` in `year=2024/a.parquet`."""


def find_files(locations: Iterable[Location]) -> list[FoundFile]:
    """Return the files that paths, glob patterns and directories name.

    Those of a directory, with its sub-directories, and of a pattern are sorted. Hidden files,
    whose name or directory begins with `.` or `_`, and files without the suffix of Parquet are
    left out of directories.
    """
    found: dict[Path, FoundFile] = {}
    for location in locations:
        fixed = _fixed_parts(location)
        for text in expand(location):
            if is_remote(text):
                raise UnsupportedError(
                    f"cannot publish `{text}`: files must be on this machine",
                    hint="download it first, or pass it as a pyarrow.RecordBatchReader",
                )
            for path in _files_at(Path(text)):
                if path in found:
                    raise InvalidError(
                        f"`{path}` is named twice", hint="list every file of a table once"
                    )
                folders = path.parts[fixed:-1]
                matches = (_PARTITION.fullmatch(folder) for folder in folders)
                found[path] = FoundFile(path, tuple(match[1] for match in matches if match))
    return list(found.values())


def read_footers(found: Iterable[FoundFile]) -> tuple["pa.Schema", list[ParquetInput]]:
    """Read the footers of the files of a table, and return the schema that they share."""
    files: list[ParquetInput] = []
    shared: SharedSchema | None = None
    for path, partitions in found:
        file = read_input(path)
        if shared is None:
            shared = SharedSchema(file.schema, f"`{path}`")
        else:
            shared.add(file.schema, f"`{path}`")
        for name in partitions:
            if name not in file.schema.names:
                raise SchemaError(
                    f"`{path}` has the column `{name}` only in its path",
                    hint="pass pyarrow.dataset.dataset(directory, partitioning='hive')"
                    ".scanner().to_reader(), so that the column is published too",
                )
        files.append(file)
    if shared is None:
        raise InvalidError("no files were given", hint="name at least one Parquet file")
    return shared.schema, files


def read_input(path: Path) -> ParquetInput:
    """Read the footer of a Parquet file."""
    import pyarrow as pa
    from pyarrow import parquet as pq

    identity = FileIdentity.of(path)
    footer = read_footer(path)
    try:
        metadata = pq.read_metadata(pa.BufferReader(_MAGIC + footer))
        schema = metadata.schema.to_arrow_schema()
    except (pa.ArrowException, OSError) as error:
        raise InvalidError(
            f"`{path}` is not a valid Parquet file: {error}", hint="write the file again"
        ) from error
    digest = hashlib.sha256(footer).hexdigest()
    return ParquetInput(path, identity, metadata.num_rows, schema, len(footer), digest)


def read_footer(path: Path) -> bytes:
    """Return the footer of a Parquet file: metadata, its length, and the magic number."""
    try:
        with open_reader(path) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _READ_AHEAD))
            tail = file.read(_READ_AHEAD)
            if tail[-4:] == _ENCRYPTED:
                raise UnsupportedError(f"`{path}` is an encrypted Parquet file")
            if len(tail) < _TAIL + len(_MAGIC) or tail[-4:] != _MAGIC:
                raise InvalidError(
                    f"`{path}` is not a Parquet file",
                    hint="convert it to Parquet, or pass its rows as a table",
                )
            length = int.from_bytes(tail[-_TAIL:-4], "little") + _TAIL
            if length + len(_MAGIC) > size:
                raise InvalidError(
                    f"`{path}` is not a valid Parquet file: its footer has {length} bytes, "
                    f"the file {size}"
                )
            if length > len(tail):
                file.seek(size - length)
                tail = file.read(length)
    except OSError as error:
        raise storage_error(error, path, "read") from error
    return tail[-length:]


def file_batches(files: Iterable[ParquetInput], schema: "pa.Schema") -> Iterator["pa.RecordBatch"]:
    """Yield the rows of files as record batches of the schema that they share."""
    import pyarrow as pa
    from pyarrow import parquet as pq

    for each in files:
        try:
            with pq.ParquetFile(each.path) as file:
                for batch in file.iter_batches(_BATCH_ROWS):
                    yield conformed(batch, schema)
        except (pa.ArrowException, OSError) as error:
            each.check_unchanged()
            raise InvalidError(f"cannot read `{each.path}`: {error}") from error
        each.check_unchanged()


def _files_at(path: Path) -> list[Path]:
    path = Path(os.path.abspath(path))  # noqa: PTH100 - `resolve` follows links
    if not path.exists():
        raise NotFoundError(f"`{path}` does not exist", hint="check the path")
    if not path.is_dir():
        return [path]
    found = []
    for directory, folders, names in os.walk(path):
        folders[:] = sorted(name for name in folders if not name.startswith(_HIDDEN))
        found += [
            Path(directory, name)
            for name in names
            if name.endswith(_SUFFIXES) and not name.startswith(_HIDDEN)
        ]
    if not found:
        raise NotFoundError(
            f"no Parquet file is in the directory `{path}`",
            hint="name its files in another way if they do not end with .parquet, "
            "as in 'data/*.bin'",
        )
    return sorted(found)


def _fixed_parts(location: Location) -> int:
    """Return how many parts of an absolute path a location gives without a wildcard."""
    path = os.path.abspath(os.path.expanduser(os.fspath(location)))  # noqa: PTH100, PTH111
    parts = Path(path).parts
    wild = (i for i, part in enumerate(parts) if not _WILD.isdisjoint(part))
    return len(parts) if os.path.lexists(path) else next(wild, len(parts))
