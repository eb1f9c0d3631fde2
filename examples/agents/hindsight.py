"""Hindsight goals: what was reached counts as what was wanted, though nearly every episode fails.

Needs `pip install 'relive[replay,torch]'`. Each step flips a bit, and the goal is a pattern of
bits, as in *Hindsight Experience Replay* (arXiv 1707.01495). The run has the goals that were
wanted. For most draws, a goal is taken from what was reached later in the same episode, and the
reward is computed from it.
"""

import tempfile
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import nn

from relive.replay import Transitions
from relive.replay.gym import Record

BITS = 7
EPISODES = 1_200
LEARNING_STARTS = 30
UPDATES = 2
BATCH = 128
GAMMA = 0.95
RELABELED = 0.8
"""The share of draws with a goal of hindsight."""
MARGIN = 0.5
"""By how much the share of goals reached must be above that of random actions."""


class FlipBits(gymnasium.Env[dict[str, np.ndarray], np.int64]):  # type: ignore[misc] # a base without types
    """Flip bits, one in each step, until they are those of the goal."""

    def __init__(self) -> None:
        bits = gymnasium.spaces.MultiBinary(BITS)
        self.observation_space = gymnasium.spaces.Dict({"bits": bits, "goal": bits})
        self.action_space = gymnasium.spaces.Discrete(BITS)
        self._bits = self._goal = np.zeros(BITS, np.int8)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Begin with other bits and another goal."""
        super().reset(seed=seed, options=options)
        self._bits, self._goal = self.np_random.integers(0, 2, (2, BITS), np.int8)
        return self._seen(), {}

    def step(
        self, action: np.int64
    ) -> tuple[dict[str, np.ndarray], float, bool, bool, dict[str, Any]]:
        """Flip a bit. The reward is -1 until the goal is reached."""
        self._bits[action] ^= 1
        is_reached = bool((self._bits == self._goal).all())
        return self._seen(), is_reached - 1.0, is_reached, False, {}

    def _seen(self) -> dict[str, np.ndarray]:
        return {"bits": self._bits.copy(), "goal": self._goal.copy()}


class Learner:
    """A network that values actions by the bits and the goal."""

    def __init__(self) -> None:
        self.q, self.target = _network(), _network()
        self.target.load_state_dict(self.q.state_dict())
        self.optimiser = torch.optim.Adam(self.q.parameters(), lr=1e-3)

    def act(self, seen: dict[str, np.ndarray]) -> int:
        """Choose the best action known."""
        with torch.no_grad():
            return int(self.q(_inputs(seen["bits"], seen["goal"])).argmax())

    def learn(self, batch: dict[str, np.ndarray]) -> None:
        """Take one step of gradient descent."""
        goal = batch["observation.goal"]
        with torch.no_grad():
            best = self.target(_inputs(batch["next_observation.bits"], goal)).max(dim=1).values
            wanted = torch.from_numpy(batch["reward"]) + torch.from_numpy(batch["discount"]) * best
        values = self.q(_inputs(batch["observation.bits"], goal))
        value = values.gather(1, torch.from_numpy(batch["action"])[:, None]).squeeze(1)
        loss = nn.functional.smooth_l1_loss(value, wanted)
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()
        with torch.no_grad():
            pairs = zip(self.target.parameters(), self.q.parameters(), strict=True)
            for slow, fast in pairs:
                slow.lerp_(fast, 0.02)


def relabel(
    transitions: Transitions, batch: dict[str, np.ndarray], generator: np.random.Generator
) -> None:
    """Replace most goals of a batch by what was reached later, and their rewards."""
    index = batch["index"]
    _, last = transitions.episode_bounds(index)
    later = generator.integers(index, last + 1)
    # What followed the newest step of an open episode is not known yet.
    positions = transitions.positions(later)
    positions = np.where(positions < 0, transitions.positions(index), positions)
    reached = transitions.gather(positions, ["next_observation.bits"])["next_observation.bits"]
    is_replaced = generator.random(len(index)) < RELABELED
    batch["observation.goal"][is_replaced] = reached[is_replaced]
    is_reached = (batch["next_observation.bits"] == batch["observation.goal"]).all(axis=1)
    batch["reward"] = is_reached.astype(np.float32) - 1
    batch["discount"] = np.where(is_reached, 0, GAMMA).astype(np.float32)


def train(root: Path, seed: int = 1) -> Learner:
    """Train with goals of hindsight."""
    torch.manual_seed(seed)
    learner, generator = Learner(), np.random.default_rng(seed)
    game = gymnasium.wrappers.TimeLimit(FlipBits(), BITS)
    with Record(game, root, "flip-bits", frames=None, live=None) as env:
        transitions = env.recorder.transitions(gamma=GAMMA)
        draws: Any = transitions.batches(BATCH, generator=generator)
        for episode in range(EPISODES):
            seen, _ = env.reset(seed=seed if episode == 0 else None)
            is_over = False
            while not is_over:
                is_random = generator.random() < max(0.1, 1 - 2 * episode / EPISODES)
                action = int(generator.integers(BITS)) if is_random else learner.act(seen)
                seen, _, terminated, truncated, _ = env.step(action)
                is_over = terminated or truncated
            if episode >= LEARNING_STARTS:
                for _ in range(UPDATES):
                    batch = next(draws)
                    relabel(transitions, batch, generator)
                    learner.learn(batch)
    return learner


def evaluate(learner: Learner | None, episodes: int = 100) -> float:
    """Return the share of goals that the best actions reach, or random ones."""
    env = gymnasium.wrappers.TimeLimit(FlipBits(), BITS)
    generator = np.random.default_rng(0)
    reached = 0
    for number in range(episodes):
        seen, _ = env.reset(seed=10_000 + number)
        is_over = False
        while not is_over:
            action = int(generator.integers(BITS)) if learner is None else learner.act(seen)
            seen, _, terminated, truncated, _ = env.step(action)
            is_over = terminated or truncated
            reached += terminated
    return reached / episodes


def main() -> None:
    """Train, and compare the result with random actions."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as root:
        learner = train(Path(root))
    random, trained = evaluate(None), evaluate(learner)
    print(f"random actions reach {random:.0%} of the goals; trained: {trained:.0%}")
    if trained < random + MARGIN:
        raise SystemExit(f"it did not learn: the margin is {MARGIN:.0%}")


def _inputs(bits: np.ndarray, goal: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.concatenate([bits, goal], axis=-1).astype(np.float32))


def _network() -> nn.Module:
    return nn.Sequential(nn.Linear(2 * BITS, 128), nn.ReLU(), nn.Linear(128, BITS))


if __name__ == "__main__":
    main()
