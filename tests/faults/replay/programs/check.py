"""Checks what a run has after its recorder was killed."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import h5py
import hdf5plugin  # noqa: F401 - makes the filters of the file known
import numpy as np
import numpy.typing as npt

from relive.replay import FrameResolver, ReplayRun, TelemetryStore
from tests.faults.replay.programs.steps import (
    action_of,
    ends,
    frames_of,
    has_frame,
    images_of,
    info_of,
    observation_of,
    poses_of,
)

_HDF5: Final = b"\x89HDF\r\n\x1a\n"


def steps_of(root: Path, run_id: str, envs: int) -> int:
    """Check every step of a run against what was recorded; return how many steps it has.

    The steps of several sub-environments follow each other in rounds; the last may be cut short.
    """
    run = ReplayRun(root, run_id)
    count = len(run)
    numbers = np.arange(count)
    rounds, env_of = numbers // envs, numbers % envs
    table = run.steps.to_pylist()
    pairs = list(zip(env_of.tolist(), rounds.tolist(), strict=True))
    assert [row["row"] for row in table] == numbers.tolist()
    assert [row["action"] for row in table] == [action_of(*pair) for pair in pairs]
    assert [row["reward"] for row in table] == (rounds / 8).tolist()
    infos = [row["info"] and json.loads(row["info"]) for row in table]
    assert infos == [info_of(number) for _, number in pairs]
    with FrameResolver(root / "replay") as resolver:
        frames = resolver.resolve_batch([row["frame_ref"] for row in table], strict=False)
        seen = resolver.resolve_batch([row["obs_ref"] for row in table])
    assert [frame is not None for frame in frames] == has_frame(rounds).tolist()
    for env in range(envs):
        mine = numbers[env_of == env]
        framed = mine[has_frame(rounds[mine])]
        _are_equal(frames, framed, frames_of(env, rounds[framed]))
        images = [None if each is None else each["image"] for each in seen]
        _are_equal(images, mine, images_of(env, rounds[mine]))
        poses = [None if each is None else each["pose"][0] for each in seen]
        _are_equal(poses, mine, poses_of(env, rounds[mine]))
    _check_episodes(run, envs)
    with TelemetryStore(root, read_only=True) as store:
        recent = store.recent_steps(10, run_id=run_id)
        assert [step.row for step in recent] == list(range(max(0, count - 10), count))
    return count


def opens_in_h5py(path: Path, envs: int) -> int:
    """Check what other programs can read of a run; return how many frames that is.

    They can read full chunks once there are a few, and everything of a closed run.
    """
    if not path.exists():
        return 0
    with path.open("rb") as file:
        if file.read(len(_HDF5)) != _HDF5:
            return 0
    with h5py.File(path, "r", swmr=True) as file:
        frames, rewards = file["frames"][:], file["rewards"][:]
    for found, field in ((frames, "frames"), (rewards, "rewards")):
        numbers = np.arange(len(found))
        rounds, env_of = numbers // envs, numbers % envs
        if field == "rewards":
            np.testing.assert_array_equal(found, rounds / 8)
            continue
        for env in range(envs):
            mine = numbers[(env_of == env) & has_frame(rounds)]
            np.testing.assert_array_equal(found[mine], frames_of(env, rounds[mine]))
    return len(frames)


def _are_equal(found: Sequence[Any], rows: npt.NDArray[np.int64], wanted: Any) -> None:
    """Check that rows of a list are the arrays of another one."""
    if len(rows):
        np.testing.assert_array_equal(np.stack([found[row] for row in rows.tolist()]), wanted)


def _check_episodes(run: ReplayRun, envs: int) -> None:
    rows = 0
    for position in range(len(run.episodes)):
        episode = run.episodes.episode_at(position)
        arrays = episode.arrays("step_index", "extras.logp", "truncated")
        length = len(episode.rows)
        rows += length
        assert episode["length"] == length
        last, env = divmod(int(episode.rows[-1]), envs)
        assert (episode.rows % envs == env).all()
        if ends(env, last):
            assert episode.status == "terminated"
            final = episode.final()["observations"]["image"]
            np.testing.assert_array_equal(final, observation_of(env, last + 1)["image"])
        else:
            assert episode.status == "truncated", (episode, last)
            assert arrays["truncated"][-1]
        assert (np.diff(arrays["step_index"]) == 1).all()
        np.testing.assert_array_equal(arrays["extras.logp"], -(episode.rows // envs))
    assert rows == len(run)
