"""Golden runs stay readable, by relive and by a reader that shares no code with it."""

import json
import math
import re
import sqlite3
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pytest

from relive._native import timestamp
from relive.errors import CorruptError, UnknownNameError, UnsupportedError
from relive.replay import ReplayRecorder, ReplayRun, recover, validate
from relive.replay.columns import flatten
from relive.replay.manage.compact import compact
from relive.replay.storage.tables import rows_checksum
from tests.golden.read_replay import Run, check_file, checksum
from tests.golden.read_runs import crc32c
from tests.golden.replay.assemble import (
    FOLDER,
    NEWEST,
    ROOTS,
    Step,
    agents,
    interleaved,
    make,
    nested,
    stack,
    stacks_first,
    unfinished,
    unpack,
)

Array = npt.NDArray[Any]
Made: TypeAlias = Callable[[str, str], Path]

STEPS: dict[str, list[Step]] = {
    "interleaved": list(interleaved()),
    "agents.gzip": list(agents()),
    "stacks-raw": list(stacks_first()),
    "lz4_fields": list(stacks_first()),
    "empty": [],
    "scalars": list(stacks_first()),
    "killed": [*list(unfinished())[:3], *unfinished()],
}
"""The steps of every run."""
RUNS = [(run_id, "killed" if run_id == "killed" else "closed") for run_id in STEPS]
CLOSED = [run_id for run_id, root in RUNS if root == "closed" and run_id != "scalars"]
ENDED: dict[str, list[Any]] = {
    "interleaved": [nested(0, 3), nested(100, 104)],
    "stacks-raw": [stack(0, 4, 0)],
    "lz4_fields": [stack(0, 4, 0)],
}
"""Observations after the last step of an episode."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Return a root by its name, golden or recorded by the current writer."""
    return cache(lambda name, how: _made(name, how, tmp_path_factory.mktemp("root")))


def _made(name: str, how: str, root: Path) -> Path:
    if how != "current":
        return unpack(f"{name}{how.removeprefix('golden')}", root)
    make(name, root)
    return root


def same(one: Array, other: Array) -> bool:
    """Return whether two arrays have the same dtype, shape and bytes."""
    return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())


def contents(root: Path) -> dict[str, bytes]:
    """Return every file of a root that is not a lock or memory of SQLite."""
    files = [path for path in root.rglob("*") if path.suffix in {".h5", ".sqlite"}]
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in files}


