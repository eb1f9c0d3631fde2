"""Where a file is expected, a named pipe, a socket or a device is refused, and nothing waits.

Files of data may be links to files; those of locks may not.
"""

import os
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import relive
from relive import _native
from relive.bridge.detect import detect_kind
from relive.episodes import validate as validate_episodes
from relive.episodes.write.signal_writer import free_path
from relive.errors import InvalidError, ReliveError
from relive.publish import validate as validate_dataset
from relive.replay import delete, recover
from relive.store.atomic import open_file, open_reader, read_file, whole_file
from relive.store.cache.page import open_page
from relive.store.cache.pins import Pins
from relive.store.locks import FileLock, is_locked, locked
from relive.store.video.container import scan

WAIT_S = 5.0
"""What waits for the other end of a pipe so long is woken, and fails."""
EPISODE = "episodes/000000000000/000000000000"
DATABASE = "runs/telemetry/telemetry.sqlite"
FRAME = np.zeros((16, 16, 3), np.uint8)

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with something of every part; never changed."""
    root = tmp_path_factory.mktemp("made")
    with relive.PackWriter(root / "a.a2pack") as pack:
        pack.append(b"x")
    with relive.RecordStore.create(root / "store", {"a": relive.Field("str")}) as store:
        store.append({"a": "x"})
    with relive.LocalDatasetWriter(root / "episodes").new_episode() as episode:
        for number in range(3):
            episode.append("q", np.array([0.5]), 1000 * number + 1)
            episode.append("cam", FRAME, 1000 * number + 1)
    with relive.ReplayRecorder(root / "runs", "run", live=None) as recorder:
        recorder.step([1.0], 1, 1.0, frame=FRAME)
    builder = relive.DatasetBuilder("ws/d", root=root / "published")
    builder.add_table("main", pa.table({"x": [1, 2, 3]}))
    builder.publish()
    np.save(root / "rows.npy", np.zeros((3, 2)))
    return root


def read_store(root: Path) -> None:
    relive.RecordStore.open(root / "store")[0]


def append(root: Path) -> None:
    with relive.RecordStore.open(root / "store", "a") as store:
        store.append({"a": "y"})


def read_episode(root: Path) -> None:
    episode = relive.LocalDataset(root / "episodes")[0]
    assert len(episode["q"]) == 3
    assert episode["cam"][0][0].shape == FRAME.shape


def read_run(root: Path) -> None:
    run = relive.ReplayRun(root / "runs", "run")
    assert run.read("frames", [0]).shape == (1, *FRAME.shape)


def record(root: Path) -> None:
    with relive.ReplayRecorder(root / "runs", "run", live=None) as recorder:
        recorder.step([1.0], 1, 1.0, frame=FRAME)


def read_table(root: Path) -> None:
    assert len(relive.dataset("ws/d", root=root / "published").table("main")) == 3


def publish(root: Path) -> None:
    builder = relive.DatasetBuilder("ws/d", root=root / "published")
    builder.add_table("main", pa.table({"x": [4]}))
    builder.publish()


USES: dict[str, list[Callable[[Path], object]]] = {
    "a.a2pack": [
        lambda root: relive.PackReader.open(root / "a.a2pack"),
        lambda root: relive.PackReader.open(root / "a.a2pack", io="pread"),
        lambda root: relive.open(root / "a.a2pack"),
        lambda root: detect_kind(str(root / "a.a2pack")),
        lambda root: relive.Run.load(root / "a.a2pack"),
        lambda root: scan(root / "a.a2pack"),
        lambda root: _native.TapeReader(str(root / "a.a2pack")),
    ],
    "rows.npy": [lambda root: relive.ArraySource(root / "rows.npy")],
    "store/meta.json": [read_store, append],
    "store/chunk/0.zr": [read_store, append],
    "store/1.journal": [read_store, append],
    "store/LOCK": [append],
    f"{EPISODE}/q.parquet": [read_episode],
    f"{EPISODE}/cam.mp4": [read_episode],
    f"{EPISODE}/cam.frames.parquet": [read_episode],
    f"{EPISODE}/files.json": [read_episode],
    "episodes/edits.jsonl": [read_episode],
    "runs/replay/run.h5": [read_run, record],
    "runs/replay/.run.lock": [record, lambda root: delete(root / "runs", "run")],
    DATABASE: [read_run, record, lambda root: delete(root / "runs", "run")],
    f"{DATABASE}-journal": [read_run, record, lambda root: recover(root / "runs")],
    f"{DATABASE}-wal": [read_run, record],
    f"{DATABASE}-shm": [read_run, record],
    "published/manifests/ws/d/latest.json": [read_table, publish],
    "published/relive.json": [publish],
    "published/.lock": [publish],
}
KINDS = {"pipe": "a named pipe", "socket": "a socket", "device": "a device"}


def copied(made: Path, folder: Path, name: str) -> Path:
    """Copy what a file is part of; return the file, which may not exist."""
    part = name.partition("/")[0]
    copy = shutil.copytree if (made / part).is_dir() else shutil.copy
    copy(made / part, folder / part)
    return folder / name


@contextmanager
def replaced(path: Path, kind: str) -> Iterator[None]:
    """Replace a file by something that is not one; wake up what waits for a pipe too long."""
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        before = Path.cwd()
        os.chdir(path.parent)  # the name of a socket is short
        try:
            with socket.socket(socket.AF_UNIX) as server:
                server.bind(path.name)
        finally:
            os.chdir(before)
    is_late = threading.Event()

    def wake() -> None:
        is_late.set()
        os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))

    timer = threading.Timer(WAIT_S, wake)
    if kind == "pipe":
        timer.start()
    try:
        yield
    finally:
        timer.cancel()
    assert not is_late.is_set()


@pytest.mark.needs("av")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", USES)
def test_what_is_not_a_file_is_refused(made: Path, tmp_path: Path, name: str, kind: str) -> None:
    # A device is a link here, which locks and SQLite refuse as such, and so SQLite does others.
    path = copied(made, tmp_path, name)
    for use in USES[name]:
        with replaced(path, kind), pytest.raises(InvalidError, match="expected a file") as raised:
            use(tmp_path)
        is_lock = path.name in {"LOCK", ".run.lock", ".lock"}
        what = "a symbolic link" if kind == "device" and is_lock else KINDS[kind]
        assert f"`{path}` is {what}, expected a file" in raised.value.message


@pytest.mark.needs("av")
@pytest.mark.parametrize("name", [name for name in USES if "sqlite-" not in name])
def test_data_may_be_linked_and_locks_may_not(made: Path, tmp_path: Path, name: str) -> None:
    path = copied(made, tmp_path, name)
    if not path.exists():
        path.write_bytes(b"")
    moved = path.rename(tmp_path / "moved")
    path.symlink_to(moved)
    if path.name in {"LOCK", ".run.lock", ".lock"}:
        for use in USES[name]:
            with pytest.raises(InvalidError, match="is a symbolic link, expected a file"):
                use(tmp_path)
        return
    use = USES[name][0]
    found = use(tmp_path)
    if isinstance(found, relive.PackReader):
        found.close()


def test_index_of_runs_that_is_not_a_file_is_left_alone(made: Path, tmp_path: Path) -> None:
    path = copied(made, tmp_path, "runs/replay/index.json")
    with replaced(path, "pipe"):
        record(tmp_path)
    assert path.is_fifo()


@pytest.mark.needs("av")
def test_validation_reports_what_is_not_a_file(made: Path, tmp_path: Path) -> None:
    path = copied(made, tmp_path, f"{EPISODE}/q.parquet")
    with replaced(path, "pipe"):
        report = validate_episodes(tmp_path / "episodes", level="full")
    assert not report.ok
    path = copied(made, tmp_path, "published/manifests/ws/d/latest.json")
    with replaced(path, "pipe"), pytest.raises(ReliveError, match="is a named pipe"):
        validate_dataset("ws/d", root=tmp_path / "published")


def test_cache_goes_on_without_what_is_not_a_file(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with replaced(path, "pipe"), open_page(str(path)) as page:
        assert page is None
    pins = Pins(tmp_path)
    with replaced(tmp_path / "pipe", "pipe"):
        pins.pin("name", ["0" * 64])
        assert pins.names() == ["name"]


def test_files_are_opened_without_waiting(tmp_path: Path) -> None:
    path = tmp_path / "x"
    uses: list[Callable[[], object]] = [
        lambda: open_file(path),
        lambda: open_file(path, os.O_WRONLY),
        lambda: open_reader(path),
        lambda: read_file(path),
        lambda: FileLock.take(path),
        lambda: FileLock.take(path, create=True),
        lambda: is_locked(path),
        lambda: locked(path).__enter__(),
        lambda: whole_file(path, overwrite=True).__enter__(),
        lambda: relive.PackWriter(path, overwrite=True),
        lambda: free_path(path, "a signal", overwrite=True),
    ]
    for use in uses:
        with replaced(path, "pipe"), pytest.raises(InvalidError, match=r"`.*x` is a named pipe"):
            use()
    assert path.is_fifo()
    path.unlink()
    with pytest.raises(IsADirectoryError):
        open_file(tmp_path)
    lock = FileLock.take(path, create=True)
    lock.release()
    link = tmp_path / "link"
    link.symlink_to(path)
    assert read_file(link) == b""
    with locked(link, follow=True):
        pass
    for use in (lambda: FileLock.take(link), lambda: is_locked(link)):
        with pytest.raises(InvalidError, match="is a symbolic link, expected a file"):
            use()
    (tmp_path / f"y.{os.getpid()}").symlink_to(path)  # the name that it has first
    with pytest.raises(InvalidError, match="is a symbolic link, expected a file"):
        FileLock.create(tmp_path / "y", b"")
