"""The commit that the running code is from."""

import functools
import subprocess
from pathlib import Path
from typing import Any, Final

_SECONDS: Final = 2.0


@functools.lru_cache(maxsize=8)
def git_state(folder: Path) -> dict[str, Any] | None:
    """Return the commit and branch of a folder, and whether files changed.

    Cached, since the code runs as it was imported.
    """
    head = _run_git(folder, "rev-parse", "HEAD")
    if not head:
        return None
    branch = _run_git(folder, "symbolic-ref", "--short", "-q", "HEAD")
    changes = _run_git(folder, "status", "--porcelain", "--untracked-files=no")
    return {
        "commit": head,
        "branch": branch or None,
        "dirty": None if changes is None else bool(changes),
    }


def _run_git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(  # noqa: S603 - a list without user input
            ["git", "--no-optional-locks", "-C", str(folder), *arguments],  # noqa: S607 - the git on the PATH
            capture_output=True,
            check=False,
            stdin=subprocess.DEVNULL,
            timeout=_SECONDS,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(errors="replace").strip() if done.returncode == 0 else None
