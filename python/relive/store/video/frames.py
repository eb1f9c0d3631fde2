"""Random access to frames: one read from the key frame on, and as few decodes as possible."""

import contextlib
import os
from base64 import b64decode
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property, partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from relive._native import crc32c
from relive._threads import SharedThreads, cores
from relive.errors import (
    CorruptError,
    InvalidError,
    InvalidTypeError,
    OutOfRangeError,
    ReliveError,
)
from relive.store.atomic import open_file, storage_error
from relive.store.video.access_points import access_point
from relive.store.video.decoders import Decoder, borrow, give_back
from relive.store.video.encode import Packet
from relive.store.video.index import FrameIndex

if TYPE_CHECKING:
    from concurrent.futures import Future

Image = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]

PADDING: Final = 64  # libavcodec reads this far past the end of a packet
AHEAD_BYTES: Final = 64 << 20  # the most that an iteration decodes in advance
READ_BYTES: Final = 16 << 20  # the most that is read at once, unless a frame is larger
TASK_ROWS: Final = 8  # fewer frames are not worth a thread

_threads: Final = SharedThreads("relive-video")

_numbers: Final = count()

Sink = Callable[[Decoder, Any], object]
"""Called with a requested frame as PyAV decoded it, and the decoder that converts it."""


class _Task(NamedTuple):
    """Frames that are decoded together: the key frame to start at, and a sink for each frame."""

    start: int
    wanted: dict[int, Sink]


