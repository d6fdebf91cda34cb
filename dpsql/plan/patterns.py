"""Patterns in plans: running totals, monotone outputs, top keys, sums of cells.

Finds running totals of aggregates: SUM(COUNT(*)) OVER (PARTITION BY some keys ORDER BY the others).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal

from dpsql.plan.nodes import Aggregate, Distinct, Filter, Plan, Project, Sort, Window, nodes, scalars
from dpsql.plan.scalars import Agg, Aggregated, Call, Const, Field, Op, Ref, Scalar, SortKey, Windowed, rebuild, refs
from dpsql.types import Type, decimal

RUNNING = ("", *(f"{kind} BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW" for kind in ("ROWS", "RANGE", "GROUPS")))


@dataclass(frozen=True, slots=True)
class Running:
    """A running total of an aggregate: the keys along which it runs, and their order."""

    along: tuple[tuple[int, SortKey], ...]  # positions among the keys of the GROUP BY
    singly: bool  # whether the aggregate itself is used as well


def running_totals(plan: Plan) -> Mapping[int, Running]:
    """By the field of an aggregate, the first running total of it."""
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
    """The field of the aggregate below that a column shows unchanged."""
    while isinstance(value, Ref) and isinstance(plan, Window | Project):
        if isinstance(plan, Project):
            items: Mapping[int, Scalar] = {field.id: item for field, item in plan.items}
            if value.field.id not in items:
                return None
            value = items[value.field.id]
        plan = plan.child
    return value.field.id if isinstance(value, Ref) else None


def _running(call: Windowed, below: Aggregate, window: Window) -> tuple[int, tuple[tuple[int, SortKey], ...] | None]:
    """The aggregate of a running total and its keys in order; every key must be in PARTITION BY or in ORDER BY."""
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
    """Aggregates that are used other than in running totals."""
    same = {field.id: field.id for field, _ in below.aggregates}  # columns that show an aggregate unchanged
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


# ------------------------------------------------------------
# Finds monotone outputs, whatever the data: running totals of counts, and their fractions of the whole.


@dataclass(frozen=True, slots=True)
class Rising:
    """A monotone output: the outputs that partition it, and those along which it rises, by position and direction."""

    apart: tuple[int, ...]
    along: tuple[tuple[int, bool], ...]  # True: descending


def rising_outputs(plan: Plan) -> Mapping[int, Rising]:
    """The outputs that never decrease for non-negative counts, by position."""
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
    """The columns of a plan in terms of the groups below it.

    Columns are followed, never substituted: twenty nested subqueries of `a + a` would become a million parts.
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
        """The expression behind a column; its parts may be columns again."""
        while isinstance(value, Ref) and value.field in self._items:
            value = self._items[value.field]
        return value

    def number(self, value: Scalar) -> int:
        """Equal numbers for expressions that are equal in terms of the groups."""
        if isinstance(value, Ref) and value.field in self._of_fields:
            return self._of_fields[value.field]
        parts = rebuild(self.shown(value), lambda part: Ref(Field(self.number(part), "", part.type)))
        found = self._numbers.setdefault(parts, len(self._numbers))
        if isinstance(value, Ref):
            self._of_fields[value.field] = found
        return found


def _total_in(value: Scalar, below: _Below) -> Windowed | None:
    """The running total that a value increases with."""
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
    """Whether a value sums the same counts over the running total's whole partition, where it is constant."""
    value = below.shown(value)
    while isinstance(value, Call) and value.op in (Op.CAST, Op.NULLIF):
        value = below.shown(value.args[0])
    if not isinstance(value, Windowed) or value.function != "sum" or value.where is not None:
        return False
    ours, theirs = ([below.number(part) for part in (*each.args, *each.partition)] for each in (value, total))
    same = len(value.partition) == len(total.partition) and ours == theirs
    return same and not value.order and not value.frame


# ------------------------------------------------------------
# Finds top keys: SELECT k, COUNT(…) … GROUP BY k ORDER BY COUNT(…) DESC LIMIT n.


def top_keys(plan: Plan) -> Mapping[int, int]:
    """By the field of an aggregate, the number of keys used: those where it is largest.

    Nothing else in the query reads its GROUP BY: other aggregates are used for the same keys only.
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
    """The field of an aggregate below, if `value` shows it unchanged and every key has a row."""
    while isinstance(value, Ref) and isinstance(plan, Project):
        value, plan = {field.id: item for field, item in plan.items}[value.field.id], plan.child
    if not isinstance(plan, Aggregate) or len(plan.sets) != 1 or not plan.keys or not isinstance(value, Ref):
        return None
    return next((field.id for field, _ in plan.aggregates if field.id == value.field.id), None)


# ------------------------------------------------------------
# Sums of the cells of a noisy table, grouped by some of its keys.


def added_up(
    part: Plan,
    chosen: tuple[int, ...],
    keys: dict[int, Field],
    sums: dict[int, Field],
    new_field: Callable[[str, Type], Field],
) -> tuple[Plan, dict[int, Field], dict[int, Field]]:
    """The cells of a set with some of the keys, by these keys and sums."""
    kept = {i: new_field(keys[i].name, keys[i].type) for i in chosen}
    wide = {old: new_field(field.name, decimal(28, 0)) for old, field in sums.items()}
    whole = {old: new_field(field.name, field.type) for old, field in sums.items()}
    added = Aggregate(
        part,
        tuple((kept[i], Ref(keys[i])) for i in chosen),
        tuple((wide[old], Aggregated(Agg.SUM, (Ref(field),), wide[old].type)) for old, field in sums.items()),
        (tuple(range(len(chosen))),),
    )
    casts: list[tuple[Field, Scalar]] = [
        (field, Call(Op.CAST, (Ref(wide[old]),), field.type)) for old, field in whole.items()
    ]
    return Project(added, (*((field, Ref(field)) for field in kept.values()), *casts)), kept, whole


def over(value: Scalar, sums: Mapping[int, Field]) -> Scalar:
    """An expression over the sums of one set."""
    if isinstance(value, Ref) and value.field.id in sums:
        return Ref(sums[value.field.id])
    return rebuild(value, lambda part: over(part, sums))
