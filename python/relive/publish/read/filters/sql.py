"""Filters as SQL conditions, which DuckDB evaluates for the rows of each step.

DuckDB also parses the condition. Comparisons of a column with a literal exclude row groups: DuckDB
compares their bounds as it does the values.
"""

import copy
import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from relive.errors import CorruptError, InvalidError
from relive.publish.read.connections import evaluation, quoted_name
from relive.publish.read.filters.conditions import Filter
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

_OPERATORS: Final[dict[str, Operator]] = {
    "COMPARE_EQUAL": "==",
    "COMPARE_NOTEQUAL": "!=",
    "COMPARE_LESSTHAN": "<",
    "COMPARE_LESSTHANOREQUALTO": "<=",
    "COMPARE_GREATERTHAN": ">",
    "COMPARE_GREATERTHANOREQUALTO": ">=",
}
# Types to which values of other types are converted without a change of their order.
_ORDERED: Final = frozenset(
    [
        "BOOLEAN",
        "TINYINT",
        "SMALLINT",
        "INTEGER",
        "BIGINT",
        "HUGEINT",
        "UTINYINT",
        "USMALLINT",
        "UINTEGER",
        "UBIGINT",
        "FLOAT",
        "DOUBLE",
        "DECIMAL",
        "DATE",
        "TIMESTAMP",
    ]
)


class SqlFilter(Filter):
    """A SQL condition on the columns of a table."""

    def __init__(self, sql: str, schema: pa.Schema) -> None:
        self.condition = sql
        # On a line of its own, because it may end in a comment.
        self._sql = f"(\n{sql}\n)"
        self._what = f"the filter {sql!r}"
        with evaluation(self._what) as cursor:
            where = _parsed(cursor, self._sql, self._what)
            self.columns = _columns(where, schema.names)
            cursor.register("this", self._input(schema.empty_table()))
            # In WHERE, unlike in SELECT, conditions over several rows are refused.
            cursor.sql(f"SELECT 1 FROM this WHERE {self._sql}").fetchall()  # noqa: S608 - as above
            self.predicate = _Translation(cursor, self.columns).predicate(where)

    def mask(self, table: pa.Table) -> Any:
        """Return a boolean for each row."""
        with evaluation(self._what) as cursor:
            cursor.register("this", self._input(table))
            query = f"SELECT CAST({self._sql} AS BOOLEAN) AS keep FROM this"  # noqa: S608
            found: pa.ChunkedArray = cursor.sql(query).to_arrow_table().column(0)
        if len(found) != table.num_rows:
            raise CorruptError(f"{self._what} has {len(found)} values for {table.num_rows} rows")
        return found

    def _input(self, table: pa.Table) -> pa.Table:
        return table.select(self.columns or table.schema.names[:1])


def _parsed(cursor: Any, condition: str, what: str) -> Any:
    """Return the tree of a condition."""
    tree = _serialized(cursor, f"SELECT * FROM this WHERE {condition}")  # noqa: S608
    if tree.get("error"):
        raise InvalidError(f"{what}: {tree.get('error_message', 'cannot be parsed')}")
    node = tree["statements"][0]["node"] if len(tree.get("statements", ())) == 1 else {}
    extra = ("modifiers", "group_expressions", "group_sets", "having", "qualify", "sample")
    if node.get("type") != "SELECT_NODE" or any(node.get(name) for name in extra):
        raise InvalidError(f"{what} is not a single condition")
    # What is in parentheses is a row if there are commas, or nothing at all.
    if node["where_clause"].get("function_name") == "row":
        raise InvalidError(f"{what} is not a single condition")
    if any(each.get("class") == "SUBQUERY" for each in _nodes(node["where_clause"])):
        raise InvalidError(
            f"{what} contains a query",
            hint="use query(), which sees the whole table as `this`",
        )
    return node["where_clause"]


def _serialized(cursor: Any, query: str) -> Any:
    ((text,),) = cursor.execute("SELECT json_serialize_sql(?::VARCHAR)", [query]).fetchall()
    return json.loads(text)


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """Yield all objects of a tree."""
    if isinstance(tree, dict):
        yield tree
        tree = list(tree.values())
    if isinstance(tree, list):
        for each in tree:
            yield from _nodes(each)


def _columns(where: Any, names: Sequence[str]) -> tuple[str, ...]:
    """Return the columns that a condition may refer to."""
    known = {name.lower() for name in names}
    if len(known) < len(names):  # DuckDB does not distinguish upper and lower case
        return tuple(names)
    found: set[str] = set()
    for node in _nodes(where):
        if node.get("class") == "STAR":
            return tuple(names)
        if node.get("class") == "COLUMN_REF":
            found.update(part.lower() for part in node["column_names"])
    return tuple(name for name in names if name.lower() in found)


