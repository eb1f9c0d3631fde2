"""A full disk, a folder that may not be written to, an encoder that fails, records that do not fit.

Each is told by a typed error at the call that caused it or at the next one, and what was recorded
before is kept. With `RELIVE_KILLS=all` (`make faults`) the disk is filled in every way.
"""

import contextlib
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relive import episodes as record
from relive.episodes import (
    DiskEpisode,
    DiskEpisodeWriter,
    LocalDataset,
    VideoSpec,
    recover,
    validate,
)
from relive.errors import (
    AlreadyExistsError,
    CorruptError,
    EncoderError,
    InvalidError,
    ReliveError,
    UnfinishedError,
)
from relive.store.signal.tape import tape_path
from tests.faults.episodes.programs import full as episodes_full
from tests.faults.episodes.programs import readonly as episodes_readonly
from tests.faults.episodes.programs.robot import frame, number_of
from tests.faults.records.programs.syscalls import environment

Note = Callable[[str, object], None]
pytestmark = pytest.mark.timeout(1800)

IS_LONG = os.environ.get("RELIVE_KILLS") == "all"
ROOMS = (0, 4096, 60_000, 600_000) if IS_LONG else (0, 60_000)
PROFILES = ("record", "lossless", "fast", "compact") if IS_LONG else ("record",)


def _script(module: Any, *args: object, **options: Any) -> list[str]:
    return [sys.executable, str(module.__file__), *map(str, args)]


@pytest.mark.needs("mounts")
@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("room", ROOMS)
def test_a_disk_that_is_full_in_mid_recording(
    room: int, profile: str, tmp_path: Path, record_property: Note
) -> None:
    program = _script(episodes_full, tmp_path / "disk", room, profile)
    done = subprocess.run(
        ["unshare", "-m", *program], capture_output=True, text=True, env=environment()
    )
    assert done.returncode == 0, done.stderr
    figure = f"episodes: disk full with {room} bytes left, {profile}: {done.stdout.strip()}"
    record_property("figure", figure)


@pytest.mark.needs("mounts")
def test_a_disk_that_is_read_only(tmp_path: Path) -> None:
    program = ["unshare", "-m", *_script(episodes_readonly, "mount", tmp_path / "disk")]
    done = subprocess.run(program, capture_output=True, text=True, env=environment())
    assert done.returncode == 0, done.stderr


def test_folders_that_may_not_be_written_to() -> None:
    with tempfile.TemporaryDirectory() as folder:  # not in one that only we may enter
        program = _script(episodes_readonly, "mode", folder)
        done = subprocess.run(program, capture_output=True, text=True, env=environment())
        for path in Path(folder).rglob("*"):
            if path.is_dir():
                path.chmod(0o755)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("how", ["_fails_late", "_fails_at_once"])
def test_an_encoder_that_fails(how: str, tmp_path: Path) -> None:
    # In a process of its own: x264 ends one that asks for more behind a failure.
    context = multiprocessing.get_context("forkserver")
    process = context.Process(target=globals()[how], args=(tmp_path,))
    process.start()
    process.join()
    assert process.exitcode == 0


def _fails_late(folder: Path) -> None:
    """x264 is to write statistics to a disk that is full, and fails when their buffer is."""
    (folder / "x.log.temp").symlink_to("/dev/full")
    spec = VideoSpec(options={"x264-params": f"pass=1:stats={folder}/x.log"})
    writer = DiskEpisodeWriter(folder / "ep", signals={"cam": spec})
    taken = _until_refused(writer)
    assert taken > 20
    # Everything else goes on.
    writer.append("state", np.full(3, taken, np.float64), taken)
    writer.append("late", 1.0, 5)
    writer.set_static("task", "pick")
    _check_unfinished(writer)
    episode = DiskEpisode(folder / "ep")
    assert 20 < len(episode["cam"]) < taken
    for number, (got, _) in enumerate(episode["cam"]):
        assert number_of(got) == number
    assert len(episode["state"]) == taken + 1
    assert episode["late"][0] == (1.0, 5)
    assert episode["task"] == "pick"


