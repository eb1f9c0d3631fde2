"""The demo that `make demo` runs: every part of relive, on this machine, without a server.

Each chapter prints what happened and adds a section to the report.
"""

import json
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import relive  # noqa: E402
from examples.demo_episodes import episodes_chapter  # noqa: E402 - needs the path above
from examples.demo_learn import learn_chapter  # noqa: E402
from examples.demo_pack import pack_chapter  # noqa: E402
from examples.demo_publish import publish_chapter  # noqa: E402
from examples.demo_records import records_chapter  # noqa: E402
from examples.demo_replay import replay_chapter  # noqa: E402
from examples.demo_report import Report, bars, dots, lines  # noqa: E402
from examples.demo_stream import stream_chapter  # noqa: E402

OUT = ROOT / "build" / "demo"
EPISODES, STEPS = 400, 100
BATCH = 128


def main() -> None:
    """Run every chapter and write `build/demo/report.html`."""
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    report = Report("relive: the demo")
    chapters: list[tuple[str, Callable[[Report], None]]] = [
        ("episodes", episodes),
        ("replay", replay),
        ("learn", learn),
        ("records", records),
        ("pack", pack),
        ("publish", publish),
        ("stream", stream),
        ("train", train),
    ]
    for number, (name, chapter) in enumerate(chapters, start=1):
        print(f"[{number}/{len(chapters)}] {name}")
        chapter(report)
    path = OUT / "report.html"
    report.write(path)
    print(f"report: {path.relative_to(ROOT)}")


def episodes(report: Report) -> None:
    """Record an arm with two cameras, recover a killed recording, read by time, and imitate it."""
    for line in episodes_chapter(report, OUT):
        _say(line)


def replay(report: Report) -> None:
    """Record two players of an Atari game, watch one of them live, and compare them by SQL."""
    for line in replay_chapter(report, OUT):
        _say(line)


def learn(report: Report) -> None:
    """Train a policy from the run that it records, without any library for learning."""
    for line in learn_chapter(report, OUT):
        _say(line)


def records(report: Report) -> None:
    """Log the steps of an arm, follow them from another process, correct them, and train."""
    for line in records_chapter(report, OUT):
        _say(line)


def pack(report: Report) -> None:
    """Pack games of 2048 into one file, and train on its steps."""
    for line in pack_chapter(report, OUT):
        _say(line)


def publish(report: Report) -> None:
    """Publish the recorded steps as versions of a dataset, open one, query it and stream it."""
    for line in publish_chapter(report, OUT):
        _say(line)


def stream(report: Report) -> None:
    """Train from a published table in batches; stop, and resume with other ranks."""
    for line in stream_chapter(report, OUT):
        _say(line)


def train(report: Report) -> None:
    """Load batches from arrays on disk; train a policy, stop it and resume it."""
    states, actions = _drive_an_arm()
    np.save(OUT / "state.npy", states)
    np.save(OUT / "action.npy", actions)
    rows = relive.ArraySource({"state": OUT / "state.npy", "action": OUT / "action.npy"})
    fit, held_out = rows.split((0.9, 0.1), by=np.repeat(np.arange(EPISODES), STEPS))
    _say(f"{EPISODES} episodes of a simulated arm, {rows}")
    _say(f"split by episode: {len(fit)} rows to train on, {len(held_out)} held out")

    loader = relive.DataLoader(fit, batch_size=BATCH, seed=7)
    whole = Policy()
    losses = [whole.learn(batch) for _ in range(3) for batch in loader.epoch()]
    _say(f"3 epochs, {len(losses)} batches: loss {losses[0]:.3f} → {losses[-1]:.5f}")

    stopped = Policy()
    first = relive.DataLoader(fit, batch_size=BATCH, seed=7)
    for _ in range(300):
        stopped.learn(next(first))
    state = json.dumps(first.state_dict())
    first.close()
    second = relive.DataLoader(fit, batch_size=BATCH, seed=7, workers=5, prefetch=9)
    second.load_state_dict(json.loads(state))
    while second.position < loader.position:
        stopped.learn(next(second))
    if not np.array_equal(whole.hidden, stopped.hidden):
        sys.exit("a run that was stopped and resumed came out different")
    _say("stopped after 300 batches, resumed with 5 workers: the same weights, bit for bit")

    evaluation = relive.DataLoader(held_out, batch_size=BATCH, epochs=1, tail="keep")
    errors = np.concatenate([whole.error(batch) for batch in evaluation])
    _say(f"held out: {len(errors)} rows, each seen once, mean error {errors.mean():.4f}")

    rates = _rates()
    ratio = rates["relive DataLoader"] / rates["NumPy indexing"]
    for name, rate in rates.items():
        _say(f"{name}: {rate:.1f} GB/s")

    report.section("Train")
    report.say(
        f"{EPISODES} episodes of a simulated two-joint arm were driven by a controller and saved "
        f"as two .npy files. A small network learned the controller from batches of {BATCH}."
    )
    report.draw("Loss by batch", lines(losses, log=True))
    report.say(
        f"On {len(errors)} rows of episodes it never saw, its mean error is {errors.mean():.4f}. "
        "A second run was stopped after 300 batches and resumed from its state, with another "
        "number of workers: the weights came out the same, bit for bit."
    )
    report.draw("Which rows the first batches take, by mode", dots(_orders()))
    report.say(
        "Rows of 12 KiB in batches of 256, at random, from memory. "
        f"The loader delivers {ratio:.1f} times what NumPy indexing does in a loop."
    )
    report.draw("GB/s", bars(rates))


