"""SAC on a vector of environments, whose run is the replay buffer.

Needs `pip install 'relive[replay,torch]'`. Every sub-environment is a stream of its own: neither a
transition nor an n-step return goes from one into another, or beyond a reset. An episode that was
cut off after 200 steps is truncated, not terminated, so the value of what was seen last counts.
"""

import tempfile
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import nn

from relive.replay.gym import Record

ENVS = 4
STEPS = 1_200
"""Steps of each sub-environment."""
LEARNING_STARTS = 100
UPDATES = 2
BATCH = 128
GAMMA = 0.98
LARGEST = 2.0
"""The largest torque."""
MARGIN = 500.0
"""By how much the mean return must be above that of random actions."""


class Actor(nn.Module):  # type: ignore[misc] # a base without types
    """A normal distribution over actions, squeezed into what the environment takes."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.out = nn.Linear(64, 2)

    def forward(self, seen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return actions and their log-probabilities."""
        mean, log_std = self.out(self.net(seen)).chunk(2, dim=1)
        normal = torch.distributions.Normal(mean, log_std.clamp(-5, 1).exp())
        raw = normal.rsample()
        squeezed = torch.tanh(raw)
        log_prob = normal.log_prob(raw) - torch.log(LARGEST * (1 - squeezed**2) + 1e-6)
        return LARGEST * squeezed, log_prob

    def best(self, seen: np.ndarray) -> np.ndarray:
        """Return the mean actions."""
        with torch.no_grad():
            mean = self.out(self.net(torch.as_tensor(seen)))[:, :1]
            action: np.ndarray = (LARGEST * torch.tanh(mean)).numpy()
        return action


class Critic(nn.Module):  # type: ignore[misc] # a base without types
    """Two estimates of the value of an action."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (_value() for _ in range(2))

    def forward(
        self, seen: torch.Tensor, action: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return both."""
        both = torch.cat([seen, action], dim=1)
        return self.first(both), self.second(both)


class Learner:
    """The networks of SAC, with a temperature that is learned."""

    def __init__(self) -> None:
        self.actor, self.critic, self.target = Actor(), Critic(), Critic()
        self.target.load_state_dict(self.critic.state_dict())
        self.log_alpha = torch.zeros(1, requires_grad=True)
        self.optimisers = [
            torch.optim.Adam(parameters, lr=3e-3)
            for parameters in (self.actor.parameters(), self.critic.parameters(), [self.log_alpha])
        ]

    def learn(self, batch: dict[str, np.ndarray]) -> None:
        """Take one step of gradient descent with each network."""
        data = {name: torch.from_numpy(values) for name, values in batch.items()}
        seen, after = data["observation"], data["next_observation"]
        alpha = self.log_alpha.detach().exp()
        with torch.no_grad():
            action, log_prob = self.actor(after)
            value = torch.minimum(*self.target(after, action)) - alpha * log_prob
            goal = data["reward"][:, None] + data["discount"][:, None] * value
        loss = sum(nn.functional.mse_loss(each, goal) for each in self.critic(seen, data["action"]))
        self._descend(1, loss)
        action, log_prob = self.actor(seen)
        self._descend(0, (alpha * log_prob - torch.minimum(*self.critic(seen, action))).mean())
        self._descend(2, -(self.log_alpha.exp() * (log_prob.detach() - 1)).mean())
        with torch.no_grad():
            pairs = zip(self.target.parameters(), self.critic.parameters(), strict=True)
            for slow, fast in pairs:
                slow.lerp_(fast, 0.01)

    def _descend(self, number: int, loss: torch.Tensor) -> None:
        self.optimisers[number].zero_grad()
        loss.backward()
        self.optimisers[number].step()


def train(root: Path, seed: int = 1) -> Learner:
    """Train SAC on a vector of pendulums."""
    torch.manual_seed(seed)
    learner = Learner()
    vector = gymnasium.make_vec("Pendulum-v1", num_envs=ENVS, vectorization_mode="sync")
    with Record(vector, root, "sac", frames=None, live=None) as envs:
        transitions = envs.recorder.transitions(gamma=GAMMA)
        draws: Any = transitions.batches(BATCH, seed=seed)
        envs.action_space.seed(seed)
        seen, _ = envs.reset(seed=seed)
        for step in range(STEPS):
            if step < LEARNING_STARTS:
                action = envs.action_space.sample()
            else:
                with torch.no_grad():
                    action = learner.actor(torch.as_tensor(seen))[0].numpy()
            seen, *_ = envs.step(action)
            if step >= LEARNING_STARTS:
                for _ in range(UPDATES):
                    learner.learn(next(draws))
    return learner


def evaluate(learner: Learner | None) -> float:
    """Return the mean return of the best actions, or of random ones."""
    envs = gymnasium.make_vec("Pendulum-v1", num_envs=10, vectorization_mode="sync")
    envs.action_space.seed(0)
    seen, _ = envs.reset(seed=1_000)
    total = np.zeros(10)
    for _ in range(200):
        action = envs.action_space.sample() if learner is None else learner.actor.best(seen)
        seen, reward, *_ = envs.step(action)
        total += reward
    envs.close()
    return float(total.mean())


def main() -> None:
    """Train, and compare the result with random actions."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as root:
        learner = train(Path(root))
    random, trained = evaluate(None), evaluate(learner)
    print(f"random actions: a mean return of {random:.0f}; trained: {trained:.0f}")
    if trained < random + MARGIN:
        raise SystemExit(f"it did not learn: the margin is {MARGIN:.0f}")


def _value() -> nn.Module:
    return nn.Sequential(
        nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)
    )


if __name__ == "__main__":
    main()
