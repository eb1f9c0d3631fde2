"""`validate` finds every blob that is missing or damaged, and says which."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from relive.errors import DatasetNotFoundError, InvalidError, VersionWithdrawnError
from relive.publish import DatasetBuilder, dataset, validate
from relive.publish.version.catalog import Catalog
from relive.publish.version.names import parse_reference
from relive.store.blobs import LEAF_BYTES, blob_key
from relive.store.roots import open_root


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a root with a dataset of two tables, one of them of several leaves."""
    random = np.random.default_rng(0)
    builder = DatasetBuilder("lab/arm", root=tmp_path / "root")
    builder.add_table("main", pa.table({"x": random.normal(size=60_000)}))
    builder.add_table("small", pa.table({"y": [1, 2, 3]}))
    builder.publish(tag="v1")
    return tmp_path / "root"


def shard_path(root: Path, table: str) -> Path:
    """Return the file of the only shard of a table."""
    (shard,) = dataset("lab/arm", root=root).version.manifest.tables[table].shards
    return root / blob_key(shard.blob.digest)


def flip(path: Path, offset: int) -> None:
    """Change one bit of a file."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("level", ["index", "sample", "full"])
def test_undamaged(root: Path, level: str) -> None:
    seen: list[tuple[int, int | None]] = []
    report = validate("lab/arm", level, root=root, progress=lambda *each: seen.append(each))  # type: ignore[arg-type]
    assert report.ok
    assert report.checked["blobs"] == 3  # one of them a leaf table
    assert seen[-1][0] == seen[-1][1]
    opened = dataset("lab/arm", root=root)
    assert opened.validate(level) == report  # type: ignore[arg-type]
    size = shard_path(root, "main").stat().st_size
    assert size > 3 * LEAF_BYTES
    assert (report.checked.get("bytes", 0) > size) == (level == "full")


def test_every_byte_is_checked_by_full(root: Path) -> None:
    for table in ("main", "small"):
        path = shard_path(root, table)
        size = path.stat().st_size
        for offset in {0, 4, size // 3, size // 2, size - 10, size - 1}:
            flip(path, offset)
            report = validate("lab/arm@v1", "full", root=root)
            (problem,) = report.problems
            assert (problem.kind, problem.field) == ("corrupt", table)
            assert path.name in problem.path
            flip(path, offset)
    assert validate("lab/arm@v1", "full", root=root).ok


def test_sample_reads_footers_and_some_leaves(root: Path) -> None:
    path = shard_path(root, "main")
    for offset in (0, path.stat().st_size - 20):
        flip(path, offset)
        assert not validate("lab/arm", "sample", root=root).ok
        assert validate("lab/arm", "index", root=root).ok
        flip(path, offset)


def test_size_of_files(root: Path) -> None:
    path = shard_path(root, "small")
    path.write_bytes(path.read_bytes() + b"x")
    (problem,) = validate("lab/arm", "index", root=root).problems
    assert "bytes, expected" in problem.message


def test_damaged_leaf_table(root: Path) -> None:
    (shard,) = dataset("lab/arm", root=root).version.manifest.tables["main"].shards
    assert shard.blob.leaves is not None
    path = root / blob_key(shard.blob.leaves)
    flip(path, 40)
    (problem,) = validate("lab/arm", "sample", root=root).problems
    assert problem.kind == "corrupt"
    path.unlink()
    problems = validate("lab/arm", "index", root=root).problems
    assert [(each.kind, each.field) for each in problems] == [("not-found", "main")]


def test_missing_and_damaged_manifest(root: Path) -> None:
    digest = dataset("lab/arm", root=root).digest
    path = root / "manifests" / "lab" / "arm" / f"{digest}.json"
    content = path.read_bytes()
    flip(path, 30)
    (problem,) = validate("lab/arm", "index", root=root).problems  # from the pointer
    assert problem.kind == "manifest-corrupted"
    (problem,) = validate(f"lab/arm@{digest}", "index", root=root).problems
    assert problem.kind == "manifest-corrupted"
    path.unlink()
    (problem,) = validate("lab/arm", "index", root=root).problems
    assert problem.kind == "not-found"
    path.write_bytes(content)
    pointer = path.with_name("latest.json")
    flip(pointer, len(pointer.read_bytes()) // 2)
    assert not validate("lab/arm", "index", root=root).ok
    assert validate("lab/arm@v1", "index", root=root).ok


def test_what_cannot_be_checked_raises(root: Path) -> None:
    with pytest.raises(DatasetNotFoundError):
        validate("lab/leg", root=root)
    with pytest.raises(InvalidError, match="level"):
        validate("lab/arm", "some", root=root)  # type: ignore[arg-type]
    builder = DatasetBuilder("lab/arm", root=root)
    builder.add_table("main", pa.table({"x": [1.0]}))
    old = builder.publish()
    builder.replace_table("main", pa.table({"x": [2.0]}))
    builder.publish()
    catalog = Catalog(open_root(root))
    catalog.withdraw(parse_reference(f"lab/arm@{old}"), "wrong")
    with pytest.raises(VersionWithdrawnError, match="wrong"):
        validate(f"lab/arm@{old}", root=root)
