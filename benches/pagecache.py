"""The page cache: emptied, looked at, filled."""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_READ_BYTES = 8 << 20


def evict(paths: Iterable[Path]) -> None:
    """Drop the files from the page cache; pages that someone has mapped stay."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)  # only clean pages can be dropped
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def fill(paths: Iterable[Path]) -> None:
    """Read the files from front to back, once."""
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while file.read(_READ_BYTES):
                pass


def resident_share(paths: Iterable[Path]) -> float:
    """The part of the files' pages that is in the page cache."""
    total = here = 0
    for path in paths:
        if not path.stat().st_size:
            continue
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
            pages = -(-len(mapped) // mmap.PAGESIZE)
            found = np.zeros(pages, np.uint8)
            view = np.frombuffer(mapped, np.uint8)
            failed = ctypes.CDLL(None, use_errno=True).mincore(
                ctypes.c_void_p(view.ctypes.data),
                ctypes.c_size_t(len(mapped)),
                ctypes.c_void_p(found.ctypes.data),
            )
            del view  # a map cannot be closed while an array looks into it
            if failed:
                raise OSError(ctypes.get_errno(), "mincore failed", str(path))
            total += pages
            here += int((found & 1).sum())
    return here / max(total, 1)
