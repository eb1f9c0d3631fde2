"""`relive replay export mp4`, `parquet` and `h5`; tests/replay/test_export.py checks the values."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from pyarrow import parquet as pq

from tests.cli.conftest import Relive
from tests.replay.toy_run import STEPS


@pytest.mark.needs("av")
def test_mp4(relive: Relive, root: Path, tmp_path: Path) -> None:
    import av

    out = tmp_path / "toy.mp4"
    done = relive("replay", "export", "mp4", root, "toy-1", "--output", out)
    assert (done.status, done.err) == (0, "")
    assert done.out.startswith(f"{out}: 14 frames, ")
    args = ("replay", "export", "mp4", root, "toy-1", "--output", tmp_path / "one.mp4")
    done = relive(
        *args, "--episode", 1, "--hud", "--scale", 3, "--fps", 10, "--video", "fast", "--json"
    )
    assert (done.status, done.json["frames"]) == (0, 4)
    with av.open(str(tmp_path / "one.mp4")) as movie:
        stream = movie.streams.video[0]
        assert stream.codec_context.name == "mjpeg"
        assert (stream.width, stream.height) == (160, 56)  # 3 * 12, and three lines of text
    done = relive(*args)
    assert done.status == 1
    assert done.err.splitlines()[-1] == "hint: pass --overwrite to replace it"
    assert relive(*args, "--episode", -1, "--overwrite").status == 0
    assert relive(*args, "--episode", "toy-1-ep0001", "--overwrite").status == 0
    field = relive(*args, "--field", "observations.image", "--overwrite", "--json")
    assert field.json["frames"] == 3 * STEPS


@pytest.mark.parametrize(
    ("option", "value", "status", "message"),
    [
        ("--episode", "9", 1, "has no episode 9"),
        ("--episode", "nope", 1, "has no episode 'nope'"),
        ("--field", "sound", 1, "has no array 'sound'"),
        ("--field", "actions", 1, "cannot be shown as pictures"),
        ("--video", "best", 1, "unknown video profile"),
        ("--scale", "65", 1, "`scale` must be at most 64"),
        ("--scale", "0", 2, "not an integer of at least 1"),
        ("--fps", "0", 2, "is not a number from"),
        ("--fps", "x", 2, "is not a number from"),
        ("--episode", "", 2, "a number or an id"),
    ],
)
def test_wrong_choices_of_a_video_fail(  # noqa: PLR0917 - what pytest passes
    relive: Relive, root: Path, option: str, value: str, status: int, message: str
) -> None:
    out = root / "x.mp4"
    done = relive("replay", "export", "mp4", root, "toy-1", "--output", out, option, value)
    assert (done.status, done.out) == (status, "")
    assert message in done.err
    assert not out.exists()


def test_video_of_another_format_fails(relive: Relive, root: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.avi"
    for command in (["export", "mp4"], ["play"]):
        done = relive("replay", *command, root, "toy-1", "--output", out)
        assert (done.status, done.out) == (1, "")
        assert done.err == (
            f"error: cannot write `{out}`: the suffix must be .mp4, got '.avi'\n"
            f"hint: use `{tmp_path / 'out.mp4'}`\n"
        )
        assert not out.exists()


def test_parquet(relive: Relive, root: Path, tmp_path: Path) -> None:
    out = tmp_path / "all.parquet"
    done = relive("replay", "export", "parquet", root, "--output", out)
    assert done.out.startswith(f"{out}: 51 steps, ")
    assert pq.read_table(out)["run_id"].unique().to_pylist() == ["toy-1", "vector-1"]
    args = ("replay", "export", "parquet", root, "toy-1", "--output", tmp_path / "toy.parquet")
    done = relive(*args, "--arrays", "observations,frames", "--as", "binary", "--json")
    assert done.json["steps"] == 3 * STEPS
    names = pq.read_schema(tmp_path / "toy.parquet").names
    assert names[-3:] == ["observations.image", "observations.pose", "frames"]
    file = root / "replay" / "vector-1.h5"
    done = relive("replay", "export", "parquet", file, "--output", out, "--overwrite", "--json")
    assert done.json["steps"] == 30
    for more, message in ((["--arrays", "sound"], "no run has an array 'sound'"), ([], "exists")):
        done = relive(*args, *more)
        assert (done.status, done.out) == (1, "")
        assert message in done.err


@pytest.mark.needs("h5py")
def test_h5(relive: Relive, root: Path, tmp_path: Path) -> None:
    import h5py

    out = tmp_path / "toy.h5"
    done = relive("replay", "export", "h5", root, "toy-1", "--output", out, "--level", 6)
    assert done.out.startswith(f"{out}: 21 steps, ")
    with h5py.File(out) as file:
        assert (file["frames"].compression, file["frames"].compression_opts) == ("gzip", 6)
        assert "terminated" in file
    plain = tmp_path / "plain.h5"
    done = relive("replay", "export", "h5", root, "vector-1", "--output", plain, "--plain")
    assert done.status == 0
    with h5py.File(plain) as file:
        assert set(file) == {"actions", "dones", "episodes", "frames", "observations", "rewards"}
        assert np.count_nonzero(file["dones"]) == 9
    args = ("replay", "export", "h5", root, "toy-1", "--output", out, "--overwrite")
    assert relive(*args, "--filter", "none").status == 0
    for more in (["--level", "10"], ["--filter", "zip"]):
        assert relive(*args, *more).status == 2
    done = relive(*args[:-1])
    assert done.err.splitlines()[-1] == "hint: pass --overwrite to replace it"


@pytest.mark.needs("av", "h5py")
def test_copy_of_a_run(relive: Relive, root: Path, tmp_path: Path) -> None:
    copy = shutil.copy(root / "replay" / "toy-1.h5", tmp_path / "copy.h5")
    for kind, count in (("mp4", "14 frames"), ("parquet", "21 steps"), ("h5", "21 steps")):
        done = relive("replay", "export", kind, copy, "--output", tmp_path / f"out.{kind}")
        assert done.out.startswith(f"{tmp_path / f'out.{kind}'}: {count}, ")


@pytest.mark.parametrize("kind", ["mp4", "h5"])
def test_run_must_be_named(relive: Relive, root: Path, tmp_path: Path, kind: str) -> None:
    done = relive("replay", "export", kind, root, "--output", tmp_path / "x")
    assert (done.status, done.out) == (1, "")
    assert "no run was named" in done.err
    assert relive("replay", "export", kind, root, "toy-1").status == 2
    assert relive("replay", "export").status == 2
