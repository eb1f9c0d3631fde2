"""Leaf tables: one SHA-256 for every 64 KiB, independent of how the bytes arrive."""

import hashlib
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relive import errors
from relive.store.blobs import BlobRef, blob_key, describe_bytes, describe_file
from relive.store.leaves import LEAF_BYTES, find_damage, leaf_count, leaf_table, round_out

DATA = np.random.default_rng(5).bytes(40 * LEAF_BYTES + 77)


def expected(data: bytes) -> bytes:
    starts = range(0, len(data), LEAF_BYTES)
    return b"".join(hashlib.sha256(data[at : at + LEAF_BYTES]).digest() for at in starts)


@given(st.lists(st.integers(0, 3 * LEAF_BYTES), max_size=12))
def test_table_does_not_depend_on_the_pieces(sizes: list[int]) -> None:
    ends = np.cumsum([0, *sizes])
    pieces = [DATA[start:stop] for start, stop in pairwise(ends)]
    assert leaf_table(pieces) == expected(b"".join(pieces))


@pytest.mark.parametrize(
    "size", [0, 1, LEAF_BYTES - 1, LEAF_BYTES, LEAF_BYTES + 1, 5 * LEAF_BYTES, len(DATA)]
)
def test_description_of_bytes_and_files(size: int, tmp_path: Path) -> None:
    data = DATA[:size]
    (tmp_path / "file").write_bytes(data)
    ref, table = describe_bytes(data)
    assert describe_file(tmp_path / "file") == (ref, table)
    assert ref[:2] == (hashlib.sha256(data).hexdigest(), size)
    if size <= LEAF_BYTES:
        assert (ref.leaves, table, ref.table_nbytes) == (None, b"", 0)
    else:
        assert table == expected(data)
        assert ref.leaves == hashlib.sha256(table).hexdigest()
        assert ref.table_nbytes == len(table) == 32 * leaf_count(size)


def test_description_of_a_missing_file_raises(tmp_path: Path) -> None:
    with pytest.raises(errors.NotFoundError, match="none"):
        describe_file(tmp_path / "none")


def test_key_of_a_blob() -> None:
    ref = BlobRef("ab12" + "0" * 60, 3, None)
    assert blob_key(ref.digest) == f"blobs/ab/12/ab12{'0' * 60}"


@given(st.integers(0, len(DATA)), st.integers(0, len(DATA)))
def test_ranges_are_rounded_out_to_leaves(one: int, other: int) -> None:
    start, stop = sorted((one, other))
    first, end = round_out(start, stop, len(DATA))
    assert first <= start <= stop <= max(end, stop) <= len(DATA)
    assert start - first < LEAF_BYTES
    assert first % LEAF_BYTES == 0
    assert end % LEAF_BYTES == 0 or end == len(DATA)


@given(st.integers(0, len(DATA) - 1), st.integers(0, 40), st.integers(1, 41))
def test_a_changed_byte_is_found_at_its_leaf(at: int, first: int, count: int) -> None:
    damaged = bytearray(DATA)
    damaged[at] ^= 1
    start, stop = first * LEAF_BYTES, min((first + count) * LEAF_BYTES, len(DATA))
    leaf = at // LEAF_BYTES * LEAF_BYTES
    found = find_damage(memoryview(damaged)[start:stop], start, leaf_table([DATA]))
    assert found == (leaf if start <= leaf < stop else None)


def test_known_leaves_are_not_hashed_again() -> None:
    known = bytearray(leaf_count(len(DATA)))
    table = leaf_table([DATA])
    assert find_damage(DATA[: 2 * LEAF_BYTES], 0, table, known) is None
    assert [*known[:3]] == [1, 1, 0]
    assert find_damage(bytes(2 * LEAF_BYTES), 0, table, known) is None
    assert find_damage(bytes(3 * LEAF_BYTES), 0, table, known) == 2 * LEAF_BYTES
    assert not known[2]
