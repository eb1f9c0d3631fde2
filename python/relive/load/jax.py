"""`DataLoader` for JAX: arrays that share the memory of batches through DLPack."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from relive._extras import require
from relive.errors import InvalidTypeError
from relive.load.batches import BatchStream, ConvertedBatches, SourceLike, convert
from relive.load.loader import DataLoader as ArrayLoader
from relive.load.sampler import Sampler

__all__ = ["DataLoader", "to_jax"]

jax = require("jax", extra="jax", to="load batches as JAX arrays")


class DataLoader(ArrayLoader):
    """A `relive.DataLoader` whose batches hold JAX arrays.

    On the CPU an array shares the memory of the batch, which is reused when the array is gone;
    to another device it is copied. 64-bit types become 32-bit ones unless `jax_enable_x64` is
    set. A `Ragged` field is a dict of `values` and `offsets`.

    Args:
        sources: One source, whose fields are those of a batch; or two, named `data` and
            `label`; or one dict of sources. Arrays and paths of `.npy` files are sources too. A
            source that has a name and several fields is a dict inside the batch.
        batch_size: Samples per batch and rank.
        mode: `"shuffle"`, `"random"`, `"sequential"` or `"block"`; see `Sampler`.
        seed: Chooses the order, and the `rng` of transforms.
        sampler: A `Sampler`, or any iterable of index arrays, instead of batch_size, mode,
            tail, window, stride, rank and world_size. With an iterable, `seed` still seeds
            transforms.
        epochs: How many epochs the stream has; iterating again starts it again. Endless if None.
        tail: What happens if an epoch does not fill its last step: `"wrap"`, `"drop"`, `"pad"`
            or `"keep"`; see `Sampler`. With `"pad"` a batch has a `mask`.
        window: Rows per sample; see `Sampler`.
        stride: Rows between the starts of windows; see `Sampler`.
        rank: The number of this process; `RANK` from the environment, or 0, if None.
        world_size: How many processes share the stream; `WORLD_SIZE` from the environment, or
            1, if None.
        workers: Threads that gather and transform. With 0 the consumer's thread does it.
        prefetch: Batches prepared ahead; of small ones at least as many as workers make at
            once.
        transform: `transform(batch)` or `transform(batch, rng)`, called by the workers.
        transform_workers: Processes that run the transform, instead of threads.
        device: A `jax.Device` or a `Sharding` for the arrays; JAX's default device if None.

    Example:
        >>> import numpy as np
        >>> from relive.load.jax import DataLoader
        >>> with DataLoader(np.zeros((100, 3), np.float32), batch_size=10) as loader:
        ...     next(loader)["data"].shape
        (10, 3)
    """

    def __init__(
        self,
        *sources: SourceLike | Mapping[str, SourceLike],
        batch_size: int = 256,
        mode: str = "shuffle",
        seed: int = 0,
        sampler: Sampler | Iterable[npt.ArrayLike] | None = None,
        epochs: int | None = None,
        tail: str = "wrap",
        window: int | None = None,
        stride: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        workers: int = 2,
        prefetch: int = 4,
        transform: Callable[..., Any] | None = None,
        transform_workers: int = 0,
        device: Any = None,
    ) -> None:
        self._device = device
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
            rank=rank,
            world_size=world_size,
            workers=workers,
            prefetch=prefetch,
            transform=transform,
            transform_workers=transform_workers,
        )

    def _finish(self, stream: BatchStream) -> BatchStream:
        device = self._device  # the stream must not refer to its loader
        return ConvertedBatches(stream, lambda batch: to_jax(batch, device))


def to_jax(batch: Any, device: Any = None) -> Any:
    """Convert the arrays in nested dicts, lists and tuples to JAX arrays."""
    target = jax.devices()[0] if device is None else device
    on_cpu = getattr(target, "platform", None) == "cpu" and target == jax.devices("cpu")[0]
    target = None if on_cpu else target
    return convert(batch, lambda value, name: _array(value, target, name))


def _array(array: Any, target: Any, name: str) -> Any:
    if not isinstance(array, np.ndarray):
        return array  # a value that a transform made
    try:
        wanted = jax.dtypes.canonicalize_dtype(array.dtype)
        if wanted != array.dtype or not array.dtype.isnative:
            array = array.astype(wanted.newbyteorder("="))
        if target is not None:
            return jax.device_put(array, target)
        if array.size and array.flags.writeable and array.dtype.kind in "iufc":
            return jax.dlpack.from_dlpack(array)
        return jax.numpy.array(array)  # DLPack cannot describe it, so it is copied
    except TypeError as error:
        raise InvalidTypeError(
            f"cannot convert {name!r} of dtype {array.dtype} to a JAX array",
            hint="convert or drop it with relive.load.Map, or use relive.DataLoader",
        ) from error
