"""Signals whose values a function computes from those of other signals."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final, SupportsIndex

import numpy as np
import numpy.typing as npt

from relive._arguments import as_int, type_name
from relive.episodes.transforms.wrapped import TransformedSignal, check_signal, kind_of
from relive.errors import InvalidError, InvalidTypeError, OutOfRangeError, UnknownNameError
from relive.model.schema import DType, Field
from relive.model.signal import Signal, copied, read_only
from relive.model.source import Rows, is_mask

Batches = tuple[npt.NDArray[Any], ...]
Components = SupportsIndex | slice | str | Sequence[int] | Sequence[str]

_BATCH_BYTES: Final = 64 << 20
_SMALL_BATCH: Final = 32
_TEXT_BYTES: Final = 64
_TYPE_HINT: Final = "pass dtype= and shape= of the values that `function` returns"
_BATCHED_HINT: Final = "pass batched=False to call `function` on one value at a time"
# Sums in another order differ a little, which may change a few discrete values.
_CLOSE: Final = 1e-3
_STRAY: Final = 0.01


def map_values(
    signal: Signal[Any],
    function: Callable[[Any], Any],
    *,
    batched: bool = True,
    dtype: npt.DTypeLike | None = None,
    shape: Sequence[int] | None = None,
    attrs: Mapping[str, Any] | None = None,
) -> Signal[Any]:
    """Return a signal with the same times, whose values a function computes when they are read.

    Args:
        signal: The signal to transform.
        function: Takes an array with one value per record along the first axis and returns as
            many values. The value of a record must not depend on the rest of the batch.
        batched: False calls the function on one value at a time.
        dtype: The dtype of the result; by default that of the first values.
        shape: The shape of one value of the result; by default that of the first values.
        attrs: The metadata of the result; by default that of `signal`.

    Example:
        >>> from relive.episodes import ArraySignal
        >>> degrees = ArraySignal([0.0, 180.0], [0, 10])
        >>> map_values(degrees, np.radians).values().round(2).tolist()
        [0.0, 3.14]
    """
    made = ValueFunction.typed(function, batched, dtype, shape)
    return MappedSignal((check_signal(signal),), made, attrs)


def astype(signal: Signal[Any], dtype: npt.DTypeLike) -> Signal[Any]:
    """Return the same signal with values of another dtype, cast as NumPy casts arrays."""
    found = Field(dtype)
    kind = found.dtype.kind if isinstance(found.dtype, np.dtype) else "O"
    if check_signal(signal).dtype == "str" or found.shape or kind not in "biuf":
        raise InvalidTypeError(f"cannot cast {signal!r} from {signal.dtype} to {dtype!r}")
    if signal.dtype == found.dtype:
        return signal
    return _mapped(signal, partial(_cast, found.array_dtype), found.dtype, signal.shape)


def pick(signal: Signal[Any], components: Components) -> Signal[Any]:
    """Return some components of vectors: an integer, a slice, a list of integers, or names.

    Components count along the last axis of a value. A single one removes the axis. Names are
    those in `signal.attrs["names"]`; the result has the names of its components.

    Example:
        >>> from relive.episodes import ArraySignal
        >>> pose = ArraySignal([[1.0, 2.0, 3.0]], [0], attrs={"names": ["x", "y", "z"]})
        >>> pick(pose, ["z", "x"]).values().tolist()
        [[3.0, 1.0]]
    """
    shape = check_signal(signal).shape
    if not shape or signal.kind == "image":
        raise InvalidError(
            f"cannot pick components of {signal!r}: its values are {signal.kind}s, not vectors"
        )
    names = signal.attrs.get("names")
    chosen = _chosen(signal, components, shape[-1])
    kept: Any = np.arange(shape[-1])[chosen]
    attrs = dict(signal.attrs)
    if isinstance(names, (list, tuple)) and len(names) == shape[-1]:
        attrs["names"] = [names[index] for index in np.atleast_1d(kept)]
    inner = () if isinstance(chosen, int) else (len(kept),)
    return _mapped(signal, partial(_take, chosen), signal.dtype, shape[:-1] + inner, attrs)


def crop(
    signal: Signal[Any],
    *,
    top: int = 0,
    left: int = 0,
    height: int | None = None,
    width: int | None = None,
) -> Signal[Any]:
    """Return a rectangle of images, in pixels; without a size it extends to the edge.

    Images are video frames, and arrays whose first two axes are rows and columns, such as
    depth images.

    Example:
        >>> from relive.episodes import ArraySignal
        >>> depth = ArraySignal(np.zeros((1, 48, 64)), [0])
        >>> crop(depth, top=8, height=32).shape
        (32, 64)
    """
    shape = check_signal(signal).shape
    if len(shape) < 2:  # noqa: PLR2004 - rows and columns
        raise InvalidError(
            f"cannot crop {signal!r}: its values must have at least two dimensions, got {shape}"
        )
    rows = _side("top", top, "height", height, shape[0])
    columns = _side("left", left, "width", width, shape[1])
    inner = (rows.stop - rows.start, columns.stop - columns.start, *shape[2:])
    return _mapped(signal, partial(_cut, rows, columns), signal.dtype, inner)


def _mapped(
    signal: Signal[Any],
    function: Callable[[npt.NDArray[Any]], npt.NDArray[Any]],
    dtype: DType,
    shape: tuple[int, ...],
    attrs: Mapping[str, Any] | None = None,
) -> Signal[Any]:
    made = ValueFunction(function, dtype=dtype, shape=shape, trusted=True)
    return MappedSignal((signal,), made, attrs)


def _cast(dtype: np.dtype[Any], batch: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return batch.astype(dtype)


def _take(chosen: int | slice | list[int], batch: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return batch[..., chosen]


def _cut(rows: slice, columns: slice, batch: npt.NDArray[Any]) -> npt.NDArray[Any]:
    # A copy, so that a small rectangle does not keep whole images in memory.
    return batch[:, rows, columns].copy()


class ValueFunction:
    """Calls a function on batches of values, and checks that it always returns the same type.

    The dtype and the shape of a value are those of the first values, unless given. For the
    first batch of several records, the function is also called on the first record alone: a
    function that mixes records would return different values for different batches.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        batched: bool = True,
        dtype: DType | None = None,
        shape: tuple[int, ...] | None = None,
        trusted: bool = False,
    ) -> None:
        if not callable(function):
            raise InvalidTypeError(f"`function` must be callable, got {function!r}")
        self._function = function
        self._batched = batched
        self._dtype = dtype
        self._shape = shape
        self._given = dtype is not None
        self._trusted = trusted or not batched

    @classmethod
    def typed(
        cls,
        function: Callable[..., Any],
        batched: bool,  # noqa: FBT001 - called with the arguments of map_values() and combine()
        dtype: npt.DTypeLike | None,
        shape: Sequence[int] | None,
    ) -> "ValueFunction":
        """Return the function with the dtype and the shape that a user gave for its values."""
        given = None if dtype is None else Field(dtype)
        if given is not None and (given.shape or given.dtype in ("bytes", "json")):
            raise InvalidError(f"a signal cannot hold values of the dtype {dtype!r}")
        return cls(
            function,
            batched=batched,
            dtype=None if given is None else given.dtype,
            shape=None if shape is None else Field(np.uint8, shape).shape,
        )

    @property
    def type(self) -> tuple[DType, tuple[int, ...]] | None:
        """The dtype and the shape of a value; None until they are known."""
        if self._dtype is None or self._shape is None:
            return None
        return self._dtype, self._shape

    def __call__(self, batches: Batches) -> npt.NDArray[Any]:
        """Return one value for each record of the batches, which are not empty."""
        made = self._made(batches)
        if not self._trusted and len(made) > 1:
            self._check_alone(batches, made)
            self._trusted = True
        return made

    def find_type(self, batches: Batches) -> tuple[DType, tuple[int, ...]]:
        """Return the dtype and the shape of a value, computed from batches that may be empty."""
        if not len(batches[0]) and not self._batched:
            raise InvalidError(
                "cannot infer the type of the values: the signal has no records", hint=_TYPE_HINT
            )
        try:
            self._made(batches)
        except Exception as error:
            if len(batches[0]):
                raise
            raise InvalidError(
                "cannot infer the type of the values: the signal has no records, and `function` "
                f"fails on an empty batch ({type(error).__name__}: {error})",
                hint=_TYPE_HINT,
            ) from error
        found = self.type
        assert found is not None  # noqa: S101 - _fitted() sets both
        return found

    def _made(self, batches: Batches) -> npt.NDArray[Any]:
        count = len(batches[0])
        if self._batched:
            made = _array(self._function(*batches))
            if made.ndim == 0 or len(made) != count:
                given = "a single value" if made.ndim == 0 else f"{len(made)} values"
                raise InvalidError(
                    f"`function` returned {given} for {count} records, expected {count}",
                    hint=_BATCHED_HINT,
                )
        else:
            made = _stacked([self._function(*values) for values in zip(*batches, strict=True)])
        return self._fitted(made)

    def _fitted(self, made: npt.NDArray[Any]) -> npt.NDArray[Any]:
        dtype: DType = "str" if made.dtype.hasobject else made.dtype
        shape = made.shape[1:]
        if self._dtype is None:
            self._dtype = dtype
        if self._shape is None:
            self._shape = shape
        wanted = self._dtype
        if shape == self._shape:
            if dtype == wanted:
                return made
            if (
                isinstance(dtype, np.dtype)
                and isinstance(wanted, np.dtype)
                and np.can_cast(dtype, wanted, "same_kind" if self._given else "safe")
            ):
                return made.astype(wanted)
        raise InvalidError(
            f"`function` returned {dtype} values of shape {shape}, "
            f"expected {wanted} values of shape {self._shape}",
            hint=_TYPE_HINT,
        )

    def _check_alone(self, batches: Batches, made: npt.NDArray[Any]) -> None:
        alone = self._made(tuple(batch[:1] for batch in batches))[0]
        if not _is_close(np.asarray(alone), np.asarray(made[0])):
            raise InvalidError(
                "`function` returned different values for the same record alone and in a batch",
                hint=_BATCHED_HINT,
            )


