"""Processes that have everything imported, watched by strace, and stopped at one of their calls.

strace begins to look at a process that waits, so that a run takes as long as the act itself. The
calls that can be stopped are known by their name and path; see `records.programs.syscalls`.
"""

import multiprocessing
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from tests.faults.records.programs.syscalls import CHANGING, Call, Place, environment, parsed

OPENING: Final = ("open", "openat", "creat")
_TRACED_S: Final = 20.0


class Play(Protocol):
    """A function that does an act in a folder, and writes lines to a log.

    It calls `wait` where it may be stopped from then on.
    """

    def __call__(self, act: str, folder: Path, log: Path, wait: Callable[[], None]) -> None: ...


class Done(NamedTuple):
    """How a process ended: its exit code, what it said, and whether it was stopped as wanted."""

    code: int | None
    said: list[list[str]]
    happened: bool

    def last(self, word: str) -> list[str] | None:
        """Give the last line that began with a word, without it."""
        return next((line[1:] for line in reversed(self.said) if line[0] == word), None)

    def number(self, word: str) -> int:
        """Give the number in the last line that began with a word; 0 where none did."""
        line = self.last(word)
        return int(line[0]) if line else 0

    def all(self, word: str) -> list[str]:
        """Give what all lines say that began with a word."""
        return [line[1] for line in self.said if line[0] == word]


def makes(call: Call) -> bool:
    """Check whether a call changes a file or a name: opening one does, if it makes it."""
    is_open = call.name in OPENING
    return not is_open or "O_CREAT" in str(call.args) or "O_TRUNC" in str(call.args)


class Program(NamedTuple):
    """A program whose acts are stopped."""

    play: Play
    preload: list[str]
    """The modules that it needs."""
    names: tuple[str, ...] = (*OPENING, *CHANGING)
    """The calls at which it is stopped."""
    is_chosen: Callable[[Call], bool] = makes
    """Which calls of these names are meant."""
    path_of: Callable[[str, int], str] = lambda path, _: path
    """The path of a place in the process of a number, as paths may have such numbers."""

    def places_of(self, act: str, folder: Path, logs: Path) -> tuple[Done, list[Place]]:
        """Let an act come to its end, and give the calls at which it can be stopped."""
        logs.mkdir()
        options = [
            *("-ff", "-y", "-xx", "-s", "1000", "-o", str(logs / "of"), "-e", "signal=none"),
            *("--absolute-timestamps=format:unix,precision:ns", "--syscall-times=ns"),
            *("-e", "trace=" + ",".join(f"?{call}" for call in self.names)),
        ]
        done = self._run(act, folder, "said", lambda pid, go: _traced(pid, options, go))
        places = [place for log in logs.iterdir() for place in self._chosen(parsed(log), folder)]
        shutil.rmtree(logs)
        return done, list(dict.fromkeys(place for _, place in sorted(places)))

    def run(
        self,
        act: str,
        folder: Path,
        place: Place | None = None,
        how: str = "",
        *,
        alone: str = "said",
    ) -> Done:
        """Do an act in which `how` happens at a place: `signal=KILL`, or `error=ENOSPC`.

        `alone` is the name of the log.
        """
        if place is None:
            return self._run(act, folder, alone, None)
        log = folder.with_name("strace")
        how_many = f"{place.name}:{how}:when={place.number}"
        options = ["-f", "-o", str(log), "-e", "signal=none", "-e", f"trace={place.name}"]
        options += ["-e", f"inject={how_many}"]

        def watch(pid: int, go: Callable[[], None]) -> None:
            _traced(pid, [*options, "-P", self.path_of(place.path, pid)], go)

        done = self._run(act, folder, alone, watch)
        happened = done.code == -9 or "(INJECTED)" in log.read_text()
        log.unlink()
        return done._replace(happened=happened)

    def _chosen(self, calls: Iterator[Call], folder: Path) -> Iterator[tuple[int, Place]]:
        """Give when a thread makes the chosen calls, and the places: strace counts so."""
        seen: Counter[tuple[str, str]] = Counter()
        for call in calls:
            inside = [path for path in call.paths() if Path(path).is_relative_to(folder)]
            if not inside:
                continue
            seen[call.name, inside[0]] += 1
            if self.is_chosen(call) and not call.failed:
                yield call.start, Place(call.name, inside[0], seen[call.name, inside[0]])

    def _run(self, act: str, folder: Path, name: str, watch: "Watch | None") -> Done:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(self.preload)
        ours, theirs = context.Pipe()
        log = folder.with_name(name)
        process = context.Process(target=_child, args=(self.play, act, folder, log, theirs))
        process.start()
        theirs.close()
        pid = process.pid
        assert pid is not None
        assert ours.recv() == "ready"
        if watch is None:
            ours.send("go")
        else:
            watch(pid, lambda: ours.send("go"))
        process.join()
        ours.close()
        done = Done(process.exitcode, said(log), happened=False)
        process.close()
        log.unlink(missing_ok=True)
        return done


Watch = Callable[[int, Callable[[], None]], None]


def said(log: Path) -> list[list[str]]:
    """Give the words of each line."""
    if not log.exists():
        return []
    return [line.split() for line in log.read_text().splitlines()]


def _child(play: Play, act: str, folder: Path, log: Path, pipe: Connection) -> None:
    def wait() -> None:
        pipe.send("ready")
        pipe.recv()

    play(act, folder, log, wait)


def _traced(pid: int, options: list[str], go: Callable[[], None]) -> None:
    """Have strace look at a process until it ends, which goes on when it does."""
    command = ["strace", "-qq", *options, "-p", str(pid)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, env=environment()) as tracer:
        try:
            _until_traced(pid, tracer)
        finally:
            go()
        _, trouble = tracer.communicate()
        assert tracer.returncode in {0, -9}, (tracer.returncode, trouble)


def _until_traced(pid: int, tracer: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + _TRACED_S
    while not _is_traced(pid, tracer.pid):
        assert tracer.poll() is None, tracer.returncode
        assert time.monotonic() < end, "strace does not look at the process"
        time.sleep(0.002)


def _is_traced(pid: int, tracer: int) -> bool:
    """Check whether strace looks at all threads of a process."""
    wanted = f"TracerPid:\t{tracer}\n"
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
        return all(wanted in (thread / "status").read_text() for thread in threads)
    except (FileNotFoundError, ProcessLookupError):  # a thread ended meanwhile
        return False
