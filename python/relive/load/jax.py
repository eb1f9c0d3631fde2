"""The loader for JAX: arrays handed over by DLPack."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from relive._extras import require
from relive.errors import InvalidTypeError
from relive.load.convert import ConvertedStream, convert
from relive.load.inputs import SourceLike
from relive.load.loader import DataLoader as ArrayLoader
from relive.load.streams import Stream

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
        device = self._device  # not `self`: a stream must not keep its loader
        return ConvertedStream(stream, lambda batch: to_jax(batch, device))


def to_jax(batch: Any, device: Any = None) -> Any:
    """Give the arrays in nested dicts, lists and tuples as JAX arrays."""
    target = jax.devices()[0] if device is None else device
    on_cpu = getattr(target, "platform", None) == "cpu" and target == jax.devices("cpu")[0]
    place = None if on_cpu else target
    return convert(batch, lambda value, name: _array(value, place, name))


def _array(array: Any, target: Any, name: str) -> Any:
    if not isinstance(array, np.ndarray):
        return array  # a transform's own
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
