"""Removes visible artefacts of noise: no counts below zero, no falling running totals of counts, fractions rounded to
the digits that their margins leave meaningful.

Optional (`SET dpsql.tidy = on`). It is not the default because it adds bias: small counts that noise made negative
become zero and those that it raised stay, so that they, and their sums, are too large on average.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from decimal import ROUND_HALF_EVEN, Context, Decimal, localcontext
from fractions import Fraction
from itertools import accumulate

from dpsql.answering.answer import Answer
from dpsql.plan.patterns import Rising
from dpsql.release import Output
from dpsql.tables import ResultTable
from dpsql.types import Cell, exact_decimal

_EXACT = Context(prec=60)  # more digits than any column has


def tidied(answer: Answer) -> Answer:
    """The tidied answer: post-processing, a function of the noisy values and their margins.

    It is the last step: the query itself computes, sorts and filters with the original values.
    """
    outputs, table = answer.release.outputs, answer.table
    columns = []
    for place, output in enumerate(outputs):
        column = [row[place] for row in table.rows]
        stretches = [] if output.rising is None else list(_stretches(output.rising, table.rows))
        for stretch in stretches:
            _put(column, stretch, _least_squares([column[row] for row in stretch], output.type.scale))
        column = [
            _tidy(value, output, margin) for value, margin in zip(column, answer.column_margins(place), strict=True)
        ]
        for stretch in stretches:  # the number of digits rounded off differs by row
            _put(column, stretch, _not_falling([column[row] for row in stretch]))
        columns.append(column)
    rows: list[tuple[Cell, ...]] = list(zip(*columns, strict=True)) if columns else table.rows
    return replace(answer, table=ResultTable(table.names, table.types, rows))


def _tidy(value: Cell, output: Output, margin: float | None) -> Cell:
    if output.count and isinstance(value, int | float | Decimal) and value < 0:
        return 0
    is_whole = isinstance(value, Decimal) and output.type.scale == 0
    if (
        margin
        and math.isfinite(margin)
        and isinstance(value, float | Decimal)
        and math.isfinite(value)
        and not is_whole
    ):
        return _rounded(value, margin, output.type.scale)
    return value


def _stretches(rising: Rising, rows: Sequence[tuple[Cell, ...]]) -> Iterator[list[int]]:
    """The row indexes along which a column rises, in that order; NULLs last."""
    order = list(range(len(rows)))
    for place, descending in reversed(rising.along):  # sorting is stable: the last key first
        known = [row for row in order if rows[row][place] is not None]
        nulls = [row for row in order if rows[row][place] is None]
        known.sort(key=lambda row: rows[row][place], reverse=descending)  # type: ignore[arg-type,return-value]
        order = nulls + known if descending else known + nulls
    found: dict[tuple[Cell, ...], list[int]] = {}
    for row in order:
        found.setdefault(tuple(rows[row][place] for place in rising.apart), []).append(row)
    return iter(found.values())


def _put(column: list[Cell], rows: Sequence[int], values: Sequence[Cell]) -> None:
    for row, value in zip(rows, values, strict=True):
        column[row] = value


def _least_squares(values: Sequence[Cell], scale: int) -> Sequence[Cell]:
    """Isotonic regression: the closest non-decreasing, non-negative values (pool adjacent violators)."""
    if not _are_numbers(values):
        return values
    blocks: list[tuple[Fraction, int]] = []
    for value in values:
        blocks.append((Fraction(value), 1))  # type: ignore[arg-type]
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            (last, many), (before, more) = blocks.pop(), blocks.pop()
            blocks.append(((last * many + before * more) / (many + more), many + more))
    means = [max(mean, Fraction(0)) for mean, many in blocks for _ in range(many)]
    return [_alike(mean, value, scale) for mean, value in zip(means, values, strict=True)]


def _not_falling(values: Sequence[Cell]) -> Sequence[Cell]:
    return list(accumulate(values, max)) if _are_numbers(values) else values  # type: ignore[arg-type]


def _are_numbers(values: Sequence[Cell]) -> bool:
    return all(isinstance(value, int | float | Decimal) and math.isfinite(value) for value in values)


def _alike(mean: Fraction, value: Cell, scale: int) -> Cell:
    """The number in the value's own type."""
    if isinstance(value, int):
        return round(mean)
    if isinstance(value, Decimal):
        return exact_decimal(Fraction(round(mean * 10**scale), 10**scale), scale)
    return float(mean)


def _rounded(value: float | Decimal, margin: float, scale: int) -> float | Decimal:
    """Round to the second digit of the margin; a decimal keeps the scale of its type."""
    with localcontext(_EXACT):
        unit = Decimal(1).scaleb(Decimal(repr(margin)).adjusted() - 1)
        exact = Decimal(repr(value)) if isinstance(value, float) else value
        number = exact.quantize(unit, ROUND_HALF_EVEN) + 0  # turns -0 into 0
        return float(number) if isinstance(value, float) else number.quantize(Decimal(1).scaleb(-scale))
