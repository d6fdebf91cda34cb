"""Sessions on the twin: dpsql's own, reopened when it is lost, and one for each client."""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import Callable, Mapping
from typing import TypeVar

import psycopg
from psycopg.pq import ConnStatus, ExecStatus
from psycopg.rows import TupleRow

from dpsql.errors import OperationalError
from dpsql.server.protocol import messages
from dpsql.server.protocol.messages import Message
from dpsql.server.protocol.scram import ScramClient
from dpsql.server.twin import Address, Twin

_MULTIPLE = b"cannot insert multiple commands into a prepared statement"

T = TypeVar("T")
Asking = Callable[[psycopg.Connection[TupleRow]], T]


class OwnSession:
    """dpsql's own session; any thread may use it, one at a time."""

    def __init__(self, twin: Twin) -> None:
        self._twin = twin
        self._lock = threading.Lock()
        self._connection: psycopg.Connection[TupleRow] | None = None

    def use(self, ask: Asking[T]) -> T:
        """Run idempotent statements on the twin; they are retried once."""
        with self._lock:
            if self._connection is not None:
                try:
                    return ask(self._connection)
                except psycopg.OperationalError:
                    self._disconnect()  # the twin may have been restarted
            self._connection = self._twin.admin()
            return ask(self._connection)

    def close(self) -> None:
        with self._lock:
            self._disconnect()

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def answers(connection: psycopg.Connection[TupleRow]) -> bool:
    return connection.execute("SELECT 1").fetchone() == (1,)


def is_grammatical(connection: psycopg.Connection[TupleRow], text: str, *, standard_strings: bool) -> bool:
    """Whether PostgreSQL's grammar accepts a string of several statements; it parses all before it analyses any."""
    connection.execute(f"SET standard_conforming_strings = {'on' if standard_strings else 'off'}")
    result = connection.pgconn.prepare(b"", text.encode())
    if connection.pgconn.status == ConnStatus.BAD:
        raise psycopg.OperationalError("the twin does not answer")
    return result.status != ExecStatus.FATAL_ERROR or _MULTIPLE in result.error_message


# ------------------------------------------------------------
# A client's session on the twin, opened after its login.

_OK, _SASL, _SASL_CONTINUE, _SASL_FINAL = 0, 10, 11, 12
_OURS = frozenset(("user", "database", "replication"))


async def open_session(
    address: Address, parameters: Mapping[str, str]
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect as a user's role. The twin's messages from AuthenticationOk on are left for the caller to read."""
    if address.path is not None:
        reader, writer = await asyncio.open_unix_connection(address.path)
    else:
        assert address.host is not None
        reader, writer = await asyncio.open_connection(address.host, address.port)
    pairs = {"user": address.user, "database": address.database}
    pairs |= {name: value for name, value in parameters.items() if name not in _OURS}
    writer.write(messages.startup(pairs.items()))
    if address.password is not None:
        await _prove(reader, writer, address.password)
    return reader, writer


async def _prove(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, password: str) -> None:
    client = ScramClient(password)
    await _expect(reader, _SASL)
    first = client.first()
    mechanism = client.mechanism.encode() if isinstance(client.mechanism, str) else client.mechanism
    writer.write(Message(b"p", mechanism + b"\0" + struct.pack("!I", len(first)) + first).encode())
    challenge = await _expect(reader, _SASL_CONTINUE)
    proof = await asyncio.to_thread(client.proof, challenge)
    writer.write(Message(b"p", proof).encode())
    client.check(await _expect(reader, _SASL_FINAL))


async def _expect(reader: asyncio.StreamReader, wanted: int) -> bytes:
    kind, length = struct.unpack("!cI", await reader.readexactly(5))
    body = await reader.readexactly(length - 4)
    if kind != b"R" or struct.unpack_from("!I", body)[0] != wanted:
        raise OperationalError("the twin rejected dpsql's password")
    return body[4:]
