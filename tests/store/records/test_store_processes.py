"""A record store in several processes: many readers, one writer."""

import multiprocessing
import pickle
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relive import DataLoader, Field, RecordStore
from relive.errors import ClosedError, InvalidTypeError, LockedError, NotFoundError

ROOT = Path(__file__).parents[3]

FIELDS = {"n": Field("i8"), "x": Field("i8", (64,)), "z": Field("i8", (64,), "zstd"),
          "r": Field("i8", ragged=True), "t": Field("str")}  # fmt: skip


def record(number: int) -> dict[str, Any]:
    """Return a record whose fields all depend on one number."""
    return {"n": number, "x": np.full(64, number), "z": np.full(64, number),
            "r": np.full(number % 7, number), "t": str(number)}  # fmt: skip


def check(store: RecordStore, rows: Any) -> list[int]:
    """Return the numbers of records whose fields must all match."""
    batch = store.gather(rows)
    n = np.asarray(batch["n"])
    assert (np.asarray(batch["x"]) == n[:, None]).all()
    assert (np.asarray(batch["z"]) == n[:, None]).all()
    for number, ragged, text in zip(n, batch["r"], batch["t"], strict=True):
        assert ragged.tolist() == [number] * (number % 7)
        assert text == str(number)
    listed: list[int] = n.tolist()
    return listed


def test_pickled_reader_keeps_its_snapshot(tmp_path: Path) -> None:
    with RecordStore.create(tmp_path / "s", FIELDS) as store:
        store.extend([record(k) for k in range(5)])
        store.flush()
        reader = RecordStore.open(tmp_path / "s", workers=3, verify="always", io="pread")
        store.append(record(5))
        store[0] = record(9)
        store.flush()
        data = pickle.dumps(reader)
        assert len(data) < 1000
        again = pickle.loads(data)  # noqa: S301 - our own data
        assert check(again, range(len(again))) == [0, 1, 2, 3, 4]
        assert again.refresh()
        assert check(again, range(6)) == [9, 1, 2, 3, 4, 5]
        view = pickle.loads(pickle.dumps(reader[1:3]))  # noqa: S301 - our own data
        assert [row["n"] for row in view] == [1, 2]
        with pytest.raises(InvalidTypeError, match="cannot be pickled"):
            pickle.dumps(store)
    # Later changes are folded, so the snapshot of the pickle is gone.
    with pytest.raises(NotFoundError, match="no longer has"):
        pickle.loads(data)  # noqa: S301 - our own data
    # Folding alone changes nothing that a reader sees.
    latest = pickle.dumps(RecordStore.open(tmp_path / "s"))
    with RecordStore.open(tmp_path / "s", mode="a") as store:
        store.rebalance()
    assert check(pickle.loads(latest), range(6)) == [9, 1, 2, 3, 4, 5]  # noqa: S301 - our own data


def in_a_fork(path: str) -> list[str]:
    """Call allowed and forbidden methods in a forked child."""
    results: list[str] = []
    with RecordStore.create(path, FIELDS) as store:
        store.extend([record(k) for k in range(20)])
        store.flush()
        store.append(record(20))
        reader = RecordStore.open(path)
        reader.gather([3])
        context = multiprocessing.get_context("fork")
        receiver, sender = context.Pipe(duplex=False)

        def child() -> None:
            found: list[str] = [str(check(reader, [3, 19]))]
            for call in (
                lambda: store.append(record(1)), lambda: store.gather([0]), lambda: len(store),
                store.flush, store.close, store.abort, lambda: store.delete([0]), lambda: store[0],
            ):  # fmt: skip
                try:
                    call()
                    found.append("allowed")
                except ClosedError:
                    found.append("refused")
            sender.send([*found, repr(store)[-8:]])

        process = context.Process(target=child)
        process.start()
        if receiver.poll(60):
            results = receiver.recv()
        process.join(60)
        results.append(str(process.exitcode))
        store.append(record(21))
    with RecordStore.open(path, "a") as store:
        results.append(str(check(store, range(22)) == list(range(22))))
    return results


def test_forked_child_reads_but_cannot_write(
    tmp_path: Path, spawned_pool: ProcessPoolExecutor
) -> None:
    results = spawned_pool.submit(in_a_fork, str(tmp_path / "s")).result(timeout=120)
    assert results == ["[3, 19]", *["refused"] * 8, " closed)", "0", "True"]


def lock_in_a_fork(path: str) -> bool:
    """Close a store while a forked child is alive, and open it again."""
    store = RecordStore.create(path, FIELDS)
    store.append(record(1))
    context = multiprocessing.get_context("fork")
    over = context.Event()
    process = context.Process(target=over.wait)
    process.start()
    try:
        store.close()
        with RecordStore.open(path, "a") as again:
            again.append(record(2))
    finally:
        over.set()
        process.join(60)
    return len(RecordStore.open(path)) == 2


