"""Where things are in a working tree, and the environment that commands run in."""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"

# An active environment, or one person's defaults, must not decide what a check sees.
_FOREIGN = (
    "CONDA_DEFAULT_ENV",
    "CONDA_PREFIX",
    "MYPYPATH",
    "PYTEST_ADDOPTS",
    "PYTHONHOME",
    "PYTHONPATH",
    "PYTHONSAFEPATH",
    "PYTHONSTARTUP",
    "PYTHONWARNINGS",
    "VIRTUAL_ENV",
)


def environment(venv: Path) -> dict[str, str]:
    """The caller's environment with `venv` as the only Python in it."""
    env = {name: value for name, value in os.environ.items() if name not in _FOREIGN}
    env["VIRTUAL_ENV"] = str(venv)
    env["PYO3_PYTHON"] = str(venv / "bin" / "python")
    env["PATH"] = os.pathsep.join((str(venv / "bin"), env.get("PATH", os.defpath)))
    return env


def this_venv() -> Path:
    """The environment this interpreter belongs to."""
    return Path(sys.prefix)
