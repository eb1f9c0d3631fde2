"""relive: a record store, beside an `ArraySource` over the same bytes."""

from __future__ import annotations

from itertools import cycle
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from benches.payloads import THREADS, PayloadCase
from benches.peers import Peer, Setting, Stream, module, nothing
from benches.peers.record_store import FixedCase, RecordPeer, Selective, records_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from benches.data import Case
    from benches.peers.record_store import Job, RecordCase

_PREFETCH = 4
_TOUCHED = 7
"""Every so many records are replaced before a store is rebalanced."""


class RecordGather(RecordPeer):
    """`RecordStore.open(path, workers=…, verify=…).gather(indices)`, into the same arrays."""

    family: ClassVar[str] = "relive"
    packages: ClassVar[tuple[str, ...]] = ("relive",)

    def __init__(self, *, rebalanced: bool = False, verify: str = "first") -> None:
        self.rebalanced = rebalanced
        self.verify = verify
        self.suffix = "rebalanced.records" if rebalanced else "records"
        always = "" if verify == "first" else f", verify {verify}"
        self.name = f"relive records{', rebalanced' * rebalanced}{always}"

    def settings(self, case: Case) -> Sequence[Setting]:  # noqa: ARG002 - the same for all
        """The one number of threads everyone has."""
        return [{"threads": THREADS}]

    def write(self, case: PayloadCase, path: Path) -> None:
        """Write the store; where it is to be rebalanced, change it back and forth first."""
        records = records_of(case)
        super().write(records, path)
        if self.rebalanced:
            with module("relive").RecordStore.open(path, mode="a") as store:
                rows = records.rows()
                for row in range(0, records.records, _TOUCHED):
                    store[row] = {"data": rows[row]}
                store.rebalance()

    def bulk(self, case: RecordCase, path: Path, *, synced: bool) -> Job:
        """`extend(arrays)`, then `flush()` or, which syncs, `close()`."""
        data = as_data(case)

        def job() -> Callable[[], None]:
            store = _created(case, path)
            store.extend({"data": data})
            if not synced:
                store.flush()
                return _closing(store)
            store.close()
            return nothing

        return job

    def each(self, case: RecordCase, path: Path) -> Job:
        """`append(record)` for each, then `flush()`."""
        rows = case.rows()
        store = _created(case, path)

        def job() -> Callable[[], None]:
            append = store.append
            for row in rows:
                append({"data": row})
            store.flush()
            return _closing(store)

        return job

    def stream(self, case: PayloadCase, setting: Setting) -> Stream:
        """Open the store; all is read once, unless cold: what is verified once has been."""
        store = self.opened(case, setting["threads"])
        out = room(case)
        if not records_of(case).cold:
            for rows in case.batches:
                store.gather(rows, out=out)

        def deliver() -> Iterator[Any]:
            for rows in cycle(case.batches):
                yield store.gather(rows, out=out)

        return Stream(deliver(), data_of, close=store.close)

    def opened(self, case: Case, readers: int | str) -> Any:
        """Its store, for reading."""
        return module("relive").RecordStore.open(
            self.place(case), workers=readers, verify=self.verify
        )


class ArrayGather(Selective, Peer):
    """`ArraySource(map, workers=…).gather(indices)`, into the same arrays."""

    name = "relive ArraySource"
    family: ClassVar[str] = "relive"
    packages: ClassVar[tuple[str, ...]] = ("relive",)

    def settings(self, case: Case) -> Sequence[Setting]:  # noqa: ARG002 - the same for all
        """The one number of threads everyone has."""
        return [{"threads": THREADS}]

    def refuses(self, case: RecordCase) -> bool:
        """Arrays hold nothing compressed."""
        return case.codec != "raw"

    def open(self, case: Case, setting: Setting) -> Stream:
        """One map."""
        source = array_source(records_of(case), workers=setting["threads"])
        out = room(records_of(case))

        def deliver() -> Iterator[Any]:
            for rows in cycle(case.batches):
                yield source.gather(rows, out=out)

        return Stream(deliver(), data_of)


class RecordLoader(RecordGather):
    """`DataLoader(RecordStore.open(path), batch_size=256, workers=2)` with its own sampler."""

    def __init__(self) -> None:
        super().__init__()
        self.name = "relive records, DataLoader"

    def settings(self, case: Case) -> Sequence[Setting]:  # noqa: ARG002 - the same for all
        """The default number of workers."""
        return [{"workers": THREADS}]

    def stream(self, case: PayloadCase, setting: Setting) -> Stream:
        """Start the loader over the open store."""
        store = self.opened(case, THREADS)
        return _loaded(store, case, int(setting["workers"]), store.close)


class ArrayLoader(ArrayGather):
    """`DataLoader(ArraySource(map), batch_size=256, workers=2)` with its own sampler."""

    name = "relive ArraySource, DataLoader"

    def settings(self, case: Case) -> Sequence[Setting]:  # noqa: ARG002 - the same for all
        """The default number of workers."""
        return [{"workers": THREADS}]

    def open(self, case: Case, setting: Setting) -> Stream:
        """Start the loader over the map."""
        return _loaded(array_source(records_of(case)), case, int(setting["workers"]), nothing)


def array_source(case: RecordCase, **options: Any) -> Any:
    """The file of `case` as an `ArraySource`."""
    relive = module("relive")
    data = case.memmap()
    if not isinstance(case, FixedCase):
        data = relive.Ragged(data, case.offsets)
    return relive.ArraySource(data, **options)


def as_data(case: RecordCase) -> Any:
    """All records in memory, as relive takes them."""
    if isinstance(case, FixedCase):
        return case.rows()
    return module("relive").Ragged(case.values, case.offsets)


def room(case: PayloadCase) -> dict[str, Any] | None:
    """Arrays to gather into, where all batches have one shape."""
    if not isinstance(case, FixedCase):
        return None
    return {"data": np.empty((case.batch_size, case.record_bytes), np.uint8)}


def data_of(batch: Any) -> Any:
    """The one field of a batch: an array, or a list of the rows that differ in length."""
    data = batch["data"]
    return data if isinstance(data, np.ndarray) else list(data)


def _created(case: RecordCase, path: Path) -> Any:
    relive = module("relive")
    fixed = isinstance(case, FixedCase)
    shape = (case.record_bytes,) if fixed else ()
    field = relive.Field(np.uint8, shape, codec=case.codec, ragged=not fixed)
    return relive.RecordStore.create(path, fields={"data": field}, workers=THREADS)


def _closing(store: Any) -> Callable[[], None]:
    close: Callable[[], None] = store.close
    return close


def _loaded(source: Any, case: Case, workers: int, after: Callable[[], None]) -> Stream:
    loader = module("relive").DataLoader(
        source,
        batch_size=case.batch_size,
        mode="shuffle",
        seed=case.seed,
        workers=workers,
        prefetch=_PREFETCH,
    )

    def close() -> None:
        loader.close()
        after()

    return Stream(iter(loader), data_of, ahead=_PREFETCH + workers, close=close)
