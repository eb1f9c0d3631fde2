"""`DatasetBuilder`: what it publishes, inherits and uploads, and what it refuses."""

import hashlib
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from relive.errors import (
    AlreadyExistsError,
    ClosedError,
    ConflictError,
    DatasetNotFoundError,
    InvalidError,
    InvalidTypeError,
    NameTakenError,
    NotFoundError,
    ReadOnlyError,
    SchemaError,
    StorageError,
    UnfinishedError,
    UnknownFieldError,
    UnknownNameError,
)
from relive.publish.version.catalog import Catalog
from relive.publish.version.manifest import Manifest
from relive.publish.version.names import manifest_key, parse_id, parse_reference
from relive.publish.write import pending_table
from relive.publish.write.builder import DatasetBuilder, Plan
from relive.store.blobs import blob_key, describe_file
from relive.store.roots import open_root
from relive.store.roots.memory import MemoryRoot
from relive.store.roots.root import Root
from tests.publish.write.published_rows import read_table

TABLE = pa.table({"a": [1, 2, 3], "b": ["x", None, "z"]})
ID = "ws/name"


@pytest.fixture
def root(request: pytest.FixtureRequest) -> Root:
    return open_root(f"memory://{request.node.name}")


class CountingRoot(MemoryRoot):
    """Counts the requests that an object store would get."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.requests: list[str] = []

    def get(self, key: str, **options: Any) -> Any:
        self.requests.append("GET")
        return super().get(key, **options)

    def get_many(self, keys: Sequence[str]) -> Any:
        self.requests += ["GET"] * len(keys)
        return super().get_many(keys)

    def exists(self, keys: Sequence[str]) -> Any:
        self.requests += ["HEAD"] * len(keys)
        return super().exists(keys)

    def put(self, key: str, body: Any, **options: Any) -> None:
        self.requests.append("PUT")
        super().put(key, body, **options)

    def create(self, key: str, data: bytes, **options: Any) -> Any:
        self.requests.append("PUT")
        return super().create(key, data, **options)

    def replace(self, key: str, data: bytes, tag: str) -> Any:
        self.requests.append("PUT")
        return super().replace(key, data, tag)


@pytest.fixture
def counting(request: pytest.FixtureRequest) -> CountingRoot:
    return CountingRoot(request.node.name)


def save(path: Path, table: Any = TABLE, age_s: float = 60) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)
    os.utime(path, (time.time() - age_s,) * 2)
    return path


def publish(root: Root, data: Any = TABLE, name: str = "main", **options: Any) -> str:
    how = {key: options.pop(key) for key in ("rewrite", "key", "splits") if key in options}
    builder = DatasetBuilder(ID, root=root, base=options.pop("base", None))
    builder.replace_table(name, data, **how)
    digest: str = builder.publish(**options)
    return digest


def manifest(root: Root, reference: str = ID) -> Manifest:
    return Catalog(root).resolve(parse_reference(reference)).manifest


class TestTables:
    def test_rows_are_published(self, root: Root) -> None:
        digest = publish(root)
        assert read_table(root, ID).equals(TABLE)
        assert read_table(root, f"{ID}@{digest}").equals(TABLE)
        assert manifest(root).digest == digest

    def test_files_are_published_byte_for_byte(self, root: Root, tmp_path: Path) -> None:
        paths = [save(tmp_path / "a.parquet"), save(tmp_path / "b.parquet", TABLE.slice(1))]
        publish(root, paths)
        shards = manifest(root).tables["main"].shards
        assert [shard.blob.digest for shard in shards] == [
            hashlib.sha256(path.read_bytes()).hexdigest() for path in paths
        ]
        assert root.get(blob_key(shards[1].blob.digest)).data == paths[1].read_bytes()
        assert read_table(root, ID).num_rows == 5

    def test_large_blobs_have_leaf_tables(self, root: Root) -> None:
        table = pa.table({"x": np.random.default_rng(0).random(50_000)})
        publish(root, table)
        (shard,) = manifest(root).tables["main"].shards
        data = root.get(blob_key(shard.blob.digest)).data
        assert shard.blob.leaves is not None
        leaves = root.get(blob_key(shard.blob.leaves)).data
        assert leaves[:32] == hashlib.sha256(data[: 64 << 10]).digest()
        assert read_table(root, ID).equals(table)

    def test_rewrite_and_memory_give_the_same_shards(self, root: Root, tmp_path: Path) -> None:
        path = save(tmp_path / "a.parquet")
        assert publish(root, path, rewrite=True) == publish(root, TABLE)
        assert publish(root, path) != publish(root, TABLE)

    def test_tables_without_rows(self, root: Root, tmp_path: Path) -> None:
        empty = TABLE.slice(0, 0)
        builder = DatasetBuilder(ID, root=root)
        builder.add_table("none", empty)
        builder.add_table("file", save(tmp_path / "a.parquet", empty))
        builder.add_table(
            "two", [save(tmp_path / "b.parquet", empty), save(tmp_path / "c.parquet")]
        )
        builder.publish()
        assert read_table(root, ID, "none").equals(empty)
        assert read_table(root, ID, "file").equals(empty)
        assert read_table(root, ID, "two").equals(TABLE)
        assert [len(manifest(root).tables[name].shards) for name in ("none", "file", "two")] == [
            0,
            1,
            2,
        ]

    def test_files_may_lack_nullable_columns(self, root: Root, tmp_path: Path) -> None:
        save(tmp_path / "a.parquet", TABLE)
        save(tmp_path / "b.parquet", pa.table({"c": [1.5], "b": ["q"]}))
        publish(root, tmp_path)
        assert read_table(root, ID).to_pydict() == {
            "a": [1, 2, 3, None],
            "b": ["x", None, "z", "q"],
            "c": [None, None, None, 1.5],
        }

    def test_splits(self, root: Root, tmp_path: Path) -> None:
        builder = DatasetBuilder(ID, root=root)
        builder.add_table("main", TABLE, splits={"train": slice(0, 2), "test": (2, 3)})
        for name in "ab":
            save(tmp_path / f"{name}.parquet")
        builder.add_table("files", tmp_path, splits={"b": f"{tmp_path}/b*"})
        builder.publish()
        tables = manifest(root).tables
        assert tables["main"].splits == {"train": ((0, 2),), "test": ((2, 3),)}
        assert tables["files"].splits == {"b": ((3, 6),)}

    @pytest.mark.parametrize("name", ["", "1a", "a b", "../x", "ü", "a" * 65, 5, None])
    def test_bad_names(self, root: Root, name: Any) -> None:
        builder = DatasetBuilder(ID, root=root)
        for add in (builder.add_table, builder.replace_table):
            with pytest.raises((InvalidError, InvalidTypeError)):
                add(name, TABLE)

    def test_a_name_is_used_once(self, root: Root) -> None:
        builder = DatasetBuilder(ID, root=root)
        builder.add_table("main", TABLE)
        with pytest.raises(NameTakenError, match="already has a table `main`") as caught:
            builder.add_table("main", TABLE)
        assert "append_table" in str(caught.value.hint)
        builder.close()

    def test_keys(self, root: Root, tmp_path: Path) -> None:
        publish(root, key="a")
        publish(root, key=["a", "b"])
        with pytest.raises(UnknownFieldError, match="no column `c`"):
            publish(root, key=["c"])
        for key in ([], [1]):
            with pytest.raises(InvalidTypeError, match="`key` must be"):
                publish(root, key=key)
        with pytest.raises(InvalidError, match="no effect on files"):
            publish(root, save(tmp_path / "a.parquet"), key="a")

    def test_data_that_fails_leaves_the_builder_as_it_was(self, root: Root) -> None:
        builder = DatasetBuilder(ID, root=root)
        builder.add_table("main", TABLE)

        def failing() -> Iterator[Any]:
            yield TABLE.to_batches()[0]
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            builder.append_table("main", failing())
        with pytest.raises(InvalidTypeError):
            builder.replace_table("main", 5)
        with pytest.raises(SchemaError):
            builder.append_table("main", pa.table({"a": ["text"]}))
        builder.publish()
        assert read_table(root, ID).equals(TABLE)
        assert builder.tables == {"main": 3}

    def test_data_in_memory_is_read_when_it_is_added(self, root: Root) -> None:
        values = np.arange(3)
        builder = DatasetBuilder(ID, root=root)
        builder.add_table("main", pa.table({"x": values}))
        values[:] = 7
        builder.publish()
        assert read_table(root, ID)["x"].to_pylist() == [0, 1, 2]


class TestBase:
    def test_everything_is_inherited(self, root: Root) -> None:
        first = DatasetBuilder(ID, root=root)
        first.add_table("main", TABLE, splits={"all": (0, 3)})
        first.add_table("other", TABLE.slice(1))
        first.describe(readme="# Kitchen", license="MIT", url="https://example.com")
        digest = first.publish(tag="v1")

        for base in ("latest", "v1", digest, digest[:10], f"{ID}@v1", ID):
            builder = DatasetBuilder(ID, root=root, base=base)
            plan = builder.publish(dry_run=True)
            assert plan == Plan(digest, 0, 0, is_current=True)
        copy = DatasetBuilder("ws/copy", root=root, base=f"{ID}@v1")
        assert copy.publish() == digest

    def test_other_sections_are_inherited(self, root: Root) -> None:
        publish(root)
        section = {
            "run": {"digest": "0" * 64, "bytes": 5},
            "walk": {"digest": "1" * 64, "bytes": 5},
        }
        first = DatasetBuilder(ID, root=root, base="latest")
        first._version = pickle.loads(pickle.dumps(first._version))  # noqa: S301
        first._version = Manifest(sections={"packs": section})
        first.publish()

        builder = DatasetBuilder(ID, root=root, base="latest")
        builder.append_table("main", TABLE)
        builder.drop("walk")
        builder.publish()
        assert manifest(root).sections == {"packs": {"run": section["run"]}}
        builder = DatasetBuilder(ID, root=root, base="latest")
        builder.drop("run")
        builder.publish()
        assert manifest(root).sections == {}

    def test_append_keeps_shards_and_extends_splits(self, root: Root) -> None:
        publish(root, splits={"train": (0, 3), "few": (0, 1)})
        before = manifest(root).tables["main"].shards
        builder = DatasetBuilder(ID, root=root, base="latest")
        more = pa.table({"b": ["q"], "c": [1.5]})
        builder.append_table("main", more, splits={"train": (0, 1), "new": (0, 1)})
        digest = builder.publish()
        table = manifest(root).tables["main"]
        assert table.shards[: len(before)] == before
        assert table.splits == {"train": ((0, 4),), "few": ((0, 1),), "new": ((3, 4),)}
        assert read_table(root, ID).to_pydict() == {
            "a": [1, 2, 3, None],
            "b": ["x", None, "z", "q"],
            "c": [None, None, None, 1.5],
        }
        assert builder.report == Plan(digest, 1, table.shards[-1].blob.nbytes, is_current=False)
        info = Catalog(root).versions(parse_id(ID))[-1]
        assert info.parent is not None
        assert info.parent != digest

    def test_appended_rows_must_have_the_same_types(self, root: Root) -> None:
        publish(root)
        builder = DatasetBuilder(ID, root=root, base="latest")
        with pytest.raises(SchemaError, match="column `a` of the rows appended to table `main`"):
            builder.append_table("main", pa.table({"a": [1.5]}))
        builder.append_table("main", pa.table({"a": pa.array([4]), "b": pa.array(["w"])}))
        builder.close()

    def test_append_twice_and_to_a_table_of_files(self, root: Root, tmp_path: Path) -> None:
        publish(root, save(tmp_path / "a.parquet"))
        builder = DatasetBuilder(ID, root=root, base="latest")
        builder.append_table("main", TABLE.slice(0, 1))
        builder.append_table("main", save(tmp_path / "b.parquet", TABLE.slice(2)))
        builder.publish()
        expected = pa.concat_tables([TABLE, TABLE.slice(0, 1), TABLE.slice(2)])
        assert read_table(root, ID).equals(expected)

    def test_replace_and_drop(self, root: Root) -> None:
        first = DatasetBuilder(ID, root=root)
        for name in ("main", "other", "third"):
            first.add_table(name, TABLE)
        first.publish()
        builder = DatasetBuilder(ID, root=root, base="latest")
        builder.replace_table("main", TABLE.slice(2))
        builder.replace_table("new", TABLE)
        builder.drop("other")
        builder.publish()
        assert manifest(root).tables.keys() == {"main", "third", "new"}
        assert read_table(root, ID).equals(TABLE.slice(2))

    def test_what_is_not_there(self, root: Root) -> None:
        with pytest.raises(DatasetNotFoundError):
            DatasetBuilder(ID, root=root, base="latest")
        publish(root)
        with pytest.raises(DatasetNotFoundError):
            DatasetBuilder(ID, root=root, base="v9")
        builder = DatasetBuilder(ID, root=root)
        with pytest.raises(UnknownNameError, match="no table `main`") as caught:
            builder.append_table("main", TABLE)
        assert "base='latest'" in str(caught.value.hint)
        with pytest.raises(UnknownNameError, match="no table `main`"):
            builder.drop("main")
        with pytest.raises(InvalidTypeError):
            builder.drop(5)  # type: ignore[arg-type]

    def test_describe(self, root: Root, tmp_path: Path) -> None:
        (tmp_path / "README.md").write_text("# Ärmel")
        builder = DatasetBuilder(ID, root=root)
        builder.add_table("main", TABLE)
        builder.describe(readme=tmp_path / "README.md", license="MIT", creator="lab")
        builder.describe(citation="none")
        builder.publish()
        assert manifest(root).readme == "# Ärmel"
        assert manifest(root).about == {"license": "MIT", "creator": "lab", "citation": "none"}
        again = DatasetBuilder(ID, root=root, base="latest")
        again.describe(license="CC0", creator="", readme="")
        again.publish()
        assert manifest(root).readme is None
        assert manifest(root).about == {"license": "CC0", "citation": "none"}
        with pytest.raises(InvalidTypeError):
            again.describe(license=5)  # type: ignore[arg-type]
        with pytest.raises(NotFoundError):
            again.describe(readme=tmp_path / "none.md")
        (tmp_path / "bad.md").write_bytes(b"\xff")
        with pytest.raises(InvalidError, match="not UTF-8"):
            again.describe(readme=tmp_path / "bad.md")


class TestPublishing:
    def test_publish_idempotent(self, counting: CountingRoot, tmp_path: Path) -> None:
        paths = [save(tmp_path / f"{i}.parquet", TABLE.slice(i % 3)) for i in range(50)]
        first = publish(counting, paths, tag="v1")
        counting.requests.clear()
        assert publish(counting, paths, tag="v1") == first
        assert len(counting.requests) <= 4
        assert "PUT" not in counting.requests
        for options in ({}, {"base": "latest"}, {"set_latest": False}):
            counting.requests.clear()
            assert publish(counting, paths, **options) == first
            assert len(counting.requests) <= 4
            assert "PUT" not in counting.requests

    def test_a_lost_manifest_is_written_again(self, root: Root, tmp_path: Path) -> None:
        data = save(tmp_path / "a.parquet", pa.table({"x": range(20_000)}))
        digest = publish(root, data, tag="v1")
        (blob,) = (e.key for e in root.list("blobs") if e.size > 50_000)
        for options in ({}, {"tag": "v1"}, {"base": "latest"}, {"set_latest": False}):
            root.delete([manifest_key(parse_id(ID), digest)])
            root.delete([blob])  # which a gc may do where it is not named any more
            with pytest.raises(NotFoundError):
                Catalog(root).resolve(parse_reference(f"{ID}@{digest}"))
            assert publish(root, data, **options) == digest
            assert read_table(root, f"{ID}@{digest}").num_rows == 20_000
            assert len(Catalog(root).versions(parse_id(ID))) == 1

    def test_only_changed_shards_are_asked_for(
        self, counting: CountingRoot, tmp_path: Path
    ) -> None:
        paths = [save(tmp_path / f"{i}.parquet", pa.table({"i": [i]})) for i in range(20)]
        publish(counting, paths)
        paths[7] = save(tmp_path / "7.parquet", pa.table({"i": [700]}))
        counting.requests.clear()
        builder = DatasetBuilder(ID, root=counting)
        builder.add_table("main", paths)
        builder.publish()
        assert builder.report is not None
        assert builder.report.blobs == 1
        assert counting.requests.count("HEAD") == 3  # a blob, the others' manifest, a tombstone
        assert read_table(counting, ID)["i"].to_pylist()[7] == 700

    def test_blobs_of_other_datasets_are_not_uploaded_again(self, counting: CountingRoot) -> None:
        publish(counting)
        other = DatasetBuilder("ws/other", root=counting)
        other.add_table("main", TABLE)
        other.publish()
        assert other.report is not None
        assert other.report.blobs == 0

    def test_dry_run_changes_nothing(self, counting: CountingRoot, tmp_path: Path) -> None:
        builder = DatasetBuilder(ID, root=counting)
        builder.add_table("main", TABLE)
        builder.add_table("files", save(tmp_path / "a.parquet"))
        plan = builder.publish(dry_run=True)
        assert "PUT" not in counting.requests
        assert plan.blobs == 2
        assert plan.nbytes == manifest_bytes(builder)
        assert not plan.is_current
        assert builder.report is None
        assert builder.publish() == plan.digest
        assert builder.report == plan
        assert builder.publish(dry_run=True) == Plan(plan.digest, 0, 0, is_current=True)

    def test_unchanged_files_are_not_hashed_again(
        self, root: Root, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        hashed: list[str] = []
        describe = describe_file

        def counted(path: Any) -> Any:
            hashed.append(Path(path).name)
            return describe(path)

        monkeypatch.setattr(pending_table, "describe_file", counted)
        paths = [save(tmp_path / f"{name}.parquet") for name in "abc"]
        first = publish(root, paths)
        assert sorted(hashed) == ["a.parquet", "b.parquet", "c.parquet"]
        hashed.clear()
        assert publish(root, paths) == first
        assert hashed == []
        save(paths[1], TABLE.slice(1))
        publish(root, paths)
        assert hashed == ["b.parquet"]
        hashed.clear()
        publish(root, paths, rehash=True)
        assert len(hashed) == 3
        hashed.clear()
        save(paths[1], TABLE.slice(2), age_s=0)
        publish(root, paths)
        publish(root, paths)
        assert hashed == ["b.parquet"] * 2

    def test_cached_digests_do_not_need_the_blobs(self, tmp_path: Path, root: Root) -> None:
        table = pa.table({"x": np.random.default_rng(0).random(50_000)})
        path = save(tmp_path / "a.parquet", table)
        publish(root, path)
        elsewhere = open_root(tmp_path / "elsewhere")
        publish(elsewhere, path)
        assert read_table(elsewhere, ID).equals(table)

    def test_a_file_that_changes_is_an_error(self, root: Root, tmp_path: Path) -> None:
        path = save(tmp_path / "a.parquet")
        builder = DatasetBuilder(ID, root=root)
        builder.add_table("main", path)
        save(path, TABLE.slice(1))
        with pytest.raises(UnfinishedError, match="changed while it was being published"):
            builder.publish()
        path.unlink()
        with pytest.raises(NotFoundError):
            builder.publish()
        assert Catalog(root).pointer(parse_id(ID)) is None

    def test_a_file_that_changes_during_the_upload(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = save(tmp_path / "a.parquet")
        data = path.read_bytes()
        key = blob_key(hashlib.sha256(data).hexdigest())
        seen: list[Any] = []

        class Slow(MemoryRoot):
            def put_file(self, *arguments: Any) -> None:
                save(path, TABLE.slice(1), age_s=5)
                self.by_another_publisher()
                super().put_file(*arguments)

            def put(self, key: str, body: Any, **options: Any) -> None:
                super().put(key, body, **options)
                seen.append(key)

            def by_another_publisher(self) -> None:
                pass

        class Shared(Slow):
            def by_another_publisher(self) -> None:
                MemoryRoot(name).put(key, data)

        for kind in (Slow, Shared):
            name = f"changes-during-upload-{kind.__name__}"
            root = kind(name)
            save(path)
            with pytest.raises(UnfinishedError, match="changed"):
                publish(root, path)
            assert key not in seen  # nor for a moment
            there = root.get_many([key])[0]
            assert (there and there.data) == (data if kind is Shared else None)
            publish(MemoryRoot(name), path)
            assert read_table(root, ID).equals(TABLE.slice(1))

    def test_progress_counts_bytes(self, root: Root, tmp_path: Path) -> None:
        calls: list[tuple[int, int | None]] = []
        paths = [save(tmp_path / f"{i}.parquet", pa.table({"i": [i]})) for i in range(5)]
        publish(root, paths, progress=lambda done, total: calls.append((done, total)), workers=2)
        total = sum(path.stat().st_size for path in paths)
        assert calls[0] == (0, total)
        assert calls[-1] == (total, total)
        assert calls == sorted(calls)
        assert len(calls) == 6

    def test_an_interrupted_upload_is_continued(self, tmp_path: Path) -> None:
        uploaded: list[str] = []

        class Failing(MemoryRoot):
            def put_file(self, key: str, *arguments: Any) -> None:
                if len(uploaded) == 2:
                    raise StorageError("the network is gone")
                super().put_file(key, *arguments)
                uploaded.append(key)

        paths = [save(tmp_path / f"{i}.parquet", pa.table({"i": [i]})) for i in range(6)]
        builder = DatasetBuilder(ID, root=Failing("interrupted"))
        builder.add_table("main", paths)
        with pytest.raises(StorageError, match="network"):
            builder.publish(workers=1)
        root = open_root("memory://interrupted")
        assert Catalog(root).pointer(parse_id(ID)) is None
        again = DatasetBuilder(ID, root=root)
        again.add_table("main", paths)
        again.publish()
        assert again.report is not None
        assert again.report.blobs == 4
        assert read_table(root, ID)["i"].to_pylist() == list(range(6))

    def test_ctrl_c_leaves_nothing_visible(self, tmp_path: Path) -> None:
        class Interrupted(MemoryRoot):
            def put_file(self, *arguments: Any) -> None:
                super().put_file(*arguments)
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
                time.sleep(0.05)

        paths = [save(tmp_path / f"{i}.parquet", pa.table({"i": [i]})) for i in range(20)]
        builder = DatasetBuilder(ID, root=Interrupted("ctrl-c"))
        builder.add_table("main", paths)
        with pytest.raises(KeyboardInterrupt):
            builder.publish(workers=1)
        root = open_root("memory://ctrl-c")
        assert Catalog(root).pointer(parse_id(ID)) is None
        assert Catalog(root).list("ws") == []
        publish(root, paths)
        assert read_table(root, ID).num_rows == 20

    def test_latest_tags_and_messages(self, root: Root) -> None:
        first = publish(root, tag="v1", message="first")
        second = publish(root, TABLE.slice(1), set_latest=False, tag="v2", author="me")
        catalog = Catalog(root)
        assert catalog.resolve(parse_reference(ID)).digest == first
        assert catalog.tags(parse_id(ID)) == {"v1": first, "v2": second}
        with pytest.raises(AlreadyExistsError, match="the tag `v1` of `ws/name`"):
            publish(root, TABLE.slice(2), tag="v1")
        assert publish(root, TABLE.slice(1), tag="v1", force_tag=True) == second
        assert catalog.tags(parse_id(ID)) == {"v1": second, "v2": second}
        assert catalog.versions(parse_id(ID))[0].message == "first"

    def test_a_tag_that_exists_is_found_before_anything_is_uploaded(
        self, counting: CountingRoot
    ) -> None:
        publish(counting, tag="v1")
        counting.requests.clear()
        with pytest.raises(AlreadyExistsError):
            publish(counting, TABLE.slice(1), tag="v1")
        assert "PUT" not in counting.requests

    def test_conflicts(self, root: Root) -> None:
        publish(root)
        one = DatasetBuilder(ID, root=root, base="latest")
        two = DatasetBuilder(ID, root=root, base="latest")
        one.append_table("main", TABLE.slice(0, 1))
        two.append_table("main", TABLE.slice(0, 2))
        first = one.publish()
        with pytest.raises(ConflictError) as caught:
            two.publish()
        assert caught.value.current == first
        assert caught.value.digest is not None
        assert manifest(root).digest == first
        assert read_table(root, f"{ID}@{caught.value.digest}").num_rows == 5
        assert two.publish(on_conflict="move") == caught.value.digest
        assert manifest(root).digest == caught.value.digest

    def test_a_builder_may_publish_again(self, root: Root) -> None:
        builder = DatasetBuilder(ID, root=root)
        builder.add_table("main", TABLE)
        builder.publish()
        for base in (None, "latest"):
            builder = DatasetBuilder(ID, root=root, base=base)
            builder.replace_table("main", TABLE)
            builder.publish()
            builder.append_table("main", TABLE)
            builder.publish()
            assert read_table(root, ID).num_rows == 6

    def test_bad_arguments_are_refused_before_any_request(self, counting: CountingRoot) -> None:
        builder = DatasetBuilder(ID, root=counting)
        with pytest.raises(InvalidError, match="nothing to publish"):
            builder.publish()
        builder.add_table("main", TABLE)
        counting.requests.clear()
        for bad in (
            {"tag": "latest"},
            {"tag": "a b"},
            {"message": 5},
            {"author": 5},
            {"on_conflict": "ignore"},
            {"workers": 0},
        ):
            with pytest.raises((InvalidError, InvalidTypeError)):
                builder.publish(**bad)
        assert counting.requests == []
        for bad_id in ("name", "Ws/name", "ws/name@v1", ""):
            with pytest.raises(InvalidError):
                DatasetBuilder(bad_id, root=counting)
        with pytest.raises(InvalidTypeError):
            DatasetBuilder(5, root=counting)  # type: ignore[arg-type]

    def test_read_only_roots(self, nginx_root: str) -> None:
        builder = DatasetBuilder(ID, root=nginx_root)
        builder.add_table("main", TABLE)
        with pytest.raises(ReadOnlyError, match="read-only"):
            builder.publish()

    def test_it_has_a_repr(self, root: Root) -> None:
        builder = DatasetBuilder(ID, root=root)
        builder.add_table("main", TABLE)
        assert repr(builder).startswith("DatasetBuilder('ws/name', root='memory://")
        assert "main: 3 rows" in repr(builder)
        builder.close()


@pytest.fixture
def nginx_root() -> str:
    return "https://example.invalid/root"  # nothing is requested


def manifest_bytes(builder: DatasetBuilder) -> int:
    _, blobs = builder._hashed(rehash=False, workers=None)
    return sum(blob.nbytes for blob in blobs)


class TestTemporaryFiles:
    @pytest.fixture(autouse=True)
    def spool(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        directory = tmp_path / "spool"
        directory.mkdir()
        monkeypatch.setattr("tempfile.tempdir", str(directory))
        return directory

    def test_they_are_removed(self, root: Root, spool: Path) -> None:
        builder = DatasetBuilder(ID, root=root)
        assert list(spool.iterdir()) == []
        builder.add_table("main", TABLE)
        assert len(list(spool.iterdir())) == 1
        with pytest.warns(ResourceWarning, match=f"rows were added to `{ID}`, but not"):
            del builder
        assert list(spool.iterdir()) == []
        with DatasetBuilder(ID, root=root) as builder:
            builder.add_table("main", TABLE)
            builder.publish()
        assert list(spool.iterdir()) == []
        builder.close()
        for call in (
            lambda: builder.add_table("b", TABLE),
            lambda: builder.append_table("main", TABLE),
            lambda: builder.replace_table("main", TABLE),
            lambda: builder.drop("main"),
            lambda: builder.describe(readme="x"),
            builder.publish,
        ):
            with pytest.raises(ClosedError, match="is closed"):
                call()

    def test_a_forked_process_keeps_those_of_its_parent(self, root: Root, spool: Path) -> None:
        builder = DatasetBuilder(ID, root=root)
        builder.add_table("main", TABLE)
        child = os.fork()
        if not child:
            builder.close()
            os._exit(0)
        os.waitpid(child, 0)
        builder.publish()
        assert read_table(root, ID).equals(TABLE)

    def test_a_disk_that_is_not_there(self, root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("tempfile.tempdir", "/nowhere")
        with pytest.raises(NotFoundError, match="cannot write to `/nowhere`"):
            DatasetBuilder(ID, root=root).add_table("main", TABLE)


def test_memory_is_bounded_by_shards_not_by_the_table(tmp_path: Path) -> None:
    code = """
import resource, sys
import numpy as np, pyarrow as pa
from relive.publish.write.builder import DatasetBuilder

draw = np.random.default_rng(0)
block = draw.integers(0, 1 << 62, 1 << 19)
schema = pa.schema([("x", pa.int64()), ("i", pa.int64())])

def batches():
    for number in range(48):  # 8 MiB each
        yield pa.record_batch([block, block ^ number], schema=schema)

builder = DatasetBuilder("ws/name", root=sys.argv[1])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
builder.add_table("main", batches())
builder.publish()
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024, builder.tables)
"""
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "root")],
        capture_output=True,
        text=True,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    grown, _, tables = done.stdout.partition(" ")
    assert tables.strip() == str({"main": 48 << 19})
    assert int(grown) < 250  # of 384 MiB
