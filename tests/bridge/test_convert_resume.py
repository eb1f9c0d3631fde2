"""An interrupted conversion resumes, and a partial one is never visible."""

import contextlib
import errno
import fcntl
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from relive.bridge import convert
from relive.bridge.write.record_store import unfinished_path
from relive.errors import AlreadyExistsError, InvalidError, LockedError, StorageError
from relive.model.schema import Field
from relive.store import atomic
from relive.store.records import RecordStore
from tests.bridge.sample_files import contents, example, interrupted, tar, tfrecord, write_tfrecord

# Converts in small batches, prints its progress, and waits to be killed or to continue.
SCRIPT = """
import sys
import relive

def progress(done, total):
    print(done, flush=True)
    sys.stdin.readline()

relive.convert(sys.argv[1], sys.argv[2], batch=10, progress=progress)
"""


def kill_after(source: Path, target: Path, rows: int) -> None:
    """Convert in another process and kill it after `rows` rows."""
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, source, target],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        while int(process.stdout.readline()) < rows:
            process.stdin.write("\n")
            process.stdin.flush()
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL


def test_killed_conversion_resumes(tmp_path: Path) -> None:
    source = write_tfrecord(tmp_path / "a.tfrecord")
    target = tmp_path / "store"
    for rows in (30, 60):
        kill_after(source, target, rows)
        assert not target.exists()
        assert unfinished_path(target).is_dir()
    made = convert(source, target, batch=10)
    assert (made.rows, made.resumed_from) == (100, 60)
    assert contents(target) == [{"n": k, "x": b"x" * k} for k in range(100)]
    assert sorted(item.name for item in tmp_path.iterdir()) == ["a.tfrecord", "store"]


def test_kills_at_any_moment_lose_and_repeat_nothing(tmp_path: Path) -> None:
    source, target = write_tfrecord(tmp_path / "a.tfrecord", 400), tmp_path / "store"
    code = "import sys, relive; relive.convert(*sys.argv[1:], batch=2, progress=print)"
    generator = random.Random(3)  # noqa: S311 - random times
    resumed = []
    for _ in range(3):
        process = subprocess.Popen(
            [sys.executable, "-u", "-c", code, source, target], stdout=subprocess.PIPE
        )
        with process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(generator.uniform(0, 0.05))
            process.kill()
        if target.exists():
            break
        with RecordStore.open(unfinished_path(target) / "store") as store:
            resumed.append(len(store))
    assert resumed == sorted(resumed)
    if not target.exists():
        assert convert(source, target, batch=2).resumed_from == resumed[-1]
    assert [row["n"] for row in contents(target)] == list(range(400))


def test_another_source_or_other_options_raise(tmp_path: Path) -> None:
    source = write_tfrecord(tmp_path / "a.tfrecord")
    target = interrupted(tmp_path, source)
    with pytest.raises(InvalidError, match="with different options: stored differ") as caught:
        convert(source, target, codec="zstd")
    assert "overwrite=True to discard it" in str(caught.value.hint)
    with pytest.raises(InvalidError, match="with different options: limit differ"):
        convert(source, target, limit=50)
    with pytest.raises(InvalidError, match="with different options: fields, stored differ"):
        convert(source, target, fields=["n"])
    os.utime(source, ns=(0, 0))
    with pytest.raises(InvalidError, match="with different options: tfrecord differ"):
        convert(source, target)
    made = convert(source, target, overwrite=True)
    assert (made.rows, made.resumed_from) == (100, 0)
    assert not unfinished_path(target).exists()


def test_repeated_call_with_overwrite_resumes(tmp_path: Path) -> None:
    source = write_tfrecord(tmp_path / "a.tfrecord")
    convert({"old": [1]}, tmp_path / "finished")
    target = interrupted(tmp_path, source)
    (tmp_path / "finished").rename(target)
    with pytest.raises(AlreadyExistsError):
        convert(source, target)
    made = convert(source, target, overwrite=True)
    assert (made.rows, made.resumed_from) == (100, 20)
    assert sorted(item.name for item in tmp_path.iterdir()) == ["a.tfrecord", "store"]


