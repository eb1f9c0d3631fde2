"""Appending: single calls, of vectors as fast as they go and of pictures at their pace."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benches.episodes.contest import EMPTY, Entry, section_of
from benches.episodes.latency import append_vectors, percentiles
from benches.episodes.questions import VECTOR_ROWS, Questions
from benches.episodes.robot import CAMERA_HZ
from benches.report import note

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benches.episodes.contest import Field
    from benches.episodes.promises import Ledger
    from benches.options import Options
    from benches.report import Section

PACE_ROUNDS = 3
PACE_S = 5.0
"""Seconds of pictures of one contender in one round, at 30 a second and camera."""
NO_STALL_MS, QUICK_FRAME_MS = 2.0, 0.3
WAITED_NS = 10_000_000
"""An append of a picture that takes longer than that waits for the encoder."""


def append_part(contest: Field, options: Options, ledger: Ledger) -> Iterator[Section]:
    """Vectors, one call each, in a loop that does nothing else."""
    lost = dict(contest.missing)
    asked = Questions(contest.robot, VECTOR_ROWS)
    spent: dict[str, list[int]] = {}
    entries = {name: Entry(name) for name in (*(each.name for each in contest.contenders), EMPTY)}

    def took(name: str, nanoseconds: list[int]) -> None:
        entries[name].rates.append(len(nanoseconds) / (sum(nanoseconds) / 1e9))
        spent.setdefault(name, []).extend(nanoseconds)

    for number in range(options.rounds):
        note(f"episodes: vectors appended, round {number + 1}")
        took(EMPTY, append_vectors(None, asked, VECTOR_ROWS))
        for contender in contest.contenders[:: -1 if number % 2 else 1]:
            if contender.name not in lost:
                answer = contest.attempt(contender, lost, "append", count=VECTOR_ROWS)
                if answer is not None:
                    took(contender.name, answer)
    for name, values in spent.items():
        entries[name].latency_ms = percentiles(values)
    left = [entry for name, entry in entries.items() if name not in lost]
    yield section_of("append a vector", "appends", left, lost, records=VECTOR_ROWS)
    limit = max(NO_STALL_MS, 2 * entries[EMPTY].latency_ms["p99.99"])
    for entry in left:
        if entry.name.startswith("relive"):
            told = f"{entry.name}, append p99.99 in ms"
            ledger.most(told, entry.latency_ms["p99.99"], limit, "ms")


def pace_part(contest: Field, options: Options, ledger: Ledger) -> Iterator[Section]:
    """Pictures of both cameras at 30 a second each, while an encoder works beside."""
    del options
    lost = dict(contest.missing)
    seconds = min(PACE_S, contest.robot.seconds)
    entries = {each.name: Entry(each.name) for each in contest.contenders}
    spent: dict[str, dict[str, list[int]]] = {}
    for number in range(PACE_ROUNDS):
        for contender in contest.contenders[:: -1 if number % 2 else 1]:
            if contender.name in lost:
                continue
            note(f"episodes: pictures at their pace, round {number + 1}, {contender.name}")
            answer = contest.attempt(contender, lost, "pace", seconds=seconds)
            if answer is None:
                continue
            entries[contender.name].rates.append(
                len(answer["append"]) / (sum(answer["append"]) / 1e9)
            )
            into = spent.setdefault(contender.name, {})
            for what, values in answer.items():
                into.setdefault(what, []).extend(values)
    left = [entry for name, entry in entries.items() if name not in lost]
    for entry in left:
        entry.latency_ms = percentiles(spent[entry.name]["append"])
    frames = round(PACE_ROUNDS * seconds * CAMERA_HZ)
    section = section_of("append a picture at its pace", "appends", left, lost, records=frames)
    for entry in left:
        section.facts |= _beside(entry.name, spent[entry.name], ledger)
    yield section


def _beside(name: str, spent: dict[str, list[int]], ledger: Ledger) -> dict[str, float | str]:
    """What copies cost beside the appends of one contender, and whether it had to wait."""
    found: dict[str, float | str] = {}
    for what in ("copy", "fresh copy"):
        at = percentiles(spent[what])
        found[f"{name}, bare {what} beside it"] = f"p50 {at['p50']:.3f}, p99 {at['p99']:.3f} ms"
    waited = sum(taken > WAITED_NS for taken in spent["append"])
    if waited:
        told = f"{waited} of {len(spent['append'])} appends took over 10 ms"
        found[f"{name}, encoder behind"] = told
    if name.startswith("relive"):
        limit = max(QUICK_FRAME_MS, 3 * percentiles(spent["copy"])["p99"])
        taken = percentiles(spent["append"])["p99"]
        ledger.most(f"{name}, frame append p99 in ms", taken, limit, "ms")
    return found
