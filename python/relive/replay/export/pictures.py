"""The frames of a run as pictures that can be shown, each with what is known about its step."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from relive.errors import InvalidError, UnknownNameError, UnsupportedError
from relive.replay.columns import ColumnSpec, row_of
from relive.replay.source import RunSource
from relive.replay.storage.tables import EpisodeRow

Rgb = npt.NDArray[np.uint8]

_FRAMES: Final = "frames"
_OBSERVATIONS: Final = "observations"
_BLOCK_BYTES: Final = 16 << 20
_COLORS: Final = 3
_CHANNELS: Final = (1, 3, 4)
_PLANE_AXES: Final = 2
_LARGEST: Final = 255
_MOST_NUMBERS: Final = 8


@dataclass(frozen=True, slots=True)
class Hud:
    """What is shown next to a picture."""

    episode: int
    agent_id: str
    step: int
    action: Any
    """None if the step has none."""
    reward: float | None
    total: float
    """The return so far, this step included."""

    def line(self) -> str:
        """Return it as one line of text."""
        return "  ".join(self.lines())

    def lines(self) -> tuple[str, ...]:
        """Return it as three lines of text."""
        agent = f"  agent {self.agent_id}" if self.agent_id else ""
        reward = "-" if self.reward is None else f"{self.reward:.6g}"
        return (
            f"episode {self.episode}  step {self.step}{agent}",
            f"reward {reward}  return {self.total:.6g}",
            f"action {_action_text(self.action)}",
        )


class Picture(NamedTuple):
    """A frame as RGB, and what is known about its step."""

    rgb: Rgb
    hud: Hud


def choose_episodes(source: RunSource, which: int | str | None = None) -> list[EpisodeRow]:
    """Return the episodes to show: one by its number or id, or all of them.

    A negative number counts from the end. An id that several agents have is all of theirs.
    """
    episodes = list(source.episodes)
    if which is None:
        return episodes
    if isinstance(which, str):
        found = [row for row in episodes if row.episode_id == which]
    elif which < 0:
        found = episodes[which : which + 1 or None] if which >= -len(episodes) else []
    else:
        found = [row for row in episodes if row.number == which]
    if not found:
        raise UnknownNameError(
            f"run {source.run.run_id!r} has no episode {which!r}",
            hint=f"it has {len(episodes)} episodes",
        )
    return found


def count_pictures(
    source: RunSource, episodes: Sequence[EpisodeRow], field: str | None = None
) -> int:
    """Return how many pictures episodes have."""
    spec = picture_column(source, field)
    valid = source.arrays.are_valid
    return sum(int(valid(spec.field, source.rows_of(row.number)).sum()) for row in episodes)


def read_pictures(
    source: RunSource, episodes: Sequence[EpisodeRow], field: str | None = None
) -> Iterator[Picture]:
    """Iterate over the pictures of episodes, one after the other, in bounded memory.

    Args:
        source: The run.
        episodes: The episodes.
        field: The array to show, `observations.image` for example. By default the frames, or
            observations that are pictures if there are no frames. Of a stack its newest plane is
            shown.
    """
    spec = picture_column(source, field)
    row_bytes = max(1, math.prod(spec.shape) * np.dtype(spec.dtype).itemsize)
    block = max(1, _BLOCK_BYTES // row_bytes)
    for episode in episodes:
        total = 0.0
        rows = source.rows_of(episode.number)
        for start in range(0, len(rows), block):
            part = rows[start : start + block]
            shown = source.arrays.are_valid(spec.field, part)
            frames = iter(as_rgb(source.arrays.read(spec.name, part[shown]), spec.stack))
            for is_shown, hud in zip(shown, _huds(source, episode, part, total), strict=True):
                total = hud.total
                if is_shown:
                    yield Picture(next(frames), hud)


def picture_column(source: RunSource, field: str | None = None) -> ColumnSpec:
    """Return the array to show; raise an error if there is none, or if it is not pictures."""
    run_id = source.run.run_id
    fields = source.arrays.fields if source.run.arrays_end else {}  # else there is no file
    columns = {
        spec.name: spec for specs in fields.values() for spec in specs if spec.rows_of == "steps"
    }
    if field is not None:
        if field not in columns:
            listed = ", ".join(sorted(columns)) or "none"
            raise UnknownNameError(
                f"run {run_id!r} has no array {field!r}", hint=f"the arrays are: {listed}"
            )
        return _checked(columns[field])
    if _FRAMES in columns:
        return _checked(columns[_FRAMES])
    for spec in columns.values():
        if spec.field == _OBSERVATIONS and _column_problem(spec) is None:
            return spec
    raise InvalidError(
        f"run {run_id!r} has no frames, and its observations are not pictures",
        hint="record with frame=, or choose another array",
    )


def as_rgb(values: npt.NDArray[Any], stack: str | None = None) -> Rgb:
    """Return arrays with one picture per row as RGB.

    Gray pictures, those with an alpha channel and those with their channels first are converted;
    flags are black and white, and floats are from 0 to 1.
    """
    if stack is not None:
        values = values[..., -1] if stack == "last" else values[:, -1]
    if values.ndim == _PLANE_AXES + 1:
        values = values[..., np.newaxis]
    elif values.shape[-1] not in _CHANNELS:
        values = np.moveaxis(values, 1, -1)
    values = values[..., :_COLORS]
    if values.dtype.kind == "f":
        with np.errstate(invalid="ignore"):
            scaled = np.rint(np.clip(np.nan_to_num(values, nan=0.0), 0, 1) * _LARGEST)
        values = scaled.astype(np.uint8)
    elif values.dtype.kind == "b":
        values = values.astype(np.uint8) * np.uint8(_LARGEST)
    if values.shape[-1] == 1:
        values = np.repeat(values, _COLORS, axis=-1)
    return np.ascontiguousarray(values)


def picture_problem(dtype: np.dtype[Any], shape: tuple[int, ...]) -> str | None:
    """Return why arrays of a dtype and shape are not pictures; None if they are."""
    if dtype.kind not in "bf" and dtype != np.uint8:
        return f"its dtype is {dtype}"
    is_plane = len(shape) == _PLANE_AXES
    has_channels = len(shape) == _PLANE_AXES + 1 and (
        shape[-1] in _CHANNELS or shape[0] in _CHANNELS
    )
    if not (is_plane or has_channels) or 0 in shape:
        return f"its shape is {shape}"
    return None


def not_pictures(name: str, problem: str) -> UnsupportedError:
    """Return the error for an array that cannot be shown."""
    return UnsupportedError(
        f"`{name}` cannot be shown as pictures: {problem}",
        hint="pictures are (height, width) or (height, width, 1, 3 or 4), of uint8, bool, or "
        "floats from 0 to 1",
    )


def _column_problem(spec: ColumnSpec) -> str | None:
    shape = spec.shape
    if spec.stack is not None:
        shape = shape[:-1] if spec.stack == "last" else shape[1:]
    return picture_problem(np.dtype(spec.dtype), shape)


def _checked(spec: ColumnSpec) -> ColumnSpec:
    problem = _column_problem(spec)
    if problem is not None:
        raise not_pictures(spec.name, problem)
    return spec


def _huds(
    source: RunSource, episode: EpisodeRow, rows: npt.NDArray[np.int64], total: float
) -> Iterator[Hud]:
    """Iterate over what is known about steps of an episode, whose return before them is `total`."""
    arrays = source.arrays
    number, agent_id = episode.number, episode.agent_id
    indices = arrays.read("step_index", rows)
    rewards = arrays.read("rewards", rows) if "rewards" in arrays.fields else [math.nan] * len(rows)
    has_action = arrays.are_valid("actions", rows)
    actions = arrays.read_field("actions", rows) if has_action.any() else None
    for place, index in enumerate(indices.tolist()):
        reward = float(rewards[place])
        total += 0.0 if math.isnan(reward) else reward
        action = row_of(actions, place) if has_action[place] else None
        yield Hud(number, agent_id, index, action, None if math.isnan(reward) else reward, total)


def _action_text(action: Any) -> str:
    if action is None:
        return "-"
    if isinstance(action, Mapping):
        inner = ", ".join(f"{key}: {_action_text(value)}" for key, value in action.items())
        return f"{{{inner}}}"
    if isinstance(action, tuple):
        return f"({', '.join(map(_action_text, action))})"
    array = np.asarray(action)
    numbers = [_number_text(value) for value in array.reshape(-1)[:_MOST_NUMBERS].tolist()]
    if array.ndim == 0:
        return numbers[0]
    more = ", ..." if array.size > _MOST_NUMBERS else ""
    return f"[{', '.join(numbers)}{more}]"


def _number_text(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
