"""PostgreSQL's text form of arrays, read and written. Arrays are only supported as constant lists to compare with."""

from __future__ import annotations

import re
from collections.abc import Iterable

from dpsql.errors import InvalidText

_ITEM = re.compile(r"""\s*(?:"((?:[^"\\]|\\.)*)"|([^\s",{}\\]+(?:[ \t]+[^\s",{}\\]+)*))\s*(,|$)""", re.DOTALL)


def array_items(text: str) -> list[str | None]:
    """The items of a one-dimensional array in PostgreSQL's spelling: {a,"b c",NULL}."""
    whole = text.strip(" \t\n\r\f\v")
    inner = whole[1:-1]
    if len(whole) < 2 or whole[0] + whole[-1] != "{}":
        raise _malformed(text)
    found: list[str | None] = []
    at = 0
    while inner.strip(" \t\n\r\f\v") and (at < len(inner) or inner[-1:] == ","):
        item = _ITEM.match(inner, at)
        if item is None:
            raise _malformed(text)
        quoted, bare = item[1], item[2]
        if quoted is not None:
            found.append(re.sub(r"\\(.)", r"\1", quoted, flags=re.DOTALL))
        else:
            found.append(None if bare.lower() == "null" else bare)
        at = item.end()
    return found


def array_text(items: Iterable[object]) -> str:
    """A list as PostgreSQL writes an array of it."""
    return "{" + ",".join("NULL" if item is None else _quoted(item) for item in items) + "}"


def _quoted(item: object) -> str:
    text = str(item).lower() if isinstance(item, bool) else str(item)
    return '"' + re.sub(r'(["\\])', r"\\\1", text) + '"'


def _malformed(text: str) -> InvalidText:
    hint = "Write it as '{one,two}', or list the values in IN (…)."
    return InvalidText(f'malformed array literal: "{text}"', hint=hint)
