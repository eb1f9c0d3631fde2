"""`mirror` copies versions between roots and into tar files, verified, and continues."""

import pickle
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from relive.errors import (
    AlreadyExistsError,
    CorruptError,
    InvalidError,
    NotFoundError,
    ReadOnlyError,
)
from relive.publish import DatasetBuilder, collect_garbage, dataset, mirror, validate
from relive.publish.version.catalog import Catalog
from relive.publish.version.names import DatasetId
from relive.store.blobs import blob_key
from relive.store.roots import open_root
from relive.store.roots.root import Root
from relive.store.roots.tar import TarRoot
from tests.publish.version.example_versions import RecordedRoot
from tests.servers import Proxy, SeaweedFS

ID = DatasetId("lab", "arm")


def table(seed: int, rows: int = 12_000) -> pa.Table:
    return pa.table({"n": np.random.default_rng(seed).integers(0, 2**62, rows)})


@pytest.fixture
def source(tmp_path: Path) -> Root:
    """Return a root with a dataset of two tables, one of them with leaves."""
    root = open_root(tmp_path / "source")
    with DatasetBuilder(f"{ID}", root) as builder:
        builder.add_table("main", table(1))
        builder.add_table("small", pa.table({"y": [1, 2, 3]}))
        builder.publish(tag="v1", message="the first", author="us")
    return root


def check(root: Any, digest: str) -> None:
    opened = dataset(f"{ID}", root=root)
    assert opened.digest == digest
    assert opened.table().head(12_000).equals(table(1))
    assert opened.validate("full").ok
    assert opened.info["message"] == "the first"
    assert opened.tags == {"v1": digest}


def digest_of(root: Root) -> str:
    return dataset(f"{ID}", root=root).digest


def test_to_another_directory(source: Root, tmp_path: Path) -> None:
    seen: list[tuple[int, int | None]] = []
    report = mirror(
        f"{ID}@v1", root=source, to=tmp_path / "copy", progress=lambda *each: seen.append(each)
    )
    assert (report.blobs, report.copied, report.copied_bytes) == (3, 3, report.nbytes)
    assert seen[0] == (0, report.nbytes)
    assert seen[-1] == (report.nbytes, report.nbytes)
    check(tmp_path / "copy", digest_of(source))
    again = mirror(f"{ID}@v1", root=source, to=tmp_path / "copy")
    assert (again.copied, again.copied_bytes) == (0, 0)
    assert collect_garbage(tmp_path / "copy", grace_s=0).garbage == 0


def test_not_to_itself(source: Root, tmp_path: Path) -> None:
    with DatasetBuilder(f"{ID}", source) as builder:
        builder.add_table("main", table(2))
        digest = builder.publish()
    (tmp_path / "link").symlink_to(tmp_path / "source")
    for to in (source, tmp_path / "source", tmp_path / "link"):
        with pytest.raises(InvalidError, match="copied to itself") as caught:
            mirror(f"{ID}@v1", root=source, to=to)
        assert "relive rollback" in (caught.value.hint or "")
    assert digest_of(source) == digest
    assert mirror(f"{ID}@v1", root=source, to=source, target="me/arm").copied == 0
    memory = open_root("memory://not-to-itself")
    mirror(f"{ID}@v1", root=source, to=memory)
    with pytest.raises(InvalidError, match="copied to itself"):
        mirror(f"{ID}", root=memory, to=memory)


@pytest.mark.needs("obstore", "seaweedfs")
def test_to_a_server_and_back(
    source: Root, tmp_path: Path, bucket: str, seaweed: SeaweedFS
) -> None:
    mirror(f"{ID}@v1", root=source, to=bucket, to_options=seaweed.options())
    check(open_root(bucket, **seaweed.options()), digest_of(source))
    mirror(f"{ID}@v1", root=bucket, to=tmp_path / "back", **seaweed.options())
    check(tmp_path / "back", digest_of(source))


@pytest.mark.needs("obstore", "seaweedfs")
def test_faults_change_nothing(source: Root, bucket: str, seaweed: SeaweedFS, proxy: Proxy) -> None:
    proxy.troubles.busy = proxy.troubles.reset = 0.05
    mirror(f"{ID}@v1", root=source, to=bucket, to_options=seaweed.options(proxy.url))
    check(open_root(bucket, **seaweed.options()), digest_of(source))


def test_under_another_name_without_latest(source: Root, tmp_path: Path) -> None:
    mirror(f"{ID}", root=source, to=tmp_path / "copy", target="me/leg", tag="x", set_latest=False)
    assert dataset("me/leg@x", root=tmp_path / "copy").digest == digest_of(source)
    assert Catalog(open_root(tmp_path / "copy")).pointer(DatasetId("me", "leg")) is None


def test_interrupted_and_continued(source: Root, tmp_path: Path) -> None:
    class Stop(BaseException):
        pass

    target = open_root(tmp_path / "copy")
    stopped = 0
    for number in range(1, 40):
        count = 0

        def before(verb: str, _key: str, number: int = number) -> None:
            nonlocal count
            count += verb in {"put", "create", "replace"}
            if count == number:
                raise Stop

        try:
            mirror(f"{ID}@v1", root=source, to=RecordedRoot(target, before), workers=1)
        except Stop:
            stopped += 1
            continue
        break
    assert stopped > 5
    check(target, digest_of(source))


