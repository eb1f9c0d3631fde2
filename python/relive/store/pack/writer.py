"""Writing packs, and finishing what a writer left that died."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass
from operator import index
from typing import TYPE_CHECKING, Any, Final, Self, SupportsIndex

from relive import _native
from relive.errors import (
    AlreadyExistsError,
    InvalidError,
    InvalidTypeError,
    NotFoundError,
    ReliveError,
)
from relive.store.arrays import thread_count
from relive.store.pack.kinds import encode_payload
from relive.store.paths import absolute_path

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator
    from types import TracebackType

    from relive.model.source import IndexArray
    from relive.store.codec import BytesLike

__all__ = ["PackWriter", "Recovered", "recover"]

_JOURNAL: Final = ".journal"
_U64: Final = (1 << 64) - 1

_BATCH: Final = 4096
_BATCH_BYTES: Final = 64 << 20


class PackWriter:
    """A pack being written; readers see it when it is closed, and whole.

    `with` closes it at the end, or leaves it unfinished when the block raises: nothing is lost
    then, and `recover` makes a pack of it. Until the end the file of that name is as it was.

    Args:
        path: Where the pack will be.
        align: Each entry begins at a multiple of this, a power of two from 1 to 65536.
        codec: How payloads are stored: "raw", "deflate", "zstd" or "lz4". One that does not
            shrink is stored raw.
        level: The level of the codec.
        dictionary: What `train_dictionary` gave, for zstd; it is stored in the pack.
        checksum: Whether entries are stored with checksums.
        capacity: How many entries there will be, if that is known. With more than that, or
            more than 2047 where it is not known, payloads are copied once at the end.
        steps: Whether to store a table of the steps of all runs, which `steps()` reads fast.
        overwrite: Whether an existing file is replaced; else it is an `AlreadyExistsError`.
        max_payload_bytes: Longer payloads are not compressed, but refused.
        threads: The most that one call uses; by default the cores, at most eight.

    Thread-safe. After an error of the disk, and in a forked child, every call is a
    `ClosedError`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        align: int = 4096,
        codec: str = "raw",
        level: int | None = None,
        dictionary: BytesLike | None = None,
        checksum: bool = True,
        capacity: int | None = None,
        steps: bool = False,
        overwrite: bool = False,
        max_payload_bytes: int = 1 << 30,
        threads: int | None = None,
    ) -> None:
        self._path = absolute_path(path, "a pack")
        self._alone = threading.RLock()
        with _told_to_overwrite():
            self._native = _native.PackWriter(
                self._path,
                align=_integer("align", align, (1 << 32) - 1),
                codec=_codec(codec),
                level=None if level is None else _level(level),
                dictionary=None if dictionary is None else encode_payload("bytes", dictionary),
                checksum=bool(checksum),
                capacity=None if capacity is None else _integer("capacity", capacity, _U64),
                steps=bool(steps),
                overwrite=bool(overwrite),
                max_payload_bytes=_integer("max_payload_bytes", max_payload_bytes, _U64),
                threads=thread_count(threads),
            )

    @property
    def path(self) -> str:
        """Where the pack will be."""
        return self._path

    def __len__(self) -> int:
        """Count the entries that were appended."""
        return len(self._native)

    def append(
        self,
        payload: Any,
        kind: str = "bytes",
        *,
        name: str | None = None,
        codec: str | None = None,
    ) -> int:
        """Append an entry and give its position.

        Args:
            payload: Bytes; for the kinds "v1", "v2" and "auto" also a `Run`; for a registered
                kind whatever its encoder takes.
            kind: "bytes", "v1", "v2", "auto" for a run of either version, or a registered kind.
                What is no run, or is not all of it, is a `CorruptError` and not appended.
            name: What to find the entry by; no two entries may have the same.
            codec: How to store this one.
        """
        stored = encode_payload(kind, payload)
        picked = None if codec is None else _codec(codec)
        with self._alone:
            return self._native.append(stored, kind, _name(name), picked)

    def extend(
        self,
        payloads: Iterable[Any],
        kind: str = "bytes",
        *,
        names: Iterable[str | None] | None = None,
        codec: str | None = None,
    ) -> range:
        """Append entries, compressed on several threads, and give their positions.

        Of a list all are appended or, when one is refused, none. Anything else is taken in
        batches, of which those before the one with the refused payload stay.
        """
        picked = None if codec is None else _codec(codec)
        whole = isinstance(payloads, list | tuple)
        with self._alone:  # so that the positions follow each other
            first = done = len(self)
            for batch, labels in _batches(payloads, kind, names, whole=whole):
                try:
                    _, done = self._native.extend(batch, kind, labels, picked)
                except ReliveError as error:
                    if done > first:
                        error.add_note(f"the batch begins behind {done - first} appended payloads")
                    raise
            return range(first, done)

    def copy(
        self,
        packs: list[_native.Pack],
        numbers: IndexArray,
        rows: IndexArray,
        progress: Callable[[int], object] | None = None,
        *,
        names: bool = True,
    ) -> None:
        """Append entry `rows[k]` of pack `numbers[k]`, for all of them, as it is stored there.

        `merge` and `subset` are this for readers.
        """
        self._native.copy(packs, numbers, rows, names, progress)

    def flush(self) -> None:
        """Make every entry so far survive the end of this process."""
        self._native.flush()

    def sync(self) -> None:
        """Make every entry so far survive a power cut."""
        self._native.sync()

    def close(self) -> None:
        """Finish the pack: it is on the disk, and has its name, when this returns.

        When it cannot be finished, the name is as it was and nothing is lost: `recover` finishes
        it where there is room again.
        """
        with _told_to_overwrite():
            self._native.finish()

    def abort(self) -> None:
        """Remove everything that was written; the file of that name stays as it was."""
        self._native.abort()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            # What the block raised matters more than what the disk says now.
            with contextlib.suppress(ReliveError):
                self._native.leave()
        elif self._native.is_open:
            self.close()

    def __repr__(self) -> str:
        """Give the place and the number of entries, on one line."""
        state = f"{len(self)} entries" if self._native.is_open else "closed"
        return f"PackWriter({self._path}: {state})"


