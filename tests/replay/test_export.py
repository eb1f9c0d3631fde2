"""Runs as videos, Parquet and HDF5 files: every value is the recorded one."""

import importlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyarrow import parquet as pq

from relive.errors import (
    AlreadyExistsError,
    InvalidError,
    MissingExtraError,
    NotFoundError,
    UnknownNameError,
    UnsupportedError,
)
from relive.replay.export import (
    choose_episodes,
    export_h5,
    export_mp4,
    export_parquet,
    hdf5,
    parquet,
    read_pictures,
)
from relive.replay.export.hud import COLUMNS, enlarged, with_text
from relive.replay.export.pictures import as_rgb
from relive.replay.manage.validate import validate
from relive.replay.recorder import ReplayRecorder
from relive.replay.run import ReplayRun
from relive.replay.source import DatabaseSource, FileSource
from relive.replay.storage.layout import arrays_path, database_path
from tests.replay.toy_run import (
    STEPS,
    frame,
    image,
    observation,
    record,
    record_nothing,
    record_vector,
    reward,
)

ALL = 3 * STEPS


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a root with one run of three episodes."""
    return record(tmp_path / "runs", env_id="Toy-v0", seed=7)


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_file())


def first_of(row: int) -> int:
    """Return the first row of the episode of a row."""
    return row - row % STEPS


def decode(path: Path) -> np.ndarray[Any, Any]:
    """Return the frames of a video as FFmpeg decodes them."""
    import av

    with av.open(str(path)) as movie:
        return np.stack([each.to_ndarray(format="rgb24") for each in movie.decode(video=0)])


@pytest.mark.needs("av")
def test_video_has_the_frames_of_all_episodes(root: Path, tmp_path: Path) -> None:
    out = tmp_path / "all.mp4"
    done: list[tuple[int, int | None]] = []
    count = export_mp4(
        root, "toy-1", out, profile="lossless", progress=lambda *each: done.append(each)
    )
    expected = [picture for row in range(ALL) if (picture := frame(row)) is not None]
    assert count == len(expected) == 14
    assert done[-1] == (13, 14)
    np.testing.assert_array_equal(decode(out)[:, :12, :16], expected)
    assert files_in(tmp_path) == ["all.mp4"]


@pytest.mark.needs("av")
def test_video_of_one_episode_is_shown_at_a_rate(root: Path, tmp_path: Path) -> None:
    import av

    out = tmp_path / "one.mp4"
    for which, first in ((1, STEPS), (-1, 2 * STEPS), ("toy-1-ep0000", 0)):
        export_mp4(
            root, "toy-1", out, episode=which, fps=5, profile="lossless", scale=2, overwrite=True
        )
        expected = [frame(row) for row in range(first, first + STEPS)]
        shown = [enlarged(picture, 2) for picture in expected if picture is not None]
        np.testing.assert_array_equal(decode(out)[:, :24, :32], shown)
    with av.open(str(out)) as movie:
        times = [float(packet.time) for packet in movie.decode(video=0)]
    assert times == pytest.approx([0.0, 0.2, 0.4, 0.6, 0.8])


@pytest.mark.needs("av")
def test_hud_is_below_each_frame(root: Path, tmp_path: Path) -> None:
    out = tmp_path / "hud.mp4"
    export_mp4(root, "toy-1", out, episode=1, hud=True, profile="lossless")
    rows = [row for row in range(STEPS, 2 * STEPS) if frame(row) is not None]
    for shown, row in zip(decode(out), rows, strict=True):
        total = sum(reward(each) or 0.0 for each in range(STEPS, row + 1))
        value = "-" if reward(row) is None else f"{reward(row):.6g}"
        lines = (
            f"episode 1  step {row - STEPS}",
            f"reward {value}  return {total:.6g}",
            f"action {row % 4}",
        )
        picture = frame(row)
        assert picture is not None
        expected = with_text(picture, lines)
        np.testing.assert_array_equal(shown[: len(expected), : expected.shape[1]], expected)


def test_text_below_a_picture_is_legible() -> None:
    picture = np.full((2, 160, 3), 9, np.uint8)
    drawn = with_text(picture, ["1-T", "x" * 99])
    assert drawn.shape == (2 + 2 * 6 + 1, 160, 3)
    np.testing.assert_array_equal(drawn[:2], picture)
    rows = drawn[3:8, :12, 0].tolist()
    dots = ["".join("#" if dot else "." for dot in row) for row in rows]
    assert dots == [
        ".#......###.",
        "##.......#..",
        ".#..###..#..",
        ".#.......#..",
        "###......#..",
    ]
    assert np.any(drawn[9:14, -4:, 0], axis=0).tolist() == [True, True, True, False]
    narrow = with_text(np.full((2, 10, 3), 9, np.uint8), ["é"])
    assert narrow.shape[1] == 4 * COLUMNS
    assert (narrow[:2, 75:85] == 9).all()
    assert not narrow[:2, :75].any()
    np.testing.assert_array_equal(narrow[2:], with_text(narrow[:2], ["?"])[2:])


@pytest.mark.needs("av")
def test_newest_plane_of_stacks_is_shown(root: Path, tmp_path: Path) -> None:
    out = tmp_path / "planes.mp4"
    count = export_mp4(root, "toy-1", out, field="observations.image", profile="lossless")
    assert count == ALL
    expected = [np.repeat(image(first_of(row), row)[..., -1:], 3, -1) for row in range(ALL)]
    np.testing.assert_array_equal(decode(out), expected)


def test_pictures_of_many_kinds_become_rgb() -> None:
    gray = np.arange(12, dtype=np.uint8).reshape(1, 3, 4)
    rgb = np.stack([gray, gray + 50, gray + 100], axis=-1)
    np.testing.assert_array_equal(as_rgb(gray), np.stack([gray] * 3, axis=-1))
    np.testing.assert_array_equal(as_rgb(gray[..., None]), np.stack([gray] * 3, axis=-1))
    np.testing.assert_array_equal(as_rgb(rgb), rgb)
    np.testing.assert_array_equal(as_rgb(np.concatenate([rgb, rgb[..., :1]], -1)), rgb)
    np.testing.assert_array_equal(as_rgb(np.moveaxis(np.tile(rgb, (1, 2, 2, 1)), -1, 1)).shape,
                                  (1, 6, 8, 3))  # fmt: skip
    flags = gray > 5
    np.testing.assert_array_equal(as_rgb(flags)[..., 0], flags * 255)
    floats = np.array([[[-1.0, 0.0, 0.5, 1.0, 2.0, np.nan]]])
    assert as_rgb(floats)[0, 0, :, 1].tolist() == [0, 0, 128, 255, 255, 0]


def test_hud_follows_the_steps_without_frames(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = DatabaseSource(root, "toy-1")
    wanted = list(read_pictures(source, choose_episodes(source)))
    huds = [hud for _, hud in wanted]
    rows = [row for row in range(ALL) if frame(row) is not None]
    assert [(hud.episode, hud.step) for hud in huds] == [divmod(row, STEPS) for row in rows]
    assert [hud.reward for hud in huds] == [reward(row) for row in rows]
    assert [hud.total for hud in huds] == [
        sum(reward(each) or 0.0 for each in range(first_of(row), row + 1)) for row in rows
    ]
    assert huds[0].line() == "episode 0  step 0  reward 0  return 0  action 0"
    module = sys.modules["relive.replay.export.pictures"]
    monkeypatch.setattr(module, "_BLOCK_BYTES", 1)  # one row at a time
    again = list(read_pictures(source, choose_episodes(source)))
    assert [hud for _, hud in again] == huds
    np.testing.assert_array_equal([rgb for rgb, _ in again], [rgb for rgb, _ in wanted])


def test_actions_of_any_kind_are_shown(tmp_path: Path) -> None:
    picture = np.zeros((4, 4, 3), np.uint8)
    actions = {
        "vector": np.arange(10) / 4,
        "nested": {"move": (1, np.array([0.125], np.float32)), "fire": True},
    }
    for name, action in actions.items():
        with ReplayRecorder(tmp_path, name, live=None) as recorder:
            recorder.step(action=action, frame=picture, agent_id="left")
            recorder.step(frame=picture, agent_id="left")
    found = {}
    for name in actions:
        source = DatabaseSource(tmp_path, name)
        found[name] = [hud.lines() for _, hud in read_pictures(source, choose_episodes(source))]
    assert found["vector"][0][2] == "action [0, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 1.75, ...]"
    assert found["nested"][0][2] == "action {move: (1, [0.125]), fire: True}"
    assert found["vector"][1] == ("episode 0  step 1  agent left", "reward -  return 0", "action -")


def test_array_that_is_not_pictures_is_an_error(root: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.mp4"
    with pytest.raises(UnsupportedError, match=r"observations\.pose.* its shape is \(2,\)"):
        export_mp4(root, "toy-1", out, field="observations.pose")
    with pytest.raises(UnsupportedError, match="its dtype is int64"):
        export_mp4(root, "toy-1", out, field="actions")
    with pytest.raises(UnknownNameError, match="no array 'sound'") as raised:
        export_mp4(root, "toy-1", out, field="sound")
    assert "observations.image" in str(raised.value.hint)
    with ReplayRecorder(root, "numbers", live=None) as recorder:
        recorder.step([1.0], 1)
    with pytest.raises(InvalidError, match="has no frames, and its observations are not pictures"):
        export_mp4(root, "numbers", out)
    record_nothing(root)
    with pytest.raises(InvalidError, match="has no frames"):
        export_mp4(root, "empty", out)
    for which in (3, -4, "toy-1-ep9999"):
        with pytest.raises(UnknownNameError, match="has no episode"):
            export_mp4(root, "toy-1", out, episode=which)
    with pytest.raises(UnknownNameError, match="unknown video profile"):
        export_mp4(root, "toy-1", out, profile="best")
    with pytest.raises(InvalidError, match="scale"):
        export_mp4(root, "toy-1", out, scale=0)
    assert files_in(tmp_path) == []


@pytest.mark.parametrize("name", ["x.avi", "x", "x.mp4.tmp", "x.parquet", "x.h5"])
def test_other_suffixes_are_refused(root: Path, tmp_path: Path, name: str) -> None:
    exports: dict[str, Callable[[Path], int]] = {
        ".mp4": lambda path: export_mp4(root, "toy-1", path),
        ".parquet": lambda path: export_parquet(root, path),
        ".h5": lambda path: export_h5(root, "toy-1", path),
    }
    for suffix, export in exports.items():
        if name != f"x{suffix}":
            with pytest.raises(InvalidError, match=rf"the suffix must be \{suffix}") as raised:
                export(tmp_path / name)
            assert raised.value.hint == f"use `{(tmp_path / name).with_suffix(suffix)}`"
    assert files_in(tmp_path) == []


def test_missing_video_package_is_named(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(MissingExtraError, match="encode video") as raised:
        export_mp4(root, "toy-1", tmp_path / "x.mp4")
    assert raised.value.hint == "pip install 'relive[video]'"
    assert files_in(tmp_path) == []


@pytest.mark.needs("av")
def test_failed_video_leaves_nothing(root: Path, tmp_path: Path) -> None:
    def stop(done: int, _: int | None) -> None:
        if done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export_mp4(root, "toy-1", tmp_path / "x.mp4", progress=stop)
    assert files_in(tmp_path) == []


EXPORTS: dict[str, Callable[..., int]] = {
    "mp4": export_mp4,
    "parquet": lambda root, run_id, path, **more: export_parquet(
        root, path, run_id=run_id, arrays=["frames"], **more
    ),
    "h5": export_h5,
    "plain": lambda root, run_id, path, **more: export_h5(root, run_id, path, plain=True, **more),
}


SUFFIXES = {"mp4": ".mp4", "parquet": ".parquet", "h5": ".h5", "plain": ".hdf5"}


@pytest.mark.needs("av")
@pytest.mark.parametrize("kind", EXPORTS)
def test_existing_file_is_replaced_only_on_request(root: Path, tmp_path: Path, kind: str) -> None:
    out = tmp_path / f"out{SUFFIXES[kind]}"
    out.write_text("mine")
    with pytest.raises(AlreadyExistsError):
        EXPORTS[kind](root, "toy-1", out)
    assert out.read_text() == "mine"
    EXPORTS[kind](root, "toy-1", out, overwrite=True)
    assert out.stat().st_size > 1000
    with pytest.raises(NotFoundError):
        EXPORTS[kind](root, "toy-1", tmp_path / "no" / out.name)
    assert files_in(tmp_path) == [out.name]


@pytest.mark.needs("av")
@pytest.mark.parametrize("kind", EXPORTS)
def test_files_of_runs_are_never_replaced(root: Path, tmp_path: Path, kind: str) -> None:
    record(root, "toy-2", 1)
    own, database = arrays_path(root, "toy-1"), database_path(root)
    linked, copy = tmp_path / "linked.h5", tmp_path / "copy.h5"
    linked.hardlink_to(own)
    shutil.copy(own, copy)
    with ReplayRecorder(root, "open", live=None) as recorder:
        recorder.step(reward=1.0)
        recorder.flush()
        log = database.with_name(f"{database.name}-wal")
        targets = [own, arrays_path(root, "toy-2"), linked, database, log]
        before = [path.stat() for path in targets]
        for target in targets:
            for path, run_id in ((root, "toy-1"), (own, None)):
                with pytest.raises(InvalidError, match=r"is the (file|database) of") as caught:
                    EXPORTS[kind](path, run_id, target, overwrite=True)
                assert caught.value.hint == "export to another file"
        with pytest.raises(InvalidError, match="is the file of run 'toy-1'"):
            EXPORTS[kind](copy, None, copy, overwrite=True)
        assert [path.stat().st_ino for path in targets] == [each.st_ino for each in before]
    assert validate(root, level="full").ok
    mine = root / f"mine{SUFFIXES[kind]}"
    EXPORTS[kind](root, "toy-1", mine)
    EXPORTS[kind](root, "toy-1", mine, overwrite=True)


@pytest.mark.needs("av")
@pytest.mark.parametrize("kind", EXPORTS)
def test_full_disk_is_a_typed_error(tmp_path: Path, kind: str) -> None:
    random = np.random.default_rng(0)
    with ReplayRecorder(tmp_path / "runs", "noise", live=None) as recorder:
        for _ in range(9):
            recorder.step(frame=random.integers(0, 256, (96, 96, 3), np.uint8))
    # A process of its own, because the limit is for a whole process. SQLite needs 32 KiB.
    program = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from tests.replay.test_export import EXPORTS\n"
        "from relive.errors import StorageError\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))\n"
        "try:\n"
        "    EXPORTS[sys.argv[1]](Path(sys.argv[2]), 'noise', Path(sys.argv[3]))\n"
        "except StorageError as error:\n"
        "    print(error)\n"
    )
    paths = [str(tmp_path / "runs"), str(tmp_path / f"out{SUFFIXES[kind]}")]
    line = [sys.executable, "-c", program, kind, *paths]
    done = subprocess.run(line, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert (done.returncode, done.stderr) == (0, "")
    assert str(tmp_path) in done.stdout
    assert files_in(tmp_path) == []


def test_parquet_has_the_steps_of_a_run(root: Path, tmp_path: Path) -> None:
    out = tmp_path / "steps.parquet"
    assert export_parquet(root, out, run_id="toy-1") == ALL
    table = pq.read_table(out)
    steps = ReplayRun(root, "toy-1").steps
    assert table.column_names == steps.column_names
    assert str(table.schema.field("action").type) == "int64"
    assert str(table.schema.field("terminated").type) == "bool"
    for name in table.column_names:
        assert table[name].to_pylist() == steps[name].to_pylist()
    assert table["reward"].to_pylist() == [reward(row) for row in range(ALL)]
    assert [json.loads(text)["row"] for text in table["info"].to_pylist()] == list(range(ALL))


@pytest.mark.parametrize("form", ["list", "binary"])
def test_parquet_with_arrays(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    monkeypatch.setattr(parquet, "_BLOCK_BYTES", 1 << 13)  # several row groups
    out = tmp_path / "steps.parquet"
    names = ["observations", "frames", "extras.value", "rewards"]
    export_parquet(root, out, run_id="toy-1", arrays=names, form=form)
    assert pq.ParquetFile(out).num_row_groups > 1
    table = pq.read_table(out)
    added = ["observations.image", "observations.pose", "frames", "extras.value", "rewards"]
    assert table.column_names[-5:] == added

    def value(name: str, row: int) -> Any:
        field = table.schema.field(name)
        found = table[name].to_pylist()[row]
        if form == "list" or found is None:
            return None if found is None else np.asarray(found)
        about = {key.decode(): text.decode() for key, text in field.metadata.items()}
        return np.frombuffer(found, about["dtype"]).reshape(json.loads(about["shape"]))

    for row in range(ALL):
        expected = observation(first_of(row), row)
        found = value("observations.image", row)
        np.testing.assert_array_equal(found.reshape(16, 16, 4), expected["image"])
        np.testing.assert_array_equal(value("observations.pose", row), expected["pose"])
        picture = frame(row)
        if picture is None:
            assert value("frames", row) is None
        else:
            np.testing.assert_array_equal(value("frames", row).reshape(12, 16, 3), picture)
        assert value("extras.value", row) == row
        assert value("rewards", row) == reward(row)
    if form == "list":
        tensor = pq.read_table(out).column("frames").combine_chunks()
        assert list(tensor.type.shape) == [12, 16, 3]


def test_parquet_of_all_runs(root: Path, tmp_path: Path) -> None:
    record_vector(root)
    record_nothing(root)
    out = tmp_path / "all.parquet"
    assert export_parquet(root, out, arrays=["extras.value"]) == ALL + 30
    table = pq.read_table(out)
    assert table["run_id"].to_pylist() == ["toy-1"] * ALL + ["vector-1"] * 30
    assert str(table.schema.field("action").type) == "string"  # vectors are JSON
    assert table["action"].to_pylist()[ALL - 1 : ALL + 1] == ["0", "[0.0, 0.0]"]
    assert table["extras.value"].to_pylist()[ALL:] == [None] * 30
    with pytest.raises(InvalidError, match=r"`frames` has the dtype .* in run 'vector-1'"):
        export_parquet(root, tmp_path / "x.parquet", arrays=["frames"])
    with pytest.raises(UnknownNameError, match="no run has an array 'sound'"):
        export_parquet(root, tmp_path / "x.parquet", arrays=["sound"])
    with pytest.raises(UnknownNameError):
        export_parquet(root, tmp_path / "x.parquet", run_id="no")
    assert files_in(tmp_path) == ["all.parquet"]


def test_parquet_has_floats_and_arrays_of_other_types(tmp_path: Path) -> None:
    with ReplayRecorder(tmp_path / "runs", "odd", live=None) as recorder:
        for number in range(3):
            extras = {"wave": np.array([number + 1j]), "none": np.zeros((0, 2), np.float32)}
            recorder.step(action=number / 2, reward=None, extras=extras)
    out = tmp_path / "odd.parquet"
    with pytest.raises(UnsupportedError, match=r"extras\.wave.*complex128"):
        export_parquet(tmp_path / "runs", out, arrays=["extras.wave"])
    export_parquet(tmp_path / "runs", out, arrays=["extras.wave"], form="binary")
    found = pq.read_table(out)
    values = [np.frombuffer(each, complex)[0] for each in found["extras.wave"].to_pylist()]
    assert values == [1j, 1 + 1j, 2 + 1j]
    assert found["action"].to_pylist() == [0.0, 0.5, 1.0]
    assert found["reward"].to_pylist() == [None] * 3
    for form in ("list", "binary"):
        export_parquet(tmp_path / "runs", out, arrays=["extras.none"], form=form, overwrite=True)
        assert [len(each) for each in pq.read_table(out)["extras.none"].to_pylist()] == [0] * 3


def h5_values(path: Path) -> dict[str, Any]:
    """Return all datasets of a file by path."""
    import h5py

    found: dict[str, Any] = {}
    with h5py.File(path) as file:
        file.visititems(
            lambda name, item: found.update({name: item[...]} if hasattr(item, "shape") else {})
        )
    return found


def h5_filters(path: Path) -> set[tuple[Any, Any]]:
    """Return the compression and its level of all chunked datasets of a file."""
    import h5py

    found: set[tuple[Any, Any]] = set()

    def note(_: str, item: Any) -> None:
        if hasattr(item, "shape") and item.chunks is not None:
            found.add((item.compression, item.compression_opts))

    with h5py.File(path) as file:
        file.visititems(note)
    return found


def restacked(values: dict[str, Any], name: str) -> Any:
    """Return the stacks of a column from its planes; number 0 is no plane."""
    planes = values["planes/observations.image"]
    padded = np.concatenate([np.zeros_like(planes[:1]), planes])
    return np.moveaxis(padded[values[f"stacks/{name}"]], 1, -1)


@pytest.mark.needs("h5py", "hdf5plugin")
@pytest.mark.parametrize("block", [1, 1 << 24])
def test_h5_has_the_datasets_of_the_run(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    import h5py

    importlib.import_module("hdf5plugin")  # registers the filter of the run's own file
    monkeypatch.setattr(hdf5, "_BLOCK_BYTES", block)
    out = tmp_path / "toy.h5"
    assert export_h5(root, "toy-1", out) == ALL
    assert h5_filters(out) == {("gzip", 4)}
    found, expected = h5_values(out), h5_values(root / "replay" / "toy-1.h5")
    assert found.keys() == expected.keys()
    for name in ("observations.image", "final.observations.image"):
        np.testing.assert_array_equal(restacked(found, name), restacked(expected, name))
    assert len(found["planes/observations.image"]) < 2 * ALL  # each plane once
    for name, values in expected.items():
        assert found[name].dtype == values.dtype
        if not name.startswith(("planes/", "stacks/")) and name != "chunks":
            np.testing.assert_array_equal(found[name], values)
    with h5py.File(out) as file, h5py.File(root / "replay" / "toy-1.h5") as original:
        assert file.attrs.keys() == original.attrs.keys()
        for name in ("run_id", "uid", "version", "created_at", "total_steps", "total_episodes"):
            assert file.attrs[name] == original.attrs[name]


@pytest.mark.needs("h5py")
def test_exported_file_is_read_as_a_run(root: Path, tmp_path: Path) -> None:
    out = tmp_path / "toy.h5"
    export_h5(root, "toy-1", out)
    copy, original = FileSource(out), DatabaseSource(root, "toy-1")
    rows = np.arange(ALL)
    for field in original.arrays.fields:
        if not field.startswith(("final.", "valid.")):
            found, expected = (each.arrays.read_field(field, rows) for each in (copy, original))
            np.testing.assert_equal(found, expected)
    assert copy.episodes == original.episodes


@pytest.mark.needs("h5py", "av")
def test_copy_of_a_run_is_exported_without_its_database(root: Path, tmp_path: Path) -> None:
    copy = shutil.copy(arrays_path(root, "toy-1"), tmp_path / "copy.h5")
    for source, run_id, name in ((root, "toy-1", "a"), (copy, None, "b")):
        export_parquet(source, tmp_path / f"{name}.parquet", run_id=run_id, arrays=["frames"])
        export_h5(source, run_id, tmp_path / f"{name}.h5", plain=True)
        export_mp4(source, run_id, tmp_path / f"{name}.mp4", profile="lossless")
    original, copied = (pq.read_table(tmp_path / f"{name}.parquet") for name in "ab")
    assert copied.schema == original.schema
    assert copied.drop(["info"]) == original.drop(["info"])  # only the database has infos
    for suffix in ("h5", "mp4"):
        assert (tmp_path / f"b.{suffix}").read_bytes() == (tmp_path / f"a.{suffix}").read_bytes()


@pytest.mark.needs("h5py")
def test_actions_of_a_copy_have_the_types_of_the_database(tmp_path: Path) -> None:
    actions = {"whole": 1, "real": 0.5, "list": [1, 2], "nested": {"a": 1}, "none": None}
    for run_id, action in actions.items():
        with ReplayRecorder(tmp_path, run_id, live=None) as recorder:
            recorder.step([0.5], action)
            recorder.step([0.5])  # without an action
        copy = shutil.copy(arrays_path(tmp_path, run_id), tmp_path / "copy.h5")
        export_parquet(tmp_path, tmp_path / "a.parquet", run_id=run_id)
        export_parquet(copy, tmp_path / "b.parquet")
        original, copied = (pq.read_table(tmp_path / f"{name}.parquet") for name in "ab")
        assert copied["action"] == original["action"], run_id
        assert copied["action"][1].as_py() is None
        for name in "ab":
            (tmp_path / f"{name}.parquet").unlink()


@pytest.mark.needs("h5py")
def test_h5_without_a_filter(root: Path, tmp_path: Path) -> None:
    for plain in (False, True):
        export_h5(root, "toy-1", tmp_path / f"{plain}.h5", filter="none", plain=plain)
        assert h5_filters(tmp_path / f"{plain}.h5") == {(None, None)}
    np.testing.assert_array_equal(h5_values(tmp_path / "True.h5")["actions"], np.arange(ALL) % 4)
    export_h5(root, "toy-1", tmp_path / "best.h5", level=9)
    assert h5_filters(tmp_path / "best.h5") == {("gzip", 9)}
    with pytest.raises(InvalidError, match="filter"):
        export_h5(root, "toy-1", tmp_path / "x.h5", filter="zip")
    with pytest.raises(InvalidError, match="level"):
        export_h5(root, "toy-1", tmp_path / "x.h5", level=10)


@pytest.mark.needs("h5py")
@pytest.mark.parametrize("block", [1, 1 << 24])
def test_plain_h5_has_the_layout_of_the_original(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    import h5py

    monkeypatch.setattr(hdf5, "_BLOCK_BYTES", block)
    out = tmp_path / "plain.h5"
    export_h5(root, "toy-1", out, plain=True)
    found = h5_values(out)
    assert sorted(found) == [
        "actions",
        "dones",
        "episodes/lengths",
        "episodes/starts",
        "frames",
        "observations/image",
        "observations/pose",
        "rewards",
    ]
    assert h5_filters(out) == {("gzip", 4)}
    zeros = np.zeros((12, 16, 3), np.uint8)
    frames = [zeros if (each := frame(row)) is None else each for row in range(ALL)]
    np.testing.assert_array_equal(found["frames"], frames)
    images = [image(first_of(row), row) for row in range(ALL)]
    np.testing.assert_array_equal(found["observations/image"], images)
    rewards = [np.nan if (got := reward(row)) is None else got for row in range(ALL)]
    np.testing.assert_array_equal(found["rewards"], np.array(rewards, np.float32))
    assert (found["rewards"].dtype, found["dones"].dtype) == (np.float32, np.bool_)
    assert found["dones"].tolist() == [row % STEPS == STEPS - 1 for row in range(ALL)]
    assert found["episodes/starts"].tolist() == [0, STEPS, 2 * STEPS]
    assert found["episodes/lengths"].tolist() == [STEPS] * 3
    assert found["episodes/starts"].dtype == np.int64
    with h5py.File(out) as file:
        attributes = dict(file.attrs)
    assert attributes.pop("created_at").endswith("+00:00")
    assert attributes == {
        "run_id": "toy-1", "total_steps": ALL, "total_episodes": 3, "version": "1.0",
    }  # fmt: skip


@pytest.mark.needs("h5py")
def test_interleaved_episodes(tmp_path: Path) -> None:
    root = record_vector(tmp_path / "runs")
    export_h5(root, "vector-1", tmp_path / "plain.h5", plain=True)
    found = h5_values(tmp_path / "plain.h5")
    run = ReplayRun(root, "vector-1")
    starts, lengths = found["episodes/starts"], found["episodes/lengths"]
    assert lengths.sum() == len(run) == 30
    for number, episode in enumerate(run.episodes):
        rows = slice(starts[number], starts[number] + lengths[number])
        expected = run.episode(episode.statics["episode_id"]).arrays()
        for name in ("frames", "observations", "actions", "rewards"):
            np.testing.assert_array_equal(found[name][rows], expected[name])
        assert found["dones"][rows].tolist() == [False] * (lengths[number] - 1) + [True]
    export_h5(root, "vector-1", tmp_path / "same.h5")
    same = FileSource(tmp_path / "same.h5")
    every = np.arange(30)
    np.testing.assert_array_equal(
        same.arrays.read("observations", every), run.read("observations", every)
    )
    assert "episodes/rows" in h5_values(tmp_path / "same.h5")


@pytest.mark.needs("h5py")
def test_run_that_was_interrupted_is_exported(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    recorder = ReplayRecorder(root, "left", live=None)
    for row in range(5):
        recorder.step([float(row)], row, 1.0, frame=np.full((4, 4), row, np.uint8))
    recorder.leave()
    export_h5(root, "left", tmp_path / "left.h5", plain=True)
    found = h5_values(tmp_path / "left.h5")
    assert found["observations"].tolist() == [[0.0], [1.0], [2.0], [3.0], [4.0]]
    assert found["dones"].tolist() == [False] * 4 + [True]
    export_h5(root, "left", tmp_path / "same.h5")
    np.testing.assert_array_equal(h5_values(tmp_path / "same.h5")["actions"], np.arange(5))
    assert export_parquet(root, tmp_path / "left.parquet", run_id="left", arrays=["frames"]) == 5


@pytest.mark.needs("h5py")
def test_empty_run_and_arrays_without_elements(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    record_nothing(root)
    with ReplayRecorder(root, "hollow", live=None) as recorder:
        recorder.step(np.zeros((0, 3), np.float32), 1)
    for plain in (False, True):
        for run_id, steps in (("empty", 0), ("hollow", 1)):
            out = tmp_path / f"{run_id}-{plain}.h5"
            assert export_h5(root, run_id, out, plain=plain) == steps
            found = h5_values(out)
            assert found["episodes/starts"].tolist() == [0]
            assert found["episodes/lengths"].tolist() == [steps]
            if steps:
                assert found["observations"].shape == (1, 0, 3)
    assert h5_values(tmp_path / "empty-True.h5")["rewards"].shape == (0,)
    assert export_parquet(root, tmp_path / "empty.parquet", run_id="empty") == 0
    assert pq.read_table(tmp_path / "empty.parquet").num_rows == 0
    with pytest.raises(UnknownNameError):
        export_h5(root, "no", tmp_path / "x.h5")
