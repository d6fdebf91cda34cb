"""Arithmetic and functions of numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal

from sqlglot import exp

from dpsql.errors import BadSetting, NotSupported, UnknownFunction, UnknownOperator
from dpsql.plan.scalars import Call, Const, IntervalEnd, Op, Scalar
from dpsql.sql.functions.core import Expressions, Rule, require_number
from dpsql.sql.functions.table import BINARY, UNARY, Function
from dpsql.sql.functions.time import date_arithmetic, shifted_by_interval
from dpsql.sql.scope import Scope, position
from dpsql.sql.types import arithmetic_type, coerce, constant
from dpsql.types import DOUBLE, MAX_DIGITS, NUMERIC, Kind, Type
from dpsql.types import decimal as decimal_type
from dpsql.types import integer as integer_type


def arithmetic(op: Op, left: Scalar, right: Scalar, node: exp.Expression) -> Scalar:
    # A quoted literal next to a number is read as a number.
    if left.type.kind is Kind.UNKNOWN and right.type.is_numeric:
        left = coerce(left, right.type)
    if right.type.kind is Kind.UNKNOWN and left.type.is_numeric:
        right = coerce(right, left.type)
    if Kind.INTERVAL in (left.type.kind, right.type.kind):
        raise NotSupported("arithmetic with intervals is not supported", position=position(node))
    result = arithmetic_type(op, left.type, right.type)
    if result is None and op is Op.MOD and left.type.is_numeric and right.type.is_numeric:
        raise NotSupported(
            "% is supported for integers and for numerics with a scale",
            hint="Cast both sides to integer or to numeric with a precision and scale, as in x::numeric(20, 6).",
        )
    if result is None:
        raise UnknownOperator(
            f"operator does not exist: {left.type.kind.value} {op.value} {right.type.kind.value}",
            hint="Cast one side.",
            position=position(node),
        )
    # Quotients of exact numbers are computed exactly.
    exact = (Kind.INTEGER, Kind.DECIMAL)
    if not (op is Op.DIV and left.type.kind in exact and right.type.kind in exact):
        left, right = coerce(left, result), coerce(right, result)
    return Call(op, (left, right), result)


def _negate(read: Expressions, node: exp.Neg, scope: Scope) -> Scalar:
    value = read.scalar(node.this, scope)
    if value.type.kind is Kind.UNKNOWN:
        raise UnknownOperator(
            "operator is not unique: - unknown", hint="Cast what is negated.", position=position(node)
        )
    require_number(value, node.this)
    if isinstance(value, Const) and isinstance(value.value, Decimal):
        return Const(value.value.copy_negate(), value.type)  # minus would round to 28 digits
    if isinstance(value, Const) and isinstance(value.value, int | float):
        return Const(-value.value, value.type)
    return Call(Op.NEG, (value,), value.type)


def _sign(read: Expressions, node: exp.Expression, scope: Scope) -> Scalar:
    value = read.number(node.this, scope)
    return Call(Op.SIGN, (value,), decimal_type(1, 0) if value.type.kind is Kind.DECIMAL else DOUBLE)


def _logarithm(read: Expressions, node: exp.Log, scope: Scope) -> Scalar:
    """LOG(x), LOG10(x), and LOG(b, x), which PostgreSQL has for numerics only. sqlglot reads LOG10(x) as LOG(10, x)."""
    if node.expression is None:
        return _real_call(Op.LOG10, read.number(node.this, scope))
    value = read.number(node.expression, scope)
    if read.function_name(node) == "log10":
        return _real_call(Op.LOG10, value)
    base = read.number(node.this, scope)
    if not (base.type.is_exact and value.type.is_exact):
        raise UnknownFunction("log(double precision, double precision)", position=position(node))
    logarithms = [Call(Op.LN, (coerce(part, DOUBLE),), NUMERIC) for part in (value, base)]
    return Call(Op.DIV, tuple(logarithms), NUMERIC)


def _power(read: Expressions, node: exp.Pow, scope: Scope) -> Scalar:
    """POWER(x, y) and x ^ y: numeric if one argument is numeric and none is double precision, else double precision."""
    args = read.number(node.this, scope), read.number(node.expression, scope)
    return Call(Op.POWER, tuple(coerce(arg, DOUBLE) for arg in args), NUMERIC if _is_numeric(args) else DOUBLE)


def _is_numeric(args: Sequence[Scalar]) -> bool:
    """Whether PostgreSQL treats all of them as numeric; integers alone become double precision."""
    return all(arg.type.is_exact for arg in args) and any(arg.type.kind is not Kind.INTEGER for arg in args)


def _whole_quotient(read: Expressions, node: exp.IntDiv, scope: Scope) -> Scalar:
    """DIV(x, y), a numeric: the quotient of numerics, truncated to an integer."""
    left, right = read.number(node.this, scope), read.number(node.expression, scope)
    if not (left.type.is_exact and right.type.is_exact):
        raise UnknownFunction("div(double precision, double precision)", position=position(node))
    quotient = arithmetic(Op.DIV, left, right, node)
    return quotient if quotient.type.kind is Kind.INTEGER else Call(Op.TRUNC, (quotient,), NUMERIC)


def _interval_end(*, high: bool) -> Rule:
    def rule(read: Expressions, node: exp.Anonymous, scope: Scope) -> Scalar:
        """dp_low and dp_high, which only dpsql has."""
        (arg,) = node.expressions
        return IntervalEnd(read.number(arg, scope), high, DOUBLE, position(node))

    return rule


def _width_bucket(read: Expressions, node: exp.WidthBucket, scope: Scope) -> Scalar:
    value = read.number(node.this, scope)
    if any(node.args.get(part) is None for part in ("min_value", "max_value", "num_buckets")):
        raise NotSupported("width_bucket needs four arguments", position=position(node))
    low, high = read.number(node.args["min_value"], scope), read.number(node.args["max_value"], scope)
    count = read.small_integer(node.args["num_buckets"], scope, "the number of buckets")
    if not (isinstance(low, Const) and isinstance(high, Const)) or low.value is None or high.value is None:
        raise NotSupported("width_bucket needs constant bounds", position=position(node))
    if count < 1 or count > 1_000_000:
        raise BadSetting("the number of buckets must be between 1 and 1,000,000", position=position(node))
    if low.value >= high.value:  # type: ignore[operator]
        raise BadSetting("the lower bound of width_bucket must be below the upper one", position=position(node))
    parts = (value, low, high)
    args = (*(coerce(part, _bucketed_as(parts)) for part in parts), constant(count))
    return Call(Op.WIDTH_BUCKET, args, integer_type(7))


def _bucketed_as(parts: Sequence[Scalar]) -> Type:
    """Numeric if one is numeric and none is double precision; integers alone are double precision, as in PostgreSQL."""
    if not _is_numeric(parts):
        return DOUBLE
    return NUMERIC if any(part.type.kind is Kind.DOUBLE for part in parts) else Type(Kind.DECIMAL)


def _arithmetic(op: Op) -> Rule:
    def rule(read: Expressions, node: exp.Expression, scope: Scope) -> Scalar:
        if op in (Op.ADD, Op.SUB) and (moved := shifted_by_interval(read, op, node, scope)) is not None:
            return moved
        left, right = read.scalar(node.this, scope), read.scalar(node.expression, scope)
        return date_arithmetic(read, op, left, right) or arithmetic(op, left, right, node)

    return rule


def _keeps_type(op: Op) -> Rule:
    def rule(read: Expressions, node: exp.Expression, scope: Scope) -> Scalar:
        value = read.number(node.this, scope)
        return Call(op, (value,), value.type)

    return rule


def _whole(op: Op) -> Rule:
    def rule(read: Expressions, node: exp.Expression, scope: Scope) -> Scalar:
        """FLOOR, CEIL: a decimal stays a decimal, everything else is double precision."""
        value = read.number(node.this, scope)
        if value.type.kind is Kind.DECIMAL:
            whole = value.type.precision - value.type.scale + 1
            return Call(op, (value,), decimal_type(whole, 0))
        return Call(op, (coerce(value, DOUBLE),), NUMERIC if value.type.numeric else DOUBLE)

    return rule


def _rounded(op: Op) -> Rule:
    def rule(read: Expressions, node: exp.Expression, scope: Scope) -> Scalar:
        """ROUND, TRUNC: digits only for decimals, as in PostgreSQL; integers count as decimals then."""
        value = read.number(node.this, scope)
        given = node.args.get("decimals")
        digits = 0 if given is None else read.small_integer(given, scope, "the number of digits")
        if given is not None and value.type.kind is Kind.INTEGER:
            value = Call(Op.CAST, (value,), decimal_type(value.type.precision, 0))
        if value.type.kind is Kind.DECIMAL and value.type.precision >= MAX_DIGITS - 1:
            value = Call(Op.CAST, (value,), NUMERIC)  # rounding up could need one more digit
        if value.type.kind is Kind.DECIMAL:
            whole = value.type.precision - value.type.scale + 1
            scale = min(max(digits, 0), value.type.scale)
            if not -10 <= digits <= 20:
                raise NotSupported("digits outside -10 to 20 are not supported", position=position(node))
            return Call(op, (value, constant(digits)), decimal_type(whole + scale, scale))
        if given is not None and value.type.numeric and -10 <= digits <= 12:
            return Call(op, (value, constant(digits)), NUMERIC)
        if given is not None:
            raise UnknownOperator(
                f"function {op.value}(double precision, integer) does not exist",
                hint="Cast the argument to numeric with a precision and scale, as in x::numeric(20, 6).",
                position=position(node),
            )
        return Call(op, (coerce(value, DOUBLE),), NUMERIC if value.type.numeric else DOUBLE)

    return rule


def _real_call(op: Op, value: Scalar) -> Scalar:
    """A real function: numeric for a numeric argument, else double precision."""
    numeric = value.type.is_exact and value.type.kind is not Kind.INTEGER
    return Call(op, (coerce(value, DOUBLE),), NUMERIC if numeric else DOUBLE)


def _real(op: Op) -> Rule:
    def rule(read: Expressions, node: exp.Expression, scope: Scope) -> Scalar:
        return _real_call(op, read.number(node.this, scope))

    return rule


def _double(op: Op) -> Rule:
    """A function that PostgreSQL has for double precision only."""

    def rule(read: Expressions, node: exp.Expression, scope: Scope) -> Scalar:
        parts = [node.this] if node.expression is None else [node.this, node.expression]
        return Call(op, tuple(coerce(read.number(part, scope), DOUBLE) for part in parts), DOUBLE)

    return rule


def _times(factor: float) -> Rule:
    def rule(read: Expressions, node: exp.Expression, scope: Scope) -> Scalar:
        return Call(Op.MUL, (coerce(read.number(node.this, scope), DOUBLE), Const(factor, DOUBLE)), DOUBLE)

    return rule


FUNCTIONS = (
    Function("a + b", "of numbers: the wider type", "Sum; also of a date and days, of a moment and an interval.",
             exp.Add, _arithmetic(Op.ADD), BINARY, (Op.ADD, Op.ADD_DAYS, Op.ADD_MONTHS, Op.ADD_SECONDS)),
    Function("a - b", "of numbers: the wider type", "Difference; of two dates the days, of two moments an interval.",
             exp.Sub, _arithmetic(Op.SUB), BINARY, (Op.SUB, Op.DAYS_BETWEEN, Op.SECONDS_BETWEEN)),
    Function("a * b", "of numbers: the wider type", "Product.", exp.Mul, _arithmetic(Op.MUL), BINARY, (Op.MUL,)),
    Function("a / b", "of numbers: the wider type", "Quotient, an integer for integers; NULL where b is zero.",
             exp.Div, _arithmetic(Op.DIV), frozenset({"this", "expression", "typed", "safe"}), (Op.DIV,)),
    Function("a % b", "of numbers: the wider type", "Remainder of integers or numerics; NULL where b is zero.",
             exp.Mod, _arithmetic(Op.MOD), BINARY, (Op.MOD,)),
    Function("mod(a, b)", "of numbers: the wider type", "Remainder of integers or numerics; NULL where b is zero.",
             exp.Mod, _arithmetic(Op.MOD), BINARY, (Op.MOD,)),
    Function("- number", "as its argument", "The negated number.", exp.Neg, _negate, UNARY, (Op.NEG,)),
    Function("a ^ b", "numeric or double precision", "Power; NULL where it has no value or is beyond 1e307.",
             exp.Pow, _power, BINARY, (Op.POWER,)),
    Function("power(a, b)", "numeric or double precision", "Power; NULL where it has no value or is beyond 1e307.",
             exp.Pow, _power, BINARY, (Op.POWER,)),
    Function("pow(a, b)", "numeric or double precision", "As power.", exp.Pow, _power, BINARY, (Op.POWER,)),
    Function("abs(number)", "as its argument", "The absolute value.",
             exp.Abs, _keeps_type(Op.ABS), UNARY, (Op.ABS,)),
    Function("sign(number)", "numeric or double precision", "-1, 0 or 1.", exp.Sign, _sign, UNARY, (Op.SIGN,)),
    Function("floor(number)", "numeric or double precision", "The nearest integer below or equal.",
             exp.Floor, _whole(Op.FLOOR), UNARY, (Op.FLOOR,)),
    Function("ceil(number)", "numeric or double precision", "The nearest integer above or equal.",
             exp.Ceil, _whole(Op.CEIL), UNARY, (Op.CEIL,)),
    Function("ceiling(number)", "numeric or double precision", "As ceil.",
             exp.Ceil, _whole(Op.CEIL), UNARY, (Op.CEIL,)),
    Function("round(number [, digits])", "numeric or double precision",
             "Rounded, halves away from zero; digits only for integers and numerics.",
             exp.Round, _rounded(Op.ROUND), frozenset({"this", "decimals"}), (Op.ROUND,)),
    Function("trunc(number [, digits])", "numeric or double precision",
             "Truncated toward zero; digits only for integers and numerics.",
             exp.Trunc, _rounded(Op.TRUNC), frozenset({"this", "decimals"}), (Op.TRUNC,)),
    Function("sqrt(number)", "numeric or double precision", "Square root; NULL of a negative number.",
             exp.Sqrt, _real(Op.SQRT), UNARY, (Op.SQRT,)),
    Function("cbrt(number)", "double precision", "Cube root.", exp.Cbrt, _double(Op.CBRT), UNARY, (Op.CBRT,)),
    Function("exp(number)", "numeric or double precision", "e to a power; NULL beyond 709.",
             exp.Exp, _real(Op.EXP), UNARY, (Op.EXP,)),
    Function("ln(number)", "numeric or double precision", "Natural logarithm; NULL unless the number is positive.",
             exp.Ln, _real(Op.LN), UNARY, (Op.LN,)),
    Function("log(number)", "numeric or double precision", "Logarithm to base 10; NULL unless the number is positive.",
             exp.Log, _logarithm, BINARY, (Op.LOG10,)),
    Function("log(base, number)", "numeric", "Logarithm of integers and numerics to a base.",
             exp.Log, _logarithm, BINARY, (Op.LN, Op.DIV)),
    Function("log10(number)", "numeric or double precision", "Logarithm to base 10.",
             exp.Log, _logarithm, BINARY, (Op.LOG10,)),
    Function("div(a, b)", "numeric", "Quotient of integers and numerics, truncated to an integer.",
             exp.IntDiv, _whole_quotient, BINARY, (Op.DIV, Op.TRUNC)),
    Function("pi()", "double precision", "The number pi.", exp.Pi, lambda *_: Const(math.pi, DOUBLE), frozenset()),
    Function("sin(radians)", "double precision", "Sine.", exp.Sin, _double(Op.SIN), UNARY, (Op.SIN,)),
    Function("cos(radians)", "double precision", "Cosine.", exp.Cos, _double(Op.COS), UNARY, (Op.COS,)),
    Function("tan(radians)", "double precision", "Tangent.", exp.Tan, _double(Op.TAN), UNARY, (Op.TAN,)),
    Function("asin(number)", "double precision", "Inverse sine; NULL beyond -1 and 1.",
             exp.Asin, _double(Op.ASIN), UNARY, (Op.ASIN,)),
    Function("acos(number)", "double precision", "Inverse cosine; NULL beyond -1 and 1.",
             exp.Acos, _double(Op.ACOS), UNARY, (Op.ACOS,)),
    Function("atan(number)", "double precision", "Inverse tangent.", exp.Atan, _double(Op.ATAN), UNARY, (Op.ATAN,)),
    Function("atan2(y, x)", "double precision", "Inverse tangent of y / x.",
             exp.Atan2, _double(Op.ATAN2), BINARY, (Op.ATAN2,)),
    Function("degrees(radians)", "double precision", "Radians to degrees.",
             exp.Degrees, _times(180 / math.pi), UNARY, (Op.MUL,)),
    Function("radians(degrees)", "double precision", "Degrees to radians.",
             exp.Radians, _times(math.pi / 180), UNARY, (Op.MUL,)),
    Function("width_bucket(number, low, high, count)", "integer",
             "The bucket of a number, among count buckets between two constants; 0 below, count + 1 above.",
             exp.WidthBucket, _width_bucket, frozenset({"this", "min_value", "max_value", "num_buckets"}),
             (Op.WIDTH_BUCKET,)),
    Function("dp_low(number)", "double precision", "The lower end of the 95 % interval around a noisy number.",
             rule=_interval_end(high=False)),
    Function("dp_high(number)", "double precision", "The upper end of the 95 % interval around a noisy number.",
             rule=_interval_end(high=True)),
)  # fmt: skip
