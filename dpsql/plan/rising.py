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
    below = _Below(plan)
    shown = [below.number(Ref(field)) for field in plan.fields]
    found: dict[int, Rising] = {}
    for place, field in enumerate(plan.fields):
        total = _total_in(Ref(field), below)
        if total is None or any(key.nulls_first != key.descending for key in total.order):
            continue
        partition = [below.number(key) for key in total.partition]
        order = [(below.number(key.value), key.descending) for key in total.order]
        if all(key in shown for key in (*partition, *(key for key, _ in order))):
            along = tuple((shown.index(key), descending) for key, descending in order)
            found[place] = Rising(tuple(map(shown.index, partition)), along)
    return found


class _Below:
    """What the columns of a plan are, in terms of the groups below it.

    Columns are followed, never written into each other: twenty subqueries of `a + a` would become a million parts.
    """

    def __init__(self, plan: Plan) -> None:
        self._items: dict[Field, Scalar] = {}
        while isinstance(plan, Sort | Filter | Distinct | Project | Window):
            if isinstance(plan, Project | Window):
                self._items |= {field: value for field, value in plan.items if value != Ref(field)}
            plan = plan.child
        is_grouped = isinstance(plan, Aggregate) and len(plan.sets) == 1
        aggregates = plan.aggregates if is_grouped and isinstance(plan, Aggregate) else ()
        self.counts = {field for field, call in aggregates if call.function is Agg.COUNT}
        self._of_fields: dict[Field, int] = {}
        self._numbers: dict[Scalar, int] = {}

    def shown(self, value: Scalar) -> Scalar:
        """What a column shows, if it is one; its parts may be columns again."""
        while isinstance(value, Ref) and value.field in self._items:
            value = self._items[value.field]
        return value

    def number(self, value: Scalar) -> int:
        """The same number for expressions that are the same in terms of the groups."""
        if isinstance(value, Ref) and value.field in self._of_fields:
            return self._of_fields[value.field]
        parts = rebuild(self.shown(value), lambda part: Ref(Field(self.number(part), "", part.type)))
        found = self._numbers.setdefault(parts, len(self._numbers))
        if isinstance(value, Ref):
            self._of_fields[value.field] = found
        return found


def _total_in(value: Scalar, below: _Below) -> Windowed | None:
    """The running total that a number rises with."""
    divisors: list[Scalar] = []
    while True:
        match below.shown(value):
            case Windowed(function="sum", args=(argument,), order=(_, *_), where=None) as total:
                counted = below.shown(argument)
                is_count = isinstance(counted, Ref) and counted.field in below.counts
                is_running = is_count and total.frame in RUNNING
                return total if is_running and all(_is_whole(part, total, below) for part in divisors) else None
            case Call(op=Op.CAST, args=(inner,)):
                value = inner
            case Call(op=Op.ROUND, args=(inner, *digits)) if all(
                isinstance(below.shown(part), Const) for part in digits
            ):
                value = inner
            case Call(op=Op.MUL, args=(left, right)):
                if _is_positive(left, below):
                    left, right = right, left
                if not _is_positive(right, below):
                    return None
                value = left
            case Call(op=Op.DIV, args=(left, right)):
                if not _is_positive(right, below):
                    divisors.append(right)
                value = left
            case _:
                return None


def _is_positive(value: Scalar, below: _Below) -> bool:
    value = below.shown(value)
    while isinstance(value, Call) and value.op is Op.CAST:
        value = below.shown(value.args[0])
    return isinstance(value, Const) and isinstance(value.value, int | float | Decimal) and value.value > 0


def _is_whole(value: Scalar, total: Windowed, below: _Below) -> bool:
    """The sum of the same counts over all rows within which the total runs: the same for all of them."""
    value = below.shown(value)
    while isinstance(value, Call) and value.op in (Op.CAST, Op.NULLIF):
        value = below.shown(value.args[0])
    if not isinstance(value, Windowed) or value.function != "sum" or value.where is not None:
        return False
    ours, theirs = ([below.number(part) for part in (*each.args, *each.partition)] for each in (value, total))
    same = len(value.partition) == len(total.partition) and ours == theirs
    return same and not value.order and not value.frame