def _fails_at_once(folder: Path) -> None:
    """An encoder that opens, and refuses its first frame for its size."""
    spec = VideoSpec(codec="vc2")
    writer = DiskEpisodeWriter(folder / "ep", signals={"cam": spec})
    taken = _until_refused(writer)
    _check_refused(writer)
    (found,) = recover(writer.path).episodes
    (problem,) = found.problems
    assert "frame 0 of" in problem
    assert "cannot be encoded" in problem
    assert (writer.path / ".cam.mp4.spill").stat().st_size > frame(0).nbytes  # the frames are kept
    episode = DiskEpisode(folder / "ep")
    assert len(episode["state"]) == taken
    assert "cam" not in episode.signals


def _until_refused(writer: DiskEpisodeWriter) -> int:
    for number in range(1000):
        writer.append("state", np.full(3, number, np.float64), number)
        try:
            writer.append("cam", frame(number), number)
        except EncoderError as error:
            assert "'cam'" in error.message  # noqa: PT017 - told at one of many calls
            return number + 1
        time.sleep(0.002)
    raise AssertionError("the encoder never failed")


def _check_unfinished(writer: DiskEpisodeWriter) -> None:
    _check_refused(writer)
    (found,) = recover(writer.path).episodes
    assert not found.problems
    assert validate(writer.path, level="full").ok


def _check_refused(writer: DiskEpisodeWriter) -> None:
    with pytest.raises(EncoderError, match="'cam'"):
        writer.append("cam", frame(0), 10**6)
    with pytest.raises(EncoderError, match="'cam'"):
        writer.flush()
    with pytest.raises(EncoderError, match="'cam'"):
        writer.close()
    with pytest.raises(UnfinishedError):
        DiskEpisode(writer.path)


def _refusals() -> Iterator[tuple[str, Any, int, dict[str, int] | None]]:
    """Give records that do not fit to those before: name, data, time and clocks."""
    state, cam = np.zeros(3), frame(0)
    yield "state", np.zeros(4), 100, None
    yield "state", np.zeros((3, 1)), 100, None
    yield "state", np.zeros(3, np.float32), 100, None
    yield "state", "text", 100, None
    yield "state", state, 4, None
    yield "state", state, 100, {"sensor": 1}
    yield "state", np.zeros(3, complex), 100, None
    yield "state", np.array(["a", "b", "c"]), 100, None
    yield "state", state, 1 << 63, None
    yield "cam", np.zeros((64, 66, 3), np.uint8), 100, None
    yield "cam", cam[:, :, :1], 100, None
    yield "cam", cam.astype(np.uint16), 100, None
    yield "cam", cam, -1, None
    yield "cam", cam, 100, {"sensor": 1}
    yield "note", 1.5, 100, None
    yield "note", b"bytes", 100, None
    yield "task", 1.0, 100, None
    yield "", 1.0, 100, None
    yield "a\0b", 1.0, 100, None
    yield "a" * 201, 1.0, 100, None
    yield "new", object(), 100, None
    yield "new", np.zeros(3, complex), 100, None


def test_records_that_do_not_fit(tmp_path: Path) -> None:
    with DiskEpisodeWriter(tmp_path / "ep") as writer:
        writer.set_static("task", "pick")
        for number in range(5):
            writer.append("state", np.full(3, float(number)), number)
            writer.append("cam", frame(number), number)
            writer.append("note", f"note {number}", number)
        for name, data, ts, clocks in _refusals():
            with pytest.raises(ReliveError) as raised:
                writer.append(name, data, ts, clocks)
            assert isinstance(raised.value, ValueError | TypeError)
            assert not name.isalpha() or len(name) > 9 or name in str(raised.value)
        for name in ("task", "state", "cam"):
            with pytest.raises(InvalidError, match=name):
                writer.set_static(name, 1)
        writer.append("state", np.full(3, 5.0), 5)
        writer.append("cam", frame(5), 5)
        writer.append("note", "note 5", 5)
    assert validate(tmp_path / "ep", level="full").ok
    episode = DiskEpisode(tmp_path / "ep")
    assert [*episode.signals] == ["cam", "note", "state"]
    assert dict(episode.statics) == {"task": "pick"}
    for number in range(6):
        assert (episode["state"][number][0] == number).all()
        assert number_of(episode["cam"][number][0]) == number
        assert episode["note"][number] == (f"note {number}", number)
    assert {len(signal) for signal in episode.signals.values()} == {6}


