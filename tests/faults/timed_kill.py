"""Kills a writer at some moment, and returns when each of its calls had returned."""

import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

Write = Callable[[Path, tuple[int, ...], Connection], None]


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
