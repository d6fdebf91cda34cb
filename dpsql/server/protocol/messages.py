"""Messages of PostgreSQL's protocol, version 3: framing, parsing and writing, without input or output."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_HEADER = struct.Struct("!cI")
_INT16 = struct.Struct("!H")
_INT32 = struct.Struct("!I")
_FIELD = struct.Struct("!IhIhih")
TEXT = 0


class BadMessage(Exception):
    """The other side does not speak the protocol. The text is for the peer; the connection ends."""


@dataclass(frozen=True, slots=True)
class Message:
    kind: bytes
    body: bytes

    def encode(self) -> bytes:
        return _HEADER.pack(self.kind, len(self.body) + 4) + self.body


class Framer:
    """Cuts a stream of bytes into messages. A message longer than `limit` is refused before it is buffered."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._buffer = bytearray()

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def __len__(self) -> int:
        return len(self._buffer)

    def next(self) -> Message | None:
        """The next whole message, or None until more bytes have come."""
        if len(self._buffer) < _HEADER.size:
            return None
        kind, length = _HEADER.unpack_from(self._buffer)
        if length < 4:
            raise BadMessage("invalid message length")
        if length > self._limit:
            raise BadMessage(f"a message is longer than {self._limit:,} bytes")
        if len(self._buffer) < length + 1:
            return None
        body = bytes(self._buffer[_HEADER.size : length + 1])
        del self._buffer[: length + 1]
        return Message(kind, body)

    def run_of(self, kind: bytes) -> bytes:
        """The next run of whole messages of one type, unparsed, so that many are passed on as fast as one."""
        buffer, size, end = self._buffer, len(self._buffer), 0
        while size - end >= _HEADER.size:
            found, length = _HEADER.unpack_from(buffer, end)
            if found != kind or not 4 <= length <= self._limit or size - end < length + 1:
                break
            end += length + 1
        run = bytes(buffer[:end])
        del buffer[:end]
        return run


