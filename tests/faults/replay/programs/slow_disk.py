"""Records a run on a slow disk, for `test_slow_fsync.py`: `ACT ROOT SEED [DRAWS]`.

`record` records until it is killed, and prints the number of steps after each `sync()`. `learn`
records and draws from what it recorded, and prints how many draws it made.
"""

import sys
import time
from pathlib import Path
from typing import Final

import numpy as np

from relive.replay import ReplayConfig, ReplayRecorder
from tests.faults.replay.programs.steps import record

RUN_ID: Final = "run"
LAST: Final = 300
DRAWN: Final = 16
PAUSED_DRAWS: Final = 15
LONGEST_PAUSE_S: Final = 0.1
_CONFIG: Final = ReplayConfig(chunk_rows=8, flush_s=0.02)


def record_and_sync(root: Path, seed: int) -> None:
    """Record and sync until killed."""
    rng = np.random.default_rng(seed)
    with ReplayRecorder(root, RUN_ID, config=_CONFIG, live=None) as recorder:
        number = recorder.stats.steps
        while True:
            for _ in range(int(rng.integers(1, 40))):
                record(recorder, 0, number)
                number += 1
            recorder.sync()
            sys.stdout.write(f"{number}\n")
            sys.stdout.flush()


def record_and_learn(root: Path, seed: int, draws: int) -> None:
    """Record, and draw a batch after each step; now and then, a commit is made between two."""
    rng = np.random.default_rng(seed)
    with ReplayRecorder(root, RUN_ID, config=_CONFIG, live=None) as recorder:
        record(recorder, 0, 0)
        transitions = recorder.transitions(last=LAST, n_step=2)
        batches = transitions.batches(DRAWN, seed=seed)
        for number in range(1, draws + 2):
            record(recorder, 0, number)
            if number % PAUSED_DRAWS == 0:
                time.sleep(rng.uniform(0, LONGEST_PAUSE_S))
            if number > 1:
                batch = next(batches)
                rewards, index = np.asarray(batch["reward"]), np.asarray(batch["index"])
                assert (rewards >= index / 8).all()
    sys.stdout.write(f"{draws}\n")


if __name__ == "__main__":
    act, folder, chosen = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    if act == "record":
        record_and_sync(folder, chosen)
    else:
        record_and_learn(folder, chosen, int(sys.argv[4]))
