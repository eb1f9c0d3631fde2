"""Where runs are read from: the database with its file, or a copied file alone."""

import inspect
import json
import pickle
import shutil
import struct
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relive.errors import (
    CorruptError,
    InvalidError,
    NotFoundError,
    UnknownFieldError,
    UnknownNameError,
    UnsupportedError,
)
from relive.replay import FrameResolver, ReplayConfig, ReplayRecorder, ReplayRun, validate
from relive.replay.export import export_h5
from relive.replay.source import DatabaseSource, FileSource, RunSource, source_of
from relive.replay.storage import tables
from relive.replay.storage.file_tables import check_metadata
from relive.replay.storage.layout import arrays_path, database_path
from relive.replay.storage.tables import STEP_COLUMNS
from tests.replay import toy_run

pytestmark = pytest.mark.needs("h5py")

INFO = STEP_COLUMNS.index("info")


def record_mixed(root: Path, run_id: str = "mixed") -> Path:
    """Record steps of two agents whose values are missing, large, nested, NaN and late."""
    config = ReplayConfig(chunk_rows=4, sync_episodes=False)
    with ReplayRecorder(root, run_id, config=config, live=None, seed=3, env_id="Toy") as recorder:
        for number in range(23):
            for agent in ("a", "b"):
                recorder.step(
                    {"x": np.float32(number), "y": (np.arange(3) + number,)},
                    np.arange(40.0) + number if agent == "a" or number > 3 else None,
                    [None, float("nan"), float("inf"), -0.0, 0.5][number % 5],
                    terminated=number % 6 == 5 and agent == "a",
                    frame=np.full((2, 2), number, np.uint8) if number > 9 else None,
                    next_observation={"x": np.float32(-1), "y": (np.arange(3),)},
                    extras={"p": number} if number % 2 else None,
                    agent_id=agent,
                    ts_ns=1000 * number + 7,
                )
    return root


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("root")
    toy_run.record(made, "toy", 4)
    toy_run.record_vector(made, "vector")
    toy_run.record_nothing(made)
    return record_mixed(made)


RUNS = ("toy", "vector", "empty", "mixed")


@pytest.fixture(params=RUNS)
def sources(request: pytest.FixtureRequest, root: Path, tmp_path: Path) -> tuple[Any, Any]:
    """The same run with its database, and from a copy of its file."""
    copy = tmp_path / "elsewhere.h5"
    shutil.copy(arrays_path(root, request.param), copy)
    return DatabaseSource(root, request.param), FileSource(copy)


