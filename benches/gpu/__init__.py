"""Batches delivered into GPU memory: against the bare copy and against PyTorch."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from benches.data import Case, ResidentCase
from benches.gpu.copy_limit import CopyLimit
from benches.gpu.relive_device import ReliveDevice
from benches.gpu.select_threads import SelectThreads
from benches.gpu.torch_pinned import TorchPinned
from benches.gpu.transitions import STEP_BYTES, ReliveTransitions, TransitionsCase
from benches.method import Ratio, compare
from benches.peers import module
from benches.replay.stacks import AXES
from benches.summary import against, report

if TYPE_CHECKING:
    from benches.method import Contender, Outcome
    from benches.options import Options
    from benches.peers import Peer
    from benches.report import Report, Section

STEPS = 50_000
SIZES = (("3 KiB", 3072, 1024), ("147 KiB", 224 * 224 * 3, 256))


def run(options: Options) -> Report:
    """Records of both batch shapes and the transitions of a run, everyone at their best."""
    torch = module("torch")
    device = torch.device(options.device)
    limit = CopyLimit(device)
    threads = SelectThreads(device)
    everyone: dict[str, list[Peer]] = {
        "records": [TorchPinned(device, "item"), TorchPinned(device, "batch"), limit, threads],
        "transitions": [limit, threads],
    }
    for workers in options.gpu_workers:
        everyone["records"].append(ReliveDevice(device, workers))
        everyone["transitions"].append(ReliveTransitions(device, workers))
    pace = replace(options.pace, settle_s=1.0)
    sections: list[Section] = []
    used: list[Peer] = []
    for part, cases in (("records", _cases(options)), ("transitions", _steps(options))):
        if options.parts and part not in options.parts:
            continue
        # The limit is what every figure here is a share of: no filter leaves it out.
        peers = [
            peer
            for peer in everyone[part]
            if peer is limit or peer in options.chosen(everyone[part])
        ]
        used += peers
        sections += [_section(compare(peers, case, pace), limit.name) for case in cases]
    whole = report("gpu", options, used, sections)
    if device.type == "cuda":
        whole.machine["gpu"] = torch.cuda.get_device_name(device)
        whole.machine["cuda"] = str(torch.version.cuda)
    return whole


def _steps(options: Options) -> list[Case]:
    """Transitions of a run whose planes are mapped, with stacks on either axis."""
    steps = max(round(STEPS * options.scale), 2000)
    return [
        TransitionsCase(
            f"transitions, {axis} axis", STEP_BYTES, steps, 256, options.data_dir, axis=axis
        )
        for axis in sorted(options.axes or AXES)
    ]


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
    ours = _best(outcome, ReliveDevice) or _best(outcome, ReliveTransitions)
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
