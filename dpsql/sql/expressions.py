"""Expressions: from sqlglot's tree to our own closed scalars.

The table at the end is the allow-list. A node type that is not in it is refused, and so is a node in it that
carries an argument its handler does not know: nothing an analyst wrote is ever dropped in silence.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Sequence
from decimal import Decimal

from sqlglot import exp

from dpsql.errors import (
    BadSetting,
    CannotCast,
    Error,
    InvalidEscape,
    NotSupported,
    OutOfRange,
    SqlSyntaxError,
    TypeMismatch,
    UnknownFunction,
    UnknownOperator,
    UnknownParameter,
)
from dpsql.plan.evaluate import NotConstant, evaluate
from dpsql.plan.nodes import Plan
from dpsql.plan.scalars import (
    Agg,
    Aggregated,
    Call,
    Case,
    Const,
    IntervalEnd,
    Op,
    Ref,
    Scalar,
    SortKey,
    Subquery,
    Windowed,
    refs,
)
from dpsql.sql.allowed import NAMES, REFUSED, check_arguments, readable, refuse_aggregates
from dpsql.sql.frames import frame
from dpsql.sql.names import Scope, folded, position
from dpsql.sql.parse import is_storable
from dpsql.sql.spans import Span, as_span
from dpsql.sql.typing import arithmetic_type, coerce, constant, decimal_constant, integer_constant, sum_type, unify
from dpsql.types import (
    BIGINT,
    BOOLEAN,
    DATE,
    DOUBLE,
    INTERVAL,
    MAX_DIGITS,
    NUMERIC,
    TEXT,
    TIMESTAMP,
    UNKNOWN,
    Kind,
    Type,
    Value,
)
from dpsql.types import decimal as decimal_type
from dpsql.types import integer as integer_type

MAX_LIST = 10_000


_ONLY_DATES = "an interval can only be added to a date or timestamp"


class Expressions:
    """Resolves expressions; subqueries inside them go back to the resolver of relations."""

    def __init__(
        self, text: str, parameters: Sequence[Value], subquery: Callable[[exp.Expression, Scope], Plan]
    ) -> None:
        self._source = text
        self._parameters = parameters
        self._subquery = subquery
        self._windows: dict[str, exp.Window] = {}

    def name_windows(self, windows: dict[str, exp.Window]) -> dict[str, exp.Window]:
        """Set the WINDOW clause of the query block that is resolved next; returns the one around it."""
        around, self._windows = self._windows, windows
        return around

    # --- entry points ---

    def scalar(self, node: exp.Expression, scope: Scope) -> Scalar:
        handler = _HANDLERS.get(type(node))
        if handler is None:
            if type(node) in REFUSED:
                what, hint = REFUSED[type(node)]
                raise NotSupported(f"{what} is not supported", hint=hint, position=position(node))
            if isinstance(node, exp.Func):
                raise UnknownFunction(self._function_name(node), position=position(node))
            raise NotSupported(f"{readable(node)} is not supported", position=position(node))
        rule, allowed = handler
        check_arguments(node, allowed)
        self._check_name(node)
        try:
            return rule(self, node, scope)
        except Error as error:
            # The innermost expression that has a place in the text.
            error.position = position(node) if error.position is None else error.position
            raise

    def _function_name(self, node: exp.Func) -> str:
        """A function's name as it was written; sqlglot keeps only its own."""
        start, end = node.meta.get("start"), node.meta.get("end")
        if isinstance(start, int) and isinstance(end, int):
            return self._source[start : end + 1].lower()
        return str(node.this).lower() if isinstance(node, exp.Anonymous) else node.sql_name().lower()

    def _check_name(self, node: exp.Expression) -> None:
        """Refuse the names that other databases have for a function."""
        names = NAMES.get(type(node))
        if names is not None and isinstance(node, exp.Func) and isinstance(node.meta.get("start"), int):
            written = self._function_name(node)
            if written not in names:
                raise UnknownFunction(written, position=position(node))

    def typed(self, node: exp.Expression, scope: Scope) -> Scalar:
        """An expression whose type is settled: a bare string is text."""
        value = self.scalar(node, scope)
        if value.type.kind is Kind.INTERVAL:
            raise NotSupported(
                "intervals can only be compared",
                hint="Write EXTRACT(EPOCH FROM …) for the number of seconds.",
                position=position(node),
            )
        return coerce(value, TEXT) if value.type.kind is Kind.UNKNOWN else value

    def boolean(self, node: exp.Expression, scope: Scope) -> Scalar:
        value = self.scalar(node, scope)
        if value.type.kind not in (Kind.BOOLEAN, Kind.UNKNOWN):
            raise TypeMismatch(f"expected a condition, found {value.type.kind.value}", position=position(node))
        return coerce(value, BOOLEAN)

    def condition(self, node: exp.Expression, scope: Scope, clause: str) -> Scalar:
        """A boolean in a clause that is evaluated before any aggregation."""
        value = self.boolean(node, scope)
        refuse_aggregates(value, clause)
        return value

    # --- leaves ---

    def _column(self, node: exp.Column, scope: Scope) -> Scalar:
        if isinstance(node.this, exp.Star):
            raise NotSupported("a whole row as a value is not supported", position=position(node))
        return scope.find(node)

    def _literal(self, node: exp.Literal, _: Scope) -> Scalar:
        text = str(node.this)
        if node.is_string:
            return constant(text)
        if len(text) > 1_000:
            raise OutOfRange("a number is out of range", position=position(node))
        if re.fullmatch(r"\d+", text):
            return integer_constant(int(text))
        if re.fullmatch(r"(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?", text):
            return decimal_constant(Decimal(text))
        raise SqlSyntaxError("a number cannot be read", position=position(node))

    def _parameter(self, node: exp.Parameter, _: Scope) -> Scalar:
        number = str(node.this.this)
        if not number.isdigit() or not 1 <= int(number) <= len(self._parameters):
            raise UnknownParameter(f"there is no parameter ${number}", position=position(node))
        value = self._parameters[int(number) - 1]
        if isinstance(value, float | Decimal) and not math.isfinite(value):
            raise BadSetting(f"parameter ${number} is not a finite number", position=position(node))
        if isinstance(value, str) and not is_storable(value):
            raise BadSetting(f"parameter ${number} contains a zero byte or half a character", position=position(node))
        return constant(value)

    def _paren(self, node: exp.Paren, scope: Scope) -> Scalar:
        return self.scalar(node.this, scope)

    # --- logic ---

    def _not(self, node: exp.Not, scope: Scope) -> Scalar:
        return Call(Op.NOT, (self.boolean(node.this, scope),), BOOLEAN)

    def compare(self, op: Op, left: Scalar, right: Scalar, node: exp.Expression) -> Scalar:
        try:
            common = unify((left, right), "compared")
        except TypeMismatch:
            raise UnknownOperator(
                f"operator does not exist: {left.type.kind.value} {op.value} {right.type.kind.value}",
                hint="Cast one side.",
                position=position(node),
            ) from None
        return Call(op, (coerce(left, common), coerce(right, common)), BOOLEAN)

    def _between(self, node: exp.Between, scope: Scope) -> Scalar:
        value = self.scalar(node.this, scope)
        low, high = self.scalar(node.args["low"], scope), self.scalar(node.args["high"], scope)
        above, below = self.compare(Op.GE, value, low, node), self.compare(Op.LE, value, high, node)
        return Call(Op.AND, (above, below), BOOLEAN)

    def _in(self, node: exp.In, scope: Scope) -> Scalar:
        value = self.scalar(node.this, scope)
        query = node.args.get("query")
        if query is not None:
            plan = self._subquery(query, scope)
            if len(plan.fields) != 1:
                raise SqlSyntaxError("a subquery of IN must return one column", position=position(node))
            common = unify((value, Ref(plan.fields[0])), "compared")
            return Subquery("in", plan, BOOLEAN, coerce(value, common), position(node))
        items = [self.scalar(item, scope) for item in node.expressions]
        if len(items) > MAX_LIST:
            raise NotSupported(f"IN lists more than {MAX_LIST:,} values", position=position(node))
        if not items:
            raise SqlSyntaxError("IN needs at least one value", position=position(node))
        common = unify((value, *items), "compared")
        return Call(Op.IN, tuple(coerce(part, common) for part in (value, *items)), BOOLEAN)

    def quantified(self, op: Op, node: exp.Expression, scope: Scope) -> Scalar:
        """x > ANY (SELECT …), x <> ALL (SELECT …); two of them are IN and NOT IN."""
        word = "any" if isinstance(node.expression, exp.Any) else "all"
        check_arguments(node.expression, {"this"})
        query: exp.Expression = node.expression.this
        while isinstance(query, exp.Paren):
            query = query.this
        if not isinstance(query, exp.Select | exp.SetOperation | exp.Subquery):
            raise NotSupported(
                f"{word.upper()} needs a subquery", hint="Use IN with a list of values.", position=position(node)
            )
        value, plan = self.scalar(node.this, scope), self._subquery(query, scope)
        if len(plan.fields) != 1:
            raise SqlSyntaxError(f"a subquery of {word.upper()} must return one column", position=position(node))
        arg = self.compare(op, value, Ref(plan.fields[0]), node)
        assert isinstance(arg, Call)
        if isinstance(arg.args[1], Call):
            raise UnknownOperator("the sides of this comparison are of different types", hint="Cast one side.")
        if (op, word) in ((Op.EQ, "any"), (Op.NE, "all")):
            inside = Subquery("in", plan, BOOLEAN, arg.args[0], position(node))
            return inside if op is Op.EQ else Call(Op.NOT, (inside,), BOOLEAN)
        return Subquery(f"{op.value} {word}", plan, BOOLEAN, arg.args[0], position(node))

    def _is(self, node: exp.Is, scope: Scope) -> Scalar:
        right = node.expression
        match right:
            case exp.Null():
                result: Scalar = Call(Op.IS_NULL, (self.typed(node.this, scope),), BOOLEAN)
            case exp.Boolean():
                op = Op.IS_TRUE if right.this else Op.IS_FALSE
                result = Call(op, (self.boolean(node.this, scope),), BOOLEAN)
            case _:
                raise NotSupported("this IS test is not supported", position=position(node))
        return Call(Op.NOT, (result,), BOOLEAN) if node.args.get("negate") else result

    def _distinct_from(self, node: exp.Expression, scope: Scope) -> Scalar:
        left, right = self.scalar(node.this, scope), self.scalar(node.expression, scope)
        result = self.compare(Op.DISTINCT_FROM, left, right, node)
        return Call(Op.NOT, (result,), BOOLEAN) if isinstance(node, exp.NullSafeEQ) else result

    def _like(self, node: exp.Expression, scope: Scope, escape: str = "\\") -> Scalar:
        value, pattern = self._text(node.this, scope), self._text(node.expression, scope)
        if not any(True for _ in refs(pattern)):
            with contextlib.suppress(NotConstant):
                pattern = Const(evaluate(pattern), TEXT)
        if not isinstance(pattern, Const) or not isinstance(pattern.value, str):
            raise NotSupported(
                "LIKE needs a constant pattern", hint="Write the pattern as a literal.", position=position(node)
            )
        if (len(pattern.value) - len(pattern.value.rstrip(escape))) % 2:
            raise InvalidEscape("LIKE pattern must not end with escape character", position=position(node))
        op = Op.ILIKE if isinstance(node, exp.ILike) else Op.LIKE
        result = Call(op, (value, pattern), BOOLEAN, escape)
        return Call(Op.NOT, (result,), BOOLEAN) if node.args.get("negate") else result

    def _escape(self, node: exp.Escape, scope: Scope) -> Scalar:
        character = node.expression
        if not isinstance(node.this, exp.Like | exp.ILike) or not (
            isinstance(character, exp.Literal) and character.is_string and len(str(character.this)) == 1
        ):
            raise NotSupported("ESCAPE needs a LIKE and one constant character", position=position(node))
        check_arguments(node.this, {"this", "expression", "negate"})
        return self._like(node.this, scope, str(character.this))

    # --- arithmetic ---

    def arithmetic(self, op: Op, left: Scalar, right: Scalar, node: exp.Expression) -> Scalar:
        # A quoted number beside a number is read as that number.
        if left.type.kind is Kind.UNKNOWN and right.type.is_numeric:
            left = coerce(left, right.type)
        if right.type.kind is Kind.UNKNOWN and left.type.is_numeric:
            right = coerce(right, left.type)
        if Kind.INTERVAL in (left.type.kind, right.type.kind):
            raise NotSupported("arithmetic with intervals is not supported", position=position(node))
        result = arithmetic_type(op, left.type, right.type)
        if result is None and op is Op.MOD and left.type.is_numeric and right.type.is_numeric:
            raise NotSupported("% is supported for integers only", hint="Cast both sides to integer.")
        if result is None:
            raise UnknownOperator(
                f"operator does not exist: {left.type.kind.value} {op.value} {right.type.kind.value}",
                hint="Cast one side.",
                position=position(node),
            )
        # Quotients of exact numbers are taken from the exact numbers.
        exact = (Kind.INTEGER, Kind.DECIMAL)
        if not (op is Op.DIV and left.type.kind in exact and right.type.kind in exact):
            left, right = coerce(left, result), coerce(right, result)
        return Call(op, (left, right), result)

    def _negate(self, node: exp.Neg, scope: Scope) -> Scalar:
        value = self._number(node.this, scope)
        if isinstance(value, Const) and isinstance(value.value, Decimal):
            return Const(value.value.copy_negate(), value.type)  # minus would round to 28 digits
        if isinstance(value, Const) and isinstance(value.value, int | float):
            return Const(-value.value, value.type)
        return Call(Op.NEG, (value,), value.type)

    def _number(self, node: exp.Expression, scope: Scope) -> Scalar:
        value = self.scalar(node, scope)
        if value.type.kind is Kind.UNKNOWN:
            return coerce(value, DOUBLE)
        if not value.type.is_numeric:
            raise UnknownOperator(f"expected a number, found {value.type.kind.value}", position=position(node))
        return value

    def _sign(self, node: exp.Expression, scope: Scope) -> Scalar:
        value = self._number(node.this, scope)
        return Call(Op.SIGN, (value,), decimal_type(1, 0) if value.type.kind is Kind.DECIMAL else DOUBLE)

    def _same_type(self, op: Op, nodes: list[exp.Expression], scope: Scope) -> Scalar:
        parts = [self.scalar(node, scope) for node in nodes]
        common = unify(parts, op.value)
        return Call(op, tuple(coerce(part, common) for part in parts), common)

    def _nullif(self, node: exp.Nullif, scope: Scope) -> Scalar:
        left, right = self.scalar(node.this, scope), self.scalar(node.expression, scope)
        common = unify((left, right), "compared")
        left = coerce(left, common)
        return Call(Op.NULLIF, (left, coerce(right, common)), left.type)

    def _logarithm(self, node: exp.Log, scope: Scope) -> Scalar:
        """LOG(x) and LOG10(x); sqlglot reads the latter as LOG(10, x)."""
        value = node.this
        if node.expression is not None:
            if not (isinstance(node.this, exp.Literal) and node.this.this == "10"):
                raise NotSupported("LOG with a base is not supported", hint="Use LOG10 or LN.", position=position(node))
            value = node.expression
        return _real_call(Op.LOG10, self._number(value, scope))

    def _interval_end(self, node: exp.Anonymous, scope: Scope) -> Scalar:
        """dp_low and dp_high, which only dpsql has."""
        name = self._function_name(node)
        if name not in ("dp_low", "dp_high"):
            raise UnknownFunction(name, position=position(node))
        (arg,) = node.expressions
        return IntervalEnd(self._number(arg, scope), name == "dp_high", DOUBLE, position(node))

    def _small_integer(self, node: exp.Expression, scope: Scope, what: str) -> int:
        value = self.scalar(node, scope)
        if not isinstance(value, Const) or not isinstance(value.value, int) or isinstance(value.value, bool):
            raise NotSupported(f"{what} must be a constant integer", position=position(node))
        return value.value

    def _width_bucket(self, node: exp.WidthBucket, scope: Scope) -> Scalar:
        value = self._number(node.this, scope)
        if any(node.args.get(part) is None for part in ("min_value", "max_value", "num_buckets")):
            raise NotSupported("width_bucket needs four arguments", position=position(node))
        low, high = self._number(node.args["min_value"], scope), self._number(node.args["max_value"], scope)
        count = self._small_integer(node.args["num_buckets"], scope, "the number of buckets")
        if not (isinstance(low, Const) and isinstance(high, Const)) or low.value is None or high.value is None:
            raise NotSupported("width_bucket needs constant bounds", position=position(node))
        if count < 1 or count > 1_000_000:
            raise BadSetting("the number of buckets must be between 1 and 1,000,000", position=position(node))
        if low.value >= high.value:  # type: ignore[operator]
            raise BadSetting("the lower bound of width_bucket must be below the upper one", position=position(node))
        args = (*(coerce(part, DOUBLE) for part in (value, low, high)), constant(count))
        return Call(Op.WIDTH_BUCKET, args, integer_type(7))

    # --- conditional ---

    def _case(self, node: exp.Case, scope: Scope) -> Scalar:
        subject = None if node.this is None else self.scalar(node.this, scope)
        branches = []
        for branch in node.args["ifs"]:
            check_arguments(branch, {"this", "true"})
            if subject is None:
                when = self.boolean(branch.this, scope)
            else:
                when = self.compare(Op.EQ, subject, self.scalar(branch.this, scope), branch)
            branches.append((when, self.scalar(branch.args["true"], scope)))
        default = node.args.get("default")
        otherwise = constant(None) if default is None else self.scalar(default, scope)
        common = unify([*(then for _, then in branches), otherwise], "CASE")
        return Case(tuple((when, coerce(then, common)) for when, then in branches), coerce(otherwise, common), common)

    def _coalesce(self, node: exp.Coalesce, scope: Scope) -> Scalar:
        return self._same_type(Op.COALESCE, [node.this, *node.expressions], scope)

    # --- casts ---

    def _cast(self, node: exp.Cast, scope: Scope) -> Scalar:
        target = self._cast_target(node.args["to"])
        value = self.scalar(node.this, scope)
        if value.type.kind is Kind.UNKNOWN:
            if target.kind is Kind.INTERVAL:
                raise NotSupported("intervals stand only beside dates", position=position(node))
            value = coerce(value, target)
            return value if value.type.kind is not Kind.UNKNOWN else Const(None, target)
        if (value.type.kind, target.kind) not in _CASTS:
            raise CannotCast(
                f"cannot cast type {value.type.kind.value} to {target.kind.value}", position=position(node)
            )
        if value.type.kind is target.kind and target.kind is not Kind.DECIMAL and value.type.numeric == target.numeric:
            return value
        if target.kind is Kind.DECIMAL and not node.args["to"].expressions:
            # numeric without precision keeps what there is
            if value.type.kind is Kind.DECIMAL:
                return value
            target = decimal_type(value.type.precision, 0) if value.type.kind is Kind.INTEGER else NUMERIC
        if target.kind is Kind.INTEGER and value.type.kind is Kind.DECIMAL:
            digits = value.type.precision - value.type.scale + 1
            target = integer_type(min(digits, target.precision), big=target.big)
        return Call(Op.CAST, (value,), target)

    def _cast_target(self, to: exp.Expression) -> Type:
        kind = to.this
        name = kind.name if isinstance(kind, exp.DType) else str(kind)
        if to.args.get("nested") or name not in _TYPES:
            raise NotSupported("casts to this type are not supported", position=position(to))
        parts = [str(part.this.this) for part in to.expressions]
        if name == "DECIMAL" and parts:
            if not all(part.isdigit() for part in parts):
                raise SqlSyntaxError("the precision of numeric must be a whole number")
            precision, scale = int(parts[0]), int(parts[1]) if len(parts) > 1 else 0
            if not 0 < precision <= 38:
                raise NotSupported("numeric holds between 1 and 38 digits here")
            if scale > precision:
                raise NotSupported("a scale beyond the precision of numeric is not supported")
            return decimal_type(precision, scale)
        if parts and name in ("VARCHAR", "CHAR", "TIMESTAMP"):
            raise NotSupported(f"{name.lower()} with a length is not supported", position=position(to))
        return _TYPES[name]

    # --- text ---

    def _text(self, node: exp.Expression, scope: Scope) -> Scalar:
        value = self.typed(node, scope)
        if value.type.kind is not Kind.TEXT:
            raise UnknownOperator(f"expected text, found {value.type.kind.value}", position=position(node))
        return value

    def _concat(self, node: exp.DPipe, scope: Scope) -> Scalar:
        left, right = self.typed(node.this, scope), self.typed(node.expression, scope)
        if Kind.TEXT not in (left.type.kind, right.type.kind):
            raise UnknownOperator("|| needs text on at least one side", position=position(node))
        parts = tuple(part if part.type.kind is Kind.TEXT else self._as_text(part, node) for part in (left, right))
        return Call(Op.CONCAT, parts, TEXT)

    def _as_text(self, value: Scalar, node: exp.Expression) -> Scalar:
        if value.type.kind not in (Kind.INTEGER, Kind.DATE):
            raise NotSupported(f"text made of {value.type.kind.value} is not supported", position=position(node))
        return Call(Op.CAST, (value,), TEXT)

    def _substring(self, node: exp.Substring, scope: Scope) -> Scalar:
        if node.args.get("start") is None:
            raise NotSupported("SUBSTRING needs a place to start", hint="Write SUBSTRING(x FROM 1 FOR 2).")
        start = self._small_integer(node.args["start"], scope, "the start")
        given = node.args.get("length")
        count = 10_000 if given is None else self._small_integer(given, scope, "the number of characters")
        if not 1 <= start <= 10_000 or not 0 <= count <= 10_000:
            raise NotSupported("SUBSTRING starts at 1 or later and takes at most 10,000 characters")
        return Call(Op.SUBSTRING, (self._text(node.this, scope), constant(start), constant(count)), TEXT)

    # --- time ---

    def _date_arithmetic(self, op: Op, node: exp.Expression, scope: Scope) -> Scalar | None:
        left_interval, right_interval = as_span(node.this), as_span(node.expression)
        if left_interval is not None and right_interval is not None:
            raise NotSupported("intervals stand only beside dates", position=position(node))
        if left_interval is not None:
            if op is Op.SUB:
                raise TypeMismatch("a date cannot be subtracted from an interval", position=position(node))
            return self._shift(self._moment(node.expression, scope), left_interval, 1)
        if right_interval is not None:
            return self._shift(self._moment(node.this, scope), right_interval, 1 if op is Op.ADD else -1)
        left, right = self.scalar(node.this, scope), self.scalar(node.expression, scope)
        if op is Op.SUB and left.type.is_temporal and right.type.kind is Kind.UNKNOWN:
            right = coerce(right, left.type)
        match left.type.kind, right.type.kind:
            case (Kind.DATE, Kind.DATE) if op is Op.SUB:
                return Call(Op.DAYS_BETWEEN, (left, right), integer_type(8))
            case (Kind.DATE | Kind.TIMESTAMP, Kind.DATE | Kind.TIMESTAMP) if op is Op.SUB:
                return Call(Op.SECONDS_BETWEEN, (coerce(left, TIMESTAMP), coerce(right, TIMESTAMP)), INTERVAL)
            case Kind.DATE, Kind.INTEGER:
                days = right if op is Op.ADD else Call(Op.NEG, (right,), right.type)
                return Call(Op.ADD_DAYS, (left, days), DATE)
            case (Kind.INTEGER, Kind.DATE) if op is Op.ADD:
                return Call(Op.ADD_DAYS, (right, left), DATE)
            case _:
                return None

    def _moment(self, node: exp.Expression, scope: Scope, otherwise: str = _ONLY_DATES) -> Scalar:
        value = self.scalar(node, scope)
        if value.type.kind is Kind.UNKNOWN:
            value = coerce(value, TIMESTAMP)
        if not value.type.is_temporal:
            raise UnknownOperator(otherwise, position=position(node))
        return value

    def _shift(self, moment: Scalar, by: Span, sign: int) -> Scalar:
        """date or timestamp ± interval is a timestamp."""
        result = coerce(moment, TIMESTAMP)
        if by.months:
            result = Call(Op.ADD_MONTHS, (result, constant(sign * by.months)), TIMESTAMP)
        seconds = by.days * 86400 + by.seconds
        if seconds:
            result = Call(Op.ADD_SECONDS, (result, constant(sign * seconds)), TIMESTAMP)
        return result

    def _interval(self, node: exp.Interval, _: Scope) -> Scalar:
        """A constant interval, to be compared with one: months count as thirty days, as in PostgreSQL."""
        found = as_span(node)
        assert found is not None
        return Const(float((found.months * 30 + found.days) * 86400 + found.seconds), INTERVAL)

    def _extract(self, node: exp.Extract, scope: Scope) -> Scalar:
        part = str(node.this.this).lower() if isinstance(node.this, exp.Var) else ""
        value = self.scalar(node.expression, scope)
        if value.type.kind is Kind.UNKNOWN:
            raise UnknownOperator("EXTRACT needs a date or timestamp", position=position(node))
        if value.type.kind is Kind.INTERVAL and isinstance(value, Call):
            if part == "epoch":
                return Call(Op.SECONDS_BETWEEN, value.args, NUMERIC)
            if part in ("day", "days"):
                days = Call(Op.DIV, (Call(Op.SECONDS_BETWEEN, value.args, DOUBLE), Const(86400.0, DOUBLE)), DOUBLE)
                return Call(Op.CAST, (Call(Op.TRUNC, (days,), DOUBLE),), decimal_type(10, 0))
            raise NotSupported(f"EXTRACT({part}) of an interval is not supported", position=position(node))
        if not value.type.is_temporal:
            raise UnknownOperator("EXTRACT needs a date or timestamp", position=position(node))
        if part == "epoch":
            return Call(Op.EXTRACT, (value,), NUMERIC, "epoch")
        if part not in EXTRACT_DIGITS:
            raise NotSupported(f"EXTRACT({part}) is not supported", position=position(node))
        if value.type.kind is Kind.DATE and part in ("hour", "minute", "second"):
            raise NotSupported(f'unit "{part}" not supported for type date', position=position(node))
        digits, scale = EXTRACT_DIGITS[part]
        return Call(Op.EXTRACT, (value,), decimal_type(digits + scale, scale), part)

    def _date_trunc(self, node: exp.Expression, scope: Scope) -> Scalar:
        given = node.args["unit"]
        end = node.meta.get("end")
        bare = isinstance(end, int) and not self._source[end + 1 :].lstrip().removeprefix("(").lstrip().startswith("'")
        if bare or not isinstance(given, exp.Var | exp.Literal):
            raise NotSupported("date_trunc needs a constant unit", position=position(node))
        unit = str(given.this).lower()
        if unit not in TRUNC_UNITS:
            units = ", ".join(sorted(TRUNC_UNITS))
            raise NotSupported(f"date_trunc('{unit}') is not supported", hint=f"There are {units}.")
        value = self._moment(node.this, scope, "date_trunc needs a date or timestamp")
        return Call(Op.DATE_TRUNC, (coerce(value, TIMESTAMP),), TIMESTAMP, unit)

    # --- subqueries ---

    def _scalar_subquery(self, node: exp.Subquery, scope: Scope) -> Scalar:
        plan = self._subquery(node, scope)
        if len(plan.fields) != 1:
            raise SqlSyntaxError("subquery must return only one column", position=position(node))
        return Subquery("scalar", plan, plan.fields[0].type, None, position(node))

    def _exists(self, node: exp.Exists, scope: Scope) -> Scalar:
        return Subquery("exists", self._subquery(node.this, scope), BOOLEAN, None, position(node))

    # --- aggregates and windows ---

    def _aggregated(self, function: Agg, node: exp.Expression, scope: Scope) -> Aggregated:
        at = position(node)
        argument = node.this
        if argument is None:
            raise SqlSyntaxError(f"{function.value} needs an argument", hint="Write COUNT(*).", position=at)
        distinct = isinstance(argument, exp.Distinct)
        if distinct:
            check_arguments(argument, {"expressions"})
            if len(argument.expressions) != 1:
                raise NotSupported("DISTINCT of several columns is not supported in an aggregate", position=at)
            argument = argument.expressions[0]
        if function is Agg.COUNT and isinstance(argument, exp.Star):
            check_arguments(argument, set())
            if distinct or node.expressions:
                raise SqlSyntaxError("* stands alone in COUNT(*)", position=at)
            return Aggregated(function, (), BIGINT, position=at)
        if node.args.get("expressions"):
            raise NotSupported(f"{function.value} takes one argument", position=at)
        args = [self.typed(argument, scope)]
        if function in _TWO_ARGUMENTS:
            args.append(self.typed(node.expression, scope))
        for arg in args:
            refuse_aggregates(arg, f"the argument of {function.value}")
        return Aggregated(
            function, self._arguments(function, args, node), _result_type(function, args), distinct, None, at
        )

    def _arguments(self, function: Agg, args: list[Scalar], node: exp.Expression) -> tuple[Scalar, ...]:
        if function in (Agg.COUNT, Agg.MIN, Agg.MAX):
            return tuple(args)
        if function in (Agg.BOOL_AND, Agg.BOOL_OR):
            wanted = all(arg.type.kind is Kind.BOOLEAN for arg in args)
        else:
            wanted = all(arg.type.is_numeric for arg in args)
        if not wanted:
            name = self._function_name(node) if isinstance(node, exp.Func) else function.value
            given = ", ".join(arg.type.kind.value for arg in args)
            raise UnknownFunction(f"{name}({given})", position=position(node))
        return tuple(args)

    def _grouping(self, node: exp.Grouping, scope: Scope) -> Scalar:
        args = tuple(self.typed(part, scope) for part in node.expressions)
        if not 1 <= len(args) <= 30:
            raise SqlSyntaxError("GROUPING needs between 1 and 30 arguments", position=position(node))
        return Aggregated(Agg.GROUPING, args, integer_type(10), position=position(node))

    def _median(self, node: exp.Median, scope: Scope) -> Scalar:
        """MEDIAN(x), which PostgreSQL spells PERCENTILE_CONT(0.5)."""
        if isinstance(node.this, exp.Distinct):
            raise NotSupported("DISTINCT in median is not supported", position=position(node))
        return self._at_rank(Agg.PERCENTILE_CONT, node, node.this, constant(Decimal("0.5")), scope)

    def _within_group(self, node: exp.WithinGroup, scope: Scope) -> Scalar:
        call = node.this
        if not isinstance(call, exp.PercentileCont | exp.PercentileDisc):
            raise NotSupported("WITHIN GROUP stands only behind percentile_cont and percentile_disc")
        check_arguments(call, {"this"})
        self._check_name(call)
        at = position(call)
        keys = node.expression.expressions
        if len(keys) != 1 or keys[0].args.get("desc"):
            raise NotSupported(
                "a percentile takes one expression, in ascending order",
                hint="Write PERCENTILE_CONT(1 - share) WITHIN GROUP (ORDER BY x) to count from the top.",
                position=at,
            )
        share = self.scalar(call.this, scope)
        try:
            share = constant(evaluate(share))
        except NotConstant:
            raise NotSupported("the share of a percentile must be a constant", position=at) from None
        if isinstance(share.value, bool) or not isinstance(share.value, int | float | Decimal):
            raise NotSupported("the share of a percentile must be a number", position=at)
        if not 0 <= share.value <= 1:
            raise OutOfRange(f"percentile value {share.value} is not between 0 and 1", position=at)
        function = Agg.PERCENTILE_CONT if isinstance(call, exp.PercentileCont) else Agg.PERCENTILE_DISC
        return self._at_rank(function, call, keys[0].this, share, scope)

    def _at_rank(
        self, function: Agg, call: exp.Expression, node: exp.Expression, share: Const, scope: Scope
    ) -> Aggregated:
        value = self.typed(node, scope)
        refuse_aggregates(value, f"the argument of {function.value}")
        if function is Agg.PERCENTILE_CONT:
            (value,) = self._arguments(function, [value], call)
            return Aggregated(function, (value, share), DOUBLE, position=position(call))
        return Aggregated(function, (value, share), value.type, position=position(call))

    def _filter(self, node: exp.Filter, scope: Scope) -> Scalar:
        call = self.scalar(node.this, scope)
        if not isinstance(call, Aggregated) or call.function is Agg.GROUPING:
            raise SqlSyntaxError("FILTER stands only behind an aggregate", position=position(node))
        where = self.condition(node.expression.this, scope, "FILTER")
        return Aggregated(call.function, call.args, call.type, call.distinct, where, call.position)

    def _window(self, node: exp.Window, scope: Scope) -> Scalar:
        inner = node.this
        where = None
        if isinstance(inner, exp.Filter):
            where = self.condition(inner.expression.this, scope, "FILTER")
            inner = inner.this
            if type(inner) not in _WINDOW_AGGREGATES:
                raise NotSupported("FILTER stands only behind an aggregate", position=position(node))
        function, args, result = self._window_function(inner, scope)
        partition, order, spec = self._window_parts(node)
        return Windowed(
            function,
            args,
            result,
            tuple(self.typed(part, scope) for part in partition),
            tuple(self.sort_key(part, scope) for part in order),
            frame(spec),
            where,
        )

    def _window_parts(
        self, node: exp.Window
    ) -> tuple[list[exp.Expression], list[exp.Expression], exp.Expression | None]:
        name = node.args.get("alias")
        if name is None:
            order = node.args.get("order")
            return node.args.get("partition_by") or [], order.expressions if order else [], node.args.get("spec")
        if any(node.args.get(part) for part in ("partition_by", "order", "spec")):
            raise NotSupported("a window that extends a named window is not supported", position=position(node))
        named = self._windows.get(folded(name))
        if named is None:
            raise SqlSyntaxError(f'window "{folded(name)}" does not exist', position=position(node))
        check_arguments(named, {"this", "partition_by", "order", "spec"})
        return self._window_parts(exp.Window(**{k: v for k, v in named.args.items() if k != "this"}))

    def _window_function(self, node: exp.Expression, scope: Scope) -> tuple[str, tuple[Scalar, ...], Type]:
        for class_, name in _RANKINGS.items():
            if type(node) is class_:
                check_arguments(node, set())
                return name, (), BIGINT if name in ("row_number", "rank", "dense_rank") else DOUBLE
        match node:
            case exp.Ntile():
                check_arguments(node, {"this"})
                tiles = self._small_integer(node.this, scope, "the number of tiles")
                if tiles < 1:
                    raise BadSetting("the number of tiles must be positive", position=position(node))
                return "ntile", (constant(tiles),), BIGINT
            case exp.Lag() | exp.Lead():
                check_arguments(node, {"this", "offset", "default"})
                value = self.typed(node.this, scope)
                offset = node.args.get("offset")
                steps = 1 if offset is None else self._small_integer(offset, scope, "the offset")
                args: tuple[Scalar, ...] = (value, constant(steps))
                common = value.type
                if node.args.get("default") is not None:
                    default = self.scalar(node.args["default"], scope)
                    common = unify((value, default), "lag and default")
                    args = (coerce(value, common), constant(steps), coerce(default, common))
                return "lag" if isinstance(node, exp.Lag) else "lead", args, common
            case exp.FirstValue() | exp.LastValue():
                check_arguments(node, {"this"})
                value = self.typed(node.this, scope)
                return "first_value" if isinstance(node, exp.FirstValue) else "last_value", (value,), value.type
            case exp.NthValue():
                check_arguments(node, {"this", "offset"})
                value = self.typed(node.this, scope)
                nth = self._small_integer(node.args["offset"], scope, "the offset")
                if nth < 1:
                    raise BadSetting("the offset of nth_value must be positive", position=position(node))
                return "nth_value", (value, constant(nth)), value.type
        for class_, function in _WINDOW_AGGREGATES.items():
            if type(node) is class_:
                check_arguments(node, {"this", "expressions", "big_int"})
                if isinstance(node.this, exp.Distinct):
                    raise NotSupported("DISTINCT in a window function is not supported", position=position(node))
                if function is Agg.COUNT and isinstance(node.this, exp.Star):
                    return "count", (), BIGINT
                # The argument may itself be an aggregate: SUM(COUNT(*)) OVER ().
                value = self.typed(node.this, scope)
                return function.value, self._arguments(function, [value], node), _result_type(function, [value])
        raise NotSupported("this window function is not supported", position=position(node))

    def sort_key(self, node: exp.Expression, scope: Scope, value: Scalar | None = None) -> SortKey:
        check_arguments(node, {"this", "desc", "nulls_first"})
        resolved = self.typed(node.this, scope) if value is None else value
        return SortKey(resolved, bool(node.args.get("desc")), bool(node.args.get("nulls_first")))


