"""The edit log of a dataset: one line of JSON per edit, only ever appended to."""

import contextlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from relive._native import crc32c
from relive.episodes.layout import EDITS
from relive.errors import CorruptError, ReliveError, UnsupportedError
from relive.model.episode import decode_statics, encode_statics
from relive.store.atomic import fsync_directory, open_reader, storage_error
from relive.store.locks import locked

_TIME: Final = (int, type(None))
# The fields of each kind of edit, besides its uid and time.
_OPS: Final[Mapping[str, Mapping[str, tuple[type, ...]]]] = {
    "set_static": {"name": (str,), "value": (object,)},
    "drop": {},
    "undrop": {},
    "trim": {"start": _TIME, "stop": _TIME},
    "cut": {"ts": (int,)},
}


_CRC: Final = "crc"
# States that the line ends with a checksum.
_CHECKED: Final = "checked"
_END_BYTES: Final = 32  # at least as many as `_END` matches
_END: Final = re.compile(rb', "crc": "([0-9a-f]{8})"\}\Z')


@dataclass(frozen=True, slots=True)
class Edit:
    """One edit of one episode.

    Example:
        >>> from relive.episodes import Edit
        >>> Edit("drop", "e0", at_ns=0, details={}).op
        'drop'
    """

    op: str
    """`set_static`, `drop`, `undrop`, `trim` or `cut`."""
    uid: str
    at_ns: int
    """When the edit was made; the order of the lines is the order of edits."""
    details: Mapping[str, Any]
    """`name` and `value`, `start` and `stop`, or `ts`."""

    def line(self) -> bytes:
        """Return the line of the log, with its checksum and its line end."""
        stored = {"op": self.op, "uid": self.uid, "at_ns": self.at_ns}
        stored |= encode_statics(dict(self.details)) | {_CHECKED: True}
        text = json.dumps(stored, ensure_ascii=False, allow_nan=False)
        body = text.removesuffix("}").encode()
        return b'%b, "crc": "%08x"}\n' % (body, crc32c(body))


class EditLog:
    """Reads and appends edits; lines that were read once are not read again.

    A last line that was written incompletely is not an edit, and the next append removes it. Any
    other line that is not an edit, or differs from its checksum, raises a `CorruptError` that
    names it. An edit that this version does not know raises an `UnsupportedError`.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.path = Path(root, EDITS)
        self._forget()

    def read(self) -> list[Edit]:
        """Return all edits, in the order in which they were made."""
        try:
            with contextlib.suppress(CorruptError), open_reader(self.path) as file:
                return self._read(file.fileno())
            # Another process may be removing an incomplete line; wait for its lock.
            with locked(self.path, shared=True, wait=True, follow=True) as handle:
                return self._read(handle)
        except FileNotFoundError:
            self._forget()
            return []
        except OSError as error:
            raise self._failed(error, "read") from error

    @property
    def unchecked(self) -> int:
        """The number of lines without a checksum among those that were read."""
        return self._unchecked

    @contextlib.contextmanager
    def appending(self) -> Iterator[tuple[list[Edit], Callable[[Edit], None]]]:
        """Lock the log; yield its edits and a function that appends one, synced."""
        made = not self.path.exists()
        try:
            with locked(self.path, create=True, wait=True, follow=True) as handle:
                if made:
                    fsync_directory(self.path.parent)
                yield self._read(handle), partial(self._append, handle)
        except OSError as error:
            raise self._failed(error, "write") from error

    def _forget(self) -> None:
        self._edits: list[Edit] = []
        self._lines = 0
        self._unchecked = 0
        self._read_bytes = 0
        self._file: tuple[int, int] | None = None

    def _read(self, handle: int) -> list[Edit]:
        found = os.fstat(handle)
        file = (found.st_dev, found.st_ino)
        if file != self._file or found.st_size < self._read_bytes:
            self._forget()  # the file was replaced
        data = _all_bytes(handle, self._read_bytes, found.st_size)
        *lines, tail = data.split(b"\n")
        numbered = enumerate(lines, self._lines + 1)
        edits = [*self._edits, *(self._edit(line, n) for n, line in numbered if line.strip())]
        self._file = file
        self._edits = edits
        self._lines += len(lines)
        self._unchecked += sum(bool(line.strip()) and _end_of(line) is None for line in lines)
        self._read_bytes += len(data) - len(tail)
        return [*edits, self._edit(tail, self._lines + 1)] if _is_whole(tail) else edits

    def _append(self, handle: int, edit: Edit) -> None:
        size = os.fstat(handle).st_size
        tail = _all_bytes(handle, self._read_bytes, size)
        line = edit.line()
        if _is_whole(tail):  # a text editor may leave out the last line end
            line = b"\n" + line
        else:
            size = self._read_bytes
            os.ftruncate(handle, size)
        while line:
            done = os.pwrite(handle, line, size)
            line, size = line[done:], size + done
        os.fsync(handle)

    def _edit(self, line: bytes, number: int) -> Edit:
        where = f"line {number} of `{self.path}`"
        try:
            stored = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise CorruptError(f"{where} is not valid JSON: {error}") from error
        if not isinstance(stored, dict) or not isinstance(stored.get("uid"), str):
            raise CorruptError(f"{where} is not a valid edit: `uid` is missing")
        if not stored.keys().isdisjoint({_CRC, _CHECKED}):
            end = _end_of(line)
            if end is None or crc32c(line[: end.start()]) != int(end[1], 16):
                raise CorruptError(f"{where} is damaged: its checksum does not match")
        op, at_ns = stored.get("op"), stored.get("at_ns", 0)
        if not isinstance(op, str) or op not in _OPS:
            raise UnsupportedError(
                f"{where} has the unknown operation {op!r}",
                hint="upgrade relive, or open the dataset with edits=False",
            )
        fields = decode_statics(stored)
        for name, types in _OPS[op].items():
            if name not in fields or not _is(fields[name], types):
                raise CorruptError(
                    f"{where} is not a valid edit: "
                    f"`{name}` of `{op}` is missing or has the wrong type"
                )
        if not _is(at_ns, (int,)):
            raise CorruptError(f"{where}: `at_ns` must be an integer, got {at_ns!r}")
        return Edit(op, stored["uid"], at_ns, {name: fields[name] for name in _OPS[op]})

    def _failed(self, error: OSError, verb: str) -> ReliveError:
        return error if isinstance(error, ReliveError) else storage_error(error, self.path, verb)


def _is(value: object, types: tuple[type, ...]) -> bool:
    return isinstance(value, types) and (object in types or not isinstance(value, bool))


def _end_of(line: bytes) -> "re.Match[bytes] | None":
    """Find the checksum at the end of a line."""
    return _END.search(line, max(0, len(line) - _END_BYTES))


def _is_whole(tail: bytes) -> bool:
    """Return whether a line without a line end begins with a whole object.

    A prefix of JSON never parses. Bytes after the object are damage, not an incomplete line.
    """
    text = tail.decode(errors="replace").lstrip()
    try:
        return isinstance(json.JSONDecoder().raw_decode(text)[0], dict)
    except (ValueError, RecursionError):
        return False


def _all_bytes(handle: int, start: int, stop: int) -> bytes:
    parts = []
    while start < stop and (part := os.pread(handle, stop - start, start)):
        parts.append(part)
        start += len(part)
    return b"".join(parts)
