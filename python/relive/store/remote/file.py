"""Files on HTTP servers and in object stores, read by ranges."""

import os
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import unquote, urlsplit

from relive.errors import (
    CorruptError,
    InvalidTypeError,
    OutOfRangeError,
    UnsupportedError,
)
from relive.store.remote.client import Answer, Fetcher, Range, changed, forked, public_name

__all__ = ["RemoteFile", "is_remote", "local_path"]

# A head has the index of two thousand entries; a tail has directory, names and dictionary.
HEAD_BYTES: Final = 64 << 10
TAIL_BYTES: Final = 256 << 10
# Ranges closer than this are one request, and a request brings no more than a piece.
GAP_BYTES: Final = 256 << 10
PIECE_BYTES: Final = 8 << 20


def is_remote(uri: object) -> bool:
    """Whether `uri` has a scheme, and one that is not `file`."""
    return isinstance(uri, str) and _scheme(uri) not in {"", "file"}


def local_path(uri: str | os.PathLike[str]) -> Path:
    """Give the path that a `file://` URI means; anything else is a path already."""
    if not isinstance(uri, str) or _scheme(uri) != "file":
        return Path(uri)
    parts = urlsplit(uri)
    if parts.netloc not in {"", "localhost"}:
        raise UnsupportedError(
            f"cannot read `{uri}`: it is on another machine", hint="file:///path has no host"
        )
    return Path(unquote(parts.path))


def _scheme(uri: str) -> str:
    scheme, found, _ = uri.partition("://")
    return scheme.lower() if found and scheme.replace("+", "").isalnum() else ""


class RemoteFile:
    """A file at a URI. Thread-safe; works in forked and spawned processes; pickles small.

    What was opened is what is read: a file that changes is an error. The first and the last
    bytes are kept, and cost no request.
    """

    __slots__ = ("_blocks", "_fetcher", "_options", "_size", "_tag", "_uri")

    def __init__(self, uri: str, options: Mapping[str, Any]) -> None:
        if not isinstance(uri, str):
            raise InvalidTypeError(f"a URI is text, not {type(uri).__name__}")
        self._uri, self._options = uri, dict(options)
        self._fetcher: Fetcher | None = None
        head: Answer
        tail: Answer | None
        head, tail = self._ask("ends", HEAD_BYTES, TAIL_BYTES)
        self._size, self._tag = head.size, head.tag
        self._blocks: tuple[tuple[int, bytes], ...] = ((0, head.data),)
        if tail is not None:
            self._check([tail])
            start = max(tail.start, len(head.data))
            self._blocks += ((start, tail.data[start - tail.start :]),)

    @classmethod
    def open(cls, uri: str, **options: Any) -> Self:
        """Open the file at `uri` in one round trip, or two where a server cannot count back.

        `options` are those of obstore's stores: `client_options`, `retry_config`, and for
        object stores their configuration, such as `region` or `skip_signature`.
        """
        return cls(uri, options)

    @property
    def name(self) -> str:
        """The URI without user, password and query."""
        return public_name(self._uri)

    @property
    def size(self) -> int:
        """How many bytes the file has."""
        return self._size

    def read_ranges(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Give the bytes of each `(start, stop)`, in the order asked, in one round trip."""
        for start, stop in ranges:
            if not 0 <= start <= stop <= self._size:
                raise OutOfRangeError(
                    f"bytes {start} to {stop} are outside of the {self._size} of `{self.name}`"
                )
        pieces = list(self._blocks)
        if wanted := cut(join(self._missing(ranges))):
            answers: list[Answer] = self._ask("ranges", wanted)
            self._check(answers)
            pieces += [(answer.start, answer.data) for answer in answers]
            pieces.sort()
        starts = [start for start, _ in pieces]
        return [_assemble(pieces, starts, start, stop) for start, stop in ranges]

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle where the file is and which one it was."""
        return _reopen, (type(self), self._uri, self._options, self._size, self._tag)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self._size} bytes)"

    def _missing(self, ranges: Iterable[Range]) -> Iterable[Range]:
        # Head and tail are at the ends, so that what is missing of a range is one range.
        _, head = self._blocks[0]
        tail = self._blocks[-1][0] if len(self._blocks) > 1 else self._size
        for start, stop in ranges:
            first, last = max(start, len(head)), min(stop, tail)
            if first < last:
                yield first, last

    def _ask(self, method: str, *arguments: object) -> Any:
        if forked():
            from relive.store.remote import fork_proxy as courier

            return courier.call(self._uri, self._options, method, *arguments)
        if self._fetcher is None:
            self._fetcher = Fetcher(self._uri, self._options)
        return getattr(self._fetcher, method)(*arguments)

    def _check(self, answers: Iterable[Answer]) -> None:
        for answer in answers:
            if (answer.size, answer.tag) != (self._size, self._tag):
                raise changed(self.name)


def _reopen(
    cls: type[RemoteFile], uri: str, options: Mapping[str, Any], size: int, tag: str | None
) -> RemoteFile:
    file = cls.open(uri, **options)
    if (file._size, file._tag) != (size, tag):  # noqa: SLF001 - of the same class
        raise CorruptError(f"`{file.name}` changed since it was opened", hint="open it again")
    return file


def join(ranges: Iterable[Range], gap: int = GAP_BYTES) -> list[Range]:
    """Give the ranges in ascending order, those that lie within `gap` of each other as one."""
    joined: list[Range] = []
    for start, stop in sorted(ranges):
        if joined and start <= joined[-1][1] + gap:
            joined[-1] = joined[-1][0], max(joined[-1][1], stop)
        else:
            joined.append((start, stop))
    return joined


def cut(ranges: Iterable[Range], piece: int = PIECE_BYTES) -> list[Range]:
    """Give the ranges in pieces of at most `piece` bytes."""
    return [
        (at, min(at + piece, stop)) for start, stop in ranges for at in range(start, stop, piece)
    ]


def _assemble(
    pieces: Sequence[tuple[int, bytes]], starts: Sequence[int], start: int, stop: int
) -> bytes:
    found: list[bytes] = []
    position = bisect_right(starts, start) - 1
    at = start
    while at < stop:
        begin, data = pieces[position]
        found.append(data[at - begin : stop - begin])
        at += len(found[-1])
        position += 1
    return found[0] if len(found) == 1 else b"".join(found)
