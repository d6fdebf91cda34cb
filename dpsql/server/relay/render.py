"""Renders noisy rows as SQL literals, and adjusts the twin's answers for the client.

The twin reads the literals back and sends the rows in the formats that the client asked for.

Literals are ASCII, so they are valid under any client_encoding; column names are bytes as the twin sent them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import date, datetime
from decimal import Decimal
from operator import itemgetter
from typing import assert_never, cast

from dpsql.errors import Error
from dpsql.server.protocol import messages
from dpsql.server.protocol.messages import Column, Message
from dpsql.types import Cell, Kind, Type

# Names of types by OID, for which the twin need not be asked; only types without a modifier.
BOOL, INT8, INT2, INT4, TEXT, JSON, FLOAT4, FLOAT8 = 16, 20, 21, 23, 25, 114, 700, 701
NAME, UNKNOWN, BPCHAR, VARCHAR, DATE, TIMESTAMP, TIMESTAMPTZ, NUMERIC = 19, 705, 1042, 1043, 1082, 1114, 1184, 1700
TYPE_NAMES = {
    BOOL: "boolean",
    INT8: "bigint",
    INT2: "smallint",
    INT4: "integer",
    TEXT: "pg_catalog.text",
    JSON: "pg_catalog.json",
    FLOAT4: "real",
    FLOAT8: "double precision",
    VARCHAR: "character varying",
    DATE: "pg_catalog.date",
    TIMESTAMP: "timestamp without time zone",
    TIMESTAMPTZ: "timestamp with time zone",
    NUMERIC: "numeric",
}
# Arrays by OID, with the OID of their elements.
_ELEMENTS = {
    1005: INT2, 1007: INT4, 1016: INT8, 1021: FLOAT4, 1022: FLOAT8, 1231: NUMERIC, 1182: DATE, 1115: TIMESTAMP,
    1185: TIMESTAMPTZ, 1009: TEXT, 1015: VARCHAR, 1000: BOOL,
}  # fmt: skip
_NUMBERS = frozenset((INT2, INT4, INT8, NUMERIC, FLOAT4, FLOAT8))
_TEXTS = frozenset((TEXT, VARCHAR, BPCHAR, NAME, UNKNOWN))
_RENDERED = {
    Kind.BOOLEAN: frozenset((BOOL,)),
    Kind.INTEGER: _NUMBERS,
    Kind.DECIMAL: frozenset((NUMERIC, FLOAT4, FLOAT8)),
    Kind.DOUBLE: frozenset((NUMERIC, FLOAT4, FLOAT8)),
    Kind.TEXT: _TEXTS,
    Kind.DATE: frozenset((DATE,)),
    Kind.TIMESTAMP: frozenset((TIMESTAMP,)),
    Kind.TIMESTAMPTZ: frozenset((TIMESTAMPTZ,)),
    Kind.INTERVAL: frozenset(),  # intervals are compared, never returned
    Kind.ARRAY: frozenset(),  # arrays follow their elements
}


def is_rendered(type_: Type, oid: int) -> bool:
    """Whether every value of the engine's type can be read as one of the twin's."""
    if type_.element is not None:
        return oid in _ELEMENTS and is_rendered(type_.element, _ELEMENTS[oid])
    return type_.kind is Kind.UNKNOWN or oid in _RENDERED[type_.kind]


def stub(columns: Sequence[Column], types: Sequence[str]) -> bytes:
    """A query of the same shape that has no rows and reads nothing."""
    items = [
        b"NULL::%s AS %s" % (type_.encode(), _quoted(column.name)) for column, type_ in zip(columns, types, strict=True)
    ]
    return b"SELECT " + b", ".join(items) + b" WHERE false"


def rendering(columns: Sequence[Column], types: Sequence[str], rows: Sequence[Sequence[Cell]]) -> bytes:
    """A query whose answer is these rows, in this order."""
    if not rows:
        return stub(columns, types)
    if not columns:
        return b"SELECT FROM pg_catalog.generate_series(1, %d)" % len(rows)
    arrays = [
        b"pg_catalog.unnest(%s::pg_catalog.text[])" % literal(_array(list(map(itemgetter(number), rows)))).encode()
        for number in range(len(columns))
    ]
    items = [
        b"r.c%d::%s AS %s" % (number, type_.encode(), _quoted(column.name))
        for number, (column, type_) in enumerate(zip(columns, types, strict=True))
    ]
    names = b", ".join(b"c%d" % number for number in range(len(columns)))
    return b"SELECT %s FROM ROWS FROM (%s) AS r(%s)" % (b", ".join(items), b", ".join(arrays), names)


_BETWEEN = "\x1f"  # the ASCII unit separator
_SPECIAL = re.compile(r"[\\'\x00-\x1f\x7f-\U0010ffff]")


def literal(text: str | None) -> str:
    """A text as an ASCII literal that means the same under every setting."""
    if text is None:
        return "NULL"
    is_plain = text.isascii() and text.isprintable() and "'" not in text and "\\" not in text
    return f"E'{text if is_plain else _SPECIAL.sub(_escaped, text)}'"


def _escaped(character: re.Match[str]) -> str:
    # A quote is doubled: the setting backslash_quote can forbid a backslash before it.
    return character[0] * 2 if character[0] in "\\'" else f"\\U{ord(character[0]):08X}"


def _array(values: Sequence[Cell]) -> str:
    """A column as an array literal. A column of one type is written without a Python loop over its values."""
    kinds = set(map(type, values))
    if kinds == {int} or kinds == {float}:
        return "{" + ",".join(map(repr, values)) + "}"
    if kinds == {str}:
        # Joined by a character that no value contains, so that all are escaped in one pass.
        texts = _BETWEEN.join(cast(Sequence[str], values))
        if texts.count(_BETWEEN) == len(values) - 1:
            return '{"' + _escaped_in_array(texts).replace(_BETWEEN, '","') + '"}'
    return "{" + ",".join([_element(value) for value in values]) + "}"


def _escaped_in_array(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _element(value: Cell) -> str:
    match value:
        case None:
            return "NULL"
        case bool():
            return "t" if value else "f"
        case int():
            return str(value)
        case float():
            return repr(value)  # PostgreSQL reads inf and nan too
        case Decimal():
            return format(value, "f")
        case datetime():
            return f'"{value.isoformat(sep=" ")}"'
        case date():
            return f'"{value.isoformat()}"'
        case str():
            return f'"{_escaped_in_array(value)}"'
        case tuple() | list():
            return f'"{_escaped_in_array(_array(value))}"'
        case _:
            assert_never(value)


def _quoted(name: bytes) -> bytes:
    return b'"' + name.replace(b'"', b'""') + b'"'


# ------------------------------------------------------------
# The twin's answers to texts that are not the client's own, as the client sees them.

Shown = Callable[[Message], list[Message]]
# Fields that say where in the twin an error was raised: the client must not see them.
_INSIDES = (b"W", b"F", b"L", b"R")


def described_as(columns: Sequence[Column], message: Message) -> Message:
    """The columns of the client's statement, in the formats of the twin's answer."""
    formats = [column.format for column in messages.read_columns(message.body)]
    return messages.row_description([replace(c, format=f) for c, f in zip(columns, formats, strict=True)])


def renaming(hidden: bytes, name: bytes) -> Shown:
    """Errors name the client's statement instead of ours."""

    def shown(message: Message) -> list[Message]:
        if message.kind != b"E":
            return [message]
        found = messages.read_fields(message.body)
        found[b"M"] = found[b"M"].replace(b'"' + hidden + b'"', b'"' + name + b'"')
        return [messages.with_fields(b"E", found)]

    return shown


