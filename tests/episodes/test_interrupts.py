"""Ctrl-C at any moment: appended records are committed, or left unfinished and recoverable."""

import os
import pickle
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

from relive._extras import require
from relive._interrupts import uninterrupted
from relive._native import wait_through_signals
from relive.episodes import (
    DiskEpisodeWriter,
    SimpleSignalWriter,
    VideoSignalWriter,
    recover,
    validate,
)
from relive.episodes.read.episode import DiskEpisode
from relive.episodes.write.video_writer import CameraWriter
from relive.errors import AlreadyExistsError, CorruptError, InvalidTypeError, StorageError
from relive.store.video import Encoder, Movie
from tests.alarms import alarms
from tests.episodes.ctrl_c import handling, interrupt

FRAME = np.zeros((32, 48, 3), np.uint8)
SEED = int(os.environ.get("RELIVE_SEED", "1"))


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    with handling():
        yield


def interrupt_closing(monkeypatch: pytest.MonkeyPatch, owner: Any, times: int = 1) -> None:
    """Send Ctrl-C `times` times while a writer is closed, before its first frame is encoded."""
    closing = threading.Event()
    finish, encode = owner._finish, Encoder.encode

    def finishing(self: Any) -> None:
        closing.set()
        finish(self)

    def waiting(self: Encoder, picture: Any, ts_ns: int) -> Any:
        if ts_ns == 0:
            assert closing.wait(60)
            for _ in range(times):
                interrupt()
        return encode(self, picture, ts_ns)

    monkeypatch.setattr(owner, "_finish", finishing)
    monkeypatch.setattr(Encoder, "encode", waiting)


def test_work_completes_before_keyboard_interrupt_is_raised() -> None:
    done: list[str] = []
    reported: list[BaseException] = []

    def work() -> None:
        for _ in range(3):
            interrupt()
        done.append(threading.current_thread().name)

    with pytest.raises(KeyboardInterrupt) as raised:
        uninterrupted(work, reported.append)
    assert len(done) == 1
    assert reported == [raised.value]
    assert uninterrupted(lambda: 5) == 5
    with pytest.raises(KeyError, match="6"):
        uninterrupted(lambda: dict[int, int]()[6])


def test_no_number_of_signals_ends_the_wait() -> None:
    class StopRequest(BaseException):
        pass

    work_is_running = False

    def handle(number: int, frame: FrameType | None) -> None:
        del number, frame
        if work_is_running:
            raise StopRequest

    def work() -> None:
        nonlocal work_is_running
        work_is_running = True
        time.sleep(0.005)
        work_is_running = False

    interrupts = 0
    with alarms(handle):
        signal.setitimer(signal.ITIMER_REAL, 1e-5, 1e-5)
        for _ in range(100):
            try:
                uninterrupted(work)
            except StopRequest:
                interrupts += 1
            assert not work_is_running
    assert interrupts > 0


@pytest.mark.parametrize("times", [1, 3, 1000])
def test_interrupt_while_the_thread_starts(times: int) -> None:
    # Starting a thread calls audit hooks from Python 3.12 on. That of filelock, which torch
    # imports, is written in Python, so signal handlers run in it.
    ends = threading.Lock()
    ends.acquire()
    interrupts: list[KeyboardInterrupt] = []
    ran: list[str] = []

    def start() -> None:
        if len(interrupts) < times:
            interrupts.append(KeyboardInterrupt())
            raise interrupts[-1]
        threading.Thread(target=run, name="other").start()

    def run() -> None:
        ran.append(threading.current_thread().name)
        ends.release()

    assert wait_through_signals(start, run, ends, None) is interrupts[0]
    # A hook that refuses every thread does not prevent the work.
    assert ran == ["MainThread" if times == 1000 else "other"]


