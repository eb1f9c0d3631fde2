"""Records runs: steps go to the live, the scalar and the array lane."""

import contextlib
import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Unpack

import numpy as np
import numpy.typing as npt

from relive._arguments import as_bool, as_int
from relive._interrupts import uninterrupted
from relive._native import Step
from relive.errors import (
    InvalidError,
    InvalidTypeError,
    LockedError,
    OverloadError,
    ReliveError,
)
from relive.model.clock import now_ns
from relive.replay.arrays import Present
from relive.replay.columns import row_of
from relive.replay.config import ReplayConfig
from relive.replay.resolve import FrameRef
from relive.replay.source import DatabaseSource
from relive.replay.storage.layout import check_run_id, runs_path
from relive.replay.storage.values import as_id, as_json, json_text
from relive.replay.transitions.options import Arguments, Options
from relive.replay.transitions.rate import RATE_ARGUMENTS, Rate
from relive.replay.transitions.recent import RecentSteps
from relive.replay.transitions.transitions import Transitions
from relive.replay.writing.live_frames import LiveChoice, LiveFrames
from relive.replay.writing.sink import SinkThread
from relive.replay.writing.steps import FRAMES, OBSERVATIONS, End, Stream, as_flag
from relive.replay.writing.writer import RunWriter
from relive.store.lifecycle import End as LifecycleEnd
from relive.store.lifecycle import WriterLifecycle
from relive.store.queue import Overload


@dataclass(slots=True)  # not frozen: every step makes one, and that would take twice as long
class StepRefs:
    """Where a step is stored.

    Example:
        >>> import tempfile
        >>> from relive.replay import ReplayRecorder
        >>> with ReplayRecorder(tempfile.mkdtemp(), "run-1") as recorder:
        ...     refs = recorder.step([0.5], 1, 1.0)
        >>> refs.row, str(refs.observation), refs.frame
        (0, 'h5://run-1/observations/0', None)
    """

    row: int
    """The number of the step in its run."""
    run_id: str
    _present: Present = field(repr=False)

    @property
    def frame(self) -> FrameRef | None:
        """Where its frame is, if it has one."""
        return self._ref(FRAMES)

    @property
    def observation(self) -> FrameRef | None:
        """Where its observation is, if it has one."""
        return self._ref(OBSERVATIONS)

    def _ref(self, dataset: str) -> FrameRef | None:
        return FrameRef(self.run_id, dataset, self.row) if dataset in self._present else None


@dataclass(frozen=True, slots=True)
class ReplayStats:
    """The state of the recording of a run.

    Example:
        >>> import tempfile
        >>> from relive.replay import ReplayRecorder
        >>> with ReplayRecorder(tempfile.mkdtemp(), "run-1") as recorder:
        ...     _ = recorder.step([0.5], 1, 1.0)
        ...     recorder.flush()
        ...     stats = recorder.stats
        >>> stats.steps, stats.committed, stats.queued, stats.dropped
        (1, 1, 0, 0)
    """

    steps: int
    """Steps that were accepted, those of earlier recorders of the run included."""
    committed: int
    """Steps that a kill of this process cannot lose."""
    dropped: int
    """Steps that this recorder did not record: the queue was full, `step` refused them, or a
    wrapper with `on_error="warn"` left them out."""
    queued: int
    """Steps that wait to be written, or are being written."""
    queued_bytes: int
    """Bytes of these steps."""
    queue_bytes: int
    """How many bytes may wait."""


