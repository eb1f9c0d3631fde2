"""A process that is killed leaves nobody behind."""

import signal
import subprocess
import sys
import time
from pathlib import Path

SCRIPT = """
import multiprocessing, os, sys
import numpy as np
import relive
from transforms import double
if __name__ == "__main__":
    loader = relive.DataLoader(np.zeros(100), batch_size=4, transform=double, transform_workers=2)
    next(loader)
    print(*(child.pid for child in multiprocessing.active_children()), flush=True)
    while True:
        next(loader)
"""


def test_transform_processes_exit_when_the_parent_is_killed(tmp_path: Path) -> None:
    (tmp_path / "transforms.py").write_text("def double(batch):\n    return batch\n")
    (tmp_path / "main.py").write_text(SCRIPT)
    parent = subprocess.Popen(
        [sys.executable, "main.py"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    children = [Path("/proc") / pid for pid in parent.stdout.readline().split()]
    assert len(children) == 2
    parent.send_signal(signal.SIGKILL)
    # Reads until the last process that holds the pipe is gone.
    _, errors = parent.communicate(timeout=60)
    assert errors == ""
    deadline = time.monotonic() + 30
    while any(_runs(child) for child in children):
        assert time.monotonic() < deadline, "a child outlived its parent"
        time.sleep(0.05)


def _runs(process: Path) -> bool:
    try:
        return "Z" not in (process / "stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
