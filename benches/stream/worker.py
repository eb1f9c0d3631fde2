"""Child processes, one for each rank: a peer in each, asked one thing after the other."""

from __future__ import annotations

import base64
import contextlib
import importlib
import json
import os
import pickle
import select
import selectors
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
from itertools import islice
from pathlib import Path
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from benches.machine import versions
from benches.peers.publish_peer import Place, environment
from benches.peers.stream_peer import Rank
from benches.publish.table import Sums

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

    from benches.peers import Setting
    from benches.peers.stream_peer import StreamPeer
    from benches.publish.server import Counts, DelayedServer

LIMIT_S = 90.0
"""How long a session may take, from the start of its processes to its last answer."""
EXIT_S = 2.0
"""How long a child may take to end."""
KILLED_AFTER_S = EXIT_S + 2.0
"""How long all of them may take, before what is left is killed."""


class Turn(NamedTuple):
    """What one rank did: batches of an epoch, and when. Clocks of all processes are the same."""

    begin: float
    first: float
    """When the first batch was there."""
    end: float
    rows: int
    batches: int
    rss: int
    """Resident bytes of the process at the end; workers are not counted."""
    sums: list[Any] | None
    mixing: list[float] | None
    """Row groups in a batch on average, and the share of rows that follow their neighbour."""


class Epoch(NamedTuple):
    """What all ranks did together."""

    turns: list[Turn]
    counts: Counts

    @property
    def seconds(self) -> float:
        """From the start of the first rank to the end of the last."""
        return max(each.end for each in self.turns) - min(each.begin for each in self.turns)

    @property
    def first_s(self) -> float:
        """Until the slowest rank had its first batch."""
        return max(each.first - each.begin for each in self.turns)

    @property
    def rows(self) -> int:
        """Rows of all ranks."""
        return sum(each.rows for each in self.turns)

    @property
    def rate(self) -> float:
        """Rows per second."""
        return self.rows / self.seconds

    @property
    def mixing(self) -> tuple[float, float]:
        """Row groups in a batch, and the share of rows that follow their neighbour in the table."""
        found = [each.mixing for each in self.turns if each.mixing is not None]
        return statistics.fmean(each[0] for each in found), statistics.fmean(
            each[1] for each in found
        )

    @property
    def sums(self) -> Sums:
        """Sums of all ranks."""
        return add(Sums(*each.sums) for each in self.turns if each.sums is not None)


def add(found: Any) -> Sums:
    """All of them together."""
    return Sums(*(sum(each) for each in zip(*found, strict=True)))


