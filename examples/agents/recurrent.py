"""A recurrent network learns to remember from sequences with stored state.

Needs `pip install 'relive[replay,torch]'`. The first observation of an episode says which action
will be right in its last step; those between say nothing. The state of the network is recorded with
each step, and sequences that begin in the middle of an episode begin with it, as in R2D2: the
burn-in brings it up to date with the weights of now.
"""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from relive import ReplayRecorder

LENGTH = 8
"""Steps of an episode."""
STATE = 16
EPISODES = 500
LEARNING_STARTS = 50
EVERY = 2
"""After how many episodes it learns."""
UPDATES = 2
BATCH = 32
SEQUENCE, BURN_IN, STRIDE = 8, 2, 4
GAMMA = 0.9
MARGIN = 1.0
"""By how much the mean return, which is from -1 to 1, must be above that of random actions."""


class Recall:
    """An environment: remember a sign, and choose the action that belongs to it at the end."""

    def __init__(self, seed: int) -> None:
        self._generator = np.random.default_rng(seed)
        self._step = self._sign = 0

    def reset(self) -> np.ndarray:
        """Begin an episode, and return its first observation, which has the sign."""
        self._step, self._sign = 0, int(self._generator.integers(2))
        return np.array([2 * self._sign - 1, 0], np.float32)

    def step(self, action: int) -> tuple[np.ndarray, float, bool]:
        """Return an observation without the sign, the reward, and whether the episode ended."""
        self._step += 1
        is_over = self._step == LENGTH
        reward = 0.0 if not is_over else 1.0 if action == self._sign else -1.0
        return np.array([0, self._step / LENGTH], np.float32), reward, is_over


class Network(nn.Module):  # type: ignore[misc] # a base without types
    """Values actions by what was observed so far."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(2, STATE)
        self.out = nn.Linear(STATE, 2)

    def forward(self, seen: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the values of the actions, and the next state."""
        state = self.cell(seen, state)
        return self.out(state), state

    def act(self, seen: np.ndarray, state: np.ndarray) -> tuple[int, np.ndarray]:
        """Choose the best action known; return it and the next state."""
        with torch.no_grad():
            values, after = self(torch.from_numpy(seen)[None], torch.from_numpy(state)[None])
        return int(values.argmax()), after[0].numpy()


class Learner:
    """Learns from sequences."""

    def __init__(self) -> None:
        self.q, self.target = Network(), Network()
        self.target.load_state_dict(self.q.state_dict())
        self.optimiser = torch.optim.Adam(self.q.parameters(), lr=5e-3)

    def learn(self, batch: dict[str, np.ndarray]) -> None:
        """Take one step of gradient descent."""
        data = {name: torch.from_numpy(values) for name, values in batch.items()}
        seen, after = data["observation"], data["next_observation"]
        state = slow = data["extras.state"][:, 0]
        values, wanted = [], []
        for step in range(SEQUENCE):
            value, state = self.q(seen[:, step], state)
            if step < BURN_IN:  # what the burn-in computed is not learned from
                state = torch.where(data["mask"][:, step, None], state, state.detach())
            with torch.no_grad():
                _, slow = self.target(seen[:, step], slow)
                best = self.target(after[:, step], slow)[0].max(dim=1).values
                wanted.append(data["reward"][:, step] + data["discount"][:, step] * best)
            values.append(value.gather(1, data["action"][:, step, None]).squeeze(1))
        errors = torch.stack(values, dim=1) - torch.stack(wanted, dim=1)
        loss = (errors**2)[data["mask"]].mean()
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()
        with torch.no_grad():
            pairs = zip(self.target.parameters(), self.q.parameters(), strict=True)
            for old, new in pairs:
                old.lerp_(new, 0.05)


def train(root: Path, seed: int = 1) -> Learner:
    """Train a network to remember."""
    torch.manual_seed(seed)
    learner, env, generator = Learner(), Recall(seed), np.random.default_rng(seed)
    with ReplayRecorder(root, "recall", live=None) as recorder:
        sequences = recorder.transitions(
            gamma=GAMMA, sequence=SEQUENCE, burn_in=BURN_IN, stride=STRIDE
        )
        draws: Any = sequences.batches(BATCH, seed=seed)
        for episode in range(EPISODES):
            seen, state, is_over = env.reset(), np.zeros(STATE, np.float32), False
            while not is_over:
                best, after_state = learner.q.act(seen, state)
                is_random = generator.random() < max(0.1, 1 - 2 * episode / EPISODES)
                action = int(generator.integers(2)) if is_random else best
                after, reward, is_over = env.step(action)
                recorder.step(seen, action, reward, is_over, extras={"state": state})
                seen, state = after, after_state
            if episode >= LEARNING_STARTS and episode % EVERY == 0:
                for _ in range(UPDATES):
                    learner.learn(next(draws))
    return learner


def evaluate(learner: Learner | None, episodes: int = 100) -> float:
    """Return the mean return of the best actions, or of random ones."""
    env, generator, total = Recall(1_000), np.random.default_rng(0), 0.0
    for _ in range(episodes):
        seen, state, is_over = env.reset(), np.zeros(STATE, np.float32), False
        while not is_over:
            action = int(generator.integers(2))
            if learner is not None:
                action, state = learner.q.act(seen, state)
            seen, reward, is_over = env.step(action)
            total += reward
    return total / episodes


def main() -> None:
    """Train, and compare the result with random actions."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as root:
        learner = train(Path(root))
    random, trained = evaluate(None), evaluate(learner)
    print(f"random actions: a mean return of {random:.2f}; trained: {trained:.2f}")
    if trained < random + MARGIN:
        raise SystemExit(f"it did not learn: the margin is {MARGIN}")


if __name__ == "__main__":
    main()
