"""Runs the checks, one line each, and ends with one line that says how it went.

Exits with 1 when a check failed. What could not run on this machine is never silent:
the last line names it with its reason.
"""

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tools.workspace import BUILD, ROOT, environment, this_venv

PYTHON = sys.executable
LIMIT_S = 3600
SHOWN_LINES = 200

# Without a stub, stubtest finds nothing to say and passes.
_STUB_EXISTS = """
import pathlib, sys
stub = pathlib.Path("python/relive/_native.pyi")
sys.exit(None if stub.exists() else f"there is no {stub}")
"""


@dataclass(frozen=True)
class Check:
    """One verb: the commands to run in order, and why they may be impossible here."""

    name: str
    commands: tuple[tuple[str, ...], ...]
    reports: bool = False
    absent: Callable[[], str | None] = lambda: None


@dataclass
class Outcome:
    """How one check went. `missing` pairs a thing that is not here with the reason."""

    state: str
    seconds: float = 0.0
    log: Path | None = None
    note: str = ""
    missing: list[tuple[str, str]] = field(default_factory=list)


def main() -> None:
    """Run the checks named on the command line, or all of them."""
    run_named("tools.check", __doc__, _checks())


def run_named(program: str, about: str | None, given: Sequence[Check]) -> None:
    """Run those checks that the command line names, or all of them, and exit."""
    checks = {check.name: check for check in given}
    parser = argparse.ArgumentParser(prog=program, description=about)
    parser.add_argument("names", nargs="*", metavar="CHECK", help=f"of: {', '.join(checks)}")
    names = parser.parse_args().names or list(checks)
    if unknown := [name for name in names if name not in checks]:
        parser.error(f"no check `{unknown[0]}`; there are {', '.join(checks)}")
    logs = BUILD / "checks"
    logs.mkdir(parents=True, exist_ok=True)
    width = max(10, *map(len, names))
    outcomes = []
    for name in names:
        print(f"{name:<{width}} ", end="", flush=True)
        outcome = run(checks[name], logs)
        note = f"  {outcome.note}" if outcome.note else ""
        print(f"{outcome.state:<14} {outcome.seconds:7.1f} s{note}", flush=True)
        if outcome.state == "failed" and outcome.log:
            show(outcome.log)
        outcomes.append(outcome)
    print(*summary(outcomes), sep="\n", flush=True)
    sys.exit(any(outcome.state == "failed" for outcome in outcomes))


def run(check: Check, logs: Path) -> Outcome:
    """Run one check, its output kept in `logs`."""
    if reason := check.absent():
        return Outcome("could not run", note=reason, missing=[(check.name, reason)])
    log = logs / f"{check.name}.log"
    report = logs / f"{check.name}.json"
    report.unlink(missing_ok=True)
    started = time.monotonic()
    failed = False
    with log.open("w") as out:
        for command in check.commands:
            line = [*command, f"--report={report}"] if check.reports else command
            failed |= _execute(line, out.fileno()) != 0
    outcome = Outcome("failed" if failed else "ok", time.monotonic() - started, log)
    if check.reports:
        _read_report(report, outcome)
    return outcome


def _execute(command: Sequence[str], out: int) -> int:
    try:
        return subprocess.run(
            command,
            cwd=ROOT,
            env=environment(this_venv()),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            timeout=LIMIT_S,
        ).returncode
    except subprocess.TimeoutExpired:
        return 1


def _read_report(path: Path, outcome: Outcome) -> None:
    if not path.exists():
        outcome.state, outcome.note = "failed", "stopped before its report was written"
        return
    report = json.loads(path.read_text())
    outcome.missing = [(entry["thing"], entry["reason"]) for entry in report["could_not_run"]]
    counts = [f"{report['passed']} tests"]
    if report["failed"]:
        outcome.state = "failed"
        counts.append(f"{report['failed']} failed")
    if outcome.missing:
        counts.append(f"{len(outcome.missing)} could not run here")
    outcome.note = ", ".join((*counts, *report["notes"]))


