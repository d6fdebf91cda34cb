"""Arrays of percentiles: they can be returned and subscripted, nothing else."""

from __future__ import annotations

from sqlglot import exp

from dpsql.errors import NotSupported, TypeMismatch
from dpsql.plan.scalars import Scalar, Subscript
from dpsql.sql.functions.core import Expressions
from dpsql.sql.functions.table import Function
from dpsql.sql.scope import Scope, position
from dpsql.types import Kind


def _subscript(read: Expressions, node: exp.Bracket, scope: Scope) -> Scalar:
    array = read.value_or_array(node.this, scope)
    if array.type.kind is not Kind.ARRAY or array.type.element is None:
        message = f"cannot subscript type {array.type.kind.value} because it does not support subscripting"
        raise TypeMismatch(message, position=position(node))
    index = node.expressions[0] if len(node.expressions) == 1 else None
    # As `brackets.with_subscripts` wrote it: other subscripts may have been counted from zero.
    if not isinstance(index, exp.Literal) or not index.is_string or not str(index.this).isdigit():
        raise NotSupported("a subscript must be a constant", position=position(node))
    return Subscript(array, int(index.this), array.type.element)


FUNCTIONS = (
    Function("(array)[place]", "as its items", "One value of the array of a percentile, counted from 1.",
             exp.Bracket, _subscript, frozenset({"this", "expressions"})),
)  # fmt: skip
