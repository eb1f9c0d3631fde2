"""A directory of files, one per payload, read by threads."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from typing import TYPE_CHECKING, ClassVar

from benches.payloads import LONGEST, PayloadCase, PayloadPeer, Restorer, as_is, closing
from benches.peers import Setting, Stream

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from benches.data import Case


class Files(PayloadPeer):
    """`os.open`, `os.read`, `os.close` of every file of a batch, on some threads."""

    name = "directory of files"
    family: ClassVar[str] = "files"
    packages: ClassVar[tuple[str, ...]] = ("zstandard",)
    suffix = "files"

    def settings(self, case: Case) -> Sequence[Setting]:  # noqa: ARG002 - the same for all
        """In the caller's thread, and a few numbers of threads."""
        return [{"threads": count} for count in (0, 2, 4)]

    def write(self, case: PayloadCase, path: Path) -> None:
        """Write the files."""
        write_files(case.stored(), path)

    def stream(self, case: PayloadCase, setting: Setting) -> Stream:
        """Open the folder, so that names are looked up in it alone, and start the threads."""
        folder = os.open(self.place(case), os.O_RDONLY | os.O_DIRECTORY)
        pool = ThreadPoolExecutor(max(1, int(setting["threads"])))
        restore = Restorer(case)

        def read_all(names: Sequence[str]) -> list[bytes]:
            return [_read(folder, name) for name in names]

        def deliver() -> Iterator[Sequence[bytes]]:
            cut = -(-case.batch_size // max(1, int(setting["threads"])))
            for names in cycle([list(map(_name, rows.tolist())) for rows in case.batches]):
                parts = [names[start : start + cut] for start in range(0, len(names), cut)]
                done = map(read_all, parts) if len(parts) == 1 else pool.map(read_all, parts)
                yield restore([payload for part in done for payload in part])

        batches = deliver()

        def close() -> None:
            closing(batches, restore)()
            pool.shutdown()
            os.close(folder)

        return Stream(batches, as_is, close=close)


def write_files(payloads: Iterable[bytes], path: Path) -> None:
    """Write `payloads` as files into the new folder `path`."""
    path.mkdir(parents=True)
    for position, payload in enumerate(payloads):
        (path / _name(position)).write_bytes(payload)


def _name(position: int) -> str:
    return f"{position:08d}.bin"


def _read(folder: int, name: str) -> bytes:
    file = os.open(name, os.O_RDONLY, dir_fd=folder)
    try:
        # One byte more than a payload can have: no file is cut short unseen.
        return os.read(file, LONGEST + 1)
    finally:
        os.close(file)
