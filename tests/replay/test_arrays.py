"""The array lane: what was committed is read again, at any moment and after the end."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relive.errors import InvalidError, UnknownFieldError
from relive.replay import ReplayConfig, ReplayRecorder, ReplayRun
from relive.replay.arrays import ArrayLane, RunArrays
from relive.replay.storage.tables import RunRow, RunTables

SMALL = ReplayConfig(chunk_rows=8)


def step(number: int) -> dict[str, Any]:
    """Return a step; every third has no frame."""
    planes = [np.full((20, 20), max(0, number - back), np.uint8) for back in (3, 2, 1, 0)]
    return {
        "frame": None if number % 3 == 1 else np.full((6, 5, 3), number, np.uint8),
        "observation": {"image": np.stack(planes, axis=-1), "pose": (np.arange(3) + number / 7,)},
        "action": number,
    }


def check(arrays: RunArrays, rows: list[int]) -> None:
    found = arrays.read_field("observations", rows)
    frames, are_valid = arrays.read("frames", rows), arrays.are_valid("frames", rows)
    for place, row in enumerate(rows):
        expected = step(row)
        frame = expected["frame"]
        assert are_valid[place] == (frame is not None)
        np.testing.assert_array_equal(frames[place], 0 if frame is None else frame)
        image, pose = expected["observation"]["image"], expected["observation"]["pose"]
        np.testing.assert_array_equal(found["image"][place], image)
        np.testing.assert_array_equal(found["pose"][0][place], pose[0])
    assert arrays.read("actions", rows).tolist() == rows


def test_committed_steps_are_read(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    row = 0
    with ReplayRecorder(tmp_path, "run", config=SMALL, live=None) as recorder:
        while row < 100:
            for _ in range(int(rng.integers(1, 30))):
                recorder.step(**step(row))
                row += 1
            recorder.flush()
            run = ReplayRun(tmp_path, "run")
            assert len(run) == row
            check(run.arrays, rng.integers(0, row, 50).tolist())
    arrays = ReplayRun(tmp_path, "run").arrays
    assert arrays.columns["observations.image"].stack == "last"
    check(arrays, list(range(row)))
    with pytest.raises(UnknownFieldError, match="unknown field 'x'; the fields are 'frames'"):
        arrays.read("x", [0])


def test_each_plane_of_a_stack_is_stored_once(tmp_path: Path) -> None:
    with ReplayRecorder(tmp_path, "run", config=SMALL, live=None) as recorder:
        for number in range(50):
            observation = step(number)["observation"]["image"]
            last = step(number + 1)["observation"]["image"] if number == 49 else None
            recorder.step(observation, terminated=number == 49, next_observation=last)
    arrays = ReplayRun(tmp_path, "run").arrays
    reader = arrays.open_rows(0)
    # The empty plane before the first step, 49 further ones, and the last observation's.
    assert reader[0] == 51


@pytest.mark.parametrize("axis", [0, -1])
def test_stacks_are_found_along_the_first_and_the_last_axis(tmp_path: Path, axis: int) -> None:
    stacks = [
        np.moveaxis(step(number)["observation"]["image"], -1, axis).copy() for number in range(9)
    ]
    with ReplayRecorder(tmp_path, "run", config=SMALL, live=None) as recorder:
        for stack in stacks:
            recorder.step(stack)
    run = ReplayRun(tmp_path, "run")
    assert run.arrays.columns["observations"].stack == ("first" if axis == 0 else "last")
    np.testing.assert_array_equal(run.read("observations", range(9)), stacks)


def test_other_shapes_and_keys_are_refused(tmp_path: Path) -> None:
    with ReplayRecorder(tmp_path, "run", config=SMALL, live=None) as recorder:
        recorder.step(**step(0))
        with pytest.raises(InvalidError, match="`frames` must have the dtype"):
            recorder.step(frame=np.zeros((6, 5), np.uint8))
        with pytest.raises(InvalidError, match="must have the same keys in every step"):
            recorder.step({"image": 0})
        recorder.step(**step(1))
    run = ReplayRun(tmp_path, "run")
    assert len(run) == 2
    check(run.arrays, [0, 1])


def test_a_column_without_rows_is_not_a_field(tmp_path: Path) -> None:
    run = RunRow("run", "u", "recording", 0)
    lane = ArrayLane(tmp_path / "run.h5", SMALL, RunTables(run, [], [], {}, {}, []))
    lane.copy(0, {"frames": np.zeros((2, 2), np.uint8)})  # a step that was not accepted
    specs = [spec for _, spec in lane.columns]
    arrays = RunArrays(tmp_path / "run.h5", RunTables(run, [], specs, {}, {}, []))
    assert arrays.fields == {}
    assert not arrays.are_valid("frames", [0, 1]).any()
