"""Commits in a WAL that SQLite does not use are found, and what a kill leaves is not damage."""

import itertools
import random
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from relive.replay import (
    ReplayConfig,
    ReplayRecorder,
    ReplayRun,
    archive,
    compact,
    delete,
    recover,
    validate,
)
from relive.replay.migrate import migrate
from relive.replay.storage import unused_commits as module
from relive.replay.storage.connection import Database
from relive.replay.storage.layout import database_path
from relive.replay.storage.unused_commits import (
    UnusedCommits,
    keep_unused_commits,
    unused_commits,
)
from relive.replay.storage.wal import wal_path
from tests.replay import toy_run
from tests.replay.all_uses import old_database

PAGE: Final = 512
FRAME: Final = 24 + PAGE
HEADER: Final = 32
WARNING: Final = "cannot be used: the file was damaged, or the power was cut"


class Log:
    """A database with a small WAL, and a connection that writes to it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "live.sqlite"
        self.rng = random.Random(1)  # noqa: S311 - content, not secrets
        self.client = sqlite3.connect(self.path, isolation_level=None)
        self.client.execute(f"PRAGMA page_size = {PAGE}")
        self.client.execute("PRAGMA journal_mode = WAL")
        self.client.execute("CREATE TABLE numbers (number INTEGER PRIMARY KEY, data BLOB)")
        self.reopen()

    def reopen(self) -> None:
        """Begin a new WAL. SQLite removes the old one."""
        self.client.close()
        self.client = sqlite3.connect(self.path, isolation_level=None)
        self.client.execute("PRAGMA wal_autocheckpoint = 0")

    def empty(self) -> None:
        """Begin a new WAL in the same file."""
        self.client.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def restart(self) -> None:
        """Make the next commit begin the WAL again, over what it has."""
        self.client.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()

    def commit(self, rows: int = 1) -> None:
        values = [(self.rng.randbytes(40),) for _ in range(rows)]
        self.client.execute("BEGIN")
        self.client.executemany("INSERT INTO numbers (data) VALUES (?)", values)
        self.client.execute("COMMIT")

    def count(self) -> int:
        (count,) = self.client.execute("SELECT count(*) FROM numbers").fetchone()
        return int(count)

    def bytes(self) -> bytes:
        return wal_path(self.path).read_bytes()


class Copy:
    """A copy of a database, whose WAL is replaced."""

    def __init__(self, log: Log, folder: Path) -> None:
        self.path = folder / "copy.sqlite"
        self._log = log
        self._folder = folder

    def found(self, data: bytes) -> UnusedCommits | None:
        """Return what is found in a WAL."""
        wal_path(self.path).write_bytes(data)
        return unused_commits(self.path)

    def rows(self, data: bytes) -> int:
        """Return how many rows SQLite reads with a WAL."""
        shutil.copy(self._log.path, self.path)
        wal_path(self.path).write_bytes(data)
        client = sqlite3.connect(f"file:{self.path}?mode=ro", uri=True)
        (count,) = client.execute("SELECT count(*) FROM numbers").fetchone()
        client.close()
        self.path.with_name(f"{self.path.name}-shm").unlink()
        return int(count)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    made = Log(tmp_path)
    yield made
    made.client.close()


@pytest.fixture
def copy(log: Log, tmp_path: Path) -> Copy:
    return Copy(log, tmp_path)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PAUSE_S", 0.0)


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def garbled(data: bytes, start: int, count: int) -> bytes:
    changed = bytes(byte ^ 0x5A for byte in data[start : start + count])
    return data[:start] + changed + data[start + count :]


def test_a_database_without_a_wal(tmp_path: Path, log: Log) -> None:
    assert unused_commits(tmp_path / "nothing.sqlite") is None
    log.commit()
    log.empty()
    assert log.bytes() == b""
    assert unused_commits(log.path) is None


def test_a_wal_that_is_written(log: Log) -> None:
    for _ in range(40):
        log.commit()
        assert unused_commits(log.path) is None


@pytest.mark.parametrize("generation", [1, 2])
def test_every_flipped_bit(generation: int, log: Log, copy: Copy) -> None:
    if generation > 1:  # the last frame may be over one of an earlier generation
        log.commit(8)
        log.empty()
    for _ in range(2):
        log.commit(2)
    data = log.bytes()
    assert len(data) <= HEADER + 5 * FRAME
    count = log.count()
    for bit in range(0, 8 * len(data), 1 if generation == 1 else 5):
        found = copy.found(flipped(data, bit))
        assert found is not None, bit
        assert found.frame == max(0, (bit // 8 - HEADER) // FRAME + 1)
        assert found.offset == max(0, found.frame - 1) * FRAME + bool(found.frame) * HEADER
        # SQLite reads as many commits less as were found.
        if bit % 97 == 0:
            assert copy.rows(flipped(data, bit)) == count - 2 * found.commits


def test_a_wal_that_is_cut_at_every_byte(log: Log, copy: Copy) -> None:
    for _ in range(3):
        log.commit(8)
    data = log.bytes()
    for end in range(len(data) + 1):
        assert copy.found(data[:end]) is None, end


def test_a_kill_at_every_byte_over_an_earlier_generation(log: Log, copy: Copy) -> None:
    for _ in range(6):
        log.commit(8)
    log.restart()
    states = [log.bytes()]
    for _ in range(2):
        log.commit(8)
        states.append(log.bytes())
    assert len({len(state) for state in states}) == 1
    for before, after in itertools.pairwise(states):
        assert before != after
        assert copy.found(after) is None
        # A header is written at once, then the frames, one after the other.
        for written in range(HEADER, len(after), 8):
            if before[written:] != after[written:]:
                assert copy.found(after[:written] + before[written:]) is None, written


def test_bits_of_an_earlier_generation_are_not_damage(log: Log, copy: Copy) -> None:
    for _ in range(6):
        log.commit(8)
    log.restart()
    log.commit(8)
    data = log.bytes()
    used = HEADER + _frames_of(data) * FRAME
    for bit in range(8 * used, 8 * len(data), 61):
        assert copy.found(flipped(data, bit)) is None
    for bit in range(0, 8 * used, 61):
        assert copy.found(flipped(data, bit)) is not None


def test_a_header_without_frames_of_its_own(log: Log, copy: Copy) -> None:
    for _ in range(3):
        log.commit(8)
    before = log.bytes()
    log.restart()
    log.commit(8)
    data = log.bytes()[:HEADER] + before[HEADER:]
    assert copy.found(data) is None
    for bit in range(8 * HEADER):
        assert copy.found(flipped(data, bit)) is None


def test_a_transaction_that_was_not_committed(log: Log, copy: Copy) -> None:
    log.commit(8)
    committed = log.bytes()
    log.client.execute("PRAGMA cache_size = 4")  # pages are written before the commit, and again
    log.client.execute("BEGIN")
    states = []
    for _ in range(150):
        row = log.rng.randrange(1000, 1 << 30), log.rng.randbytes(150)
        log.client.execute("INSERT INTO numbers VALUES (?, ?)", row)
        states.append(log.bytes())
    log.client.execute("ROLLBACK")
    assert len(states[-1]) > len(committed) + 20 * FRAME
    for state in states:
        assert copy.found(state) is None
    for bit in range(8 * len(committed), 8 * len(states[-1]), 4099):
        assert copy.found(flipped(states[-1], bit)) is None
    # The next commits overwrite it, and have the same salts.
    for _ in range(3):
        log.commit()
        assert copy.found(log.bytes()) is None


def test_what_is_found_of_greater_damage(log: Log, copy: Copy) -> None:
    for _ in range(4):
        log.commit(8)
    data = log.bytes()
    for count in (2, 100, FRAME, 3 * FRAME):
        found = copy.found(garbled(data, HEADER + FRAME, count))
        assert found is not None
        assert found.frame == 2
        found = copy.found(garbled(data, 0, min(count, HEADER)))
        assert found == UnusedCommits(wal_path(copy.path), 0, 0, found.commits if found else 0)
        assert found.commits >= 3
    message = str(copy.found(garbled(data, HEADER + FRAME, 9)).error())  # type: ignore[union-attr]
    assert f"frame 2 of `{wal_path(copy.path)}`, at byte {HEADER + FRAME}, is wrong" in message
    assert WARNING in message
    assert copy.found(bytes(len(data))) is None


def test_a_transaction_that_other_writers_did_not_know_of(log: Log, copy: Copy) -> None:
    # Its writer was killed before it changed the memory that connections share.
    log.commit(8)
    before = log.bytes()
    start = shutil.copytree(log.path.parent, copy.path.parent / "start")
    log.commit(40)
    unknown = log.bytes()
    other = sqlite3.connect(start / log.path.name, isolation_level=None)
    other.execute("PRAGMA wal_autocheckpoint = 0")
    values = [(random.Random(2).randbytes(40),) for _ in range(8)]  # noqa: S311 - content
    other.execute("BEGIN")
    other.executemany("INSERT INTO numbers (data) VALUES (?)", values)
    other.execute("COMMIT")
    written = wal_path(start / log.path.name).read_bytes()
    other.close()
    assert written.startswith(before)
    assert len(before) + 2 * FRAME < len(written) < len(unknown) - 2 * FRAME
    # The next writer is killed, or seen, between any two of its writes: the head of a frame, its
    # page. The first page of a database may differ by one bit, which would look like damage.
    for start_of_frame in range(len(before), len(written), FRAME):
        is_first_page = written[start_of_frame : start_of_frame + 4] == b"\0\0\0\1"
        for end in (start_of_frame, start_of_frame + (0 if is_first_page else 24)):
            assert copy.found(written[:end] + unknown[end:]) is None
    assert copy.found(written + unknown[len(written) :]) is None
    # A flipped bit is found all the same, as far as the last commit that is used.
    state = written + unknown[len(written) :]
    for bit in range(0, 8 * len(written), 97):
        assert copy.found(flipped(state, bit)) is not None


def test_damage_of_the_last_commit_looks_like_a_kill(log: Log, copy: Copy) -> None:
    log.commit(8)
    data = log.bytes()
    assert copy.found(garbled(data, len(data) - 90, 90)) is None
    assert copy.found(flipped(data, 8 * len(data) - 9)) is not None
    log.commit(8)
    log.commit(8)
    found = copy.found(garbled(log.bytes(), len(data) - 90, 90))
    assert found is not None
    assert (found.offset, found.commits) == (len(data) - FRAME, 2)


def test_a_large_transaction_is_not_damage_for_certain(log: Log, copy: Copy) -> None:
    # SQLite may have written its pages twice, and was killed while it computed the checksums.
    log.commit(8)
    log.commit(40_000)
    data = log.bytes()
    assert len(data) > 2 << 20
    assert copy.found(garbled(data, len(data) // 2, 9)) is None
    assert copy.found(flipped(data, 4 * len(data))) is not None
    log.commit(8)
    found = copy.found(garbled(log.bytes(), len(data) // 2, 9))
    assert found is not None
    assert found.commits == 2


def test_checksums_of_the_other_byte_order(log: Log, copy: Copy) -> None:
    for _ in range(3):
        log.commit(8)
    data = _other_byte_order(log.bytes())
    assert copy.found(data) is None
    assert copy.rows(data) == log.count()
    for bit in range(0, 8 * len(data), 53):
        assert copy.found(flipped(data, bit)) is not None


def test_a_wal_that_changes_is_not_reported(
    log: Log, copy: Copy, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        log.commit(8)
    data = log.bytes()
    wal_path(copy.path).write_bytes(flipped(data, 8 * (HEADER + 100)))
    monkeypatch.setattr(time, "sleep", lambda _: wal_path(copy.path).write_bytes(data))
    assert unused_commits(copy.path) is None


def test_a_wal_that_is_begun_again_while_it_is_examined(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.client.close()
    is_over = threading.Event()

    def write() -> None:
        log.client = sqlite3.connect(log.path, isolation_level=None)
        log.client.execute("PRAGMA synchronous = OFF")
        log.client.execute("PRAGMA wal_autocheckpoint = 20")
        while not is_over.is_set():
            log.commit(log.rng.randrange(1, 30))
        log.client.close()

    writer = threading.Thread(target=write)
    writer.start()
    headers: set[bytes] = set()
    try:
        while len(headers) < 100:
            assert unused_commits(log.path) is None
            if wal_path(log.path).exists():
                headers.add(log.bytes()[:HEADER])
    finally:
        is_over.set()
        writer.join()


def test_a_link_to_a_database(log: Log, copy: Copy, tmp_path: Path) -> None:
    log.commit(8)
    copy.found(flipped(log.bytes(), 999))
    copy.path.touch()
    link = tmp_path / "other" / "link.sqlite"
    link.parent.mkdir()
    link.symlink_to(copy.path)
    assert unused_commits(link) == unused_commits(copy.path)


def test_the_same_bytes_are_copied_once(log: Log, copy: Copy) -> None:
    log.commit(8)
    one, other = (flipped(log.bytes(), bit) for bit in (999, 1999))
    assert keep_unused_commits(copy.path) is None
    assert copy.found(one) is not None
    assert _copied(copy.path) == ("damaged-1", True)
    assert _copied(copy.path) == ("damaged-1", False)
    assert copy.found(other) is not None
    assert _copied(copy.path) == ("damaged-2", True)
    names = [f"copy.sqlite-wal.damaged-{number}" for number in (1, 2)]
    assert [copy.path.with_name(name).read_bytes() for name in names] == [one, other]


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A root with a finished run, and a killed one of which commits cannot be used."""
    root = tmp_path / "root"
    toy_run.record(root, "done", 3)
    config = ReplayConfig(flush_s=3600)
    left = ReplayRecorder(root, "left", config=config, live=None)
    for number in range(12):
        left.step([number], number, 0.5)
        left.flush()
    other = tmp_path / "killed"
    shutil.copytree(root, other)  # while it is open, as after a kill
    left.leave()
    path = wal_path(database_path(other))
    size = path.stat().st_size
    path.write_bytes(flipped(path.read_bytes(), 6 * size))
    return other


