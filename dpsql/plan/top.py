"""Finds the keys with the most: SELECT k, COUNT(…) … GROUP BY k ORDER BY COUNT(…) DESC LIMIT n."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from dpsql.plan.nodes import Aggregate, Plan, Project, Sort, nodes
from dpsql.plan.scalars import Ref, Scalar


def top_keys(plan: Plan) -> Mapping[int, int]:
    """By the field of an aggregate, how many keys are looked at: those where it is largest.

    Nothing else in the query reads its GROUP BY: other aggregates are seen of the same keys only.
    """
    read = Counter(field.id for node in nodes(plan) if isinstance(node, Aggregate) for field, _ in node.aggregates)
    found: dict[int, int] = {}
    for node in nodes(plan):
        if not isinstance(node, Sort) or node.limit is None or not node.keys or not node.keys[0].descending:
            continue
        largest = _aggregate(node.keys[0].value, node.child)
        if largest is not None and read[largest] == 1:
            found[largest] = node.limit + node.offset
    return found


def _aggregate(value: Scalar, plan: Plan) -> int | None:
    """The field of an aggregate below, where `value` shows it as it is and every key makes a row."""
    while isinstance(value, Ref) and isinstance(plan, Project):
        value, plan = {field.id: item for field, item in plan.items}[value.field.id], plan.child
    if not isinstance(plan, Aggregate) or len(plan.sets) != 1 or not plan.keys or not isinstance(value, Ref):
        return None
    return next((field.id for field, _ in plan.aggregates if field.id == value.field.id), None)
