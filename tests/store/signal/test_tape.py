"""Tapes: rows are appended in memory, written in the background and read back."""

import time
from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relive import errors
from relive._native import TapeReader, TapeWriter, find_time
from tests.store.signal.tapes import plain_read, read, tape

WIDE = [2**63, 2**63 - 1, -(2**63), -(2**63) - 1, 10**40, -(10**40)]


def test_payload_may_be_any_buffer(tmp_path: Path) -> None:
    writer = tape(tmp_path / "t")
    payloads: list[Any] = [
        b"12345678",
        bytearray(b"abcdefgh"),
        memoryview(b"0123456789")[1:9],
        np.float64(1.5),
        np.array(2.5),
        np.arange(4, dtype=np.int16),
        np.arange(8, dtype=np.uint8).reshape(2, 2, 2),
        np.arange(8, dtype=np.uint8).reshape(2, 4)[1:].repeat(2),
        np.array([True] * 8),
        np.ones((3, 8), np.uint8)[1],
    ]
    for ts, payload in enumerate(payloads):
        writer.append(ts, payload)
    assert (writer.rows, writer.last_ts, writer.bytes) == (10, 9, 160)
    writer.close()
    assert [row[2] for row in read(tmp_path / "t")] == [bytes(memoryview(p)) for p in payloads]


def test_row_is_copied(tmp_path: Path) -> None:
    writer = tape(tmp_path / "t")
    row = np.zeros(1)
    for ts in range(100):
        row[:] = ts
        writer.append(ts, row)
    row[:] = -1
    writer.close()
    found = [np.frombuffer(row[2])[0] for row in read(tmp_path / "t", 7)]
    assert found == list(range(100))


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (2, 3)])
def test_rows_of_any_shape(tmp_path: Path, shape: tuple[int, ...]) -> None:
    row = np.ones(shape)
    writer = tape(tmp_path / "t", row.nbytes)
    for ts in range(5):
        writer.append(ts, row)
    writer.close()
    assert TapeReader(str(tmp_path / "t")).row_bytes == row.nbytes
    assert read(tmp_path / "t", 2) == [(ts, (), row.tobytes()) for ts in range(5)]


def test_variable_rows_and_notes(tmp_path: Path) -> None:
    writer = tape(tmp_path / "t", None, 1)
    payloads = [b"x" * n for n in (0, 1, 5, 70_000, 2, 0)]
    for ts, payload in enumerate(payloads):
        writer.append(ts, payload, (ts * 10,))
        writer.note(b"note %d" % ts)
    writer.note(b"")
    writer.close()
    wanted = [(ts, (ts * 10,), payload) for ts, payload in enumerate(payloads)]
    assert read(tmp_path / "t") == read(tmp_path / "t", 2) == wanted
    reader = TapeReader(str(tmp_path / "t"))
    assert (reader.head, reader.row_bytes, reader.clocks) == (b'{"a": 1}', None, 1)
    notes = [b"note %d" % ts for ts in range(6)] + [b""]
    assert reader.notes() == notes
    assert plain_read((tmp_path / "t").read_bytes()) == (b'{"a": 1}', wanted, notes)
    first = reader.next(1, 1)
    assert first is not None
    assert first[0].tolist() == [0]
    reader.rewind()
    again = reader.next(5, 1 << 30)
    assert again is not None
    assert again[3].tolist() == [0, 0, 1, 6, 70_006, 70_008]


@pytest.mark.parametrize("count", [1, 2, 8, 9, 40])
def test_clocks(tmp_path: Path, count: int) -> None:
    writer = tape(tmp_path / "t", 1, count)
    low = (-(2**63),) * count
    ticks: list[Any] = [tuple(range(count)), list(range(count)), np.arange(count), low]
    for ts, clocks in enumerate(ticks):
        writer.append(ts, b"x", clocks)
    for bad in (None, (), range(count + 1), range(count - 1)):
        with pytest.raises(
            errors.InvalidError, match=rf"`arm`: got \d+ clock values, expected {count}$"
        ):
            writer.append(9, b"x", bad)
    with pytest.raises(errors.InvalidError, match="does not fit in 64 bits"):
        writer.append(9, b"x", [2**63] * count)
    for wrong in (5, [1.5] * count, ["1"] * count):
        with pytest.raises(TypeError):
            writer.append(9, b"x", wrong)  # type: ignore[arg-type]
    writer.close()
    wanted = [tuple(int(tick) for tick in clocks) for clocks in ticks]
    assert [row[1] for row in read(tmp_path / "t")] == wanted


