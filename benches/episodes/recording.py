"""Recording: the work it takes, the bytes it leaves and how true the pictures are."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from benches.episodes.contest import REFERENCE, Entry, section_of
from benches.episodes.promises import MOST_BYTES
from benches.episodes.robot import CAMERAS, STATE
from benches.report import note

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benches.episodes.contest import Field
    from benches.episodes.elsewhere import Contender
    from benches.episodes.promises import Ledger
    from benches.options import Options
    from benches.report import Section

ROUNDS = 3
ROUND_S = 10.0
"""Rounds are few and short, since everything is encoded in each."""
CASE = "recording"
NOTES = "recorded.json"


def record_part(contest: Field, options: Options, ledger: Ledger) -> Iterator[Section]:
    """Processor time of a short recording in some rounds; sizes and PSNR of the whole one."""
    del options
    seconds = min(ROUND_S, contest.robot.seconds)
    lost = dict(contest.missing)
    entries = {each.name: Entry(each.name) for each in contest.contenders}
    for number in range(ROUNDS):
        for contender in contest.contenders[:: -1 if number % 2 else 1]:
            if contender.name in lost:
                continue
            note(f"episodes: {seconds:g} s recorded, round {number + 1}, {contender.name}")
            given = {"seconds": seconds, "spot": "again"}
            answer = contest.attempt(contender, lost, "record", **given)
            if answer is not None:
                entries[contender.name].rates.append(answer["frames"] / answer["cpu_s"])
    lost |= recorded(contest)
    left = [entry for name, entry in entries.items() if name not in lost]
    section = section_of(
        CASE, "frames, by processor time,", left, lost, records=contest.robot.frame_count
    )
    found = {each.name: _told(contest, each, lost) for each in contest.contenders}
    known = {name: told for name, told in found.items() if told is not None}
    for name, told in known.items():
        section.facts |= _facts(name, told)
    _promised(known, ledger)
    yield section


def recorded(contest: Field) -> dict[str, str]:
    """Record the whole episode wherever it is not there yet; give who could not."""
    missing: dict[str, str] = {}
    for contender in contest.contenders:
        notes = contest.folder_of(contender) / NOTES
        if notes.exists():
            continue
        note(f"episodes: the whole episode, {contender.name}")
        given = {"seconds": contest.robot.seconds, "spot": "episode"}
        answer = contest.attempt(contender, missing, "record", **given)
        if answer is not None:
            notes.write_text(json.dumps(answer), encoding="utf-8")
    return missing


def _told(contest: Field, contender: Contender, lost: dict[str, str]) -> dict[str, Any] | None:
    """What the whole recording took and left, and how true its pictures are."""
    if contender.name in lost:
        return None
    note(f"episodes: quality, {contender.name}")
    quality = contest.attempt(contender, lost, "quality")
    if quality is None:
        return None
    notes = (contest.folder_of(contender) / NOTES).read_text(encoding="utf-8")
    return {**json.loads(notes), "psnr": quality}


def _facts(name: str, told: dict[str, Any]) -> dict[str, float | str]:
    found: dict[str, float | str] = {
        f"{name}, processor s of the whole": round(told["cpu_s"], 2),
        f"{name}, wall s of the whole": round(told["wall_s"], 2),
    }
    for signal in (STATE, *CAMERAS):
        found[f"{name}, bytes of {signal}"] = f"{told['bytes'].get(signal, 0):,}"
    for camera in CAMERAS:
        decibels = told["psnr"][camera]
        text = "the same pictures" if decibels is None else f"{decibels:.2f} dB"
        found[f"{name}, PSNR of {camera}"] = text
    return found


def _promised(known: dict[str, dict[str, Any]], ledger: Ledger) -> None:
    base = known.get(REFERENCE)
    if base is None:
        return
    for name, limit in MOST_BYTES.items():
        told = known.get(name)
        if told is None:
            continue
        films = [sum(each["bytes"][camera] for camera in CAMERAS) for each in (told, base)]
        ledger.most(f"{name}, bytes", films[0] / films[1], limit, "x positronic")
        for camera in CAMERAS:
            ours, theirs = told["psnr"][camera], base["psnr"][camera]
            ledger.least(f"{name}, PSNR of {camera}", ours, theirs, "dB, as positronic")
