"""What a plan is made of: is it empty, what does it take from outside, where does a column come from?"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import replace

from dpsql.plan.nodes import (
    Distinct,
    Empty,
    Filter,
    Join,
    Plan,
    Project,
    Scan,
    SetKind,
    SetOperation,
    Sort,
    Window,
    map_scalars,
    nodes,
    scalars,
)
from dpsql.plan.scalars import (
    Aggregated,
    Correlated,
    Field,
    InStage,
    Ref,
    Scalar,
    StageValue,
    Subquery,
    rebuild,
    refs,
    walk,
)


def is_empty(plan: Plan) -> bool:
    """Whether a relation is known to have no rows."""
    match plan:
        case Empty():
            return True
        case Filter() | Project() | Sort() | Distinct() | Window():
            return is_empty(plan.child)
        case SetOperation(kind=SetKind.UNION_ALL | SetKind.UNION, left=left, right=right):
            return is_empty(left) and is_empty(right)
        case _:
            return False


def free_fields(plan: Plan) -> set[int]:
    """Fields that a plan uses but does not make: it is correlated with what stands around it."""
    return {ref.field.id for ref in free_refs(plan)}


def free_refs(plan: Plan) -> list[Ref]:
    made: set[int] = set()
    used: dict[int, Ref] = {}
    for node in nodes(plan):
        made |= {field.id for field in node.fields}
        if isinstance(node, Window):
            made |= {field.id for field, _ in node.items}
        for value in scalars(node):
            used |= {ref.field.id: ref for ref in refs(value)}
    return [ref for field, ref in used.items() if field not in made]


def reads_private(plan: Plan) -> bool:
    """Whether a private table stands anywhere in a plan, above or below a release."""
    return any(isinstance(node, Scan) and node.table.is_private for node in nodes(plan))


def without_places(plan: Plan) -> Plan:
    """The same plan without places in a text: what stands in a view is not the analyst's."""

    def change(value: Scalar) -> Scalar:
        changed = rebuild(value, change)
        match changed:
            case Ref():
                return replace(changed, position=None)
            case Aggregated():
                return replace(changed, position=None)
            case Subquery(plan=inner):
                return replace(changed, plan=map_scalars(inner, change), position=None)
            case _:
                return changed

    return map_scalars(plan, change)


def stages_of(plan: Plan, values: list[Scalar]) -> Iterator[int]:
    every = [value for node in nodes(plan) for value in scalars(node)] + values
    for value in every:
        for part in walk(value):
            if isinstance(part, StageValue | InStage):
                yield part.stage
            elif isinstance(part, Correlated):
                yield from stages_of(part.plan, [])


def source_of(field: Field, plan: Plan, known: Set[int]) -> int:
    """The field, further down, that an output column shows unchanged; the search stops at a known one."""
    if field.id in known:
        return field.id
    match plan:
        case Project(child=child, items=items):
            for mine, value in items:
                if mine.id == field.id and isinstance(value, Ref):
                    return source_of(value.field, child, known)
            return field.id
        case Filter(child=child) | Sort(child=child) | Window(child=child) | Distinct(child=child):
            return source_of(field, child, known)
        case Join(left=left, right=right):
            side = left if any(mine.id == field.id for mine in left.fields) else right
            return source_of(field, side, known)
        case _:
            return field.id
