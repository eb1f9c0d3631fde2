"""Migrates databases, and is killed while it does.

Reads lines `SOURCE<tab>ROOT<tab>DROP<tab>SECONDS`. Each is done by a process of its own, which is
killed after so many seconds. Prints `killed` or `done` for each.
"""

import os
import signal
import sys
import time
import traceback
from pathlib import Path

from relive.replay.migrate import migrate, target

# Commits are frequent, so that a kill hits many of them.
target._WRITE_STEPS, target._COMMIT_STEPS = 3, 7  # type: ignore[misc]


def main() -> None:
    """Migrate what standard input asks for."""
    for line in sys.stdin:
        source, root, drop, seconds = line.rstrip("\n").split("\t")
        pid = os.fork()
        if pid == 0:
            _migrate(Path(source), Path(root), is_dropped=drop == "drop")
        sys.stdout.write(f"{_killed(pid, float(seconds))}\n")
        sys.stdout.flush()


def _migrate(source: Path, root: Path, *, is_dropped: bool) -> None:
    """Migrate in a process of its own."""
    try:
        migrate(source, root, drop_blobs=is_dropped, compact=is_dropped)
    except BaseException:  # noqa: BLE001 - the process ends here
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _killed(pid: int, seconds: float) -> str:
    """Kill a process after some seconds, and return how it ended."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return "done" if status == 0 else "failed"
        time.sleep(0.0005)
    os.kill(pid, signal.SIGKILL)
    status = os.waitpid(pid, 0)[1]
    return "killed" if os.WIFSIGNALED(status) else "done" if status == 0 else "failed"


if __name__ == "__main__":
    main()