class _Body:
    """Reads the fields of a message; missing or left-over bytes are a protocol violation."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self.at = 0

    def text(self) -> bytes:
        end = self._body.find(b"\0", self.at)
        if end < 0:
            raise BadMessage("invalid string in message")
        text = self._body[self.at : end]
        self.at = end + 1
        return text

    def int16(self) -> int:
        return self._number(_INT16)

    def int32(self) -> int:
        return self._number(_INT32)

    def _number(self, form: struct.Struct) -> int:
        if self.at + form.size > len(self._body):
            raise BadMessage("insufficient data left in message")
        value: int = form.unpack_from(self._body, self.at)[0]
        self.at += form.size
        return value

    def take(self, length: int) -> bytes:
        if self.at + length > len(self._body):
            raise BadMessage("insufficient data left in message")
        part = self._body[self.at : self.at + length]
        self.at += length
        return part

    def byte(self) -> bytes:
        return self.take(1)

    def end(self) -> None:
        if self.at != len(self._body):
            raise BadMessage("invalid message format")


# --- what a client sends ---


@dataclass(frozen=True, slots=True)
class Parse:
    name: bytes
    sql: bytes
    types: tuple[int, ...]

    @classmethod
    def read(cls, body: bytes) -> Parse:
        fields = _Body(body)
        name, sql = fields.text(), fields.text()
        types = tuple(fields.int32() for _ in range(fields.int16()))
        fields.end()
        return cls(name, sql, types)

    def message(self) -> Message:
        types = struct.pack(f"!H{len(self.types)}I", len(self.types), *self.types)
        return Message(b"P", self.name + b"\0" + self.sql + b"\0" + types)


@dataclass(frozen=True, slots=True)
class Bind:
    portal: bytes
    statement: bytes
    parameters: bytes  # formats and values, unparsed
    results: bytes  # formats of the result columns, unparsed

    @classmethod
    def read(cls, body: bytes) -> Bind:
        fields = _Body(body)
        portal, statement = fields.text(), fields.text()
        start = fields.at
        fields.take(2 * fields.int16())
        for _ in range(fields.int16()):
            length = fields.int32()
            if length != 0xFFFFFFFF:
                fields.take(length)
        middle = fields.at
        fields.take(2 * fields.int16())
        fields.end()
        return cls(portal, statement, body[start:middle], body[middle:])

    def message(self) -> Message:
        return Message(b"B", self.portal + b"\0" + self.statement + b"\0" + self.parameters + self.results)


NO_PARAMETERS = _INT16.pack(0) + _INT16.pack(0)
ALL_TEXT = _INT16.pack(0)


@dataclass(frozen=True, slots=True)
class Named:
    """Describe and Close: a statement (`S`) or a portal (`P`)."""

    sort: bytes
    name: bytes

    @classmethod
    def read(cls, body: bytes) -> Named:
        fields = _Body(body)
        sort, name = fields.byte(), fields.text()
        fields.end()
        return cls(sort, name)


@dataclass(frozen=True, slots=True)
class Execute:
    portal: bytes
    limit: int

    @classmethod
    def read(cls, body: bytes) -> Execute:
        fields = _Body(body)
        portal, limit = fields.text(), fields.int32()
        fields.end()
        return cls(portal, limit)

    def message(self) -> Message:
        return Message(b"E", self.portal + b"\0" + _INT32.pack(self.limit))


def read_query(body: bytes) -> bytes:
    fields = _Body(body)
    sql = fields.text()
    fields.end()
    return sql


def query(sql: bytes) -> Message:
    return Message(b"Q", sql + b"\0")


def describe(sort: bytes, name: bytes) -> Message:
    return Message(b"D", sort + name + b"\0")


def close(sort: bytes, name: bytes) -> Message:
    return Message(b"C", sort + name + b"\0")


FLUSH = Message(b"H", b"")
SYNC = Message(b"S", b"")


def startup(parameters: Iterable[tuple[str, str]]) -> bytes:
    """A StartupMessage of protocol 3.0: the only message without a type byte."""
    pairs = b"".join(f"{name}\0{value}\0".encode() for name, value in parameters)
    return struct.pack("!II", len(pairs) + 9, 3 << 16) + pairs + b"\0"


def cancel_request(pid: int, secret: bytes) -> bytes:
    return struct.pack("!III", 12 + len(secret), 80_877_102, pid) + secret


# --- what a server sends ---


@dataclass(frozen=True, slots=True)
class Column:
    name: bytes
    table: int
    number: int
    type: int
    length: int
    modifier: int
    format: int


def read_columns(body: bytes) -> tuple[Column, ...]:
    """The columns of a RowDescription."""
    fields = _Body(body)
    columns = []
    for _ in range(fields.int16()):
        name = fields.text()
        columns.append(Column(name, *_FIELD.unpack(fields.take(_FIELD.size))))
    fields.end()
    return tuple(columns)


def row_description(columns: Sequence[Column]) -> Message:
    parts = [c.name + b"\0" + _FIELD.pack(c.table, c.number, c.type, c.length, c.modifier, c.format) for c in columns]
    return Message(b"T", _INT16.pack(len(columns)) + b"".join(parts))


def read_types(body: bytes) -> tuple[int, ...]:
    """The types of a ParameterDescription."""
    fields = _Body(body)
    types = tuple(fields.int32() for _ in range(fields.int16()))
    fields.end()
    return types


def read_row(body: bytes) -> tuple[bytes | None, ...]:
    """The values of a DataRow."""
    fields = _Body(body)
    values: list[bytes | None] = []
    for _ in range(fields.int16()):
        length = fields.int32()
        values.append(None if length == 0xFFFFFFFF else fields.take(length))
    fields.end()
    return tuple(values)


def read_fields(body: bytes) -> dict[bytes, bytes]:
    """The fields of an ErrorResponse or NoticeResponse."""
    fields = _Body(body)
    found: dict[bytes, bytes] = {}
    while (letter := fields.byte()) != b"\0":
        found[letter] = fields.text()
    fields.end()
    return found


def with_fields(kind: bytes, found: dict[bytes, bytes]) -> Message:
    return Message(kind, b"".join(letter + text + b"\0" for letter, text in found.items()) + b"\0")


def report(kind: bytes, severity: str, code: str, message: str, **more: str) -> Message:
    """An ErrorResponse (`E`) or NoticeResponse (`N`) of our own, in UTF-8. `more`: detail, hint."""
    found = {b"S": severity, b"V": severity, b"C": code, b"M": message}
    found |= {{"detail": b"D", "hint": b"H"}[name]: text for name, text in more.items()}
    return with_fields(kind, {letter: text.encode() for letter, text in found.items()})


def fatal(code: str, message: str, **more: str) -> Message:
    return report(b"E", "FATAL", code, message, **more)


def read_status(body: bytes) -> tuple[str, str]:
    """Name and value of a ParameterStatus."""
    fields = _Body(body)
    name, value = fields.text(), fields.text()
    fields.end()
    return name.decode(errors="replace"), value.decode(errors="replace")


def read_key(body: bytes) -> tuple[int, bytes]:
    """Process number and secret of a BackendKeyData."""
    fields = _Body(body)
    return fields.int32(), body[4:]


def text_parameters(values: Sequence[bytes | None]) -> bytes:
    """Values as a Bind carries them, in text."""
    parts = [b"\xff\xff\xff\xff" if value is None else _INT32.pack(len(value)) + value for value in values]
    return _INT16.pack(0) + _INT16.pack(len(values)) + b"".join(parts)
