"""A program that keeps one value safe from power cuts, or fails to in a way that is asked for.

`python records_toy.py HOW FOLDER` writes the values 1, 2, … each to files of its own, then names
them in `meta`. A line `synced N` says that N, or a later value, must be found from then on.
"""

import os
import sys
import threading
from pathlib import Path

PLANTED = (
    "data-not-synced",
    "one-not-synced",
    "meta-not-synced",
    "names-not-synced",
    "removed-early",
)
VALUES = 6
PARTS = 2


def content(value: int, part: int) -> bytes:
    """Give what the files of a value hold: more than one sector."""
    return bytes([value * 16 + part]) * 5000


def read(folder: Path) -> int:
    """Give the value that is safe: 0 for none."""
    meta = folder / "meta"
    if not meta.exists():
        return 0
    value = int(meta.read_text())
    for part in range(PARTS):
        assert (folder / f"data.{value}.{part}").read_bytes() == content(value, part)
    return value


def main(how: str, folder: Path) -> None:
    """Do it."""
    for value in range(1, VALUES + 1):
        threads = [
            threading.Thread(target=_write_part, args=(how, folder, value, part))
            for part in range(PARTS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        _sync(folder)
        temporary = folder / "meta.tmp"
        temporary.write_text(str(value))
        if how != "meta-not-synced":
            _sync(temporary)
        temporary.rename(folder / "meta")
        if how == "removed-early":
            _remove(folder, value - 1)
        if how != "names-not-synced":
            _sync(folder)
        _say(f"synced {value}")
        _remove(folder, value - 1)


def _write_part(how: str, folder: Path, value: int, part: int) -> None:
    path = folder / f"data.{value}.{part}"
    number = os.open(path, os.O_CREAT | os.O_RDWR)
    os.posix_fallocate(number, 0, 3000)
    os.pwrite(number, content(value, part)[:2000], 0)
    if how == "one-not-synced":
        os.fdatasync(number)
    os.pwrite(number, content(value, part)[2000:], 2000)
    if how not in {"data-not-synced", "one-not-synced"}:
        os.fdatasync(number)
    os.close(number)


def _remove(folder: Path, value: int) -> None:
    for part in range(PARTS):
        (folder / f"data.{value}.{part}").unlink(missing_ok=True)


def _sync(path: Path) -> None:
    number = os.open(path, os.O_RDONLY)
    os.fsync(number)
    os.close(number)


def _say(line: str) -> None:
    os.write(1, f"{line}\n".encode())


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