class Session:
    """A peer in `world` processes, until the end of the `with` block.

    Without `far` it goes past the proxy. A `scratch` folder that is given is kept, with the
    caches in it; otherwise all caches are empty. Answers that are not there after `limit_s` raise
    `TimeoutError`. At the end of the block no process of the session is left, nor any that one of
    them started: they are one process group.
    """

    def __init__(
        self,
        peer: StreamPeer,
        server: DelayedServer,
        *,
        world: int = 1,
        far: bool = True,
        scratch: Path | None = None,
        variables: Mapping[str, str] | None = None,
        limit_s: float = LIMIT_S,
    ) -> None:
        if peer.python is not None and not peer.python.exists():
            message = f"no {peer.python}; make it with: {peer.hint}"
            raise FileNotFoundError(message)
        self.peer = peer
        self.server = server
        self.world = world
        self.scratch = (
            Path(tempfile.mkdtemp(prefix="relive-bench-")) if scratch is None else scratch
        )
        self._kept = scratch is not None
        self._place = Place(server.far if far else server.near, peer.bucket, self.scratch)
        self._variables = dict(variables or {})
        self._launcher: subprocess.Popen[bytes] | None = None
        self._pipes: list[tuple[int, int]] = []
        self._limit_s = limit_s
        self._deadline = 0.0

    def __enter__(self) -> Self:
        kind = type(self.peer)
        task = [kind.__module__, kind.__name__, dict(self.peer.given), *self._place]
        command = [self.peer.python or sys.executable, "-m", "benches.stream.launcher"]
        ranks = []
        port = _free_port()
        self._deadline = monotonic() + self._limit_s
        try:
            for rank in range(self.world):
                (asked, to), (back, answers) = os.pipe(), os.pipe()
                self._pipes.append((to, back))
                errors = os.open(self._stderr(rank), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
                ranks.append(([asked, answers, errors], self._variables_of(rank, port)))
            files = [file for each, _ in ranks for file in each]
            try:
                self._launcher = subprocess.Popen(  # noqa: S603 - our own command
                    [*command, json.dumps(task, default=str), json.dumps(ranks)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=files[2],
                    env=os.environ | environment(self._place) | self._variables,
                    pass_fds=files,
                    start_new_session=True,
                )
            finally:
                for file in files:
                    os.close(file)
            self._answers()
        except BaseException as error:
            self.__exit__(error)
            raise
        return self

    def __exit__(self, *error: object) -> None:
        for to, _ in self._pipes:
            os.close(to)
        if self._launcher is not None:
            end_group(self._launcher, 0.0 if any(error) else KILLED_AFTER_S)
        for _, back in self._pipes:
            os.close(back)
        if not self._kept:
            shutil.rmtree(self.scratch, ignore_errors=True)

    def ask(self, what: str, **given: Any) -> list[Any]:
        """Ask all ranks for the same at the same time; their answers in order."""
        line = json.dumps([what, given]).encode() + b"\n"
        for to, _ in self._pipes:
            # One that has ended says so by the end of its output.
            with contextlib.suppress(BrokenPipeError):
                os.write(to, line)
        return self._answers()

    def open(self, setting: Setting, batch_size: int) -> None:
        """Tell all ranks how the table will be opened; the first epoch does it."""
        self.ask("prepare", setting=dict(setting), batch_size=batch_size)

    def epoch(self, number: int, **given: Any) -> Epoch:
        """Let all ranks go through an epoch, or through what `given` says of it."""
        self.server.take()
        turns = [Turn(*each) for each in self.ask("epoch", number=number, **given)]
        return Epoch(turns, self.server.take())

    def _answers(self) -> list[Any]:
        """What all ranks answer; raises the first error at once, as the others may wait for it."""
        received = [b""] * self.world
        answers: dict[int, Any] = {}
        with selectors.DefaultSelector() as selector:
            for rank, (_, back) in enumerate(self._pipes):
                selector.register(back, selectors.EVENT_READ, rank)
            while len(answers) < self.world:
                ready = selector.select(max(0.0, self._deadline - monotonic()))
                if not ready:
                    message = f"did not end in {self._limit_s:.0f} s"
                    raise TimeoutError(message)
                for key, _ in ready:
                    found = os.read(key.fd, 1 << 16)
                    received[key.data] += found
                    if not found or found.endswith(b"\n"):
                        answers[key.data] = self._answer(key.data, received[key.data])
                        selector.unregister(key.fd)
        return [answers[rank] for rank in range(self.world)]

    def _answer(self, rank: int, line: bytes) -> Any:
        if not line.endswith(b"\n"):
            last = self._stderr(rank).read_text(errors="replace").strip().splitlines()[-1:]
            message = f"a child ended without an answer: {' '.join(last)}"
            raise RuntimeError(message)
        kind, answer = json.loads(line)
        if kind == "lacking":
            raise NotImplementedError(answer)
        if kind == "failed":
            raise RuntimeError(answer)
        return answer

    def _stderr(self, rank: int) -> Path:
        return self.scratch / f"stderr-{rank}"

    def _variables_of(self, rank: int, port: int) -> dict[str, str]:
        """What torchrun sets."""
        if self.world == 1:
            return {}
        return {
            "RANK": f"{rank}",
            "GLOBAL_RANK": f"{rank}",
            "LOCAL_RANK": f"{rank}",
            "WORLD_SIZE": f"{self.world}",
            "LOCAL_WORLD_SIZE": f"{self.world}",
            "NNODES": "1",
            "NODE_RANK": "0",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": f"{port}",
        }


def end_group(leader: subprocess.Popen[bytes], patience_s: float) -> None:
    """Wait for the leader of a process group to end, then kill all that is left of the group.

    Workers that outlive a rank hold its pipes open and use the processor in the turn of the next.
    """
    handle = os.pidfd_open(leader.pid)
    try:
        select.select([handle], [], [], patience_s)
    finally:
        os.close(handle)
    # The leader is not reaped yet, so its number cannot belong to another group.
    os.killpg(leader.pid, signal.SIGKILL)
    leader.wait()


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


class Work:
    """What a child can be asked for."""

    def __init__(self, peer: StreamPeer, place: Place) -> None:
        self.peer = peer
        self.place = place
        self._setting: tuple[dict[str, Any], int] = ({}, 0)
        self._opened = False
        self._batches: Any = None

    def versions(self) -> dict[str, str]:
        """The versions its figures belong to."""
        return versions(self.peer.packages)

    def publish(self, files: list[str]) -> None:
        """Put the table on the server."""
        self.peer.publish(self.place, [Path(path) for path in files])

    def prepare(self, setting: dict[str, Any], batch_size: int) -> None:
        """Remember how to open the table."""
        self._setting = setting, batch_size

    def epoch(
        self, number: int, batches: int | None = None, *, group_rows: int = 0, state: str = ""
    ) -> Turn:
        """Train for an epoch, or for some batches of it; the first time, open the table.

        With `state`, the iteration continues there. With `group_rows`, the rows of a row group,
        all rows are added up, and how well they are mixed is counted.
        """
        begin = perf_counter()
        first = 0.0
        rows = count = 0
        sums, groups, follow = [], [], []
        peer = self.peer
        if not self._opened:
            peer.open(self.place, self._setting[0], Rank.here(), self._setting[1])
            self._opened = True
        if state:
            peer.restore(pickle.loads(base64.b64decode(state)))  # noqa: S301 - from ourselves
        # Kept: what is read ahead goes on while the state is taken.
        self._batches = peer.epoch(number)
        for batch in islice(self._batches, batches):
            first = first or perf_counter()
            count += 1
            rows += peer.count(batch)
            self._step(*peer.features(batch))
            if group_rows:
                sums.append(peer.sums(batch))
                ids = peer.ids(batch)
                groups.append(len({*(ids // group_rows).tolist()}))
                follow.append(float((ids[1:] == ids[:-1] + 1).mean()))
        end = perf_counter()
        checked = (
            (list(add(sums)), [statistics.fmean(groups), statistics.fmean(follow)])
            if sums
            else (None, None)
        )
        return Turn(begin, first or end, end, rows, count, _rss(), *checked)

    def settle(self) -> float:
        """The seconds until the next epoch finds everything that was fetched."""
        begin = perf_counter()
        self.peer.settle()
        return perf_counter() - begin

    def rest(self) -> list[Any]:
        """The sums of those batches of the epoch that were not taken yet."""
        return list(add([Sums(*[0] * len(Sums._fields)), *map(self.peer.sums, self._batches)]))

    def memory(self, counts: list[int]) -> list[int]:
        """Resident bytes after so many batches, over as many epochs as it takes."""
        self.peer.open(self.place, self._setting[0], Rank.here(), self._setting[1])
        found: list[int] = []
        count = epoch = 0
        while len(found) < len(counts):
            for batch in self.peer.epoch(epoch):
                self.peer.features(batch)
                count += 1
                if count in counts:
                    found.append(_rss())
                    if len(found) == len(counts):
                        break
            epoch += 1
        return found

    def state(self) -> str:
        """Where the iteration is."""
        return base64.b64encode(pickle.dumps(self.peer.state())).decode()

    def call(self, how: str, given: dict[str, Any]) -> Any:
        """Any other method of the peer."""
        return getattr(self.peer, how)(self.place, **given)

    def close(self) -> None:
        """End workers and threads: some of them end with the iterator."""
        self._batches = None
        self.peer.close()

    @staticmethod
    def _step(embeddings: Any, labels: Any) -> None:
        """The training step: it takes its tensors, and learns nothing."""
        if len(embeddings) != len(labels) or embeddings.ndim != 2:
            message = f"embeddings of {tuple(embeddings.shape)} for {len(labels)} labels"
            raise AssertionError(message)


def _rss() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    """The child: say that everything is imported, then answer each line with one line."""
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
        peer: StreamPeer = getattr(importlib.import_module(name), kind)(**made)
        peer.load()
    except Exception as error:  # noqa: BLE001 - whatever it is, the parent reports it
        answer("failed", f"{type(error).__name__}: {error}")
        return
    work = Work(peer, Place(endpoint, bucket, Path(scratch)))
    answer("ok", None)
    for line in sys.stdin:
        what, given = json.loads(line)
        try:
            answer("ok", getattr(work, what)(**given))
        except NotImplementedError as error:
            answer("lacking", str(error))
        except Exception as error:  # noqa: BLE001 - whatever it is, the parent reports it
            import traceback

            traceback.print_exc()
            answer("failed", f"{type(error).__name__}: {error}")
    work.close()
    # Caches are written until the end, but threads that still read ahead must not delay it.
    late = threading.Timer(EXIT_S, os._exit, (0,))
    late.daemon = True
    late.start()
