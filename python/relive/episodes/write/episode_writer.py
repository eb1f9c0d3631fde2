"""Records an episode: signals and statics that become visible together, or not at all."""

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from operator import methodcaller
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex

from relive.episodes.layout import (
    COLUMNS,
    INDEX,
    MARKER,
    OUTCOME,
    VIDEO,
    check_name,
    file_stem,
)
from relive.episodes.meta import make_meta, write_json, write_statics
from relive.episodes.write.commit import begin_folder, commit, remove_folder, remove_leftovers
from relive.episodes.write.options import SpecLike, as_options
from relive.episodes.write.signal_writer import SignalTarget, SignalWriter, check_attrs
from relive.episodes.write.simple_writer import ColumnsSignalWriter
from relive.episodes.write.statistics import RecorderStats
from relive.episodes.write.values import as_record, is_image
from relive.episodes.write.video_writer import CameraWriter
from relive.errors import AlreadyExistsError, InvalidError, NotFoundError, ReliveError
from relive.model.clock import now_ns
from relive.model.episode import check_static
from relive.model.signal import copied
from relive.store.atomic import storage_error
from relive.store.lifecycle import WriterLifecycle
from relive.store.locks import FileLock
from relive.store.paths import absolute_path
from relive.store.queue import Overload

if TYPE_CHECKING:
    from relive.store.digest import Digests


