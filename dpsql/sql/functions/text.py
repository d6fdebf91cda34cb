"""Functions of text."""

from __future__ import annotations

from functools import reduce

from sqlglot import exp

from dpsql.errors import NotSupported, UnknownOperator
from dpsql.plan.scalars import Call, Const, Op, Scalar
from dpsql.sql.functions.casts import as_text
from dpsql.sql.functions.core import BINARY, UNARY, Expressions, Handlers, Rule
from dpsql.sql.scope import Scope, position
from dpsql.sql.types import constant
from dpsql.types import BOOLEAN, TEXT, Kind
from dpsql.types import integer as integer_type

# Text made here is cut at so many characters, and what it is made with has at most so many.
MAX_TEXT = 10_000
MAX_PART = 100


def _concat(read: Expressions, node: exp.DPipe, scope: Scope) -> Scalar:
    left, right = read.typed(node.this, scope), read.typed(node.expression, scope)
    if Kind.TEXT not in (left.type.kind, right.type.kind):
        raise UnknownOperator("|| needs text on at least one side", position=position(node))
    parts = tuple(part if part.type.kind is Kind.TEXT else _as_text(read, part, node) for part in (left, right))
    return Call(Op.CONCAT, parts, TEXT)


def _as_text(read: Expressions, value: Scalar, node: exp.Expression) -> Scalar:
    if value.type.kind not in (Kind.INTEGER, Kind.DECIMAL, Kind.DATE, Kind.TIMESTAMP, Kind.TIMESTAMPTZ):
        raise NotSupported(f"text made of {value.type.kind.value} is not supported", position=position(node))
    return as_text(read, value, node)


def _part_of_text(read: Expressions, node: exp.Expression, scope: Scope) -> Scalar:
    """An argument of CONCAT, whatever its type."""
    value = read.typed(node, scope)
    return value if value.type.kind is Kind.TEXT else _as_text(read, value, node)


def _concat_function(read: Expressions, node: exp.Concat, scope: Scope) -> Scalar:
    """CONCAT(a, b, …): NULL counts as nothing."""
    parts = [_or_empty(_part_of_text(read, part, scope)) for part in node.expressions]
    return reduce(lambda left, right: Call(Op.CONCAT, (left, right), TEXT), parts)


def _or_empty(value: Scalar) -> Scalar:
    if isinstance(value, Const):
        return Const(value.value or "", TEXT)
    return Call(Op.COALESCE, (value, Const("", TEXT)), TEXT)


def _concat_ws(read: Expressions, node: exp.ConcatWs, scope: Scope) -> Scalar:
    """CONCAT_WS(separator, a, b, …) leaves NULL out: each part brings its separator, and the first one is cut off."""
    first, *rest = node.expressions
    separator = read.constant_text(first, scope, "the separator of CONCAT_WS")
    parts: list[Scalar] = []
    for part in rest:
        value = _part_of_text(read, part, scope)
        parts.append(_or_empty(Call(Op.CONCAT, (Const(separator, TEXT), value), TEXT)))
    joined = reduce(lambda left, right: Call(Op.CONCAT, (left, right), TEXT), parts)
    return Call(Op.SUBSTRING, (joined, constant(len(separator) + 1), constant(MAX_TEXT)), TEXT)


def _substring(read: Expressions, node: exp.Substring, scope: Scope) -> Scalar:
    if node.args.get("start") is None:
        raise NotSupported("SUBSTRING needs a place to start", hint="Write SUBSTRING(x FROM 1 FOR 2).")
    start = read.small_integer(node.args["start"], scope, "the start")
    given = node.args.get("length")
    count = MAX_TEXT if given is None else read.small_integer(given, scope, "the number of characters")
    if not -MAX_TEXT <= start <= MAX_TEXT or not 0 <= count <= MAX_TEXT:
        raise NotSupported("SUBSTRING takes at most 10,000 characters, from a place within 10,000")
    if start < 1:
        # Places before the first character hold nothing, but count.
        count = count if given is None else max(0, start + count - 1)
        start = 1
    return Call(Op.SUBSTRING, (read.text(node.this, scope), constant(start), constant(count)), TEXT)


