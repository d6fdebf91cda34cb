"""From an accepted socket to a client who has proven who it is. There is no way in without a password."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
import ssl
from contextlib import suppress
from dataclasses import dataclass
from typing import cast

from dpsql.errors import (
    Cancelled,
    Error,
    InternalError,
    LoginRefused,
    PolicyError,
    ProtocolViolation,
    UnknownDatabase,
    WrongPassword,
)
from dpsql.files import kept_secret
from dpsql.policy.load_server import state_folder
from dpsql.policy.model import Policy, TlsRule
from dpsql.policy.passwords import Verifier
from dpsql.server.auth.throttle import Throttle, Verifiers
from dpsql.server.auth.tls import Tls, open_tls
from dpsql.server.ops.logs import note
from dpsql.server.protocol import startup
from dpsql.server.protocol.scram import ScramServer
from dpsql.server.protocol.startup import CancelCall, Encryption, Startup

__all__ = ["CancelCall", "Client", "Door", "address_of", "open_door", "welcome"]

_log = logging.getLogger("dpsql.server")

_FAREWELL = 1.0  # seconds in which a refused client may read why
_SECRET_BYTES = 32
_LOCAL = "local"


@dataclass(frozen=True, slots=True)
class Door:
    """What it takes to come in."""

    database: str  # the only one there is
    verifiers: Verifiers
    tls: Tls | None  # None: not offered
    tls_rule: TlsRule
    login_timeout: float
    throttle: Throttle


@dataclass(frozen=True, slots=True)
class Client:
    """Somebody who has come in. AuthenticationOk is still due: the twin says it."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    user: str
    database: str
    parameters: dict[str, str]  # settings and `options` of the startup message, as sent
    address: str  # "local" on a Unix socket
    tls: bool
    protocol: tuple[int, int]


def open_door(policy: Policy, database: str, throttle: Throttle | None = None) -> Door:
    """The door that a policy describes. When a changed policy is read again, the throttle is kept."""
    users = {
        user.name: verifier
        for user in policy.users.values()
        if user.password is not None and (verifier := Verifier.parse(user.password)) is not None
    }
    state = state_folder(policy)
    try:
        secret = kept_secret(state / "login.secret", _SECRET_BYTES)
        tls = open_tls(policy)
    except ssl.SSLError:
        raise PolicyError(
            f'the certificate in the state folder "{state}" cannot be read',
            hint="Delete certificate.pem and key.pem there: they are made anew. Clients that trust the old one must be"
            " given the new one.",
        ) from None
    except OSError as error:
        raise PolicyError(
            f'the folder "{state}" cannot be used: {error.strerror}',
            hint="Say in [server] where a server may keep its state: state = FOLDER.",
        ) from None
    return Door(
        database=database,
        verifiers=Verifiers(users, secret),
        tls=tls,
        tls_rule=policy.server.tls,
        login_timeout=policy.server.login_timeout,
        throttle=throttle or Throttle(),
    )


async def welcome(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, door: Door) -> Client | CancelCall | None:
    """Let a client in, or take a cancel request. None: refused, which the client was told, or gone; and closed."""
    visit = _Visit(reader, writer, door)
    try:
        async with asyncio.timeout(door.login_timeout) as deadline:
            return await visit.enter(deadline)
    except Error as refusal:
        await visit.dismiss(refusal)
    except asyncio.IncompleteReadError as error:
        # Who sends nothing at all is a port scan or a health check, and is told nothing.
        await visit.dismiss(ProtocolViolation("the connection ended within a message") if error.partial else None)
    except TimeoutError:
        await visit.dismiss(Cancelled(f"the login took longer than {door.login_timeout:g} seconds"))
    except OSError:  # broken connections and failed handshakes: there is nobody to tell
        await visit.dismiss(None)
    except Exception:
        _log.exception("a login failed")
        await visit.dismiss(InternalError("the server failed", hint="The owner finds the cause in the log."))
    return None


