"""Packs: random batches, scans, single steps, opening and JSON lines, against other stores."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from benches.method import compare
from benches.pack.bounds import Bound, add_bounds
from benches.pack.jsonl import jsonl
from benches.payloads import CONTENTS, THREADS, discard, payload_case
from benches.peers.payload_array_record import PayloadArrayRecord
from benches.peers.payload_files import Files
from benches.peers.payload_lance import PayloadLance
from benches.peers.payload_lmdb import Lmdb
from benches.peers.payload_loaderx import PayloadLoaderx
from benches.peers.payload_numpy import MemmapRows, MemmapSlices
from benches.peers.payload_relive import PackGather, PackLoader
from benches.peers.payload_tar import WebDatasetTar
from benches.peers.payload_zstd import BareZstd, CodecDecode
from benches.peers.step_tables import NumpySteps, PackSteps
from benches.peers.store_open import (
    ListFiles,
    OpenArrayRecord,
    OpenCase,
    OpenLance,
    OpenLmdb,
    OpenLoaderx,
    OpenPack,
)
from benches.report import Section, note
from benches.runs import step_case
from benches.summary import ahead_of, report

if TYPE_CHECKING:
    from collections.abc import Callable

    from benches.data import Case
    from benches.options import Options
    from benches.peers import Peer
    from benches.report import Report

ONE, TWO, ALWAYS = PackGather(1), PackGather(THREADS), PackGather(THREADS, "always")
BARE, CODEC = BareZstd(), CodecDecode()
FRESH, SAME, ROWS = MemmapSlices(fresh=True), MemmapSlices(fresh=False), MemmapRows()
ARRAY_RECORD, LOADERX = PayloadArrayRecord(), PayloadLoaderx()
TABLE, TABLE_ONE = PackSteps(THREADS, table=True), PackSteps(1, table=True)
STEPS = [NumpySteps(way) for way in NumpySteps.WAYS]
OPEN, LISTED = OpenPack(), ListFiles()

RAW_BOUNDS = (
    Bound(ONE.name, FRESH.name, 0.9),
    Bound(TWO.name, FRESH.name, 1.25),
    Bound(ONE.name, SAME.name, 0.9),
    Bound(TWO.name, SAME.name, 1.25),
    Bound(TWO.name, ARRAY_RECORD.name, 8),
    Bound(TWO.name, LOADERX.name, 3),
)
ZSTD_BOUNDS = (
    Bound(TWO.name, BARE.name, 0.85),
    Bound(TWO.name, CODEC.name, 0.85),
    Bound(TWO.name, ARRAY_RECORD.name, 1.6),
    Bound(TWO.name, LOADERX.name, 3),
)
STEP_BOUNDS = [Bound(ours.name, way.name, 0.9) for way in STEPS for ours in (TABLE_ONE, TABLE)]
OPEN_BOUNDS = (Bound(OPEN.name, LISTED.name, 20),)

OPENED = 100_000
"""Payloads of the stores that are opened."""
RUNS = 2048
"""Runs whose steps are read."""


def run(options: Options) -> Report:
    """The parts that were asked for, one after the other."""
    parts: dict[str, Callable[[Options], list[Section]]] = {
        "payloads": _payloads,
        "steps": _steps,
        "open": _open,
        "jsonl": jsonl,
    }
    sections: list[Section] = []
    for name, part in parts.items():
        if not options.parts or name in options.parts:
            note(f"pack: {name}")
            sections += part(options)
    return report("pack", options, _everyone(), sections)


def _random_peers(codec: str) -> list[Peer]:
    # WebDataset forks workers and comes first: they inherit no threads of the others.
    shared: list[Peer] = [WebDatasetTar(), Lmdb(), Files(), ARRAY_RECORD, LOADERX]
    known: list[Peer] = [FRESH, SAME, ROWS] if codec == "raw" else [BARE, CODEC]
    return [*shared, *known, ONE, TWO, ALWAYS, PackLoader(), PayloadLance()]


def _everyone() -> list[Peer]:
    return [*_random_peers("raw"), *_random_peers("zstd")]


def _payloads(options: Options) -> list[Section]:
    """Random batches and a scan of every content."""
    sections = []
    for content in CONTENTS:
        case = payload_case(options.data_dir, options.pack_entries, content)
        bounds = RAW_BOUNDS if case.codec == "raw" else ZSTD_BOUNDS
        peers = options.chosen(_random_peers(case.codec))
        for each in (case, replace(case, name=f"{case.name}, full scan", scan=True)):
            outcome = compare(peers, each, options.pace)
            section = ahead_of(outcome, TWO.name)
            section.facts["payload bytes over stored bytes"] = case.ratio()
            sections.append(section if each.scan else add_bounds(section, outcome, bounds))
        if not options.keep_stores:
            _discard(peers, case)
    return sections


def _discard(peers: list[Peer], case: Case) -> None:
    """Remove what the peers wrote, but not the payloads: all stores at once fill a disk."""
    for place in {path for peer in peers for path in peer.files(case)} - {case.path}:
        discard(place)


def _steps(options: Options) -> list[Section]:
    """Batches of 4096 steps: all fields, and those of the projection."""
    peers = options.chosen(
        [*STEPS, TABLE_ONE, TABLE, PackSteps(1, table=False), PackSteps(THREADS, table=False)]
    )
    runs = round(RUNS * options.scale)
    sections = []
    for projected in (False, True):
        case = step_case(options.data_dir, runs, projected=projected)
        outcome = compare(peers, case, options.pace)
        sections.append(add_bounds(ahead_of(outcome, TABLE.name), outcome, STEP_BOUNDS))
    return sections


def _open(options: Options) -> list[Section]:
    """Stores of many payloads, tiny and larger: opening must not depend on their size."""
    sections = []
    for name, size in (("64 B", 64), ("4 KiB", 4096)):
        records = round(OPENED * options.scale)
        case = OpenCase(f"open {records} payloads of {name}", size, records, 1, options.data_dir)
        own: list[Peer] = [OPEN, OpenPack(first=True)]
        others: list[Peer] = [LISTED, OpenLmdb(), OpenArrayRecord(), OpenLoaderx(), OpenLance()]
        # A listing does not depend on what is in the files: the tiny ones will do.
        peers = options.chosen([*others, *own] if size == 64 else own)
        outcome = compare(peers, case, options.pace)
        section = ahead_of(outcome, OPEN.name)
        section.unit = "opens"
        if size == 64:
            add_bounds(section, outcome, OPEN_BOUNDS)
        if not options.keep_stores:
            _discard(peers, case)
        sections.append(section)
    return sections
