"""Recovery of unfinished episodes and signals, from any truncation and any number of times."""

import json
import re
import shutil
import subprocess
import sys
import threading
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from relive.episodes import (
    DiskEpisodeWriter,
    LocalDatasetWriter,
    SimpleSignal,
    SimpleSignalWriter,
    VideoSignal,
    VideoSignalWriter,
    VideoSpec,
    recover,
    validate,
)
from relive.episodes.read.episode import DiskEpisode
from relive.episodes.read.local_dataset import LocalDataset
from relive.episodes.write import commit as folders
from relive.errors import CorruptError, InvalidError, LockedError, NotFoundError, StorageError
from relive.store import locks
from relive.store.atomic import fsync_directory
from relive.store.signal import tape as tapes
from tests.episodes.by_hand import list_files
from tests.episodes.lazy_tape import LazyTape

recovering = import_module("relive.episodes.recover")  # the function has the same name

STATICS = {"task": "pick", "key": b"\xff"}


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def frame(number: int) -> npt.NDArray[np.uint8]:
    return np.full((32, 48, 3), number * 8, np.uint8)


def leave(path: Path, rows: int = 12, spec: VideoSpec | None = None) -> str:
    """Record an episode and leave it unfinished; return its uid."""
    writer = DiskEpisodeWriter(path, signals={"/cam": spec or VideoSpec()})
    for name, value in STATICS.items():
        writer.set_static(name, value)
    writer.describe("state", unit="rad")
    for number in range(rows):
        writer.append("state", np.full(3, number), number)
        writer.append("/cam", frame(number), number, clocks={"sensor": -number})
        writer.append("note", f"n{number}", number)
        writer.append("depth", np.full((60, 80), number, np.uint16), number)
        if number % 3 == 2:
            writer.flush()
    writer.describe("state", names=["a", "b", "c"])
    writer.leave()
    return writer.uid


def check(path: Path, rows: dict[str, int]) -> DiskEpisode:
    """Check that exactly the first rows of each signal are present."""
    episode = DiskEpisode(path)
    assert {name: len(signal) for name, signal in episode.signals.items()} == rows
    assert dict(episode.statics) == STATICS
    assert not [name for name in names_in(path) if name.startswith(".")]
    for name, signal in episode.signals.items():
        assert signal.timestamps.tolist() == list(range(rows[name]))
        for number, (value, _) in enumerate(signal):
            if name == "/cam":
                assert abs(int(value.mean()) - number * 8) < 4
            elif name == "note":
                assert value == f"n{number}"
            else:
                assert (value == number).all()
    return episode


ALL = {"/cam": 12, "depth": 12, "note": 12, "state": 12}


def test_unfinished_episode_is_recovered_whole(tmp_path: Path) -> None:
    uid = leave(tmp_path / "ep")
    found = recover(tmp_path / "ep")
    assert found.path == tmp_path / "ep"
    (one,) = found.episodes
    assert (one.path, one.uid, one.signals) == (tmp_path / "ep", uid, ALL)
    assert one.problems == found.problems == ()
    episode = check(tmp_path / "ep", ALL)
    assert episode.uid == uid
    assert dict(episode["state"].attrs) == {"unit": "rad", "names": ["a", "b", "c"]}
    assert episode["/cam"].clock("sensor").tolist() == [-number for number in range(12)]
    assert episode.meta["outcome"]["ended"] == "recovered"
    assert episode.meta["outcome"]["signals"]["note"] == {"rows": 12, "dropped": None}


def test_recover_may_be_repeated(tmp_path: Path) -> None:
    leave(tmp_path / "ep")
    recover(tmp_path / "ep")
    before = {path: path.read_bytes() for path in (tmp_path / "ep").iterdir()}
    assert recover(tmp_path / "ep").episodes == ()
    assert {path: path.read_bytes() for path in (tmp_path / "ep").iterdir()} == before


@pytest.mark.parametrize(
    "name", [".state.parquet.tape", ".%2Fcam.mp4.tape", ".note.parquet.tape", ".depth.parquet.tape"]
)
def test_truncated_tape_keeps_its_first_rows(name: str, tmp_path: Path) -> None:
    leave(tmp_path / "whole", rows=12)
    size = (tmp_path / "whole" / name).stat().st_size
    signal = {".%2Fcam.mp4.tape": "/cam"}.get(name, name[1:-13])
    seen = set()
    for number, cut in enumerate(np.linspace(0, size - 1, 14).astype(int)):
        path = tmp_path / str(number)
        shutil.copytree(tmp_path / "whole", path)
        with (path / name).open("r+b") as file:
            file.truncate(cut)
        (one,) = recover(path).episodes
        rows = one.signals.get(signal, 0)
        seen.add(rows)
        assert not (one.kept and rows)  # without its head, the incomplete movie is kept
        for kept in one.kept:
            kept.unlink()
        expected = {key: value for key, value in (ALL | {signal: rows}).items() if value}
        assert one.signals == expected
        check(path, expected)
    assert 0 in seen
    assert len(seen) > 2


