"""Plans whose expressions do not say the same twice.

The text of an error repeats the expression it belongs to, so parts that stand in it several times would multiply.
Here they become columns below; and single values from subqueries become columns too, beside the rows.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping

from dpsql.plan.inspect import free_fields
from dpsql.plan.nodes import Aggregate, Join, JoinKind, Plan, Project, Released, nodes
from dpsql.plan.scalars import Call, Case, Field, Ref, Scalar, Subquery, children, rebuild, walk

Items = tuple[tuple[Field, Scalar], ...]


def without_repetition(plan: Project, ids: itertools.count[int]) -> list[Items]:
    """The same columns, made by projections one above the other: what stands in several places is made further down."""
    fields, items = plan.child.fields, plan.items
    layers: list[Items] = []
    while repeated := _repeated([value for _, value in items]):
        names = {value: Field(next(ids), "part", value.type) for value in repeated}
        layers.append((*((field, Ref(field)) for field in fields), *((names[value], value) for value in repeated)))
        fields = (*fields, *names.values())
        items = tuple((field, _replaced(value, names)) for field, value in items)
    return [*layers, items]


def _repeated(values: list[Scalar]) -> list[Scalar]:
    """Operations that stand in several places and in which nothing else does; innermost first, layer by layer."""
    counts = Counter(part for value in values for part in _operations(value))
    several = {part for part, count in counts.items() if count > 1}
    return [
        part
        for part in counts
        if part in several and not any(inner in several for child in children(part) for inner in _operations(child))
    ]


def _operations(value: Scalar) -> Iterator[Scalar]:
    return filter(_is_comparable, walk(value))


def _is_comparable(value: Scalar) -> bool:
    """Operations, but for those with subqueries: each subquery is a question of its own."""
    return isinstance(value, Call | Case) and not any(isinstance(part, Subquery) for part in walk(value))


def _replaced(value: Scalar, names: Mapping[Scalar, Field]) -> Scalar:
    if _is_comparable(value) and value in names:
        return Ref(names[value])
    return rebuild(value, lambda part: _replaced(part, names))


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
