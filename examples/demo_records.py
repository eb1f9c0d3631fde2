"""The demo's chapter on record stores: log, follow, correct and train."""

import multiprocessing
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

import relive
from examples.demo_report import Report, curves, lines, pictures
from relive import Field

REACHES, STEPS = 40, 25
EVERY = 20
"""Steps between two flushes."""
SIDE = 24
BLIND = 0.03
"""The share of steps at which the camera delivers a black image."""
SHOWN = 2
"""The reach whose images are in the report."""
FIELDS = {
    "reach": Field("int32"),
    "image": Field("uint8", (SIDE, SIDE, 3)),
    "state": Field("float32", (6,)),  # two angles, the hand, the goal
    "action": Field("float32", (2,)),
    "path": Field("float32", (2,), ragged=True),  # what is left of the way to the goal
    "caption": Field("str", codec="zstd"),
}


def records_chapter(report: Report, out: Path) -> list[str]:
    """Log, follow, correct, rebalance and train; return what happened, one line each."""
    path = out / "arm"
    steps = _reach_for_things()
    store = relive.RecordStore.create(path, FIELDS)
    written, seen = _log(store, steps)
    taken = written[-1][0] - written[0][0]
    said = [
        f"{len(store)} steps of a simulated arm logged in {taken:.1f} s, flushed every {EVERY}",
        f"a reader in another process saw {len(seen)} states of the store, every record whole",
    ]

    wrong = [k for k in range(len(store)) if store["state"][k][4] < 0]
    store["caption"][wrong] = [store["caption"][k].replace("right", "left") for k in wrong]
    blind = np.flatnonzero(np.asarray(store["image"]).max(axis=(1, 2, 3)) == 0)
    moves = store.delete(blind)
    used = store.utilization
    store.close()
    said.append(
        f"{len(wrong)} captions corrected, {len(blind)} records without an image deleted, "
        f"{len(moves)} moved into the free positions: {used:.0%} of the stored values are in use"
    )
    before = _bytes(path)
    with relive.RecordStore.open(path, mode="a") as store:
        store.rebalance()
    now = relive.RecordStore.open(path)
    checked = now.validate("full")
    if not checked.ok:
        raise SystemExit(f"the store is damaged: {checked.problems[0]}")
    said.append(
        f"rebalanced: {now.utilization:.0%} in use, {before / 1e6:.1f} MB before and "
        f"{_bytes(path) / 1e6:.1f} MB now; {checked.checked['records']} records checked, no problem"
    )

    losses, error, guessing = _learn_to_see(now)
    said.append(
        f"a linear eye found the hand in pictures of reaches it never saw: off by {error:.1f} "
        f"pixels, {guessing:.1f} by guessing"
    )
    _tell(report, now, written, seen)
    report.say(
        f"{len(wrong)} captions had left and right confused and were corrected, and {len(blind)} "
        f"records were deleted because their image was black. {used:.0%} of the values in "
        "the files were in use then; a rebalance left out the others. A linear model learned from "
        "the store, through the same loader as from any other source, where in a picture the "
        f"hand is: {error:.1f} pixels off on reaches it never saw, {guessing:.1f} by guessing."
    )
    report.draw("Loss by batch", lines(losses, log=True))
    return said


def follow(path: Path, total: int, pipe: Connection) -> None:
    """Follow a store that another process writes until it has `total` records; send its lengths.

    Each item is a time and a number of records. The number in the caption of a record must be
    that of the record.
    """
    store = relive.RecordStore.open(path)
    seen = [(time.monotonic(), len(store))]
    pipe.send("ready")
    deadline = time.monotonic() + 60
    while seen[-1][1] < total and time.monotonic() < deadline:
        if not store.refresh():
            time.sleep(0.001)
            continue
        fresh = range(seen[-1][1], len(store))
        seen.append((time.monotonic(), len(store)))
        batch = store.gather(fresh, ["caption", "reach"])
        for row, caption, reach in zip(fresh, batch["caption"], batch["reach"], strict=True):
            if not caption.endswith(f", step {row}") or reach != row // STEPS:
                pipe.send(f"record {row} is incomplete: {caption!r}")
                return
    pipe.send(seen)


def _log(
    store: relive.RecordStore, steps: list[dict[str, Any]]
) -> tuple[list[tuple[float, int]], list[tuple[float, int]]]:
    """Append the steps while another process follows; return the lengths both saw, with times."""
    store.flush()
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    reader = context.Process(target=follow, args=(Path(store.path), len(steps), theirs))
    reader.start()
    theirs.close()
    if ours.recv() != "ready":
        raise SystemExit("the reader did not start")
    written = [(time.monotonic(), 0)]
    for number, step in enumerate(steps, 1):
        store.append(step)
        if number % EVERY == 0:
            store.flush()
            written.append((time.monotonic(), number))
            time.sleep(0.01)  # an arm is not as fast as a disk
    store.flush()
    seen = ours.recv()
    reader.join()
    if not isinstance(seen, list) or seen[-1][1] != len(steps):
        raise SystemExit(f"the reader did not see what was written: {seen}")
    return written, seen


