"""The parts of the bench, and who takes part."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from benches.episodes.promises import Ledger
from benches.peers.replay_h5py import FILTERS, H5pyRun
from benches.peers.replay_minari import MinariRun
from benches.peers.replay_relive import ReliveRun
from benches.peers.replay_sqlite import FEWER, SqliteRun
from benches.peers.replay_torchrl import TorchRLRun
from benches.replay.beside import beside_part, growth_part
from benches.replay.contest import entered
from benches.replay.live import live_part
from benches.replay.loading import load_part
from benches.replay.loop import loop_part
from benches.replay.memory import memory_part
from benches.replay.sampling import large_part, sample_part
from benches.replay.scenes import GAMES, SCENES, Scene
from benches.replay.writing import write_part
from benches.report import note
from benches.summary import report

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from benches.options import Options
    from benches.peers.replay_peer import ReplayPeer
    from benches.replay.contest import Contest
    from benches.report import Report, Section

PEERS: tuple[ReplayPeer, ...] = (
    ReliveRun(),
    *(H5pyRun(packing) for packing in FILTERS),
    *(SqliteRun(form) for form in FEWER),
    MinariRun(),
    TorchRLRun(),
)
COMPARED: dict[str, Callable[[Contest, Options, Ledger], Iterator[Section]]] = {
    "write": write_part,
    "load": load_part,
}
"""The parts in which peers take turns."""


def run_parts(options: Options) -> Report:
    """The parts that were asked for, and last of all what is promised."""
    folder = options.data_dir / "replay"
    ledger = Ledger()
    sections: list[Section] = []
    versions: dict[str, str] = {}
    scenes = [name for name in SCENES if not options.scenes or name in options.scenes]
    for name in scenes:
        scene = Scene.load(options.data_dir, name)
        for part, run in COMPARED.items():
            if _is_wanted(part, options):
                note(f"replay: {part}, {name}")
                with entered(_peers(options), scene, options.data_dir, folder) as contest:
                    for contender in contest.contenders:
                        versions |= contest.ask(contender, contest.missing, "versions") or {}
                    sections += run(contest, options, ledger)
    sections += _alone(scenes, options, ledger, folder)
    if not options.keep_stores:
        shutil.rmtree(folder, ignore_errors=True)
    turns: dict[str, float | str] = {
        "runs": options.runs,
        "page cache": "warm",
        "writing": "until the run is closed and its files are synced",
    }
    found = report("replay", options, (), [*sections, ledger.section()], turns)
    del found.method["rounds"]
    found.versions.update(versions)
    if _is_wanted("loop", options) and not GAMES.keys() & scenes:
        found.not_run.append("loop: none of the scenes is a game")
    return found


def _alone(scenes: list[str], options: Options, ledger: Ledger, folder: Path) -> Iterator[Section]:
    """The parts of one scene, or without a contest over scenes."""
    if _is_wanted("loop", options):
        for name in scenes:
            if name in GAMES:
                yield from loop_part(name, options, ledger, folder)
    if _is_wanted("live", options):
        yield from live_part(Scene.load(options.data_dir, scenes[0]), options, ledger)
    if _is_wanted("memory", options):
        yield from memory_part(scenes[0], options, ledger, folder)
    # No two planes of the textured scene are equal, so none of them is stored less than once.
    if _is_wanted("sample", options):
        yield from sample_part(scenes[-1], options, ledger, folder)
    if _is_wanted("large", options):
        yield from large_part(scenes[-1], options, ledger, folder)
    game = next((name for name in scenes if name in GAMES), None)
    if game is not None and _is_wanted("beside", options):
        yield from beside_part(game, options, ledger, folder)
    if game is not None and _is_wanted("growth", options):
        yield from growth_part(game, options, ledger, folder)


def _is_wanted(part: str, options: Options) -> bool:
    return not options.parts or part in options.parts


def _peers(options: Options) -> list[ReplayPeer]:
    return [each for each in PEERS if not options.only_peers or each.family in options.only_peers]
