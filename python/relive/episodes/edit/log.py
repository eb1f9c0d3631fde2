"""The edits of a dataset as they are stored: lines of JSON, appended one by one."""

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from relive.episodes.layout import EDITS
from relive.errors import CorruptError, ReliveError, UnsupportedError
from relive.model.episode import decode_statics, encode_statics
from relive.store.atomic import fsync_directory, storage_error

__all__ = ["Edit", "EditLog"]

_TIME: Final = (int, type(None))
# What each kind of edit says, beside the uid and the time at which it was done.
_OPS: Final[Mapping[str, Mapping[str, tuple[type, ...]]]] = {
    "set_static": {"name": (str,), "value": (object,)},
    "drop": {},
    "undrop": {},
    "trim": {"start": _TIME, "stop": _TIME},
    "cut": {"ts": (int,)},
}


@dataclass(frozen=True, slots=True)
class Edit:
    """One edit of one episode, as it was asked for."""

    op: str
    """`set_static`, `drop`, `undrop`, `trim` or `cut`."""
    uid: str
    at_ns: int
    """When it was done; the order of edits is that of their lines."""
    details: Mapping[str, Any]
    """`name` and `value`, `start` and `stop`, or `ts`."""

    def line(self) -> bytes:
        """Give the line that is stored, with its end."""
        stored = {"op": self.op, "uid": self.uid, "at_ns": self.at_ns}
        stored |= encode_statics(dict(self.details))
        return json.dumps(stored, ensure_ascii=False, allow_nan=False).encode() + b"\n"


class EditLog:
    """Reads and appends edits; what was read is not read again.

    A last line that was cut off while it was written is not an edit, and the next append takes
    it away. Any other line that is no edit is a `CorruptError` that names it; an edit that this
    version does not know is an `UnsupportedError`.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.path = Path(root, EDITS)
        self._forget()

    def read(self) -> list[Edit]:
        """Give all edits, in the order in which they were made."""
        try:
            with self.path.open("rb") as file:
                try:
                    return self._read(file.fileno())
                except CorruptError:
                    # Somebody may just be taking a cut-off line away.
                    _locked(file.fileno(), fcntl.LOCK_SH)
                    return self._read(file.fileno())
        except FileNotFoundError:
            self._forget()
            return []
        except OSError as error:
            raise self._failed(error, "read") from error

    @contextlib.contextmanager
    def appending(self) -> Iterator["Appender"]:
        """Keep others from appending, and give what appends."""
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            made = not self.path.exists()
            handle = os.open(self.path, flags, 0o666)
        except OSError as error:
            raise self._failed(error, "written") from error
        try:
            _locked(handle, fcntl.LOCK_EX)
            if made:
                fsync_directory(self.path.parent)
            yield Appender(self, handle, self._read(handle))
        except OSError as error:
            raise self._failed(error, "written") from error
        finally:
            os.close(handle)

    def _forget(self) -> None:
        self._edits: list[Edit] = []
        self._lines = 0
        self._read_bytes = 0
        self._file: tuple[int, int] | None = None

    def _read(self, handle: int) -> list[Edit]:
        found = os.fstat(handle)
        file = (found.st_dev, found.st_ino)
        if file != self._file or found.st_size < self._read_bytes:
            self._forget()  # another file than the one that was read
        data = _all_bytes(handle, self._read_bytes, found.st_size)
        *lines, tail = data.split(b"\n")
        numbered = enumerate(lines, self._lines + 1)
        edits = [*self._edits, *(self._edit(line, n) for n, line in numbered if line.strip())]
        self._file = file
        self._edits = edits
        self._lines += len(lines)
        self._read_bytes += len(data) - len(tail)
        return [*edits, self._edit(tail, self._lines + 1)] if _is_whole(tail) else edits

    def append(self, handle: int, edit: Edit) -> None:
        """Write a line behind the whole ones, and have it on the disk."""
        size = os.fstat(handle).st_size
        tail = _all_bytes(handle, self._read_bytes, size)
        line = edit.line()
        if _is_whole(tail):  # as an editor leaves it that ends no last line
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
            raise CorruptError(f"{where} is no JSON: {error}") from error
        if not isinstance(stored, dict) or not isinstance(stored.get("uid"), str):
            raise CorruptError(f"{where} does not say which episode it is about")
        op, at_ns = stored.get("op"), stored.get("at_ns", 0)
        if not isinstance(op, str) or op not in _OPS:
            raise UnsupportedError(
                f"{where} asks for {op!r}, which this version of relive does not know",
                hint="upgrade relive, or open the dataset with edits=False",
            )
        said = decode_statics(stored)
        for name, types in _OPS[op].items():
            if name not in said or not _is(said[name], types):
                raise CorruptError(f"{where} asks to {op}, and its `{name}` says not what")
        if not _is(at_ns, (int,)):
            raise CorruptError(f"{where} has a time that is no integer")
        return Edit(op, stored["uid"], at_ns, {name: said[name] for name in _OPS[op]})

    def _failed(self, error: OSError, verb: str) -> ReliveError:
        return error if isinstance(error, ReliveError) else storage_error(error, self.path, verb)


class Appender:
    """The log while nobody else appends to it."""

    def __init__(self, log: EditLog, handle: int, edits: list[Edit]) -> None:
        self._log = log
        self._handle = handle
        self.edits = edits
        """All edits that were made before."""

    def append(self, edit: Edit) -> None:
        """Store an edit; it is on the disk when this returns."""
        self._log.append(self._handle, edit)


def _is(value: object, types: tuple[type, ...]) -> bool:
    return isinstance(value, types) and (object in types or not isinstance(value, bool))


def _is_whole(tail: bytes) -> bool:
    """Whether a line without an end is a whole one: no part of a JSON object is an object."""
    try:
        return isinstance(json.loads(tail), dict)
    except (ValueError, RecursionError):
        return False


def _all_bytes(handle: int, start: int, stop: int) -> bytes:
    parts = []
    while start < stop and (part := os.pread(handle, stop - start, start)):
        parts.append(part)
        start += len(part)
    return b"".join(parts)


def _locked(handle: int, how: int) -> None:
    fcntl.flock(handle, how)
