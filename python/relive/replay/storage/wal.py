"""Reads the WAL of a SQLite database: its header, and which of its frames are right.

A frame is a page of the database, after 24 bytes about it. Each has a checksum that begins with
that of the frame before it, and the salts of the header: another pair each time that SQLite begins
the file again, which leaves frames of an earlier generation at its end.

Reading the file with a descriptor of its own is safe: SQLite locks the database and its `-shm`
file, but never the WAL.
"""

import functools
import itertools
import os
import struct
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple, Self, TypeAlias

import numpy as np
import numpy.typing as npt

Words: TypeAlias = npt.NDArray[np.uint32]
Flags: TypeAlias = npt.NDArray[np.bool_]

HEADER_BYTES: Final = 32
_FRAME_HEADER_BYTES: Final = 24
_MAGIC: Final = 0x377F0682
"""With the lowest bit set, the words of checksums are big-endian."""
_PAGE_BYTES: Final = tuple(1 << bits for bits in range(9, 17))
_PAGES_WORD: Final = 1
_READ_BYTES: Final = 1 << 22


def wal_path(database: Path) -> Path:
    """Return the path of the WAL of a database. SQLite follows links to the database."""
    real = Path(os.path.realpath(database))
    return real.with_name(f"{real.name}-wal")


class WalHeader(NamedTuple):
    """The header of a WAL; its integers are big-endian."""

    magic: int
    version: int
    page_bytes: int
    checkpoints: int
    """How often the file was begun again, at least: 0 if it never was."""
    salt_1: int
    salt_2: int
    checksum_1: int
    checksum_2: int

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """Return the header that bytes are, right or wrong."""
        return cls(*struct.unpack(">8I", data))

    @property
    def byte_order(self) -> str:
        """The dtype of the words that checksums are computed of."""
        return ">u4" if self.magic & 1 else "<u4"

    @property
    def salts(self) -> Words:
        """The salts that frames of this generation have."""
        return np.array([self.salt_1, self.salt_2], np.uint32)

    @property
    def checksum(self) -> Words:
        """The checksum that the first frame begins with."""
        return np.array([self.checksum_1, self.checksum_2], np.uint32)

    @property
    def frame_bytes(self) -> int:
        """The size of a frame."""
        return _FRAME_HEADER_BYTES + self.page_bytes

    def is_right(self) -> bool:
        """Check whether SQLite uses a WAL with this header."""
        if self.magic & ~1 != _MAGIC or self.page_bytes not in _PAGE_BYTES:
            return False
        words = np.frombuffer(struct.pack(">8I", *self), self.byte_order)[:6].astype(np.uint32)
        factors, _ = _factors(len(words))
        return bool((words @ factors == self.checksum).all())

    def repairs(self) -> list[Self]:
        """Return the headers that are right and differ from this one by one bit."""
        number = int.from_bytes(struct.pack(">8I", *self))
        flipped = (number ^ 1 << bit for bit in range(8 * HEADER_BYTES))
        headers = (self.parse(each.to_bytes(HEADER_BYTES)) for each in flipped)
        return [header for header in headers if header.is_right()]

    def guesses(self) -> list[Self]:
        """Return this header with every size of pages and byte order, and the same salts."""
        pairs = itertools.product((_MAGIC, _MAGIC + 1), _PAGE_BYTES)
        return [self._replace(magic=magic, page_bytes=size) for magic, size in pairs]


