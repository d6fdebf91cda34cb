"""Display of answers as text and in notebooks: ± beside each noisy number, and bars.

Pure, so that the command line and notebooks show the same.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, ROUND_UP, Context, Decimal, localcontext
from html import escape
from itertools import zip_longest

from dpsql.release.limits import NOISE_ONLY
from dpsql.types import Cell, Kind, Type, Value

Margin = int | float | None
Margins = Sequence[Sequence[Margin]]  # per row, in the order of the values

_EXACT = Context(prec=60)  # more digits than any column has
_SPECIAL = re.compile(r'[{},"\\\s]')  # within an array
NOISE = " (noise)"  # beside a noisy value without a known margin
_DIGITS = 6  # digits shown of a fraction whose error is unknown


@dataclass(frozen=True, slots=True)
class Column:
    """A column of an answer. `margin` is the 95 % margin of a noisy count or sum, where it is the same in all rows."""

    name: str
    type: Type
    margin: Margin = None
    varies: bool = False  # noisy, and its margin, if any, differs by row
    mark: str | None = None  # a warning about its numbers
    noise_only: bool = False  # its margins cover the noise only: bounds may cut off more

    @property
    def is_number(self) -> bool:
        return self.type.is_numeric

    @property
    def is_key(self) -> bool:
        """Whether it appears to be a key: fractions without a margin also come from noisy numbers."""
        return not self.is_noisy and self.type.kind not in (Kind.DECIMAL, Kind.DOUBLE, Kind.ARRAY)

    @property
    def is_count(self) -> bool:
        """Whether it appears to be a noisy count or sum."""
        return self.margin is not None or (self.varies and self.type.kind is Kind.INTEGER)

    @property
    def is_noisy(self) -> bool:
        return self.margin is not None or self.varies or self.mark is not None


def cells(columns: Sequence[Column], rows: Sequence[Sequence[Cell]], margins: Margins) -> list[list[str]]:
    """Every value, formatted."""
    return [list(map(cell, row, columns, its)) for row, its in zip(rows, margins, strict=True)]


def cell(value: Cell, column: Column, margin: Margin) -> str:
    """A formatted value. A noisy number is rounded to the digits that its margin leaves meaningful."""
    if margin == math.inf and value is not None:
        return cell(value, column, None) + NOISE
    match value:
        case int() | float() | Decimal() if margin and not isinstance(value, bool) and math.isfinite(value):
            finest = -column.type.scale if column.type.kind in (Kind.INTEGER, Kind.DECIMAL) else None
            return " ±".join(_rounded(value, margin, finest)) + (NOISE_ONLY if column.noise_only else "")
        case float() if math.isfinite(value):
            return _short(value)
        case list() | tuple():
            return _array(value, lambda each: cell(each, column, None))
        case _:
            return plain(value)


def plain(value: Cell) -> str:
    """A value in full, as SQL would print it."""
    match value:
        case None:
            return "NULL"
        case bool():
            return "true" if value else "false"
        case Decimal():
            return f"{value:f}"
        case list() | tuple():
            return _array(value, plain)
        case _:
            return str(value)


def _array(values: Sequence[Value], written: Callable[[Value], str]) -> str:
    """An array in PostgreSQL's format, with quotes where its parser needs them."""
    texts = ["NULL" if value is None else _in_array(written(value)) for value in values]
    return "{" + ",".join(texts) + "}"


def _in_array(text: str) -> str:
    if text and text.upper() != "NULL" and _SPECIAL.search(text) is None:
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def bar_shares(columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> list[float] | None:
    """The lengths of the bars of the first noisy column, relative to the longest, if a single key names each row."""
    noisy = [index for index, column in enumerate(columns) if column.is_noisy and column.is_count]
    if len(rows) < 2 or not noisy or sum(column.is_key for column in columns) != 1:
        return None
    lengths = [_length(row[noisy[0]]) for row in rows]
    longest = max(lengths)
    return [length / longest for length in lengths] if longest > 0 else None


def _length(value: Cell) -> float:
    """The length of a bar: zero for a count that noise made negative."""
    return max(float(value), 0.0) if isinstance(value, int | float | Decimal) and math.isfinite(value) else 0.0


def _rounded(value: float | Decimal, margin: float, finest: int | None) -> tuple[str, str]:
    """The margin to two digits, upwards, and the number to the same place; none finer than the column has."""
    with localcontext(_EXACT):
        exact = Decimal(repr(margin))
        place = exact.adjusted() - 1
        if finest is not None:
            place = max(place, finest)
        unit = Decimal(1).scaleb(place)
        number = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
        # Adding zero turns -0 into 0.
        number = number.quantize(unit, ROUND_HALF_EVEN) + 0
        return f"{number:,f}", f"{exact.quantize(unit, ROUND_UP):,f}"


def _short(value: float) -> str:
    if value == 0:
        return "0"
    exponent = math.floor(math.log10(abs(value)))
    if not -_DIGITS < exponent < 15:
        return f"{value:.{_DIGITS}g}"
    decimals = max(_DIGITS - 1 - exponent, 0)
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if decimals else text


# ------------------------------------------------------------
# An answer as HTML for notebooks: ± beside each noisy number, and a bar per row for one-key counts.

_MOST_ROWS = 100
_BAR_WIDTH = 160  # pixels
_BAR = '<div style="width: {}px; height: 0.8em; background: #4c78a8"></div>'


def html_table(
    columns: Sequence[Column],
    rows: Sequence[Sequence[Cell]],
    margins: Margins,
    footer: str,
    cautions: Sequence[str] = (),
    confidence: str = "95 %",
) -> str:
    """A table of the first rows and a line below it. All names and values are escaped: keys come from the data."""
    shown = rows[:_MOST_ROWS]
    shares = bar_shares(columns, shown)
    head = "".join(_tag("th", column.name, column) for column in columns) + ("" if shares is None else "<th></th>")
    texts = cells(columns, shown, margins[:_MOST_ROWS])
    body = "".join(_row(columns, row, share) for row, share in zip_longest(texts, shares or ()))
    notes = [
        f"{len(rows) - len(shown):,} more rows" if len(rows) > len(shown) else "",
        f"± is the {confidence} margin" if any(column.is_noisy for column in columns) else "",
        "(noise): no margin is known" if any(math.inf in row for row in margins[:_MOST_ROWS]) else "",
        footer,
    ]
    below = escape("; ".join(note for note in notes if note))
    warned = "".join(f"<p>Caution: {escape(caution)}</p>" for caution in cautions)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table><p>{below}</p>{warned}"


def _row(columns: Sequence[Column], texts: Sequence[str], share: float | None) -> str:
    values = "".join(_tag("td", text, column) for text, column in zip(texts, columns, strict=True))
    drawn = "" if share is None else f'<td style="text-align: left">{_BAR.format(round(share * _BAR_WIDTH))}</td>'
    return f"<tr>{values}{drawn}</tr>"


def _tag(name: str, text: str, column: Column) -> str:
    side = "right" if column.is_number else "left"
    return f'<{name} style="text-align: {side}">{escape(text)}</{name}>'
