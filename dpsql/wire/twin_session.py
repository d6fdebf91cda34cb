"""A session on the twin, opened for a client who has come in."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Mapping

from dpsql.errors import OperationalError
from dpsql.twin import Address
from dpsql.wire import messages
from dpsql.wire.messages import Message
from dpsql.wire.scram import ScramClient

_OK, _SASL, _SASL_CONTINUE, _SASL_FINAL = 0, 10, 11, 12
_OURS = frozenset(("user", "database", "replication"))


async def open_session(
    address: Address, parameters: Mapping[str, str]
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect as the role of a user. What the twin says from AuthenticationOk on is still to be read."""
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
        raise OperationalError("the twin does not take the password that dpsql gave it")
    return body[4:]
