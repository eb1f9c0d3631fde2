"""The hash of a row depends on its values and on nothing else."""

import random
from typing import Any

import hypothesis
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import strategies as st

from relive.errors import UnsupportedError
from relive.publish.write.row_hash import hash_rows, hash_values
from relive.publish.write.row_size import row_sizes
from tests.publish.write import arrow_tables

seeds = st.integers(0, 1 << 32).map(random.Random)


def sizes_of(array: Any) -> list[int]:
    return row_sizes(pa.record_batch({"x": array})).tolist()  # type: ignore[no-any-return]


@hypothesis.given(arrow_tables.types(), seeds)
def test_slices_and_padding_do_not_change_hashes_and_sizes(kind: Any, draw: random.Random) -> None:
    array = arrow_tables.array(kind, 20, draw)
    other = arrow_tables.other_layout(array, draw)

    assert hash_values(other).tolist() == hash_values(array).tolist()
    assert sizes_of(other) == sizes_of(array)
    start, stop = sorted((draw.randrange(21), draw.randrange(21)))
    part = array.slice(start, stop - start)
    assert hash_values(part).tolist() == hash_values(array).tolist()[start:stop]
    assert sizes_of(part) == sizes_of(array)[start:stop]


@hypothesis.given(arrow_tables.types(), seeds)
def test_different_values_have_different_hashes(kind: Any, draw: random.Random) -> None:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    values = [arrow_tables.value(kind, draw) for _ in range(50)]
    storage = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    hashes = hash_values(pa.array(values, storage)).tolist()

    # NaN is not equal to itself, and -0.0 equals 0.0; text distinguishes them by their bits.
    texts = [repr(item) for item in pa.array(values, storage).to_pylist()]
    assert len(dict(zip(texts, hashes, strict=True))) == len(set(hashes))
    by_text = dict(zip(texts, hashes, strict=True))
    assert [by_text[text] for text in texts] == hashes


@hypothesis.given(st.sampled_from([pa.string(), pa.int64(), pa.binary(), pa.float64()]), seeds)
def test_dictionaries_hash_as_their_values(kind: Any, draw: random.Random) -> None:
    array = pa.array([arrow_tables.value(kind, draw) for _ in range(30)], kind)
    encoded = array.dictionary_encode()
    # Another order, values that no row has, one twice, and null as a value.
    order = list(range(len(encoded.dictionary)))
    draw.shuffle(order)
    extra = pa.concat_arrays(
        [
            encoded.dictionary.take(pa.array(order, pa.int64())),
            encoded.dictionary,
            pa.nulls(1, kind),
        ]
    )
    places = {old: new for new, old in enumerate(order)}
    indices = [
        draw.choice([None, len(extra) - 1])
        if index is None
        else draw.choice([places[index], len(order) + index])
        for index in encoded.indices.to_pylist()
    ]
    shuffled = pa.DictionaryArray.from_arrays(pa.array(indices, pa.int16()), extra)

    assert shuffled.to_pylist().__repr__() == array.to_pylist().__repr__()
    expected = hash_values(array).tolist()
    assert hash_values(encoded).tolist() == expected
    assert hash_values(shuffled).tolist() == expected
    assert hash_values(shuffled.slice(3, 4)).tolist() == expected[3:7]
    assert sizes_of(shuffled) == sizes_of(encoded) == sizes_of(array)


def test_text_types_hash_alike() -> None:
    texts = ["", "a", "abcdefg", "abcdefgh", "abcdefghi", "a" * 1000, None]
    expected = hash_values(pa.array(texts)).tolist()
    for kind in (pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary()):
        assert hash_values(pa.array(texts).cast(kind)).tolist() == expected
    views = pa.array(texts).cast(pa.binary()).cast(pa.binary_view())
    assert hash_values(views).tolist() == expected
    items = [[1, 2], None, [], [3]]
    expected = hash_values(pa.array(items)).tolist()
    for kind in (
        pa.list_view(pa.int64()),
        pa.large_list_view(pa.int64()),
        pa.large_list(pa.int64()),
    ):
        assert hash_values(pa.array(items, kind)).tolist() == expected


