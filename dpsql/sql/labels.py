"""The name PostgreSQL gives an output column without an alias."""

from __future__ import annotations

import re

from sqlglot import exp

from dpsql.sql.names import folded, position

NAMELESS = "?column?"


_OUTPUT = "output"  # where a subquery keeps the name of its first column


def note_output(subquery: exp.Expression, name: str) -> None:
    """What a subquery's column is called is known once it is resolved: it may be SELECT *."""
    subquery.meta[_OUTPUT] = name


def column_name(node: exp.Expression, text: str) -> str:
    """The name of a column, a function as it was written, or a type; `text` is what the analyst wrote.

    Needs: subqueries within the expression are resolved.
    """
    return _figured(node, text)[0]


def _figured(node: exp.Expression, text: str) -> tuple[str, bool]:
    """A name, and whether it is good enough for a cast or a CASE around it to take it over."""
    match node:
        case exp.Paren() | exp.Filter() | exp.Window() | exp.WithinGroup() | exp.Bracket():
            return _figured(node.this, text)
        case exp.Column():
            return folded(node.this), True
        case exp.Interval():
            return "interval", False
        case exp.AtTimeZone():
            return "timezone", True
        case exp.Cast() if (written := _written(node, text)) is not None:
            return written, True  # of a function that sqlglot knows as a cast
        case exp.Cast():
            name, good = _figured(node.this, text)
            return (name, True) if good else (_TYPES.get(node.to.this.name, NAMELESS), False)
        case exp.Subquery():
            return str(node.meta.get(_OUTPUT, NAMELESS)), True
        case exp.Case():
            default = node.args.get("default")
            name, good = (NAMELESS, False) if default is None else _figured(default, text)
            return (name, True) if good else ("case", False)
        case exp.Exists() | exp.Coalesce() | exp.Nullif() | exp.Least() | exp.Greatest():
            return type(node).__name__.lower(), True
        case exp.Func() | exp.Binary():
            found = _written(node, text) or _unplaced(node, text)
            return (NAMELESS, False) if found is None else (found, True)
        case _:
            return NAMELESS, False


def _written(node: exp.Expression, text: str) -> str | None:
    """The word a call begins with, where sqlglot says where it stands."""
    start, end = node.meta.get("start"), node.meta.get("end")
    word = text[start : end + 1].lower() if isinstance(start, int) and isinstance(end, int) else ""
    return word if word.isidentifier() else None


def _unplaced(node: exp.Expression, text: str) -> str | None:
    """The name of a call that sqlglot reads in a way of its own."""
    match node:
        case exp.Trim():
            return {"LEADING": "ltrim", "TRAILING": "rtrim"}.get(str(node.args.get("position")), "btrim")
        case exp.CurrentDate() | exp.CurrentTimestamp() | exp.Localtimestamp():
            return node.sql_name().lower()
        case exp.Extract():
            return "extract"
        case exp.Substring():
            return "substring"
        case exp.StrPosition():
            return "position"
        case exp.Floor():
            return "floor"
        case exp.Ceil():
            before = re.findall(r"\bceil(?:ing)?\b", text[: position(node)].lower())
            return before[-1] if before else "ceil"
        case _:
            return None


_TYPES = {
    "INT": "int4", "BIGINT": "int8", "SMALLINT": "int2", "DECIMAL": "numeric", "DOUBLE": "float8", "FLOAT": "float4",
    "TEXT": "text", "VARCHAR": "varchar", "BOOLEAN": "bool", "DATE": "date", "TIMESTAMP": "timestamp",
    "TIMESTAMPTZ": "timestamptz",
    "INTERVAL": "interval",
}  # fmt: skip
