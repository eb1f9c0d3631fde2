"""`DataLoader` for PyTorch: tensors that share the memory of batches, or on a GPU."""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from relive._extras import require
from relive.errors import InvalidError, InvalidTypeError
from relive.load.batches import BatchStream, ConvertedBatches, SourceLike, closer_of, convert
from relive.load.custom import SamplerLike
from relive.load.loader import DataLoader as ArrayLoader

__all__ = ["DataLoader", "to_tensors"]

torch = require("torch", extra="torch", to="load batches as tensors")

_COPIES_AHEAD: Final = 1
"""Batches copied to the device ahead of the next one: one overlaps the copy with the training
step. More would use pinned memory that is no longer in the caches, which is slower."""

_COPIES_RUNNING: Final = 1
"""Returned batches whose copy may still be running. This limits the pinned memory that a
consumer can take which only queues work on the device."""


class DataLoader(ArrayLoader):
    """A `relive.DataLoader` whose batches hold torch tensors.

    On the CPU a tensor shares the memory of the batch. With a CUDA `device`, rows are gathered
    into pinned memory and copied on a separate CUDA stream, a few batches ahead; a returned
    batch is ready for the consumer's current stream. A `Ragged` field is a dict of `values` and
    `offsets`, the arguments of `torch.nested.nested_tensor_from_jagged`.

    Args:
        sources: One source, whose fields are those of a batch; or two, named `data` and
            `label`; or one dict of sources. Arrays and paths of `.npy` files are sources too. A
            source that has a name and several fields is a dict inside the batch.
        batch_size: Samples per batch and rank.
        mode: `"shuffle"`, `"random"`, `"sequential"` or `"block"`; see `Sampler`.
        seed: Chooses the order, and the `rng` of transforms.
        sampler: A `Sampler` or `PrioritizedSampler`, or any iterable of index arrays or of
            pairs `(indices, extras)`, instead of batch_size, mode,
            tail, window, stride, partitions, rank and world_size. With an iterable, `seed` still
            seeds transforms.
        epochs: How many epochs one iteration has; iterating again goes on with the next ones.
            Endless if None.
        tail: What happens if an epoch does not fill its last step: `"wrap"`, `"drop"`, `"pad"`,
            `"keep"` or `"error"`; see `Sampler`. With `"pad"` a batch has a `mask`.
        window: Rows per sample; see `Sampler`.
        stride: Rows between the starts of windows, or rows per block; see `Sampler`. Without it,
            the blocks of `mode="block"` are those of the source, such as the row groups of a
            published table.
        partitions: With `mode="block"`, the parts into which the blocks of each epoch are divided
            so that ranks read different blocks; see `Sampler`.
        rank: The number of this process; `RANK` from the environment, or 0, if None.
        world_size: How many processes share the stream; `WORLD_SIZE` from the environment, or
            1, if None.
        workers: Threads that gather and transform. With 0 the consumer's thread does it.
        prefetch: Batches prepared ahead; of small ones at least as many as workers make at
            once.
        transform: `transform(batch)` or `transform(batch, rng)`, called by the workers.
        transform_workers: Processes that run the transform, instead of threads.
        device: The device of the tensors: `"cuda"`, `"cuda:1"`, a `torch.device`; the CPU by
            default.

    Example:
        >>> import numpy as np
        >>> from relive.load.torch import DataLoader
        >>> with DataLoader(np.zeros((100, 3), np.float32), batch_size=10) as loader:
        ...     next(loader)["data"].shape
        torch.Size([10, 3])
    """

    def __init__(
        self,
        *sources: SourceLike | Mapping[str, SourceLike],
        batch_size: int = 256,
        mode: str = "shuffle",
        seed: int = 0,
        sampler: SamplerLike | None = None,
        epochs: int | None = None,
        tail: str = "wrap",
        window: int | None = None,
        stride: int | None = None,
        partitions: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        workers: int = 2,
        prefetch: int = 4,
        transform: Callable[..., Any] | None = None,
        transform_workers: int = 0,
        device: Any = None,
    ) -> None:
        self._device = _device(device)
        super().__init__(
            *sources,
            batch_size=batch_size,
            mode=mode,
            seed=seed,
            sampler=sampler,
            epochs=epochs,
            tail=tail,
            window=window,
            stride=stride,
            partitions=partitions,
            rank=rank,
            world_size=world_size,
            workers=workers,
            prefetch=prefetch,
            transform=transform,
            transform_workers=transform_workers,
        )

    @property
    def device(self) -> Any:
        """The device of the tensors."""
        return self._device

    def _allocator(self) -> Callable[[int], npt.NDArray[np.uint8]] | None:
        return _pinned if self._device.type == "cuda" else None

    def _finish(self, stream: BatchStream) -> BatchStream:
        device = self._device  # the stream must not refer to its loader
        if device.type == "cuda":
            return _CudaBatches(stream, device)
        if device.type == "cpu":
            return ConvertedBatches(stream, to_tensors)
        return ConvertedBatches(
            stream, lambda batch: convert(batch, lambda value, name: _moved(value, name, device))
        )


