"""Rows as aligned text."""

from __future__ import annotations

from collections.abc import Sequence

from dpsql.types import Value


def aligned(names: Sequence[str], rows: Sequence[Sequence[Value]], *, numeric: Sequence[bool]) -> list[str]:
    """A line of names, a rule and a line per row; numbers stand to the right."""
    cells = [[_printable(name) for name in names], *([_text(value) for value in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    cells.insert(1, ["-" * width for width in widths])
    return [
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric, strict=True)
        ).rstrip()
        for line in cells
    ]


def _text(value: Value) -> str:
    match value:
        case None:
            return "NULL"
        case bool():
            return "true" if value else "false"
        case _:
            return _printable(str(value))


def _printable(text: str) -> str:
    """Control characters escaped: they would break the lines, or command the terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
