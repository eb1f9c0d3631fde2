"""Filters of rows: an Arrow expression, or a SQL condition that DuckDB evaluates."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from relive._arguments import type_name
from relive.errors import InvalidError, InvalidTypeError, UnknownNameError
from relive.publish.read.filters import expressions
from relive.publish.read.filters.predicates import Mask, Predicate
from relive.publish.read.filters.statistics import Groups
from relive.publish.read.footer import ShardFooter

Condition: TypeAlias = str | pc.Expression
"""What users pass: SQL, or an Arrow expression."""


class Filter(ABC):
    """A condition on the rows of a table. Thread-safe."""

    condition: Condition
    """What the filter was made from."""
    columns: tuple[str, ...]
    """The columns that it needs, in the order of the schema."""
    predicate: Predicate
    """Which row groups may match."""

    @abstractmethod
    def mask(self, table: pa.Table) -> Any:
        """Return a boolean for each row of a table that has its columns; null does not match."""


class ExpressionFilter(Filter):
    """A `pyarrow.compute.Expression`."""

    def __init__(self, expression: pc.Expression, schema: pa.Schema) -> None:
        self.condition = expression
        paths, self.predicate = expressions.parse(expression)
        names = set(schema.names) if paths is None else {path[0] for path in paths}
        check_columns(sorted(names), schema.names)
        self.columns = tuple(name for name in schema.names if name in names)
        self._expression = expression
        empty = schema.empty_table()
        try:
            found = expressions.evaluate(expression, self._input(empty))
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise InvalidError(f"the filter {expression} cannot be evaluated: {error}") from error
        if not pa.types.is_boolean(found.type):
            raise InvalidError(
                f"the filter {expression} must be a condition, but its values are {found.type}"
            )

    def mask(self, table: pa.Table) -> Any:
        """Return a boolean for each row."""
        try:
            return expressions.evaluate(self._expression, self._input(table))
        except pa.ArrowException as error:
            raise InvalidError(f"the filter {self._expression} failed: {error}") from error

    def _input(self, table: pa.Table) -> pa.Table:
        # A condition without columns is evaluated once for every row all the same.
        columns = self.columns or tuple(table.schema.names[:1])
        return table.select(columns)


def make_filter(condition: Condition, schema: pa.Schema) -> Filter:
    """Return the filter for a condition; an `InvalidError` tells what is wrong with it."""
    if isinstance(condition, pc.Expression):
        return ExpressionFilter(condition, schema)
    if isinstance(condition, str):
        from relive.publish.read.filters.sql import SqlFilter  # it needs DuckDB

        return SqlFilter(condition, schema)
    raise InvalidTypeError(
        f"a filter must be SQL or a pyarrow.compute.Expression, got {type_name(type(condition))}",
        hint='for example filter("score > 0.5") or filter(pc.field("score") > 0.5)',
    )


def matches(filters: Iterable[Filter], footers: Sequence[ShardFooter]) -> tuple[Mask, Mask]:
    """Return which row groups may have rows that match all filters, and where all rows do."""
    groups = Groups(footers)
    possible, certain = np.ones((2, groups.count), np.bool_)
    for each in filters:
        outcomes = each.predicate.outcomes(groups)
        possible &= outcomes.true
        certain &= ~(outcomes.false | outcomes.null)
    return possible, certain


def check_columns(asked: Sequence[str], names: Sequence[str]) -> None:
    """Raise an `UnknownNameError` for a column that a table does not have."""
    known = set(names)
    for name in asked:
        if name not in known:
            raise unknown_name("column", name, names)


def unknown_name(what: str, name: object, names: Sequence[str]) -> UnknownNameError:
    """Return the error for a name that does not exist, with those that are similar."""
    close = get_close_matches(name, names, n=3) if isinstance(name, str) else []
    listed = ", ".join(f"`{each}`" for each in (close or list(names)[:20])) or "none"
    more = ", …" if not close and len(names) > 20 else ""  # noqa: PLR2004 - as above
    shown = f"`{name}`" if isinstance(name, str) else repr(name)
    hint = f"did you mean {listed}?" if close else f"the {what}s are {listed}{more}"
    return UnknownNameError(f"there is no {what} {shown}", hint=hint)
