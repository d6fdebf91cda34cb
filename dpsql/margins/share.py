"""Plans whose expressions do not say the same twice.

The text of an error repeats the expression it belongs to, so parts that stand in it several times would multiply.
Here they become columns below; and single values from subqueries become columns too, beside the rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from dpsql.plan.graph import Graph, Items
from dpsql.plan.inspect import free_fields
from dpsql.plan.nodes import Aggregate, Join, JoinKind, Plan, Project, Released, nodes
from dpsql.plan.scalars import Field, Ref, Scalar, Subquery, rebuild


def without_repetition(plan: Project, ids: itertools.count[int]) -> list[Items]:
    """The same columns, made by projections one above the other: what stands in several places is made further down."""
    graph = Graph(value for _, value in plan.items)
    several = [n for n, often in enumerate(graph.occurrences()) if often > 1 and graph.is_operation(n)]
    return graph.layers([field for field, _ in plan.items], several, ids)


def with_subqueries_beside(plan: Project, keys: Mapping[int, int]) -> Project:
    """The same columns, with released values from subqueries of one row joined to every row."""
    child = plan.child
    beside: list[tuple[Subquery, Field]] = []

    def replaced(value: Scalar) -> Scalar:
        nonlocal child
        if not isinstance(value, Subquery) or value.kind != "scalar":
            return rebuild(value, replaced)
        if free_fields(value.plan) or not _has_one_row(value.plan, keys):
            return value
        for known, field in beside:
            if known == value:
                return Ref(field)
        if not any(isinstance(node, Released) for node in nodes(value.plan)):
            return value
        child = Join(JoinKind.CROSS, child, value.plan, None)
        beside.append((value, value.plan.fields[0]))
        return Ref(value.plan.fields[0])

    items = tuple((field, replaced(value)) for field, value in plan.items)
    return Project(child, items)


def _has_one_row(plan: Plan, keys: Mapping[int, int]) -> bool:
    match plan:
        case Project(child=child):
            return _has_one_row(child, keys)
        case Released(measurement=measurement):
            return keys[measurement] == 0
        case Aggregate(keys=grouped, sets=sets):
            return not grouped and len(sets) <= 1
        case _:
            return False
