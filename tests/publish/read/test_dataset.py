"""Datasets are opened by name and version, from the root that is asked for."""

import pickle
from pathlib import Path

import pyarrow as pa
import pytest

import relive
from relive import errors
from relive.publish.read.dataset import PublishedDataset, dataset
from relive.publish.write.builder import DatasetBuilder
from tests.publish.read.sample_tables import flipped, publish, random_rows, stored_blobs, write


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Publish two versions, of which the first has a tag."""
    for number, tag in enumerate(["v1", None]):
        builder = DatasetBuilder("test/data", root=tmp_path / "root")
        builder.add_table("main", pa.table({"x": list(range(number + 1))}))
        builder.describe(readme="# read", license="mit")
        builder.publish(tag=tag, message=f"number {number}", author="me")
    return tmp_path / "root"


def test_versions_are_found_by_tag_digest_and_prefix(root: Path) -> None:
    latest, first = dataset("test/data", root=root), dataset("test/data", "v1", root=root)
    assert (latest.table().count(), first.table().count()) == (2, 1)
    for same in (
        dataset("test/data@v1", root=root),
        dataset("relive://test/data@v1", root=root),
        dataset("test/data", first.digest, root=root),
        dataset("test/data", first.digest[:8], root=root),
        dataset(first.pinned, root=root),
        pickle.loads(pickle.dumps(first)),  # noqa: S301 - our own data
    ):
        assert same.digest == first.digest
        assert same.table().arrow().to_pydict() == {"x": [0]}
    assert first.pinned == f"test/data@{first.digest}"
    assert dataset("test/data@latest", root=root).digest == latest.digest


def test_what_is_known_of_a_version(root: Path) -> None:
    ds = dataset("test/data", root=root)
    assert ds.id == "test/data"
    assert [(each.sequence, each.message) for each in ds.versions] == [
        (1, "number 0"),
        (2, "number 1"),
    ]
    assert ds.tags == {"v1": dataset("test/data@v1", root=root).digest}
    info = ds.info
    assert (info["rows"], info["message"], info["author"]) == (2, "number 1", "me")
    assert info["about"] == {"license": "mit"}
    assert info["readme"] == "# read"
    assert info["tables"]["main"] == {
        "rows": 2, "bytes": info["bytes"], "shards": 1, "columns": {"x": "int64"}, "splits": {},
    }  # fmt: skip
    assert list(ds.tables) == ["main"]
    assert repr(ds) == f"PublishedDataset(test/data@{ds.digest[:12]}: main 2 rows)"


@pytest.mark.parametrize("mode", ["auto", "remote", "hybrid", "local"])
def test_a_directory_is_read_in_place_in_every_mode(root: Path, mode: str) -> None:
    before = sorted(root.rglob("*"))
    ds = dataset("test/data", mode=mode, root=root)
    assert ds.mode == mode
    assert ds.table().arrow().num_rows == 2
    assert sorted(root.rglob("*")) == before


def test_wrong_arguments(root: Path) -> None:
    with pytest.raises(errors.InvalidError, match="`mode` must be one of 'auto', 'remote'"):
        dataset("test/data", mode="offline", root=root)
    with pytest.raises(errors.InvalidError, match="pass one of them"):
        dataset("test/data@v1", "v1", root=root)
    with pytest.raises(errors.InvalidError, match="not the name of a dataset"):
        dataset("data", root=root)
    with pytest.raises(errors.NotCachedError, match="makes no request"):
        dataset("test/data", mode="local", root="s3://bucket/root")
    assert dataset("test/data", mode="local", root=_memory()).table().count() == 1


def _memory() -> str:
    publish("memory://local", {"main": pa.table({"x": [1]})})
    return "memory://local"


def test_missing_datasets_and_versions(root: Path) -> None:
    with pytest.raises(errors.DatasetNotFoundError, match="no dataset `test/dta`") as caught:
        dataset("test/dta", root=root)
    assert caught.value.hint
    with pytest.raises(errors.DatasetNotFoundError, match="no tag `v2`") as caught:
        dataset("test/data@v2", root=root)
    assert "`@v1`" in (caught.value.hint or "")
    with pytest.raises(FileNotFoundError):
        dataset("test/data", "0" * 64, root=root)


def test_the_default_root_is_in_the_environment(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RELIVE_ROOT", str(root))
    assert relive.dataset("test/data").table().count() == 2
    opened = relive.open("relive://test/data@v1")
    assert isinstance(opened, PublishedDataset)
    assert opened.table().count() == 1


def test_every_changed_byte_is_detected(tmp_path: Path) -> None:
    rows = random_rows(150)
    publish(tmp_path / "root", {"main": [write(rows, tmp_path / "a.parquet", 50)]})
    blobs = stored_blobs(tmp_path / "root")
    assert len(blobs) == 2  # the shard and its leaf table
    for path in blobs:
        size = path.stat().st_size
        for offset in sorted({*range(4, size, max(1, size // 37)), size - 1, size - 9}):
            undo = flipped(path, offset)
            table = dataset("test/data", root=tmp_path / "root").table()
            with pytest.raises(errors.CorruptError):
                table.arrow()
            undo()
    assert dataset("test/data", root=tmp_path / "root").table().arrow().equals(rows)


def test_changed_manifests_are_detected(root: Path) -> None:
    digest = dataset("test/data", root=root).digest
    path = root / "manifests" / "test" / "data" / f"{digest}.json"
    for offset in range(0, path.stat().st_size, 7):
        undo = flipped(path, offset)
        with pytest.raises(errors.CorruptError):
            dataset("test/data", digest, root=root)
        undo()


def test_changed_pointers_never_change_rows(root: Path) -> None:
    pointer = root / "manifests" / "test" / "data" / "latest.json"
    refused = 0
    for offset in range(0, pointer.stat().st_size, 5):
        undo = flipped(pointer, offset)
        try:
            found = dataset("test/data", root=root).table().arrow()
        except errors.ReliveError:
            refused += 1
        else:
            assert found.to_pydict() == {"x": [0, 1]}
        undo()
    # Only the sequence number and the names of what is inlined may change unnoticed.
    assert refused > 0.9 * (pointer.stat().st_size / 5)


def test_footers_that_are_not_inlined_are_verified(tmp_path: Path) -> None:
    rows = pa.table({f"c{n}": range(400) for n in range(60)})
    parts = []
    for number in range(12):
        part = rows.slice(number, 388)
        parts.append(write(part, tmp_path / f"{number}.parquet", 20))
    publish(tmp_path / "root", {"main": parts})
    ds = dataset("test/data", root=tmp_path / "root")
    entry = ds.version.manifest.tables["main"]
    outside = [shard for shard in entry.shards if ds.version.footer(shard) is None]
    assert outside
    assert ds.table().select(["c5"]).arrow()["c5"].to_pylist() == [
        value for number in range(12) for value in range(number, number + 388)
    ]
    shard = outside[0]
    (path,) = [each for each in stored_blobs(tmp_path / "root") if each.name == shard.blob.digest]
    undo = flipped(path, shard.blob.nbytes - shard.footer.nbytes // 2)
    with pytest.raises(errors.CorruptError):
        dataset("test/data", root=tmp_path / "root").table().select(["c5"]).arrow()
    undo()
