"""The demo's chapter on learning: a policy is trained from the run that it records, with NumPy."""

import time
from pathlib import Path

import gymnasium
import numpy as np

import relive
from examples.demo_report import Report, bars
from relive.replay import Transitions
from relive.replay.gym import Record

GAME, RUN = "CartPole-v1", "cart-pole"
ROUNDS, EPISODES = 4, 20
"""How often it plays and learns, and how many episodes it plays each time."""
FEATURES, SWEEPS, GAMMA = 120, 30, 0.98
SCALE = np.array([1.2, 1.5, 0.12, 1.5])
"""By which observations are divided, so that all numbers of one are of a similar size."""


def learn_chapter(report: Report, out: Path) -> list[str]:
    """Play, record and learn in turns; return what happened."""
    root = out / "learned"
    learner = LinearValues()
    returns: list[list[float]] = []
    drawn, started, learning = 0, time.perf_counter(), 0.0
    with Record(gymnasium.make(GAME), root, RUN, frames=None, live=None) as env:
        transitions = env.recorder.transitions(n_step=3, gamma=GAMMA)
        for number in range(ROUNDS):
            returns.append(_play(env, learner, number))
            begun = time.perf_counter()
            drawn += learner.fit(transitions)
            learning += time.perf_counter() - begun
    taken = time.perf_counter() - started
    means = [float(np.mean(each)) for each in returns]
    if means[-1] < 3 * means[0]:
        raise SystemExit(f"the policy did not learn: its mean returns were {means}")
    run = relive.open(root)[RUN]
    said = [
        (
            f"{GAME}: {len(run)} steps of {len(run.episodes)} episodes recorded and learned from "
            f"in {taken:.1f} s, {learning:.1f} s of it learning"
        ),
        (
            f"{drawn:,} transitions read in {ROUNDS} rounds; the mean return of random actions is "
            f"{means[0]:.0f}, that of the last round {means[-1]:.0f}"
        ),
    ]
    _tell(report, returns, said)
    return said


class LinearValues:
    """Values of actions that are linear in fixed random features of the observation."""

    def __init__(self) -> None:
        random = np.random.default_rng(0)
        self._directions = random.normal(0, 0.7, (4, FEATURES))
        self._phases = random.uniform(0, 2 * np.pi, FEATURES)
        self._weights = np.zeros((2, FEATURES))

    def act(self, seen: np.ndarray) -> int:
        """Choose the best action known."""
        return int(np.argmax(self._values(seen)))

    def fit(self, transitions: Transitions) -> int:
        """Fit the values to all transitions so far, again and again; return how many were read."""
        transitions.refresh()
        with relive.DataLoader(transitions, batch_size=1024, epochs=1, tail="keep") as loader:
            batches = [self._prepared(batch) for batch in loader]
        moments = np.zeros((2, FEATURES, FEATURES)) + np.eye(FEATURES)
        for seen, action, *_ in batches:
            for each in range(2):
                rows = seen[action == each]
                moments[each] += rows.T @ rows
        inverse = np.linalg.inv(moments)
        for _ in range(SWEEPS):
            goals = np.zeros((2, FEATURES))
            for seen, action, reward, discount, after in batches:
                goal = reward + discount * (after @ self._weights.T).max(axis=1)
                for each in range(2):
                    goals[each] += seen[action == each].T @ goal[action == each]
            self._weights = np.einsum("aij,aj->ai", inverse, goals)
        return len(transitions)

    def _prepared(self, batch: dict[str, np.ndarray]) -> tuple[np.ndarray, ...]:
        seen, after = (self._features(batch[name]) for name in ("observation", "next_observation"))
        return seen, batch["action"], batch["reward"], batch["discount"], after

    def _features(self, seen: np.ndarray) -> np.ndarray:
        angles: np.ndarray = seen / SCALE @ self._directions + self._phases
        features: np.ndarray = np.cos(angles)
        return features

    def _values(self, seen: np.ndarray) -> np.ndarray:
        values: np.ndarray = self._features(seen) @ self._weights.T
        return values


def _play(env: Record, learner: LinearValues, number: int) -> list[float]:
    """Play episodes, at random in the first round; return the return of each."""
    random = np.random.default_rng(number)
    returns = []
    for episode in range(EPISODES):
        seen, _ = env.reset(seed=1000 * number + episode)
        total, is_over = 0.0, False
        while not is_over:
            is_random = random.random() < (1.0 if number == 0 else 0.05)
            action = int(random.integers(2)) if is_random else learner.act(seen)
            seen, reward, terminated, truncated, _ = env.step(action)
            total += float(reward)
            is_over = terminated or truncated
        returns.append(total)
    return returns


def _tell(report: Report, returns: list[list[float]], said: list[str]) -> None:
    report.section("Learn")
    report.say(
        f"An agent played {GAME}, recorded what it did, and learned from its own run: the replay "
        "buffer is the run on the disk. Values of actions were fitted to all transitions so far, "
        "with NumPy alone, after every round of episodes."
    )
    report.draw(
        f"Mean return of {EPISODES} episodes; those of round 0 act at random",
        bars({f"round {number}": float(np.mean(each)) for number, each in enumerate(returns)}),
    )
    report.say(" ".join(f"{line[0].upper()}{line[1:]}." for line in said))