class Policy:
    """A network of one hidden layer that learns actions from states."""

    def __init__(self) -> None:
        random = np.random.default_rng(0)
        self.hidden = random.normal(0, 0.5, (6, 64))
        self.out = random.normal(0, 0.1, (64, 2))

    def learn(self, batch: dict[str, np.ndarray]) -> float:
        """Take one gradient step and return the loss before it."""
        state, wanted = batch["state"], batch["action"]
        active = np.tanh(state @ self.hidden)
        error = active @ self.out - wanted
        back = (error @ self.out.T) * (1 - active**2)
        self.out -= 0.3 * active.T @ error / len(state)
        self.hidden -= 0.3 * state.T @ back / len(state)
        return float((error**2).mean())

    def error(self, batch: dict[str, np.ndarray]) -> np.ndarray:
        """Return the error of each action."""
        guess = np.tanh(batch["state"] @ self.hidden) @ self.out
        distance: np.ndarray = np.linalg.norm(guess - batch["action"], axis=1)
        return distance


def _drive_an_arm() -> tuple[np.ndarray, np.ndarray]:
    """Simulate a controller that moves two joints to random goals; return states and torques."""
    random = np.random.default_rng(1)
    angle, speed = random.uniform(-1, 1, (2, EPISODES, 2))
    goal = random.uniform(-1, 1, (EPISODES, 2))
    states = np.empty((EPISODES, STEPS, 6))
    actions = np.empty((EPISODES, STEPS, 2))
    for step in range(STEPS):
        torque = np.clip(2.0 * (goal - angle) - 1.2 * speed, -1, 1)
        states[:, step] = np.concatenate([angle, speed, goal], axis=1)
        actions[:, step] = torque
        speed = speed + 0.05 * (torque - 0.1 * speed + random.normal(0, 0.2, torque.shape))
        angle = angle + 0.05 * speed
    return states.reshape(-1, 6), actions.reshape(-1, 2)


def _orders() -> dict[str, list[np.ndarray]]:
    modes = {"sequential": {}, "block": {"window": 2048, "stride": 256}, "shuffle": {}}
    return {
        mode: relive.Sampler(20_000, 256, mode, **options).peek(12)  # type: ignore[arg-type]
        for mode, options in modes.items()
    }


def _rates() -> dict[str, float]:
    """Return the GB/s of a loader and of a loop that indexes an array, on the same rows."""
    frames = np.random.default_rng(2).integers(0, 255, (20_000, 12_288), dtype=np.uint8)
    loader = relive.DataLoader(frames, batch_size=256)
    sampler = relive.Sampler(len(frames), 256)
    rates: dict[str, list[float]] = {"NumPy indexing": [], "relive DataLoader": []}
    size = 256 * frames.shape[1] / 1e9
    for _ in range(7):
        rates["NumPy indexing"].append(size / _seconds(lambda: frames[next(sampler)]))
        rates["relive DataLoader"].append(size / _seconds(lambda: next(loader)))
    loader.close()
    return {name: float(np.median(values)) for name, values in rates.items()}


def _seconds(work: Callable[[], object], times: int = 40) -> float:
    start = time.perf_counter()
    for _ in range(times):
        work()
    return (time.perf_counter() - start) / times


def _say(text: str) -> None:
    print(f"      {text}")


if __name__ == "__main__":
    main()
