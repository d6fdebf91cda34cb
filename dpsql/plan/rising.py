"""Finds outputs that rise along others whatever the data: running totals of counts, and their shares of the whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal

from dpsql.plan.nodes import Aggregate, Distinct, Filter, Plan, Project, Sort, Window
from dpsql.plan.running import RUNNING
from dpsql.plan.scalars import Agg, Call, Const, Field, Op, Ref, Scalar, Windowed, rebuild


@dataclass(frozen=True, slots=True)
class Rising:
    """The outputs within which one rises, and those along which it does: places, from the lowest on or the highest."""

    apart: tuple[int, ...]
    along: tuple[tuple[int, bool], ...]  # True: descending


def rising_outputs(plan: Plan) -> Mapping[int, Rising]:
    """By the place of an output that counts cannot let fall."""
    shown = [_in_groups(Ref(field), plan) for field in plan.fields]
    counts = _counts_below(plan)
    found: dict[int, Rising] = {}
    for place, value in enumerate(shown):
        total = _total_in(value, counts)
        if total is None or any(key.nulls_first != key.descending for key in total.order):
            continue
        keys = [*total.partition, *(key.value for key in total.order)]
        if all(key in shown for key in keys):
            along = tuple((shown.index(key.value), key.descending) for key in total.order)
            found[place] = Rising(tuple(map(shown.index, total.partition)), along)
    return found


def _in_groups(value: Scalar, plan: Plan) -> Scalar:
    """The same number in terms of the groups below: window functions stand where their columns stood."""
    match plan:
        case Sort(child=child) | Filter(child=child) | Distinct(child=child):
            return _in_groups(value, child)
        case Project(child=child, items=items):
            return _in_groups(_replaced(value, dict(items)), child)
        case Window(child=child, items=windows):
            return _in_groups(_replaced(value, dict(windows)), child)
        case _:
            return value


def _replaced(value: Scalar, items: Mapping[Field, Scalar]) -> Scalar:
    if isinstance(value, Ref):
        return items.get(value.field, value)
    return rebuild(value, lambda part: _replaced(part, items))


def _counts_below(plan: Plan) -> set[Field]:
    while isinstance(plan, Sort | Filter | Distinct | Project | Window):
        plan = plan.child
    if not isinstance(plan, Aggregate) or len(plan.sets) != 1:
        return set()
    return {field for field, call in plan.aggregates if call.function is Agg.COUNT}


def _total_in(value: Scalar, counts: set[Field]) -> Windowed | None:
    """The running total that a number rises with."""
    match value:
        case Windowed(function="sum", args=(Ref(field=field),), order=(_, *_), where=None):
            return value if field in counts and value.frame in RUNNING else None
        case Call(op=Op.CAST, args=(inner,)):
            return _total_in(inner, counts)
        case Call(op=Op.ROUND, args=(inner, *digits)) if all(isinstance(part, Const) for part in digits):
            return _total_in(inner, counts)
        case Call(op=Op.MUL, args=(left, right)):
            if _is_positive(left):
                left, right = right, left
            return _total_in(left, counts) if _is_positive(right) else None
        case Call(op=Op.DIV, args=(left, right)):
            total = _total_in(left, counts)
            return total if _is_positive(right) or (total is not None and _is_whole(right, total)) else None
        case _:
            return None


def _is_positive(value: Scalar) -> bool:
    while isinstance(value, Call) and value.op is Op.CAST:
        (value,) = value.args
    return isinstance(value, Const) and isinstance(value.value, int | float | Decimal) and value.value > 0


def _is_whole(value: Scalar, total: Windowed) -> bool:
    """The sum of the same counts over all rows within which the total runs: the same for all of them."""
    while isinstance(value, Call) and value.op in (Op.CAST, Op.NULLIF):
        value = value.args[0]
    if not isinstance(value, Windowed) or value.function != "sum" or value.where is not None:
        return False
    return value.args == total.args and value.partition == total.partition and not value.order and not value.frame