def test_validate_reports_it(damaged: Path) -> None:
    path = wal_path(database_path(damaged))
    found = unused_commits(database_path(damaged))
    assert found is not None
    left = ReplayRun(damaged, "left")
    assert 0 < len(left) < 12
    for target in (damaged, damaged / "replay" / "left.h5"):
        for level in ("index", "sample", "full"):
            (problem,) = validate(target, level).problems
            assert (problem.path, problem.offset) == (str(path), found.offset)
            assert problem.kind == "corrupt"
            assert WARNING in problem.message
    assert path.read_bytes()  # it is still there
    assert len(left) + found.commits == 12


def test_a_recorder_keeps_it(damaged: Path) -> None:
    path = wal_path(database_path(damaged))
    data, count = path.read_bytes(), len(ReplayRun(damaged, "left"))
    with pytest.warns(RuntimeWarning, match=f"{WARNING}.*; the file was copied to"):
        recorder = ReplayRecorder(damaged, "left", live=None)
    # The next one has nothing to keep, also while the first records.
    ReplayRecorder(damaged, "other", live=None).close()
    assert validate(damaged, "full").ok
    with recorder:
        recorder.step([1], 1, 0.5)
    assert len(ReplayRun(damaged, "left")) == count + 1
    assert validate(damaged, "full").ok
    assert path.with_name(f"{path.name}.damaged-1").read_bytes() == data
    assert len(list(path.parent.glob("*damaged*"))) == 1


