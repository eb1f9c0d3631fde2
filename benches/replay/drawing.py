"""The work of one buffer, in a process of its own, so that its memory is known."""

from __future__ import annotations

import gc
import importlib
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from benches.data import files_under
from benches.episodes.elsewhere import There
from benches.machine import versions
from benches.pagecache import evict, resident_share
from benches.peers import label
from benches.replay.scenes import Scene
from benches.replay.stacks import Stacks
from benches.replay.worker import serve

if TYPE_CHECKING:
    from benches.peers import Setting
    from benches.peers.buffer_peer import Buffer, BufferPeer

CHECKED = 3
WARM_S = 1.0
TRIAL_S = 0.4
COLD_BATCHES = 256
COLD_S = 3.0


@dataclass
class Drawing:
    """Everything that can be asked of one buffer; answers are plain values."""

    peer: BufferPeer
    stacks: Stacks
    folder: Path
    keeps: bool
    _buffer: Buffer = field(init=False)

    def versions(self) -> dict[str, str]:
        """The versions its figures belong to, where it runs."""
        return versions(self.peer.packages)

    def fill(self, steps: int) -> dict[str, float | str]:
        """Add so many steps, check what is drawn, and find the fastest setting."""
        if not self.keeps:
            shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        before = _resident()
        self._buffer = buffer = self.peer.buffer(self.folder, steps, self.stacks.shape)
        begin = perf_counter()
        for block in () if buffer.is_filled else self.stacks.blocks(steps):
            buffer.add(block)
        buffer.complete()
        seconds = perf_counter() - begin
        rates: dict[str, float] = {}
        best: tuple[float, Setting] | None = None
        for setting in buffer.settings():
            buffer.use(setting)
            self._draw(TRIAL_S)
            rate = self._draw(TRIAL_S)
            rates[label(setting)] = rate
            if best is None or rate > best[0]:
                best = rate, setting
        assert best is not None
        buffer.use(best[1])
        for _ in range(CHECKED):
            self._check()
        self._draw(WARM_S)
        gc.collect()
        now = _resident()
        return {
            "fill_s": seconds,
            "setting": label(best[1]),
            "array_bytes": buffer.array_bytes(),
            "disk_bytes": sum(path.stat().st_size for path in files_under(self.folder)),
            "private_bytes": now["RssAnon"] - before["RssAnon"],
            "mapped_bytes": now["RssFile"] + now["RssShmem"],
        }

    def draw(self, seconds: float) -> dict[str, float]:
        """Draw for so long, after what is ready; count batches."""
        buffer = self._buffer
        for _ in range(buffer.ahead):
            buffer.draw()
        begin = perf_counter()
        count, now = 0, begin
        while now - begin < seconds:
            buffer.draw()
            count += 1
            now = perf_counter()
        return {"steps": count, "seconds": now - begin}

    def cold(self) -> dict[str, float]:
        """Empty the page cache of its files, open them again, and draw."""
        buffer = self._buffer
        files = buffer.files()
        if not files:
            buffer.reopen()  # says that there are none
        buffer.close()
        gc.collect()  # a map that is still alive would hold its pages
        evict(files)
        left = resident_share(files)
        begin = perf_counter()
        buffer.reopen()
        buffer.draw()
        first = now = perf_counter()
        count = 0
        while count < COLD_BATCHES and now - first < COLD_S:
            buffer.draw()
            count += 1
            now = perf_counter()
        return {"first_s": first - begin, "steps": count, "seconds": now - first, "left": left}

    def close(self) -> None:
        """Let go of its files, and remove them unless they are kept."""
        self._buffer.close()
        if not self.keeps:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _check(self) -> None:
        drawn = self._buffer.drawn(self._buffer.draw())
        assert len(drawn.numbers)
        self.stacks.check(drawn.numbers, drawn.observation, drawn.next_observation)

    def _draw(self, seconds: float) -> float:
        done = self.draw(seconds)
        return done["steps"] / done["seconds"]


def enter(
    peer: BufferPeer, scene: str, axis: str, data: Path, folder: Path, *, keeps: bool
) -> There:
    """Start the child of a peer; it reads the scene from the folder `data`."""
    python = peer.python or Path(sys.executable)
    if not python.exists():
        message = f"no {python}; make it with: {peer.hint}"
        raise FileNotFoundError(message)
    kind = type(peer)
    task = [kind.__module__, kind.__name__, peer.kind, scene, axis, str(data), str(folder)]
    child = subprocess.Popen(  # noqa: S603 - our own command
        [python, "-m", "benches.replay.drawing", *task, *(["keep"] if keeps else [])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    return There(peer.name, child)


def main() -> None:
    """The child: answer one line for each line that comes in."""
    name, kind, given, scene, axis, data, folder, *keeps = sys.argv[1:]
    peer: BufferPeer = getattr(importlib.import_module(name), kind)(given)

    def drawing() -> Drawing:
        planes = Scene.load(Path(data), scene).planes
        return Drawing(peer, Stacks(planes, axis), Path(folder), bool(keeps))

    serve(drawing)


def _resident() -> dict[str, int]:
    """The resident bytes of this process, by kind."""
    found: dict[str, int] = {}
    with Path("/proc/self/status").open(encoding="ascii") as lines:
        for line in lines:
            name, _, value = line.partition(":")
            if name.startswith("Rss"):
                found[name] = int(value.split()[0]) << 10
    return found


if __name__ == "__main__":
    main()
