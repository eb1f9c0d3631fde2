"""The files that a pack reader is made of, and how to open them again elsewhere."""

import glob
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from relive import _native
from relive.errors import InvalidError, InvalidTypeError, NotFoundError
from relive.store.remote import RemoteFile, is_remote, local_path

__all__ = ["Location", "Options", "Part", "open_parts"]

Location: TypeAlias = str | os.PathLike[str]
"""A path, a glob pattern, or the URI of a pack."""

_MAGIC: Final = frozenset("*?[")


@dataclass(frozen=True, slots=True)
class Options:
    """How packs are opened."""

    verify: str = "first"
    io: str = "mmap"
    max_payload_bytes: int = 1 << 30
    threads: int = 1

    def __post_init__(self) -> None:
        """Refuse what no pack can be opened with."""
        if self.verify not in {"first", "always", "never"}:
            raise InvalidError(f"verify is 'first', 'always' or 'never', not {self.verify!r}")
        if self.io not in {"mmap", "pread"}:
            raise InvalidError(f"io is 'mmap' or 'pread', not {self.io!r}")
        if self.max_payload_bytes < 1:
            raise InvalidError(f"max_payload_bytes must be positive, not {self.max_payload_bytes}")


class Part:
    """One packfile. Pickles as where it is and how it was opened."""

    __slots__ = ("_kinds", "native", "options", "where")

    def __init__(self, where: str | RemoteFile, options: Options) -> None:
        self.where = where
        self.options = options
        self._kinds: dict[int, str] | None = None
        if isinstance(where, str):
            self.native = _native.Pack.open(
                where, options.verify, options.io == "mmap", options.max_payload_bytes
            )
        else:
            # Every fetch brings bytes that nobody has seen before.
            verify = "never" if options.verify == "never" else "always"
            self.native = _native.Pack.open_ranged(
                where.name, where.size, where.read_ranges, verify, options.max_payload_bytes
            )

    @property
    def local(self) -> bool:
        """Whether the pack is a file of this machine."""
        return isinstance(self.where, str)

    @property
    def name(self) -> str:
        """The path or the URI."""
        return self.where if isinstance(self.where, str) else self.where.name

    def kind_name(self, number: int) -> str:
        """Give the name of a user's kind, or its number where the pack does not name it."""
        if self._kinds is None:
            self._kinds = self.native.kind_names()
        return self._kinds.get(number, f"kind-{number}")

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the place, not what is there."""
        return Part, (self.where, self.options)


def open_parts(
    where: Location | Iterable[Location], options: Options, remote: Mapping[str, object]
) -> tuple[Part, ...]:
    """Open one pack, those that a pattern matches, or a list of them."""
    if isinstance(where, str | os.PathLike):
        places: Sequence[str | RemoteFile] = _places(where, remote)
    elif isinstance(where, Iterable):
        places = [place for each in where for place in _places(each, remote)]
        if not places:
            raise InvalidError("the list of packs is empty")
    else:
        raise InvalidTypeError(f"a pack is opened by its path or URI, not {where!r}")
    parts = tuple(Part(place, options) for place in places)
    _check_kinds(parts)
    return parts


def _places(where: Location, remote: Mapping[str, object]) -> list[str | RemoteFile]:
    if not isinstance(where, str | os.PathLike):
        raise InvalidTypeError(f"a pack is opened by its path or URI, not {where!r}")
    text = os.fspath(where)
    if is_remote(text):
        return [RemoteFile.open(text, **remote)]
    path = os.path.abspath(local_path(text))  # noqa: PTH100 - a pattern is not a path
    if os.path.exists(path) or _MAGIC.isdisjoint(path):  # noqa: PTH110
        return [path]
    found = sorted(glob.glob(path, recursive=True))  # noqa: PTH207
    if not found:
        raise NotFoundError(f"no file matches `{text}`")
    return list(found)


def _check_kinds(parts: Sequence[Part]) -> None:
    """Refuse packs in which one number stands for different kinds."""
    if len(parts) == 1:
        return
    known: dict[int, tuple[str, str]] = {}
    for part in parts:
        for number, name in part.native.kind_names().items():
            other, where = known.setdefault(number, (name, part.name))
            if other != name:
                raise InvalidError(
                    f"kind {number} is {other!r} in `{where}` and {name!r} in `{part.name}`",
                    hint="`relive pack merge` writes one pack in which kinds agree",
                )
