"""Validation finds problems of episodes and names their position."""

import json
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from relive.episodes import LocalDatasetWriter, SimpleSignal, SimpleSignalWriter, VideoSpec
from relive.episodes.copy import copy
from relive.episodes.read.episode import DiskEpisode
from relive.episodes.read.local_dataset import LocalDataset
from relive.episodes.read.video_signal import VideoSignal
from relive.episodes.validate import validate
from relive.errors import CorruptError, InvalidError, NotFoundError
from relive.model.report import LEVELS, Level, Problem, Report
from relive.store.locks import FileLock
from relive.store.signal.checksums import read_footer
from relive.store.signal.parquet_reader import ColumnsFile
from tests.episodes.by_hand import (
    episode_path,
    list_files,
    write_episode,
    write_signal,
    write_video,
)

pytest.importorskip("av")

FRAMES = 13
TIMES = [1_000_000 + 33_000_000 * n for n in range(FRAMES)]


def pictures() -> np.ndarray[Any, np.dtype[np.uint8]]:
    base = np.random.default_rng(0).integers(0, 255, (32, 48, 3), dtype=np.uint8)
    return np.stack([np.roll(base, 2 * n, axis=1) for n in range(FRAMES)])


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("recorded")
    writer = LocalDatasetWriter(root, signals={"exact": VideoSpec(profile="lossless")})
    for _ in range(2):
        with writer.new_episode() as episode:
            episode.set_static("task", "pick")
            for n, picture in enumerate(pictures()):
                episode.append("cam", picture, TIMES[n], clocks={"sensor": n})
                episode.append("exact", picture, TIMES[n])
                episode.append("state", np.arange(7.0) + n, TIMES[n])
                episode.append("note", f"note {n}", TIMES[n])
                episode.append("depth", np.full((64, 64), n, dtype=np.uint16), TIMES[n])
    return root


@pytest.fixture
def root(recorded: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(recorded, tmp_path / "root"))


def only(report: Report) -> Problem:
    assert not report.ok
    (problem,) = report.problems
    assert problem.path in problem.message or Path(problem.path).parent.name in problem.message
    return problem


@pytest.mark.parametrize("level", LEVELS)
def test_undamaged_episodes_are_ok(root: Path, tmp_path: Path, level: Level) -> None:
    seen: list[tuple[int, int | None]] = []
    report = validate(root, level, progress=lambda *at: seen.append(at))
    assert report.problems == ()
    assert report.ok
    assert (report.checked, report.level) == ({"episodes": 2, "signals": 10}, level)
    assert seen == [(0, 2), (1, 2), (2, 2)]
    one = validate(episode_path(root, 1), level)
    assert (one.ok, one.checked) == (True, {"episodes": 1, "signals": 5})
    dataset = LocalDataset(root)
    assert dataset.validate(level) == report
    assert DiskEpisode(episode_path(root, 1)).validate(level) == one
    dataset.edits.trim(dataset[0].uid, TIMES[4])
    copy(root, tmp_path / "copy")
    assert validate(tmp_path / "copy", level=level).problems == ()


def test_episodes_of_other_programs_are_ok(tmp_path: Path) -> None:
    folder = write_episode(tmp_path / "ep", {"x": [(1.0, 1), (2.0, 5)], "none": []}, {"task": "t"})
    write_video(folder, "cam", pictures(), TIMES)
    assert validate(folder, level="full").problems == ()


def test_unfinished_episodes_are_listed_and_not_read(root: Path) -> None:
    (episode_path(root, 1) / ".unfinished").touch()
    (episode_path(root, 1) / "state.parquet").write_bytes(b"torn")
    episode_path(root, 7).mkdir()
    report = validate(root)
    assert report.ok
    assert report.checked["episodes"] == 1
    assert [(each.path, each.reason) for each in report.unfinished] == [
        (episode_path(root, 1), "left"),
        (episode_path(root, 7), "empty"),
    ]
    lock = FileLock.take(episode_path(root, 1) / ".unfinished")
    (each,) = validate(episode_path(root, 1)).unfinished
    assert each.reason == "locked"
    lock.release()
    with pytest.raises(NotFoundError):
        validate(root / "none")


@pytest.mark.parametrize("name", ["meta.json", "static.json", "outcome.json"])
@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"\xff"])
def test_json_that_does_not_parse_is_named(root: Path, name: str, text: bytes) -> None:
    (episode_path(root, 0) / name).write_bytes(text)
    problem = only(validate(root))
    assert problem.path == str(episode_path(root, 0) / name)
    assert (problem.kind, problem.field, problem.row) == ("corrupt", None, None)
    assert name in problem.message


