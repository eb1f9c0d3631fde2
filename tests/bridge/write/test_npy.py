"""Conversion to `.npy` files."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relive.bridge import convert
from relive.errors import InvalidError, UnsupportedError
from relive.model.ragged import Ragged


@pytest.mark.parametrize(
    "values",
    [
        np.arange(1000),
        np.random.default_rng(0).random((70, 3, 2)).astype("f4"),
        np.zeros(5, [("a", "i4"), ("b", "f8", (2,))]),
        np.array(["a", "bcd"]),
        np.zeros((0, 4)),
        np.arange(10, dtype=">i2"),
        np.array(["2026-01-01"], "M8[D]"),
    ],
    ids=lambda values: f"{values.dtype} {values.shape}",
)
def test_npy_round_trip(tmp_path: Path, values: np.ndarray[Any, Any]) -> None:
    made = convert({"x": values, "y": values}, tmp_path / "x.npy", fields=["x"], batch=64)
    found = np.load(made.path)
    assert found.dtype == values.dtype
    assert np.array_equal(found, values)
    assert len(np.load(made.path, mmap_mode="r")) == made.rows


def test_npy_of_an_unknown_number_of_rows(tmp_path: Path) -> None:
    rows = [{"x": number} for number in range(300)]
    convert(rows, tmp_path / "x.npy", batch=7)
    assert np.load(tmp_path / "x.npy").tolist() == list(range(300))


def test_npy_unsupported_fields_raise(tmp_path: Path) -> None:
    target = tmp_path / "x.npy"
    with pytest.raises(InvalidError, match="can hold only one field, got 'a', 'b'") as caught:
        convert({"a": [1], "b": [2]}, target)
    assert caught.value.hint == "select one: fields=['a']"
    with pytest.raises(UnsupportedError, match=r"Field\('str'\)"):
        convert({"a": ["x"]}, target)
    with pytest.raises(UnsupportedError, match="ragged=True"):
        convert(Ragged.from_list([[1]]), target)
    with pytest.raises(UnsupportedError, match="row 5: field 'a' has no value"):
        convert({"a": [1, 2, 3, 4, 5, None]}, target, batch=2)
    with pytest.raises(UnsupportedError, match="cannot be compressed"):
        convert(np.arange(3), target, codec="zstd")
    assert not list(tmp_path.iterdir())