@pytest.mark.parametrize("start", [0, 1, 19, 20, 57, 99, 100])
def test_every_format_resumes_at_any_row(tmp_path: Path, start: int) -> None:
    rows = [{"n": k, "t": f"text {k}"} for k in range(100)]
    np.savez(tmp_path / "a.npz", n=np.arange(100))
    np.savez_compressed(tmp_path / "b.npz", n=np.arange(100))
    np.save(tmp_path / "a.npy", np.arange(100))
    convert(rows, tmp_path / "a.parquet")
    convert(rows, tmp_path / "b.parquet", batch=23)
    convert(rows, tmp_path / "records")
    write_tfrecord(tmp_path / "a.tfrecord", 40)
    data = tfrecord(example({"n": [k], "x": [b"x" * k]}) for k in range(40, 100))
    (tmp_path / "b.tfrecord").write_bytes(data)
    half = [(f"{k:03}.{name}", b"%d" % k) for k in range(100) for name in ("cls", "bin")]
    (tmp_path / "a.tar").write_bytes(tar(half[:90]))
    (tmp_path / "b.tar").write_bytes(tar(half[90:], "w:gz"))
    sources: dict[str, tuple[object, str]] = {
        "rows": (rows, "n"),
        "npz": (tmp_path / "a.npz", "n"),
        "compressed npz": (tmp_path / "b.npz", "n"),
        "npy": (tmp_path / "a.npy", "data"),
        "parquet": (tmp_path / "a.parquet", "n"),
        "parquet in row groups": (tmp_path / "b.parquet", "n"),
        "records": (tmp_path / "records", "n"),
        "tfrecord": (tmp_path / "?.tfrecord", "n"),
        "tar": (tmp_path / "?.tar", "cls"),
    }
    for name, (source, field) in sources.items():
        target = tmp_path / f"target {name}"
        if start:
            stop_at(source, target, start)
        made = convert(source, target, batch=start or None)
        assert made.rows == 100
        # Batches end at row group boundaries.
        assert start <= made.resumed_from < start + (23 if "groups" in name else 1), name
        assert [row[field] for row in contents(target)] == list(range(100)), name


def stop_at(source: object, target: Path, rows: int) -> None:
    def progress(done: int, total: int | None) -> None:
        if done >= rows:
            raise KeyboardInterrupt

    with contextlib.suppress(KeyboardInterrupt):
        convert(source, target, batch=rows, progress=progress)
    assert unfinished_path(target).exists()