Rule = Callable[[Expressions, exp.Expression, Scope], Scalar]


# --- rules that several operations share ---


def _connective(op: Op) -> Rule:
    def rule(self: Expressions, node: exp.Expression, scope: Scope) -> Scalar:
        # Long chains nest to the left; take them apart without recursion.
        parts: list[exp.Expression] = []
        current = node
        while type(current) is type(node):
            check_arguments(current, {"this", "expression"})
            parts.append(current.expression)
            current = current.this
        parts.append(current)
        values = [self.boolean(part, scope) for part in reversed(parts)]
        # A balanced tree: thousands of conditions must not nest thousands deep.
        while len(values) > 1:
            paired = [Call(op, (a, b), BOOLEAN) for a, b in zip(values[::2], values[1::2], strict=False)]
            values = [*paired, *([values[-1]] if len(values) % 2 else [])]
        return values[0]

    return rule


def _comparison(op: Op) -> Rule:
    def rule(self: Expressions, node: exp.Expression, scope: Scope) -> Scalar:
        if isinstance(node.expression, exp.Any | exp.All):
            return self.quantified(op, node, scope)
        left, right = self.scalar(node.this, scope), self.scalar(node.expression, scope)
        return self.compare(op, left, right, node)

    return rule


def _arithmetic(op: Op) -> Rule:
    def rule(self: Expressions, node: exp.Expression, scope: Scope) -> Scalar:
        if op in (Op.ADD, Op.SUB) and (moved := self._date_arithmetic(op, node, scope)) is not None:
            return moved
        left, right = self.scalar(node.this, scope), self.scalar(node.expression, scope)
        return self.arithmetic(op, left, right, node)

    return rule


