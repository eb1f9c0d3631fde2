"""Splits: names of rows, given as ranges or as files."""

from pathlib import Path
from typing import Any

import pytest

from relive.errors import InvalidError, InvalidTypeError
from relive.publish.write.splits import row_ranges, shifted

FILES = [(Path("/d/train/a.parquet"), 10), (Path("/d/test.parquet"), 5), (Path("/d/train/b"), 0)]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((0, 8), ((0, 8),)),
        (range(8, 10), ((8, 10),)),
        (slice(-3, None), ((12, 15),)),
        (slice(None), ((0, 15),)),
        ([(0, 2), (2, 4), range(8, 9)], ((0, 4), (8, 9))),
        (((5, 6), (1, 2)), ((1, 2), (5, 6))),
        ((slice(0, 1), range(3, 4)), ((0, 1), (3, 4))),
        ((3, 3), ()),
        ([], ()),
        ("/d/test.parquet", ((10, 15),)),
        (Path("/d/train"), ((0, 10),)),
        ("/d/*.parquet", ((0, 15),)),
        (["/d/test.parquet", "/d/train/a.parquet"], ((0, 15),)),
        (("/d/test.parquet", "/d/train/a.parquet"), ((0, 15),)),
    ],
    ids=str,
)
def test_forms_of_a_split(given: Any, expected: Any) -> None:
    assert row_ranges({"part": given}, 15, FILES) == {"part": expected}


@pytest.mark.parametrize(
    ("splits", "error", "message"),
    [
        ({"a": (0, 16)}, InvalidError, "must be at most 15"),
        ({"a": (-1, 3)}, InvalidError, "must be at least 0"),
        ({"a": (5, 3)}, InvalidError, "must be at least 5"),
        ({"a": (0.5, 1)}, InvalidTypeError, "must be an integer"),
        ({"a": [(0, 3), (2, 5)]}, InvalidError, "split `a` has row 2 twice"),
        ({"a": range(0, 10, 2)}, InvalidError, "every row of a range"),
        ({"a": 5}, InvalidTypeError, "split `a` cannot be 5"),
        ({"a": "/d/none/*"}, InvalidError, "no file of the table matches"),
        ({"a b": (0, 1)}, InvalidError, "a b"),
        ([("a", (0, 1))], InvalidTypeError, "`splits` must map names to rows"),
    ],
    ids=str,
)
def test_what_is_refused(splits: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        row_ranges(splits, 15, FILES)


def test_no_splits_and_shifted_ones() -> None:
    assert row_ranges(None, 5, []) == {}
    assert shifted(((0, 2), (4, 5)), 10) == ((10, 12), (14, 15))