class _Translation:
    """Makes the predicate of a condition."""

    def __init__(self, cursor: Any, columns: Sequence[str]) -> None:
        self._cursor = cursor
        self._names = {name.lower(): name for name in columns}
        self._is_ambiguous = len(self._names) < len(columns)
        self._template = _serialized(cursor, "SELECT 1")

    def predicate(self, node: Any) -> Predicate:  # noqa: PLR0911 - one line per kind
        """Return the predicate of a part of the condition."""
        kind = node.get("type")
        children = node.get("children", [])
        if kind in {"CONJUNCTION_AND", "CONJUNCTION_OR"}:
            parts = [self.predicate(child) for child in children]
            found = parts[0]
            for part in parts[1:]:
                found = And(found, part) if kind == "CONJUNCTION_AND" else Or(found, part)
            return found
        if kind == "OPERATOR_NOT":
            return Not(self.predicate(children[0]))
        if kind in {"COMPARE_IN", "COMPARE_NOT_IN"}:
            found = self._one_of(children[0], children[1:])
            return found if kind == "COMPARE_IN" else Not(found)
        if kind in {"OPERATOR_IS_NULL", "OPERATOR_IS_NOT_NULL"}:
            column = self._column(children[0])
            found = ANYTHING if column is None else IsNull((column,))
            return found if kind == "OPERATOR_IS_NULL" else Not(found)
        if kind == "COMPARE_BETWEEN":
            low = self._compare(">=", node["input"], node["lower"])
            return And(low, self._compare("<=", node["input"], node["upper"]))
        if kind in _OPERATORS and "left" in node:
            return self._compare(_OPERATORS[kind], node["left"], node["right"])
        return ANYTHING

    def _one_of(self, value: Any, choices: Sequence[Any]) -> Predicate:
        column = self._column(value)
        compares = [self._compare("==", value, choice) for choice in choices]
        found = [each for each in compares if isinstance(each, Compare)]
        if column is None or len(found) < len(compares):
            return ANYTHING
        return OneOf((column,), found)

    def _column(self, node: Any) -> str | None:
        if node.get("class") != "COLUMN_REF" or self._is_ambiguous:
            return None
        parts = [part.lower() for part in node["column_names"]]
        if len(parts) == 2 and parts[0] == "this" and "this" not in self._names:  # noqa: PLR2004
            parts = parts[1:]
        return self._names.get(parts[0]) if len(parts) == 1 else None

    def _compare(self, operator: Operator, left: Any, right: Any) -> Predicate:
        column = self._column(left)
        if column is None:
            column, operator, right = self._column(right), FLIPPED[operator], left
        literal = self._literal(right)
        if column is None or literal is None:
            return ANYTHING
        is_text = right.get("class") == "CONSTANT" and literal.startswith("'")

        def accepts(kind: pa.DataType) -> bool:
            if _is_text(kind):
                return is_text
            return not (pa.types.is_floating(kind) and "nan" in literal.lower())

        def test(operator: Operator, values: pa.Array) -> Mask:
            sign = {"==": "=", "!=": "<>"}.get(operator, operator)
            query = f"SELECT {quoted_name('value')} {sign} ({literal}) FROM bounds"  # noqa: S608
            try:
                with evaluation("bounds") as cursor:
                    cursor.register("bounds", pa.table({"value": values}))
                    found = cursor.sql(query).to_arrow_table().column(0)
            except InvalidError as error:
                raise ValueError(error.message) from error
            mask: Mask = np.asarray(found.fill_null(False).to_numpy(), np.bool_)  # noqa: FBT003
            return mask

        return Compare((column,), operator, test, accepts, nan_is_largest=True)

    def _literal(self, node: Any) -> str | None:
        """Return the SQL of a constant, or of one that is cast to a type with the same order."""
        constant = node
        if node.get("class") == "CAST":
            target = json.dumps([node.get("cast_type"), node.get("type_expr")]).upper()
            if not any(f'"{name}"' in target for name in _ORDERED) or '"VARCHAR"' in target:
                return None
            constant = node["child"]
        if constant.get("class") != "CONSTANT":
            return None
        tree = copy.deepcopy(self._template)
        tree["statements"][0]["node"]["select_list"] = [{**node, "alias": ""}]
        query = "SELECT json_deserialize_sql(?::JSON)"
        ((text,),) = self._cursor.execute(query, [json.dumps(tree)]).fetchall()
        literal: str = text.removeprefix("SELECT ").strip()
        return literal


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    t = pa.types
    return bool(
        t.is_string(kind) or t.is_large_string(kind) or t.is_string_view(kind)
        or t.is_binary(kind) or t.is_large_binary(kind) or t.is_binary_view(kind)
    )  # fmt: skip
