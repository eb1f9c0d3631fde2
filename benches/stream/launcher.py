"""Starts the ranks of a session: imports torch once, then forks a process for each of them.

Eight interpreters that each import torch take 25 s of processor time, more than most epochs. Only
torch is shared, which has no threads yet; what else a peer needs is imported in its ranks.
"""

from __future__ import annotations

import json
import os
import sys

from benches.peers import module
from benches.stream import worker


def main() -> None:
    """`launcher TASK RANKS`: end when all ranks have ended."""
    ranks = json.loads(sys.argv[2])
    module("torch")
    module("torch.utils.data")
    for files, variables in ranks:
        if not os.fork():
            os.environ.update(variables)
            for target, file in enumerate(files):
                os.dup2(file, target)
            _close(ranks)
            worker.main()
            return
    _close(ranks)
    for _ in ranks:
        os.wait()


def _close(ranks: list[tuple[list[int], dict[str, str]]]) -> None:
    """A pipe ends when no process has it open any more."""
    for files, _ in ranks:
        for file in files:
            os.close(file)


if __name__ == "__main__":
    main()
