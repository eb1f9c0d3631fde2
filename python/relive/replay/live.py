"""The live lane: the newest frame of a run in shared memory, for viewers in other processes."""

import contextlib
import json
import math
import os
import stat
import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from relive._arguments import as_int, type_name
from relive._native import RingReader, RingWriter
from relive.errors import (
    ClosedError,
    CorruptError,
    InvalidError,
    InvalidTypeError,
    LockedError,
    NotFoundError,
    ReliveError,
    UnsupportedError,
)
from relive.model.clock import now_ns
from relive.replay.storage.layout import check_run_id
from relive.replay.storage.values import as_json
from relive.store.lifecycle import warn_unclosed
from relive.store.locks import FileLock, is_locked

_FOLDER: Final = Path("/dev/shm")  # noqa: S108 - memory that processes share
_SCALAR_BYTES: Final = 1024
_MAX_DIMENSIONS: Final = 32  # of an array of NumPy 1
_CREATING: Final = threading.Lock()


@dataclass(frozen=True)
class LiveLaneInfo:
    """A lane that some process of this user publishes to.

    Example:
        >>> from relive.replay import LiveLane
        >>> with LiveLane.create("doctest-info", (2, 3)):
        ...     (lane,) = [lane for lane in LiveLane.list() if lane.name == "doctest-info"]
        >>> lane.shape, lane.dtype, lane.frames
        ((2, 3), '|u1', 0)
    """

    name: str
    pid: int
    shape: tuple[int, ...]
    dtype: str
    frames: int
    """Frames published so far."""
    started_ns: int


