"""What all commands share: exit statuses, errors, signals, pipes and progress."""

import io
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest

from relive.cli import head, main
from relive.cli.output import count_text, print_json, print_table, printable, size_text
from relive.cli.progress import Progress
from tests.cli.conftest import Relive


def test_version(relive: Relive) -> None:
    done = relive("--version")
    assert (done.status, done.out, done.err) == (0, f"relive {version('relive')}\n", "")


@pytest.mark.parametrize("args", [["--help"], ["pack", "--help"], ["pack", "build", "--help"]])
def test_help_is_printed_on_stdout(relive: Relive, args: Sequence[str]) -> None:
    done = relive(*args)
    assert done.status == 0
    assert done.out.startswith("usage: relive")
    assert not done.err


@pytest.mark.parametrize(
    "args",
    [
        [],
        ["pack"],
        ["pakc"],
        ["pack", "stats"],
        ["pack", "stats", "a", "--packfile", "b"],
        ["pack", "merge", "--output", "x"],
        ["pack", "validate", "x", "--level", "most"],
        ["pack", "build", "--input", "a", "--output", "b", "--workers", "0"],
        ["pack", "build", "--input", "a", "--output", "b", "--compress", "rar"],
        ["pack", "build", "--input", "a", "--output", "b", "--dictionary"],
        ["pack", "extract", "x", "--output", "d", "--indices", "1,,2"],
        ["pack", "extract", "x", "--output", "d", "--indices", "5-2"],
        ["pack", "extract", "x", "--output", "d", "--indices", "1", "--names", "a"],
        ["pack", "to-jsonl", "x", "--output", "-", "--steps", "--runs-only"],
        ["pack", "subset", "x", "--output", "y"],
        ["pack", "subset", "x", "--output", "y", "--where", "steps=many"],
        ["pack", "subset", "x", "--output", "y", "--where", "size=1:2"],
        ["head", "x", "-n", "0"],
        ["info", "x", "--js"],
    ],
    ids=" ".join,
)
def test_wrong_usage_is_reported_on_stderr(relive: Relive, args: Sequence[str]) -> None:
    done = relive(*args)
    assert done.status == 2
    assert not done.out
    assert "error: " in done.err
    assert "Traceback" not in done.err


def test_error_has_one_line_and_a_hint(relive: Relive, tmp_path: Path) -> None:
    done = relive("info", tmp_path)
    assert done.status == 1
    assert not done.out
    first, second = done.err.splitlines()
    assert first.startswith(f"error: cannot open the directory `{tmp_path}`")
    assert second.startswith("hint: ")


