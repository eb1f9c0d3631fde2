"""Spill files: frames in slots, read back in order after any end of the process, or any damage."""

import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relive._native import crc32c
from relive.errors import InvalidError, StorageError, UnsupportedError
from relive.store.video import spill
from relive.store.video.spill import Frame, SpillReader, SpillWriter
from tests.golden.read_spill import read_spill

SHAPE = (2, 5, 3)
SALT = b"12345678"


class Files(NamedTuple):
    """A spill file and the tape that it belongs to."""

    spill: Path
    tape: Path

    def write(self, clocks: int = 1) -> SpillWriter:
        return SpillWriter(self.spill, self.tape, int(np.prod(SHAPE)), clocks)

    def read(self, first: int = 0, clocks: int = 1) -> SpillReader:
        return SpillReader(self.spill, self.tape, SHAPE, clocks, first=first)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return _files(tmp_path)


def _files(folder: Path, salt: bytes = SALT) -> Files:
    tape = folder / ".cam.mp4.tape"
    tape.write_bytes(b"RELIVEJ\0\1\0\0\0" + salt + bytes(100))
    return Files(folder / ".cam.mp4.spill", tape)


def frame(row: int) -> Frame:
    return np.random.default_rng(row).integers(0, 256, SHAPE, np.uint8)


def fill(writer: SpillWriter, rows: range) -> None:
    for row in rows:
        writer.write(row, frame(row), row * 10, (-row,))


def check(reader: SpillReader, rows: range) -> None:
    """Check that exactly these frames are read."""
    found = list(reader)
    assert [(each.row, each.ts_ns, each.clocks) for each in found] == [
        (row, row * 10, (-row,)) for row in rows
    ]
    for each in found:
        np.testing.assert_array_equal(each.frame, frame(each.row))


def test_frames_are_read_back(files: Files) -> None:
    writer = files.write()
    fill(writer, range(4))
    for first in range(6):
        reader = files.read(first)
        assert bool(reader) == (first < 4)
        check(reader, range(first, 4))
        assert reader.problem is None
    plain = read_spill(files.spill.read_bytes(), SALT)
    assert plain == {row: (row * 10, (-row,), frame(row).tobytes()) for row in range(4)}
    writer.close()
    writer.close()
    assert files.spill.exists()


def test_file_is_created_with_the_first_frame(files: Files) -> None:
    writer = files.write()
    writer.release(0)
    writer.close()
    assert not files.spill.exists()
    assert not files.read()
    check(files.read(), range(0))


@settings(max_examples=60, deadline=None)
@given(steps=st.lists(st.tuples(st.booleans(), st.integers(0, 4)), max_size=40))
def test_slots_are_reused(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[bool, int]]
) -> None:
    files = _files(tmp_path_factory.mktemp("spill"))
    writer = files.write()
    written = released = most = 0
    for adds, count in steps:
        if adds:
            fill(writer, range(written, written + count))
            written += count
        else:
            released = min(written, released + count)
            writer.release(released)
        assert writer.first_row == (released if released < written else None)
        most = max(most, written - released)
        reader = files.read(released)
        check(reader, range(released, written))
        assert reader.problem is None
    writer.close()
    size = files.spill.stat().st_size if files.spill.exists() else 0
    assert size <= 4096 * (1 + most)


