"""generate_series in FROM: the values between two constants, known before anything is read."""

from __future__ import annotations

from datetime import datetime

from sqlglot import exp

from dpsql.errors import BadSetting, NotSupported, TooComplex
from dpsql.plan.evaluate import NotConstant, evaluate
from dpsql.plan.scalars import Const, Scalar
from dpsql.sql.expressions.core import Expressions
from dpsql.sql.expressions.time import shift
from dpsql.sql.names import Scope, position
from dpsql.sql.spans import Span, as_span
from dpsql.types import BIGINT, TIMESTAMP, TIMESTAMPTZ, Kind, Type

MOST = 1_000


def series(read: Expressions, node: exp.ExplodingGenerateSeries, scope: Scope) -> tuple[Type, list[Const]]:
    """The values of generate_series(first, last, step): whole numbers, or moments with an interval between them."""
    first, last = (read.scalar(node.args[part], scope) for part in ("start", "end"))
    step = node.args.get("step")
    span = None if step is None else as_span(step)
    if span is None:
        whole = [_number(each, node) for each in (first, last)]
        by = 1 if step is None else _number(read.scalar(step, scope), node)
        if by == 0:
            raise BadSetting("step size cannot equal zero", position=position(node))
        _check_length((whole[1] - whole[0]) // by + 1, node)
        return BIGINT, [Const(value, BIGINT) for value in range(whole[0], whole[1] + (1 if by > 0 else -1), by)]
    # Of dates it makes instants, as PostgreSQL does.
    type_ = TIMESTAMP if Kind.TIMESTAMP in (first.type.kind, last.type.kind) else TIMESTAMPTZ
    start, end = (_moment(read, each, type_, node) for each in (first, last))
    return type_, _moments(read, start, end, span, type_, node)


def _moments(
    read: Expressions, first: datetime, last: datetime, span: Span, type_: Type, node: exp.Expression
) -> list[Const]:
    least = span.months * 28 * 86400 + span.days * 86400 + span.seconds
    if least == 0:
        raise BadSetting("step size cannot equal zero", position=position(node))
    if span.months < 0 or span.days < 0 or span.seconds < 0:
        raise NotSupported(
            "generate_series runs only forward in time", hint="Sort the answer.", position=position(node)
        )
    found: list[Const] = []
    at: Scalar = Const(first, type_)
    while isinstance(at, Const) and isinstance(at.value, datetime) and at.value <= last:
        found.append(at)
        _check_length(len(found), node)
        at = Const(evaluate(shift(read, at, span, 1)), type_)
    return found


def _check_length(rows: int, node: exp.Expression) -> None:
    if rows > MOST:
        raise TooComplex(
            f"generate_series of more than {MOST:,} rows is not supported",
            hint="Take a longer step, or ask in parts.",
            position=position(node),
        )


def _number(value: Scalar, node: exp.Expression) -> int:
    try:
        found = evaluate(value)
    except NotConstant:
        found = None
    if value.type.kind is not Kind.INTEGER or not isinstance(found, int):
        raise _not_constant(node)
    return found


def _moment(read: Expressions, value: Scalar, type_: Type, node: exp.Expression) -> datetime:
    if not (value.type.is_temporal or value.type.kind is Kind.UNKNOWN):
        raise _not_constant(node)
    try:
        found = evaluate(read.coerce(value, type_))
    except NotConstant:
        found = None
    if not isinstance(found, datetime):
        raise _not_constant(node)
    return found


def _not_constant(node: exp.Expression) -> NotSupported:
    return NotSupported(
        "generate_series needs constants: whole numbers, or dates with an interval",
        hint="Write generate_series(1, 10), or generate_series(DATE '2024-01-01', CURRENT_DATE, INTERVAL '1 day').",
        position=position(node),
    )