def test_traceback_only_on_request(
    relive: Relive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RELIVE_TRACEBACK", raising=False)
    missing = tmp_path / "no.npy"
    assert "Traceback" not in relive("info", missing).err
    assert "Traceback" in relive("info", missing, "--traceback").err
    monkeypatch.setenv("RELIVE_TRACEBACK", "1")
    done = relive("info", missing)
    assert "Traceback" in done.err
    assert done.err.splitlines()[-1].startswith("error: ")
    monkeypatch.setenv("RELIVE_TRACEBACK", "0")
    assert "Traceback" not in relive("info", missing).err


def test_unexpected_errors_propagate(relive: Relive, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: object) -> object:
        raise ZeroDivisionError

    monkeypatch.setattr(head, "find_kind", broken)
    with pytest.raises(ZeroDivisionError):
        relive("head", "x")


def test_operating_system_error_is_reported(
    relive: Relive, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: object) -> object:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(head, "find_kind", full)
    done = relive("head", "x")
    assert done.status == 1
    assert done.err == "error: [Errno 28] No space left on device\n"


def command(*args: object) -> list[str]:
    """Start the command in its own process."""
    return [sys.executable, "-m", "relive", *map(str, args)]


def test_run_as_a_module_and_as_a_script(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(3))
    script = Path(sys.executable).parent / "relive"
    args = ["head", str(tmp_path / "a.npy")]
    for line in (command(*args), [str(script), *args]):
        done = subprocess.run(line, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.splitlines() == ["row  data", "  0     0", "  1     1", "  2     2"]


def test_closed_stdout_ends_the_command_quietly(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(30_000))
    process = subprocess.Popen(
        command("head", tmp_path / "a.npy", "-n", 30_000),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == "  row   data\n"
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait() == 141
    process.stderr.close()


def test_interrupt_ends_the_command_quietly(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.zeros(3))
    # Background processes ignore SIGINT, and the command would inherit that. It arrives when the
    # command opens the file.
    code = """
import signal, sys

def interrupt(event, arguments):
    if event == "open" and str(arguments[0]) == sys.argv[-1]:
        signal.raise_signal(signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
from relive.cli import main
sys.addaudithook(interrupt)
sys.exit(main(sys.argv[1:]))
"""
    command = [sys.executable, "-c", code, "info", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


# Sends Ctrl-C to the process when it looks for a module.
INTERRUPTING = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a process in the background ignores it
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["INTERRUPT_AT"]:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
"""


@pytest.mark.parametrize(
    ("how", "module"),
    [
        ("script", "relive.errors"),
        ("script", "numpy.linalg"),
        ("script", "relive.cli"),
        ("script", "pyarrow"),
        ("module", "numpy"),
    ],
)
def test_interrupt_while_modules_are_imported_ends_the_command_quietly(
    how: str, module: str, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTING)
    (tmp_path / "000000000000" / "000000000000").mkdir(parents=True)
    line = [str(Path(sys.executable).parent / "relive")] if how == "script" else command()
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": paths, "INTERRUPT_AT": module}
    done = subprocess.run(
        [*line, "recover", str(tmp_path)], capture_output=True, text=True, env=environment
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_program_that_imports_relive_keeps_its_handler(tmp_path: Path) -> None:
    script = tmp_path / "relive"
    script.write_text(
        "import signal, relive\n"
        "assert signal.getsignal(signal.SIGINT) in (signal.default_int_handler, signal.SIG_IGN)\n"
    )
    # Elsewhere, because the directory of a script is on the path.
    subprocess.run([sys.executable, "-P", str(script)], check=True)


class Terminal(io.StringIO):
    """A stream whose isatty() is true."""

    def isatty(self) -> bool:
        return True


def progress_on(stream: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return what a progress bar writes to a stream."""
    monkeypatch.setattr(sys, "stderr", stream)
    clock = iter(range(1000))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    with Progress("packing", 8) as progress:
        for done in (2, 4, 8):
            progress(done)
    return stream.getvalue()


def test_progress_bar_is_drawn_on_a_terminal_and_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = progress_on(Terminal(), monkeypatch).split("\r")
    assert drawn[1] == "packing [######..................]  25%  2 of 8  0:03 left"
    assert drawn[2].startswith("packing [############............]  50%  4 of 8  0:02 left")
    assert drawn[3].rstrip() == "packing [########################] 100%  8 of 8"
    assert drawn[-1] == ""
    assert not drawn[-2].strip()


def test_progress_is_not_drawn_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    assert progress_on(io.StringIO(), monkeypatch) == ""


def test_table_is_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("name", "n"), [("a", 1), ("long", 1000), ("b", None)])
    assert capsys.readouterr().out == "name     n\na        1\nlong  1000\nb        -\n"


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 bytes"), (1023, "1023 bytes"), (1024, "1.0 KiB"), (5 << 29, "2.5 GiB")],
)
def test_sizes(size: int, text: str) -> None:
    assert size_text(size) == text


def test_counts_control_characters_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert count_text(1, "entry") == "1 entry"
    assert count_text(0, "entry") == "0 entries"
    assert count_text(2, "file") == "2 files"
    assert printable("a b") == "a b"
    assert printable("\x1b[31mred") == r"\x1b[31mred"
    print_json({"a": float("nan"), "b": (1, float("inf"))})
    assert "".join(capsys.readouterr().out.split()) == '{"a":null,"b":[1,null]}'


def test_main_reads_the_process_arguments(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["relive", "--version"])
    run: Callable[[], int] = main
    assert run() == 0
    assert capsys.readouterr().out.startswith("relive ")