def _keeps_type(op: Op) -> Rule:
    def rule(self: Expressions, node: exp.Expression, scope: Scope) -> Scalar:
        value = self._number(node.this, scope)
        return Call(op, (value,), value.type)

    return rule


def _whole(op: Op) -> Rule:
    def rule(self: Expressions, node: exp.Expression, scope: Scope) -> Scalar:
        """FLOOR, CEIL: a decimal stays a decimal, everything else is double precision."""
        value = self._number(node.this, scope)
        if value.type.kind is Kind.DECIMAL:
            whole = value.type.precision - value.type.scale + 1
            return Call(op, (value,), decimal_type(whole, 0))
        return Call(op, (coerce(value, DOUBLE),), NUMERIC if value.type.numeric else DOUBLE)

    return rule


def _rounded(op: Op) -> Rule:
    def rule(self: Expressions, node: exp.Expression, scope: Scope) -> Scalar:
        """ROUND, TRUNC: digits only for decimals, as in PostgreSQL; integers count as decimals then."""
        value = self._number(node.this, scope)
        given = node.args.get("decimals")
        digits = 0 if given is None else self._small_integer(given, scope, "the number of digits")
        if given is not None and value.type.kind is Kind.INTEGER:
            value = Call(Op.CAST, (value,), decimal_type(value.type.precision, 0))
        if value.type.kind is Kind.DECIMAL and value.type.precision >= MAX_DIGITS - 1:
            value = Call(Op.CAST, (value,), NUMERIC)  # rounding up could need a digit more than there is
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
    """A real function: of a numeric it is numeric, of anything else double precision."""
    numeric = value.type.is_exact and value.type.kind is not Kind.INTEGER
    return Call(op, (coerce(value, DOUBLE),), NUMERIC if numeric else DOUBLE)