def test_damage_is_never_copied(source: Root, tmp_path: Path) -> None:
    (shard,) = dataset(f"{ID}", root=source).version.manifest.tables["main"].shards
    assert source.path is not None
    path = source.path / blob_key(shard.blob.digest)
    data = bytearray(path.read_bytes())
    data[70_000] ^= 1
    path.write_bytes(data)
    for options in ({"to": tmp_path / "copy"}, {"tar": tmp_path / "x.tar"}):
        with pytest.raises(CorruptError):
            mirror(f"{ID}@v1", root=source, **options)  # type: ignore[arg-type]
    target = open_root(tmp_path / "copy")
    assert not target.exists([blob_key(shard.blob.digest)])[0]
    assert Catalog(target).pointer(ID) is None
    assert not (tmp_path / "x.tar").exists()
    data[70_000] ^= 1
    path.write_bytes(data)
    for options in ({"to": tmp_path / "copy"}, {"tar": tmp_path / "x.tar"}):
        mirror(f"{ID}@v1", root=source, **options)  # type: ignore[arg-type]
    check(tmp_path / "copy", digest_of(source))
    check(tmp_path / "x.tar", digest_of(source))


def test_a_blob_of_another_size_is_replaced(source: Root, tmp_path: Path) -> None:
    target = open_root(tmp_path / "copy")
    (shard,) = dataset(f"{ID}", root=source).version.manifest.tables["small"].shards
    target.put(blob_key(shard.blob.digest), b"short")
    mirror(f"{ID}@v1", root=source, to=target)
    check(target, digest_of(source))


def test_tar(source: Root, tmp_path: Path) -> None:
    file = tmp_path / "arm.tar"
    report = mirror(f"{ID}@v1", root=source, tar=file)
    assert report.copied == 3
    digest = digest_of(source)
    check(file, digest)  # as it is
    check(pickle.loads(pickle.dumps(TarRoot(file))), digest)  # noqa: S301
    mirror(file, to=tmp_path / "copy")
    check(tmp_path / "copy", digest)
    with tarfile.open(file) as archive:  # unpacked by any program
        names = archive.getnames()
        archive.extractall(tmp_path / "unpacked", filter="data")
    assert names[0].startswith("blobs/")
    assert names[3].endswith(f"{digest}.json")  # after the blobs, before what names it
    check(tmp_path / "unpacked", digest)
    with pytest.raises(AlreadyExistsError):
        mirror(f"{ID}@v1", root=source, tar=file)
    with pytest.raises(ReadOnlyError):
        mirror(f"{ID}@v1", root=source, to=file)
    with pytest.raises(ReadOnlyError):
        TarRoot(file).put("a", b"")


def test_a_tar_that_was_cut_is_continued(source: Root, tmp_path: Path) -> None:
    file = tmp_path / "arm.tar"
    mirror(f"{ID}@v1", root=source, tar=file)
    whole = file.read_bytes()
    part = tmp_path / "arm.tar.part"
    copied = set()
    with tarfile.open(file) as archive:
        ends = [member.offset for member in archive][1:4]
    for cut in (0, 300, 9_973, *ends, *(end + 200 for end in ends), len(whole) - 1, len(whole)):
        file.unlink()
        part.write_bytes(whole[:cut])
        copied.add(mirror(f"{ID}@v1", root=source, tar=file).copied)
        check(file, digest_of(source))
    assert copied == {0, 1, 2, 3}
    file.unlink()
    damaged = bytearray(whole)
    damaged[700] ^= 1
    part.write_bytes(damaged)
    assert mirror(f"{ID}@v1", root=source, tar=file).copied == 3
    check(file, digest_of(source))


def test_a_tar_has_nothing_of_another_version(source: Root, tmp_path: Path) -> None:
    with DatasetBuilder("other/secret", source) as builder:
        builder.add_table("main", table(2))
        builder.publish()
    file, part = tmp_path / "arm.tar", tmp_path / "arm.tar.part"
    mirror("other/secret", root=source, tar=file)
    part.write_bytes(file.read_bytes())  # it was interrupted, and the name is used for another
    file.unlink()
    assert mirror(f"{ID}@v1", root=source, tar=file).copied == 3
    check(file, digest_of(source))
    with tarfile.open(file) as archive:
        blobs = [name for name in archive.getnames() if name.startswith("blobs/")]
    assert len(blobs) == 3


def test_a_damaged_tar_is_refused(source: Root, tmp_path: Path) -> None:
    file = tmp_path / "arm.tar"
    mirror(f"{ID}@v1", root=source, tar=file)
    whole = bytearray(file.read_bytes())
    for offset in (512 + 100, 60_000):
        whole[offset] ^= 1
        file.write_bytes(whole)
        with pytest.raises(CorruptError):
            mirror(file, to=tmp_path / f"copy{offset}")
        whole[offset] ^= 1
    file.write_bytes(b"not a tar file")
    with pytest.raises(CorruptError, match="not a tar"):
        mirror(file, to=tmp_path / "copy")


def test_arguments(source: Root, tmp_path: Path) -> None:
    with pytest.raises(InvalidError, match="either"):
        mirror(f"{ID}", root=source)
    with pytest.raises(InvalidError, match="either"):
        mirror(f"{ID}", root=source, to=tmp_path / "a", tar=tmp_path / "b.tar")
    with pytest.raises(NotFoundError, match=r"gone.tar` does not exist"):
        mirror(tmp_path / "gone.tar", to=tmp_path / "a")
    assert validate(f"{ID}", "index", root=source).ok


@pytest.mark.needs("obstore", "seaweedfs")
def test_index_compares_sizes_on_a_server(source: Root, bucket: str, seaweed: SeaweedFS) -> None:
    root = open_root(bucket, **seaweed.options())
    mirror(f"{ID}@v1", root=source, to=root)
    (shard,) = dataset(f"{ID}", root=root).version.manifest.tables["small"].shards
    root.put(blob_key(shard.blob.digest), b"short")
    (problem,) = validate(f"{ID}", "index", root=root).problems
    assert "has 5 bytes, expected" in problem.message