def test_error_during_an_interrupt_is_the_cause() -> None:
    def work() -> None:
        interrupt()
        error = StorageError("the disk is gone")
        error.add_note("it may come back")
        raise error

    with pytest.raises(KeyboardInterrupt) as raised:
        uninterrupted(work)
    assert isinstance(raised.value.__cause__, StorageError)
    assert raised.value.__notes__ == ["the disk is gone", "it may come back"]


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("by", [None, KeyboardInterrupt])
def test_close_completes_after_an_interrupt(
    times: int,
    by: type[BaseException] | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    interrupt_closing(monkeypatch, DiskEpisodeWriter, times)

    def record() -> None:
        with DiskEpisodeWriter(tmp_path / "ep", queue=100) as writer:
            for number in range(30):
                writer.append("cam", FRAME, number)
                writer.append("state", np.zeros(3), number)
            if by is not None:
                raise by

    with pytest.raises(KeyboardInterrupt):
        record()
    assert not validate(tmp_path / "ep", level="full").problems
    episode = DiskEpisode(tmp_path / "ep")
    assert {name: len(each) for name, each in episode.signals.items()} == {"cam": 30, "state": 30}
    assert episode.meta["outcome"]["ended"] == "interrupted"


def test_single_signal_is_closed_after_an_interrupt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt_closing(monkeypatch, CameraWriter)
    writer = VideoSignalWriter(tmp_path / "cam.mp4", queue=100)
    for number in range(20):
        writer.append(FRAME, number)
    with pytest.raises(KeyboardInterrupt):
        writer.close()
    assert names_in(tmp_path) == ["cam.frames.parquet", "cam.mp4"]
    assert writer.stats.rows == 20


def test_failed_close_after_an_interrupt_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Movie) -> None:
        interrupt()
        raise MemoryError("no more")

    monkeypatch.setattr(Movie, "close", full)
    writer = DiskEpisodeWriter(tmp_path / "ep")
    writer.append("cam", FRAME, 1)
    writer.append("state", 1.0, 1)
    with pytest.raises(KeyboardInterrupt) as raised:
        writer.close()
    assert f"relive recover {tmp_path / 'ep'}" in "\n".join(raised.value.__notes__)
    monkeypatch.undo()
    assert recover(tmp_path / "ep").episodes[0].signals == {"cam": 1, "state": 1}


CHILD = """
import sys, time
import numpy as np
from relive.episodes import DiskEpisodeWriter
from relive.store.video import Encoder
encode = Encoder.encode
def slowly(*arguments):
    time.sleep(0.004)
    return encode(*arguments)
Encoder.encode = slowly
big = np.zeros((200, 100))
with DiskEpisodeWriter(sys.argv[1], queue=100) as writer:
    for number in range(40):
        writer.append("cam", np.full((32, 48, 3), number, np.uint8), number)
        writer.append("state", np.full(3, number), number)
        writer.append("big", big, number)
    print("closing", flush=True)
print("closed", flush=True)
"""


def test_process_interrupted_at_any_moment(tmp_path: Path) -> None:
    rng = random.Random(SEED)  # noqa: S311 - random times
    ends = set()
    for start in range(0, 8, 4):
        children = []
        for number in range(start, start + 4):
            path = tmp_path / str(number)
            command = [sys.executable, "-c", CHILD, os.fspath(path)]
            child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            children.append((path, child))
        senders = []
        for number, (_, child) in enumerate(children):
            pauses = [rng.uniform(0, 0.3)] + [rng.uniform(0, 0.1)] * (number % 4)
            senders.append(threading.Thread(target=_interrupt, args=(child, pauses)))
            senders[-1].start()
        for sender in senders:
            sender.join()
        for path, child in children:
            _, output = child.communicate(timeout=60)
            assert child.returncode in (0, 1, -signal.SIGINT), output
            if (path / ".unfinished").exists():
                (found,) = recover(path).episodes
                assert not found.problems
            episode = DiskEpisode(path)
            ends.add(episode.meta["outcome"]["ended"])
            rows = {name: each.timestamps.tolist() for name, each in episode.signals.items()}
            assert rows == {key: list(range(40)) for key in ("big", "cam", "state")}
            assert not validate(path, level="full").problems
    assert "interrupted" in ends