class _Visit:
    """One connection on its way in."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, door: Door) -> None:
        self.reader = reader
        self.writer = writer
        self.door = door
        self.user: str | None = None  # as claimed
        self.tls = False
        self.address = address_of(writer)

    async def enter(self, deadline: asyncio.Timeout) -> Client | CancelCall:
        request = await self.opening()
        if isinstance(request, CancelCall):
            return request
        self.user = request.user
        if self.must_encrypt and not self.tls:
            raise LoginRefused("connection requires TLS", hint="Connect with sslmode=require.")
        self.writer.write(request.negotiation)
        await self.prove(request.user, deadline)
        # Only now: what databases there are is nobody's business who has not proven who it is.
        if request.database not in (None, request.user, self.door.database):
            raise UnknownDatabase(request.database or "", hint=f'Connect to database "{self.door.database}".')
        return Client(
            self.reader,
            self.writer,
            request.user,
            self.door.database,
            request.parameters,
            self.address,
            self.tls,
            request.protocol,
        )

    @property
    def must_encrypt(self) -> bool:
        return self.door.tls_rule == "required" or (self.door.tls_rule == "remote" and not is_local(self.address))

    # --- the channel ---

    async def opening(self) -> Startup | CancelCall:
        """What the client wants, after it has asked for encryption, each kind at most once."""
        asked: set[Encryption] = set()
        while True:
            header = await self.reader.readexactly(4)
            request = startup.parse_packet(await self.reader.readexactly(startup.body_length(header)))
            if not isinstance(request, Encryption):
                return request
            if request in asked or self.tls:
                raise ProtocolViolation(f"{request.value} encryption was asked for at the wrong time")
            asked.add(request)
            if request is Encryption.TLS and self.door.tls is not None:
                await self.encrypt(self.door.tls)
            else:
                self.writer.write(b"N")

    async def encrypt(self, tls: Tls) -> None:
        """Start TLS. Bytes that came before it would be taken for bytes that came through it: there must be none."""
        transport = cast(asyncio.Transport, self.writer.transport)
        transport.pause_reading()
        if await _something_waits(self.reader):
            transport.resume_reading()
            raise ProtocolViolation("received unencrypted data after a request for TLS")
        self.writer.write(b"S")
        await self.writer.start_tls(tls.context)
        self.tls = True

    # --- the password ---

    async def prove(self, user: str, deadline: asyncio.Timeout) -> None:
        verifier, known = self.door.verifiers.of(user)
        end_point = self.door.tls.end_point if self.tls and self.door.tls is not None else None
        exchange = ScramServer(verifier, known=known, end_point=end_point)
        self.writer.write(startup.offer(exchange.mechanisms))
        mechanism, first = startup.parse_choice(await self.sasl_message())
        self.writer.write(startup.challenge(exchange.challenge(mechanism, first)))
        final = await self.sasl_message()
        throttle = self.door.throttle
        async with throttle.turn(user, self.address):
            verdict = exchange.verdict(final)
            if verdict is None:
                deadline.reschedule(None)
                await asyncio.sleep(await throttle.delay(user, self.address))
                raise WrongPassword(user)
        self.writer.write(startup.proven(verdict))

    async def sasl_message(self) -> bytes:
        return await self.reader.readexactly(startup.sasl_length(await self.reader.readexactly(5)))

    # --- the end ---

    async def dismiss(self, refusal: Error | None) -> None:
        """Say why, and close."""
        if refusal is not None:
            note("login_refused", user=self.user, address=self.address, tls=self.tls, sqlstate=refusal.sqlstate)
        try:
            with suppress(OSError):
                async with asyncio.timeout(_FAREWELL):
                    await self.say(refusal)
        finally:
            self.writer.transport.abort()

    async def say(self, refusal: Error | None) -> None:
        if self.writer.is_closing():
            return
        if refusal is not None:
            self.writer.write(startup.fatal(refusal))
            if self.writer.can_write_eof():
                self.writer.write_eof()
                # Closing over unread bytes would tear up the answer on its way.
                while await self.reader.read(startup.LONGEST_STARTUP):
                    pass
        self.writer.close()
        await self.writer.wait_closed()


def address_of(writer: asyncio.StreamWriter) -> str:
    """Where a client is, as far as one can tell."""
    if writer.get_extra_info("socket").family == socket.AF_UNIX:
        return _LOCAL
    # Who has hung up already has no address any more, and is not taken for a local client.
    peer = writer.get_extra_info("peername")
    return str(peer[0]) if peer else "unknown"


def is_local(address: str) -> bool:
    """Whether what is sent to this address stays on this machine."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address == _LOCAL
    return ((isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped) or parsed).is_loopback


async def _something_waits(reader: asyncio.StreamReader) -> bool:
    """Whether bytes, or the end, have arrived and were not read yet. The transport must be paused."""
    probe = asyncio.ensure_future(reader.read(1))
    await asyncio.sleep(0)
    if probe.done():
        return True
    probe.cancel()
    await asyncio.wait([probe])
    return False