def _real(op: Op) -> Rule:
    def rule(self: Expressions, node: exp.Expression, scope: Scope) -> Scalar:
        return _real_call(op, self._number(node.this, scope))

    return rule


def _extremum(op: Op) -> Rule:
    def rule(self: Expressions, node: exp.Expression, scope: Scope) -> Scalar:
        return self._same_type(op, [node.this, *node.expressions], scope)

    return rule


def _text_function(op: Op) -> Rule:
    def rule(self: Expressions, node: exp.Expression, scope: Scope) -> Scalar:
        result = integer_type(10) if op is Op.LENGTH else TEXT
        return Call(op, (self._text(node.this, scope),), result)

    return rule


def _part(op: Op) -> Rule:
    def rule(self: Expressions, node: exp.Expression, scope: Scope) -> Scalar:
        count = self._small_integer(node.expression, scope, "the number of characters")
        if not 0 <= count <= 10_000:
            raise NotSupported("the number of characters must be between 0 and 10,000", position=position(node))
        return Call(op, (self._text(node.this, scope), constant(count)), TEXT)

    return rule


def _aggregate(function: Agg) -> Rule:
    def rule(self: Expressions, node: exp.Expression, scope: Scope) -> Scalar:
        return self._aggregated(function, node, scope)

    return rule


