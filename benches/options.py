"""What the command line asked for."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benches.data import cases
from benches.method import Pace

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from benches.data import Case
    from benches.peers import Peer

NAMES = (
    "gather",
    "loader",
    "cold",
    "pack",
    "records",
    "episodes",
    "replay",
    "publish",
    "stream",
    "gpu",
)
USUAL = ("gather", "loader", "cold", "pack", "records", "episodes", "replay", "publish", "stream")
PARTS = {
    "pack": ("payloads", "steps", "open", "jsonl"),
    "records": ("write", "append", "gather", "scan", "loader", "cold"),
    "episodes": ("append", "pace", "record", "read", "vectors", "open", "many"),
    "replay": (
        *("write", "load", "loop", "live", "memory"),
        *("sample", "large", "beside", "growth"),
    ),
    "publish": ("first", "columns", "all", "head", "filter", "republish", "change"),
    "gpu": ("records", "transitions"),
    "stream": ("epochs", "ranks", "resume", "warm", "half", "memory"),
}
SCENES = ("pong", "breakout", "montezuma", "textured")
AXES = ("first", "last")
LEAST_ROUNDS = 7
RECORDS_QUICKER = 4


@dataclass(frozen=True)
class Options:
    """All flags of `python -m benches`, checked."""

    names: tuple[str, ...]
    scale: float
    rounds: int
    round_s: float
    only_peers: frozenset[str]
    only_cases: frozenset[int]
    threads: tuple[int, ...]
    workers: int
    gpu_workers: tuple[int, ...]
    gpu_data_gb: float
    gpu_data: str
    device: str
    memory_limit_mib: int
    limited: bool
    entries: int
    parts: frozenset[str]
    keep_stores: bool
    seconds: float
    runs: int
    publish_runs: int
    stream_runs: int
    stream_limit_s: float
    scenes: frozenset[str]
    axes: frozenset[str]
    data_dir: Path
    json: Path | None
    plot: Path | None

    @property
    def pack_entries(self) -> int:
        """Payloads of each store of the pack bench."""
        return round(self.entries * self.scale)

    @property
    def pace(self) -> Pace:
        """Rounds and seconds for `benches.method`."""
        return Pace(rounds=self.rounds, round_s=self.round_s)

    @property
    def records_pace(self) -> Pace:
        """A quicker one, for the bench with the most cases."""
        return Pace(
            rounds=self.rounds, round_s=self.round_s / RECORDS_QUICKER, trial_s=0.1, settle_s=0.4
        )

    def chosen(self, peers: Iterable[Peer]) -> list[Peer]:
        """The peers that `--only-peers` lets through."""
        return [each for each in peers if not self.only_peers or each.family in self.only_peers]

    def cases(self) -> list[Case]:
        """The record sizes that `--only-cases` lets through, scaled."""
        found = cases(self.data_dir, self.scale)
        return [
            each for each in found if not self.only_cases or each.record_bytes in self.only_cases
        ]


def parse(arguments: Sequence[str] | None = None) -> Options:
    """Read the command line; a usage error exits with status 2."""
    parser = argparse.ArgumentParser(prog="python -m benches", description=__doc__)
    add = parser.add_argument
    add("names", nargs="*", help=f"{', '.join(NAMES)}; without any: {' '.join(USUAL)}")
    add("--scale", type=float, default=1.0, help="times the records of every case")
    add("--rounds", type=int, default=9, help=f"alternating rounds, at least {LEAST_ROUNDS}")
    add(
        "--round-s",
        type=float,
        default=0.3,
        help="seconds of one contender in one round; records: a quarter",
    )
    add("--only-peers", type=_words, default=frozenset(), help="families, e.g. relive,numpy,torch")
    add("--only-cases", type=_numbers, default=(), help="record sizes in bytes, e.g. 128,3072")
    add("--threads", type=_numbers, default=(1, 2), help="thread counts of bare gather")
    add("--workers", type=int, default=2, help="workers of relive's DataLoader")
    add("--gpu-workers", type=_numbers, default=(1, 2, 4, 8, 16), help="the same, on a GPU")
    add("--gpu-data-gb", type=float, default=4.0, help="size of each data set of the GPU bench")
    add("--gpu-data", choices=("memory", "file"), default="memory", help="where those records are")
    add("--device", default="cuda", help="cpu tries the GPU bench out; such figures mean nothing")
    add("--memory-limit", type=int, default=1024, help="MiB of the cgroup in cold; 0: no such run")
    add("--limited", action="store_true", help=argparse.SUPPRESS)
    add("--entries", type=int, default=4000, help="payloads of each store of pack")
    parts = "; ".join(f"of {name}: {','.join(each)}" for name, each in PARTS.items())
    add("--parts", type=_words, default=frozenset(), help=parts)
    add(
        "--keep-stores", action="store_true", help="stores that were written are left for next time"
    )
    add(
        "--seconds",
        type=float,
        default=60.0,
        help="how long the robot of episodes is recorded, and each loop of replay",
    )
    add("--runs", type=int, help="alternating runs of replay (7), publish (5) and stream (5)")
    add(
        "--limit-s",
        type=float,
        default=90.0,
        help="seconds after which stream gives up what a peer does; busy machines need more",
    )
    add("--scenes", type=_words, default=frozenset(), help=f"of replay: {','.join(SCENES)}")
    add("--axes", type=_words, default=frozenset(), help=f"of stacks in replay: {','.join(AXES)}")
    add("--data-dir", type=Path, default=Path("build/bench-data"), help="where the records are")
    add("--json", type=Path, help="default: build/bench/NAME.json")
    add("--plot", type=Path, help="default: build/bench/NAME.png")
    given = parser.parse_args(arguments)
    unknown = sorted(set(given.names) - set(NAMES))
    if unknown:
        parser.error(f"unknown bench {unknown[0]!r}; there are {', '.join(NAMES)}")
    unknown = sorted(given.parts.difference(*PARTS.values()))
    if unknown:
        parser.error(f"unknown part {unknown[0]!r}; there are {parts}")
    unknown = sorted(given.scenes.difference(SCENES))
    if unknown:
        parser.error(f"unknown scene {unknown[0]!r}; there are {', '.join(SCENES)}")
    unknown = sorted(given.axes.difference(AXES))
    if unknown:
        parser.error(f"unknown axis {unknown[0]!r}; there are {', '.join(AXES)}")
    names = tuple(given.names) or USUAL
    if given.rounds < LEAST_ROUNDS:
        parser.error(f"--rounds must be at least {LEAST_ROUNDS}")
    if len(names) > 1 and (given.json or given.plot):
        parser.error("--json and --plot need exactly one bench")
    return Options(
        names=names,
        scale=given.scale,
        rounds=given.rounds,
        round_s=given.round_s,
        only_peers=given.only_peers,
        only_cases=frozenset(given.only_cases),
        threads=given.threads,
        workers=given.workers,
        gpu_workers=given.gpu_workers,
        gpu_data_gb=given.gpu_data_gb,
        gpu_data=given.gpu_data,
        device=given.device,
        memory_limit_mib=given.memory_limit,
        limited=given.limited,
        entries=given.entries,
        parts=given.parts,
        keep_stores=given.keep_stores,
        seconds=given.seconds,
        runs=given.runs or 7,
        publish_runs=given.runs or 5,
        stream_runs=given.runs or 5,
        stream_limit_s=given.limit_s,
        scenes=given.scenes,
        axes=given.axes,
        data_dir=given.data_dir,
        json=given.json,
        plot=given.plot,
    )


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split(","))


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))
