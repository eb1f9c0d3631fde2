"""Write record stores that appear when they are complete, and continue interrupted ones."""

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from relive.bridge.fingerprint import FingerprintError
from relive.bridge.stream import Stream, read_ahead
from relive.errors import AlreadyExistsError, InvalidError, LockedError
from relive.model.report import Progress
from relive.model.schema import Field
from relive.store.atomic import fsync_directory, replace_folder, storage_error
from relive.store.locks import FileLock
from relive.store.records import RecordStore

_SOURCE: Final = "source.json"
_STORE: Final = "store"
_META: Final = "meta.json"
_LOCK: Final = "LOCK"
_UNKNOWN: Final = "unknown"


def unfinished_path(path: str | os.PathLike[str]) -> Path:
    """Return the folder in which an unfinished conversion to `path` is stored."""
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
    """Write a stream as a record store; return its rows, and how many were written before.

    The store gets its name when it is complete and synced. An interrupted call leaves its rows
    in `unfinished_path(target)`, and the same call continues after them. A source without a
    fingerprint cannot be recognized, so nothing is kept of it.
    """
    target = target.resolve() if target.is_symlink() else target
    _check_target(target, overwrite=overwrite)
    fingerprint = _fingerprint(stream, fields)
    folder = unfinished_path(target)
    with _claimed(folder, fingerprint, overwrite=overwrite):
        rows = resumed = -1
        try:
            with _opened(folder / _STORE, fields, workers) as store:
                rows = resumed = len(store)
                with contextlib.closing(read_ahead(stream, progress, resumed)) as batches:
                    for batch in batches:
                        if batch.rows:
                            store.extend(batch.columns)
                            store.flush()
                        rows = len(store)
        except BaseException:
            if rows == 0 or _UNKNOWN in fingerprint or not (folder / _STORE / _META).exists():
                shutil.rmtree(folder, ignore_errors=True)
            raise
        with _locked(target):
            _publish(folder, target)
            shutil.rmtree(folder)
    return rows, resumed


def _fingerprint(stream: Stream, fields: Mapping[str, Field]) -> dict[str, Any]:
    try:
        found = stream.fingerprint
    except FingerprintError as error:
        found = {_UNKNOWN: str(error)}
    return {**found, "stored": {name: repr(field) for name, field in fields.items()}}


@contextlib.contextmanager
def _opened(path: Path, fields: Mapping[str, Field], workers: int) -> Iterator[RecordStore]:
    if (path / _META).exists():
        store = RecordStore.open(path, "a", workers=workers)
    else:
        shutil.rmtree(path, ignore_errors=True)  # left by a process that was killed creating it
        store = RecordStore.create(path, dict(fields), workers=workers)
    with store:
        if not len(store):
            store.flush()  # an error from here on keeps the store
        yield store


def _check_target(target: Path, *, overwrite: bool) -> None:
    if not target.name:
        raise InvalidError(f"`{target}` is not a valid path for a record store")
    if not os.path.lexists(target) or (target.is_dir() and not any(target.iterdir())):
        return
    if not overwrite:
        raise AlreadyExistsError(
            f"`{target}` already exists", hint="pass overwrite=True to replace it"
        )
    if not (target / _META).is_file():
        raise InvalidError(
            f"cannot replace `{target}`: it is not a record store",
            hint="remove it first, or convert to another path",
        )
    with _locked(target):  # fail before the conversion rather than after it
        pass


@contextlib.contextmanager
def _locked(target: Path) -> Iterator[None]:
    """Lock the store that is to be replaced, if there is one."""
    if not (target / _META).is_file():
        yield
        return
    with _lock(
        target / _LOCK,
        f"cannot replace `{target}`: another writer has it open",
        "close that writer first",
    ):
        yield


@contextlib.contextmanager
def _lock(path: Path, message: str, hint: str) -> Iterator[None]:
    try:
        lock = FileLock.take(path, create=True)
    except LockedError:
        raise LockedError(message, hint=hint) from None
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def _claimed(folder: Path, fingerprint: Mapping[str, Any], *, overwrite: bool) -> Iterator[None]:
    """Lock the folder, which is empty or has the first rows of this conversion."""
    text = json.dumps(fingerprint, sort_keys=True, default=str)
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise storage_error(error, folder, "write") from error
    source = folder / _SOURCE
    with _lock(
        source,
        f"another process is converting to `{folder.with_suffix('')}`",
        "wait until it has finished",
    ):
        stored = source.read_text(encoding="utf-8")
        before = _parsed(stored)
        if stored != text or _UNKNOWN in before:
            usable = stored and _UNKNOWN not in before and (folder / _STORE / _META).exists()
            if usable and not overwrite:
                raise _other_conversion(folder, before, json.loads(text))
            shutil.rmtree(folder / _STORE, ignore_errors=True)
            try:
                _rewrite(source, text)
            except OSError as error:
                raise storage_error(error, source, "write") from error
        yield


def _rewrite(source: Path, text: str) -> None:
    """Write to the same file, which is locked."""
    with source.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _parsed(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _other_conversion(
    folder: Path, before: Mapping[str, Any], now: Mapping[str, Any]
) -> InvalidError:
    differ = [key for key in {**before, **now} if before.get(key) != now.get(key)]
    return InvalidError(
        f"`{folder}` has an unfinished conversion of another source or with different options: "
        f"{', '.join(differ)} differ",
        hint="pass overwrite=True to discard it, or the original source and options to finish it",
    )


def _publish(folder: Path, target: Path) -> None:
    """Rename a finished store to its final name, in one step if the system supports that."""
    store, source = folder / _STORE, folder / _SOURCE
    try:
        if os.path.lexists(target) and any(target.iterdir()):
            text = source.read_text(encoding="utf-8")
            # The old store in the folder must never be taken for the first rows of the new one.
            _rewrite(source, "")
            try:
                replace_folder(store, target)
            except OSError:
                _rewrite(source, text)
                raise
        else:
            store.rename(target)
        fsync_directory(target.absolute().parent)
    except OSError as error:
        raise storage_error(error, target, "write") from error
