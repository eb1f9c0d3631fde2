"""LMDB databases."""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from relive._extras import require
from relive.bridge.fingerprint import file_fingerprint, function_fingerprint
from relive.bridge.options import ReadOptions, single_path
from relive.bridge.rows import RowReader, RowStream
from relive.bridge.stream import Stream
from relive.errors import CorruptError
from relive.model.schema import Field


def open_lmdb(paths: list[str], options: ReadOptions) -> Stream:
    """Return the rows of a database."""
    decode = options.decoder(None, bytes=None)
    return RowStream(_LmdbReader(single_path(paths, "LMDB databases"), decode), options)


class _LmdbReader(RowReader[tuple[bytes, bytes]]):
    """The keys and values of a database, in the order of the keys: `key` and `value`, as bytes.

    `decode` maps the value to the fields of a row other than `key`, or to another value.
    """

    def __init__(self, path: str, decode: Callable[[bytes], Any] | None) -> None:
        self._lmdb = require("lmdb", extra="convert", to="read LMDB databases")
        self._path = path
        self._decode = decode
        self.parallel = decode is not None
        self.declared = {"key": Field("bytes"), "value": Field("bytes")} if decode is None else None
        self._is_folder = Path(path).is_dir()
        self._file = str(Path(path, "data.mdb")) if self._is_folder else path
        self._files = file_fingerprint([self._file])
        with self._opened() as environment:
            self.total = int(environment.stat()["entries"])

    @property
    def fingerprint(self) -> Mapping[str, Any]:
        """The file, and how values are decoded."""
        return {"lmdb": self._files, "decode": function_fingerprint(self._decode)}

    def items(self, start: int) -> Iterator[tuple[bytes, bytes]]:
        """Yield the keys and values from `start` on; values before it are not read."""
        with self._opened() as environment, environment.begin() as transaction:
            cursor = transaction.cursor()
            try:
                found = cursor.first()
                for _ in range(start):
                    found = found and cursor.next()
                if found:
                    yield from cursor.iternext(keys=True, values=True)
            except self._lmdb.Error as error:
                raise CorruptError(f"cannot read `{self._file}`: {error}") from error

    def row(self, item: tuple[bytes, bytes]) -> Mapping[str, Any]:
        """Return a key and its decoded value."""
        key, value = item
        decoded = value if self._decode is None else self._decode(value)
        return {"key": key, **(decoded if isinstance(decoded, Mapping) else {"value": decoded})}

    @contextlib.contextmanager
    def _opened(self) -> Iterator[Any]:
        try:
            environment = self._lmdb.open(
                os.fsencode(self._path),
                readonly=True,
                lock=False,
                subdir=self._is_folder,
                create=False,
            )
        except self._lmdb.Error as error:
            raise CorruptError(
                f"cannot read `{self._file}` as an LMDB database: {error}"
            ) from error
        try:
            # Reading pages beyond the end of a truncated file would kill the process.
            needed = (environment.info()["last_pgno"] + 1) * environment.stat()["psize"]
            size = Path(self._file).stat().st_size
            if size < needed:
                raise CorruptError(
                    f"`{self._file}` is truncated: it has {size} bytes, expected {needed}"
                )
            yield environment
        finally:
            environment.close()
