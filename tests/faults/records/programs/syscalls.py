"""The system calls of a program, as strace saw them, and programs stopped at one of them.

Calls are known by their name and a path, not by their thread: a store is written by several
threads, and strace counts for each of them. A file has one writer, so its calls keep their order.
"""

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[4]

CHANGING: Final = (
    *("write", "pwrite64", "writev", "pwritev", "pwritev2", "copy_file_range", "sendfile"),
    *("ftruncate", "truncate", "fallocate", "fsync", "fdatasync", "sync_file_range"),
    *("rename", "renameat", "renameat2", "link", "linkat", "symlink", "symlinkat"),
    *("unlink", "unlinkat", "rmdir", "mkdir", "mkdirat"),
)
# What else has to be seen to know what a file holds.
SEEN: Final = ("open", "openat", "creat", "lseek", "mmap", *CHANGING)

_LINE: Final = re.compile(r"([\d.]+) (\w+)\((.*)\) += (\S+).*<([\d.]+)>$")
_FD: Final = re.compile(r"(-?\w+)<(.*)>(?:\(deleted\))?")


class Call(NamedTuple):
    """One system call: when it began and ended, in nanoseconds, and what it was asked."""

    start: int
    end: int
    name: str
    args: tuple[str, ...]
    result: str

    def fd(self, place: int) -> tuple[str, str]:
        """Give the number of an argument that is a descriptor, and the path behind it."""
        return described(self.args[place])

    def text(self, place: int) -> bytes:
        """Give an argument that is a string."""
        return unescaped(self.args[place].strip('"'))

    def path(self, place: int) -> str:
        """Give an argument that is a path; only whole paths are ever used."""
        path = os.fsdecode(self.text(place))
        return path if path.startswith("/") else ""

    def paths(self) -> list[str]:
        """Every path that it is about."""
        found = []
        for place, argument in enumerate(self.args):
            if argument.startswith('"') and "write" not in self.name:
                found += [path] if (path := self.path(place)) else []
            elif match := _FD.fullmatch(argument):
                found += [os.fsdecode(unescaped(match[2]))] if match[1] != "AT_FDCWD" else []
        return found

    @property
    def failed(self) -> bool:
        """Whether it did nothing."""
        return self.result.startswith(("-", "?"))


class Place(NamedTuple):
    """A call that a program makes: the how manieth of its name about a path."""

    name: str
    path: str
    number: int


def described(word: str) -> tuple[str, str]:
    """Take `3</a/path>` apart."""
    match = _FD.fullmatch(word)
    assert match, word
    return match[1], os.fsdecode(unescaped(match[2]))


def unescaped(text: str) -> bytes:
    r"""Give the bytes of `\x61\x62`, which is how strace was told to write all strings."""
    return bytes.fromhex(text.replace("\\x", ""))


def traced(
    program: list[str], logs: Path, *, killed_at: tuple[str, int] | None = None
) -> tuple[subprocess.CompletedProcess[str], list[Call]]:
    """Run a program to its end, and give its calls in the order in which they began.

    The end may be the how manieth call of a name, which one thread only should make.
    """
    logs.mkdir()
    # With a filter of the kernel, which is faster, strace 6.1 does not inject signals.
    options = [
        *([] if killed_at else ["--seccomp-bpf"]),
        *("-ff", "-qq", "-y", "-xx", "-s", str(1 << 27), "-e", "signal=none"),
        *("--absolute-timestamps=format:unix,precision:ns", "--syscall-times=ns"),
        *("-o", str(logs / "of"), "-e", "trace=" + ",".join(f"?{call}" for call in SEEN)),
    ]
    if killed_at:
        name, number = killed_at
        options += ["-e", f"inject={name}:signal=KILL:when={number}"]
    done = subprocess.run(
        ["strace", *options, *program], capture_output=True, text=True, env=environment()
    )
    calls = sorted(call for log in logs.iterdir() for call in parsed(log))
    return done, calls


def parsed(log: Path) -> Iterator[Call]:
    """Give the calls of one thread."""
    for line in log.read_text().splitlines():
        if match := _LINE.fullmatch(line):
            begun, name, args, result, taken = match.groups()
            start = _nanoseconds(begun)
            yield Call(start, start + _nanoseconds(taken), name, tuple(args.split(", ")), result)
        else:
            # What the end of the process cut off was not done.
            cut_off = r"(exited with|killed by).*|= \?|<(unfinished|detached) .*>$"
            assert re.search(cut_off, line), line[:300]


def _nanoseconds(seconds: str) -> int:
    whole, part = seconds.split(".")
    return int(whole) * 10**9 + int(part.ljust(9, "0"))


def places(calls: list[Call], root: Path, names: tuple[str, ...] = CHANGING) -> list[Place]:
    """Say where a program can be stopped: at every call of these names about a path in `root`."""
    seen: Counter[tuple[str, str]] = Counter()
    found = []
    for call in calls:
        inside = [path for path in call.paths() if Path(path).is_relative_to(root)]
        if inside and call.name in names:
            # strace looks at the first path of a call that has two.
            seen[call.name, inside[0]] += 1
            found.append(Place(call.name, inside[0], seen[call.name, inside[0]]))
    return found


def stopped(
    program: list[str], place: Place, how: str, log: Path
) -> tuple[subprocess.CompletedProcess[str], bool]:
    """Run a program in which `how` happens at a place: `signal=KILL`, or `error=ENOSPC`.

    Gives whether it happened: which thread does what varies, and strace counts for each.
    """
    options = [
        *(["--seccomp-bpf"] if how.startswith("error") else []),
        *("-f", "-qq", "-o", str(log), "-P", place.path, "-e", "signal=none"),
        *("-e", f"trace={place.name}", "-e", f"inject={place.name}:{how}:when={place.number}"),
    ]
    done = subprocess.run(
        ["strace", *options, *program], capture_output=True, text=True, env=environment()
    )
    happened = done.returncode == -9 or "(INJECTED)" in log.read_text()
    log.unlink()
    return done, happened


def environment() -> dict[str, str]:
    """Give what a program of the tests needs; no bytecode is written, so that its calls stay."""
    paths = os.pathsep.join([str(ROOT), *_python_path()])
    return {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": paths}


def _python_path() -> list[str]:
    given = os.environ.get("PYTHONPATH")
    return [given] if given else []


def python(script: Path, *args: str | Path | int) -> list[str]:
    """Give the command line of a script."""
    return [sys.executable, str(script), *map(str, args)]