_TWO_ARGUMENTS = frozenset({Agg.COVAR_POP, Agg.COVAR_SAMP, Agg.CORR, Agg.REGR_SLOPE, Agg.REGR_INTERCEPT})


def _result_type(function: Agg, args: Sequence[Scalar]) -> Type:
    match function:
        case Agg.COUNT:
            return BIGINT
        case Agg.SUM:
            return sum_type(args[0].type)
        case Agg.MIN | Agg.MAX:
            return args[0].type
        case Agg.BOOL_AND | Agg.BOOL_OR:
            return BOOLEAN
        case Agg.AVG | Agg.VAR_POP | Agg.VAR_SAMP | Agg.STDDEV_POP | Agg.STDDEV_SAMP if args[0].type.is_exact:
            return NUMERIC
        case _:
            return DOUBLE


EXTRACT_DIGITS = {
    "year": (5, 0), "quarter": (1, 0), "month": (2, 0), "day": (2, 0), "dow": (1, 0), "isodow": (1, 0),
    "doy": (3, 0), "week": (2, 0), "isoyear": (5, 0), "decade": (4, 0), "century": (3, 0), "hour": (2, 0),
    "minute": (2, 0), "second": (2, 6),
}  # fmt: skip
TRUNC_UNITS = frozenset(("second", "minute", "hour", "day", "week", "month", "quarter", "year", "decade"))

