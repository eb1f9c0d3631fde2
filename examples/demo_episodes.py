"""The demo's chapter on episodes: record, recover, read and imitate an arm with two cameras."""

import multiprocessing
import os
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

import relive
from examples.arm import FASTEST, HOME, JOINTS, command, points, render
from examples.demo_report import Report, lines
from relive.episodes import DiskEpisodeWriter, now_ns, recover, transforms
from relive.load import Concat
from relive.model.episode import Episode
from relive.view import draw_svg

EPISODES, GOALS = 5, 4
STATE_HZ, CAMERA_HZ, SECONDS = 100, 20, 4
MS = 1_000_000
STALL = (1.2, 2.2)
"""The seconds in which the top camera of one episode delivers no frames."""
BATCH = 64


def episodes_chapter(report: Report, out: Path) -> list[str]:
    """Record, recover, draw, read by time and train; return what happened, one line each."""
    root = out / "arm-episodes"
    started = time.perf_counter()
    dropped, frames = _record(root)
    taken = time.perf_counter() - started
    dataset = relive.LocalDataset(root)
    said = [
        (
            f"{len(dataset)} episodes of {SECONDS} s with two cameras recorded in {taken:.1f} s: "
            f"{frames} frames, {dropped} dropped"
        ),
        *_kill_and_recover(root),
    ]
    dataset.refresh()
    last = dataset[len(dataset) - 1]
    dataset.edits.set_static(last.uid, "success", value=False)
    dataset.edits.trim(last.uid, stop=last.first_ts + 500 * MS)
    dataset.refresh()
    said.append(f"the one that was killed is marked and trimmed; the dataset: {dataset}")

    shown = dataset[1]
    said += _read_by_time(shown)
    losses, error, guessing, off = _imitate(dataset)
    said.append(
        f"one layer imitates the arm from its signals: off by {error:.3f} rad/s in an episode it "
        f"never saw, {guessing:.3f} by guessing; alone it ends {1000 * off:.1f} mm from a new goal"
    )
    _tell(report, dataset, shown)
    report.say(
        "Signals are sources, so the loader takes them as they are. A transform made one of the "
        "joints and the goal, which come at different rates: how far is left to go. From that a "
        f"single layer learned the commands: {error:.3f} rad/s off in an episode it never saw, "
        f"{guessing:.3f} by guessing. Alone with a new goal it ends {1000 * off:.1f} mm from it."
    )
    report.draw("Loss by batch", lines(losses, log=True))
    return said


def _record(root: Path) -> tuple[int, int]:
    """Record the episodes; return how many frames were dropped and how many recorded."""
    writer = relive.LocalDatasetWriter(root, signals={"cam.top": "lossless"})
    dropped = frames = 0
    for number in range(EPISODES):
        with writer.new_episode() as episode:
            episode.set_static("task", f"touch {GOALS} things, one after the other")
            episode.set_static("success", value=True)
            episode.describe("q", names=list(JOINTS), unit="rad")
            episode.describe("command", names=list(JOINTS), unit="rad/s")
            episode.describe("hand", names=["x", "y", "z"], unit="m")
            _reach(episode, number)
        dropped += episode.stats.dropped
        frames += sum(episode.stats.signals[name].rows for name in ("cam.side", "cam.top"))
    return dropped, frames


