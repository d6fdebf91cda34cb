"""Resolves expressions: each node by the handler of its type; other nodes are refused."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import sqlglot
from sqlglot import exp
from sqlglot.tokenizer_core import TokenType

from dpsql.errors import Error, NotSupported, TypeMismatch, UnknownFunction, UnknownOperator
from dpsql.plan.constants import NotConstant, evaluate
from dpsql.plan.nodes import Plan
from dpsql.plan.scalars import Call, Const, Op, Scalar, SortKey
from dpsql.plan.zones import UTC_ZONE, Zone
from dpsql.sql.allowed import REFUSED, check_arguments, readable, refuse_aggregates, refuse_array
from dpsql.sql.checks import Meter
from dpsql.sql.clock import Clock
from dpsql.sql.scope import Scope, position
from dpsql.sql.types import arithmetic_type, coerce, to_zone, unify
from dpsql.types import BOOLEAN, DOUBLE, TEXT, TIMESTAMP, Kind, Type, Value

_ONLY_DATES = "an interval can only be added to a date or timestamp"


class Expressions:
    """Resolves expressions; subqueries inside them are passed back to the resolver of relations."""

    def __init__(
        self,
        handlers: Handlers,
        names: Mapping[type[exp.Expression], frozenset[str]],
        source: str,
        parameters: Sequence[Value],
        subquery: Callable[[exp.Expression, Scope], Plan],
        meter: Meter,
        clock: Clock | None,
    ) -> None:
        self._handlers = handlers
        self._names = names
        self.source = source
        self.parameters = parameters
        self.subquery = subquery
        self.meter = meter
        self.clock = clock
        self.windows: dict[str, exp.Window] = {}
        self._left: tuple[exp.Expression, Scalar] | None = None  # the left side of an operator that is read next

    def name_windows(self, windows: dict[str, exp.Window]) -> dict[str, exp.Window]:
        """Set the WINDOW clause of the query block that is resolved next; returns the outer one."""
        around, self.windows = self.windows, windows
        return around

    def scalar(self, node: exp.Expression, scope: Scope) -> Scalar:
        value = self.value_or_array(node, scope)
        if value.type.kind is Kind.ARRAY:
            refuse_array(value, position(node))
        return value

    def value_or_array(self, node: exp.Expression, scope: Scope) -> Scalar:
        """An expression that may be an array: an output column, or the operand of a subscript.

        Long chains of operators nest to the left. They are read from the innermost one on, without recursion: each
        operator finds its left side in `_left`.
        """
        if self._left is not None and self._left[0] is node:
            return self._left[1]
        chain = [node]
        while _continues(chain[-1]):
            chain.append(chain[-1].this)
        is_long = len(chain) > LONG
        reads = self.clock.reads if self.clock else 0
        around, self._left = self._left, None
        try:
            while len(chain) > 1:
                innermost = chain.pop()
                self._left = innermost, self._value_of(innermost, scope, reads)
            value = self._value_of(node, scope, reads)
            return balanced(value) if is_long else value
        finally:
            self._left = around

    def _value_of(self, node: exp.Expression, scope: Scope, reads: int) -> Scalar:
        """`reads`: the number of clock reads before this expression."""
        self.meter.node()
        handler = self._handlers.get(type(node))
        if handler is None:
            if type(node) in REFUSED:
                what, hint = REFUSED[type(node)]
                raise NotSupported(f"{what} is not supported", hint=hint, position=position(node))
            if isinstance(node, exp.Func):
                raise UnknownFunction(self.function_name(node), position=position(node))
            raise NotSupported(f"{readable(node)} is not supported", position=position(node))
        rule, allowed = handler
        check_arguments(node, allowed)
        self.check_name(node)
        try:
            value = rule(self, node, scope)
            return value if self.clock is None or self.clock.reads == reads else _computed(value)
        except Error as error:
            # The innermost expression that has a position in the text.
            error.position = position(node) if error.position is None else error.position
            raise

    def function_name(self, node: exp.Func) -> str:
        """A function's name as it was written; sqlglot keeps only its own."""
        start, end = node.meta.get("start"), node.meta.get("end")
        if isinstance(start, int) and isinstance(end, int):
            return self.source[start : end + 1].lower()
        return str(node.this).lower() if isinstance(node, exp.Anonymous) else node.sql_name().lower()

    def last_literal(self, node: exp.Func) -> str | None:
        """The last argument of a call as it was written, if it is a string: sqlglot may have changed it."""
        start = node.meta.get("start")
        if not isinstance(start, int):
            return None
        depth = 0
        before = None
        for token in sqlglot.tokenize(self.source[start:], read="postgres"):
            depth += (token.token_type is TokenType.L_PAREN) - (token.token_type is TokenType.R_PAREN)
            if depth == 0 and token.token_type is TokenType.R_PAREN:
                break
            before = token
        return before.text if before is not None and before.token_type is TokenType.STRING else None

    def check_name(self, node: exp.Expression) -> None:
        """Refuse other databases' names of a function."""
        names = self._names.get(type(node))
        if names is not None and isinstance(node, exp.Func) and isinstance(node.meta.get("start"), int):
            written = self.function_name(node)
            if written not in names:
                raise UnknownFunction(written, position=position(node))

    def typed(self, node: exp.Expression, scope: Scope) -> Scalar:
        """An expression with a definite type: a bare string is text."""
        return self._settled_text(self.scalar(node, scope), node)

    def output(self, node: exp.Expression, scope: Scope) -> Scalar:
        """A column of a select list: an expression with a definite type, or an array."""
        return self._settled_text(self.value_or_array(node, scope), node)

    def _settled_text(self, value: Scalar, node: exp.Expression) -> Scalar:
        if value.type.kind is Kind.INTERVAL:
            raise NotSupported(
                "a value of type interval can be compared, but not returned or grouped by",
                hint="Write EXTRACT(EPOCH FROM …) for its number of seconds.",
                position=position(node),
            )
        return coerce(value, TEXT) if value.type.kind is Kind.UNKNOWN else value

    def settled(self, node: exp.Expression, scope: Scope) -> Scalar:
        """An argument of a function that accepts any type, but needs a definite one."""
        value = self.typed(node, scope)
        if isinstance(node.unnest(), exp.Null) or (isinstance(node.unnest(), exp.Literal) and node.unnest().is_string):
            message = "could not determine polymorphic type because input has type unknown"
            raise TypeMismatch(message, hint="Cast it.", position=position(node))
        return value

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

    def compare(self, op: Op, left: Scalar, right: Scalar, node: exp.Expression) -> Scalar:
        try:
            common = unify((left, right), "compared")
        except TypeMismatch:
            raise UnknownOperator(
                f"operator does not exist: {left.type.kind.value} {op.value} {right.type.kind.value}",
                hint="Cast one side.",
                position=position(node),
            ) from None
        if common.kind is Kind.TIMESTAMPTZ and self.zone().is_utc and left.type.is_moment and right.type.is_moment:
            return Call(op, (left, right), BOOLEAN)  # the same moments with or without a time zone
        return Call(op, (self.coerce(left, common), self.coerce(right, common)), BOOLEAN)

    def zone(self) -> Zone:
        """The session's time zone; a query that reads it is a different question in each zone."""
        return UTC_ZONE if self.clock is None else self.clock.read_zone()

    def coerce(self, value: Scalar, target: Type) -> Scalar:
        """As `types.coerce`, in the session's time zone."""
        return coerce(value, target, self.zone, None if self.clock is None else self._local_now)

    def _local_now(self) -> datetime:
        assert self.clock is not None
        return self.zone().to_local(self.clock.read()) or self.clock.now

    def local(self, moment: Scalar) -> Scalar:
        """A date or timestamp as local time of the session. In UTC both are the same."""
        if moment.type.kind is not Kind.TIMESTAMPTZ:
            return coerce(moment, TIMESTAMP)
        zone = self.zone()
        return moment if zone.is_utc else to_zone(moment, zone)

    def number(self, node: exp.Expression, scope: Scope) -> Scalar:
        value = self.scalar(node, scope)
        if value.type.kind is Kind.UNKNOWN:
            return coerce(value, DOUBLE)
        require_number(value, node)
        return value

    def small_integer(self, node: exp.Expression, scope: Scope, what: str) -> int:
        value = self.scalar(node, scope)
        if not isinstance(value, Const) or not isinstance(value.value, int) or isinstance(value.value, bool):
            raise NotSupported(f"{what} must be a constant integer", position=position(node))
        return value.value

    def text(self, node: exp.Expression, scope: Scope) -> Scalar:
        value = self.typed(node, scope)
        if value.type.kind is not Kind.TEXT:
            raise UnknownOperator(f"expected text, found {value.type.kind.value}", position=position(node))
        return value

    def constant_text(self, node: exp.Expression, scope: Scope, what: str) -> str:
        """A constant text: the work for one row must not depend on the value in another."""
        value = self.text(node, scope)
        with contextlib.suppress(NotConstant):
            found = evaluate(value)
            if isinstance(found, str):
                return found
        raise NotSupported(f"{what} must be a constant", hint="Write it as a literal.", position=position(node))

    def moment(self, node: exp.Expression, scope: Scope, otherwise: str = _ONLY_DATES) -> Scalar:
        value = self.scalar(node, scope)
        if value.type.kind is Kind.UNKNOWN:
            value = coerce(value, TIMESTAMP)
        if not value.type.is_temporal:
            raise UnknownOperator(otherwise, position=position(node))
        return value

    def sort_key(self, node: exp.Expression, scope: Scope, value: Scalar | None = None) -> SortKey:
        check_arguments(node, {"this", "desc", "nulls_first"})
        resolved = self.typed(node.this, scope) if value is None else value
        refuse_array(resolved, position(node))
        return SortKey(resolved, bool(node.args.get("desc")), bool(node.args.get("nulls_first")))