class ReplayRecorder(WriterLifecycle):
    """Records the steps of a run, in this process or in several, each with its own run.

    A step is committed within a second of `step()` while disk and processor keep up, and a kill
    then loses at most that second; otherwise at most the queue, see `stats`. The end of an episode
    is synced.
    `close` completes the run; the same `run_id` later continues it. Ctrl-C in the `with` block
    closes it too, and so does any other exception, which sets the status of the run to `failed`. A
    recorder that is dropped, or open when the program ends, writes everything, with a
    `ResourceWarning`; the status of the run is then `interrupted`.
    A run keeps the first `env_id`, `env_spec`, `spaces`, `seed` and `metadata` that it was given.
    Each recorder is a session of it, with the commit, the seed and the metadata of its own: see
    `ReplayRun.sessions`. Thread-safe.

    Args:
        root: The directory of the runs. It is created if it does not exist.
        run_id: The id of the run, up to 128 letters, digits, `_`, `-` and `.`. A run that exists
            is continued. None makes one from the time.
        config: Codecs, the queue, and how often steps are committed.
        env_id: The id of the environment.
        env_spec: How the environment was made: any JSON value.
        spaces: The spaces of the environment: any JSON value. Continuing a run with other spaces,
            or another `env_id`, is an `InvalidError`.
        seed: The seed of the run.
        metadata: Further JSON values. Continuing a run with other metadata than its own is a
            `RuntimeWarning` without `resume`.
        resume: Whether a run that exists is meant to be continued, also with other metadata.
        live: Which frames other processes can see while they are recorded, see `LiveLane`: those of
            the `"first"` sub-environment (also True), of all in a `"grid"`, of one by its number,
            or None (also False). Without frames, observations that are pictures are shown.
        arrays: Whether arrays are recorded; False records only what is in the database. That has
            actions of at most 32 numbers, and leaves out larger ones.

    Example:
        >>> import numpy as np, tempfile
        >>> from relive.replay import ReplayRecorder
        >>> with ReplayRecorder(tempfile.mkdtemp(), "run-1") as recorder:
        ...     for number in range(3):
        ...         frame = np.full((4, 4, 3), number, np.uint8)
        ...         refs = recorder.step(frame=frame, action=1, reward=0.5, terminated=number == 2)
        >>> str(refs.frame)
        'h5://run-1/frames/2'
    """

    on_error: ClassVar[LifecycleEnd] = "close"

    def __init__(
        self,
        root: str | os.PathLike[str],
        run_id: str | None = None,
        *,
        config: ReplayConfig | None = None,
        env_id: str | None = None,
        env_spec: Any = None,
        spaces: Any = None,
        seed: int | None = None,
        metadata: Mapping[str, Any] | None = None,
        resume: bool = False,
        live: LiveChoice = "first",
        arrays: bool = True,
    ) -> None:
        self._config = config or ReplayConfig()
        self.root = runs_path(root)
        self.run_id = check_run_id(run_id if run_id is not None else _new_run_id())
        self._live = LiveFrames(self.run_id, live)
        about = {
            "env_id": None if env_id is None else as_id("`env_id`", env_id),
            "env_spec": _json("env_spec", env_spec),
            "spaces": _json("spaces", spaces),
            "seed": None if seed is None else as_int("seed", seed),
            "metadata": _json("metadata", metadata),
        }
        # Ctrl-C in the middle could leave a descriptor open that holds the run locked.
        self._writer = uninterrupted(
            lambda: RunWriter(self.root, self.run_id, self._config, arrays=arrays, about=about)
        )
        self._sink = SinkThread(
            self._writer,
            queue_bytes=self._config.queue_bytes,
            flush_s=self._config.flush_s,
            flush_steps=self._config.flush_steps,
            sync_episodes=self._config.sync_episodes,
        )
        self._streams = self._writer.streams
        self._last: tuple[Stream, Step | End] | None = None
        self._puts: int | None = None
        """How many items were put into the queue; None if that has to be asked for."""
        self._dropped = 0
        self._recent: RecentSteps | None = None
        self._status = "finished"
        self._is_closing = False
        """Whether everything is written, and only the run has to be completed."""
        try:
            if not as_bool("resume", resume):
                self._writer.warn_of_other_metadata()
            self._sink.start()
            super().__init__()
            self._kept += (self._writer, self._live)
        except BaseException:  # Ctrl-C, or no more threads
            self._state = "closed"
            self._release()
            raise

    @property
    def path(self) -> Path:
        """The file of the arrays of the run."""
        return self._writer.path

    @property
    def stats(self) -> ReplayStats:
        """How many steps were recorded, dropped and are waiting."""
        queue = self._sink.queue
        return ReplayStats(
            steps=self._streams.next_row,
            committed=self._sink.committed,
            dropped=self._dropped,
            queued=len(queue),
            queued_bytes=queue.nbytes,
            queue_bytes=self._config.queue_bytes,
        )

    def begin_episode(
        self,
        episode_id: str | None = None,
        *,
        seed: int | None = None,
        metadata: Mapping[str, Any] | None = None,
        env: int = 0,
        agent_id: str = "",
    ) -> str:
        """Begin an episode, and return its id; `step()` begins one by itself.

        Args:
            episode_id: An id that no other episode of the run has. `{run_id}-ep{n:04d}` if None,
                followed by `-2`, `-3` and so on if an episode has that id already.
            seed: The seed that the environment was reset with.
            metadata: JSON values.
            env: The sub-environment, in a vector of environments.
            agent_id: The agent, if there are several.
        """
        with self._mutex:
            self._check_open()
            self._settle()
            stream = self._streams.stream(env, agent_id)
            return self._streams.begin(stream, episode_id, seed, metadata).episode_id

    def step(
        self,
        observation: Any = None,
        action: Any = None,
        reward: float | None = None,
        terminated: bool = False,  # noqa: FBT001, FBT002 - in the order in which Gymnasium returns them
        truncated: bool = False,  # noqa: FBT001, FBT002
        *,
        frame: npt.NDArray[Any] | None = None,
        info: Mapping[str, Any] | None = None,
        next_observation: Any = None,
        next_frame: npt.NDArray[Any] | None = None,
        extras: Mapping[str, Any] | None = None,
        env: int = 0,
        agent_id: str = "",
        step_index: int | None = None,
        ts_ns: int | None = None,
    ) -> StepRefs | None:
        """Record one step; return where it is stored, or None if it was dropped.

        All arrays are copied. `terminated` or `truncated` ends the episode. A step that is refused
        with an error counts as dropped: its number in the episode is left out, and it ends the
        episode if it was to. So a caller may go on after the error, with the next step.

        Args:
            observation: What the agent saw when it chose the action: an array, or nested dicts and
                tuples of arrays.
            action: What it did.
            reward: What it received.
            terminated: The environment reached an end.
            truncated: The episode was cut off.
            frame: A picture of the environment before the action.
            info: What the environment says about the step: JSON values and arrays.
            next_observation: What the agent saw after the last step; kept at an episode's end.
            next_frame: The picture after the last step; kept at an episode's end.
            extras: Further arrays by name, the same in every step: a log-probability, for example.
            env: The sub-environment, in a vector of environments.
            agent_id: The agent, if there are several.
            step_index: The number of the step in its episode; the next one, if None. Numbers may be
                left out.
            ts_ns: The time in nanoseconds since 1970; now, if None.
        """
        with self._mutex:
            if self._state != "open":
                self._check_open()
            if self._last is not None:
                self._settle()
            return self._step(
                env,
                agent_id,
                step_index,
                ts_ns,
                observation,
                action,
                reward,
                terminated,
                truncated,
                frame,
                info,
                next_observation,
                next_frame,
                extras,
            )

    def steps(  # noqa: PLR0917 - as `step`
        self,
        env: Sequence[int] | npt.NDArray[np.integer[Any]],
        observation: Any = None,
        action: Any = None,
        reward: Sequence[float] | npt.NDArray[Any] | None = None,
        terminated: Sequence[bool] | npt.NDArray[Any] | None = None,
        truncated: Sequence[bool] | npt.NDArray[Any] | None = None,
        *,
        frame: Any = None,
        info: Sequence[Mapping[str, Any] | None] | None = None,
        next_observation: Any = None,
        next_frame: Any = None,
        extras: Mapping[str, Any] | None = None,
        agent_id: str = "",
        ts_ns: int | None = None,
    ) -> list[StepRefs | None]:
        """Record one step of each of several sub-environments.

        The arguments are those of `step()`, each with one more axis at the front, which has a row
        for each of `env`. `info` is a list of dicts. Rows of `next_observation` and `next_frame`
        count only where an episode ends. If a row is refused, the others are recorded before the
        error is raised; lengths and `env` are checked before the first.

        Args:
            env: The numbers of the sub-environments; not all of them have to be there.
            observation: What each agent saw when it chose its action.
            action: What each did.
            reward: What each received.
            terminated: Whether each environment reached an end.
            truncated: Whether each episode was cut off.
            frame: A picture of each environment before the action.
            info: What each environment says about the step.
            next_observation: What each agent saw after the last step.
            next_frame: The picture after the last step.
            extras: Further arrays by name.
            agent_id: The agent, if there are several.
            ts_ns: The time of all these steps; now, if None.
        """
        numbers = _env_numbers(env)
        if extras is not None and not isinstance(extras, Mapping):
            raise InvalidTypeError(f"`extras` must be a dict of arrays, got {extras!r}")
        values = {
            "observation": observation,
            "action": action,
            "reward": reward,
            "terminated": _flag_rows(terminated),
            "truncated": _flag_rows(truncated),
            "frame": frame,
            "info": info,
            "next_observation": next_observation,
            "next_frame": next_frame,
            "extras": extras,
        }
        try:
            for name, value in values.items():
                if value is not None:
                    _check_rows(name, value, len(numbers))
        except InvalidError:
            self._refuse_all(numbers, agent_id)
            raise
        ts_ns = now_ns() if ts_ns is None else ts_ns
        refs, refused = [], []
        with self._mutex:
            self._check_open()
            self._settle()
            for place, number in enumerate(numbers):
                try:
                    step = self._step(
                        number,
                        agent_id,
                        None,
                        ts_ns,
                        *(
                            None if value is None else row_of(value, place)
                            for value in values.values()
                        ),
                    )
                except Exception as error:  # noqa: BLE001 - raised when the others are recorded
                    refused.append(error)
                else:
                    refs.append(step)
        if refused:
            raise refused[0]
        return refs

    def end_episode(
        self,
        *,
        next_observation: Any = None,
        next_frame: npt.NDArray[Any] | None = None,
        env: int = 0,
        agent_id: str = "",
    ) -> None:
        """End the open episode as truncated; without one, this does nothing."""
        with self._mutex:
            self._check_open()
            self._settle()
            stream = self._streams.stream(env, agent_id)
            end = self._streams.end(
                stream, next_observation=next_observation, next_frame=next_frame
            )
            if end is None or self._put_end(stream, end):
                return
            if self._config.overload == "raise":
                raise OverloadError(
                    f"run {self.run_id!r}: the queue is full, and what was seen last in the "
                    "episode is not recorded",
                    hint='overload="block" waits for room',
                )

    def has_open_episode(self, *, env: int = 0, agent_id: str = "") -> bool:
        """Check whether an episode of a sub-environment and an agent is open."""
        with self._mutex:
            self._check_open()
            self._settle()
            return self._streams.stream(env, agent_id).episode is not None

    def transitions(self, **arguments: Unpack[Arguments]) -> Transitions:
        """Return the transitions of the run, with every step that this recorder has accepted.

        They follow the run: `sample` and `batches` draw from all steps so far. Otherwise they are
        those of `ReplayRun.transitions`, which has the arguments. As this process records, a draw
        that `min_size` or `samples_per_insert` do not allow is an `OverloadError` at once; `due` is
        how many transitions may be drawn.
        """
        given: dict[str, Any] = dict(arguments)
        if unknown := given.keys() - Arguments.__annotations__.keys():
            raise TypeError(
                f"ReplayRecorder.transitions() got an unexpected keyword argument {min(unknown)!r}"
            )
        limits = {name: given.pop(name) for name in RATE_ARGUMENTS if name in given}
        options, rate = Options.of(**given), Rate.of(**limits)
        with self._mutex:
            self._check_open()
            self._settle()
            self._flush(sync=False)
            if self._recent is None:
                self._recent = self._recent_steps()
        with self._recent.reading:
            self._recent.read()
            # Only now: what was forgotten because it is committed is in it.
            source = DatabaseSource(self.root, self.run_id)
            return Transitions(source, options, rate, follow=True, recent=self._recent)

    def flush(self) -> None:
        """Commit everything so far: a kill of this process does not lose it."""
        with self._mutex:
            self._check_open()
            self._settle()
            self._flush(sync=False)

    def sync(self) -> None:
        """Commit everything so far to the disk: a power cut does not lose it."""
        with self._mutex:
            self._check_open()
            self._settle()
            self._flush(sync=True)

    def __repr__(self) -> str:
        """Return the run and the root, on one line."""
        return f"<ReplayRecorder {self.run_id!r} in `{self.root}`>"

    def _skip_infos(self, take: Callable[[ReliveError], bool]) -> None:
        """Leave out what cannot be stored of infos if `take` returns True for its error."""
        self._streams.skip_info = take

    def _step(  # noqa: PLR0917 - as `step`
        self,
        env: int,
        agent_id: str,
        step_index: int | None,
        ts_ns: int | None,
        observation: Any,
        action: Any,
        reward: Any,
        terminated: Any,
        truncated: Any,
        frame: Any,
        info: Mapping[str, Any] | None,
        next_observation: Any,
        next_frame: Any,
        extras: Mapping[str, Any] | None,
    ) -> StepRefs | None:
        streams = self._streams
        is_plain = type(env) is int and type(agent_id) is str
        known = streams.found.get((env, agent_id)) if is_plain else None
        stream = known or streams.stream(env, agent_id)
        try:
            step = streams.step(
                stream,
                observation,
                action,
                reward,
                terminated,
                truncated,
                frame,
                info,
                next_observation,
                next_frame,
                extras,
                step_index,
                ts_ns,
            )
            self._live.publish(env, step, frame, observation)
        except Exception as error:
            self._refuse(stream, step_index, terminated, truncated)
            if isinstance(error, ReliveError | MemoryError):
                raise
            kind = InvalidTypeError if isinstance(error, TypeError) else InvalidError
            raise kind(f"the step cannot be recorded: {error}") from error
        overload = self._config.overload
        try:
            is_put = self._put(stream, step, overload)
        except OverloadError:
            self._drop(stream, step)
            raise
        if not is_put:
            self._drop(stream, step)
            return None
        return StepRefs(step.row, self.run_id, step.present)

    def _drop(self, stream: Stream, step: Step) -> None:
        """Go on after a step for which there was no room; the end of an episode is recorded."""
        self._dropped += 1
        self._streams.drop(stream, step)
        if step.end is not None:
            step.end.dropped = stream.dropped
            self._put_end(stream, step.end)

    def _refuse(self, stream: Stream, step_index: Any, terminated: Any, truncated: Any) -> None:
        """Go on after a step that is not recorded because something of it cannot be."""
        self._dropped += 1
        self._streams.refuse(stream, step_index)
        is_over, is_terminated = False, False
        with contextlib.suppress(Exception):  # an error about it is being raised
            is_terminated = as_flag("terminated", terminated)
            is_over = is_terminated or as_flag("truncated", truncated)
        end = self._streams.end(stream, terminated=is_terminated) if is_over else None
        if end is not None:
            with contextlib.suppress(ReliveError):  # the one that led here matters more
                self._put_end(stream, end)

    def _refuse_all(self, envs: Sequence[int], agent_id: str) -> None:
        """Go on after steps of sub-environments of which nothing is known."""
        with self._mutex:
            self._check_open()
            self._settle()
            for env in envs:
                stream = self._streams.found.get((env, agent_id))
                if stream is None:
                    self._dropped += 1
                else:
                    self._refuse(stream, None, terminated=False, truncated=False)

    def _put_end(self, stream: Stream, end: End) -> bool:
        """Put the end of an episode; return False if what was seen last had to be left out."""
        overload = self._config.overload
        if self._put(stream, end, "block" if overload == "block" else "drop"):
            return True
        end.arrays, end.present = None, ()
        self._put(stream, end, None)
        return False

    def _put(self, stream: Stream, item: Step | End, overload: Overload | None) -> bool:
        """Put an item; None puts it even if there is no room."""
        # `_settle` finds out whether the item is in the queue if Ctrl-C interrupts this.
        if self._puts is None:
            self._puts = self._sink.queue.put_items
        self._last = (stream, item)
        queue = self._sink.queue
        is_put = True
        try:
            if overload is None:
                queue.put(item)
            else:
                is_put = queue.offer(item, item.nbytes, overload)
        except ReliveError:
            self._last = None
            raise
        if is_put:
            self._advance(stream, item)
            self._puts += 1  # last: until then, `_settle` does it again
        self._last = None
        return is_put

    def _settle(self) -> None:
        """Go on after the last item of a call that was interrupted, if it is in the queue."""
        last, puts = self._last, self._puts
        if last is None or puts is None:
            return
        if self._sink.queue.put_items > puts:
            self._advance(*last)
        self._last = self._puts = None

    def _advance(self, stream: Stream, item: Step | End) -> None:
        """Go on after an item that is in the queue. May be called again for the same."""
        self._streams.advance(stream, item)
        if self._recent is not None:
            self._recent.add(item)

    def _recent_steps(self) -> RecentSteps:
        """Return the steps from now on; they do not keep a recorder that is dropped."""
        dropped, sink = weakref.ref(self), self._sink

        def is_in(state: str) -> bool:
            recorder = dropped()
            return recorder is not None and recorder._state == state  # noqa: SLF001 - our own

        def flush() -> None:
            recorder = dropped()
            if recorder is not None:
                recorder._flush_for_reading()  # noqa: SLF001 - our own

        return RecentSteps(
            next_row=self._streams.next_row,
            next_end=self._writer.run.ends,
            committed=lambda: sink.committed,
            is_open=lambda: is_in("open"),
            is_aborted=lambda: is_in("aborted"),
            flush=flush,
            columns=self._writer.columns,
        )

    def _flush_for_reading(self) -> None:
        """Commit everything so far, unless the recorder has ended."""
        with self._mutex:
            if self._state == "open":
                self._settle()
                self._flush(sync=False)

    def _flush(self, *, sync: bool) -> None:
        self._puts = None  # it puts an item into the queue as well
        self._sink.flush(sync=sync)

    def _end_block(self, error: BaseException | None) -> None:
        if error is not None and not isinstance(error, KeyboardInterrupt):
            self._status = "failed"
            try:
                self.close()
            except ReliveError as lost:  # the error of the block matters more
                error.add_note(f"the run could not be completed: {lost}")
                self._add_note(error)
            return
        super()._end_block(error)

    def _close(self) -> None:
        with self._mutex:
            if self._is_closing and self._state == "left":
                self._state = "open"  # only the lock of another process prevented it
            super()._close()

    def _finish(self) -> None:
        with self._kept_if_locked():
            if not self._is_closing:
                self._settle()
                open_streams = [each for each in self._streams.open_streams() if each.step_index]
                if open_streams:
                    self._empty_queue()  # then there is room for the ends
                for stream in open_streams:
                    end = self._streams.end(stream)
                    if end is not None:
                        self._put(stream, end, "block")
                self._stop()
                self._is_closing = True
            self._writer.finish(self._status)

    def _empty_queue(self) -> None:
        """Let everything be written, unless another process has the database locked."""
        try:
            self._sink.drain()
            self._writer.wait_for_database()
        except LockedError:
            self._state = "open"  # all is still there: close() or leave() can be called again
            raise

    def _stop(self) -> None:
        """Let everything be written, and end the thread."""
        self._empty_queue()
        self._sink.stop()
        self._sink.queue.check()

    @contextlib.contextmanager
    def _kept_if_locked(self) -> Iterator[None]:
        """Release the run after the block, unless a lock of the database prevented what it did."""
        try:
            yield
        except LockedError as error:
            if self._state != "open" and not self._is_closing:
                self._release()
                raise
            raise LockedError(
                error.message,
                hint="end the transaction of the other process, and call this again",
            ) from error
        except BaseException:
            self._release()
            raise
        self._release()

    def _add_note(self, error: BaseException) -> None:
        if not isinstance(error, LockedError):  # then this end can be called again
            super()._add_note(error)

    def _remove(self) -> None:
        try:
            self._sink.stop(discard=True)
            self._writer.remove()
        finally:
            self._release()

    def _keep_unfinished(self) -> None:
        with self._kept_if_locked():
            self._settle()
            self._stop()
            self._writer.commit(sync=True)

    def _release(self) -> None:
        self._live.close()
        self._sink.stop(discard=True)
        self._writer.release()

    def _destination(self) -> str:
        return str(self.path if self._writer.has_arrays else self.root)