def show(log: Path) -> None:
    """Print what a failed check said, from its end where it is long."""
    lines = log.read_text(errors="replace").splitlines()
    if len(lines) > SHOWN_LINES:
        print(f"    ... the first {len(lines) - SHOWN_LINES} lines are in {log.relative_to(ROOT)}")
    print(*(f"    {line}" for line in lines[-SHOWN_LINES:]), sep="\n", flush=True)


def summary(outcomes: Sequence[Outcome]) -> tuple[str, str]:
    """The plain count, and the line that ends every run."""
    states = Counter(outcome.state for outcome in outcomes)
    plain = f"{states['ok']} passed, {states['failed']} failed"
    missing = Counter(entry for outcome in outcomes for entry in outcome.missing)
    things = [
        f"{thing}: {reason}" + (f", {count} tests" if count > 1 else "")
        for (thing, reason), count in missing.items()
    ]
    reasons = f" ({'; '.join(things)})" if things else ""
    return plain, f"relive: {plain}, {len(things)} could not run here{reasons}"


def _checks() -> list[Check]:
    sources = [
        name for name in ("python", "tests", "tools", "benches", "examples") if _has_python(name)
    ]
    # Tests of one file share set-up, so a file stays in one process.
    parallel = ("-n", "auto", "--maxprocesses", "8", "--dist", "loadfile")
    pytest = (PYTHON, "-m", "pytest", "-p", "no:cacheprovider", "--no-header", "-q", *parallel)
    slowest = "--durations=20"
    stubtest = (PYTHON, "-m", "mypy.stubtest", "relive._native", "--concise")
    return [
        Check(
            "lint",
            (
                (PYTHON, "-m", "ruff", "check", "--output-format=concise", *sources),
                (PYTHON, "-m", "ruff", "format", "--check", "--quiet", "--diff", *sources),
            ),
        ),
        Check("types", ((PYTHON, "-m", "mypy", *sources),)),
        Check(
            "stubs",
            (
                (PYTHON, "-c", _STUB_EXISTS),
                (
                    *stubtest,
                    "--mypy-config-file=pyproject.toml",
                    "--allowlist=tools/stubtest-allow.txt",
                ),
            ),
        ),
        Check("imports", ((str(this_venv() / "bin" / "lint-imports"), "--no-cache"),)),
        Check("rustfmt", (("cargo", "fmt", "--all", "--check"),), absent=_component("rustfmt")),
        Check(
            "clippy",
            (
                ("cargo", "clippy", "--quiet", "--workspace", "--all-targets", "--", "-Dwarnings"),
                # The fuzz targets are a workspace of their own; they share what is built.
                (
                    *("cargo", "clippy", "--quiet", "--manifest-path=fuzz/Cargo.toml"),
                    *("--target-dir=target", "--all-targets", "--", "-Dwarnings"),
                ),
            ),
            absent=_component("clippy"),
        ),
        Check("rust-test", (("cargo", "test", "--quiet", "--workspace"),)),
        Check("pytest", ((*pytest, slowest, "tests", "--ignore=tests/docs"),), reports=True),
        Check("snippets", ((*pytest, "tests/docs"),), reports=True),
        Check(
            "docs",
            (
                (
                    "env",
                    "NO_MKDOCS_2_WARNING=1",
                    PYTHON,
                    "-m",
                    "mkdocs",
                    "build",
                    "--strict",
                    "--quiet",
                ),
            ),
        ),
    ]


def _has_python(name: str) -> bool:
    return any((ROOT / name).rglob("*.py"))


def _component(name: str) -> Callable[[], str | None]:
    """Why a part of the Rust toolchain cannot be used, or None where it can."""

    def absent() -> str | None:
        tool = "cargo-fmt" if name == "rustfmt" else "cargo-clippy"
        found = shutil.which(tool)
        if found and subprocess.run([found, "--version"], capture_output=True).returncode == 0:
            return None
        return f"not installed (rustup component add {name})"

    return absent


if __name__ == "__main__":
    main()
