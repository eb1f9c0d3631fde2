"""Publishing to a real object store: how many requests, and what survives interruptions."""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from relive.errors import AccessDeniedError, ConflictError, NotFoundError, UnfinishedError
from relive.publish.version.catalog import Catalog
from relive.publish.version.names import parse_id
from relive.publish.write.builder import DatasetBuilder
from relive.publish.write.parquet_files import FileIdentity
from relive.publish.write.shard_writer import ShardSizes
from relive.publish.write.upload import LocalBlob, upload
from relive.store.blobs import Blobs, blob_key, describe_file
from relive.store.remote import root_client
from relive.store.roots import open_root
from relive.store.roots.root import Root
from tests.publish.write.published_rows import read_table
from tests.servers import Gate, Proxy, SeaweedFS

pytestmark = pytest.mark.needs("obstore", "seaweedfs")
ID = "ws/name"


@pytest.fixture
def root(bucket: str, seaweed: SeaweedFS, proxy: Proxy) -> Root:
    """Return an empty root in an object store, behind the proxy."""
    return open_root(bucket, **seaweed.options(proxy.url))


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Return Parquet files, some with leaf tables."""
    draw = np.random.default_rng(1)
    paths = []
    for number in range(6):
        path = tmp_path / f"{number}.parquet"
        rows = 20_000 if number % 2 else 10
        pq.write_table(pa.table({"n": [number] * rows, "x": draw.random(rows)}), path)
        os.utime(path, (time.time() - 60,) * 2)
        paths.append(path)
    return paths


def publish(root: Root, data: Any, **options: Any) -> str:
    builder = DatasetBuilder(ID, root=root)
    builder.add_table("main", data)
    digest: str = builder.publish(**options)
    return digest


def test_what_was_published_is_read(root: Root, files: list[Path]) -> None:
    publish(root, files, tag="v1")
    expected = pa.concat_tables([pq.read_table(path) for path in files])
    assert read_table(root, ID).equals(expected)
    assert read_table(root, f"{ID}@v1").equals(expected)


def test_the_same_content_costs_at_most_four_requests_and_no_put(
    root: Root, proxy: Proxy, files: list[Path]
) -> None:
    first = publish(root, files, tag="v1")
    table = pa.concat_tables([pq.read_table(path) for path in files])
    for options in ({}, {"tag": "v1"}, {"set_latest": False}):
        proxy.clear()
        assert publish(root, files, **options) == first
        assert set(proxy.methods()) <= {"GET", "HEAD"}
        assert proxy.count <= 4
    second = publish(root, table)
    proxy.clear()
    assert publish(root, table) == second
    assert set(proxy.methods()) <= {"GET", "HEAD"}
    assert proxy.count <= 4
    proxy.clear()
    assert DatasetBuilder(ID, root=root, base="latest").publish() == second
    assert set(proxy.methods()) <= {"GET", "HEAD"}
    assert proxy.count <= 4


def test_inserting_rows_uploads_at_most_three_shards(root: Root, proxy: Proxy) -> None:
    # A thousandth of the real sizes: 60 rows are 6 % of a shard, as 1,000 rows of 1 KB would be.
    small = ShardSizes(8 << 10, 64 << 10, 8 << 10, 4 << 10, 1 << 10, 16)
    draw = np.random.default_rng(0)
    table = pa.table({"a": draw.integers(0, 1 << 60, 8000), "b": draw.random(8000)})
    first = DatasetBuilder(ID, root=root)
    first._sizes = small
    first.add_table("main", table)
    first.publish()
    uploads = []
    for number in range(20):
        place = int(draw.integers(8000))
        new = pa.table({"a": draw.integers(0, 1 << 60, 60), "b": draw.random(60)})
        middle, rest = ((new, place), (new, place + 60), (new.slice(0, 0), place + 60))[number % 3]
        changed = pa.concat_tables([table.slice(0, place), middle, table.slice(rest)])
        builder = DatasetBuilder(ID, root=root, base="latest")
        builder._sizes = small
        builder.replace_table("main", changed)
        proxy.clear()
        builder.publish()
        assert builder.report is not None
        uploads.append(builder.report.blobs)
        blobs = {each.path for each in proxy.log if each.method == "PUT" and "/blobs/" in each.path}
        assert len(blobs) == builder.report.blobs
        table = changed
    assert statistics.median(uploads) <= 3


def test_uploads_are_parallel_and_questions_one_round_trip(
    root: Root, proxy: Proxy, files: list[Path]
) -> None:
    publish(root, files[:1])
    proxy.clear()
    proxy.gate = Gate()
    publish(root, files)
    # Latest; relive.json; the lease; what a gc announced; whether blobs exist; leaf tables; blobs;
    # then the commit one by one, the lease again after the manifest and at the end.
    assert len(proxy.gate.waves) <= 17
    uploads = [each for each in proxy.log if each.method == "PUT" and "/blobs/" in each.path]
    assert len(uploads) == 8


def test_readers_may_not_publish(
    bucket: str, seaweed: SeaweedFS, root: Root, files: list[Path]
) -> None:
    publish(root, files)
    reader = open_root(bucket, **seaweed.options(user="reader"))
    assert publish(reader, files) == publish(root, files)
    with pytest.raises(AccessDeniedError):
        publish(reader, files[:2])


def test_a_missing_bucket(seaweed: SeaweedFS, files: list[Path]) -> None:
    with pytest.raises(NotFoundError, match="bucket"):
        publish(open_root("s3://no-such-bucket/root", **seaweed.options()), files)


def test_faults_change_nothing(root: Root, proxy: Proxy, files: list[Path]) -> None:
    proxy.troubles.busy = proxy.troubles.reset = 0.05
    for count in range(1, 6):
        publish(root, files[:count])
    proxy.troubles.busy = proxy.troubles.reset = 0
    expected = pa.concat_tables([pq.read_table(path) for path in files[:5]])
    assert read_table(root, ID).equals(expected)
    assert len(Catalog(root).versions(parse_id(ID))) == 5


_CODE = """
import json, sys
from relive.publish.write.builder import DatasetBuilder
builder = DatasetBuilder("ws/name", root=sys.argv[1], **json.loads(sys.argv[2]))
builder.add_table("main", sys.argv[3:])
sys.stdin.readline()
builder.publish(workers=1)
"""


def test_a_killed_publisher_leaves_the_old_version_and_a_rerun_finishes(
    bucket: str,
    seaweed: SeaweedFS,
    proxy: Proxy,
    files: list[Path],
    started: Callable[[], "subprocess.Popen[str]"],
) -> None:
    direct = open_root(bucket, **seaweed.options())
    old = publish(direct, files[:1])
    killed = 0
    for number in (2, 5, 9, 13, 16):
        process = started()
        proxy.clear()
        proxy.kill_at(number, process.pid, answered=number % 2 == 0)
        process.communicate("\n")
        proxy.before = proxy.after = None
        pointer = Catalog(direct).pointer(parse_id(ID))
        assert pointer is not None
        killed += process.returncode != 0
        rows = read_table(direct, ID).num_rows
        assert rows == (10 if pointer.digest == old else 60_030)
    assert killed >= 3
    publish(direct, files)
    assert read_table(direct, ID).num_rows == 60_030


@pytest.fixture
def started(
    bucket: str, seaweed: SeaweedFS, proxy: Proxy, files: list[Path]
) -> Callable[[], "subprocess.Popen[str]"]:
    """Return a function that starts a publisher, which waits for a line of input."""

    def start() -> "subprocess.Popen[str]":
        options = json.dumps(seaweed.options(proxy.url))
        return subprocess.Popen(
            [sys.executable, "-c", _CODE, bucket, options, *map(str, files)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


def test_two_publishers_at_once(root: Root, files: list[Path]) -> None:
    builders = [DatasetBuilder(ID, root=root) for _ in range(2)]
    for builder, paths in zip(builders, (files[:2], files[:3]), strict=True):
        builder.add_table("main", paths)
    first = builders[0].publish()
    stale = DatasetBuilder(ID, root=root, base="latest")
    stale.append_table("main", files[3])
    second = builders[1].publish()
    with pytest.raises(ConflictError) as caught:
        stale.publish()
    assert caught.value.current == second
    known = {each.digest for each in Catalog(root).versions(parse_id(ID))}
    assert known == {first, second, caught.value.digest}


def test_progress_within_a_large_file(
    root: Root, proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(root_client, "_PART_FROM_BYTES", 1 << 20)
    monkeypatch.setattr(root_client, "_PART_BYTES", 5 << 20)
    monkeypatch.setattr(root_client, "_PARTS_AT_ONCE", 1)
    path = tmp_path / "large"
    path.write_bytes(np.random.default_rng(0).bytes(21 << 20))
    ref, table = describe_file(path)
    blob = LocalBlob(ref, path, FileIdentity.of(path), table)
    proxy.troubles.delay_s = 0.3
    seen: list[int] = []
    upload(root, [blob], progress=lambda done, _: seen.append(done), workers=1)
    proxy.troubles.delay_s = 0
    assert seen == sorted(seen)
    assert (seen[0], seen[-1]) == (0, blob.nbytes)
    assert len(set(seen)) > 3
    assert Blobs(root).read(ref) == path.read_bytes()


def test_a_large_file_that_changes_is_never_visible(
    root: Root, proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(root_client, "_PART_FROM_BYTES", 1 << 20)
    monkeypatch.setattr(root_client, "_PART_BYTES", 5 << 20)
    path = tmp_path / "large"
    data = np.random.default_rng(0).bytes(12 << 20)
    path.write_bytes(data)
    ref, table = describe_file(path)
    blob = LocalBlob(ref, path, FileIdentity.of(path), table)
    key, put_file = blob_key(ref.digest), type(root).put_file

    def after_a_change(*arguments: Any) -> None:
        path.write_bytes(data[:-1] + b"?")
        put_file(*arguments)

    monkeypatch.setattr(type(root), "put_file", after_a_change)
    for kept in (None, data):
        if kept is not None:
            root.put(key, kept)
        os.utime(path, ns=(blob.identity.mtime_ns,) * 2)
        blob = blob._replace(identity=FileIdentity.of(path))
        proxy.clear()
        with pytest.raises(UnfinishedError, match="changed while it was being published"):
            upload(root, [blob], progress=None, workers=1)
        # The parts that were sent are not completed, but deleted.
        of_blob = [each.method for each in proxy.log if key in each.path]
        assert of_blob.count("POST") == of_blob.count("DELETE") == 1
        there = root.get_many([key])[0]
        assert (there and there.data) == kept
