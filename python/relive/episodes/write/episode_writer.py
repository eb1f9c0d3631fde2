"""Recording an episode: signals and statics that appear together, or not at all."""

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from operator import methodcaller
from pathlib import Path
from typing import Any, SupportsIndex

from relive.episodes.layout import MARKER, OUTCOME, check_name
from relive.episodes.meta import make_meta, write_json, write_statics
from relive.episodes.write.commit import begin_folder, commit, remove_folder, remove_leftovers
from relive.episodes.write.options import Options, SpecLike, as_options
from relive.episodes.write.signal_writer import SignalWriter, check_attrs
from relive.episodes.write.simple_writer import SimpleSignalWriter
from relive.episodes.write.statistics import RecorderStats
from relive.episodes.write.values import as_record, is_image
from relive.episodes.write.video_writer import VideoSignalWriter
from relive.errors import AlreadyExistsError, InvalidError, NotFoundError, ReliveError
from relive.model.clock import now_ns
from relive.model.episode import check_static
from relive.model.signal import copied
from relive.store.atomic import storage_error
from relive.store.lifecycle import WriterLifecycle
from relive.store.locks import FileLock
from relive.store.paths import absolute_path
from relive.store.queue import Overload

__all__ = ["DiskEpisodeWriter"]


class DiskEpisodeWriter(WriterLifecycle):
    """An episode being recorded into a folder of its own; readers see it when it is closed.

    `with` commits it at the end, and so does Ctrl-C. Another exception leaves it unfinished, and
    nothing is lost: `relive recover` finishes it; or `on_error="commit"` commits it, noting the
    error, and `on_error="abort"` removes it. Thread-safe.

    Args:
        path: The folder, where nothing is.
        video: How cameras are encoded: the name of a profile, or a `VideoSpec`; `"array"` records
            them as plain arrays.
        signals: The same for signals by name.
        overload: What a frame does that comes when the queue of its encoder is full: `"block"`
            waits, `"drop"` is not recorded and counted, `"raise"` is an `OverloadError`.
        queue: How many frames may wait for each encoder.
        on_error: `"keep"`, `"commit"` or `"abort"`.
        uid: What identifies the episode, where it is a copy of another.
        created_ts_ns: When that was created.
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
        folder = Path(absolute_path(path, "an episode"))
        options = as_options(
            video=video, signals=signals, overload=overload, queue=queue, on_error=on_error
        )
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            folder.mkdir()
        except FileExistsError as error:
            raise AlreadyExistsError(f"`{folder}` exists") from error
        except OSError as error:
            raise storage_error(error, folder, "created") from error
        self._begin(folder, options, _identity(uid, created_ts_ns))

    @classmethod
    def reserved(cls, folder: Path, options: Options, **identity: Any) -> "DiskEpisodeWriter":
        """Begin an episode in a folder that was just made for it."""
        writer = cls.__new__(cls)
        writer._begin(folder, options, _identity(**identity))  # noqa: SLF001 - its own
        return writer

    def _begin(self, folder: Path, options: Options, identity: dict[str, Any]) -> None:
        self._folder = folder
        self._options = options
        self._writers: dict[str, SignalWriter] = {}
        self._statics: dict[str, Any] = {}
        self._described: dict[str, dict[str, Any]] = {}
        self._ended: dict[str, Any] = {"ended": "committed"}
        self._stats: RecorderStats | None = None
        self._meta = make_meta(type(self)) | identity
        self._lock = begin_folder(folder, self._meta)
        super().__init__()  # the end of the interpreter leaves what is a whole one

    @property
    def path(self) -> str:
        """The folder of the episode."""
        return os.fspath(self._folder)

    @property
    def uid(self) -> str:
        """What identifies the episode, wherever it will be."""
        return str(self._meta["uid"])

    @property
    def meta(self) -> dict[str, Any]:
        """What was noted when the episode began; a copy."""
        return dict(copied(self._meta))

    @property
    def stats(self) -> RecorderStats:
        """How recording goes; after the end, how it went."""
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
        """Append a copy of `data` to the signal of that name, in microseconds.

        The first record makes the signal: all others have its dtype and shape and the same
        further clocks. uint8 of height × width × 3 is video, whatever else NumPy makes an array
        of is an array; int, float, bool and str are scalars. Timestamps increase strictly;
        without one it is now, by `relive.episodes.now_ns`.
        """
        try:
            writer = self._writers.get(name)
        except TypeError:
            check_name(name)
            raise
        if writer is None:  # a signal is there with its first record, or not at all
            self._run_to_the_end(lambda: self._append_first(name, data, ts_ns, clocks))
        else:
            writer.append(data, ts_ns, clocks)

    def set_static(self, name: str, value: Any) -> None:
        """Set what holds for all of the episode; it is on the disk when this returns.

        `value` is any JSON value, or bytes. A name that is taken is an `InvalidError`.
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
        """Say what the values of a signal are, before its first record or later.

        What is said becomes `signal.attrs`: any JSON values; `names` are those of the components
        of a vector, one for each. What was said before about other things stays. What is said of
        a signal that never comes is in `meta["outcome"]["described"]`.
        """
        check_name(name)
        said = check_attrs(name, names, unit, attrs)
        with self._mutex:
            self._check_open()
            if name in self._statics:
                raise InvalidError(f"{name!r} is a static of this episode, and no signal")
            writer = self._writers.get(name)
            if writer is None:
                self._described.setdefault(name, {}).update(said)
            else:
                writer.describe(**said)

    def flush(self) -> None:
        """Make every record so far survive the end of this process; waits for the encoders."""
        self._check_open()
        _each(dict(self._writers), methodcaller("flush"))

    def sync(self) -> None:
        """Make every record so far survive a power cut; waits for the encoders."""
        self._check_open()
        _each(dict(self._writers), methodcaller("sync"))

    def __repr__(self) -> str:
        """Give the place and the number of signals, on one line."""
        state = f"{len(self._writers)} signals" if self._state == "open" else self._state
        return f"{type(self).__name__}({self.path}: {state})"

    def _set_static(self, name: str, value: Any) -> None:
        with self._mutex:
            self._check_open()
            if name in self._statics:
                raise InvalidError(f"static {name!r} is set already")
            if name in self._writers:
                raise InvalidError(f"{name!r} is a signal of this episode, and cannot be a static")
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
        except ReliveError as trouble:  # what the block raised matters more
            error.add_note(f"the episode could not be ended: {trouble}")

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
                    raise InvalidError(
                        f"{name!r} is a static of this episode, and cannot be a signal"
                    )
                # A record that is refused leaves nothing: the signal is there after its first.
                writer = self._signal(name, data)
                try:
                    writer.append(data, ts_ns, clocks)
                except BaseException:
                    writer.abort()
                    raise
                self._described.pop(name, None)
                self._writers[name] = writer
                return
        writer.append(data, ts_ns, clocks)

    def _signal(self, name: str, data: Any) -> SignalWriter:
        form, _ = as_record(name, data)
        attrs = self._described.get(name, {})
        spec = self._options.spec_of(name)
        if is_image(form) and spec is not None:
            return VideoSignalWriter.inside(
                self._folder,
                name,
                attrs,
                spec,
                overload=self._options.overload,
                queue=self._options.queue,
            )
        if self._options.signals.get(name) is not None:
            raise InvalidError(
                f"signal {name!r} was to be video, and this record is {form}",
                hint="a frame is uint8 of the shape (height, width, 3)",
            )
        return SimpleSignalWriter.inside(self._folder, name, attrs)

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
        if self._described:  # said of signals that never came
            outcome["described"] = self._described
        write_json(self._folder / OUTCOME, outcome, overwrite=True)
        commit(self._folder)

    def _remove(self) -> None:
        writers = self._end()
        if not self._lock.is_held:  # it was left, and somebody may have recovered it
            try:
                self._lock = FileLock.take(self._folder / MARKER)
            except NotFoundError:
                return
        try:
            # Nothing is removed before the folder is out of sight: who is killed here leaves
            # all of the episode, or none of it.
            for writer in writers.values():
                with contextlib.suppress(ReliveError):
                    writer.discard()
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
        """Take no more, and give the writers."""
        self._stats = self.stats
        writers, self._writers = self._writers, {}
        return writers

    def _become_inherited(self) -> None:
        super()._become_inherited()
        self._writers = {}

    def _is_held_here(self) -> bool:
        writers = dict(self._writers).values()
        return super()._is_held_here() or any(each._is_held_here() for each in writers)  # noqa: SLF001 - as it is a WriterLifecycle, too

    def _destination(self) -> str:
        return self.path


def _each(writers: Mapping[str, SignalWriter], call: Callable[[SignalWriter], None]) -> None:
    """Call something for all of them, and then raise what the first of them raised."""
    failures: list[BaseException] = []
    for writer in writers.values():
        try:
            call(writer)
        except BaseException as error:  # noqa: BLE001 - raised below
            failures.append(error)
    if failures:
        for other in failures[1:]:
            failures[0].add_note(f"and: {other}")
        raise failures[0]


def _leave(writers: Mapping[str, SignalWriter]) -> None:
    for writer in writers.values():
        with contextlib.suppress(ReliveError, OSError):
            writer.leave()


def _identity(uid: str | None = None, created_ts_ns: SupportsIndex | None = None) -> dict[str, Any]:
    given = {"uid": uid, "created_ts_ns": created_ts_ns}
    return {key: value for key, value in given.items() if value is not None}
