"""Episodes with their edits applied."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from relive._native import find_time
from relive.episodes.edit.log import Edit
from relive.model.clock import INT64_MAX
from relive.model.dataset import SEGMENT_MARK
from relive.model.episode import Episode, LazySignals
from relive.model.signal import Signal, copied


@dataclass(frozen=True, slots=True)
class Segment:
    """What edits keep of a recorded episode: a window of time, with changed statics."""

    uid: str
    low: int | None = None
    """The time of the cut before it."""
    high: int | None = None
    """The time of the cut after it."""
    start: int | None = None
    """The start of the last trim."""
    stop: int | None = None
    """The stop of the last trim."""
    statics: Mapping[str, Any] = field(default_factory=dict)
    """The statics that were set."""
    dropped: bool = False

    @property
    def window(self) -> tuple[int | None, int | None]:
        """The start (included) and stop (excluded) of the records it keeps; None if open."""
        lows = [bound for bound in (self.low, self.start) if bound is not None]
        highs = [bound for bound in (self.high, self.stop) if bound is not None]
        return max(lows, default=None), min(highs, default=None)

    def apply(self, edit: Edit) -> "tuple[Segment, ...]":
        """Return the segment after an edit, or the two segments that a cut makes of it."""
        details = edit.details
        match edit.op:
            case "set_static":
                statics = {**self.statics, details["name"]: details["value"]}
                return (replace(self, statics=statics),)
            case "drop" | "undrop":
                return (replace(self, dropped=edit.op == "drop"),)
            case "trim":
                return (replace(self, start=details["start"], stop=details["stop"]),)
            case _:
                ts = details["ts"]
                high = ts if self.high is None else min(ts, self.high)
                low = ts if self.low is None else max(ts, self.low)
                first, second = segment_uids(self.uid)
                return replace(self, uid=first, high=high), replace(self, uid=second, low=low)


class AppliedEdits:
    """The segments that edits make of episodes, by uid."""

    def __init__(self, edits: Iterable[Edit] = ()) -> None:
        self._segments: dict[str, Segment] = {}
        self._cut_into: dict[str, tuple[str, ...]] = {}
        self._cut_from: dict[str, str] = {}
        for edit in edits:
            self.add(edit)

    def add(self, edit: Edit) -> bool:
        """Apply one more edit; return False if it refers to an episode that was cut."""
        uid = edit.uid
        if uid in self._cut_into:
            return False
        made = self._segments.get(uid, Segment(uid)).apply(edit)
        if len(made) > 1:
            self._segments.pop(uid, None)
            self._cut_into[uid] = tuple(segment.uid for segment in made)
            self._cut_from |= dict.fromkeys(self._cut_into[uid], uid)
        self._segments |= {segment.uid: segment for segment in made}
        return True

    def __bool__(self) -> bool:
        """Return whether there is any edit."""
        return bool(self._segments)

    def segments(self, uid: str) -> tuple[Segment, ...] | None:
        """Return the segments of a recorded episode in time order; None if it has no edits."""
        if uid not in self._segments and uid not in self._cut_into:
            return None
        return tuple(self._walk(uid))

    def segment(self, uid: str) -> Segment:
        """Return the segment with that uid; one that keeps everything if it has no edits."""
        return self._segments.get(uid) or Segment(uid)

    def cut_into(self, uid: str) -> tuple[str, ...]:
        """Return the uids that an episode was cut into; empty if it was not cut."""
        return self._cut_into.get(uid, ())

    def lineage(self, uid: str) -> list[str]:
        """Return a uid, the uid that it was cut from, and so on to the recorded episode."""
        line = [uid]
        while (origin := self._cut_from.get(line[-1])) is not None:
            line.append(origin)
        return line

    def dropped(self) -> tuple[str, ...]:
        """Return the uids of dropped episodes."""
        return tuple(segment.uid for segment in self._segments.values() if segment.dropped)

    def _walk(self, uid: str) -> Iterator[Segment]:
        if uid in self._cut_into:
            for inner in self._cut_into[uid]:
                yield from self._walk(inner)
        else:
            yield self._segments[uid]


class EditedEpisode(Episode):
    """A recorded episode with its edits applied: records of a time window, changed statics.

    The value that a signal had when the window begins is its first record, see `trimmed`.

    Pickles small: the path of the recorded episode and the edits.

    Example:
        >>> import relive
        >>> with relive.LocalDatasetWriter("kitchen").new_episode() as episode:
        ...     for ts in range(5):
        ...         episode.append("joint", ts / 10, ts_ns=ts)
        >>> dataset = relive.LocalDataset("kitchen")
        >>> dataset.edits.trim(dataset.uids[0], 2)
        >>> dataset.refresh()
        >>> len(dataset[0]["joint"]), len(dataset[0].recorded["joint"])
        (3, 5)
    """

    def __init__(self, recorded: Episode, segment: Segment) -> None:
        self.recorded = recorded
        """The episode without its edits."""
        self.segment = segment
        """What the edits keep and change."""
        self._signals: Mapping[str, Signal[Any]] | None = None

    @property
    def uid(self) -> str:
        """The uid of the recorded episode, or of the segment that a cut made of it."""
        return self.segment.uid

    @property
    def path(self) -> Path | None:
        """The directory of the recorded episode, if it is on disk."""
        return getattr(self.recorded, "path", None)

    @property
    def signals(self) -> Mapping[str, Signal[Any]]:
        """The signals in the time window, by name."""
        if self._signals is None:
            start, stop = self.segment.window
            self._signals = self.recorded.signals
            if (start, stop) != (None, None):
                self._signals = LazySignals(
                    self._signals, lambda signal: trimmed(signal, start, stop)
                )
        return self._signals

    @property
    def statics(self) -> Mapping[str, Any]:
        """The recorded statics and those that edits set, by name."""
        signals = self.recorded.signals
        changed = {k: value for k, value in self.segment.statics.items() if k not in signals}
        return {**self.recorded.statics, **copied(changed)}

    @property
    def meta(self) -> dict[str, Any]:
        """What the writer stored about the recorded episode, with the uid of this one."""
        return {**self.recorded.meta, "uid": self.uid}

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the recorded episode and the segment."""
        return type(self), (self.recorded, self.segment)


def segment_uids(uid: str) -> tuple[str, str]:
    """Return the uids of the two segments that a cut makes."""
    return f"{uid}{SEGMENT_MARK}0", f"{uid}{SEGMENT_MARK}1"


def trimmed(signal: Signal[Any], start: int | None, stop: int | None) -> Signal[Any]:
    """Return the records in `[start, stop)`, after the record that held at `start`.

    The held record has the time `start` and keeps its value and its times on additional clocks.
    There is none if a record has exactly that time, or if the first record is later.
    """
    inside = signal.time[start:stop]
    if start is None or start > INT64_MAX or (stop is not None and stop <= start):
        return inside
    times, low, high, order = signal.time_axis()
    first = find_time(times, start, low, high)
    if first == low or times.item(first - 1) == start:
        return inside
    end = high if stop is None else find_time(times, stop - 1, first, high)
    stamps = np.concatenate(([start], inside.timestamps))
    if order is None:
        return signal.select(range(first - 1 - low, end - low), stamps)
    return signal.select(np.append(order[first - 1], np.sort(order[first:end])), stamps)
