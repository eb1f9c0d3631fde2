"""`RemoteFile`: a file on an HTTP server or in an object store, read by byte ranges."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Self

from relive._arguments import as_text
from relive.errors import CorruptError, OutOfRangeError
from relive.store.remote.client import ObjectClient, Response, changed
from relive.store.remote.connection import public_name
from relive.store.remote.hidden import hidden_address, hidden_options
from relive.store.remote.ranges import Range, assemble, plan
from relive.store.remote.threads import is_forked

# The head holds the index of two thousand entries; the tail holds directory, names, dictionary.
HEAD_BYTES: Final = 64 << 10
TAIL_BYTES: Final = 256 << 10


class RemoteFile:
    """A file at a URI. Thread-safe; works in forked and spawned processes; pickles small.

    A file that changes after it was opened is a `CorruptError`. The first and the last bytes
    are kept in memory and need no request.

    Example:
        >>> from relive.store.remote.file import RemoteFile
        >>> file = RemoteFile.open("https://example.com/a.pack")  # doctest: +SKIP
        >>> file.read_ranges([(0, 4), (100, 200)])  # doctest: +SKIP
    """

    __slots__ = ("_blocks", "_client", "_options", "_size", "_tag", "_uri")

    def __init__(self, uri: str, options: Mapping[str, Any]) -> None:
        self._uri, self._options = as_text("`uri`", uri), dict(options)
        self._client: ObjectClient | None = None
        head: Response
        tail: Response | None
        head, tail = self._request("get_ends", HEAD_BYTES, TAIL_BYTES)
        self._size, self._tag = head.size, head.tag
        self._blocks: tuple[tuple[int, bytes], ...] = ((0, head.data),)
        if tail is not None:
            self._check_unchanged([tail])
            start = max(tail.start, len(head.data))
            self._blocks += ((start, tail.data[start - tail.start :]),)

    @classmethod
    def open(cls, uri: str, **options: Any) -> Self:
        """Open the file at `uri` in one round trip, or two if the server ignores suffix ranges.

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
        """The size in bytes."""
        return self._size

    def read_ranges(self, ranges: Sequence[Range]) -> list[bytes]:
        """Return the bytes of each `(start, stop)`, in the requested order, in one round trip."""
        for start, stop in ranges:
            if not 0 <= start <= stop <= self._size:
                raise OutOfRangeError(
                    f"bytes {start} to {stop} are out of range: "
                    f"`{self.name}` has {self._size} bytes"
                )
        blocks = list(self._blocks)
        if wanted := plan(self._not_kept(ranges)):
            responses: list[Response] = self._request("get_ranges", wanted)
            self._check_unchanged(responses)
            blocks += [(response.start, response.data) for response in responses]
            blocks.sort()
        return assemble(blocks, ranges)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the URI, and the size and tag by which a change is noticed; no secret."""
        uri, options = hidden_address(self._uri), hidden_options(self._options)
        return _reopen, (type(self), uri, options, self._size, self._tag)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self._size} bytes)"

    def _not_kept(self, ranges: Iterable[Range]) -> Iterable[Range]:
        # Head and tail are at the ends, so that what remains of a range is one range.
        _, head = self._blocks[0]
        tail = self._blocks[-1][0] if len(self._blocks) > 1 else self._size
        for start, stop in ranges:
            first, last = max(start, len(head)), min(stop, tail)
            if first < last:
                yield first, last

    def _request(self, method: str, *arguments: object) -> Any:
        if is_forked():
            from relive.store.remote import fork_proxy

            return fork_proxy.call("object", self._uri, self._options, method, *arguments)
        if self._client is None:
            self._client = ObjectClient(self._uri, self._options)
        return getattr(self._client, method)(*arguments)

    def _check_unchanged(self, responses: Iterable[Response]) -> None:
        for response in responses:
            if (response.size, response.tag) != (self._size, self._tag):
                raise changed(self.name)


def _reopen(
    cls: type[RemoteFile], uri: str, options: Mapping[str, Any], size: int, tag: str | None
) -> RemoteFile:
    file = cls.open(uri, **options)
    if (file._size, file._tag) != (size, tag):  # noqa: SLF001 - of the same class
        raise CorruptError(f"`{file.name}` changed since it was opened", hint="open it again")
    return file
