"""relive: a pack, gathered from directly and through the DataLoader."""

from __future__ import annotations

from itertools import cycle, islice
from typing import TYPE_CHECKING, Any, ClassVar

from benches.payloads import LEVEL, THREADS, PayloadCase, PayloadPeer
from benches.peers import Setting, Stream, module

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from benches.data import Case

_PREFETCH = 4
_EXTENDED = 512
"""Payloads per call of the writer."""


class PackGather(PayloadPeer):
    """`PackReader.open(path, workers=…, verify=…).gather(indices, ["payload"])`."""

    family: ClassVar[str] = "relive"
    packages: ClassVar[tuple[str, ...]] = ("relive",)
    suffix = "a2pack"

    def __init__(self, threads: int, verify: str = "first") -> None:
        self.threads = threads
        self.verify = verify
        always = "" if verify == "first" else f", verify {verify}"
        self.name = f"relive pack, {threads} thread{'s' * (threads > 1)}{always}"

    def settings(self, case: Case) -> Sequence[Setting]:  # noqa: ARG002 - the same for all
        """The one number of threads it was made for."""
        return [{"threads": self.threads, "verify": self.verify}]

    def write(self, case: PayloadCase, path: Path) -> None:
        """Write the pack raw, or as zstd."""
        level = None if case.codec == "raw" else LEVEL
        write_pack(case.payloads(), path, codec=case.codec, level=level)

    def stream(self, case: PayloadCase, setting: Setting) -> Stream:
        """Open the pack and read everything once, so that what is verified once has been."""
        reader = open_pack(self.place(case), workers=setting["threads"], verify=setting["verify"])
        for rows in case.batches:
            reader.gather(rows, ["payload"])

        def deliver() -> Iterator[Any]:
            for rows in cycle(case.batches):
                yield reader.gather(rows, ["payload"])

        return Stream(deliver(), _pieces, close=reader.close)


class PackLoader(PackGather):
    """`DataLoader(PackReader.open(path), batch_size=256, workers=2)` with its own sampler."""

    def __init__(self, workers: int = THREADS) -> None:
        super().__init__(workers)
        self.name = "relive pack, DataLoader"
        self.workers = workers

    def settings(self, case: Case) -> Sequence[Setting]:  # noqa: ARG002 - the same for all
        """The one number of workers it was made for."""
        return [{"workers": self.workers}]

    def stream(self, case: PayloadCase, setting: Setting) -> Stream:
        """Start the loader."""
        workers = int(setting["workers"])
        reader = open_pack(self.place(case))
        loader = module("relive").DataLoader(
            reader,
            batch_size=case.batch_size,
            mode="sequential" if case.scan else "shuffle",
            seed=case.seed,
            workers=workers,
            prefetch=_PREFETCH,
        )
        ahead = _PREFETCH + workers

        def close() -> None:
            loader.close()
            reader.close()

        return Stream(iter(loader), _pieces, ahead=ahead, close=close)


def write_pack(
    payloads: Iterable[bytes], path: Path, *, kind: str = "bytes", **options: Any
) -> None:
    """Write one pack that holds `payloads`, with the writer's `options`."""
    source = iter(payloads)
    with module("relive").PackWriter(path, overwrite=True, **options) as writer:
        while chunk := list(islice(source, _EXTENDED)):
            writer.extend(chunk, kind)


def open_pack(path: Path, **options: Any) -> Any:
    """Open a pack with the reader's `options`."""
    return module("relive").PackReader.open(path, **options)


def _pieces(batch: Any) -> Any:
    return list(batch["payload"])
