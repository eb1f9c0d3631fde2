"""`Ragged`: batches whose rows differ in length, and how to pad, pack and group them."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, SupportsIndex, TypeAlias, overload

import numpy as np
import numpy.typing as npt

from relive._arguments import as_int
from relive.errors import InvalidError, InvalidTypeError, UnsupportedError
from relive.model.source import IndexArray, Indices, Key, as_indices, resolve

Sizes: TypeAlias = int | Sequence[int] | None
_MAX_PRODUCT: Final = float(1 << 62)


class Packed(NamedTuple):
    """Rows placed one after the other in bins of equal capacity; see `Ragged.pack`.

    Example:
        >>> import numpy as np
        >>> from relive import Ragged
        >>> packed = Ragged(np.array([1, 2, 3, 4, 5]), np.array([0, 2, 3, 5])).pack(3)
        >>> packed.values.shape == packed.segments.shape == packed.positions.shape
        True
    """

    values: npt.NDArray[Any]
    """`(bins, capacity, *inner)`; unused values are the fill value."""
    segments: npt.NDArray[np.int32]
    """`(bins, capacity)`: 1 for the first row of a bin, 2 for the next; 0 where unused."""
    positions: npt.NDArray[np.int32]
    """`(bins, capacity)`: the position of each value in its row."""
    rows: list[IndexArray]
    """The rows of each bin: segment k of bin b is row `rows[b][k - 1]`."""


class Ragged:
    """Rows of different lengths, stored one after the other in `values`.

    Row i is `values[offsets[i]:offsets[i + 1]]`, an array of the shape `(n_i, *inner)`. With
    `shapes`, an array of one shape per row, `values` is flat and row i has the shape
    `shapes[i]`.

    Example:
        >>> from relive import Ragged
        >>> ragged = Ragged.from_list([[1, 2, 3], [4], [5, 6]])
        >>> ragged[2].tolist(), ragged.lengths.tolist()
        ([5, 6], [3, 1, 2])
        >>> array, mask = ragged.pad()
        >>> array.tolist()
        [[1, 2, 3], [4, 0, 0], [5, 6, 0]]
    """

    __slots__ = ("offsets", "shapes", "values")

    values: npt.NDArray[Any]
    offsets: IndexArray
    shapes: IndexArray | None

    def __init__(
        self, values: npt.ArrayLike, offsets: npt.ArrayLike, shapes: npt.ArrayLike | None = None
    ) -> None:
        self.values = np.asarray(values)
        self.offsets = _integers("offsets", offsets)
        self.shapes = None if shapes is None else _integers("shapes", shapes)
        self._validate()

    @classmethod
    def from_list(
        cls, rows: Iterable[npt.ArrayLike], *, dtype: npt.DTypeLike | None = None
    ) -> "Ragged":
        """Copy arrays of one dtype and number of dimensions into one ragged batch.

        If they differ in more than their first dimension, the result has `shapes`. Rows of
        different dtypes are an error, unless `dtype` is given.
        """
        arrays, common = _arrays(list(rows), dtype)
        if not arrays:
            return cls(np.empty(0, dtype=common), np.zeros(1, dtype=np.int64))
        if all(array.shape[1:] == arrays[0].shape[1:] for array in arrays):
            lengths = [len(array) for array in arrays]
            return cls(np.concatenate(arrays, dtype=common, casting="unsafe"), _offsets(lengths))
        flat = np.concatenate([array.ravel() for array in arrays], dtype=common, casting="unsafe")
        shapes = np.array([array.shape for array in arrays], dtype=np.int64)
        return cls(flat, _offsets([array.size for array in arrays]), shapes)

    @classmethod
    def concat(cls, batches: Sequence["Ragged"]) -> "Ragged":
        """Copy the rows of all `batches`; they must have the same dtype and inner shape."""
        if not batches:
            raise InvalidError("`batches` must not be empty")
        kinds = {
            (batch.dtype, batch.inner, batch.ndim if batch.shapes is not None else 0)
            for batch in batches
        }
        if len(kinds) > 1:
            raise InvalidError(
                f"cannot concatenate {' and '.join(map(repr, batches[:3]))}",
                hint="their dtypes and inner shapes must be equal",
            )
        shapes = [batch.shapes for batch in batches if batch.shapes is not None]
        return cls(
            np.concatenate([batch.values for batch in batches]),
            _offsets(np.concatenate([batch.lengths for batch in batches])),
            np.concatenate(shapes) if shapes else None,
        )

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of every row."""
        return self.values.dtype

    @property
    def inner(self) -> tuple[int, ...]:
        """The shape that all rows share after their first dimension."""
        return self.values.shape[1:]

    @property
    def ndim(self) -> int:
        """The number of dimensions of every row."""
        return self.values.ndim if self.shapes is None else self.shapes.shape[1]

    @property
    def varying(self) -> int:
        """How many leading dimensions of a row may differ from those of another."""
        return 1 if self.shapes is None else self.ndim

    @property
    def lengths(self) -> IndexArray:
        """The number of values in each row."""
        return np.diff(self.offsets)

    @property
    def nbytes(self) -> int:
        """The bytes of the values."""
        return self.values.nbytes

    def __len__(self) -> int:
        """Count the rows."""
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, key: SupportsIndex) -> npt.NDArray[Any]: ...

    @overload
    def __getitem__(self, key: Key) -> "Ragged": ...

    def __getitem__(self, key: Key | SupportsIndex) -> "npt.NDArray[Any] | Ragged":
        """Return one row as a view, or a selection of rows as NumPy would."""
        rows = resolve(key, len(self))  # type: ignore[arg-type]
        if isinstance(rows, int):
            row = self.values[self.offsets[rows] : self.offsets[rows + 1]]
            return row if self.shapes is None else row.reshape(self.shapes[rows])
        if isinstance(rows, range) and rows.step == 1 and rows:
            start, stop = rows.start, rows.stop
            offsets = self.offsets[start : stop + 1]
            shapes = None if self.shapes is None else self.shapes[start:stop]
            return Ragged(self.values[offsets[0] : offsets[-1]], offsets - offsets[0], shapes)
        return self.take(rows)

    def __iter__(self) -> Iterator[npt.NDArray[Any]]:
        """Iterate over all rows."""
        return (self[row] for row in range(len(self)))

    def __eq__(self, other: object) -> bool:
        """Compare values, offsets and shapes."""
        if not isinstance(other, Ragged):
            return NotImplemented
        if (self.shapes is None) != (other.shapes is None):
            return False
        return (
            np.array_equal(self.offsets, other.offsets)
            and np.array_equal(self.values, other.values)
            and (self.shapes is None or np.array_equal(self.shapes, other.shapes))  # type: ignore[arg-type]
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        """Return the number of rows and values and their type, on one line."""
        inner = f" {self.inner}" if self.inner else ""
        shapes = "" if self.shapes is None else f", {self.ndim} dimensions"
        return f"Ragged({len(self)} rows, {len(self.values)} values, {self.dtype}{inner}{shapes})"

    def to_list(self) -> list[npt.NDArray[Any]]:
        """Copy every row into an array of its own."""
        return [row.copy() for row in self]

    def take(self, indices: Indices) -> "Ragged":
        """Copy the rows at `indices`, in the order requested, repeats included."""
        rows = as_indices(indices, len(self)).ravel()
        lengths = self.lengths[rows]
        offsets = _offsets(lengths)
        shift = np.repeat(self.offsets[rows] - offsets[:-1], lengths)
        values = self.values[np.arange(offsets[-1]) + shift]
        return Ragged(values, offsets, None if self.shapes is None else self.shapes[rows])

    def pad(
        self, to: Sizes = None, multiple_of: Sizes = None, value: Any = 0, *, truncate: bool = False
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
        """Copy the rows into one array `(n, length, *inner)`, and return it with a mask.

        With `shapes`, every dimension is padded, `to` and `multiple_of` may have one number
        per dimension, and the mask has as many dimensions as the array.

        Args:
            to: The length; by default that of the longest row. A longer row is an error.
            multiple_of: Round the length of the longest row up to a multiple of this.
            value: The fill value.
            truncate: Cut rows that are longer than `to` instead of raising an error.

        Returns:
            The array, and a mask that is True where a value belongs to a row.
        """
        extents = self.lengths[:, None] if self.shapes is None else self.shapes
        sizes = self._padded_sizes(extents, to, multiple_of, truncate=truncate)
        shape = (len(self), *sizes)
        array = np.full(shape + self.inner, _fill(value, self.dtype), dtype=self.dtype)
        mask = np.ones(shape, dtype=np.bool_)
        for axis, size in enumerate(sizes):
            real = np.arange(size) < extents[:, axis, None]
            mask &= real.reshape(len(self), *(size if k == axis else 1 for k in range(len(sizes))))
        if (extents <= np.array(sizes)).all():
            array[mask] = self.values  # both are in C order
        else:
            cut = tuple(map(slice, sizes))
            parts = [row[cut[: self.ndim]] for row in self]
            kept = parts if self.shapes is None else [part.ravel() for part in parts]
            array[mask] = np.concatenate(kept)
        return array, mask

    def pack(self, capacity: int, *, value: Any = 0) -> Packed:
        """Place the rows one after the other in bins of `capacity`, by first-fit-decreasing.

        A row longer than `capacity` is an error that names it. Deterministic.
        """
        if self.shapes is not None:
            raise UnsupportedError(
                "cannot pack rows with several variable dimensions", hint="use pad()"
            )
        lengths = self.lengths
        bins = pack_lengths(lengths, as_int("capacity", capacity, at_least=1))
        array = np.full((len(bins), capacity, *self.inner), _fill(value, self.dtype), self.dtype)
        segments = np.zeros((len(bins), capacity), dtype=np.int32)
        positions = np.zeros((len(bins), capacity), dtype=np.int32)
        for k, rows in enumerate(bins):
            sizes = lengths[rows]
            used = int(sizes.sum())
            packed = self.take(rows)
            array[k, :used] = packed.values
            segments[k, :used] = np.repeat(np.arange(1, len(rows) + 1), sizes)
            positions[k, :used] = np.arange(used) - np.repeat(packed.offsets[:-1], sizes)
        return Packed(array, segments, positions, bins)

    def _padded_sizes(
        self, extents: IndexArray, to: Sizes, multiple_of: Sizes, *, truncate: bool
    ) -> tuple[int, ...]:
        longest = extents.max(axis=0, initial=0).tolist()
        if to is not None and multiple_of is not None:
            raise InvalidError("pass `to` or `multiple_of`, not both")
        if multiple_of is not None:
            steps = _per_axis("multiple_of", multiple_of, len(longest), at_least=1)
            return tuple(-(-size // step) * step for size, step in zip(longest, steps, strict=True))
        if to is None:
            return tuple(longest)
        sizes = _per_axis("to", to, len(longest), at_least=0)
        over = (extents > np.array(sizes)).any(axis=1)
        if not truncate and over.any():
            row = int(np.argmax(over))
            size = extents[row, 0] if self.shapes is None else tuple(extents[row].tolist())
            raise InvalidError(
                f"row {row} has the length {size}, but `to` is {to}",
                hint="pass truncate=True to shorten longer rows",
            )
        return sizes

    def _validate(self) -> None:
        offsets, values, shapes = self.offsets, self.values, self.shapes
        if values.ndim == 0:
            raise InvalidError("`values` must have at least one dimension")
        if offsets.ndim != 1 or len(offsets) == 0:
            raise InvalidError(f"`offsets` must have the shape (rows + 1,), got {offsets.shape}")
        if offsets[0] != 0 or offsets[-1] != len(values):
            raise InvalidError(
                f"`offsets` must go from 0 to the number of values, {len(values)}, "
                f"got {offsets[0]} to {offsets[-1]}"
            )
        falls = offsets[1:] < offsets[:-1]
        if falls.any():
            raise InvalidError(
                f"`offsets` must not decrease, but they do after row {int(np.argmax(falls))}"
            )
        if shapes is not None:
            _validate_shapes(shapes, values, np.diff(offsets))


def pack_lengths(lengths: IndexArray, capacity: int) -> list[IndexArray]:
    """Assign rows to bins by first-fit-decreasing; equal lengths keep their order."""
    over = lengths > capacity
    if over.any():
        row = int(np.argmax(over))
        raise InvalidError(
            f"row {row} has the length {lengths[row]}, which is more than the capacity {capacity}",
            hint="cut the row, or use a larger capacity",
        )
    leaves = 1 << max(0, len(lengths) - 1).bit_length()
    # A tree over the free space of each bin finds the first that fits in log(bins) steps:
    # node k holds the most free space below it, and its children are 2k and 2k + 1.
    free = [capacity] * (2 * leaves)
    bins: list[list[int]] = []
    for row in np.argsort(-lengths, kind="stable").tolist():
        size = int(lengths[row])
        node = 1
        while node < leaves:
            node *= 2
            if free[node] < size:
                node += 1
        number = node - leaves
        if number == len(bins):
            bins.append([])
        bins[number].append(row)
        free[node] -= size
        while node > 1:
            node //= 2
            free[node] = max(free[2 * node], free[2 * node + 1])
    return [np.array(rows, dtype=np.int64) for rows in bins]


def bucket_by_length(lengths: npt.ArrayLike, boundaries: npt.ArrayLike) -> list[IndexArray]:
    """Group rows by length: bucket k has those that fit `boundaries[k]` and no smaller one.

    The last bucket has the rows longer than all boundaries. Each row is in exactly one bucket,
    in ascending order.
    """
    sizes = _lengths(lengths)
    bounds = np.asarray(boundaries)
    if bounds.ndim != 1 or (np.diff(bounds) <= 0).any():
        raise InvalidError(f"`boundaries` must be increasing numbers, got {boundaries!r}")
    bucket = np.searchsorted(bounds, sizes, side="left")
    return [np.flatnonzero(bucket == k).astype(np.int64) for k in range(len(bounds) + 1)]


def length_batches(lengths: npt.ArrayLike, batch_size: int, seed: int = 0) -> list[IndexArray]:
    """Return batches of rows of similar length, in an order that depends on `seed` alone.

    Each row is in exactly one batch. Rows of equal length are shuffled among their batches, and
    so are the batches; one batch is short if `batch_size` does not divide the number of rows.
    """
    sizes = _lengths(lengths)
    step = as_int("batch_size", batch_size, at_least=1)
    bits = np.random.PCG64(as_int("seed", seed, at_most=None))
    order = np.lexsort((bits.random_raw(len(sizes)), sizes)).astype(np.int64)
    batches = [order[start : start + step] for start in range(0, len(order), step)]
    turn = np.argsort(bits.random_raw(len(batches)), kind="stable")
    return [batches[k] for k in turn.tolist()]


def _lengths(lengths: npt.ArrayLike) -> IndexArray:
    sizes = np.asarray(lengths)
    if sizes.size == 0:
        return np.empty(0, dtype=np.int64)
    if sizes.dtype.kind not in "iu":
        raise InvalidTypeError(f"`lengths` must be integers, got {sizes.dtype}")
    if sizes.ndim != 1 or sizes.min() < 0:
        raise InvalidError("`lengths` must have one dimension and no negative numbers")
    return sizes.astype(np.int64)


def _validate_shapes(shapes: IndexArray, values: npt.NDArray[Any], lengths: IndexArray) -> None:
    if values.ndim != 1:
        raise InvalidError(
            f"`values` must have one dimension when `shapes` is passed, got {values.ndim}"
        )
    if shapes.ndim != 2 or len(shapes) != len(lengths) or shapes.shape[1] == 0:  # noqa: PLR2004
        raise InvalidError(
            f"`shapes` must be a 2-D array with one shape for each of {len(lengths)} rows, "
            f"got an array of shape {shapes.shape}"
        )
    # Products of numbers from a file may overflow, which 64-bit integers do not show.
    rough = np.prod(shapes, axis=1, dtype=np.float64)
    wrong = (shapes < 0).any(axis=1) | (rough > _MAX_PRODUCT) | (np.prod(shapes, axis=1) != lengths)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise InvalidError(
            f"row {row} has {lengths[row]} values, but its shape is {tuple(shapes[row].tolist())}"
        )


def _integers(what: str, numbers: npt.ArrayLike) -> IndexArray:
    array = np.asarray(numbers)
    if array.dtype.kind not in "iu":
        raise InvalidTypeError(f"`{what}` must be integers, got {array.dtype}")
    return np.ascontiguousarray(array, dtype=np.int64).reshape(array.shape)


def _offsets(lengths: npt.ArrayLike) -> IndexArray:
    sizes = np.asarray(lengths, dtype=np.int64)
    offsets = np.zeros(len(sizes) + 1, dtype=np.int64)
    np.cumsum(sizes, out=offsets[1:])
    return offsets


def _arrays(
    rows: list[npt.ArrayLike], dtype: npt.DTypeLike | None
) -> tuple[list[npt.NDArray[Any]], np.dtype[Any]]:
    arrays = [np.asarray(row, dtype=dtype) for row in rows]
    if dtype is not None:
        common = np.dtype(dtype)
    else:
        # NumPy makes [] float64; here it takes the dtype of the other rows.
        known = [k for k, row in enumerate(rows) if arrays[k].size or isinstance(row, np.ndarray)]
        common = arrays[known[0]].dtype if known else np.dtype(np.float64)
        for k in known:
            kind = arrays[k].dtype
            if kind != common and not (kind.kind == common.kind and kind.kind in "SU"):
                raise InvalidError(
                    f"row {known[0]} has the dtype {common}, but row {k} has {kind}",
                    hint="pass dtype= to convert all rows",
                )
            common = np.result_type(common, kind)
    for k, array in enumerate(arrays):
        if array.ndim == 0 or array.ndim != arrays[0].ndim:
            raise InvalidError(
                f"row {k} has {array.ndim} dimensions, expected {max(1, arrays[0].ndim)}",
            )
    return arrays, common


def _per_axis(
    what: str, sizes: int | Sequence[int], axes: int, *, at_least: int
) -> tuple[int, ...]:
    numbers = tuple(sizes) if isinstance(sizes, Sequence) else (sizes,) * axes
    if len(numbers) != axes:
        raise InvalidError(
            f"`{what}` must have one number for each of {axes} dimensions, got {sizes!r}"
        )
    return tuple(as_int(what, number, at_least=at_least) for number in numbers)


def _fill(value: Any, dtype: np.dtype[Any]) -> Any:
    """Return `value` as `dtype`; an integer dtype must hold it exactly."""
    problem = f"the fill value {value!r} cannot be stored as {dtype}"
    try:
        fill = np.asarray(value, dtype=dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidError(problem) from error
    if dtype.kind in "iub" and fill != value:
        raise InvalidError(problem)
    return fill
