"""Composed sources, beyond the source contract."""

import itertools
import pickle
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from relive import ArraySource, DataLoader, Field, Ragged, Sampler, Source, errors
from relive.load import Concat, Map, Mix, Subset, split
from relive.model import Batch
from relive.model.source import Indices
from tests.load.reference import Plain, batches_of, rows, same

KINDS: dict[str, Callable[[Source], Source]] = {"native": lambda source: source, "python": Plain}


def numbered(start: int, n: int) -> ArraySource:
    return ArraySource({"id": np.arange(start, start + n)})


def ids(source: Source) -> list[int]:
    found = source.gather(range(len(source)))["id"]
    assert isinstance(found, np.ndarray)
    listed: list[int] = found.tolist()
    return listed


def clone(source: Any) -> Any:
    return pickle.loads(pickle.dumps(source))  # noqa: S301 - our own data


# -- Concat ----------------------------------------------------------------------------------


def test_concat_appends_sources_in_order() -> None:
    source = Concat(numbered(0, 3), numbered(100, 0), numbered(10, 2), numbered(20, 1))
    assert ids(source) == [0, 1, 2, 10, 11, 20]
    assert len(source.parts) == 4
    assert ids(clone(source)) == ids(source)
    assert ids(Concat(source, source)) == ids(source) * 2


def test_native_and_python_concat_agree() -> None:
    parts = [rows(7), rows(3)[::-1], rows(0), rows(12)[[5, 5, 2]]]
    native, python = Concat(*parts), Concat(*map(Plain, parts))
    half = Concat(parts[0], Plain(parts[1]), *parts[2:])
    assert native.native_table() is not None
    assert python.native_table() is None
    assert half.native_table() is None
    index = np.random.default_rng(0).integers(0, len(native), (5, 8))
    expected = python.gather(index)
    assert same(native.gather(index), expected)
    assert same(half.gather(index), expected)
    for source in (native, python, half):
        with DataLoader(source, batch_size=4, seed=3) as loader:
            wanted = batches_of(python, Sampler(len(native), 4, seed=3), 12)
            assert all(
                same(one, other)
                for one, other in zip(itertools.islice(loader, 12), wanted, strict=True)
            )


def test_field_order_does_not_matter() -> None:
    one = ArraySource({"a": np.arange(3), "b": np.zeros(3, "f4")})
    two = ArraySource({"b": np.ones(3, "f4"), "a": np.arange(3, 6)})
    source = Concat(one, two)
    batch = source.gather([5, 0])
    assert list(batch) == ["a", "b"]
    with DataLoader(source, batch_size=6, mode="sequential") as loader:
        loaded = next(loader)
    assert loaded["a"].tolist() == [0, 1, 2, 3, 4, 5]
    assert loaded["b"].tolist() == [0, 0, 0, 1, 1, 1]


class Stored(Plain):
    """The same rows, stored differently."""

    @property
    def fields(self) -> Mapping[str, Field]:
        return {
            name: Field(f.dtype, f.shape, "zstd", f.ragged) for name, f in super().fields.items()
        }


def test_storage_of_fields_does_not_matter() -> None:
    assert ids(Concat(rows(2), Stored(rows(2)))) == [0, 1, 0, 1]


@pytest.mark.parametrize("make", [Concat, Mix])
def test_sources_must_have_the_same_fields(make: Any) -> None:
    with pytest.raises(errors.InvalidError, match="needs at least one source"):
        make()
    with pytest.raises(
        errors.InvalidTypeError,
        match=r"a relive\.Source, such as ArraySource, got an ndarray",
    ):
        make(rows(3), np.arange(3))
    for other in (
        ArraySource({"id": np.arange(3), "vec": np.zeros((3, 3))}),
        ArraySource({"id": np.arange(3, dtype=np.int32)}),
        ArraySource({"number": np.arange(3)}),
        ArraySource({"id": np.zeros((3, 1), dtype=np.int64)}),
        ArraySource({"id": Ragged.from_list([np.arange(3)])}),
    ):
        with pytest.raises(
            errors.InvalidError, match=r"source 1 has the fields .*, but source 0 has"
        ) as e:
            make(numbered(0, 3), other)
        assert e.value.hint is not None


# -- Mix -------------------------------------------------------------------------------------


@pytest.mark.parametrize("weights", [(1, 1), (3, 1), (0.7, 0.2, 0.1), (1, 2, 4), (0.999, 0.001)])
def test_mix_keeps_its_proportions_throughout(weights: tuple[float, ...]) -> None:
    parts = [numbered(1000 * k, 100) for k in range(len(weights))]
    mix = Mix(*parts, weights=weights, length=10_000)
    exact = np.array(weights) / sum(weights)
    np.testing.assert_allclose(mix.weights, exact, atol=1e-3)
    drawn = np.array(ids(mix)) // 1000
    np.testing.assert_allclose(np.bincount(drawn) / 10_000, exact, atol=1e-3)
    for stretch in drawn.reshape(-1, 1000):  # not only over the whole length
        found = np.bincount(stretch, minlength=len(weights)) / 1000
        np.testing.assert_allclose(found, exact, atol=0.002)


