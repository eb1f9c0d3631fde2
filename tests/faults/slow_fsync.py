"""An environment for processes in which each fsync takes longer: test disks need no time for it."""

import os
import subprocess
from pathlib import Path
from typing import Final

_SOURCE: Final = Path(__file__).with_name("slow_fsync.c")


def slow_fsync(folder: Path, delay_ms: int) -> dict[str, str]:
    """Return the environment of a process whose fsyncs take so much longer.

    What delays them is built in `folder`.
    """
    library = folder / "slow_fsync.so"
    if not library.exists():
        command = ["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(_SOURCE), "-ldl"]
        subprocess.run(command, check=True, capture_output=True)
    return os.environ | {"LD_PRELOAD": str(library), "RELIVE_FSYNC_MS": str(delay_ms)}
