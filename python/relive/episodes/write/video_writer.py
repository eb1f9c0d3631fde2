"""Records a camera: frames are encoded on a thread, and each packet is written to a tape."""

import contextlib
import math
import os
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from relive.episodes.layout import INDEX
from relive.episodes.write.signal_writer import (
    SignalTarget,
    SignalWriter,
    clock_times,
    first_clocks,
    free_path,
)
from relive.episodes.write.statistics import SignalStats, rate_hz
from relive.episodes.write.values import Form, as_record, as_stamp, is_image
from relive.errors import InvalidError, InvalidTypeError, StorageError
from relive.model.clock import now_ns
from relive.store.atomic import already_exists
from relive.store.paths import OpenedPath
from relive.store.queue import Overload, check_queue
from relive.store.signal.meta import SignalMeta
from relive.store.signal.tape import (
    finish_video,
    part_path,
    spill_path,
    video_note,
    write_empty_video,
)
from relive.store.video import Encoder, Movie, VideoSpec
from relive.store.video.encoder_thread import EncoderThread
from relive.store.video.spill import SpillWriter


class CameraWriter(SignalWriter):
    """A camera that is being recorded, by itself or in an episode.

    The files of `target` are the video and its index.
    """

    def __init__(
        self, target: SignalTarget, spec: VideoSpec, *, overload: Overload, queue: int | None
    ) -> None:
        self._spec = spec
        self._overload = overload
        self._queue = queue
        self._shape: tuple[int, ...] | None = None
        self._thread: EncoderThread | None = None
        self._movie: Movie | None = None
        self._part: OpenedPath | None = None
        self._header: dict[str, Any] = {}
        self._dropped = 0
        self._rows: int | None = None
        self._spill_path = spill_path(target.files[0])
        super().__init__(target)

    def append(
        self,
        data: Any,
        ts_ns: SupportsIndex | None = None,
        clocks: Mapping[str, SupportsIndex] | None = None,
    ) -> None:
        """Append a copy of a frame, later than all frames before.

        Args:
            data: An array of uint8 of shape (height, width, 3), the same for all frames.
            ts_ns: The timestamp; by default the current time, `relive.episodes.now_ns()`.
            clocks: Times on further clocks, by name; every frame has the same clocks.
        """
        if type(data) is not np.ndarray or data.shape != self._shape or data.dtype != np.uint8:
            data = self._checked(data)
        if self._thread is None:  # Ctrl-C leaves a thread with its tape and movie, or none of them
            self._run_to_the_end(lambda: self._append(data, ts_ns, clocks))
        else:
            self._append(data, ts_ns, clocks)

    @property
    def stats(self) -> SignalStats:
        """The state of the recording."""
        thread, tape = self._thread, self._tape
        if thread is None or tape is None:
            return SignalStats(0, None, dropped=self._dropped)
        queue, is_open = thread.queue, self._state == "open"
        done = queue.done_items
        rows = queue.put_items if self._rows is None else self._rows
        return SignalStats(
            rows,
            rate_hz(rows, self._first_ts, self._last_ts),
            len(queue) if is_open else 0,
            queue.max_items,
            self._dropped,
            tape.pending_bytes if is_open else 0,
            thread.busy_ns / done / 1e6 if done else None,
            thread.encoder_restarts,
        )

    def _drain(self) -> None:
        super()._drain()
        if self._thread is not None:
            self._thread.queue.drain()
            self._thread.queue.check()
        if self._part is not None:
            self._part.check()

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
                    f"signal {self._name!r}: timestamp {stamp} is not after the previous one, "
                    f"{self._last_ts}"
                )
            thread = self._thread
            if thread is None:
                thread = self._start(frame.shape, clocks)
                self._first_ts = stamp
            times = clock_times(self._name, self._clocks, clocks)
            buffer = thread.reserve(self._overload)
            self._last_ts = stamp
            if buffer is None:
                self._dropped += 1
            else:
                thread.put(buffer, frame, stamp, times)

    def _checked(self, data: Any) -> npt.NDArray[np.uint8]:
        form, array = as_record(self._name, data)
        if self._shape is not None and (form.dtype, form.shape) != ("uint8", self._shape):
            raise InvalidError(
                f"signal {self._name!r}: expected a uint8 frame of shape {self._shape}, got {form}"
            )
        if not is_image(form):
            raise InvalidError(
                f"signal {self._name!r}: expected a uint8 frame of shape (height, width, 3), "
                f"got {form}"
            )
        frame: npt.NDArray[np.uint8] = array
        return frame

    def _start(
        self, shape: tuple[int, ...], clocks: Mapping[str, SupportsIndex] | None
    ) -> EncoderThread:
        known = first_clocks(self._name, clocks)
        clock_times(self._name, known, clocks)
        form = Form("image", "uint8", shape)
        meta = self._meta(form, known)
        encoder = Encoder(self._spec.encoding(), shape)
        with contextlib.ExitStack() as undo:
            undo.callback(encoder.close)
            tape = self._new_tape(meta, None)
            undo.callback(self._release)
            undo.callback(tape.abort)
            tape.note(video_note(encoder.header))
            tape.flush()  # frames of the spill file are encoded as the note says
            part = part_path(self._path)
            self._unlink(part, self._spill_path)
            movie = Movie(part, encoder.header)
            undo.callback(movie.abort)
            opened = OpenedPath(part)
            frame_bytes = math.prod(shape)
            spill = SpillWriter(self._spill_path, self._tape_path, frame_bytes, len(known.names))
            thread = EncoderThread(
                self._name,
                encoder,
                tape,
                movie,
                spill,
                shape=shape,
                clocks=len(known.names),
                queue=self._queue,
            )
            undo.pop_all()
        self._kept.append(movie)
        self._thread, self._tape, self._movie, self._header = thread, tape, movie, encoder.header
        self._shape, self._form, self._clocks = shape, form, known
        self._part = opened
        return thread

    def _finish(self) -> None:
        video, index = self._files
        thread, tape, movie = self._thread, self._tape, self._movie
        if thread is None or tape is None or movie is None or self._form is None:
            self._check_free()
            meta = SignalMeta(self._name, "image", "uint8", (0, 0, 3), self._attrs)
            write_empty_video(meta, video, index, self._digests)
            return
        thread.stop()  # before the tape and the movie are closed, to which it writes
        try:
            thread.queue.check()
            self._rows = len(movie)
            self._check_free()
            meta = self._meta(self._form, self._clocks)
            files = video, index
            # Until the index exists, recovery takes the times of frames from the tape. If its disk
            # failed, the movie has every frame that the tape lacks.
            with contextlib.suppress(StorageError):
                tape.sync()
            finish_video(movie, meta, self._header, thread.times, files, digests=self._digests)
            self._unlink(self._spill_path)
            tape.abort()
        finally:
            movie.leave()
            tape.close()
            self._release()

    def _abort(self) -> None:
        self._drop_queue()  # before the mutex, which an append that waits for room holds
        super()._abort()

    def _drop_queue(self) -> None:
        if self._thread is not None and self._state == "open":
            self._thread.stop(discard=True)

    def _remove(self) -> None:
        thread, tape, movie = self._thread, self._tape, self._movie
        if thread is None or tape is None or movie is None:
            return
        try:
            if thread.stop(discard=True):  # else the thread closes the movie
                movie.leave()
            with contextlib.suppress(OSError):
                tape.abort()
            self._unlink(self._tape_path, self._spill_path, part_path(self._path))
        finally:
            self._release()

    def _keep_unfinished(self) -> None:
        thread, tape, movie = self._thread, self._tape, self._movie
        if thread is None or tape is None or movie is None:
            return
        if not thread.queue.is_discarded:
            thread.stop()
        try:
            if not thread.is_alive:
                movie.leave()
            tape.close()
            if thread.is_complete:
                self._unlink(self._spill_path)
            thread.queue.check()
            if self._part is not None:
                self._part.check()
        finally:
            self._release()

    def _check_free(self) -> None:
        """Check that no other process has created the files in the meantime."""
        for path in self._files:
            if not self._overwrite and path.exists():
                raise already_exists(path)