def leaves(steps: Sequence[Step], field: str, values: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """Return the name of each leaf of a field, and its value in each step, or None."""
    names = [leaf.name for value in values if value is not None for leaf in flatten(field, value)]
    for name in dict.fromkeys(names):
        yield name, [_leaf(field, name, value) for value in values]
    assert len(values) == len(steps)


def _leaf(field: str, name: str, value: Any) -> Any:
    found = [] if value is None else flatten(field, value)
    return next((leaf.array for leaf in found if leaf.name == name), None)


def test_golden_files_are_small() -> None:
    names = {f"{name}{version}" for name in ROOTS for version in ("", NEWEST)}
    assert {path.stem for path in FOLDER.glob("*.zip")} == names
    assert sum(path.stat().st_size for path in FOLDER.iterdir() if path.is_file()) < 200 << 10


@pytest.mark.parametrize("how", ["golden", "current"])
@pytest.mark.parametrize(("run_id", "root"), RUNS)
def test_second_reader_matches_the_recorded_steps(
    run_id: str, root: str, how: str, made: Made
) -> None:
    run, steps = Run(made(root, how), run_id), STEPS[run_id]
    assert run.run["steps"] == len(steps)
    arguments = [step.arguments for step in steps]
    for name, field in (("observation", "observations"), ("frame", "frames")):
        values = [each.get(name) for each in arguments]
        refs = [row["obs_ref" if name == "observation" else "frame_ref"] for row in run.steps]
        has = [value is not None and run_id != "scalars" for value in values]
        here = [f"h5://{run_id}/{field}/{row}" if true else None for row, true in enumerate(has)]
        assert refs == here
    for row, each in zip(run.steps, arguments, strict=True):
        assert row["reward"] == (None if _is_nan(each["reward"]) else each["reward"])
        assert row["terminated"] == each.get("terminated", False)
        assert row["truncated"] == each.get("truncated", False)
        assert row["agent_id"] == each.get("agent_id", "")
        info = {} if row["info"] is None else json.loads(row["info"])
        large = info.pop("map.1", None)
        assert large == (f"h5://{run_id}/info.map%252E1/{row['row']}" if large else None)
        assert info == {k: v for k, v in (each.get("info") or {}).items() if k != "map.1"}
    if run_id == "scalars":
        assert not run.columns
        return
    fields = {"observations": "observation", "actions": "action", "frames": "frame"}
    for field, name in fields.items():
        check_field(run, steps, field, [each.get(name) for each in arguments])
    for extra in {name for each in arguments for name in each.get("extras", {})}:
        values = [each["extras"][extra] for each in arguments]
        check_field(run, steps, f"extras.{extra}", values)
    infos = [(each.get("info") or {}).get("map.1") for each in arguments]
    check_field(run, steps, "info.map%2E1", infos)
    rewards = [each["reward"] for each in arguments]
    if rewards:
        assert run.valid("rewards").tolist() == [reward is not None for reward in rewards]
        stored = [math.nan if reward is None else reward for reward in rewards]
        assert same(run.column("rewards"), np.array(stored))
    ends = ENDED.get(run_id, [])
    assert run.run["ends"] == len(ends)
    for place, observation in enumerate(ends):
        for leaf in flatten("final.observations", observation):
            assert same(run.column(leaf.name)[place], leaf.array)
    if run_id == "interleaved":
        assert run.column("final.episode").tolist() == [0, 3]
        assert run.valid("final.frames").tolist() == [False, True]
        assert run.column("final.frames")[1, 0, 0].tolist() == [200, 201, 202]


def _is_nan(value: float | None) -> bool:
    return value is not None and math.isnan(value)


def check_field(run: Run, steps: Sequence[Step], field: str, values: Sequence[Any]) -> None:
    """Check the leaves of a field and which rows have it; rows without it are zeros."""
    found = list(leaves(steps, field, values))
    assert [name for name, _ in found] == [
        name for name, spec in run.columns.items() if spec["field"] == field
    ]
    for name, arrays in found:
        column = run.column(name)
        assert run.valid(field).tolist() == [array is not None for array in arrays]
        for row, array in enumerate(arrays):
            expected = np.zeros_like(column[row]) if array is None else array
            assert same(column[row], expected), (name, row)


@pytest.mark.parametrize("how", ["golden", "current"])
@pytest.mark.parametrize(("run_id", "root"), RUNS)
def test_both_readers_agree(run_id: str, root: str, how: str, made: Made) -> None:
    theirs, ours = Run(made(root, how), run_id), ReplayRun(made(root, how), run_id)
    assert ours.uid == theirs.run["uid"]
    assert ours.info["steps"] == len(ours) == theirs.run["steps"]
    for name in ("env_spec", "spaces", "git", "config", "metadata"):
        text = theirs.run[name]
        assert ours.info[name] == (None if text is None else json.loads(text))
    for row, step in enumerate(theirs.steps):
        record = asdict(ours.step(row))
        assert record.pop("info") == json.loads(step["info"] or "{}")
        action = step["action"]
        assert record.pop("action") == (json.loads(action) if isinstance(action, str) else action)
        assert (record.pop("frame"), record.pop("observation")) == (None, None)
        assert record == {name: step[name] for name in record}
    assert list(ours.arrays.columns) == list(theirs.columns)
    for name, spec in theirs.columns.items():
        rows = np.arange(theirs.run["steps" if spec["rows_of"] == "steps" else "ends"])
        assert same(ours.arrays.read(name, rows), theirs.column(name)), name
        if not spec["field"].startswith("valid."):
            assert same(ours.arrays.are_valid(spec["field"], rows), theirs.valid(spec["field"]))
    assert len(ours.episodes) == len(theirs.episodes)
    for position, begun in enumerate(theirs.episodes):
        episode = ours.episodes.episode_at(position)
        assert episode.uid == f"{theirs.run['uid']}-{begun['number']}"
        statics = dict(episode.statics)
        names = {"return": "total_reward", "length": "steps"}
        metadata = None if begun["metadata"] is None else json.loads(begun["metadata"])
        assert statics.pop("metadata") == metadata
        ended = "truncated" if begun["ended_ns"] is None else begun["status"]
        assert statics.pop("status") == ended
        assert statics == {name: begun[names.get(name, name)] for name in statics}
        of = [step["row"] for step in theirs.steps if _is_of(step, begun)]
        assert episode.rows.tolist() == of


def _is_of(step: dict[str, Any], episode: dict[str, Any]) -> bool:
    return all(step[name] == episode[name] for name in ("episode_id", "agent_id"))


@pytest.mark.needs("h5py", "hdf5plugin")
@pytest.mark.parametrize("how", ["golden", "current"])
@pytest.mark.parametrize("run_id", CLOSED)
def test_h5py_reads_the_same_from_closed_runs(run_id: str, how: str, made: Made) -> None:
    import h5py
    import hdf5plugin

    assert hdf5plugin.FILTERS
    root = made("closed", how)
    run = Run(root, run_id)
    with h5py.File(root / "replay" / f"{run_id}.h5", "r") as file:
        check_hdf5(file, run)
        attributes = dict(file.attrs)
        assert attributes.pop("created_at").startswith("2023-11-14T22:13:20.")
        (described, columns, episodes) = (
            json.loads(attributes.pop(name)) for name in ("run", "columns", "episodes")
        )
        assert json.loads(attributes.pop("sessions", "[]")) == run.sessions
        assert attributes == {
            "run_id": run_id,
            "uid": run.run["uid"],
            "version": "2.0",
            "status": "finished",
            "total_steps": run.run["steps"],
            "total_episodes": run.run["episodes"],
        }
        assert columns == list(run.columns.values())
        assert episodes == run.episodes
        # As of the commit before the last one.
        later = {"arrays_end", "metadata_offset", "metadata_bytes", "metadata_crc", "digest", "crc"}
        for name in run.run.keys() - later:
            assert described[name] == run.run[name], name
        check_episodes(file, run)
        check_chunks(file, run)


def check_hdf5(file: Any, run: Run) -> None:
    """Compare every dataset of columns with what the second reader has."""
    for name, spec in run.columns.items():
        if spec["stack"] is None:
            dataset = file[name.replace(".", "/")]
            assert dataset.chunks == (spec["chunk_rows"], *(max(1, n) for n in spec["shape"]))
            assert same(dataset[:], run.column(name)[: len(dataset)]), name
            continue
        owner = name if spec["planes_of"] is None else list(run.columns)[spec["planes_of"]]
        planes, numbers = file[f"planes/{owner}"][:], file[f"stacks/{name}"][:]
        axis = 1 if spec["stack"] == "first" else -1
        for row, stacked in enumerate(run.column(name)[: len(planes)]):
            for place, number in enumerate(numbers[row]):
                expected = planes[number - 1] if number else np.zeros_like(planes[0])
                assert same(np.take(stacked[None], place, axis)[0], expected)


def check_chunks(file: Any, run: Run) -> None:
    """Compare the table of chunks with that of the database, and chunks with their checksums."""
    paths = []
    for name, spec in run.columns.items():
        if spec["stack"] is None:
            paths.append(name.replace(".", "/"))
        else:
            paths += [f"planes/{name}"] if spec["planes_of"] is None else []
            paths.append(f"stacks/{name}")
    table = file["chunks"][:]
    expected = [list(row.values())[1:] for row in run.chunks]
    found = [[paths[number], *values] for number, *values in table.tolist()]
    assert found == sorted(found, key=lambda row: (paths.index(row[0]), row[1]))
    assert sorted(found) == sorted(expected)
    check_file(run.file, table)


def check_episodes(file: Any, run: Run) -> None:
    """Compare the rows of each episode with those of the second reader."""
    starts, lengths = file["episodes/starts"][:], file["episodes/lengths"][:]
    order = file["episodes/rows"][:] if "rows" in file["episodes"] else np.arange(len(run.steps))
    for row in run.episodes:
        start, length = starts[row["number"]], lengths[row["number"]]
        of = [step["row"] for step in run.steps if _is_of(step, row)]
        assert order[start : start + length].tolist() == of


@pytest.mark.needs("h5py", "hdf5plugin")
@pytest.mark.parametrize("how", ["golden", "current"])
@pytest.mark.parametrize("mode", [{}, {"swmr": True}])
def test_h5py_reads_full_chunks_of_a_killed_run(
    how: str, mode: dict[str, bool], made: Made
) -> None:
    import h5py

    root = made("killed", how)
    run = Run(root, "killed")
    with h5py.File(root / "replay" / "killed.h5", "r", **mode) as file:
        assert dict(file.attrs).keys() == {
            *("run_id", "uid", "version", "created_at", "status"),
            *("total_steps", "total_episodes"),
        }
        assert file.attrs["status"] == "recording"
        for name in ("frames", "rewards", "valid/frames", "ts_ns"):
            assert len(file[name]) == 8  # of 10 rows; the others are in the database
            assert same(file[name][:], run.column(name.replace("/", "."))[:8])
        assert len(run.tails) > 0


@pytest.mark.needs("h5py", "hdf5plugin")
@pytest.mark.parametrize("run_id", CLOSED)
def test_closed_file_is_readable_without_its_database(
    run_id: str, made: Made, tmp_path: Path
) -> None:
    root = made("closed", "golden")
    path = tmp_path / "copy.h5"
    path.write_bytes((root / "replay" / f"{run_id}.h5").read_bytes())
    ours, theirs = ReplayRun(path), Run(root, run_id)
    assert (ours.run_id, len(ours)) == (run_id, len(theirs.steps))
    for name, spec in theirs.columns.items():
        rows = np.arange(theirs.run["steps" if spec["rows_of"] == "steps" else "ends"])
        assert same(ours.arrays.read(name, rows), theirs.column(name)), name
    for row, step in enumerate(theirs.steps):
        record = asdict(ours.step(row))
        kept = ("episode_id", "agent_id", "step_index", "reward", "frame_ref", "obs_ref", "ts_ns")
        assert {name: record[name] for name in kept} == {name: step[name] for name in kept}


@pytest.mark.needs("h5py", "hdf5plugin")
def test_both_readers_refuse_a_changed_file_without_its_database(
    made: Made, tmp_path: Path
) -> None:
    import h5py

    source = made("closed", "golden") / "replay" / "stacks-raw.h5"
    whole = source.read_bytes()
    with h5py.File(source) as file:
        table = file["chunks"][:]
    check_file(whole, table)
    (offset,) = struct.unpack_from("<Q", whole, len(whole) - 16)
    path = tmp_path / "copy.h5"
    for place in (table[0, 3], table[-1, 3] + 5, 20, offset + 9, len(whole) - 1, len(whole) - 6):
        damaged = bytearray(whole)
        damaged[place] ^= 2
        path.write_bytes(damaged)
        with pytest.raises(AssertionError):
            check_file(bytes(damaged), table)
        with pytest.raises((CorruptError, UnsupportedError)):
            read_all(ReplayRun(path))


def read_all(run: ReplayRun) -> None:
    """Read every row of every column."""
    for name, spec in run.arrays.columns.items():
        run.arrays.read(name, np.arange(len(run) if spec.rows_of == "steps" else 1))


def test_raw_run_is_written_with_the_same_bytes(made: Made) -> None:
    # Compressed chunks depend on the versions of libraries. Raw ones do not, and this run was
    # committed row by row, so that chunks are full in the same order each time.
    golden, current = (made("closed", how) for how in (f"golden{NEWEST}", "current"))
    path = Path("replay", "stacks-raw.h5")
    assert (current / path).read_bytes() == (golden / path).read_bytes()
    then, now = (Run(root, "stacks-raw") for root in (golden, current))
    assert (now.run, now.episodes, now.commits) == (then.run, then.episodes, then.commits)
    assert (now.steps, now.chunks) == (then.steps, then.chunks)


@pytest.mark.parametrize(("run_id", "root"), RUNS)
def test_current_writer_makes_the_same_rows_and_arrays(run_id: str, root: str, made: Made) -> None:
    hows = (f"golden{NEWEST}", "current")
    then, now = (Run(made(root, how), run_id) for how in hows)
    assert (now.steps, now.episodes, now.commits) == (then.steps, then.episodes, then.commits)
    assert now.sessions == then.sessions
    assert now.columns == then.columns
    for name in then.columns:
        assert same(now.column(name), then.column(name)), name
    for rows, before in ((now.chunks, then.chunks), (now.tails, then.tails)):
        assert places(rows) == places(before)


def places(rows: Sequence[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Return which rows of which dataset are stored together."""
    return sorted((row["field"], row["first_row"], row["rows"]) for row in rows)


def test_deleted_run_is_a_row_without_anything_else(made: Made) -> None:
    root = made("closed", "golden")
    removed = Run(root, "removed")
    assert (removed.run["status"], removed.run["steps"], removed.run["digest"]) == ("deleted", 0, 0)
    assert not [*removed.steps, *removed.episodes, *removed.columns, *removed.chunks]
    assert not (root / "replay" / "removed.h5").exists()
    with pytest.raises(UnknownNameError, match="deleted"):
        ReplayRun(root, "removed")


def test_reading_and_validating_change_no_file(tmp_path: Path) -> None:
    root = unpack("closed", tmp_path)
    before = contents(root)
    for run_id in [*CLOSED, "scalars"]:
        run = ReplayRun(root, run_id)
        assert len(run.steps) == len(run)
        for episode in run.episodes if run_id in CLOSED else ():
            episode.arrays()
    report = validate(root, level="full")
    assert (report.problems, report.unfinished, report.unchecked) == ((), (), ())
    assert report.checked == {"runs": 6, "steps": sum(map(len, STEPS.values())) - 10}
    assert recover(root).runs == ()
    assert contents(root) == before


def test_killed_run_is_recovered(tmp_path: Path) -> None:
    root = unpack("killed", tmp_path)
    report = validate(root, level="full")
    assert (report.problems, [each.reason for each in report.unfinished]) == ((), ["left"])
    before = Run(root, "killed")
    (recovered,) = recover(root).runs
    assert (recovered.episodes, recovered.steps) == (2, 10)
    after = Run(root, "killed")
    assert (after.run["status"], after.tails) == ("interrupted", [])
    assert [row["status"] for row in after.episodes] == ["truncated", "truncated"]
    assert after.steps == before.steps
    for name in before.columns:
        assert same(after.column(name), before.column(name)), name


@pytest.mark.parametrize(("run_id", "root"), RUNS)
def test_old_run_can_be_continued(run_id: str, root: str, tmp_path: Path) -> None:
    folder = unpack(root, tmp_path)
    before = Run(folder, run_id)
    arguments = STEPS[run_id][0].arguments if STEPS[run_id] else {"reward": 1.0}
    with ReplayRecorder(folder, run_id, live=None, arrays=run_id != "scalars") as recorder:
        recorder.step(**{**arguments, "step_index": None, "terminated": True})
    after = Run(folder, run_id)
    first, second = after.sessions[0], after.sessions[-1]
    assert before.sessions == []
    assert [row["number"] for row in after.sessions] == [0, 1]
    assert (first["first_row"], second["first_row"]) == (0, before.run["steps"])
    assert (first["git"], first["seed"]) == (before.run["git"], before.run["seed"])
    assert after.steps[:-1] == before.steps
    assert after.run["steps"] == before.run["steps"] + 1
    assert after.episodes[-1]["status"] == "terminated"
    for name, spec in before.columns.items():
        column = before.column(name)
        assert same(after.column(name)[: len(column)], column), (name, spec)
    assert validate(folder, level="full").ok


CHANGES = {
    "runs": "SET env_id = 'other'",
    "episodes": "SET total_reward = total_reward + 1 WHERE number = 2 AND {run}",
    "columns": "SET spec = replace(spec, '<i2', '<u2') WHERE {run}",
    "chunks": "SET rows = rows - 1 WHERE field = 'frames' AND first_row = 4 AND {run}",
    "commits": "SET crc = crc + 1 WHERE first_row = 0 AND {run}",
    "steps": "SET info = NULL WHERE row = 5 AND {run}",
}


@pytest.mark.parametrize("table", CHANGES)
def test_both_readers_refuse_changed_rows(table: str, tmp_path: Path) -> None:
    root = unpack("closed", tmp_path)
    change(root, f"UPDATE {table} {CHANGES[table]}", "interleaved")
    with pytest.raises(AssertionError):
        Run(root, "interleaved")
    with pytest.raises(CorruptError):
        _ = ReplayRun(root, "interleaved").steps


@pytest.mark.parametrize("table", ["episodes", "columns", "chunks", "commits", "steps", "tail"])
def test_both_readers_refuse_missing_rows(table: str, tmp_path: Path) -> None:
    root = unpack("killed", tmp_path)
    last = {"episodes": "number", "columns": "number", "steps": "row"}.get(table, "first_row")
    newest = f"SELECT max({last}) FROM {table}"  # noqa: S608 - our names
    change(root, f"DELETE FROM {table} WHERE {last} = ({newest})", "killed")  # noqa: S608
    with pytest.raises(AssertionError):
        Run(root, "killed")
    with pytest.raises(CorruptError):
        _ = ReplayRun(root, "killed").steps


def test_both_readers_refuse_changed_tails(tmp_path: Path) -> None:
    root = unpack("killed", tmp_path)
    change(root, "UPDATE tail SET data = zeroblob(length(data)) WHERE field = 'frames'", "killed")
    with pytest.raises(AssertionError):
        Run(root, "killed").column("frames")
    with pytest.raises(CorruptError):
        ReplayRun(root, "killed").read("frames", [9])


def test_both_readers_refuse_changed_chunks(tmp_path: Path) -> None:
    root = unpack("closed", tmp_path)
    run = Run(root, "stacks-raw")
    chunk = next(row for row in run.chunks if row["field"] == "frames" and row["first_row"] == 4)
    path = root / "replay" / "stacks-raw.h5"
    data = bytearray(path.read_bytes())
    data[chunk["offset"] + 5] ^= 1
    path.write_bytes(data)
    run = Run(root, "stacks-raw")
    with pytest.raises(AssertionError):
        run.column("frames")
    with pytest.raises(CorruptError):
        ReplayRun(root, "stacks-raw").read("frames", [4])


@pytest.mark.parametrize("run_id", ["interleaved", "lz4_fields"])
def test_second_reader_reads_compacted_runs(run_id: str, tmp_path: Path) -> None:
    root = unpack("closed", tmp_path)
    before = Run(root, run_id)
    assert compact(root, run_id, codec="raw").is_changed
    after = Run(root, run_id)
    assert (after.run["arrays_version"], after.run["arrays_pending"]) == (1, 0)
    assert {spec["codec"] for spec in after.columns.values()} == {"raw"}
    assert after.steps == before.steps
    for name in before.columns:
        assert same(after.column(name), before.column(name)), name


@pytest.mark.parametrize("place", ["before the rename", "after it"])
def test_both_readers_find_a_file_that_replaces_another(place: str, tmp_path: Path) -> None:
    root = unpack("closed", tmp_path)
    before = Run(root, "interleaved")
    values = {**before.run, "arrays_version": 3, "arrays_pending": 1}
    values["crc"] = checksum("run", list(values.values())[:-1])
    new = f"arrays_version = 3, arrays_pending = 1, crc = {values['crc']}"
    change(root, f"UPDATE runs SET {new} WHERE {{run}}", "interleaved")  # noqa: S608 - our names
    if place == "before the rename":
        path = root / "replay" / "interleaved.h5"
        path.with_name(".interleaved.3.h5").write_bytes(path.read_bytes())
        path.write_bytes(b"the old file")
    theirs, ours = Run(root, "interleaved"), ReplayRun(root, "interleaved")
    assert theirs.run == values
    for name, spec in before.columns.items():
        rows = np.arange(theirs.run["steps" if spec["rows_of"] == "steps" else "ends"])
        assert same(theirs.column(name), before.column(name))
        assert same(ours.arrays.read(name, rows), before.column(name))


def test_page_lists_the_columns_of_all_tables(tmp_path: Path) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "format" / "replay.md").read_text()
    root = unpack(f"closed{NEWEST}", tmp_path)
    connection = sqlite3.connect(root / "telemetry" / "telemetry.sqlite")
    tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_schema")]
    found = {
        name: [row[1] for row in connection.execute(f"PRAGMA table_info({name})")]
        for name in tables
        if not name.startswith(("idx_", "sqlite_"))
    }
    connection.close()
    assert sorted(found) == sorted(re.findall(r"^\*\*`(\w+)`\*\*,", page, re.MULTILINE))
    for name, columns in found.items():
        table = page.partition(f"**`{name}`**,")[2].partition("\n\n")[2].partition("\n\n")[0]
        rows = [line.split("|")[1] for line in table.splitlines()[2:]]
        assert sorted(re.findall(r"`(\w+)`", " ".join(rows))) == sorted(columns)
    for name in ("runs", "episodes", "sessions", "steps"):
        order = page.partition(f"\n- `{name}`: ")[2]
        order = re.split(r"\n[-\n]", order)[0]
        assert re.findall(r"`(\w+)`", order) == found[name]


def test_page_describes_the_checksum_of_steps() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "format" / "replay.md").read_text()
    (example,) = re.findall(r'`\["steps",(\[.*?\]),', page)
    row = ("r", "r-ep0000", 0, "", 0, 1, None, 0.5, 0, 0, None, None, None, 0, timestamp(0))
    assert rows_checksum([row])[2] == crc32c(f'["steps",{example}]'.encode())


def change(root: Path, sql: str, run_id: str) -> None:
    """Change the database."""
    connection = sqlite3.connect(root / "telemetry" / "telemetry.sqlite")
    changed = connection.execute(sql.format(run=f"run_id = '{run_id}'")).rowcount
    connection.commit()
    connection.close()
    assert changed > 0
