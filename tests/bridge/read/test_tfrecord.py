"""TFRecord files and the `tf.train.Example` messages in them, read without TensorFlow."""

import gzip
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relive._native import crc32c as native_crc32c
from relive.bridge import convert
from relive.bridge.read.tf_example import parse_example
from relive.bridge.read.tfrecord import read_tfrecords
from relive.errors import CorruptError, InvalidError, TooLargeError, UnsupportedError
from relive.model.schema import Field
from tests.bridge.sample_files import contents, crc32c, example, message, plain, tfrecord

ROWS: list[dict[str, Any]] = [
    {
        "image/encoded": [b"\xff\xd8" + bytes([number])],
        "label": [number - 1],
        "box": [0.5, 1.0, 2.0, float(number)],
        "tokens": list(range(number)),
    }
    for number in range(5)
]


def write(path: Path, rows: Sequence[dict[str, Any]] = ROWS) -> Path:
    path.write_bytes(tfrecord(example(row) for row in rows))
    return path


def test_features_become_fields(tmp_path: Path) -> None:
    made = convert(write(tmp_path / "a.tfrecord"), tmp_path / "store")
    assert made.fields == {
        "box": Field(np.float32, (4,)),
        "image/encoded": Field("bytes"),
        "label": Field(np.int64),
        "tokens": Field(np.int64, ragged=True),
    }
    assert contents(made.path) == [
        {
            "box": row["box"],
            "image/encoded": row["image/encoded"][0],
            "label": row["label"][0],
            "tokens": row["tokens"],
        }
        for row in ROWS
    ]


@pytest.mark.parametrize("name", ["a.tfrecord", "a.tfrecord-00000-of-00002", "a.bin"])
def test_files_are_detected_by_name_or_first_checksum(tmp_path: Path, name: str) -> None:
    assert convert(write(tmp_path / name), tmp_path / "store").rows == 5


def test_shards_and_compressed_files(tmp_path: Path) -> None:
    data = write(tmp_path / "0.tfrecord").read_bytes()
    (tmp_path / "1.tfrecord.gz").write_bytes(gzip.compress(data))
    made = convert(tmp_path / "*.tfrecord*", tmp_path / "store", batch=3)
    assert [row["label"] for row in contents(made.path)] == [-1, 0, 1, 2, 3] * 2


def test_records_as_bytes_and_through_a_function(tmp_path: Path) -> None:
    (tmp_path / "a.tfrecord").write_bytes(tfrecord([b"1 one", b"", b"3 three"]))
    made = convert(tmp_path / "a.tfrecord", tmp_path / "bytes", decode="bytes")
    assert contents(made.path) == [{"record": b"1 one"}, {"record": b""}, {"record": b"3 three"}]
    made = convert(tmp_path / "a.tfrecord", tmp_path / "length", decode=len)
    assert contents(made.path) == [{"record": 5}, {"record": 0}, {"record": 7}]
    made = convert(
        tmp_path / "a.tfrecord",
        tmp_path / "rows",
        decode=lambda data: {"n": int(data[:1] or 0), "text": data[2:].decode()},
    )
    assert [row["text"] for row in contents(made.path)] == ["one", "", "three"]


def test_feature_that_changes_its_length_is_named(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"x": [1.0, 2.0]}] * 6 + [{"x": [1.0, 2.0, 3.0]}]
    path = write(tmp_path / "a.tfrecord", rows)
    with pytest.raises(InvalidError, match=r"row 6: field 'x' has the shape \(3,\)") as caught:
        convert(path, tmp_path / "store", sample=4)
    assert (
        caught.value.hint
        == "use a type that can hold all rows: fields={'x': Field('float32', ragged=True)}"
    )
    made = convert(path, tmp_path / "store", sample=4, fields={"x": Field("float32", ragged=True)})
    assert contents(made.path)[6] == {"x": [1.0, 2.0, 3.0]}
    rows = [{"x": [1]}] * 6 + [{"x": [1], "y": [2]}]
    with pytest.raises(InvalidError, match="row 6: field 'y' does not occur in the first rows"):
        convert(write(tmp_path / "b.tfrecord", rows), tmp_path / "other", sample=4)


def test_absent_features_are_missing_values(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"x": [1], "y": [b"a"]}, {"x": [2], "y": None}, {"y": [b"c"]}]
    made = convert(write(tmp_path / "a.tfrecord", rows), tmp_path / "store")
    wanted = [{"x": 1, "y": b"a"}, {"x": 2, "y": None}, {"x": None, "y": b"c"}]
    assert contents(made.path) == wanted


