"""The loader for JAX: arrays handed over by DLPack."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from relive._extras import require
from relive.errors import InvalidTypeError
from relive.load.inputs import SourceLike
from relive.load.loader import DataLoader as ArrayLoader
from relive.load.streams import Stream
from relive.model.ragged import Ragged

__all__ = ["DataLoader", "to_jax"]

jax = require("jax", extra="jax", to="give batches as JAX arrays")


class DataLoader(ArrayLoader):
    """A `relive.DataLoader` whose batches hold JAX arrays.

    On the CPU an array shares the memory of the batch, which serves again when the array is
    gone; on another device it is copied there. 64-bit types become 32-bit ones unless JAX has
    `jax_enable_x64`. A `Ragged` field comes as a dict of `values` and `offsets`.

    Takes the arguments of `relive.DataLoader`, and:

    Args:
        device: A `jax.Device` or a `Sharding` where arrays are to be; JAX's default device if
            none.
    """

    def __init__(
        self,
        *sources: SourceLike | Mapping[str, SourceLike],
        device: Any = None,
        **options: Any,
    ) -> None:
        self._device = device
        super().__init__(*sources, **options)

    def _finish(self, stream: Stream) -> Stream:
        return _JaxStream(stream, self._device)


def to_jax(batch: Any, device: Any = None) -> Any:
    """Give the arrays in nested dicts, lists and tuples as JAX arrays."""
    target = jax.devices()[0] if device is None else device
    on_cpu = getattr(target, "platform", None) == "cpu" and target == jax.devices("cpu")[0]
    return _convert(batch, None if on_cpu else target, "batch")


class _JaxStream:
    """Batches as JAX arrays."""

    def __init__(self, stream: Stream, device: Any) -> None:
        self._stream = stream
        self._device = device

    @property
    def cursor(self) -> Any:
        return self._stream.cursor

    def next(self) -> Any:
        batch = self._stream.next()
        return None if batch is None else to_jax(batch, self._device)

    def close(self) -> None:
        self._stream.close()


def _convert(value: Any, target: Any, name: str) -> Any:
    if isinstance(value, np.ndarray):
        return _array(value, target, name)
    if isinstance(value, dict):
        return {key: _convert(inner, target, str(key)) for key, inner in value.items()}
    if isinstance(value, Ragged):
        if value.shapes is not None:
            raise InvalidTypeError(
                f"{name!r} has rows with several variable dimensions, which no array holds",
                hint="pad it in a transform: batch[name].pad()",
            )
        return {
            "values": _array(value.values, target, name),
            "offsets": _array(value.offsets, target, name),
        }
    if type(value) in (list, tuple):
        return type(value)(_convert(inner, target, name) for inner in value)
    return value


def _array(array: npt.NDArray[Any], target: Any, name: str) -> Any:
    try:
        wanted = jax.dtypes.canonicalize_dtype(array.dtype)
        if wanted != array.dtype or not array.dtype.isnative:
            array = array.astype(wanted.newbyteorder("="))
        if target is not None:
            return jax.device_put(array, target)
        if array.size and array.flags.writeable and array.dtype.kind in "iufc":
            return jax.dlpack.from_dlpack(array)
        return jax.numpy.array(array)  # what DLPack cannot describe is copied
    except TypeError as error:
        raise InvalidTypeError(
            f"{name!r} of dtype {array.dtype} cannot be a JAX array",
            hint="convert or drop it with relive.load.Map, or use relive.DataLoader",
        ) from error
