"""A compacted run has the same steps, references and arrays in fewer bytes, whatever happens."""

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relive.errors import (
    CorruptError,
    InvalidError,
    LockedError,
    NotFoundError,
    ReadOnlyError,
    UnfinishedError,
    UnknownFieldError,
    UnknownNameError,
)
from relive.replay import (
    FrameResolver,
    ReplayConfig,
    ReplayRecorder,
    ReplayRun,
    TelemetryStore,
    recover,
    source,
    validate,
)
from relive.replay.arrays import RunArrays
from relive.replay.manage import compact as module
from relive.replay.manage.compact import compact, vacuum
from relive.replay.manage.runs import archive, delete, list_runs, load_tables
from relive.replay.storage import files, tables
from relive.replay.storage.connection import Database
from relive.replay.storage.layout import arrays_path, database_path, lock_path, replacement_path
from tests.replay.toy_run import SMALL, STEPS, observation, record, record_nothing, record_vector

Finisher = Callable[[Path], object]


def content(root: Path, run_id: str = "toy-1") -> dict[str, Any]:
    """Return everything that can be read of a run: tables, arrays by row and by reference."""
    run = ReplayRun(root, run_id)
    steps = run.steps.to_pylist()
    arrays = run.arrays
    counts = {"steps": len(run), "ends": load_tables(root, run_id).run.ends}
    refs = [ref for step in steps for ref in (step["frame_ref"], step["obs_ref"])]
    with FrameResolver(root / "replay") as resolver:
        found = resolver.resolve_batch(refs)
    return {
        "steps": steps,
        "episodes": [(each["length"], each["return"], each.status) for each in run.episodes],
        "info": run.info,
        "commits": load_tables(root, run_id).commits,
        "arrays": {
            name: _bytes(arrays.read(name, np.arange(counts[spec.rows_of])))
            for name, spec in arrays.columns.items()
        },
        "found": [_bytes(each) for each in found],
    }


