"""Files and folders written whole: a temporary name, fsync, rename. Small files read whole."""

import contextlib
import ctypes
import errno
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from io import BufferedReader
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
from relive.store.paths import absolute_path

_READ_BYTES: Final = 1 << 16
_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2
_KINDS: Final = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFLNK: "a symbolic link",
}
_CLASSES: Final[dict[int, type[ReliveError]]] = {
    errno.ENOENT: NotFoundError,
    errno.ENOTDIR: NotFoundError,
    errno.EEXIST: AlreadyExistsError,
    errno.EACCES: AccessDeniedError,
    errno.EPERM: AccessDeniedError,
    errno.EROFS: AccessDeniedError,
}


@contextlib.contextmanager
def whole_file(
    path: str | os.PathLike[str], *, overwrite: bool = False, sync_name: bool = True
) -> Iterator[BinaryIO]:
    """Open a file for writing that gets its name when the block ends without an error.

    Until then the path is unchanged. The content is on the disk when the name appears; after an
    error nothing remains. An existing file is an `AlreadyExistsError` unless `overwrite`. Without
    `sync_name` the caller syncs the directory afterwards.
    """
    target = Path(absolute_path(path, "a file"))
    if not target.name or target.is_dir():
        raise InvalidError(f"`{target}` is a directory, expected the path of a file")
    if target.exists() and not overwrite:
        raise already_exists(target)
    check_file(target)  # `/dev/null`, for example, must not be replaced
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if overwrite:
            temporary.replace(target)
        else:
            try:
                os.link(temporary, target)  # unlike a rename, fails when the target exists
            except FileExistsError:
                raise already_exists(target) from None
            temporary.unlink()
        if sync_name:
            fsync_directory(target.parent)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and not isinstance(error, ReliveError):
            raise storage_error(error, target, "write") from error
        raise


@contextlib.contextmanager
def whole_folder(
    path: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    may_replace: Callable[[Path], None] | None = None,
) -> Iterator[Path]:
    """Make a folder that gets its name when the block ends without an error.

    The block writes to the folder that it is given. Until it ends the path is unchanged, and the
    content is on the disk when the name appears; after an error nothing remains. A folder that
    exists and is not empty is an `AlreadyExistsError` unless `overwrite`; then it is replaced in
    one step, if the system supports that.

    Args:
        path: The folder. Missing folders above it are made.
        overwrite: Whether to replace an existing folder.
        may_replace: Raises an error if an existing folder must not be replaced.
    """
    target = Path(absolute_path(path, "a folder"))
    target = target.resolve() if target.is_symlink() else target
    if not target.name:
        raise InvalidError(f"`{target}` is not a valid path for a folder")
    is_there = os.path.lexists(target) and not (target.is_dir() and not any(target.iterdir()))
    if is_there:
        if not overwrite:
            raise already_exists(target)
        if not target.is_dir():
            raise InvalidError(f"`{target}` is a file, expected the path of a folder")
        if may_replace is not None:
            may_replace(target)
    make_directory(target.absolute().parent)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        temporary.mkdir()
        yield temporary
        _fsync_tree(temporary)
        if is_there:
            replace_folder(temporary, target)
        else:
            temporary.rename(target)
        fsync_directory(target.absolute().parent)
    except OSError as error:
        if isinstance(error, ReliveError):
            raise
        if error.errno in {errno.ENOTEMPTY, errno.EEXIST}:  # another process was faster
            raise already_exists(target) from None
        raise storage_error(error, target, "write") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)  # what failed, or what was replaced


def replace_folder(folder: Path, target: Path) -> None:
    """Give a folder the name of another one, in one step if the system supports that.

    The other one has then the name of the first, or is removed.
    """
    if not _exchange(folder, target):
        _replace(folder, target)


