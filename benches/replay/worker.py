"""The work of one peer, in this process or in a child with an interpreter of its own."""

from __future__ import annotations

import gc
import importlib
import json
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from benches.data import files_under
from benches.episodes.elsewhere import Here, There
from benches.machine import versions
from benches.replay.scenes import Scene

if TYPE_CHECKING:
    from collections.abc import Callable

    from benches.episodes.elsewhere import Contender
    from benches.peers.replay_peer import ReplayPeer

EPISODE = 1000
"""Steps of an episode of the runs that are written."""
SHORT = 50
"""Steps of the episode after the one that is loaded."""


@dataclass
class Worker:
    """Everything that can be asked of one peer; answers are plain values."""

    peer: ReplayPeer
    scene: Scene
    folder: Path
    episode: int = 0
    """Steps of an episode of the run that is loaded."""

    def versions(self) -> dict[str, str]:
        """The versions its figures belong to, where it runs."""
        return versions(self.peer.packages)

    def prepare(self, steps: int) -> None:
        """Write an episode of `steps` steps and a short one; check what is read of both."""
        short = min(steps, SHORT)
        self.episode = steps
        self._write(self._loaded, steps + short, steps)
        reader = self.peer.reader(self._loaded)
        for episode, first, count in ((0, 0, steps), (1, steps, short)):
            part = self._fewer(count)
            frames, observations = reader.arrays(episode, first, part)
            assert len(frames) == part
            self.scene.check(first, frames, observations)
        with suppress(NotImplementedError):
            wanted = [step.reward for step in self.scene.steps(steps, steps)]
            assert reader.rewards(reader.rows(0)) == wanted
        reader.close()

    def write(self, steps: int) -> dict[str, float]:
        """Write a run, close it and sync its files; count steps, seconds and bytes."""
        count = self._fewer(steps)
        root = self.folder / "written"
        seconds = self._write(root, count, EPISODE)
        size = sum(path.stat().st_size for path in files_under(root))
        shutil.rmtree(root)
        return {"steps": count, "seconds": seconds, "bytes": size}

    def load(self) -> dict[str, float]:
        """Open the run, and load the frames and observations of its first episode."""
        count = self._fewer(self.episode)
        gc.collect()
        begin = perf_counter()
        reader = self.peer.reader(self._loaded)
        opened = perf_counter()
        found = reader.arrays(0, 0, count)
        seconds = perf_counter() - opened
        del found
        reader.close()
        return {"steps": count, "seconds": seconds, "open_s": opened - begin}

    def query(self) -> dict[str, float]:
        """Query the rows of the first episode."""
        reader = self.peer.reader(self._loaded)
        gc.collect()
        begin = perf_counter()
        reader.rows(0)
        seconds = perf_counter() - begin
        reader.close()
        return {"steps": self.episode, "seconds": seconds}

    def close(self) -> None:
        """Remove what it wrote."""
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def _loaded(self) -> Path:
        return self.folder / "loaded"

    def _fewer(self, steps: int) -> int:
        return max(1, steps // self.peer.fewer)

    def _write(self, root: Path, count: int, per_episode: int) -> float:
        """Write a run to a new folder; return the seconds until it is on the disk."""
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir(parents=True)
        steps = self.scene.steps(count, per_episode)
        gc.collect()
        begin = perf_counter()
        writer = self.peer.writer(root, count)
        for step in steps:
            writer.step(step)
        writer.close()
        _sync(root)
        return perf_counter() - begin


def enter(peer: ReplayPeer, scene: Scene, data: Path, folder: Path) -> Contender:
    """Start the worker of a peer; the child reads the scene from the folder `data`."""
    if peer.python is None:
        return Here(peer.name, Worker(peer, scene, folder))  # type: ignore[arg-type]
    if not peer.python.exists():
        message = f"no {peer.python}; make it with: {peer.hint}"
        raise FileNotFoundError(message)
    kind = type(peer)
    task = [kind.__module__, kind.__name__, str(data), scene.name, str(folder)]
    child = subprocess.Popen(  # noqa: S603 - our own command
        [peer.python, "-m", "benches.replay.worker", *task],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    return There(peer.name, child)


def main() -> None:
    """The child: answer one line for each line that comes in."""
    name, kind, data, scene, folder = sys.argv[1:]
    peer: ReplayPeer = getattr(importlib.import_module(name), kind)()
    serve(lambda: Worker(peer, Scene.load(Path(data), scene), Path(folder)))


def serve(make: Callable[[], Any]) -> None:
    """Ask what `make` returns for whatever lines come in on stdin; answers go to stdout."""
    # Libraries print to stdout; answers go to a copy of it that only this function writes to.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    at_work = make()
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


def _sync(root: Path) -> None:
    """Wait until all files below `root` are on the disk."""
    for path in [*files_under(root), *(path for path in root.rglob("*") if path.is_dir()), root]:
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


if __name__ == "__main__":
    main()
