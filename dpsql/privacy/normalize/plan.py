"""Normalizes a private plan before it is proved and lowered: each join gets a condition, each subquery its kind, sums
per unit become exact, windows get a total order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from typing import assert_never

from dpsql.errors import MissingDeclaration, NotSupported
from dpsql.plan.nodes import (
    Aggregate,
    Distinct,
    Empty,
    Filter,
    Join,
    JoinKind,
    OfUnit,
    OneRow,
    Plan,
    Project,
    Released,
    Scan,
    SemiJoin,
    SetKind,
    SetOperation,
    Sort,
    Window,
)
from dpsql.plan.scalars import (
    FALSE,
    Agg,
    Aggregated,
    Call,
    Case,
    Const,
    Field,
    Op,
    Ref,
    Scalar,
    Subquery,
    Windowed,
    rebuild,
)
from dpsql.plan.visit import free_fields, is_empty
from dpsql.privacy.bounds import Facts, Interval, interval
from dpsql.privacy.derive import derive, is_private
from dpsql.privacy.normalize.joins import flatten, joined
from dpsql.privacy.normalize.subqueries import Correlation
from dpsql.privacy.owners import is_unit
from dpsql.privacy.rules.relations import per_unit_interval
from dpsql.privacy.rules.windows import in_total_order
from dpsql.types import BIGINT, BOOLEAN, DOUBLE, SAFE_DIGITS, Kind, Type, exact_decimal
from dpsql.types import integer as integer_type


class Normalizer:
    """Normalizes the private relations of one query.

    `stage` turns a subquery over public or released values into a constant; `public` prepares a relation without
    private rows for use in a private query; `limit` caps lists of keys.
    """

    def __init__(
        self,
        limit: int,
        ids: Iterator[int],
        stage: Callable[[Subquery, tuple[Field, ...]], Scalar],
        public: Callable[[Plan], Plan],
    ) -> None:
        self.limit = limit
        self.public = public
        self._ids = ids
        self._correlation = Correlation(self, stage)

    def relation(self, plan: Plan) -> Plan:
        match plan:
            case Scan() | Empty() | OneRow() | Released():
                return plan
            case Filter() | Join(kind=JoinKind.INNER | JoinKind.CROSS):
                relations, conditions = flatten(plan)
                result, rest = joined([self._side(part) for part in relations], conditions)
                for part in rest:
                    result = self._filtered(result, part)
                return result
            case Join(kind=kind, left=left, right=right, condition=condition):
                sides = self._side(left), self._side(right)
                fields = (*left.fields, *right.fields)
                on = None if condition is None else self.scalar(condition, fields)
                return Join(kind, *sides, on)
            case Project(child=child, items=items):
                inner = self.relation(child)
                return Project(inner, tuple((f, self.scalar(v, inner.fields)) for f, v in items))
            case SetOperation(kind=SetKind.UNION_ALL, left=left, right=right, fields=fields) if is_empty(
                left
            ) or is_empty(right):
                other = right if is_empty(left) else left
                columns = tuple((new, Ref(old)) for new, old in zip(fields, other.fields, strict=True))
                return Project(self.relation(other), columns)
            case SetOperation(kind=set_kind, left=left, right=right, fields=fields):
                if is_private(left) != is_private(right):
                    raise NotSupported(
                        "private rows and released values cannot be mixed here",
                        hint="Aggregate the private rows first.",
                    )
                return SetOperation(set_kind, self.relation(left), self.relation(right), fields)
            case Sort(child=child, limit=None, offset=0, fields=fields):
                # An aggregate ignores the order of its input.
                return Project(self.relation(child), tuple((field, Ref(field)) for field in fields))
            case Distinct(child=child):
                # The unit is among the columns: one row per unit and values.
                keys = tuple((field, Ref(field)) for field in child.fields)
                return Aggregate(self.relation(child), keys, (), (tuple(range(len(keys))),))
            case Aggregate(child=child, keys=keys, aggregates=aggregates, sets=sets):
                inner = self.relation(child)
                resolved = tuple((field, self.scalar(value, inner.fields)) for field, value in keys)
                calls = tuple((field, self._aggregated(call, inner.fields)) for field, call in aggregates)
                return self.per_unit(Aggregate(inner, resolved, calls, sets))
            case Window(child=child, items=windows):
                return self._windows(self.relation(child), windows)
            case SemiJoin() | OfUnit() | Sort():
                return plan  # refused by derive
            case _:
                assert_never(plan)

    def _side(self, plan: Plan) -> Plan:
        return self.relation(plan) if is_private(plan) else self.public(plan)

    def new_field(self, name: str, type_: Type) -> Field:
        return Field(next(self._ids), name, type_)

    # --- expressions ---

    def scalar(self, value: Scalar, fields: tuple[Field, ...]) -> Scalar:
        """An expression over a private relation with these fields, its subqueries resolved."""
        if isinstance(value, Subquery):
            return self._correlation.subquery(value, fields)
        return rebuild(value, lambda part: self.scalar(part, fields))

    def _aggregated(self, call: Aggregated, fields: tuple[Field, ...]) -> Aggregated:
        changed = self.scalar(call, fields)
        assert isinstance(changed, Aggregated)
        return changed

    def _filtered(self, child: Plan, predicate: Scalar) -> Plan:
        """WHERE unit [NOT] IN (SELECT unit …) is a semi-join with the list of owners; anything else is a filter."""
        negated = isinstance(predicate, Call) and predicate.op is Op.NOT
        inner = predicate.args[0] if negated and isinstance(predicate, Call) else predicate
        if isinstance(inner, Subquery) and inner.kind == "in" and inner.arg is not None and is_unit(inner.arg):
            source = inner.plan
            if is_empty(source):
                return child if negated else Filter(child, FALSE)
            if is_private(source) and is_unit(Ref(source.fields[0])) and not free_fields(source):
                return SemiJoin(child, self.relation(source), negated)
        return Filter(child, self.scalar(predicate, child.fields))

    # --- aggregates per unit ---

    def per_unit(self, plan: Aggregate) -> Plan:
        """An aggregation per unit with exact sums, its results clamped to what the declared rows allow.

        Floating-point sums depend on the order of rows, and so on other units; here they are integer sums.
        """
        premise = derive(plan.child, self.limit).conclusion
        calls: dict[Aggregated, Field] = {}

        def column(call: Aggregated) -> Ref:
            if call not in calls:
                calls[call] = self.new_field(call.function.value, call.type)
            return Ref(calls[call])

        outputs: list[tuple[Field, Scalar]] = [(field, Ref(field)) for field, _ in plan.keys]
        for field, call in plan.aggregates:
            value = self._per_unit_value(call, column, premise.facts)
            outputs.append((field, _clamped(value, per_unit_interval(call, premise, bool(plan.keys)))))
        inner = Aggregate(plan.child, plan.keys, tuple((field, call) for call, field in calls.items()), plan.sets)
        return Project(inner, tuple(outputs))

    def _per_unit_value(self, call: Aggregated, column: Callable[[Aggregated], Ref], facts: Facts) -> Scalar:
        match call.function:
            case Agg.COUNT | Agg.MIN | Agg.MAX | Agg.BOOL_AND | Agg.BOOL_OR:
                return column(replace(call, position=None))
            case Agg.SUM if call.args[0].type.kind is not Kind.DOUBLE:
                _check_digits(call.args[0], call.position)
                return column(replace(call, position=None))
            case Agg.SUM if not call.distinct:
                grid, scale = _on_grid(call.args[0], facts, call.position)
                return _off_grid(column(Aggregated(Agg.SUM, (grid,), BIGINT, False, call.where)), scale)
            case Agg.AVG if not call.distinct:
                total = self._per_unit_value(replace(call, function=Agg.SUM, type=_sum_type(call)), column, facts)
                count = column(Aggregated(Agg.COUNT, call.args, BIGINT, False, call.where))
                as_double = total if total.type.kind is Kind.DOUBLE else Call(Op.CAST, (total,), DOUBLE)
                return Call(Op.DIV, (as_double, Call(Op.CAST, (count,), DOUBLE)), DOUBLE)
            case _:
                raise NotSupported(
                    f"{call.function.value} per unit is not supported",
                    hint="COUNT, SUM, AVG, MIN and MAX are supported in an inner GROUP BY of the unit.",
                    position=call.position,
                )

    # --- windows within a unit ---

    def _windows(self, child: Plan, windows: tuple[tuple[Field, Windowed], ...]) -> Plan:
        """Window functions in a total order; sums of doubles are sums of integers, as they are per unit."""
        facts = derive(child, self.limit).conclusion.facts
        calls: list[tuple[Field, Windowed]] = []
        outputs: list[tuple[Field, Scalar]] = [(field, Ref(field)) for field in child.fields]

        def column(call: Windowed) -> Ref:
            calls.append((self.new_field(call.function, call.type), in_total_order(call, child)))
            return Ref(calls[-1][0])

        for field, given in windows:
            call = self.scalar(given, child.fields)
            assert isinstance(call, Windowed)
            if call.function in ("sum", "avg") and call.args[0].type.kind is Kind.DOUBLE:
                grid, scale = _on_grid(call.args[0], facts, None)
                total = column(replace(call, function="sum", args=(grid,), type=BIGINT))
                value = _off_grid(total, scale)
                if call.function == "avg":
                    count = column(replace(call, function="count", type=BIGINT))
                    value = Call(Op.DIV, (value, Call(Op.CAST, (count,), DOUBLE)), DOUBLE)
                outputs.append((field, value))
            else:
                if call.function in ("sum", "avg"):
                    _check_digits(call.args[0], None)
                outputs.append((field, column(call)))
        return Project(Window(child, tuple(calls)), tuple(outputs))


def _check_digits(value: Scalar, position: int | None) -> None:
    """Claim: no sum over rows of a unit overflows, whatever their number. Because: there is room for any count of rows.
    Needs: this, because otherwise the engine would fail for the rows of one unit, and so reveal them.
    """
    if value.type.precision > SAFE_DIGITS:
        raise NotSupported(
            f"sums of more than {SAFE_DIGITS} digits are not supported per unit",
            hint=f"Cast the argument to numeric with at most {SAFE_DIGITS} digits, as in x::numeric(20, 6).",
            position=position,
        )


def _on_grid(value: Scalar, facts: Facts, position: int | None) -> tuple[Scalar, int]:
    """A double as an integer number of steps, and the number of steps in one."""
    bounds = interval(value, facts)
    if not bounds.bounded:
        raise MissingDeclaration(
            "the bounds of the summed expression are not known",
            hint="Declare bounds in the policy, or write LEAST and GREATEST around it.",
            position=position,
        )
    assert bounds.low is not None and bounds.high is not None
    largest = max(abs(bounds.low), abs(bounds.high), Fraction(1, 10**9))
    scale = 1
    while largest * scale < 10**9:
        scale *= 10
    steps = Call(Op.MUL, (value, Const(float(scale), DOUBLE)), DOUBLE)
    return Call(Op.CAST, (Call(Op.ROUND, (steps,), DOUBLE),), integer_type(12, big=False)), scale


def _off_grid(total: Scalar, scale: int) -> Scalar:
    return Call(Op.DIV, (Call(Op.CAST, (total,), DOUBLE), Const(float(scale), DOUBLE)), DOUBLE)


def _sum_type(call: Aggregated) -> Type:
    kind = call.args[0].type.kind
    return DOUBLE if kind is Kind.DOUBLE else BIGINT if kind is Kind.INTEGER else call.args[0].type


def _clamped(value: Scalar, bounds: Interval) -> Scalar:
    if not value.type.is_numeric:
        return value
    branches = []
    for bound, op in ((bounds.low, Op.LT), (bounds.high, Op.GT)):
        if bound is not None:
            constant = _constant(bound, value.type)
            branches.append((Call(op, (value, constant), BOOLEAN), constant))
    return Case(tuple(branches), value, value.type) if branches else value


def _constant(bound: Fraction, type_: Type) -> Const:
    match type_.kind:
        case Kind.INTEGER:
            return Const(int(bound), type_)
        case Kind.DECIMAL:
            return Const(exact_decimal(bound, type_.scale), type_)
        case _:
            return Const(float(bound), DOUBLE)
