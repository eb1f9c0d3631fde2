"""Tests of the life cycle that every writer must pass: close, abort, leave, Ctrl-C and fork."""

import contextlib
import gc
import itertools
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from relive.errors import AlreadyExistsError, ClosedError, InvalidTypeError, ReliveError
from relive.store.lifecycle import WriterLifecycle
from tests.contracts.writer_contract import WRITERS, Kind, files_in, wait_for_collected

ROOT = Path(__file__).parents[2]


class BlockError(Exception):
    """Raised by a `with` block."""


@pytest.fixture(params=WRITERS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def kind(name: str) -> Kind:
    return WRITERS[name]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "thing"


def append(kind: Kind, path: Path, count: int) -> Any:
    writer = kind.open(path)
    for number in range(count):
        kind.append(writer, number)
    return writer


def assert_ended(kind: Kind, writer: Any, *, aborted: bool = False) -> None:
    """Check that every call but a second `close` raises `ClosedError` and changes no file."""
    ends = [writer.leave, writer.__enter__]
    if writer._state == "closed":
        writer.close()
    else:
        ends.append(writer.close)
    if not aborted:
        ends += [] if writer._state == "left" else [writer.abort]
    for call in (lambda: kind.append(writer, 99), *ends):
        with pytest.raises(ClosedError):
            call()
    for refused in kind.calls:
        with pytest.raises(ClosedError):
            refused(writer)


def assert_unfinished(kind: Kind, path: Path, count: int) -> None:
    """Check that readers do not see the target, and that recovery returns everything."""
    with pytest.raises(ReliveError):
        kind.read(path)
    kind.recover(path)
    assert kind.read(path) == list(range(count))


def test_writer_is_a_writer_lifecycle(kind: Kind, path: Path) -> None:
    writer = kind.open(path)
    assert issubclass(type(writer), WriterLifecycle)
    assert "\n" not in repr(writer)
    assert isinstance(writer.path, str | Path)
    with pytest.raises(InvalidTypeError, match="cannot be pickled"):
        pickle.dumps(writer)
    writer.abort()


def test_leaving_the_block_commits(kind: Kind, path: Path) -> None:
    with kind.open(path) as writer:
        for number in range(5):
            kind.append(writer, number)
    assert kind.read(path) == [0, 1, 2, 3, 4]
    before = files_in(path.parent)
    assert_ended(kind, writer)
    assert files_in(path.parent) == before


def test_close_inside_the_block_commits(kind: Kind, path: Path) -> None:
    with kind.open(path) as writer:
        kind.append(writer, 0)
        writer.close()
    assert kind.read(path) == [0]


def test_close_raises_again_if_it_failed(
    kind: Kind, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = append(kind, path, 3)
    finish = writer._finish

    def fail() -> None:
        writer._keep_unfinished()
        raise BlockError("from the disk")

    monkeypatch.setattr(writer, "_finish", fail)
    with pytest.raises(BlockError):
        writer.close()
    monkeypatch.setattr(writer, "_finish", finish)
    with pytest.raises(ClosedError, match="left unfinished"):
        writer.close()


@pytest.mark.parametrize("where", ["local", "thread", "cycle"])
def test_dropped_writer_is_left(kind: Kind, path: Path, where: str) -> None:
    def record() -> None:
        writer = append(kind, path, 20)
        if where == "cycle":
            cycle: list[Any] = [writer]
            cycle.append(cycle)

    def drop() -> None:
        if where == "thread":
            thread = threading.Thread(target=record)
            thread.start()
            thread.join()
        else:
            record()
        gc.collect()

    with pytest.warns(ResourceWarning, match="was not closed; use `with`, or call close()"):
        drop()
    wait_for_collected()
    if kind.on_error == "unfinished":
        assert_unfinished(kind, path, 20)
    assert kind.read(path) == list(range(20))


def test_exception_in_the_block_is_raised_unchanged(kind: Kind, path: Path) -> None:
    error = BlockError("from the block")
    with pytest.raises(BlockError) as raised, append(kind, path, 3):
        raise error
    assert raised.value is error
    if kind.on_error == "unfinished":
        assert "relive recover" in "\n".join(error.__notes__)
        assert_unfinished(kind, path, 3)
    assert kind.read(path) == [0, 1, 2]


def test_abort_removes_everything(kind: Kind, path: Path) -> None:
    with kind.open(path) as writer:
        for number in range(3):
            kind.append(writer, number)
        writer.abort()
    writer.abort()
    assert kind.remains(path.parent) == {}
    assert_ended(kind, writer, aborted=True)
    assert kind.remains(path.parent) == {}


def test_leave_keeps_everything_unfinished(kind: Kind, path: Path) -> None:
    with append(kind, path, 3) as writer:
        writer.leave()
    assert_ended(kind, writer)
    if kind.on_error == "unfinished":
        assert_unfinished(kind, path, 3)
    assert kind.read(path) == [0, 1, 2]


def test_abort_after_leave(kind: Kind, path: Path) -> None:
    if kind.on_error == "committed":
        return  # the target left unfinished is committed
    writer = append(kind, path, 3)
    writer.leave()
    writer.abort()
    writer.abort()
    assert kind.remains(path.parent) == {}


def test_existing_target_raises(kind: Kind, path: Path) -> None:
    with append(kind, path, 2):
        pass
    if kind.shares_folder:
        with append(kind, path, 1):
            pass
        assert kind.read(path) == [0, 1, 0]
        return
    before = files_in(path.parent)
    with pytest.raises(AlreadyExistsError):
        kind.open(path)
    assert files_in(path.parent) == before
    assert issubclass(AlreadyExistsError, FileExistsError)


def assert_interrupted(kind: Kind, path: Path, least: int) -> None:
    """Check that the target is either whole or can be recovered whole."""
    if kind.on_interrupt == "unfinished":
        with pytest.raises(ReliveError):
            kind.read(path)
        kind.recover(path)
    found = kind.read(path)
    assert found == list(range(len(found)))
    assert len(found) >= least


def test_ctrl_c_while_appending(kind: Kind, path: Path) -> None:
    returned = 0
    enough = threading.Event()

    def press() -> None:
        enough.wait(60)
        os.kill(os.getpid(), signal.SIGINT)

    def record() -> None:
        nonlocal returned
        with kind.open(path) as writer:
            for number in itertools.count():
                kind.append(writer, number)
                returned += 1
                if number == 5:
                    enough.set()

    presser = threading.Thread(target=press)
    presser.start()
    with pytest.raises(KeyboardInterrupt):
        record()
    presser.join()
    assert_interrupted(kind, path, returned)


@pytest.mark.parametrize("end", ["close", "abort", "leave"])
def test_ctrl_c_while_closing(
    kind: Kind, path: Path, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = append(kind, path, 3)
    raised = threading.Event()

    def handler(*_: object) -> None:
        raised.set()
        raise KeyboardInterrupt

    def interrupted(work: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            os.kill(os.getpid(), signal.SIGINT)
            assert raised.wait(60)
            work()

        return run

    hook = {"close": "_finish", "abort": "_remove", "leave": "_keep_unfinished"}[end]
    monkeypatch.setattr(writer, hook, interrupted(getattr(writer, hook)))
    before = signal.signal(signal.SIGINT, handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            getattr(writer, end)()
    finally:
        signal.signal(signal.SIGINT, before)
    assert_ended(kind, writer, aborted=end == "abort")
    if end == "abort":
        assert kind.remains(path.parent) == {}
        return
    if end == "leave" and kind.on_error == "unfinished":
        kind.recover(path)
    assert kind.read(path) == [0, 1, 2]


@pytest.mark.parametrize("end", ["flush", "sync", "close", "leave"])
@pytest.mark.parametrize("how", ["files", "folder"])
def test_files_that_were_removed_are_noticed(kind: Kind, path: Path, end: str, how: str) -> None:
    folder = path.parent / "folder"
    folder.mkdir()
    writer = append(kind, folder / "thing", 3)
    writer.sync()
    if how == "folder":
        shutil.rmtree(folder)
    for file in [each for each in folder.rglob("*") if each.is_file()]:
        file.unlink()
    kind.append(writer, 3)
    with pytest.raises(ReliveError, match="removed"):
        getattr(writer, end)()
    with contextlib.suppress(ReliveError):
        writer.abort()


def test_any_file_that_was_removed_is_noticed_or_not_needed(kind: Kind, path: Path) -> None:
    for number in itertools.count():
        folder = path.parent / str(number)
        folder.mkdir()
        writer = append(kind, folder / "thing", 3)
        writer.sync()
        files = sorted(file for file in folder.rglob("*") if file.is_file())
        if number == len(files):
            writer.abort()
            return
        files[number].unlink()
        kind.append(writer, 3)
        try:
            writer.close()
        except ReliveError:
            continue
        assert kind.read(folder / "thing") == [0, 1, 2, 3], files[number]


def run(program: str, name: str, path: Path, *prefix: str) -> None:
    command = [*prefix, sys.executable, "-m", "tests.contracts.writer_contract"]
    done = subprocess.run(
        [*command, program, name, path], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr


def test_interpreter_exit_leaves_the_writer_unfinished(name: str, kind: Kind, path: Path) -> None:
    run("exit_without_closing", name, path)
    if kind.on_error == "unfinished":
        assert_unfinished(kind, path, 20)
    assert kind.read(path) == list(range(20))


def test_forked_child_cannot_write(name: str, path: Path) -> None:
    run("fork", name, path)


def test_file_size_limit(name: str, path: Path) -> None:
    run("fill_files", name, path)


@pytest.mark.needs("mounts")
def test_full_disk(name: str, path: Path) -> None:
    run("fill_disk", name, path, "unshare", "-m")
