"""A memory cgroup around one command, version 1 or 2, where the machine lets us make one."""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_V1 = Path("/sys/fs/cgroup/memory")
_V2 = Path("/sys/fs/cgroup")


@contextlib.contextmanager
def limited(limit_bytes: int) -> Iterator[Path]:
    """A cgroup that holds at most `limit_bytes`; `OSError` where none can be made."""
    if (_V1 / "memory.limit_in_bytes").exists():
        top, limit = _V1, "memory.limit_in_bytes"
    elif (_V2 / "cgroup.subtree_control").exists():
        top, limit = _V2, "memory.max"
        (top / "cgroup.subtree_control").write_text("+memory")
    else:
        message = "no memory cgroup is mounted"
        raise OSError(message)
    group = top / f"relive-bench-{os.getpid()}"
    group.mkdir()
    try:
        (group / limit).write_text(str(limit_bytes))
        yield group
    finally:
        group.rmdir()


def run_inside(group: Path, command: Sequence[str]) -> int:
    """Run `command` as a member of `group` from its first instruction on; give its status."""
    script = 'echo $$ > "$0" && exec "$@"'
    return subprocess.call(  # noqa: S603 - our own command
        ["/bin/sh", "-c", script, group / "cgroup.procs", *command]
    )
