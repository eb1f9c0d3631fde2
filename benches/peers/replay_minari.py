"""Minari: an episode is kept in memory and written to HDF5 at its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from benches.peers import module
from benches.peers.replay_peer import Reader, ReplayPeer, Writer
from benches.replay.scenes import ACTIONS, FRAME, OBSERVATION

if TYPE_CHECKING:
    from pathlib import Path

    from benches.replay.scenes import Step


class MinariRun(ReplayPeer):
    """Its storage, to which whole episodes are added, as `DataCollector` does.

    The buffers are filled without the checks of `DataCollector`. Arrays are stored as they are:
    by default Minari stores JPEG, which is lossy.
    """

    name = "Minari"
    family: ClassVar[str] = "minari"
    packages: ClassVar[tuple[str, ...]] = ("minari", "gymnasium")

    def writer(self, root: Path, steps: int) -> Writer:
        """`MinariStorage.new(…, jpeg_encoding=False)`."""
        del steps
        return _Writer(root.absolute())

    def reader(self, root: Path) -> Reader:
        """`MinariStorage.read(…)`."""
        return _Reader(root.absolute())


class _Writer(Writer):
    def __init__(self, root: Path) -> None:
        spaces = module("gymnasium").spaces
        observation_space = spaces.Dict(
            frame=spaces.Box(0, 255, FRAME, np.uint8),
            observation=spaces.Box(0, 255, OBSERVATION, np.uint8),
        )
        self._buffer = module("minari.data_collector").EpisodeBuffer
        self._storage = module("minari.dataset.minari_storage").MinariStorage.new(
            root, observation_space, spaces.Discrete(ACTIONS), jpeg_encoding=False
        )
        self._steps: list[Step] = []

    def step(self, step: Step) -> None:
        copied = step._replace(frame=step.frame.copy(), observation=step.observation.copy())
        self._steps.append(copied)
        if step.terminated:
            self._add()

    def close(self) -> None:
        if self._steps:
            self._add()

    def _add(self) -> None:
        """Add the episode; it has one observation more than steps."""
        steps = self._steps
        seen = [*steps, steps[-1]]
        ended = steps[-1].terminated
        episode = self._buffer(
            id=steps[0].episode,
            observations={
                "frame": [step.frame for step in seen],
                "observation": [step.observation for step in seen],
            },
            actions=[step.action for step in steps],
            rewards=[step.reward for step in steps],
            terminations=[step.terminated for step in steps],
            truncations=[False] * (len(steps) - 1) + [not ended],
            infos={},
        )
        self._storage.update_episodes([episode])
        self._steps = []


class _Reader(Reader):
    def __init__(self, root: Path) -> None:
        self._storage = module("minari.dataset.minari_storage").MinariStorage.read(root)

    def arrays(self, episode: int, first: int, count: int) -> tuple[Any, Any]:
        del first
        (found,) = self._storage.get_episodes([episode])
        seen = found["observations"]
        return seen["frame"][:count], seen["observation"][:count]

    def close(self) -> None:
        """It opens its file for each episode."""
