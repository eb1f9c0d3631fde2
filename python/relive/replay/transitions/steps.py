"""Which steps of a run follow each other, and the transitions that begin with them."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from relive.errors import CorruptError
from relive.replay.arrays import FINAL
from relive.replay.source import RunSource
from relive.replay.transitions.options import Sequences

Ints = npt.NDArray[np.int64]

OBSERVATIONS: Final = "observations"
NO_END: Final = -1
"""Instead of the row of a last observation, where there is none."""


class Steps:
    """The first steps of a run, episode by episode, and which of them follow each other.

    A *place* is a position in this order. A *segment* is places whose steps follow each other:
    steps of one episode, without one between them that was dropped or has no observation. What was
    seen after the last step of a segment is known if the episode ended with it, and if it was
    recorded or the episode terminated.

    Args:
        source: The run.
        count: How many steps of it count.
        ends: How many last observations of episodes count.
    """

    def __init__(self, source: RunSource, count: int, ends: int) -> None:
        arrays, rows = source.arrays, np.arange(count)
        episode = arrays.read("episode", rows)
        if count and not 0 <= episode.min() <= episode.max() < source.run.episodes:
            raise CorruptError(f"`{source.path}`: a step has an episode that does not exist")
        # In most runs of one stream, this is the order of rows.
        is_sorted = not (episode[1:] < episode[:-1]).any()
        self.rows: Ints = rows if is_sorted else np.argsort(episode, kind="stable")
        """The row of each place."""
        self.episode: Ints = episode[self.rows]
        """The number of the episode of each place."""
        index = arrays.read("step_index", rows)[self.rows]
        has = arrays.are_valid(OBSERVATIONS, rows)[self.rows]
        self.terminated: npt.NDArray[np.bool_] = arrays.read("terminated", rows)[self.rows]
        self.truncated: npt.NDArray[np.bool_] = arrays.read("truncated", rows)[self.rows]

        begins = np.ones(count, np.bool_)
        begins[1:] = (
            (self.episode[1:] != self.episode[:-1])
            | (index[1:] != index[:-1] + 1)
            | ~(has[1:] & has[:-1])
        )
        first = np.flatnonzero(begins)
        self.segment: Ints = np.cumsum(begins, dtype=np.int64) - 1
        """The number of the segment of each place."""
        self.first: Ints = first
        """The first place of each segment."""
        self.after: Ints = np.append(first[1:], count)
        """The place after the last one of each segment."""
        last = self.after - 1
        self.begins_episode: npt.NDArray[np.bool_] = index[first] == 0
        """Whether each segment begins with its episode."""
        self.end: Ints = self._ends(source, last, ends)
        """The row of what was seen after each segment among the last observations."""
        is_known = ((self.end != NO_END) | self.terminated[last]) & has[last]
        self.stop: Ints = np.where(is_known, self.after, last)
        """The place after the last one of each segment of which is known what was seen next."""

    def _ends(self, source: RunSource, last: Ints, ends: int) -> Ints:
        """Return the last observation that belongs to each segment, whose last place is `last`."""
        found = np.full(len(last), NO_END)
        arrays = source.arrays
        if not ends or FINAL + OBSERVATIONS not in arrays.fields:
            return found
        described = np.zeros((source.run.episodes, 3), np.int64)
        for row in source.episodes:
            described[row.number] = row.dropped, row.terminated, row.truncated
        of_episode = np.full(source.run.episodes, NO_END)
        known = np.flatnonzero(arrays.are_valid(FINAL + OBSERVATIONS, np.arange(ends)))
        of_episode[arrays.read("final.episode", known)] = known
        number = self.episode[last]
        is_last = np.ones(len(last), np.bool_)
        is_last[:-1] = number[1:] != number[:-1]
        dropped, terminated, truncated = described[number].T
        # If the last step of an episode was dropped, what was seen after it belongs to no step.
        # Only of a step that ended the episode itself is known that none was dropped after it.
        is_whole = self.terminated[last] | self.truncated[last] | (dropped == 0)
        has_end = is_last & is_whole & (of_episode[number] != NO_END)
        found[has_end] = of_episode[number][has_end]
        self.terminated[last[has_end]] |= terminated[has_end] != 0
        self.truncated[last[has_end]] |= truncated[has_end] != 0
        return found


@dataclass(frozen=True, slots=True)
class Items:
    """Transitions: which steps they begin and end with, and what is summed over them."""

    places: Ints
    """The place of the first step of each."""
    n: npt.NDArray[np.int32]
    """How many steps each has."""
    reward: npt.NDArray[np.float32]
    terminated: npt.NDArray[np.bool_]
    truncated: npt.NDArray[np.bool_]
    discount: npt.NDArray[np.float32]
    next_place: Ints
    """The place of the step that observed what was seen next; not used where `end` is set."""
    end: Ints
    """The row of what was seen next among the last observations of episodes, or `NO_END`."""


def items_of(
    steps: Steps,
    rewards: npt.NDArray[np.float64],
    *,
    n_step: int,
    gamma: float,
    first_row: int,
    is_by_row: bool,
) -> Items:
    """Return the transitions that begin with step `first_row` or a later one.

    Args:
        steps: The steps.
        rewards: The reward of each row.
        n_step: The most steps of a transition.
        gamma: By how much less a reward counts that is a step later.
        first_row: The first row of which a transition begins.
        is_by_row: Whether transitions are in the order of rows; if not, in that of places.
    """
    stop = steps.stop[steps.segment]
    numbers = np.arange(len(steps.rows))
    places = numbers[(numbers < stop) & (steps.rows >= first_row)]
    if is_by_row:
        rows = steps.rows[places]
        if (rows[1:] < rows[:-1]).any():
            places = places[np.argsort(rows)]
    n = np.minimum(n_step, stop[places] - places)
    total = np.zeros(len(places))
    for step in range(min(n_step, int(n.max(initial=0)))):
        is_within = n > step
        reward = rewards[steps.rows[places[is_within] + step]]
        total[is_within] += gamma**step * reward
    last = places + n - 1
    terminated = steps.terminated[last]
    segment = steps.segment[places]
    is_end = last + 1 == steps.after[segment]
    return Items(
        places,
        n.astype(np.int32),
        total.astype(np.float32),
        terminated,
        steps.truncated[last],
        np.where(terminated, 0.0, np.power(gamma, n)).astype(np.float32),
        # A step that terminated and has no next observation repeats its own.
        np.where(is_end, last, last + 1),
        np.where(is_end, steps.end[segment], NO_END),
    )


@dataclass(frozen=True, slots=True)
class Windows:
    """Sequences of transitions."""

    starts: npt.NDArray[np.uint32]
    """The first transition of each."""
    lengths: npt.NDArray[np.uint32]
    """How many transitions each has."""
    skipped: npt.NDArray[np.uint32]
    """How many transitions at the front of each are not to learn from."""


def windows_of(steps: Steps, items: Items, sequences: Sequences) -> Windows:
    """Return the sequences of transitions, which are in the order of places.

    They begin at every `stride`-th step of a segment, in the order of rows. The steps of the
    burn-in are skipped, unless the sequence begins with its episode.
    """
    places = items.places
    segment = steps.segment[places]
    into = places - steps.first[segment]
    stop = steps.stop[segment]
    is_first = (into == 0) & steps.begins_episode[segment]
    skipped = np.where(is_first, 0, sequences.burn_in)
    is_start = (into % sequences.stride == 0) & (places + skipped < stop)
    starts = np.flatnonzero(is_start)
    starts = starts[np.argsort(steps.rows[places[starts]], kind="stable")]
    lengths = np.minimum(sequences.steps, stop[starts] - places[starts])
    return Windows(*(_as_uint32(each) for each in (starts, lengths, skipped[starts])))


def _as_uint32(values: Any) -> npt.NDArray[np.uint32]:
    return np.ascontiguousarray(values, np.uint32)
