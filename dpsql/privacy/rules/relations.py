"""Rules for relations: every row keeps exactly one owner, and depends on that owner's rows alone."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

from dpsql.plan.nodes import SetKind
from dpsql.plan.scalars import Agg, Aggregated, Correlated, Field, Ref, Scalar, Windowed, refs, walk
from dpsql.policy.model import Column, Table
from dpsql.privacy.bounds import NOTHING, UNBOUNDED, Fact, Facts, Interval, as_number, interval, never_null
from dpsql.privacy.keys.domains import domain
from dpsql.privacy.owners import is_unit
from dpsql.privacy.refine import refine
from dpsql.privacy.stability import Stability, both_tight
from dpsql.types import Kind, Value


def scan(table: Table, fields: tuple[Field, ...], columns: tuple[str, ...]) -> Stability:
    """A declared private table.

    Claim: every row belongs to the unit in its owner column; at most `max_rows_per_unit` of them count.
    Because: rows without an owner are dropped at the scan, and the bounding step clips what exceeds the declared rows.
    Needs: a declared unit. `single` only where the engine enforces uniqueness of the owner column.
    """
    facts: Facts = {
        field.id: column_fact(table, table.columns[name])
        for field, name in zip(fields, columns, strict=True)
        if name in table.columns
    }
    unique = unique_columns(table, fields, columns)
    fixed = frozenset(field.id for field in fields) if table.owner_unique else frozenset()
    most, groups = table.max_rows_per_unit, table.max_groups_per_unit
    tight = True if most == 1 else table.tight
    return Stability(most, table.owner_unique, facts, groups, unique, fixed, tight=tight, within=table)


def unique_columns(table: Table, fields: tuple[Field, ...], columns: tuple[str, ...]) -> frozenset[frozenset[int]]:
    """The columns that the engine keeps unique and the scan leaves unchanged: clamping may make values equal."""
    seen = {
        name: field.id
        for field, name in zip(fields, columns, strict=True)
        if name not in table.columns or not table.columns[name].is_clamped
    }
    return frozenset(frozenset(seen[name] for name in names) for names in table.unique if names <= seen.keys())


def column_fact(table: Table, column: Column) -> Fact:
    """Bounds, keys and grain of a column, as declared; the scan clamps to the bounds."""
    low, high = _bound(column.lower), _bound(column.upper)
    keys = column.values
    if keys is not None and column.nullable_key:
        keys = (*keys, None)
    if keys is None and column.nullable_key:
        keys = _nullable_keys(column, low, high)
    bounds = Interval(low, high)
    if column.values is not None and low is None:
        numbers = [number for number in map(as_number, column.values) if number is not None]
        # A column with declared values is not clamped to them, so they do not bound it: other rows are only dropped
        # where it is a key. Lists of numeric values are clamped to their hull at the scan.
        bounds = Interval(min(numbers), max(numbers)) if numbers else UNBOUNDED
    nullable = column.nullable or column.type.kind is Kind.DOUBLE or column.type.is_temporal
    return Fact(bounds, keys, column.step, (table.name, column.name), nullable, column.tight)


def _bound(value: object) -> Fraction | None:
    return value if isinstance(value, Fraction) or value is None else as_number(value)  # type: ignore[arg-type]


def _nullable_keys(column: Column, low: Fraction | None, high: Fraction | None) -> tuple[Value, ...] | None:
    if column.type.kind is Kind.BOOLEAN:
        return (False, True, None)
    if column.type.kind is Kind.INTEGER and low is not None and high is not None and high - low < 100_000:
        return (*range(int(low), int(high) + 1), None)
    return None


def filter_rows(child: Stability, predicate: Scalar) -> Stability:
    """WHERE.

    Claim: stability is that of the input; keys and bounds are those that the predicate leaves.
    Because: a row is kept or dropped by its own values, constants and the rows of its own unit alone. A condition on
    the number of a row within its unit leaves at most one row per number that it admits.
    Needs: a predicate without rows of other units (subqueries are released first, or see their own unit alone).
    """
    facts = refine(child.facts, predicate)
    rows, single = child.rows, child.single
    # For row numbers, only the predicate itself counts: declared bounds are not enforced.
    admitted = refine(dict.fromkeys(child.numbered, NOTHING), predicate)
    for column in child.numbered:
        high = admitted[column].interval.high
        if high is not None:
            most = max(math.floor(high), 1)
            rows, single = min(rows, most), single or most == 1
    return replace(child, facts=facts, rows=rows, single=single)


def semi_join(child: Stability, source: Stability) -> Stability:
    """owner IN (SELECT unit …), and NOT IN.

    Claim: stability is that of the input.
    Because: whether a row stays depends on the rows of its own unit in `source`; owners are never NULL on either side.
    Needs: both sides carry the same kind of unit.
    """
    del source
    return child


def project(child: Stability, items: tuple[tuple[Field, Scalar], ...], limit: int) -> Stability:
    """SELECT expressions.

    Claim: stability is that of the input; the facts of each output follow from its expression.
    Because: each output row is a function of one input row.
    Needs: nothing more.
    """
    facts: Facts = {field.id: expression_fact(value, child, limit) for field, value in items}
    renamed = {value.field.id: field.id for field, value in items if isinstance(value, Ref)}
    unique = frozenset(frozenset(renamed[i] for i in names) for names in child.unique if names <= renamed.keys())
    numbered = frozenset(renamed[i] for i in child.numbered if i in renamed)
    fixed = frozenset(field.id for field, value in items if is_fixed(value, child))
    return replace(child, facts=facts, unique=unique, numbered=numbered, fixed=fixed)


def is_fixed(value: Scalar, child: Stability) -> bool:
    """Whether an expression has the same value in all rows of a unit: it reads only columns that do."""
    return all(not isinstance(part, Correlated | Windowed) for part in walk(value)) and all(
        ref.field.id in child.fixed for ref in refs(value)
    )


def expression_fact(value: Scalar, child: Stability, limit: int) -> Fact:
    if isinstance(value, Ref):
        return child.facts.get(value.field.id, NOTHING)
    nullable = not never_null(value, child.facts)
    return Fact(interval(value, child.facts), domain(value, child.facts, limit), nullable=nullable)


def union_all(
    left: Stability, right: Stability, fields: tuple[Field, ...], sides: tuple[tuple[Field, ...], ...]
) -> Stability:
    """UNION ALL.

    Claim: rows add up; bounds and keys of a column are the hull and the union of both sides.
    Because: each output row is one input row of one side, with its owner.
    Needs: the same kind of unit on both sides.
    """
    facts: dict[object, Fact] = {}
    for field, mine, other in zip(fields, *sides, strict=True):
        a, b = left.facts.get(mine.id, NOTHING), right.facts.get(other.id, NOTHING)
        keys = None if a.domain is None or b.domain is None else tuple(dict.fromkeys((*a.domain, *b.domain)))
        step = a.step if a.step == b.step else None
        origin = a.origin if a.origin == b.origin else None
        facts[field.id] = Fact(a.interval.union(b.interval), keys, step, origin, a.nullable or b.nullable)
    groups = None if left.groups is None or right.groups is None else left.groups + right.groups
    return Stability(left.rows + right.rows, False, facts, groups, tight=both_tight(left.tight, right.tight))


def set_operation(
    kind: SetKind, left: Stability, right: Stability, fields: tuple[Field, ...], sides: tuple[tuple[Field, ...], ...]
) -> Stability:
    """UNION, INTERSECT, EXCEPT, with and without ALL, of rows that name their unit.

    Claim: at most as many rows per unit as in the input; UNION adds both sides up, INTERSECT has no more than either
    side.
    Because: owners are compared, too, so rows are equal only if their owners are: one unit's rows never match
    another's.
    Needs: a column on both sides that identifies the unit (checked by the caller), so that the query's meaning is
    unchanged.
    """
    both_sides = union_all(left, right, fields, sides)
    if not kind.value.endswith("ALL") and all(is_unit(Ref(field)) and not field.readable for field in fields):
        # A set of owners: one row each.
        return replace(both_sides, rows=1, single=True, groups=None)
    match kind:
        case SetKind.UNION | SetKind.UNION_ALL:
            return both_sides
        case SetKind.INTERSECT | SetKind.INTERSECT_ALL:
            fewer = left if left.rows <= right.rows else right
            return replace(both_sides, rows=fewer.rows, single=left.single or right.single, groups=fewer.groups)
        case SetKind.EXCEPT | SetKind.EXCEPT_ALL:
            kept: Facts = {f.id: left.facts.get(mine.id, NOTHING) for f, mine in zip(fields, sides[0], strict=True)}
            return replace(both_sides, rows=left.rows, single=left.single, facts=kept, groups=left.groups)


def of_unit(child: Stability) -> Stability:
    """Inside a correlated subquery: the rows of the outer row's unit.

    Claim: what is computed from them depends on that unit's rows and on public tables alone.
    Because: rows of other units are dropped before anything is computed from them.
    Needs: the analyst's own condition makes the owners equal (checked by the caller), so no answer is changed.
    """
    return child


def aggregate_by_unit(
    child: Stability,
    keys: tuple[tuple[Field, Scalar], ...],
    aggregates: tuple[tuple[Field, Aggregated], ...],
    limit: int,
) -> Stability:
    """GROUP BY that contains the unit.

    Claim: one row per unit and further keys; never more rows per unit than in the input. Keys with the same value in
    all rows of a unit make no further groups.
    Because: groups of different units never share a row, so each output row depends on one unit's rows alone.
    Needs: the unit among the keys. Results are clamped to the bounds that follow from the declared rows. Which of
    several equal values represents a group, or is its smallest, is arbitrary, so no operation may distinguish equal
    values.
    """
    facts: dict[object, Fact] = {}
    further = False
    for field, value in keys:
        if is_unit(value):
            assert isinstance(value, Ref)
            facts[field.id] = child.facts.get(value.field.id, NOTHING)
        else:
            further = further or not is_fixed(value, child)
            facts[field.id] = expression_fact(value, child, limit)
    for field, call in aggregates:
        facts[field.id] = Fact(per_unit_interval(call, child, bool(keys)), nullable=call.function is not Agg.COUNT)
    # Per unit, the further keys distinguish the groups.
    unique = frozenset({frozenset(field.id for field, value in keys if not is_unit(value))})
    if further:
        fixed = frozenset(field.id for field, value in keys if is_fixed(value, child))
        return Stability(
            child.rows, child.single, facts, child.groups, unique, fixed, tight=child.tight, within=child.within
        )
    everything = frozenset(field.id for field, _ in (*keys, *aggregates))
    return Stability(1, True, facts, None, unique | {frozenset()}, everything, tight=True)


def per_unit_interval(call: Aggregated, child: Stability, grouped: bool = True) -> Interval:
    """Bounds of an aggregate over the rows of one unit, of which at most `rows` count."""
    rows = Fraction(child.rows)
    if call.function is Agg.COUNT:
        # A group has a row, so COUNT(*) is at least one; without GROUP BY there may be none.
        least = 1 if grouped and not call.args and call.where is None else 0
        return Interval(Fraction(least), rows)
    argument = interval(call.args[0], child.facts) if call.args else UNBOUNDED
    match call.function:
        case Agg.SUM:
            return Interval(
                None if argument.low is None else min(argument.low, argument.low * rows),
                None if argument.high is None else max(argument.high, argument.high * rows),
            )
        case Agg.AVG | Agg.MIN | Agg.MAX:
            return argument
        case _:
            return UNBOUNDED
