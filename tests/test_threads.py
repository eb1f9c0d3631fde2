"""Threads that work for a whole process."""

import multiprocessing
import subprocess
import sys
import threading

import pytest

from relive._threads import SharedThreads, cores


def where() -> tuple[int | None, str]:
    return threading.current_thread().native_id, threading.current_thread().name


def test_calls_run_on_few_threads() -> None:
    threads = SharedThreads("relive-test", most=1)
    found = {threads.submit(where).result() for _ in range(20)}
    ((thread, name),) = found
    assert thread != threading.get_native_id()
    assert name.startswith("relive-test")
    assert cores() >= 1


def test_errors_are_those_of_the_call() -> None:
    threads = SharedThreads("relive-test")
    with pytest.raises(ZeroDivisionError):
        threads.submit(lambda: 1 // 0).result()


def test_a_forked_process_starts_threads_of_its_own() -> None:
    threads = SharedThreads("relive-test", most=1)
    mine = threads.submit(where).result()
    receiver, sender = multiprocessing.Pipe(duplex=False)

    def work() -> None:
        sender.send(threads.submit(where).result())

    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    assert receiver.poll(30)
    assert receiver.recv() != mine
    child.join()


AT_EXIT = """
import atexit
from relive._threads import SharedThreads

threads = SharedThreads("relive-test")
assert threads.submit(int, "7").result() == 7
atexit.register(lambda: print(threads.submit(int, "8").result()))
"""


def test_calls_run_while_the_interpreter_exits() -> None:
    done = subprocess.run(
        [sys.executable, "-c", AT_EXIT], capture_output=True, text=True, check=True
    )
    assert done.stdout == "8\n"
    assert not done.stderr


CLOSED_LATE = """
import sys
from relive._interrupts import uninterrupted

class Late:
    def __del__(self):
        print(sys.is_finalizing(), uninterrupted(lambda: 8))

late = Late()
late.itself = late
"""


def test_work_that_must_not_be_interrupted_is_done_while_the_interpreter_is_finalizing() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CLOSED_LATE], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout == "True 8\n"