def test_recover_keeps_it(damaged: Path) -> None:
    path = wal_path(database_path(damaged))
    data = path.read_bytes()
    found = recover(damaged)
    assert found.kept == path.with_name(f"{path.name}.damaged-1")
    assert found.kept.read_bytes() == data
    assert found.lost is not None
    assert WARNING in found.lost
    assert [run.run_id for run in found.runs] == ["left"]
    assert validate(damaged, "full").ok
    again = recover(damaged)
    assert (again.kept, again.lost) == (None, None)


@pytest.mark.parametrize("use", ["archive", "compact", "delete", "migrate"])
def test_other_writers_keep_it(use: str, damaged: Path, tmp_path: Path) -> None:
    path = wal_path(database_path(damaged))
    data = path.read_bytes()
    old_database(tmp_path / "old.sqlite")
    uses: dict[str, Callable[[], object]] = {
        "archive": lambda: archive(damaged, "done"),
        "compact": lambda: compact(damaged, "done"),
        "delete": lambda: delete(damaged, "done"),
        "migrate": lambda: migrate(tmp_path / "old.sqlite", damaged),
    }
    with pytest.warns(RuntimeWarning, match=WARNING):
        uses[use]()
    assert path.with_name(f"{path.name}.damaged-1").read_bytes() == data
    assert validate(damaged, "full").ok


