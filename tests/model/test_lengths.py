"""Buckets and batches by length."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from relive.errors import InvalidError, InvalidTypeError
from relive.model import bucket_by_length, length_batches


def test_bucket_contains_lengths_up_to_its_boundary() -> None:
    buckets = bucket_by_length([4, 1, 9, 8, 5, 0], [4, 8])
    assert [bucket.tolist() for bucket in buckets] == [[0, 1, 5], [3, 4], [2]]
    assert all(bucket.dtype == np.int64 for bucket in buckets)


def test_buckets_at_the_boundaries() -> None:
    assert [bucket.tolist() for bucket in bucket_by_length([], [2])] == [[], []]
    assert [bucket.tolist() for bucket in bucket_by_length([3, 1], [])] == [[0, 1]]


@pytest.mark.parametrize(
    ("lengths", "boundaries"), [([1], [2, 2]), ([1], [3, 2]), ([1], 2), ([-1], [2]), ([[1]], [2])]
)
def test_bucket_rejects_invalid_lengths(lengths: Any, boundaries: Any) -> None:
    with pytest.raises(InvalidError):
        bucket_by_length(lengths, boundaries)


def test_batches_have_similar_lengths() -> None:
    lengths = np.random.default_rng(1).integers(0, 1000, size=103)
    batches = length_batches(lengths, 10, seed=5)
    assert sorted(np.concatenate(batches).tolist()) == list(range(103))
    assert sorted(map(len, batches)) == [3] + [10] * 10
    spans = sorted((lengths[rows].min(), lengths[rows].max()) for rows in batches)
    assert all(low[1] <= high[0] for low, high in pairwise(spans))


def test_batches_depend_only_on_the_seed() -> None:
    def order(seed: int) -> list[list[int]]:
        return [rows.tolist() for rows in length_batches([3, 3, 1, 1, 2, 2, 3, 1], 2, seed)]

    assert order(0) == order(0)
    assert len({str(order(seed)) for seed in range(8)}) > 4
    # Written down: the same rows on every machine and with every version.
    assert order(0) == [[6, 0], [3, 2], [5, 1], [7, 4]]


def test_batches_by_length_rejects_invalid_arguments() -> None:
    assert length_batches([], 4) == []
    for arguments in (([1], 0), ([1], 2, -1), ([-1], 2)):
        with pytest.raises(InvalidError):
            length_batches(*arguments)
    with pytest.raises(InvalidTypeError):
        length_batches([1.5], 2)
