"""Life cycle of a record store open for writing, and which records are kept."""

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from relive import Field, RecordStore
from relive.errors import AlreadyExistsError, ClosedError, LockedError, UnknownFieldError

FIELDS = {"n": Field("i8"), "t": Field("str")}


def numbers(path: Path) -> list[int]:
    """Return the content of a store, which must be whole."""
    with RecordStore.open(path) as store:
        assert store.validate("full").ok
        found: list[int] = store["n"][:].tolist()
        assert store["t"][:].tolist() == [str(number) for number in found]
        return found


def record(number: int) -> dict[str, Any]:
    return {"n": number, "t": str(number)}


def test_leaving_the_block_keeps_everything(tmp_path: Path) -> None:
    with RecordStore.create(tmp_path / "s", FIELDS) as store:
        store.append(record(1))
        assert len(RecordStore.open(tmp_path / "s")) == 0
    assert numbers(tmp_path / "s") == [1]
    with RecordStore.open(tmp_path / "s", "a") as store:
        store.append(record(2))
        store.close()
        store.close()
        with pytest.raises(ClosedError, match="is closed"):
            store.leave()
    assert numbers(tmp_path / "s") == [1, 2]


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt, SystemExit])
def test_exception_keeps_appended_records(tmp_path: Path, error: type[BaseException]) -> None:
    store = RecordStore.create(tmp_path / "s", FIELDS)
    store.extend([record(1), record(2)])
    del store[0]
    store.append(record(3))
    with pytest.raises(error), store:
        raise error
    assert numbers(tmp_path / "s") == [2, 3]
    store = RecordStore.open(tmp_path / "s", "a")
    store[0] = record(4)
    with pytest.raises(error), store:
        raise error
    assert numbers(tmp_path / "s") == [4, 3]


def test_closed_store_raises(tmp_path: Path) -> None:
    store = RecordStore.create(tmp_path / "s", FIELDS)
    store.append(record(1))
    view = store["n"]
    store.close()
    calls: list[Any] = [
        lambda: store.append(record(1)),
        lambda: store.extend([record(1)]),
        lambda: store.__setitem__(0, record(1)),
        lambda: store.delete([0]),
        lambda: store.gather([0]),
        lambda: store[0],
        lambda: view[0],
        lambda: store.add_field("x", Field("i4")),
        store.flush,
        store.sync,
        store.rebalance,
        store.validate,
    ]
    for call in calls:
        with pytest.raises(ClosedError):
            call()
    assert repr(store) == f"RecordStore({tmp_path / 's'}: closed)"
    reader = RecordStore.open(tmp_path / "s")
    array = reader["n"][:]
    reader.close()
    reader.close()
    for look in (lambda: reader.gather([0]), lambda: len(reader), lambda: reader[0],
                 reader.refresh, lambda: reader["n"]):  # fmt: skip
        with pytest.raises(ClosedError, match="is closed"):
            look()
    assert "closed" in repr(reader)
    assert array.tolist() == [1]


def test_abort_drops_unflushed_records(tmp_path: Path) -> None:
    with RecordStore.create(tmp_path / "s", FIELDS) as store:
        store.extend([record(1), record(2)])
        store.flush()
        store.append(record(3))
        store[0] = record(9)
        del store[1]
        store.abort()
        store.abort()
        for call in (store.close, store.flush, lambda: store.append(record(4))):
            with pytest.raises(ClosedError):
                call()
    assert numbers(tmp_path / "s") == [1, 2]
    store = RecordStore.open(tmp_path / "s", "a")
    store.append(record(3))
    store.abort()
    with pytest.raises(ClosedError, match="was aborted"), store:
        raise ZeroDivisionError
    assert numbers(tmp_path / "s") == [1, 2]
    with RecordStore.open(tmp_path / "s", "a") as store:
        assert store.append(record(7)) == 2
    assert numbers(tmp_path / "s") == [1, 2, 7]


def test_abort_after_close_changes_nothing(tmp_path: Path) -> None:
    store = RecordStore.create(tmp_path / "s", FIELDS)
    store.append(record(1))
    store.close()
    for call in (store.abort, store.flush, store.leave):
        with pytest.raises(ClosedError, match="is closed"):
            call()
    assert numbers(tmp_path / "s") == [1]
    with pytest.raises(ClosedError):
        store.append(record(2))


def test_abort_removes_a_store_that_was_never_flushed(tmp_path: Path) -> None:
    store = RecordStore.create(tmp_path / "s", FIELDS)
    store.extend([record(1)] * 100)
    store.abort()
    assert list(tmp_path.iterdir()) == []
    RecordStore.create(tmp_path / "s", FIELDS).close()
    assert numbers(tmp_path / "s") == []


