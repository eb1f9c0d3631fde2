"""Contenders as the contest sees them: in this process, or in a child with its own packages.

The contest asks one contender at a time, so that those elsewhere take turns like everyone.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from benches.episodes.robot import Robot
from benches.episodes.worker import Worker, worker

if TYPE_CHECKING:
    from benches.peers.episode_peer import EpisodePeer


class Contender(Protocol):
    """A library at work."""

    @property
    def name(self) -> str:
        """What tables call it."""

    def call(self, what: str, **given: Any) -> Any:
        """Ask its worker to do something; raise what went wrong."""

    def close(self) -> None:
        """Let go of everything."""


@dataclass
class Here:
    """A contender in this process."""

    name: str
    worker: Worker

    def call(self, what: str, **given: Any) -> Any:
        """Call the worker."""
        return getattr(self.worker, what)(**given)

    def close(self) -> None:
        """Close its files."""
        self.worker.close()


@dataclass
class There:
    """A contender in a child process with an interpreter of its own."""

    name: str
    child: subprocess.Popen[str]

    def call(self, what: str, **given: Any) -> Any:
        """Send the call and wait for the answer."""
        assert self.child.stdin is not None
        assert self.child.stdout is not None
        self.child.stdin.write(json.dumps([what, given]) + "\n")
        self.child.stdin.flush()
        line = self.child.stdout.readline()
        kind, answer = json.loads(line) if line else ("failed", "the child ended without a word")
        if kind == "lacking":
            raise NotImplementedError(answer)
        if kind == "failed":
            raise RuntimeError(answer)
        return answer

    def close(self) -> None:
        """End the child."""
        self.child.kill()
        self.child.wait()


def enter(peer: EpisodePeer, robot: Robot, rows: int, folder: Path) -> Contender:
    """Start the worker of `peer`, wherever it has to run."""
    if peer.python is None:
        return Here(peer.name, worker(peer, robot, rows, folder))
    if not peer.python.exists():
        message = f"no {peer.python}; make it with: {peer.hint}"
        raise FileNotFoundError(message)
    kind = type(peer)
    task = {
        "module": kind.__module__,
        "peer": kind.__name__,
        "robot": [str(robot.folder), robot.seconds, robot.seed],
        "rows": rows,
        "folder": str(folder),
    }
    child = subprocess.Popen(  # noqa: S603 - our own command
        [peer.python, "-m", "benches.episodes.elsewhere", json.dumps(task)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ | peer.environment(folder / "libraries"),
    )
    return There(peer.name, child)


def main() -> None:
    """The child: answer one line for each line that comes in."""
    # Libraries print what they like; answers go where nobody else writes.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    task: dict[str, Any] = json.loads(sys.argv[1])
    peer: EpisodePeer = getattr(importlib.import_module(task["module"]), task["peer"])()
    folder, seconds, seed = task["robot"]
    at_work = worker(peer, Robot(Path(folder), seconds, seed), task["rows"], Path(task["folder"]))
    for line in sys.stdin:
        what, given = json.loads(line)
        try:
            answer = ["ok", getattr(at_work, what)(**given)]
        except NotImplementedError as error:
            answer = ["lacking", str(error)]
        except Exception as error:  # noqa: BLE001 - whatever it is, the parent reports it
            answer = ["failed", f"{type(error).__name__}: {error}"]
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
