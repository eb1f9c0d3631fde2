"""TorchRL's collector and DQN loss learn from the run that the environment records.

Needs `pip install 'relive[replay]' torchrl`. `RunStorage` is the storage of TorchRL's replay
buffer: samplers, transforms and prefetching stay as they are, and the run is on the disk, survives
a kill, and is not limited by memory.
"""

import tempfile
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictSequential
from torchrl.collectors import Collector
from torchrl.data import ReplayBuffer
from torchrl.data.replay_buffers.samplers import RandomSampler
from torchrl.data.replay_buffers.storages import Storage
from torchrl.data.replay_buffers.writers import ImmutableDatasetWriter
from torchrl.envs import GymWrapper, InitTracker, TransformedEnv
from torchrl.modules import MLP, EGreedyModule, QValueActor
from torchrl.objectives import DQNLoss, SoftUpdate

from relive.replay import Transitions
from relive.replay.gym import Record

STEPS = 4_000
FRAMES = 40
"""After how many steps it learns, and how often."""
LEARNING_STARTS = 500
BATCH = 64
GAMMA = 0.99
MARGIN = 60.0
"""By how much the mean return must be above that of random actions."""


class RunStorage(Storage):  # type: ignore[misc] # a base without types
    """The transitions of a run as the storage of a `ReplayBuffer` of TorchRL.

    Args:
        transitions: Those of a recorder or a run. `refresh` has what was recorded since.
    """

    def __init__(self, transitions: Transitions) -> None:
        super().__init__(max_size=2**31)
        self._transitions = transitions

    def refresh(self) -> None:
        """Include what was recorded since."""
        self._transitions.refresh()

    def __len__(self) -> int:
        """Return the number of transitions."""
        return len(self._transitions)

    def get(self, index: Any) -> TensorDict:
        """Read transitions, by the names that TorchRL has for their fields."""
        rows = np.asarray(index)
        batch = self._transitions.gather(rows)
        tensors = {name: torch.from_numpy(values) for name, values in batch.items()}
        terminated, truncated = (tensors[name][..., None] for name in ("terminated", "truncated"))
        after = {
            "observation": tensors["next_observation"],
            "reward": tensors["reward"][..., None],
            "terminated": terminated,
            "truncated": truncated,
            "done": terminated | truncated,
        }
        return TensorDict(
            {
                "observation": tensors["observation"],
                "action": tensors["action"],
                "steps_to_next_obs": tensors["n"][..., None],
                "next": TensorDict(after, rows.shape),
            },
            rows.shape,
        )

    def set(self, cursor: Any, data: Any, *, set_cursor: bool = True) -> None:
        """Refuse: the environment records."""
        raise NotImplementedError("a run is written by its recorder")

    def contains(self, item: Any) -> Any:
        """Check whether there are transitions at these positions."""
        return torch.as_tensor(item) < len(self)


def train(root: Path, seed: int = 1) -> Any:
    """Train a policy."""
    torch.manual_seed(seed)
    recorded = Record(gymnasium.make("CartPole-v1"), root, "dqn", frames=None, live=None)
    env = TransformedEnv(GymWrapper(recorded, categorical_action_encoding=True), InitTracker())
    env.set_seed(seed)
    net = MLP(in_features=4, out_features=2, num_cells=[64, 64], activation_class=torch.nn.ReLU)
    actor = QValueActor(net, spec=env.action_spec, action_space="categorical")
    explore = EGreedyModule(env.action_spec, annealing_num_steps=STEPS // 2, eps_end=0.05)
    loss = DQNLoss(actor, action_space="categorical", delay_value=True)
    loss.make_value_estimator(gamma=GAMMA)
    target = SoftUpdate(loss, tau=0.02)
    optimiser = torch.optim.Adam(actor.parameters(), lr=1e-3)
    collector = Collector(
        env,
        TensorDictSequential(actor, explore),
        frames_per_batch=FRAMES,
        total_frames=STEPS,
    )
    storage = RunStorage(recorded.recorder.transitions(n_step=3, gamma=GAMMA))
    buffer = ReplayBuffer(
        storage=storage,
        sampler=RandomSampler(),
        writer=ImmutableDatasetWriter(),
        collate_fn=lambda batch: batch,
        batch_size=BATCH,
    )
    for _ in collector:  # what it collected is in the run
        explore.step(FRAMES)
        storage.refresh()
        if len(buffer) < LEARNING_STARTS:
            continue
        for _ in range(FRAMES):
            value = loss(buffer.sample())["loss"]
            optimiser.zero_grad()
            value.backward()
            optimiser.step()
            target.step()
    collector.shutdown()
    return actor


def evaluate(actor: Any, episodes: int = 10) -> float:
    """Return the mean return of the best actions, or of random ones."""
    env = gymnasium.make("CartPole-v1")
    env.action_space.seed(0)
    total = 0.0
    for number in range(episodes):
        seen, _ = env.reset(seed=10_000 + number)
        is_over = False
        while not is_over:
            action = env.action_space.sample()
            if actor is not None:
                with torch.no_grad():
                    action = actor(torch.from_numpy(seen))[0].item()
            seen, reward, terminated, truncated, _ = env.step(action)
            total += float(reward)
            is_over = terminated or truncated
    env.close()
    return total / episodes


def main() -> None:
    """Train, and compare the result with random actions."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as root:
        actor = train(Path(root))
    random, trained = evaluate(None), evaluate(actor)
    print(f"random actions: a mean return of {random:.1f}; trained: {trained:.1f}")
    if trained < random + MARGIN:
        raise SystemExit(f"it did not learn: the margin is {MARGIN}")


if __name__ == "__main__":
    main()
