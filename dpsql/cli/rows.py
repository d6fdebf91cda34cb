"""The rows of an answer as text: an aligned table, Markdown, CSV or JSON."""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
import unicodedata
from collections.abc import Sequence
from datetime import date
from decimal import Decimal

from dpsql.driver.display import NOISE, Column, Margins, bar_shares, cells, plain
from dpsql.types import Cell

Rows = Sequence[Sequence[Cell]]

_BAR_WIDTH = 40
_LEAST_BAR_WIDTH = 8  # the minimum width of a bar
_EIGHTHS = " ▏▎▍▌▋▊▉"


# --- tables ---


def table(columns: Sequence[Column], rows: Rows, margins: Margins, *, width: int | None = None) -> list[str]:
    """Aligned columns, ± beside each noisy number. With a terminal's `width`, one-key counts get a bar per row."""
    shown = list(zip(*cells(columns, rows, margins), strict=True)) or [()] * len(columns)
    shown = [_signs_below_each_other(texts) if c.is_noisy else texts for texts, c in zip(shown, columns, strict=True)]
    body = list(zip(*shown, strict=True))
    lines = aligned([c.name for c in columns], body, numeric=[c.is_number for c in columns])
    shares = None if width is None else bar_shares(columns, rows)
    if shares is None or width is None:
        return lines
    start = max(map(_width, lines)) + 2
    room = min(width - start - 1, _BAR_WIDTH)
    if room < _LEAST_BAR_WIDTH:
        return lines
    bars = ["", "", *(bar(share, room) for share in shares)]
    return [(line + " " * (start - _width(line)) + drawn).rstrip() for line, drawn in zip(lines, bars, strict=True)]


def _signs_below_each_other(texts: Sequence[str]) -> tuple[str, ...]:
    """The texts of a column padded on the right, so that ± and marks are aligned."""
    behind = [len(text) - len(text.partition(" ±")[0].removesuffix(NOISE)) for text in texts]
    return tuple(text + " " * (max(behind) - length) for text, length in zip(texts, behind, strict=True))


def bar(share: float, width: int) -> str:
    """A bar of at most `width` characters, drawn in eighths of one."""
    full, eighth = divmod(round(share * width * 8), 8)
    return ("█" * full + _EIGHTHS[eighth]).rstrip()


def aligned(names: Sequence[str], rows: Rows, *, numeric: Sequence[bool]) -> list[str]:
    """A line of names, a rule and a line per row; numbers are right-aligned."""
    cells = [[printable(name) for name in names], *([printable(plain(value)) for value in row] for row in rows)]
    widths = [max(map(_width, column)) for column in zip(*cells, strict=True)]
    cells.insert(1, ["-" * width for width in widths])
    return [
        "  ".join(
            _filled(text, width, right) for text, width, right in zip(line, widths, numeric, strict=True)
        ).rstrip()
        for line in cells
    ]


def printable(text: str) -> str:
    """Escape control characters, which would break lines or control the terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _filled(text: str, width: int, right: bool) -> str:
    space = " " * (width - _width(text))
    return space + text if right else text + space


def _width(text: str) -> int:
    """The width of a text at a terminal, in cells: wide characters take two, combining ones none."""
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def markdown(columns: Sequence[Column], rows: Rows, margins: Margins) -> list[str]:
    """A Markdown table, ± beside each noisy number."""
    head = [_in_markdown(column.name) for column in columns]
    rule = ["---:" if column.is_number else "---" for column in columns]
    body = [list(map(_in_markdown, texts)) for texts in cells(columns, rows, margins)]
    return [f"| {' | '.join(line)} |" for line in (head, rule, *body)]


def _in_markdown(text: str) -> str:
    """Escape Markdown: a key from the data may look like a link or HTML."""
    return "".join(f"\\{c}" if c in "\\`*_[]<>|&~" else c for c in printable(text))


# --- formats for programs: plain values, numbers in full ---


def csv_lines(columns: Sequence[Column], rows: Rows) -> list[str]:
    """Comma-separated values; NULL is an empty field."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([column.name for column in columns])
    writer.writerows([["" if value is None else plain(value) for value in row] for row in rows])
    return text.getvalue().removesuffix("\n").split("\n")


def json_lines(columns: Sequence[Column], rows: Rows) -> list[str]:
    """A list of objects, one on each line."""
    names = [json.dumps(name, ensure_ascii=False) for name in unique_names([column.name for column in columns])]
    objects = [
        f"{{{', '.join(f'{name}: {_in_json(value)}' for name, value in zip(names, row, strict=True))}}}" for row in rows
    ]
    return ["[", *(f"  {each}," for each in objects[:-1]), *(f"  {each}" for each in objects[-1:]), "]"]


def _in_json(value: Cell) -> str:
    match value:
        case Decimal():
            return plain(value)  # exact: a float would round it
        case float() if not math.isfinite(value):
            return "null"
        case date():
            return json.dumps(value.isoformat())
        case list() | tuple():
            return f"[{', '.join(map(_in_json, value))}]"
        case _:
            return json.dumps(value, ensure_ascii=False)


def unique_names(names: Sequence[str]) -> list[str]:
    """Unique names, compared without case, for formats that need them: count, count_2, and so on."""
    unique: list[str] = []
    for name in names:
        taken = {other.casefold() for other in unique}
        candidates = itertools.chain([name], (f"{name}_{number}" for number in itertools.count(2)))
        unique.append(next(each for each in candidates if each.casefold() not in taken))
    return unique
