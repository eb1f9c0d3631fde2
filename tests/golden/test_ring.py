"""The golden live lane stays readable, by relive and by a reader that shares no code with it."""

import os
import struct
from pathlib import Path

import numpy as np
import pytest

from relive._native import RingReader
from relive.errors import CorruptError, UnsupportedError
from relive.replay import LiveLane, live
from relive.store.locks import FileLock
from tests.golden.read_ring import Lane, read_lane
from tests.golden.read_runs import crc32c
from tests.golden.ring.assemble import (
    DTYPE,
    FILE,
    FRAMES,
    METADATA,
    NAME,
    PID,
    SHAPE,
    SLOT_BYTES,
    STARTED,
    frame,
    make,
    scalars,
)

HEADER_END = 56


@pytest.fixture(params=["golden", "current"])
def data(request: pytest.FixtureRequest) -> bytes:
    return FILE.read_bytes() if request.param == "golden" else make()


def refused(data: bytes) -> bool:
    """Return whether the second reader refuses a segment."""
    try:
        read_lane(data)
    except (ValueError, LookupError, struct.error):
        return True
    return False


def test_segment_equals_the_output_of_the_script() -> None:
    assert make() == FILE.read_bytes()


def test_second_reader_matches_what_was_published(data: bytes) -> None:
    found = read_lane(data)
    assert found.description == {
        "name": NAME,
        "pid": PID,
        "shape": list(SHAPE),
        "dtype": DTYPE,
        "started_ns": STARTED,
        "first": 0,
        "metadata": METADATA,
    }
    assert (found.has_ended, found.published) == (False, FRAMES)
    assert found.newest is not None
    # Frame 3 is not whole, and frame 2 is the newest.
    assert found.newest.sequence == FRAMES - 1
    assert found.newest.data == frame(FRAMES - 1).tobytes()
    assert found.newest.scalars == {"step_rate": 30.0, **scalars(FRAMES - 1)}


def test_both_readers_agree(data: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = read_lane(data).newest
    assert theirs is not None
    monkeypatch.setattr(live, "_FOLDER", tmp_path)
    path = tmp_path / f"relive.{os.getuid()}.{NAME}.{PID}"
    lock = FileLock.create(path, lambda temporary: _fill(temporary, data))
    with LiveLane.attach(NAME) as lane:
        found = lane.latest()
        assert found is not None
        assert found[0].dtype == np.dtype(DTYPE)
        assert found[0].shape == SHAPE
        assert found[0].tobytes() == theirs.data
        assert found[1:] == (theirs.scalars, theirs.sequence)
        assert (lane.pid, dict(lane.metadata)) == (PID, METADATA)
    lock.release()
    assert path.read_bytes() == data


def _fill(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def test_ends_and_empty_lanes_are_read(tmp_path: Path) -> None:
    data = bytearray(FILE.read_bytes())
    struct.pack_into("<Q", data, 4032, 1)
    assert read_lane(bytes(data)).has_ended
    struct.pack_into("<Q", data, 3968, 0)
    assert read_lane(bytes(data))[2:] == (0, None)
    path = tmp_path / "lane"
    path.write_bytes(data)
    assert RingReader(path).has_ended
    assert RingReader(path).latest(np.dtype(DTYPE), SHAPE) is None


def test_sequence_numbers_go_on_in_a_new_segment() -> None:
    data = FILE.read_bytes()
    text = data[HEADER_END:].partition(b"\0")[0].replace(b'"first": 0', b'"first": 9')
    start = data[:52] + struct.pack("<I", crc32c(data[:52] + text)) + text
    lane: Lane = read_lane(start + data[len(start) :])
    assert lane.published == 9 + FRAMES
    assert lane.newest is not None
    assert lane.newest.sequence == 9 + FRAMES - 1


def test_both_readers_refuse_every_changed_byte_of_the_header(tmp_path: Path) -> None:
    data = FILE.read_bytes()
    end = HEADER_END + struct.unpack_from("<Q", data, 40)[0]
    path = tmp_path / "lane"
    for at in range(end):
        changed = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        path.write_bytes(changed)
        assert refused(changed)
        with pytest.raises((CorruptError, UnsupportedError)):
            RingReader(path)


@pytest.mark.parametrize("length", [0, 100, 4095, 4096, 4096 + 2 * SLOT_BYTES - 1])
def test_both_readers_refuse_a_segment_that_is_cut(length: int, tmp_path: Path) -> None:
    data = FILE.read_bytes()[:length]
    (tmp_path / "lane").write_bytes(data)
    assert refused(data)
    with pytest.raises(CorruptError):
        RingReader(tmp_path / "lane")
