"""What edits make of episodes: pieces of them, with other statics."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from relive.episodes.edit.log import Edit
from relive.model.dataset import SEGMENT_MARK
from relive.model.episode import Episode, LazySignals
from relive.model.signal import Signal, copied

__all__ = ["EditedEpisode", "Overlay", "Piece", "piece_uids"]


@dataclass(frozen=True, slots=True)
class Piece:
    """What edits make of an episode, or of a part of one."""

    uid: str
    low: int | None = None
    """Where it was cut off at its beginning."""
    high: int | None = None
    """Where it was cut off at its end."""
    start: int | None = None
    """Where the last trim begins."""
    stop: int | None = None
    """Where the last trim ends."""
    statics: Mapping[str, Any] = field(default_factory=dict)
    """The statics that were set."""
    dropped: bool = False

    @property
    def window(self) -> tuple[int | None, int | None]:
        """The first time that is inside, and the first after it that is not; None where open."""
        lows = [bound for bound in (self.low, self.start) if bound is not None]
        highs = [bound for bound in (self.high, self.stop) if bound is not None]
        return max(lows, default=None), min(highs, default=None)

    def edited(self, edit: Edit) -> "tuple[Piece, ...]":
        """Give what an edit makes of it: itself, changed, or two pieces."""
        details = edit.details
        match edit.op:
            case "set_static":
                statics = {**self.statics, details["name"]: details["value"]}
                return (replace(self, statics=statics),)
            case "drop":
                return (replace(self, dropped=True),)
            case "undrop":
                return (replace(self, dropped=False),)
            case "trim":
                return (replace(self, start=details["start"], stop=details["stop"]),)
            case _:
                ts = details["ts"]
                high = ts if self.high is None else min(ts, self.high)
                low = ts if self.low is None else max(ts, self.low)
                first, second = piece_uids(self.uid)
                return replace(self, uid=first, high=high), replace(self, uid=second, low=low)


class Overlay:
    """What edits make of episodes, by their uids."""

    def __init__(self, edits: Iterable[Edit] = ()) -> None:
        self._pieces: dict[str, Piece] = {}
        self._parts: dict[str, tuple[str, ...]] = {}
        self._origins: dict[str, str] = {}
        for edit in edits:
            self.add(edit)

    def add(self, edit: Edit) -> bool:
        """Take one more edit; False where it is about an episode that was cut, and says nothing."""
        uid = edit.uid
        if uid in self._parts:
            return False
        made = self._pieces.get(uid, Piece(uid)).edited(edit)
        if len(made) > 1:
            self._pieces.pop(uid, None)
            self._parts[uid] = tuple(piece.uid for piece in made)
            for piece in made:
                self._origins[piece.uid] = uid
        for piece in made:
            self._pieces[piece.uid] = piece
        return True

    def __bool__(self) -> bool:
        """Whether there is any edit."""
        return bool(self._pieces)

    def pieces(self, uid: str) -> tuple[Piece, ...] | None:
        """Give what became of a recorded episode, in the order of time; None if it is as it was."""
        if uid not in self._pieces and uid not in self._parts:
            return None
        return tuple(self._walk(uid))

    def piece(self, uid: str) -> Piece | None:
        """Give what edits made of one episode; None if it is as it was, or was cut."""
        return self._pieces.get(uid)

    def parts(self, uid: str) -> tuple[str, ...]:
        """Give the uids that an episode was cut into."""
        return self._parts.get(uid, ())

    def origin(self, uid: str) -> str | None:
        """Give the uid of the episode that this one was cut from."""
        return self._origins.get(uid)

    def dropped(self) -> tuple[str, ...]:
        """Give the uids of episodes that are left out."""
        return tuple(piece.uid for piece in self._pieces.values() if piece.dropped)

    def _walk(self, uid: str) -> Iterator[Piece]:
        if uid in self._parts:
            for part in self._parts[uid]:
                yield from self._walk(part)
        else:
            yield self._pieces[uid]


class EditedEpisode(Episode):
    """An episode as edits left it: its records in a window, its statics with others over them.

    Pickles by what it was recorded as.
    """

    def __init__(self, recorded: Episode, piece: Piece) -> None:
        self.recorded = recorded
        """The episode without its edits."""
        self.piece = piece
        """What edits made of it."""
        self._signals: Mapping[str, Signal[Any]] | None = None

    @property
    def uid(self) -> str:
        """The uid: that of the recorded episode, or of a piece of it."""
        return self.piece.uid

    @property
    def path(self) -> Path | None:
        """Where the recorded episode is, if it is on disk."""
        return getattr(self.recorded, "path", None)

    @property
    def signals(self) -> Mapping[str, Signal[Any]]:
        """The signals, cut to the window."""
        if self._signals is None:
            start, stop = self.piece.window
            self._signals = self.recorded.signals
            if (start, stop) != (None, None):
                window = slice(start, stop)
                self._signals = LazySignals(self._signals, lambda signal: signal.time[window])
        return self._signals

    @property
    def statics(self) -> Mapping[str, Any]:
        """The statics, those that were set over the recorded ones."""
        signals = self.recorded.signals
        over = {name: value for name, value in self.piece.statics.items() if name not in signals}
        return {**self.recorded.statics, **copied(over)}

    @property
    def meta(self) -> dict[str, Any]:
        """What the system noted when the episode was recorded, and the uid of this one."""
        return {**self.recorded.meta, "uid": self.uid}

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the recorded episode, by its path, and what edits made of it."""
        return type(self), (self.recorded, self.piece)


def piece_uids(uid: str) -> tuple[str, str]:
    """Give the uids of the two pieces of an episode that is cut."""
    return f"{uid}{SEGMENT_MARK}0", f"{uid}{SEGMENT_MARK}1"
