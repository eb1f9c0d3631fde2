"""Streams into record stores: out of sight until they are whole, and resumed where they ended."""

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Final, TypeAlias

from relive.bridge.ahead import ahead
from relive.bridge.fingerprint import UnknownIdentity
from relive.bridge.stream import Stream
from relive.errors import AlreadyExistsError, InvalidError, LockedError
from relive.model.schema import Field
from relive.store.atomic import storage_error
from relive.store.records import RecordStore

__all__ = ["Progress", "unfinished_place", "write_store"]

Progress: TypeAlias = Callable[[int, int | None], object]
"""Is told how many rows are done, and how many there are, where that is known."""

_SOURCE: Final = "source.json"
_STORE: Final = "store"
_META: Final = "meta.json"
_LOCK: Final = "LOCK"
_UNKNOWN: Final = "unknown"
_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2


def unfinished_place(path: str | os.PathLike[str]) -> Path:
    """Give the folder that a conversion to `path` works in until it is finished."""
    target = Path(path)
    return target.with_name(f"{target.name}.converting")


def write_store(
    stream: Stream,
    target: Path,
    fields: Mapping[str, Field],
    *,
    workers: int,
    overwrite: bool,
    progress: Progress | None,
) -> tuple[int, int]:
    """Write a stream as a record store; give its rows, and how many of them were there already.

    The store has its name when it is whole and synced. What an interrupted call wrote is in
    `unfinished_place(target)`; the same call goes on behind it. Where nothing shows whether a
    call is the same, it leaves nothing and goes on with nothing.
    """
    target = target.resolve() if target.is_symlink() else target
    _check_target(target, overwrite=overwrite)
    identity = _identity(stream, fields)
    place = unfinished_place(target)
    with _claimed(place, identity, overwrite=overwrite) as begun:
        rows = resumed = -1
        try:
            with _store(place / _STORE, fields, workers) as store:
                rows = resumed = len(store)
                for rows in _fill(store, stream):
                    if progress is not None:
                        progress(rows, stream.total)
        except BaseException:
            if rows == 0 or _UNKNOWN in identity or not (place / _STORE / _META).exists():
                shutil.rmtree(place, ignore_errors=True)
            raise
        with _locked(target):
            _publish(place / _STORE, target, begun)
            shutil.rmtree(place)
    return rows, resumed


def _identity(stream: Stream, fields: Mapping[str, Field]) -> dict[str, Any]:
    try:
        told = stream.identity
    except UnknownIdentity as reason:
        told = {_UNKNOWN: str(reason)}
    return {**told, "stored": {name: repr(field) for name, field in fields.items()}}


def _fill(store: RecordStore, stream: Stream) -> Iterator[int]:
    """Write what the store does not have yet; give its length after every chunk."""
    with contextlib.closing(ahead(stream.chunks(len(store)))) as chunks:
        for chunk in chunks:
            if chunk.rows:
                store.extend(chunk.columns)
                store.flush()
            yield len(store)


@contextlib.contextmanager
def _store(path: Path, fields: Mapping[str, Field], workers: int) -> Iterator[RecordStore]:
    if (path / _META).exists():
        store = RecordStore.open(path, "a", writers=workers)
    else:
        shutil.rmtree(path, ignore_errors=True)  # whoever made it was stopped at once
        store = RecordStore.create(path, dict(fields), writers=workers)
    with store:
        if not len(store):
            store.flush()  # from here on an error keeps it
        yield store


def _check_target(target: Path, *, overwrite: bool) -> None:
    if not target.name:
        raise InvalidError(f"`{target}` is no name for a record store")
    if not os.path.lexists(target) or (target.is_dir() and not any(target.iterdir())):
        return
    if not overwrite:
        raise AlreadyExistsError(f"`{target}` exists", hint="pass overwrite=True to replace it")
    if not (target / _META).is_file():
        raise InvalidError(
            f"`{target}` is no record store, and is not replaced by one",
            hint="remove it yourself, or convert to another path",
        )
    with _locked(target):  # rather now than when all is converted
        pass


@contextlib.contextmanager
def _locked(target: Path) -> Iterator[None]:
    """Have a store that is to be replaced to ourselves; nothing where there is none."""
    if not (target / _META).is_file():
        yield
        return
    try:
        file = (target / _LOCK).open("a+")
    except OSError as error:
        raise storage_error(error, target / _LOCK, "opened") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LockedError(
                f"`{target}` is being written, and is not replaced", hint="close it there first"
            ) from None
        yield


@contextlib.contextmanager
def _claimed(place: Path, identity: Mapping[str, Any], *, overwrite: bool) -> Iterator[IO[str]]:
    """Have the folder to ourselves, empty or with the beginning of this very conversion.

    Gives the file that says which one that is.
    """
    text = json.dumps(identity, sort_keys=True, default=str)
    try:
        place.mkdir(exist_ok=True)
        file = (place / _SOURCE).open("a+")
    except OSError as error:
        raise storage_error(error, place, "written") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LockedError(f"another process converts to `{place}`") from None
        file.seek(0)
        begun = file.read()
        before = _begun(begun)
        if begun != text or _UNKNOWN in before:
            useful = begun and _UNKNOWN not in before and (place / _STORE / _META).exists()
            if useful and not overwrite:
                raise _other(place, before, identity)
            shutil.rmtree(place / _STORE, ignore_errors=True)
            _rewrite(file, text)
        yield file


def _rewrite(file: IO[str], text: str) -> None:
    file.truncate(0)
    file.write(text)
    file.flush()
    os.fsync(file.fileno())


def _begun(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _other(place: Path, before: Mapping[str, Any], identity: Mapping[str, Any]) -> InvalidError:
    plain = json.loads(json.dumps(identity, default=str))
    differ = [key for key in {**before, **plain} if before.get(key) != plain.get(key)]
    return InvalidError(
        f"`{place}` holds the beginning of another conversion: {', '.join(differ)} differ",
        hint="overwrite=True begins again; or finish that one with the source and the options "
        "that it had",
    )


def _publish(store: Path, target: Path, begun: IO[str]) -> None:
    """Give a finished store its name, in one step where the system can do that."""
    try:
        if os.path.lexists(target) and any(target.iterdir()):
            begun.seek(0)
            text = begun.read()
            # What changes places with the store must never be taken for the beginning of it.
            _rewrite(begun, "")
            try:
                if not _exchange(store, target):
                    _replace(store, target)
            except OSError:
                _rewrite(begun, text)
                raise
        else:
            store.rename(target)
        handle = os.open(target.absolute().parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        raise storage_error(error, target, "written") from error


def _exchange(one: Path, other: Path) -> bool:
    """Let two folders change names at once; whether that is possible here."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    names = os.fsencode(one), os.fsencode(other)
    if rename(_AT_FDCWD, names[0], _AT_FDCWD, names[1], ctypes.c_uint(_RENAME_EXCHANGE)) == 0:
        return True
    number = ctypes.get_errno()
    if number in {errno.ENOSYS, errno.EINVAL, errno.ENOTSUP}:
        return False
    raise OSError(number, os.strerror(number), os.fspath(other))


def _replace(store: Path, target: Path) -> None:
    """Let a store take the place of another, which comes back if that fails."""
    old = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    target.rename(old)
    try:
        store.rename(target)
    except BaseException:
        old.rename(target)
        raise
    shutil.rmtree(old)
