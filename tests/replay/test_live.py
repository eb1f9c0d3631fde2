"""The live lane: frames in shared memory, from one writer to readers in other processes."""

import contextlib
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from relive.errors import (
    ClosedError,
    InvalidError,
    InvalidTypeError,
    LockedError,
    NotFoundError,
    ReliveError,
    StorageError,
    TooLargeError,
)
from relive.replay import LiveLane, live

SHARED = Path("/dev/shm")  # noqa: S108 - where lanes are


@pytest.fixture
def name() -> Iterator[str]:
    """A name that no other test uses; nothing of it remains."""
    unique = f"test.{uuid.uuid4().hex}"
    yield unique
    assert [path.name for path in SHARED.iterdir() if unique in path.name] == []


def frame(value: int, shape: tuple[int, ...] = (4, 5, 3)) -> np.ndarray:
    return np.full(shape, value, np.uint8)


def child(code: str, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


WRITER = """
import sys
import numpy as np
from relive.replay import LiveLane
lane = LiveLane.create(sys.argv[1], (210, 160, 3), metadata={"env": "Pong"})
lane.publish(np.full((210, 160, 3), 1, np.uint8), reward=1)
print("ready", flush=True)
number = 1
while True:
    lane.publish(np.full((210, 160, 3), number % 256, np.uint8), number=number)
    number += 1
"""


@contextlib.contextmanager
def running_writer(name: str) -> "Iterator[subprocess.Popen[str]]":
    process = child(WRITER, name)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def test_reader_gets_the_newest_frame(name: str) -> None:
    with LiveLane.create(name, (4, 5, 3), metadata={"fps": 60}) as lane:
        assert lane.latest() is None
        viewer = LiveLane.attach(name)
        assert viewer.latest() is None
        assert (viewer.shape, viewer.pid) == ((4, 5, 3), os.getpid())
        assert viewer.dtype == np.uint8
        assert viewer.metadata == {"fps": 60}
        for number in range(20):
            values = {"reward": -0.5, "step": number, "done": True, "big": 2.0**70}
            assert lane.publish(frame(number), **values) == number
            found = viewer.latest()
            assert found is not None
            image, scalars, sequence = found
            assert sequence == number
            np.testing.assert_array_equal(image, frame(number))
            assert scalars.pop("step_rate") >= 0
            assert scalars == values
            assert scalars["done"] is True
            assert type(scalars["step"]) is int
            image[:] = 0  # the caller's own
        assert viewer.is_live
        assert [info.frames for info in LiveLane.list() if info.name == name] == [20]
    assert not viewer.is_live
    last = viewer.latest()
    assert last is not None
    assert last[2] == 19
    assert name not in {info.name for info in LiveLane.list()}


@pytest.mark.parametrize("dtype", ["bool", "float16", "float32", "complex64", "int64"])
@pytest.mark.parametrize("shape", [(), (1,), (7, 3), (0, 4)])
def test_every_shape_and_dtype(name: str, dtype: str, shape: tuple[int, ...]) -> None:
    image = np.random.default_rng(0).random(shape)
    image = np.asarray(image * 9).astype(dtype)
    with LiveLane.create(name, shape, dtype) as lane:
        lane.publish(image)
        found = LiveLane.attach(name).latest()
        assert found is not None
        assert found[0].dtype == dtype
        np.testing.assert_array_equal(found[0], image)


def test_views_of_arrays_are_published(name: str) -> None:
    image = np.arange(60, dtype=np.uint8).reshape(5, 4, 3)
    with LiveLane.create(name, (4, 5, 3)) as lane:
        lane.publish(image.swapaxes(0, 1))
        found = lane.latest()
        assert found is not None
        np.testing.assert_array_equal(found[0], image.swapaxes(0, 1))


def test_another_shape_begins_a_new_segment(name: str) -> None:
    with LiveLane.create(name, (4, 5, 3)) as lane:
        lane.publish(frame(1))
        viewer = LiveLane.attach(name)
        lane.publish(frame(2, (8, 8)))
        found = viewer.latest()
        assert found is not None
        assert (found[0].shape, found[2]) == ((8, 8), 1)
        assert lane.publish(np.zeros((8, 8), np.float32)) == 2
        assert viewer.is_live
        found = viewer.latest()
        assert found is not None
        assert found[0].dtype == np.float32
        assert found[2] == 2
        assert viewer.shape == (8, 8)
        with pytest.raises(LockedError):
            LiveLane.create(name, (4, 5, 3))


def test_wrong_use_is_a_typed_error(name: str) -> None:
    with pytest.raises(NotFoundError, match="no process publishes"):
        LiveLane.attach(name)
    for wrong in ("", ".hidden", "a/b", "x" * 129, "a b"):
        with pytest.raises(InvalidError, match="name"):
            LiveLane.create(wrong, (2,))
    with pytest.raises(InvalidError, match="slots"):
        LiveLane.create(name, (2,), slots=1)
    with pytest.raises(InvalidError, match="shape"):
        LiveLane.create(name, (-1,))
    with pytest.raises(InvalidTypeError, match=r"`shape\[1\]` must be an integer, got 2.5"):
        LiveLane.create(name, (2, 2.5))  # type: ignore[arg-type]
    with pytest.raises(InvalidTypeError, match="`shape` must be a tuple of integers, got 5"):
        LiveLane.create(name, 5)  # type: ignore[arg-type]
    with pytest.raises(InvalidTypeError, match="`metadata` must be a dict, got 5"):
        LiveLane.create(name, (2,), metadata=5)  # type: ignore[arg-type]
    for dtype in ("object", "str", "not a dtype"):
        with pytest.raises(InvalidTypeError, match=r"dtype|numbers"):
            LiveLane.create(name, (2,), dtype)
    with pytest.raises(InvalidTypeError, match="metadata"):
        LiveLane.create(name, (2,), metadata={"x": object()})
    with pytest.raises(TooLargeError, match="description"):
        LiveLane.create(name, (2,), metadata={"x": "y" * 5000})
    with LiveLane.create(name, (4, 5, 3)) as lane:
        with pytest.raises(InvalidTypeError, match="NumPy array"):
            lane.publish([1, 2, 3])  # type: ignore[arg-type]
        for number in (np.float32(3), np.uint8(3)):
            with pytest.raises(InvalidTypeError, match="a frame must be a NumPy array, got a"):
                lane.publish(number)  # type: ignore[arg-type]
        assert lane.shape == (4, 5, 3)
        with pytest.raises(InvalidTypeError, match="reward='high'"):
            lane.publish(frame(0), reward="high")  # type: ignore[arg-type]
        with pytest.raises(TooLargeError, match="scalars"):
            lane.publish(frame(0), **dict.fromkeys(map(str, range(200)), 1.0))
        viewer = LiveLane.attach(name)
        with pytest.raises(InvalidError, match="attached for reading"):
            viewer.publish(frame(0))
        with pytest.raises(LockedError, match=str(os.getpid())):
            LiveLane.create(name, (4, 5, 3))
        viewer.close()
        with pytest.raises(ClosedError):
            viewer.latest()
    lane.close()
    with pytest.raises(ClosedError):
        lane.publish(frame(0))


def test_memory_that_is_full_is_an_error_before_the_first_frame(name: str) -> None:
    room = os.statvfs(SHARED)
    size = room.f_bavail * room.f_frsize * 2
    with pytest.raises(ReliveError, match=r"cannot reserve \d+ bytes") as raised:
        LiveLane.create(name, (size // 2,), slots=2)
    assert isinstance(raised.value, (StorageError, TooLargeError))


def test_killed_writer_is_replaced(name: str) -> None:
    with running_writer(name) as process:
        with pytest.raises(LockedError, match=str(process.pid)):
            LiveLane.create(name, (2, 2))
        viewer = LiveLane.attach(name)
        assert viewer.metadata == {"env": "Pong"}
        process.kill()
        process.wait()
        assert not viewer.is_live
        found = viewer.latest()
        assert found is not None
        assert len(np.unique(found[0])) == 1
        with pytest.raises(NotFoundError):
            LiveLane.attach(name)
        with LiveLane.create(name, (2, 2)) as lane:
            lane.publish(frame(3, (2, 2)))
            assert LiveLane.attach(name).pid == os.getpid()


def test_memory_of_killed_writers_is_freed_by_the_next_lane(name: str) -> None:
    with running_writer(name) as process:
        process.kill()
        process.wait()
    assert live._segments(name)
    with LiveLane.create(f"{name}.other", (2, 2)):
        assert live._segments(name) == []


def test_lanes_of_other_names_are_not_waited_for(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sleep(_: float) -> None:
        raise AssertionError("a lane waited for another one")

    with LiveLane.create(f"{name}.one", (2, 2)), LiveLane.create(f"{name}.two", (2, 2)):
        monkeypatch.setattr(time, "sleep", sleep)
        with LiveLane.create(name, (2, 2)) as lane:
            lane.publish(frame(1, (2, 2)))
        assert len(live._segments(f"{name}.one") + live._segments(f"{name}.two")) == 2


def publish_in_a_fork(name: str) -> bool:
    """Fork while a lane is open; return whether only the parent can publish."""
    lane = LiveLane.create(name, (4, 5, 3))
    lane.publish(frame(1))
    pid = os.fork()
    if pid == 0:
        try:
            lane.publish(frame(2))
        except ClosedError:
            with contextlib.suppress(BaseException):
                lane.close()
            os._exit(0)
        finally:
            os._exit(1)
    status = os.waitpid(pid, 0)[1]
    viewer = LiveLane.attach(name)
    found = viewer.latest()
    is_live = viewer.is_live
    lane.close()
    return status == 0 and is_live and found is not None and found[0][0, 0, 0] == 1


def test_forked_child_does_not_publish(name: str, spawned_pool: ProcessPoolExecutor) -> None:
    assert spawned_pool.submit(publish_in_a_fork, name).result(timeout=60)


def test_lane_ends_with_its_process(name: str) -> None:
    code = """
import sys, os
import numpy as np
from relive.replay import LiveLane
lane = LiveLane.create(sys.argv[1], (2, 2))
lane.publish(np.zeros((2, 2), np.uint8))
print(len([path for path in os.listdir("/dev/shm") if sys.argv[1] in path]))
"""
    process = child(code, name)
    assert process.communicate()[0] == "1\n"
    assert process.returncode == 0


@pytest.mark.needs("strace")
def test_publish_makes_no_system_call(name: str, tmp_path: Path) -> None:
    code = """
import os, sys
import numpy as np
from relive.replay import LiveLane
with LiveLane.create(sys.argv[1], (210, 160, 3)) as lane:
    image = np.zeros((210, 160, 3), np.uint8)
    lane.publish(image, reward=1.0)
    os.path.exists("/begin")
    for number in range(1000):
        lane.publish(image, reward=1.0, rolling_return=2.0)
    os.path.exists("/end")
"""
    trace = tmp_path / "trace"
    subprocess.run(["strace", "-f", "-o", str(trace), sys.executable, "-c", code, name], check=True)
    calls = trace.read_text().splitlines()
    begin = next(i for i, call in enumerate(calls) if '"/begin"' in call)
    end = next(i for i, call in enumerate(calls) if '"/end"' in call)
    assert calls[begin + 1 : end] == []


def test_frames_are_whole_while_the_writer_runs(name: str) -> None:
    with running_writer(name):
        viewer = LiveLane.attach(name)
        end = time.monotonic() + 1
        last, changes = -1, 0
        while time.monotonic() < end:
            found = viewer.latest()
            assert found is not None
            image, scalars, sequence = found
            assert len(np.unique(image)) == 1
            if sequence > 0:
                assert int(image[0, 0, 0]) == int(scalars["number"]) % 256
            assert sequence >= last
            changes += sequence > last
            last = sequence
        assert changes > 10
    LiveLane.create(name, (1,)).close()  # frees the memory of the killed writer
