"""Outer joins that keep public rows: FROM states LEFT JOIN people … GROUP BY states.code.

A public row without a match belongs to no unit. Aggregates of private columns ignore it, and where the keys are the
public table's own, every key is returned in any case. So such a row may be left out where no result depends on it.
"""

from __future__ import annotations

from dpsql.errors import NotSupported
from dpsql.plan.nodes import Aggregate, Filter, Join, JoinKind, Plan
from dpsql.plan.scalars import Agg, Call, Op, Ref, Scalar, refs
from dpsql.privacy.derive import is_private
from dpsql.privacy.refine import conjuncts

_LENIENT = frozenset(
    {Op.AND, Op.OR, Op.IS_NULL, Op.IS_TRUE, Op.IS_FALSE, Op.DISTINCT_FROM, Op.COALESCE, Op.LEAST, Op.GREATEST}
)


def without_unowned_rows(plan: Aggregate) -> Aggregate:
    """The same aggregation over a join that drops public rows without a private row.

    Claim: each aggregate of each key is the same, except for keys without rows.
    Because: on a row that has no private side, every aggregate's argument (or its FILTER) is NULL, conditions on
    private columns do not pass, and keys are made of public columns alone.
    Needs: what is checked here. COUNT(*), IS NULL and keys of private columns would depend on such rows, and are
    refused.
    """
    conditions: list[Scalar] = []
    child: Plan = plan.child
    while isinstance(child, Filter):
        conditions += conjuncts(child.predicate)
        child = child.child
    if not isinstance(child, Join) or is_private(child.left) == is_private(child.right):
        return plan
    private_left = is_private(child.left)
    keeps_public = (JoinKind.RIGHT, JoinKind.FULL) if private_left else (JoinKind.LEFT, JoinKind.FULL)
    if child.kind not in keeps_public:
        return plan
    missing = {field.id for field in (child.left if private_left else child.right).fields}
    for _, key in plan.keys:
        if {ref.field.id for ref in refs(key)} & missing:
            raise _refusal("a key of a private column", _position(key))
    for _, call in plan.aggregates:
        unseen = any(_is_null(arg, missing) for arg in call.args) or (
            call.where is not None and _never_holds(call.where, missing)
        )
        if call.function is not Agg.GROUPING and not unseen:
            what = "COUNT(*)" if not call.args else "this aggregate"
            raise _refusal(what, call.position)
    for condition in conditions:
        reads = {ref.field.id for ref in refs(condition)} & missing
        if reads and not _never_holds(condition, missing):
            raise _refusal("this condition", _position(condition))
    kept = JoinKind.INNER if child.kind is not JoinKind.FULL else JoinKind.LEFT if private_left else JoinKind.RIGHT
    result: Plan = Join(kept, child.left, child.right, child.condition)
    for condition in conditions:
        result = Filter(result, condition)
    return Aggregate(result, plan.keys, plan.aggregates, plan.sets)


def _is_null(value: Scalar, missing: set[int]) -> bool:
    """Whether an expression is NULL wherever these columns are."""
    match value:
        case Ref(field=field):
            return field.id in missing
        case Call(op=Op.NULLIF | Op.IN, args=args):
            return _is_null(args[0], missing)
        case Call(op=Op.LEAST | Op.GREATEST | Op.COALESCE, args=args):
            return all(_is_null(arg, missing) for arg in args)
        case Call(op=op, args=args) if op not in _LENIENT:
            return any(_is_null(arg, missing) for arg in args)
        case _:
            return False


def _never_holds(condition: Scalar, missing: set[int]) -> bool:
    return any(_is_null(part, missing) for part in conjuncts(condition))


def _position(value: Scalar) -> int | None:
    return next((ref.position for ref in refs(value)), None)


def _refusal(what: str, position: int | None) -> NotSupported:
    return NotSupported(
        f"{what} would count unmatched rows of a public table, which belong to no unit",
        hint="Count a private column, as in COUNT(x), group by public columns, or use INNER JOIN.",
        position=position,
    )