class VideoSignalWriter(CameraWriter):
    """A camera that is being recorded to a video and its index.

    Frames are encoded on a thread. Until the writer is closed, packets are on a tape beside the
    video, `.<file>.tape`, and frames that wait longer than half a second for the encoder are in
    `.<file>.spill`. Both survive the end of the process; `relive recover` makes the files from
    them. A dropped frame has no row: frame i is row i. If the encoder fails, the next call and
    `close` raise; all frames are kept. Thread-safe.

    Args:
        video: The path of the video.
        index: The path of its index; by default `<stem>.frames.parquet` beside the video.
        profile: The name of a profile: `"record"`, `"compact"`, `"fast"` or `"lossless"`.
        spec: All options of the encoder, instead of `profile`, `codec`, `gop` and `fps`.
        codec: The name of an FFmpeg encoder.
        gop: The number of frames from one key frame to the next.
        fps: The frame rate that the encoder plans for.
        overload: What happens to a frame that is appended when the queue is full: `"block"`
            waits, `"drop"` drops and counts it, `"raise"` raises an `OverloadError`.
        queue: The number of frames that may wait for the encoder.
        name: The name of the signal; by default the name of the file.
        attrs: Attributes of the signal, as for `describe`.
        overwrite: Whether existing files are replaced when the writer is closed; otherwise they
            are an `AlreadyExistsError`.

    Example:
        >>> import numpy as np
        >>> from relive.episodes import VideoSignal, VideoSignalWriter
        >>> frame = np.zeros((64, 64, 3), np.uint8)
        >>> with VideoSignalWriter("cam.mp4", profile="lossless") as writer:
        ...     writer.append(frame, ts_ns=0)
        ...     writer.append(frame + 1, ts_ns=33_000_000)
        >>> image, ts_ns = VideoSignal("cam.mp4", "cam.frames.parquet")[1]
        >>> image.shape, int(image.max()), ts_ns
        ((64, 64, 3), 1, 33000000)
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
        file = free_path(video, "a video", overwrite=overwrite)
        beside = file.with_name(f"{file.stem}{INDEX}") if index is None else index
        files = (file, free_path(beside, "an index", overwrite=overwrite))
        check_queue(overload, queue)
        super().__init__(
            SignalTarget.alone(files, name, attrs, overwrite=overwrite),
            _spec(spec, profile, codec=codec, gop=gop, fps=fps),
            overload=overload,
            queue=queue,
        )


def _spec(spec: VideoSpec | None, profile: str | None, **options: Any) -> VideoSpec:
    given = {key: value for key, value in options.items() if value is not None}
    if spec is None:
        return VideoSpec(profile="record" if profile is None else profile, **given)
    if not isinstance(spec, VideoSpec):
        raise InvalidTypeError(f"`spec` must be a VideoSpec, got {spec!r}")
    if given or profile is not None:
        raise InvalidError("`spec` cannot be combined with `profile`, `codec`, `gop` or `fps`")
    return spec
