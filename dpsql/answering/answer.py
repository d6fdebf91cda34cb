"""An answer: rows, and how far off each of their numbers may be."""

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
    charged: Price  # what this user paid for it now
    wide: Rows = field(repr=False)  # the rows of the table with the margins that stand behind their values

    @property
    def margins(self) -> list[tuple[int | float | None, ...]]:
        """95 %, for each value of the table that is a noisy number. Made when asked for: few ask for many."""
        columns = [self.column_margins(index) for index in range(len(self.release.outputs))]
        return list(zip(*columns, strict=True)) if columns else [()] * len(self.wide)

    def column_margins(self, index: int) -> list[int | float | None]:
        """How far off each value of a column may be; None where it is exact or NULL, infinite where nobody can tell."""
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
    """Of one noisy value; errors that cancel out leave it exact."""
    if not isinstance(margin, float) or not math.isfinite(margin):
        return math.inf
    return (math.ceil(margin) if is_whole else margin) or None
