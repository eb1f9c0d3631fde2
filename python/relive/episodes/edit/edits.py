"""Edits of episodes: they are stored apart from the recording and change none of its files.

An edit refers to an episode by its uid, and edits apply in the order in which they were made:

- `set_static` sets a static, over the recorded one and over an earlier edit;
- `drop` hides the episode, until `undrop`;
- `trim` keeps the records in `[start, stop)`, and for each signal the record that held at `start`,
  with that time. It replaces an earlier trim, so one with two open ends restores all records;
- `cut` replaces an episode by two: `<uid>#0` with the records before a time and `<uid>#1` with
  the others, after those that held at that time. Each starts with the statics, the drop and the
  trim of the episode, and is edited by its own uid from then on. No edit joins them again, and no
  later trim extends them past the cut.
"""

import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from relive.episodes.edit.edited_episode import AppliedEdits, EditedEpisode, segment_uids
from relive.episodes.edit.log import Edit, EditLog
from relive.episodes.layout import check_name
from relive.errors import InvalidError, UnknownNameError
from relive.model.clock import as_time
from relive.model.episode import Episode, check_static


class Edits:
    """Edits the episodes in a root; `LocalDataset.edits` is one.

    Each edit is checked, and is on disk when the call returns. Datasets that are opened or
    refreshed later apply it. Several processes may edit one root.

    Example:
        >>> import relive
        >>> with relive.LocalDatasetWriter("kitchen").new_episode(uid="e0") as episode:
        ...     episode.append("joint", 0.5, ts_ns=0)
        >>> dataset = relive.LocalDataset("kitchen")
        >>> dataset.edits.set_static("e0", "task", "pick")
        >>> dataset.edits.drop("e0")
        >>> dataset.edits.dropped
        ('e0',)
        >>> dataset.edits.undrop("e0")
        >>> dataset.refresh()
        >>> dataset[0]["task"]
        'pick'
    """

    def __init__(self, root: str | os.PathLike[str], find: Callable[[str], Episode | None]) -> None:
        self._log = EditLog(root)
        self._find = find
        self._applied = AppliedEdits()
        self._known: list[Edit] = []

    def set_static(self, uid: str, name: str, value: Any) -> None:
        """Set a static of an episode, which may or may not have one with that name."""
        name = check_name(name, "a static")
        value = check_static(f"static {name!r}", value)

        def check(episode: Episode) -> None:
            if name in episode.signals:
                raise InvalidError(
                    f"{name!r} is a signal of the episode {uid!r}, so it cannot be a static value"
                )

        self._make("set_static", uid, check, name=name, value=value)

    def drop(self, uid: str) -> None:
        """Hide an episode."""
        self._make("drop", uid)

    def undrop(self, uid: str) -> None:
        """Show an episode again that was dropped."""
        self._make("undrop", uid)

    def trim(self, uid: str, start: int | None = None, stop: int | None = None) -> None:
        """Keep the records of an episode in `[start, stop)`; without both, restore all records.

        The last record of a signal before `start` is kept with the time `start`, unless the signal
        has a record at that time.
        """
        start = None if start is None else as_time(start)
        stop = None if stop is None else as_time(stop)

        def check(episode: Episode) -> None:
            if (start, stop) != (None, None):
                _check_window(episode, start, stop)

        self._make("trim", uid, check, start=start, stop=stop)

    def cut(self, uid: str, ts: int) -> tuple[str, str]:
        """Cut an episode into the records before `ts` and the others; return the two uids."""
        ts = as_time(ts)
        uids = segment_uids(uid)

        def check(episode: Episode) -> None:
            _check_window(episode, None, ts)
            _check_window(episode, ts, None)
            for each in uids:
                if self._find(each) is not None:
                    raise InvalidError(
                        f"cannot cut episode {uid!r}: the episode {each!r} already exists"
                    )

        self._make("cut", uid, check, ts=ts)
        return uids

    def history(self, uid: str) -> list[Edit]:
        """Return the edits of an episode, including those of the episodes it was cut from."""
        edits = self._log.read()
        applied = self._apply(edits)
        line = applied.lineage(uid)
        if self._find(line[-1]) is None:
            raise _unknown(uid, applied)
        return [edit for edit in edits if edit.uid in line]

    @property
    def dropped(self) -> tuple[str, ...]:
        """The uids of dropped episodes."""
        return self._apply(self._log.read()).dropped()

    def __repr__(self) -> str:
        """Return the path and the number of edits, on one line."""
        return f"{type(self).__name__}({str(self._log.path)!r}, {len(self._log.read())} edits)"

    def _make(
        self, op: str, uid: str, check: Callable[[Episode], None] | None = None, **details: Any
    ) -> None:
        # Checked before the log is opened, so that an error does not create a file.
        self._recorded(uid, self._apply(self._log.read()))
        with self._log.appending() as (edits, append):
            applied = self._apply(edits)
            episode = self._recorded(uid, applied)
            if check is not None:
                segment = applied.segment(uid)
                if op == "trim":  # it replaces the earlier trim
                    segment = replace(segment, start=None, stop=None)
                check(EditedEpisode(episode, segment))
            append(Edit(op, uid, time.time_ns(), details))

    def _apply(self, edits: list[Edit]) -> AppliedEdits:
        """Apply edits; those that were applied before are not applied again."""
        known = len(self._known)
        if known > len(edits) or (known and edits[known - 1] is not self._known[-1]):
            self._applied, known = AppliedEdits(), 0
        for edit in edits[known:]:
            self._applied.add(edit)
        self._known = edits
        return self._applied

    def _recorded(self, uid: str, applied: AppliedEdits) -> Episode:
        """Return the recorded episode of a uid that was not cut."""
        episode = None if applied.cut_into(uid) else self._find(applied.lineage(uid)[-1])
        if episode is None:
            raise _unknown(uid, applied)
        return episode


def _unknown(uid: str, applied: AppliedEdits) -> UnknownNameError:
    if uids := applied.cut_into(uid):
        return UnknownNameError(
            f"no episode has the uid {uid!r}",
            hint=f"the episode was cut into {' and '.join(map(repr, uids))}",
        )
    return UnknownNameError(f"no episode has the uid {uid!r}")


def _check_window(episode: Episode, start: int | None, stop: int | None) -> None:
    window = slice(start, stop)
    if not any(len(signal.time[window]) for signal in episode.signals.values()):
        text = f"[{'' if start is None else start}:{'' if stop is None else stop}]"
        raise InvalidError(
            f"the episode {episode.uid!r} has no records in the time range {text}",
            hint="times are in nanoseconds, and the end of the range is excluded",
        )