def require_number(value: Scalar, node: exp.Expression) -> None:
    if not value.type.is_numeric:
        raise UnknownOperator(f"expected a number, found {value.type.kind.value}", position=position(node))


_SUMS = (exp.Add, exp.Sub)
_PRODUCTS = (exp.Mul, exp.Div, exp.Mod)


def _continues(node: exp.Expression) -> bool:
    """Whether the left side of an operator is another operator of the same precedence."""
    left = node.this
    return (isinstance(node, _SUMS) and isinstance(left, _SUMS)) or (
        isinstance(node, _PRODUCTS) and isinstance(left, _PRODUCTS)
    )


def _computed(value: Scalar) -> Scalar:
    """An expression of the current time, as a constant: the first of the month is the same question all month long."""
    with contextlib.suppress(NotConstant):
        return Const(evaluate(value), value.type)
    return value


# The handler of a node type, and the arguments of the node that it reads.
Rule = Callable[[Expressions, Any, Scope], Scalar]
Handlers = dict[type[exp.Expression], tuple[Rule, frozenset[str]]]


# ------------------------------------------------------------
# Long sums as balanced trees: a hundred terms that nest to the left would nest a hundred deep.

LONG = 16  # operators; shorter sums are computed in the order in which they are written


def balanced(total: Scalar) -> Scalar:
    """The same number: the sum of all added terms minus the sum of all subtracted ones, each as a balanced tree.

    NULL where a term is NULL, as before. Intermediate sums are smaller and need fewer digits; a sum whose partial sums
    would overflow may have a value.
    """
    added: list[Scalar] = []
    subtracted: list[Scalar] = []
    while isinstance(total, Call) and total.op in (Op.ADD, Op.SUB):
        left, right = total.args
        (added if total.op is Op.ADD else subtracted).append(right)
        total = left
    added.append(total)
    value = _in_pairs(added[::-1])
    return _plus(Op.SUB, value, _in_pairs(subtracted[::-1])) if subtracted else value


def _in_pairs(terms: list[Scalar]) -> Scalar:
    while len(terms) > 1:
        paired = [_plus(Op.ADD, left, right) for left, right in zip(terms[::2], terms[1::2], strict=False)]
        terms = [*paired, *terms[2 * len(paired) :]]
    return terms[0]


def _plus(op: Op, left: Scalar, right: Scalar) -> Scalar:
    type_ = arithmetic_type(op, left.type, right.type)
    assert type_ is not None
    return Call(op, (coerce(left, type_), coerce(right, type_)), type_)
