"""The encoder thread: waiting, hanging and unclosed."""

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from relive.episodes import DiskEpisodeWriter, VideoSignalWriter, recover
from relive.store import queue
from relive.store.video import Encoder

FRAME = np.zeros((32, 48, 3), np.uint8)
SEED = int(os.environ.get("RELIVE_SEED", "1"))


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
"""


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def slow_down(monkeypatch: pytest.MonkeyPatch, seconds: float = 0.01) -> None:
    encode = Encoder.encode

    def slowly(self: Encoder, picture: Any, ts_ns: int) -> Any:
        time.sleep(seconds)
        return encode(self, picture, ts_ns)

    monkeypatch.setattr(Encoder, "encode", slowly)


class Slow:
    """A lock or an event whose calls start late, as on a busy machine."""

    def __init__(self, inner: Any, rng: random.Random) -> None:
        self._inner = inner
        self._rng = rng

    def __getattr__(self, name: str) -> Any:
        time.sleep(self._rng.choice((0.0, 0.0, 0.006)))
        return getattr(self._inner, name)

    def __enter__(self) -> Any:
        return self.__getattr__("__enter__")()

    def __exit__(self, *error: object) -> None:
        self._inner.__exit__(*error)


def _slow(make: Callable[[], Any], rng: random.Random) -> Callable[[], Slow]:
    return lambda: Slow(make(), rng)


def test_waiting_for_space_and_flushing_do_not_block_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(SEED)  # noqa: S311 - random times
    kinds = ("Event", "Lock", "RLock", "Condition")
    slow = {kind: _slow(getattr(threading, kind), rng) for kind in kinds}
    monkeypatch.setattr(queue, "threading", SimpleNamespace(**slow))
    slow_down(monkeypatch, 0.002)
    writer = VideoSignalWriter(tmp_path / "cam.mp4", profile="fast", queue=1)
    writer.append(FRAME, 0)
    over = threading.Event()

    def flush() -> None:
        while not over.is_set():
            writer.flush()

    def append() -> None:
        for number in range(1, 150):
            writer.append(FRAME, number)
        over.set()

    threads = [threading.Thread(target=each, daemon=True) for each in (flush, append)]
    for thread in threads:
        thread.start()
    assert over.wait(40)
    for thread in threads:
        thread.join()
    writer.close()
    assert writer.stats.rows == 150


def _hang(monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    """Let encoders hang; return an event that is set when one does, and one that ends it."""
    hangs, gate = threading.Event(), threading.Event()
    encode = Encoder.encode

    def hanging(self: Encoder, picture: Any, ts_ns: int) -> Any:
        hangs.set()
        gate.wait(60)
        return encode(self, picture, ts_ns)

    monkeypatch.setattr(Encoder, "encode", hanging)
    return hangs, gate


def _is_waiting(writer: Any) -> bool:
    """Wait until a thread waits for space in the queue of a writer's camera."""
    camera: Any = writer._writers["cam"] if hasattr(writer, "_writers") else writer
    until = time.monotonic() + 60
    while not camera._thread.queue._waiters and time.monotonic() < until:
        time.sleep(0.001)
    return bool(camera._thread.queue._waiters)


@pytest.mark.parametrize("make", [DiskEpisodeWriter, VideoSignalWriter])
def test_abort_does_not_wait_for_a_hanging_encoder(
    make: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs, gate = _hang(monkeypatch)
    writer = make(tmp_path / "x", queue=1)
    one = ("cam", FRAME) if make is DiskEpisodeWriter else (FRAME,)
    writer.append(*one)
    assert hangs.wait(60)  # else `abort` discards the frame, and no thread hangs
    refused: list[BaseException] = []

    def wait_for_room() -> None:
        try:
            writer.append(*one)
        except Exception as error:  # noqa: BLE001 - checked below
            refused.append(error)

    thread = threading.Thread(target=wait_for_room)
    thread.start()
    assert _is_waiting(writer)
    began = time.monotonic()
    writer.abort()
    assert time.monotonic() - began < 10
    thread.join(10)
    assert "was aborted" in str(refused[0])
    assert names_in(tmp_path) == []
    left = [each for each in threading.enumerate() if each.name.startswith("relive-encode-")]
    assert left
    gate.set()
    for each in left:
        each.join(10)
    assert names_in(tmp_path) == []


def test_unclosed_thread_ends_before_the_interpreter(tmp_path: Path) -> None:
    script = CHILD + (
        "writer = DiskEpisodeWriter(sys.argv[1], queue=100)\n"
        "for number in range(40):\n"
        "    writer.append('cam', np.full((32, 48, 3), number, np.uint8), number)\n"
        "del writer\n"
    )
    subprocess.run([sys.executable, "-c", script, tmp_path / "ep"], check=True, timeout=60)
    assert recover(tmp_path / "ep").episodes[0].signals == {"cam": 40}
