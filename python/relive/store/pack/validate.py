"""What a look at every byte of a pack found."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from relive import _native
from relive.errors import InvalidError, InvalidTypeError
from relive.store.arrays import thread_count
from relive.store.pack.files import Options
from relive.store.paths import Location, expand
from relive.store.remote.file import RemoteFile, is_remote

__all__ = ["Problem", "Report", "validate", "validate_parts"]

Progress: TypeAlias = Callable[[int, int], object]
_LEVELS: Final = ("index", "sample", "full")


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong."""

    path: str
    entry: int | None
    """The entry it is in, if it is in one."""
    offset: int | None
    """Where in the file, if that can be said."""
    kind: str
    """The kind of error that reading it would give."""
    message: str


@dataclass(frozen=True, slots=True)
class Report:
    """What was checked, and what is wrong."""

    level: str
    entries: int
    """How many entries were read."""
    problems: tuple[Problem, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


def validate(
    uri: Location,
    level: str = "sample",
    *,
    threads: int | None = None,
    progress: Progress | None = None,
    **remote: object,
) -> Report:
    """Check a pack, also one that cannot be opened; see `PackReader.validate`.

    `progress` is told how many entries were read, out of how many.
    """
    places = expand(uri)
    if remote and not any(map(is_remote, places)):
        raise InvalidTypeError(f"no option is named {', '.join(map(repr, remote))}")
    found = [RemoteFile.open(each, **remote) if is_remote(each) else each for each in places]
    return validate_parts(found, level, Options(threads=thread_count(threads)), progress)


def validate_parts(
    places: Sequence[str | RemoteFile],
    level: str,
    options: Options,
    progress: Progress | None = None,
) -> Report:
    """Check several packs, one after the other."""
    if level not in _LEVELS:
        raise InvalidError(f"level is one of {', '.join(_LEVELS)}, not {level!r}")
    checked = 0
    problems: list[Problem] = []
    for place in places:
        name = place if isinstance(place, str) else place.name
        limit = options.max_payload_bytes
        if isinstance(place, str):
            entries, found = _native.validate_pack(place, level, limit, options.threads, progress)
        else:
            entries, found = _native.validate_ranged(
                place.name, place.size, place.read_ranges, level, limit, progress
            )
        checked += entries
        problems += [Problem(name, *problem) for problem in found]
    return Report(level, checked, tuple(problems))