def test_truncated_file_error_names_the_position(tmp_path: Path) -> None:
    whole = write(tmp_path / "whole").read_bytes()
    starts = [at for _, at in read_tfrecords(str(tmp_path / "whole"))]
    path = tmp_path / "a.tfrecord"
    for cut in range(1, len(whole)):
        path.write_bytes(whole[:cut])
        begun = max(at for at in starts if at <= cut)
        if cut == begun:
            assert len(list(read_tfrecords(str(path)))) == starts.index(begun)
            continue
        with pytest.raises(CorruptError) as caught:
            list(read_tfrecords(str(path)))
        assert f"`{path}` at byte {begun}: " in caught.value.message


def test_every_flipped_bit_is_found(tmp_path: Path) -> None:
    whole = write(tmp_path / "whole", ROWS[:2]).read_bytes()
    path = tmp_path / "a.tfrecord"
    for at in range(len(whole)):
        broken = bytearray(whole)
        broken[at] ^= 1 << at % 8
        path.write_bytes(broken)
        with pytest.raises(CorruptError, match=r"checksum|ends in"):
            convert(path, tmp_path / "store", kind="tfrecord", decode="bytes")


def test_truncated_gzip_file_raises(tmp_path: Path) -> None:
    whole = gzip.compress(write(tmp_path / "whole", ROWS[:2]).read_bytes())
    path = tmp_path / "a.tfrecord.gz"
    for cut in range(1, len(whole)):
        path.write_bytes(whole[:cut])
        with pytest.raises(CorruptError, match=r"a\.tfrecord\.gz"):
            list(read_tfrecords(str(path)))


def test_huge_length_allocates_no_memory(tmp_path: Path) -> None:
    head = struct.pack("<Q", 1 << 40)
    crc = crc32c(head)
    masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    frame = head + struct.pack("<I", masked)
    path = tmp_path / "a.tfrecord"
    path.write_bytes(frame)
    with pytest.raises(CorruptError, match="at byte 0: the file ends inside a record"):
        list(read_tfrecords(str(path)))
    path.write_bytes(gzip.compress(frame))
    with pytest.raises(TooLargeError, match="of 1099511627776 bytes"):
        list(read_tfrecords(str(path)))


@given(st.binary(max_size=300))
def test_checksum_matches_the_reference(data: bytes) -> None:
    assert native_crc32c(data) == crc32c(data)


NAMES = st.text(min_size=1, max_size=8)
FEATURES = st.one_of(
    st.none(),
    st.lists(st.binary(max_size=20), min_size=1, max_size=1),
    st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=5),
    st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=5),
)


@given(st.dictionaries(NAMES, FEATURES, max_size=5), st.booleans())
def test_examples_round_trip(features: dict[str, Any], packed: bool) -> None:  # noqa: FBT001
    found = parse_example(example(features, packed=packed))
    assert list(found) == sorted(features)
    for name, values in features.items():
        wanted = values[0] if values and isinstance(values[0], bytes) else values
        assert plain(found[name]) == wanted


@given(st.binary(max_size=200))
@settings(max_examples=300)
def test_any_bytes_are_an_example_or_an_error(data: bytes) -> None:
    try:
        parse_example(data, "`x`")
    except CorruptError as error:
        assert error.message.startswith("`x` is not a valid tf.train.Example: ")  # noqa: PT017 - some bytes are a valid example
        assert "(at byte " in error.message  # noqa: PT017 - as above
    except UnsupportedError:
        pass


@given(st.data())
def test_example_with_a_changed_byte_parses_or_raises(data: st.DataObject) -> None:
    whole = example(ROWS[3])
    at = data.draw(st.integers(0, len(whole) - 1))
    value = data.draw(st.integers(0, 255))
    changed = whole[:at] + bytes([value]) + whole[at + 1 :]
    for broken in (changed, whole[:at]):
        try:
            parse_example(broken)
        except (CorruptError, UnsupportedError):
            continue


def test_several_texts_are_a_list_and_other_bytes_raise() -> None:
    assert parse_example(example({"x": [b"a", b"b"]})) == {"x": ["a", "b"]}
    with pytest.raises(UnsupportedError, match="a list of byte strings"):
        parse_example(example({"x": [b"\xff", b"b"]}))


def test_bytes_that_are_not_an_example_raise() -> None:
    with pytest.raises(UnsupportedError, match="SequenceExample"):
        parse_example(example({}) + message(2, b""))
    with pytest.raises(
        CorruptError, match=r"`x` is not a valid tf\.train\.Example: .* wire type 7 \(at byte 0\)"
    ):
        parse_example(b"\x0f", "`x`")
    with pytest.raises(CorruptError, match="an integer has more than 10 bytes"):
        parse_example(b"\xff" * 11)
    with pytest.raises(CorruptError, match="number 0"):
        parse_example(b"\x02\x00")
    with pytest.raises(CorruptError, match="longer than its message"):
        parse_example(b"\x0a\x05")
    assert parse_example(b"") == {}
    assert parse_example(message(9, b"unknown") + example({"x": [1]})).keys() == {"x"}