def _interrupt(child: "subprocess.Popen[bytes]", pauses: list[float]) -> None:
    assert child.stdout is not None
    assert child.stdout.readline() == b"closing\n"
    for pause in pauses:
        time.sleep(pause)
        child.send_signal(signal.SIGINT)


def test_leftovers_without_records_are_removed(tmp_path: Path) -> None:
    left = DiskEpisodeWriter(tmp_path / "left")
    left.append("x", 1.0, 1)
    left.leave()
    content = (tmp_path / "left" / ".x.parquet.tape").read_bytes()
    with DiskEpisodeWriter(tmp_path / "ep") as writer:
        (tmp_path / "ep" / ".y.parquet.tape").write_bytes(content[:40])
        (tmp_path / "ep" / ".cam.mp4.part").write_bytes(b"begun")
    assert names_in(tmp_path / "ep") == ["files.json", "meta.json", "outcome.json"]
    writer = DiskEpisodeWriter(tmp_path / "full")
    (tmp_path / "full" / ".x.parquet.tape").write_bytes(content)
    with pytest.raises(CorruptError, match="records that are not in any signal file"):
        writer.close()
    assert recover(tmp_path / "full").episodes[0].signals == {"x": 1}


def test_leftover_in_a_committed_episode_is_reported(tmp_path: Path) -> None:
    DiskEpisodeWriter(tmp_path / "ep").close()
    assert validate(tmp_path / "ep").ok
    for name in (".x.parquet.tape", ".cam.mp4.part"):
        (tmp_path / "ep" / name).write_bytes(b"")
    found = validate(tmp_path / "ep").problems
    assert [(Path(each.path).name, each.kind) for each in found] == [
        (".cam.mp4.part", "invalid"),
        (".x.parquet.tape", "invalid"),
    ]


def test_import_completes_before_keyboard_interrupt_is_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "from tests.episodes.ctrl_c import interrupt\ninterrupt()\nrest = 1\n"
    (tmp_path / "an_extension.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        require("an_extension", extra="video", to="read")
    assert sys.modules["an_extension"].rest == 1
    assert require("an_extension", extra="video", to="read").rest == 1


def test_signal_handler_may_close_the_interrupted_writer(tmp_path: Path) -> None:
    writer = DiskEpisodeWriter(tmp_path / "ep")
    writer.append("x", 1.0, 1)
    with writer._writers["x"]._mutex:  # as during an append
        writer.close()
    assert len(DiskEpisode(tmp_path / "ep")["x"]) == 1


def test_two_writers_of_one_path(tmp_path: Path) -> None:
    with (
        SimpleSignalWriter(tmp_path / "a.parquet") as first,
        VideoSignalWriter(tmp_path / "a.mp4") as video,
    ):
        idle = SimpleSignalWriter(tmp_path / "a.parquet")
        first.append(1.0, 1)
        video.append(FRAME, 1)
        with pytest.raises(AlreadyExistsError, match="another writer is recording it"):
            SimpleSignalWriter(tmp_path / "a.parquet")
        with pytest.raises(AlreadyExistsError, match="another writer is recording it"):
            idle.append(1.0, 1)
        idle.abort()
        assert ".a.parquet.tape" in names_in(tmp_path)
    assert names_in(tmp_path) == ["a.frames.parquet", "a.mp4", "a.parquet"]


def test_writer_cannot_be_pickled(tmp_path: Path) -> None:
    with DiskEpisodeWriter(tmp_path / "ep") as writer:
        with pytest.raises(InvalidTypeError, match="cannot be pickled"):
            pickle.dumps(writer)
        writer.append("x", 1.0)
        with pytest.raises(InvalidTypeError, match="cannot be pickled"):
            pickle.dumps(writer._writers["x"])