def test_forked_child_holds_no_lock(tmp_path: Path, spawned_pool: ProcessPoolExecutor) -> None:
    assert spawned_pool.submit(lock_in_a_fork, str(tmp_path / "s")).result(timeout=120)


def test_second_writer_error_names_the_first(tmp_path: Path) -> None:
    script = (
        "import sys, relive\n"
        "store = relive.RecordStore.open(sys.argv[1], mode='a')\n"
        "store.append({'n': 1})\n"
        "store.flush()\n"
        "store.append({'n': 2})\n"
        "print('ready', flush=True)\n"
        "sys.stdin.readline()\n"
    )
    RecordStore.create(tmp_path / "s", FIELDS).close()
    command = [sys.executable, "-c", script, str(tmp_path / "s")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout
        assert other.stdout.readline() == b"ready\n"
        with pytest.raises(LockedError, match=f"by process {other.pid};"):
            RecordStore.open(tmp_path / "s", "a")
        assert len(RecordStore.open(tmp_path / "s")) == 1
        other.kill()
    with RecordStore.open(tmp_path / "s", "a") as store:  # a dead process holds no lock
        assert store["n"][:].tolist() in ([1], [1, 2])


WRITER = """
import sys
sys.path.insert(0, sys.argv[2])
import numpy as np
from relive import RecordStore
from tests.store.records.test_store_processes import record
store = RecordStore.open(sys.argv[1], mode="a")
rng = np.random.default_rng(1)
for round in range(40):
    for _ in range(25):
        number = int(rng.integers(0, 1000))
        what = rng.random()
        if what < 0.5 or len(store) < 10:
            store.append(record(number))
        elif what < 0.8:
            store[int(rng.integers(0, len(store)))] = record(number)
        else:
            del store[int(rng.integers(0, len(store)))]
    store.flush()
    if round % 13 == 12:
        store.rebalance()
store.close()
"""


def test_readers_see_whole_records_while_others_write(tmp_path: Path) -> None:
    with RecordStore.create(tmp_path / "s", FIELDS) as store:
        store.extend([record(k) for k in range(10)])
    reader = RecordStore.open(tmp_path / "s")
    mapped = RecordStore.open(tmp_path / "s", io="pread")
    rng = np.random.default_rng(2)
    command = [sys.executable, "-c", WRITER, str(tmp_path / "s"), str(ROOT)]
    seen = 0
    with subprocess.Popen(command) as writer:
        while writer.poll() is None:
            for store in (reader, mapped):
                seen += store.refresh()
                check(store, rng.integers(0, len(store), 30))
        assert writer.returncode == 0
    assert seen > 4
    reader.refresh()
    mapped.refresh()
    assert check(reader, range(len(reader))) == check(mapped, range(len(mapped)))


def test_loader_reads_while_the_store_grows(tmp_path: Path) -> None:
    with RecordStore.create(tmp_path / "s", FIELDS) as store:
        store.extend([record(k) for k in range(40)])
        store.drop_field("t")
        with DataLoader(store, batch_size=8, seed=3, epochs=3) as loader:
            found = []
            for batch in loader:
                n = np.asarray(batch["n"])
                assert (batch["x"] == n[:, None]).all()
                found += n.tolist()
                number = {**record(1000 + len(found))}
                del number["t"]
                store.append(number)
                store[0] = number
        assert sorted(found) == sorted(list(range(40)) * 3)


INTERRUPTED = """
import signal, sys
sys.path.insert(0, sys.argv[2])
from relive import RecordStore
from tests.store.records.test_store_processes import record
signal.signal(signal.SIGINT, signal.default_int_handler)
done = 0
try:
    with RecordStore.open(sys.argv[1], mode="a") as store:
        print("ready", flush=True)
        while True:
            store.append(record(done))
            done += 1
except KeyboardInterrupt:
    print(done)
"""


def test_interrupt_keeps_appended_records(tmp_path: Path) -> None:
    RecordStore.create(tmp_path / "s", FIELDS).close()
    command = [sys.executable, "-c", INTERRUPTED, str(tmp_path / "s"), str(ROOT)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout
        assert writer.stdout.readline() == "ready\n"
        time.sleep(0.2)
        writer.send_signal(signal.SIGINT)
        done = int(writer.stdout.read())
    with RecordStore.open(tmp_path / "s") as store:
        # The interrupted call may have completed.
        assert len(store) in {done, done + 1}
        assert check(store, range(len(store))) == list(range(len(store)))