def _reach_for_things() -> list[dict[str, Any]]:
    """Simulate an arm of two joints that reaches for random goals; return its steps in order."""
    random = np.random.default_rng(5)
    angles = random.uniform(-np.pi, np.pi, (REACHES, 2))
    goals = random.uniform(-0.7, 0.7, (REACHES, 2))
    steps: list[list[dict[str, Any]]] = [[] for _ in range(REACHES)]
    for step in range(STEPS):
        elbow, hand = _joints(angles)
        # Along the gradient of the distance, limited by the motors.
        off = goals - hand
        by_shoulder = np.stack([-hand[:, 1], hand[:, 0]], axis=1)
        by_elbow = np.stack([elbow[:, 1] - hand[:, 1], hand[:, 0] - elbow[:, 0]], axis=1)
        turn = np.stack([(off * by_shoulder).sum(axis=1), (off * by_elbow).sum(axis=1)], axis=1)
        turn = np.clip(0.5 * turn, -0.15, 0.15)
        images = _render(elbow, hand, goals)
        images[random.random(REACHES) < BLIND] = 0
        for reach, taken in enumerate(steps):
            left = np.linspace(hand[reach], goals[reach], (STEPS - step) // 5, endpoint=False)
            # The captions confuse left and right, and are corrected later.
            number = reach * STEPS + step
            taken.append(
                {
                    "reach": reach,
                    "image": images[reach],
                    "state": np.concatenate([angles[reach], hand[reach], goals[reach]]),
                    "action": turn[reach],
                    "path": left,
                    "caption": f"reaching to the right, step {number}",
                }
            )
        angles = angles + turn
    return [step for taken in steps for step in taken]


def _joints(angles: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the positions of elbow and hand; each link is half as long as the image."""
    first, second = angles[:, 0], angles.sum(axis=1)
    elbow = 0.5 * np.stack([np.cos(first), np.sin(first)], axis=1)
    return elbow, elbow + 0.5 * np.stack([np.cos(second), np.sin(second)], axis=1)


def _render(elbow: np.ndarray, hand: np.ndarray, goals: np.ndarray) -> np.ndarray:
    """Draw the image of a camera above the table: the hand red, the goal green, the arm blue."""
    along = np.linspace(0, 1, 9)[:, None, None]
    arm = np.concatenate([along * elbow, elbow + along * (hand - elbow)])
    pictures = [
        np.clip(sum(_spot(points, width) for points in parts), 0, 1)
        for parts, width in (([hand], 1.3), ([goals], 1.0), (list(arm), 0.8))
    ]
    colours: np.ndarray = (255 * np.stack(pictures, axis=-1)).astype(np.uint8)
    return colours


def _spot(points: np.ndarray, width: float) -> np.ndarray:
    """Draw a soft spot at each point, one image per point."""
    across = np.linspace(-1.1, 1.1, SIDE) * SIDE / 2.2
    apart = points[:, :, None] * SIDE / 2.2 - across
    x, y = np.exp(-0.5 * (apart / width) ** 2).transpose(1, 0, 2)
    spots: np.ndarray = y[:, :, None] * x[:, None, :]
    return spots


def _learn_to_see(store: relive.RecordStore) -> tuple[list[float], float, float]:
    """Learn where the hand is; return the losses, and the error of it and of a guess in pixels."""
    fit, held_out = store.split((0.8, 0.2), by=np.asarray(store["reach"]), seed=2)
    weights = np.zeros((SIDE * SIDE + 1, 2))
    losses = []
    for drawn in relive.DataLoader(fit, batch_size=64, epochs=25, seed=3):
        seen, hand = _red(drawn["image"]), drawn["state"][:, 2:4]
        error = seen @ weights - hand
        losses.append(float((error**2).mean()))
        weights -= 0.05 * seen.T @ error / len(seen)
    batch: Any = held_out.gather(range(len(held_out)))
    hand = batch["state"][:, 2:4]
    pixels = SIDE / 2.2
    off = np.linalg.norm(_red(batch["image"]) @ weights - hand, axis=1).mean() * pixels
    guessing = np.linalg.norm(hand - hand.mean(axis=0), axis=1).mean() * pixels
    return losses, float(off), float(guessing)


def _red(images: np.ndarray) -> np.ndarray:
    pixels = images[..., 0].reshape(len(images), -1) / 255
    return np.concatenate([pixels, np.ones((len(images), 1))], axis=1)


def _tell(
    report: Report,
    store: relive.RecordStore,
    written: list[tuple[float, int]],
    seen: list[tuple[float, int]],
) -> None:
    report.section("Records")
    report.say(
        f"A simulated arm reached for {REACHES} things. Every step went into a record store as "
        f"one record: {', '.join(FIELDS)}. Another process had the store open all the while."
    )
    rows = np.flatnonzero(np.asarray(store["reach"]) == SHOWN)[::3][:8].tolist()
    shown = [(store["image"][row], store["caption"][row]) for row in rows]
    report.draw("What the camera saw of one reach: the hand red, the goal green", pictures(shown))
    report.draw(
        "Records over seconds: flushed by the writer, seen by the reader",
        curves({"written": written, "seen": seen}),
    )


def _bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
