"""The rest of a small query, computed in Python: DuckDB takes longer to be asked than a few rows take to be computed.

Only what is arithmetic and order over one noisy table. Every operation here does to the last bit what its text does in
DuckDB (`scalars.py`, `duckdb_dialect.py`); whatever is not listed is left to DuckDB, and so is what is not a number: it
is ordered there in a way of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Context, Decimal
from operator import ne
from typing import Any, cast

import numpy as np

from dpsql.plan.constants import apply
from dpsql.plan.nodes import Plan, Project, Released, Sort
from dpsql.plan.scalars import Call, Case, Const, Op, Ref, Scalar, SortKey
from dpsql.plan.visit import Items, fields_read
from dpsql.tables import Integers
from dpsql.types import Cell, Kind, Type, Value

FEW = 500  # rows up to which Python is quicker, however much is computed; more are only handed on

Column = list[Any]  # of values that all have the Python type of the column's kind, or None
Columns = dict[int, Column]  # by field
Rule = Callable[..., Column]  # of columns that are equally long
Compute = Callable[[Columns, int], Column]  # of so many rows

_PYTHON: dict[Kind, set[type]] = {
    Kind.BOOLEAN: {bool},
    Kind.INTEGER: {int},
    Kind.TEXT: {str},
    Kind.DATE: {date},
    Kind.TIMESTAMP: {datetime},
    Kind.TIMESTAMPTZ: {datetime},
}


_EXACT = Context(prec=100)  # wider than every decimal


class _NotHere(Exception):
    """DuckDB must compute it."""


@dataclass(frozen=True, slots=True)
class InPython:
    """Projections of one noisy table, the lowest first, and the order of the rows."""

    measurement: int
    reads: tuple[tuple[int, int, Type], ...]  # the columns of the noisy table: place, field and type
    layers: tuple[tuple[tuple[int, Compute], ...], ...] = field(compare=False)  # made of the plan, and equal with it
    order: _Order | None = field(compare=False)
    only_handed_on: bool  # nothing is computed, and no row moves
    plan: Plan = field(repr=False)

    def __reduce__(self) -> tuple[Callable[[Plan], InPython | None], tuple[Plan]]:
        """Functions are not sent to another process: they are made of the plan again."""
        return in_python, (self.plan,)

    def rows(self, columns: Sequence[Sequence[Value] | Integers]) -> list[tuple[Cell, ...]] | None:
        """The rows that DuckDB would return; None where it has to be asked.

        Claim: values are those of the generated SQL.
        Because: doubles are IEEE 754 in both, rounded to nearest after each operation, and roots are rounded correctly;
        decimals are exact; whole numbers are only compared and converted. Nothing that is not a number is ever
        compared here. Rows that ORDER BY does not tell apart stay in the order of their keys; DuckDB promises none.
        Needs: SQL that was generated from the same plan.
        """
        count = len(columns[0]) if columns else 0
        if count > FEW and not self.only_handed_on:
            return None
        try:
            found = {field: _as(columns[place], type_) for place, field, type_ in self.reads}
            for layer in self.layers:
                found = {field: compute(found, count) for field, compute in layer}
            if self.order is not None:
                found = self.order.put(found, count)
        except _NotHere:
            return None
        return list(zip(*found.values(), strict=True))


@dataclass(frozen=True, slots=True)
class _Order:
    keys: tuple[tuple[SortKey, Compute], ...]
    first: int
    behind: int | None  # the place behind the last
    fields: tuple[int, ...]

    def put(self, columns: Columns, count: int) -> Columns:
        places = list(range(count))
        for key, compute in reversed(self.keys):
            values = compute(columns, count)
            _ordered(values)
            unknown = [place for place in places if values[place] is None]
            known = [place for place in places if values[place] is not None]
            known.sort(key=values.__getitem__, reverse=key.descending)
            places = unknown + known if key.nulls_first else known + unknown
        places = places[self.first : self.behind]
        return {field: [columns[field][place] for place in places] for field in self.fields}


def in_python(plan: Plan) -> InPython | None:
    """How Python computes the rest of a query, or None where only DuckDB can."""
    whole, sort, projections = plan, None, []
    if isinstance(plan, Sort):
        sort, plan = plan, plan.child
    while isinstance(plan, Project):
        projections.append(plan.items)
        plan = plan.child
    if not isinstance(plan, Released) or not plan.fields or not projections or not projections[0]:
        return None
    try:
        layers = tuple(map(_layer, reversed(projections)))
        order = None if sort is None else _order(sort)
    except _NotHere:
        return None
    read = fields_read(value for _, value in projections[-1])
    reads = tuple((place, field.id, field.type) for place, field in enumerate(plan.fields) if field in read)
    picks = all(isinstance(value, Ref) for projection in projections for _, value in projection)
    return InPython(plan.measurement, reads, layers, order, picks and order is None, whole)


def _layer(items: Items) -> tuple[tuple[int, Compute], ...]:
    _require(all(field.type.kind is value.type.kind for field, value in items))
    return tuple((field.id, _compiled(value)) for field, value in items)


def _order(sort: Sort) -> _Order:
    keys = tuple((key, _compiled(key.value)) for key in sort.keys)
    behind = None if sort.limit is None else sort.offset + sort.limit
    return _Order(keys, sort.offset, behind, tuple(field.id for field in sort.fields))


def _require(known: bool) -> None:
    if not known:
        raise _NotHere


# --- what comes in ---


def _as(column: Sequence[Any] | Integers, type_: Type) -> Column:
    """A column of a noisy table as DuckDB casts it to its type."""
    if isinstance(column, np.ndarray):
        _require(type_.kind is Kind.INTEGER)
        return list(column.tolist())
    kinds = set(map(type, column)) - {type(None)}
    if type_.kind is Kind.DOUBLE:
        _require(kinds <= {int, float})
        return _to_double(column)
    _require(kinds <= _PYTHON.get(type_.kind, set()))
    return list(column)


# --- what is computed ---


def _compiled(node: Scalar) -> Compute:
    match node:
        case Ref(field=field):
            place = field.id
            return lambda columns, _: columns[place]
        case Const(value=value, type=type_):
            constant = _constant(value, type_)
            return lambda _, count: [constant] * count
        case Case(branches=branches, default=default):
            _require(all(then.type.kind is node.type.kind for _, then in (*branches, (None, default))))
            whens = [(_compiled(when), _compiled(then)) for when, then in reversed(branches)]
            return _case(whens, _compiled(default))
        case Call(args=args):
            rule, inner = _rule(node), [_compiled(arg) for arg in args]
            return lambda columns, count: rule(*(arg(columns, count) for arg in inner))
        case _:
            raise _NotHere


def _constant(value: Value, type_: Type) -> Value:
    kind = type_.kind
    if kind is Kind.DOUBLE and type(value) in (int, float):
        return float(value)  # type: ignore[arg-type]
    if kind is Kind.DECIMAL and isinstance(value, Decimal):
        (made,) = _to_decimal(Type(kind, scale=type_.scale), type_)([value])
        _require(made == value)
        return cast(Value, made)
    _require(value is None or type(value) in _PYTHON.get(kind, set()))
    return value


def _case(whens: Sequence[tuple[Compute, Compute]], default: Compute) -> Compute:
    # All is computed for all rows, as every expression is total; the first condition that holds is tried last.
    def chosen(columns: Columns, count: int) -> Column:
        found = default(columns, count)
        for when, then in whens:
            found = [
                value if holds else other
                for holds, value, other in zip(when(columns, count), then(columns, count), found, strict=True)
            ]
        return found

    return chosen


def _rule(node: Call) -> Rule:
    if node.op in _DOUBLES and all(arg.type.kind is Kind.DOUBLE for arg in node.args):
        return _DOUBLES[node.op]
    kinds = {arg.type.kind for arg in node.args}
    match node.op, *kinds:
        case Op.CAST, Kind.INTEGER if node.type.kind is Kind.DOUBLE:
            return _to_double
        case Op.CAST, Kind.DOUBLE if node.type.kind is Kind.DOUBLE:
            return lambda column: column
        case Op.CAST, Kind.DOUBLE if node.type.kind is Kind.INTEGER and not node.args[0].type.numeric:
            return _to_integer(node.type)
        case Op.CAST, Kind.INTEGER | Kind.DECIMAL if node.type.kind is Kind.DECIMAL:
            return _to_decimal(node.args[0].type, node.type)
        case Op.MUL, Kind.DECIMAL if node.type.scale == sum(arg.type.scale for arg in node.args):
            return _product
        case Op.ROUND, Kind.DOUBLE if len(node.args) == 1 and not node.args[0].type.numeric:
            return _rounded
        case (op, Kind.DOUBLE | Kind.INTEGER) if op in _COMPARISONS:
            return _COMPARISONS[op]
        case (op, Kind.BOOLEAN) if op in _LOGIC:
            return _LOGIC[op]
        case Op.TO_ZONE | Op.FROM_ZONE | Op.ZONED_TRUNC, _:
            return lambda column: [apply(node, [value]) for value in column]
        case Op.CAST, Kind.TIMESTAMP | Kind.TIMESTAMPTZ if node.type.is_moment:
            return lambda column: column
        case Op.IS_NULL, _:
            return lambda column: [value is None for value in column]
        case _:
            raise _NotHere


def _to_double(column: Sequence[Any]) -> Column:
    return [None if value is None else float(value) for value in column]


def _to_integer(target: Type) -> Rule:
    """To the nearest, to even from the middle; NULL for what the type does not hold."""
    bits = 16 if target.precision <= 5 else 32 if target.precision <= 10 else 64
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1)

    def converted(column: Column) -> Column:
        whole = [None if value is None or not math.isfinite(value) else round(value) for value in column]
        return [None if value is None or not low <= value < high else value for value in whole]

    return converted


def _to_decimal(source: Type, target: Type) -> Rule:
    """With the places of the type; NULL for what has more digits than it holds."""
    _require(source.scale <= target.scale)
    place, end = Decimal(1).scaleb(-target.scale), Decimal(1).scaleb(target.precision - target.scale)

    def converted(column: Column) -> Column:
        return [
            None if value is None or not -end < value < end else Decimal(value).quantize(place, context=_EXACT)
            for value in column
        ]

    return converted


def _product(x: Column, y: Column) -> Column:
    return [
        # Plus nothing: zero has no sign.
        None if a is None or b is None else _EXACT.add(_EXACT.multiply(a, b), Decimal(0))
        for a, b in zip(x, y, strict=True)
    ]


def _rounded(column: Column) -> Column:
    return [None if value is None else round(value, 0) for value in column]


def _ordered(*columns: Iterable[Any]) -> None:
    """Refuse what is not a number: for DuckDB it is equal to itself, and larger than all others."""
    for column in columns:
        _require(not any(map(ne, column, column)))


def _roots(x: Column) -> Column:
    _ordered(x)
    return [math.sqrt(a) if a is not None and a >= 0 else None for a in x]


def _nullif(x: Column, y: Column) -> Column:
    _ordered(x, y)
    return [None if a == b else a for a, b in zip(x, y, strict=True)]


def _compared(compare: Callable[[Column, Column], Column]) -> Rule:
    def compared(x: Column, y: Column) -> Column:
        _ordered(x, y)
        return compare(x, y)

    return compared


_DOUBLES: dict[Op, Rule] = {
    Op.ADD: lambda x, y: [None if a is None or b is None else a + b for a, b in zip(x, y, strict=True)],
    Op.SUB: lambda x, y: [None if a is None or b is None else a - b for a, b in zip(x, y, strict=True)],
    Op.MUL: lambda x, y: [None if a is None or b is None else a * b for a, b in zip(x, y, strict=True)],
    Op.DIV: lambda x, y: [None if a is None or not b else a / b for a, b in zip(x, y, strict=True)],
    Op.NEG: lambda x: [None if a is None else -a for a in x],
    Op.ABS: lambda x: [None if a is None else abs(a) for a in x],
    Op.SQRT: _roots,
    Op.NULLIF: _nullif,
    Op.COALESCE: lambda *columns: [next((a for a in row if a is not None), None) for row in zip(*columns, strict=True)],
}

_COMPARISONS: dict[Op, Rule] = {
    Op.EQ: _compared(lambda x, y: [None if a is None or b is None else a == b for a, b in zip(x, y, strict=True)]),
    Op.NE: _compared(lambda x, y: [None if a is None or b is None else a != b for a, b in zip(x, y, strict=True)]),
    Op.LT: _compared(lambda x, y: [None if a is None or b is None else a < b for a, b in zip(x, y, strict=True)]),
    Op.LE: _compared(lambda x, y: [None if a is None or b is None else a <= b for a, b in zip(x, y, strict=True)]),
    Op.GT: _compared(lambda x, y: [None if a is None or b is None else a > b for a, b in zip(x, y, strict=True)]),
    Op.GE: _compared(lambda x, y: [None if a is None or b is None else a >= b for a, b in zip(x, y, strict=True)]),
}

_LOGIC: dict[Op, Rule] = {
    Op.NOT: lambda x: [None if a is None else not a for a in x],
    Op.AND: lambda x, y: [
        False if a is False or b is False else None if a is None or b is None else True
        for a, b in zip(x, y, strict=True)
    ],
    Op.OR: lambda x, y: [
        True if a is True or b is True else None if a is None or b is None else False for a, b in zip(x, y, strict=True)
    ],
}