def test_a_migration_keeps_that_of_the_original(tmp_path: Path) -> None:
    path = tmp_path / "old.sqlite"
    old_database(path)
    client = sqlite3.connect(path)
    for _ in range(3):
        client.execute("UPDATE steps SET reward = reward + 1")
        client.commit()
    killed = tmp_path / "killed.sqlite"
    shutil.copy(path, killed)
    data = flipped(wal_path(path).read_bytes(), 9999)
    client.close()
    wal_path(killed).write_bytes(data)
    with pytest.warns(RuntimeWarning, match=WARNING):
        migrate(killed, tmp_path / "root", drop_blobs=True)
    assert wal_path(killed).with_name("killed.sqlite-wal.damaged-1").read_bytes() == data


def test_a_reader_leaves_it(damaged: Path) -> None:
    path = wal_path(database_path(damaged))
    data = path.read_bytes()
    ReplayRun(damaged, "left").steps.to_pylist()
    assert path.read_bytes() == data
    assert list(path.parent.glob("*damaged*")) == []


def test_a_database_that_others_use_is_not_waited_for(damaged: Path) -> None:
    with Database.open(database_path(damaged)) as reader, reader.snapshot() as connection:
        connection.execute("SELECT count(*) FROM steps").fetchall()
        with pytest.warns(RuntimeWarning, match=WARNING):
            database = Database.create(database_path(damaged))
        assert database.rows("PRAGMA busy_timeout") == [(60_000,)]
    database.close()
    assert validate(damaged, "full").ok