def test_killed_writer_leaves_every_frame_before(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[int, bytes]] = []
    pwrite = os.pwrite

    def traced(file: int, data: Any, offset: int) -> int:
        calls.append((offset, bytes(data)))
        return pwrite(file, data, offset)

    monkeypatch.setattr(os, "pwrite", traced)
    writer = files.write()
    states: list[tuple[int, int]] = []  # released and written rows at each call
    for row in range(9):
        released = max(0, row - 3)
        writer.release(released)
        fill(writer, range(row, row + 1))
        states += [(released, row)] * (len(calls) - len(states))
    writer.close()
    content = bytearray()
    for (offset, data), (released, written) in zip(calls, states, strict=True):
        # Frames are cut anywhere; a head is in one page and is written whole or not at all.
        cuts = [0, 1, len(data) // 2, len(data) - 1] if len(data) == frame(0).nbytes else [0]
        for cut in cuts:
            files.spill.write_bytes(_patched(content, offset, data[:cut]))
            reader = files.read(released)
            check(reader, range(released, written))
            assert reader.problem is None
        content = _patched(content, offset, data)


def _patched(content: bytearray, offset: int, data: bytes) -> bytearray:
    result = content + bytes(max(0, offset - len(content))) if data else bytearray(content)
    result[offset : offset + len(data)] = data
    return result


def test_every_flipped_bit_is_reported(files: Files) -> None:
    writer = files.write()
    fill(writer, range(3))
    writer.close()
    whole = files.spill.read_bytes()
    head = 4 + 4 + 8 + 8 + 8 + 4
    stored = [range(36), *(range(at, at + head + 30) for at in (4096, 8192, 12288))]
    for part in stored:
        for at in part:
            for bit in (0, 7):
                damaged = bytearray(whole)
                damaged[at] ^= 1 << bit
                files.spill.write_bytes(damaged)
                reader = files.read()
                count = len(list(reader))
                check(reader, range(count))
                assert reader.problem is not None
                assert str(files.spill) in reader.problem


@pytest.mark.parametrize("first", [0, 1, 3])
def test_truncated_file_keeps_the_first_frames(files: Files, first: int) -> None:
    writer = files.write()
    fill(writer, range(3))
    writer.close()
    whole = files.spill.read_bytes()
    slots = (4096, 8192, 12288)
    cuts = [*range(0, 40, 3), *(at + cut for at in slots for cut in (0, 1, 20, 35, 36, 50, 65))]
    for cut in cuts:
        files.spill.write_bytes(whole[:cut])
        reader = files.read(first)
        rows = len(list(reader))
        check(reader, range(first, first + rows))
        assert first + rows < 3 or first == 3


def test_gap_is_reported(files: Files) -> None:
    writer = files.write()
    fill(writer, range(2, 5))
    reader = files.read(1)
    assert reader
    check(reader, range(0))
    assert reader.problem == f"`{files.spill}` has no frame 1, but later ones"


def test_file_of_another_recording_has_no_frames(files: Files, tmp_path: Path) -> None:
    fill(files.write(), range(3))
    reader = _files(tmp_path, b"other...").read()
    assert not reader
    check(reader, range(0))
    assert reader.problem is None


def test_frames_of_another_shape_are_reported(files: Files) -> None:
    fill(files.write(), range(3))
    for reader in (
        files.read(clocks=2),
        SpillReader(files.spill, files.tape, (2, 6, 3), 1, first=0),
    ):
        assert list(reader) == []
        assert "another shape" in (reader.problem or "")


def test_later_version_is_refused(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spill, "_VERSION", 2)
    fill(files.write(), range(1))
    monkeypatch.undo()
    with pytest.raises(UnsupportedError, match=r"version 2, expected 1\nhint: update relive"):
        files.read()


def test_failed_write_raises(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = files.write()
    fill(writer, range(2))

    def full(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(StorageError, match=r"cannot write `.*spill`: No space left"):
        fill(writer, range(2, 3))
    monkeypatch.undo()
    reader = files.read()
    check(reader, range(2))
    assert reader.problem is None


@pytest.mark.parametrize(
    "content", [b"", b"RELIVES\0", bytes(36), bytes(4096)], ids=["empty", "cut", "zeros", "page"]
)
def test_file_that_was_just_created_has_no_frames(files: Files, content: bytes) -> None:
    files.spill.write_bytes(content)
    reader = files.read()
    assert list(reader) == []
    assert reader.problem is None


@pytest.mark.parametrize("content", [b"x" * 40, b"\1" * 9000, bytes(9000)])
def test_damaged_header_is_reported(files: Files, content: bytes) -> None:
    files.spill.write_bytes(content)
    reader = files.read()
    assert list(reader) == []
    assert reader.problem == f"the header of `{files.spill}` is damaged"


def test_checksum_of_any_contiguous_buffer() -> None:
    picture = np.random.default_rng(0).integers(0, 256, (200, 400, 3), np.uint8)
    expected = crc32c(picture.tobytes())
    for same in (
        picture,
        picture.data,
        bytearray(picture.tobytes()),
        picture.ravel().view(np.uint64),
    ):
        assert crc32c(same) == expected  # type: ignore[arg-type]
    with pytest.raises(InvalidError, match="C-contiguous"):
        crc32c(picture[:, ::2])  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        crc32c("text")  # type: ignore[arg-type]