class LiveLane:
    """The newest frame of one writer, for any number of readers in other processes.

    The writer never waits: it overwrites old frames, and a slow reader misses some. A frame that
    a reader returns is always whole. Either side may be killed at any time. One thread at a time
    publishes. A writer's lane that is dropped without `close` ends, with a `ResourceWarning`.

    Example:
        >>> import numpy as np
        >>> from relive.replay import LiveLane
        >>> with LiveLane.create("doctest-lane", (2, 3)) as lane:
        ...     viewer = LiveLane.attach("doctest-lane")  # in any process of this user
        ...     _ = lane.publish(np.full((2, 3), 7, np.uint8), reward=1.0)
        ...     frame, scalars, sequence = viewer.latest()
        >>> int(frame[0, 0]), scalars["reward"], sequence
        (7, 1.0, 0)
    """

    _owner: "_Owner | None" = None

    def __init__(self, segment: "_Segment", reader: RingReader, writer: "_Owner | None") -> None:
        self._segment = segment
        self._reader = reader
        self._owner = writer
        self._is_closed = False

    def __del__(self) -> None:
        # `_Owner` ends the segment; in a forked child neither it nor this does anything.
        if self._owner is not None and not self._is_closed and self.pid == os.getpid():
            warn_unclosed(str(self._segment.path), stacklevel=3)

    @classmethod
    def create(
        cls,
        name: str,
        shape: Sequence[int],
        dtype: npt.DTypeLike = "uint8",
        slots: int = 8,
        *,
        metadata: Mapping[str, Any] | None = None,
    ) -> Self:
        """Create a lane to publish frames of a shape to.

        Args:
            name: The id of the run, or another name. A lane of this name that another process
                publishes to is a `LockedError`.
            shape: The shape of a frame. A frame of another shape or dtype that is published later
                begins a new segment, and readers change to it.
            dtype: The dtype of a frame.
            slots: How many frames the memory holds, at least 2. More slots give slow readers of
                large frames more time.
            metadata: JSON values for readers.
        """
        if metadata is not None and not isinstance(metadata, Mapping):
            raise InvalidTypeError(f"`metadata` must be a dict, got {metadata!r}")
        owner = _Owner(
            check_run_id(name, "name"),
            as_int("slots", slots, at_least=2, at_most=1 << 16),
            as_json("metadata", metadata or {}),
        )
        segment, reader = owner.begin(_frame_shape(shape), _frame_dtype(dtype))
        return cls(segment, reader, owner)

    @classmethod
    def attach(cls, name: str) -> Self:
        """Read the lane of a name: the newest, if several processes publish under it."""
        segment, reader = _newest(check_run_id(name, "name"))
        return cls(segment, reader, None)

    @classmethod
    def list(cls) -> list[LiveLaneInfo]:
        """Return the lanes that processes of this user publish to, sorted by name."""
        found = []
        for path in _segments():
            opened = _open(path)
            if opened is not None and is_locked(path):
                found.append(opened[0].info(opened[1]))
        return sorted(found, key=lambda lane: (lane.name, lane.started_ns))

    @property
    def name(self) -> str:
        """The name of the lane."""
        return self._segment.name

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a frame."""
        return self._segment.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of a frame."""
        return self._segment.dtype

    @property
    def pid(self) -> int:
        """The id of the process that publishes."""
        return self._segment.pid

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What the writer passed as `metadata`."""
        return self._segment.metadata

    @property
    def is_live(self) -> bool:
        """Whether a process still publishes to the lane."""
        self._check_open()
        self._follow()
        return not self._reader.has_ended and is_locked(self._segment.path)

    def publish(self, frame: npt.NDArray[Any], **scalars: float) -> int:
        """Publish a frame with numbers such as `reward=`; return its sequence number.

        Takes no lock and makes no system call, unless the shape or dtype of the frames changes.
        `step_rate`, the frames per second, is added unless it is given.
        """
        owner = self._owner
        if owner is None or self._is_closed:
            raise self._not_writable()
        try:
            if frame.shape != self._segment.shape or frame.dtype != self._segment.dtype:
                self._change(owner, frame)
            if not frame.flags.c_contiguous:
                frame = np.ascontiguousarray(frame)
        except AttributeError:
            raise _not_an_array(frame) from None
        return owner.publish(frame, scalars) + self._segment.first

    def latest(self) -> tuple[npt.NDArray[Any], dict[str, bool | int | float], int] | None:
        """Return the newest frame, its scalars and its sequence number; None before the first.

        The array is the caller's own. When the writer has ended, this returns its last frame.
        """
        self._check_open()
        self._follow()
        found = self._reader.latest(self._segment.dtype, self._segment.shape)
        if found is None:
            return None
        frame, scalars, number = found
        return frame, scalars, number + self._segment.first

    def close(self) -> None:
        """End the lane: a writer removes it, a reader stops reading. May be called again."""
        self._is_closed = True
        if self._owner is not None:
            self._owner.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        role = "attached" if self._owner is None else "publishing"
        segment = self._segment
        return f"<LiveLane {segment.name!r}: {segment.shape} {segment.dtype}, {role}>"

    def _change(self, owner: "_Owner", frame: npt.NDArray[Any]) -> None:
        """Begin a segment for frames of another shape or dtype."""
        if not isinstance(frame, np.ndarray):
            raise _not_an_array(frame)
        first = self._segment.first + owner.published
        self._segment, self._reader = owner.begin(
            _frame_shape(frame.shape), _frame_dtype(frame.dtype), first
        )

    def _follow(self) -> None:
        """Change to the next segment, if the writer began another one."""
        if self._owner is None and self._reader.has_ended:
            with contextlib.suppress(NotFoundError):
                self._segment, self._reader = _newest(self._segment.name)

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError(f"the live lane {self._segment.name!r} is closed")

    def _not_writable(self) -> ReliveError:
        if self._is_closed:
            return ClosedError(f"the live lane {self._segment.name!r} is closed")
        return InvalidError(
            f"the live lane {self._segment.name!r} is attached for reading",
            hint="LiveLane.create(name, shape) makes a lane to publish to",
        )


@dataclass(frozen=True)
class _Segment:
    """What the description of a segment says."""

    path: Path
    name: str
    pid: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    started_ns: int
    first: int
    """The sequence number of its first frame."""
    metadata: Mapping[str, Any]

    def info(self, reader: RingReader) -> LiveLaneInfo:
        frames = self.first + reader.published
        return LiveLaneInfo(
            self.name, self.pid, self.shape, self.dtype.str, frames, self.started_ns
        )

    def description(self) -> bytes:
        described = {
            "name": self.name,
            "pid": self.pid,
            "shape": self.shape,
            "dtype": self.dtype.str,
            "started_ns": self.started_ns,
            "first": self.first,
            "metadata": dict(self.metadata),
        }
        try:
            return json.dumps(described, allow_nan=False).encode()
        except (TypeError, ValueError) as error:
            raise InvalidTypeError(f"`metadata` is not JSON-serializable: {error}") from error

    @classmethod
    def parse(cls, path: Path, reader: RingReader) -> "_Segment":
        try:
            described = json.loads(reader.description)
            segment = cls(
                path,
                str(described["name"]),
                int(described["pid"]),
                _frame_shape(described["shape"]),
                _frame_dtype(str(described["dtype"])),
                int(described["started_ns"]),
                int(described["first"]),
                MappingProxyType(dict(described["metadata"])),
            )
            frame_bytes = math.prod(segment.shape) * segment.dtype.itemsize
        except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise CorruptError(f"`{path}` has a damaged description: {error}") from error
        if frame_bytes != reader.frame_bytes:
            raise CorruptError(f"`{path}`: shape and dtype contradict the size of a frame")
        return segment


class _Owner:
    """The writer's side of a lane: its segments, one after the other."""

    _writer: RingWriter  # that of the present segment, which `begin` makes

    def __init__(self, name: str, slots: int, metadata: dict[str, Any]) -> None:
        self._name = name
        self._slots = slots
        self._metadata = metadata
        self._ending: Any = None

    @property
    def published(self) -> int:
        """The number of frames of the present segment."""
        return self._writer.published

    def begin(
        self, shape: tuple[int, ...], dtype: np.dtype[Any], first: int = 0
    ) -> tuple[_Segment, RingReader]:
        """Make a segment and end the one before."""
        path = _path(self._name)
        metadata = MappingProxyType(self._metadata)
        started = now_ns()
        segment = _Segment(path, self._name, os.getpid(), shape, dtype, started, first, metadata)
        description = segment.description()
        made: list[RingWriter] = []

        def fill(temporary: Path) -> None:
            writer = RingWriter(
                temporary,
                slots=self._slots,
                frame_bytes=math.prod(shape) * dtype.itemsize,
                scalar_bytes=_SCALAR_BYTES,
                description=description,
            )
            made.append(writer)

        with _CREATING:
            if self._ending is None:
                _reclaim_all(self._name)
            lock = FileLock.create(path, fill)
            reader = RingReader(path)
            # The name now belongs to the new segment, so that readers of the old one find it.
            before, self._ending = self._ending, weakref.finalize(self, _end, made[0], lock, path)
            self._writer = made[0]
        if before is None:
            self._give_way(path)
        else:
            before()
        return segment, reader

    def publish(self, frame: npt.NDArray[Any], scalars: dict[str, Any]) -> int:
        try:
            return self._writer.publish(frame, scalars)
        except TypeError:
            if not isinstance(frame, np.ndarray):
                raise _not_an_array(frame) from None
            raise InvalidTypeError(
                "scalars must be numbers, got "
                + ", ".join(f"{name}={value!r}" for name, value in scalars.items())
            ) from None

    def end(self) -> None:
        self._ending()

    def _give_way(self, path: Path) -> None:
        """Raise if another process made a lane of this name at the same moment, and has priority.

        Of two that both made one, the lower process id has it.
        """
        for other in _segments(self._name):
            pid = int(other.name.rpartition(".")[2])
            if other != path and pid < os.getpid() and is_locked(other):
                self.end()
                raise _locked(self._name, pid)


