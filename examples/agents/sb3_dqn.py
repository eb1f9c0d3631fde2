"""Stable-Baselines3's DQN learns from the run that its environment records.

Needs `pip install 'relive[replay]' stable-baselines3`. `RunBuffer` takes the place of the replay
buffer: the run is on the disk, survives a kill, and is not limited by memory. The training loop is
that of Stable-Baselines3.
"""

import tempfile
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3 import DQN
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.type_aliases import ReplayBufferSamples
from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor

from relive.replay import ReplayRun
from relive.replay.gym import Record

STEPS = 10_000
MARGIN = 75.0
"""By how much the mean return must be above that of random actions."""


class RunBuffer(ReplayBuffer):  # type: ignore[misc] # of a package without types
    """A run as the replay buffer of an algorithm of Stable-Baselines3.

    Args:
        size: Only the last so many steps are drawn.
        observation_space: What the policy observes: arrays, not dicts.
        action_space: What it does.
        device: Where batches go.
        n_envs: The number of sub-environments.
        recorder: Where `Record` records the steps.
        seed: Makes the draws repeatable.
        options: Further arguments of `transitions`, such as `n_step` and `gamma`.
    """

    def __init__(
        self,
        size: int,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        device: torch.device | str = "auto",
        n_envs: int = 1,
        *,
        recorder: Any,
        seed: int = 0,
        **options: Any,
    ) -> None:
        # The arrays that the class allocates are not used.
        super().__init__(n_envs, observation_space, action_space, device, n_envs)
        self.transitions = recorder.transitions(last=size, **options)
        self._generator = np.random.default_rng(seed)

    def add(self, *_: Any) -> None:
        """Do nothing: the environment has recorded the step."""

    def size(self) -> int:
        """Return the number of transitions."""
        return len(self.transitions)

    def sample(self, batch_size: int, env: Any = None) -> ReplayBufferSamples:
        """Draw a batch; `env` normalizes it, if it is a `VecNormalize`."""
        batch = self.transitions.sample(batch_size, generator=self._generator)
        # `discount` is 0 after termination, which `dones` says as well.
        discount = np.where(batch["terminated"], 1.0, batch["discount"])
        found = (
            self._normalize_obs(batch["observation"], env),
            self._scaled(batch["action"]).reshape(batch_size, -1),
            self._normalize_obs(batch["next_observation"], env),
            batch["terminated"][:, None].astype(np.float32),
            self._normalize_reward(batch["reward"][:, None], env),
            discount[:, None].astype(np.float32),
        )
        return ReplayBufferSamples(*map(self.to_torch, found))

    def _scaled(self, action: np.ndarray) -> np.ndarray:
        """Return actions as policies have them: from -1 to 1, where they are continuous."""
        if not isinstance(self.action_space, spaces.Box):
            return action
        low, high = self.action_space.low, self.action_space.high
        return (2 * (action - low) / (high - low) - 1).astype(np.float32)


def main() -> None:
    """Train, and compare the result with random actions."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as root:
        returns = train(Path(root))
    print(f"random actions: a mean return of {returns[0]:.1f}; trained: {returns[1]:.1f}")
    if returns[1] < returns[0] + MARGIN:
        raise SystemExit(f"it did not learn: the margin is {MARGIN}")


def train(root: Path, seed: int = 1) -> tuple[float, float]:
    """Train a policy; return the mean return before and after."""
    vector = VecMonitor(DummyVecEnv([lambda: gymnasium.make("CartPole-v1")] * 4))
    with Record(vector, root, "dqn", frames=None, live=None) as env:
        model = DQN(
            "MlpPolicy",
            env,
            learning_rate=1e-3,
            learning_starts=500,
            batch_size=64,
            train_freq=1,
            gradient_steps=2,
            target_update_interval=50,
            exploration_fraction=0.4,
            policy_kwargs={"net_arch": [64, 64]},
            replay_buffer_class=RunBuffer,
            replay_buffer_kwargs={"recorder": env.recorder, "n_step": 3, "seed": seed},
            seed=seed,
            device="cpu",
        )
        model.learn(STEPS)
        print(f"{len(model.replay_buffer.transitions)} transitions, of {env.recorder.stats.steps} steps")
    test = DummyVecEnv([lambda: gymnasium.make("CartPole-v1")])
    ...


if __name__ == "__main__":
    main()
