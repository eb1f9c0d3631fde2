"""Frames by row: one read from the key frame on, and the fewest decodes there can be."""

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property, partial
from itertools import count
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from relive._native import crc32c
from relive.errors import (
    CorruptError,
    InvalidError,
    InvalidTypeError,
    OutOfRangeError,
    ReliveError,
)
from relive.store.atomic import storage_error
from relive.store.video.decoders import Decoder, borrow, give_back
from relive.store.video.encode import Packet
from relive.store.video.index import FrameIndex

__all__ = ["FrameReader"]

Image = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]

PADDING: Final = 64  # libavcodec looks this far past the end of a packet
AHEAD_BYTES: Final = 64 << 20  # frames that an iteration has ready at most
JOB_ROWS: Final = 8  # fewer are not worth a thread

_numbers: Final = count()


Sink = Callable[[Image], object]
"""What takes a frame that was wanted."""


class _Job(NamedTuple):
    """Frames to decode in one go: from a key frame on, and where each goes that is wanted."""

    start: int
    wanted: dict[int, Sink]


class FrameReader:
    """Reads frames of one video as RGB, on at most `threads` threads, by default one per core.

    Thread-safe; works in forked processes; holds no file open.
    """

    def __init__(
        self, video_path: str | os.PathLike[str], index: FrameIndex, threads: int | None = None
    ) -> None:
        self.path = Path(video_path)
        self.index = index
        self.threads = threads
        self._number = next(_numbers)  # by which decoders know their reader

    def __len__(self) -> int:
        return len(self.index)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path, self.index, self.threads)

    def frame(self, row: int) -> Image:
        """Give one frame."""
        self._check(row, row)
        found: list[Image] = []
        self._run_alone(_Job(self._plan.start(row), {row: found.append}))
        return np.ascontiguousarray(found[0])

    def read(self, rows: npt.ArrayLike, out: Image) -> None:
        """Write the frames at `rows`, in any order and repeated at will, to the rows of `out`."""
        wanted = np.asarray(rows)
        if not wanted.size:
            return
        if wanted.ndim != 1 or wanted.dtype.kind not in "iu":
            raise InvalidTypeError("rows are a list of positions")
        if out.shape != (len(wanted), *self.index.shape) or out.dtype != np.uint8:
            raise InvalidError(f"frames go to uint8 of {(len(wanted), *self.index.shape)}")
        self._check(int(wanted.min()), int(wanted.max()))
        order = np.argsort(wanted, kind="stable")
        starts = self._plan.starts[wanted[order]]
        jobs: list[_Job] = []
        repeats: list[tuple[int, int]] = []
        last, at = -1, -1
        for place, start in zip(order.tolist(), starts.tolist(), strict=True):
            row = int(wanted[place])
            if row == last:
                repeats.append((place, at))
                continue
            if not jobs or jobs[-1].start != start:
                jobs.append(_Job(start, {}))
            jobs[-1].wanted[row] = partial(np.copyto, out[place])
            last, at = row, place
        self._run_all(jobs)
        for place, source in repeats:
            out[place] = out[source]

    def __iter__(self) -> Iterator[Image]:
        return self.iterate(0, len(self))

    def iterate(self, start: int, stop: int) -> Iterator[Image]:
        """Give the frames of a range one after the other, each decoded once, some ahead."""
        if start >= stop:
            return
        self._check(start, stop - 1)
        threads = self.threads or _cores()
        ahead: deque[tuple[range, dict[int, Image], Future[None]]] = deque()
        pieces = deque(self._pieces(start, stop))
        try:
            while pieces or ahead:
                # A piece between two key frames waits for the one before, to go on from there.
                while pieces and len(ahead) < threads:
                    if ahead and not self.index.keys[pieces[0].start]:
                        break
                    piece = pieces.popleft()
                    frames: dict[int, Image] = {}
                    wanted: dict[int, Sink] = {
                        row: partial(frames.__setitem__, row) for row in piece
                    }
                    job = _Job(self._plan.start(piece[0]), wanted)
                    ahead.append((piece, frames, _pool().submit(self._run_alone, job)))
                piece, frames, done = ahead.popleft()
                done.result()
                for row in piece:  # which nobody holds once it is given
                    yield np.ascontiguousarray(frames.pop(row))
        finally:
            for *_, done in ahead:
                done.cancel()

    def packets(self, start: int, stop: int) -> Iterator[Packet]:
        """Give the packets of a range as they are stored, for a copy; it begins at a key frame."""
        if start >= stop:
            return
        self._check(start, stop - 1)
        index = self.index
        if not index.keys[start]:
            raise InvalidError(f"frame {start} of `{self.path}` is not a key frame")
        spare = index.disposables
        rows = sorted(range(start, stop), key=index.offsets.__getitem__)
        for turn, row in enumerate(rows, start):
            size = int(index.sizes[row])
            with _File(self.path) as file:
                data = bytes(file.take(int(index.offsets[row]), size, row)[:size])
            self._check_crc(data, row, None if index.crcs is None else int(index.crcs[row]))
            yield Packet(
                data,
                row - start,
                int(index.timestamps[row]),
                int(index.pts[row] - index.pts[start]),
                bool(index.keys[row]),
                int(index.timestamps[turn]),
                int(index.pts[turn] - index.pts[start]),
                spare is not None and bool(spare[row]),
            )

    @cached_property
    def _plan(self) -> "_Plan":
        return _Plan(self.index)

    def _check(self, low: int, high: int) -> None:
        if low < 0 or high >= len(self):
            wrong = low if low < 0 else high
            raise OutOfRangeError(f"`{self.path}` has {len(self)} frames, and no frame {wrong}")

    def _pieces(self, start: int, stop: int) -> Iterator[range]:
        """Split a range where key frames are, into pieces that are worth a thread each."""
        threads = self.threads or _cores()
        most = max(1, AHEAD_BYTES // max(1, int(np.prod(self.index.shape))) // threads)
        keys = np.flatnonzero(self.index.keys[start:stop]) + start
        first = start
        for key in [*keys.tolist(), stop]:
            if key < stop and key - first < min(JOB_ROWS, most):
                continue
            while key - first > most:  # a decoder goes on where the last piece ended
                yield range(first, first + most)
                first += most
            if first < key:
                yield range(first, key)
            first = key

    def _run_all(self, jobs: Iterable[_Job]) -> None:
        left = deque(jobs)
        helpers = min(self.threads or _cores(), len(left)) - 1
        with _File(self.path) as file:

            def work() -> None:
                while True:
                    try:
                        job = left.popleft()
                    except IndexError:
                        return
                    self._run(file, job)

            running = [_pool().submit(work) for _ in range(helpers)]
            try:
                work()
            finally:
                left.clear()
                failures = [done.exception() for done in running if not done.cancel()]
            for failure in failures:
                if failure is not None:
                    raise failure

    def _run_alone(self, job: _Job) -> None:
        with _File(self.path) as file:
            self._run(file, job)

    def _run(self, file: "_File", job: _Job) -> None:
        start, left = job.start, dict(job.wanted)
        plan = self._plan
        turns = [plan.turn(row) for row in left]
        decoder = borrow(self.index.header, self._number, start, min(turns))
        if decoder.row in left:
            left.pop(decoder.row)(decoder.picture(decoder.frame, self.index.shape))
        if left and min(left) <= decoder.row:
            decoder.restart(self._number, start)
        if left and not self._feed(file, decoder, range(decoder.turn, max(turns) + 1), left):
            decoder.restart(-1, 0)
        give_back(decoder)  # not after an error: who knows what state it is in

    def _feed(self, file: "_File", decoder: Decoder, turns: range, left: dict[int, Sink]) -> bool:
        """Decode until nothing is left that is wanted; False where a decoder is at its end."""
        packets = self._plan.packets(turns, left)
        low = packets[0].offset
        end = packets[-1].offset + packets[-1].size
        buffer = file.take(low, end - low, packets[-1].row)
        row = -1
        try:
            for row, offset, size, crc in packets:
                data = buffer[offset - low : offset - low + size]
                self._check_crc(data, row, crc)
                self._show(decoder, decoder.feed(data, row), left)
            decoder.turn = turns.stop
            if not left:
                return True
            self._show(decoder, decoder.feed(None, 0), left)
        except ReliveError:
            raise
        except decoder.failures as error:
            raise CorruptError(f"`{self.path}`: frame {row} cannot be decoded: {error}") from error
        if left:
            raise CorruptError(f"`{self.path}`: frame {min(left)} does not come out of its bytes")
        return False

    def _check_crc(self, data: bytes | memoryview, row: int, crc: int | None) -> None:
        if crc is not None and crc32c(bytes(data)) != crc:
            raise CorruptError(f"`{self.path}`: the bytes of frame {row} are damaged")

    def _show(self, decoder: Decoder, frames: list[Any], left: dict[int, Sink]) -> None:
        for frame in frames:
            decoder.row, decoder.frame = frame.pts, frame
            sink = left.pop(frame.pts, None)
            if sink is not None:
                if frame.is_corrupt:
                    raise CorruptError(f"`{self.path}`: frame {frame.pts} is damaged")
                sink(decoder.picture(frame, self.index.shape))


class _Piece(NamedTuple):
    row: int
    offset: int
    size: int
    crc: int | None


class _Plan:
    """In which order frames are decoded, and where one has to begin to get at another."""

    def __init__(self, index: FrameIndex) -> None:
        offsets = index.offsets
        total = len(offsets)
        self._rows: Ints | None = None  # by turn; None: as they are shown
        self._turns: Ints | None = None  # by row
        rows: Any = slice(None)
        if not bool((offsets[1:] > offsets[:-1]).all()):
            rows = self._rows = np.argsort(offsets, kind="stable")
            self._turns = np.empty(total, np.int64)
            self._turns[rows] = np.arange(total)
        self._offsets, self._sizes = offsets[rows], index.sizes[rows]
        self._crcs = None if index.crcs is None else index.crcs[rows]
        self._spare = None if index.disposables is None else index.disposables[rows]
        # The last key frame that is shown no later: with open groups of pictures, those
        # shown before a key frame and decoded after it need the one before.
        keys = np.maximum.accumulate(np.where(index.keys, np.arange(total), 0))
        self.starts: Ints = keys if self._turns is None else self._turns[keys]

    def start(self, row: int) -> int:
        """Give the turn of the key frame to begin at."""
        return int(self.starts[row])

    def turn(self, row: int) -> int:
        """Give when a frame is decoded."""
        return row if self._turns is None else int(self._turns[row])

    def packets(self, turns: range, wanted: dict[int, Sink]) -> list[_Piece]:
        """Give what to decode to get at the wanted frames, the last of which is the last here."""
        part = slice(turns.start, turns.stop)
        rows = turns if self._rows is None else self._rows[part].tolist()
        crcs = [None] * len(turns) if self._crcs is None else self._crcs[part].tolist()
        places = zip(
            rows, self._offsets[part].tolist(), self._sizes[part].tolist(), crcs, strict=True
        )
        if self._spare is None:
            return [_Piece(*place) for place in places]
        spare = self._spare[part].tolist()
        return [
            _Piece(*place)
            for place, is_spare in zip(places, spare, strict=True)
            if not is_spare or place[0] in wanted
        ]


class _File:
    """A video file while it is read from."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> Self:
        try:
            self._handle = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise storage_error(error, self._path, "read") from error
        return self

    def __exit__(self, *exc: object) -> None:
        os.close(self._handle)

    def take(self, offset: int, size: int, row: int) -> memoryview:
        """Give bytes, with room behind them as decoders want it; `row` is for a message."""
        done = 0
        try:
            end = os.fstat(self._handle).st_size
            if offset + size > end:  # before so much memory is asked for
                raise self._cut(end, row)
            view = memoryview(bytearray(size + PADDING))
            while done < size:
                read = os.preadv(self._handle, [view[done:size]], offset + done)
                if not read:
                    raise self._cut(offset + done, row)
                done += read
        except OSError as error:
            if isinstance(error, ReliveError):
                raise
            raise storage_error(error, self._path, "read") from error
        return view

    def _cut(self, end: int, row: int) -> CorruptError:
        return CorruptError(f"`{self._path}` ends at byte {end}, within or before frame {row}")


class _Threads:
    executor: ThreadPoolExecutor | None = None
    lock = threading.Lock()


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _pool() -> ThreadPoolExecutor:
    with _Threads.lock:
        if _Threads.executor is None:
            _Threads.executor = ThreadPoolExecutor(_cores(), "relive-video")
        return _Threads.executor


def _after_fork() -> None:
    _Threads.executor, _Threads.lock = None, threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
