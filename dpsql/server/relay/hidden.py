"""Hidden messages: what the relay itself asks of the twin (descriptions, values, settings, names of types)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from dpsql.server.protocol import messages
from dpsql.server.protocol.messages import Bind, Column, Execute, Message, Parse
from dpsql.server.relay import render
from dpsql.server.relay.render import Shown, without_place
from dpsql.server.relay.upstream import Pending, Upstream
from dpsql.settings import SETTINGS

NAME = b"_dpsql"  # the name of our own statements and portals on the twin


class Skip(Exception):
    """The twin ignores everything until Sync: the rest of the work is dropped."""


@dataclass(frozen=True, slots=True)
class Described:
    """A statement's parameters and result columns; without columns it returns no rows."""

    types: tuple[int, ...]
    columns: tuple[Column, ...] | None


@dataclass(frozen=True, slots=True)
class Circumstances:
    """The values of a statement's parameters, as JSON, and the session's settings."""

    values: tuple[bytes | None, ...]
    settings: dict[str, str]
    zone: str  # TimeZone
    wants_notices: bool


class HiddenMessages:
    """Hidden messages. Their errors are shown to the client as errors of its own statement."""

    def __init__(self, upstream: Upstream, type_names: dict[tuple[int, int], str]) -> None:
        self._upstream = upstream
        self._known = type_names

    def hide(self, message: Message, shown: Shown | None = None) -> Pending:
        pending = Pending(message.kind, hidden=True, shown=shown)
        self._upstream.send(message, pending)
        return pending

    async def drained(self) -> None:
        if not await self._upstream.drain():
            raise Skip

    def prepare(self, sql: bytes, types: Sequence[int] = ()) -> None:
        """Prepare our statement. It is closed first: after an error the old one still exists."""
        self.hide(messages.close(b"S", NAME))
        self.hide(Parse(NAME, sql, tuple(types)).message())

    def bind(self, parameters: bytes = messages.NO_PARAMETERS) -> None:
        """Bind our portal."""
        self.hide(messages.close(b"P", NAME))
        self.hide(Bind(NAME, NAME, parameters, messages.ALL_TEXT).message())

    def forget(self) -> None:
        self.hide(messages.close(b"S", NAME))

    async def described(self, name: bytes) -> Described:
        pending = self.hide(messages.describe(b"S", name))
        await self.drained()
        return _described(pending)

    async def described_text(self, sql: bytes, types: Sequence[int] = ()) -> Described:
        self.prepare(sql, types)
        found = await self.described(NAME)
        self.forget()
        return found

    async def described_with_circumstances(self, sql: bytes) -> tuple[Described, Circumstances]:
        """Both in one round trip, for a text without parameters."""
        self.prepare(sql)
        described = self.hide(messages.describe(b"S", NAME))
        self.forget()
        settings = self._ask_row(_circumstances_query(0))
        await self.drained()
        return _described(described), _circumstances(_row(settings), 0)

    async def row(
        self, sql: bytes, types: Sequence[int] = (), parameters: bytes = messages.NO_PARAMETERS
    ) -> tuple[bytes | None, ...]:
        """The one row of a query, as text."""
        pending = self._ask_row(sql, types, parameters)
        await self.drained()
        return _row(pending)

    def _ask_row(self, sql: bytes, types: Sequence[int] = (), parameters: bytes = messages.NO_PARAMETERS) -> Pending:
        self.prepare(sql, types)
        self.bind(parameters)
        pending = self.hide(Execute(NAME, 0).message(), without_place)
        self.hide(messages.close(b"P", NAME))
        self.forget()
        return pending

    async def attempt(self, statements: Sequence[bytes]) -> None:
        """Run statements for their errors alone."""
        for sql in statements:
            self.prepare(sql)
            self.bind()
            self.hide(Execute(NAME, 0).message(), without_place)
            self.hide(messages.close(b"P", NAME))
            self.forget()
        await self.drained()

    async def circumstances(self, types: Sequence[int], parameters: bytes) -> Circumstances:
        """Asked of the twin, which has decoded the parameters and keeps the settings."""
        row = await self.row(_circumstances_query(len(types)), types, parameters)
        return _circumstances(row, len(types))

    async def type_names(self, types: Sequence[tuple[int, int]]) -> list[str]:
        """The names of types for casts, by OID and modifier. The twin is asked once for each."""
        for number, modifier in types:
            if (number, modifier) in self._known:
                continue
            if modifier == -1 and number in render.TYPE_NAMES:
                self._known[number, modifier] = render.TYPE_NAMES[number]
                continue
            name = (await self.row(b"SELECT pg_catalog.format_type(%d, %d)" % (number, modifier)))[0]
            self._known[number, modifier] = (name or b"pg_catalog.text").decode("ascii", errors="replace")
        return [self._known[key] for key in types]

    async def names_of(self, columns: Sequence[Column]) -> list[str]:
        return await self.type_names([(column.type, column.modifier) for column in columns])

    def start_clock(self) -> None:
        """Start statement_timeout: the twin stops its timer after an Execute, and starts it with a Parse."""
        self.prepare(b"")


def _described(pending: Pending) -> Described:
    answers = {message.kind: message.body for message in pending.gathered}
    columns = messages.read_columns(answers[b"T"]) if b"T" in answers else None
    return Described(messages.read_types(answers[b"t"]), columns)


def _row(pending: Pending) -> tuple[bytes | None, ...]:
    return next(messages.read_row(message.body) for message in pending.gathered if message.kind == b"D")


@lru_cache(maxsize=100)
def _circumstances_query(parameters: int) -> bytes:
    # In hexadecimal digits, so that client_encoding does not matter.
    items = [
        f"pg_catalog.encode(pg_catalog.convert_to(pg_catalog.to_jsonb(${number})::pg_catalog.text, 'UTF8'), 'hex')"
        for number in range(1, parameters + 1)
    ]
    items += [f"pg_catalog.current_setting('dpsql.{name}', true)" for name in SETTINGS]
    items += [f"pg_catalog.current_setting('{name}')" for name in ("TimeZone", "client_min_messages")]
    return f"SELECT {', '.join(items)}".encode()


def _circumstances(row: tuple[bytes | None, ...], parameters: int) -> Circumstances:
    digits, texts, (zone, level) = row[:parameters], row[parameters:-2], row[-2:]
    values = tuple(None if each is None else bytes.fromhex(each.decode("ascii")) for each in digits)
    settings = {
        name: text.decode(errors="replace") for name, text in zip(SETTINGS, texts, strict=True) if text is not None
    }
    name = (zone or b"UTC").decode(errors="replace")
    return Circumstances(values, settings, name, level not in (b"warning", b"error"))
