"""Shorter ways to the same sums: keys made late, stored columns, and the few owners whom bounding can change.

Keys that can be made after rows are added up: of groups of rows, which are fewer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from fractions import Fraction
from typing import Literal

from dpsql.plan.nodes import Filter, Join, OfUnit, Plan, Project, Scan, SemiJoin, SetKind, SetOperation, nodes
from dpsql.plan.scalars import Call, Const, Correlated, Field, Op, Ref, Scalar, as_moment, has_subquery, refs, walk
from dpsql.policy.model import Bound, Column, Table
from dpsql.privacy.estimators.basis import BERNSTEIN, PAIR, Polynomial, Shape, polynomial, weighed
from dpsql.privacy.refine import conjuncts
from dpsql.privacy.rules.aggregates import Cells, Statistic, StatisticKind
from dpsql.types import Kind, Value

# Whose equal values are the same in every respect; numbers of other types may have several zeros. Texts may have
# collations: they are compared byte by byte before.
_KINDS = (Kind.INTEGER, Kind.BOOLEAN, Kind.DATE, Kind.TEXT)
# Of a column with more values than this, between its bounds, keys are computed row by row: groups might be as many.
_MOST_VALUES = 10_000


@dataclass(frozen=True, slots=True)
class Key:
    """A GROUP BY expression; `keys` are all it may show, or None if they are unknown.

    Rows with another value are dropped; or, with `remainder`, kept together under NULL, which then is none of the keys.
    """

    value: Scalar
    keys: tuple[Value, ...] | None
    remainder: bool = False


@dataclass(frozen=True, slots=True)
class StoredColumn:
    """A declared column of a table."""

    field: int  # that of the scan
    column: Column


@dataclass(frozen=True, slots=True)
class LateKey:
    """A key that is made of one stored column, and the field that shows it to the key's expression."""

    stored: StoredColumn
    shown: Field

    @property
    def is_raw(self) -> bool:
        """Whether the column is grouped as it is stored; a text is, byte by byte."""
        return self.stored.column.type.kind is not Kind.TEXT


def late_keys(plan: Plan, keys: Sequence[Key], statistics: Sequence[Statistic]) -> dict[str, LateKey]:
    """The keys, by their names k0, k1 …, that are made of a declared column of one table which nothing else reads.

    Claim: whether rows are kept, and what they add to a sum, does not depend on these columns, once conditions that are
    tested on what is stored are met.
    Because: no other condition, no other column and no sum refers to them; above the scan they are only handed on.
    Needs: a plan of one table.
    """
    if not is_one_table(plan):
        return {}
    columns = stored_columns(plan)
    found = {f"k{i}": late for i, key in enumerate(keys) if (late := _late(key, columns)) is not None}
    values = [part for s in statistics for part in (s.value, s.where) if part is not None]
    values += [key.value for i, key in enumerate(keys) if f"k{i}" not in found]
    read = read_fields(plan, values)
    return {name: late for name, late in found.items() if not late.is_raw or late.stored.field not in read}


def read_fields(plan: Plan, values: Iterable[Scalar]) -> set[int]:
    """The fields of scans that these values, or what a plan computes, read as the scan makes them."""
    columns = stored_columns(plan)
    every = _every_ref([*values, *_computed(plan)])
    return {columns[ref.field.id].field for ref in every if ref.field.id in columns}


def _late(key: Key, columns: Mapping[int, StoredColumn]) -> LateKey | None:
    read = {ref.field.id: ref.field for ref in refs(key.value)}
    if key.keys is None or len(read) != 1 or has_subquery(key.value):
        return None
    (field,) = read.values()
    stored = columns.get(field.id)
    if stored is None or stored.column.type != field.type or field.type.kind not in _KINDS:
        return None
    few = isinstance(key.value, Ref) or _has_few_values(stored.column)
    return LateKey(stored, field) if few else None


def _has_few_values(column: Column) -> bool:
    if column.type.kind is Kind.BOOLEAN:
        return True
    low, high = column.lower, column.upper
    if isinstance(low, Fraction) and isinstance(high, Fraction):
        return column.type.kind is Kind.INTEGER and high - low <= _MOST_VALUES
    if isinstance(low, date) and isinstance(high, date):
        return column.type.kind is Kind.DATE and (high - low).days <= _MOST_VALUES
    return False


