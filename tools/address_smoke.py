"""Runs Python tests with a core that AddressSanitizer checks.

An interpreter that is not built for it needs the runtime of AddressSanitizer loaded first. Rust has
the runtime as an archive for programs; here it becomes a library.
"""

import shutil
import subprocess
import sys
from pathlib import Path

from tools.sanitize import FOLDER, host_target
from tools.workspace import ROOT, environment, this_venv

TESTS = (
    *("tests/load/test_compose.py", "tests/load/test_loader.py"),
    *("tests/load/test_loader_follows.py", "tests/load/test_loader_lifecycle.py"),
    *("tests/load/test_sampler.py", "tests/store/test_codec.py", "tests/store/test_runs.py"),
    *("tests/store/pack", "tests/store/records"),
)
"""Tests that use most of the core, without PyTorch and JAX."""

# Writes one byte too many to an allocation.
OVERFLOW = "import ctypes; ctypes.memset(ctypes.create_string_buffer(10_000), 0, 10_001)"


def main() -> None:
    """Build the runtime and the core, and run the tests; exits with 1 if one fails."""
    folder = FOLDER / "address"
    folder.mkdir(parents=True, exist_ok=True)
    host = host_target()
    runtime = _runtime(folder, host)
    build = ("cargo", "+nightly", "build", "--quiet", "-p", "relive-py", f"--target={host}")
    flags = {"RUSTFLAGS": "-Zsanitizer=address", "CFLAGS": "-fno-sanitize=all"}
    _run([*build, f"--target-dir={folder}"], flags)

    package = folder / "python"
    shutil.rmtree(package, ignore_errors=True)
    ignored = shutil.ignore_patterns("_native*.so", "__pycache__")
    shutil.copytree(ROOT / "python", package, ignore=ignored)
    shutil.copy2(folder / host / "debug" / "lib_native.so", package / "relive" / "_native.abi3.so")

    checked = {
        # The interceptor of exceptions needs the C++ library that numeric packages load later.
        "LD_PRELOAD": f"{runtime}:{_output('gcc', '--print-file-name=libstdc++.so.6')}",
        "ASAN_OPTIONS": "detect_leaks=0",  # the interpreter frees little at its end
        "PYTHONMALLOC": "malloc",
        "PYTHONPATH": f"{package}:{ROOT}",
    }
    python = (sys.executable, "-P")
    if _status([*python, "-c", OVERFLOW], checked, quiet=True) == 0:
        sys.exit("an overflow was not reported: AddressSanitizer is not active")
    pytest = (*python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--no-header")
    # Freed memory is kept for a while, so tests of the use of memory fail.
    _run([*pytest, "-k", "not memory", *TESTS], checked)


def _runtime(folder: Path, host: str) -> Path:
    """Link the runtime of AddressSanitizer as a library, and return its path."""
    libraries = Path(_output("rustc", "+nightly", "--print=target-libdir", f"--target={host}"))
    (archive,) = libraries.glob("librustc*_rt.asan.a")
    copy = folder / "runtime.a"
    shutil.copyfile(archive, copy)
    # Only programs can have the section in it.
    _run(["ar", "d", str(copy), "asan_preinit.cpp.o"], {})
    # A name with "libasan" would be taken for a second runtime.
    runtime = folder / "runtime.so"
    whole = ("-Wl,--whole-archive", str(copy), "-Wl,--no-whole-archive")
    _run(["gcc", "-shared", "-o", str(runtime), *whole, "-lpthread", "-ldl", "-lm", "-lrt"], {})
    return runtime


def _output(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    return done.stdout.strip()


def _run(command: list[str], extra: dict[str, str]) -> None:
    if _status(command, extra) != 0:
        sys.exit(f"failed: {' '.join(command)}")


def _status(command: list[str], extra: dict[str, str], *, quiet: bool = False) -> int:
    where = subprocess.DEVNULL if quiet else None
    env = environment(this_venv()) | extra
    return subprocess.run(command, cwd=ROOT, env=env, stdout=where, stderr=where).returncode


if __name__ == "__main__":
    main()
