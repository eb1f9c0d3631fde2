"""A child process: imports what a peer needs, then does one thing and measures it."""

from __future__ import annotations

import gc
import importlib
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Any, NamedTuple

from benches.machine import versions
from benches.peers.publish_peer import Place, environment
from benches.publish.table import Sums

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benches.peers.publish_peer import PublishPeer
    from benches.publish.server import Counts, DelayedServer

TIMEOUT_S = 900
LINGER_S = 0.2
"""How long a child goes on after its answer: what it reads ahead then is counted by itself."""


class Measured(NamedTuple):
    """One measurement."""

    seconds: float
    processor_s: float
    answer: Any
    counts: Counts
    """Until the answer was there."""
    afterwards: Counts
    """From then until the process had ended: what it had begun to read ahead."""

    @property
    def requests(self) -> int:
        """Until the answer was there."""
        return self.counts.requests

    @property
    def received(self) -> int:
        """Bytes until the process had ended."""
        return self.counts.received + self.afterwards.received


def ask(
    peer: PublishPeer,
    server: DelayedServer,
    what: str,
    *,
    far: bool = True,
    scratch: Path | None = None,
    **given: Any,
) -> Measured:
    """Run one measurement in a new process; raise what went wrong.

    Without `far` it goes past the proxy. A `scratch` folder that is given is kept, with the
    caches in it; otherwise all caches are empty.
    """
    if peer.python is not None and not peer.python.exists():
        message = f"no {peer.python}; make it with: {peer.hint}"
        raise FileNotFoundError(message)
    folder = Path(tempfile.mkdtemp(prefix="relive-bench-")) if scratch is None else scratch
    place = Place(server.far if far else server.near, peer.bucket, folder)
    kind = type(peer)
    task = [kind.__module__, kind.__name__, dict(peer.given), *place[:2], str(folder)]
    child = subprocess.Popen(  # noqa: S603 - our own command
        [peer.python or sys.executable, "-m", "benches.publish.worker", json.dumps(task)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=(folder / "stderr").open("wb"),
        text=True,
        env=os.environ | environment(place),
    )
    try:
        assert child.stdin is not None
        assert child.stdout is not None
        _answer(child.stdout.readline(), folder)
        server.take()
        child.stdin.write(json.dumps([what, given]) + "\n")
        child.stdin.flush()
        seconds, processor_s, answer = _answer(child.stdout.readline(), folder)
        counts = server.take()
        child.stdin.close()
        child.wait(TIMEOUT_S)
        return Measured(seconds, processor_s, answer, counts, server.take())
    finally:
        child.kill()
        child.wait()
        if scratch is None:
            shutil.rmtree(folder, ignore_errors=True)


def _answer(line: str, folder: Path) -> Any:
    if not line:
        last = (folder / "stderr").read_text(errors="replace").strip().splitlines()[-1:]
        message = f"the child ended without an answer: {' '.join(last)}"
        raise RuntimeError(message)
    kind, answer = json.loads(line)
    if kind == "lacking":
        raise NotImplementedError(answer)
    if kind == "failed":
        raise RuntimeError(answer)
    return answer


class Work:
    """What a child can be asked for; `clock` runs around what counts."""

    def __init__(self, peer: Any, place: Place, clock: Clock) -> None:
        self.peer = peer
        self.place = place
        self.clock = clock

    def versions(self) -> dict[str, str]:
        """The versions its figures belong to."""
        return versions(self.peer.packages)

    def publish(self, files: list[str]) -> None:
        """Put the table on the server."""
        self.peer.publish(self.place, [Path(path) for path in files])

    def read(self, how: str, given: list[Any], *, rows: int = 0) -> int:
        """Read and let go of the batches: `rows` rows, or all; return how many there were."""
        return sum(self.peer.count(batch) for batch in self._batches(how, given, rows))

    def check(self, how: str, given: list[Any], *, rows: int = 0) -> Sums:
        """The sums of the same batches."""
        found = [self.peer.sums(batch) for batch in self._batches(how, given, rows)]
        return Sums(*(sum(each) for each in zip(*found, strict=True)))

    def call(self, how: str, given: dict[str, Any]) -> Any:
        """Any other method of the peer."""
        return getattr(self.peer, how)(self.place, **given)

    def _batches(self, how: str, given: list[Any], rows: int) -> Iterator[Any]:
        count = 0
        # What a peer reads ahead goes on until the process ends, as it does in a training loop.
        self.batches = getattr(self.peer, how)(self.place, *given)
        for batch in self.batches:
            yield batch
            count += self.peer.count(batch)
            if rows and count >= rows:
                return


class Clock:
    """Seconds, and processor seconds of this process and its children."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Begin again: what was before does not count."""
        self._begin = perf_counter(), _processor_s()

    def read(self) -> tuple[float, float]:
        """Both, until now."""
        begin, processor = self._begin
        return perf_counter() - begin, _processor_s() - processor


def _processor_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def main() -> None:
    """The child: say that everything is imported, do what is asked, and answer in one line."""
    # Libraries print to stdout; answers go to a copy of it that only this function writes to.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(kind: str, value: Any) -> None:
        answers.write(json.dumps([kind, value]) + "\n")
        answers.flush()

    name, kind, made, endpoint, bucket, scratch = json.loads(sys.argv[1])
    for folder in ("home", "cache", "data"):
        (Path(scratch) / folder).mkdir(parents=True, exist_ok=True)
    try:
        peer: PublishPeer = getattr(importlib.import_module(name), kind)(**made)
        peer.load()
    except Exception as error:  # noqa: BLE001 - whatever it is, the parent reports it
        answer("failed", f"{type(error).__name__}: {error}")
        return
    answer("ok", None)
    what, given = json.loads(sys.stdin.readline())
    clock = Clock()
    work = Work(peer, Place(endpoint, bucket, Path(scratch)), clock)
    gc.collect()
    clock.restart()
    try:
        value = getattr(work, what)(**given)
        answer("ok", [*clock.read(), value])
    except NotImplementedError as error:
        answer("lacking", str(error))
    except Exception as error:  # noqa: BLE001 - whatever it is, the parent reports it
        answer("failed", f"{type(error).__name__}: {error}")
    sys.stdin.read()
    sleep(LINGER_S)
    # Threads that still read ahead must not delay the end.
    os._exit(0)


if __name__ == "__main__":
    main()
