"""Measures how well the block order shuffles, for several windows and partitions.

Run as `python -m tools.shuffle_quality [--rows N] [--seeds N]`; prints the table of the guide page
about data larger than memory. The blocks have different sizes, as row groups have.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from relive import Sampler

Array: TypeAlias = npt.NDArray[Any]

_BLOCK_ROWS: Final = 1000
_BATCH: Final = 64
_WORLD: Final = 8
_VALUES: Final = 20
"""Random values per block, for the noise of means."""
_ROUNDED: Final = 10


@dataclass(slots=True, frozen=True)
class Case:
    """One order: `blocks` of the table in a window of each partition; None for a full shuffle."""

    blocks: int | None
    partitions: int = 1

    @property
    def name(self) -> str:
        """The order in words."""
        if self.blocks is None:
            return "`shuffle`"
        return f"k = {self.blocks}, `partitions={self.partitions}`"


CASES: Final = (
    Case(4, 1),
    Case(4, 8),
    Case(16, 1),
    Case(16, 8),
    Case(64, 1),
    Case(64, 8),
    Case(None),
)


@dataclass(slots=True, frozen=True)
class Quality:
    """What was measured of one order; means over seeds."""

    blocks_in_step: float
    blocks_in_batch: float
    shared: float
    """The rows of a step that share their block with another row of it, as a fraction."""
    distance: float
    """The median distance of neighbours in the stream."""
    correlation: float
    """The correlation of row and position, root mean square."""
    noise: float
    """The variance of the mean of a step relative to a full shuffle, if blocks are constant."""
    next_step: float
    """The correlation of that mean with the one of the next step."""
    read: float
    """The part of the blocks that one rank reads in an epoch."""


def block_bounds(rows: int, seed: int = 0) -> Array:
    """Return the bounds of blocks that have between half and one and a half times the mean."""
    rng = np.random.default_rng(seed)
    count = max(1, rows // _BLOCK_ROWS)
    sizes = rng.integers(_BLOCK_ROWS // 2, _BLOCK_ROWS * 3 // 2, count)
    ends = np.cumsum(sizes) * rows // sizes.sum()
    return np.concatenate([[0], ends]).astype(np.int64)


def epoch(bounds: Array, case: Case, seed: int) -> Array:
    """Return the rows of all full steps of an epoch, one row of the result per step."""
    rows = int(bounds[-1])
    options: dict[str, Any] = {}
    if case.blocks is not None:
        window = case.blocks * _BLOCK_ROWS
        options = {"blocks": bounds, "window": window, "partitions": case.partitions}
    mode = "shuffle" if case.blocks is None else "block"
    sampler = Sampler(rows, _BATCH * _WORLD, mode, seed=seed, tail="drop", **options)
    return np.stack([next(sampler) for _ in range(sampler.steps_per_epoch)])


def measure(bounds: Array, case: Case, seeds: int) -> Quality:
    """Measure one order over some seeds."""
    found = [_measure(bounds, epoch(bounds, case, seed), seed) for seed in range(seeds)]
    means = np.mean(found, axis=0)
    # Signs differ between seeds, so a mean of correlations would be zero.
    means[4] = np.sqrt(np.mean(np.square(found)[:, 4]))
    return Quality(*map(float, means))


def _measure(bounds: Array, steps: Array, seed: int) -> list[float]:
    blocks = np.searchsorted(bounds, steps, side="right") - 1
    counted = np.sort(blocks, axis=1)
    is_first = np.concatenate([np.ones((len(steps), 1), bool), np.diff(counted) != 0], axis=1)
    is_last = np.concatenate([is_first[:, 1:], np.ones((len(steps), 1), bool)], axis=1)
    batches = np.sort(blocks.reshape(-1, _BATCH), axis=1)
    stream = steps.ravel()
    position = np.full(int(bounds[-1]), -1)
    position[stream] = np.arange(len(stream))
    both = (position[1:] >= 0) & (position[:-1] >= 0)
    noise, next_step = _noise(bounds, blocks, seed)
    rank = blocks.reshape(len(steps), _WORLD, _BATCH)[:, 0]
    return [
        is_first.sum() / len(steps),
        1 + np.count_nonzero(np.diff(batches)) / len(batches),
        1 - np.count_nonzero(is_first & is_last) / blocks.size,
        float(np.median(np.abs(np.diff(position))[both])),
        float(np.corrcoef(stream, np.arange(len(stream)))[0, 1]),
        noise,
        next_step,
        len(np.unique(rank)) / (len(bounds) - 1),
    ]


def _noise(bounds: Array, blocks: Array, seed: int) -> tuple[float, float]:
    rng = np.random.default_rng(seed)
    noise, next_step = [], []
    for _ in range(_VALUES):
        value = rng.standard_normal(len(bounds) - 1)
        means = value[blocks].mean(axis=1)
        noise.append(means.var() * blocks.shape[1] / value.var())
        next_step.append(np.corrcoef(means[:-1], means[1:])[0, 1])
    return float(np.mean(noise)), float(np.mean(next_step))


def table(rows: int, seeds: int) -> str:
    """Return the measurements as a table in Markdown."""
    bounds = block_bounds(rows)
    head = (
        "| order | blocks in a step | blocks in a rank's batch | rows that share their block "
        "with another row of the step | distance between neighbours, median | correlation of row "
        "and position, rms | noise of a step's mean, at worst | correlation with the next step's "
        "mean | blocks that a rank reads |"
    )
    lines = [head, "|---|---|---|---|---|---|---|---|---|"]
    for case in CASES:
        found = measure(bounds, case, seeds)
        noise = f"{found.noise:.{0 if found.noise >= _ROUNDED else 1}f} ×"
        cells = [
            case.name,
            f"{found.blocks_in_step:.3g}",
            f"{found.blocks_in_batch:.3g}",
            f"{found.shared:.0%}".replace("%", " %"),
            f"{found.distance:,.0f}",
            f"{found.correlation:.3f}",
            noise,
            f"{abs(found.next_step):.2f}",
            f"{found.read:.0%}".replace("%", " %"),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the table")
    parser.add_argument("--seeds", type=int, default=10, help="orders that are measured")
    options = parser.parse_args(arguments)
    sys.stdout.write(table(options.rows, options.seeds) + "\n")


if __name__ == "__main__":
    main()
