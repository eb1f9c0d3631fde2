"""Remote files: few requests, and exactly the requested bytes."""

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relive import errors
from relive.store.paths import is_remote, local_path
from relive.store.remote.connection import public_name
from relive.store.remote.file import HEAD_BYTES, TAIL_BYTES, RemoteFile
from relive.store.remote.ranges import GAP_BYTES, MAX_REQUEST_BYTES, cut, join
from tests.servers import Gate, Nginx, serving

pytest.importorskip("obstore")

DATA = np.random.default_rng(7).bytes(3_000_000)
MIDDLE = (1_000_000, 1_000_100)


@pytest.fixture
def served(nginx: Nginx) -> Nginx:
    for name, data in {"file": DATA, "small": DATA[:500], "empty": b"", "a b%é+": DATA}.items():
        (nginx.files / name).write_bytes(data)
    return nginx


@pytest.mark.parametrize(
    "uri",
    ["http://a/b", "HTTPS://a/b", "s3://a/b", "gs://a/b", "az://a/b", "abfss://a@b/c", "x://"],
)
def test_uri_with_a_scheme_is_remote(uri: str) -> None:
    assert is_remote(uri)


@pytest.mark.parametrize(
    "uri", ["a/b", "/a", "file:///a", "FILE:///a", "s3:a", "://", Path("a"), 7]
)
def test_paths_and_file_uris_are_not_remote(uri: object) -> None:
    assert not is_remote(uri)


def test_file_uri_becomes_a_path() -> None:
    assert local_path("file:///a%20b/c") == Path("/a b/c")
    assert local_path("file://localhost/a") == Path("/a")
    assert local_path("a%20b") == Path("a%20b")
    assert local_path(Path("a")) == Path("a")
    with pytest.raises(errors.UnsupportedError, match="another machine"):
        local_path("file://far/a")


def test_unknown_scheme_is_named() -> None:
    with pytest.raises(errors.UnsupportedError, match=r"(?s)`ftp://here/file`.*http, https, s3"):
        RemoteFile.open("ftp://me:pass@here/file")


def test_without_obstore_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(errors.MissingExtraError) as caught:
        RemoteFile.open("http://127.0.0.1:1/file")
    assert caught.value.hint == "pip install 'relive[remote]'"


def test_public_name_removes_only_credentials() -> None:
    assert public_name("s3://bucket/a?b#c@d") == "s3://bucket/a?b#c@d"
    assert public_name("abfss://box@account/a?sig=x") == "abfss://box@account/a"
    assert public_name("https://me:x@host:1/a@b?c=d") == "https://host:1/a@b"


def test_open_sends_a_head_and_a_tail_request(served: Nginx) -> None:
    file = RemoteFile.open(f"{served.url}/file")
    asked = {request.range: (request.status, request.sent) for request in served.log()}
    assert asked == {
        f"bytes=0-{HEAD_BYTES - 1}": (206, HEAD_BYTES),
        f"bytes=-{TAIL_BYTES}": (206, TAIL_BYTES),
    }
    assert file.size == len(DATA)
    assert file.name == f"{served.url}/file"
    assert repr(file) == f"RemoteFile('{served.url}/file', 3000000 bytes)"


def test_head_and_tail_requests_run_concurrently(served: Nginx) -> None:
    file = RemoteFile.open(f"{served.url}/gated/file")
    assert served.gate.waves == [2]
    file.read_ranges([MIDDLE, (2_000_000, 2_000_001), (70_000, 80_000)])
    assert served.gate.waves == [2, 3]


def test_cached_bytes_need_no_request(served: Nginx) -> None:
    file = RemoteFile.open(f"{served.url}/file")
    served.log()
    ends = [(0, 28), (HEAD_BYTES - 1, HEAD_BYTES), (len(DATA) - TAIL_BYTES, len(DATA)), (5, 5)]
    assert file.read_ranges(ends) == [DATA[start:stop] for start, stop in ends]
    assert file.read_ranges([]) == []
    assert served.log() == []
    across = [(HEAD_BYTES - 10, HEAD_BYTES + 10)]
    assert file.read_ranges(across) == [DATA[HEAD_BYTES - 10 : HEAD_BYTES + 10]]
    assert [request.sent for request in served.log()] == [10]


