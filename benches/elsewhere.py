"""Peers whose pins clash with ours, timed in an interpreter of their own.

The parent asks and the child delivers, so that rounds alternate as they do for
everyone else; the clock runs in the child, around the same loop.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, ClassVar

from benches.data import Case
from benches.peers import Peer, Setting, Stream

if TYPE_CHECKING:
    from collections.abc import Sequence

PYTHON = Path(".venv-peers/bin/python")
HINT = "python -m venv .venv-peers; .venv-peers/bin/pip install -r benches/elsewhere.txt"


@dataclass(frozen=True)
class RemoteStream(Stream):
    """A stream whose batches stay in the child; only times come back."""

    ask: IO[str] | None = None
    answers: IO[str] | None = None

    def timed(self, count: int) -> float:
        """Seconds that `count` batches took over there."""
        return float(_exchange(self, count))


class Elsewhere(Peer):
    """`peer`, run by the interpreter of `.venv-peers`."""

    packages: ClassVar[tuple[str, ...]] = ()

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.name = peer.name

    @property
    def family(self) -> str:  # type: ignore[override]
        """The family of the peer it stands for."""
        return self.peer.family

    def settings(self, case: Case) -> Sequence[Setting]:
        """Those of the peer."""
        return self.peer.settings(case)

    def files(self, case: Case) -> list[Path]:
        """Those of the peer."""
        return self.peer.files(case)

    def prepare(self, case: Case) -> None:
        """As the peer does; whatever it writes is for the child to read."""
        self.peer.prepare(case)

    def open(self, case: Case, setting: Setting) -> Stream:
        """Start the child and wait until its first batches have been checked."""
        if not PYTHON.exists():
            message = f"no {PYTHON}; make it with: {HINT}"
            raise FileNotFoundError(message)
        kind = type(self.peer)
        task = {
            "module": kind.__module__,
            "peer": kind.__name__,
            "case": {**asdict(case), "folder": str(case.folder)},
            "setting": dict(setting),
        }
        child = subprocess.Popen(  # noqa: S603 - our own command
            [PYTHON, "-m", "benches.elsewhere", json.dumps(task)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

        def close() -> None:
            child.kill()
            child.wait()

        stream = RemoteStream(iter(()), None, close=close, ask=child.stdin, answers=child.stdout)
        try:
            ahead = int(_exchange(stream, 0))
        except BaseException:
            close()
            raise
        return RemoteStream(
            iter(()), None, ahead=ahead, close=close, ask=child.stdin, answers=child.stdout
        )


def _exchange(stream: RemoteStream, count: int) -> str:
    """Ask for `count` batches (0: for how many are held ready); give the answer."""
    if stream.ask is None or stream.answers is None:
        message = "the child has no pipes"
        raise RuntimeError(message)
    stream.ask.write(f"{count}\n")
    stream.ask.flush()
    kind, _, rest = stream.answers.readline().strip().partition(" ")
    if kind != "ok":
        raise RuntimeError(rest or "the child ended without a word")
    return rest


def main() -> None:
    """The child: open, check, then answer one line for each line that comes in."""
    task: dict[str, Any] = json.loads(sys.argv[1])
    case = Case(**{**task["case"], "folder": Path(task["case"]["folder"])})
    peer = getattr(importlib.import_module(task["module"]), task["peer"])()
    try:
        stream: Stream = peer.open(case, task["setting"])
        stream.check(case)
        for line in sys.stdin:
            count = int(line)
            answer = stream.timed(count) if count else stream.ahead
            sys.stdout.write(f"ok {answer}\n")
            sys.stdout.flush()
    except Exception as error:  # noqa: BLE001 - whatever it is, the parent reports it
        sys.stdout.write(f"failed {type(error).__name__}: {error}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
