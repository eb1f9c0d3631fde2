"""Which fields to convert, under which names and as what."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from relive.bridge.cast import fit_column
from relive.bridge.stream import Chunk, Column, Stream
from relive.errors import InvalidError, InvalidTypeError
from relive.model.schema import Field, codec_name
from relive.model.source import pick_fields

__all__ = ["Choice", "Chosen", "FieldChoice", "parse_choice", "with_codecs"]

FieldChoice: TypeAlias = (
    "Sequence[str] | Mapping[str, str | Field | tuple[str, Field] | None] | None"
)
"""Names to pick; or what to change: a name, a field, both, or None to leave one out."""

_SMALL_BYTES = 256
"""Rows of fixed size below this are not worth compressing one by one."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What the argument `fields` says."""

    only: tuple[str, ...] | None = None
    given: dict[str, Field] = field(default_factory=dict)
    dropped: frozenset[str] = frozenset()
    names: dict[str, str] = field(default_factory=dict)

    def keeps(self, name: str) -> bool:
        """Whether a field of the source is converted."""
        return name not in self.dropped and (self.only is None or name in self.only)

    def check(self, names: Iterable[str]) -> None:
        """Refuse names that are not among those of the source."""
        there = dict.fromkeys(names, Field("json"))  # only the names matter
        pick_fields(there, [*(self.only or ()), *self.given, *self.names, *self.dropped])


def parse_choice(fields: FieldChoice) -> Choice:
    """Read the argument `fields`: a list picks, a dict changes."""
    if fields is None:
        return Choice()
    if isinstance(fields, str | bytes):
        raise InvalidTypeError(f"fields is a list or a dict, not {fields!r}", hint=f"[{fields!r}]")
    if not isinstance(fields, Mapping):
        only = tuple(fields)
        if not only or not all(isinstance(name, str) for name in only):
            raise InvalidTypeError(f"fields is a list of names, not {fields!r}")
        return Choice(only=only)
    given: dict[str, Field] = {}
    names: dict[str, str] = {}
    dropped = set()
    for name, change in fields.items():
        for part in change if isinstance(change, tuple) else (change,):
            if part is None:
                dropped.add(name)
            elif isinstance(part, Field):
                given[name] = part
            elif isinstance(part, str) and part:
                names[name] = part
            else:
                raise InvalidTypeError(
                    f"fields[{name!r}] is a new name, a Field, both or None, not {part!r}"
                )
    return Choice(None, given, frozenset(dropped), names)


class Chosen(Stream):
    """The fields of a stream that were chosen, as they were asked for, and the first `limit` rows.

    Fields that were not asked for in another type are handed through as they are.
    """

    def __init__(self, stream: Stream, choice: Choice, limit: int | None) -> None:
        self._stream = stream
        self._limit = limit
        choice.check([*stream.fields, *choice.dropped])
        kept = pick_fields(
            stream.fields,
            choice.only or [name for name in stream.fields if choice.keeps(name)],
        )
        self._names = {name: choice.names.get(name, name) for name in kept}
        self._casts = {
            name: choice.given[name]
            for name, found in kept.items()
            if name in choice.given and not _same(choice.given[name], found)
        }
        self._fields: dict[str, Field] = {}
        for name, found in kept.items():
            new = self._names[name]
            if new in self._fields:
                raise InvalidError(f"two fields would be called {new!r}")
            self._fields[new] = choice.given.get(name, found)
        if not self._fields:
            raise InvalidError("no field is left to convert")

    @property
    def fields(self) -> Mapping[str, Field]:
        """The chosen fields, by their new names."""
        return self._fields

    @property
    def total(self) -> int | None:
        """The number of rows to convert, where it is known."""
        total = self._stream.total
        if self._limit is None or total is None:
            return total
        return min(total, self._limit)

    @property
    def identity(self) -> Mapping[str, Any]:
        """What tells these rows from others."""
        fields = {
            name: f"{self._names[name]}: {self._fields[self._names[name]]!r}"
            for name in self._names
        }
        return {**self._stream.identity, "fields": fields, "limit": self._limit}

    def chunks(self, start: int = 0) -> Iterator[Chunk]:
        """Give the rows from `start` on."""
        done = start
        if self._limit is not None and done >= self._limit:
            return
        for chunk in self._stream.chunks(start):
            rows = chunk.rows
            if self._limit is not None:
                rows = min(rows, self._limit - done)
            columns = {
                new: self._column(name, chunk.columns[name], rows, chunk.rows, done)
                for name, new in self._names.items()
            }
            yield Chunk(rows, columns)
            done += rows
            if done == self._limit:
                return

    def _column(self, name: str, column: Column, rows: int, held: int, first: int) -> Column:
        if rows < held:
            column = column[:rows]
        target = self._casts.get(name)
        if target is None:
            return column
        return fit_column(name, target, list(column), first)


def _same(asked: Field, found: Field) -> bool:
    return (
        asked.dtype == found.dtype
        and asked.shape == found.shape
        and int(asked.ragged) == int(found.ragged)
    )


def with_codecs(
    fields: Mapping[str, Field], codec: str | Mapping[str, str] | None, level: int | None
) -> dict[str, Field]:
    """Give the fields with the codecs that were asked for.

    One name is for every field that has something to compress: values of any size, and rows
    of at least 256 bytes. A dict says it field by field.
    """
    if codec is None:
        return dict(fields)
    if isinstance(codec, Mapping):
        pick_fields(fields, list(codec))
        chosen = {name: codec_name(value) for name, value in codec.items()}
    else:
        name_of_all = codec_name(codec)
        chosen = {name: name_of_all for name, field in fields.items() if _large(field)}
    return {
        name: _stored(field, chosen[name], level) if name in chosen else field
        for name, field in fields.items()
    }


def _large(field: Field) -> bool:
    return field.nbytes is None or field.nbytes >= _SMALL_BYTES


def _stored(field: Field, codec: str, level: int | None) -> Field:
    options: dict[str, Any] = {} if level is None or codec == "raw" else {"level": level}
    dtype: Any = field.dtype
    return Field(dtype, field.shape, codec, field.ragged, **options)
