"""Small packs for tests: runs of any length, and other entries between them."""

from pathlib import Path

import numpy as np

import relive

ENGINES = ("expectimax", None, "greedy")


def make_run(steps: int, seed: int = 0) -> relive.Run:
    """Return a run of `steps` steps, which depends on the seed."""
    rng = np.random.default_rng(seed)
    branches = rng.random((steps, 4), dtype=np.float32)
    branches[rng.random((steps, 4)) < 0.3] = np.nan
    branches[::3] = np.nan
    return relive.Run(
        rng.integers(0, 1 << 63, steps + 1, dtype=np.uint64),
        rng.integers(0, 4, steps, dtype=np.uint8),
        branches,
        start_unix_s=1_700_000_000 + seed,
        elapsed_s=seed / 4,
        engine=ENGINES[seed % 3],
        max_score=100 * seed,
        highest_tile=2 << seed % 11,
    )


def make_runs(count: int) -> list[relive.Run]:
    """Return runs of 0, 7, 14 and more steps."""
    return [make_run(7 * seed, seed) for seed in range(count)]


def write_runs(
    path: Path, runs: list[relive.Run], *, codec: str = "raw", steps: bool = False
) -> Path:
    """Write runs to a pack, the fifth of them in version 1."""
    with relive.PackWriter(path, codec=codec, steps=steps, align=64) as writer:
        for number, run in enumerate(runs):
            bare = relive.Run(run.boards, run.moves, engine=run.meta.engine)
            old = number % 5 == 4
            writer.append(bare if old else run, "v1" if old else "v2", name=f"run-{number}")
    return path


def flip(path: Path, offset: int) -> None:
    """Change one bit of a file."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 4
    path.write_bytes(data)
