"""Inner joins (FROM a, b, c WHERE …) as a list of relations and conditions, joined so that each join has a condition.

Claim: the plan that comes out has the same rows.
Because: inner joins and conjunctions may be taken in any order; no condition is dropped, and none is added.
Needs: expressions that are total, so that none fails earlier than it would have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce

from dpsql.plan.nodes import Filter, Join, JoinKind, Plan, SemiJoin, SetOperation, inputs
from dpsql.plan.scalars import Call, Op, Scalar, both, has_subquery, refs
from dpsql.privacy.derive import is_private
from dpsql.privacy.owners import equal_owners
from dpsql.privacy.refine import conjuncts
from dpsql.privacy.rules.joins import has_equality
from dpsql.types import BOOLEAN


def flatten(plan: Plan) -> tuple[list[Plan], list[Scalar]]:
    """The relations that inner joins bring together, and all conditions on them."""
    match plan:
        case Filter(child=child, predicate=predicate):
            relations, conditions = flatten(child)
            return relations, [*conditions, *conjuncts(factored(predicate))]
        case Join(kind=JoinKind.INNER | JoinKind.CROSS, left=left, right=right, condition=condition):
            mine, theirs = flatten(left), flatten(right)
            own = [] if condition is None else list(conjuncts(factored(condition)))
            return [*mine[0], *theirs[0]], [*mine[1], *theirs[1], *own]
        case _:
            return [plan], []


def factored(condition: Scalar) -> Scalar:
    """(a AND x) OR (a AND y) as a AND (x OR y): a condition of every alternative can join relations."""
    if not isinstance(condition, Call) or condition.op not in (Op.AND, Op.OR):
        return condition
    if condition.op is Op.AND:
        return Call(Op.AND, tuple(factored(part) for part in condition.args), BOOLEAN)
    alternatives = [list(conjuncts(factored(part))) for part in _alternatives(condition)]
    common = [part for part in alternatives[0] if all(part in other for other in alternatives[1:])]
    if not common:
        return condition
    rests = [[part for part in parts if part not in common] for parts in alternatives]
    # A OR (A AND x) is A.
    shared = [] if any(not rest for rest in rests) else [reduce(_either, map(_all, rests))]
    return _all([*common, *shared])


def _alternatives(condition: Scalar) -> list[Scalar]:
    if isinstance(condition, Call) and condition.op is Op.OR:
        return [part for arg in condition.args for part in _alternatives(arg)]
    return [condition]


def _all(parts: Sequence[Scalar]) -> Scalar:
    result: Scalar | None = None
    for part in parts:
        result = both(result, part)
    assert result is not None
    return result


def _either(left: Scalar, right: Scalar) -> Scalar:
    return Call(Op.OR, (left, right), BOOLEAN)


def joined(relations: Sequence[Plan], conditions: Sequence[Scalar]) -> tuple[Plan, list[Scalar]]:
    """Join one relation after the other, each by a condition on those before it; and the conditions left for a filter.

    Private relations come first: a table that refers to another is then joined to it directly, and gets its owner.
    """
    private = [plan for plan in relations if is_private(plan)]
    public = [plan for plan in relations if not is_private(plan)]
    result, *waiting = [*private, *public]
    rest = list(conditions)
    everything = {field.id for plan in relations for field in plan.fields}
    while waiting:
        chosen = next((plan for plan in waiting if _is_tied(result, plan, rest, everything)), waiting[0])
        waiting.remove(chosen)
        here = {field.id for field in (*result.fields, *chosen.fields)}
        mine = [part for part in rest if _joins(part, result, chosen) and _within(part, here, everything)]
        rest = [part for part in rest if part not in mine]
        condition = _all(mine) if mine else None
        result = Join(JoinKind.CROSS if condition is None else JoinKind.INNER, result, chosen, condition)
    return result, rest


def _is_tied(result: Plan, plan: Plan, conditions: Sequence[Scalar], everything: set[int]) -> bool:
    here = {field.id for field in (*result.fields, *plan.fields)}
    usable = [part for part in conditions if _within(part, here, everything)]
    if is_private(result) and is_private(plan):
        return equal_owners(usable, result.fields, plan.fields)
    return has_equality([part for part in usable if _joins(part, result, plan)], plan.fields)


def _within(condition: Scalar, here: set[int], everything: set[int]) -> bool:
    """Whether a condition reads only these columns; outer columns count as constants."""
    return all(ref.field.id in here for ref in refs(condition) if ref.field.id in everything)


def _joins(condition: Scalar, left: Plan, right: Plan) -> bool:
    """Whether a condition compares the two. Subqueries are left to a filter above, which knows what they may read."""
    used = {ref.field.id for ref in refs(condition)}
    ties = bool(used & {f.id for f in left.fields}) and bool(used & {f.id for f in right.fields})
    return ties and not has_subquery(condition)


# ------------------------------------------------------------
# The rows that a query reads before its conditions select among them. One bound search over them serves all queries.


def unfiltered(plan: Plan) -> Plan:
    """The same relation without WHERE, and without IN and EXISTS on the unit; joins keep their conditions."""
    match plan:
        case Filter(child=child) | SemiJoin(child=child):
            return unfiltered(child)
        case Join() | SetOperation():
            return replace(plan, left=unfiltered(plan.left), right=unfiltered(plan.right))
        case _ if inputs(plan):
            return replace(plan, child=unfiltered(plan.child))  # type: ignore[union-attr,arg-type]
        case _:
            return plan
