"""Starts trainings of `examples/agents/dqn.py` for `test_learning.py`, in processes to be killed.

Each line of stdin has the settings of a training and the path of its log, as JSON. The process is
forked, so that torch is imported once; its id is printed, and its exit code when it has ended. The
id stays its own until another line is read.
The log has a line `step TIME NUMBER` after each step, `draw NUMBER CRC` after each batch, of the
rows of the run that it begins with, and `returns RANDOM TRAINED` at the end.
"""

import json
import os
import sys
import time
import traceback
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch

from examples.agents import dqn


def learn(settings: dict[str, Any], path: str) -> None:
    """Train to the end, and write the log."""
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    args = dqn.Args(Path(settings.pop("root")), **settings)

    def watch(step: int, index: np.ndarray | None) -> None:
        line = f"step {time.monotonic_ns()} {step}"
        if index is not None:
            line = f"draw {step} {zlib.crc32(index.astype(np.int64).tobytes())}"
        os.write(log, f"{line}\n".encode())

    learner = dqn.train(args, watch)
    random, trained = dqn.compare(args, learner)
    os.write(log, f"returns {random} {trained}\n".encode())


def _say(what: object) -> None:
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


def main() -> None:
    """Start what stdin asks for, one training after the other."""
    torch.set_num_threads(1)
    for line in sys.stdin:
        process = os.fork()
        if process == 0:
            code = 1
            try:
                learn(*json.loads(line))
                code = 0
            except BaseException:  # noqa: BLE001 - the child must end here
                traceback.print_exc()
            os._exit(code)
        _say(process)
        os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT)
        _say("ended")
        sys.stdin.readline()
        _say(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))


if __name__ == "__main__":
    main()