_TYPES: dict[str, Type] = {
    "INT": integer_type(10),
    "SMALLINT": integer_type(5),
    "BIGINT": BIGINT,
    "DECIMAL": decimal_type(38, 0),
    "DOUBLE": DOUBLE,
    "FLOAT": DOUBLE,
    "TEXT": TEXT,
    "VARCHAR": TEXT,
    "BOOLEAN": BOOLEAN,
    "DATE": DATE,
    "TIMESTAMP": TIMESTAMP,
    "INTERVAL": INTERVAL,
}

_NUMBERS = (Kind.INTEGER, Kind.DECIMAL, Kind.DOUBLE)
_CASTS = frozenset(
    [(a, b) for a in _NUMBERS for b in _NUMBERS]
    + [(kind, kind) for kind in (Kind.TEXT, Kind.BOOLEAN, Kind.DATE, Kind.TIMESTAMP)]
    + [(Kind.DATE, Kind.TIMESTAMP), (Kind.TIMESTAMP, Kind.DATE), (Kind.BOOLEAN, Kind.INTEGER)]
    + [(Kind.TEXT, kind) for kind in (Kind.INTEGER, Kind.DECIMAL, Kind.DOUBLE, Kind.DATE, Kind.TIMESTAMP)]
    + [(Kind.INTEGER, Kind.TEXT), (Kind.DATE, Kind.TEXT), (Kind.BOOLEAN, Kind.TEXT)]
)

