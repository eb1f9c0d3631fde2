"""Transforms that a spawned process can import."""

import os
import signal
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from relive import Ragged


class UnpicklableError(Exception):
    """An error that pickle cannot restore: its constructor takes two arguments."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} and {second}")


def same(batch: dict[str, Any]) -> dict[str, Any]:
    """Return the batch."""
    return batch


def negate(batch: dict[str, Any]) -> dict[str, Any]:
    return batch | {"vec": -batch["vec"]}


def in_place(batch: dict[str, Any]) -> dict[str, Any]:
    batch["vec"] *= 2
    return batch


def noise(batch: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return batch | {"noise": rng.random(3)}


def pids(batch: dict[str, Any]) -> dict[str, Any]:
    return batch | {"process": np.array([os.getpid(), os.getppid()])}


def fail_on_row_13(batch: dict[str, Any]) -> dict[str, Any]:
    if 13 in batch["id"]:
        raise LookupError("row 13 is unlucky")
    return batch


def raise_unpicklable(batch: dict[str, Any]) -> NoReturn:
    raise UnpicklableError("this", "that")


def stop(batch: dict[str, Any]) -> NoReturn:
    raise StopIteration


def nothing(batch: dict[str, Any]) -> None:
    """Return None instead of the batch."""


def die(batch: dict[str, Any]) -> NoReturn:
    os._exit(3)


def die_on_row_13(batch: dict[str, Any]) -> dict[str, Any]:
    if 13 in batch["id"]:
        os._exit(3)
    return batch


def hang(batch: dict[str, Any]) -> NoReturn:
    while True:
        signal.pause()


class HangAfter:
    """Creates a file before it hangs."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, batch: dict[str, Any]) -> NoReturn:
        self.path.write_text(str(os.getpid()))
        hang(batch)


def grow(batch: dict[str, Any]) -> dict[str, Any]:
    return {"id": batch["id"], "big": np.repeat(batch["id"], 5000).reshape(-1, 5000)}


def arrays_of_every_layout(batch: dict[str, Any]) -> dict[str, Any]:
    """Return arrays of every layout that is transferred differently."""
    ids = batch["id"]
    return {
        "id": ids,
        "fortran": np.asfortranarray(np.outer(ids, [1, 2, 3])),
        "strided": np.repeat(ids, 2)[::2],
        "backwards": ids[::-1],
        "empty": ids[:0],
        "no_rows": np.zeros((0, 3)),
        "scalar": np.float32(2.5),
        "dates": ids.astype("M8[s]"),
        "text": ids.astype("U5"),
        "objects": np.array([str(k) for k in ids], dtype=object),
        "structured": np.array([(k, k / 2) for k in ids], dtype="i2,f4"),
        "ragged": Ragged.from_list([np.arange(int(k) % 3) for k in ids]),
        "nested": {"list": [ids, (ids + 1, "text")]},
        "number": 7,
    }


class Keeper:
    """Keeps every input, or every error, and returns the current content of the oldest."""

    def __init__(self) -> None:
        self.kept: list[Any] = []

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        self.kept.append((batch["vec"], batch["vec"].copy()))
        same = all(np.array_equal(held, copy) for held, copy in self.kept)
        return batch | {"same": np.array(same)}


def unpicklable(batch: dict[str, Any]) -> dict[str, Any]:
    return {"function": lambda: None}


class Counter:
    """Counts the batches it has processed, per process."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        self.count += 1
        return batch | {"count": np.array(self.count)}


def print_and_hang(batch: dict[str, Any]) -> NoReturn:
    print("waiting", flush=True)  # noqa: T201 - the parent process reads it
    hang(batch)