def test_every_flipped_bit_in_the_data_is_found(root: Path) -> None:
    folder = episode_path(root, 0)
    chance = random.Random(5)  # noqa: S311 - random bits
    for path in sorted(folder.glob("*.parquet")):
        data = path.read_bytes()
        footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
        for _ in range(6):
            at = chance.randrange(4, footer)
            damaged = bytearray(data)
            damaged[at] ^= 1 << chance.randrange(8)
            path.write_bytes(damaged)
            report = validate(folder, "full")
            assert not report.ok
            assert {problem.path for problem in report.problems} == {str(path)}
            assert {problem.field for problem in report.problems} == {
                path.name.removesuffix(".parquet").removesuffix(".frames")
            }
        path.write_bytes(data)
    assert validate(folder).ok


@pytest.mark.parametrize("name", ["cam", "exact"])
def test_every_flipped_bit_in_a_frame_is_found_with_its_row(root: Path, name: str) -> None:
    episode = LocalDataset(root)[0]
    index = episode[name].frames.index
    path = episode[name].path
    data = path.read_bytes()
    for row in (0, 5, FRAMES - 1):
        for at in (0, int(index.sizes[row]) // 2, int(index.sizes[row]) - 1):
            damaged = bytearray(data)
            damaged[int(index.offsets[row]) + at] ^= 16
            path.write_bytes(damaged)
            found = {(p.path, p.field, p.row, p.kind) for p in validate(root, "full").problems}
            assert (str(path), name, row, "corrupt") in found
    path.write_bytes(data)


def test_truncated_or_missing_movie_is_found(root: Path) -> None:
    cam = LocalDataset(root)[0]["cam"]
    data = cam.path.read_bytes()
    index = cam.frames.index
    cam.path.write_bytes(data[: int(index.offsets[9]) + 3])
    for level in LEVELS[1:]:
        found = {(problem.path, problem.row) for problem in validate(root, level).problems}
        assert (str(cam.path), 9) in found
    cam.path.write_bytes(b"")
    assert not validate(root).ok
    cam.path.unlink()
    assert "is missing" in only(validate(root)).message


def test_container_that_differs_from_the_index_is_found(root: Path) -> None:
    cam = LocalDataset(root)[0]["cam"]
    table = pq.read_table(cam.index_path)
    for name, change in (("offset", 1), ("size", -1)):
        column = table[name].to_numpy().copy()
        column[4] += change
        changed = table.set_column(table.schema.names.index(name), name, pa.array(column))
        pq.write_table(changed, cam.index_path)
        list_files(episode_path(root, 0))
        problems = validate(root, "full").problems
        assert problems
        assert all(problem.row == 4 for problem in problems)
        assert {problem.field for problem in problems} == {"cam"}


def test_times_that_do_not_increase_are_found(tmp_path: Path) -> None:
    folder = write_episode(tmp_path / "ep", {"x": [(1.0, 1), (2.0, 3), (3.0, 3)]})
    problem = only(validate(folder))
    assert problem.field == "x"
    assert "row 2" in problem.message
    write_signal(folder, "x", [(1.0, 1)])
    write_video(folder, "cam", pictures(), [*TIMES[:5], TIMES[4], *TIMES[6:]])
    problem = only(validate(folder))
    assert (problem.field, problem.row) == ("cam", 5)


def test_outcome_is_compared_with_the_files(root: Path) -> None:
    folder = episode_path(root, 0)
    (folder / "state.parquet").unlink()
    write_signal(folder, "note", [("a", 1)])
    found = {(p.field, p.kind) for p in validate(root).problems}
    assert found == {("state", "not-found"), ("note", "corrupt")}


def test_name_used_twice_is_found(root: Path) -> None:
    (episode_path(root, 0) / "static.json").write_text(json.dumps({"state": 1}))
    list_files(episode_path(root, 0))
    assert only(validate(root)).field == "state"


def test_duplicate_uids_are_found(root: Path) -> None:
    shutil.copytree(episode_path(root, 0), episode_path(root, 2))
    problem = only(validate(root))
    assert problem.kind == "invalid"
    assert str(episode_path(root, 0)) in problem.message
    assert problem.path == str(episode_path(root, 2) / "meta.json")


def test_edits_are_checked(root: Path) -> None:
    dataset = LocalDataset(root)
    first, second = dataset.uids
    dataset.edits.cut(first, TIMES[5])
    dataset.edits.drop(f"{first}#0")
    assert validate(root).ok
    with (root / "edits.jsonl").open("a") as file:
        file.write(json.dumps({"op": "drop", "uid": "nobody"}) + "\n")
        file.write(json.dumps({"op": "drop", "uid": first}) + "\n")
        file.write(json.dumps({"op": "drop", "uid": second})[:-5])  # truncated
    found = validate(root)
    assert [problem.kind for problem in found.problems] == ["unknown-name"] * 2
    assert "edit 3" in found.problems[0].message
    assert "which an earlier edit cut" in found.problems[1].message
    (root / "edits.jsonl").write_text("{}\n")
    assert only(validate(root)).path == str(root / "edits.jsonl")
    (root / "edits.jsonl").write_text('{"op": "blur", "uid": "x"}\n')
    assert only(validate(root)).kind == "unsupported"


def test_undecodable_frame_is_found_by_level_decode(tmp_path: Path) -> None:
    folder = write_episode(tmp_path / "ep", {})
    write_video(folder, "cam", pictures(), TIMES)
    movie = folder / "cam.mp4"
    index = VideoSignal(movie, folder / "cam.frames.parquet").frames.index
    data = bytearray(movie.read_bytes())
    start = int(index.offsets[0])
    data[start : start + int(index.sizes[0])] = b"\xff" * int(index.sizes[0])
    movie.write_bytes(data)
    assert not validate(folder, level="full").ok


def test_levels_read_increasingly_more(root: Path) -> None:
    folder = episode_path(root, 0)
    state = folder / "state.parquet"
    data = bytearray(state.read_bytes())
    found = read_footer(str(state))
    for byte in range(4, len(data) - len(found.block) - len(found.data)):
        data[byte] ^= 255
    state.write_bytes(data)
    assert validate(root, "index").ok
    assert not validate(root, "sample").ok
    assert not validate(root, "full").ok
    (folder / "state.parquet").unlink()
    assert only(validate(root, "index")).kind == "not-found"
    with pytest.raises(InvalidError, match="`level` must be one of"):
        validate(root, "deep")  # type: ignore[arg-type]


def test_sample_level_reads_64_records_of_each_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LocalDatasetWriter(tmp_path).new_episode() as episode:
        for ts in range(1000):
            episode.append("x", float(ts), ts)
    asked: list[Any] = []
    monkeypatch.setattr(ColumnsFile, "values", lambda _, rows: asked.append(rows))
    validate(tmp_path)
    validate(tmp_path, "index")
    (rows,) = asked
    assert len(rows) == 64
    assert (rows[0], rows[-1]) == (0, 999)


@pytest.mark.parametrize("level", LEVELS)
def test_what_has_no_checksums_is_listed(root: Path, tmp_path: Path, level: Level) -> None:
    assert validate(root, level).unchecked == ()
    folder = write_episode(episode_path(root, 5), {"x": [(1.0, 1)]}, uid="other")
    dataset = LocalDataset(root)
    dataset.edits.drop(dataset.uids[0])
    assert validate(root, level).unchecked == (str(folder),)
    with (root / "edits.jsonl").open("a") as file:
        file.write(json.dumps({"op": "undrop", "uid": dataset.uids[0]}) + "\n")
    report = validate(root, level)
    assert report.ok
    assert report.unchecked == (str(folder), str(root / "edits.jsonl"))
    assert validate(folder / "x.parquet", level).unchecked == (str(folder / "x.parquet"),)
    cam = folder / "cam.mp4"
    write_video(folder, "cam", pictures(), TIMES)
    assert validate(cam, level).unchecked == (str(cam),)
    with SimpleSignalWriter(tmp_path / "x.parquet") as writer:
        writer.append(1.0, 1)
    assert validate(tmp_path / "x.parquet", level) == Report(level, {"episodes": 0, "signals": 1})


@pytest.mark.parametrize("level", LEVELS)
def test_lost_files_are_found(root: Path, level: Level) -> None:
    folder = episode_path(root, 0)
    for path in sorted(folder.iterdir()):
        kept = path.read_bytes()
        path.unlink()
        problem = only(validate(root, level))
        assert problem.path == str(path)
        assert "missing" in problem.message or "No such file" in problem.message
        path.write_bytes(kept)
    (folder / "more.parquet").write_bytes(b"")
    problem = only(validate(root, level))
    assert (problem.path, problem.kind) == (str(folder / "more.parquet"), "invalid")


def test_damaged_list_of_files_is_the_only_problem(root: Path) -> None:
    path = episode_path(root, 0) / "files.json"
    path.write_bytes(path.read_bytes().replace(b'"size": ', b'"size": 1', 1))
    problem = only(validate(root, "full"))
    assert (problem.path, problem.kind) == (str(path), "corrupt")
    with pytest.raises(CorruptError, match="its checksum does not match"):
        DiskEpisode(episode_path(root, 0))


def test_movie_that_differs_outside_of_its_frames_is_found(root: Path) -> None:
    cam = LocalDataset(root)[0]["cam"]
    data = bytearray(cam.path.read_bytes())
    data[-1] ^= 1  # in the table of key frames
    cam.path.write_bytes(data)
    assert validate(root).ok
    problem = only(validate(root, "full"))
    assert (problem.path, problem.field) == (str(cam.path), "cam")
    assert validate(cam.path).ok
    assert only(validate(cam.path, "full")).kind == "corrupt"


def test_signal_that_another_program_wrote_again_is_read_but_not_valid(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    with SimpleSignalWriter(path) as writer:
        writer.append(1.0, 1)
    assert validate(path, "full").ok
    pq.write_table(pq.read_table(path), path)
    assert SimpleSignal(path)[0] == (1.0, 1)
    assert "has no checksums" in only(validate(path)).message
