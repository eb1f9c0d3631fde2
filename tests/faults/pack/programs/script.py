"""Writes a fixed pack, or recovers one, and says what must survive; killed by its tests.

`python pack_script.py ACT FOLDER` with ACT one of `write`, `replace` and `recover…`. A line
`safe N` says that the first N entries survive the end of the process from then on, `done` that
the pack has its name, `failed` that an error was raised as it should.
"""

import os
import sys
import threading
from pathlib import Path
from typing import Final, NamedTuple

import relive
from relive.store.pack import recover


class Entry(NamedTuple):
    """One entry of the pack."""

    payload: bytes
    kind: str = "bytes"
    name: str | None = None
    codec: str | None = None


def _run(steps: int) -> bytes:
    boards = [0x1111_0000_2222_0000 + step for step in range(steps + 1)]
    return relive.Run(boards, [step % 4 for step in range(steps)], engine="script").to_bytes()


ENTRIES: Final = (
    Entry(b"first" * 1000, name="one"),
    Entry(_run(150), "v2", name="two"),
    Entry(b"third" * 1000, codec="zstd"),
    Entry(b""),
    Entry(_run(10), "v2", codec="zstd"),
    Entry(b"sixth", name="six"),
    Entry(b"seventh" * 3000, codec="lz4"),
    # Longer than what the writer holds back, so it is written by itself.
    Entry(bytes(range(256)) * 5000),
    Entry(_run(70), "v2", name="nine"),
)

PACK: Final = "pack.a2pack"


def main(act: str, folder: Path) -> None:
    """Do it."""
    path = folder / PACK
    _say("begin")
    if act.startswith("recover"):
        recover(path)
    elif act == "replace":
        # More entries than there is room for, so that they are moved at the end.
        options = {"capacity": 4, "align": 64, "steps": True, "overwrite": True}
        _write(relive.PackWriter(path, **options))  # type: ignore[arg-type]
    else:
        _write(relive.PackWriter(path))
    _say("done")


def _write(writer: relive.PackWriter) -> None:
    with writer:
        for entry in ENTRIES[:3]:
            _append(writer, entry)
        writer.flush()
        _say("safe 3")
        for entry in ENTRIES[3:6]:
            _append(writer, entry)
        writer.sync()
        _say("safe 6")
        for entry in ENTRIES[6:]:
            _append(writer, entry)


def _append(writer: relive.PackWriter, entry: Entry) -> None:
    writer.append(entry.payload, entry.kind, name=entry.name, codec=entry.codec)


def _say(line: str) -> None:
    os.write(1, f"{line}\n".encode())


def _run_act() -> None:
    try:
        main(sys.argv[1], Path(sys.argv[2]))
    except relive.errors.StorageError:
        _say("failed")


if __name__ == "__main__":
    # On the main thread `close` would write on another one, and strace counts per thread.
    worker = threading.Thread(target=_run_act)
    worker.start()
    worker.join()