def assert_same(found: Any, expected: Any) -> None:
    if isinstance(expected, dict):
        assert list(found) == list(expected)
        for key, value in expected.items():
            assert_same(found[key], value)
    elif isinstance(expected, tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    else:
        assert found.dtype == expected.dtype
        assert found.shape == expected.shape
        assert found.tobytes() == expected.tobytes()


def test_a_copied_file_has_the_same_steps(sources: tuple[RunSource, RunSource]) -> None:
    with_database, copied = sources
    rows = np.arange(with_database.run.steps)
    for wanted in (rows, rows[::-3], rows[:0], np.repeat(rows, 2)):
        expected = [
            (*row[:INFO], None, *row[INFO + 1 :]) for row in with_database.step_rows(wanted)
        ]
        assert copied.step_rows(wanted) == expected
        assert [type(value) for row in expected for value in row] == [
            type(value) for row in copied.step_rows(wanted) for value in row
        ]


def test_a_copied_file_has_the_same_episodes(sources: tuple[RunSource, RunSource]) -> None:
    with_database, copied = sources
    assert copied.episodes == with_database.episodes
    for field in ("run_id", "uid", "status", "steps", "episodes", "ends", "env_id", "seed"):
        assert getattr(copied.run, field) == getattr(with_database.run, field)
    for episode in with_database.episodes:
        rows = with_database.rows_of(episode.number)
        np.testing.assert_array_equal(copied.rows_of(episode.number), rows, strict=True)
        assert len(rows) == episode.steps
        assert copied.end_of(episode.number) == with_database.end_of(episode.number)
    assert not copied.is_live
    assert not with_database.is_live


def test_a_copied_file_has_the_same_arrays(sources: tuple[RunSource, RunSource]) -> None:
    with_database, copied = sources
    assert list(copied.columns) == list(with_database.columns)
    ours, theirs = copied.arrays, with_database.arrays
    assert ours.fields.keys() == theirs.fields.keys()
    for field, specs in theirs.fields.items():
        count = with_database.run.steps if specs[0].rows_of == "steps" else with_database.run.ends
        rows = np.arange(count)[::-1]
        assert_same(ours.read_field(field, rows), theirs.read_field(field, rows))
        np.testing.assert_array_equal(ours.are_valid(field, rows), theirs.are_valid(field, rows))


@pytest.mark.parametrize("run_id", RUNS)
def test_runs_of_both_read_the_same(root: Path, tmp_path: Path, run_id: str) -> None:
    copy = tmp_path / "copy.h5"
    shutil.copy(arrays_path(root, run_id), copy)
    run, other = ReplayRun(root, run_id), ReplayRun(copy)
    assert other.run_id == run.run_id
    assert other.episodes.uids == run.episodes.uids
    assert other.steps.drop_columns("info").equals(run.steps.drop_columns("info"))
    for position in range(len(run.episodes)):
        ours, theirs = run.episodes.episode_at(position), other.episodes.episode_at(position)
        assert_same(theirs.arrays(), ours.arrays())
        assert theirs.statics == ours.statics
        assert list(theirs.signals) == list(ours.signals)
        for name, signal in ours.signals.items():
            assert_same(theirs.signals[name].values(), signal.values())
            assert_same(theirs.signals[name].clock("wall"), signal.clock("wall"))


def test_both_fulfil_the_protocol(sources: tuple[Any, Any]) -> None:
    names = [
        name for name, value in vars(RunSource).items()
        if not name.startswith("_") and (callable(value) or isinstance(value, property))
    ]  # fmt: skip
    assert {"run", "is_live", "episodes", "arrays", "rows_of", "end_of", "step_rows"} <= {*names}
    for source in sources:
        for name in names:
            declared = vars(RunSource)[name]
            found = inspect.getattr_static(type(source), name)
            if callable(declared):
                wanted = list(inspect.signature(declared).parameters)
                assert list(inspect.signature(found).parameters) == wanted, name
            else:
                assert not callable(getattr(source, name)), name


def test_sources_pickle_to_their_places(sources: tuple[Any, Any]) -> None:
    for source in sources:
        for name in source.columns:
            source.arrays.read(name, [])
        data = pickle.dumps(source)
        assert len(data) < 1000
        again = pickle.loads(data)  # noqa: S301 - our own data
        assert type(again) is type(source)
        assert again.episodes == source.episodes


def test_a_run_is_read_while_it_is_recorded(tmp_path: Path) -> None:
    config = ReplayConfig(chunk_rows=4, flush_s=3600)
    recorder = ReplayRecorder(tmp_path, "run", config=config, live=None)
    recorder.step([0], 0)
    recorder.flush()
    source = DatabaseSource(tmp_path, "run")
    assert source.is_live
    assert source.run.status == "recording"
    for number in range(1, 20):
        recorder.step([number], number, terminated=number == 9)
    assert source.refreshed().run.steps == 1
    recorder.flush()
    assert source.run.steps == 1  # a snapshot
    assert [row[5] for row in source.step_rows(np.arange(1))] == [0]
    now = source.refreshed()
    assert now.run.steps == 20
    assert now.arrays.read("actions", range(20)).tolist() == list(range(20))
    assert [now.rows_of(number).tolist() for number in (0, 1)] == [
        list(range(10)),
        list(range(10, 20)),
    ]
    assert [episode.ended_ns is None for episode in now.episodes] == [False, True]
    recorder.close()
    assert now.arrays.read("observations", range(20)).ravel().tolist() == list(range(20))
    assert not now.is_live
    assert now.refreshed().run.status == "finished"


@pytest.mark.parametrize("most", [0, 2, 512])
def test_a_refresh_reads_only_episodes_that_may_have_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(tables, "_MAX_UNFINISHED", most)
    crc, compared = tables._episode_crc, []

    def counted(row: Any) -> int:
        compared.append(row)
        return crc(row)

    config = ReplayConfig(flush_s=3600, sync_episodes=False)
    with ReplayRecorder(tmp_path, "run", config=config, live=None) as recorder:
        recorder.step([0], 0, env=1)  # stays open
        recorder.begin_episode(env=2)  # has no step yet
        for number in range(100):
            recorder.step([number], 0, terminated=True)
        recorder.flush()
        source = first = DatabaseSource(tmp_path, "run")
        for number in range(5):
            recorder.step([number], 0, terminated=number % 2 == 0)
            if number == 2:
                recorder.step([0], 0, env=2)
            if number == 3:
                recorder.step([0], 0, env=1, terminated=True)
            recorder.flush()
            with monkeypatch.context() as patched:
                patched.setattr(tables, "_episode_crc", counted)
                source = source.refreshed()
            assert source.episodes == DatabaseSource(tmp_path, "run").episodes
            assert source.lineage is first.lineage  # it was not read again as a whole
    assert len(first.episodes) == 101
    if most == 512:
        assert len(compared) < 50


def test_a_snapshot_stays_readable_while_the_run_is_continued(tmp_path: Path) -> None:
    with ReplayRecorder(tmp_path, "run", config=toy_run.SMALL, live=None) as recorder:
        for number in range(6):  # the last chunk is not full
            recorder.step([number], number, frame=toy_run.frame(0))
    sources = [DatabaseSource(tmp_path, "run"), FileSource(arrays_path(tmp_path, "run"))]
    copy = tmp_path / "copy.h5"
    shutil.copy(arrays_path(tmp_path, "run"), copy)
    with ReplayRecorder(tmp_path, "run", config=toy_run.SMALL, live=None) as recorder:
        for number in range(6, 30):
            recorder.step([number], number, frame=toy_run.frame(0))
            if number % 5 == 0:
                recorder.flush()
    for source in (*sources, FileSource(copy)):
        assert source.arrays.read("actions", range(6)).tolist() == list(range(6))
        assert source.run.steps == 6
    assert DatabaseSource(tmp_path, "run").run.steps == 30


def test_which_source_a_path_has(root: Path, tmp_path: Path) -> None:
    path = arrays_path(root, "toy")
    assert isinstance(source_of(path), DatabaseSource)
    assert isinstance(source_of(root, "toy"), DatabaseSource)
    copy = tmp_path / "toy.h5"
    shutil.copy(path, copy)
    assert isinstance(source_of(copy), FileSource)
    other = tmp_path / "root"
    toy_run.record(other, "mine", 1)
    shutil.copy(path, arrays_path(other, "copied"))  # of a run that the database does not have
    assert isinstance(source_of(arrays_path(other, "copied")), FileSource)
    assert ReplayRun(arrays_path(other, "copied")).run_id == "toy"
    database_path(other).unlink()
    assert isinstance(source_of(arrays_path(other, "mine")), FileSource)
    with FrameResolver(other / "replay") as resolver:
        found = resolver.resolve("h5://copied/observations.pose/3")
    assert found.tolist() == [3, 0.75]
    with pytest.raises(NotFoundError):
        source_of(tmp_path / "none.h5")
    with pytest.raises(UnknownNameError):
        source_of(root, "none")


def test_a_directory_needs_the_id_of_a_run(tmp_path: Path) -> None:
    with pytest.raises(InvalidError, match=r"expected the `\.h5` file of a run") as caught:
        ReplayRun(tmp_path)
    assert caught.value.hint is None
    for number in range(6):
        with ReplayRecorder(tmp_path, f"run-{number}", live=None) as recorder:
            recorder.step([0.5])
    for path in (tmp_path, tmp_path / "replay"):
        for read in (ReplayRun, lambda path: export_h5(path, None, tmp_path / "x.h5")):
            with pytest.raises(InvalidError, match="is a directory of runs") as caught:
                read(path)
            assert caught.value.hint == (
                "pass run_id=; the runs are 'run-0', 'run-1', 'run-2', 'run-3', 'run-4', …"
            )


def test_numbers_of_episodes_may_be_missing(tmp_path: Path) -> None:
    with ReplayRecorder(tmp_path, "run", live=None) as recorder:
        recorder.step([0.5], 1, 1.0, terminated=True, env=0)
        recorder.begin_episode("never", env=1)  # which never has a step
        recorder.step([1.5], 1, 1.0, terminated=True, env=0)
    shutil.copy(arrays_path(tmp_path, "run"), tmp_path / "copy.h5")
    export_h5(tmp_path, "run", tmp_path / "exported.h5")
    first = ReplayRun(tmp_path, "run")
    for path in (tmp_path / "copy.h5", tmp_path / "exported.h5"):
        other = ReplayRun(path)
        assert [each.uid for each in other.episodes] == [each.uid for each in first.episodes]
        assert [each.uid[-2:] for each in other.episodes] == ["-0", "-2"]
        for position in range(2):
            one, two = first.episodes[position], other.episodes[position]
            assert one.rows.tolist() == two.rows.tolist()
            assert one.load() == two.load()
        assert other.steps.drop(["info"]) == first.steps.drop(["info"])
        assert validate(path, level="full").ok


@pytest.mark.parametrize("numbers", [[0, 0, 1, 2], [1, 0, 2, 3], [0, 1, 2, 4], [-1, 0, 1, 2]])
def test_wrong_numbers_of_episodes_are_an_error(
    root: Path, tmp_path: Path, numbers: list[int]
) -> None:
    rows = [asdict(row) for row in source_of(root, "toy").episodes]
    assert [row["number"] for row in rows] == [0, 1, 2, 3]
    for row, number in zip(rows, numbers, strict=True):
        row["number"] = number
    toy_run.copy_with(root, "toy", tmp_path / "copy.h5", {"episodes": json.dumps(rows)})
    with pytest.raises(CorruptError, match="is damaged"):
        FileSource(tmp_path / "copy.h5")


def test_fields_that_an_episode_does_not_have_are_an_error(root: Path) -> None:
    episode = ReplayRun(root, "toy").episodes[0]
    frames = [toy_run.frame(row) is not None for row in range(toy_run.STEPS)]
    assert {name: flags.tolist() for name, flags in episode.arrays("valid.frames").items()} == {
        "valid.frames": frames
    }
    assert episode.arrays("valid.rewards", "actions").keys() == {"valid.rewards", "actions"}
    assert episode.arrays("valid.observations.pose")["valid.observations.pose"].all()
    for name in ("final.observations", "valid.final.observations", "final.episode"):
        with pytest.raises(UnknownFieldError, match="'observations', 'actions'") as caught:
            episode.arrays(name)
        assert f"unknown field {name!r}" in str(caught.value)
        assert caught.value.hint == "final() returns what was seen after the last step"
    for name in ("obs", "valid.obs", "valid."):
        with pytest.raises(UnknownFieldError):
            episode.arrays(name)


def test_files_that_are_not_closed_runs_are_refused(root: Path, tmp_path: Path) -> None:
    import h5py

    foreign = tmp_path / "foreign.h5"
    with h5py.File(foreign, "w") as file:
        file["x"] = [1, 2]
    with pytest.raises(UnsupportedError, match="not a closed run of relive") as caught:
        FileSource(foreign)
    assert caught.value.hint == "h5py can read any HDF5 file"
    recorder = ReplayRecorder(tmp_path / "root", "run", config=toy_run.SMALL, live=None)
    for number in range(40):
        recorder.step([number], number)
        recorder.flush()
    shutil.copy(arrays_path(tmp_path / "root", "run"), tmp_path / "live.h5")
    recorder.abort()
    with pytest.raises(UnsupportedError):
        FileSource(tmp_path / "live.h5")
    damaged = tmp_path / "damaged.h5"
    damaged.write_bytes(arrays_path(root, "toy").read_bytes()[:500])
    with pytest.raises(CorruptError):
        FileSource(damaged)
    with pytest.raises(NotFoundError):
        FileSource(tmp_path / "none.h5")


@pytest.mark.parametrize("name", ["run", "columns", "episodes"])
def test_damaged_descriptions_in_a_copied_file_are_typed_errors(
    root: Path, tmp_path: Path, name: str
) -> None:
    copy = tmp_path / "copy.h5"
    for text in ("", "{", "[]", '{"x": 1}', "null", '[{"x": 1}]', "7"):
        toy_run.copy_with(root, "toy", copy, {name: text})
        try:
            source = FileSource(copy)
        except (UnsupportedError, CorruptError):
            continue
        # An empty list is a run without columns or episodes.
        assert (text, name) in {("[]", "columns"), ("[]", "episodes")}
        assert source.run.run_id == "toy"


def test_a_description_of_other_chunks_is_a_typed_error(root: Path, tmp_path: Path) -> None:
    import h5py

    copy = tmp_path / "copy.h5"
    shutil.copy(arrays_path(root, "toy"), copy)
    with h5py.File(copy, "r+") as file:
        del file["actions"]
    with pytest.raises((UnsupportedError, CorruptError)):
        FileSource(copy)


def test_damaged_metadata_is_refused_before_it_is_parsed(root: Path, tmp_path: Path) -> None:
    whole = arrays_path(root, "toy").read_bytes()
    (offset,) = struct.unpack_from("<Q", whole, len(whole) - 16)
    copy = tmp_path / "copy.h5"
    places = [*range(48), *range(offset, len(whole) - 16, 61), *range(len(whole) - 16, len(whole))]
    for place in places:
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        copy.write_bytes(damaged)
        with pytest.raises((UnsupportedError, CorruptError)):
            check_metadata(copy)
    for size in (0, 7, 47, 48, 63, 64, offset, len(whole) - 1):
        copy.write_bytes(whole[:size])
        with pytest.raises(CorruptError):
            check_metadata(copy)
    copy.write_bytes(whole + b"what an editor appended")
    assert FileSource(copy).run.run_id == "toy"
    copy.write_bytes(b"")
    with pytest.raises(CorruptError, match="not a readable HDF5 file"):
        FileSource(copy)
