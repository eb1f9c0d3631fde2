"""Decoding threads give memory back, and a process does not fork while they do."""

import os
import threading
from pathlib import Path

import pyarrow as pa
import pytest

from relive.publish.read import decode
from tests.publish.read.sample_tables import as_stored, every_type, published, write


class Pool:
    """Counts its calls, and is inside of one for a while."""

    def __init__(self) -> None:
        self.calls = 0
        self.is_inside = False
        self.entered = threading.Event()
        self.wait_s = 0.0

    def release_unused(self) -> None:
        self.calls += 1
        self.is_inside = True
        self.entered.set()
        threading.Event().wait(self.wait_s)
        self.is_inside = False


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Pool:
    found = Pool()
    monkeypatch.setattr(pa, "default_memory_pool", lambda: found)
    return found


def test_streams_give_memory_back(
    pool: Pool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(decode, "_RELEASE_S", 0.0)
    file = write(as_stored(every_type()), tmp_path / "a.parquet", 100)
    table = published(tmp_path / "root", {"main": [file]}).table().select(["i"])
    for shuffle in (False, True):
        before = pool.calls
        assert sum(batch.num_rows for batch in table.batches(50, shuffle=shuffle)) == 1000
        assert pool.calls > before


def test_a_process_does_not_fork_while_memory_is_given_back(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decode, "_RELEASE_S", 0.0)
    pool.wait_s = 0.3
    thread = threading.Thread(target=decode._RELEASING.after_decoding)
    thread.start()
    assert pool.entered.wait(10)
    child = os.fork()
    if not child:
        os._exit(int(pool.is_inside))
    assert os.waitpid(child, 0)[1] == 0
    thread.join()
    assert decode._RELEASING.lock.acquire(blocking=False)
    decode._RELEASING.lock.release()
