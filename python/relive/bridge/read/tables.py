"""Parquet and Arrow files, tables in memory, and Hugging Face datasets, as streams."""

import contextlib
import json
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from relive.bridge.arrow_types import arrow_column, arrow_fields
from relive.bridge.fingerprint import file_identity, table_identity
from relive.bridge.options import Choice
from relive.bridge.stream import BATCH_BYTES, BATCH_ROWS, Chunk, Stream
from relive.errors import CorruptError, InvalidError, NotFoundError, ReliveError, UnsupportedError
from relive.model.schema import Field
from relive.store.atomic import storage_error

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ArrowFiles", "HuggingFace", "ParquetFiles", "TableStream", "saved_dataset"]

_FIRST_ROWS: Final = 1000
_BUFFER: Final = 1 << 20
"""What is read of a column at a time; without it, all that a row group has of it."""
_ARROW_MAGIC: Final = b"ARROW1"


class TableStream(Stream):
    """Rows that come in Arrow tables; this one has its table in memory.

    A subclass says where tables come from. All of them have one schema.
    """

    images: frozenset[str] = frozenset()
    known: Mapping[str, Field] = MappingProxyType({})
    """Fields that are told by other means than the schema."""
    place: str = ""
    """What an error says before it speaks of rows."""

    def __init__(self, table: "pa.Table", choice: Choice, batch: int | None) -> None:
        self._table = table
        self._prepare(choice, batch)

    def _prepare(self, choice: Choice, batch: int | None) -> None:
        self._batch = batch
        self._choice = choice
        with _decoding(f"{self.place}the first rows"):
            self._fields = self._find(self.head(_FIRST_ROWS), choice)

    def _find(self, first: "pa.Table", choice: Choice) -> dict[str, Field]:
        names = first.schema.names
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise UnsupportedError(f"two columns are called {twice!r}")
        choice.check(names)
        kept = first.select([name for name in names if choice.keeps(name)])
        given = {**self.known, **choice.given}
        found = arrow_fields(
            kept.drop_columns([n for n in kept.schema.names if n in given]), self.images
        )
        return {name: given.get(name) or found[name] for name in kept.schema.names}

    @property
    def fields(self) -> Mapping[str, Field]:
        """The fields of every row, by name."""
        return self._fields

    @property
    def total(self) -> int | None:
        """The number of rows, where it is known."""
        return int(self._table.num_rows)

    @property
    def identity(self) -> Mapping[str, Any]:
        """The schema, the length and a checksum of all values."""
        return {
            "schema": str(self._table.schema),
            "rows": self._table.num_rows,
            "values": table_identity(self._table),
        }

    def head(self, rows: int) -> "pa.Table":
        """Give the first rows as one table."""
        return self._table.slice(0, rows)

    def tables(self, start: int) -> Iterator["pa.Table"]:
        """Give the rows from `start` on, in tables or record batches of any length."""
        yield self._table.slice(start)

    def chunks(self, start: int = 0) -> Iterator[Chunk]:
        """Give the rows from `start` on."""
        for table in self.tables(start):
            size = table.nbytes // max(1, table.num_rows)
            rows = self._batch or max(1, min(BATCH_ROWS, BATCH_BYTES // max(1, size)))
            for at in range(0, table.num_rows, rows):
                part = table.slice(at, rows)
                yield Chunk(part.num_rows, self._columns(part, start))
                start += part.num_rows

    def _columns(self, part: Any, first: int) -> dict[str, Any]:
        with _decoding(f"{self.place}the rows from {first} on"):
            return {
                name: arrow_column(name, field, part.column(name), first)
                for name, field in self._fields.items()
            }


class _Files(TableStream):
    """Rows of files, one behind the other."""

    kind = "arrow"

    def __init__(self, paths: Sequence[str], choice: Choice, batch: int | None) -> None:
        self._paths = list(paths)
        more = f" and {len(self._paths) - 1} more" if len(self._paths) > 1 else ""
        self.place = f"`{self._paths[0]}`{more}: "
        self._schema: Any = None
        self._lengths = [self._open_one(path) for path in self._paths]
        self._prepare(choice, batch)

    @property
    def total(self) -> int | None:
        lengths = [length for length in self._lengths if length is not None]
        return sum(lengths) if len(lengths) == len(self._lengths) else None

    @property
    def identity(self) -> Mapping[str, Any]:
        return {self.kind: file_identity(self._paths)}

    def head(self, rows: int) -> "pa.Table":
        import pyarrow as pa

        parts, found = [], 0
        for part in self.tables(0):
            parts.append(part.slice(0, rows - found))
            found += parts[-1].num_rows
            if found >= rows:
                break
        return pa.Table.from_batches(parts, schema=self._schema)

    def tables(self, start: int) -> Iterator[Any]:
        for path, length in zip(self._paths, self._lengths, strict=True):
            if length is not None and start >= length:
                start -= length
                continue
            seen = 0
            for part in self._read(path, start):
                seen += part.num_rows
                yield part
            start = max(0, start - seen) if length is None else 0

    def _open_one(self, path: str) -> int | None:
        with _reading(path):
            schema, length = self._look(path)
        if self._schema is None:
            self._schema = schema
        elif not schema.equals(self._schema):
            raise InvalidError(f"`{path}` has other columns than `{self._paths[0]}`")
        return length

    @abstractmethod
    def _look(self, path: str) -> tuple[Any, int | None]:
        """Give the schema of a file and how many rows it has, where that is known."""

    @abstractmethod
    def _read(self, path: str, start: int) -> Iterator[Any]:
        """Give the tables of a file from a row on, or from one before it."""


class ParquetFiles(_Files):
    """The rows of Parquet files; row groups before the first row asked for are not read."""

    kind = "parquet"

    def _look(self, path: str) -> tuple[Any, int | None]:
        from pyarrow import parquet as pq

        with pq.ParquetFile(path) as file:
            return file.schema_arrow.remove_metadata(), file.metadata.num_rows

    def _read(self, path: str, start: int) -> Iterator[Any]:
        from pyarrow import parquet as pq

        with _reading(path), pq.ParquetFile(path, buffer_size=_BUFFER, pre_buffer=False) as file:
            for group in range(file.num_row_groups):
                meta = file.metadata.row_group(group)
                if start >= meta.num_rows:
                    start -= meta.num_rows
                    continue
                size = max(1, meta.total_byte_size // max(1, meta.num_rows))
                rows = max(1, min(BATCH_ROWS, BATCH_BYTES // size))
                for part in file.iter_batches(rows, row_groups=[group]):
                    skipped = min(start, part.num_rows)
                    start -= skipped
                    if skipped < part.num_rows:
                        yield _plain(part.slice(skipped), self._schema)


class ArrowFiles(_Files):
    """The rows of Arrow IPC files, of the file and of the stream format."""

    kind = "arrow"

    def _look(self, path: str) -> tuple[Any, int | None]:
        with _ipc(path) as reader:
            schema = reader.schema.remove_metadata()
            if not hasattr(reader, "num_record_batches"):
                return schema, None
            counts = (reader.get_batch(k).num_rows for k in range(reader.num_record_batches))
            return schema, sum(counts)

    def _read(self, path: str, start: int) -> Iterator[Any]:
        with _reading(path), _ipc(path) as reader:
            if hasattr(reader, "num_record_batches"):
                parts = (reader.get_batch(k) for k in range(reader.num_record_batches))
            else:
                parts = iter(reader)
            for part in parts:
                part.validate(full=True)  # lengths and offsets come from the file
                skipped = min(start, part.num_rows)
                start -= skipped
                if skipped < part.num_rows:
                    yield _plain(part.slice(skipped), self._schema)


def _plain(part: Any, schema: Any) -> Any:
    import pyarrow as pa

    return pa.RecordBatch.from_arrays(part.columns, schema=schema)


@contextlib.contextmanager
def _ipc(path: str) -> Iterator[Any]:
    import pyarrow as pa

    with pa.memory_map(path) as file:
        if file.size() >= len(_ARROW_MAGIC) and file.read(len(_ARROW_MAGIC)) == _ARROW_MAGIC:
            reader = pa.ipc.open_file(file)
        else:
            file.seek(0)
            reader = pa.ipc.open_stream(file)
        with reader:
            yield reader


@contextlib.contextmanager
def _reading(path: str) -> Iterator[None]:
    import pyarrow as pa

    try:
        yield
    except FileNotFoundError as error:
        raise NotFoundError(f"no file `{path}`") from error
    except pa.ArrowException as error:
        raise CorruptError(f"`{path}` cannot be read: {error}") from error
    except OSError as error:  # Arrow says so of bytes that are not what they should be, too
        if error.errno is None:
            raise CorruptError(f"`{path}` cannot be read: {error}") from error
        raise storage_error(error, path, "read") from error


@contextlib.contextmanager
def _decoding(what: str) -> Iterator[None]:
    """Say where values are that Arrow took for good and that turn out to be broken."""
    import pyarrow as pa

    try:
        yield
    except ReliveError:
        raise
    except (pa.ArrowException, KeyError, ValueError, OverflowError) as error:
        raise CorruptError(f"{what} cannot be read: {error}") from error


class HuggingFace(TableStream):
    """The rows of a `datasets.Dataset`, in the order that it has."""

    def __init__(self, dataset: Any, choice: Choice, batch: int | None) -> None:
        self._dataset = dataset.with_format("arrow")
        self.images = _media(dataset.features)
        self._prepare(choice, batch)

    @property
    def total(self) -> int | None:
        """The number of rows."""
        return len(self._dataset)

    @property
    def identity(self) -> Mapping[str, Any]:
        """What the library itself tells datasets apart by."""
        return {"huggingface": self._dataset._fingerprint, "rows": len(self._dataset)}  # noqa: SLF001

    def head(self, rows: int) -> "pa.Table":
        """Give the first rows as one table."""
        return self._dataset[: min(rows, len(self._dataset))]

    def tables(self, start: int) -> Iterator[Any]:
        """Give the rows from `start` on."""
        rows = 256
        while start < len(self._dataset):
            table = self._dataset[start : start + rows]
            start += table.num_rows
            size = max(1, table.nbytes // max(1, table.num_rows))
            rows = max(1, min(BATCH_ROWS, BATCH_BYTES // size))
            yield table


def _media(features: Any) -> frozenset[str]:
    """Give the columns of images and sounds, which have bytes and a path."""
    return frozenset(
        name for name, feature in features.items() if type(feature).__name__ in {"Image", "Audio"}
    )


class _Saved(ArrowFiles):
    """A dataset as `save_to_disk` leaves it; read without the library that wrote it."""

    def __init__(
        self, paths: Sequence[str], features: Mapping[str, Any], choice: Choice, batch: int | None
    ) -> None:
        kinds = {name: told.get("_type") for name, told in features.items()}
        self.images = frozenset(name for name in kinds if kinds[name] in {"Image", "Audio"})
        self.known = {
            name: field for name, told in features.items() if (field := _tensor(told)) is not None
        }
        super().__init__(paths, choice, batch)


def saved_dataset(path: str, choice: Choice, batch: int | None) -> TableStream:
    """Give the rows of a directory that `save_to_disk` of a `datasets.Dataset` made."""
    root = Path(path)
    if (root / "dataset_dict.json").exists():
        splits = _json(root / "dataset_dict.json").get("splits") or []
        named = " or ".join(f"`{root / str(name)}`" for name in splits)
        raise UnsupportedError(f"`{path}` has several datasets", hint=f"convert one: {named}")
    state, info = _json(root / "state.json"), _json(root / "dataset_info.json")
    if state.get("_indices_files"):
        raise UnsupportedError(
            f"`{path}` is a selection of a dataset",
            hint="load it, and give what datasets.load_from_disk gives to convert",
        )
    files = [entry.get("filename") for entry in state.get("_data_files") or []]
    if not files or not all(isinstance(name, str) and name == Path(name).name for name in files):
        raise CorruptError(f"`{root / 'state.json'}` names no data files")
    features = info.get("features")
    told = features if isinstance(features, dict) else {}
    known = {name: one for name, one in told.items() if isinstance(one, dict)}
    return _Saved([str(root / name) for name in files], known, choice, batch)


def _tensor(told: Mapping[str, Any]) -> Field | None:
    """Give the field of an Array2D and its kin, whose shape the Arrow file does not say."""
    shape = told.get("shape")
    if not str(told.get("_type")).startswith("Array") or not isinstance(shape, list):
        return None
    if not all(isinstance(size, int) and size > 0 for size in shape):
        return None
    try:
        return Field(str(told.get("dtype")), shape)
    except ReliveError:
        return None


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise NotFoundError(f"no file `{path}`") from error
    except OSError as error:
        raise storage_error(error, path, "read") from error
    except ValueError as error:
        raise CorruptError(f"`{path}` is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise CorruptError(f"`{path}` is no JSON object")
    return found
