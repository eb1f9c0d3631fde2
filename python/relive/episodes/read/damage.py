"""Finds episodes that cannot be read, so that they do not block the others."""

import contextlib
import errno
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from relive.episodes.layout import is_numbered
from relive.errors import (
    AccessDeniedError,
    CorruptError,
    NotFoundError,
    ReliveError,
    StorageError,
)
from relive.model.dataset import table_row
from relive.model.episode import Episode

_MAX_THREADS: Final = 8
_HINT: Final = (
    'open the dataset with errors="skip" (`--errors skip`) to leave the episode out, or run '
    "`relive recover --set-aside` to move it out of the dataset"
)
_DAMAGE: Final = (AccessDeniedError, CorruptError, NotFoundError, StorageError)
# Errors of this process, not of a file: every other episode would be damaged too.
_PROCESS_ERRORS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


@contextlib.contextmanager
def hinting_at_skip(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Add to errors about an episode in a root how to read the other episodes."""
    try:
        yield
    except _DAMAGE as error:
        if error.hint is None and is_numbered(Path(folder)):
            error.hint = _HINT
        raise


def find_damage(
    episodes: Sequence[Callable[[], Iterable[Episode]]],
) -> list[ReliveError | None]:
    """Return for each function the error of the episodes that it returns, None if there is none.

    These are the errors of computing their rows of `table()`: of reading their JSON files and the
    footers of their signals. A `MissingExtraError` is not damage.
    """
    with ThreadPoolExecutor(min(_MAX_THREADS, 2 * (os.cpu_count() or 1))) as pool:
        return list(pool.map(_damage, episodes))


def _damage(open_episodes: Callable[[], Iterable[Episode]]) -> ReliveError | None:
    try:
        for episode in open_episodes():
            table_row(episode)
    except ReliveError as error:
        cause = error.__cause__
        if isinstance(cause, OSError) and cause.errno in _PROCESS_ERRORS:
            raise
        return error
    return None