def to_tensors(batch: Any) -> Any:
    """Convert the arrays in nested dicts, lists and tuples to tensors on the same memory."""
    return convert(batch, _tensor)


@dataclass(slots=True)
class _Copy:
    """A batch that is being copied to the device."""

    batch: Any
    tensors: list[Any]
    event: Any
    cursor: Any
    host: Any
    """A reference to the pinned memory until the copy is done."""


class _CudaBatches:
    """Batches copied to the device on a separate CUDA stream, a few ahead of the consumer."""

    def __init__(self, stream: BatchStream, device: Any) -> None:
        self._stream = stream
        self._device = device
        self._copying = torch.cuda.Stream(device)
        self._consuming = _CurrentStream(self._copying.device)
        self._ahead: deque[_Copy] = deque()
        self._running: deque[tuple[Any, Any]] = deque()
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
            # The memory was allocated on the copying stream and is used on this one.
            tensor.record_stream(current)
        self.cursor = copy.cursor
        self._running.append((copy.event, copy.host))
        while len(self._running) > _COPIES_RUNNING:
            event, _ = self._running.popleft()
            event.synchronize()
            self._events.append(event)
        return copy.batch

    @property
    def closer(self) -> Callable[[], None]:
        close = closer_of(self._stream)
        return partial(_end_copies, self._copying, self._ahead, self._running, close)

    def close(self) -> None:
        self.closer()

    def _start_copy(self, current: Any) -> None:
        try:
            host = self._stream.next()
        except Exception as error:  # noqa: BLE001 - raised in its position
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
        # Does what `with torch.cuda.stream(...)` does, in a fifth of the time.
        torch.cuda.set_stream(self._copying)
        try:
            batch = convert(host, move)
            event.record(self._copying)
        except Exception as error:  # noqa: BLE001 - raised in its position
            self._error, self._ended = error, True
            return
        finally:
            torch.cuda.set_stream(current)
            self._consuming.restore_device()
        self._ahead.append(_Copy(batch, tensors, event, self._stream.cursor, held))


def _end_copies(copying: Any, ahead: Any, running: Any, close: Callable[[], None]) -> None:
    try:
        copying.synchronize()
    finally:
        # Threads must end even if the device failed.
        ahead.clear()
        running.clear()
        close()


class _CurrentStream:
    """The current CUDA stream of a device, cached.

    Copying a batch may take only 50 microseconds, and making a stream object takes eight.
    """

    def __init__(self, device: Any) -> None:
        self._device = device
        # Triton makes the same call at every launch.
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
        """Restore the current device, which setting a stream of another device changes."""
        if self._active != self._device.index:
            torch.cuda.set_device(self._active)


def _moved(value: Any, name: str, device: Any) -> Any:
    tensor = _tensor(value, name)
    return tensor.to(device) if isinstance(tensor, torch.Tensor) else tensor


def _tensor(array: Any, name: str) -> Any:
    if not isinstance(array, np.ndarray):
        return array  # a value that a transform made
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if not array.flags.writeable or min(array.strides, default=0) < 0:
        array = array.copy()  # tensors need writable memory and positive strides
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    try:
        return torch.from_numpy(array)
    except (TypeError, ValueError) as error:
        raise InvalidTypeError(
            f"cannot convert {name!r} of dtype {array.dtype} to a tensor: {error}",
            hint="convert or drop it with relive.load.Map, or use relive.DataLoader",
        ) from error


def _device(device: Any) -> Any:
    if device is None:
        return torch.device("cpu")
    try:
        parsed = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise InvalidError(f"unknown device {device!r}") from error
    if parsed.type == "cuda" and not torch.cuda.is_available():
        raise InvalidError(
            f"cannot use the device {device!r}: torch finds no CUDA device",
            hint="omit device= to use the CPU",
        )
    return parsed


def _pinned(nbytes: int) -> npt.NDArray[np.uint8]:
    memory: npt.NDArray[np.uint8] = torch.empty(
        max(nbytes, 1), dtype=torch.uint8, pin_memory=True
    ).numpy()
    return memory
