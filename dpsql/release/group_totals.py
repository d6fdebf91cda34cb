"""Totals over groups whose keys are not declared, measured as releases of their own.

Of unknown keys only those that enough units have are returned. What adds up the groups that were returned would miss
all others: `SELECT COUNT(*) FROM (SELECT city FROM people GROUP BY city)` would count the cities shown. Where plain SQL
gives the same value over the rows themselves, that is asked instead: the number of groups is a count of different keys,
and a total of groups is the aggregate by fewer keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from dpsql.plan.nodes import (
    Aggregate,
    Distinct,
    Filter,
    Join,
    JoinKind,
    Plan,
    Project,
    Sort,
    Window,
)
from dpsql.plan.scalars import (
    Agg,
    Aggregated,
    Array,
    Call,
    Case,
    Const,
    Field,
    Op,
    Ref,
    Scalar,
    both,
    rebuild,
    walk,
)
from dpsql.privacy.derive import is_private
from dpsql.privacy.estimators.assembly import narrowed
from dpsql.privacy.rules.aggregates import not_null
from dpsql.types import BIGINT, BOOLEAN, DOUBLE, TEXT, Type

Items = tuple[tuple[Field, Scalar], ...]
_FUNCTIONS = {function.value: function for function in (Agg.COUNT, Agg.SUM, Agg.AVG, Agg.MIN, Agg.MAX)}
# Of which the value over all rows is that of the values of groups.
_SAME_OF_PARTS = frozenset({Agg.SUM, Agg.MIN, Agg.MAX})


@dataclass(slots=True)
class _Groups:
    """A GROUP BY over private rows, and what is left of it further up: every group that meets `conditions`."""

    rows: Plan
    keys: Items
    aggregates: Mapping[int, Aggregated]
    shown: dict[int, Scalar]  # columns further up, in columns of the GROUP BY
    conditions: list[Scalar] = field(default_factory=list)  # on the rows
    cuts: list[tuple[int | None, int]] = field(default_factory=list)  # LIMIT and OFFSET, the innermost first

    def of_rows(self, value: Scalar | None) -> Scalar | None:
        """An expression further up over the rows themselves; None where it is not one of keys alone."""
        if value is None or (found := self.below(value)) is None:
            return None
        by_key = {key.id: expression for key, expression in self.keys}
        if any(isinstance(part, Ref) and part.field.id not in by_key for part in walk(found)):
            return None
        return _replaced(found, by_key)

    def aggregate(self, value: Scalar) -> Aggregated | None:
        """The aggregate that a column further up shows as it is."""
        found = self.below(value)
        return self.aggregates.get(found.field.id) if isinstance(found, Ref) else None

    def below(self, value: Scalar) -> Scalar | None:
        for part in walk(value):
            if not isinstance(part, Ref | Const | Call | Case) or (
                isinstance(part, Ref) and part.field.id not in self.shown
            ):
                return None
        return _replaced(value, self.shown)

    def single(self, partition: Iterable[Scalar]) -> bool:
        """Whether rows that agree in these values are one group."""
        found = [self.below(value) for value in partition]
        named = {value.field.id for value in found if isinstance(value, Ref)}
        return all(key.id in named for key, _ in self.keys)


class Coarser:
    """Rewrites aggregates and windows over unknown keys.

    `is_unknown` says of a GROUP BY over private rows whether a threshold chooses its keys.
    """

    def __init__(self, new_field: Callable[[str, Type], Field], is_unknown: Callable[[Aggregate], bool]) -> None:
        self._new_field = new_field
        self._check = is_unknown
        self._checked: dict[int, tuple[Aggregate, bool]] = {}  # by identity: plans are long to compare

    def rewritten(self, plan: Plan) -> Plan | None:
        match plan:
            case Aggregate():
                return self._aggregate(plan)
            case Window():
                return self._window(plan)
            case _:
                return None

    def _aggregate(self, plan: Aggregate) -> Plan | None:
        """An aggregation of groups as one of their rows; None where nothing of it can be.

        Claim: on the exact data each value is the same. The price is that of any releases of one query: all of them are
        measured by the same rules as if the analyst had asked for them.
        Because: groups partition the rows. So the number of groups is that of different keys, NULL among them; a sum of
        sums or counts is the sum or count of all rows, and so are the least and the largest; conditions and keys that
        are made of the groups' keys alone are the same in each row of a group.
        Needs: all groups. What noise or an order chooses (HAVING, LIMIT) is not measured, but for how many there are.
        """
        groups = self._groups(plan.child)
        if groups is None:
            return None
        if len(plan.sets) == 1 and groups.single(plan.keys[i][1] for i in plan.sets[0]):
            return None
        keys = [(key, groups.of_rows(value)) for key, value in plan.keys]
        if groups.cuts and plan.keys:
            return None
        coarse = _Coarse(
            groups, self._new_field, {value for _, value in keys if value} if len(plan.sets) == 1 else set()
        )
        found = {target.id: coarse.value(call) for target, call in plan.aggregates}
        left = tuple((target, call) for target, call in plan.aggregates if found[target.id] is None)
        if len(left) == len(plan.aggregates) or (left and plan.keys) or not all(value for _, value in keys):
            return None
        own = tuple((self._new_field(key.name, key.type), value) for key, value in keys if value is not None)
        result: Plan = coarse.release(own, plan.sets)
        if left:
            result = Join(JoinKind.CROSS, result, Aggregate(plan.child, (), left, plan.sets), None)
        items = [(key, Ref(new)) for (key, _), (new, _) in zip(plan.keys, own, strict=True)]
        totals = [(target, found[target.id] or Ref(target)) for target, _ in plan.aggregates]
        return Project(result, (*items, *totals))

    def _window(self, plan: Window) -> Plan | None:
        """Windows over all rows of a partition as releases by the partition's keys, joined to the groups.

        Claim, Because: as for an aggregation, with the keys of the partition.
        Needs: a partition that is not one group each, for whose own value no other is missing. Where the partition's
        own keys are unknown and too few units have them, the total is NULL.
        """
        groups = self._groups(plan.child)
        if groups is None or groups.cuts:
            return None
        parts: dict[tuple[Scalar, ...], _Coarse] = {}
        totals: dict[int, Scalar] = {}
        for target, call in plan.items:
            by = {value for part in call.partition if (value := groups.of_rows(part)) is not None}
            if call.order or call.frame or groups.single(call.partition):
                continue
            if any(groups.of_rows(part) is None for part in call.partition):
                continue
            if (function := _FUNCTIONS.get(call.function)) is None:
                continue
            coarse = parts.get(call.partition) or _Coarse(groups, self._new_field, by)
            total = coarse.value(Aggregated(function, call.args, call.type, False, call.where))
            if total is not None:
                parts[call.partition], totals[target.id] = coarse, total
        if not totals:
            return None
        left = tuple((target, call) for target, call in plan.items if target.id not in totals)
        result: Plan = Window(plan.child, left) if left else plan.child
        for partition, coarse in parts.items():
            keys: list[tuple[Field, Scalar]] = []
            same: Scalar | None = None
            for value in partition:
                of_rows = groups.of_rows(value)
                assert of_rows is not None
                keys.append((self._new_field(_name(value), value.type), of_rows))
                same = both(same, _same(value, Ref(keys[-1][0])))
            kind = JoinKind.LEFT if keys else JoinKind.CROSS
            result = Join(kind, result, coarse.release(tuple(keys), (tuple(range(len(keys))),)), same)
        fields = [*plan.child.fields, *(target for target, _ in plan.items)]
        return Project(result, tuple((each, totals.get(each.id, Ref(each))) for each in fields))

    def _is_unknown(self, plan: Aggregate) -> bool:
        if id(plan) not in self._checked:
            self._checked[id(plan)] = plan, self._check(plan)
        return self._checked[id(plan)][1]

    def _groups(self, plan: Plan) -> _Groups | None:
        """The GROUP BY with unknown keys that a relation shows, none of whose groups noise may have hidden."""
        match plan:
            case Aggregate(child=child, keys=keys, aggregates=aggregates, sets=sets) if is_private(child):
                if is_private(plan) or len(sets) != 1 or len(sets[0]) != len(keys) or not self._is_unknown(plan):
                    return None
                return _Groups(child, keys, {f.id: c for f, c in aggregates}, {f.id: Ref(f) for f in plan.fields})
            case Distinct(child=child) if is_private(child):
                grouped = groups_of(child)
                if is_private(plan) or not self._is_unknown(grouped):
                    return None
                return _Groups(child, grouped.keys, {}, {each.id: Ref(each) for each in child.fields})
            case Project(child=child, items=items):
                if (groups := self._groups(child)) is not None:
                    known = {target.id: groups.below(value) for target, value in items}
                    groups.shown = {target: value for target, value in known.items() if value is not None}
                return groups
            case Filter(child=child, predicate=predicate):
                groups = self._groups(child)
                if groups is None or groups.cuts or (condition := groups.of_rows(predicate)) is None:
                    return None
                groups.conditions.append(condition)
                return groups
            case Window(child=child):
                return self._groups(child)
            case Sort(child=child, limit=limit, offset=offset):
                groups = self._groups(child)
                if groups is not None and (limit is not None or offset):
                    groups.cuts.append((limit, offset))
                return groups
            case _:
                return None


class _Coarse:
    """An aggregation of the rows of groups, by fewer keys."""

    def __init__(self, groups: _Groups, new_field: Callable[[str, Type], Field], by: set[Scalar]) -> None:
        self._groups = groups
        self._new_field = new_field
        # What tells groups apart within one of the larger ones.
        self._apart = tuple(value for _, value in groups.keys if value not in by) or tuple(v for _, v in groups.keys)
        self._calls: dict[Aggregated, Field] = {}

    def value(self, call: Aggregated) -> Scalar | None:
        """The value of an aggregate of groups, made of aggregates of their rows; None where there is none."""
        if self._groups.cuts and not _counts_all(call):
            return None
        call = narrowed(call)
        where = self._groups.of_rows(call.where)
        if (where is None) != (call.where is None):
            return None
        match call:
            case Aggregated(function=Agg.COUNT, args=(), distinct=False):
                count = self._number(where)
                for limit, offset in self._groups.cuts:
                    count = _cut(count, limit, offset)
                return count
            case Aggregated(function=Agg.COUNT, args=(arg,), distinct=True):
                key = self._groups.of_rows(arg)
                return None if key is None else self._of(Agg.COUNT, (key,), BIGINT, where, distinct=True)
            case Aggregated(function=Agg.COUNT, args=(arg,)):
                return self._present(arg, where)
            case Aggregated(function=Agg.SUM | Agg.MIN | Agg.MAX as function, args=(arg,), distinct=False):
                return self._total(function, arg, where, call.type)
            case Aggregated(function=Agg.AVG, args=(arg,), distinct=False):
                total = self._total(Agg.SUM, arg, where, DOUBLE)
                number = None if total is None else self._present(arg, where)
                return None if total is None or number is None else _as(_ratio(total, number), call.type)
            case Aggregated(function=Agg.GROUPING, args=args):
                keys = tuple(key for arg in args if (key := self._groups.of_rows(arg)) is not None)
                return self._of(Agg.GROUPING, keys, call.type, None) if len(keys) == len(args) else None
            case _:
                return None

    def release(self, keys: Items, sets: tuple[tuple[int, ...], ...]) -> Aggregate:
        rows: Plan = self._groups.rows
        for condition in self._groups.conditions:
            rows = Filter(rows, condition)
        return Aggregate(rows, keys, tuple((target, call) for call, target in self._calls.items()), sets)

    def _total(self, function: Agg, arg: Scalar, where: Scalar | None, type_: Type) -> Scalar | None:
        """The sum, the least or the largest of what an aggregate has in each group."""
        inner = self._groups.aggregate(arg)
        if inner is None or inner.distinct:
            return None
        is_count = inner.function is Agg.COUNT and function is Agg.SUM
        if not is_count and (inner.function is not function or function not in _SAME_OF_PARTS):
            return None
        return _as(self._of(inner.function, inner.args, inner.type, both(inner.where, where)), type_)

    def _present(self, arg: Scalar, where: Scalar | None) -> Scalar | None:
        """In how many groups a column further up has a value."""
        if isinstance(arg, Const):
            return None if arg.value is None else self._number(where)
        if (key := self._groups.of_rows(arg)) is not None:
            return self._number(both(where, not_null(key)))
        inner = self._groups.aggregate(arg)
        if inner is None:
            return None
        if inner.function is Agg.COUNT:
            return self._number(where)
        if inner.function in (Agg.SUM, Agg.AVG, Agg.MIN, Agg.MAX):
            return self._number(both(both(inner.where, where), not_null(inner.args[0])))
        return None

    def _number(self, where: Scalar | None) -> Scalar:
        return self._of(Agg.COUNT, (Array(self._apart, TEXT),), BIGINT, where, distinct=True)

    def _of(
        self, function: Agg, args: tuple[Scalar, ...], type_: Type, where: Scalar | None, *, distinct: bool = False
    ) -> Ref:
        call = Aggregated(function, args, type_, distinct, where)
        if call not in self._calls:
            self._calls[call] = self._new_field(function.value, type_)
        return Ref(self._calls[call])


def groups_of(rows: Plan) -> Aggregate:
    """SELECT DISTINCT as the GROUP BY that it is."""
    return Aggregate(rows, tuple((each, Ref(each)) for each in rows.fields), (), (tuple(range(len(rows.fields))),))


def _name(value: Scalar) -> str:
    return value.field.name if isinstance(value, Ref) else "key"


def _counts_all(call: Aggregated) -> bool:
    return call.function is Agg.COUNT and not call.args and call.where is None


def _cut(count: Scalar, limit: int | None, offset: int) -> Scalar:
    """How many of so many rows LIMIT and OFFSET leave."""
    if offset:
        less = Call(Op.SUB, (count, Const(offset, BIGINT)), BIGINT)
        count = Call(Op.GREATEST, (less, Const(0, BIGINT)), BIGINT)
    return count if limit is None else Call(Op.LEAST, (count, Const(limit, BIGINT)), BIGINT)


def _ratio(total: Scalar, number: Scalar) -> Scalar:
    """NULL where there is no group, by the noisy number of them."""
    some = Call(Op.GT, (number, Const(0, BIGINT)), BOOLEAN)
    return Case(((some, Call(Op.DIV, (total, _as(number, DOUBLE)), DOUBLE)),), Const(None, DOUBLE), DOUBLE)


def _as(value: Scalar, type_: Type) -> Scalar:
    return value if value.type == type_ else Call(Op.CAST, (value,), type_)


def _same(left: Scalar, right: Scalar) -> Scalar:
    return Call(Op.NOT, (Call(Op.DISTINCT_FROM, (left, right), BOOLEAN),), BOOLEAN)


def _replaced(value: Scalar, by: Mapping[int, Scalar]) -> Scalar:
    if isinstance(value, Ref):
        return by[value.field.id]
    return rebuild(value, lambda part: _replaced(part, by))
