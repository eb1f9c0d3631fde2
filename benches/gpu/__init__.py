"""Batches delivered into GPU memory: against the bare copy and against PyTorch."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from benches.data import Case, ResidentCase
from benches.gpu.copy_limit import CopyLimit
from benches.gpu.relive_device import ReliveDevice
from benches.gpu.select_threads import SelectThreads
from benches.gpu.torch_pinned import TorchPinned
from benches.method import Ratio, compare
from benches.peers import module
from benches.summary import against, report

if TYPE_CHECKING:
    from benches.method import Contender, Outcome
    from benches.options import Options
    from benches.peers import Peer
    from benches.report import Report, Section

SIZES = (("3 KiB", 3072, 1024), ("147 KiB", 224 * 224 * 3, 256))


def run(options: Options) -> Report:
    """Both batch shapes, everyone at their best, relive at each number of workers."""
    torch = module("torch")
    device = torch.device(options.device)
    limit = CopyLimit(device)
    everyone: list[Peer] = [
        TorchPinned(device, "item"),
        TorchPinned(device, "batch"),
        limit,
        SelectThreads(device),
    ]
    everyone += [ReliveDevice(device, workers) for workers in options.gpu_workers]
    # The limit is what every figure here is a share of: no filter leaves it out.
    peers = [peer for peer in everyone if peer is limit or peer in options.chosen(everyone)]
    pace = replace(options.pace, settle_s=1.0)
    sections = [_section(compare(peers, case, pace), limit.name) for case in _cases(options)]
    whole = report("gpu", options, peers, sections)
    if device.type == "cuda":
        whole.machine["gpu"] = torch.cuda.get_device_name(device)
        whole.machine["cuda"] = str(torch.version.cuda)
    return whole


def _cases(options: Options) -> list[Case]:
    kind = ResidentCase if options.gpu_data == "memory" else Case
    wanted = options.gpu_data_gb * 1e9 * options.scale
    return [
        kind(name, size, max(round(wanted / size), 4 * batch), batch, options.data_dir)
        for name, size, batch in SIZES
        if not options.only_cases or size in options.only_cases
    ]


def _section(outcome: Outcome, limit: str) -> Section:
    section = against(outcome, limit)
    ours = _best(outcome, ReliveDevice)
    if ours is None:
        return section
    section.facts["best relive"] = ours.name
    bare = outcome.find(limit)
    if bare:
        section.facts["of the copy limit"] = Ratio.of(ours.rates, bare.rates).median
    theirs = _best(outcome, TorchPinned)
    if theirs:
        section.facts[f"x {theirs.name}"] = Ratio.of(ours.rates, theirs.rates).median
    threads = _best(outcome, SelectThreads)
    if threads:
        section.facts[f"x {threads.name}"] = Ratio.of(ours.rates, threads.rates).median
    return section


def _best(outcome: Outcome, kind: type[Peer]) -> Contender | None:
    found = [each for each in outcome.contenders if isinstance(each.peer, kind)]
    return max(found, key=lambda each: each.rate, default=None)
