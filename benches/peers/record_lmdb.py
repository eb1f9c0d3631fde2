"""LMDB: one value per record, the key its position."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benches.peers import module
from benches.peers.payload_lmdb import Lmdb
from benches.peers.record_store import RecordPeer, single_frames, whole

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from benches.peers.record_store import Job, RecordCase

_KEY_BYTES = 8
_MAP_BYTES = 64 << 30


class RecordLmdb(RecordPeer, Lmdb):
    """`txn.get(key)` or `cursor.getmulti(keys)`, each value as bytes; a scan uses the cursor.

    It has no codec: frames are made and decoded by `zstandard` on two threads.
    """

    def bulk(self, case: RecordCase, path: Path, *, synced: bool) -> Job:
        """`cursor.putmulti` of everything, in the order of the keys, in one transaction."""
        keys = _keys(case)

        def write() -> None:
            environment = _created(path)
            pairs = zip(keys, case.frames(), strict=True)
            with environment.begin(write=True) as transaction, transaction.cursor() as cursor:
                cursor.putmulti(pairs, append=True)
            environment.close()

        return whole(write, path, synced=synced)

    def each(self, case: RecordCase, path: Path) -> Job:
        """`put` for each, in one transaction."""
        keys, compress = _keys(case), single_frames(case)
        environment = _created(path)

        def write() -> None:
            with environment.begin(write=True) as transaction:
                put = transaction.put
                for key, piece in zip(keys, case.pieces, strict=True):
                    put(key, compress(piece), append=True)
            environment.close()

        return whole(write, path, synced=False)


def _created(path: Path) -> Any:
    return module("lmdb").open(str(path), subdir=False, lock=False, map_size=_MAP_BYTES, sync=False)


def _keys(case: RecordCase) -> Sequence[bytes]:
    return [position.to_bytes(_KEY_BYTES, "big") for position in range(case.records)]