def without_place(message: Message) -> list[Message]:
    """An error without its position, as it is in a text that the client never sent."""
    if message.kind != b"E":
        return [message]
    found = messages.read_fields(message.body)
    return [messages.with_fields(b"E", {k: v for k, v in found.items() if k not in (*_INSIDES, b"P")})]


def refusing(error: Error) -> Shown:
    """The error that the twin raised for us, with the position that we know."""

    def shown(message: Message) -> list[Message]:
        if message.kind != b"E":
            return [message]
        found = messages.read_fields(without_place(message)[0].body)
        if error.position is not None and found.get(b"C") == error.sqlstate.encode():
            found[b"P"] = str(error.position).encode()
        return [messages.with_fields(b"E", found)]

    return shown


def replying(columns: Sequence[Column] | None, notice: Message | None, *, is_plan: bool) -> Shown:
    """The twin's answer to a rendering, as the answer to the client's own statement."""

    def shown(message: Message) -> list[Message]:
        match message.kind:
            case b"T" if columns is not None:
                return [described_as(columns, message)]
            case b"E":
                return without_place(message)
            case b"C" | b"s":
                tag = Message(b"C", b"EXPLAIN\0") if is_plan and message.kind == b"C" else message
                return [tag] if notice is None else [notice, tag]
            case _:
                return [message]

    return shown
