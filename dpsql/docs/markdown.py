"""The little Markdown that reference pages are made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def page(title: str, module: str, *blocks: str) -> str:
    """A page that says what it is made of, so that nobody edits it by hand."""
    made = f"<!-- Generated from {module} by python -m dpsql.docs. Do not edit. -->"
    return "\n\n".join([f"# {title}", made, *blocks]) + "\n"


def table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [headers, ["---"] * len(headers), *([_cell(text) for text in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def code(text: str) -> str:
    return f"`{text}`" if text else ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
