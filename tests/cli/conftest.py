"""Runs the command line in the test process."""

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
    """The exit status and output of a command."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The standard output, parsed as JSON."""
        return json.loads(self.out)


Relive: TypeAlias = Callable[..., Outcome]


@pytest.fixture
def relive(capsys: pytest.CaptureFixture[str]) -> Relive:
    """Return a function that runs a command given as separate arguments."""

    def run(*args: object) -> Outcome:
        capsys.readouterr()
        status = main([str(arg) for arg in args])
        return Outcome(int(status), *capsys.readouterr())

    return run


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Return a directory with three runs."""
    return write_runs(tmp_path / "runs")


@pytest.fixture
def pack(relive: Relive, runs: Path, tmp_path: Path) -> Path:
    """Return a pack of the three runs."""
    path = tmp_path / "runs.a2pack"
    done = relive("pack", "build", "--input", runs, "--output", path, "--align", 64)
    assert done.status == 0, done.err
    return path