def test_times_must_increase(tmp_path: Path) -> None:
    writer = tape(tmp_path / "t", 1)
    assert (writer.rows, writer.last_ts) == (0, None)
    times: list[Any] = [-(2**63), -1, np.int32(0), np.uint64(7), 8, 2**63 - 1]
    for ts in times:
        writer.append(ts, b"x")
        for late in (ts, -(2**63)):
            text = f"`arm`: timestamp {late} is not after the previous one, {ts}"
            with pytest.raises(errors.InvalidError) as refused:
                writer.append(late, b"x")
            assert str(refused.value) == text
    for wide in (2**63, -(2**63) - 1, 10**30):
        with pytest.raises(
            errors.InvalidError, match=f"`arm`: the timestamp {wide} does not fit in 64 bits"
        ):
            writer.append(wide, b"x")
    for wrong in (1.5, "1", None):
        with pytest.raises(TypeError):
            writer.append(wrong, b"x")  # type: ignore[arg-type]
    assert writer.rows == 6
    writer.close()
    assert [row[0] for row in read(tmp_path / "t")] == [int(ts) for ts in times]


def test_payload_that_is_not_a_buffer_raises(tmp_path: Path) -> None:
    writer = tape(tmp_path / "t")
    refused: list[tuple[Any, str]] = [
        (b"1234567", "`arm`: the payload has 7 bytes, expected 8"),
        (np.zeros(2), "`arm`: the payload has 16 bytes, expected 8"),
        (np.zeros(0), "`arm`: the payload has 0 bytes, expected 8"),
        (np.zeros((2, 2), np.int16).T, "C-contiguous"),
        (np.zeros(16, np.uint8)[::2], "C-contiguous"),
        (memoryview(bytes(16))[::2], "C-contiguous"),
        (np.array([None]), "C-contiguous"),
    ]
    for payload, text in refused:
        with pytest.raises(errors.InvalidError, match=text):
            writer.append(1, payload)
    for wrong in ("12345678", None, 5, 1.5, [1]):
        with pytest.raises(TypeError):
            writer.append(1, wrong)  # type: ignore[arg-type]
    assert (writer.rows, writer.pending_bytes) == (0, 0)
    writer.abort()
    with pytest.raises(errors.TooLargeError):
        tape(tmp_path / "t", 64 << 20)
    writer = tape(tmp_path / "t", None)
    with pytest.raises(
        errors.TooLargeError, match="`arm`: a row of 67108864 bytes exceeds the limit of"
    ):
        writer.append(1, bytes(64 << 20))
    writer.append(1, b"")
    writer.close()


def test_rows_reach_the_file_without_flush(tmp_path: Path) -> None:
    writer = tape(tmp_path / "t")
    assert read(tmp_path / "t") == []
    for count in (1, 3000, 300_000):
        for ts in range(writer.rows, count):
            writer.append(ts, b"12345678")
        end = time.monotonic() + 20
        while writer.pending_bytes and time.monotonic() < end:
            time.sleep(0.01)
        assert TapeReader(str(tmp_path / "t")).rows == count
    writer.append(10**9, b"12345678")
    writer.flush()
    assert TapeReader(str(tmp_path / "t")).rows == 300_001
    del writer


ENDS: dict[str, Callable[[TapeWriter], None]] = {
    "close": TapeWriter.close,
    "abort": TapeWriter.abort,
}