def _bytes(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _bytes(inner) for name, inner in value.items()}
    if isinstance(value, tuple):
        return tuple(map(_bytes, value))
    return None if value is None else (value.dtype.str, value.shape, value.tobytes())


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Record a run, and continue it, so that its file has bytes that nothing refers to."""
    root = tmp_path_factory.mktemp("compact") / "root"
    record(root, metadata={"lr": 0.5})
    for number in range(2):
        with ReplayRecorder(root, "toy-1", config=SMALL, live=None) as recorder:
            first = recorder.stats.steps
            for row in range(first, first + 5 + number):
                recorder.step(
                    observation(first, row), 1, row / 8, extras={"value": np.float64(row)}
                )
    return root


@pytest.fixture
def root(recorded: Path, tmp_path: Path) -> Path:
    """Return a copy of the recorded run; no connection to its database is open."""
    return shutil.copytree(recorded, tmp_path / "root")


def names(root: Path) -> list[str]:
    """Return the names of the files of runs."""
    return sorted(path.name for path in (root / "replay").iterdir() if path.name != "index.json")


def test_rows_references_and_arrays_are_unchanged(root: Path) -> None:
    before = content(root)
    path = arrays_path(root, "toy-1")
    size = path.stat().st_size
    done = compact(root, "toy-1")
    assert (done.run_id, done.path, done.has_arrays, done.is_changed) == (
        "toy-1", path, True, True,
    )  # fmt: skip
    assert done.bytes_before == size
    assert done.bytes_after == path.stat().st_size < size
    assert content(root) == before
    assert validate(root, "full").problems == ()
    assert names(root) == [".toy-1.lock", "toy-1.h5"]


def test_interleaved_episodes_keep_their_rows(tmp_path: Path) -> None:
    record_vector(tmp_path)
    before = content(tmp_path, "vector-1")
    compact(tmp_path, "vector-1")
    assert content(tmp_path, "vector-1") == before


def test_chunks_are_full_in_order_and_without_gaps(root: Path) -> None:
    compact(root, "toy-1")
    found = load_tables(root, "toy-1")
    assert found.tails == {}
    full: list[tables.ChunkRow] = []
    rest: list[tables.ChunkRow] = []
    for spec in found.columns:
        for name in spec.paths:
            chunks = sorted(found.chunks[name])
            size = 1024 if name.startswith("stacks/") else spec.chunk_rows
            assert all(chunk[1] == size for chunk in chunks[:-1])
            for chunk in chunks:
                (full if chunk[1] == size else rest).append(chunk)
    end = 48
    for chunk in (*full, *rest):
        assert chunk[2] == end
        end += chunk[3]
    run = found.run
    assert run.metadata_offset == end + -end % 8
    assert run.metadata_bytes is not None
    size = arrays_path(root, "toy-1").stat().st_size
    assert run.metadata_offset + run.metadata_bytes == run.arrays_end == size


def test_compact_run_stays_as_it_is(root: Path) -> None:
    first = compact(root, "toy-1")
    path = arrays_path(root, "toy-1")
    before, inode = path.read_bytes(), path.stat().st_ino
    again = compact(root, "toy-1")
    assert (again.is_changed, again.unused_bytes) == (False, 0)
    assert again.bytes_before == again.bytes_after == first.bytes_after
    assert (path.read_bytes(), path.stat().st_ino) == (before, inode)


def test_bytes_of_aborted_recorders_are_counted_as_unused(tmp_path: Path) -> None:
    record(tmp_path)
    compact(tmp_path, "toy-1")
    size = arrays_path(tmp_path, "toy-1").stat().st_size
    with arrays_path(tmp_path, "toy-1").open("ab") as file:
        file.write(bytes(1000))  # as a recorder leaves that was killed before its first commit
    done = compact(tmp_path, "toy-1", dry_run=True)
    assert (done.unused_bytes, done.bytes_before, done.bytes_after) == (1000, size + 1000, None)
    # The digest of the run, in its metadata, may have another number of digits.
    assert compact(tmp_path, "toy-1").bytes_after == pytest.approx(size, abs=16)


def test_arrays_of_any_dtype_and_shape(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    with ReplayRecorder(tmp_path, "run", config=SMALL, live=None) as recorder:
        for row in range(21):
            extras: dict[str, Any] = {
                "empty": np.zeros((3, 0), np.float32),
                "flag": np.bool_(row % 2),
                "complex": np.array([row * 1j, np.nan]),
                "wide": rng.integers(0, 255, (5, 7, 2), np.uint16),
            }
            recorder.step(
                (np.float16(row), {"a.b/c": np.arange(row, row + 3)}),
                np.array([row, -row], np.int8),
                extras=extras,
                frame=rng.random((4, 4)) if row in {2, 17} else None,  # chunks between have none
                info={"map": rng.random((30, 30))} if row > 10 else None,
            )
    before = content(tmp_path, "run")
    sizes = load_tables(tmp_path, "run").chunks
    done = compact(tmp_path, "run", codec="zstd:5")
    assert "extras.empty" in done.encoded
    assert content(tmp_path, "run") == before
    after = load_tables(tmp_path, "run").chunks
    assert {name: sorted(chunk[:2] for chunk in chunks) for name, chunks in sizes.items()} == {
        name: sorted(chunk[:2] for chunk in chunks) for name, chunks in after.items()
    }
    assert sorted(chunk[0] for chunk in after["frames"]) == [0, 16]


def test_rows_of_unfinished_chunks_are_merged(tmp_path: Path) -> None:
    record(tmp_path, end="leave")
    database = Database.create(database_path(tmp_path))
    with database, database.transaction() as connection:
        run = tables.read_run(connection, "toy-1")
        tables.write_run(connection, replace(run, status="failed"))
    before = content(tmp_path)
    assert any(load_tables(tmp_path, "toy-1").tails.values())
    done = compact(tmp_path, "toy-1")
    assert done.is_changed
    assert load_tables(tmp_path, "toy-1").tails == {}
    after = content(tmp_path)
    assert after == before
    assert validate(tmp_path, "full").problems == ()


@pytest.mark.parametrize(
    ("codec", "expected"),
    [
        ("gzip", {"frames": "deflate", "observations.image": "deflate", "rewards": "deflate"}),
        ("lz4", {"frames": "lz4", "observations.image": "lz4", "rewards": "lz4"}),
        ({"observations": "raw"}, {"frames": "zstd", "observations.pose": "raw"}),
        (
            {"*": "zstd:9", "observations.image": "gzip:6"},
            {"frames": "zstd", "observations.image": "deflate", "observations.pose": "zstd"},
        ),
    ],
)
def test_codec_of_each_field(tmp_path: Path, codec: Any, expected: dict[str, str]) -> None:
    record(tmp_path)
    before = content(tmp_path)
    done = compact(tmp_path, "toy-1", codec=codec)
    specs = {spec.name: spec for spec in load_tables(tmp_path, "toy-1").columns}
    assert {name: specs[name].codec for name in expected} == expected
    assert {"observations.image"} <= set(done.encoded)
    assert ("frames" in done.encoded) == (codec != {"observations": "raw"})
    assert content(tmp_path) == before
    assert not compact(tmp_path, "toy-1", codec=codec).is_changed
    assert validate(tmp_path, "full").problems == ()


def test_raw_planes_are_stored_as_they_are(tmp_path: Path) -> None:
    record(tmp_path)
    compact(tmp_path, "toy-1", codec={"observations.image": "raw"})
    chunks = load_tables(tmp_path, "toy-1").chunks["planes/observations.image"]
    first = min(chunks)
    stored = arrays_path(tmp_path, "toy-1").read_bytes()[first[2] : first[2] + 4 * 256]
    planes = np.frombuffer(stored, np.uint8).reshape(4, 16, 16)
    assert [int(plane[0, 0]) for plane in planes] == [0, 3, 6, 9]


def record_wide(root: Path, steps: int = 600) -> None:
    """Record stacks of pictures, with actions and extras that transitions do not keep in memory."""
    rng = np.random.default_rng(0)
    stack = np.zeros((3, 40, 40), np.uint8)
    with ReplayRecorder(root, "wide", config=ReplayConfig(chunk_rows=64), live=None) as recorder:
        for row in range(steps):
            stack = np.concatenate([stack[1:], rng.integers(0, 255, (1, 40, 40), np.uint8)])
            recorder.step(
                {"image": stack, "speed": np.float32(row)},
                rng.random(20),
                float(row),
                truncated=row % 90 == 89,
                next_observation=(
                    {"image": stack[::-1].copy(), "speed": np.float32(-row)}
                    if row % 90 == 89
                    else None
                ),
                frame=np.zeros((8, 8, 3), np.uint8),
                extras={"state": rng.random(32, np.float32), "value": np.float64(row)},
            )


def batch_of(root: Path, run_id: str, **options: Any) -> dict[str, Any]:
    """Return all transitions of a run."""
    made = ReplayRun(root, run_id).transitions(**options)
    return {name: _bytes(each) for name, each in made.gather(np.arange(len(made))).items()}


def test_layout_for_training_is_read_from_a_map(tmp_path: Path) -> None:
    record_wide(tmp_path)
    before, batch = content(tmp_path, "wide"), batch_of(tmp_path, "wide", n_step=3)
    done = compact(tmp_path, "wide", layout="train")
    assert set(done.encoded) == {
        "observations.image", "observations.speed", "final.observations.image",
        "final.observations.speed", "actions", "extras.state",
    }  # fmt: skip
    found = load_tables(tmp_path, "wide")
    codecs = {spec.name: spec.codec for spec in found.columns}
    assert {codecs[name] for name in done.encoded} == {"raw"}
    assert {codecs[name] for name in ("frames", "extras.value", "rewards")} == {"zstd"}
    for name, planes in (("planes/observations.image", 1600), ("extras/state", 128)):
        chunks = sorted(found.chunks[name])[:-1]
        assert [chunk[3] for chunk in chunks] == [64 * planes] * len(chunks)
        ends = [chunk[2] + chunk[3] for chunk in chunks]
        assert [chunk[2] for chunk in chunks[1:]] == ends[:-1]
    assert content(tmp_path, "wide") == before
    assert batch_of(tmp_path, "wide", n_step=3, cache_bytes=0) == batch
    assert validate(tmp_path, "full").problems == ()
    assert not compact(tmp_path, "wide", layout="train").is_changed


@pytest.mark.parametrize("layout", [None, "train"])
def test_batches_of_the_layout_for_training_read_no_file(
    tmp_path: Path, layout: module.Layout | None
) -> None:
    record_wide(tmp_path)
    compact(tmp_path, "wide", layout=layout)
    made = ReplayRun(tmp_path, "wide").transitions(cache_bytes=0)
    before = read_bytes()
    for indices in np.random.default_rng(0).integers(0, len(made), (4, 64)):
        made.gather(indices)
    was_read = read_bytes() - before
    path = str(arrays_path(tmp_path, "wide"))
    assert (path in Path("/proc/self/maps").read_text()) == (layout == "train")
    assert (was_read < 1600) == (layout == "train"), was_read


def read_bytes() -> int:
    """Return how many bytes this process has read by system calls."""
    (line,) = [
        each for each in Path("/proc/self/io").read_text().splitlines() if each.startswith("rchar")
    ]
    return int(line.split()[1])


def test_flipped_bits_of_the_layout_for_training_are_found(tmp_path: Path) -> None:
    record_wide(tmp_path)
    compact(tmp_path, "wide", layout="train")
    path = arrays_path(tmp_path, "wide")
    stored = path.read_bytes()
    chunks = load_tables(tmp_path, "wide").chunks
    rng = np.random.default_rng(0)
    for name in ("planes/observations.image", "observations/speed", "actions", "extras/state"):
        first, rows, offset, size, _ = sorted(chunks[name])[rng.integers(len(chunks[name]))]
        made = ReplayRun(tmp_path, "wide").transitions()
        damaged = bytearray(stored)
        damaged[offset + int(rng.integers(size * rows // 64))] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        with pytest.raises(CorruptError, match=f"{name} at row {first} has a wrong checksum"):
            made.gather(np.arange(len(made)))
        problems = [each.message for each in validate(tmp_path, "full").problems]
        assert any(f"{name} at row {first} " in each for each in problems), (name, problems)
    path.write_bytes(stored)
    assert validate(tmp_path, "full").problems == ()


def test_layout_and_codecs_together(tmp_path: Path) -> None:
    record_wide(tmp_path, 100)
    compact(tmp_path, "wide", layout="train", codec={"*": "lz4", "frames": "raw"})
    codecs = {spec.name: spec.codec for spec in load_tables(tmp_path, "wide").columns}
    assert (codecs["observations.image"], codecs["frames"], codecs["rewards"]) == (
        "raw", "raw", "lz4",
    )  # fmt: skip
    with pytest.raises(InvalidError, match=r"'extras\.state' without a codec, but .* 'zstd'"):
        compact(tmp_path, "wide", layout="train", codec={"extras": "zstd:3"})
    with pytest.raises(InvalidError, match="`layout` must be one of 'train', got 'tree'"):
        compact(tmp_path, "wide", layout="tree")  # type: ignore[arg-type]
    compact(tmp_path, "wide", codec="zstd")
    assert {spec.codec for spec in load_tables(tmp_path, "wide").columns} == {"zstd"}


@pytest.mark.parametrize(
    ("codec", "error", "match"),
    [
        ("snappy", InvalidError, "codec"),
        ("zstd:x", InvalidError, "level"),
        ("zstd:99", InvalidError, "level"),
        ({"observatons": "raw"}, UnknownFieldError, "observatons"),
    ],
)
def test_wrong_codec_changes_nothing(
    tmp_path: Path, codec: Any, error: type[Exception], match: str
) -> None:
    record(tmp_path)
    before = arrays_path(tmp_path, "toy-1").read_bytes()
    with pytest.raises(error, match=match):
        compact(tmp_path, "toy-1", codec=codec)
    assert arrays_path(tmp_path, "toy-1").read_bytes() == before
    assert names(tmp_path) == [".toy-1.lock", "toy-1.h5"]


def test_dry_run_changes_nothing(root: Path) -> None:
    before = {path: path.read_bytes() for path in root.rglob("*.h5")}
    done = compact(root, "toy-1", codec={"frames": "raw"}, dry_run=True)
    assert done.is_changed
    assert done.unused_bytes > 0
    assert (done.bytes_after, done.encoded) == (None, ("frames",))
    assert {path: path.read_bytes() for path in root.rglob("*.h5")} == before
    assert compact(root, "toy-1").unused_bytes == done.unused_bytes


@pytest.mark.parametrize("dry_run", [False, True])
def test_only_closed_runs_are_compacted(tmp_path: Path, *, dry_run: bool) -> None:
    record(tmp_path, "left", end="leave")
    with pytest.raises(UnfinishedError, match="'left' was interrupted"):
        compact(tmp_path, "left", dry_run=dry_run)
    record(tmp_path, "kept")
    archive(tmp_path, "kept")
    with pytest.raises(ReadOnlyError, match="archived"):
        compact(tmp_path, "kept", dry_run=dry_run)
    record(tmp_path, "gone")
    delete(tmp_path, "gone")
    for unknown in ("gone", "no"):
        with pytest.raises(UnknownNameError, match=unknown):
            compact(tmp_path, unknown, dry_run=dry_run)
    assert not lock_path(tmp_path, "no").exists()
    record(tmp_path, "open")
    recorder = ReplayRecorder(tmp_path, "open", live=None)
    with recorder, pytest.raises(LockedError, match="'open' is being recorded"):
        compact(tmp_path, "open", dry_run=dry_run)
    with pytest.raises(NotFoundError):
        compact(tmp_path / "no", "open", dry_run=dry_run)


def test_run_without_arrays_is_reported(tmp_path: Path) -> None:
    with ReplayRecorder(tmp_path, "plain", live=None, arrays=False) as recorder:
        recorder.step(reward=1.0)
    record_nothing(tmp_path, "empty")
    for run_id in ("plain", "empty"):
        done = compact(tmp_path, run_id)
        assert (done.has_arrays, done.is_changed, done.unused_bytes) == (False, False, 0)
        assert done.bytes_before == done.bytes_after
    assert len(ReplayRun(tmp_path, "plain")) == 1


def test_progress_counts_chunks(tmp_path: Path) -> None:
    record(tmp_path)
    calls: list[tuple[int, int | None]] = []
    compact(tmp_path, "toy-1", progress=lambda *each: calls.append(each))
    chunks = sum(map(len, load_tables(tmp_path, "toy-1").chunks.values()))
    assert calls == [(number + 1, 2 * chunks) for number in range(2 * chunks)]


def test_compacted_run_can_be_continued_and_compacted_again(root: Path) -> None:
    compact(root, "toy-1", codec="lz4")
    kept = content(root)
    with ReplayRecorder(root, "toy-1", config=SMALL, live=None) as recorder:
        first = recorder.stats.steps
        for row in range(first, first + 9):
            recorder.step(observation(first, row), 1, 0.5, extras={"value": np.float64(row)})
    before = content(root)
    assert before["steps"][:first] == kept["steps"]
    assert before["found"][: 2 * first] == kept["found"]
    compact(root, "toy-1")
    assert content(root) == before
    assert load_tables(root, "toy-1").run.arrays_version == 2


def test_abort_after_a_compaction_restores_it(root: Path) -> None:
    compact(root, "toy-1")
    before, path = content(root), arrays_path(root, "toy-1")
    stored = path.read_bytes()
    recorder = ReplayRecorder(root, "toy-1", config=SMALL, live=None)
    for row in range(20):
        recorder.step(observation(0, row), 1, 0.5, extras={"value": np.float64(row)})
    recorder.flush()
    recorder.abort()
    assert content(root) == before
    assert path.read_bytes() == stored


@pytest.mark.needs("h5py", "hdf5plugin")
def test_other_programs_and_copies_read_the_new_file(root: Path, tmp_path: Path) -> None:
    import h5py
    import hdf5plugin  # noqa: F401 - its filters

    path = arrays_path(root, "toy-1")
    with h5py.File(path) as file:
        before = _datasets(file)
    compact(root, "toy-1", codec={"frames": "gzip", "*": "zstd:3"})
    with h5py.File(path) as file:
        assert _datasets(file) == before
        assert file["frames"].compression == "gzip"
        described = json.loads(file.attrs["run"])
        assert (described["arrays_pending"], file.attrs["total_steps"]) == (0, described["steps"])
    copy = shutil.copy(path, tmp_path / "copy.h5")
    arrays, copied = ReplayRun(root, "toy-1").arrays, ReplayRun(copy).arrays
    rows = np.arange(described["steps"])
    for name, spec in arrays.columns.items():
        if spec.rows_of == "steps":
            np.testing.assert_array_equal(copied.read(name, rows), arrays.read(name, rows), name)


def _datasets(file: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    file.visititems(
        lambda name, item: (
            found.update({name: _bytes(item[()])}) if hasattr(item, "shape") else None
        )
    )
    del found["chunks"]  # which are elsewhere in another file
    return found


def test_open_readers_keep_the_old_file(root: Path) -> None:
    before = content(root)
    rows = np.arange(len(ReplayRun(root, "toy-1")))
    opened, lazy = ReplayRun(root, "toy-1"), ReplayRun(root, "toy-1")
    old = opened.arrays.read("observations.image", rows)
    resolver = FrameResolver(root / "replay")
    refs = [step["obs_ref"] for step in before["steps"]]
    first = resolver.resolve(refs[0])
    for codec in ("lz4", "raw", "gzip"):
        compact(root, "toy-1", codec=codec)
        for run in (opened, lazy, ReplayRun(root, "toy-1")):
            np.testing.assert_array_equal(run.arrays.read("observations.image", rows), old)
        np.testing.assert_array_equal(resolver.resolve(refs[0])["pose"], first["pose"])
        assert [_bytes(each) for each in resolver.resolve_batch(refs)] == before["found"][1::2]
    opened.refresh()
    assert load_tables(root, "toy-1").run.arrays_version == 3
    np.testing.assert_array_equal(opened.arrays.read("observations.image", rows), old)
    resolver.close()


def test_reader_that_opens_the_arrays_late_finds_later_steps_too(root: Path) -> None:
    late = ReplayRun(root, "toy-1")
    compact(root, "toy-1")
    with ReplayRecorder(root, "toy-1", config=SMALL, live=None) as recorder:
        recorder.step(observation(0, 0), 1, 0.5, extras={"value": np.float64(0)})
    count = len(late)
    assert len(late.arrays.read("rewards", np.arange(count))) == count
    assert len(late.episodes[-1].arrays()["rewards"]) == 6
    late.refresh()
    assert len(late) == count + 1


def test_readers_while_the_file_is_replaced(root: Path) -> None:
    expected = content(root)
    done = threading.Event()
    problems: list[BaseException] = []
    reads = [0, 0]

    def read(number: int) -> None:
        try:
            while not done.is_set() or not reads[number]:
                assert content(root) == expected
                assert validate(root, "full").problems == ()
                reads[number] += 1
        except BaseException as error:  # noqa: BLE001 - raised below
            problems.append(error)

    threads = [threading.Thread(target=read, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for number in range(12):
        compact(root, "toy-1", codec=("lz4", "zstd:1", "raw")[number % 3])
    done.set()
    for thread in threads:
        thread.join()
    assert not problems
    assert all(reads)


def test_file_that_gets_its_name_while_a_reader_opens_it(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = content(root)
    with cut_at(monkeypatch, "committed"):
        compact(root, "toy-1", codec="lz4")
    opened = []

    def late(path: Path, found: tables.RunTables) -> RunArrays:
        opened.append(path.name)
        if path.name == ".toy-1.1.h5":
            path.replace(arrays_path(root, "toy-1"))
        return RunArrays(path, found)

    monkeypatch.setattr(source, "RunArrays", late)
    assert content(root) == before
    assert opened[:2] == [".toy-1.1.h5", "toy-1.h5"]


class Cut(BaseException):
    """Ends a compaction, as a kill does."""


def _cut(*_: object, **__: object) -> None:
    raise Cut


def _nothing(*_: object) -> None:
    pass


@contextmanager
def cut_at(monkeypatch: pytest.MonkeyPatch, place: str) -> Iterator[None]:
    """End a compaction as a kill does: after the file is written, its commit, or its renaming."""
    with monkeypatch.context() as patch:
        patch.setattr(module, "settle", _nothing)
        patch.setattr(module, "remove", _nothing)
        if place == "halfway":
            patch.setattr(module._Copy, "_compare", _cut)
        elif place == "written":
            patch.setattr(module, "replace_arrays", _cut)
        elif place == "committed":
            patch.setattr(module, "finish", _cut)
        else:
            patch.setattr(files, "write_run", _cut)
        with pytest.raises(Cut):
            yield


def _continue(root: Path) -> None:
    with ReplayRecorder(root, "toy-1", config=SMALL, live=None):
        pass


def _recover(root: Path) -> None:
    found = recover(root)
    assert (found.compacted, found.problems, found.runs) == (("toy-1",), (), ())


def _archive(root: Path) -> None:
    archive(root, "toy-1")


def _compact(root: Path) -> None:
    compact(root, "toy-1")


PLACES = ("halfway", "written", "committed", "renamed")


@pytest.mark.parametrize("finish", [_compact, _continue, _recover, _archive])
@pytest.mark.parametrize("place", PLACES)
def test_interrupted_compaction_is_finished_or_undone(
    root: Path, monkeypatch: pytest.MonkeyPatch, place: str, finish: Finisher
) -> None:
    before = content(root)
    early = ReplayRun(root, "toy-1")
    with cut_at(monkeypatch, place):
        compact(root, "toy-1", codec="lz4")
    assert content(root) == before
    assert names(root) == [
        *([".toy-1.1.h5"] if place != "renamed" else []), ".toy-1.lock", "toy-1.h5",
    ]  # fmt: skip
    report = validate(root, "full")
    assert report.problems == ()
    assert [each.reason for each in report.unfinished] == ["left"]
    finish(root)
    assert names(root) == [".toy-1.lock", "toy-1.h5"]
    report = validate(root, "full")
    assert (report.problems, report.unfinished) == ((), ())
    run = load_tables(root, "toy-1").run
    assert not run.arrays_pending
    is_done = place in {"committed", "renamed"} or finish is _compact
    assert run.arrays_version == is_done
    after = content(root)
    assert {**after, "info": None} == {**before, "info": None}
    np.testing.assert_array_equal(early.read("rewards", [0, 1]), [0.0, 0.5])


def test_interrupted_compaction_of_a_run_that_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, place in enumerate(PLACES):
        run_id = f"toy-{number}"
        record(tmp_path, run_id)
        with cut_at(monkeypatch, place):
            compact(tmp_path, run_id, codec="lz4")
        delete(tmp_path, run_id)
    assert names(tmp_path) == []


def test_second_interruption_is_survived(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = content(root)
    with cut_at(monkeypatch, "committed"):
        compact(root, "toy-1", codec="lz4")
    for patched in ("write_run", "replace_file", "write_run"):
        with monkeypatch.context() as patch:
            patch.setattr(files, patched, _cut)
            with pytest.raises(Cut):
                compact(root, "toy-1")
        assert content(root) == before
    compact(root, "toy-1")
    assert content(root) == before
    assert names(root) == [".toy-1.lock", "toy-1.h5"]


def test_run_whose_name_ends_like_a_version_is_not_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for run_id in ("a", "a.1", "a.1.h5"):
        record(tmp_path, run_id, 1)
        with cut_at(monkeypatch, "committed"):
            compact(tmp_path, run_id, codec="lz4")
    expected = {run_id: content(tmp_path, run_id) for run_id in ("a.1", "a.1.h5")}
    compact(tmp_path, "a")
    for run_id, before in expected.items():
        assert content(tmp_path, run_id) == before
        assert load_tables(tmp_path, run_id).run.arrays_pending


def test_damaged_run_is_not_replaced(root: Path) -> None:
    path = arrays_path(root, "toy-1")
    chunk = load_tables(root, "toy-1").chunks["rewards"][0]
    damaged = bytearray(path.read_bytes())
    damaged[chunk[2]] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(CorruptError, match="checksum"):
        compact(root, "toy-1")
    assert path.read_bytes() == damaged
    assert names(root) == [".toy-1.lock", "toy-1.h5"]


def test_file_that_differs_does_not_replace_the_old_one(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, stored = content(root), arrays_path(root, "toy-1").read_bytes()
    compare = module._Copy._compare

    def damage(done: int, total: int | None) -> None:
        if total is not None and done == total // 2 + 1:  # the first that is compared
            new = replacement_path(root, "toy-1", 1)
            with new.open("r+b") as file:
                file.seek(48)
                file.write(b"\xff" * (new.stat().st_size // 2))

    def differ(self: Any) -> None:
        self._plan.datasets[0].digests[0] ^= 1
        compare(self)

    with pytest.raises(CorruptError, match="checksum"):
        compact(root, "toy-1", progress=damage)
    monkeypatch.setattr(module._Copy, "_compare", differ)
    with pytest.raises(CorruptError, match="not written as it was read"):
        compact(root, "toy-1")
    assert arrays_path(root, "toy-1").read_bytes() == stored
    assert content(root) == before
    assert names(root) == [".toy-1.lock", "toy-1.h5"]


def test_vacuum_returns_the_space_of_deleted_runs(tmp_path: Path) -> None:
    for run_id in ("kept", "gone"):
        with ReplayRecorder(tmp_path, run_id, live=None, arrays=False) as recorder:
            for row in range(500):
                recorder.step(reward=row / 2, info={"text": "x" * 200})
    delete(tmp_path, "gone")
    with TelemetryStore(tmp_path, read_only=True) as store:
        before = store.recent_steps(50)
        dry = vacuum(tmp_path, dry_run=True)
        assert dry.bytes_after is None
        assert dry.unused_bytes > 100_000
        done = vacuum(tmp_path)
        assert store.recent_steps(50) == before
    assert done.bytes_after is not None
    assert done.bytes_after <= done.bytes_before - done.unused_bytes
    assert vacuum(tmp_path, dry_run=True).unused_bytes == 0
    assert validate(tmp_path, "full").problems == ()


def test_vacuum_waits_for_no_recorder(tmp_path: Path) -> None:
    record(tmp_path)
    with ReplayRecorder(tmp_path, "open", live=None) as recorder:
        recorder.step(reward=1.0)
        recorder.flush()
        for dry_run in (False, True):
            with pytest.raises(LockedError, match="'open' is being recorded"):
                vacuum(tmp_path, dry_run=dry_run)
    with pytest.raises(NotFoundError):
        vacuum(tmp_path / "no")


def test_other_runs_are_recorded_meanwhile(root: Path) -> None:
    with ReplayRecorder(root, "other", config=ReplayConfig(chunk_rows=4), live=None) as other:

        def step(*_: object) -> None:
            other.step([1.0], 1, 1.0)
            other.flush()

        compact(root, "toy-1", progress=step)
        count = other.stats.steps
    assert len(ReplayRun(root, "other")) == count > STEPS
    assert [run.status for run in list_runs(root)] == ["finished", "finished"]
