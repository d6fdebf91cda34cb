"""Expressions: from sqlglot's tree to our own closed scalars.

Each family has a module with its allow-list at the end, HANDLERS. A node type that is in none of them is refused, and
so is a node that carries an argument its handler does not know: nothing an analyst wrote is ever dropped in silence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlglot import exp

from dpsql.errors import UnknownFunction
from dpsql.plan.nodes import Plan
from dpsql.plan.scalars import Scalar
from dpsql.sql.checks import Meter
from dpsql.sql.clock import Clock
from dpsql.sql.functions import aggregates, arrays, casts, leaves, logic, numbers, text, time, windows
from dpsql.sql.functions.core import Expressions, Handlers, Named
from dpsql.sql.scope import Scope, position
from dpsql.types import Value

_NAMED: Named = {**numbers.NAMED, **time.NAMED}


def _named(read: Expressions, node: exp.Anonymous, scope: Scope) -> Scalar:
    name = read.function_name(node)
    if name not in _NAMED:
        raise UnknownFunction(name, position=position(node))
    return _NAMED[name](read, node, scope)


_HANDLERS: Handlers = {
    node: handler
    for family in (leaves, logic, numbers, casts, text, time, aggregates, arrays, windows)
    for node, handler in family.HANDLERS.items()
} | {exp.Anonymous: (_named, {"this", "expressions"})}


def expressions(
    source: str,
    parameters: Sequence[Value],
    subquery: Callable[[exp.Expression, Scope], Plan],
    meter: Meter,
    clock: Clock | None,
) -> Expressions:
    """What reads the expressions of one statement."""
    return Expressions(_HANDLERS, source, parameters, subquery, meter, clock)
