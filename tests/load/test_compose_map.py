"""Sources whose rows are computed by a function."""

import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from relive import ArraySource, DataLoader, Field, Ragged, Sampler, Source, errors
from relive.load import Concat, Map
from relive.model import Batch
from relive.model.source import Indices, as_indices
from tests.load.reference import batches_of, rows, same


def double(batch: dict[str, Any]) -> dict[str, Any]:
    return {"id": batch["id"], "twice": batch["id"] * 2.0}


def tokens_twice(row: dict[str, Any]) -> dict[str, Any]:
    return {"id": row["id"], "tokens": np.repeat(row["tokens"], 2)}


def rising(row: dict[str, Any]) -> dict[str, Any]:
    return {"up": np.arange(int(row["id"]))}


WORDS = {"word": Field("str"), "pair": Field("bytes", (2,)), "id": Field(np.int64)}


class Words(Source):
    """Rows of text, which are gathered as objects."""

    @property
    def fields(self) -> Mapping[str, Field]:
        return WORDS

    def __len__(self) -> int:
        return 5

    def gather(
        self,
        indices: Indices,
        fields: Sequence[str] | None = None,
        out: Mapping[str, npt.NDArray[Any]] | None = None,
    ) -> Batch:
        index = as_indices(indices, 5)
        words = np.array([f"{'w' * k}" for k in range(5)], dtype=object)
        pairs = np.array([[b"x" * k, b"y"] for k in range(5)], dtype=object)
        return {"word": words[index], "pair": pairs[index], "id": np.arange(5)[index]}


def test_function_of_batches() -> None:
    source = Map(rows(10), double)
    assert dict(source.fields) == {"id": Field(np.int64), "twice": Field(np.float64)}
    assert len(source) == 10
    batch = source.gather([[3, 1], [0, 3]])
    np.testing.assert_array_equal(batch["twice"], np.array([[6.0, 2.0], [0.0, 6.0]]))
    assert source[4] == {"id": 4, "twice": 8.0}
    assert source.native_table() is None
    assert isinstance(source.source, ArraySource)


def test_nothing_runs_before_rows_are_read() -> None:
    calls = []

    def watch(batch: dict[str, Any]) -> dict[str, Any]:
        calls.append(len(batch["id"]))
        return {"id": batch["id"]}

    source = Map(rows(10), watch, fields={"id": Field(np.int64)})
    view = source[2:][::2]
    assert calls == []
    view.gather([0, 1])
    assert calls == [2]
    assert list(source.gather([])) == ["id"]
    assert calls == [2]


def test_function_of_rows() -> None:
    source = Map(rows(10), tokens_twice, per_row=True)
    assert source.fields["tokens"] == Field(np.int16, ragged=True)
    found = source.gather([3, 0, 2])["tokens"]
    assert isinstance(found, Ragged)
    assert [row.tolist() for row in found] == [[3] * 6, [], [2] * 4]


def test_rows_of_different_lengths_need_a_ragged_field() -> None:
    source = Map(rows(10), rising, fields={"up": Field(np.int64, ragged=True)}, per_row=True)
    found = source.gather([2, 0, 3])["up"]
    assert isinstance(found, Ragged)
    assert [row.tolist() for row in found] == [[0, 1], [], [0, 1, 2]]
    with pytest.raises(errors.InvalidError, match="'up' in different shapes") as caught:
        Map(rows(10), rising, per_row=True).gather([2, 0, 3])
    assert caught.value.hint is not None


@pytest.mark.parametrize("per_row", [False, True])
def test_text_passes_through(per_row: bool) -> None:  # noqa: FBT001 - a parameter
    source = Map(Words(), dict, per_row=per_row)
    assert dict(source.fields) == WORDS
    expected = Words().gather([4, 1, 1])
    for name, values in source.gather([4, 1, 1]).items():
        wanted = expected[name]
        assert isinstance(values, np.ndarray)
        assert values.dtype == wanted.dtype
        np.testing.assert_array_equal(values, np.asarray(wanted))


def test_maps_compose_and_load() -> None:
    source = Concat(Map(rows(10), double), Map(rows(20), double)[5:])
    copy = pickle.loads(pickle.dumps(source))  # noqa: S301 - our own data
    expected = batches_of(source, Sampler(25, 4, seed=3), 12)
    with DataLoader(copy, batch_size=4, seed=3, workers=3) as loader:
        assert all(same(next(loader), batch) for batch in expected)
    nested = Map(Map(rows(10), double), double)
    assert nested.gather([4])["twice"].tolist() == [8.0]  # type: ignore[union-attr]


def test_results_are_copies() -> None:
    constant = np.arange(3.0)

    def share(batch: dict[str, Any]) -> dict[str, Any]:
        return {"x": np.broadcast_to(constant, (len(batch["id"]), 3))}

    source = Map(rows(10), share)
    found = source.gather([1, 2])["x"]
    assert isinstance(found, np.ndarray)
    found[:] = 9
    assert constant.tolist() == [0, 1, 2]
    out = np.zeros((2, 3))
    assert source.gather([1, 2], out={"x": out})["x"] is out
    assert out.tolist() == [[0, 1, 2]] * 2


@pytest.mark.parametrize(
    ("function", "error", "text"),
    [
        (lambda b: b["id"], errors.InvalidTypeError, "must return a dict, got an ndarray"),
        (lambda b: {"x": b["id"][:1]}, errors.InvalidError,
         "1 rows .* for the field 'x', expected 3"),
        (lambda b: {"x": b["id"].astype("f4" if 2 in b["id"] else "i8")}, errors.InvalidError,
         "3 rows of float32 of shape .* for the field 'x'"),
        (lambda b: {"x": b["id"]} if 2 not in b["id"] else {}, errors.InvalidError,
         "returned the field 'x' only for some rows"),
        (lambda b: {"x": np.zeros((len(b["id"]), len(b["id"])))}, errors.InvalidError,
         r"float64 of shape \(3,\)"),
    ],
)  # fmt: skip
def test_functions_with_invalid_results_raise(
    function: Any, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        Map(rows(10), function).gather([0, 1, 2])


def test_errors_of_the_function_are_raised_unchanged() -> None:
    def divide(batch: dict[str, Any]) -> dict[str, Any]:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        Map(rows(10), divide).gather([0])


def test_invalid_arguments_raise() -> None:
    with pytest.raises(
        errors.InvalidTypeError, match=r"a relive\.Source, such as ArraySource, got a list"
    ):
        Map([1, 2], double)  # type: ignore[arg-type]
    with pytest.raises(errors.InvalidTypeError, match="`function` must be callable, got 3"):
        Map(rows(3), 3)  # type: ignore[arg-type]
    with pytest.raises(errors.InvalidError, match="the source has no rows") as caught:
        _ = Map(rows(0), double).fields
    assert caught.value.hint == "pass fields="
    assert len(Map(rows(0), double, fields={"id": Field("i8")}).gather([])["id"]) == 0


def test_scalar_result_is_not_a_batch() -> None:
    source = Map(rows(4), lambda batch: {"mean": batch["id"].mean()})
    with pytest.raises(errors.InvalidError, match="one value of 'mean' per row") as caught:
        source.gather([0, 1])
    assert caught.value.hint is not None
