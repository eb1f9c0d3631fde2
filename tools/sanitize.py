"""Runs the core under tools that see what tests cannot: sanitizers, valgrind and loom.

Ends with one line, as `tools.check` does. docs/decisions/sanitizers.md says what each covers.
"""

import shutil
import subprocess
import sys
from pathlib import Path

from tools.check import Check, run_named
from tools.setup import install_packages
from tools.workspace import BUILD

FOLDER = BUILD / "sanitize"
# A test that leaves threads on purpose: those of another process are not ended or freed.
LEAVES_THREADS = "lanes_of_another_process_are_let_be"


def main() -> None:
    """Run the checks named on the command line, or all of them."""
    install_packages(["valgrind"])
    host = host_target()
    core = ("-p", "relive-core", "--lib")
    runner = f"CARGO_TARGET_{host.upper().replace('-', '_')}_RUNNER"
    sanitized = ("cargo", "+nightly", "test", "--quiet", *core, f"--target={host}")
    checks = [
        Check(
            "models",
            (
                (
                    *("env", "RUSTFLAGS=--cfg loom"),
                    *("cargo", "test", "--quiet", "--release", *core),
                    *(f"--target-dir={FOLDER / 'models'}", "models::"),
                ),
            ),
        ),
        Check(
            "address-rust",
            (
                (
                    *("env", "RUSTFLAGS=-Zsanitizer=address", "CFLAGS=-fno-sanitize=all"),
                    f"LSAN_OPTIONS=suppressions={suppressions('leak')}",
                    *(*sanitized, f"--target-dir={FOLDER / 'address'}"),
                ),
            ),
            absent=_nightly,
        ),
        Check(
            "address-python",
            ((sys.executable, "-m", "tools.address_smoke"),),
            absent=_nightly,
        ),
        Check(
            "thread-rust",
            (
                ("rustup", "component", "add", "--toolchain=nightly", "rust-src"),
                (
                    *("env", "RUSTFLAGS=-Zsanitizer=thread", "CFLAGS=-fno-sanitize=all"),
                    f"TSAN_OPTIONS=suppressions={suppressions('thread')}",
                    *(*sanitized, "-Zbuild-std", f"--target-dir={FOLDER / 'thread'}"),
                ),
            ),
            absent=_nightly,
        ),
        Check(
            "memcheck",
            (
                (
                    *("env", f"{runner}=valgrind --quiet --error-exitcode=1"),
                    *("cargo", "test", "--quiet", "--release", *core, f"--target={host}"),
                    f"--target-dir={FOLDER / 'valgrind'}",
                ),
            ),
            absent=_valgrind,
        ),
    ]
    run_named("tools.sanitize", __doc__, checks)


def suppressions(kind: str) -> Path:
    """Return a file that tells a sanitizer not to report `LEAVES_THREADS`."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / f"{kind}.txt"
    path.write_text(f"{kind}:{LEAVES_THREADS}\n")
    return path


def host_target() -> str:
    """Return the Rust target of this machine."""
    told = subprocess.run(["rustc", "-vV"], capture_output=True, text=True, check=True).stdout
    return next(line.split()[1] for line in told.splitlines() if line.startswith("host:"))


def _nightly() -> str | None:
    asked = subprocess.run(["cargo", "+nightly", "--version"], capture_output=True)
    return None if asked.returncode == 0 else "not installed (rustup toolchain install nightly)"


def _valgrind() -> str | None:
    return None if shutil.which("valgrind") else "not installed (apt-get install valgrind)"


if __name__ == "__main__":
    main()
