"""The loader for PyTorch: tensors without a copy, or straight onto a GPU."""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from relive._extras import require
from relive.errors import InvalidError, InvalidTypeError
from relive.load.convert import ConvertedStream, convert
from relive.load.inputs import SourceLike
from relive.load.loader import DataLoader as ArrayLoader
from relive.load.streams import Stream

__all__ = ["DataLoader", "to_tensors"]

torch = require("torch", extra="torch", to="give batches as tensors")

_COPIES_AHEAD: Final = 1
"""Batches on their way to the device before the consumer asks: one, beside the one it gets
next, hides the copy behind the training step. With more the pinned memory falls out of the
caches, and copies are slower for it."""

_COPIES_BEHIND: Final = 1
"""Batches handed out whose copy may still be going on. A consumer that only queues work on
the device is held back here, or it would take more and more pinned memory."""


class DataLoader(ArrayLoader):
    """A `relive.DataLoader` whose batches hold torch tensors.

    On the CPU a tensor shares the memory of the batch. With a CUDA `device`, rows are gathered
    straight into pinned memory and copied on a stream of their own, a few batches ahead; what
    the consumer gets is ready for its current stream. A `Ragged` field comes as a dict of
    `values` and `offsets`, the two that `torch.nested.nested_tensor_from_jagged` takes.

    Takes the arguments of `relive.DataLoader`, and:

    Args:
        device: Where tensors are to be: `"cuda"`, `"cuda:1"`, a `torch.device`; the CPU by
            default.
    """

    def __init__(
        self,
        *sources: SourceLike | Mapping[str, SourceLike],
        device: Any = None,
        **options: Any,
    ) -> None:
        self._device = _device(device)
        super().__init__(*sources, **options)

    @property
    def device(self) -> Any:
        """Where tensors are."""
        return self._device

    def _allocator(self) -> Callable[[int], npt.NDArray[np.uint8]] | None:
        return _pinned if self._device.type == "cuda" else None

    def _finish(self, stream: Stream) -> Stream:
        device = self._device  # not `self`: a stream must not keep its loader
        if device.type == "cuda":
            return _CudaStream(stream, device)
        if device.type == "cpu":
            return ConvertedStream(stream, to_tensors)
        return ConvertedStream(
            stream, lambda batch: convert(batch, lambda value, name: _moved(value, name, device))
        )


def to_tensors(batch: Any) -> Any:
    """Give the arrays in nested dicts, lists and tuples as tensors on the same memory."""
    return convert(batch, _tensor)


@dataclass(slots=True)
class _Copy:
    """A batch on its way to the device."""

    batch: Any
    tensors: list[Any]
    event: Any
    cursor: Any
    host: Any
    """Keeps the pinned memory until the copy is done."""


class _CudaStream:
    """Batches copied to the device on a stream of their own, a few ahead of the consumer."""

    def __init__(self, stream: Stream, device: Any) -> None:
        self._stream = stream
        self._device = device
        self._copying = torch.cuda.Stream(device)
        self._consuming = _CurrentStream(self._copying.device)
        self._ahead: deque[_Copy] = deque()
        self._behind: deque[tuple[Any, Any]] = deque()
        self._events: list[Any] = []
        self._ended = False
        self._error: Exception | None = None
        self.cursor = stream.cursor

    def next(self) -> Any:
        current = self._consuming()
        while len(self._ahead) <= _COPIES_AHEAD and not self._ended:
            self._start_copy(current)
        if not self._ahead:
            if self._error is not None:
                raise self._error
            return None
        copy = self._ahead.popleft()
        current.wait_event(copy.event)
        for tensor in copy.tensors:
            # The memory was taken on the copying stream and is now used on this one.
            tensor.record_stream(current)
        self.cursor = copy.cursor
        self._behind.append((copy.event, copy.host))
        while len(self._behind) > _COPIES_BEHIND:
            event, _ = self._behind.popleft()
            event.synchronize()
            self._events.append(event)
        return copy.batch

    def close(self) -> None:
        try:
            self._copying.synchronize()
        finally:
            # Whatever became of the device, threads must end.
            self._ahead.clear()
            self._behind.clear()
            self._stream.close()

    def _start_copy(self, current: Any) -> None:
        try:
            host = self._stream.next()
        except Exception as error:  # noqa: BLE001 - the consumer gets it in its place
            self._error = error
            host = None
        if host is None:
            self._ended = True
            return
        tensors: list[Any] = []
        held = [host]

        def move(value: Any, name: str) -> Any:
            tensor = _tensor(value, name)
            if not isinstance(tensor, torch.Tensor):
                return tensor
            if not tensor.is_pinned():
                tensor = tensor.pin_memory()
                held.append(tensor)
            moved = tensor.to(self._device, non_blocking=True)
            tensors.append(moved)
            return moved

        event = self._events.pop() if self._events else torch.cuda.Event()
        # What `with torch.cuda.stream(...)` does, at a fifth of its price.
        torch.cuda.set_stream(self._copying)
        try:
            batch = convert(host, move)
            event.record(self._copying)
        finally:
            torch.cuda.set_stream(current)
            self._consuming.restore_device()
        self._ahead.append(_Copy(batch, tensors, event, self._stream.cursor, held))


class _CurrentStream:
    """The stream that is current on a device, asked for cheaply.

    A batch may be only 50 microseconds of the bus, and making a stream object takes eight.
    """

    def __init__(self, device: Any) -> None:
        self._device = device
        # The same call that Triton makes at every launch.
        self._read = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # noqa: SLF001
        self._raw: Any = None
        self._stream: Any = None
        self._active = device.index

    def __call__(self) -> Any:
        self._active = torch.cuda.current_device()
        raw = None if self._read is None else self._read(self._device.index)
        if raw is None or raw != self._raw or self._stream is None:
            self._stream = torch.cuda.current_stream(self._device)
            self._raw = raw
        return self._stream

    def restore_device(self) -> None:
        """Undo that setting a stream of another device makes that device the current one."""
        if self._active != self._device.index:
            torch.cuda.set_device(self._active)


def _moved(value: Any, name: str, device: Any) -> Any:
    tensor = _tensor(value, name)
    return tensor.to(device) if isinstance(tensor, torch.Tensor) else tensor


def _tensor(array: Any, name: str) -> Any:
    if not isinstance(array, np.ndarray):
        return array  # a transform's own
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if not array.flags.writeable or min(array.strides, default=0) < 0:
        array = array.copy()  # a tensor can be neither
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    try:
        return torch.from_numpy(array)
    except (TypeError, ValueError) as error:
        raise InvalidTypeError(
            f"{name!r} of dtype {array.dtype} cannot be a tensor: {error}",
            hint="convert or drop it with relive.load.Map, or use relive.DataLoader",
        ) from error


def _device(device: Any) -> Any:
    if device is None:
        return torch.device("cpu")
    try:
        parsed = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise InvalidError(f"no such device: {device!r}") from error
    if parsed.type == "cuda" and not torch.cuda.is_available():
        raise InvalidError(
            f"device {device!r} was asked for, and torch finds no CUDA device",
            hint="leave device= out to stay on the CPU",
        )
    return parsed


def _pinned(nbytes: int) -> npt.NDArray[np.uint8]:
    memory: npt.NDArray[np.uint8] = torch.empty(
        max(nbytes, 1), dtype=torch.uint8, pin_memory=True
    ).numpy()
    return memory
