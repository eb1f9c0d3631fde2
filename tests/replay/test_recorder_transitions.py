"""Transitions of a run that this process records, with steps that are in memory only."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relive.replay import ReplayRecorder, ReplayRun


@pytest.mark.parametrize("pattern", ["1100110000", "0011000000", "1000000001"])
@pytest.mark.parametrize("committed", [1, 5, 10])
def test_a_large_value_that_a_step_does_not_have_is_zeros(
    tmp_path: Path, pattern: str, committed: int
) -> None:
    fields = ["frame", "info.map", "extras.state", "index"]
    expected = [number + 1 if has == "1" else 0 for number, has in enumerate(pattern)]
    with ReplayRecorder(tmp_path, "run", live=None) as recorder:
        # The columns are known from the beginning.
        columns = {"frame": picture(0), "info": {"map": values(0)}, "extras": {"state": values(0)}}
        recorder.step([0.0], 0, 0.0, terminated=True, **columns)
        own = recorder.transitions(fields=fields)
        for number, value in enumerate(expected):
            given: dict[str, Any] = {}
            if value:
                given = {
                    "frame": picture(value),
                    "info": {"map": values(value)},
                    "extras": {"state": values(value)},
                }
            recorder.step([float(number)], 0, 0.0, terminated=number == 9, **given)
            if number + 1 == committed:
                recorder.flush()
        own.refresh()
        recorder.flush()
        for made in (own, ReplayRun(tmp_path, "run").transitions(fields=fields)):
            batch: Any = made.gather(range(len(made)))
            for name in fields:
                found = batch[name].reshape(11, -1)[:, -1].tolist()
                assert found == ([*range(11)] if name == "index" else [0, *expected]), name


def test_the_first_last_observation_of_a_run_is_there_before_further_steps(tmp_path: Path) -> None:
    with ReplayRecorder(tmp_path, "run", live=None) as recorder:
        own = recorder.transitions()
        recorder.step([0.0], 0, 0.0)
        recorder.step([1.0], 0, 0.0)
        recorder.flush()
        own.refresh()
        assert len(own) == 1
        recorder.end_episode(next_observation=[2.0])
        own.refresh()
        batch: Any = own.gather(range(len(own)))
        assert batch["next_observation"].tolist() == [[1.0], [2.0]]
        assert batch["truncated"].tolist() == [False, True]


def picture(value: int) -> Any:
    return np.full((8, 8, 3), value, np.uint8)


def values(value: int) -> Any:
    return np.full(1000, value, np.int64)