def _reach(episode: DiskEpisodeWriter, number: int) -> None:
    """Move the hand to one goal after the other, on a simulated clock."""
    random = np.random.default_rng(number)
    joints, goal, phase, began = HOME.copy(), HOME, "", now_ns()
    for step in range(SECONDS * STATE_HZ):
        ts = began + step * 1000 * MS // STATE_HZ
        if step % (SECONDS * STATE_HZ // GOALS) == 0:
            goal = HOME + random.uniform(-0.7, 0.7, len(JOINTS))
            episode.append("goal", goal.astype(np.float32), ts)
        near = float(np.abs(goal - joints).max()) < 0.05  # noqa: PLR2004 - radians
        if phase != (now := "touch" if near else "reach"):
            phase = now
            episode.append("phase", phase, ts)
        speeds = command(joints, goal)
        episode.append("q", joints.astype(np.float32), ts)
        episode.append("command", speeds.astype(np.float32), ts)
        episode.append("hand", points(joints)[-1].astype(np.float32), ts)
        episode.append("near", near, ts)
        if step % (STATE_HZ // CAMERA_HZ) == 0:
            taken = {"sensor": ts - int(random.integers(8 * MS, 12 * MS))}  # exposure and transfer
            episode.append("cam.side", render(joints, goal, above=False), ts, clocks=taken)
            if not (number == 1 and STALL[0] <= step / STATE_HZ < STALL[1]):
                episode.append("cam.top", render(joints, goal, above=True), ts, clocks=taken)
        joints = joints + (speeds + random.normal(0, 0.05, len(JOINTS))) / STATE_HZ


def record_for_ever(root: Path, pipe: Connection) -> None:
    """Record until this process is killed; send the number of flushed records."""
    with relive.LocalDatasetWriter(root).new_episode() as episode:
        episode.set_static("task", "recorded until it is killed")
        for step in range(100_000):
            episode.append("q", np.full(7, step, np.float32))
            if step % 5 == 0:
                episode.append("cam.side", render(HOME, HOME, above=False))
            if step % 50 == 49:  # noqa: PLR2004 - every fiftieth step
                episode.flush()
                pipe.send({name: each.rows for name, each in episode.stats.signals.items()})
            time.sleep(0.002)


def _kill_and_recover(root: Path) -> list[str]:
    """Kill a process during a recording, and recover the recording."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=record_for_ever, args=(root, theirs))
    process.start()
    theirs.close()
    flushed: dict[str, int] = {}
    while sum(flushed.values()) < 200:  # noqa: PLR2004 - enough records
        flushed = ours.recv()
    os.kill(process.pid or 0, signal.SIGKILL)
    process.join()
    left = relive.LocalDataset(root).unfinished
    found = recover(root)
    (episode,) = found.episodes
    if len(left) != 1 or any(episode.signals[name] < rows for name, rows in flushed.items()):
        raise SystemExit(f"a recording that was killed lost something: {found}, {flushed}")
    rows = " and ".join(f"{count} of {name}" for name, count in episode.signals.items())
    return [
        (
            f"a recorder was killed with -9 after it had flushed {sum(flushed.values())} records; "
            f"recovered: {rows}"
        )
    ]


def _read_by_time(episode: Episode) -> list[str]:
    """Read a moment, a window and samples; return what was read, one line each."""
    middle = episode.start_ts + 1500 * MS
    moment = episode.time[middle]
    window = episode.time[middle : middle + 200 * MS]
    q, stamps = episode["q"], episode["cam.side"].timestamps
    steps = range(middle, middle + 1000 * MS, 33 * MS)
    held, between = q.time[list(steps)], q.resample(list(steps), "linear")
    apart = np.abs(held.values() - between.values()).max()
    late = stamps - episode["cam.side"].clock("sensor")
    return [
        (
            f"at 1.5 s: {moment['phase']!r}, and a picture of {moment['cam.side'].shape}; "
            f"in the next 200 ms: {len(window['q'])} states, {len(window['cam.side'])} frames"
        ),
        (
            f"{len(held)} samples at 30 Hz, held and linear: up to {apart:.3f} rad apart; "
            f"frames came {late.min() / MS:.0f} to {late.max() / MS:.0f} ms after they were taken"
        ),
    ]


def _to_go(episode: Episode) -> relive.Signal[Any]:
    """Return the distance of the joints to the goal, which holds until the next one."""
    return transforms.combine([episode["goal"], episode["q"]], np.subtract, at=episode["q"])


def _imitate(dataset: relive.LocalDataset) -> tuple[list[float], float, float, float]:
    """Learn the commands; return losses, error, error of a guess, and metres from a new goal."""
    good = dataset.filter(lambda episode: episode["success"])
    *fit, held_out = good.map(transforms.derive(to_go=_to_go))
    loader = relive.DataLoader(
        {
            "state": Concat(*(episode["to_go"] for episode in fit)),
            "action": Concat(*(episode["command"] for episode in fit)),
        },
        batch_size=BATCH,
        epochs=40,
        seed=1,
    )
    weights, losses = np.zeros((len(JOINTS), len(JOINTS))), []
    for batch in loader:
        state, wanted = batch["state"]["value"], batch["action"]["value"]
        guess = FASTEST * np.tanh(state @ weights)
        losses.append(float(((guess - wanted) ** 2).mean()))
        slope = (guess - wanted) * (FASTEST - guess**2 / FASTEST)
        weights -= 0.5 * state.T @ slope / len(state)
    unseen, wanted = held_out["to_go"].values(), held_out["command"].values()
    off = np.abs(FASTEST * np.tanh(unseen @ weights) - wanted).mean()
    guessing = np.abs(wanted - wanted.mean(axis=0)).mean()
    joints, goal = HOME.copy(), HOME + np.array([0.5, 0.4, -0.3, -0.6, 0.2, 0.3, 0.1])
    for _ in range(2 * STATE_HZ):
        joints = joints + FASTEST * np.tanh((goal - joints) @ weights) / STATE_HZ
    return losses, float(off), float(guessing), float(_apart(joints, goal))


def _apart(joints: np.ndarray, goal: np.ndarray) -> np.floating[Any]:
    return np.linalg.norm(points(joints)[-1] - points(goal)[-1])


def _tell(report: Report, dataset: relive.LocalDataset, shown: Episode) -> None:
    report.section("Episodes")
    report.say(
        f"A simulated arm of seven joints touched {GOALS} things in each of {EPISODES} episodes: "
        f"joints, commands and the hand at {STATE_HZ} Hz, two cameras at {CAMERA_HZ} Hz, one of "
        "them lossless, and goal and phase whenever they changed. In this episode the camera "
        "above delivered no frames for a second, which the picture shows."
    )
    report.draw("One episode, as relive episodes plot draws it", draw_svg(shown), wide=True)
    report.say(
        "Another process recorded into the same dataset until it was killed. What it had "
        "flushed was recovered, marked as a failure and trimmed; edits do not change the "
        "recorded files. The dataset as a table, which DuckDB can query:"
    )
    table = dataset.table()
    rows = [
        [
            str(row["position"]),
            row["uid"][:8],
            row["ended"],
            f"{row['duration_ns'] / 1e9:.2f} s",
            str(row["rows"]["q"]),
            str(row["rows"]["cam.side"]),
            "yes" if row["statics"]["success"] else "no",
        ]
        for row in table.to_pylist()
    ]
    report.table(["", "uid", "ended", "duration", "states", "frames", "success"], rows)
