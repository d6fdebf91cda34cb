"""Scalars to SQL. Every expression comes out total: defined for every value of its type.

A guard stands in the argument of the operation it guards, never around it or beside it: engines reorder and
evaluate early.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import assert_never

from dpsql.effort import spend
from dpsql.errors import InternalError, NotSupported
from dpsql.lowering.dialect import Dialect
from dpsql.lowering.zones import zoned
from dpsql.plan.scalars import (
    Aggregated,
    Array,
    Call,
    Case,
    Const,
    Correlated,
    Field,
    InStage,
    IntervalEnd,
    Op,
    Ref,
    Scalar,
    StageValue,
    Subquery,
    Subscript,
    Windowed,
)
from dpsql.plan.zones import known_zone
from dpsql.types import DOUBLE, INT_DIGITS, MAX_DIGITS, TIMESTAMP, TIMESTAMPTZ, Kind, Type, Value, exact_decimal

_EPOCH = datetime(1970, 1, 1)
_LAST_SECOND = datetime.max.replace(microsecond=0)

# Guards repeat their argument, so that nested ones grow quickly; beyond this an expression is refused.
LONGEST = 400_000
VERY_LONG = 5_000


# Operations that are not always written by their template, and of these the ones that are for doubles in some dialects.
_SPECIAL = frozenset(
    {Op.ADD, Op.SUB, Op.MUL, Op.NEG, Op.ABS, Op.DIV, Op.MOD, Op.WIDTH_BUCKET, Op.LIKE, Op.ILIKE, Op.IN, Op.LEAST}
    | {Op.GREATEST, Op.COALESCE, Op.CAST, Op.ADD_MONTHS, Op.ADD_SECONDS, Op.ROUND, Op.TRUNC, Op.EXTRACT, Op.DATE_BIN}
    | {Op.TO_ZONE, Op.FROM_ZONE, Op.ZONED_TRUNC, Op.TO_CHAR, Op.DATE_TRUNC}
)
_ARITHMETIC = frozenset({Op.ADD, Op.SUB, Op.MUL, Op.NEG, Op.ABS})


class ScalarWriter:
    """Writes scalars of one query; fields are named by the relation writer that owns it.

    `short` is for the rest of a query, in DuckDB: doubles as it writes them itself, and no guard around a constant.
    """

    def __init__(
        self,
        dialect: Dialect,
        name: Callable[[Field], str],
        subquery: Callable[[Subquery | Correlated], str],
        bounds: Callable[[Scalar], tuple[datetime, datetime]],
        parameters: set[str],
        *,
        short: bool,
    ) -> None:
        self._dialect = dialect
        self._short = short
        self._name = name
        self._subquery = subquery
        self._bounds = bounds  # of a moment, from those of the columns
        self._parameters = parameters  # of the query, to which those that are written are added

    def type(self, type_: Type) -> str:
        return self._dialect.type(type_)

    def parameter(self, name: str) -> str:
        self._parameters.add(name)
        return self._dialect.parameter(name)

    def constant(self, value: Value, type_: Type) -> str:
        """A constant of the analyst or the policy, typed."""
        match value:
            case None:
                return f"CAST(NULL AS {self.type(type_)})"
            case bool():
                return "TRUE" if value else "FALSE"
            case Decimal():
                return f"CAST({self._dialect.string(format(value, 'f'))} AS {self.type(type_)})"
            case float() if self._short and type_.kind is Kind.DOUBLE and math.isfinite(value):
                text = repr(value) if "e" in repr(value) else f"{value!r}e0"
                return f"({text})" if text.startswith("-") else text  # two signs would begin a comment
            case int() | float():
                return f"CAST({self._dialect.string(str(value))} AS {self.type(type_)})"
            case str():
                return self._dialect.text.format(self._dialect.string(value))
            case date():
                return self._dialect.moment_constant(value)

    def scalar(self, node: Scalar) -> str:
        spend()
        text = self._written(node)
        if len(text) > LONGEST:
            raise NotSupported("an expression is too complex", hint="Compute it step by step in subqueries.")
        return text

    def _written(self, node: Scalar) -> str:
        if type(node) is Ref:
            return self._name(node.field)
        if type(node) is Call:
            return self._call(node)
        match node:
            case Ref(field=field):
                return self._name(field)
            case Const(value=value, type=type_):
                return self.constant(value, type_)
            case Case(branches=branches, default=default):
                whens = " ".join(f"WHEN {self.scalar(when)} THEN {self.scalar(then)}" for when, then in branches)
                if self._short and default == Const(None, node.type):
                    return f"(CASE {whens} END)"
                return f"(CASE {whens} ELSE {self.scalar(default)} END)"
            case Array() | Subscript() if not self._short:
                raise NotSupported("an array beside private rows is not supported")
            case Array(items=items, type=type_):
                return f"CAST([{', '.join(map(self.scalar, items))}] AS {self.type(type_)})"
            case Subscript(array=array, index=index):
                # DuckDB has nothing at zero and beyond the end, as PostgreSQL.
                return f"({self.scalar(array)})[{index}]"
            case StageValue(stage=stage, type=type_):
                return self._dialect.stage_value(self.parameter(f"s{stage}"), type_)
            case InStage(arg=arg, stage=stage, item=item):
                return self._in_stage(self.scalar(arg), stage, item)
            case Call():
                return self._call(node)
            case Subquery() | Correlated():
                return self._subquery(node)
            case Aggregated() | Windowed() | IntervalEnd():
                raise InternalError("an aggregate was left in a scalar")
            case _:
                assert_never(node)

    def _in_stage(self, arg: str, stage: int, item: Type) -> str:
        """IN over a list, with SQL's rules for NULL on either side."""
        items = self._dialect.array.format(self.parameter(f"s{stage}"), type=self.type(item))
        found = self._dialect.in_list.format(arg, items)
        marks = (self.parameter(f"s{stage}_{what}") for what in ("empty", "null"))
        empty, null = map(self._dialect.flag.format, marks)
        return (
            f"(CASE WHEN {empty} THEN FALSE WHEN {arg} IS NULL THEN NULL"
            f" WHEN {found} THEN TRUE WHEN {null} THEN NULL ELSE FALSE END)"
        )

    def _call(self, node: Call) -> str:
        args = [self.scalar(arg) for arg in node.args]
        dialect = self._dialect
        is_double = node.type.kind is Kind.DOUBLE
        if node.op not in _SPECIAL or (is_double and dialect.double is None and node.op in _ARITHMETIC):
            return self._templated(node, args)
        match node.op:
            case Op.ADD | Op.SUB | Op.MUL | Op.NEG | Op.ABS | Op.DIV | Op.MOD if node.type.kind is Kind.INTEGER:
                return self._integer(node, args)
            case Op.ADD | Op.SUB | Op.MUL | Op.MOD if node.type.kind is Kind.DECIMAL:
                return self._decimal(node, args)
            case Op.DIV if all(arg.type.kind in (Kind.INTEGER, Kind.DECIMAL) for arg in node.args):
                return self._quotient(node, args)
            case Op.ADD | Op.SUB | Op.MUL | Op.DIV if node.type.kind is Kind.DOUBLE and dialect.double is not None:
                return dialect.double(node, args)
            case Op.DIV if self._short and _is_nonzero(node.args[1]):
                return f"({args[0]} / {args[1]})"
            case Op.WIDTH_BUCKET:
                return self._bucket(node, args)
            case Op.LIKE | Op.ILIKE:
                return self._like(node, args)
            case Op.IN:
                return f"({args[0]} IN ({', '.join(args[1:])}))"
            case Op.LEAST | Op.GREATEST | Op.COALESCE:
                return f"{node.op.name}({', '.join(args)})"
            case Op.CAST if node.type.kind is Kind.TIMESTAMPTZ and node.args[0].type.kind is Kind.TEXT:
                return self._instant_in_text(node, args[0])
            case Op.CAST:
                return dialect.cast(args[0], node.args[0].type, node.type)
            case Op.ADD_MONTHS | Op.ADD_SECONDS:
                return self._shifted(node, args)
            case Op.ROUND if node.args[0].type.numeric:
                return dialect.round_away(args[0], _places(node))
            case Op.ROUND if node.type.kind is Kind.DOUBLE:
                return dialect.round_even.format(args[0])
            case Op.ROUND | Op.TRUNC if node.type.kind is Kind.DECIMAL:
                return f"CAST({node.op.value}({args[0]}, {_places(node)}) AS {self.type(node.type)})"
            case Op.TRUNC if len(node.args) > 1:
                return dialect.trunc_places(args[0], _places(node))
            case Op.TRUNC:
                return f"trunc({args[0]})"
            case Op.EXTRACT:
                form = {"second": dialect.extract_seconds, "epoch": dialect.extract_epoch}.get(
                    node.option, dialect.extract
                )
                return form.format(args[0], part=node.option, type=self.type(node.type))
            case Op.DATE_BIN:
                return self._binned(node, args[0])
            case Op.TO_ZONE | Op.FROM_ZONE | Op.ZONED_TRUNC:
                return zoned(dialect, node, args[0], self._bounds(node.args[0]))
            case Op.TO_CHAR:
                return dialect.to_char(args[0], node.option)
            case Op.DATE_TRUNC:
                return dialect.date_trunc.format(args[0], part=node.option)
            case _:
                return self._templated(node, args)

    def _templated(self, node: Call, args: Sequence[str]) -> str:
        template = self._dialect.form(node.op)
        shown = self.type(node.type) if "{type}" in template else ""
        return self.filled(template, args, shown)

    def _instant_in_text(self, node: Call, text: str) -> str:
        """In the zone that the text names, or else in that of the session, which is the option."""
        return self._dialect.once(text, 8, lambda text: self._in_either_zone(node.option, text))

    def _in_either_zone(self, zone: str, text: str) -> str:
        local = self._dialect.local_in_text(text)
        if not known_zone(zone).is_utc:
            node = Call(Op.FROM_ZONE, (Const(None, TIMESTAMP),), TIMESTAMPTZ, zone)
            local = zoned(self._dialect, node, local, (datetime.min, datetime.max))
        return self._dialect.instant_in_text(text, local)

    def filled(self, template: str, args: Sequence[str], shown: str = "", first: int = 0) -> str:
        """A template with its arguments. A very long one, as time zones make them, is written once."""
        for place, text in enumerate(args[first:], first):
            if len(text) > VERY_LONG and (times := template.count(f"{{{place}}}")) > 1:
                rest = partial(self._filled_at, template, args, shown, place)
                return self._dialect.once(text, times, rest)
        return template.format(*args, type=shown)

    def _filled_at(self, template: str, args: Sequence[str], shown: str, place: int, text: str) -> str:
        return self.filled(template, [*args[:place], text, *args[place + 1 :]], shown, place + 1)

    def _shifted(self, node: Call, args: list[str]) -> str:
        """A timestamp moved by a constant, or a constant one by seconds; NULL where it would leave the calendar."""
        start, by = node.args
        if isinstance(start, Const) and node.op is Op.ADD_SECONDS and not isinstance(by, Const):
            assert isinstance(start.value, datetime)
            ends = [math.floor((end - start.value).total_seconds()) for end in (datetime.min, datetime.max)]
            inside = f"{args[1]} >= {ends[0]} AND {args[1]} <= {ends[1]}"
            return self._dialect.form(node.op).format(args[0], f"(CASE WHEN {inside} THEN {args[1]} END)")
        if not isinstance(by, Const):
            # Seconds from the moment to both ends of the calendar.
            epoch = self._dialect.extract_epoch.format(args[0], part="epoch", type=self.type(DOUBLE))
            back, ahead = (f"{round((end - _EPOCH).total_seconds())} - {epoch}" for end in (datetime.min, _LAST_SECOND))
            guarded = f"(CASE WHEN {args[1]} >= {back} AND {args[1]} <= {ahead} THEN {args[1]} END)"
            return self._dialect.form(node.op).format(args[0], guarded)
        assert isinstance(by.value, int | Decimal)
        seconds = Fraction(by.value) * (31 * 86400 if node.op is Op.ADD_MONTHS else 1)
        first, last = datetime.min, datetime.max
        room = timedelta(seconds=float(abs(seconds)))
        low, high = (first, last - room) if seconds > 0 else (first + room, last)
        inside = f"{{0}} >= {self.constant(low, TIMESTAMP)} AND {{0}} <= {self.constant(high, TIMESTAMP)}"
        guarded = self._dialect.form(node.op).format(f"(CASE WHEN {inside} THEN {{0}} END)", args[1])
        return self.filled(guarded, args[:1])

    def _binned(self, node: Call, moment: str) -> str:
        """The bin of a moment. The first bin that begins within the calendar is known; what comes before it is NULL."""
        _, stride, origin = node.args
        assert isinstance(stride, Const) and isinstance(stride.value, int | Decimal)
        assert isinstance(origin, Const) and isinstance(origin.value, datetime)
        width = int(stride.value * 10**6)
        step = timedelta(microseconds=width)
        first = origin.value - (origin.value - datetime.min) // step * step
        inside = f"(CASE WHEN {moment} >= {self.constant(first, TIMESTAMP)} THEN {moment} END)"
        return self._dialect.date_bin(inside, first, width)

    def _integer(self, node: Call, args: list[str]) -> str:
        """Integer arithmetic; where 64 bits might not hold it, 128 do, and what PostgreSQL would refuse is NULL."""
        wide = any(part.type.precision >= INT_DIGITS for part in (node, *node.args))
        if wide:
            args = [f"CAST({arg} AS {self._dialect.wide})" for arg in args]
        quotient = self._dialect.wide_quotient if wide else self._dialect.whole_quotient
        template = quotient if node.op is Op.DIV else self._dialect.form(node.op)
        text = template.format(*args)
        return self._dialect.fit(text, node.type) if wide else text

    def _quotient(self, node: Call, args: list[str]) -> str:
        """A quotient of exact numbers: both are made whole first, so that 21 / 0.7 is 30 and not a little more."""
        scale = max(arg.type.scale for arg in node.args)
        whole = [self._whole(text, arg.type, scale) for text, arg in zip(args, node.args, strict=True)]
        return f"({whole[0]} / NULLIF({whole[1]}, 0))"

    def _whole(self, text: str, type_: Type, scale: int) -> str:
        """An exact number of at most so many places, times ten to their power, as a double."""
        double = self.type(DOUBLE)
        if scale and type_.kind is Kind.DECIMAL and type_.precision + scale < MAX_DIGITS:
            wide = self.type(Type(Kind.DECIMAL, max(type_.precision, 19), type_.scale))
            ten = f"CAST({10**scale} AS {self.type(Type(Kind.DECIMAL, scale + 1))})"
            return f"CAST(CAST({text} AS {wide}) * {ten} AS {double})"
        return f"CAST({text} AS {double})" + (f" * {10**scale}" if scale else "")

    def _bucket(self, node: Call, args: list[str]) -> str:
        """The bucket of a number. Numerics are made whole, so that 0.29 is not a little less than 29 hundredths."""
        value, *ends, _ = node.args
        scale = max(part.type.scale for part in (value, *ends))
        text = self._whole(args[0], value.type, scale) if value.type.kind is Kind.DECIMAL else args[0]
        low, high = (_at_scale(end, scale) for end in ends)
        return self._dialect.width_bucket(text, low, high, args[3], value.type.is_exact)

    def _decimal(self, node: Call, args: list[str]) -> str:
        """Decimal arithmetic in exactly the digits the result may have, so that it cannot overflow."""
        result = self.type(node.type)
        if node.op is Op.MUL:
            left = node.args[0].type
            # Beyond 18 digits the engine must be told to leave 64 bits.
            if node.type.precision > 18:
                args[0] = f"CAST({args[0]} AS {self.type(Type(Kind.DECIMAL, max(left.precision, 19), left.scale))})"
        else:
            args = [f"CAST({arg} AS {result})" for arg in args]
        return f"CAST({self._dialect.form(node.op).format(*args)} AS {result})"

    def _like(self, node: Call, args: list[str]) -> str:
        pattern = node.args[1]
        assert isinstance(pattern, Const) and isinstance(pattern.value, str)
        named = node.option and (self._dialect.like_escape or node.option in pattern.value)
        form = self._dialect.like if node.op is Op.LIKE else self._dialect.ilike
        return form.format(*args, escape=f" ESCAPE {self._dialect.string(node.option)}" if named else "")


def _at_scale(end: Scalar, scale: int) -> float:
    assert isinstance(end, Const) and isinstance(end.value, int | float | Decimal)
    return float(Fraction(end.value) * 10**scale) if scale else float(end.value)


def _is_nonzero(value: Scalar) -> bool:
    return isinstance(value, Const) and value.type.kind is Kind.DOUBLE and bool(value.value)


def _places(node: Call) -> int:
    """How many places behind the point ROUND and TRUNC leave."""
    if len(node.args) == 1:
        return 0
    places = node.args[1]
    assert isinstance(places, Const) and isinstance(places.value, int)
    return places.value


def number(value: Fraction, type_: Type, writer: ScalarWriter) -> str:
    """A bound to compare a value of a numeric type with."""
    if type_.kind is Kind.INTEGER:
        return str(int(value))  # the engine compares whole numbers of all widths as numbers
    if type_.kind is Kind.DECIMAL:
        return writer.constant(exact_decimal(value, type_.scale), type_)
    return writer.constant(float(value), type_)
