"""A player of 2048 that looks one move ahead and writes its games to a pack.

python examples/play_2048.py --output games.a2pack
"""

import argparse
import random
import sys
import tempfile
import time

import numpy as np

import relive

UP, DOWN, LEFT, RIGHT = range(4)


def slide(line: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
    """Push four exponents to the left; return the line and the sum of the merged tiles."""
    tiles = [tile for tile in line if tile]
    merged, score, at = [], 0, 0
    while at < len(tiles):
        if at + 1 < len(tiles) and tiles[at] == tiles[at + 1] and tiles[at] < 15:  # noqa: PLR2004
            merged.append(tiles[at] + 1)
            score += 2 << tiles[at]
            at += 2
        else:
            merged.append(tiles[at])
            at += 1
    return (*merged, *[0] * (4 - len(merged))), score


LINES: dict[tuple[int, ...], tuple[tuple[int, ...], int]] = {
    (a, b, c, d): slide((a, b, c, d))
    for a in range(12)
    for b in range(12)
    for c in range(12)
    for d in range(12)
}


def move(cells: list[int], direction: int) -> tuple[list[int], int]:
    """Return the cells after a move, and the sum of the merged tiles."""
    after, score = [0] * 16, 0
    for k in range(4):
        places = [4 * k + j if direction in {LEFT, RIGHT} else 4 * j + k for j in range(4)]
        if direction in {RIGHT, DOWN}:
            places.reverse()
        line = tuple(cells[place] for place in places)
        pushed, merged = LINES.get(line) or slide(line)
        score += merged
        for place, tile in zip(places, pushed, strict=True):
            after[place] = tile
    return after, score


def add_tile(cells: list[int], chance: random.Random) -> None:
    """Put a 2, or rarely a 4, on an empty cell."""
    empty = [place for place, tile in enumerate(cells) if not tile]
    cells[chance.choice(empty)] = 1 if chance.random() < 0.9 else 2  # noqa: PLR2004


def packed(cells: list[int]) -> int:
    """Return the board as one number, four bits per cell."""
    number = 0
    for tile in cells:
        number = number << 4 | tile
    return number


def play(seed: int, *, greedy: bool = True) -> relive.Run:
    """Play a game to its end; a greedy player takes the move that merges most."""
    chance = random.Random(seed)  # noqa: S311 - a game, not a secret
    started = time.time()
    cells = [0] * 16
    add_tile(cells, chance)
    add_tile(cells, chance)
    boards, moves, branches = [packed(cells)], [], []
    while True:
        options = [move(cells, direction) for direction in range(4)]
        legal = [direction for direction in range(4) if options[direction][0] != cells]
        if not legal:
            break
        worth = {d: options[d][1] + 16 * options[d][0].count(0) for d in legal}
        low, high = min(worth.values()), max(worth.values())
        best = [d for d in legal if worth[d] == high]
        chosen = chance.choice(best if greedy else legal)
        spread = max(1, high - low)
        branches.append([(worth[d] - low) / spread if d in worth else np.nan for d in range(4)])
        moves.append(chosen)
        cells = options[chosen][0]
        add_tile(cells, chance)
        boards.append(packed(cells))
    return relive.Run(
        np.array(boards, dtype=np.uint64),
        np.array(moves, dtype=np.uint8),
        np.array(branches, dtype=np.float32),
        start_unix_s=int(started),
        elapsed_s=time.time() - started,
        engine="greedy" if greedy else "random",
    )


def main() -> None:
    """Play games into a pack and print statistics."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--output", help="the path of the pack; by default it is deleted at the end"
    )
    parser.add_argument("--games", type=int, default=40)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        keep(options.output or f"{scratch}/games.a2pack", options.games)


def keep(path: str, games: int) -> None:
    """Play games into a pack at `path`, and print statistics of it."""
    with relive.PackWriter(path, codec="zstd", steps=True) as pack:
        for seed in range(games):
            pack.append(play(seed, greedy=seed % 2 == 0), kind="v2", name=f"game-{seed}")
    reader = relive.PackReader.open(path)
    stats = reader.stats
    sys.stdout.write(f"{stats.count} games, {stats.total_steps} steps\n")
    for engine in sorted(stats.engine_counts):
        tiles = reader.where(engine=engine).stats.highest_tile_hist
        sys.stdout.write(f"{engine}: highest tile by games {dict(sorted(tiles.items()))}\n")


if __name__ == "__main__":
    main()