class FrameReader:
    """Reads the frames of one video as RGB, on at most `workers` threads, by default one per core.

    Thread-safe; works in forked processes; keeps no file open.
    """

    def __init__(
        self, video_path: str | os.PathLike[str], index: FrameIndex, workers: int | None = None
    ) -> None:
        self.path = Path(video_path)
        self.index = index
        self.workers = workers
        self._number = next(_numbers)  # identifies this reader to decoders

    def __len__(self) -> int:
        return len(self.index)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path, self.index, self.workers)

    def frame(self, row: int) -> Image:
        """Return one frame."""
        self._check(row, row)
        found: list[Image] = []
        self._run_alone(_Task(self._plan.start(row), {row: self._as_rgb(found.append)}))
        return np.ascontiguousarray(found[0])

    def read(self, rows: npt.ArrayLike, out: Image) -> None:
        """Write the frames at `rows`, in any order and with repeats, to the rows of `out`."""
        wanted = np.asarray(rows)
        if not wanted.size:
            return
        if wanted.ndim != 1 or wanted.dtype.kind not in "iu":
            raise InvalidTypeError(f"`rows` must be a list of integers, got {wanted.dtype}")
        if out.shape != (len(wanted), *self.index.shape) or out.dtype != np.uint8:
            expected = (len(wanted), *self.index.shape)
            raise InvalidError(
                f"`out` must be uint8 of shape {expected}, got {out.dtype} of shape {out.shape}"
            )
        self._check(int(wanted.min()), int(wanted.max()))
        order = np.argsort(wanted, kind="stable")
        starts = self._plan.starts[wanted[order]]
        tasks: list[_Task] = []
        repeats: list[tuple[int, int]] = []
        last_row, last = -1, -1
        for position, start in zip(order.tolist(), starts.tolist(), strict=True):
            row = int(wanted[position])
            if row == last_row:
                repeats.append((position, last))
                continue
            if not tasks or tasks[-1].start != start:
                tasks.append(_Task(start, {}))
            tasks[-1].wanted[row] = self._as_rgb(partial(np.copyto, out[position]))
            last_row, last = row, position
        self._run_all(tasks)
        for position, source in repeats:
            out[position] = out[source]

    def __iter__(self) -> Iterator[Image]:
        return self.iterate(0, len(self))

    def iterate(self, start: int, stop: int) -> Iterator[Image]:
        """Iterate over the frames of a range, each decoded once, some in advance."""
        if start >= stop:
            return
        self._check(start, stop - 1)
        workers = self.workers or cores()
        ahead: deque[tuple[range, dict[int, Image], Future[None]]] = deque()
        ranges = deque(self._ranges(start, stop))
        try:
            while ranges or ahead:
                # A range between two key frames waits for the one before, to continue its decoder.
                while ranges and len(ahead) < workers:
                    if ahead and not self.index.keys[ranges[0].start]:
                        break
                    rows = ranges.popleft()
                    frames: dict[int, Image] = {}
                    wanted: dict[int, Sink] = {
                        row: self._as_rgb(partial(frames.__setitem__, row)) for row in rows
                    }
                    task = _Task(self._plan.start(rows[0]), wanted)
                    ahead.append((rows, frames, _threads.submit(self._run_alone, task)))
                rows, frames, done = ahead.popleft()
                done.result()
                for row in rows:
                    yield np.ascontiguousarray(frames.pop(row))
        finally:
            for *_, done in ahead:
                done.cancel()

    def decoded(self, start: int, stop: int) -> Iterator[Any]:
        """Iterate over the frames of a range as PyAV decodes them, without converting them."""
        if start >= stop:
            return
        self._check(start, stop - 1)
        for rows in self._ranges(start, stop):
            frames: dict[int, Any] = {}
            wanted: dict[int, Sink] = {row: partial(_keep, frames, row) for row in rows}
            self._run_alone(_Task(self._plan.start(rows[0]), wanted))
            for row in rows:
                yield frames.pop(row)

    def rows_to_store(self, start: int, stop: int) -> Ints | None:
        """Return the rows whose packets decode the range of frames, which starts at a key frame.

        With B-frames these may include later ones. None if frames before the key frame are needed.
        """
        return self._plan.closure(start, stop)

    def packets(self, rows: Ints | range) -> Iterator[Packet]:
        """Iterate over the stored packets at increasing rows from a key frame on, for a copy.

        They are in the order of decoding and numbered from 0, and `pts` counts from the first.
        """
        if not len(rows):
            return
        self._check(int(rows[0]), int(rows[-1]))
        index = self.index
        chosen = np.asarray(rows, np.int64)
        if not index.keys[chosen[0]]:
            raise InvalidError(f"frame {chosen[0]} of `{self.path}` is not a key frame")
        stamps, pts = index.timestamps[chosen], index.pts[chosen] - index.pts[chosen[0]]
        disposables = index.disposables
        order = np.argsort(index.offsets[chosen], kind="stable")
        with _File(self.path) as file:
            for turn, position in enumerate(order.tolist()):
                row = int(chosen[position])
                size = int(index.sizes[row])
                data = bytes(file.read(int(index.offsets[row]), size, row)[:size])
                self._check_crc(data, row, None if index.crcs is None else int(index.crcs[row]))
                yield Packet(
                    data,
                    position,
                    int(stamps[position]),
                    int(pts[position]),
                    bool(index.keys[row]),
                    int(stamps[turn]),
                    int(pts[turn]),
                    disposables is not None and bool(disposables[row]),
                )

    def copy_start(self, row: int) -> int:
        """Return the last key frame at or before `row` at which a copy of packets can begin."""
        self._check(row, row)
        keys = np.flatnonzero(self.index.keys[: row + 1]).tolist()
        with _File(self.path) as file:
            while len(keys) > 1 and not self._is_closed(file, keys[-1]):
                keys.pop()
        return int(keys[-1])

    @cached_property
    def _plan(self) -> "_Plan":
        return _Plan(self.index)

    def _check(self, low: int, high: int) -> None:
        if low < 0 or high >= len(self):
            wrong = low if low < 0 else high
            raise OutOfRangeError(
                f"frame {wrong} is out of range: `{self.path}` has {len(self)} frames"
            )

    def _ranges(self, start: int, stop: int) -> Iterator[range]:
        """Split a range at key frames, into ranges that are worth a thread each."""
        workers = self.workers or cores()
        most = max(1, AHEAD_BYTES // max(1, int(np.prod(self.index.shape))) // workers)
        keys = np.flatnonzero(self.index.keys[start:stop]) + start
        first = start
        for key in [*keys.tolist(), stop]:
            if key < stop and key - first < min(TASK_ROWS, most):
                continue
            while key - first > most:  # the decoder continues where the last range ended
                yield range(first, first + most)
                first += most
            if first < key:
                yield range(first, key)
            first = key

    def _run_all(self, tasks: Iterable[_Task]) -> None:
        left = deque(tasks)
        others = min(self.workers or cores(), len(left)) - 1
        with _File(self.path) as file:

            def work() -> None:
                while True:
                    try:
                        task = left.popleft()
                    except IndexError:
                        return
                    self._run(file, task)

            running = [_threads.submit(work) for _ in range(others)]
            try:
                work()
            finally:
                left.clear()
                failures = [done.exception() for done in running if not done.cancel()]
            for failure in failures:
                if failure is not None:
                    raise failure

    def _run_alone(self, task: _Task) -> None:
        with _File(self.path) as file:
            self._run(file, task)

    def _run(self, file: "_File", task: _Task) -> None:
        start, left = task.start, dict(task.wanted)
        back = 1
        while left:
            try:
                self._decode(file, start, left)
            except CorruptError:
                earlier = self._earlier_start(file, start, back)
                if earlier is None:
                    raise
                self._plan.move_start(start, earlier)
                start, back = earlier, 2 * back

    def _decode(self, file: "_File", start: int, left: dict[int, Sink]) -> None:
        """Decode the frames of `left` and remove them from it."""
        plan = self._plan
        turns = [plan.turn(row) for row in left]
        decoder = borrow(self.index.header, self._number, start, min(turns))
        if decoder.row in left:
            left.pop(decoder.row)(decoder, decoder.frame)
        if left and min(left) <= decoder.row:
            decoder.restart(self._number, start)
        if left and not self._feed(file, decoder, start, range(decoder.turn, max(turns) + 1), left):
            decoder.restart(-1, 0)
        give_back(decoder)  # not after an error, when its state is unknown

    def _earlier_start(self, file: "_File", start: int, back: int) -> int | None:
        """Return where to decode from if decoding from `start` failed; None if that cannot help.

        After an open access point, the stream may refer to frames before it.
        """
        with contextlib.suppress(CorruptError):  # the caller has an error of its own
            if not self._is_closed(file, self._plan.row(start)):
                return self._plan.earlier_key(start, back)
        return None

    def _is_closed(self, file: "_File", row: int) -> bool:
        """Check whether no frame that is shown after a key frame refers to one before it."""
        header = self.index.header
        if header["codec"] != "h264":
            return True
        size = int(self.index.sizes[row])
        data = bytes(file.read(int(self.index.offsets[row]), size, row)[:size])
        crcs = self.index.crcs
        self._check_crc(data, row, None if crcs is None else int(crcs[row]))
        return access_point("h264", b64decode(header["extradata"]), data) == "closed"

    def _feed(
        self, file: "_File", decoder: Decoder, start: int, turns: range, left: dict[int, Sink]
    ) -> bool:
        """Decode until all requested frames are decoded; False if the decoder was drained."""
        row = -1
        try:
            for packet, data in file.packets(self._plan.packets(start, turns, left)):
                row = packet.row
                self._check_crc(data, row, packet.crc)
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
            raise CorruptError(f"`{self.path}`: the decoder did not return frame {min(left)}")
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
                sink(decoder, frame)

    def _as_rgb(self, give: Callable[[Image], object]) -> Sink:
        return lambda decoder, frame: give(decoder.picture(frame, self.index.shape))


def _keep(frames: dict[int, Any], row: int, _: Decoder, frame: Any) -> None:
    frames[row] = frame


class _Location(NamedTuple):
    row: int
    offset: int
    size: int
    crc: int | None


class _Plan:
    """The order in which frames are decoded, and the key frame to start at for each."""

    def __init__(self, index: FrameIndex) -> None:
        offsets = index.offsets
        total = len(offsets)
        self._rows: Ints | None = None  # by turn; None if frames are decoded in the order of rows
        self._turns: Ints | None = None  # by row
        rows: Any = slice(None)
        if not bool((offsets[1:] > offsets[:-1]).all()):
            rows = self._rows = np.argsort(offsets, kind="stable")
            self._turns = np.empty(total, np.int64)
            self._turns[rows] = np.arange(total)
        self._offsets, self._sizes = offsets[rows], index.sizes[rows]
        self._crcs = None if index.crcs is None else index.crcs[rows]
        self._disposables = None if index.disposables is None else index.disposables[rows]
        # The last key frame that is not shown later. In open GOPs, frames that are shown before a
        # key frame and decoded after it need the key frame before.
        keys = np.maximum.accumulate(np.where(index.keys, np.arange(total), 0))
        self.starts: Ints = keys if self._turns is None else self._turns[keys]
        self._keys: Ints = np.unique(self.starts)

    def start(self, row: int) -> int:
        """Return the turn of the key frame to start at."""
        return int(self.starts[row])

    def earlier_key(self, start: int, back: int) -> int | None:
        """Return the turn of a key frame before the one at `start`; None for the first."""
        position = int(np.searchsorted(self._keys, start))
        return None if position == 0 else int(self._keys[max(0, position - back)])

    def move_start(self, start: int, earlier: int) -> None:
        """Start at an earlier key frame instead."""
        self.starts[self.starts == start] = earlier

    def row(self, turn: int) -> int:
        """Return the frame at a position in the order of decoding."""
        return turn if self._rows is None else int(self._rows[turn])

    def turn(self, row: int) -> int:
        """Return the position of a frame in the order of decoding."""
        return row if self._turns is None else int(self._turns[row])

    def closure(self, start: int, stop: int) -> Ints | None:
        """Return the rows from a key frame on that a range of frames is decoded from, itself too.

        None if one of them is decoded before the key frame.
        """
        inside = np.arange(start, stop)
        if self._turns is None:
            return inside
        first, last = int(self._turns[start]), int(self._turns[start:stop].max())
        if int(self._turns[start:stop].min()) < first:
            return None
        decoded: Ints = np.flatnonzero((self._turns >= first) & (self._turns <= last))
        if self._disposables is not None:
            decoded = decoded[~self._disposables[self._turns[decoded]]]
        # Frames that are shown before the key frame and decoded after it are not needed.
        return np.union1d(inside, decoded[decoded >= start])

    def packets(self, start: int, turns: range, wanted: dict[int, Sink]) -> list[_Location]:
        """Return the packets to decode for the wanted frames; the last of them is the last here.

        Frames shown before the key frame `start`, but decoded after it, are left out: they need
        frames before it, and no wanted frame needs them.
        """
        part = slice(turns.start, turns.stop)
        rows = turns if self._rows is None else self._rows[part].tolist()
        crcs = [None] * len(turns) if self._crcs is None else self._crcs[part].tolist()
        found = zip(
            rows, self._offsets[part].tolist(), self._sizes[part].tolist(), crcs, strict=True
        )
        packets = [_Location(*each) for each in found]
        if self._disposables is not None:
            spare = self._disposables[part].tolist()
            packets = [
                packet
                for packet, is_spare in zip(packets, spare, strict=True)
                if not is_spare or packet.row in wanted
            ]
        if self._rows is not None:
            first = self.row(start)
            packets = [packet for packet in packets if packet.row >= first]
        return packets


class _File:
    """A video file that is open for reading."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> Self:
        try:
            self._handle = open_file(self._path)
        except OSError as error:
            raise storage_error(error, self._path, "read") from error
        return self

    def __exit__(self, *exc: object) -> None:
        os.close(self._handle)

    def read(self, offset: int, size: int, row: int) -> memoryview:
        """Return bytes, with the padding after them that decoders need; `row` is for messages."""
        done = 0
        try:
            end = os.fstat(self._handle).st_size
            if offset + size > end:  # before allocating the memory
                raise self._truncated(end, row)
            view = memoryview(bytearray(size + PADDING))
            while done < size:
                read = os.preadv(self._handle, [view[done:size]], offset + done)
                if not read:
                    raise self._truncated(offset + done, row)
                done += read
        except OSError as error:
            if isinstance(error, ReliveError):
                raise
            raise storage_error(error, self._path, "read") from error
        return view

    def packets(self, packets: list[_Location]) -> Iterator[tuple[_Location, memoryview]]:
        """Iterate over packets and their bytes, in as few reads as `READ_BYTES` allow."""
        first = 0
        while first < len(packets):
            low, stop = packets[first].offset, first + 1
            while stop < len(packets) and (
                packets[stop].offset + packets[stop].size - low <= READ_BYTES
            ):
                stop += 1
            last = packets[stop - 1]
            buffer = self.read(low, last.offset + last.size - low, last.row)
            for packet in packets[first:stop]:
                at = packet.offset - low
                yield packet, buffer[at : at + packet.size]
            first = stop

    def _truncated(self, end: int, row: int) -> CorruptError:
        return CorruptError(f"`{self._path}` ends at byte {end}, before the end of frame {row}")