def _is_close(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> bool:
    if not one.size:
        return True
    if one.dtype.kind != "f":
        same = one == other
    else:
        first, second = one.astype(np.float64), other.astype(np.float64)
        room = _CLOSE * np.abs(first).max(initial=0, where=np.isfinite(first))
        same = np.isclose(first, second, rtol=_CLOSE, atol=room, equal_nan=True)
    return bool(np.mean(~np.asarray(same, dtype=bool)) <= _STRAY)


def _array(made: Any) -> npt.NDArray[Any]:
    if isinstance(made, (list, tuple)):
        return _stacked(made)
    return _check_values(np.asarray(made))


def _stacked(values: Any) -> npt.NDArray[Any]:
    if not values:
        raise InvalidError("`function` returned no values")
    if all(isinstance(value, str) for value in values):
        texts = np.empty(len(values), dtype=object)
        texts[:] = values
        return texts
    try:
        stacked = np.stack([np.asarray(value) for value in values])
    except ValueError as error:
        raise InvalidError(f"`function` returned values of different shapes: {error}") from error
    return _check_values(stacked)


def _check_values(made: npt.NDArray[Any]) -> npt.NDArray[Any]:
    kind = made.dtype.kind
    if kind in "UT":
        made = made.astype(object)
    elif kind == "O":
        for value in made.flat:
            if not isinstance(value, str):
                raise InvalidTypeError(f"a signal cannot hold {type_name(type(value))}")
    elif kind not in "biuf":
        raise InvalidTypeError(f"a signal cannot hold values of the dtype {made.dtype}")
    elif not made.dtype.isnative:
        made = made.astype(made.dtype.newbyteorder("="))
    return made


class MappedSignal(TransformedSignal):
    """A signal with values computed from those of its sources, which have the same times."""

    def __init__(
        self,
        sources: tuple[Signal[Any], ...],
        function: ValueFunction,
        attrs: Mapping[str, Any] | None = None,
    ) -> None:
        self._sources = sources
        self._function = function
        self._attrs = None if attrs is None else dict(attrs)

    @property
    def sources(self) -> tuple[Signal[Any], ...]:
        """The signals that values are computed from."""
        return self._sources

    @property
    def base(self) -> Signal[Any]:
        """The first source."""
        return self.sources[0]

    @property
    def attrs(self) -> Mapping[str, Any]:
        """The metadata of the result, or else of the first source."""
        return self.base.attrs if self._attrs is None else dict(copied(self._attrs))

    @property
    def kind(self) -> str:
        """What a value is."""
        return kind_of(*self._type())

    @property
    def dtype(self) -> DType:
        """The dtype of one value; reads a record if it is not known yet."""
        return self._type()[0]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one value; reads a record if it is not known yet."""
        return self._type()[1]

    def value_at(self, row: int) -> Any:
        """Return the value of one record, read-only."""
        return read_only(self.values_at(range(row, row + 1)))[0]

    def values_at(self, rows: Rows, out: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        """Return values, computed in batches, so that large records take little memory."""
        count = len(rows)
        if not count:
            return self._empty_values(0) if out is None else out
        step = count if count <= _SMALL_BATCH else _BATCH_BYTES // self._source_bytes() or 1
        if out is None and step >= count:
            return self._computed(rows)
        for start in range(0, count, step):
            made = self._computed(rows[start : start + step])
            if out is None:
                out = self._empty_values(count)
            out[start : start + step] = made
        assert out is not None  # noqa: S101 - there is at least one batch
        return out

    def iterate(self, rows: Rows) -> Iterator[Any]:
        """Iterate over values; each image is decoded once."""
        if not any(source.kind == "image" for source in self.sources):
            yield from Signal.iterate(self, rows) if len(rows) else ()
            return
        step = self._batch_rows()
        records = zip(*(source.iterate(rows) for source in self.sources), strict=True)
        while batch := list(islice(records, step)):
            yield from self._function(tuple(map(_together, zip(*batch, strict=True))))

    def _batch_rows(self) -> int:
        if not len(self):
            return 1
        step = max(1, _BATCH_BYTES // 16 // self._source_bytes())
        return min(step, super()._batch_rows())

    def _source_bytes(self) -> int:
        return sum(map(record_bytes, self.sources))

    def _computed(self, rows: Rows) -> npt.NDArray[Any]:
        return self._function(tuple(read_only(source.values_at(rows)) for source in self.sources))

    def _empty_values(self, count: int) -> npt.NDArray[Any]:
        dtype, shape = self._type()
        return np.empty((count, *shape), dtype=dtype if isinstance(dtype, np.dtype) else object)

    def _type(self) -> tuple[DType, tuple[int, ...]]:
        found = self._function.type
        if found is None:
            first = range(min(1, len(self)))
            batches = tuple(source.values_at(first) for source in self.sources)
            found = self._function.find_type(batches)
        return found


def record_bytes(signal: Signal[Any]) -> int:
    """Return about how many bytes a value of the signal takes."""
    size = Field(signal.dtype, signal.shape).nbytes
    return _TEXT_BYTES if size is None else max(1, size)


def _together(values: Sequence[Any]) -> npt.NDArray[Any]:
    if isinstance(values[0], str):
        return np.array(values, dtype=object)
    return np.stack(values)


def _chosen(signal: Signal[Any], components: Components, size: int) -> int | slice | list[int]:
    if isinstance(components, slice):
        return components
    if isinstance(components, str):
        return _index(signal, components, size)
    if not hasattr(components, "__index__") or isinstance(components, np.ndarray):
        if not isinstance(components, (Sequence, np.ndarray)):
            raise InvalidTypeError(f"components must be integers or names, got {components!r}")
        return [_index(signal, component, size) for component in components]
    return _index(signal, components, size)


def _index(signal: Signal[Any], component: Any, size: int) -> int:
    if isinstance(component, str):
        names = list(signal.attrs.get("names", ()))
        if component not in names or len(names) != size:
            there = ", ".join(map(repr, names)) or "none"
            raise UnknownNameError(
                f"{signal!r} has no component {component!r}; its components are {there}"
            )
        return names.index(component)
    if is_mask(component) or not hasattr(component, "__index__"):
        raise InvalidTypeError(f"components must be integers or names, got {component!r}")
    index = int(component)
    if not -size <= index < size:
        raise OutOfRangeError(
            f"component {index} is out of range: {signal!r} has {size} components"
        )
    return index % size


def _side(name: str, start: int, extent: str, size: int | None, whole: int) -> slice:
    first = as_int(name, start)
    stop = whole if size is None else first + as_int(extent, size)
    if not first < stop <= whole:
        raise InvalidError(
            f"the crop {name}={start}, {extent}={size} exceeds the image, whose {extent} is {whole}"
        )
    return slice(first, stop)