def stored_columns(plan: Plan) -> dict[int, StoredColumn]:
    """The fields of a relation, and of those it is made of, that show a declared column as a scan makes it, or NULL."""
    found: dict[int, StoredColumn] = {}
    shown: dict[int, int] = {}
    for node in nodes(plan):
        if isinstance(node, Scan):
            found |= {field: StoredColumn(field, column) for field, column in scan_columns(node).items()}
        elif isinstance(node, Project):
            pairs = [(f.id, value.field.id) for f, value in node.items if isinstance(value, Ref)]
            shown |= {field: source for field, source in pairs if field != source}
    for field in shown:
        source = field
        while source in shown:
            source = shown[source]
        if source in found:
            found[field] = found[source]
    return found


def _computed(plan: Plan) -> Iterator[Scalar]:
    """Conditions that are not tested on what is stored, and columns that do not show another as it is."""
    for node in nodes(plan):
        if isinstance(node, Filter):
            columns = _tested_columns(node)
            yield from (part for part in conjuncts(node.predicate) if stored_test(part, columns) is None)
        elif isinstance(node, Project):
            yield from (value for _, value in node.items if not isinstance(value, Ref))


def _tested_columns(plan: Filter) -> dict[int, Column]:
    below: Plan = plan
    while isinstance(below, Filter):
        below = below.child
    return scan_columns(below) if isinstance(below, Scan) else {}


def scan_columns(scan: Scan) -> dict[int, Column]:
    """The declared columns that the fields of a scan show."""
    named = zip(scan.fields, scan.columns, strict=True)
    return {field.id: column for field, name in named if (column := scan.table.columns.get(name)) is not None}


def _every_ref(values: Iterable[Scalar]) -> Iterator[Ref]:
    for value in values:
        yield from refs(value)


# ------------------------------------------------------------
# Sums of stored columns: what is within its bounds needs no clamp, and what rows add up to can be shaped afterwards.
#
# An engine that knows the smallest and largest value of each block tells rows within the bounds from others nearly
# for free. The others, of which there should be none, are clamped one by one.

# So many digits an engine adds up in 128 bits without overflow; a decimal with more is NULL, and beyond all bounds.
SUMMED_DIGITS = 18
# So many digits may be squared, which makes as many as are added up.
SQUARED_DIGITS = 9
# A sum of decimals is made whole by so many places at most, which leaves room for 10**14 rows.
_MOST_PLACES = 6


@dataclass(frozen=True, slots=True)
class StoredSum:
    """A statistic that is made of the sums of a stored column and of its squares, and of the number of its rows."""

    stored: StoredColumn
    low: Fraction
    high: Fraction
    made: Polynomial  # of the column in steps


def stored_sums(statistics: Sequence[Statistic], columns: Mapping[int, StoredColumn]) -> dict[int, StoredSum]:
    """The statistics, by their place, that are sums of a declared column.

    Claim: for rows in which the column is between `low` and `high`, what is made of their number, of its sum in steps
    and of that of its squares is what values on their grid add up to.
    Because: such a value is not NULL, clamping and rounding leave it as it is, and every shape is a polynomial.
    Needs: steps that are the column's last digit; squares that are exact.
    """
    found = {}
    for i, statistic in enumerate(statistics):
        if not isinstance(statistic.value, Ref) or statistic.where is not None:
            continue
        stored = columns.get(statistic.value.field.id)
        bounds = statistic.bounds
        if stored is None or stored.column.type != statistic.value.type:
            continue
        made = polynomial(statistic.shape, statistic.low, statistic.high, statistic.centre)
        if bounds.low is None or bounds.high is None or not _is_on_grid(statistic, squared=made.squares != 0):
            continue
        lows = [bound for bound in (stored.column.lower, bounds.low) if isinstance(bound, Fraction)]
        highs = [bound for bound in (stored.column.upper, bounds.high) if isinstance(bound, Fraction)]
        found[i] = StoredSum(stored, max(lows), min(highs), made)
    return found


def _is_on_grid(statistic: Statistic, *, squared: bool) -> bool:
    assert statistic.value is not None
    type_ = statistic.value.type
    if type_.kind is Kind.DECIMAL:
        if type_.scale * (2 if squared else 1) > _MOST_PLACES or type_.precision > SUMMED_DIGITS:
            return False
    elif type_.kind is not Kind.INTEGER:
        return False
    places = 10**type_.scale
    ends = [bound * places for bound in (statistic.bounds.low, statistic.bounds.high) if bound is not None]
    if squared and any(abs(end) >= 10**SQUARED_DIGITS for end in ends):
        return False
    return statistic.step == Fraction(1, places) and all(end.denominator == 1 for end in ends)


# ------------------------------------------------------------
# Conditions that may be tested on a column as it is stored: what clamping does to it cannot change their outcome.

