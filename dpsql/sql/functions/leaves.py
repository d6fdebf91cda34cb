"""Columns, literals, parameters and subqueries."""

from __future__ import annotations

import math
import re
from decimal import Decimal

from sqlglot import exp

from dpsql.errors import BadSetting, NotSupported, OutOfRange, SqlSyntaxError, UnknownParameter
from dpsql.plan.scalars import Const, Scalar, Subquery
from dpsql.sql.allowed import refuse_array
from dpsql.sql.functions.core import Expressions, Handlers
from dpsql.sql.functions.table import UNARY
from dpsql.sql.scope import Scope, position
from dpsql.sql.tokens import is_storable
from dpsql.sql.types import constant, decimal_constant, integer_constant
from dpsql.types import BOOLEAN, UNKNOWN


def _column(_: Expressions, node: exp.Column, scope: Scope) -> Scalar:
    if isinstance(node.this, exp.Star):
        raise NotSupported("a whole row as a value is not supported", position=position(node))
    return scope.find(node)


def _literal(_: Expressions, node: exp.Literal, __: Scope) -> Scalar:
    text = str(node.this)
    if node.is_string:
        return constant(text)
    if len(text) > 1_000:
        raise OutOfRange("a number is out of range", position=position(node))
    if re.fullmatch(r"\d+", text):
        return integer_constant(int(text))
    if re.fullmatch(r"(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?", text):
        return decimal_constant(Decimal(text))
    raise SqlSyntaxError("invalid numeric literal", position=position(node))


def _parameter(read: Expressions, node: exp.Parameter, _: Scope) -> Scalar:
    number = str(node.this.this)
    if not number.isdigit() or not 1 <= int(number) <= len(read.parameters):
        raise UnknownParameter(f"there is no parameter ${number}", position=position(node))
    value = read.parameters[int(number) - 1]
    if isinstance(value, float | Decimal) and not math.isfinite(value):
        raise BadSetting(f"parameter ${number} is not a finite number", position=position(node))
    if isinstance(value, str) and not is_storable(value):
        raise BadSetting(f"parameter ${number} contains a zero byte or an unpaired surrogate", position=position(node))
    return constant(value)


def _paren(read: Expressions, node: exp.Paren, scope: Scope) -> Scalar:
    return read.value_or_array(node.this, scope)


def _scalar_subquery(read: Expressions, node: exp.Subquery, scope: Scope) -> Scalar:
    plan = read.subquery(node, scope)
    if len(plan.fields) != 1:
        raise SqlSyntaxError("subquery must return only one column", position=position(node))
    value = Subquery("scalar", plan, plan.fields[0].type, None, position(node))
    refuse_array(value, position(node))
    return value


def _exists(read: Expressions, node: exp.Exists, scope: Scope) -> Scalar:
    return Subquery("exists", read.subquery(node.this, scope), BOOLEAN, None, position(node))


HANDLERS: Handlers = {
    exp.Column: (_column, frozenset({"this", "table", "db"})),
    exp.Literal: (_literal, frozenset({"this", "is_string"})),
    exp.Boolean: (lambda _, node, __: constant(bool(node.this)), UNARY),
    exp.Null: (lambda *_: Const(None, UNKNOWN), frozenset()),
    exp.Parameter: (_parameter, UNARY),
    exp.Paren: (_paren, UNARY),
    exp.Subquery: (_scalar_subquery, frozenset({"this", "with_", "order", "limit", "offset"})),
    exp.Exists: (_exists, UNARY),
}
