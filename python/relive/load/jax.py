"""`DataLoader` for JAX: arrays on any of its devices."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from relive._extras import require
from relive.errors import InvalidError, InvalidTypeError
from relive.load.batches import BatchStream, ConvertedBatches, Input, SourceLike, convert
from relive.load.custom import SamplerLike
from relive.load.loader import DataLoader as ArrayLoader

__all__ = ["DataLoader", "to_jax"]

jax = require("jax", extra="jax", to="load batches as JAX arrays")


class DataLoader(ArrayLoader):
    """A `relive.DataLoader` whose batches hold JAX arrays.

    64-bit types become 32-bit ones unless `jax_enable_x64` is set; integers that do not fit are
    an `InvalidError`, such as the times `ts_ns`. A `Ragged` field is a dict of `values` and
    `offsets`.

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
        _check_device(device)
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
            partitions=partitions,
            rank=rank,
            world_size=world_size,
            workers=workers,
            prefetch=prefetch,
            transform=transform,
            transform_workers=transform_workers,
        )
        if transform is None:  # which might remove a field
            _check_fields(self._inputs)

    def _finish(self, stream: BatchStream) -> BatchStream:
        device = self._device  # the stream must not refer to its loader
        return ConvertedBatches(stream, lambda batch: to_jax(batch, device))


def to_jax(batch: Any, device: Any = None) -> Any:
    """Convert the arrays in nested dicts, lists and tuples to JAX arrays."""
    return convert(batch, lambda value, name: _array(value, device, name))


def _array(array: Any, device: Any, name: str) -> Any:
    if not isinstance(array, np.ndarray):
        return array  # a value that a transform made
    try:
        wanted = jax.dtypes.canonicalize_dtype(array.dtype)
        if wanted != array.dtype and array.dtype.kind in "iu":
            _check_range(array, wanted, name)
        if wanted != array.dtype or not array.dtype.isnative:
            array = array.astype(wanted.newbyteorder("="))
        # Not DLPack: JAX keeps a kilobyte for each array that it gets that way.
        return jax.device_put(array, device)
    except TypeError as error:
        raise InvalidTypeError(
            f"cannot convert {name!r} of dtype {array.dtype} to a JAX array",
            hint="convert or drop it with relive.load.Map, or use relive.DataLoader",
        ) from error


def _check_fields(inputs: Iterable[Input]) -> None:
    """Check that JAX has types for all fields."""
    for entry in inputs:
        for name, field in entry.source.fields.items():
            dtype = field.dtype if isinstance(field.dtype, np.dtype) else np.dtype(object)
            _array(np.empty(0, dtype), None, entry.names[name][1])


def _check_range(array: npt.NDArray[Any], wanted: np.dtype[Any], name: str) -> None:
    """Check that integers keep their values in a narrower type."""
    limits = np.iinfo(wanted)
    if array.size and not (limits.min <= array.min() and array.max() <= limits.max):
        raise InvalidError(
            f"{name!r} has values beyond {wanted}, and JAX has no {array.dtype} by default",
            hint="set jax.config.update('jax_enable_x64', True), or change it with relive.load.Map",
        )


def _check_device(device: Any) -> None:
    if device is not None and not isinstance(device, jax.Device | jax.sharding.Sharding):
        raise InvalidTypeError(
            f"`device` must be a jax.Device or a Sharding, got {device!r}",
            hint="use one of jax.devices()",
        )
