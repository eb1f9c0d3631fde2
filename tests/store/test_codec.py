"""Codecs round-trip, are compatible with other programs, and refuse damaged bytes."""

import pickle
import threading
import zlib
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relive import errors
from relive.store.codec import MAX_BYTES, NAMES, Codec, train_dictionary

CODECS = [
    Codec("raw"),
    Codec("deflate", level=0),
    Codec("deflate"),
    Codec("zstd", level=-7),
    Codec("zstd"),
    Codec("zstd", level=19),
    Codec("lz4"),
]
PAYLOADS = st.one_of(
    st.binary(max_size=300),
    st.builds(lambda part, times: part * times, st.binary(max_size=40), st.integers(0, 2000)),
)


def sample(position: int) -> bytes:
    return b'{"step": %d, "action": %d, "done": false}' % (position, position * 7 % 5)


@pytest.fixture(scope="module")
def dictionary() -> bytes:
    return train_dictionary([sample(position) for position in range(2000)], size=4096)


@pytest.mark.parametrize("codec", CODECS, ids=repr)
@given(data=PAYLOADS)
def test_encode_decode_round_trip(codec: Codec, data: bytes) -> None:
    assert codec.decode(codec.encode(data), len(data)) == data


@pytest.mark.parametrize("codec", CODECS, ids=repr)
@given(records=st.lists(PAYLOADS, max_size=12), workers=st.sampled_from([None, 1, 2]))
def test_batch_decodes_records_in_order(
    codec: Codec, records: list[bytes], workers: int | None
) -> None:
    stored = codec.encode_batch(records, workers)
    assert stored == [codec.encode(data) for data in records]
    values, offsets = codec.decode_batch(stored, [len(data) for data in records], workers)
    assert values.dtype == np.uint8
    assert offsets.dtype == np.int64
    assert values.flags.writeable
    assert [values[a:b].tobytes() for a, b in pairwise(offsets)] == records
    assert len(offsets) == len(records) + 1


@given(
    codec=st.sampled_from(CODECS),
    stored=st.binary(max_size=200),
    length=st.one_of(st.integers(0, 300), st.integers(0, 2**64 - 1)),
)
def test_hostile_bytes_are_corrupt_or_too_large(codec: Codec, stored: bytes, length: int) -> None:
    try:
        data = codec.decode(stored, length)
    except errors.TooLargeError:
        assert length > MAX_BYTES
    except errors.CorruptError:
        assert length <= MAX_BYTES
    else:
        assert len(data) == length


@given(data=PAYLOADS, level=st.integers(0, 9))
def test_deflate_is_compatible_with_zlib(data: bytes, level: int) -> None:
    codec = Codec("deflate", level=level)
    assert zlib.decompress(codec.encode(data)) == data
    assert codec.decode(zlib.compress(data, level), len(data)) == data


@pytest.mark.parametrize(("ours", "theirs"), [("zstd", "zstd"), ("lz4", "lz4_raw")])
@given(data=PAYLOADS)
def test_zstd_and_lz4_are_compatible_with_arrow(ours: str, theirs: str, data: bytes) -> None:
    codec, arrow = Codec(ours), pa.Codec(theirs)
    assert arrow.decompress(codec.encode(data), len(data), asbytes=True) == data
    assert codec.decode(arrow.compress(data, asbytes=True), len(data)) == data


def test_names_match_their_ids() -> None:
    assert NAMES == ("raw", "deflate", "zstd", "lz4")
    assert [Codec(name).id for name in NAMES] == [0, 1, 2, 3]
    assert [Codec(name).name for name in ("none", "flate")] == ["raw", "deflate"]


@pytest.mark.parametrize("name", ["", "zlib", "ZSTD", "gzip", "lz4\0"])
def test_unknown_name_error_lists_the_choices(name: str) -> None:
    with pytest.raises(errors.InvalidError, match=r"raw .*deflate .*zstd .*lz4"):
        Codec(name)


@pytest.mark.parametrize(
    ("name", "level"),
    [("raw", 1), ("lz4", 0), ("deflate", -1), ("deflate", 10), ("zstd", -8), ("zstd", 23)],
)
def test_level_out_of_range_raises(name: str, level: int) -> None:
    with pytest.raises(errors.InvalidError, match=str(level)):
        Codec(name, level)


def test_default_levels() -> None:
    assert [Codec(name).level for name in NAMES] == [None, 6, 3, None]


@pytest.mark.parametrize("name", NAMES)
def test_wrong_length_is_corrupt(name: str) -> None:
    codec = Codec(name)
    stored = codec.encode(b"abc" * 100)
    for length in (0, 299, 301, 10_000):
        with pytest.raises(errors.CorruptError, match=str(length)):
            codec.decode(stored, length)


@pytest.mark.parametrize("codec", CODECS, ids=repr)
def test_truncated_or_extended_record_is_corrupt(codec: Codec) -> None:
    data = sample(1) * 5
    stored = codec.encode(data)
    for end in range(len(stored)):
        with pytest.raises(errors.CorruptError):
            codec.decode(stored[:end], len(data))
    with pytest.raises(errors.CorruptError):
        codec.decode(stored + b"\0", len(data))


