"""Rules for window functions over private rows: they read the rows of one unit only."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from dpsql.errors import NotSupported
from dpsql.plan.nodes import Plan
from dpsql.plan.scalars import Agg, Aggregated, Field, Ref, SortKey, Windowed
from dpsql.privacy.bounds import NOTHING, Fact, Interval, interval
from dpsql.privacy.owners import is_unit
from dpsql.privacy.rules.relations import per_unit_interval
from dpsql.privacy.stability import Stability

_RANKS = frozenset({"row_number", "rank", "dense_rank", "ntile"})
_SHARES = frozenset({"percent_rank", "cume_dist"})
# Functions that depend on the order of rows that ORDER BY leaves tied.
_ORDERED = frozenset({"row_number", "ntile", "lag", "lead", "first_value", "last_value", "nth_value"})
_WHOLE = "BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING"


def window_in_unit(child: Stability, items: tuple[tuple[Field, Windowed], ...]) -> Stability:
    """A window function whose PARTITION BY names the unit.

    Claim: stability is that of the input, with columns that depend on one unit's rows alone.
    Because: a partition holds rows of one unit (the owner is added to it), and the order in it is total: ORDER BY is
    completed with all columns of the row, so that physical order, which other units affect, does not matter.
    Needs: the unit in PARTITION BY, and functions that do not depend on the order of ties, or an order without ties;
    rows that are equal in all columns are equal for every operation above, also in the signs of their zeros.
    """
    facts = dict(child.facts)
    numbered = set(child.numbered)
    for field, call in items:
        facts[field.id] = _fact(call, child)
        if call.function == "row_number" and all(map(is_unit, call.partition)):
            numbered.add(field.id)
    return replace(child, facts=facts, numbered=frozenset(numbered))


def _fact(call: Windowed, child: Stability) -> Fact:
    rows = Fraction(child.rows)
    if call.function in _RANKS:
        return Fact(Interval(Fraction(1), rows), nullable=False)
    if call.function in _SHARES:
        return Fact(Interval(Fraction(0), Fraction(1)), nullable=False)
    if call.function in ("count", "sum", "avg", "min", "max"):
        aggregate = Aggregated(Agg(call.function), call.args, call.type, where=call.where)
        bounds = per_unit_interval(aggregate, child)
        return Fact(Interval(Fraction(0), bounds.high) if call.function == "count" else bounds)
    found = [interval(arg, child.facts) for arg in (call.args[0], *call.args[2:])]
    bounds = found[0] if len(found) == 1 else found[0].union(found[1])
    origin = child.facts.get(call.args[0].field.id, NOTHING).origin if isinstance(call.args[0], Ref) else None
    return Fact(bounds, origin=origin)


def in_total_order(call: Windowed, child: Plan) -> Windowed:
    """The same function over an order without ties, where ties would change the result."""
    rows = call.frame.startswith("ROWS")
    if call.function not in _ORDERED and not rows:
        return call
    if call.function in ("first_value", "last_value", "nth_value") and not rows and not call.frame.endswith(_WHOLE):
        from_start = call.frame in ("", "RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW")
        if call.function != "first_value" or not from_start:
            raise NotSupported(
                f"{call.function} with this frame depends on the order of rows that are tied in ORDER BY",
                hint="Write ROWS BETWEEN … AND … in the window.",
            )
    named = {key.value for key in call.order}
    more = [SortKey(Ref(field)) for field in child.fields if Ref(field) not in named]
    return replace(call, order=(*call.order, *more))
