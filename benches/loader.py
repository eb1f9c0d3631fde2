"""Loaders: endless random batches, each tool with its own machinery, at its best setting."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from benches.elsewhere import Elsewhere
from benches.method import Ratio, compare
from benches.peers.array_record_file import ArrayRecordReader
from benches.peers.grain_loader import GrainLoader
from benches.peers.hf_datasets import HfDatasets
from benches.peers.lance_take import LanceTake
from benches.peers.loaderx_loader import LoaderxLoader
from benches.peers.loaderx_npy import LoaderxNpy
from benches.peers.numpy_take import NumpyTake
from benches.peers.relive_source import ReliveGather, ReliveLoader
from benches.peers.torch_loader import TorchLoader
from benches.peers.torchdata_nodes import TorchdataNodes
from benches.summary import ahead_of, report

if TYPE_CHECKING:
    from benches.method import Outcome
    from benches.options import Options
    from benches.peers import Peer
    from benches.report import Report, Section


def run(options: Options) -> Report:
    """Time relive's DataLoader against every loader that runs here, and against bare gather."""
    subject = ReliveLoader(options.workers)
    bare = ReliveGather(options.workers)
    # Those that fork workers come first: they inherit no threads of the others.
    everyone: list[Peer] = [
        TorchLoader("item"),
        TorchLoader("batch"),
        NumpyTake(),
        TorchdataNodes(),
        LoaderxLoader(),
        Elsewhere(LoaderxNpy()),
        HfDatasets(),
        ArrayRecordReader(),
        GrainLoader(),
        bare,
        subject,
        LanceTake(),
    ]
    peers = options.chosen(everyone)
    outcomes = [compare(peers, case, options.pace) for case in options.cases()]
    sections = [_section(outcome, subject.name, bare.name) for outcome in outcomes]
    return report("loader", options, peers, sections)


def _section(outcome: Outcome, subject: str, bare: str) -> Section:
    section = ahead_of(outcome, subject)
    ours, gather = outcome.find(subject), outcome.find(bare)
    if ours and gather:
        share = Ratio.of(ours.rates, gather.rates)
        pairs = zip(ours.rates, gather.rates, strict=True)
        added = [1e6 / mine - 1e6 / base for mine, base in pairs]
        section.facts["DataLoader over bare gather"] = share.median
        section.facts["microseconds added per batch"] = statistics.median(added)
        section.facts["range of microseconds added"] = f"{min(added):.1f} to {max(added):.1f}"
    return section