def open_file(path: str | os.PathLike[str], flags: int = os.O_RDONLY) -> int:
    """Open a file as `os.open` does; what is not a file is an `InvalidError`.

    To open a named pipe would wait for its other end. A directory is an `OSError`. Links are
    followed unless `flags` has `O_NOFOLLOW`; then they are not files either.
    """
    try:
        handle = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY, 0o666)
    except OSError:  # also of a socket, or of a link that is not followed
        check_file(path, follow=not flags & os.O_NOFOLLOW)
        raise
    try:
        _check_mode(path, os.fstat(handle).st_mode)
    except BaseException:
        os.close(handle)
        raise
    return handle


def open_reader(path: str | os.PathLike[str]) -> BufferedReader:
    """Open a file for reading as `open` does; what is not a file is an `InvalidError`."""
    return open(path, "rb", opener=open_file)


def check_file(path: str | os.PathLike[str], *, follow: bool = True) -> None:
    """Raise an `InvalidError` if something is at a path that is neither a file nor a directory.

    For files that another library opens.
    """
    try:
        mode = os.stat(path, follow_symlinks=follow).st_mode  # noqa: PTH116 - faster than a Path
    except OSError:
        return  # opening it raises the error
    if not stat.S_ISDIR(mode):
        _check_mode(path, mode)


def _check_mode(path: str | os.PathLike[str], mode: int) -> None:
    if stat.S_ISREG(mode):
        return
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    what = _KINDS.get(stat.S_IFMT(mode), "a device")
    raise InvalidError(f"`{os.fspath(path)}` is {what}, expected a file")


def read_file(path: str | os.PathLike[str]) -> bytes | None:
    """Return the content of a small file; None if it does not exist.

    It takes half the time of `Path.read_bytes`, which counts where thousands of files are read.
    """
    try:
        handle = open_file(path)
        try:
            parts = []
            while part := os.read(handle, _READ_BYTES):
                parts.append(part)
        finally:
            os.close(handle)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise storage_error(error, path, "read") from error
    return b"".join(parts)


def replace_file(source: Path, target: Path) -> None:
    """Rename a file over `target`, which may exist, and put the new name on the disk."""
    try:
        source.replace(target)
        fsync_directory(target.parent)
    except OSError as error:
        raise storage_error(error, target, "write") from error


def fsync_directory(directory: str | os.PathLike[str]) -> None:
    """Put the file names in a directory on the disk."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _fsync_tree(folder: Path) -> None:
    for path in sorted(folder.rglob("*")):
        if path.is_dir():
            fsync_directory(path)
        else:
            with path.open("rb") as file:
                os.fsync(file.fileno())
    fsync_directory(folder)


def _exchange(one: Path, other: Path) -> bool:
    """Exchange the names of two folders atomically; return False if that is not supported."""
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


def _replace(folder: Path, target: Path) -> None:
    """Rename a folder over another, which gets its name back if that fails."""
    old = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    target.rename(old)
    try:
        folder.rename(target)
    except BaseException:
        old.rename(target)
        raise
    shutil.rmtree(old)


def make_directory(path: Path) -> None:
    """Make a directory and its parents, unless they exist; their names survive a power cut."""
    missing = []
    while not path.is_dir():
        missing.append(path)
        path = path.parent
    for each in reversed(missing):
        try:
            each.mkdir(exist_ok=True)
            fsync_directory(each.parent)
        except OSError as error:
            raise storage_error(error, each, "create") from error


def storage_error(error: OSError, path: str | os.PathLike[str], verb: str) -> ReliveError:
    """Return the relive error for an `OSError`: "cannot {verb} `path`: …"."""
    cls = _CLASSES.get(error.errno or 0, StorageError)
    return cls(f"cannot {verb} `{os.fspath(path)}`: {error.strerror or error}")


def already_exists(target: Path) -> AlreadyExistsError:
    """Return the error for a target that exists and may be replaced with `overwrite=True`."""
    return AlreadyExistsError(
        f"`{target}` already exists", hint="pass overwrite=True to replace it"
    )
