"""Reading a run by the number of a step, with the names of the original program."""

import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from relive._arguments import as_int
from relive.errors import OutOfRangeError
from relive.replay.arrays import FINAL, VALID
from relive.replay.columns import row_of
from relive.replay.run import ReplayRun
from relive.replay.storage.layout import arrays_path, check_run_id, replay_root


class ReplayReader:
    """Reads the steps of one run by their numbers. Thread-safe.

    `ReplayRun` can do more; this has the names of the program that its layout comes from.

    Args:
        run_id: The id of the run.
        replay_dir: The directory `replay` of a root.

    Example:
        >>> import tempfile
        >>> from relive.replay import ReplayReader, ReplayRecorder
        >>> root = tempfile.mkdtemp()
        >>> with ReplayRecorder(root, "run-1") as recorder:
        ...     for number in range(5):
        ...         _ = recorder.step([number], number, 1.0, terminated=number == 4)
        >>> reader = ReplayReader("run-1", root + "/replay")
        >>> reader.get_step(3)["action"], reader.get_observation(3).tolist()
        (np.int64(3), [3])
        >>> [batch["actions"].tolist() for batch in reader.iter_batches(3, shuffle=True, seed=1)]
        [[4, 0, 1], [2, 3]]
    """

    def __init__(self, run_id: str, replay_dir: str | os.PathLike[str]) -> None:
        root = replay_root(replay_dir)
        self._run = ReplayRun(arrays_path(root, check_run_id(run_id)))

    @property
    def run(self) -> ReplayRun:
        """The run."""
        return self._run

    def __len__(self) -> int:
        """Return the number of steps."""
        return len(self._run)

    def get_step(self, index: int) -> dict[str, Any]:
        """Return one step: `observation`, `action`, `reward`, `frame` and so on."""
        row = self._row(index)
        if not self._run.arrays.fields:  # only scalars were recorded
            step = self._run.step(row)
            names = ("action", "reward", "terminated", "truncated", "step_index")
            known = {name: getattr(step, name) for name in names}
            return {"observation": None, **known, "frame": None}
        found = self._read([row])
        return {
            "observation": _one(found, "observations"),
            "action": _one(found, "actions"),
            "reward": _one(found, "rewards"),
            "terminated": bool(found["terminated"][0]),
            "truncated": bool(found["truncated"][0]),
            "frame": _one(found, "frames"),
            "step_index": int(found["step_index"][0]),
        }

    def get_episode(self, number: int | str, *, agent_id: str | None = None) -> dict[str, Any]:
        """Return an episode as arrays, by its position or its id.

        `agent_id` is needed for an id that several agents have.
        """
        run = self._run
        if isinstance(number, str):
            return run.episode(number, agent_id).arrays()
        return run.episodes[number].arrays()

    def get_frame(self, index: int) -> Any:
        """Return the frame of a step; None if it has none."""
        return _one(self._read([self._row(index)], "frames"), "frames")

    def get_observation(self, index: int) -> Any:
        """Return the observation of a step; None if it has none."""
        return _one(self._read([self._row(index)], "observations"), "observations")

    def iter_batches(
        self, batch_size: int, *, shuffle: bool = False, seed: int = 0
    ) -> Iterator[dict[str, Any]]:
        """Iterate over all steps once, as arrays; the last batch may be smaller.

        `shuffle` uses another order, which depends only on `seed` and the number of steps.
        """
        size = as_int("batch_size", batch_size, at_least=1)
        rows = np.arange(len(self))
        if shuffle:
            np.random.default_rng(as_int("seed", seed, at_most=None)).shuffle(rows)
        for start in range(0, len(rows), size):
            yield self._read(rows[start : start + size])

    def _row(self, index: int) -> int:
        row, count = as_int("index", index, at_least=-(1 << 63)), len(self)
        if not -count <= row < count:
            raise OutOfRangeError(f"index {row} is out of range for {count} steps")
        return row % count

    def _read(self, rows: Any, *fields: str) -> dict[str, Any]:
        arrays = self._run.arrays
        found: dict[str, Any] = {}
        for field in fields or arrays.fields:
            if field.startswith((FINAL, VALID)) or field not in arrays.fields:
                continue
            found[field] = arrays.read_field(field, rows)
            are_valid = arrays.are_valid(field, rows)
            if not are_valid.all():
                found[VALID + field] = are_valid
        return found


def _one(found: dict[str, Any], field: str) -> Any:
    """Return the only row of a field; None if the step has none."""
    if field not in found or (VALID + field in found and not found[VALID + field][0]):
        return None
    return row_of(found[field], 0)
