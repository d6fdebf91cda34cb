"""Finds running totals of aggregates: SUM(COUNT(*)) OVER (PARTITION BY some keys ORDER BY the others)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from dpsql.plan.nodes import Aggregate, Plan, Project, Window, nodes, scalars
from dpsql.plan.scalars import Ref, Scalar, SortKey, Windowed, refs

RUNNING = ("", *(f"{kind} BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW" for kind in ("ROWS", "RANGE", "GROUPS")))


@dataclass(frozen=True, slots=True)
class Running:
    """How an aggregate is added up: along which of its keys, in which order."""

    along: tuple[tuple[int, SortKey], ...]  # places among the keys of the GROUP BY
    singly: bool  # the aggregate itself is asked for as well


def running_totals(plan: Plan) -> Mapping[int, Running]:
    """By the field of an aggregate, the first running total that is asked for of it."""
    found: dict[int, Running] = {}
    for node in nodes(plan):
        if isinstance(node, Window) and (below := _aggregate_below(node)) is not None:
            for _, call in node.items:
                target, along = _running(call, below, node)
                if along is not None:
                    found.setdefault(target, Running(along, target in _used_singly(plan, below)))
    return found


def _aggregate_below(plan: Plan) -> Aggregate | None:
    while isinstance(plan, Window | Project):
        plan = plan.child
    return plan if isinstance(plan, Aggregate) and len(plan.sets) == 1 else None


def _origin(value: Scalar, plan: Plan) -> int | None:
    """The field of the aggregate below that a column shows as it is."""
    while isinstance(value, Ref) and isinstance(plan, Window | Project):
        if isinstance(plan, Project):
            items: Mapping[int, Scalar] = {field.id: item for field, item in plan.items}
            if value.field.id not in items:
                return None
            value = items[value.field.id]
        plan = plan.child
    return value.field.id if isinstance(value, Ref) else None


def _running(call: Windowed, below: Aggregate, window: Window) -> tuple[int, tuple[tuple[int, SortKey], ...] | None]:
    """The aggregate that is added up and its keys in order; every key must be in PARTITION BY or in ORDER BY."""
    if not _is_sum(call) or not call.order or call.frame not in RUNNING:
        return 0, None
    keys = [field.id for field, _ in below.keys]
    target = _origin(call.args[0], window.child)
    apart = [_origin(value, window.child) for value in call.partition]
    along = [_origin(key.value, window.child) for key in call.order]
    if target is None or target in keys or sorted(keys) != sorted(field or 0 for field in (*apart, *along)):
        return 0, None
    return target, tuple((keys.index(field or 0), key) for field, key in zip(along, call.order, strict=True))


def _is_sum(call: Windowed) -> bool:
    return call.function == "sum" and call.where is None


def _used_singly(plan: Plan, below: Aggregate) -> set[int]:
    """Aggregates that are shown, or used otherwise than added up."""
    same = {field.id: field.id for field, _ in below.aggregates}  # columns that show an aggregate as it is
    used: set[int] = set()
    for node in reversed(list(nodes(plan))):
        for field, value in _outputs(node):
            if isinstance(value, Ref) and isinstance(node, Project):
                if value.field.id in same:
                    same[field] = same[value.field.id]
            elif not (isinstance(value, Windowed) and _is_sum(value)):
                used |= {same[ref.field.id] for ref in refs(value) if ref.field.id in same}
    return used | {same[field.id] for field in plan.fields if field.id in same}


def _outputs(node: Plan) -> Iterator[tuple[int, Scalar]]:
    if isinstance(node, Project):
        yield from ((field.id, value) for field, value in node.items)
    else:
        yield from ((0, value) for value in scalars(node))