def _new_run_id() -> str:
    """Return the id of a run that begins now, for this process."""
    return f"run-{now_ns() // 1_000_000}-{os.getpid()}"


def _env_numbers(env: Any) -> list[int]:
    """Return the numbers of sub-environments, which must be integers."""
    if isinstance(env, np.ndarray) and env.ndim == 1 and env.dtype.kind in "iu":
        numbers: list[int] = env.tolist()
        if numbers and min(numbers) >= 0:
            return numbers
    try:
        items = list(env)
    except TypeError:
        raise InvalidTypeError(
            f"`env` must be a list of integers, got {env!r}",
            hint="step() records a step of one sub-environment",
        ) from None
    return [as_int("env", number) for number in items]


def _flag_rows(flags: Any) -> Any:
    """Return an array of bools as a list, whose items take less time to check."""
    is_plain = isinstance(flags, np.ndarray) and flags.dtype == np.bool_ and flags.ndim == 1
    return flags.tolist() if is_plain else flags


def _check_rows(name: str, value: Any, count: int) -> None:
    """Raise an `InvalidError` unless a value, or each array of it, has a row for each env."""
    if isinstance(value, Mapping | tuple):
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, inner in items:
            _check_rows(f"{name}.{key}", inner, count)
        return
    try:
        length = len(value)
    except TypeError:
        length = -1
    if length != count:
        raise InvalidError(
            f"`{name}` must have a row for each of {count} sub-environments, got "
            f"{'no rows' if length < 0 else length}"
        )


def _json(name: str, value: Any) -> str | None:
    return None if value is None else json_text(name, as_json(name, value))
