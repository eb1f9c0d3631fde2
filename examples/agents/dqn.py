"""DQN in one file, after CleanRL: it records, learns from its own run, and continues after a kill.

Needs `pip install 'relive[replay,torch]'`. The run is the replay buffer. A checkpoint has the
networks, the optimiser, the random generators and the number of the step, not the transitions:
these are in the run, those after the checkpoint too. After a kill, the loop begins at the step of
the checkpoint. For the steps that are recorded already it does not act, it only learns, from the
same draws as before. Then it goes on.

    python examples/agents/dqn.py runs            # again after a kill, to continue
"""

import argparse
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import nn

from relive.replay import ReplayRecorder, Transitions

Watch = Callable[[int, np.ndarray | None], None]

MARGIN = 50.0
"""By how much the mean return must be above that of random actions."""


@dataclass(frozen=True)
class Args:
    """The settings of a training."""

    root: Path
    """The directory of the run and its checkpoint."""
    run_id: str = "dqn"
    env_id: str = "CartPole-v1"
    seed: int = 1
    total_steps: int = 5_000
    learning_starts: int = 500
    train_every: int = 20
    updates: int = 20
    """How often it learns after so many steps."""
    batch_size: int = 64
    n_step: int = 3
    gamma: float = 0.99
    learning_rate: float = 1e-3
    target_every: int = 100
    explore_steps: int = 2_500
    """In how many steps the share of random actions falls from 1 to 0.05."""
    checkpoint_every: int = 1_000


class Learner:
    """The networks, and all that a checkpoint has."""

    def __init__(self, args: Args) -> None:
        torch.manual_seed(args.seed)
        self.args = args
        self.q = _network()
        self.target = _network()
        self.target.load_state_dict(self.q.state_dict())
        self.optimiser = torch.optim.Adam(self.q.parameters(), lr=args.learning_rate)
        self.exploring = np.random.default_rng((args.seed, 0))
        self.drawing = np.random.default_rng((args.seed, 1))
        self.step = 0
        self.path = args.root / f"{args.run_id}.checkpoint.pt"

    def act(self, observation: np.ndarray) -> int:
        """Choose the best action known."""
        with torch.no_grad():
            return int(self.q(torch.as_tensor(observation)).argmax())

    def explore(self) -> int | None:
        """Return a random action now and then; the less often, the more steps were taken."""
        share = max(0.05, 1 - 0.95 * self.step / self.args.explore_steps)
        is_random, action = self.exploring.random() < share, int(self.exploring.integers(2))
        return action if is_random else None

    def learn(self, batch: dict[str, np.ndarray]) -> None:
        """Take one step of gradient descent."""
        data = {name: torch.from_numpy(values) for name, values in batch.items()}
        with torch.no_grad():
            best = self.target(data["next_observation"]).max(dim=1).values
            goal = data["reward"].float() + data["discount"].float() * best
        value = self.q(data["observation"]).gather(1, data["action"].long()[:, None]).squeeze(1)
        loss = nn.functional.smooth_l1_loss(value, goal)
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()

    def save(self) -> None:
        """Write the checkpoint: a new file takes the place of the old one."""
        state = {
            "q": self.q.state_dict(),
            "target": self.target.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "exploring": self.exploring.bit_generator.state,
            "drawing": self.drawing.bit_generator.state,
            "torch": torch.get_rng_state(),
            "step": self.step,
        }
        unfinished = self.path.with_suffix(".unfinished")
        torch.save(state, unfinished)
        unfinished.replace(self.path)

    def load(self) -> None:
        """Continue from the checkpoint, if there is one."""
        if not self.path.exists():
            return
        state = torch.load(self.path, weights_only=True)
        for name in ("q", "target", "optimiser"):
            getattr(self, name).load_state_dict(state[name])
        self.exploring.bit_generator.state = state["exploring"]
        self.drawing.bit_generator.state = state["drawing"]
        torch.set_rng_state(state["torch"])
        self.step = state["step"]


def train(args: Args, watch: Watch | None = None) -> Learner:
    """Train until all steps are taken, from the checkpoint if there is one.

    `watch` gets the number of steps after each, and the steps that a batch begins with.
    """
    args.root.mkdir(parents=True, exist_ok=True)
    learner = Learner(args)
    learner.load()
    env = gymnasium.make(args.env_id)
    with ReplayRecorder(args.root, args.run_id, env_id=args.env_id, live=None) as recorder:
        recorded = recorder.stats.steps
        transitions = recorder.transitions(n_step=args.n_step, gamma=args.gamma)
        seen = None
        while learner.step < args.total_steps:
            random_action = learner.explore()
            if learner.step >= recorded:  # else a process that was killed has taken this step
                if seen is None:
                    seen, _ = env.reset(seed=args.seed + learner.step)
                action = learner.act(seen) if random_action is None else random_action
                after, reward, terminated, truncated, _ = env.step(action)
                recorder.step(
                    seen, action, float(reward), terminated, truncated, next_observation=after
                )
                seen = None if terminated or truncated else after
            learner.step += 1
            if watch is not None:
                watch(learner.step, None)
            if learner.step > args.learning_starts and learner.step % args.train_every == 0:
                transitions.refresh()
                # Of these it was known what came next when this step was taken, also if it was
                # taken before a kill: so the draws are the same.
                count = begun_before(transitions, learner.step - args.n_step)
                if learner.step % args.target_every == 0:
                    learner.target.load_state_dict(learner.q.state_dict())
                for _ in range(args.updates):
                    rows = learner.drawing.integers(count, size=args.batch_size)
                    batch: Any = transitions.gather(rows)
                    learner.learn(batch)
                    if watch is not None:
                        watch(learner.step, batch["index"])
            if learner.step % args.checkpoint_every == 0:
                recorder.sync()  # so that the run has every step of the checkpoint
                learner.save()
    env.close()
    return learner


def begun_before(transitions: Transitions, row: int) -> int:
    """Return how many transitions begin with a step before `row`.

    The last step before a kill begins none: what came after it is not known.
    """
    for before in range(row - 1, -1, -1):
        if (position := int(transitions.positions(before))) >= 0:
            return position + 1
    return 0


def evaluate(args: Args, choose: Callable[[np.ndarray], int], episodes: int = 10) -> float:
    """Return the mean return of a policy."""
    env = gymnasium.make(args.env_id)
    total = 0.0
    for number in range(episodes):
        seen, _ = env.reset(seed=10_000 + number)
        is_over = False
        while not is_over:
            seen, reward, terminated, truncated, _ = env.step(choose(seen))
            total += float(reward)
            is_over = terminated or truncated
    env.close()
    return total / episodes


def compare(args: Args, learner: Learner) -> tuple[float, float]:
    """Return the mean return of random actions, and that of what was learned."""
    random = np.random.default_rng(0)
    return evaluate(args, lambda _: int(random.integers(2))), evaluate(args, learner.act)


def main() -> None:
    """Train in the directory of the command line, or in one that is removed afterwards."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", nargs="?", type=Path, help="the directory of the run")
    root = parser.parse_args().root
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        args = Args(root or Path(folder))
        learner = train(args)
        random, trained = compare(args, learner)
    print(f"random actions: a mean return of {random:.1f}; trained: {trained:.1f}")
    if trained < random + MARGIN:
        raise SystemExit(f"it did not learn: the margin is {MARGIN}")


def _network() -> nn.Module:
    return nn.Sequential(
        nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2)
    )


if __name__ == "__main__":
    main()
