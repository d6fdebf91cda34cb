"""What the client sees of an answer that the twin gave to another text than the client's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from dpsql.errors import Error
from dpsql.wire import messages
from dpsql.wire.messages import Column, Message

Shown = Callable[[Message], list[Message]]
# Of an error that was raised for us, the client shall not see where in the twin it was raised.
_INSIDES = (b"W", b"F", b"L", b"R")


def described_as(columns: Sequence[Column], message: Message) -> Message:
    """The columns of the client's statement, in the formats of the twin's answer."""
    formats = [column.format for column in messages.read_columns(message.body)]
    return messages.row_description([replace(c, format=f) for c, f in zip(columns, formats, strict=True)])


def renaming(hidden: bytes, name: bytes) -> Shown:
    """Errors that name our statement name the client's."""

    def shown(message: Message) -> list[Message]:
        if message.kind != b"E":
            return [message]
        found = messages.read_fields(message.body)
        found[b"M"] = found[b"M"].replace(b'"' + hidden + b'"', b'"' + name + b'"')
        return [messages.with_fields(b"E", found)]

    return shown


def without_place(message: Message) -> list[Message]:
    """An error in a text that the client never sent."""
    if message.kind != b"E":
        return [message]
    found = messages.read_fields(message.body)
    return [messages.with_fields(b"E", {k: v for k, v in found.items() if k not in (*_INSIDES, b"P")})]


def refusing(error: Error) -> Shown:
    """The error that the twin raised for us, at the place that we know."""

    def shown(message: Message) -> list[Message]:
        if message.kind != b"E":
            return [message]
        found = messages.read_fields(without_place(message)[0].body)
        if error.position is not None and found.get(b"C") == error.sqlstate.encode():
            found[b"P"] = str(error.position).encode()
        return [messages.with_fields(b"E", found)]

    return shown


def replying(columns: Sequence[Column] | None, notice: Message | None, *, is_plan: bool) -> Shown:
    """The twin's answer to a rendering, as an answer to the client's own statement."""

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