class DiskEpisodeWriter(WriterLifecycle):
    """An episode that is being recorded into a directory; readers see it when it is closed.

    Leaving `with` commits it, and so does Ctrl-C. Another exception leaves it unfinished, and
    nothing is lost: `relive recover` finishes it. `on_error` changes that. Thread-safe.

    Args:
        path: The directory, which must not exist.
        video: How cameras are encoded: the name of a profile or a `VideoSpec`; `"array"` records
            them as plain arrays.
        signals: The same for signals by name.
        overload: What happens to a frame that is appended when the queue of its encoder is full:
            `"block"` waits, `"drop"` drops and counts it, `"raise"` raises an `OverloadError`.
        queue: The number of frames that may wait for each encoder.
        on_error: What an exception in the `with` block does: `"keep"` leaves the episode
            unfinished, `"commit"` commits it with the error noted, `"abort"` removes it.
        uid: The uid of the episode, if it is a copy of another.
        created_ts_ns: The creation time of the episode, if it is a copy of another.

    Example:
        >>> import numpy as np
        >>> from relive.episodes import DiskEpisode, DiskEpisodeWriter
        >>> with DiskEpisodeWriter("pick_up_cube") as writer:
        ...     writer.set_static("task", "pick up the cube")
        ...     for step in range(3):
        ...         writer.append("arm.joints", np.full(7, step), ts_ns=step * 10_000_000)
        >>> episode = DiskEpisode("pick_up_cube")
        >>> episode["task"], len(episode["arm.joints"])
        ('pick up the cube', 3)
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        video: SpecLike | None = None,
        signals: Mapping[str, SpecLike] | None = None,
        overload: Overload | None = None,
        queue: int | None = None,
        on_error: str | None = None,
        uid: str | None = None,
        created_ts_ns: SupportsIndex | None = None,
    ) -> None:
        self._folder = Path(absolute_path(path, "an episode"))
        self._options = as_options(
            video=video, signals=signals, overload=overload, queue=queue, on_error=on_error
        )
        copied_from = {"uid": uid, "created_ts_ns": created_ts_ns}
        self._meta = make_meta(type(self)) | {
            key: value for key, value in copied_from.items() if value is not None
        }
        self._writers: dict[str, SignalWriter] = {}
        self._statics: dict[str, Any] = {}
        self._described: dict[str, dict[str, Any]] = {}
        self._digests: Digests = {}
        self._ended: dict[str, Any] = {"ended": "committed"}
        self._stats: RecorderStats | None = None
        try:
            self._folder.parent.mkdir(parents=True, exist_ok=True)
            self._lock = begin_folder(self._folder, self._meta)
        except FileExistsError as error:
            raise AlreadyExistsError(f"`{self._folder}` already exists") from error
        except OSError as error:
            if isinstance(error, ReliveError):
                raise
            raise storage_error(error, self._folder, "create") from error
        super().__init__()  # last: from here on it is left if dropped
        self._kept.append(self._lock)

    @property
    def path(self) -> Path:
        """The directory of the episode."""
        return self._folder

    @property
    def uid(self) -> str:
        """The identity of the episode, which stays the same wherever it is moved or copied."""
        return str(self._meta["uid"])

    @property
    def meta(self) -> dict[str, Any]:
        """A copy of the metadata that was written when the episode was created."""
        return dict(copied(self._meta))

    @property
    def stats(self) -> RecorderStats:
        """The state of the recording; after the end, its last state."""
        if self._stats is not None:
            return self._stats
        return RecorderStats({name: each.stats for name, each in dict(self._writers).items()})

    def append(
        self,
        name: str,
        data: Any,
        ts_ns: SupportsIndex | None = None,
        clocks: Mapping[str, SupportsIndex] | None = None,
    ) -> None:
        """Append a copy of `data` to a signal, later than all its records before.

        The first record creates the signal.

        Args:
            name: The name of the signal.
            data: An int, float, bool or str, an array, or anything that NumPy converts to one;
                all records of a signal have the dtype and shape of the first. An array of uint8
                of shape (height, width, 3) is a frame of a video.
            ts_ns: The timestamp; by default the current time, `relive.episodes.now_ns()`.
            clocks: Times on further clocks, by name; every record has the same clocks.
        """
        try:
            writer = self._writers.get(name)
        except TypeError:
            check_name(name)
            raise
        if writer is None:  # Ctrl-C leaves a signal with its first record, or no signal
            self._run_to_the_end(lambda: self._append_first(name, data, ts_ns, clocks))
        else:
            writer.append(data, ts_ns, clocks)

    def set_static(self, name: str, value: Any) -> None:
        """Set a value that holds for the whole episode; it is on the disk when this returns.

        `value` is any JSON value, or bytes. A name that is in use is an `InvalidError`.
        """
        check_name(name, "a static")
        plain = check_static(f"static {name!r}", value)
        self._run_to_the_end(lambda: self._set_static(name, plain))

    def describe(
        self,
        name: str,
        /,
        names: Sequence[str] | None = None,
        unit: str | None = None,
        **attrs: Any,
    ) -> None:
        """Set attributes of a signal, before its first record or later.

        They become `signal.attrs`; attributes that were set before and are not named stay. Those
        of a signal that is never recorded are in `meta["outcome"]["described"]`.

        Args:
            name: The name of the signal.
            names: The names of the components of a vector, one for each.
            unit: The unit of the values.
            **attrs: Any JSON values.
        """
        check_name(name)
        checked = check_attrs(name, names, unit, attrs)
        with self._mutex:
            self._check_open()
            if name in self._statics:
                raise InvalidError(f"{name!r} is a static value of this episode, not a signal")
            writer = self._writers.get(name)
            if writer is None:
                self._described.setdefault(name, {}).update(checked)
            else:
                writer.describe(**checked)

    def flush(self) -> None:
        """Make every record so far survive the end of this process; waits for the encoders."""
        self._check_open()
        _each(dict(self._writers), methodcaller("flush"))

    def sync(self) -> None:
        """Make every record so far survive a power cut; waits for the encoders."""
        self._check_open()
        _each(dict(self._writers), methodcaller("sync"))

    def __repr__(self) -> str:
        """Return the path and the number of signals, on one line."""
        state = f"{len(self._writers)} signals" if self._state == "open" else self._state
        return f"{type(self).__name__}({self.path}: {state})"

    def _set_static(self, name: str, value: Any) -> None:
        with self._mutex:
            self._check_open()
            if name in self._statics:
                raise InvalidError(f"the static value {name!r} is already set")
            if name in self._writers:
                raise InvalidError(f"{name!r} is already a signal of this episode")
            statics = {**self._statics, name: value}
            write_statics(self._folder, statics)
            self._statics = statics

    def _end_block(self, error: BaseException | None) -> None:
        if error is not None:
            self._interrupted(error)
        if error is None or isinstance(error, KeyboardInterrupt):
            self.close()
        elif self._options.on_error == "keep":
            super()._end_block(error)
        else:
            self._end_by_error(error)

    def _interrupted(self, error: BaseException) -> None:
        if isinstance(error, KeyboardInterrupt) and self._ended["ended"] == "committed":
            self._ended = {"ended": "interrupted"}

    def _end_by_error(self, error: BaseException) -> None:
        try:
            if self._options.on_error == "abort":
                self.abort()
            else:
                self._ended = {"ended": "error", "error": f"{type(error).__name__}: {error}"}
                self.close()
        except ReliveError as other:  # the error of the block matters more
            error.add_note(f"`{self._folder}` could not be ended: {other}")

    def _append_first(
        self,
        name: str,
        data: Any,
        ts_ns: SupportsIndex | None,
        clocks: Mapping[str, SupportsIndex] | None,
    ) -> None:
        with self._mutex:
            self._check_open()
            writer = self._writers.get(name)
            if writer is None:
                check_name(name)
                if name in self._statics:
                    raise InvalidError(f"{name!r} is already a static value of this episode")
                # A first record that is refused leaves no signal.
                writer = self._new_writer(name, data)
                try:
                    writer.append(data, ts_ns, clocks)
                except BaseException:
                    writer.abort()
                    raise
                self._described.pop(name, None)
                self._writers[name] = writer
                return
        writer.append(data, ts_ns, clocks)

    def _new_writer(self, name: str, data: Any) -> SignalWriter:
        form, _ = as_record(name, data)
        attrs = self._described.get(name, {})
        options = self._options
        spec = options.signals.get(name, options.video)
        file = os.fspath(self._folder / file_stem(name))
        if is_image(form) and spec is not None:
            files = Path(file + VIDEO), Path(file + INDEX)
            target = SignalTarget(name, attrs, files, digests=self._digests)
            return CameraWriter(target, spec, overload=options.overload, queue=options.queue)
        if options.signals.get(name) is not None:
            raise InvalidError(
                f"signal {name!r} is configured as video, but this record is {form}",
                hint="append uint8 frames of shape (height, width, 3)",
            )
        columns = Path(file + COLUMNS)
        return ColumnsSignalWriter(SignalTarget(name, attrs, (columns,), digests=self._digests))

    def _finish(self) -> None:
        writers = self._end()
        try:
            _each(writers, methodcaller("close"))
            self._stats = RecorderStats({name: each.stats for name, each in writers.items()})
            self._commit(self._stats)
        finally:
            _leave(writers)
            self._lock.release()

    def _commit(self, stats: RecorderStats) -> None:
        signals = {
            name: {"rows": each.rows, "dropped": each.dropped}
            for name, each in stats.signals.items()
        }
        remove_leftovers(self._folder)
        outcome = self._ended | {"finished_ts_ns": now_ns(), "signals": signals}
        if self._described:  # of signals that were never recorded
            outcome["described"] = self._described
        # `commit` syncs the name, with those of its own files.
        write_json(self._folder / OUTCOME, outcome, overwrite=True, sync_name=False)
        commit(self._folder, self._digests)

    def _remove(self) -> None:
        writers = self._end()
        if not self._lock.is_held:  # it was left, and may have been recovered since
            try:
                self._lock = FileLock.take(self._folder / MARKER)
            except NotFoundError:
                return
        try:
            # The directory is renamed before anything in it is removed: a process that is killed
            # here leaves the whole episode, or none of it.
            for writer in writers.values():
                with contextlib.suppress(ReliveError):
                    writer._drop_queue()  # noqa: SLF001 - its tape is removed below
                    writer.leave()
            remove_folder(self._folder, self.uid)
        finally:
            self._lock.release()

    def _keep_unfinished(self) -> None:
        writers = self._end()
        try:
            _each(writers, methodcaller("leave"))
        finally:
            _leave(writers)
            self._lock.release()

    def _end(self) -> dict[str, SignalWriter]:
        """Accept no more records, and return the writers."""
        self._stats = self.stats
        writers, self._writers = self._writers, {}
        return writers

    def _become_inherited(self) -> None:
        super()._become_inherited()
        self._writers = {}

    def _is_held_here(self) -> bool:
        writers = dict(self._writers).values()
        return super()._is_held_here() or any(each._is_held_here() for each in writers)  # noqa: SLF001 - of a WriterLifecycle too

    def _destination(self) -> str:
        return os.fspath(self._folder)


def _each(writers: Mapping[str, SignalWriter], call: Callable[[SignalWriter], None]) -> None:
    """Call `call` with every writer, and then raise the first error."""
    failures: list[BaseException] = []
    for writer in writers.values():
        try:
            call(writer)
        except BaseException as error:  # noqa: BLE001 - raised below
            failures.append(error)
    if failures:
        for other in failures[1:]:
            failures[0].add_note(f"also: {other}")
        raise failures[0]


def _leave(writers: Mapping[str, SignalWriter]) -> None:
    for writer in writers.values():
        with contextlib.suppress(ReliveError, OSError):
            writer.leave()