def _end(writer: RingWriter, lock: FileLock, path: Path) -> None:
    writer.end()
    # Not in a forked child, and not if a newer segment has the name.
    if lock.is_held and lock.is_at(path):
        path.unlink(missing_ok=True)
    lock.release()


def _path(name: str) -> Path:
    if not _FOLDER.is_dir():
        raise UnsupportedError(
            f"live lanes need shared memory at `{_FOLDER}`, which this machine does not have"
        )
    return _FOLDER / f"relive.{os.getuid()}.{name}.{os.getpid()}"


def _segments(name: str | None = None) -> list[Path]:
    """Return the segments of this user, or those of one lane."""
    prefix = f"relive.{os.getuid()}." + ("" if name is None else f"{name}.")
    found = []
    with contextlib.suppress(OSError):
        for path in _FOLDER.iterdir():
            middle, _, pid = path.name.removeprefix(prefix).rpartition(".")
            is_named = path.name.startswith(prefix) and bool(middle) == (name is None)
            if is_named and pid.isdecimal() and pid.isascii() and _is_own(path):
                found.append(path)
    return found


def _is_own(path: Path) -> bool:
    """Check that a segment is a file of this user: anyone may create files in that directory."""
    with contextlib.suppress(OSError):
        found = path.lstat()
        return stat.S_ISREG(found.st_mode) and found.st_uid == os.getuid()
    return False


