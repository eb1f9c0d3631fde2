"""Loaders in separate programs: interpreter exit, Ctrl-C, forks and killed parents."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PRELUDE = """
import os, signal, sys, threading, time
# Children of a background process ignore SIGINT.
signal.signal(signal.SIGINT, signal.default_int_handler)
import numpy as np
import relive
from relive import DataLoader, Sampler, errors
from tests.load import transforms
from tests.load.reference import Plain, rows
KINDS = {
    "native": lambda: DataLoader(rows(40), batch_size=4),
    "inline": lambda: DataLoader(rows(40), batch_size=4, workers=0),
    "python": lambda: DataLoader(Plain(rows(40)), batch_size=4),
    "transform": lambda: DataLoader(rows(40), batch_size=4, transform=transforms.negate),
    "process": lambda: DataLoader(
        rows(40), batch_size=4, transform=transforms.negate, transform_workers=1
    ),
}
"""


def start(code: str, *arguments: str, warn: str = "error") -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-W", warn, "-c", PRELUDE + code, *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(process: "subprocess.Popen[str]") -> tuple[int, str, str]:
    """Wait for a process; fail if it hangs."""
    try:
        out, err = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        pytest.fail(f"the process hangs:\n{out}\n{err}")
    return process.returncode, out, err


@pytest.mark.parametrize("kind", ["native", "inline", "python", "transform", "process"])
def test_interpreter_exits_with_a_running_loader(kind: str) -> None:
    code = """
if __name__ == "__main__":
    loader = KINDS[sys.argv[1]]()
    held = [next(loader) for _ in range(3)]
    print(len(held))
"""
    assert finish(start(code, kind)) == (0, "3\n", "")


@pytest.mark.parametrize("kind", ["native", "inline", "python", "transform", "process"])
def test_ctrl_c_during_a_loop(kind: str) -> None:
    code = """
if __name__ == "__main__":
    loader = KINDS[sys.argv[1]]()
    try:
        for number, batch in enumerate(loader):
            if number == 20:
                print("running", flush=True)
    except KeyboardInterrupt:
        print("interrupted after", loader.position > 80)
        loader.close()
        print(threading.active_count())
"""
    process = start(code, kind)
    assert process.stdout is not None
    assert process.stdout.readline() == "running\n"
    process.send_signal(signal.SIGINT)
    status, out, err = finish(process)
    # Ctrl-C interrupts the wait or the loop; in either case close() ends all threads.
    assert (status, out, err) == (0, "interrupted after True\n1\n", "")


@pytest.mark.parametrize("blocked", ["transform", "source", "process", "inline"])
def test_ctrl_c_during_a_wait(blocked: str) -> None:
    """No batch ever arrives: the consumer waits in `next` when Ctrl-C arrives."""
    code = """
relive.load.batches._CLOSE_S = 0.2
def hang(batch):
    print("waiting", flush=True)
    while True:  # a signal that arrives just before a wait does not end it
        time.sleep(0.05)
class Stuck(Plain):
    def gather(self, *args, **options):
        hang(None)
if __name__ == "__main__":
    loader = {
        "transform": lambda: DataLoader(rows(40), batch_size=4, workers=1, transform=hang),
        "inline": lambda: DataLoader(rows(40), batch_size=4, workers=0, transform=hang),
        "source": lambda: DataLoader(Stuck(rows(40)), batch_size=4, workers=1),
        "process": lambda: DataLoader(rows(40), batch_size=4, transform=transforms.print_and_hang,
                                      transform_workers=1),
    }[sys.argv[1]]()
    next(loader)
"""
    process = start(code, blocked, warn="ignore")
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    process.send_signal(signal.SIGINT)
    status, _, err = finish(process)
    assert status == -signal.SIGINT
    assert err.rstrip().endswith("KeyboardInterrupt")


def test_signal_just_before_a_wait() -> None:
    """It does not wake the thread that is about to sleep; `interrupt_main` wakes none either."""
    code = """
import _thread
relive.load.batches._CLOSE_S = 0.2
stuck = threading.Event()
def press():
    consumer = threading.main_thread().ident
    wait = relive.load.batches._Signal.wait.__code__
    while sys._current_frames()[consumer].f_code is not wait:
        time.sleep(0.001)
    _thread.interrupt_main()
if __name__ == "__main__":
    loader = DataLoader(rows(40), batch_size=4, workers=1, transform=lambda batch: stuck.wait())
    threading.Thread(target=press).start()
    try:
        next(loader)
    except KeyboardInterrupt:
        print("interrupted")
"""
    assert finish(start(code, warn="ignore")) == (0, "interrupted\n", "")


def test_handled_ctrl_c_keeps_the_processes_running() -> None:
    """A terminal sends Ctrl-C to all processes of the program."""
    code = """
taken = []
if __name__ == "__main__":
    signal.signal(signal.SIGINT, lambda *_: taken.append(True))
    loader = DataLoader(rows(40), batch_size=4, transform=transforms.pids, transform_workers=1)
    process = next(loader)["process"][0]
    print("running", flush=True)
    while not taken:
        next(loader)
    for _ in range(30):
        assert next(loader)["process"][0] == process
    loader.close()
    print("done")
"""
    process = start(code)
    assert process.stdout is not None
    assert process.stdout.readline() == "running\n"
    os.killpg(process.pid, signal.SIGINT)
    assert finish(process) == (0, "done\n", "")


@pytest.mark.parametrize("kind", ["native", "inline", "python", "transform", "process"])
@pytest.mark.parametrize("leave", ["exit", "_exit"])
def test_forked_child_leaves_the_loader_to_the_parent(kind: str, leave: str) -> None:
    code = """
