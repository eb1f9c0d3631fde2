"""Small runs whose every value is known, for tests that list, export and delete runs."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from relive._native import RunArraysWriter
from relive.replay.arrays import RunArrays
from relive.replay.config import ReplayConfig
from relive.replay.recorder import ReplayRecorder
from relive.replay.storage.connection import Database
from relive.replay.storage.layout import arrays_path, database_path
from relive.replay.storage.tables import RunTables

STEPS = 7
"""Steps of an episode."""
SMALL = ReplayConfig(chunk_rows=4, sync_episodes=False)


def frame(row: int) -> npt.NDArray[np.uint8] | None:
    """Return the frame of a step; every third step has none."""
    if row % 3 == 1:
        return None
    picture = np.full((12, 16, 3), 10 * row % 256, np.uint8)
    picture[0] = (255, 0, row)
    return picture


def image(first: int, row: int) -> npt.NDArray[np.uint8]:
    """Return a stack of four planes, in an episode whose first row is `first`."""
    rows = [max(first, row - back) for back in (3, 2, 1, 0)]
    return np.stack([np.full((16, 16), 3 * number % 256, np.uint8) for number in rows], axis=-1)


def observation(first: int, row: int) -> dict[str, Any]:
    """Return an observation: a stack of planes, and a pose."""
    return {"image": image(first, row), "pose": np.array([row, row / 4], np.float32)}


def reward(row: int) -> float | None:
    """Return the reward of a step; one in five has none."""
    return None if row % 5 == 4 else row / 2


def record(
    root: Path, run_id: str = "toy-1", episodes: int = 3, *, end: str = "close", **about: Any
) -> Path:
    """Record episodes of `STEPS` steps; `end` is how the recorder ends. Returns the root."""
    recorder = ReplayRecorder(root, run_id, config=SMALL, live=None, **about)
    row = 0
    for number in range(episodes):
        first = row
        for index in range(STEPS):
            is_last = index == STEPS - 1
            recorder.step(
                observation(first, row),
                row % 4,
                reward(row),
                terminated=is_last and number % 2 == 0,
                truncated=is_last and number % 2 == 1,
                frame=frame(row),
                info={"row": row},
                next_observation=observation(first, row + 1) if is_last else None,
                extras={"value": np.float64(row)},
            )
            row += 1
        recorder.flush()  # a commit for each episode
    getattr(recorder, end)()
    return root


def record_nothing(root: Path, run_id: str = "empty") -> Path:
    """Record an episode without steps."""
    with ReplayRecorder(root, run_id, live=None) as recorder:
        recorder.begin_episode()
        recorder.end_episode()
    return root


def record_vector(root: Path, run_id: str = "vector-1", envs: int = 3, steps: int = 10) -> Path:
    """Record environments that step in turn; environment n ends an episode every 3 + n steps."""
    with ReplayRecorder(root, run_id, config=SMALL, live=None) as recorder:
        for step in range(steps):
            for env in range(envs):
                recorder.step(
                    np.full((16, 16, 4), 100 * env + step, np.uint8),
                    np.array([env, step / 8], np.float32),
                    step,
                    terminated=step % (3 + env) == 2 + env,
                    frame=np.full((8, 8), 20 * env + step, np.uint8),
                    env=env,
                )
    return root


def copy_with(
    root: Path,
    run_id: str,
    path: Path,
    attributes: Mapping[str, str | None],
    datasets: Mapping[str, npt.NDArray[Any]] | None = None,
) -> None:
    """Copy the file of a closed run with other attributes and small datasets, or without (None).

    The checksum of the metadata is that of the new metadata.
    """
    import h5py

    shutil.copy(arrays_path(root, run_id), path)
    with Database.open(database_path(root)) as database:
        tables = RunTables.load(database, run_id)
    with h5py.File(path) as file:
        texts = {name: _plain(value) for name, value in file.attrs.items()} | dict(attributes)
        small = {f"episodes/{name}": each[()] for name, each in file["episodes"].items()}
        small |= {"chunks": file["chunks"][()]} | dict(datasets or {})
    arrays = RunArrays(path, tables)
    writer = RunArraysWriter(path, end=tables.run.arrays_end)
    number = 0
    for spec in tables.columns:
        for name in writer.add_column(spec.described()):
            chunks = sorted(tables.chunks.get(name, ()))
            writer.restore(number, chunks, *arrays.open_rows(number))
            number += 1
    writer.finish(
        tables.run.steps,
        tables.run.ends,
        {name: text for name, text in texts.items() if text is not None},
        [(name, v.dtype.str, list(v.shape), v.tobytes()) for name, v in small.items()],
        chunk_table=False,
    )


def _plain(value: Any) -> Any:
    return value if isinstance(value, str) else int(value)