_MIRRORED = {Op.LT: Op.GT, Op.LE: Op.GE, Op.GT: Op.LT, Op.GE: Op.LE, Op.EQ: Op.EQ}
_SIGNS: dict[Op, Literal["<", "<=", ">", ">=", "="]] = {
    Op.LT: "<",
    Op.LE: "<=",
    Op.GT: ">",
    Op.GE: ">=",
    Op.EQ: "=",
}


@dataclass(frozen=True, slots=True)
class StoredTest:
    """A stored column, compared with a value of its own type."""

    column: Column
    sign: Literal["<", "<=", ">", ">=", "="]
    value: Bound


def stored_test(condition: Scalar, columns: Mapping[int, Column]) -> StoredTest | None:
    """The same condition on the stored column, of those that the fields show; None where that may differ.

    Claim: true for the same rows as the condition on the clamped column, where values that are no dates of the calendar
    are left out (as the scan does).
    Because: clamping keeps the order, and every value that it changes ends on the same side of a constant that is
    between the bounds, or at one of them and still told from it.
    Needs: a constant that the column's own type can hold, so that nothing is converted row by row.
    """
    if not isinstance(condition, Call) or condition.op not in _SIGNS:
        return None
    op, (left, right) = condition.op, map(as_moment, condition.args)
    if isinstance(left, Const):
        op, left, right = _MIRRORED[op], right, left
    if not isinstance(left, Ref) or not isinstance(right, Const) or left.field.id not in columns:
        return None
    column = columns[left.field.id]
    value = _of_type(right.value, column)
    if value is None or column.type != left.type or column.values is not None:
        return None
    low, high = column.lower, column.upper
    if low is None or high is None:
        return StoredTest(column, _SIGNS[op], value)
    # A value below the lower bound becomes that bound, which must be on the same side of the constant; so above.
    above_low = _is_before(low, value) or (value == low and op in (Op.GT, Op.LE))
    below_high = _is_before(value, high) or (value == high and op in (Op.GE, Op.LT))
    return StoredTest(column, _SIGNS[op], value) if above_low and below_high else None


def _of_type(value: Value, column: Column) -> Bound | None:
    kind = column.type.kind
    if kind in (Kind.INTEGER, Kind.DECIMAL):
        if isinstance(value, bool) or not isinstance(value, int | Decimal):
            return None
        number = Fraction(value)
        fits = (number * 10**column.type.scale).denominator == 1 and column.lower is not None
        return number if fits else None
    if kind is Kind.DATE:
        return value if type(value) is date else None
    return value if column.type.is_moment and isinstance(value, datetime) else None


def _is_before(first: Bound, second: Bound) -> bool:
    return first < second  # type: ignore[operator]  # both are of the column's type


# ------------------------------------------------------------
# Which owners the steps of bounding can change at all. They are few; the rows of others are spared the steps.


