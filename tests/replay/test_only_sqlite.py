"""Only SQLite opens the database: closing another descriptor of it would drop SQLite's locks.

A WAL may be read: SQLite locks the database and its `-shm` file, but never the WAL.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from relive.replay import ReplayRun
from tests.replay import all_uses
from tests.replay.all_uses import DATABASES, LIVE_STEPS

ROOT = Path(__file__).parents[2]
MODULE = all_uses.__name__
FRAME = re.compile(r"^ > ([^(]+)\(")
C_LIBRARY = re.compile(r"/(libc|libpthread|ld-linux)[^/]*$")


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str | None]:
    """Return a root that was used in every way, and which library opened its databases."""
    folder = tmp_path_factory.mktemp("uses")
    log = folder.with_name("log")
    tracing = traced(folder, log) if has_stacks(log) else []
    command = [*tracing, sys.executable, "-m", MODULE, str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    # It prints each time that Python opened a database itself.
    assert (done.stdout, done.returncode) == ("done\n", 0), done.stderr
    return folder / "root", log.read_text() if tracing else None


def has_stacks(log: Path) -> bool:
    """Check whether strace can print which library called the system."""
    if shutil.which("strace") is None:
        return False
    command = ["strace", "-k", "-e", "trace=openat", "-o", str(log), "true"]
    return subprocess.run(command, capture_output=True).returncode == 0 and " > " in log.read_text()


def traced(folder: Path, log: Path) -> list[str]:
    roots = [folder / "root" / "telemetry", folder / "other" / "telemetry"]
    paths = [*(path / "telemetry.sqlite" for path in roots), folder / "old.sqlite"]
    named = [f"--trace-path={path}{end}" for path in paths for end in ("", "-wal", "-shm")]
    how = ["-f", "--seccomp-bpf", "-k", "-e", "trace=open,openat", *named]
    return ["strace", *how, "-o", str(log)]


def test_python_opens_no_database_itself(used: tuple[Path, str | None]) -> None:
    run = ReplayRun(used[0], "live")
    assert run.steps["action"].to_pylist() == list(range(LIVE_STEPS + 10))  # nothing was lost
    assert run.status == "interrupted"


@pytest.mark.needs("strace")
def test_only_the_library_sqlite_opens_a_database(used: tuple[Path, str | None]) -> None:
    """Also the core and other libraries, whose calls Python does not see."""
    log = used[1]
    if log is None:
        pytest.skip("could not run: strace: it cannot print stacks")
    callers = opened_by(log)
    assert len(callers) > 20
    assert {name for name, _ in callers} >= {*DATABASES, "telemetry.sqlite-wal"}
    others = [name for name, caller in callers if "sqlite" not in Path(caller).name]
    assert others == []


def test_the_program_notes_a_database_that_is_opened(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        f"from {MODULE} import watch\n"
        "folder, opened = Path(sys.argv[1]), []\n"
        "watch(folder, opened)\n"
        "(folder / 'telemetry.sqlite').write_bytes(b'')\n"
        "(folder / 'other').write_bytes(b'')\n"
        "(folder / 'telemetry.sqlite-wal').open('wb').close()\n"
        "(folder / 'telemetry.sqlite-wal').open('rb').close()\n"
        "print(len(opened))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], cwd=ROOT, capture_output=True, text=True
    )
    assert done.stdout == "2\n", done.stderr


def opened_by(log: str) -> list[tuple[str, str]]:
    """Return the names of files that were opened, and the library that did it.

    A WAL that was opened to read it is left out.
    """
    found: list[tuple[str, str]] = []
    name: str | None = None
    is_read_wal = False
    for line in log.splitlines():
        if opened := re.search(r'open(?:at)?\(.*"([^"]*)", (\w+)', line):
            name = Path(opened[1]).name
            is_read_wal = name.endswith("-wal") and opened[2] == "O_RDONLY"
            continue
        frame = FRAME.match(line)
        if name is not None and frame is not None and not C_LIBRARY.search(frame[1]):
            if not is_read_wal:
                found.append((name, frame[1]))
            name = None
    return found
