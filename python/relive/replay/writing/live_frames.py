"""Shows the frames of a recorder in a live lane."""

import math
import time
import warnings
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from relive._arguments import as_int
from relive._native import Step
from relive.errors import InvalidError, ReliveError
from relive.replay.live import LiveLane

LiveChoice: TypeAlias = Literal["first", "grid"] | int | bool | None
"""The frames of the first sub-environment, of all side by side, of one by its number, or none;
`True` is `"first"`, and `False` is none."""

_MIN_AXES: Final = 2
_MIN_PAUSE_NS: Final = 4_000_000
"""No eye follows more than 250 frames a second, and copying them takes time."""


class LiveFrames:
    """Publishes the frames of one sub-environment, or of all of them side by side.

    The lane is created at the first frame. A lane that cannot be created, because the memory is
    full for example, is a warning: recording goes on without it.
    """

    def __init__(self, name: str, choice: LiveChoice) -> None:
        if isinstance(choice, bool):
            choice = "first" if choice else None
        elif choice not in {"first", "grid", None}:
            try:
                choice = as_int("live", choice, at_least=0)
            except TypeError:
                raise InvalidError(
                    f'`live` must be "first", "grid", the number of a sub-environment or None, '
                    f"got {choice!r}"
                ) from None
        self._name = name
        self._choice = choice
        self._first: int | None = None
        self._tiles: dict[int, npt.NDArray[Any]] = {}
        self._lane: LiveLane | None = None
        self._is_off = choice is None
        self._steps = 0
        self._steps_before = 0
        self._published_ns = 0

    def publish(self, env: int, step: Step, frame: Any, observation: Any) -> None:
        """Publish the frame of a step; without one, the observation if that is a picture.

        At most 250 frames a second are published; `step_rate` counts all steps.
        """
        if self._is_off:
            return
        self._steps += 1
        now = time.monotonic_ns()
        pause = now - self._published_ns
        if pause < _MIN_PAUSE_NS and self._choice != "grid":
            return
        if frame is None:
            if not is_picture(observation):
                return
            frame = observation
        if not self._is_wanted(env, frame) or pause < _MIN_PAUSE_NS:
            return
        rate = (self._steps - self._steps_before) * 1e9 / pause if self._published_ns else 0.0
        picture = _grid(self._tiles) if self._choice == "grid" else np.asarray(frame)
        try:
            if self._lane is None:
                self._lane = LiveLane.create(self._name, picture.shape, picture.dtype)
            self._lane.publish(
                picture,
                env=env,
                step_rate=rate,
                reward=math.nan if step.reward is None else step.reward,
                rolling_return=step.total_reward,
                episode=step.episode.number,
                step=step.step_index,
            )
        except ReliveError as error:
            self._is_off = True
            warnings.warn(
                f"the frames of run {self._name!r} are not shown live: {error}",
                RuntimeWarning,
                stacklevel=4,
            )
        self._published_ns, self._steps_before = now, self._steps

    def _is_wanted(self, env: int, frame: Any) -> bool:
        """Check whether a picture is due: in a grid, when all frames of a round are there."""
        if self._choice == "grid":
            self._tiles[env] = np.array(frame)  # the environment may reuse its array
            return env == max(self._tiles)
        if self._first is None:
            self._first = env
        return env == (self._first if self._choice == "first" else self._choice)

    def close(self) -> None:
        """End the lane. May be called again."""
        self._is_off = True
        if self._lane is not None:
            self._lane.close()


def is_picture(value: Any) -> bool:
    """Check whether an observation can be shown: bytes in rows and columns, or colors."""
    return (
        isinstance(value, np.ndarray)
        and value.dtype == np.uint8
        and value.ndim in {_MIN_AXES, _MIN_AXES + 1}
    )


def _grid(tiles: dict[int, npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Return the frames side by side, in rows of about as many frames as there are rows."""
    frames = [tiles[env] for env in sorted(tiles)]
    first = frames[0]
    if first.ndim < _MIN_AXES or any(frame.shape != first.shape for frame in frames):
        return first
    columns = math.ceil(math.sqrt(len(frames)))
    rows = math.ceil(len(frames) / columns)
    height, width = first.shape[:2]
    picture = np.zeros((rows * height, columns * width, *first.shape[2:]), first.dtype)
    for place, frame in enumerate(frames):
        row, column = divmod(place, columns)
        top, left = row * height, column * width
        picture[top : top + height, left : left + width] = frame
    return picture
