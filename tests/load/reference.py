"""Simple reference implementations of samplers and loaders."""

import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from relive import ArraySource, DataLoader, Field, Ragged, Sampler, Source
from relive.model import Batch
from relive.model.source import Indices

MODES = ("shuffle", "random", "sequential", "block")
TAILS = ("wrap", "drop", "pad", "keep")


class Order:
    """The global order of samples, independent of the rank that draws them.

    Observed one sample at a time; a separate test checks that it is a permutation.
    """

    def __init__(
        self,
        length: int,
        mode: str,
        seed: int,
        window: int | None = None,
        stride: int | None = None,
    ) -> None:
        self._sampler = Sampler(length, 1, mode, seed=seed, window=window, stride=stride)
        self._seen: list[npt.NDArray[np.int64]] = []
        self.empty = next(self._sampler)[:0]
        self._sampler.seek(0)
        self.samples = self._sampler.samples_per_epoch

    def __getitem__(self, position: int) -> npt.NDArray[np.int64]:
        while position >= len(self._seen):
            self._seen.append(next(self._sampler))
        return self._seen[position]

    def rows(self, positions: Sequence[int]) -> npt.NDArray[np.int64]:
        """Return the rows of these positions, as in one batch."""
        return np.concatenate([self.empty, *[self[position] for position in positions]])


class Plan:
    """A sampler over a list of positions: the list is cut into steps, which are divided by rank."""

    def __init__(
        self,
        samples: int,
        batch_size: int,
        tail: str = "wrap",
        rank: int = 0,
        world_size: int = 1,
        *,
        epochs: int | None = None,
    ) -> None:
        self.samples = samples
        self.tail = tail
        self.end = None if epochs is None else epochs * samples
        self.position = self.omitted = self.repeated = 0
        self.share(batch_size, rank, world_size)

    def share(self, batch_size: int, rank: int, world_size: int) -> None:
        """Divide the remaining positions differently."""
        self.span = batch_size * world_size
        self.rank = rank
        self.world_size = world_size
        self._skip()

    def draw(self) -> tuple[list[int], list[bool], int] | None:
        """Return the positions of the next batch, its mask, and its start; None at the end."""
        self._skip()
        if self.end is not None and self.position >= self.end:
            return None
        epoch_start = self.position - self.position % self.samples
        end = epoch_start + self.samples if self.tail != "wrap" else self.end
        stop = self.position + self.span
        step = list(range(self.position, stop if end is None else min(stop, end)))
        real = len(step)
        if self.tail == "pad":
            step += [epoch_start + k % self.samples for k in range(self.span - real)]
        elif self.tail == "wrap":
            missing = max(0, self.world_size - real)
            step += [epoch_start + k % self.samples for k in range(missing)]
        mine = slice(
            len(step) * self.rank // self.world_size,
            len(step) * (self.rank + 1) // self.world_size,
        )
        first = self.position + mine.start
        self.position += real
        self.repeated += len(step) - real
        self._skip()
        return step[mine], [k < real for k in range(len(step))][mine], first

    def _skip(self) -> None:
        left = self.samples - self.position % self.samples
        if self.tail == "drop" and left < self.span:
            self.position += left
            self.omitted += left


class Plain(Source):
    """A source without a native table."""

    def __init__(self, source: Source) -> None:
        self.source = source

    @property
    def fields(self) -> Mapping[str, Field]:
        return self.source.fields

    def __len__(self) -> int:
        return len(self.source)

    def gather(
        self,
        indices: Indices,
        fields: Sequence[str] | None = None,
        out: Mapping[str, npt.NDArray[Any]] | None = None,
    ) -> Batch:
        return self.source.gather(indices, fields, out)


def rows(n: int) -> ArraySource:
    """Return a source of n rows in which every value depends on its row."""
    lengths = np.arange(n) % 4
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return ArraySource(
        {
            "id": np.arange(n),
            "vec": (np.arange(n)[:, None] + np.array([0.0, 0.25, 0.5])).astype(np.float32),
            "tokens": Ragged(np.repeat(np.arange(n, dtype=np.int16), lengths), offsets),
        }
    )


def same(left: Any, right: Any) -> bool:
    """Compare batches exactly, including nested dicts."""
    if isinstance(left, dict):
        return (
            isinstance(right, dict)
            and list(left) == list(right)
            and all(same(left[name], right[name]) for name in left)
        )
    if isinstance(left, Ragged):
        return isinstance(right, Ragged) and left == right and left.dtype == right.dtype
    return left.dtype == right.dtype and left.shape == right.shape and bool(np.all(left == right))


def batches_of(source: Source, sampler: Sampler, steps: int) -> list[dict[str, Any]]:
    """Return the expected batches of a loader with this sampler, gathered one by one."""
    batches: list[dict[str, Any]] = []
    for _ in range(steps):
        batch: dict[str, Any] = dict(source.gather(next(sampler)))
        if sampler.mask is not None:
            batch["mask"] = sampler.mask
        batches.append(batch)
    return batches


def wait_for_end_of_threads(before: set[int]) -> None:
    """Wait until there are only these threads: the kernel lists one for a short time after it."""
    deadline = time.monotonic() + 30
    while not threads_of_this_process() <= before:
        assert time.monotonic() < deadline, "a native thread still runs"
        time.sleep(0.005)


def threads_of_this_process() -> set[int]:
    """Return the kernel's ids of all threads of the process."""
    return {int(entry.name) for entry in Path("/proc/self/task").iterdir()}


def loader_threads() -> list[threading.Thread]:
    """Return the Python threads of loaders. Other parts of relive have threads that stay."""
    return [
        thread
        for thread in threading.enumerate()
        if thread.name == "relive" or thread.name.startswith("relive-batches")
    ]


class Trainer:
    """Refers to its loader, which gets something that refers to the trainer."""

    def __init__(self, kind: str, make: Callable[..., Any] = DataLoader, **options: Any) -> None:
        source: Any = rows(40)
        if kind == "source":
            source = Plain(source)
            source.owner = self
        elif kind == "sampler":
            options["sampler"] = self
        elif kind == "generator":
            options["sampler"] = iter(self)
        else:
            options["transform"] = getattr(self, kind)
        self.loader = make(source, **options)

    def __iter__(self) -> Iterator[list[int]]:
        for first in range(39):
            yield [first, first + 1]

    def augment(self, batch: Any) -> Any:
        return batch

    def fail(self, batch: Any) -> Any:
        if 39 in batch["id"]:
            raise LookupError
        return batch


def check_is_collected(make: Callable[[], Trainer]) -> None:
    """Check that a trainer and the threads of its loader end when nothing else refers to it."""
    trainer = make()
    next(trainer.loader)
    gone = weakref.ref(trainer)
    del trainer
    deadline = time.monotonic() + 60
    while loader_threads() or gone() is not None:
        gc.collect()  # a thread that makes a batch keeps everything until it waits
        assert time.monotonic() < deadline, loader_threads()
        time.sleep(0.001)
