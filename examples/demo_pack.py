"""The demo's chapter on packs: play, pack and train on games of 2048."""

import time
from pathlib import Path
from typing import Any

import numpy as np

import relive
from examples.demo_report import Report, bars, lines
from examples.play_2048 import play

GAMES = 60
BATCH = 1024
TILES = 12
"""Exponents that a cell may have in these games."""


def pack_chapter(report: Report, out: Path) -> list[str]:
    """Play games into a pack and train on its steps; return what happened, one line each."""
    path = out / "games.a2pack"
    started = time.perf_counter()
    games = [play(seed, greedy=seed % 3 != 0) for seed in range(GAMES)]
    played = time.perf_counter() - started
    with relive.PackWriter(path, codec="zstd", steps=True) as writer:
        for number, game in enumerate(games):
            writer.append(game, kind="v2", name=f"game-{number}")

    reader = relive.PackReader.open(path)
    stats = reader.stats
    kept = stats.stored_bytes / stats.payload_bytes
    said = [
        f"{GAMES} games of 2048, {stats.total_steps} steps, played in {played:.1f} s",
        f"packed with zstd to {kept:.0%} of their bytes; {reader}",
    ]
    if reader.decode(GAMES - 1) != games[-1] or reader.find("game-7") != 7:  # noqa: PLR2004
        raise SystemExit("a game came back different from what was played")
    checked = reader.validate("full")
    if not checked.ok:
        raise SystemExit(f"the pack is damaged: {checked.problems[0]}")
    said.append(f"every byte checked: {checked.checked['entries']} entries, no problem")

    greedy = reader.where(engine="greedy")
    scores = {
        name: float(np.median([run.meta.max_score for run in reader.where(engine=name)]))
        for name in ("greedy", "random")
    }
    said.append(f"median score: greedy {scores['greedy']:.0f}, random {scores['random']:.0f}")

    fit, held_out = greedy.split((0.8, 0.2), seed=1)
    curve, right, chance = _imitate(fit.steps(), held_out.steps())
    said.append(
        f"a linear player learned the best moves from {len(fit.steps())} steps: "
        f"{right:.0%} right on games it never saw, {chance:.0%} by guessing"
    )

    report.section("Pack")
    report.say(
        f"{GAMES} games of 2048 were played by a greedy player and by one that moves at random, "
        f"and went into one pack: {stats.total_steps} steps, {path.stat().st_size} bytes with a "
        "table of all steps, every byte under a checksum."
    )
    report.draw("Median score by player", bars(scores))
    tiles = dict(sorted(stats.highest_tile_hist.items()))
    report.draw("Games by their highest tile", bars({str(k): float(v) for k, v in tiles.items()}))
    report.say(
        f"Single steps, drawn in batches of {BATCH} through the same loader as any other source, "
        f"taught a linear player which moves the greedy one thinks best: {right:.0%} right on "
        f"games it never saw, where guessing among the legal moves gives {chance:.0%}."
    )
    report.draw("Loss by batch", lines(curve))
    return said


def _imitate(fit: relive.Source, held_out: relive.Source) -> tuple[list[float], float, float]:
    """Learn the best moves; return the losses, and the share of right moves on held-out games.

    Steps at which all moves are equally good are left out.
    """
    weights = np.zeros((40 * TILES, 4))
    losses = []
    loader = relive.DataLoader(fit, batch_size=min(BATCH, len(fit)), epochs=40, seed=3)
    for drawn in loader:
        batch = _choices(drawn)
        seen, chances = _chances(batch, weights)
        wanted = _best(batch)
        losses.append(float(-np.log((chances * wanted).sum(axis=1)).mean()))
        wanted = wanted / wanted.sum(axis=1, keepdims=True)
        weights -= 0.3 * seen.T @ (chances - wanted) / len(seen)
    unseen = _choices(held_out.gather(range(len(held_out))))
    _, chances = _chances(unseen, weights)
    best = _best(unseen)
    right = np.take_along_axis(best, chances.argmax(axis=1)[:, None], axis=1).mean()
    guessed = (best.sum(axis=1) / _legal(unseen).sum(axis=1)).mean()
    return losses, float(right), float(guessed)


def _choices(batch: Any) -> dict[str, Any]:
    """Return the steps at which one move is better than another."""
    matters = np.nanmax(batch["branches"], axis=1) > np.nanmin(batch["branches"], axis=1)
    return {name: values[matters] for name, values in batch.items()}


def _best(batch: dict[str, Any]) -> np.ndarray:
    """Return which moves the player rated best; there may be several."""
    worth = batch["branches"]
    best: np.ndarray = worth == np.nanmax(worth, axis=1, keepdims=True)
    return best


def _legal(batch: dict[str, Any]) -> np.ndarray:
    """Return which moves were legal."""
    legal: np.ndarray = (batch["legal"][:, None] >> np.arange(4)) & 1 == 1
    return legal


def _chances(batch: dict[str, Any], weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the features of boards, and the probability of each move."""
    cells = np.minimum(batch["cells"], TILES - 1).astype(np.intp)
    across = np.where(cells[:, :, 1:] == cells[:, :, :-1], cells[:, :, 1:], 0)
    down = np.where(cells[:, 1:] == cells[:, :-1], cells[:, 1:], 0)
    parts = [part.reshape(len(cells), -1) for part in (cells, across, down)]
    seen = np.eye(TILES)[np.concatenate(parts, axis=1)].reshape(len(cells), -1)
    scores = np.where(_legal(batch), seen @ weights, -np.inf)
    chances = np.exp(scores - scores.max(axis=1, keepdims=True))
    return seen, chances / chances.sum(axis=1, keepdims=True)
