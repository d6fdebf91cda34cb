"""Removes columns that are not read from plans."""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import assert_never

from dpsql.plan.nodes import (
    Aggregate,
    Distinct,
    Empty,
    Filter,
    Join,
    OfUnit,
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
from dpsql.plan.scalars import Field, Ref, Scalar
from dpsql.plan.visit import fields_read


def pruned(plan: Plan, wanted: Set[int]) -> Plan:
    """The same rows with at least the columns of these ids; others may be missing."""
    match plan:
        case Scan(table=table, fields=fields, columns=columns):
            kept = [i for i, field in enumerate(fields) if field.id in wanted]
            return Scan(table, tuple(fields[i] for i in kept), tuple(columns[i] for i in kept))
        case Project(child=child, items=items):
            shown = tuple((field, value) for field, value in items if field.id in wanted)
            return Project(pruned(child, _read(value for _, value in shown)), shown)
        case Filter(child=child, predicate=predicate):
            return Filter(pruned(child, wanted | _read([predicate])), predicate)
        case Sort(child=child, keys=keys, limit=limit, offset=offset, fields=fields):
            left = tuple(field for field in fields if field.id in wanted)
            below = {field.id for field in left} | _read(key.value for key in keys)
            return Sort(pruned(child, below), keys, limit, offset, left)
        case Window(child=child, items=windows):
            calls = tuple((field, call) for field, call in windows if field.id in wanted)
            below = {*wanted, *_read(call for _, call in calls)}
            return Window(pruned(child, below), calls) if calls else pruned(child, below)
        case Aggregate(child=child, keys=grouped, aggregates=aggregates, sets=sets):
            kept_calls = tuple((field, call) for field, call in aggregates if field.id in wanted)
            read = _read([*(value for _, value in grouped), *(call for _, call in kept_calls)])
            return Aggregate(pruned(child, read), grouped, kept_calls, sets)
        case Join(kind=kind, left=left_side, right=right_side, condition=condition):
            below = {*wanted, *_read([] if condition is None else [condition])}
            return Join(kind, pruned(left_side, below), pruned(right_side, below), condition)
        case SemiJoin(child=child, source=source, negated=negated):
            return SemiJoin(pruned(child, wanted), pruned(source, frozenset()), negated)
        case OfUnit(child=child, owner=owner):
            return OfUnit(pruned(child, wanted), owner)
        case Distinct(child=child):
            return Distinct(_whole(child))
        case SetOperation(kind=SetKind.UNION_ALL, left=one, right=other, fields=fields):
            places = [i for i, field in enumerate(fields) if field.id in wanted]
            return SetOperation(
                SetKind.UNION_ALL, _only(one, places), _only(other, places), tuple(fields[i] for i in places)
            )
        case SetOperation(kind=set_kind, left=one, right=other, fields=fields):
            return SetOperation(set_kind, _whole(one), _whole(other), fields)
        case Empty(fields=fields):
            return Empty(tuple(field for field in fields if field.id in wanted))
        case OneRow() | Released():
            return plan
        case _:
            assert_never(plan)


def _whole(plan: Plan) -> Plan:
    return pruned(plan, {field.id for field in plan.fields})


def _only(side: Plan, places: list[int]) -> Plan:
    """A side of a set operation with only the columns at these positions."""
    shown: list[tuple[Field, Scalar]] = [(side.fields[i], Ref(side.fields[i])) for i in places]
    if len(places) == len(side.fields):
        return _whole(side)
    return Project(pruned(side, {field.id for field, _ in shown}), tuple(shown))


def _read(values: Iterable[Scalar]) -> set[int]:
    return {field.id for field in fields_read(values)}
