"""Kills a writer at some moment, and returns when each of its calls had returned."""

import multiprocessing
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

Write = Callable[[Path, tuple[int, ...], Connection], None]

MOST_BYTES = 60_000_000


def payloads(seed: tuple[int, ...]) -> Iterator[tuple[bytes, float]]:
    """Iterate over payloads of 100 B to 10 MB, each with the seconds to wait before it."""
    rng = np.random.default_rng(seed)
    longest = float(rng.choice([3, 5, 7]))
    while True:
        size = int(10 ** rng.uniform(2, longest))
        pause_s = float(rng.choice([0, 0.001, 0.3], p=[0.8, 0.17, 0.03]))
        yield rng.bytes(size // 2) + bytes(size - size // 2), pause_s


def append_all(
    append: Callable[[int, bytes], object], seed: tuple[int, ...], pipe: Connection
) -> None:
    """Append numbered payloads until this process is killed; send the time after each."""
    total = 0
    for number, (payload, pause_s) in enumerate(payloads(seed)):
        time.sleep(pause_s)
        append(number, payload)
        pipe.send(time.monotonic())
        total += len(payload)
        if total > MOST_BYTES:
            time.sleep(3600)  # an idle writer is killed too


def killed(write: Write, path: Path, seed: tuple[int, ...]) -> tuple[list[float], float]:
    """Kill a process that runs `write`; return the times that it sent, and that of the kill."""
    rng = np.random.default_rng((*seed, 2))
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([write.__module__])
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=write, args=(path, seed, sender))
    process.start()
    sender.close()
    times: list[float] = []
    if rng.random() < 0.9 and receiver.poll(60):  # else it may be killed while it begins
        times.append(receiver.recv())
    until = time.monotonic() + rng.uniform(0, 2.5)
    while (left := until - time.monotonic()) > 0:
        if receiver.poll(left):
            times.append(receiver.recv())
    killed_at = time.monotonic()
    process.kill()
    process.join()
    assert process.exitcode == -9, f"{seed}: it had ended with {process.exitcode}"
    try:
        while True:
            times.append(receiver.recv())
    except (EOFError, OSError):
        return times, killed_at
