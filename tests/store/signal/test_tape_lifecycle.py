"""Tapes in threads and processes: forks, kills and full disks."""

import multiprocessing
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relive import errors
from relive._native import TapeReader
from tests.store.signal.tapes import read, tape


def test_threads_record_concurrently(tmp_path: Path) -> None:
    shared, lock = tape(tmp_path / "shared"), threading.Lock()

    def record(number: int) -> None:
        writer = tape(tmp_path / str(number))
        for ts in range(20_000):
            writer.append(ts, np.array([number + ts]))
            with lock:
                shared.append(shared.rows, b"12345678")
        writer.close()

    threads = [threading.Thread(target=record, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    shared.close()
    assert TapeReader(str(tmp_path / "shared")).rows == 80_000
    for number in range(4):
        rows = read(tmp_path / str(number), 30_000)
        assert rows == [(ts, (), (number + ts).to_bytes(8, "little")) for ts in range(20_000)]


def in_a_fork(folder: str) -> list[str]:
    """Use the tape of the parent, and another one, in a forked child."""
    results: list[str] = []
    writer = tape(Path(folder) / "t")
    writer.append(1, b"12345678")
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    def child() -> None:
        found = []
        calls: tuple[Any, ...] = (
            lambda: writer.append(2, b"12345678"), lambda: writer.note(b""), writer.flush,
            writer.sync, writer.close, writer.abort, lambda: writer.rows, lambda: writer.last_ts,
            lambda: writer.pending_bytes, lambda: writer.bytes,
        )  # fmt: skip
        for call in calls:
            try:
                call()
                found.append("allowed")
            except errors.ClosedError:
                found.append("refused")
        own = tape(Path(folder) / "own")
        own.append(1, b"12345678")
        while own.pending_bytes:
            time.sleep(0.01)
        sender.send([*found, str(len(read(Path(folder) / "own")))])

    process = context.Process(target=child)
    process.start()
    if receiver.poll(60):
        results = receiver.recv()
    process.join(60)
    writer.append(2, b"87654321")
    writer.close()
    rows = [row[0] for row in read(Path(folder) / "t")]
    return [*results, str(process.exitcode), str(rows)]


def test_forked_child_does_not_change_the_tape(
    tmp_path: Path, spawned_pool: ProcessPoolExecutor
) -> None:
    results = spawned_pool.submit(in_a_fork, str(tmp_path)).result(timeout=120)
    assert results == [*["refused"] * 10, "1", "0", "[1, 2]"]


KILLED = """
import sys, time
from relive._native import TapeWriter
writer = TapeWriter(sys.argv[1], "arm", b"", 8)
for ts in range(10**9):
    writer.append(ts, ts.to_bytes(8, "little"))
    if ts % 50_000 == 0:
        writer.flush()
        print(ts, flush=True)
"""


def test_killed_writer_leaves_a_prefix(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path / "t")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        flushed = [int(process.stdout.readline()) for _ in range(4)][-1]
        time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
    rows = read(tmp_path / "t", 100_000)
    assert len(rows) > flushed
    assert rows == [(ts, (), ts.to_bytes(8, "little")) for ts in range(len(rows))]


FULL = """
import resource, sys, time
from relive._native import TapeWriter
from relive.errors import StorageError
limit, how = int(sys.argv[2]), sys.argv[3]
writer = TapeWriter(sys.argv[1], "arm", b"", 8)
other = TapeWriter(sys.argv[1] + ".other", "other", b"", 8)
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
ts, failed = 0, []
while not failed:
    try:
        writer.append(ts, ts.to_bytes(8, "little"))
        ts += 1
        if how == "flush" and ts % 100 == 0:
            writer.flush()
    except StorageError as error:
        failed.append(str(error))
rows = writer.rows
calls = [lambda: writer.append(ts, b"12345678"), lambda: writer.append(0, b""), writer.flush,
         lambda: writer.note(b""), writer.sync, writer.close, writer.close]
for call in calls:
    try:
        call()
    except StorageError as error:
        failed.append(str(error))
assert failed == failed[:1] * 8, failed
assert writer.rows == rows and writer.pending_bytes == 0
other.append(1, b"12345678")
other.close()
print(rows, failed[0])
if how == "abort":
    writer.abort()
"""


@pytest.mark.parametrize("limit", [120, 5000, 1 << 21])
@pytest.mark.parametrize("how", ["append", "flush", "abort"])
def test_full_disk_error_persists(tmp_path: Path, limit: int, how: str) -> None:
    command = [sys.executable, "-c", FULL, str(tmp_path / "t"), str(limit), how]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    taken, text = done.stdout.strip().split(" ", 1)
    assert text.startswith("the recording of `arm` failed: ")
    assert "File too large" in text
    assert len(read(tmp_path / "t.other")) == 1
    if how == "abort":
        assert [path.name for path in tmp_path.iterdir()] == ["t.other"]
        return
    rows = read(tmp_path / "t", 100_000)
    assert len(rows) < int(taken)
    assert rows == [(ts, (), ts.to_bytes(8, "little")) for ts in range(len(rows))]