def _open(path: Path) -> tuple[_Segment, RingReader] | None:
    try:
        reader = RingReader(path)
        segment = _Segment.parse(path, reader)
    except (CorruptError, UnsupportedError, OSError):
        return None  # it ended meanwhile, or is not one of ours
    # A segment that is being made has another name until it is complete.
    is_named = path.name == f"relive.{os.getuid()}.{segment.name}.{segment.pid}"
    return (segment, reader) if is_named else None


def _newest(name: str) -> tuple[_Segment, RingReader]:
    opened = [_open(path) for path in _segments(name)]
    live = [found for found in opened if found is not None and is_locked(found[0].path)]
    if not live:
        raise NotFoundError(
            f"no process publishes to the live lane {name!r}",
            hint="LiveLane.list() returns the lanes that exist",
        )
    return max(live, key=lambda found: found[0].started_ns)


def _reclaim_all(name: str) -> None:
    """Free the memory of writers that were killed; raise if a running one has this name."""
    own = set(_segments(name))
    for path in _segments():
        if path in own:
            if not _reclaim(path) and path in _segments(name):
                raise _locked(name, int(path.name.rpartition(".")[2]))
        else:  # it may be left for later, so that live lanes of other names cost no time
            _reclaim(path, waits=False)


def _reclaim(path: Path, *, waits: bool = True) -> bool:
    """Remove a segment, unless its owner is alive."""
    try:
        lock = FileLock.take(path) if waits else FileLock.take(path, tries=1)
    except LockedError:
        return False
    except OSError:
        return True  # removed meanwhile, or not ours
    try:
        # Locked, so its owner is gone; no process gives this name to another segment meanwhile.
        if lock.is_at(path):
            path.unlink(missing_ok=True)
    finally:
        lock.release()
    return True


def _locked(name: str, pid: int) -> LockedError:
    return LockedError(
        f"process {pid} publishes to the live lane {name!r}",
        hint="use another name, or LiveLane.attach(name) to read",
    )


def _frame_shape(shape: Sequence[int]) -> tuple[int, ...]:
    try:
        sizes = list(shape)
    except TypeError:
        raise InvalidTypeError(f"`shape` must be a tuple of integers, got {shape!r}") from None
    if len(sizes) > _MAX_DIMENSIONS:
        raise InvalidError(
            f"a frame must have at most {_MAX_DIMENSIONS} dimensions, got {len(sizes)}"
        )
    return tuple(as_int(f"shape[{place}]", size) for place, size in enumerate(sizes))


def _not_an_array(frame: object) -> InvalidTypeError:
    return InvalidTypeError(f"a frame must be a NumPy array, got {type_name(type(frame))}")


def _frame_dtype(dtype: npt.DTypeLike) -> np.dtype[Any]:
    try:
        made = np.dtype(dtype)
    except (TypeError, ValueError, SyntaxError) as error:
        raise InvalidTypeError(f"`dtype` must be a NumPy dtype: {error}") from error
    if made.kind not in "biufc":
        raise InvalidTypeError(f"a frame must have numbers, got the dtype {made.str!r}")
    return made
