"""Public relations inside private queries: what is computed there meets private values, so it must never fail."""

from __future__ import annotations

from dpsql.errors import NotSupported
from dpsql.plan.nodes import Plan, nodes, scalars
from dpsql.plan.scalars import Agg, Aggregated, Scalar, Windowed, walk
from dpsql.types import Kind

# So many digits may be added up whatever the number of rows: 128 bits hold 38.
_DIGITS = 28
_SAFE = frozenset({Agg.COUNT, Agg.MIN, Agg.MAX, Agg.BOOL_AND, Agg.BOOL_OR, Agg.GROUPING})
_EXACT = frozenset({Agg.SUM, Agg.AVG, Agg.PERCENTILE_CONT, Agg.PERCENTILE_DISC, Agg.MODE})
_SUMS_IN_WINDOWS = frozenset({"sum", "avg"})


def check_total(plan: Plan) -> None:
    """Refuse aggregates of public values that could overflow, or depend on the order of rows.

    Claim: the engine computes the relation without an error, whichever of its rows are asked for, and to the last digit
    the same whenever it does.
    Because: expressions are total, and sums are exact, of numbers whose digits leave room for any count of rows.
    Needs: this, because private rows may decide which public ones are added up, and when: an error would tell of them;
    and a digit would change what all of them add at once, which compare themselves with it.
    """
    for node in nodes(plan):
        for value in scalars(node):
            for part in walk(value):
                if isinstance(part, Aggregated) and part.function not in _SAFE:
                    _check_exact(part)
                    _check_numbers(part.args, part.position)
                if isinstance(part, Windowed) and part.function in _SUMS_IN_WINDOWS:
                    _check_numbers(part.args, None)


def _check_exact(call: Aggregated) -> None:
    if call.function not in _EXACT:
        raise NotSupported(
            f"{call.function.value} of public values beside private rows depends on the order of rows",
            hint="Write it with SUM and COUNT, as in SUM(x * x) / COUNT(*).",
            position=call.position,
        )


def _check_numbers(args: tuple[Scalar, ...], position: int | None) -> None:
    for arg in args:
        if arg.type.kind is Kind.DOUBLE or arg.type.precision > _DIGITS:
            raise NotSupported(
                "a sum of public values could overflow for some private rows",
                hint=f"Cast its argument to numeric with at most {_DIGITS} digits, as in x::numeric(20, 6).",
                position=position,
            )
