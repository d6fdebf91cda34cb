"""Functions of text."""

from __future__ import annotations

from sqlglot import exp

from dpsql.errors import NotSupported, UnknownOperator
from dpsql.plan.scalars import Call, Op, Scalar
from dpsql.sql.expressions.core import BINARY, UNARY, Expressions, Handlers, Rule
from dpsql.sql.names import Scope, position
from dpsql.sql.typing import constant
from dpsql.types import TEXT, Kind
from dpsql.types import integer as integer_type


def _concat(read: Expressions, node: exp.DPipe, scope: Scope) -> Scalar:
    left, right = read.typed(node.this, scope), read.typed(node.expression, scope)
    if Kind.TEXT not in (left.type.kind, right.type.kind):
        raise UnknownOperator("|| needs text on at least one side", position=position(node))
    parts = tuple(part if part.type.kind is Kind.TEXT else _as_text(part, node) for part in (left, right))
    return Call(Op.CONCAT, parts, TEXT)


def _as_text(value: Scalar, node: exp.Expression) -> Scalar:
    if value.type.kind not in (Kind.INTEGER, Kind.DATE):
        raise NotSupported(f"text made of {value.type.kind.value} is not supported", position=position(node))
    return Call(Op.CAST, (value,), TEXT)


def _substring(read: Expressions, node: exp.Substring, scope: Scope) -> Scalar:
    if node.args.get("start") is None:
        raise NotSupported("SUBSTRING needs a place to start", hint="Write SUBSTRING(x FROM 1 FOR 2).")
    start = read.small_integer(node.args["start"], scope, "the start")
    given = node.args.get("length")
    count = 10_000 if given is None else read.small_integer(given, scope, "the number of characters")
    if not 1 <= start <= 10_000 or not 0 <= count <= 10_000:
        raise NotSupported("SUBSTRING starts at 1 or later and takes at most 10,000 characters")
    return Call(Op.SUBSTRING, (read.text(node.this, scope), constant(start), constant(count)), TEXT)


def _text_function(op: Op) -> Rule:
    def rule(read: Expressions, node: exp.Expression, scope: Scope) -> Scalar:
        result = integer_type(10) if op is Op.LENGTH else TEXT
        return Call(op, (read.text(node.this, scope),), result)

    return rule


def _part(op: Op) -> Rule:
    def rule(read: Expressions, node: exp.Expression, scope: Scope) -> Scalar:
        count = read.small_integer(node.expression, scope, "the number of characters")
        if not 0 <= count <= 10_000:
            raise NotSupported("the number of characters must be between 0 and 10,000", position=position(node))
        return Call(op, (read.text(node.this, scope), constant(count)), TEXT)

    return rule


HANDLERS: Handlers = {
    exp.Length: (_text_function(Op.LENGTH), UNARY),
    exp.Lower: (_text_function(Op.LOWER), UNARY),
    exp.Upper: (_text_function(Op.UPPER), UNARY),
    exp.Trim: (_text_function(Op.TRIM), UNARY),
    exp.DPipe: (_concat, {"this", "expression", "safe"}),
    exp.Left: (_part(Op.LEFT), BINARY),
    exp.Right: (_part(Op.RIGHT), BINARY),
    exp.Substring: (_substring, {"this", "start", "length"}),
}