def test_bytes_under_null_slots_do_not_count() -> None:
    valid = pa.py_buffer(np.packbits([1, 0, 1, 0, 0, 0, 0, 0], bitorder="little"))
    for hidden in (0, 7):
        data = pa.py_buffer(np.array([1, hidden, 3], np.int64))
        array = pa.Array.from_buffers(pa.int64(), 3, [valid, data])
        assert hash_values(array).tolist() == hash_values(pa.array([1, None, 3])).tolist()
    offsets = pa.py_buffer(np.array([0, 1, 3, 4], np.int32))
    text = pa.Array.from_buffers(pa.string(), 3, [valid, offsets, pa.py_buffer(b"aXXb")])
    assert hash_values(text).tolist() == hash_values(pa.array(["a", None, "b"])).tolist()
    assert sizes_of(text) == sizes_of(pa.array(["a", None, "b"])) == [5, 4, 5]
    items = pa.array([1, 8, 9, 2])
    lists = pa.Array.from_buffers(pa.list_(pa.int64()), 3, [valid, offsets], children=[items])
    assert hash_values(lists).tolist() == hash_values(pa.array([[1], None, [2]])).tolist()
    assert sizes_of(lists) == [12, 4, 12]
    struct = pa.StructArray.from_buffers(
        pa.struct([("a", pa.string())]), 3, [valid], children=[pa.array(["x", "hidden", "z"])]
    )
    expected = pa.array([{"a": "x"}, None, {"a": "z"}])
    assert hash_values(struct).tolist() == hash_values(expected).tolist()
    assert sizes_of(struct) == sizes_of(expected)


def test_null_differs_from_empty_and_zero() -> None:
    hashes = [
        hash_values(pa.array([None, value], kind)).tolist()
        for kind, value in [(pa.int64(), 0), (pa.string(), ""), (pa.list_(pa.int8()), [])]
    ]
    assert all(null != other for null, other in hashes)
    nested = hash_values(pa.array([[None], [], None, [None, None]], pa.list_(pa.int8())))
    assert len(set(nested.tolist())) == 4


def test_floats_hash_by_their_bits() -> None:
    floats = pa.array([0.0, -0.0, float("nan"), float("nan")])
    zero, negative, one, other = hash_values(floats).tolist()
    assert zero != negative
    assert one == other


def test_rows_hash_by_the_order_of_columns_and_by_key() -> None:
    batch = pa.record_batch({"a": [1, 2, 2], "b": [2, 1, 1], "c": ["x", "y", "z"]})
    hashes = hash_rows(batch)
    assert len(set(hashes.tolist())) == 3
    by_key = hash_rows(batch, ["a", "b"]).tolist()
    assert by_key[0] != by_key[1] == by_key[2]
    assert hash_rows(batch.slice(1), ["a"]).tolist() == hash_rows(batch, ["a"]).tolist()[1:]


def test_hashes_are_the_same_in_every_version() -> None:
    batch = pa.record_batch(
        {
            "int": pa.array([1, None, -1], pa.int32()),
            "text": pa.array(["a", "hello world", None]),
            "list": pa.array([[1.5], [], [2.5, None]]),
            "struct": pa.array([{"x": True}, {"x": None}, None]),
            "decimal": pa.array([1, 2, 3]).cast(pa.decimal128(30, 2)),
        }
    )
    # Other hashes would cut published tables in other places, and upload them again.
    assert [f"{value:016x}" for value in hash_rows(batch).tolist()] == GOLDEN


GOLDEN = ["ba1029fd59afa599", "480f2df191b4e536", "6cb5ef32671544bb"]


def test_bits_of_hashes_are_balanced() -> None:
    for array in (
        pa.array(range(4096)),
        pa.array([f"{i}" for i in range(4096)]),
        pa.array([[i, 0] for i in range(4096)]),
        pa.array([i % 2 == 0 for i in range(4096)]),
    ):
        hashes = np.unique(hash_rows(pa.record_batch({"x": array, "i": range(4096)})))
        bits = np.unpackbits(hashes.view(np.uint8)).reshape(len(hashes), 64)
        assert len(hashes) == 4096
        assert abs(bits.mean(axis=0) - 0.5).max() < 0.05


def test_no_rows_and_unsupported_types() -> None:
    assert hash_rows(pa.record_batch({"x": pa.array([], pa.string())})).tolist() == []
    union = pa.UnionArray.from_dense(
        pa.array([0], pa.int8()), pa.array([0], pa.int32()), [pa.array([1])]
    )
    with pytest.raises(UnsupportedError, match="union"):
        hash_values(union)
    with pytest.raises(UnsupportedError, match="union"):
        sizes_of(union)