def test_close_ranges_share_a_request_and_distant_ones_do_not(served: Nginx) -> None:
    file = RemoteFile.open(f"{served.url}/file")
    served.log()
    ranges = [(1_000_000, 1_000_010), (1_000_500, 1_001_000), (2_000_000, 2_000_010), MIDDLE]
    assert file.read_ranges(ranges) == [DATA[start:stop] for start, stop in ranges]
    sent = {request.range: request.sent for request in served.log()}
    assert sent == {"bytes=1000000-1000999": 1000, "bytes=2000000-2000009": 10}


@pytest.mark.parametrize("name", ["small", "empty", "a b%é+", "a%20b%25%C3%A9+"])
def test_files_of_any_size_and_name(served: Nginx, name: str) -> None:
    if name == "a b%é+":
        name = "a b%25é+"  # URLs percent-encode the name
    file = RemoteFile.open(f"{served.url}/{name}")
    data = {"small": DATA[:500], "empty": b""}.get(name, DATA)
    assert file.size == len(data)
    assert file.read_ranges([(0, len(data))]) == [data]


@pytest.mark.parametrize("size", [1, HEAD_BYTES - 1, HEAD_BYTES, HEAD_BYTES + 1, TAIL_BYTES + 7])
def test_overlapping_head_and_tail(size: int) -> None:
    with serving(DATA[:size]) as (_, url):
        file = RemoteFile.open(url)
        assert file.read_ranges([(0, size), (size - 1, size)]) == [
            DATA[:size],
            DATA[size - 1 : size],
        ]


@pytest.mark.parametrize("bad", [(-1, 5), (5, 4), (0, 3_000_001), (3_000_001, 3_000_001)])
def test_ranges_beyond_the_file_raise(bad: tuple[int, int]) -> None:
    with serving(DATA) as (server, url):
        file = RemoteFile.open(url)
        count = len(server.log)
        with pytest.raises(errors.OutOfRangeError, match=r"out of range: .* 3000000 bytes"):
            file.read_ranges([MIDDLE, bad])
        assert len(server.log) == count


@given(
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 60)), max_size=12), st.integers(0, 90)
)
def test_merged_and_split_ranges_cover_the_request(pairs: list[tuple[int, int]], gap: int) -> None:
    ranges = [(start, start + length) for start, length in pairs]
    joined = join(ranges, gap)
    parts = cut(joined, 32)
    for start, stop in ranges:
        assert {*range(start, stop)} <= {at for part in parts for at in range(*part)}
    for before, after in pairwise(joined):
        assert after[0] - before[1] > gap
    assert all(0 < stop - start <= 32 for start, stop in parts)


def test_large_ranges_are_fetched_in_concurrent_parts() -> None:
    data = bytes(MAX_REQUEST_BYTES) + DATA + bytes(MAX_REQUEST_BYTES)
    with serving(data) as (server, url):
        file = RemoteFile.open(url)
        server.gate = Gate()
        assert file.read_ranges([(0, len(data))]) == [data]
        assert server.gate.waves == [3]


@pytest.fixture(scope="module")
def shared() -> Iterator[RemoteFile]:
    with serving(DATA) as (_, url):
        yield RemoteFile.open(url)


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(0, len(DATA)), st.integers(0, len(DATA))), max_size=6))
def test_any_ranges_match_the_file(shared: RemoteFile, ranges: list[tuple[int, int]]) -> None:
    ranges = [(min(pair), max(pair)) for pair in ranges]
    assert shared.read_ranges(ranges) == [DATA[start:stop] for start, stop in ranges]


def test_threads_share_a_file(served: Nginx) -> None:
    file = RemoteFile.open(f"{served.url}/file")
    ranges = [(start, start + 1000) for start in range(0, 2_900_000, 29_000)]
    with ThreadPoolExecutor(8) as pool:
        found = [*pool.map(lambda one: file.read_ranges([one])[0], ranges)]
    assert found == [DATA[start:stop] for start, stop in ranges]


def test_gap_is_smaller_than_a_request() -> None:
    assert GAP_BYTES < MAX_REQUEST_BYTES