def test_names_that_would_want_one_file_do_not(tmp_path: Path) -> None:
    names = ["a/b", "a%2Fb", "a%b", ".a", "%2Ea", "a.frames", "a", "a.parquet", "a.mp4", "A"]
    with DiskEpisodeWriter(tmp_path / "ep") as writer:
        for number, name in enumerate(names):
            writer.append(name, float(number), number)
            writer.append(f"{name} cam", frame(number), number)
    episode = DiskEpisode(tmp_path / "ep")
    assert len(episode.signals) == 2 * len(names)
    for number, name in enumerate(names):
        assert episode[name][0] == (float(number), number)
        assert number_of(episode[f"{name} cam"][0][0]) == number
    with pytest.raises(AlreadyExistsError):
        DiskEpisodeWriter(tmp_path / "ep")


def test_abort_leaves_alone_what_somebody_recovered(tmp_path: Path) -> None:
    for number in range(2):
        writer = record.LocalDatasetWriter(tmp_path).new_episode()
        writer.append("state", 1.0, 1)
        writer.leave()
        if number:
            recover(tmp_path)
        writer.abort()
        assert len(LocalDataset(tmp_path)) == number
        assert not LocalDataset(tmp_path).unfinished


def test_a_file_that_somebody_else_made_meanwhile_stays(tmp_path: Path) -> None:
    place = tmp_path / "x.parquet"
    writer = record.SimpleSignalWriter(place)
    writer.append(1.0, 1)
    with record.SimpleSignalWriter(tmp_path / "y.parquet") as other:
        other.append(2.0, 2)
    (tmp_path / "y.parquet").rename(place)
    with pytest.raises(AlreadyExistsError):
        writer.close()
    with pytest.raises(AlreadyExistsError, match="move it to another directory"):
        recover(place)
    assert record.SimpleSignal(place)[0] == (2.0, 2)
    place.rename(tmp_path / "y.parquet")
    assert recover(place).signals == {"x": 1}
    assert record.SimpleSignal(place)[0] == (1.0, 1)

    video, index = tmp_path / "cam.mp4", tmp_path / "cam.frames.parquet"
    camera = record.VideoSignalWriter(video)
    camera.append(frame(1), 1)
    index.write_bytes(b"somebody's")
    with pytest.raises(AlreadyExistsError):
        camera.close()
    assert index.read_bytes() == b"somebody's"
    index.unlink()
    assert recover(video).signals == {"cam": 1}
    assert number_of(record.VideoSignal(video, index)[0][0]) == 1


def test_a_damaged_tape_of_a_single_signal_is_told(tmp_path: Path) -> None:
    place = tmp_path / "x.parquet"
    tape = tape_path(place)
    with contextlib.suppress(KeyError), record.SimpleSignalWriter(place) as writer:
        for number in range(10):
            writer.append(float(number), number)
            writer.flush()
        raise KeyError
    content = bytearray(tape.read_bytes())
    content[len(content) // 2] ^= 1
    tape.write_bytes(content)
    with pytest.raises(CorruptError, match=r"is damaged at byte \d+"):
        recover(place)
    kept = record.SimpleSignal(place)
    assert 0 < len(kept) < 10
    assert kept.timestamps.tolist() == [*range(len(kept))]
    assert tape.with_name(f"{tape.name}.damaged").read_bytes() == content
    assert not recover(place).signals
