"""`WriterLifecycle`: writers that are dropped, and how the end of a program waits for them."""

import gc
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import pytest

from relive.errors import ClosedError
from tests.store.plain_writer import Writer, in_cycle

ROOT = Path(__file__).parents[2]
UNCLOSED = "the writer of `thing` was not closed; use `with`, or call close()"


def test_a_dropped_writer_is_left_before_the_next_statement() -> None:
    ends: list[str] = []
    writer = Writer(ends.append)
    with pytest.warns(ResourceWarning, match=UNCLOSED) as found:
        del writer
    assert ends == ["leave"]
    assert [each.filename for each in found] == [__file__]


@pytest.mark.parametrize("end", ["close", "abort", "leave"])
def test_a_writer_that_has_ended_is_dropped_in_silence(end: str) -> None:
    ends: list[str] = []
    writer = Writer(ends.append)
    getattr(writer, end)()
    cycle = in_cycle(Writer(ends.append))
    getattr(cycle[0], end)()
    del writer, cycle
    gc.collect()
    assert ends == [end, end]


def test_a_part_is_ended_by_its_whole() -> None:
    ends: list[str] = []
    writer = Writer(ends.append, is_part=True)
    del writer
    assert ends == []


def test_a_writer_whose_constructor_failed_has_no_end() -> None:
    with pytest.raises(TypeError):
        Writer()  # type: ignore[call-arg]


def test_the_collector_does_not_wait() -> None:
    ends: list[str] = []
    gate, left = threading.Event(), threading.Event()

    def end(name: str) -> None:
        gate.wait(60)
        ends.append(name)
        left.set()

    in_cycle(Writer(end))
    with pytest.warns(ResourceWarning, match=UNCLOSED):
        gc.collect()
    assert ends == []
    gate.set()
    assert left.wait(60)
    assert ends == ["leave"]


def test_locks_are_kept_until_a_writer_in_a_cycle_is_left() -> None:
    freed: list[str] = []

    class Lock:
        def __del__(self) -> None:
            freed.append("lock")

    left = threading.Event()

    def end(name: str) -> None:
        freed.append(name)
        left.set()

    writer = Writer(end)
    writer._kept.append(Lock())
    in_cycle(writer)
    del writer
    with pytest.warns(ResourceWarning, match=UNCLOSED):
        gc.collect()
    assert left.wait(60)
    until = time.monotonic() + 60
    while len(freed) < 2:
        assert time.monotonic() < until
        time.sleep(0.001)
    assert freed == ["leave", "lock"]


def test_close_from_a_finalizer_in_the_same_cycle() -> None:
    ends: list[str] = []
    refused: list[ClosedError] = []

    class Owner:
        def __init__(self) -> None:
            self.writer = Writer(ends.append)
            self.itself = self

        def __del__(self) -> None:
            try:
                self.writer.close()
            except ClosedError as error:
                refused.append(error)

    Owner()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
    assert (ends, len(refused)) in ((["close"], 0), (["leave"], 1))


def test_ctrl_c_while_a_dropped_writer_is_left_is_raised_after_it() -> None:
    ends: list[str] = []

    def end(name: str) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.1)
        ends.append(name)

    def drop() -> None:
        writer = Writer(end)
        with pytest.warns(ResourceWarning, match=UNCLOSED):
            del writer
        until = time.monotonic() + 60
        while time.monotonic() < until:
            time.sleep(0.001)

    with pytest.raises(KeyboardInterrupt):
        drop()
    assert ends == ["leave"]


def run(body: str, *options: str) -> list[str]:
    """Return the lines that a program writes to stdout and stderr."""
    script = f"""
import gc, multiprocessing, os, signal, sys, threading, time
from tests.store.plain_writer import Writer, in_cycle

def slowly(end):
    time.sleep(0.1)
    print(end, flush=True)

{body}
"""
    command = [sys.executable, *options, "-c", script]
    done = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout
    return done.stdout.splitlines()


DAEMON = """
def main(writer):
    time.sleep(60)

threading.Thread(target=main, args=[Writer(slowly)], daemon=True).start()
"""


@pytest.mark.parametrize(
    "body",
    [
        "def main():\n    writer = Writer(slowly)\nmain()",
        "writer = Writer(slowly)",
        "writer = Writer(slowly)\nsys.exit()",
        "in_cycle(Writer(slowly))\ngc.collect()",
        "in_cycle(Writer(slowly))\ngc.disable()",
        "def main():\n    writer = Writer(slowly)\nthreading.Thread(target=main).start()",
        DAEMON,
    ],
    ids=["local", "global", "exit", "collected", "cycle", "thread", "daemon"],
)
def test_the_end_of_a_program_waits(body: str) -> None:
    assert run(body) == ["leave"]


def test_warnings_that_are_errors_break_no_end() -> None:
    for body in ("writer = Writer(slowly)\ndel writer", "writer = Writer(slowly)"):
        lines = run(body, "-W", "error::ResourceWarning")
        assert lines[0] == "leave"
        assert lines[-1] == f"ResourceWarning: {UNCLOSED}"


def test_ctrl_c_at_the_end_of_a_program() -> None:
    body = """
def interrupted(end):
    os.kill(os.getpid(), signal.SIGINT)
    slowly(end)

first, second = Writer(interrupted), Writer(interrupted)
"""
    lines = run(body)
    assert [line for line in lines if line == "leave"] == ["leave", "leave"]
    assert lines[-1].startswith("KeyboardInterrupt")


def test_an_error_at_the_end_of_a_program_is_reported() -> None:
    body = """
def fail(end):
    raise OSError("the disk is full")

writer, other = Writer(fail), Writer(slowly)
"""
    lines = run(body)
    assert "leave" in lines
    assert lines[-1] == "OSError: the disk is full"


def test_the_end_of_a_worker_process_syncs() -> None:
    body = """
def work():
    global writer
    writer = Writer(slowly)

process = multiprocessing.get_context("fork").Process(target=work)
process.start()
process.join()
"""
    assert run(body) == ["sync"]


def test_a_forked_child_leaves_nothing() -> None:
    body = """
writer = Writer(slowly)
cycle = in_cycle(Writer(slowly))
if not os.fork():
    del writer, cycle
    gc.collect()
    sys.exit()
os.wait()
"""
    assert run(body) == ["leave", "leave"]
