"""Public relations inside private queries: they are computed together with private values, so they must never fail."""

from __future__ import annotations

from dataclasses import replace

from dpsql.errors import NotSupported
from dpsql.plan.nodes import Join, Plan, SetOperation, Sort, Window, inputs, nodes, scalars
from dpsql.plan.scalars import Agg, Aggregated, Ref, Scalar, SortKey, Windowed, walk
from dpsql.privacy.rules.windows import in_total_order
from dpsql.types import SAFE_DIGITS, Kind

_SAFE = frozenset({Agg.COUNT, Agg.MIN, Agg.MAX, Agg.BOOL_AND, Agg.BOOL_OR, Agg.GROUPING})
_EXACT = frozenset({Agg.SUM, Agg.AVG, Agg.PERCENTILE_CONT, Agg.PERCENTILE_DISC, Agg.MODE})
_SUMS_IN_WINDOWS = frozenset({"sum", "avg"})


def check_total(plan: Plan) -> None:
    """Refuse aggregates of public values that could overflow, or depend on the order of rows.

    Claim: the engine computes the relation without an error, whichever of its rows are needed, and always with the same
    result, to the last digit.
    Because: expressions are total, and sums are exact, of numbers whose digits leave room for any count of rows.
    Needs: this, because private rows may decide which public ones are added up, and when: an error would reveal them;
    and a different digit would change at once what all rows add that are compared with it.
    """
    for node in nodes(plan):
        for value in scalars(node):
            for part in walk(value):
                if isinstance(part, Aggregated) and part.function not in _SAFE:
                    _check_exact(part)
                    _check_numbers(part.args, part.position)
                if isinstance(part, Windowed) and part.function in _SUMS_IN_WINDOWS:
                    _check_numbers(part.args, None)


def in_fixed_order(plan: Plan) -> Plan:
    """The same relation, where LIMIT and window functions choose among tied rows by all their columns.

    Claim: it has the same rows whenever the engine computes it.
    Because: rows that are still tied are equal, so it does not matter which of them is taken.
    Needs: this, because the choice affects every private row, and the engine's own order may change each time.
    """
    match plan:
        case Join() | SetOperation():
            return replace(plan, left=in_fixed_order(plan.left), right=in_fixed_order(plan.right))
        case Sort(child=child, keys=keys) if plan.limit is not None or plan.offset:
            named = {key.value for key in keys}
            more = tuple(SortKey(Ref(field)) for field in child.fields if Ref(field) not in named)
            return replace(plan, child=in_fixed_order(child), keys=(*keys, *more))
        case Window(child=child, items=items):
            calls = tuple((field, in_total_order(call, child)) for field, call in items)
            return Window(in_fixed_order(child), calls)
        case _ if inputs(plan):
            return replace(plan, child=in_fixed_order(plan.child))  # type: ignore[union-attr,arg-type]
        case _:
            return plan


def _check_exact(call: Aggregated) -> None:
    if call.function not in _EXACT:
        raise NotSupported(
            f"{call.function.value} of public values in a private query depends on the order of rows",
            hint="Write it with SUM and COUNT, as in SUM(x * x) / COUNT(*).",
            position=call.position,
        )


def _check_numbers(args: tuple[Scalar, ...], position: int | None) -> None:
    for arg in args:
        if arg.type.kind is Kind.DOUBLE or arg.type.precision > SAFE_DIGITS:
            raise NotSupported(
                "a sum of public values could overflow for some private rows",
                hint=f"Cast its argument to numeric with at most {SAFE_DIGITS} digits, as in x::numeric(20, 6).",
                position=position,
            )
