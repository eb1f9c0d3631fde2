"""The files that a pack reader is made of, and how to open them again elsewhere."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from relive import _native
from relive._arguments import as_int
from relive.errors import InvalidError, InvalidTypeError
from relive.store.paths import Location, expand
from relive.store.remote.file import RemoteFile, is_remote

__all__ = ["Location", "Options", "Part", "open_parts"]

_MOST_BYTES: Final = 1 << 62
_SMALL_BYTES: Final = 4096


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
        if as_int("max_payload_bytes", self.max_payload_bytes, at_least=1) > _MOST_BYTES:
            raise InvalidError(f"max_payload_bytes must be at most {_MOST_BYTES}")


class Part:
    """One packfile. Pickles as where it is and how it was opened."""

    __slots__ = ("_kinds", "_small", "native", "options", "where")

    def __init__(self, where: str | RemoteFile, options: Options) -> None:
        self.where = where
        self.options = options
        self._kinds: dict[int, str] | None = None
        self._small: bool | None = None
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

    @property
    def small(self) -> bool:
        """Whether payloads are so small, and none a run, that many may be held at a time."""
        if self._small is None:
            told = self.native.layout()
            bytes_each = told["payload_bytes"] / max(1, told["count"])
            self._small = (
                bytes_each <= _SMALL_BYTES and not {"v1", "v2"} & told["kind_counts"].keys()
            )
        return self._small

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
    places = [place for each in _listed(where) for place in expand(each)]
    if not places:
        raise InvalidError("the list of packs is empty")
    if remote and not any(map(is_remote, places)):
        raise InvalidTypeError(
            f"no option is named {', '.join(map(repr, remote))}; others are for URIs alone"
        )
    parts = tuple(
        Part(RemoteFile.open(place, **remote) if is_remote(place) else _absolute(place), options)
        for place in places
    )
    _check_kinds(parts)
    return parts


def _absolute(path: str) -> str:
    """Give a path that a process with another working directory can open."""
    return os.path.abspath(path)  # noqa: PTH100 - resolves no links


def _listed(where: Location | Iterable[Location]) -> Iterable[Location]:
    if isinstance(where, str | bytes | os.PathLike) or not isinstance(where, Iterable):
        return [where]  # told by `expand` when it is no place
    return where


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
