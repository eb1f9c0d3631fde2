"""Which steps of a run follow each other, and the transitions that begin with them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from relive.replay.transitions.options import Sequences

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

OBSERVATIONS: Final = "observations"
NO_END: Final = -1
"""Instead of the row of a last observation, where there is none."""


class StepTable:
    """Numbers and small values of some steps, in the order of their rows.

    Those that every table has are the `row`, the number of the `episode`, the step `index`, whether
    it has an observation, `terminated`, `truncated`, and the `reward`. If `is_known`, `into` is how
    many steps before it belong to its segment, and `from_start` whether that begins with the
    episode: then the steps before it need not be in the table.
    """

    def __init__(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        self.arrays = dict(arrays)

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        """Return the values of all steps."""
        return self.arrays[name]

    def __len__(self) -> int:
        """Count the steps."""
        return len(self.arrays["row"])

    def take(self, which: npt.NDArray[Any]) -> Self:
        """Return some of the steps."""
        return type(self)({name: values[which] for name, values in self.arrays.items()})

    def joined(self, other: "StepTable") -> Self:
        """Return these steps and later ones."""
        if not len(self):
            return type(self)(other.arrays)
        return type(self)(
            {name: np.concatenate((self[name], values)) for name, values in other.arrays.items()}
        )


@dataclass(frozen=True, slots=True)
class EpisodeEnds:
    """How episodes ended: one row for each episode of a table, by number."""

    number: Ints
    is_over: Flags
    """Whether no step can follow."""
    is_committed: Flags
    """Whether that is committed."""
    dropped: Flags
    """Whether steps were dropped."""
    terminated: Flags
    truncated: Flags
    end: Ints
    """The row of what was seen last among the last observations, or `NO_END`."""


class Steps:
    """Steps of a run, episode by episode, and which of them follow each other.

    A *place* is a position in this order. A *segment* is places whose steps follow each other:
    steps of one episode, without one between them that was dropped or has no observation. What was
    seen after the last step of a segment is known if the episode ended with it, and if it was
    recorded or the episode terminated.

    Args:
        table: The steps. Of each episode, all that follow its first one here.
        ends: How the episodes ended.
    """

    def __init__(self, table: StepTable, ends: EpisodeEnds) -> None:
        episode: Ints = table["episode"]
        count = len(table)
        # In most runs of one stream, this is the order of rows.
        is_sorted = not (episode[1:] < episode[:-1]).any()
        self.order: Ints = (
            np.arange(count) if is_sorted else np.argsort(episode, kind="stable").astype(np.int64)
        )
        """The position in the table of each place."""
        self.rows: Ints = table["row"][self.order]
        """The row of each place."""
        self.episode: Ints = episode[self.order]
        """The number of the episode of each place."""
        self.reward: npt.NDArray[np.float64] = table["reward"][self.order]
        index, has = table["index"][self.order], table["has"][self.order]
        self.has: Flags = has
        self.terminated: Flags = table["terminated"][self.order]
        self.truncated: Flags = table["truncated"][self.order]

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
        self.after: Ints = np.append(first[1:], count)[: len(first)]
        """The place after the last one of each segment."""
        last = self.after - 1
        known = table["is_known"][self.order][first]
        base = np.where(known, table["into"][self.order][first], 0)
        self.into: Ints = np.arange(count) - (first - base)[self.segment]
        """How many steps of its segment are before each place."""
        self.from_start: Flags = np.where(
            known, table["from_start"][self.order][first], index[first] == 0
        )
        """Whether each segment begins with its episode."""
        number = self.episode[last]
        is_last = np.ones(len(last), np.bool_)
        is_last[:-1] = number[1:] != number[:-1]
        of = np.searchsorted(ends.number, number)
        self.end: Ints = self._ends(last, is_last, ends, of)
        """The row of what was seen after each segment among the last observations."""
        is_known = ((self.end != NO_END) | self.terminated[last]) & has[last]
        self.stop: Ints = np.where(is_known, self.after, last)
        """The place after the last one of each segment of which is known what was seen next."""
        self.is_over: Flags = ~is_last | (ends.is_over & ends.is_committed)[of]
        """Whether nothing that is recorded later can change each segment."""

    def settled(self, committed: int, horizon: int) -> Flags:
        """Return of which places all that begins there is committed and stays as it is.

        Args:
            committed: How many steps of the run are committed.
            horizon: How many steps after it matter for what begins with a step.
        """
        if not len(self.rows):
            return np.zeros(0, np.bool_)
        last = self.after[self.segment] - 1
        until = np.arange(len(self.rows)) + horizon
        is_whole = until <= last
        # A segment that another one follows is over only if that one is committed as well.
        after = np.minimum(self.after[self.segment], len(self.rows) - 1)
        is_over = self.is_over[self.segment] & (
            (self.rows[after] < committed) | (self.episode[after] != self.episode)
        )
        settled: Flags = (is_whole | is_over) & (self.rows[np.minimum(until, last)] < committed)
        # Nothing begins with a step that has no observation.
        return settled | (~self.has & (self.rows < committed))

    def _ends(self, last: Ints, is_last: Flags, ends: EpisodeEnds, of: Ints) -> Ints:
        """Return the last observation that belongs to each segment, whose last place is `last`."""
        # If the last step of an episode was dropped, what was seen after it belongs to no step.
        # Only of a step that ended the episode itself is known that none was dropped after it.
        is_whole = self.terminated[last] | self.truncated[last] | ~ends.dropped[of]
        has_end = is_last & is_whole & (ends.end[of] != NO_END)
        self.terminated[last[has_end]] |= ends.terminated[of[has_end]]
        self.truncated[last[has_end]] |= ends.truncated[of[has_end]]
        return np.where(has_end, ends.end[of], NO_END)


@dataclass(frozen=True, slots=True)
class Items:
    """Transitions: which steps they begin and end with, and what is summed over them."""

    places: Ints
    """The place of the first step of each."""
    n: npt.NDArray[np.int32]
    """How many steps each has."""
    reward: npt.NDArray[np.float32]
    terminated: Flags
    truncated: Flags
    discount: npt.NDArray[np.float32]
    next_place: Ints
    """The place of the step that observed what was seen next; not used where `end` is set."""
    end: Ints
    """The row of what was seen next among the last observations of episodes, or `NO_END`."""


def items_of(steps: Steps, places: Ints, *, n_step: int, gamma: float) -> Items:
    """Return the transitions that begin at places, of which is known what was observed next.

    Args:
        steps: The steps.
        places: The places.
        n_step: The most steps of a transition.
        gamma: By how much less a reward counts that is a step later.
    """
    segment = steps.segment[places]
    n = np.minimum(n_step, steps.stop[segment] - places)
    total = np.zeros(len(places))
    for step in range(min(n_step, int(n.max(initial=0)))):
        is_within = n > step
        total[is_within] += gamma**step * steps.reward[places[is_within] + step]
    last = places + n - 1
    terminated = steps.terminated[last]
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


def places_of(steps: Steps, is_wanted: Flags) -> Ints:
    """Return the wanted places at which transitions begin, in the order of rows."""
    numbers = np.arange(len(steps.rows))
    places: Ints = numbers[is_wanted & (numbers < steps.stop[steps.segment])]
    rows = steps.rows[places]
    if (rows[1:] < rows[:-1]).any():
        places = places[np.argsort(rows)]
    return places


@dataclass(frozen=True, slots=True)
class Windows:
    """Sequences of transitions."""

    starts: npt.NDArray[np.uint32]
    """The first transition of each."""
    lengths: npt.NDArray[np.uint32]
    """How many transitions each has."""
    skipped: npt.NDArray[np.uint32]
    """How many transitions at the front of each are not to learn from."""

    def take(self, which: Ints) -> Self:
        """Return some of the sequences."""
        return type(self)(self.starts[which], self.lengths[which], self.skipped[which])


def windows_of(steps: Steps, is_wanted: Flags, sequences: Sequences) -> tuple[Ints, Windows]:
    """Return the sequences that begin at wanted places, in the order of rows.

    They begin at every `stride`-th step of a segment. The steps of the burn-in are skipped, unless
    the sequence begins with its episode. The places of their transitions come first, in their
    order: a sequence has consecutive ones of them.
    """
    numbers = np.arange(len(steps.rows))
    stop = steps.stop[steps.segment]
    is_first = (steps.into == 0) & steps.from_start[steps.segment]
    skipped = np.where(is_first, 0, sequences.burn_in)
    is_start = (steps.into % sequences.stride == 0) & (numbers + skipped < stop) & is_wanted
    starts = np.flatnonzero(is_start)
    starts = starts[np.argsort(steps.rows[starts], kind="stable")]
    lengths = np.minimum(sequences.steps, stop[starts] - starts)
    # How many sequences have each place: one more where one begins, one less after its end.
    change = np.zeros(len(numbers) + 1, np.int64)
    np.add.at(change, starts, 1)
    np.add.at(change, starts + lengths, -1)
    is_used = np.cumsum(change[:-1]) > 0
    places: Ints = np.flatnonzero(is_used)
    item = np.cumsum(is_used) - 1
    arrays = (item[starts], lengths, skipped[starts])
    return places, Windows(*(_as_uint32(each) for each in arrays))


def _as_uint32(values: Any) -> npt.NDArray[np.uint32]:
    return np.ascontiguousarray(values, np.uint32)
