"""Expressions: from sqlglot's tree to our own closed scalars.

Each family has a module with its rows of the table of functions at the end, FUNCTIONS. A node type that is in none of
them is refused, and so is a node that carries an argument its row does not name: nothing an analyst wrote is ever
silently dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType

from sqlglot import exp

from dpsql.errors import UnknownFunction
from dpsql.plan.nodes import Plan
from dpsql.plan.scalars import Scalar
from dpsql.sql.checks import Meter, Signature
from dpsql.sql.clock import Clock
from dpsql.sql.functions import aggregates, arrays, casts, leaves, logic, numbers, text, time, windows
from dpsql.sql.functions.core import Expressions, Handlers, Rule
from dpsql.sql.functions.table import Function, signature
from dpsql.sql.scope import Scope, position
from dpsql.types import Value

FAMILIES: Mapping[str, tuple[Function, ...]] = MappingProxyType(
    {
        "Conditions": logic.FUNCTIONS,
        "Numbers": numbers.FUNCTIONS,
        "Text": text.FUNCTIONS,
        "Dates and times": time.FUNCTIONS,
        "Casts and arrays": casts.FUNCTIONS + arrays.FUNCTIONS,
        "Aggregate functions": aggregates.FUNCTIONS,
        "Window functions": windows.FUNCTIONS,
    }
)


def _by_name() -> Mapping[str, tuple[Function, ...]]:
    found: dict[str, tuple[Function, ...]] = {}
    for family in FAMILIES.values():
        for function in family:
            if function.name is not None:
                found[function.name] = (*found.get(function.name, ()), function)
    return MappingProxyType(found)


# The functions that a query may call; one with several meanings has a row for each.
FUNCTIONS = _by_name()

SIGNATURES: Mapping[str, Signature] = MappingProxyType({name: signature(rows) for name, rows in FUNCTIONS.items()})


def _names() -> Iterator[tuple[type[exp.Expression], frozenset[str]]]:
    named = [(row.node, name) for name, rows in FUNCTIONS.items() for row in rows if row.node is not None]
    return ((node, frozenset(name for other, name in named if other is node)) for node, _ in named)


# PostgreSQL's names of functions that sqlglot also knows by other names.
_NAMES = dict(_names())

_NAMED: dict[str, Rule] = {
    name: row.rule for name, rows in FUNCTIONS.items() for row in rows if row.node is None and row.rule is not None
}


def _named(read: Expressions, node: exp.Anonymous, scope: Scope) -> Scalar:
    name = read.function_name(node)
    if name not in _NAMED:
        raise UnknownFunction(name, position=position(node))
    return _NAMED[name](read, node, scope)


_HANDLERS: Handlers = {
    **leaves.HANDLERS,
    **{
        row.node: (row.rule, row.reads)
        for family in FAMILIES.values()
        for row in family
        if row.node is not None and row.rule is not None
    },
    exp.Anonymous: (_named, frozenset({"this", "expressions"})),
}


def expressions(
    source: str,
    parameters: Sequence[Value],
    subquery: Callable[[exp.Expression, Scope], Plan],
    meter: Meter,
    clock: Clock | None,
) -> Expressions:
    """The reader of one statement's expressions."""
    return Expressions(_HANDLERS, _NAMES, source, parameters, subquery, meter, clock)
