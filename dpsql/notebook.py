"""An answer as HTML for notebooks: ± beside each noisy number, and a bar per row for one-key counts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from itertools import zip_longest

from dpsql.display import Column, Margins, bar_shares, cells
from dpsql.types import Cell

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
    """A table of the first rows and a line below it. Every name and value is escaped: keys come from the data."""
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