class WalFrames(NamedTuple):
    """The frames of a WAL. Of each, 36 bytes are in memory."""

    salts: Words
    are_commits: Flags
    """Which frames are the last of a transaction."""
    checksums: Words
    expected: Words
    """The checksums that they must have after the frames before them."""
    sums: Words
    """The checksums without what those of the frames before add to them."""

    @classmethod
    def read(cls, file: BinaryIO, header: WalHeader) -> Self:
        """Read all complete frames."""
        factors, seeding = _frame_factors(header.page_bytes)
        width, at_once = len(factors), max(1, _READ_BYTES // header.frame_bytes)
        heads, sums = [np.zeros((0, 6), np.uint32)], [np.zeros((0, 2), np.uint32)]
        file.seek(HEADER_BYTES)
        count = at_once
        while count == at_once:
            data = file.read(at_once * header.frame_bytes)
            count = len(data) // header.frame_bytes
            words = np.frombuffer(data, header.byte_order, count * width).reshape(-1, width)
            big_endian = np.frombuffer(data, ">u4", count * width).reshape(-1, width)
            heads.append(big_endian[:, :6].astype(np.uint32))
            sums.append(words.astype(np.uint32, copy=False) @ factors)
        head, all_sums = np.concatenate(heads), np.concatenate(sums)
        checksums = head[:, 4:]
        before = np.concatenate((header.checksum[None], checksums))[:-1]
        expected = before @ seeding + all_sums
        return cls(head[:, 2:4], head[:, _PAGES_WORD] != 0, checksums, expected, all_sums)

    def are_right(self) -> Flags:
        """Check which frames have their checksum, after what is stored in the one before."""
        return np.asarray((self.expected == self.checksums).all(axis=1))

    def follows(self, header: WalHeader, frame: int) -> bool:
        """Check whether a frame is right after what the one before it should have stored."""
        _, seeding = _frame_factors(header.page_bytes)
        expected = self.expected[frame - 1] @ seeding + self.sums[frame]
        return bool((expected == self.checksums[frame]).all())

    def is_commit_but_for_a_bit(self, file: BinaryIO, header: WalHeader, frame: int) -> bool | None:
        """Check whether a wrong frame is a commit if one bit of it was flipped.

        None if flipping one bit does not make its checksum right. Bytes that were not written have
        other values in more than one bit, and 64 bits of a checksum tell that from one.
        """
        file.seek(HEADER_BYTES + frame * header.frame_bytes)
        words = np.frombuffer(file.read(header.frame_bytes), header.byte_order).astype(np.uint32)
        stored, expected = self.checksums[frame], self.expected[frame]
        if sum(each.bit_count() for each in (stored ^ expected).tolist()) == 1:
            return bool(words[_PAGES_WORD])
        bits = np.uint32(1) << np.arange(32, dtype=np.uint32)
        # Flipping a bit that is set subtracts it.
        changes = np.where(words[:, None] & bits, np.uint32(0) - bits, bits)
        factors, _ = _frame_factors(header.page_bytes)
        explain = (changes[:, :, None] * factors[:, None, :] == stored - expected).all(axis=2)
        if not explain.any():
            return None
        # Several bits may change a checksum in the same way: any of them may be the one.
        flipped, explain[_PAGES_WORD] = explain[_PAGES_WORD].copy(), False
        of_size = (words[_PAGES_WORD] ^ bits[flipped]).any()
        return bool(of_size or (explain.any() and words[_PAGES_WORD]))


@functools.cache
def _frame_factors(page_bytes: int) -> tuple[Words, Words]:
    """Return the factors of the words of a frame; its salts and checksum have 0."""
    factors, seeding = _factors((8 + page_bytes) // 4)
    return np.insert(factors, [2] * 4, 0, axis=0), seeding


@functools.cache
def _factors(words: int) -> tuple[Words, Words]:
    """Return what words are multiplied by in a checksum, and the checksum before them.

    SQLite adds words to two sums in turn, and each time the other sum. So both are sums of the
    words times Fibonacci numbers, modulo 2**32, and NumPy computes those of many frames at once.
    """
    numbers = [0, 1]
    while len(numbers) < words + 2:
        numbers.append((numbers[-2] + numbers[-1]) & 0xFFFFFFFF)
    pairs = np.array(list(itertools.pairwise(numbers)), np.uint32)  # of the last word first
    return pairs[:words][::-1].copy(), pairs[words - 1 : words + 1].copy()
