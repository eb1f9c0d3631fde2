"""The command line, run in this process."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from relive.cli import main
from tests.cli.samples import write_runs


@dataclass(frozen=True)
class Outcome:
    """How a command ended, and what it printed."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """What was printed, read as a program would."""
        return json.loads(self.out)


Relive: TypeAlias = Callable[..., Outcome]


@pytest.fixture
def relive(capsys: pytest.CaptureFixture[str]) -> Relive:
    """Run a command line given word by word."""

    def run(*words: object) -> Outcome:
        capsys.readouterr()
        status = main([str(word) for word in words])
        return Outcome(int(status), *capsys.readouterr())

    return run


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Give a directory with three runs."""
    return write_runs(tmp_path / "runs")


@pytest.fixture
def pack(relive: Relive, runs: Path, tmp_path: Path) -> Path:
    """Give a pack of the three runs."""
    path = tmp_path / "runs.a2pack"
    done = relive("pack", "build", "--input", runs, "--output", path, "--align", 64)
    assert done.status == 0, done.err
    return path