_TRIMS = {"LEADING": Op.LTRIM, "TRAILING": Op.RTRIM, "BOTH": Op.TRIM}


def _trim(read: Expressions, node: exp.Trim, scope: Scope) -> Scalar:
    given = node.args.get("expression")
    characters = " " if given is None else read.constant_text(given, scope, "the characters to trim")
    if len(characters) > MAX_PART:
        raise NotSupported(f"more than {MAX_PART} characters to trim are not supported", position=position(node))
    value = read.text(node.this, scope)
    if not characters:
        return value
    op = _TRIMS[str(node.args.get("position") or "BOTH").upper()]
    return Call(op, (value, Const(characters, TEXT)), TEXT)


def _position(read: Expressions, node: exp.StrPosition, scope: Scope) -> Scalar:
    part = _short_text(read, node.args["substr"], scope, "the text to look for")
    return Call(Op.POSITION, (read.text(node.this, scope), part), integer_type(10))


def _starts_with(read: Expressions, node: exp.StartsWith, scope: Scope) -> Scalar:
    return Call(Op.STARTS_WITH, (read.text(node.this, scope), read.text(node.expression, scope)), BOOLEAN)


def _replace(read: Expressions, node: exp.Replace, scope: Scope) -> Scalar:
    value = read.text(node.this, scope)
    old = _short_text(read, node.expression, scope, "the text to replace")
    new = _short_text(read, node.args["replacement"], scope, "the replacement")
    return value if old.value == "" else Call(Op.REPLACE, (value, old, new), TEXT)


def _split_part(read: Expressions, node: exp.SplitPart, scope: Scope) -> Scalar:
    separator = _short_text(read, node.args["delimiter"], scope, "the separator of SPLIT_PART")
    place = read.small_integer(node.args["part_index"], scope, "the place")
    if separator.value == "":
        raise NotSupported("SPLIT_PART needs a separator", position=position(node))
    if not 1 <= place <= MAX_TEXT:
        raise NotSupported("a place in SPLIT_PART is between 1 and 10,000", position=position(node))
    return Call(Op.SPLIT_PART, (read.text(node.this, scope), separator, constant(place)), TEXT)


def _short_text(read: Expressions, node: exp.Expression, scope: Scope, what: str) -> Const:
    found = read.constant_text(node, scope, what)
    if len(found) > MAX_PART:
        raise NotSupported(f"{what} has more than {MAX_PART} characters", position=position(node))
    return Const(found, TEXT)


def _text_function(op: Op) -> Rule:
    def rule(read: Expressions, node: exp.Expression, scope: Scope) -> Scalar:
        result = integer_type(10) if op is Op.LENGTH else TEXT
        return Call(op, (read.text(node.this, scope),), result)

    return rule


def _part(op: Op) -> Rule:
    def rule(read: Expressions, node: exp.Expression, scope: Scope) -> Scalar:
        count = read.small_integer(node.expression, scope, "the number of characters")
        if not -MAX_TEXT <= count <= MAX_TEXT:
            raise NotSupported("more than 10,000 characters are not supported", position=position(node))
        return Call(op, (read.text(node.this, scope), constant(count)), TEXT)

    return rule


HANDLERS: Handlers = {
    exp.Length: (_text_function(Op.LENGTH), UNARY),
    exp.Lower: (_text_function(Op.LOWER), UNARY),
    exp.Upper: (_text_function(Op.UPPER), UNARY),
    exp.Trim: (_trim, {"this", "expression", "position"}),
    exp.DPipe: (_concat, {"this", "expression", "safe"}),
    exp.Concat: (_concat_function, {"expressions", "safe", "coalesce"}),
    exp.ConcatWs: (_concat_ws, {"expressions", "safe", "coalesce"}),
    exp.Left: (_part(Op.LEFT), BINARY),
    exp.Right: (_part(Op.RIGHT), BINARY),
    exp.Substring: (_substring, {"this", "start", "length"}),
    exp.StrPosition: (_position, {"this", "substr"}),
    exp.StartsWith: (_starts_with, BINARY),
    exp.Replace: (_replace, {"this", "expression", "replacement"}),
    exp.SplitPart: (_split_part, {"this", "delimiter", "part_index"}),
}
