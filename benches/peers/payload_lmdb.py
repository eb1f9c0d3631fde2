"""LMDB: one value per payload, the key its position."""

from __future__ import annotations

from itertools import cycle, islice
from typing import TYPE_CHECKING, Any, ClassVar

from benches.payloads import PayloadCase, PayloadPeer, Restorer, as_is, closing
from benches.peers import Setting, Stream, module

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from benches.data import Case

_KEY_BYTES = 8
_MAP_BYTES = 64 << 30
_PUTS = 1024
"""Values per transaction of the writer."""


class Lmdb(PayloadPeer):
    """`txn.get(key)` or `cursor.getmulti(keys)`, each value as bytes; a scan uses the cursor."""

    name = "lmdb"
    family: ClassVar[str] = "lmdb"
    packages: ClassVar[tuple[str, ...]] = ("lmdb", "zstandard")
    suffix = "lmdb"

    def settings(self, case: Case) -> Sequence[Setting]:
        """One call per value, or one per batch."""
        if isinstance(case, PayloadCase) and case.scan:
            return [{"by": "cursor"}]
        return [{"by": "get"}, {"by": "getmulti"}]

    def write(self, case: PayloadCase, path: Path) -> None:
        """Append the values in the order of their keys."""
        write_lmdb(case.stored(), path)

    def stream(self, case: PayloadCase, setting: Setting) -> Stream:
        """Open the environment; a transaction per batch."""
        environment = open_lmdb(self.place(case))
        restore = Restorer(case)
        read = {"get": _by_get, "getmulti": _by_getmulti, "cursor": _by_cursor}[str(setting["by"])]
        batches = (restore(found) for found in read(environment, case))
        return Stream(batches, as_is, close=closing(batches, restore, environment))


def write_lmdb(values: Iterable[bytes], path: Path) -> None:
    """Write one environment that holds `values`, in one file."""
    lmdb = module("lmdb")
    environment = lmdb.open(
        str(path), subdir=False, lock=False, map_size=_MAP_BYTES, sync=False, map_async=True
    )
    numbered = enumerate(values)
    while chunk := list(islice(numbered, _PUTS)):
        with environment.begin(write=True) as transaction:
            for position, value in chunk:
                transaction.put(_key(position), value, append=True)
    environment.sync(True)  # noqa: FBT003 - its only argument
    environment.close()


def open_lmdb(path: Path) -> Any:
    """Open an environment for readers, without a lock and without read-ahead."""
    return module("lmdb").open(
        str(path), subdir=False, readonly=True, lock=False, readahead=False, map_size=_MAP_BYTES
    )


def _key(position: int) -> bytes:
    return position.to_bytes(_KEY_BYTES, "big")


def _keys(case: PayloadCase) -> list[list[bytes]]:
    return [list(map(_key, rows.tolist())) for rows in case.batches]


def _by_get(environment: Any, case: PayloadCase) -> Iterator[list[bytes]]:
    for keys in cycle(_keys(case)):
        with environment.begin() as transaction:
            found = list(map(transaction.get, keys))
        yield found


def _by_getmulti(environment: Any, case: PayloadCase) -> Iterator[list[bytes]]:
    for keys in cycle(_keys(case)):
        with environment.begin() as transaction, transaction.cursor() as cursor:
            found = [value for _, value in cursor.getmulti(keys)]
        yield found


def _by_cursor(environment: Any, case: PayloadCase) -> Iterator[list[bytes]]:
    while True:
        with environment.begin() as transaction, transaction.cursor() as cursor:
            values = cursor.iternext(keys=False)
            for _ in case.batches:
                yield list(islice(values, case.batch_size))
