"""The record store: written, gathered from, scanned and loaded from, against other stores."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from benches.method import compare
from benches.pack.bounds import Bound, add_bounds
from benches.payloads import BATCH_SIZE, discard
from benches.peers.record_array_record import RecordArrayRecord, RecordGrain
from benches.peers.record_ffcv import RecordFfcv
from benches.peers.record_h5py import RecordH5py
from benches.peers.record_lance import RecordLance
from benches.peers.record_lmdb import RecordLmdb
from benches.peers.record_loaderx import LoaderxRecords, RecordLoaderx
from benches.peers.record_numpy import RecordMemmap
from benches.peers.record_relive import ArrayGather, ArrayLoader, RecordGather, RecordLoader
from benches.peers.record_store import RAGGED_BYTES, able, record_case
from benches.peers.record_torch import TorchRecords
from benches.peers.record_zstd import BareFrames
from benches.records.bounds import BetterBound
from benches.records.cold import Cold, cold
from benches.records.writing import Writing, outcome_of, write_case, written
from benches.report import Section, note
from benches.summary import ahead_of, report

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from benches.method import Outcome
    from benches.options import Options
    from benches.peers import Peer
    from benches.peers.record_store import RecordCase, RecordPeer
    from benches.report import Report

SIZES = (128, 3 << 10, 28 << 10, RAGGED_BYTES)
JUDGED = 3 << 10
"""The size at which loaderx, array_record and the loop over a map are to be left behind."""
CASE_BYTES = 120 << 20
"""What one store that is read holds."""

OURS, REBALANCED, ARRAY = RecordGather(), RecordGather(rebalanced=True), ArrayGather()
LOADERX, ARRAY_RECORD, MEMMAP = RecordLoaderx(), RecordArrayRecord(), RecordMemmap()
AGAIN, LOADER = RecordMemmap(again=True), RecordLoader()
# Lance forks badly and comes last.
STORES: list[RecordPeer] = [
    RecordLmdb(), RecordH5py(), ARRAY_RECORD, LOADERX, MEMMAP, RecordFfcv(), OURS, RecordLance(),
]  # fmt: skip


def run(options: Options) -> Report:
    """The parts that were asked for, one after the other."""
    parts: dict[str, Callable[[Options], Iterator[Section]]] = {
        "write": _write,
        "append": _append,
        "gather": _gather,
        "scan": _scan,
        "loader": _loader,
        "cold": _cold,
    }
    sections: list[Section] = []
    for name, part in parts.items():
        if not options.parts or name in options.parts:
            note(f"records: {name}")
            sections += part(options)
    if not options.keep_stores:
        _discard_all(options)
    turns: dict[str, float | str] = {
        "seconds per contender and round": round(options.records_pace.round_s, 3),
        "page cache": "warm, but emptied before each turn where it says cold",
    }
    return report("records", options, [*STORES, *_loaders(), BareFrames()], sections, turns)


def _cases(options: Options, contents: Sequence[str]) -> Iterator[RecordCase]:
    for size in _sizes(options):
        records = max(round(CASE_BYTES * options.scale / size), 4 * BATCH_SIZE)
        for content in contents:
            yield record_case(options.data_dir, size, records, content)


def _sizes(options: Options) -> list[int]:
    return [size for size in SIZES if not options.only_cases or size in options.only_cases]


def _section(outcome: Outcome, subject: str, part: str) -> Section:
    section = ahead_of(outcome, subject)
    section.case = f"{part}: {section.case}"
    return section


def _write(options: Options) -> Iterator[Section]:
    """All records at once: readable by others but not synced, and synced where raw."""
    for size in _sizes(options):
        for content, ways in (("random", ("bulk", "synced")), ("steps", ("bulk",))):
            kinds = [Writing(store, how) for store in STORES for how in ways]
            case = write_case(options, size, content, "bulk")
            outcome = written(options.chosen(kinds), case, options.records_pace)
            for how in ways:
                part = outcome_of(outcome, how)
                ours, theirs = (Writing(store, how).name for store in (OURS, LOADERX))
                text = "bulk write, synced" if how == "synced" else "bulk write"
                section = _section(part, ours, text)
                if case.codec == "raw":
                    add_bounds(section, part, [Bound(ours, theirs, 2)])
                yield section


def _append(options: Options) -> Iterator[Section]:
    """One record per call, up to where others can read them."""
    stores = [store for store in STORES if store.family != "ffcv"]
    kinds = [Writing(store, "each") for store in (*stores[:-1], AGAIN, stores[-1])]
    for size in _sizes(options):
        for content in ("random", "steps"):
            case = write_case(options, size, content, "each")
            outcome = written(options.chosen(kinds), case, options.records_pace)
            for each in outcome.contenders:
                each.rates = [rate * case.batch_size for rate in each.rates]
            section = _section(outcome, OURS.name, "one by one")
            section.unit = "records"
            if size == JUDGED and case.codec == "raw":
                bounds = [Bound(OURS.name, other.name, 0.25) for other in (MEMMAP, AGAIN)]
                add_bounds(section, outcome, bounds)
            yield section


def _gather(options: Options) -> Iterator[Section]:
    """Random batches, everything in memory and verified."""
    everyone: list[Peer] = [*STORES[:-1], REBALANCED, ARRAY, BareFrames(), STORES[-1]]
    for case in _cases(options, ("random", "steps", "repeats")):
        # Two blocks are too few to repeat one another.
        if case.content == "repeats" and case.record_bytes < JUDGED:
            continue
        outcome = _compared(everyone, case, options)
        section = _section(outcome, OURS.name, "gather")
        section.facts["record bytes over stored bytes"] = case.ratio()
        if case.codec == "raw":
            bounds = [Bound(ours.name, ARRAY.name, 0.9) for ours in (OURS, REBALANCED)]
            if case.record_bytes == JUDGED:
                bounds.append(Bound(OURS.name, LOADERX.name, 8))
                bounds.append(Bound(OURS.name, ARRAY_RECORD.name, 15))
            add_bounds(section, outcome, bounds)
        else:
            BetterBound(OURS.name, (LOADERX.name, ARRAY_RECORD.name), 2).add(section, outcome)
        yield section


def _scan(options: Options) -> Iterator[Section]:
    """All records in order, in batches."""
    everyone: list[Peer] = [*STORES[:-1], ARRAY, STORES[-1]]
    for case in _cases(options, ("random", "steps")):
        yield _section(_compared(everyone, replace(case, scan=True), options), OURS.name, "scan")


def _loaders() -> list[Peer]:
    # Those that fork workers come first: they inherit no threads of the others.
    forking: list[Peer] = [TorchRecords(kind) for kind in ("memmap", "h5py", "lmdb")]
    return [*forking, RecordGrain(), LoaderxRecords(), RecordFfcv(), ArrayLoader(), LOADER]


def _loader(options: Options) -> Iterator[Section]:
    """Endless random batches, each tool with its own machinery."""
    for case in _cases(options, ("random", "steps")):
        yield _section(_compared(_loaders(), case, options), LOADER.name, "loader")


def _cold(options: Options) -> Iterator[Section]:
    """Random batches of stores that are not in memory."""
    everyone = [Cold(peer) for peer in (*STORES[:-1], ARRAY, STORES[-1])]
    for case in _cases(options, ("random", "steps")):
        peers = [each for each in options.chosen(everyone) if isinstance(each, Cold)]
        section = _section(cold(peers, case, options.records_pace), OURS.name, "cold")
        most = max((each.resident for each in peers), default=0.0)
        section.facts["largest part still cached after eviction"] = most
        yield section


def _compared(everyone: Sequence[Peer], case: RecordCase, options: Options) -> Outcome:
    return compare(able(options.chosen(everyone), case), case, options.records_pace)


def _discard_all(options: Options) -> None:
    """Remove what the peers wrote, but not the records themselves."""
    for case in _cases(options, ("random", "steps", "repeats")):
        kept = {case.path}
        for peer in (*STORES, REBALANCED):
            for place in set(peer.files(case)) - kept:
                discard(place)
