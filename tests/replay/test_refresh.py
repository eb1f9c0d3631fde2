"""A run that was read notices what is committed later, and only that."""

import multiprocessing
import shutil
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from relive.errors import NotFoundError
from relive.replay import FrameResolver, ReplayRecorder, ReplayRun
from relive.replay.source import DatabaseSource
from relive.replay.storage.connection import CommitWatch, Database, watch_of
from relive.replay.storage.layout import database_path
from tests.processes import open_files

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def record(root: Path, steps: int, run_id: str = "run") -> None:
    with ReplayRecorder(root, run_id, live=None) as recorder:
        for number in range(steps):
            recorder.step([number], number, 0.5)


def test_a_source_is_read_again_only_after_a_commit(tmp_path: Path) -> None:
    record(tmp_path, 3)
    source = DatabaseSource(tmp_path, "run").refreshed()
    assert source.refreshed() is source
    record(tmp_path, 3, "other")
    assert source.refreshed() is source  # and notes that only another run was written
    assert source.refreshed() is source
    record(tmp_path, 2)
    later = source.refreshed()
    assert (later.run.steps, source.run.steps) == (5, 3)
    assert later.continues(source)
    assert later.refreshed() is later
    assert source.is_valid()


def test_a_stamp_differs_after_each_commit(tmp_path: Path) -> None:
    record(tmp_path, 1)
    watch, other = (CommitWatch(database_path(tmp_path)) for _ in range(2))
    first = watch.stamp()
    assert watch.stamp() == first
    assert other.stamp() != first  # only comparable on one connection
    with ReplayRecorder(tmp_path, "run", live=None) as recorder:
        seen = {first}
        for number in range(10):
            recorder.step([number], number, 0.5)
            recorder.flush()
            with watch.snapshot() as (_, stamp):
                assert stamp not in seen
            assert watch.stamp() == stamp
            seen.add(stamp)


def test_a_kept_connection_is_closed_with_its_run(tmp_path: Path) -> None:
    record(tmp_path, 1)
    before = open_files(tmp_path)
    run = ReplayRun(tmp_path, "run")
    run.refresh()
    run.refresh()
    opened = open_files(tmp_path)
    assert opened > before
    others = [ReplayRun(tmp_path, "run") for _ in range(20)]
    for other in others:
        other.refresh()
    # All of them share it. SQLite closes a file that was opened once more only later.
    assert open_files(tmp_path) <= opened + 1
    del run, other, others
    assert open_files(tmp_path) == before


def in_a_fork(work: Callable[[Connection], None]) -> object:
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=work, args=(sender,))
    process.start()
    assert receiver.poll(60)
    found: object = receiver.recv()
    process.join()
    assert process.exitcode == 0
    return found


def test_a_forked_process_refreshes_with_a_connection_of_its_own(tmp_path: Path) -> None:
    with ReplayRecorder(tmp_path, "run", live=None) as recorder:
        recorder.step([0], 0, 0.5)
        recorder.flush()
        run, resolver = ReplayRun(tmp_path, "run"), FrameResolver(tmp_path / "replay")
        run.refresh()
        assert resolver.resolve("h5://run/actions/0") == 0
        recorder.step([1], 1, 0.5)
        recorder.flush()

        def work(pipe: Connection) -> None:
            run.refresh()
            pipe.send((len(run), int(resolver.resolve("h5://run/actions/1"))))

        assert in_a_fork(work) == (2, 1)
        # The end of the child neither ends the locks of this process nor removes the WAL.
        recorder.step([2], 2, 0.5)
        recorder.sync()
        run.refresh()
        assert len(run) == 3
    assert len(ReplayRun(tmp_path, "run")) == 3


def test_a_fork_waits_until_no_thread_reads(tmp_path: Path) -> None:
    record(tmp_path, 1)
    run = ReplayRun(tmp_path, "run")
    reading, done = threading.Event(), list[bool]()

    def read() -> None:
        with watch_of(database_path(tmp_path)).snapshot():
            reading.set()
            time.sleep(0.1)
            done.append(True)

    thread = threading.Thread(target=read)
    run.refresh()  # keeps what watches the database
    thread.start()
    reading.wait()

    def work(pipe: Connection) -> None:
        run.refresh()
        pipe.send(done)

    assert in_a_fork(work) == [True]
    thread.join()


def test_a_database_that_is_replaced_is_noticed(tmp_path: Path) -> None:
    root, other = tmp_path / "root", tmp_path / "other"
    record(root, 3)
    record(other, 5)
    run = ReplayRun(root, "run")
    run.refresh()
    run.refresh()
    shutil.rmtree(root)
    with pytest.raises(NotFoundError, match="does not exist"):
        run.refresh()
    other.rename(root)
    run.refresh()
    assert len(run) == 5


def test_the_log_is_empty_when_a_run_is_closed_while_another_reads_it(tmp_path: Path) -> None:
    with ReplayRecorder(tmp_path, "run", live=None) as recorder:
        recorder.step([0], 0, 0.5)
        recorder.flush()
        run = ReplayRun(tmp_path, "run")
        run.refresh()
        run.refresh()
    # The reader is still connected, so SQLite keeps the file of the WAL.
    wal = database_path(tmp_path).with_name("telemetry.sqlite-wal")
    assert wal.stat().st_size == 0
    del run


def test_what_watches_a_database_is_not_found_while_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(tmp_path, 1)
    path = database_path(tmp_path)
    watch: CommitWatch | None = watch_of(path)
    assert watch is not None
    watch.stamp()
    close, found = Database.close, list[CommitWatch]()

    def closing(database: Database) -> None:
        close(database)
        found.append(watch_of(path))  # as another thread may at this moment

    monkeypatch.setattr(Database, "close", closing)
    watch = None
    monkeypatch.undo()
    assert found[0].stamp() == found[0].stamp()
