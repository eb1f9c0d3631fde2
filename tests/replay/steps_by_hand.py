"""Recorded steps as plain lists, and the transitions that a loop over them makes."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from relive._native import Step
from relive.replay import ReplayRecorder

Value = npt.NDArray[Any] | None


@dataclass
class Done:
    """A step that was recorded."""

    row: int
    index: int
    observation: Value
    action: int
    reward: float | None
    terminated: bool
    truncated: bool


@dataclass
class Told:
    """An episode: its steps, and what is known of its end."""

    number: int
    steps: list[Done] = field(default_factory=list)
    index: int = 0
    has_drops: bool = False
    is_whole: bool = True
    """Whether its last step is known to be the one that was recorded last."""
    is_over: bool = False
    last: Value = None


class Hand:
    """Records steps, and keeps them in lists."""

    def __init__(self, recorder: ReplayRecorder, kind: str = "plain") -> None:
        self.recorder = recorder
        self.kind = kind
        self.told: list[Told] = []
        self.open: dict[int, Told] = {}
        self.rows = 0
        self.planes: dict[int, list[npt.NDArray[Any]]] = {}
        self._seen = 0
        self._drops = False
        queue: Any = recorder._sink.queue
        offer = queue.offer

        def offer_unless_dropped(item: Any, *arguments: Any) -> bool:
            if self._drops and isinstance(item, Step):
                return False
            return bool(offer(item, *arguments))

        queue.offer = offer_unless_dropped

    def look(self, env: int) -> npt.NDArray[Any]:
        """Return another observation of a stream."""
        self._seen += 1
        if self.kind == "plain":
            return np.array([self._seen, env], np.float32)
        plane = np.full((16, 16), self._seen % 251, np.uint8)
        plane[0, 0], plane[0, 1] = self._seen // 251, env
        planes = self.planes.get(env)
        planes = [plane] * 3 if planes is None else [*planes[1:], plane]
        self.planes[env] = planes
        return np.stack(planes, axis=0 if self.kind == "first" else -1)

    def step(
        self,
        env: int = 0,
        reward: float | None = 1.0,
        end: str = "",
        *,
        sees_next: bool = False,
        sees: bool = True,
        skip: int = 0,
        drops: bool = False,
    ) -> None:
        """Record a step, or drop it."""
        told = self.open.get(env)
        # What is seen last is stored as planes only if something was observed before.
        observation = self.look(env) if sees or not self.rows else None
        after = self.look(env) if end and sees_next else None
        if told is None:
            told = self.open[env] = Told(len(self.told))
            self.told.append(told)
        told.index += skip
        terminated, truncated = "terminated" in end, "truncated" in end
        self._drops = drops
        refs = self.recorder.step(
            observation,
            self.rows,
            reward,
            terminated,
            truncated,
            next_observation=after,
            env=env,
            step_index=told.index,
        )
        self._drops = False
        assert (refs is None) == drops
        if not drops:
            done = Done(
                self.rows, told.index, observation, self.rows, reward, terminated, truncated
            )
            told.steps.append(done)
            self.rows += 1
        told.has_drops |= drops
        told.is_whole = not drops and (bool(end) or not told.has_drops)
        told.index += 1
        if end:
            self._over(env, after)

    def end(self, env: int, *, sees_next: bool) -> None:
        """End the episode of a stream without a step."""
        told = self.open.get(env)
        if told is None:
            return
        after = self.look(env) if sees_next else None
        self.recorder.end_episode(next_observation=after, env=env)
        if told.is_whole and told.steps:
            told.steps[-1].truncated = True
        self._over(env, after)

    def _over(self, env: int, after: Value) -> None:
        told = self.open.pop(env)
        told.is_over, told.last = True, after
        self.planes.pop(env, None)


def _next(told: Told, at: int) -> Value:
    """Return what was observed after a step; None if that is not known."""
    step = told.steps[at]
    if step.observation is None:
        return None
    if at + 1 < len(told.steps):
        after = told.steps[at + 1]
        return after.observation if after.index == step.index + 1 else None
    if not told.is_over or not told.is_whole:
        return None
    return step.observation if told.last is None and step.terminated else told.last


def _stacked(told: Told, at: int, stack: int | None, pad: str, newest: Value = None) -> Value:
    """Return the observation of a step, or one after it, as a stack of the last so many."""
    step = told.steps[at]
    if stack is None:
        return step.observation if newest is None else newest
    found = [] if newest is None else [newest]
    while step.observation is not None and len(found) < stack:
        found.insert(0, step.observation)
        at -= 1
        if at < 0 or told.steps[at].index != step.index - 1:
            break
        step = told.steps[at]
    first = found[0] if pad == "first" else np.zeros_like(found[0])
    return np.stack([first] * (stack - len(found)) + found)


def _first_known(told: Told, at: int) -> int:
    """Return the first step of those that follow each other up to a step."""
    while at > 0:
        before = told.steps[at - 1]
        if before.index != told.steps[at].index - 1 or before.observation is None:
            break
        at -= 1
    return at


def transitions(
    told: list[Told], *, n_step: int, gamma: float, stack: int | None, pad: str, first_row: int
) -> dict[int, dict[str, Any]]:
    """Return the transitions by the row that they begin with."""
    found = {}
    for episode in told:
        for at, step in enumerate(episode.steps):
            total, n, end = 0.0, 0, at
            while n < n_step and end < len(episode.steps) and _next(episode, end) is not None:
                reward = episode.steps[end].reward
                total += gamma**n * (np.nan if reward is None else reward)
                n, end = n + 1, end + 1
                if end == len(episode.steps):
                    break
            if n == 0 or step.row < first_row:
                continue
            last = episode.steps[end - 1]
            if end < len(episode.steps):
                after = _stacked(episode, end, stack, pad)
            elif episode.last is None:
                after = _stacked(episode, end - 1, stack, pad)
            else:
                after = _stacked(episode, end - 1, stack, pad, episode.last)
            found[step.row] = {
                "observation": _stacked(episode, at, stack, pad),
                "action": step.action,
                "reward": np.float32(total),
                "next_observation": after,
                "terminated": last.terminated,
                "truncated": last.truncated,
                "discount": np.float32(0 if last.terminated else gamma**n),
                "n": n,
                "index": step.row,
                "episode": episode.number,
            }
    return dict(sorted(found.items()))


def sequences(
    told: list[Told], found: dict[int, dict[str, Any]], steps: int, stride: int, burn_in: int
) -> list[tuple[list[int], list[bool]]]:
    """Return the rows of each sequence, and its mask."""
    made = []
    for episode in told:
        rows = [step.row for step in episode.steps]
        for at, row in enumerate(rows):
            first = _first_known(episode, at)
            if row not in found or (at - first) % stride:
                continue
            is_first = at == 0 and episode.steps[0].index == 0
            window = []
            for place in range(at, min(at + steps, len(rows))):
                if rows[place] not in found or _first_known(episode, place) != first:
                    break
                window.append(rows[place])
            skipped = 0 if is_first else burn_in
            # Later steps of the segment that are in no window count as well.
            mask = [place >= skipped for place in range(len(window))]
            if any(mask):
                made.append((window, mask))
    return sorted(made)
