"""Every example runs as a user would run it."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
NEEDS = {"train_published": "torch", "train_torch": "torch"}
SCRIPTS = sorted(
    path for path in (ROOT / "examples").glob("*.py") if "__main__" in path.read_text("utf-8")
)


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(
            path,
            id=path.stem,
            marks=pytest.mark.needs(NEEDS[path.stem]) if path.stem in NEEDS else (),
        )
        for path in SCRIPTS
    ],
)
def test_example_runs(script: Path) -> None:
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip(), "an example shows what it did"
    assert not done.stderr, done.stderr


def test_examples_exist() -> None:
    assert {"demo", "own_source", "train_published", "train_torch"} <= {
        path.stem for path in SCRIPTS
    }