@dataclass(frozen=True, slots=True)
class Steps:
    """The statistics of one query, those that are clipped together in groups, and what bounds them."""

    statistics: Sequence[Statistic]
    groups: Sequence[Sequence[int]]
    cells: Cells
    norm: Literal["l1", "l2"]

    @property
    def most_rows(self) -> int | None:
        """So many rows of an owner may lie in any cells: no sum over rows is cut or clipped. None: any number.

        Claim: the sums of such an owner are within what per and clip enforce, which would leave them as they are (but
        for what the weights of a group are rounded up).
        Because: a row adds at most the size of its shape, so that neither a cell nor L1 nor L2, which is at most L1, is
        beyond the clip. Of the shapes of one value, what a row adds to all of them, each divided by its size, is at
        most one (`weighed`), and norms of sums are no more than sums of norms. Nothing is known of other groups: each
        of their sums is allowed an equal part.
        Needs: values on their grid.
        """
        return min(
            (self._length(s) // (self._size(s) * s.factor * p) for s, p in self._of(StatisticKind.ROWS)), default=None
        )

    @property
    def most_cells(self) -> int | None:
        """In so many cells an owner may lie: none is left out, and no count of units is clipped. None: in any number.

        Claim: limit and clip leave such an owner's ones as they are.
        Because: it has at most so many keys, and a one in each of them.
        Needs: nothing more.
        """
        found = [self.cells.groups] if self.cells.limited else []
        for statistic, parts in self._of(StatisticKind.UNITS):
            squares = int(statistic.sensitivity.l2_squared) // (statistic.factor * parts) ** 2
            found.append(statistic.clip // (statistic.factor * parts) if self.norm == "l1" else squares)
        return min(found, default=None)

    @property
    def most_spared(self) -> int:
        """The most rows of an owner that may be added up without looking whose they are; 0: none."""
        if len(self._of(StatisticKind.ROWS)) < len(self.statistics):
            return 1 if self.spare(1) else 0
        return min(most for most in (self.most_rows, self.most_cells) if most is not None)

    def spare(self, rows: int) -> bool:
        """Whether the rows of an owner who has at most so many may be added up without looking whose they are.

        Claim: the sums are those that the steps would leave.
        Because: no step changes them, and a count of units is a count of rows where each has but one.
        Needs: nothing more; `rows` rows lie in at most so many cells.
        """
        fit = [most is None or rows <= most for most in (self.most_rows, self.most_cells)]
        single = rows == 1 and not self._of(StatisticKind.WEIGHTS)
        return all(fit) and (single or len(self._of(StatisticKind.ROWS)) == len(self.statistics))

    def _length(self, statistic: Statistic) -> int:
        if self.norm == "l1":
            return statistic.clip
        return min(statistic.clip, math.isqrt(int(statistic.sensitivity.l2_squared)))

    def _size(self, statistic: Statistic) -> int:
        """What a row adds at most; around a centre, no further than the end that is further from it."""
        ends = (statistic.low, statistic.high)
        if statistic.shape is Shape.RESIDUAL:
            return max(*(abs(end - statistic.centre) for end in ends), 1)
        return max(weighed(statistic.shape, *ends, squares=self.norm == "l2"), 1)

    def _of(self, kind: StatisticKind) -> list[tuple[Statistic, int]]:
        """The statistics of a kind, each with the number of equal parts that its group is shared out in."""
        found = []
        for group in self.groups:
            among = [self.statistics[i] for i in group]
            parts = 1 if _are_shapes_of_one_value(among) else len(among)
            found += [(statistic, parts) for statistic in among if statistic.kind is kind]
        return found


def _are_shapes_of_one_value(statistics: Sequence[Statistic]) -> bool:
    of = {(s.kind, s.value, s.where, s.low, s.high, s.factor) for s in statistics}
    shapes = [s.shape for s in statistics]
    return len(of) == 1 and len(set(shapes)) == len(shapes) and any(set(shapes) <= set(g) for g in (PAIR, BERNSTEIN))


def is_repeatable(plan: Plan, values: Sequence[Scalar]) -> bool:
    """Whether computing the relation and the values twice, in one statement, gives the same rows twice.

    Claim: the same rows, of the same owners, with the same values.
    Because: one statement sees one snapshot, and each row is computed from a few rows by itself. A sum of doubles
    depends on the order in which an engine happens to add them, so aggregates and windows are not among these.
    Needs: nothing volatile in a plan; there is no such scalar.
    """
    inner = [part.plan for value in values for part in walk(value) if isinstance(part, Correlated)]
    return all(_is_by_row(node) for each in (plan, *inner) for node in nodes(each))


def _is_by_row(node: Plan) -> bool:
    if isinstance(node, SetOperation):
        return node.kind is SetKind.UNION_ALL
    return isinstance(node, Scan | Filter | Project | Join | SemiJoin | OfUnit)


def is_one_table(plan: Plan) -> bool:
    """Whether a relation is one table, read without others: cheap to read twice."""
    return all(isinstance(node, Filter | Project) or _is_plain_scan(node) for node in nodes(plan))


def _is_plain_scan(node: Plan) -> bool:
    return isinstance(node, Scan) and (not node.table.path or node.table.copy is not None)


def one_table_within(plan: Plan, table: Table) -> Plan | None:
    """The table, of which every owner has at least as many rows as in the plan, under what conditions are on it alone.

    Claim: every owner still has at least as many rows.
    Because: each row of the plan is made of a row of the table of its own (`Stability.within`), and meets the
    conditions that stand above it. No join on the way leaves the table's columns empty where it has no row.
    Needs: a table that the plan reads once, outside of subqueries; conditions without subqueries.
    """
    conditions: list[Scalar] = []
    below = plan
    while not isinstance(below, Scan):
        match below:
            case Filter(child=child, predicate=predicate):
                conditions += conjuncts(predicate)
                below = child
            case Project(child=child) | SemiJoin(child=child):
                below = child
            case Join(left=left, right=right):
                sides = [side for side in (left, right) if _reads(side, table)]
                if len(sides) != 1:
                    return None
                (below,) = sides
            case _:
                return None
    if below.table is not table:
        return None
    here = {field.id for field in below.fields}
    alone = [c for c in conditions if not has_subquery(c) and {ref.field.id for ref in refs(c)} <= here]
    found: Plan = below
    for condition in reversed(alone):
        found = Filter(found, condition)
    return found


def _reads(plan: Plan, table: Table) -> bool:
    return any(isinstance(node, Scan) and node.table is table for node in nodes(plan))
