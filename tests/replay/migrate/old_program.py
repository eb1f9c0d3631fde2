"""Writes steps as the original does, while others read: `python old_program.py DATABASE STEPS`.

The observation of step `n` is `[n, 2]`. Prints `ready` before the first step.
"""

import json
import sqlite3
import sys
import time
from typing import Final

EPISODE_STEPS: Final = 50
_BATCH_STEPS: Final = 8


def main(database: str, steps: int) -> None:
    """Insert the steps, some in each transaction."""
    connection = sqlite3.connect(database, isolation_level=None, timeout=60)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for first in range(0, steps, _BATCH_STEPS):
        connection.execute("BEGIN IMMEDIATE")
        for number in range(first, min(first + _BATCH_STEPS, steps)):
            episode, index = divmod(number, EPISODE_STEPS)
            observation = json.dumps([number, 2]).encode()
            is_last = index == EPISODE_STEPS - 1
            connection.execute(
                "INSERT INTO steps (episode_id, step_index, action, observation, reward, "
                "terminated, truncated, timestamp) VALUES (?, ?, 1, ?, ?, ?, 0, '2024-01-01')",
                (f"run-ep{episode}", index, observation, number, is_last),
            )
        connection.execute("COMMIT")
        time.sleep(0.01)
    connection.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