def test_simple_weights_are_exact_and_evenly_spread() -> None:
    mix = Mix(numbered(0, 99), numbered(100, 99), numbered(200, 99), weights=(0.5, 0.3, 0.2))
    assert mix.weights == (0.5, 0.3, 0.2)
    for stretch in (np.array(ids(mix)[:200]) // 100).reshape(-1, 10):
        assert np.bincount(stretch).tolist() == [5, 3, 2]


def test_mix_keeps_the_order_of_each_source() -> None:
    mix = Mix(numbered(0, 4), numbered(100, 3), weights=(2, 1), length=18)
    found = ids(mix)
    assert [row for row in found if row < 100] == [0, 1, 2, 3] * 3
    assert [row for row in found if row >= 100] == [100, 101, 102] * 2


@pytest.mark.parametrize("lengths", [(7, 13), (1, 1000), (5,), (3, 0, 4), (100, 101), (20, 5000)])
def test_mix_shows_every_row(lengths: tuple[int, ...]) -> None:
    starts = np.cumsum([0, *lengths])
    parts = [numbered(int(start), n) for start, n in zip(starts, lengths, strict=False)]
    for weights in (None, [1 if n else 0 for n in lengths], [n**1.5 for n in lengths]):
        mix = Mix(*parts, weights=weights)
        assert set(ids(mix)) == set(range(starts[-1]))
        assert set(ids(mix)[:-1]) != set(range(starts[-1]))  # and not longer
    counts = Counter(ids(Mix(*parts)))
    assert set(counts.values()) == {1}  # few enough that shares are exact


def test_equal_small_weights_stay_equal() -> None:
    few = Mix(*[numbered(k, 1) for k in range(3)], weights=(1, np.pi * 1e-4, np.pi * 1e-4))
    assert few.weights[1] == few.weights[2] > 0
    many = Mix(*[numbered(k, 1) for k in range(1500)], weights=[3e4] + [1.0] * 1499)
    assert len(set(many.weights[1:])) == 1
    assert set(ids(many)) == set(range(1500))


def test_small_weights_are_kept_or_refused() -> None:
    big, small = ArraySource({"id": np.arange(100_003)}), numbered(0, 7)
    kept = Mix(big, small).weights[1]
    assert kept == pytest.approx(7 / 100_010, rel=0.1)
    for weights in ((1, 1e-6), (1e6, 1.0), (1, 1e-300)):
        with pytest.raises(errors.InvalidError, match=r"the weight of source 1 is too small: 1e-"):
            Mix(big, small, weights=weights)


def test_mix_keeps_its_proportions_over_a_long_round() -> None:
    weights = np.array([1.0, np.pi, np.e])
    parts = [numbered(100 * k, 50) for k in range(3)]
    drawn = np.array(ids(Mix(*parts, weights=weights.tolist(), length=60_000))) // 100
    for stretch in drawn.reshape(-1, 500):
        found = np.bincount(stretch, minlength=3) / 500
        np.testing.assert_allclose(found, weights / weights.sum(), atol=0.005)


def test_native_and_python_mix_agree() -> None:
    parts = [rows(7), rows(3)[::-1], rows(12)[2:9]]
    for weights, length, seed in (((1, 2, 3), None, 0), ((5, 0, 1), 50, 1), (None, 33, 2)):
        native = Mix(*parts, weights=weights, length=length, seed=seed)
        python = Mix(*map(Plain, parts), weights=weights, length=length, seed=seed)
        assert native.native_table() is not None
        index = np.random.default_rng(0).integers(0, len(native), 100)
        expected = python.gather(index)
        assert same(native.gather(index), expected)
        with DataLoader(native, batch_size=4) as loader:
            wanted = batches_of(python, Sampler(len(native), 4), 12)
            assert all(
                same(one, other)
                for one, other in zip(itertools.islice(loader, 12), wanted, strict=True)
            )


def test_seed_changes_only_the_order_of_sources() -> None:
    mixes = [Mix(numbered(0, 50), numbered(100, 50), weights=(1, 2), seed=s) for s in (0, 0, 1)]
    assert ids(mixes[0]) == ids(mixes[1]) != ids(mixes[2])
    assert mixes[0].weights == mixes[2].weights


@pytest.mark.parametrize(
    "weights", [None, (1, 2, 3), (0.3, 0.33, 0.37), (1, 1e-4, 1e-4), (1 / 3, 1 / 3, 1 / 3)]
)
def test_pickled_mix_is_the_same(weights: Any) -> None:
    parts = [numbered(0, 17), numbered(100, 23), numbered(200, 29)]
    mix = Mix(*parts, weights=weights, seed=5)
    copy = clone(clone(mix))
    assert ids(copy) == ids(mix)
    assert (copy.weights, len(copy)) == (mix.weights, len(mix))


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"weights": (1,)}, errors.InvalidError, "one number for each of 2 sources"),
        ({"weights": (1, -1)}, errors.InvalidError, "not negative"),
        ({"weights": (0, 0)}, errors.InvalidError, "and not all zero"),
        ({"weights": (1, np.nan)}, errors.InvalidError, "`weights` must be finite"),
        ({"weights": (1, np.inf)}, errors.InvalidError, "`weights` must be finite"),
        ({"weights": ("1", "2")}, errors.InvalidTypeError, "`weights` must be numbers"),
        ({"weights": (1, None)}, errors.InvalidTypeError, "`weights` must be numbers"),
        ({"weights": (1, [2, 3])}, errors.InvalidTypeError, "`weights` must be numbers"),
        ({"weights": {"a": 1}}, errors.InvalidTypeError, "`weights` must be numbers"),
        ({"length": -1}, errors.InvalidError, "`length` must be at least 0"),
        ({"length": 1.5}, errors.InvalidTypeError, "`length` must be an integer"),
        ({"seed": None}, errors.InvalidTypeError, "`seed` must be an integer"),
    ],
    ids=repr,
)
def test_invalid_mixes_raise(options: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        Mix(numbered(0, 3), numbered(5, 3), **options)


def test_empty_source_has_weight_zero() -> None:
    with pytest.raises(errors.InvalidError, match="its weight must be 0"):
        Mix(numbered(0, 3), numbered(0, 0), weights=(1, 1))
    with pytest.raises(errors.InvalidError, match="and not all zero"):
        Mix(numbered(0, 0))
    assert ids(Mix(numbered(0, 3), numbered(0, 0))) == [0, 1, 2]


def test_arrays_are_not_sources() -> None:
    array: Any = np.arange(3)
    for make in (
        lambda: Concat(array),
        lambda: Mix(array),
        lambda: Map(array, dict),
        lambda: Subset(array, [0]),
        lambda: split(array, (1, 1)),
    ):
        with pytest.raises(
            errors.InvalidTypeError,
            match=r"a relive\.Source, such as ArraySource, got an ndarray",
        ) as caught:
            make()
        assert caught.value.hint == "wrap it in relive.ArraySource(array)"


def test_range_beyond_64_bits_raises() -> None:
    source = numbered(0, 5)
    huge = range(0, 10**30, 10**30)
    for read in (lambda: Subset(source, huge), lambda: source[huge], lambda: source.gather(huge)):
        with pytest.raises(errors.OutOfRangeError, match="fit in 64 bits"):
            read()


# -- combinations ----------------------------------------------------------------------------


def test_split_returns_native_views() -> None:
    train, test = split(rows(50), (0.8, 0.2), seed=1)
    assert train.native_table() is not None
    assert sorted(ids(train) + ids(test)) == list(range(50))
    with DataLoader(train, batch_size=5, epochs=1) as loader:
        seen = [row for batch in loader for row in batch["id"].tolist()]
    assert sorted(seen) == sorted(ids(train))


def test_compositions_resume() -> None:
    source = Mix(Concat(rows(5), rows(9)[4:]), rows(20)[::2], weights=(1, 1), length=40)
    whole = batches_of(source, Sampler(40, 6, seed=2), 20)
    with DataLoader(source, batch_size=6, seed=2, workers=3) as loader:
        for _ in range(9):
            next(loader)
        state = loader.state_dict()
    with DataLoader(clone(source), batch_size=6, seed=2, workers=1) as loader:
        loader.load_state_dict(state)
        rest = list(itertools.islice(loader, 11))
    assert all(same(one, other) for one, other in zip(rest, whole[9:], strict=True))


def test_deeply_nested_views_stay_native() -> None:
    source: Source = rows(64)
    oracle = np.arange(64)
    for depth in range(12):
        source = Concat(source[::2], source[1::2]) if depth % 2 else source[::-1][3:]
        oracle = np.concatenate([oracle[::2], oracle[1::2]]) if depth % 2 else oracle[::-1][3:]
    assert source.native_table() is not None
    assert ids(source) == oracle.tolist()
    with DataLoader(source, batch_size=len(source), mode="sequential") as loader:
        assert next(loader)["id"].tolist() == oracle.tolist()


class Counting(Plain):
    """Counts its gathers."""

    calls = 0

    def gather(
        self,
        indices: Indices,
        fields: Sequence[str] | None = None,
        out: Mapping[str, npt.NDArray[Any]] | None = None,
    ) -> Batch:
        self.calls += 1
        return super().gather(indices, fields, out)


def test_each_source_is_read_once_per_batch() -> None:
    parts = [Counting(rows(10)) for _ in range(3)]
    Concat(*parts).gather([25, 1, 29, 2, 3])
    assert [part.calls for part in parts] == [1, 0, 1]
