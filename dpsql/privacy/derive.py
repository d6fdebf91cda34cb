"""Why a private plan is safe: each node by its rule, bottom up. No rule, no answer."""

from __future__ import annotations

from typing import assert_never

from dpsql.errors import NotSupported
from dpsql.plan.nodes import (
    Aggregate,
    Distinct,
    Empty,
    Filter,
    Join,
    OneRow,
    Plan,
    Project,
    Released,
    Scan,
    SemiJoin,
    SetKind,
    SetOperation,
    Sort,
    Window,
)
from dpsql.plan.scalars import IntervalEnd, Ref, Scalar, Subquery, walk
from dpsql.privacy.rules import relations
from dpsql.privacy.stability import Derivation

INTERVAL_HINT = "Write it around an aggregate of a private table, as in dp_low(AVG(age))."
UNIT_HINT = "The unit may stand in COUNT(DISTINCT …) [FILTER (WHERE …)], in an inner GROUP BY and in IN (SELECT …)."


def is_private(plan: Plan) -> bool:
    """Whether the rows of a relation belong to units, that is, whether it may not be seen."""
    match plan:
        case Scan(table=table):
            return table.is_private
        case Empty() | OneRow() | Released():
            return False
        case Filter() | Project() | Window() | Sort() | SemiJoin():
            return is_private(plan.child)
        case Aggregate(child=child, keys=keys):
            return is_private(child) and any(is_unit(value) for _, value in keys)
        case Distinct(child=child):
            return is_private(child) and any(field.unit for field in child.fields)
        case Join(left=left, right=right) | SetOperation(left=left, right=right):
            return is_private(left) or is_private(right)
        case _:
            assert_never(plan)


def is_unit(value: Scalar) -> bool:
    return isinstance(value, Ref) and value.field.unit


def derive(plan: Plan, limit: int) -> Derivation:
    """The stability of a private relation, with the rules that show it. `limit` caps lists of keys."""
    match plan:
        case Scan(table=table, fields=fields, columns=columns):
            if not table.is_private:
                raise NotSupported("a public table cannot stand here", hint="Join it to the result instead.")
            return Derivation("scan", relations.scan(table, fields, columns), note=table.name)
        case Filter(child=child, predicate=predicate):
            premise = derive(child, limit)
            check_scalar(predicate)
            return Derivation("filter_rows", relations.filter_rows(premise.conclusion, predicate), (premise,))
        case SemiJoin(child=child, source=source, negated=negated):
            premise, other = derive(child, limit), derive(source, limit)
            conclusion = relations.semi_join(premise.conclusion, other.conclusion)
            return Derivation("semi_join", conclusion, (premise, other), "NOT IN" if negated else "IN")
        case Project(child=child, items=items):
            premise = derive(child, limit)
            for _, value in items:
                if not is_unit(value):
                    check_scalar(value)
            return Derivation("project", relations.project(premise.conclusion, items, limit), (premise,))
        case SetOperation(kind=SetKind.UNION_ALL, left=left, right=right, fields=fields):
            premise, other = derive(left, limit), derive(right, limit)
            sides = (left.fields, right.fields)
            conclusion = relations.union_all(premise.conclusion, other.conclusion, fields, sides)
            return Derivation("union_all", conclusion, (premise, other))
        case SetOperation(kind=kind):
            raise NotSupported(
                f"{kind.value} below an aggregate would compare rows of different units",
                hint="Use UNION ALL, or aggregate each side first.",
            )
        case Aggregate(child=child, keys=keys, aggregates=aggregates, sets=sets):
            premise = derive(child, limit)
            if len(sets) != 1:
                raise NotSupported("grouping sets over the unit are not supported")
            for _, value in keys:
                if not is_unit(value):
                    check_scalar(value)
            for _, call in aggregates:
                check_scalar(call)
            conclusion = relations.aggregate_by_unit(premise.conclusion, keys, aggregates, limit)
            return Derivation("aggregate_by_unit", conclusion, (premise,))
        case Join():
            raise NotSupported(
                "joins with a private table are not supported yet",
                hint="Aggregate the private table in a subquery first, then join the result.",
            )
        case Window():
            raise NotSupported(
                "window functions over rows of a private table are not supported",
                hint="Aggregate first; window functions over aggregates are free.",
            )
        case Sort():
            raise NotSupported(
                "LIMIT and OFFSET below an aggregate would choose rows by other units' rows",
                hint="Aggregate first, then limit the result.",
            )
        case Distinct() | Empty() | OneRow() | Released():
            raise NotSupported("this combination of private and public rows is not supported")
        case _:
            assert_never(plan)


def check_scalar(value: Scalar) -> None:
    """Refuse what has no place in a private expression: the unit's own value, noise, and subqueries left over."""
    for part in walk(value):
        if isinstance(part, Subquery):
            raise NotSupported(
                "this subquery would compare rows of different units",
                hint="Subqueries that return released values, and IN (SELECT unit …), are supported.",
                position=part.position,
            )
        if isinstance(part, IntervalEnd):
            raise NotSupported(f"{part.name} needs a noisy number", hint=INTERVAL_HINT, position=part.position)
        if isinstance(part, Ref) and not part.field.readable:
            raise NotSupported(
                f'the unit "{part.field.name}" cannot be used here', hint=UNIT_HINT, position=part.position
            )
