"""The rows of public relations whose tables were read: computed in Python, before anything private.

Claim: every row that the engine computes for the relation is among those found here, and at least as often.
Because: tables are as they were read, expressions are evaluated as the engines do, and where one cannot be, the row
stays and its value is left out. Rows added to a table since then are missing: callers must stay correct, if less exact,
without them.
Needs: relations that read no private rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from fractions import Fraction

from dpsql.plan.constants import NotConstant, evaluate, evaluate_rows
from dpsql.plan.nodes import (
    Aggregate,
    Distinct,
    Empty,
    Filter,
    Join,
    JoinKind,
    OneRow,
    Plan,
    Project,
    Scan,
    SetKind,
    SetOperation,
    Sort,
    Window,
)
from dpsql.plan.scalars import Field, Scalar
from dpsql.policy.model import Column
from dpsql.privacy.bounds import as_number
from dpsql.types import Kind, Value, exact_decimal

# At most this many rows are computed from others.
MOST_ROWS = 20_000

Row = Mapping[int, Value]


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows by the ids of the fields whose values are known in all of them."""

    fields: frozenset[int]
    rows: Sequence[Row]


def public_rows(plan: Plan, *, counted: bool = True) -> Rows | None:
    """The rows of a public relation; None where a table was not read, or they would be too many.

    Without `counted`, a row represents any number of equal rows, so that more tables can be used.
    """
    match plan:
        case OneRow():
            return Rows(frozenset(), ({},))
        case Empty(fields=fields):
            return Rows(_ids(fields), ())
        case Scan():
            return _scanned(plan, counted=counted)
        case Filter(child=child, predicate=predicate):
            below = public_rows(child, counted=counted)
            return None if below is None else Rows(below.fields, [r for r in below.rows if may_hold(predicate, r)])
        case Project(child=child, items=items):
            below = public_rows(child, counted=counted)
            return None if below is None else _projected(below, items)
        case Sort(child=child, fields=fields):
            below = public_rows(child, counted=counted)  # LIMIT leaves some of them
            return None if below is None else Rows(below.fields & _ids(fields), below.rows)
        case Window(child=child):
            return public_rows(child, counted=counted)
        case Distinct(child=child):
            below = public_rows(child, counted=counted)
            return below if below is None or below.fields != _ids(child.fields) else _distinct(below)
        case Aggregate(child=child, keys=keys, sets=((*_,),)):
            below = public_rows(child, counted=counted)
            grouped = None if below is None else _projected(below, keys)
            if grouped is None or not keys:
                return None if grouped is None else Rows(frozenset(), ({},))
            return _distinct(grouped) if grouped.fields == _ids(f for f, _ in keys) else grouped
        case SetOperation(kind=SetKind.UNION_ALL | SetKind.UNION):
            return _united(plan, counted=counted)
        case Join():
            return _joined(plan, counted=counted)
        case _:
            return None


def may_hold(condition: Scalar, row: Row) -> bool:
    """Whether a condition is true of a row, or unknown."""
    try:
        return evaluate(condition, row) is True
    except NotConstant:
        return True


def _ids(fields: Sequence[Field] | Iterator[Field]) -> frozenset[int]:
    return frozenset(field.id for field in fields)


def _scanned(plan: Scan, *, counted: bool) -> Rows | None:
    """A table as a scan returns it: values are clamped to the declared bounds."""
    table = plan.table
    names, stored = tuple(table.columns), table.rows
    if stored is None and not counted and table.combinations is not None:
        names, stored = table.combinations
    if table.is_private or stored is None:
        return None
    pairs = zip(plan.fields, plan.columns, strict=True)
    shown = [(field.id, names.index(name), table.columns[name]) for field, name in pairs if name in names]
    rows = [{field: _clamped(column, row[place]) for field, place, column in shown} for row in stored]
    return Rows(frozenset(field for field, _, _ in shown), rows)


def _clamped(column: Column, value: Value) -> Value:
    low, high = column.lower, column.upper
    numbers = [Fraction(v) for v in column.values or () if isinstance(v, int | float) and not isinstance(v, bool)]
    if low is None and numbers and column.type.kind in (Kind.INTEGER, Kind.DOUBLE):
        low, high = min(numbers), max(numbers)
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return None
    place = as_number(value)
    if low is None or high is None or place is None:
        return value
    below, above = (bound if isinstance(bound, Fraction) else as_number(bound) for bound in (low, high))
    assert below is not None and above is not None
    if below <= place <= above:
        return value
    return _typed(low if place < below else high, column)


def _typed(bound: Fraction | date, column: Column) -> Value:
    if not isinstance(bound, Fraction):
        return bound
    match column.type.kind:
        case Kind.INTEGER:
            return int(bound)
        case Kind.DECIMAL:
            return Decimal(exact_decimal(bound, column.type.scale))
        case _:
            return float(bound)


def _projected(below: Rows, items: Sequence[tuple[Field, Scalar]]) -> Rows:
    columns: dict[int, list[Value]] = {}
    for field, value in items:
        try:
            columns[field.id] = evaluate_rows(value, below.rows)
        except NotConstant:
            continue
    if not columns:
        return Rows(frozenset(), [{} for _ in below.rows])
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    return Rows(frozenset(columns), rows)


def _distinct(found: Rows) -> Rows:
    return Rows(found.fields, list({frozenset(row.items()): row for row in found.rows}.values()))


def _united(plan: SetOperation, *, counted: bool) -> Rows | None:
    """UNION [ALL]. VALUES nest as deep as they have rows, so all sides are combined at once."""
    leaves, waiting = list[Plan](), [plan.right, plan.left]
    while waiting:
        part = waiting.pop()
        if isinstance(part, SetOperation) and part.kind is SetKind.UNION_ALL:
            waiting += [part.right, part.left]
        else:
            leaves.append(part)
    parts: list[Row] = []
    known = _ids(plan.fields)
    for leaf in leaves:
        found = public_rows(leaf, counted=counted)
        if found is None or len(parts) + len(found.rows) > MOST_ROWS:
            return None
        pairs = [(a.id, b.id) for a, b in zip(plan.fields, leaf.fields, strict=True) if b.id in found.fields]
        known &= frozenset(a for a, _ in pairs)
        parts += [{a: row[b] for a, b in pairs} for row in found.rows]
    united = Rows(known, parts)
    return _distinct(united) if plan.kind is SetKind.UNION and known == _ids(plan.fields) else united


def _joined(plan: Join, *, counted: bool) -> Rows | None:
    left, right = (public_rows(side, counted=counted) for side in (plan.left, plan.right))
    if left is None or right is None or len(left.rows) * len(right.rows) > MOST_ROWS:
        return None
    pairs = [(a, b) for a in left.rows for b in right.rows]
    if plan.condition is not None:
        pairs = [(a, b) for a, b in pairs if may_hold(plan.condition, {**a, **b})]
    rows: list[Row] = [{**a, **b} for a, b in pairs]
    # A row of a kept side may stay unmatched: to rule that out, every condition would have to be known.
    if plan.kind in (JoinKind.LEFT, JoinKind.FULL):
        rows += [{**a, **dict.fromkeys(right.fields)} for a in left.rows]
    if plan.kind in (JoinKind.RIGHT, JoinKind.FULL):
        rows += [{**dict.fromkeys(left.fields), **b} for b in right.rows]
    return Rows(left.fields | right.fields, rows)
