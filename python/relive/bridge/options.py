"""The options of `convert` that concern reading: which fields, decoded how, in what batches."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from relive.errors import InvalidError, InvalidTypeError, UnsupportedError
from relive.model.schema import Field
from relive.model.source import pick_fields

FieldChanges: TypeAlias = (
    "Sequence[str] | Mapping[str, str | Field | tuple[str, Field] | None] | None"
)
"""Names to keep; or by name what to change: a new name, a `Field`, both, or None to drop it."""


@dataclass(frozen=True, slots=True)
class FieldSelection:
    """The parsed argument `fields`."""

    only: tuple[str, ...] | None = None
    types: dict[str, Field] = field(default_factory=dict)
    dropped: frozenset[str] = frozenset()
    names: dict[str, str] = field(default_factory=dict)

    def keeps(self, name: str) -> bool:
        """Check whether a field of the source is converted."""
        return name not in self.dropped and (self.only is None or name in self.only)

    def check(self, names: Iterable[str]) -> None:
        """Raise an `UnknownFieldError` unless all selected fields are among `names`."""
        known = dict.fromkeys(names, Field("json"))  # only the names matter
        pick_fields(known, [*(self.only or ()), *self.types, *self.names, *self.dropped])


def parse_fields(fields: FieldChanges) -> FieldSelection:
    """Parse the argument `fields`: a list selects fields, a dict changes them."""
    if fields is None:
        return FieldSelection()
    if isinstance(fields, str | bytes):
        raise InvalidTypeError(
            f"`fields` must be a list or a dict, got {fields!r}", hint=f"use fields=[{fields!r}]"
        )
    if not isinstance(fields, Mapping):
        only = tuple(fields)
        if not only or not all(isinstance(name, str) for name in only):
            raise InvalidTypeError(f"`fields` must be a list of field names, got {fields!r}")
        return FieldSelection(only=only)
    types: dict[str, Field] = {}
    names: dict[str, str] = {}
    dropped = set()
    for name, change in fields.items():
        for part in change if isinstance(change, tuple) else (change,):
            if part is None:
                dropped.add(name)
            elif isinstance(part, Field):
                types[name] = part
            elif isinstance(part, str) and part:
                names[name] = part
            else:
                raise InvalidTypeError(
                    f"`fields[{name!r}]` must be a new name, a Field, a (name, Field) pair or "
                    f"None, got {part!r}"
                )
    return FieldSelection(None, types, frozenset(dropped), names)


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How a source is read; the names are those of the arguments of `convert`."""

    fields: FieldSelection
    kind: str | None = None
    decode: Any = None
    size: int | tuple[int, int] | None = None
    mode: str | None = None
    steps: bool = False
    sample: int = 1000
    workers: int = 2
    batch: int | None = None
    errors: str = "raise"

    def decoder(self, default: Any = None, /, **named: Any) -> Any:
        """Return what `decode` selects: one of `named`, a function, or the default."""
        decode = self.decode
        if decode is None or decode is False:
            return default
        if isinstance(decode, str):
            if decode not in named:
                known = ", ".join(map(repr, named))
                raise InvalidError(
                    f"`decode` must be one of {known} or a function for this format, got {decode!r}"
                )
            return named[decode]
        if decode is True and "image" in named:
            return True
        if callable(decode) or isinstance(decode, Mapping):
            return decode
        raise InvalidTypeError(f"`decode` must be a string or a function, got {decode!r}")


def single_path(paths: list[str], kind: str) -> str:
    """Return the only path; several are an `UnsupportedError`, which calls them `kind`."""
    if len(paths) > 1:
        raise UnsupportedError(
            f"cannot convert {len(paths)} {kind} in one call", hint="convert them one by one"
        )
    return paths[0]
