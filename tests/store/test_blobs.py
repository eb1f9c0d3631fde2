"""Blobs: any range of many blobs in one round trip, and never a wrong byte."""

import hashlib
import pickle
import secrets
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relive import errors
from relive.store import blobs as module
from relive.store import leaves
from relive.store.blobs import LEAF_BYTES, BlobFile, BlobRef, Blobs, blob_key, describe_bytes
from relive.store.remote.ranges import GAP_BYTES, MAX_REQUEST_BYTES
from relive.store.roots import Root, open_root
from tests.servers import Gate, Proxy, SeaweedFS

DATA = np.random.default_rng(9).bytes(20 * LEAF_BYTES + 1234)


def publish(root: Root, data: bytes) -> BlobRef:
    """Store a blob and its leaf table."""
    ref, table = describe_bytes(data)
    root.put(blob_key(ref.digest), data)
    if ref.leaves is not None:
        root.put(blob_key(ref.leaves), table)
    return ref


def memory() -> Root:
    return open_root(f"memory://{secrets.token_hex(8)}")


@pytest.fixture(params=["memory", "directory", "s3"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Root:
    """Return an empty root."""
    if request.param == "memory":
        return memory()
    if request.param == "directory":
        return open_root(tmp_path / "root")
    request.getfixturevalue("needs")("seaweedfs", "obstore")
    seaweed = request.getfixturevalue("seaweed")
    return open_root(request.getfixturevalue("bucket"), **seaweed.options())


def test_ranges_of_many_blobs(root: Root) -> None:
    contents = [DATA, DATA[:100], b"", DATA[: LEAF_BYTES + 1], DATA[:LEAF_BYTES], DATA[5:]]
    refs = [publish(root, data) for data in contents]
    reads = [
        (ref, start, stop)
        for ref in refs
        for start, stop in (
            (0, ref.nbytes),
            (ref.nbytes // 2, ref.nbytes),
            (ref.nbytes // 3, ref.nbytes // 2),
            (0, 0),
            (ref.nbytes, ref.nbytes),
            (max(0, ref.nbytes - 1), ref.nbytes),
        )
    ]
    wanted = [
        data[start:stop]
        for data, (_, start, stop) in zip(
            [data for data in contents for _ in range(6)], reads, strict=True
        )
    ]
    blobs = Blobs(root)
    for gap in (None, 0):
        assert [bytes(each) for each in blobs.read_many(reads, gap=gap)] == wanted
    assert blobs.read_many([]) == []
    assert [blobs.read(ref) for ref in refs] == contents
    assert blobs.stats.requests > 0
    assert blobs.stats.nbytes > len(DATA)


POSITIONS = st.tuples(st.integers(0, len(DATA)), st.integers(0, len(DATA)))


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> tuple[BlobRef, list[Blobs]]:
    """Return a blob in memory and in a directory."""
    roots = [memory(), open_root(tmp_path_factory.mktemp("root"))]
    refs = {publish(root, DATA) for root in roots}
    return refs.pop(), [Blobs(root) for root in roots]


@given(st.lists(POSITIONS, max_size=6))
def test_any_ranges_match_the_blob(
    stored: tuple[BlobRef, list[Blobs]], pairs: list[tuple[int, int]]
) -> None:
    ref, several = stored
    ranges = [(min(pair), max(pair)) for pair in pairs]
    for blobs in (*several, *(Blobs(each.root) for each in several)):
        found = blobs.read_many([(ref, start, stop) for start, stop in ranges])
        assert [bytes(each) for each in found] == [DATA[start:stop] for start, stop in ranges]


@pytest.mark.parametrize("bad", [(-1, 5), (5, 4), (0, len(DATA) + 1)])
def test_ranges_beyond_the_blob_raise(bad: tuple[int, int]) -> None:
    root = memory()
    ref = publish(root, DATA)
    with pytest.raises(errors.OutOfRangeError, match=f"blob `{ref.digest}` has {len(DATA)} bytes"):
        Blobs(root).read_many([(ref, *bad)])


def changed(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


@pytest.mark.parametrize("where", ["memory", "directory"])
@settings(max_examples=60)
@given(data=st.data())
def test_a_changed_byte_of_a_blob_is_detected(
    where: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = memory() if where == "memory" else open_root(tmp_path_factory.mktemp("root"))
    size = data.draw(st.sampled_from([1, 100, LEAF_BYTES, LEAF_BYTES + 1, 5 * LEAF_BYTES + 9]))
    ref = publish(root, DATA[:size])
    at = data.draw(st.integers(0, size - 1))
    root.put(blob_key(ref.digest), changed(DATA[:size], at))
    start = data.draw(st.integers(0, at))
    stop = data.draw(st.integers(at + 1, size))
    message = f"{blob_key(ref.digest)}` is damaged: bytes {at // LEAF_BYTES * LEAF_BYTES} to"
    with pytest.raises(errors.CorruptError, match=message):
        Blobs(root).read_many([(ref, start, stop)])
    with pytest.raises(errors.CorruptError, match="is damaged"):
        Blobs(root).read(ref)
    # Leaves that are intact can be read.
    leaf = at // LEAF_BYTES * LEAF_BYTES
    if leaf:
        assert bytes(Blobs(root).read_many([(ref, 0, leaf)])[0]) == DATA[:leaf]


def test_every_changed_byte_of_a_leaf_table_is_detected() -> None:
    root = memory()
    ref = publish(root, DATA)
    assert ref.leaves is not None
    table = root.get(blob_key(ref.leaves)).data
    for at in range(len(table)):
        root.put(blob_key(ref.leaves), changed(table, at))
        with pytest.raises(errors.CorruptError, match=f"{ref.leaves}` is damaged"):
            Blobs(root).read_many([(ref, 7, 9)])


def test_blobs_and_tables_that_are_short_or_missing(root: Root) -> None:
    ref = publish(root, DATA)
    assert ref.leaves is not None
    table = root.get(blob_key(ref.leaves)).data
    read = (ref, len(DATA) - 5, len(DATA))
    root.put(blob_key(ref.digest), DATA[:-3])
    with pytest.raises(errors.CorruptError, match=f"{ref.digest}` is too short"):
        Blobs(root).read_many([read])
    with pytest.raises(errors.CorruptError, match="too short"):
        Blobs(root).read(ref)
    root.put(blob_key(ref.digest), DATA)
    root.put(blob_key(ref.leaves), table[:-1])
    with pytest.raises(errors.CorruptError, match=f"{ref.leaves}` is too short"):
        Blobs(root).read_many([read])
    root.delete([blob_key(ref.leaves)])
    with pytest.raises(errors.NotFoundError, match=ref.leaves):
        Blobs(root).read_many([read])
    assert Blobs(root).read(ref) == DATA
    root.delete([blob_key(ref.digest)])
    for blobs in (Blobs(root),):
        with pytest.raises(errors.NotFoundError, match=ref.digest):
            blobs.read(ref)


def test_contradicting_descriptions_raise() -> None:
    root = memory()
    ref = publish(root, DATA)
    for other in (ref._replace(nbytes=5), ref._replace(leaves=None), ref._replace(leaves="0" * 64)):
        with pytest.raises(errors.CorruptError, match="two sizes or two leaf tables"):
            Blobs(root).read_many([(ref, 0, 1), (other, 0, 1)])
    twice = publish(root, DATA[: 3 * LEAF_BYTES])._replace(leaves=ref.leaves)
    with pytest.raises(errors.CorruptError, match=r"leaf table .* has two sizes"):
        Blobs(root).read_many([(ref, 0, 1), (twice, 0, 1)])
    # The table of another blob does not verify this one.
    with pytest.raises(errors.CorruptError, match="is damaged"):
        Blobs(root).read_many([(publish(root, DATA[::-1])._replace(leaves=ref.leaves), 5, 9)])


def test_large_blob_without_a_table_is_verified_as_a_whole(root: Root) -> None:
    data = DATA * (MAX_REQUEST_BYTES // len(DATA) + 2)
    ref = publish(root, data)._replace(leaves=None)
    assert bytes(Blobs(root).read_many([(ref, 10, 20)])[0]) == data[10:20]
    root.put(blob_key(ref.digest), changed(data, len(data) - 1))
    with pytest.raises(errors.CorruptError, match="is damaged"):
        Blobs(root).read_many([(ref, 10, 20)])


def test_table_in_several_responses(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    def cut(ranges: Any) -> list[tuple[int, int]]:
        most = LEAF_BYTES if any(stop - start > 5000 for start, stop in ranges) else 100
        return [(at, min(at + most, b)) for a, b in ranges for at in range(a, b, most)]

    monkeypatch.setattr("relive.store.roots.directory.cut", cut)
    monkeypatch.setattr("relive.store.remote.ranges.cut", cut)
    ref = publish(root, DATA)
    assert bytes(Blobs(root).read_many([(ref, 5, len(DATA))])[0]) == DATA[5:]
    root.put(blob_key(ref.digest), changed(DATA, 5))
    with pytest.raises(errors.CorruptError, match="is damaged: bytes 0 to 65536"):
        Blobs(root).read_many([(ref, 5, len(DATA))])


@pytest.mark.needs("seaweedfs", "obstore")
class TestObjectStore:
    """Requests are few, rounded to leaves, and checked on the threads that make them."""

    def test_unknown_tables_are_requested_with_the_data(
        self, bucket: str, seaweed: SeaweedFS, proxy: Proxy
    ) -> None:
        root = open_root(bucket, **seaweed.options(proxy.url))
        refs = [publish(root, DATA), publish(root, DATA[9:])]
        proxy.clear()
        proxy.gate = Gate()
        blobs = Blobs(root)
        reads = [(ref, 100, 200) for ref in refs]
        assert [bytes(each) for each in blobs.read_many(reads)] == [DATA[100:200], DATA[109:209]]
        assert proxy.gate.waves == [4]
        blobs.read_many(reads)
        assert proxy.gate.waves == [4, 2]
        assert blobs.stats[:2] == (6, 4 * LEAF_BYTES + sum(ref.table_nbytes for ref in refs))

    def test_requests_are_rounded_to_leaves(
        self, bucket: str, seaweed: SeaweedFS, proxy: Proxy
    ) -> None:
        root = open_root(bucket, **seaweed.options(proxy.url))
        ref = publish(root, DATA)
        blobs = Blobs(root)
        blobs.read_many([(ref, 0, 1)])
        reads = [(ref, LEAF_BYTES + 5, LEAF_BYTES + 9), (ref, 4 * LEAF_BYTES, 5 * LEAF_BYTES + 1)]
        for gap, ranges in (
            (None, {(1, 6)}),
            (0, {(1, 2), (4, 6)}),
            (2 * LEAF_BYTES - 1, {(1, 2), (4, 6)}),
            (2 * LEAF_BYTES, {(1, 6)}),
        ):
            proxy.clear()
            blobs.read_many(reads, gap=gap)
            assert {each.range for each in proxy.log} == {
                f"bytes={a * LEAF_BYTES}-{b * LEAF_BYTES - 1}" for a, b in ranges
            }
        assert GAP_BYTES > 2 * LEAF_BYTES

    def test_no_request_opens_a_file(self, bucket: str, seaweed: SeaweedFS, proxy: Proxy) -> None:
        root = open_root(bucket, **seaweed.options(proxy.url))
        ref = publish(root, DATA)
        proxy.clear()
        file = Blobs(root).file(ref, "relive://ws/name@1/main")
        assert (file.size, file.name, file.ref) == (len(DATA), "relive://ws/name@1/main", ref)
        assert proxy.count == 0

    @pytest.mark.parametrize("which", ["digest", "leaves"])
    def test_byte_changed_on_the_way_is_detected(
        self, bucket: str, seaweed: SeaweedFS, proxy: Proxy, which: str
    ) -> None:
        root = open_root(bucket, **seaweed.options(proxy.url))
        ref = publish(root, DATA)
        blobs = Blobs(root)
        size = len(DATA) if which == "digest" else ref.table_nbytes
        for at in (0, size // 2, size - 1):
            proxy.troubles.flip = (getattr(ref, which), at)
            with pytest.raises(errors.CorruptError, match=f"{getattr(ref, which)}` is damaged"):
                blobs.read_many([(ref, 0, len(DATA))])
        proxy.troubles.flip = None
        assert bytes(blobs.read_many([(ref, 0, len(DATA))])[0]) == DATA

    def test_faults_change_no_byte(self, bucket: str, seaweed: SeaweedFS, proxy: Proxy) -> None:
        client = {"timeout": "1s"}
        backoff = {"backoff": {"init_backoff": _s(0.01), "max_backoff": _s(0.05)}}
        options = seaweed.options(proxy.url) | {
            "client_options": client,
            "retry_config": backoff,
        }
        root = open_root(bucket, **options)
        ref = publish(root, DATA)
        proxy.troubles.busy, proxy.troubles.reset, proxy.troubles.silent = 0.1, 0.2, 0.02
        proxy.troubles.silent_s = 1.5
        blobs = Blobs(root)
        reads = [(ref, at, at + 9) for at in range(0, len(DATA), 2 * LEAF_BYTES)]
        for _ in range(6):
            found = blobs.read_many(reads, gap=0)
            assert [bytes(each) for each in found] == [DATA[a:b] for _, a, b in reads]
        statuses = {each.status for each in proxy.log}
        assert {0, 206, 503} <= statuses

    def test_hashing_runs_on_the_fetching_threads(
        self, bucket: str, seaweed: SeaweedFS, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        names = set()

        def find_damage(*arguments: Any) -> int | None:
            names.add(threading.current_thread().name)
            return real(*arguments)

        real = leaves.find_damage
        monkeypatch.setattr(module, "find_damage", find_damage)
        root = open_root(bucket, **seaweed.options())
        ref = publish(root, DATA)
        found = Blobs(root).read_many([(ref, 0, 1), (ref, len(DATA) - 1, len(DATA))])
        assert found == [DATA[:1], DATA[-1:]]
        assert names
        assert all(name.startswith("relive-fetch") for name in names)


def _s(seconds: float) -> Any:
    from datetime import timedelta

    return timedelta(seconds=seconds)


def test_directory_is_verified_at_first_touch(tmp_path: Path) -> None:
    root = open_root(tmp_path / "root")
    ref, small = publish(root, DATA), publish(root, b"small")
    blobs = Blobs(root)
    assert blobs.path(ref) == tmp_path / "root" / blob_key(ref.digest)
    assert Blobs(memory()).path(ref) is None
    blobs.read_many([(ref, 0, 5), (small, 1, 2)])
    before = blobs.stats
    blobs.read_many([(ref, 3, 9), (small, 0, 5)])
    assert blobs.stats.nbytes - before.nbytes == 11  # verified leaves are not read around
    root.put(blob_key(ref.digest), changed(DATA, 3 * LEAF_BYTES))
    assert bytes(blobs.read_many([(ref, 0, 3 * LEAF_BYTES)])[0]) == DATA[: 3 * LEAF_BYTES]
    with pytest.raises(errors.CorruptError, match=f"bytes {3 * LEAF_BYTES} to {4 * LEAF_BYTES}"):
        blobs.read_many([(ref, 0, len(DATA))])


def test_files_are_ranged_files(root: Root) -> None:
    ref = publish(root, DATA)
    file = Blobs(root).file(ref)
    assert file.name == root.uri(blob_key(ref.digest))
    ranges = [(5, 10), (0, len(DATA)), (3, 3)]
    wanted = [DATA[start:stop] for start, stop in ranges]
    assert file.read_ranges(ranges) == wanted
    assert {type(each) for each in file.read_ranges(ranges)} == {bytes}
    assert repr(file) == f"BlobFile('{file.name}', {len(DATA)} bytes)"
    copy: BlobFile = pickle.loads(pickle.dumps(file))  # noqa: S301 - our own data
    assert copy.read_ranges(ranges) == wanted
    again: Blobs = pickle.loads(pickle.dumps(Blobs(root)))  # noqa: S301 - our own data
    assert again.read(ref) == DATA
    assert root.name in repr(again)


def test_threads_share_blobs(root: Root) -> None:
    blobs = Blobs(root)
    refs = [publish(root, DATA[at:]) for at in range(6)]

    def read(at: int) -> bool:
        found = blobs.read_many([(refs[at % 6], at * 9000, at * 9000 + 70_000)])[0]
        return bytes(found) == DATA[at % 6 :][at * 9000 : at * 9000 + 70_000]

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(read, range(100)))


def test_memory_for_tables_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_TABLE_BYTES", 1000)
    root = memory()
    blobs = Blobs(root)
    refs = [publish(root, DATA[at:]) for at in range(4)]
    for ref in (*refs, *refs):
        assert bytes(blobs.read_many([(ref, 0, 3)])[0])
    assert blobs._tables._total <= 1000
    assert len(blobs._tables._values) == 1


def test_digest_of_a_table_is_that_of_its_object() -> None:
    ref, table = describe_bytes(DATA)
    assert ref.leaves == hashlib.sha256(table).hexdigest()
