"""Where decoded rows are in memory, and what a process that forks meanwhile may rely on."""

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from relive.publish.read import decode
from tests.publish.read.sample_tables import as_stored, every_type, published, write


@pytest.fixture
def fresh_pool() -> Iterator[None]:
    decode._pool.cache_clear()
    yield
    decode._pool.cache_clear()


@pytest.mark.usefixtures("fresh_pool")
@pytest.mark.parametrize("chosen", ["", "system"])
def test_rows_are_decoded_into_memory_that_is_given_back(
    chosen: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ARROW_DEFAULT_MEMORY_POOL", chosen)
    file = write(as_stored(every_type()), tmp_path / "a.parquet", 100)
    table = published(tmp_path / "root", {"main": [file]}).table().select(["i"])
    pool = pa.jemalloc_memory_pool()
    before = pool.bytes_allocated()
    batch = next(table.batches(50))
    assert (pool.bytes_allocated() > before) == (not chosen)
    del batch
    assert pool.bytes_allocated() == before


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_process_may_fork_while_its_threads_decode(*, shuffle: bool, tmp_path: Path) -> None:
    file = write(as_stored(every_type()), tmp_path / "a.parquet", 100)
    table = published(tmp_path / "root", {"main": [file]}).table()
    enough = threading.Event()

    def read() -> None:
        while not enough.is_set():
            for _ in table.batches(50, shuffle=shuffle):
                pass

    thread = threading.Thread(target=read)
    thread.start()
    try:
        for _ in range(10):
            child = os.fork()
            if not child:
                signal.alarm(60)
                rows = sum(batch.num_rows for batch in table.batches(50, shuffle=shuffle))
                os._exit(0 if rows == 1000 else 1)
            assert os.waitpid(child, 0)[1] == 0
    finally:
        enough.set()
        thread.join()