@pytest.mark.parametrize("name", NAMES)
def test_limit_applies_to_encode_and_decode(name: str) -> None:
    codec = Codec(name, max_bytes=100)
    with pytest.raises(errors.TooLargeError, match="limit of 100"):
        codec.encode(bytes(101))
    with pytest.raises(errors.TooLargeError, match="limit of 100"):
        codec.decode(Codec(name).encode(bytes(101)), 101)
    assert codec.decode(codec.encode(bytes(100)), 100) == bytes(100)


@pytest.mark.parametrize("workers", [1, 2])
def test_first_damaged_record_of_a_batch_is_named(workers: int) -> None:
    codec = Codec("deflate")
    stored = [codec.encode(bytes(50_000))] * 20
    stored[7] = stored[12] = stored[0][:-1]
    with pytest.raises(errors.CorruptError, match="record 7 "):
        codec.decode_batch(stored, [50_000] * 20, workers)
    with pytest.raises(errors.TooLargeError, match="record 1 "):
        Codec("zstd", max_bytes=2).encode_batch([b"ab", b"abc"], workers)


def test_only_buffers_are_accepted() -> None:
    codec = Codec("zstd")
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    for data, expected in (
        (bytearray(b"abc"), b"abc"),
        (memoryview(b"abcdef")[::2], b"ace"),
        (array, array.tobytes()),
        (array[:, ::2], array[:, ::2].tobytes()),
    ):
        assert codec.decode(bytearray(codec.encode(data)), len(expected)) == expected
    for wrong in ("abc", 7, None, [1, 2]):
        with pytest.raises(errors.InvalidTypeError, match="must be bytes"):
            codec.encode(wrong)  # type: ignore[arg-type]


def test_lengths_are_checked() -> None:
    codec = Codec("raw")
    values, offsets = codec.decode_batch([], [])
    assert (values.tolist(), offsets.tolist()) == ([], [0])
    values, _ = codec.decode_batch([b"ab"], np.array([2], dtype=np.uint16))
    assert values.tobytes() == b"ab"
    with pytest.raises(errors.InvalidError, match="2 lengths for 1 records"):
        codec.decode_batch([b"ab"], [2, 2])
    with pytest.raises(errors.InvalidError, match="-1"):
        codec.decode_batch([b"ab"], [-1])
    with pytest.raises(errors.InvalidError, match="shape"):
        codec.decode_batch([b"ab"], [[2]])
    for wrong in ([2.0], [True], ["2"]):
        with pytest.raises(errors.InvalidTypeError):
            codec.decode_batch([b"ab"], wrong)
    with pytest.raises(errors.InvalidTypeError):
        codec.decode(b"ab", 2.0)  # type: ignore[arg-type]
    with pytest.raises(errors.InvalidError, match="-1"):
        codec.decode(b"ab", -1)
    with pytest.raises(errors.InvalidError, match="workers"):
        codec.encode_batch([b"ab"], 0)


def test_dictionary_shrinks_small_records_and_is_required_to_decode(dictionary: bytes) -> None:
    codec, plain = Codec("zstd", dictionary=dictionary), Codec("zstd")
    data = sample(7777)
    stored = codec.encode(data)
    assert len(stored) * 2 < len(plain.encode(data))
    assert codec.decode(stored, len(data)) == data
    assert codec.decode(plain.encode(data), len(data)) == data
    with pytest.raises(errors.CorruptError, match="compressed with dictionary id"):
        plain.decode(stored, len(data))
    values, _ = codec.decode_batch([stored] * 3, [len(data)] * 3)
    assert values.tobytes() == data * 3


def test_training_errors(dictionary: bytes) -> None:
    samples = [sample(position) for position in range(2000)]
    assert train_dictionary(samples, size=4096) == dictionary
    with pytest.raises(errors.InvalidError, match="at least 8 samples, got 3"):
        train_dictionary(samples[:3])
    with pytest.raises(errors.InvalidError, match="pass more"):
        train_dictionary([b""] * 100)
    with pytest.raises(errors.InvalidError, match="256"):
        train_dictionary(samples, size=10)


def test_dictionary_must_be_valid_and_is_only_for_zstd(dictionary: bytes) -> None:
    with pytest.raises(errors.CorruptError, match="dictionary"):
        Codec("zstd", dictionary=b"not a dictionary, only some bytes")
    with pytest.raises(errors.InvalidError, match="lz4"):
        Codec("lz4", dictionary=dictionary)


def test_pickle_equality_and_repr(dictionary: bytes) -> None:
    codec = Codec("zstd", 9, dictionary, max_bytes=1 << 20)
    again = pickle.loads(pickle.dumps(codec))  # noqa: S301 - our own data
    assert again == codec
    assert hash(again) == hash(codec)
    assert again != Codec("zstd", 9, dictionary)
    assert codec != "zstd"
    assert repr(codec) == f"Codec('zstd', level=9, dictionary=<{len(dictionary)} bytes>)"
    assert repr(Codec("none")) == "Codec('raw')"


def test_codec_is_shared_by_threads(dictionary: bytes) -> None:
    codec = Codec("zstd", dictionary=dictionary)
    records = [sample(position) * (position % 50) for position in range(300)]
    lengths = [len(data) for data in records]
    wrong: list[int] = []

    def work(number: int) -> None:
        for _ in range(5):
            values, _ = codec.decode_batch(codec.encode_batch(records, 2), lengths, 2)
            if values.tobytes() != b"".join(records):
                wrong.append(number)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in workers:
        thread.start()
    for thread in workers:
        thread.join()
    assert not wrong
