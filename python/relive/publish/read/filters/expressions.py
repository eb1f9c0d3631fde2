"""Filters as `pyarrow.compute.Expression`: their columns, their predicate, and their result.

An expression does not show its parts, but it can be pickled as an Arrow file whose metadata lists
them. What is read from there is built again and compared with the original. If the two differ,
all columns are read and no row group is left out.
"""

import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import acero

from relive.publish.read.filters.predicates import (
    ANYTHING,
    FLIPPED,
    And,
    Compare,
    IsNull,
    Mask,
    Not,
    OneOf,
    Operator,
    Or,
    Predicate,
)
from relive.publish.read.footer import Path

_OPERATORS: Final[dict[str, Operator]] = {
    "equal": "==",
    "not_equal": "!=",
    "less": "<",
    "less_equal": "<=",
    "greater": ">",
    "greater_equal": ">=",
}
_APPLY: Final = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_SKIPS_NULLS: Final = (False, True)


@dataclass(frozen=True)
class _Field:
    path: Path


@dataclass(frozen=True)
class _Literal:
    value: pa.Scalar


@dataclass(frozen=True)
class _Call:
    function: str
    arguments: list["_Node"]
    options: pc.FunctionOptions | None
    value_set: pa.Array | None


_Node: TypeAlias = _Field | _Literal | _Call


def parse(expression: pc.Expression) -> tuple[set[Path] | None, Predicate]:
    """Return the columns of an expression, None if they are not known, and its predicate."""
    try:
        parts = _Parts(expression)
        tree = parts.read()
        if parts.at_end and _build(tree).equals(expression):
            return set(_columns(tree)), _predicate(tree)
    except (pa.ArrowException, AttributeError, LookupError, TypeError, ValueError):
        pass  # another version of pyarrow may store expressions in another form
    return None, ANYTHING


def evaluate(expression: pc.Expression, table: pa.Table) -> pa.ChunkedArray:
    """Return the value of an expression for every row of a table, in order."""
    plan = acero.Declaration.from_sequence(
        [
            acero.Declaration("table_source", acero.TableSourceNodeOptions(table)),
            acero.Declaration("project", acero.ProjectNodeOptions([expression], ["value"])),
        ]
    )
    return plan.to_table(use_threads=False).column(0)


def _stored(expression: pc.Expression) -> Any:
    (buffer,) = expression.__reduce__()[1]
    return pa.ipc.open_file(buffer)


class _Parts:
    """The stored parts of an expression, taken one after the other."""

    def __init__(self, expression: pc.Expression) -> None:
        file = _stored(expression)
        text = file.schema.to_string(truncate_metadata=False, show_schema_metadata=True)
        lines = text.partition("-- schema metadata --\n")[2].splitlines()
        pairs = (line.partition(": ") for line in lines)
        self._pairs = [(key, value.removeprefix("'").removesuffix("'")) for key, _, value in pairs]
        self._literals = [column[0] for column in file.get_batch(0).columns]
        self._at = 0

    @property
    def at_end(self) -> bool:
        return self._at == len(self._pairs)

    def read(self) -> _Node:
        key, value = self._next()
        if key == "field_ref":
            return _Field((value,))
        if key == "nested_field_ref":
            return _Field(tuple(self._next()[1] for _ in range(int(value))))
        if key == "literal":
            return _Literal(self._literals[int(value)])
        arguments: list[_Node] = []
        options: pc.FunctionOptions | None = None
        value_set: pa.Array | None = None
        while (following := self._pairs[self._at])[0] != "end":
            if following[0] == "options":
                options, value_set = _options(self._literals[int(self._next()[1])])
            else:
                arguments.append(self.read())
        self._next()
        return _Call(value, arguments, options, value_set)

    def _next(self) -> tuple[str, str]:
        self._at += 1
        return self._pairs[self._at - 1]


