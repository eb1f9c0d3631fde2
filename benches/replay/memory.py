"""The memory of a recorder, from step 100,000 to step 1,000,000.

It records in a child process, whose resident memory holds nothing else but the scene.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from benches.peers.replay_relive import ReliveRun
from benches.replay.contest import section_of
from benches.replay.scenes import Scene
from benches.replay.worker import EPISODE
from benches.report import note

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benches.episodes.promises import Ledger
    from benches.options import Options
    from benches.report import Section

FIRST = 100_000
MARKS = 10
"""Memory is measured at this many multiples of `FIRST`."""
MOST_MIB = 64


def memory_part(scene: str, options: Options, ledger: Ledger, folder: Path) -> Iterator[Section]:
    """Resident memory after a flush, every 100,000 steps."""
    first = max(1, round(FIRST * options.scale))
    note(f"replay: memory, {MARKS * first} steps")
    task = [str(options.data_dir), scene, str(folder / "memory"), str(first)]
    done = subprocess.run(  # noqa: S603 - our own command
        [sys.executable, "-m", "benches.replay.memory", *task],
        stdout=subprocess.PIPE,
        check=True,
    )
    found = json.loads(done.stdout)
    section = section_of("memory of a recorder", {}, {}, MARKS * first)
    for number, mib in enumerate(found["mib"], 1):
        section.facts[f"resident after {number * first:,} steps"] = f"{mib:.1f} MiB"
    section.facts["bytes on disk"] = f"{found['bytes']:,}"
    section.facts["from the first of these to the last"] = (
        f"{found['mib'][-1] - found['mib'][0]:+.1f} MiB"
    )
    growth = max(found["mib"]) - found["mib"][0]
    told = f"memory: MiB more than after {first:,} steps, up to {MARKS * first:,}"
    ledger.most(told, growth, MOST_MIB, "MiB")
    yield section


def main() -> None:
    """The child: scenes, scene, root and the first mark come from the command line."""
    data, name, place, mark = sys.argv[1:]
    root, first = Path(place), int(mark)
    shutil.rmtree(root, ignore_errors=True)
    scene = Scene.load(Path(data), name)
    count = MARKS * first
    writer = ReliveRun().writer(root, count)
    mib = []
    for number, step in enumerate(scene.steps(count, EPISODE), 1):
        writer.step(step)
        if number % first == 0:
            writer.flush()
            mib.append(_resident_mib())
    writer.close()
    size = sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
    shutil.rmtree(root)
    sys.stdout.write(json.dumps({"mib": mib, "bytes": size}))


def _resident_mib() -> float:
    with Path("/proc/self/status").open(encoding="ascii") as lines:
        found = next(line for line in lines if line.startswith("VmRSS:"))
    return int(found.split()[1]) / 1024


if __name__ == "__main__":
    main()