def test_failed_conversion_keeps_written_rows(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [{"n": k} for k in range(40)]
    bad = [*rows, {"n": "text"}]
    with pytest.raises(InvalidError, match="row 40"):
        convert(bad, tmp_path / "store", sample=10, batch=10)
    assert unfinished_path(tmp_path / "store").is_dir()
    with pytest.raises(InvalidError, match="row 40"):
        convert(bad, tmp_path / "store", sample=10, batch=10)
    made = convert(rows, tmp_path / "store", overwrite=True)
    assert (made.rows, made.resumed_from) == (40, 0)
    with pytest.raises(InvalidError, match="row 3"):
        convert([*rows[:3], {"n": "text"}], tmp_path / "other", sample=2)
    assert [item.name for item in tmp_path.iterdir()] == ["store"]


def test_concurrent_conversions_raise(tmp_path: Path) -> None:
    unfinished = unfinished_path(tmp_path / "store")
    unfinished.mkdir()
    with (unfinished / "source.json").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(LockedError, match="another process is converting"):
            convert([{"a": 1}], tmp_path / "store")
    assert convert([{"a": 1}], tmp_path / "store").rows == 1


def test_interrupted_creation_restarts(tmp_path: Path) -> None:
    target = interrupted(tmp_path, [{"a": k} for k in range(50)])
    (unfinished_path(target) / "store" / "meta.json").unlink()
    made = convert([{"a": k} for k in range(50)], target)
    assert (made.rows, made.resumed_from) == (50, 0)


def test_only_stores_are_replaced(tmp_path: Path) -> None:
    target = tmp_path / "store"
    target.mkdir()
    assert convert([{"a": 1}], target).rows == 1  # an empty directory counts as missing
    with pytest.raises(AlreadyExistsError, match="exists"):
        convert([{"a": 2}], target)
    convert([{"a": 2}], target, overwrite=True)
    assert contents(target) == [{"a": 2}]
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.tex").write_text("long")
    with pytest.raises(InvalidError, match=r"cannot replace .*: it is not a record store"):
        convert([{"a": 1}], precious, overwrite=True)
    (tmp_path / "file").write_text("x")
    with pytest.raises(InvalidError, match="is not a record store"):
        convert([{"a": 1}], tmp_path / "file", overwrite=True)
    assert (precious / "thesis.tex").exists()
    assert sorted(item.name for item in tmp_path.iterdir()) == ["file", "precious", "store"]


def test_store_being_written_is_not_replaced(tmp_path: Path) -> None:
    target = tmp_path / "store"
    with RecordStore.create(target, {"a": Field("i8")}) as store:
        store.append({"a": 1})
        with pytest.raises(LockedError, match="another writer has it open"):
            convert([{"a": 2}], target, overwrite=True)
        assert not unfinished_path(target).exists()
        store.append({"a": 3})
    assert contents(target) == [{"a": 1}, {"a": 3}]
    opened = []

    def progress(done: int, total: int | None) -> None:
        opened.append(RecordStore.open(target, "a"))

    with pytest.raises(LockedError, match="another writer has it open"):
        convert([{"a": 2}], target, overwrite=True, progress=progress)
    opened[0].close()
    assert contents(target) == [{"a": 1}, {"a": 3}]
    made = convert([{"a": 2}], target, overwrite=True)
    assert made.resumed_from == 1
    RecordStore.open(target, "a").close()  # the lock was released
    assert [item.name for item in tmp_path.iterdir()] == ["store"]


def test_store_is_replaced_atomically(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "store"
    convert([{"a": 1}], target)

    def stop(*_: object) -> None:
        raise ZeroDivisionError

    exchange = atomic._exchange

    def then_stop(one: Path, other: Path) -> bool:
        assert exchange(one, other)
        raise ZeroDivisionError

    # The second step is never executed.
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", stop)
        convert([{"a": 2}], target, overwrite=True)
    assert contents(target) == [{"a": 2}]
    # A process that ends here leaves the old store, which cannot be resumed.
    with monkeypatch.context() as patch:
        patch.setattr(atomic, "_exchange", then_stop)
        with pytest.raises(ZeroDivisionError):
            convert([{"a": 3}], target, overwrite=True)
    assert contents(target) == [{"a": 3}]
    assert contents(unfinished_path(target) / "store") == [{"a": 2}]
    made = convert([{"a": 3}], target, overwrite=True)
    assert (made.rows, made.resumed_from) == (1, 0)
    assert [item.name for item in tmp_path.iterdir()] == ["store"]


def test_old_store_is_restored_where_names_cannot_be_exchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "store"
    convert([{"a": 1}], target)
    monkeypatch.setattr(atomic, "_exchange", lambda *_: False)
    convert([{"a": 2}], target, overwrite=True)
    assert contents(target) == [{"a": 2}]
    rename = Path.rename

    def fail(path: Path, to: Path) -> Path:
        if path.name == "store" and path.parent != tmp_path:
            raise OSError(errno.ENOSPC, "no space")
        return rename(path, to)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", fail)
        with pytest.raises(StorageError):
            convert([{"a": 3}], target, overwrite=True)
    assert contents(target) == [{"a": 2}]
    assert convert([{"a": 3}], target, overwrite=True).resumed_from == 1
    assert contents(target) == [{"a": 3}]
    assert [item.name for item in tmp_path.iterdir()] == ["store"]


def test_store_without_rows(tmp_path: Path) -> None:
    made = convert({"a": np.zeros((0, 3))}, tmp_path / "store")
    assert (made.rows, made.fields) == (0, {"a": Field(np.float64, (3,))})
    assert contents(tmp_path / "store") == []
