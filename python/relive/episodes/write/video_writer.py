"""Recording a camera: frames are copied and encoded on a thread, packet by packet."""

import contextlib
import os
import weakref
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from relive.episodes.layout import INDEX, VIDEO, check_name, file_stem
from relive.episodes.write.signal_writer import (
    SignalWriter,
    check_attrs,
    check_names,
    clock_times,
    first_clocks,
    free_path,
    usual_name,
)
from relive.episodes.write.statistics import SignalStats, rate_hz
from relive.episodes.write.values import as_record, as_stamp, is_image
from relive.errors import AlreadyExistsError, InvalidError, InvalidTypeError
from relive.model.clock import now_ns
from relive.store.queue import OVERLOADS, Overload, check_queue, queue_frames
from relive.store.signal.meta import SignalMeta
from relive.store.signal.tape import finish_video, part_path, video_note, write_empty_video
from relive.store.video import Encoder, Movie, VideoSpec
from relive.store.video.encoder_thread import Lane

__all__ = ["VideoSignalWriter"]


class VideoSignalWriter(SignalWriter):
    """A camera being recorded: a video and its index when it is closed.

    Frames are encoded on a thread of their own, and each packet goes to a tape beside the video,
    `.<file>.tape`, that survives the end of the process. A frame that is dropped has no row, so
    frame i is row i. When the encoder fails, the next call raises, and so does closing; what was
    encoded before is kept. Thread-safe.

    Args:
        video: Where the video will be.
        index: Where its index will be; by default beside it, as `<stem>.frames.parquet`.
        profile: The name of a profile: `"record"`, `"compact"`, `"fast"` or `"lossless"`.
        spec: All of the encoder's knobs, instead of `profile`, `codec`, `gop` and `fps`.
        codec: An encoder of FFmpeg.
        gop: Frames from one key frame to the next.
        fps: A hint to the encoder.
        overload: What a frame does that comes when the queue is full: `"block"`, `"drop"` or
            `"raise"`.
        queue: How many frames may wait for the encoder.
        name: What the signal is called; by default as its file.
        attrs: What `describe` would say.
        overwrite: Whether existing files are replaced at the end; else they are an
            `AlreadyExistsError`.
    """

    def __init__(
        self,
        video: str | os.PathLike[str],
        index: str | os.PathLike[str] | None = None,
        profile: str | None = None,
        *,
        spec: VideoSpec | None = None,
        codec: str | None = None,
        gop: int | None = None,
        fps: float | Fraction | None = None,
        overload: Overload = "block",
        queue: int | None = None,
        name: str | None = None,
        attrs: Mapping[str, Any] | None = None,
        overwrite: bool = False,
    ) -> None:
        place = free_path(video, "a video", overwrite=overwrite)
        beside = place.with_name(f"{place.stem}{INDEX}") if index is None else index
        index_place = free_path(beside, "an index", overwrite=overwrite)
        called = usual_name(place) if name is None else check_name(name)
        if overload not in OVERLOADS:
            raise InvalidError(f"overload is one of {', '.join(OVERLOADS)}, not {overload!r}")
        check_queue(queue)
        chosen = _spec(spec, profile, codec=codec, gop=gop, fps=fps)
        said = check_attrs(called, None, None, attrs or {})
        self._begin(index_place, chosen, overload, queue)
        super().__init__(place, called, said, alone=True, overwrite=overwrite)

    @classmethod
    def inside(
        cls,
        folder: Path,
        name: str,
        attrs: Mapping[str, Any],
        spec: VideoSpec,
        *,
        overload: Overload,
        queue: int | None,
    ) -> "VideoSignalWriter":
        """Begin a camera of an episode, whose lock holds for all its signals."""
        stem = file_stem(name)
        writer = cls.__new__(cls)
        video, index = folder / f"{stem}{VIDEO}", folder / f"{stem}{INDEX}"
        writer._begin(index, spec, overload, queue)  # noqa: SLF001 - its own
        SignalWriter.__init__(writer, video, name, attrs, alone=False, overwrite=False)
        return writer

    def _begin(self, index: Path, spec: VideoSpec, overload: Overload, queue: int | None) -> None:
        self._index = index
        self._spec = spec
        self._overload = overload
        self._queue = queue
        self._shape: tuple[int, ...] | None = None
        self._lane: Lane | None = None
        self._movie: Movie | None = None
        self._header: dict[str, Any] = {}
        self._dropped = 0
        self._rows: int | None = None

    def append(
        self,
        data: Any,
        ts_ns: SupportsIndex | None = None,
        clocks: Mapping[str, SupportsIndex] | None = None,
    ) -> None:
        """Append a copy of a frame, uint8 of height × width × 3, later than all before.

        Without `ts_ns` it is now, by `relive.episodes.now_ns`. `clocks` are times on further
        clocks, the same ones for each frame.
        """
        if type(data) is not np.ndarray or data.shape != self._shape or data.dtype != np.uint8:
            data = self._checked(data)
        if self._lane is None:  # a lane is there as a whole, or not at all
            self._run_to_the_end(lambda: self._append(data, ts_ns, clocks))
        else:
            self._append(data, ts_ns, clocks)

    def flush(self) -> None:
        """Make every frame so far survive the end of this process; waits for the encoder."""
        self._check_open()
        if self._lane is not None and self._tape is not None:
            self._lane.drain()
            self._lane.check()
            self._tape.flush()

    def sync(self) -> None:
        """Make every frame so far survive a power cut; waits for the encoder."""
        self._check_open()
        if self._lane is not None and self._tape is not None:
            self._lane.drain()
            self._lane.check()
            self._tape.sync()

    def discard(self) -> None:
        """Write no more, also not what waits; what is on the disk stays for others to remove."""
        if self._lane is not None and self._state == "open":
            self._lane.discard()
        self.leave()

    @property
    def stats(self) -> SignalStats:
        """How recording goes."""
        lane, tape = self._lane, self._tape
        if lane is None or tape is None:
            return SignalStats(0, None, dropped=self._dropped)
        done, is_open = lane.done_frames, self._state == "open"
        rows = lane.put_frames if self._rows is None else self._rows
        return SignalStats(
            rows,
            rate_hz(rows, self._first_ts, self._last_ts),
            lane.depth if is_open else 0,
            lane.capacity,
            self._dropped,
            tape.pending_bytes if is_open else 0,
            lane.busy_ns / done / 1e6 if done else None,
        )

    def _append(
        self,
        frame: npt.NDArray[np.uint8],
        ts_ns: SupportsIndex | None,
        clocks: Mapping[str, SupportsIndex] | None,
    ) -> None:
        with self._mutex:
            self._check_open()
            stamp = now_ns() if ts_ns is None else as_stamp(self._name, ts_ns)
            if self._last_ts is not None and stamp <= self._last_ts:
                raise InvalidError(
                    f"signal {self._name!r}: timestamp {stamp} is not after the last, "
                    f"{self._last_ts}"
                )
            lane = self._lane
            if lane is None:
                lane = self._start(frame.shape, clocks)
                self._first_ts = stamp
            times = clock_times(self._name, self._clocks, clocks)
            buffer = lane.room(self._overload)
            self._last_ts = stamp
            if buffer is None:
                self._dropped += 1
            else:
                lane.put(buffer, frame, stamp, times)

    def _checked(self, data: Any) -> npt.NDArray[np.uint8]:
        form, array = as_record(self._name, data)
        if self._shape is not None and (form.dtype, form.shape) != ("uint8", self._shape):
            raise InvalidError(
                f"signal {self._name!r} holds frames of uint8 of shape {self._shape}, and this "
                f"record is {form}"
            )
        if not is_image(form):
            raise InvalidError(
                f"signal {self._name!r}: a frame is uint8 of shape (height, width, 3), not {form}"
            )
        frame: npt.NDArray[np.uint8] = array
        return frame

    def _start(self, shape: tuple[int, ...], clocks: Mapping[str, SupportsIndex] | None) -> Lane:
        known = first_clocks(self._name, clocks)
        clock_times(self._name, known, clocks)
        meta = SignalMeta(self._name, "image", "uint8", shape, self._attrs, known.names)
        check_names(self._name, meta.kind, shape, self._attrs)
        encoder = Encoder(self._spec.encoding(), shape)
        with contextlib.ExitStack() as undo:
            undo.callback(encoder.close)
            tape = self._new_tape(meta, None)
            undo.callback(self._release)
            undo.callback(tape.abort)
            tape.note(video_note(encoder.header))
            part = part_path(self._path)
            self._unlink(part)
            movie = Movie(part, encoder.header)
            undo.callback(movie.abort)
            self._lane = Lane(
                self._name,
                encoder,
                tape,
                movie,
                shape=shape,
                clocks=len(known.names),
                capacity=queue_frames(self._queue, meta.nbytes or 0),
            )
            # One that nobody closed: its thread ends behind the last frame.
            weakref.finalize(self, self._lane.abandon)
            undo.pop_all()
        self._tape, self._movie, self._header = tape, movie, encoder.header
        self._shape, self._clocks = shape, known
        return self._lane

    def _form_is(self) -> tuple[str, tuple[int, ...]] | None:
        return None if self._shape is None else ("image", self._shape)

    def _files(self) -> tuple[Path, ...]:
        return self._path, self._index

    def _finish(self) -> None:
        lane, tape, movie = self._lane, self._tape, self._movie
        if lane is None or tape is None or movie is None or self._shape is None:
            meta = SignalMeta(self._name, "image", "uint8", (0, 0, 3), self._attrs)
            self._check_free()
            write_empty_video(meta, self._path, self._index)
            return
        meta = SignalMeta(
            self._name, "image", "uint8", self._shape, self._attrs, self._clocks.names
        )
        # Nothing that its thread writes to is closed before it ended.
        lane.stop()
        try:
            lane.check()
            self._rows = len(movie)
            self._check_free()
            finish_video(movie, meta, self._header, lane.times, (self._path, self._index))
            tape.abort()
        finally:
            movie.close()
            tape.close()
            self._release()

    def _abort(self) -> None:
        if self._lane is not None and self._state == "open":
            self._lane.discard()  # first, as somebody may wait for room in it
        super()._abort()

    def _remove(self) -> None:
        lane, tape, movie = self._lane, self._tape, self._movie
        if lane is None or tape is None or movie is None:
            return
        try:
            if lane.discard():  # else its thread closes the movie
                movie.close()
            with contextlib.suppress(OSError):
                tape.abort()
            self._unlink(self._tape_path, part_path(self._path))
        finally:
            self._release()

    def _keep_unfinished(self) -> None:
        lane, tape, movie = self._lane, self._tape, self._movie
        if lane is None or tape is None or movie is None:
            return
        if not lane.discards:
            lane.stop()
        try:
            if not lane.is_alive:
                movie.close()
            tape.close()
            lane.check()
        finally:
            self._release()

    def _check_free(self) -> None:
        """Raise where somebody else put a file while this was recorded."""
        for place in (self._path, self._index):
            if not self._overwrite and place.exists():
                raise AlreadyExistsError(f"`{place}` exists")


def _spec(spec: VideoSpec | None, profile: str | None, **knobs: Any) -> VideoSpec:
    given = {key: value for key, value in knobs.items() if value is not None}
    if spec is None:
        return VideoSpec(profile="record" if profile is None else profile, **given)
    if not isinstance(spec, VideoSpec):
        raise InvalidTypeError(f"spec is a VideoSpec, not {spec!r}")
    if given or profile is not None:
        both = ", ".join(["profile"] * (profile is not None) + list(given))
        raise InvalidError(f"spec says all of it, and {both} was given too")
    return spec
