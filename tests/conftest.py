"""What every test shares: telling openly what could not run on this machine.

A test that needs something this machine may lack says so, and runs where it is here:

    @pytest.mark.needs("cuda")
    def test_pinned_memory_reaches_the_device() -> None: ...

    def test_either_framework(needs: Needs) -> None:
        needs("jax")

    torch = pytest.importorskip("torch")   # for a whole module

What is absent is recorded with its reason and shown in the last line of `make test`.
Any other skip, and any expected failure, is a failure: it would hide something.
"""

import functools
import importlib.util
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, Protocol

import hypothesis
import pytest

from tests import servers

# In CI one tree has one verdict; elsewhere every run tries something else.
hypothesis.settings.register_profile(
    "relive", deadline=None, print_blob=True, derandomize=bool(os.environ.get("CI"))
)
hypothesis.settings.load_profile("relive")


class Needs(Protocol):
    """Stops the test, on record, unless every named thing is here."""

    def __call__(self, *things: str) -> None: ...


def _module(name: str) -> Callable[[], str | None]:
    return lambda: None if importlib.util.find_spec(name) else "not installed"


def _cuda() -> str | None:
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed"
    import torch

    return None if torch.cuda.is_available() else "no CUDA device"


def _strace() -> str | None:
    if shutil.which("strace") is None:
        return "not installed"
    tried = subprocess.run(["strace", "-qq", "-o", os.devnull, "true"], capture_output=True)
    return "tracing a process is not allowed" if tried.returncode else None


def _mounts() -> str | None:
    if shutil.which("unshare") is None:
        return "unshare is not installed"
    tried = subprocess.run(
        ["unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True
    )
    return "mounting a disk is not allowed" if tried.returncode else None


# Thing to a function that gives None where it is here, and the reason where it is not.
THINGS: dict[str, Callable[[], str | None]] = {
    "cuda": functools.cache(_cuda),
    "mounts": functools.cache(_mounts),
    "nginx": lambda: None if servers.nginx() else "not installed",
    "seaweedfs": lambda: None if servers.weed() else "not installed",
    "strace": functools.cache(_strace),
    **{
        name: _module(name)
        for name in (
            "PIL",
            "array_record",
            "av",
            "datasets",
            "duckdb",
            "grain",
            "gymnasium",
            "h5py",
            "jax",
            "lmdb",
            "loaderx",
            "matplotlib",
            "obstore",
            "pandas",
            "ray",
            "starlette",
            "torch",
        )
    },
}


class Ledger:
    """What passed, what failed and what could not run, as `tools.check` reads it."""

    def __init__(self) -> None:
        self.passed = 0
        self.failed = 0
        self.could_not_run: dict[str, tuple[str, str]] = {}
        self.notes: list[str] = []

    def require(self, test: str, *things: str) -> None:
        """Stop `test` at the first of `things` that is not here, and write that down."""
        for thing in things:
            if thing not in THINGS:
                pytest.fail(f"no thing `{thing}` in tests/conftest.py; there are {[*THINGS]}")
            if reason := THINGS[thing]():
                self.could_not_run[test] = (thing, reason)
                pytest.skip(f"could not run: {thing}: {reason}")

    def excuses(self, test: str, message: str) -> bool:
        """Whether the skip of `test` is on record, or is of a module known to be absent."""
        if test in self.could_not_run:
            return True
        named = re.search(r"could not import '(\w+)", message)
        thing = named[1] if named else ""
        reason = THINGS[thing]() if thing in THINGS else None
        if reason:
            self.could_not_run[test] = (thing, reason)
        return reason is not None

    def write(self, path: Path) -> None:
        """Leave the report at `path`."""
        entries = [
            {"test": test, "thing": thing, "reason": reason}
            for test, (thing, reason) in self.could_not_run.items()
        ]
        counts = {"passed": self.passed, "failed": self.failed}
        path.write_text(json.dumps({**counts, "could_not_run": entries, "notes": self.notes}))


LEDGER = pytest.StashKey[Ledger]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--report", type=Path, help="write what happened to this JSON file")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[LEDGER] = Ledger()


@pytest.fixture
def needs(request: pytest.FixtureRequest) -> Needs:
    """Ask inside a test for things this machine may lack."""
    return functools.partial(request.config.stash[LEDGER].require, request.node.nodeid)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("needs"):
        item.config.stash[LEDGER].require(item.nodeid, *mark.args)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _refuse_hiding(item.config.stash[LEDGER], report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _refuse_hiding(collector.config.stash[LEDGER], report)
    return report


def _refuse_hiding(ledger: Ledger, report: pytest.TestReport | pytest.CollectReport) -> None:
    if hasattr(report, "wasxfail"):
        del report.wasxfail
        report.outcome = "failed"
        report.longrepr = "expected failures are not allowed: state what is true instead"
    elif report.skipped and not ledger.excuses(report.nodeid, str(report.longrepr)):
        report.outcome = "failed"
        report.longrepr = f"skipped without `needs`, which would hide it: {report.longrepr}"


@pytest.hookimpl(wrapper=True)
def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> Generator[None, Any, Any]:
    ledger = config.stash[LEDGER]
    stats = terminalreporter.stats
    ledger.passed = len(stats.get("passed", ()))
    ledger.failed = len(stats.get("failed", ())) + len(stats.get("error", ()))
    for report in stats.get("passed", ()):
        ledger.notes += [text for name, text in report.user_properties if name == "note"]
    if path := config.getoption("--report"):
        ledger.write(path)
    return (yield)
