"""Parts of values and their dtype: transforms whose result is known without reading anything."""

import operator
from collections.abc import Mapping, Sequence
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from relive.episodes.transforms.function import Function
from relive.episodes.transforms.values import MappedSignal
from relive.episodes.transforms.wrapped import check_signal
from relive.errors import InvalidError, InvalidTypeError, OutOfRangeError, UnknownNameError
from relive.model.schema import DType, Field
from relive.model.signal import Signal

__all__ = ["astype", "crop", "pick"]

Components = SupportsIndex | slice | str | Sequence[int] | Sequence[str]


def astype(signal: Signal[Any], dtype: npt.DTypeLike) -> Signal[Any]:
    """Give the same signal with values of another dtype, cast as NumPy casts arrays."""
    found = Field(dtype)
    kind = found.dtype.kind if isinstance(found.dtype, np.dtype) else "O"
    if check_signal(signal).dtype == "str" or found.shape or kind not in "biuf":
        raise InvalidTypeError(f"{signal!r} has values of {signal.dtype}, which are not {dtype!r}")
    if signal.dtype == found.dtype:
        return signal
    return _known(signal, _Cast(found.array_dtype), found.dtype, signal.shape, None)


def pick(signal: Signal[Any], components: Components) -> Signal[Any]:
    """Give some components of vectors: an integer, a slice, a list of integers, or names.

    Components count along the last axis of a value. A single one drops the axis. Names are
    those in `signal.attrs["names"]`, and stay with their components.
    """
    shape = check_signal(signal).shape
    if not shape or signal.kind == "image":
        raise InvalidError(f"{signal!r} holds {signal.kind}s, which have no components to pick")
    names = signal.attrs.get("names")
    chosen = _chosen(signal, components, shape[-1])
    kept: Any = np.arange(shape[-1])[chosen]
    attrs = dict(signal.attrs)
    if isinstance(names, (list, tuple)) and len(names) == shape[-1]:
        attrs["names"] = [names[place] for place in np.atleast_1d(kept)]
    inner = () if isinstance(chosen, int) else (len(kept),)
    return _known(signal, _Pick(chosen), signal.dtype, shape[:-1] + inner, attrs)


def crop(
    signal: Signal[Any],
    *,
    top: int = 0,
    left: int = 0,
    height: int | None = None,
    width: int | None = None,
) -> Signal[Any]:
    """Give a rectangle of images, in pixels; it reaches to the edge where no size is given.

    Images are video frames, and arrays of rows, columns and anything after that, such as
    depth images.
    """
    shape = check_signal(signal).shape
    if len(shape) < 2:  # noqa: PLR2004 - rows and columns
        raise InvalidError(f"{signal!r} has values of the shape {shape}, which are no images")
    rows = _side("top", top, height, shape[0])
    columns = _side("left", left, width, shape[1])
    inner = (rows.stop - rows.start, columns.stop - columns.start, *shape[2:])
    return _known(signal, _Crop(rows, columns), signal.dtype, inner, None)


def _known(
    signal: Signal[Any],
    function: "_Cast | _Pick | _Crop",
    dtype: DType,
    shape: tuple[int, ...],
    attrs: Mapping[str, Any] | None,
) -> Signal[Any]:
    made = Function(function, dtype=dtype, shape=shape, trusted=True)
    return MappedSignal((signal,), made, attrs)


class _Cast:
    def __init__(self, dtype: np.dtype[Any]) -> None:
        self._dtype = dtype

    def __call__(self, batch: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return batch.astype(self._dtype)


class _Pick:
    def __init__(self, chosen: int | slice | list[int]) -> None:
        self._chosen = chosen

    def __call__(self, batch: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return batch[..., self._chosen]


class _Crop:
    def __init__(self, rows: slice, columns: slice) -> None:
        self._rows = rows
        self._columns = columns

    def __call__(self, batch: npt.NDArray[Any]) -> npt.NDArray[Any]:
        # A copy, so that a small part does not keep whole images in memory.
        return batch[:, self._rows, self._columns].copy()


def _chosen(signal: Signal[Any], components: Components, size: int) -> int | slice | list[int]:
    if isinstance(components, slice):
        return components
    if isinstance(components, str):
        return _place(signal, components, size)
    if not hasattr(components, "__index__") or isinstance(components, np.ndarray):
        if not isinstance(components, (Sequence, np.ndarray)):
            raise InvalidTypeError(
                f"components are picked by integers or names, not {components!r}"
            )
        return [_place(signal, component, size) for component in components]
    return _place(signal, components, size)


def _place(signal: Signal[Any], component: Any, size: int) -> int:
    if isinstance(component, str):
        names = list(signal.attrs.get("names", ()))
        if component not in names or len(names) != size:
            there = ", ".join(map(repr, names)) or "none"
            raise UnknownNameError(f"{signal!r} has no component {component!r}; there is {there}")
        return names.index(component)
    if isinstance(component, (bool, np.bool_)) or not hasattr(component, "__index__"):
        raise InvalidTypeError(f"components are picked by integers or names, not {component!r}")
    place = operator.index(component)
    if not -size <= place < size:
        raise OutOfRangeError(f"component {place} is outside of the {size} of {signal!r}")
    return place % size


def _side(name: str, start: int, size: int | None, whole: int) -> slice:
    first = operator.index(start)
    stop = whole if size is None else first + operator.index(size)
    if not 0 <= first < stop <= whole:
        raise InvalidError(f"{name}={start} and a size of {size} leave an image of {whole} pixels")
    return slice(first, stop)
