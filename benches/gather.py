"""Bare gather: one batch of random rows from a map into a preallocated output."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benches.method import compare
from benches.peers.numpy_take import NumpyTake
from benches.peers.relive_source import ReliveGather
from benches.peers.torch_select import TorchSelect
from benches.summary import against, report

if TYPE_CHECKING:
    from benches.options import Options
    from benches.peers import Peer
    from benches.report import Report


def run(options: Options) -> Report:
    """Every thread count asked for, against NumPy and PyTorch."""
    reference = NumpyTake()
    everyone: list[Peer] = [reference]
    everyone += [ReliveGather(threads) for threads in options.threads]
    everyone += [TorchSelect(threads) for threads in options.threads]
    peers = options.chosen(everyone)
    outcomes = [compare(peers, case, options.pace) for case in options.cases()]
    sections = [against(outcome, reference.name) for outcome in outcomes]
    return report("gather", options, peers, sections)