def _options(stored: pa.StructScalar) -> tuple[pc.FunctionOptions, pa.Array | None]:
    name = stored["_type_name"].as_py().decode()
    if name == "SetLookupOptions":
        values = stored["value_set"].values
        skips = _SKIPS_NULLS[stored["null_matching_behavior"].as_py()]
        return pc.SetLookupOptions(values, skip_nulls=skips), values
    given = {key: stored[key].as_py() for key in stored if key != "_type_name"}
    if name == "CastOptions":
        given["target_type"] = stored["to_type"].type
        del given["to_type"]
    made: pc.FunctionOptions = getattr(pc, name)(**given)
    return made, None


def _columns(node: _Node) -> Iterator[Path]:
    if isinstance(node, _Field):
        yield node.path
    elif isinstance(node, _Call):
        for argument in node.arguments:
            yield from _columns(argument)


def _build(node: _Node) -> pc.Expression:
    if isinstance(node, _Field):
        return pc.field(*node.path)
    if isinstance(node, _Literal):
        return pc.scalar(node.value)
    arguments = [_build(argument) for argument in node.arguments]
    return pc.Expression._call(node.function, arguments, node.options)  # noqa: SLF001


def _predicate(node: _Node) -> Predicate:  # noqa: PLR0911 - one line per function
    if isinstance(node, _Field):  # a boolean column
        return _compare(node.path, "==", pa.scalar(True))  # noqa: FBT003 - a value
    if isinstance(node, _Literal):
        return ANYTHING
    name, arguments = node.function, node.arguments
    if name in {"and_kleene", "and"}:
        return And(*map(_predicate, arguments))
    if name in {"or_kleene", "or"}:
        return Or(*map(_predicate, arguments))
    if name == "invert":
        return Not(_predicate(arguments[0]))
    if name in _OPERATORS:
        return _comparison(_OPERATORS[name], *arguments)
    if arguments and isinstance(arguments[0], _Field):
        return _test(node, arguments[0].path)
    return ANYTHING


def _test(call: _Call, path: Path) -> Predicate:
    """Return the predicate of a function of one column."""
    if call.function == "is_valid":
        return Not(IsNull(path))
    if call.function == "is_null" and call.options == pc.NullOptions(nan_is_null=False):
        return IsNull(path)
    if call.function == "is_in" and call.value_set is not None and not call.value_set.null_count:
        return OneOf(path, [_compare(path, "==", one) for one in call.value_set])
    return ANYTHING


def _comparison(comparison: Operator, left: _Node, right: _Node) -> Predicate:
    if isinstance(left, _Literal) and isinstance(right, _Field):
        left, right, comparison = right, left, FLIPPED[comparison]
    if not isinstance(left, _Field) or not isinstance(right, _Literal):
        return ANYTHING
    value = right.value
    if not value.is_valid or (pa.types.is_floating(value.type) and np.isnan(value.as_py())):
        return ANYTHING
    return _compare(left.path, comparison, value)


def _compare(path: Path, comparison: Operator, value: pa.Scalar) -> Compare:
    kind = _order(value.type)
    literal = pc.scalar(value)

    def test(operator: Operator, values: pa.Array) -> Mask:
        expression = _APPLY[operator](pc.field("value"), literal)
        found = evaluate(expression, pa.table({"value": values}))
        mask: Mask = found.fill_null(False).to_numpy()  # noqa: FBT003 - its signature
        return mask

    return Compare(path, comparison, test, lambda given: kind is not None and _order(given) == kind)


def _order(kind: pa.DataType) -> object:  # noqa: PLR0911 - one line per type
    """Return by what values of a type are ordered; types of different orders are converted."""
    t = pa.types
    if t.is_dictionary(kind):
        return _order(kind.value_type)
    if t.is_integer(kind) or t.is_floating(kind):
        return "number"
    if t.is_string(kind) or t.is_large_string(kind) or t.is_string_view(kind):
        return "text"
    if t.is_binary(kind) or t.is_large_binary(kind) or t.is_binary_view(kind):
        return "bytes"
    if t.is_timestamp(kind):
        return "timestamp", kind.tz is None
    if t.is_date(kind):
        return "date"
    if t.is_boolean(kind):
        return "boolean"
    return "decimal" if t.is_decimal(kind) else None
