"""`relive replay compact`."""

from pathlib import Path

import pytest

from relive.replay.manage.runs import archive, delete, load_tables
from relive.replay.recorder import ReplayRecorder
from relive.replay.storage.layout import arrays_path
from tests.cli.conftest import Relive
from tests.replay.toy_run import record


def append(root: Path, run_id: str, count: int) -> None:
    """Append bytes that nothing refers to, as a killed recorder leaves them."""
    with arrays_path(root, run_id).open("ab") as file:
        file.write(bytes(count))


def test_sizes_before_and_after_are_printed(relive: Relive, root: Path) -> None:
    append(root, "toy-1", 1 << 20)
    done = relive("replay", "compact", root, "toy-1")
    assert (done.status, done.err) == (0, "")
    assert done.out.startswith("toy-1: 1.1 MiB before, ")
    assert done.out.endswith(" KiB after\n")
    done = relive("replay", "compact", root, "toy-1", "toy-1")
    assert done.out.startswith("toy-1: already compact, ")
    assert len(done.out.splitlines()) == 1
    assert load_tables(root, "vector-1").run.arrays_version == 0


def test_json(relive: Relive, root: Path) -> None:
    done = relive("replay", "compact", root, "toy-1", "--json", "--codec", "frames=gzip")
    size = arrays_path(root, "toy-1").stat().st_size
    (run,) = done.json["runs"]
    assert (run["run_id"], run["is_changed"], run["bytes_after"]) == ("toy-1", True, size)
    assert run["encoded"] == ["frames"]
    assert done.json["database"] is None


def test_codec_of_all_and_of_one_field(relive: Relive, root: Path) -> None:
    done = relive("replay", "compact", root, "--codec", "lz4", "--codec", "observations=raw")
    assert done.status == 0, done.err
    assert [line.partition(":")[0] for line in done.out.splitlines()] == ["toy-1", "vector-1"]
    for run_id in ("toy-1", "vector-1"):
        for spec in load_tables(root, run_id).columns:
            is_raw = spec.field.removeprefix("final.") == "observations"
            assert spec.codec == ("raw" if is_raw else "lz4"), spec.name


def test_layout_for_training(relive: Relive, root: Path) -> None:
    done = relive("replay", "compact", root, "toy-1", "--layout", "train", "--json")
    assert done.status == 0, done.err
    assert set(done.json["runs"][0]["encoded"]) >= {"observations.image", "observations.pose"}
    for spec in load_tables(root, "toy-1").columns:
        is_read = spec.field.removeprefix("final.") == "observations"
        assert (spec.codec == "raw") == is_read, spec.name
    done = relive("replay", "compact", root, "toy-1", "--layout", "train")
    assert done.out.startswith("toy-1: already compact, ")


def test_dry_run_changes_nothing(relive: Relive, root: Path) -> None:
    append(root, "toy-1", 3 << 20)
    before = {path: path.read_bytes() for path in root.rglob("*.h5")}
    done = relive("replay", "compact", root, "--dry-run", "--vacuum")
    assert done.status == 0
    assert done.err == "nothing was changed\n"
    first, second, database = done.out.splitlines()
    assert first.endswith(" MiB of them unused")
    assert second.startswith("vector-1: ")
    assert "telemetry.sqlite: " in database
    assert {path: path.read_bytes() for path in root.rglob("*.h5")} == before


def test_runs_that_cannot_be_compacted_are_left_out_unless_named(
    relive: Relive, root: Path
) -> None:
    archive(root, "vector-1")
    record(root, "left", 1, end="leave")
    with ReplayRecorder(root, "open", live=None) as recorder:
        recorder.step(reward=1.0)
        recorder.flush()
        done = relive("replay", "compact", root)
        assert done.status == 0
        assert done.out.startswith("toy-1: ")
        assert len(done.out.splitlines()) == 1
        assert [line.split(",")[0] for line in done.err.splitlines()[:2]] == [
            "run 'vector-1' is archived", "run 'left' was interrupted",
        ]  # fmt: skip
        assert "run 'open' is being recorded" in done.err.splitlines()[2]
        for run_id in ("vector-1", "left", "open"):
            done = relive("replay", "compact", root, run_id)
            assert (done.status, done.out) == (1, "")
            assert done.err.startswith("error: run ")


def test_run_without_arrays(relive: Relive, root: Path) -> None:
    with ReplayRecorder(root, "plain", live=None, arrays=False) as recorder:
        recorder.step(reward=1.0)
    done = relive("replay", "compact", root, "plain")
    assert (done.status, done.out, done.err) == (0, "plain: no arrays\n", "")


def test_vacuum(relive: Relive, root: Path) -> None:
    with ReplayRecorder(root, "gone", live=None, arrays=False) as recorder:
        for _ in range(500):
            recorder.step(reward=1.0, info={"text": "x" * 500})
    delete(root, "gone")
    done = relive("replay", "compact", root, "toy-1", "--vacuum")
    assert done.status == 0
    _, line = done.out.splitlines()
    before, after = line.removesuffix(" after").split(": ")[1].split(" before, ")
    assert float(before.split()[0]) > 2 * float(after.split()[0])
    assert before.endswith("KiB")
    assert after.endswith("KiB")


@pytest.mark.parametrize(
    ("more", "status", "text"),
    [
        (["no"], 1, "'no'"),
        (["toy-1", "--codec", "snappy"], 1, "codec"),
        (["toy-1", "--codec", "frame=raw"], 1, "unknown field 'frame'"),
        (["toy-1", "--layout", "train", "--codec", "observations=lz4"], 1, "leave out one of them"),
        (["toy-1", "--layout", "tree"], 2, "tree"),
        (["toy-1", "--codec", "=raw"], 2, "is not a codec"),
        (["toy-1", "--codec", "frames="], 2, "is not a codec"),
    ],
)
def test_wrong_arguments_change_nothing(
    relive: Relive, root: Path, more: list[str], status: int, text: str
) -> None:
    before = arrays_path(root, "toy-1").read_bytes()
    done = relive("replay", "compact", root, *more)
    assert (done.status, done.out) == (status, "")
    assert text in done.err
    assert arrays_path(root, "toy-1").read_bytes() == before
