"""Edits: statics, drops, trims and cuts that lie over what was recorded, and change none of it.

An edit is about an episode by its uid, and edits count in the order in which they were made:

- `set_static` sets a static, over the recorded one and over an earlier edit;
- `drop` leaves the episode out, until `undrop`;
- `trim` leaves the records in `[start, stop)`; it replaces an earlier trim, so that one with
  two open ends gives all records back;
- `cut` makes two episodes of one, in its place: `<uid>#0` with the records before a time and
  `<uid>#1` with the others. Each begins with the statics, the drop and the trim that the
  episode had, and is edited by its own uid from then on. No edit joins them again, and no later
  trim takes them past where they were cut.
"""

import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from relive.episodes.edit.edited_episode import EditedEpisode, Overlay, Piece, piece_uids
from relive.episodes.edit.log import Edit, EditLog
from relive.episodes.layout import check_name
from relive.errors import InvalidError, UnknownNameError
from relive.model.clock import as_time
from relive.model.episode import Episode, check_static

__all__ = ["Edits"]


class Edits:
    """Makes edits of the episodes in a root; see the module for what they mean together.

    Each is checked, on the disk when the call returns, and seen by datasets that are opened or
    refreshed after it. Several processes may edit one root.
    """

    def __init__(self, root: str | os.PathLike[str], find: Callable[[str], Episode | None]) -> None:
        self._log = EditLog(root)
        self._find = find
        self._overlay = Overlay()
        self._taken: list[Edit] = []

    def set_static(self, uid: str, name: str, value: Any) -> None:
        """Set a static of an episode, whether it has one of that name or not."""
        name = check_name(name, "a static")
        value = check_static(name, value)

        def check(episode: Episode) -> None:
            if name in episode.signals:
                raise InvalidError(f"{name!r} is a signal of {uid!r}, and no static")

        self._make("set_static", uid, check, name=name, value=value)

    def drop(self, uid: str) -> None:
        """Leave an episode out."""
        self._make("drop", uid)

    def undrop(self, uid: str) -> None:
        """Take an episode in again that was dropped."""
        self._make("undrop", uid)

    def trim(self, uid: str, start: int | None = None, stop: int | None = None) -> None:
        """Leave the records in `[start, stop)` of an episode; both open gives all of them back."""
        start = None if start is None else as_time(start)
        stop = None if stop is None else as_time(stop)

        def check(episode: Episode) -> None:
            if (start, stop) != (None, None):
                _holds_records(episode, start, stop)

        self._make("trim", uid, check, start=start, stop=stop)

    def cut(self, uid: str, ts: int) -> tuple[str, str]:
        """Make two episodes of one: the records before `ts`, and the others; give their uids."""
        ts = as_time(ts)
        made = piece_uids(uid)

        def check(episode: Episode) -> None:
            _holds_records(episode, None, ts)
            _holds_records(episode, ts, None)
            for part in made:
                if self._find(part) is not None:
                    raise InvalidError(f"there is an episode {part!r} already")

        self._make("cut", uid, check, ts=ts)
        return made

    def history(self, uid: str) -> list[Edit]:
        """Give the edits that made an episode what it is, also those of what it was cut from."""
        edits = self._log.read()
        overlay = self._overlay_of(edits)
        line: list[str] = [uid]
        while origin := overlay.origin(line[-1]):
            line.append(origin)
        if self._find(line[-1]) is None:
            raise self._unknown(uid, overlay)
        return [edit for edit in edits if edit.uid in line]

    @property
    def dropped(self) -> tuple[str, ...]:
        """The uids of episodes that are left out."""
        return self._overlay_of(self._log.read()).dropped()

    def __repr__(self) -> str:
        """Give where they are, and how many, on one line."""
        return f"{type(self).__name__}({str(self._log.path)!r}, {len(self._log.read())} edits)"

    def _make(
        self, op: str, uid: str, check: Callable[[Episode], None] | None = None, **details: Any
    ) -> None:
        self._recorded(
            uid, self._overlay_of(self._log.read())
        )  # leaves no file where there was none
        with self._log.appending() as log:
            overlay = self._overlay_of(log.edits)
            episode = self._recorded(uid, overlay)
            if check is not None:
                piece = overlay.piece(uid) or Piece(uid)
                # A trim replaces the one before, and is looked at without it.
                kept = replace(piece, start=None, stop=None) if op == "trim" else piece
                check(EditedEpisode(episode, kept))
            log.append(Edit(op, uid, time.time_ns(), details))

    def _overlay_of(self, edits: list[Edit]) -> Overlay:
        """Give what edits make of episodes, going on from what is known."""
        known = len(self._taken)
        if known > len(edits) or (known and edits[known - 1] is not self._taken[-1]):
            self._overlay, known = Overlay(), 0
        for edit in edits[known:]:
            self._overlay.add(edit)
        self._taken = edits
        return self._overlay

    def _recorded(self, uid: str, overlay: Overlay) -> Episode:
        """Give what was recorded of an episode that is there now."""
        recorded = uid
        while origin := overlay.origin(recorded):
            recorded = origin
        episode = None if overlay.parts(uid) else self._find(recorded)
        if episode is None:
            raise self._unknown(uid, overlay)
        return episode

    def _unknown(self, uid: str, overlay: Overlay) -> UnknownNameError:
        if parts := overlay.parts(uid):
            return UnknownNameError(
                f"the episode {uid!r} was cut", hint=f"it is now {' and '.join(map(repr, parts))}"
            )
        return UnknownNameError(f"no episode has the uid {uid!r}")


def _holds_records(episode: Episode, start: int | None, stop: int | None) -> None:
    window = slice(start, stop)
    if not any(len(signal.time[window]) for signal in episode.signals.values()):
        where = f"{'' if start is None else start}:{'' if stop is None else stop}"
        raise InvalidError(
            f"the episode {episode.uid!r} has no record in [{where}]",
            hint="times are in nanoseconds, and the second one is not in the window",
        )