def test_a_wal_that_cannot_be_read_is_a_problem(damaged: Path) -> None:
    path = wal_path(database_path(damaged))
    path.unlink()
    path.mkdir()
    assert str(path) in {problem.path for problem in validate(damaged).problems}


def _copied(path: Path) -> tuple[str, bool]:
    kept = keep_unused_commits(path)
    assert kept is not None
    return kept.copy.suffix[1:], kept.is_new


def _frames_of(data: bytes) -> int:
    """Return how many frames have the salts of the header."""
    starts = range(HEADER, len(data), FRAME)
    return sum(data[start + 8 : start + 16] == data[16:24] for start in starts)


def _other_byte_order(data: bytes) -> bytes:
    """Return a WAL with the checksums that a big-endian machine writes."""
    made = bytearray(data)
    made[3] ^= 1
    made[24:32] = _sum(made[:24], (0, 0))
    for start in range(HEADER, len(made), FRAME):
        before = made[24:32] if start == HEADER else made[start - FRAME + 16 : start - FRAME + 24]
        seed = int.from_bytes(before[:4]), int.from_bytes(before[4:])
        made[start + 16 : start + 24] = _sum(
            made[start : start + 8] + made[start + 24 : start + FRAME], seed
        )
    return bytes(made)


def _sum(data: bytearray, seed: tuple[int, int]) -> bytes:
    """Return the checksum as SQLite's documentation defines it."""
    one, two = seed
    for at in range(0, len(data), 8):
        one = (one + int.from_bytes(data[at : at + 4]) + two) & 0xFFFFFFFF
        two = (two + int.from_bytes(data[at + 4 : at + 8]) + one) & 0xFFFFFFFF
    return one.to_bytes(4) + two.to_bytes(4)
