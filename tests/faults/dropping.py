"""Drops open writers of every kind, in a program that then ends in one of several ways.

`python -m tests.faults.dropping WHERE FOLDER SEED COUNT` drops `COUNT` writers of each kind in a
random order, and ends while one more is open. It prints a line of JSON for each: its kind, its
path, and how many items it must have kept.
"""

import contextlib
import gc
import json
import os
import random
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

import relive
from tests.contracts.writer_contract import WRITERS

MOST_ITEMS: Final = 60
PUBLISHING: Final = "DatasetBuilder"
DATASET: Final = "lab/tables"
EXIT_CODE: Final = 3
ENDS: Final = ("last line", "exit", "error")


class StopError(Exception):
    """Ends the program."""


def write(name: str, path: Path, rng: random.Random) -> Any:
    """Append a random number of items to a new writer, print how many, and return it."""
    count = rng.randint(1, MOST_ITEMS)
    if name == PUBLISHING:
        writer, count = build(path, count % 4 + 1, rng)
    else:
        kind = WRITERS[name]
        writer = kind.open(path)
        for number in range(count):
            kind.append(writer, number)
    line = {"kind": name, "path": str(path), "count": count}
    os.write(1, f"{json.dumps(line)}\n".encode())
    return writer


def build(path: Path, count: int, rng: random.Random) -> tuple[Any, int]:
    """Add tables to a builder, and return it with the number of tables that it published."""
    builder = relive.DatasetBuilder(DATASET, root=path)
    published = 0
    for number in range(count):
        builder.add_table(f"t{number}", pa.table({"n": [number]}))
        if rng.random() < 0.3 and number + 1 < count:
            builder.publish()
            published = number + 1
    return builder, published


def drop_local(writer: partial[Any], rng: random.Random) -> None:
    """Drop it at the end of a function, perhaps by an exception."""

    def main() -> None:
        dropped = writer()
        if rng.random() < 0.5:
            raise StopError
        del dropped

    with contextlib.suppress(StopError):
        main()


def drop_in_thread(writer: partial[Any], rng: random.Random) -> None:
    """Drop it at the end of a thread, which may run when the program ends, or never end."""
    written = threading.Event()
    # `publish` starts threads, and none can be started while the program ends. A builder that a
    # daemon thread still has then is not dropped.
    publishes = writer.args[0] == PUBLISHING
    is_daemon = not publishes and rng.random() < 0.3

    def main() -> None:
        dropped = writer()
        written.set()
        if is_daemon:
            threading.Event().wait()
        del dropped

    thread = threading.Thread(target=main, daemon=is_daemon)
    thread.start()
    if is_daemon or publishes:
        assert written.wait(60)
    elif rng.random() < 0.5:
        thread.join()


def drop_in_cycle(writer: partial[Any], rng: random.Random) -> None:
    """Drop it in a cycle, which the collector finds at once, sometime, or never."""
    cycle: list[Any] = [writer()]
    cycle.append(cycle)
    del cycle
    chosen = rng.random()
    if chosen < 0.4:
        gc.collect()
    elif chosen < 0.7:
        gc.disable()
    else:
        gc.enable()


DROPS: Final = {"local": drop_local, "thread": drop_in_thread, "cycle": drop_in_cycle}


def main(where: str, folder: Path, seed: int, count: int) -> object:
    rng = random.Random(seed)  # noqa: S311 - an order
    order = [name for name in (*WRITERS, PUBLISHING) for _ in range(count)]
    rng.shuffle(order)
    for number, name in enumerate(order):
        path = folder / f"{name}-{number}"
        # Threads that draw at the same time would draw in another order each time.
        draws = random.Random(rng.random())  # noqa: S311 - numbers of items
        DROPS[where](partial(write, name, path, draws), rng)
    if rng.random() < 0.5:
        gc.collect()
    end = rng.choice(ENDS)
    alive = write(rng.choice(list(WRITERS)), folder / "alive", rng)  # until the program ends
    if end == "exit":
        sys.exit(EXIT_CODE)
    if end == "error":
        raise StopError
    return alive


if __name__ == "__main__":
    alive = main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
