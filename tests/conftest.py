"""Records which tests cannot run on this machine, and has what tests of all parts share.

A test that needs something this machine may lack declares it, and is skipped without it:

    @pytest.mark.needs("cuda")
    def test_pinned_memory_reaches_the_device() -> None: ...

    def test_either_framework(needs: Needs) -> None:
        needs("jax")

    torch = pytest.importorskip("torch")   # for a whole module

Missing things are listed with the reason in the last line of `make test`. Any other skip, and any
expected failure, counts as a failure.
"""

import functools
import importlib.util
import json
import multiprocessing
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import hypothesis
import pytest

from tests import servers
from tests.servers import Nginx, Proxy, SeaweedFS

ROOT = Path(__file__).resolve().parent.parent

# A shell ignores SIGINT in what it starts in the background; then no test could be interrupted.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# CI runs the same examples every time; other runs draw new ones.
hypothesis.settings.register_profile(
    "relive", deadline=None, print_blob=True, derandomize=bool(os.environ.get("CI"))
)
hypothesis.settings.load_profile("relive")


class Needs(Protocol):
    """Skips the test, with a recorded reason, unless everything named is available."""

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


def torchrl_python() -> Path | None:
    """Return an interpreter that has TorchRL: this one, or that of the environment beside it."""
    if importlib.util.find_spec("torchrl"):
        return Path(sys.executable)
    beside = ROOT / f"{Path(sys.prefix).name}-torchrl"
    is_there = any(beside.glob("lib/python3.*/site-packages/torchrl"))
    return beside / "bin" / "python" if is_there else None


# Maps a thing to a function that returns None if it is available, else the reason.
THINGS: dict[str, Callable[[], str | None]] = {
    "cuda": functools.cache(_cuda),
    "mounts": functools.cache(_mounts),
    "nginx": lambda: None if servers.nginx() else "not installed",
    "seaweedfs": lambda: None if servers.weed() else "not installed",
    "strace": functools.cache(_strace),
    "torchrl": lambda: None if torchrl_python() else "not installed",
    **{
        name: _module(name)
        for name in (
            "PIL",
            "ale_py",
            "array_record",
            "av",
            "boto3",
            "d3rlpy",
            "datasets",
            "duckdb",
            "grain",
            "gymnasium",
            "h5py",
            "hdf5plugin",
            "jax",
            "lmdb",
            "loaderx",
            "matplotlib",
            "minari",
            "obstore",
            "pandas",
            "pettingzoo",
            "polars",
            "stable_baselines3",
            "torch",
        )
    },
}


_SKIP = re.compile(r"could not run: ([\w.-]+): (.*?)'?\)?$")


def require(*things: str) -> None:
    """Skip the test at the first of `things` that this machine lacks, with the reason."""
    for thing in things:
        if thing not in THINGS:
            pytest.fail(f"no thing `{thing}` in tests/conftest.py; there are {[*THINGS]}")
        if reason := THINGS[thing]():
            pytest.skip(f"could not run: {thing}: {reason}")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--report", type=Path, help="write what happened to this JSON file")


@pytest.fixture
def needs() -> Needs:
    """Return a function that requires things this machine may lack."""
    return require


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("needs"):
        require(*mark.args)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _fail_unreported_skips(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _fail_unreported_skips(report)
    return report


def _fail_unreported_skips(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Fail a test that was skipped without a recorded reason, or that was expected to fail."""
    if hasattr(report, "wasxfail"):
        del report.wasxfail
        report.outcome = "failed"
        report.longrepr = "expected failures are not allowed: state what is true instead"
    elif report.skipped and _reason_of(report) is None:
        report.outcome = "failed"
        report.longrepr = f"skipped without `needs`, which would hide it: {report.longrepr}"


def _reason_of(report: pytest.TestReport | pytest.CollectReport) -> tuple[str, str] | None:
    """Return what a skipped test needs and why it is missing; None for any other skip."""
    message = str(report.longrepr)
    if found := _SKIP.search(message):
        return found[1], found[2]
    named = re.search(r"could not import '(\w+)", message)
    thing = named[1] if named else ""
    reason = THINGS[thing]() if thing in THINGS else None
    return (thing, reason) if reason else None


@pytest.hookimpl(wrapper=True)
def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> Generator[None, Any, Any]:
    """Write the report that `tools.check` reads; with several workers, only in the controller."""
    stats = terminalreporter.stats
    skipped = {
        report.nodeid: reason
        for report in stats.get("skipped", ())
        if (reason := _reason_of(report)) is not None
    }
    content = {
        "passed": len(stats.get("passed", ())),
        "failed": len(stats.get("failed", ())) + len(stats.get("error", ())),
        "could_not_run": [
            {"test": test, "thing": thing, "reason": reason}
            for test, (thing, reason) in skipped.items()
        ],
        "notes": [
            text
            for report in stats.get("passed", ())
            for name, text in report.user_properties
            if name == "note"
        ],
    }
    if path := config.getoption("--report"):
        path.write_text(json.dumps(content))
    return (yield)


@pytest.fixture(scope="module")
def spawned_pool() -> Iterator[ProcessPoolExecutor]:
    """Return a process to fork in: other tests may load libraries that must not be forked."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield pool


@pytest.fixture
def nginx(tmp_path: Path, needs: Needs) -> Iterator[Nginx]:
    """Start a web server over an empty folder, `nginx.files`."""
    needs("nginx")
    files, folder = tmp_path / "files", tmp_path / "nginx"
    files.mkdir()
    folder.mkdir()
    with Nginx(files, folder) as server:
        yield server


@pytest.fixture(scope="session")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedFS]:
    """Start an object store; tests that use it are marked as needing `seaweedfs`."""
    with SeaweedFS(tmp_path_factory.mktemp("weed")) as server:
        yield server


@pytest.fixture
def s3(seaweed: SeaweedFS, monkeypatch: pytest.MonkeyPatch) -> SeaweedFS:
    """Configure the object store in the environment."""
    for name, value in seaweed.environment.items():
        monkeypatch.setenv(name, value)
    return seaweed


@pytest.fixture
def proxy(seaweed: SeaweedFS) -> Iterator[Proxy]:
    """Start a proxy of the object store that counts, delays and disturbs requests."""
    with Proxy(seaweed.url) as server:
        yield server


@pytest.fixture
def bucket(seaweed: SeaweedFS) -> str:
    """Return the `s3://` address of an empty root in the object store."""
    # One bucket for all tests: each has its own volumes, of which there is a fixed number.
    seaweed.put("roots/made", b"")
    return f"s3://roots/{secrets.token_hex(6)}"
