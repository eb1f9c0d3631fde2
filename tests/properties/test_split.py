"""Splits of any source, by any keys."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from relive.model.split import split
from tests.contracts.source_contract import ListSource

ratios = st.lists(st.integers(1, 50) | st.floats(0.01, 10), min_size=1, max_size=5)
seeds = st.integers(0, 2**64)


@given(st.integers(0, 60), ratios, seeds)
def test_random_parts_are_exact_to_one_row(length: int, shares: list[float], seed: int) -> None:
    parts = split(ListSource(np.arange(length)), shares, seed=seed)
    rows = [np.asarray(part.rows).tolist() for part in parts]
    assert sorted(row for part in rows for row in part) == list(range(length))
    for share, part in zip(shares, rows, strict=True):
        assert part == sorted(part)
        assert abs(len(part) - length * share / sum(shares)) < 1 + 1e-9


@given(
    st.lists(st.text(max_size=2) | st.integers(-3, 3) | st.floats() | st.none()),
    st.lists(st.integers(-3, 3), max_size=5),
    ratios,
    seeds,
)
def test_keys_stay_together_and_in_their_part(
    keys: list[object], more: list[int], shares: list[float], seed: int
) -> None:
    def sides(own: list[object]) -> dict[int, int]:
        parts = split(ListSource(np.arange(len(own))), shares, by=own, seed=seed)
        return {int(row): k for k, part in enumerate(parts) for row in np.asarray(part.rows)}

    before, after = sides(keys), sides([*keys, *more])
    assert len(after) == len(keys) + len(more)
    assert {row: after[row] for row in before} == before
    for row, key in enumerate(keys):
        assert all(before[row] == before[k] for k, other in enumerate(keys) if other == key)
