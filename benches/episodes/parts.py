"""The parts of the bench, and who takes part in which."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, NamedTuple

from benches.episodes.appending import PACE_ROUNDS, PACE_S, append_part, pace_part
from benches.episodes.contest import compete, entered, section_of
from benches.episodes.promises import Ledger
from benches.episodes.questions import BATCH, SAMPLES, VECTOR_ROWS, WINDOW
from benches.episodes.recording import ROUND_S, ROUNDS, record_part, recorded
from benches.episodes.robot import Robot
from benches.peers.episode_h5py import H5pyEpisode
from benches.peers.episode_lerobot import LeRobotEpisode
from benches.peers.episode_positronic import PositronicEpisode, PositronicThroughEpisode
from benches.peers.episode_relive import PROFILES, ReliveEpisode, ReliveThroughEpisode
from benches.report import note
from benches.summary import report

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benches.episodes.contest import Field
    from benches.options import Options
    from benches.peers.episode_peer import EpisodePeer
    from benches.report import Report, Section

EPISODES = 1_000
"""Short episodes of the dataset that is opened."""
OF_FRAMES = {
    "random frame": 1,
    "random batch of 64 frames": BATCH,
    "window of 16 frames": WINDOW,
    "frames in order": 1,
}
"""Operations on pictures, and how many come at once."""
OF_VECTORS = {
    "time[t]": ("lookups", 1),
    "time[[20,000 times]], a list": ("samples", SAMPLES),
    "time[[20,000 times]], an array": ("samples", SAMPLES),
    "windows of 100 rows": ("windows", 100),
    "open and first value": ("opens", 1),
    "open and first lookup": ("opens", 1),
}
"""Operations on vectors, what is counted, and how many come at once."""

FILMS: tuple[EpisodePeer, ...] = (
    PositronicEpisode(),
    *(ReliveEpisode(profile) for profile in PROFILES),
    H5pyEpisode(),
    H5pyEpisode("lzf"),
    LeRobotEpisode(),
)
VECTORS: tuple[EpisodePeer, ...] = (PositronicEpisode(), ReliveEpisode(), H5pyEpisode())
NAMED: tuple[EpisodePeer, ...] = (PositronicThroughEpisode(), ReliveThroughEpisode())


class Part(NamedTuple):
    """A part: who takes part, and what is measured of them."""

    peers: tuple[EpisodePeer, ...]
    run: Callable[[Field, Options, Ledger], Iterator[Section]]


def run_parts(options: Options) -> Report:
    """The parts that were asked for, and last of all what is promised."""
    robot = Robot(options.data_dir, options.seconds)
    note(f"episodes: {robot.seconds:g} s of the robot")
    robot.make()
    folder = options.data_dir / f"episodes-{robot.seconds:g}s"
    ledger = Ledger()
    sections: list[Section] = []
    versions: dict[str, str] = {}
    for name, part in PARTS.items():
        if options.parts and name not in options.parts:
            continue
        chosen = [
            each
            for each in part.peers
            if not options.only_peers or each.family in options.only_peers
        ]
        with entered(chosen, robot, VECTOR_ROWS, folder) as contest:
            for contender in contest.contenders:
                versions |= contest.attempt(contender, {}, "versions") or {}
            sections += part.run(contest, options, ledger)
    if not options.keep_stores:
        shutil.rmtree(folder, ignore_errors=True)
    ledger.look(sections)
    turns: dict[str, float | str] = {
        "page cache": "warm",
        "recording": f"{ROUNDS} rounds of {ROUND_S:g} s, then all of it once",
        "pictures at their pace": f"{PACE_ROUNDS} rounds of {PACE_S:g} s",
    }
    found = report("episodes", options, (), [*sections, ledger.section()], turns)
    found.versions.update(versions)
    return found


def _read(contest: Field, options: Options, ledger: Ledger) -> Iterator[Section]:
    """Pictures of the recorded episode."""
    del ledger
    missing = recorded(contest)
    for operation, batch in OF_FRAMES.items():
        entries, lost = compete(contest, operation, options.rounds, missing)
        yield section_of(
            operation, "frames", entries, lost, records=contest.robot.frame_count, batch=batch
        )


def _vectors(contest: Field, options: Options, ledger: Ledger) -> Iterator[Section]:
    """A long signal of vectors, by time."""
    del ledger
    missing: dict[str, str] = {}
    for contender in contest.contenders:
        contest.attempt(contender, missing, "write_vectors")
    for operation, (unit, batch) in OF_VECTORS.items():
        entries, lost = compete(contest, operation, options.rounds, missing)
        yield section_of(operation, unit, entries, lost, records=VECTOR_ROWS, batch=batch)


def _open(contest: Field, options: Options, ledger: Ledger) -> Iterator[Section]:
    """The recorded episode: names, lengths, first and last times."""
    del ledger
    entries, lost = compete(contest, "open an episode", options.rounds, recorded(contest))
    yield section_of("open an episode", "opens", entries, lost, records=contest.robot.frame_count)


def _many(contest: Field, options: Options, ledger: Ledger) -> Iterator[Section]:
    """A dataset of many short episodes: how many there are."""
    del ledger
    missing: dict[str, str] = {}
    for contender in contest.contenders:
        note(f"episodes: {EPISODES} short ones, {contender.name}")
        contest.attempt(contender, missing, "write_many", episodes=EPISODES)
    entries, lost = compete(contest, "open 1,000 episodes", options.rounds, missing)
    yield section_of("open 1,000 episodes", "opens", entries, lost, records=EPISODES)


PARTS = {
    "append": Part((*VECTORS, *NAMED), append_part),
    "pace": Part(FILMS, pace_part),
    "record": Part(FILMS, record_part),
    "read": Part(FILMS, _read),
    "vectors": Part(VECTORS, _vectors),
    "open": Part(FILMS, _open),
    "many": Part(VECTORS, _many),
}
"""What `--parts` names, in the order it is run."""
