"""Which row groups a filter can match, by the bounds of their columns.

A filter is true, false or null for a row. For every part of it, three masks over the row groups
say which results are possible for some row. They may say too much, but never too little, so a
row group is left out only if no row of it can match.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from relive.publish.read.filters.statistics import Bounds, Groups
from relive.publish.read.footer import Path

Mask: TypeAlias = npt.NDArray[np.bool_]
Operator: TypeAlias = Literal["==", "!=", "<", "<=", ">", ">="]
Test: TypeAlias = Callable[[Operator, pa.Array], Mask]
"""Compares values with the literal as the filter does; false where a value is null."""

FLIPPED: Final[dict[Operator, Operator]] = {
    "==": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<=",
}  # fmt: skip
"""The operator for the operands in the other order."""
_MAX_VALUES: Final = 1000


class Outcomes(NamedTuple):
    """For each row group, whether a row may make the filter true, false or null."""

    true: Mask
    false: Mask
    null: Mask


class Predicate(ABC):
    """A part of a filter."""

    @abstractmethod
    def outcomes(self, groups: Groups) -> Outcomes:
        """Return the results that are possible in each row group."""


class Anything(Predicate):
    """A part of which nothing is known."""

    def outcomes(self, groups: Groups) -> Outcomes:
        """Return that everything is possible."""
        possible = np.ones(groups.count, np.bool_)
        return Outcomes(possible, possible, possible)


ANYTHING: Final = Anything()


@dataclass(frozen=True)
class And(Predicate):
    """Both parts."""

    left: Predicate
    right: Predicate

    def outcomes(self, groups: Groups) -> Outcomes:
        """Return what follows from the parts."""
        left, right = self.left.outcomes(groups), self.right.outcomes(groups)
        return Outcomes(left.true & right.true, left.false | right.false, left.null | right.null)


@dataclass(frozen=True)
class Or(Predicate):
    """One of the parts."""

    left: Predicate
    right: Predicate

    def outcomes(self, groups: Groups) -> Outcomes:
        """Return what follows from the parts."""
        left, right = self.left.outcomes(groups), self.right.outcomes(groups)
        return Outcomes(left.true | right.true, left.false & right.false, left.null | right.null)


@dataclass(frozen=True)
class Not(Predicate):
    """The contrary."""

    part: Predicate

    def outcomes(self, groups: Groups) -> Outcomes:
        """Return what follows from the part."""
        true, false, null = self.part.outcomes(groups)
        return Outcomes(false, true, null)


@dataclass(frozen=True)
class IsNull(Predicate):
    """Whether a value is null."""

    column: Path

    def outcomes(self, groups: Groups) -> Outcomes:
        """Return what the numbers of nulls say."""
        found = groups.bounds(self.column)
        if found is None:
            return ANYTHING.outcomes(groups)
        return Outcomes(found.nulls, found.values, np.zeros(groups.count, np.bool_))


@dataclass(frozen=True)
class Compare(Predicate):
    """A column compared with a literal.

    Args:
        column: The column.
        operator: The comparison, with the column on the left.
        test: Compares other values with the literal.
        accepts: Whether values of a type are compared in their own order.
        nan_is_largest: Whether NaN is equal to itself and greater than numbers, as in DuckDB;
            otherwise it is only `!=` to everything, as in Arrow.
    """

    column: Path
    operator: Operator
    test: Test
    accepts: Callable[[pa.DataType], bool]
    nan_is_largest: bool = False

    def outcomes(self, groups: Groups) -> Outcomes:
        """Return what the bounds say."""
        found = groups.bounds(self.column)
        if found is None or (found.known.any() and not self.accepts(found.kind)):
            return ANYTHING.outcomes(groups)
        true = false = found.values
        if found.known.any():
            may_true, may_false = self._compared(found)
            true = found.values & (may_true | ~found.known)
            false = found.values & (may_false | ~found.known)
        return Outcomes(true, false, found.nulls)

    def _compared(self, found: Bounds) -> tuple[Mask, Mask]:
        operator, low, high = self.operator, found.low, found.high
        try:
            true, false = self._possible(low, high)
        except (pa.ArrowException, ValueError, TypeError):
            return found.values, found.values  # the comparison fails, or is not known
        if found.is_floating:
            every = np.ones(len(low), np.bool_)
            larger = operator in {">", ">=", "!="} if self.nan_is_largest else operator == "!="
            return (every, false) if larger else (true, every)
        return true, false

    def _possible(self, low: pa.Array, high: pa.Array) -> tuple[Mask, Mask]:
        operator, test = self.operator, self.test
        if operator in {"<", "<="}:
            return test(operator, low), ~test(operator, high)
        if operator in {">", ">="}:
            return test(operator, high), ~test(operator, low)
        equal = test("<=", low) & test(">=", high)
        # All values are equal to the literal if both bounds are.
        other = ~(test("==", low) & test("==", high))
        return (equal, other) if operator == "==" else (other, equal)


@dataclass(frozen=True)
class OneOf(Predicate):
    """A column that is equal to one of several literals; `compares` are those with `==`."""

    column: Path
    compares: Sequence[Compare]

    def outcomes(self, groups: Groups) -> Outcomes:
        """Return what follows from the comparisons."""
        found = groups.bounds(self.column)
        if found is None or not 0 < len(self.compares) <= _MAX_VALUES:
            return ANYTHING.outcomes(groups)
        true, false = np.zeros(groups.count, np.bool_), np.ones(groups.count, np.bool_)
        for compare in self.compares:
            one = compare.outcomes(groups)
            true |= one.true
            false &= one.false
        # For a null, some engines return null and others false.
        return Outcomes(true, false | found.nulls, found.nulls)