@pytest.mark.parametrize("end", ENDS)
def test_closed_tape_raises(tmp_path: Path, end: str) -> None:
    writer = tape(tmp_path / "t")
    writer.append(5, b"12345678")
    with pytest.raises(errors.AlreadyExistsError):
        tape(tmp_path / "t")
    for _ in range(2):
        ENDS[end](writer)
        calls: tuple[Callable[[], None], ...] = (
            lambda: writer.append(6, b"12345678"),
            lambda: writer.note(b""),
            writer.flush,
            writer.sync,
        )
        for call in calls:
            with pytest.raises(errors.ClosedError, match="`arm`"):
                call()
        writer.close()
    assert (tmp_path / "t").exists() == (end == "close")
    assert (writer.rows, writer.last_ts, writer.pending_bytes) == (1, 5, 0)
    writer.abort()
    assert (tmp_path / "t").exists() == (end == "close")


def test_empty_file_and_file_that_is_not_a_tape(tmp_path: Path) -> None:
    (tmp_path / "t").touch()
    reader = TapeReader(str(tmp_path / "t"))
    assert (reader.head, reader.row_bytes, reader.clocks, reader.rows) == (None, None, 0, 0)
    assert (reader.next(1, 1), reader.notes()) == (None, [])
    reader.rewind()
    (tmp_path / "t").write_bytes(b"no tape, and long enough to be one" * 4)
    with pytest.raises(errors.CorruptError):
        TapeReader(str(tmp_path / "t"))
    with pytest.raises(errors.NotFoundError):
        TapeReader(str(tmp_path / "u"))
    with pytest.raises(errors.NotFoundError):
        tape(tmp_path / "no" / "t")


GOLDEN = """
52454c4956454a000100000001020304050607087066b7e34a52454320000000000000000000000037511031
010101000100000000000000000000007b226b696e64223a202274657874227d4a5245433b00000001000000
0000000064a1755f02000000020000000000000000000000fbffffffffffffff070000000000000003000000
6f6e6509000000000000000800000000000000000000004a524543070000000200000000000000915efb0b03
61206e6f74654a524543290000000300000000000000c3911db9020000000100000002000000000000000a00
000000000000ffffffffffffffff050000007468726565
"""
"""A tape of version 1, which stays readable."""


def test_golden_tape_is_read(tmp_path: Path) -> None:
    data = bytes.fromhex(GOLDEN)
    (tmp_path / "t").write_bytes(data)
    rows = [(-5, (7,), b"one"), (9, (8,), b""), (10, (-1,), b"three")]
    assert plain_read(data) == (b'{"kind": "text"}', rows, [b"a note"])
    assert read(tmp_path / "t") == rows
    reader = TapeReader(str(tmp_path / "t"))
    assert (reader.head, reader.row_bytes) == (b'{"kind": "text"}', None)
    assert reader.notes() == [b"a note"]


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20), st.data())
def test_find_time_matches_bisect(times: list[int], data: st.DataObject) -> None:
    array = np.array(sorted(times), np.int64)
    low = data.draw(st.integers(0, len(times)))
    high = data.draw(st.integers(low, len(times)))
    for ts in [*times, *(ts + 1 for ts in times), *WIDE, data.draw(st.integers())]:
        wanted = bisect_right(array.tolist(), ts, low, high)
        assert find_time(array, ts, low, high) == wanted
        if -(2**63) <= ts < 2**63:
            assert find_time(array, np.int64(ts), low, high) == wanted


def test_find_time_takes_only_plain_arrays() -> None:
    times = np.arange(10)
    assert find_time(times, True, 0, 10) == 2  # noqa: FBT003 - counts as an integer
    assert find_time(times, np.uint8(3), 0, 10) == 4
    with_offset = np.zeros(25, np.uint8)[1:].view(np.int64)
    wrong: list[Any] = [
        times[::2], times.astype(np.int32), times.astype(np.uint64), times.astype(float),
        times.astype(">i8"), times.reshape(2, 5), with_offset, [1, 2], np.array(1),
    ]  # fmt: skip
    for array in wrong:
        with pytest.raises(errors.InvalidError, match="contiguous 1-D int64 array"):
            find_time(array, 1, 0, 1)
    for low, high in [(0, 11), (11, 11), (5, 4)]:
        with pytest.raises(errors.OutOfRangeError):
            find_time(times, 1, low, high)
    for ts in (1.0, "1", None):
        with pytest.raises(TypeError):
            find_time(times, ts, 0, 10)  # type: ignore[arg-type]