_RANKINGS: dict[type[exp.Expression], str] = {
    exp.RowNumber: "row_number",
    exp.Rank: "rank",
    exp.DenseRank: "dense_rank",
    exp.PercentRank: "percent_rank",
    exp.CumeDist: "cume_dist",
}
_WINDOW_AGGREGATES: dict[type[exp.Expression], Agg] = {
    exp.Count: Agg.COUNT,
    exp.Sum: Agg.SUM,
    exp.Avg: Agg.AVG,
    exp.Min: Agg.MIN,
    exp.Max: Agg.MAX,
}

_X = Expressions
_UNARY = {"this"}
_BINARY = {"this", "expression"}
_LIST = {"this", "expressions", "ignore_nulls"}

_HANDLERS: dict[type[exp.Expression], tuple[Rule, set[str]]] = {
    exp.Column: (_X._column, {"this", "table", "db"}),  # type: ignore[dict-item]
    exp.Literal: (_X._literal, {"this", "is_string"}),  # type: ignore[dict-item]
    exp.Boolean: (lambda _, node, __: constant(bool(node.this)), _UNARY),
    exp.Null: (lambda *_: Const(None, UNKNOWN), set()),
    exp.Parameter: (_X._parameter, _UNARY),  # type: ignore[dict-item]
    exp.Paren: (_X._paren, _UNARY),  # type: ignore[dict-item]
    exp.And: (_connective(Op.AND), _BINARY),
    exp.Or: (_connective(Op.OR), _BINARY),
    exp.Not: (_X._not, _UNARY),  # type: ignore[dict-item]
    exp.EQ: (_comparison(Op.EQ), _BINARY),
    exp.NEQ: (_comparison(Op.NE), _BINARY),
    exp.LT: (_comparison(Op.LT), _BINARY),
    exp.LTE: (_comparison(Op.LE), _BINARY),
    exp.GT: (_comparison(Op.GT), _BINARY),
    exp.GTE: (_comparison(Op.GE), _BINARY),
    exp.Between: (_X._between, {"this", "low", "high"}),  # type: ignore[dict-item]
    exp.In: (_X._in, {"this", "expressions", "query"}),  # type: ignore[dict-item]
    exp.Is: (_X._is, {"this", "expression", "negate"}),  # type: ignore[dict-item]
    exp.NullSafeEQ: (_X._distinct_from, _BINARY),
    exp.NullSafeNEQ: (_X._distinct_from, _BINARY),
    exp.Like: (_X._like, {"this", "expression", "negate"}),
    exp.ILike: (_X._like, {"this", "expression", "negate"}),
    exp.Escape: (_X._escape, _BINARY),  # type: ignore[dict-item]
    exp.Add: (_arithmetic(Op.ADD), _BINARY),
    exp.Sub: (_arithmetic(Op.SUB), _BINARY),
    exp.Mul: (_arithmetic(Op.MUL), _BINARY),
    exp.Div: (_arithmetic(Op.DIV), {"this", "expression", "typed", "safe"}),
    exp.Mod: (_arithmetic(Op.MOD), _BINARY),
    exp.Neg: (_X._negate, _UNARY),  # type: ignore[dict-item]
    exp.Abs: (_keeps_type(Op.ABS), _UNARY),
    exp.Sign: (_X._sign, _UNARY),
    exp.Floor: (_whole(Op.FLOOR), _UNARY),
    exp.Ceil: (_whole(Op.CEIL), _UNARY),
    exp.Round: (_rounded(Op.ROUND), {"this", "decimals"}),
    exp.Trunc: (_rounded(Op.TRUNC), {"this", "decimals"}),
    exp.Anonymous: (_X._interval_end, {"this", "expressions"}),  # type: ignore[dict-item]
    exp.Sqrt: (_real(Op.SQRT), _UNARY),
    exp.Ln: (_real(Op.LN), _UNARY),
    exp.Log: (_X._logarithm, _BINARY),  # type: ignore[dict-item]
    exp.Least: (_extremum(Op.LEAST), _LIST),
    exp.Greatest: (_extremum(Op.GREATEST), _LIST),
    exp.Coalesce: (_X._coalesce, {"this", "expressions"}),  # type: ignore[dict-item]
    exp.Nullif: (_X._nullif, _BINARY),  # type: ignore[dict-item]
    exp.WidthBucket: (_X._width_bucket, {"this", "min_value", "max_value", "num_buckets"}),  # type: ignore[dict-item]
    exp.Case: (_X._case, {"this", "ifs", "default"}),  # type: ignore[dict-item]
    exp.Cast: (_X._cast, {"this", "to", "_type"}),  # type: ignore[dict-item]
    exp.Length: (_text_function(Op.LENGTH), _UNARY),
    exp.Lower: (_text_function(Op.LOWER), _UNARY),
    exp.Upper: (_text_function(Op.UPPER), _UNARY),
    exp.Trim: (_text_function(Op.TRIM), _UNARY),
    exp.DPipe: (_X._concat, {"this", "expression", "safe"}),  # type: ignore[dict-item]
    exp.Left: (_part(Op.LEFT), _BINARY),
    exp.Right: (_part(Op.RIGHT), _BINARY),
    exp.Substring: (_X._substring, {"this", "start", "length"}),  # type: ignore[dict-item]
    exp.Extract: (_X._extract, _BINARY),  # type: ignore[dict-item]
    exp.Interval: (_X._interval, {"this", "unit"}),  # type: ignore[dict-item]
    exp.TimestampTrunc: (_X._date_trunc, {"this", "unit"}),
    exp.Subquery: (_X._scalar_subquery, {"this", "with_", "order", "limit", "offset"}),  # type: ignore[dict-item]
    exp.Exists: (_X._exists, _UNARY),  # type: ignore[dict-item]
    exp.Count: (_aggregate(Agg.COUNT), {"this", "expressions", "big_int"}),
    exp.Sum: (_aggregate(Agg.SUM), _UNARY),
    exp.Avg: (_aggregate(Agg.AVG), _UNARY),
    exp.Min: (_aggregate(Agg.MIN), {"this", "expressions"}),
    exp.Max: (_aggregate(Agg.MAX), {"this", "expressions"}),
    exp.Stddev: (_aggregate(Agg.STDDEV_SAMP), _UNARY),
    exp.StddevSamp: (_aggregate(Agg.STDDEV_SAMP), _UNARY),
    exp.StddevPop: (_aggregate(Agg.STDDEV_POP), _UNARY),
    exp.Variance: (_aggregate(Agg.VAR_SAMP), _UNARY),
    exp.VariancePop: (_aggregate(Agg.VAR_POP), _UNARY),
    exp.CovarPop: (_aggregate(Agg.COVAR_POP), _BINARY),
    exp.CovarSamp: (_aggregate(Agg.COVAR_SAMP), _BINARY),
    exp.Corr: (_aggregate(Agg.CORR), _BINARY),
    exp.RegrSlope: (_aggregate(Agg.REGR_SLOPE), _BINARY),
    exp.RegrIntercept: (_aggregate(Agg.REGR_INTERCEPT), _BINARY),
    exp.Median: (_X._median, _UNARY),  # type: ignore[dict-item]
    exp.WithinGroup: (_X._within_group, _BINARY),  # type: ignore[dict-item]
    exp.LogicalAnd: (_aggregate(Agg.BOOL_AND), _UNARY),
    exp.LogicalOr: (_aggregate(Agg.BOOL_OR), _UNARY),
    exp.Grouping: (_X._grouping, {"expressions"}),  # type: ignore[dict-item]
    exp.Filter: (_X._filter, _BINARY),  # type: ignore[dict-item]
    exp.Window: (_X._window, {"this", "partition_by", "order", "spec", "over", "alias"}),  # type: ignore[dict-item]
}