@dataclass(frozen=True, slots=True)
class Recovered:
    """What became of an unfinished pack."""

    path: str
    """Where the pack is."""
    entries: int
    """How many entries it has: the first ones that were written, without a gap."""
    lost: int
    """How many more were announced, whose bytes did not arrive."""
    reason: str | None
    """What is wrong with the first of those."""
    file_bytes: int
    """How long the file is."""


def recover(
    path: str | os.PathLike[str],
    output: str | os.PathLike[str] | None = None,
    *,
    overwrite: bool = False,
) -> Recovered:
    """Make a pack of what a writer left that did not come to its end.

    `path` is the unfinished file, or the pack that it was to become, which is also where the
    pack is put unless `output` says otherwise. Everything that was flushed is in it. What is
    still being written is a `ClosedError`.
    """
    unfinished = _find_unfinished(absolute_path(path, "a pack"))
    target = _native.unfinished_target(unfinished)
    if output is None and target is None:
        raise InvalidError(
            f"`{unfinished}` is not named as an unfinished pack is", hint="give output="
        )
    wanted = str(target) if output is None else absolute_path(output, "a pack")
    with _told_to_overwrite():
        entries, lost, file_bytes, reason = _native.recover_pack(
            unfinished, wanted, bool(overwrite)
        )
    return Recovered(wanted, entries, lost, reason, file_bytes)


def _find_unfinished(path: str) -> str:
    for candidate in (path, path.removesuffix(_JOURNAL)):
        if _native.unfinished_target(candidate) is not None:
            return candidate
    found = [str(each) for each in _native.unfinished_packs(path)]
    if not found:
        raise NotFoundError(f"nothing unfinished was to become `{path}`")
    if len(found) > 1:
        names = ", ".join(f"`{each}`" for each in found)
        raise InvalidError(f"several were to become `{path}`: {names}", hint="name one of them")
    return found[0]


@contextlib.contextmanager
def _told_to_overwrite() -> Iterator[None]:
    try:
        yield
    except AlreadyExistsError as error:
        error.hint = "pass overwrite=True to replace it"
        raise


def _batches(
    payloads: Iterable[Any], kind: str, names: Iterable[str | None] | None, *, whole: bool
) -> Iterator[tuple[list[bytes], list[str | None] | None]]:
    labels = None if names is None else iter(names)
    batch: list[bytes] = []
    named: list[str | None] = []
    size = 0
    for payload in payloads:
        batch.append(encode_payload(kind, payload))
        if labels is not None:
            named.append(_name(_next_name(labels)))
        size += len(batch[-1])
        if not whole and (len(batch) == _BATCH or size >= _BATCH_BYTES):
            yield batch, None if labels is None else named
            batch, named, size = [], [], 0
    if labels is not None and next(labels, labels) is not labels:
        raise InvalidError("there are more names than payloads")
    if batch:
        yield batch, None if labels is None else named


def _next_name(names: Iterator[str | None]) -> str | None:
    try:
        return next(names)
    except StopIteration:
        raise InvalidError("there are fewer names than payloads") from None


def _codec(codec: str) -> str:
    if not isinstance(codec, str):
        raise InvalidTypeError(f"a codec's name is a str, not {type(codec).__name__}")
    return codec


def _name(name: str | None) -> str | None:
    if name is None:
        return None
    if not isinstance(name, str):
        raise InvalidTypeError(f"an entry is named by a string, not {name!r}")
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise InvalidError(f"{name!r} cannot be stored as UTF-8") from error
    return name


def _integer(what: str, value: SupportsIndex, most: int) -> int:
    try:
        number = index(value)
    except TypeError as error:
        raise InvalidTypeError(f"{what} is an int, not {type(value).__name__}") from error
    if not 0 <= number <= most:
        raise InvalidError(f"{what} is {number}, outside of 0 to {most}")
    return number


def _level(level: int) -> int:
    try:
        number = index(level)
    except TypeError as error:
        raise InvalidTypeError(f"level is an int, not {type(level).__name__}") from error
    if not -(1 << 31) <= number < 1 << 31:
        raise InvalidError(f"no codec has a level {number}")
    return number
