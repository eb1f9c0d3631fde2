"""The open pack files that a reader is made of; each pickles as its path or URI."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from relive import _native
from relive._arguments import as_int, check_choice
from relive.errors import CorruptError, InvalidError, InvalidTypeError
from relive.model.source import IndexArray
from relive.store.pack.iterate import DecodeFailure
from relive.store.pack.kinds import decode_payload
from relive.store.paths import Location, expand, is_remote
from relive.store.remote.file import RemoteFile
from relive.store.runs import Run

_MAX_BYTES: Final = 1 << 62
_SMALL_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class OpenOptions:
    """How packs are opened."""

    verify: str = "first"
    io: str = "mmap"
    max_payload_bytes: int = 1 << 30
    workers: int = 1

    def __post_init__(self) -> None:
        """Check the values."""
        check_choice("verify", self.verify, ("first", "always", "never"))
        check_choice("io", self.io, ("mmap", "pread"))
        as_int("max_payload_bytes", self.max_payload_bytes, at_least=1, at_most=_MAX_BYTES)


class PackFile:
    """One pack that is open for reading. Pickles as its location and how it was opened."""

    __slots__ = ("_kinds", "_small", "location", "native", "options")

    def __init__(self, location: str | RemoteFile, options: OpenOptions) -> None:
        self.location = location
        self.options = options
        self._kinds: dict[int, str] | None = None
        self._small: bool | None = None
        if isinstance(location, str):
            self.native = _native.Pack.open(
                location, options.verify, options.io == "mmap", options.max_payload_bytes
            )
        else:
            # Each request returns bytes that were not verified before.
            verify = "never" if options.verify == "never" else "always"
            self.native = _native.Pack.open_ranged(
                location.name,
                location.size,
                location.read_ranges,
                verify,
                options.max_payload_bytes,
            )

    @property
    def is_local(self) -> bool:
        """Whether the pack is a local file."""
        return isinstance(self.location, str)

    @property
    def uri(self) -> str:
        """The path, or the URI without its user, password and query."""
        return self.location if isinstance(self.location, str) else self.location.name

    @property
    def is_small(self) -> bool:
        """Whether payloads are small on average and none is a run, so that many fit in memory."""
        if self._small is None:
            layout = self.native.layout()
            mean_bytes = layout["payload_bytes"] / max(1, layout["count"])
            has_runs = bool({"v1", "v2"} & layout["kind_counts"].keys())
            self._small = mean_bytes <= _SMALL_BYTES and not has_runs
        return self._small

    def decode(self, positions: IndexArray, workers: int) -> list[Any]:
        """Return each entry decoded, or a `DecodeFailure` with its error."""
        items = self.native.decode(np.ascontiguousarray(positions), workers)
        return [
            self._value(position, item)
            for position, item in zip(positions.tolist(), items, strict=True)
        ]

    def _value(self, position: int, item: Any) -> Any:
        if isinstance(item, Exception):
            return DecodeFailure(item)
        number, value = item
        if isinstance(value, tuple):
            return Run._from_native(value)  # noqa: SLF001 - a run as the core returns it
        if number == 0:
            return value.tobytes()
        if self._kinds is None:
            self._kinds = self.native.kind_names()
        kind = self._kinds.get(number, f"kind-{number}")
        entry = f"entry {position} of `{self.uri}`, kind {kind!r}"
        try:
            return decode_payload(kind, memoryview(value))
        except StopIteration as error:
            # Raised by an iterator, it would end the loop without an error.
            failure = CorruptError(f"the decoder raised StopIteration for {entry}")
            failure.__cause__ = error
            return DecodeFailure(failure)
        except Exception as error:  # noqa: BLE001 - a registered decoder may raise anything
            error.add_note(f"in {entry}")
            return DecodeFailure(error)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the location, not the contents."""
        return PackFile, (self.location, self.options)


def find_packs(
    location: Location | Iterable[Location], remote: Mapping[str, object]
) -> list[str | RemoteFile]:
    """Return the paths and remote files of a path, a URI, a glob pattern or a list of them."""
    if isinstance(location, str | bytes | os.PathLike) or not isinstance(location, Iterable):
        location = [location]
    found = [each for one in location for each in expand(one)]
    if not found:
        raise InvalidError("expected at least one pack, got an empty list")
    if remote and not any(map(is_remote, found)):
        raise InvalidTypeError(
            f"the arguments {', '.join(map(repr, remote))} cannot be used with local packs",
            hint="they are options for packs that are opened by a URI, such as s3://bucket/a.pack",
        )
    return [RemoteFile.open(each, **remote) if is_remote(each) else each for each in found]


def open_packs(
    location: Location | Iterable[Location], options: OpenOptions, remote: Mapping[str, object]
) -> tuple[PackFile, ...]:
    """Open the packs that `find_packs` finds."""
    files = tuple(
        # An absolute path, so that a process with another working directory can open it.
        PackFile(os.path.abspath(each) if isinstance(each, str) else each, options)  # noqa: PTH100
        for each in find_packs(location, remote)
    )
    _check_kinds(files)
    return files


def _check_kinds(files: Sequence[PackFile]) -> None:
    """Raise if one number stands for different kinds in different packs."""
    if len(files) == 1:
        return
    known: dict[int, tuple[str, str]] = {}
    for file in files:
        for number, name in file.native.kind_names().items():
            other, uri = known.setdefault(number, (name, file.uri))
            if other != name:
                raise InvalidError(
                    f"cannot open the packs together: the kind number {number} means {other!r} in "
                    f"`{uri}`, but {name!r} in `{file.uri}`",
                    hint="merge them into one pack with `relive pack merge`",
                )