def test_truncated_tape_of_reordered_packets_keeps_whole_frames(tmp_path: Path) -> None:
    spec = VideoSpec(bframes=3, options={"tune": "animation"})
    leave(tmp_path / "whole", rows=30, spec=spec)
    tape = tmp_path / "whole" / ".%2Fcam.mp4.tape"
    size = tape.stat().st_size
    seen = set()
    for number, cut in enumerate(np.linspace(size // 3, size, 12).astype(int)):
        path = tmp_path / str(number)
        shutil.copytree(tmp_path / "whole", path)
        with (path / tape.name).open("r+b") as file:
            file.truncate(cut)
        (one,) = recover(path).episodes
        rows = one.signals.get("/cam", 0)
        seen.add(rows)
        check(
            path, dict.fromkeys(["depth", "note", "state"], 30) | ({"/cam": rows} if rows else {})
        )
    assert 30 in seen


def test_truncated_tape_of_reordered_packets_keeps_no_wrong_picture(tmp_path: Path) -> None:
    scenes = np.random.default_rng(1).integers(0, 256, (10, 48, 64, 3), np.uint8)
    options = {"tune": "film", "x264-params": "b-adapt=0"}
    writer = VideoSignalWriter(tmp_path / "cam.mp4", spec=VideoSpec(bframes=3, options=options))
    for number in range(30):
        writer.append(scenes[(number + 3) // 4], number)  # like the P-frame that comes after it
        writer.flush()  # a record of the tape for each frame
    writer.leave()
    tape = (tmp_path / ".cam.mp4.tape").read_bytes()
    expected: list[npt.NDArray[np.uint8]] = []
    seen = set()
    records = [found.start() for found in re.finditer(b"JREC", tape)]
    for cut in [len(tape), *reversed(records[4:])]:
        for path in tmp_path.iterdir():
            path.unlink()
        (tmp_path / ".cam.mp4.tape").write_bytes(tape[:cut])
        recover(tmp_path / ".cam.mp4.tape")
        signal = VideoSignal(tmp_path / "cam.mp4", tmp_path / "cam.frames.parquet")
        pictures = [picture for picture, _ in signal]
        expected = expected or pictures
        seen.add(len(pictures))
        for one, other in zip(pictures, expected, strict=False):
            np.testing.assert_array_equal(one, other)
    assert 30 in seen
    assert len(seen) > 4


class Stop(BaseException):
    """Stands for the kill of the process."""


@pytest.mark.parametrize("step", range(9))
def test_interrupted_recovery_can_be_repeated(
    step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave(tmp_path / "ep")
    left = step

    def stopping(call: object) -> object:
        def run(*arguments: object, **named: object) -> object:
            nonlocal left
            left -= 1
            if left < 0:
                raise Stop
            return call(*arguments, **named)  # type: ignore[operator]

        return run

    for name in ("seal_columns", "seal_video", "write_json", "commit"):
        monkeypatch.setattr(recovering, name, stopping(getattr(recovering, name)))
    monkeypatch.setattr(folders, "fsync_directory", stopping(fsync_directory))
    with pytest.raises(Stop):
        recover(tmp_path / "ep")
    monkeypatch.undo()
    recover(tmp_path / "ep")
    check(tmp_path / "ep", ALL)


def test_existing_files_are_kept(tmp_path: Path) -> None:
    leave(tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    recover(tmp_path / "a")
    done = tmp_path / "a"
    half = tmp_path / "b"
    # The writer died when two signals had their files, and one of them still had its tape.
    for name in ("state.parquet", "%2Fcam.mp4", "%2Fcam.frames.parquet"):
        shutil.copy(done / name, half / name)
    (half / ".state.parquet.tape").unlink()
    (half / ".%2Fcam.mp4.tape").write_bytes(b"no tape at all")
    (half / "note.parquet").with_name(".note.parquet.part").write_bytes(b"half")
    (half / ".static.json.0123abcd").write_bytes(b"{")
    (half / ".unfinished.123").write_bytes(b"")
    (one,) = recover(half).episodes
    assert (one.signals, one.problems) == (ALL, ())
    check(half, ALL)


def test_movie_without_its_index_is_rebuilt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = DiskEpisodeWriter(tmp_path / "ep", video="fast")
    for number in range(12):
        writer.append("cam", frame(number), number)

    def fail(*_: object) -> None:
        raise StorageError("no space left on the device")

    monkeypatch.setattr("relive.store.video.write_index", fail)
    with pytest.raises(StorageError):
        writer.close()
    monkeypatch.undo()
    names = names_in(tmp_path / "ep")
    assert "cam.mp4" in names
    assert "cam.frames.parquet" not in names
    assert recover(tmp_path / "ep").problems == ()
    assert names_in(tmp_path / "ep") == [
        *("cam.frames.parquet", "cam.mp4", "files.json", "meta.json", "outcome.json")
    ]
    assert len(DiskEpisode(tmp_path / "ep")["cam"]) == 12


@pytest.mark.parametrize("flushed", [0, 7])
@pytest.mark.parametrize("of", ["an episode", "a video"])
def test_kill_between_a_movie_and_its_index_loses_no_frame(
    of: str, flushed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_alone = of == "a video"
    monkeypatch.setattr("relive.episodes.write.signal_writer.TapeWriter", LazyTape)
    folder, killed = tmp_path / "ep", tmp_path / "killed"
    writer: Any
    if is_alone:
        folder.mkdir()
        writer = VideoSignalWriter(folder / "cam.mp4", profile="fast")
    else:
        writer = DiskEpisodeWriter(folder, video="fast")
    for number in range(12):
        if number == flushed:
            writer.flush()
        # Times that are not in the movie, which counts microseconds.
        name = () if is_alone else ("cam",)
        writer.append(*name, frame(number), number * 33_333_333, {"sensor": -number})
    unsynced = []

    def kill(*args: Any) -> None:
        unsynced.append(LazyTape.unsynced)
        shutil.copytree(folder, killed)  # what a killed process leaves
        write_index(*args)

    write_index = import_module("relive.store.video").write_index
    monkeypatch.setattr("relive.store.video.write_index", kill)
    writer.close()
    monkeypatch.undo()
    movie = (killed / "cam.mp4").read_bytes()
    found = recover(killed / "cam.mp4" if is_alone else killed)
    assert found.problems == ()
    assert (found.signals or found.episodes[0].signals) == {"cam": 12}
    assert not [name for name in names_in(killed) if name.startswith(".")]
    assert (killed / "cam.mp4").read_bytes() == movie
    assert validate(killed / "cam.mp4" if is_alone else killed, level="full").ok
    signal = VideoSignal(killed / "cam.mp4")
    assert signal.timestamps.tolist() == [number * 33_333_333 for number in range(12)]
    assert signal.clock("sensor").tolist() == [-number for number in range(12)]
    assert all(abs(int(each.mean()) - number * 8) < 4 for number, (each, _) in enumerate(signal))
    assert unsynced == [0]  # so that a power cut loses no frame either


@pytest.mark.parametrize("tape", ["without records", "empty", "missing"])
def test_movie_without_its_index_and_times_is_reported(tape: str, tmp_path: Path) -> None:
    folder = tmp_path / "ep"
    leave(folder)
    movie = (folder / ".%2Fcam.mp4.part").rename(folder / "%2Fcam.mp4")
    content = movie.read_bytes()
    path = folder / ".%2Fcam.mp4.tape"
    if tape == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[: 400 if tape == "without records" else 0])
        assert (tapes.open_tape(path) is None) == (tape == "empty")
    (one,) = recover(folder).episodes
    (problem,) = one.problems
    assert str(movie) in problem
    assert one.kept == (() if tape == "missing" else (path,))
    assert one.signals == {name: rows for name, rows in ALL.items() if name != "/cam"}
    assert movie.read_bytes() == content
    (wrong, *_) = validate(folder, level="full").problems
    assert (wrong.kind, wrong.path, wrong.field) == ("unsupported", str(movie), "/cam")
    assert "its index" in wrong.message
    (again,) = recover(folder).damaged
    assert "its index" in again.reason


def test_other_file_with_the_name_of_the_movie_is_kept(tmp_path: Path) -> None:
    leave(tmp_path / "ep")
    (tmp_path / "ep" / "%2Fcam.mp4").write_bytes(b"something else")
    (one,) = recover(tmp_path / "ep").episodes
    assert one.signals == ALL
    (kept,) = one.kept
    assert kept.read_bytes() == b"something else"
    assert "`.%2Fcam.mp4.damaged`" in one.problems[0]
    assert len(DiskEpisode(tmp_path / "ep")["/cam"]) == 12


@pytest.mark.parametrize("damage", ["truncate", "flip", "fewer records"])
@pytest.mark.parametrize("name", ["state.parquet", "depth.parquet", "%2Fcam.frames.parquet"])
def test_tape_replaces_a_file_that_does_not_have_its_records(
    name: str, damage: str, tmp_path: Path
) -> None:
    leave(tmp_path / "whole")
    leave(tmp_path / "short", rows=5)
    for each in ("whole", "short"):
        shutil.copytree(tmp_path / each, tmp_path / f"{each} done")
        recover(tmp_path / f"{each} done")
    folder = tmp_path / "whole"
    done = "short done" if damage == "fewer records" else "whole done"
    files = ["%2Fcam.mp4", "%2Fcam.frames.parquet"] if name.startswith("%2F") else [name]
    for file in files:
        shutil.copy(tmp_path / done / file, folder / file)
    data = bytearray((folder / name).read_bytes())
    if damage == "truncate":
        data = data[: len(data) // 2]
    elif damage == "flip":
        data[len(data) // 4] ^= 1
    (folder / name).write_bytes(data)
    (one,) = recover(folder).episodes
    assert one.signals == ALL
    assert len(one.problems) == len(one.kept)
    if damage == "truncate":  # the file that was written from the tape begins with these bytes
        assert one.kept == ()
    else:
        assert bytes(data) in [path.read_bytes() for path in one.kept]
    for path in one.kept:
        path.unlink()
    check(folder, ALL)


def test_damaged_tape_keeps_the_incomplete_movie(tmp_path: Path) -> None:
    leave(tmp_path / "a")
    part = tmp_path / "a" / ".%2Fcam.mp4.part"
    part.write_bytes(b"a movie")
    tape = tmp_path / "a" / ".%2Fcam.mp4.tape"
    data = bytearray(tape.read_bytes())
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    for name, at in (("a", 30), ("b", len(data) // 2)):  # in the head, and in a later record
        flipped = data.copy()
        flipped[at] ^= 1
        (tmp_path / name / tape.name).write_bytes(flipped)
        (one,) = recover(tmp_path / name).episodes
        contents = [path.read_bytes() for path in one.kept]
        assert sorted(contents) == sorted([b"a movie", bytes(flipped)])
        assert all(path.exists() for path in one.kept)
        assert one.signals.get("/cam", 0) < 12


@pytest.mark.parametrize("cut", ["to nothing", "zeros", "after the head", "after two frames"])
def test_incomplete_movie_with_more_frames_than_the_tape_is_kept(cut: str, tmp_path: Path) -> None:
    writer = DiskEpisodeWriter(tmp_path / "ep", video="fast")
    tape = tmp_path / "ep" / ".cam.mp4.tape"
    ends = []
    for number in range(6):
        writer.append("cam", frame(number), number * 500_000_000)
        writer.flush()
        ends.append(tape.stat().st_size)
    writer.leave()
    part = tmp_path / "ep" / ".cam.mp4.part"
    movie, data = part.read_bytes(), tape.read_bytes()
    sizes = {"to nothing": 0, "zeros": 0, "after the head": 400, "after two frames": ends[1]}
    tape.write_bytes(data[: sizes[cut]] + bytes(len(data) if cut == "zeros" else 0))
    assert (tapes.open_tape(tape) is None) == (sizes[cut] == 0)
    (one,) = recover(tmp_path / "ep").episodes
    assert one.signals == ({"cam": 2} if cut == "after two frames" else {})
    (kept,) = one.kept
    assert kept.read_bytes() == movie
    assert "may have more records" in one.problems[0]


def test_last_second_of_an_incomplete_movie_may_be_lost(tmp_path: Path) -> None:
    writer = DiskEpisodeWriter(tmp_path / "ep", video="fast")
    tape = tmp_path / "ep" / ".cam.mp4.tape"
    writer.append("cam", frame(0), 0)
    writer.flush()
    size = tape.stat().st_size
    writer.append("cam", frame(1), 900_000_000)
    writer.leave()
    tape.write_bytes(tape.read_bytes()[:size])
    (one,) = recover(tmp_path / "ep").episodes
    assert (one.signals, one.problems) == ({"cam": 1}, ())


def test_incomplete_columns_beside_an_empty_tape_are_kept(tmp_path: Path) -> None:
    writer = DiskEpisodeWriter(tmp_path / "ep")
    writer.append("depth", np.ones((600, 800), np.uint16), 0)
    writer.leave()
    (tmp_path / "ep" / ".depth.parquet.tape").write_bytes(b"")
    part = tmp_path / "ep" / ".depth.parquet.part"
    part.write_bytes(b"PAR1 and rows")
    (one,) = recover(tmp_path / "ep").episodes
    assert [path.read_bytes() for path in one.kept] == [b"PAR1 and rows"]


def test_damage_of_a_finished_episode_outside_of_a_root_is_reported(tmp_path: Path) -> None:
    leave(tmp_path / "ep")
    recover(tmp_path / "ep")
    assert recover(tmp_path / "ep").problems == ()
    (tmp_path / "ep" / "static.json").write_text("{")
    assert "static.json" in recover(tmp_path / "ep").problems[0]


def test_tape_of_another_signal_is_kept(tmp_path: Path) -> None:
    leave(tmp_path / "ep")
    tapes = [tmp_path / "ep" / f".{name}.parquet.tape" for name in ("state", "note")]
    contents = [tape.read_bytes() for tape in tapes]
    for tape, content in zip(tapes, reversed(contents), strict=True):
        tape.write_bytes(content)
    (one,) = recover(tmp_path / "ep").episodes
    assert one.signals == {"/cam": 12, "depth": 12}
    assert sorted(one.kept) == sorted(tapes)
    assert "it is the tape of signal 'state'" in one.problems[0]


def test_incomplete_file_without_its_tape_is_kept(tmp_path: Path) -> None:
    leave(tmp_path / "ep")
    (tmp_path / "ep" / ".%2Fcam.mp4.tape").unlink()
    part = tmp_path / "ep" / ".%2Fcam.mp4.part"
    part.write_bytes(b"a movie")
    (one,) = recover(tmp_path / "ep").episodes
    assert one.kept == (part,)
    assert "only copy" in one.problems[0]
    assert part.read_bytes() == b"a movie"


@pytest.mark.parametrize("name", ["meta.json", "outcome.json"])
def test_damaged_json_is_renamed_and_never_overwritten(name: str, tmp_path: Path) -> None:
    leave(tmp_path / "ep")
    folder = tmp_path / "ep"
    for number in range(3):
        (folder / name).write_text('{"uid": "' + str(number))
        if number:
            (folder / ".unfinished").write_text("{}")
        (one,) = recover(folder).episodes
        (problem,) = one.problems
        (kept,) = one.kept
        assert f"`{kept.name}`" in problem
        assert kept.read_text() == '{"uid": "' + str(number)
    assert [path for path in names_in(folder) if path.startswith(".")] == [
        *(f".{name}.damaged", f".{name}.damaged-2", f".{name}.damaged-3")
    ]


def test_damaged_statics_keep_the_temporary_file(tmp_path: Path) -> None:
    leave(tmp_path / "ep")
    (tmp_path / "ep" / "static.json").write_text("{")
    (tmp_path / "ep" / ".static.json.0123abcd").write_text('{"task": "pick"}')
    (one,) = recover(tmp_path / "ep").episodes
    assert [path.name for path in one.kept] == [".static.json.0123abcd"]


def test_existing_outcome_is_kept(tmp_path: Path) -> None:
    leave(tmp_path / "ep")
    outcome = {"ended": "interrupted", "finished_ts_ns": 5, "signals": {}}
    (tmp_path / "ep" / "outcome.json").write_text(json.dumps(outcome))
    recover(tmp_path / "ep")
    assert DiskEpisode(tmp_path / "ep").meta["outcome"] == outcome


def test_episode_without_records_keeps_its_statics(tmp_path: Path) -> None:
    leave(tmp_path / "ep", rows=0)
    (one,) = recover(tmp_path / "ep").episodes
    assert one.signals == {}
    check(tmp_path / "ep", {})


def test_damaged_tape_is_reported_and_kept(tmp_path: Path) -> None:
    leave(tmp_path / "ep")
    tape = tmp_path / "ep" / ".note.parquet.tape"
    tape.write_bytes(b"this is no tape, whatever it is called")
    (one,) = recover(tmp_path / "ep").episodes
    assert one.signals == {key: value for key, value in ALL.items() if key != "note"}
    (problem,) = one.problems
    assert "signal 'note' was not recovered" in problem
    assert tape.exists()
    assert "note" not in DiskEpisode(tmp_path / "ep")


def test_missing_or_damaged_metadata_is_rewritten(tmp_path: Path) -> None:
    uid = leave(tmp_path / "a")
    (tmp_path / "a" / "meta.json").unlink()
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    (tmp_path / "b" / "meta.json").write_text('{"uid": "')
    for name, problems in (("a", 0), ("b", 1)):
        (one,) = recover(tmp_path / name).episodes
        assert (one.uid, one.signals, len(one.problems)) == (uid, ALL, problems)
        for kept in one.kept:
            kept.unlink()
        assert check(tmp_path / name, ALL).uid == uid


def test_damaged_statics_are_reported(tmp_path: Path) -> None:
    leave(tmp_path / "ep")
    (tmp_path / "ep" / "static.json").write_text("{")
    (one,) = recover(tmp_path / "ep").episodes
    assert "static.json" in one.problems[0]
    with pytest.raises(CorruptError):
        DiskEpisode(tmp_path / "ep").statics  # noqa: B018 - the access is the test


def test_root_is_recovered_except_episodes_being_recorded(tmp_path: Path) -> None:
    writer = LocalDatasetWriter(tmp_path)
    writer.new_episode().close()
    left = writer.new_episode()
    left.append("x", 1.0, 1)
    left.leave()
    (tmp_path / "000000000000" / "000000000002").mkdir()  # a writer died before its first file
    alive = writer.new_episode()
    alive.append("x", 1.0, 1)
    shutil.copytree(left.path, tmp_path / "000000000000" / ".aborted.000000000009.ab")
    (tmp_path / "000000000000" / "notes").mkdir()
    (tmp_path / "000000000000" / "000000000007").mkdir()
    (tmp_path / "000000000000" / "000000000007" / ".unfinished.123").touch()
    found = recover(tmp_path)
    (recovered,) = found.episodes
    assert (recovered.path, recovered.uid, recovered.signals) == (
        Path(left.path),
        left.uid,
        {"x": 1},
    )
    assert found.problems == ()
    assert names_in(tmp_path / "000000000000") == [
        *("000000000000", "000000000001", "000000000003", "notes")
    ]
    assert found.locked == (Path(alive.path),)
    assert ".aborted.000000000009.ab" not in names_in(tmp_path / "000000000000")
    assert len(LocalDataset(tmp_path)) == 2
    with pytest.raises(LockedError):
        recover(alive.path)
    alive.append("x", 2.0, 2)
    alive.close()
    assert recover(tmp_path).locked == ()
    assert len(LocalDataset(tmp_path)) == 3


def test_unrecoverable_episode_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = LocalDatasetWriter(tmp_path)
    for number in range(3):
        episode = writer.new_episode()
        episode.append(f"x{number}", 1.0, 1)
        episode.leave()
    seal = tapes.seal_columns

    def full(tape: Path, target: Path) -> int:
        if target.name == "x1.parquet":
            raise StorageError("no space left on the device")
        return seal(tape, target)

    monkeypatch.setattr(recovering, "seal_columns", full)
    found = recover(tmp_path)
    assert [one.uid is None for one in found.episodes] == [False, True, False]
    assert "no space" in found.problems[0]
    monkeypatch.undo()
    assert len(recover(tmp_path).episodes) == 1
    assert len(LocalDataset(tmp_path)) == 3


def test_episode_aborted_meanwhile_is_not_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "root"
    writer = LocalDatasetWriter(root).new_episode()
    writer.append("a", 1, ts_ns=0)
    keys = list(recovering.episode_keys(root))
    monkeypatch.setattr(recovering, "episode_keys", lambda _: keys)
    writer.abort()
    found = recover(root)
    assert (found.episodes, found.locked) == ((), ())


@pytest.mark.parametrize("ends", ["before recovery opens its file", "before recovery locks it"])
@pytest.mark.parametrize("what", ["root", "episode", "signal"])
def test_recording_that_ends_meanwhile_is_not_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, ends: str
) -> None:
    if what == "signal":
        path = tmp_path / "a.parquet"
        signal = SimpleSignalWriter(path)
        signal.append(1, 0)
        finish = [signal.close]
    else:
        episode = LocalDatasetWriter(tmp_path).new_episode()
        episode.append("a", 1, 0)
        path = tmp_path if what == "root" else episode.path
        finish = [episode.close]
    open_file = locks._open

    def late(path: Path, flags: int) -> int:
        if ends == "before recovery locks it":
            handle = open_file(path, flags)
            finish.pop()()
            return handle
        finish.pop()()
        return open_file(path, flags)

    monkeypatch.setattr(locks, "_open", late)
    found = recover(path)
    assert finish == []
    assert (found.episodes, found.signals, found.locked) == ((), {}, ())
    if what == "signal":
        assert len(SimpleSignal(path)) == 1
    else:
        assert [len(each["a"]) for each in LocalDataset(tmp_path)] == [1]


def test_missing_paths_raise(tmp_path: Path) -> None:
    assert recover(tmp_path).episodes == ()
    with pytest.raises(NotFoundError):
        recover(tmp_path / "none")
    leave(tmp_path / "ep")
    with pytest.raises(InvalidError, match="belongs to an episode"):
        recover(tmp_path / "ep" / ".state.parquet.tape")


SCRIPT = """
import sys, time, numpy as np
from relive.episodes import LocalDatasetWriter
with LocalDatasetWriter(sys.argv[1]).new_episode() as writer:
    for name, value in {"task": "pick", "key": b"\\xff"}.items():
        writer.set_static(name, value)
    number = 0
    while True:
        writer.append("state", np.full(3, number), number)
        writer.append("/cam", np.full((32, 48, 3), number * 10 % 256, np.uint8), number)
        writer.append("note", f"n{number}", number)
        if number == 10:
            writer.flush()
            print("ten", flush=True)
        number += 1
        time.sleep(0.005)
"""


def test_episode_of_a_killed_process(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, tmp_path], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ten\n"
    threading.Event().wait(0.2)
    assert recover(tmp_path).locked
    process.kill()
    process.wait()
    process.stdout.close()
    began = time.monotonic()
    (one,) = recover(tmp_path).episodes
    assert time.monotonic() - began < 30
    assert sorted(one.signals) == ["/cam", "note", "state"]
    assert min(one.signals.values()) >= 11
    episode = DiskEpisode(one.path)
    for name, signal in episode.signals.items():
        assert signal.timestamps.tolist() == list(range(one.signals[name]))


def test_directory_that_a_writer_is_creating_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = locks.FileLock.create
    found: list[tuple[Path, ...]] = []

    def slow(path: Path, content: bytes) -> locks.FileLock:
        # In another process, which does not hold the lock of this one.
        program = "import sys; from relive.episodes import recover; r = recover(sys.argv[1]); "
        program += "assert not r.episodes and not r.problems, r; print(*r.locked)"
        done = subprocess.run(
            [sys.executable, "-c", program, tmp_path], capture_output=True, check=False, text=True
        )
        assert done.returncode == 0, done.stderr
        found.append(tuple(map(Path, done.stdout.split())))
        return create(path, content)

    monkeypatch.setattr(locks.FileLock, "create", staticmethod(slow))
    with LocalDatasetWriter(tmp_path).new_episode() as writer:
        writer.append("x", 1.0, 1)
    assert found == [(writer.path,)]
    assert len(LocalDataset(tmp_path)) == 1


KILLED_AT_THE_MARKER = """
import os, signal, sys
from relive.episodes.write import commit
from relive.episodes import LocalDatasetWriter
commit.FileLock.create = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
LocalDatasetWriter(sys.argv[1]).new_episode()
"""


def test_directory_of_a_writer_that_was_killed_creating_it_is_removed(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED_AT_THE_MARKER, tmp_path], check=False)
    assert done.returncode == -9
    assert [each.reason for each in LocalDataset(tmp_path).unfinished] == ["empty"]
    assert recover(tmp_path) == recovering.Recovered(tmp_path)
    assert LocalDataset(tmp_path).unfinished == []
    assert names_in(tmp_path / "000000000000") == []


def numbered(root: Path, number: int) -> Path:
    return root / "000000000000" / f"{number:012}"


def damaged_root(root: Path) -> Path:
    """Write four episodes; two cannot be read, one was left, and a directory is not an episode."""
    writer = LocalDatasetWriter(root)
    for number in range(4):
        with writer.new_episode(uid=f"e{number}") as episode:
            episode.append("x", float(number), 1)
    (numbered(root, 1) / "meta.json").write_text("{")
    (numbered(root, 2) / "x.parquet").write_bytes(b"PAR1")
    left = writer.new_episode(uid="e4")
    left.append("x", 1.0, 1)
    left.append("y", 1.0, 1)
    left.leave()
    tape = left.path / ".y.parquet.tape"
    tape.write_bytes(b"this is not a tape, whatever it is called")
    numbered(root, 5).mkdir()
    (numbered(root, 5) / "notes.txt").write_text("mine")
    return root


def test_what_cannot_be_recovered_is_reported(tmp_path: Path) -> None:
    root = damaged_root(tmp_path / "root")
    before = names_in(root / "000000000000")
    for _ in range(2):
        found = recover(root)
        assert [each.path for each in found.damaged] == [numbered(root, 1), numbered(root, 2)]
        assert "meta.json" in found.damaged[0].reason
        assert found.set_aside == ()
        assert found.episodes[-1].path == numbered(root, 5)
        assert len(found.problems) == 2 + sum(len(each.problems) for each in found.episodes)
        assert names_in(root / "000000000000") == before
        assert names_in(root) == ["000000000000"]
    one = recover(numbered(root, 2))
    assert [each.path for each in one.damaged] == [numbered(root, 2)]


def test_what_cannot_be_recovered_is_set_aside(tmp_path: Path) -> None:
    root = damaged_root(tmp_path / "root")
    bytes_before = {path.name: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    found = recover(root, set_aside=True)
    assert (found.problems, found.damaged) == ((), ())
    aside = root / ".set-aside"
    assert {each.path: each.target for each in found.set_aside} == {
        numbered(root, 1): numbered(aside, 1),
        numbered(root, 2): numbered(aside, 2),
        numbered(root, 4) / ".y.parquet.tape": numbered(aside, 4) / ".y.parquet.tape",
        numbered(root, 5): numbered(aside, 5),
    }
    assert "meta.json" in found.set_aside[0].reason
    assert (numbered(aside, 5) / "notes.txt").read_text() == "mine"
    assert (numbered(aside, 1) / "meta.json").read_text() == "{"
    tape = numbered(aside, 4) / ".y.parquet.tape"
    assert tape.read_bytes() == bytes_before[tape.name]
    dataset = LocalDataset(root)
    assert dataset.uids == ("e0", "e3", "e4")
    assert dataset.unfinished == []
    assert dataset.table().num_rows == 3
    assert dataset.validate("full").ok
    assert recover(root, set_aside=True) == recovering.Recovered(root)


def test_nothing_that_was_set_aside_is_overwritten(tmp_path: Path) -> None:
    root = tmp_path / "root"
    for number in range(3):
        numbered(root, 0).mkdir(parents=True)
        (numbered(root, 0) / "note").write_text(str(number))
        (moved,) = recover(root if number else numbered(root, 0), set_aside=True).set_aside
        name = "000000000000" if not number else f"000000000000.{number + 1}"
        assert moved.target == root / ".set-aside" / "000000000000" / name
    texts = [path.read_text() for path in sorted((root / ".set-aside").rglob("note"))]
    assert texts == ["0", "1", "2"]


def test_set_aside_keeps_what_may_be_recovered_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = LocalDatasetWriter(tmp_path)
    with writer.new_episode() as later:
        later.append("x", 1.0, 1)
    meta = json.loads((later.path / "meta.json").read_text())
    (later.path / "meta.json").write_text(json.dumps(meta | {"schema_version": 99}))
    list_files(later.path)
    left = writer.new_episode()
    left.append("x", 1.0, 1)
    left.leave()

    def full(*_: object) -> int:
        raise StorageError("no space left on the device")

    monkeypatch.setattr(recovering, "seal_columns", full)
    found = recover(tmp_path, set_aside=True)
    assert found.set_aside == ()
    assert "no space" in found.problems[0]
    assert "schema version" in found.problems[1]
    monkeypatch.undo()
    assert recover(tmp_path).episodes[0].signals == {"x": 1}


def test_set_aside_requires_a_dataset(tmp_path: Path) -> None:
    leave(tmp_path / "ep", rows=0)
    with SimpleSignalWriter(tmp_path / "x.parquet") as signal:
        signal.append(1.0, 1)
    for path in (tmp_path / "ep", tmp_path / "x.parquet"):
        with pytest.raises(InvalidError, match="requires a dataset"):
            recover(path, set_aside=True)


def test_damaged_tape_of_a_single_signal_never_replaces_another(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    kept = []
    for number in range(2):
        signal = SimpleSignalWriter(path)
        for row in range(5):
            signal.append(float(row + number), row)
            signal.flush()
        signal.leave()
        tape = tmp_path / ".x.parquet.tape"
        data = bytearray(tape.read_bytes())
        data[-5] ^= 1
        tape.write_bytes(data)
        with pytest.raises(CorruptError, match="4 records before it were recovered"):
            recover(path)
        kept.append(bytes(data))
        path.unlink()
    assert sorted(kept) == sorted(each.read_bytes() for each in tmp_path.glob("*.damaged*"))
