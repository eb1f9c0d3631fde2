"""JSON lines: one worker against two, and the memory that a longer export takes."""

from __future__ import annotations

import subprocess
import sys
from itertools import repeat
from typing import TYPE_CHECKING, Any, ClassVar

from benches.data import Case
from benches.method import compare
from benches.pack.bounds import Bound, add_bounds, verdict
from benches.payloads import THREADS, discard
from benches.peers import Peer, Setting, Stream
from benches.peers.payload_relive import open_pack
from benches.report import note
from benches.runs import make_runs
from benches.summary import ahead_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from benches.data import Rows
    from benches.options import Options
    from benches.report import Section

RUNS = 256
"""Runs of one timed export."""
FEW = 1000
"""Runs of the shorter export whose memory is measured; the longer one has all entries."""
DISTINCT = 512
MOST_GROWTH_MIB = 64.0


class JsonlCase(Case):
    """A pack of runs; a batch of it is all of them written as lines."""

    @property
    def path(self) -> Path:
        """The pack."""
        return self.folder / f"jsonl-{self.records}.a2pack"

    @property
    def out(self) -> Path:
        """Where the lines go."""
        return self.path.with_suffix(".jsonl")

    @property
    def batches(self) -> list[Rows]:
        """Nothing is drawn: these say only how many exports it takes to settle in."""
        return [[]] * 4  # type: ignore[list-item]

    def make(self) -> None:
        """Write the pack unless it is there."""
        self.folder.mkdir(parents=True, exist_ok=True)
        make_runs(self.path, self.records, distinct=min(DISTINCT, self.records))

    def check(self, batch: Any) -> None:
        """Raise unless there is a line for every run."""
        assert batch == 0
        with self.out.open("rb") as lines:
            found = sum(1 for _ in lines)
        if found != self.records:
            message = f"wrote {found} lines, not {self.records}"
            raise AssertionError(message)


class ReliveJsonl(Peer):
    """`reader.to_jsonl(file, workers=…, granularity=…)`, over the same file each time."""

    family: ClassVar[str] = "relive"
    packages: ClassVar[tuple[str, ...]] = ("relive",)

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.name = f"relive to_jsonl, {workers} worker{'s' * (workers > 1)}"

    def settings(self, case: Case) -> Sequence[Setting]:  # noqa: ARG002 - the same for all
        """The one number of workers it was made for."""
        return [{"workers": self.workers}]

    def open(self, case: Case, setting: Setting) -> Stream:
        """Open the pack, and the file for the lines."""
        assert isinstance(case, JsonlCase)
        reader = open_pack(case.path)
        out = case.out.open("wb", buffering=0)

        def deliver() -> Iterator[int]:
            for workers in repeat(int(setting["workers"])):
                out.seek(0)
                out.truncate()
                yield reader.to_jsonl(out, workers=workers)

        def close() -> None:
            out.close()
            reader.close()

        return Stream(deliver(), _same, close=close)


def _same(batch: Any) -> Any:
    return batch


def jsonl(options: Options) -> list[Section]:
    """One worker against two; then the memory of a short and of a long export."""
    case = JsonlCase("JSON lines of runs", 0, RUNS, RUNS, options.data_dir)
    one, two = ReliveJsonl(1), ReliveJsonl(THREADS)
    outcome = compare(options.chosen([one, two]), case, options.pace)
    section = ahead_of(outcome, two.name)
    section.unit = "exports"
    add_bounds(section, outcome, [Bound(two.name, one.name, 1.6)])
    if outcome.contenders:
        _add_memory(section, options)
    discard(case.out)
    return [section]


def _add_memory(section: Section, options: Options) -> None:
    many = max(options.pack_entries, 2 * FEW)
    cases = [JsonlCase("", 0, runs, runs, options.data_dir) for runs in (FEW, many)]
    for case in cases:
        case.make()
    for io in ("mmap", "pread"):
        peaks = []
        for case in cases:
            note(f"JSON lines of {case.records} runs, {io}: memory")
            peaks.append(_peak_mib(case, io))
            discard(case.out)
        growth = peaks[1] - peaks[0]
        section.facts[f"MiB that {many} runs take more than {FEW}, {io}"] = (
            f"{growth:.1f} ({peaks[0]:.0f} to {peaks[1]:.0f}), "
            + verdict(growth < MOST_GROWTH_MIB, f"less than {MOST_GROWTH_MIB:g}")
        )
    if not options.keep_stores:
        for case in cases:
            discard(case.path)


def _peak_mib(case: JsonlCase, io: str) -> float:
    command = [sys.executable, "-m", "benches.pack.memory", str(case.path), str(case.out), io]
    done = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603
    return float(done.stdout)
