"""From sources and an order of rows to a stream of batches."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from relive import _native
from relive._arguments import type_name
from relive.errors import InvalidError
from relive.load.draws import CustomDraws, Drawn, NativeDraws, SamplerDraws, Ticket
from relive.load.inputs import Input, common_length
from relive.load.ordered import InlineBatches, OrderedBatches
from relive.load.processes import TransformProcesses
from relive.load.transform import Transform
from relive.model.ragged import Ragged
from relive.model.source import Source

__all__ = ["Stream", "open_stream"]


class Stream(Protocol):
    """Batches in order, made ahead of the consumer."""

    @property
    def cursor(self) -> Any:
        """Where the stream stands after the last batch that was handed out."""

    def next(self) -> Any:
        """Give the next batch; None at the end."""

    def close(self) -> None:
        """Stop all threads and processes and wait for them."""


def open_stream(
    inputs: list[Input],
    order: "_native.Sampler | Iterable[npt.ArrayLike]",
    *,
    cursor: Any,
    masked: bool,
    workers: int,
    prefetch: int,
    transform: Transform | None,
    transform_workers: int,
    allocate: Callable[[int], npt.NDArray[np.uint8]] | None,
) -> Stream:
    """Start making batches.

    The core gathers where it knows the order and all rows; otherwise threads call `gather` of
    the sources. A transform runs on threads of its own after that, or in processes.
    """
    gather: Callable[[Ticket], Any] | None = None
    draw: Callable[[], Ticket | None]
    release: list[Callable[[], None]] = []
    tables = [entry.source.native_table() for entry in inputs]
    native = [table for table in tables if table is not None]
    if isinstance(order, _native.Sampler) and len(native) == len(tables):
        batches = _native.Prefetch(
            native,
            [name for entry in inputs for name in entry.names.values()],
            sampler=order,
            workers=workers,
            depth=prefetch,
            make_ragged=Ragged,
            allocate=allocate,
        )
        if transform is None:
            return batches
        draw = NativeDraws(batches)
        release.append(batches.close)
    else:
        if isinstance(order, _native.Sampler):
            draw = SamplerDraws(order, masked=masked)
        else:
            draw = CustomDraws(order, common_length(inputs), cursor.position)
        gather = Gather(inputs)

    threads = workers
    processes = None
    if transform is not None and transform_workers:
        processes = TransformProcesses(transform, transform_workers)
        release.append(processes.close)
        threads = transform_workers

    def work(ticket: Ticket, worker: int) -> Any:
        batch = ticket.payload if gather is None else gather(ticket)
        if transform is None:
            return batch
        if processes is not None:
            return processes(batch, ticket.first, worker)
        return transform(batch, ticket.first)

    if threads == 0:
        return InlineBatches(draw, work, cursor=cursor, release=release)
    return OrderedBatches(
        draw, work, workers=threads, depth=prefetch, cursor=cursor, release=release
    )


class Gather:
    """Reads the rows of a ticket from every source, by their `gather`."""

    def __init__(self, inputs: list[Input]) -> None:
        self._inputs = inputs

    def __call__(self, ticket: Ticket) -> dict[str, Any]:
        """Give the batch."""
        drawn: Drawn = ticket.payload
        batch: dict[str, Any] = {}
        for entry in self._inputs:
            found = entry.source.gather(drawn.rows)
            for field, (group, name) in entry.names.items():
                target = batch if group is None else batch.setdefault(group, {})
                target[name] = _promised(entry.source, field, found, drawn.rows.shape)
        if drawn.mask is not None:
            batch["mask"] = drawn.mask
        return batch


def _promised(source: Source, field: str, found: object, shape: tuple[int, ...]) -> Any:
    """Give a field of what a source gathered, after checking that it kept its word."""
    kind = type(source).__name__
    if not isinstance(found, Mapping):
        raise InvalidError(f"{kind}.gather gave {type_name(type(found))}, not a dict of fields")
    if field not in found:
        raise InvalidError(
            f"{kind}.gather gave no {field!r}, which is one of its fields",
            hint=f"it gave {', '.join(map(repr, found)) or 'nothing'}",
        )
    values = found[field]
    rows: tuple[int, ...] = getattr(values, "shape", ())[: len(shape)]
    if isinstance(values, Ragged):
        rows, shape = (len(values),), (math.prod(shape),)
    if rows != shape:
        raise InvalidError(
            f"{kind}.gather gave {field!r} for indices of the shape {rows}, "
            f"and was asked for those of the shape {shape}"
        )
    return values
