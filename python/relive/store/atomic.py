"""Files that appear whole or not at all."""

import contextlib
import errno
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from relive.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    InvalidError,
    NotFoundError,
    ReliveError,
    StorageError,
)

__all__ = ["fsync_directory", "storage_error", "whole_file"]

_CLASSES: Final[dict[int, type[ReliveError]]] = {
    errno.ENOENT: NotFoundError,
    errno.ENOTDIR: NotFoundError,
    errno.EEXIST: AlreadyExistsError,
    errno.EACCES: AccessDeniedError,
    errno.EPERM: AccessDeniedError,
    errno.EROFS: AccessDeniedError,
}


@contextlib.contextmanager
def whole_file(path: str | os.PathLike[str], *, overwrite: bool = False) -> Iterator[BinaryIO]:
    """Give a file to write to that gets its name when the block ends without an error.

    Until then the name is as it was. What was written is on the disk when the name appears;
    after an error nothing is left. An existing file is an `AlreadyExistsError` unless
    `overwrite`.
    """
    target = Path(path)
    if not target.name or target.is_dir():
        raise InvalidError(f"`{target}` is a folder, and a file was meant")
    if target.exists() and not overwrite:
        raise _exists(target)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        _rename(temporary, target, overwrite=overwrite)
        fsync_directory(target.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, ReliveError):
            raise
        raise storage_error(error, target, "written") from error
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def storage_error(error: OSError, path: str | os.PathLike[str], verb: str) -> ReliveError:
    """Say what the operating system said about a path that could not be read or written."""
    cls = _CLASSES.get(error.errno or 0, StorageError)
    return cls(f"`{os.fspath(path)}` cannot be {verb}: {error.strerror or error}")


def _rename(source: Path, target: Path, *, overwrite: bool) -> None:
    if overwrite:
        source.replace(target)
        return
    try:
        os.link(source, target)  # unlike a rename, fails where something is
    except FileExistsError:
        raise _exists(target) from None
    source.unlink()


def fsync_directory(directory: str | os.PathLike[str]) -> None:
    """Put the names in a directory on the disk."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _exists(target: Path) -> AlreadyExistsError:
    return AlreadyExistsError(f"`{target}` exists", hint="pass overwrite=True to replace it")
