"""An answer: rows, and the margin of each of their numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from dpsql.privacy.accounting import Price
from dpsql.release import Release
from dpsql.tables import ResultTable
from dpsql.types import Cell, Kind

Rows = list[tuple[Cell, ...]]


@dataclass(frozen=True, slots=True)
class Answer:
    table: ResultTable
    release: Release
    charged: Price  # what this user paid for it just now
    wide: Rows = field(repr=False)  # the rows of the table, with their margins appended

    @property
    def margins(self) -> list[tuple[int | float | None, ...]]:
        """The 95 % margin of each noisy number of the table. Computed lazily."""
        columns = [self.column_margins(index) for index in range(len(self.release.outputs))]
        return list(zip(*columns, strict=True)) if columns else [()] * len(self.wide)

    def column_margins(self, index: int) -> list[int | float | None]:
        """The margin of each value of a column; None where it is exact or NULL, infinite where it is unknown."""
        output = self.release.outputs[index]
        if output.mark is not None:
            return [None if row[index] is None else math.inf for row in self.wide]
        if output.margin is not None and output.margin_at is None:
            same = output.margin.numerator if output.margin.denominator == 1 else float(output.margin)
            return [None if row[index] is None else same for row in self.wide]
        if (at := output.margin_at) is None:
            return [math.inf if output.noisy and row[index] is not None else None for row in self.wide]
        is_whole = output.margin is not None and output.type.kind is Kind.INTEGER  # a count near the threshold
        return [None if row[index] is None else _row_margin(row[at], is_whole) for row in self.wide]


def _row_margin(margin: Cell, is_whole: bool) -> int | float | None:
    """The margin of one noisy value; errors that cancel out leave it exact."""
    if not isinstance(margin, float) or not math.isfinite(margin):
        return math.inf
    return (math.ceil(margin) if is_whole else margin) or None
