"""Answers without what noise made up: counts not below zero, fractions rounded to what their margins leave meaningful.

An analyst may ask for it (`SET dpsql.tidy = on`). It is not the default: of small counts those that noise pushed below
zero become zero and those that it raised stay, so that they are too large on average, and so is what they add up to.
"""

from __future__ import annotations

import math
from dataclasses import replace
from decimal import ROUND_HALF_EVEN, Context, Decimal, localcontext

from dpsql.engine import Answer
from dpsql.release import Output
from dpsql.tables import ResultTable
from dpsql.types import Value

_EXACT = Context(prec=60)  # more digits than any column has


def tidied(answer: Answer) -> Answer:
    """The same answer, as private as it was: a function of its noisy values and of their margins.

    It is the last step. What the query itself computes, sorts and filters has seen the values as they were.
    """
    outputs, table = answer.release.outputs, answer.table
    columns = [
        [
            _tidy(row[place], output, margin)
            for row, margin in zip(table.rows, answer.column_margins(place), strict=True)
        ]
        for place, output in enumerate(outputs)
    ]
    rows: list[tuple[Value, ...]] = list(zip(*columns, strict=True)) if columns else table.rows
    return replace(answer, table=ResultTable(table.names, table.types, rows))


def _tidy(value: Value, output: Output, margin: float | None) -> Value:
    if output.count and isinstance(value, int | float | Decimal) and value < 0:
        return 0
    is_whole = isinstance(value, Decimal) and output.type.scale == 0
    if margin and isinstance(value, float | Decimal) and math.isfinite(value) and not is_whole:
        return _rounded(value, margin, output.type.scale)
    return value


def _rounded(value: float | Decimal, margin: float, scale: int) -> float | Decimal:
    """To the second digit of the margin; a decimal keeps the places of its type."""
    with localcontext(_EXACT):
        unit = Decimal(1).scaleb(Decimal(repr(margin)).adjusted() - 1)
        exact = Decimal(repr(value)) if isinstance(value, float) else value
        number = exact.quantize(unit, ROUND_HALF_EVEN) + 0  # a negative zero is a plain one
        return float(number) if isinstance(value, float) else number.quantize(Decimal(1).scaleb(-scale))
