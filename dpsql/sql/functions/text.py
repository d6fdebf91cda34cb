"""Functions of text."""

from __future__ import annotations

from functools import reduce

from sqlglot import exp

from dpsql.errors import NotSupported, UnknownOperator
from dpsql.plan.scalars import Call, Const, Op, Scalar
from dpsql.sql.functions.casts import as_text
from dpsql.sql.functions.core import Expressions, Rule
from dpsql.sql.functions.table import BINARY, UNARY, Function
from dpsql.sql.scope import Scope, position
from dpsql.sql.types import constant
from dpsql.types import BOOLEAN, TEXT, Kind
from dpsql.types import integer as integer_type

# Limits on the length of generated text and of constant arguments, in characters.
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
        raise NotSupported(f"conversion to text of {value.type.kind.value} is not supported", position=position(node))
    return as_text(read, value, node)


def _part_of_text(read: Expressions, node: exp.Expression, scope: Scope) -> Scalar:
    """An argument of CONCAT, whatever its type."""
    value = read.typed(node, scope)
    return value if value.type.kind is Kind.TEXT else _as_text(read, value, node)


def _concat_function(read: Expressions, node: exp.Concat, scope: Scope) -> Scalar:
    """CONCAT(a, b, …): NULL counts as empty text."""
    parts = [_or_empty(_part_of_text(read, part, scope)) for part in node.expressions]
    return reduce(lambda left, right: Call(Op.CONCAT, (left, right), TEXT), parts)


def _or_empty(value: Scalar) -> Scalar:
    if isinstance(value, Const):
        return Const(value.value or "", TEXT)
    return Call(Op.COALESCE, (value, Const("", TEXT)), TEXT)


def _concat_ws(read: Expressions, node: exp.ConcatWs, scope: Scope) -> Scalar:
    """CONCAT_WS(separator, a, b, …) skips NULL: each part gets the separator as a prefix; the first is removed."""
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
        raise NotSupported("SUBSTRING needs a start position", hint="Write SUBSTRING(x FROM 1 FOR 2).")
    start = read.small_integer(node.args["start"], scope, "the start")
    given = node.args.get("length")
    count = MAX_TEXT if given is None else read.small_integer(given, scope, "the number of characters")
    if not -MAX_TEXT <= start <= MAX_TEXT or not 0 <= count <= MAX_TEXT:
        raise NotSupported("SUBSTRING takes at most 10,000 characters, from a start position of at most 10,000")
    if start < 1:
        # Positions before the first character are empty, but count.
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
        raise NotSupported("the position of SPLIT_PART must be between 1 and 10,000", position=position(node))
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


FUNCTIONS = (
    Function("a || b", "text", "Both texts joined, truncated to 10,000 characters; one may be a number or a date.",
             exp.DPipe, _concat, frozenset({"this", "expression", "safe"}), (Op.CONCAT,)),
    Function("concat(value, …)", "text", "The texts of all values joined; NULL counts as empty.",
             exp.Concat, _concat_function, frozenset({"expressions", "safe", "coalesce"}), (Op.CONCAT, Op.COALESCE)),
    Function("concat_ws(separator, value, …)", "text", "The texts of all values except NULL, joined with a separator.",
             exp.ConcatWs, _concat_ws, frozenset({"expressions", "safe", "coalesce"}), (Op.CONCAT, Op.SUBSTRING)),
    Function("length(text)", "integer", "The number of characters.",
             exp.Length, _text_function(Op.LENGTH), UNARY, (Op.LENGTH,)),
    Function("char_length(text)", "integer", "As length.", exp.Length, _text_function(Op.LENGTH), UNARY, (Op.LENGTH,)),
    Function("character_length(text)", "integer", "As length.",
             exp.Length, _text_function(Op.LENGTH), UNARY, (Op.LENGTH,)),
    Function("lower(text)", "text", "In lower case.", exp.Lower, _text_function(Op.LOWER), UNARY, (Op.LOWER,)),
    Function("upper(text)", "text", "In upper case.", exp.Upper, _text_function(Op.UPPER), UNARY, (Op.UPPER,)),
    Function("left(text, count)", "text", "The first characters; all but the last ones if the constant is negative.",
             exp.Left, _part(Op.LEFT), BINARY, (Op.LEFT,)),
    Function("right(text, count)", "text", "The last characters; all but the first ones if the constant is negative.",
             exp.Right, _part(Op.RIGHT), BINARY, (Op.RIGHT,)),
    Function("substring(text, start [, count])", "text",
             "Characters from a constant position on; also SUBSTRING(text FROM start FOR count).",
             exp.Substring, _substring, frozenset({"this", "start", "length"}), (Op.SUBSTRING,), counted=(1, 3)),
    Function("substr(text, start [, count])", "text", "As substring.",
             exp.Substring, _substring, frozenset({"this", "start", "length"}), (Op.SUBSTRING,)),
    Function("trim([LEADING | TRAILING | BOTH] [characters FROM] text)", "text",
             "Without constant characters, or spaces, at its ends.", exp.Trim, _trim,
             frozenset({"this", "expression", "position"}), (Op.TRIM, Op.LTRIM, Op.RTRIM), counted=(1, 1)),
    Function("btrim(text [, characters])", "text", "Without constant characters, or spaces, at both ends.",
             exp.Trim, _trim, frozenset({"this", "expression", "position"}), (Op.TRIM,)),
    Function("ltrim(text [, characters])", "text", "Without constant characters, or spaces, at its beginning.",
             exp.Trim, _trim, frozenset({"this", "expression", "position"}), (Op.LTRIM,)),
    Function("rtrim(text [, characters])", "text", "Without constant characters, or spaces, at its end.",
             exp.Trim, _trim, frozenset({"this", "expression", "position"}), (Op.RTRIM,)),
    Function("position(part IN text)", "integer", "The position of a constant in a text; 0 if it is not there.",
             exp.StrPosition, _position, frozenset({"this", "substr"}), (Op.POSITION,)),
    Function("strpos(text, part)", "integer", "The position of a constant in a text; 0 if it is not there.",
             exp.StrPosition, _position, frozenset({"this", "substr"}), (Op.POSITION,)),
    Function("starts_with(text, start)", "boolean", "Whether a text begins with another.",
             exp.StartsWith, _starts_with, BINARY, (Op.STARTS_WITH,)),
    Function("replace(text, old, new)", "text", "The text with one constant replaced by another.",
             exp.Replace, _replace, frozenset({"this", "expression", "replacement"}), (Op.REPLACE,)),
    Function("split_part(text, separator, place)", "text", "The part at a position between constant separators.",
             exp.SplitPart, _split_part, frozenset({"this", "delimiter", "part_index"}), (Op.SPLIT_PART,)),
)  # fmt: skip
