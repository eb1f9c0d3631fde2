"""The steps that are recorded: three Atari games with a random policy, and a textured render.

A scene has a few hundred consecutive steps, which are repeated. They are made once, kept in a file
and read into memory, so that peers in other environments record the same steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from benches.peers import module

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    Pixels: TypeAlias = NDArray[np.uint8]
    Floats: TypeAlias = NDArray[np.float32]

GAMES = {
    "pong": "ALE/Pong-v5",
    "breakout": "ALE/Breakout-v5",
    "montezuma": "ALE/MontezumaRevenge-v5",
}
SCENES = (*GAMES, "textured")
DISTINCT = 384
"""Steps of a scene before they repeat; a chunk of any peer holds fewer."""
FRAME = (210, 160, 3)
SIDE, STACK = 84, 4
OBSERVATION = (SIDE, SIDE, STACK)
STEP_BYTES = int(np.prod(FRAME)) + int(np.prod(OBSERVATION))
ACTIONS = 18


class Step(NamedTuple):
    """One step of an episode."""

    episode: int
    step_index: int
    frame: Pixels
    observation: Pixels
    action: int
    reward: float
    terminated: bool


@dataclass(frozen=True)
class Scene:
    """The steps of one scene, in memory."""

    name: str
    frames: Pixels
    planes: Pixels
    """A small gray picture of every frame; four that follow one another are an observation."""
    actions: NDArray[np.int64]
    rewards: NDArray[np.float64]

    @classmethod
    def load(cls, folder: Path, name: str) -> Scene:
        """Read a scene from its file, which is made if it does not exist."""
        path = folder / f"replay-{name}-{DISTINCT}.npz"
        if not path.exists():
            made = _atari(GAMES[name]) if name in GAMES else _textured()
            folder.mkdir(parents=True, exist_ok=True)
            partial = path.with_suffix(".partial.npz")
            np.savez(partial, **made)
            partial.rename(path)
        with np.load(path) as arrays:
            return cls(name, **arrays)

    @cached_property
    def observations(self) -> Pixels:
        """The last four planes at every step of the middle of an episode, on the last axis."""
        return np.stack([np.roll(self.planes, back, axis=0) for back in (3, 2, 1, 0)], axis=-1)

    def steps(self, count: int, per_episode: int) -> Iterator[Step]:
        """`count` steps, in episodes of `per_episode`."""
        frames, observations = list(self.frames), list(self.observations)
        actions, rewards = self.actions.tolist(), self.rewards.tolist()
        for number in range(count):
            at = number % DISTINCT
            episode, index = divmod(number, per_episode)
            seen = observations[at] if index >= STACK - 1 else self._early(number, index)
            last = index == per_episode - 1
            yield Step(episode, index, frames[at], seen, actions[at], rewards[at], last)

    def check(self, first: int, frames: Any, observations: Any) -> None:
        """Raise unless these are of the episode that begins at step `first`, byte for byte."""
        at = np.arange(first, first + len(frames)) % DISTINCT
        stacks = self.observations[at]
        for index in range(min(STACK - 1, len(stacks))):
            stacks[index] = self._early(first + index, index)
        for found, wanted in ((frames, self.frames[at]), (observations, stacks)):
            if not np.array_equal(np.asarray(found), wanted):
                message = "read other arrays than were written"
                raise AssertionError(message)

    def _early(self, number: int, index: int) -> Pixels:
        """The observation at one of the first steps: the first plane takes the missing places."""
        planes = [self.planes[(number - min(back, index)) % DISTINCT] for back in (3, 2, 1, 0)]
        return np.stack(planes, axis=-1)


def _atari(env_id: str) -> dict[str, Any]:
    """A game with a random policy, at the defaults of its environment: every fourth frame."""
    gymnasium, image = module("gymnasium"), module("PIL.Image")
    gymnasium.register_envs(module("ale_py"))
    env = gymnasium.make(env_id)
    frames = np.empty((DISTINCT, *FRAME), np.uint8)
    planes = np.empty((DISTINCT, SIDE, SIDE), np.uint8)
    actions, rewards = np.zeros(DISTINCT, np.int64), np.zeros(DISTINCT)
    env.action_space.seed(0)
    frame, _ = env.reset(seed=0)
    for number in range(DISTINCT):
        frames[number] = frame
        gray = image.fromarray(frame).convert("L")
        planes[number] = gray.resize((SIDE, SIDE), image.Resampling.BOX)
        actions[number] = env.action_space.sample()
        frame, rewards[number], terminated, truncated, _ = env.step(actions[number])
        if terminated or truncated:
            frame, _ = env.reset()
    env.close()
    return {"frames": frames, "planes": planes, "actions": actions, "rewards": rewards}


def _textured() -> dict[str, Any]:
    """A camera that moves by parts of a pixel before a textured wall, and a thing that crosses."""
    random = np.random.default_rng(2)
    height, width, _ = FRAME
    wall, thing = _texture(random, 2 * height, 2 * width), _texture(random, 64, 64)
    frames = np.empty((DISTINCT, *FRAME), np.uint8)
    for number in range(DISTINCT):
        angle = 2 * np.pi * number / DISTINCT
        frame = _window(wall, 0.4 * height * (1 + np.sin(angle)), 0.4 * width * (1 + np.cos(angle)))
        top, left = 70 + int(60 * np.cos(3 * angle)), 48 + int(47 * np.sin(2 * angle))
        frame[top : top + 64, left : left + 64] = thing
        frames[number] = frame
    gray = frames.mean(axis=-1).astype(np.uint8)
    rows, columns = np.arange(SIDE) * height // SIDE, np.arange(SIDE) * width // SIDE
    return {
        "frames": frames,
        "planes": gray[:, rows][:, :, columns],
        "actions": random.integers(0, ACTIONS, DISTINCT),
        "rewards": np.zeros(DISTINCT),
    }


def _texture(random: np.random.Generator, height: int, width: int) -> Floats:
    """Noise at four scales, from 0 to 255."""
    found = np.zeros((height, width, 3), np.float32)
    for scale, weight in ((1, 30), (2, 45), (8, 80), (32, 100)):
        shape = (-(-height // scale), -(-width // scale), 3)
        coarse = random.random(shape, np.float32) * weight
        found += coarse.repeat(scale, axis=0).repeat(scale, axis=1)[:height, :width]
    return found


def _window(texture: Floats, top: float, left: float) -> Floats:
    """The part of a texture that a frame shows, interpolated between pixels."""
    height, width, _ = FRAME
    row, column = int(top), int(left)
    down, right = np.float32(top - row), np.float32(left - column)
    part = texture[row : row + height + 1, column : column + width + 1]
    part = part[:-1] * (1 - down) + part[1:] * down
    found: Floats = part[:, :-1] * (1 - right) + part[:, 1:] * right
    return found