def test_second_writer_raises(tmp_path: Path) -> None:
    store = RecordStore.create(tmp_path / "s", FIELDS)
    with pytest.raises(LockedError, match=r"is being written by process \d+"):
        RecordStore.open(tmp_path / "s", "a")
    with pytest.raises((LockedError, AlreadyExistsError)):
        RecordStore.create(tmp_path / "s", FIELDS)
    store.append(record(1))
    store.flush()
    assert numbers(tmp_path / "s") == [1]
    store.abort()
    RecordStore.open(tmp_path / "s", "a").close()


def test_unreferenced_store_is_closed(tmp_path: Path) -> None:
    store = RecordStore.create(tmp_path / "s", FIELDS, autoflush_s=60)
    store.append(record(1))
    with pytest.warns(ResourceWarning, match="was not closed"):
        del store
    assert numbers(tmp_path / "s") == [1]
    RecordStore.open(tmp_path / "s", "a").close()
    deadline = time.monotonic() + 10
    while any(thread.name == "relive-flush" for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def wait_for_commit(reader: RecordStore) -> None:
    """Wait until records were committed."""
    deadline = time.monotonic() + 60
    while not reader.refresh():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_autoflush_by_time(tmp_path: Path) -> None:
    store = RecordStore.create(tmp_path / "s", FIELDS, autoflush_s=0.02)
    reader = RecordStore.open(tmp_path / "s")
    for number in range(3):
        store.append(record(number))
        wait_for_commit(reader)
        assert len(reader) == number + 1
    before = threading.active_count()
    store.close()
    assert threading.active_count() == before - 1
    with RecordStore.open(tmp_path / "s", "a", autoflush_s=0.02) as store:
        reader = RecordStore.open(tmp_path / "s")
        store.append(record(3))
        wait_for_commit(reader)
        store.append(record(4))
        store.abort()
    assert numbers(tmp_path / "s")[:4] == [0, 1, 2, 3]


def test_threads_write_and_read_concurrently(tmp_path: Path) -> None:
    fields = {"n": Field("i8"), "x": Field("i8", (50,)), "z": Field("i8", (50,), "zstd"),
              "r": Field("i8", ragged=True)}  # fmt: skip

    def whole(number: int) -> dict[str, Any]:
        return {"n": number, "x": np.full(50, number), "z": np.full(50, number),
                "r": np.full(number % 9, number)}  # fmt: skip

    with RecordStore.create(tmp_path / "s", fields, workers=2) as store:
        store.append(whole(0))

        def write(worker: int) -> None:
            for k in range(150):
                number = 1000 * worker + k
                store.append(whole(number))
                store[int(number * 7) % 20 % len(store)] = whole(number)
                if k % 50 == 0:
                    store.flush()

        def read(seed: int) -> None:
            rng = np.random.default_rng(seed)
            for _ in range(60):
                batch = store.gather(rng.integers(0, len(store), 20))
                n = np.asarray(batch["n"])
                assert (np.asarray(batch["x"]) == n[:, None]).all()
                assert (np.asarray(batch["z"]) == n[:, None]).all()
                for number, row in zip(n, batch["r"], strict=True):
                    assert row.tolist() == [number] * (number % 9)

        with ThreadPoolExecutor(5) as pool:
            done = [pool.submit(write, worker) for worker in (1, 2, 3)]
            done += [pool.submit(read, seed) for seed in (1, 2)]
            for each in done:
                each.result(timeout=120)
        assert len(store) == 451
    with RecordStore.open(tmp_path / "s") as store:
        assert store.validate("full").ok
        found = sorted(np.asarray(store["n"])[20:].tolist())
        assert len(found) == len(set(found))


def test_fields_change_while_other_threads_write(tmp_path: Path) -> None:
    with RecordStore.create(tmp_path / "s", FIELDS) as store:
        over = threading.Event()

        def write() -> int:
            count = 0
            while not over.is_set():
                store.append(record(count))
                count += 1
                row = store[len(store) - 1]
                assert set(FIELDS) <= set(row)
                batch = store.gather(range(len(store))[-3:])
                assert len({len(values) for values in batch.values()}) == 1
            return count

        with ThreadPoolExecutor(2) as pool:
            writing = [pool.submit(write) for _ in range(2)]
            for _ in range(10):
                store.add_field("x", Field("f4", (3,)))
                store.add_field("y", Field("json"))
                store.drop_field("x")
                store.drop_field("y")
            over.set()
            counts = [each.result(timeout=60) for each in writing]
        assert len(store) == sum(counts)
    assert sorted(numbers(tmp_path / "s")) == sorted([*range(counts[0]), *range(counts[1])])


class Late:
    """A column that calls a function once before it returns its values."""

    def __init__(self, values: list[int], first: Callable[[], object]) -> None:
        self.values = values
        self.first: Callable[[], object] | None = first

    def __array__(self, dtype: Any = None, copy: Any = None) -> npt.NDArray[Any]:
        first, self.first = self.first, None
        if first is not None:
            with ThreadPoolExecutor(1) as pool:  # on another thread
                pool.submit(first).result(timeout=60)
        return np.array(self.values, dtype)

    def __iter__(self) -> Iterator[int]:
        return iter(self.values)


def test_columns_are_rebuilt_when_fields_change_meanwhile(tmp_path: Path) -> None:
    with RecordStore.create(tmp_path / "s", {"n": Field("i8"), "m": Field("i8")}) as store:
        added = Late([1, 2, 3], lambda: store.add_field("x", Field("f4")))
        assert store.extend({"m": (k for k in (7, 8, 9)), "n": added}) == range(3)
        dropped = Late([4, 5], lambda: store.drop_field("m"))
        store["n"][[0, 1]] = dropped
        assert store["n"][:].tolist() == [4, 5, 3]
        assert store.missing("x").all()

        def change() -> None:
            store.drop_field("x")
            store.add_field("x", Field("str"))

        assert store.extend({"n": Late([6], change), "x": ["text"]}) == range(3, 4)
        assert store[3] == {"n": 6, "x": "text"}
        with pytest.raises(UnknownFieldError):
            store.extend({"n": Late([1], lambda: store.drop_field("x")), "x": ["text"]})
        assert len(store) == 4


def test_memory_does_not_grow_with_the_store(tmp_path: Path) -> None:
    script = (
        "import resource, sys, numpy as np\n"
        "from relive import Field, RecordStore\n"
        "def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "fields = {'x': Field('u1', (500,)), 'z': Field('u1', (500,), 'zstd'), 't': Field('str')}\n"
        "record = {'x': np.arange(500).astype('u1'), 'z': np.zeros(500, 'u1'), 't': 'x' * 500}\n"
        "with RecordStore.create(sys.argv[1], fields) as store:\n"
        "    for _ in range(10_000): store.append(record)\n"
        "    before = peak()\n"
        "    for _ in range(80_000): store.append(record)\n"
        "print(peak() - before)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "s")]
    grown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    # 120 MB of values were written; the location of each takes some bytes.
    assert int(grown) < 40_000, f"{grown} KiB"


def open_files(path: Path) -> list[str]:
    """Return the files in a directory that this process has open or mapped."""
    found = []
    for handle in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # that of the listing
            found.append(str(handle.readlink()))
    for line in Path("/proc/self/maps").read_text().splitlines():
        found += line.split(maxsplit=5)[5:]
    return sorted(name for name in set(found) if name.startswith(str(path)))


@pytest.mark.parametrize("end", [RecordStore.close, RecordStore.abort, RecordStore.leave])
@pytest.mark.parametrize("io", ["mmap", "pread"])
def test_closed_store_releases_its_files(
    tmp_path: Path, io: str, end: Callable[[RecordStore], None]
) -> None:
    fields = {"n": Field("i8"), "t": Field("str"), "z": Field("bytes", codec="zstd")}
    path = tmp_path / "s"
    store = RecordStore.create(path, fields, chunk_size=100)
    for number in range(300):
        store.append({"n": number, "t": str(number), "z": bytes(2000)})
    store["t"][:50] = "changed"
    assert np.asarray(store.gather([0, 299])["n"]).tolist() == [0, 299]
    store.close()
    assert open_files(path) == []
    store = RecordStore.open(path, "a", io=io)
    store.append({"n": 300, "t": "", "z": b""})
    assert np.asarray(store.gather([0, 300])["n"]).tolist() == [0, 300]
    assert open_files(path)
    end(store)
    assert open_files(path) == []
    with pytest.raises(ClosedError):
        store.gather([0])


@pytest.mark.parametrize("recompress", [False, True])
def test_rebalance_releases_the_files_that_it_removes(tmp_path: Path, *, recompress: bool) -> None:
    fields = {"n": Field("i8", (100,)), "t": Field("str"), "m": Field("i4")}
    path = tmp_path / "s"
    with RecordStore.create(path, fields, chunk_size=50) as store:
        for number in range(300):
            store.append({"n": np.full(100, number), "t": str(number), "m": number})
        store["m"][:100] = 7
        for _ in range(2):
            del store[::3]
            expected = store["n"][:, 0].tolist()
            gathered = np.asarray(store.gather(range(len(store)))["n"])
            store.rebalance(recompress)
            assert [name for name in open_files(path) if name.endswith("(deleted)")] == []
            assert store["n"][:, 0].tolist() == expected
            assert gathered[:, 0].tolist() == expected
            store.flush()
            assert [name for name in open_files(path) if name.endswith("(deleted)")] == []
    assert open_files(path) == []
    assert len(store.fields) == 3


def test_views_keep_the_memory_of_a_closed_store(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with RecordStore.create(path, {"n": Field("i8")}) as store:
        store.extend({"n": np.arange(1000)})
        view = store["n"][:]
        store.rebalance()
    assert view.sum() == 499_500
