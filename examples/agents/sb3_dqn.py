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

from relive import ReplayRecorder
from relive.replay.gym import Record

STEPS = 6_000
MARGIN = 60.0
"""By how much the mean return must be above that of random actions."""


class RunBuffer(ReplayBuffer):  # type: ignore[misc] # a base without types
    """A run as the replay buffer of an algorithm of Stable-Baselines3.

    Args:
        size: Only the last so many steps are drawn.
        observation_space: What the policy observes: arrays, not dicts.
        action_space: What it does.
        device: Where batches go.
        n_envs: The number of sub-environments.
        optimize_memory_usage: Not used: each observation is stored once.
        recorder: Where `Record` records the steps.
        seed: Makes the draws repeatable.
        options: Further arguments of `transitions`, such as `n_step` and `gamma`.
    """

    def __init__(  # noqa: PLR0917 - as the class has it
        self,
        size: int,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        device: torch.device | str = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,  # noqa: FBT001, FBT002
        *,
        recorder: ReplayRecorder,
        seed: int = 0,
        **options: Any,
    ) -> None:
        # The arrays that the class allocates are not used.
        del optimize_memory_usage
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
        batch: Any = self.transitions.sample(batch_size, generator=self._generator)
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
        scaled: np.ndarray = (2 * (action - low) / (high - low) - 1).astype(np.float32)
        return scaled


def train(root: Path, seed: int = 1) -> DQN:
    """Train a policy."""
    vector = DummyVecEnv([lambda: gymnasium.make("CartPole-v1")])
    with Record(vector, root, "dqn", frames=None, live=None) as env:
        model = DQN(
            "MlpPolicy",
            env,
            learning_rate=1e-3,
            learning_starts=500,
            batch_size=64,
            train_freq=40,
            gradient_steps=40,
            target_update_interval=100,
            exploration_fraction=0.5,
            policy_kwargs={"net_arch": [64, 64]},
            replay_buffer_class=RunBuffer,
            replay_buffer_kwargs={"recorder": env.recorder, "seed": seed, "n_step": 3},
            seed=seed,
            device="cpu",
        )
        return model.learn(STEPS)


def evaluate(model: DQN | None) -> float:
    """Return the mean return of a policy, or of random actions."""
    vector = VecMonitor(DummyVecEnv([lambda: gymnasium.make("CartPole-v1")]))
    vector.seed(1_000)
    vector.action_space.seed(0)
    policy = model or RandomPolicy(vector.action_space)
    returned: float = evaluate_policy(policy, vector, n_eval_episodes=10)[0]
    return returned


class RandomPolicy:
    """Acts at random."""

    def __init__(self, actions: spaces.Space[Any]) -> None:
        self._actions = actions

    def predict(self, observations: np.ndarray, **_: Any) -> tuple[np.ndarray, None]:
        """Return an action for each observation."""
        return np.array([self._actions.sample() for _ in observations]), None


def main() -> None:
    """Train, and compare the result with random actions."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as root:
        model = train(Path(root))
    random, trained = evaluate(None), evaluate(model)
    print(f"random actions: a mean return of {random:.1f}; trained: {trained:.1f}")
    if trained < random + MARGIN:
        raise SystemExit(f"it did not learn: the margin is {MARGIN}")


if __name__ == "__main__":
    main()