if __name__ == "__main__":
    loader = KINDS[sys.argv[1]]()
    held = [next(loader) for _ in range(5)]
    before = held[0]["id"].tolist()
    child = os.fork()
    if child == 0:
        for _ in range(2):
            try:
                next(loader)
            except errors.ClosedError as error:
                assert error.hint
            else:
                os._exit(10)
        assert held[0]["id"].tolist() == before
        held.clear()
        loader.close()
        # A new loader works.
        own = DataLoader(rows(40), batch_size=4, epochs=1)
        assert len(list(own)) == 10
        del loader
        if sys.argv[2] == "exit":
            sys.exit(0)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    print(os.waitstatus_to_exitcode(status))
    expected = [batch.tolist() for batch in Sampler(40, 4).peek(60)]
    print([batch["id"].tolist() for batch in held] == expected[:5])
    print([next(loader)["id"].tolist() for _ in range(55)] == expected[5:])
    loader.close()
"""
    status, out, err = finish(start(code, kind, leave, warn="ignore"))
    assert (status, out, err) == (0, "0\nTrue\nTrue\n", "")


def test_closed_loader_works_after_a_fork() -> None:
    code = """
loader = DataLoader(rows(40), batch_size=4, epochs=1)
next(loader)
loader.close()
child = os.fork()
ids = [batch["id"].tolist() for batch in loader]
assert len(ids) == 9, ids
if child == 0:
    os._exit(0)
_, status = os.waitpid(child, 0)
print(os.waitstatus_to_exitcode(status))
"""
    assert finish(start(code, warn="ignore")) == (0, "0\n", "")


def test_fork_while_another_thread_starts_the_loader() -> None:
    code = """
starting, go = threading.Event(), threading.Event()
class Slow(Plain):
    def native_table(self):
        starting.set()
        go.wait()
loader = DataLoader(Slow(rows(40)), batch_size=4)
thread = threading.Thread(target=lambda: next(loader))
thread.start()
starting.wait()
child = os.fork()
if child == 0:
    go.set()
    loader.close()
    assert len(next(loader)["id"]) == 4
    loader.close()
    os._exit(0)
_, status = os.waitpid(child, 0)
print(os.waitstatus_to_exitcode(status))
go.set()
thread.join()
loader.close()
"""
    assert finish(start(code, warn="ignore")) == (0, "0\n", "")


def test_sources_gather_in_a_child_after_the_parent_used_threads() -> None:
    """Large gathers use threads that a forked child does not have."""
    code = """
source = relive.ArraySource(np.arange(4000 * 512).reshape(4000, 512), workers=4)
index = np.random.default_rng(0).integers(0, 4000, 2000)
expected = source.gather(index)["data"]
def check():
    for _ in range(5):
        assert np.array_equal(source.gather(index)["data"], expected)
stop = threading.Event()
def busy():
    while not stop.is_set():
        check()
threads = [threading.Thread(target=busy) for _ in range(2)]
for thread in threads: thread.start()
codes = []
for _ in range(4):
    child = os.fork()
    if child == 0:
        check()
        with DataLoader(source, batch_size=64) as loader:
            for _ in range(5): next(loader)
        os._exit(0)
    codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
stop.set()
for thread in threads: thread.join()
print(codes)
"""
    assert finish(start(code, warn="ignore")) == (0, "[0, 0, 0, 0]\n", "")


def test_processes_end_when_the_parent_is_killed() -> None:
    code = """
if __name__ == "__main__":
    loader = DataLoader(rows(40), batch_size=4, transform=transforms.pids, transform_workers=1)
    print(int(next(loader)["process"][0]), flush=True)
    threading.Event().wait()
"""
    process = start(code)
    assert process.stdout is not None
    worker = int(process.stdout.readline())
    process.kill()
    finish(process)
    deadline = time.monotonic() + 60
    while Path(f"/proc/{worker}").exists():
        if "Z" in Path(f"/proc/{worker}/stat").read_text().rsplit(")", 1)[1].split()[0]:
            break  # a zombie that its new parent has not collected yet
        assert time.monotonic() < deadline, "the process still runs"
        time.sleep(0.02)


SCRIPT = """
import multiprocessing, os, sys
import numpy as np
import relive
from transforms import double
if __name__ == "__main__":
    loader = relive.DataLoader(np.zeros(100), batch_size=4, transform=double, transform_workers=2)
    next(loader)
    print(*(child.pid for child in multiprocessing.active_children()), flush=True)
    while True:
        next(loader)
"""


def test_transform_processes_exit_when_the_parent_is_killed(tmp_path: Path) -> None:
    (tmp_path / "transforms.py").write_text("def double(batch):\n    return batch\n")
    (tmp_path / "main.py").write_text(SCRIPT)
    parent = subprocess.Popen(
        [sys.executable, "main.py"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    children = [Path("/proc") / pid for pid in parent.stdout.readline().split()]
    assert len(children) == 2
    parent.send_signal(signal.SIGKILL)
    # Reads until the last process that holds the pipe has exited.
    _, errors = parent.communicate(timeout=60)
    assert errors == ""
    deadline = time.monotonic() + 30
    while any(_runs(child) for child in children):
        assert time.monotonic() < deadline, "a child outlived its parent"
        time.sleep(0.05)


def _runs(process: Path) -> bool:
    try:
        return "Z" not in (process / "stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
