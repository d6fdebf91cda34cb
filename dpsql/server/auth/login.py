"""Authentication: from an accepted socket to an authenticated client. Every login needs a password."""

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

__all__ = ["CancelCall", "Client", "LoginRules", "address_of", "authenticate", "login_rules"]

_log = logging.getLogger("dpsql.server")

_FAREWELL = 1.0  # seconds for a refused client to read the error
_SECRET_BYTES = 32
_LOCAL = "local"


@dataclass(frozen=True, slots=True)
class LoginRules:
    """What a login is checked against."""

    database: str  # the only one there is
    verifiers: Verifiers
    tls: Tls | None  # None: not offered
    tls_rule: TlsRule
    login_timeout: float
    throttle: Throttle


@dataclass(frozen=True, slots=True)
class Client:
    """An authenticated client. AuthenticationOk has not been sent: the twin sends it."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    user: str
    database: str
    parameters: dict[str, str]  # settings and `options` of the startup message, as sent
    address: str  # "local" on a Unix socket
    tls: bool
    protocol: tuple[int, int]


def login_rules(policy: Policy, database: str, throttle: Throttle | None = None) -> LoginRules:
    """What a policy says about logins. A reload passes its old throttle, so that failures stay counted."""
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
            hint="Delete certificate.pem and key.pem there: new ones are then created. Clients that trust the old"
            " certificate need the new one.",
        ) from None
    except OSError as error:
        raise PolicyError(
            f'the folder "{state}" cannot be used: {error.strerror}',
            hint="Set state = FOLDER in [server] to a folder that can be written.",
        ) from None
    return LoginRules(
        database=database,
        verifiers=Verifiers(users, secret),
        tls=tls,
        tls_rule=policy.server.tls,
        login_timeout=policy.server.login_timeout,
        throttle=throttle or Throttle(),
    )


async def authenticate(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, rules: LoginRules
) -> Client | CancelCall | None:
    """Authenticate a client, or handle a cancel request. None: refused with an error or disconnected, and closed."""
    login = _Login(reader, writer, rules)
    try:
        async with asyncio.timeout(rules.login_timeout) as deadline:
            return await login.enter(deadline)
    except Error as refusal:
        await login.refuse(refusal)
    except asyncio.IncompleteReadError as error:
        # A client that sends nothing at all is a port scan or a health check: no reply.
        await login.refuse(ProtocolViolation("the connection ended within a message") if error.partial else None)
    except TimeoutError:
        await login.refuse(Cancelled(f"the login took longer than {rules.login_timeout:g} seconds"))
    except OSError:  # a broken connection or a failed handshake: no one is left to send an error to
        await login.refuse(None)
    except Exception:
        _log.exception("a login failed")
        await login.refuse(InternalError("the server failed", hint="The owner finds the cause in the log."))
    return None


class _Login:
    """One connection that has not logged in yet."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, rules: LoginRules) -> None:
        self.reader = reader
        self.writer = writer
        self.rules = rules
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
        # Checked after the password, so that only authenticated clients learn which databases exist.
        if request.database not in (None, request.user, self.rules.database):
            raise UnknownDatabase(request.database or "", hint=f'Connect to database "{self.rules.database}".')
        return Client(
            self.reader,
            self.writer,
            request.user,
            self.rules.database,
            request.parameters,
            self.address,
            self.tls,
            request.protocol,
        )

    @property
    def must_encrypt(self) -> bool:
        return self.rules.tls_rule == "required" or (self.rules.tls_rule == "remote" and not is_local(self.address))

    # --- TLS ---

    async def opening(self) -> Startup | CancelCall:
        """The startup packet, after any requests for encryption; each kind is accepted at most once."""
        asked: set[Encryption] = set()
        while True:
            header = await self.reader.readexactly(4)
            request = startup.parse_packet(await self.reader.readexactly(startup.body_length(header)))
            if not isinstance(request, Encryption):
                return request
            if request in asked or self.tls:
                raise ProtocolViolation(f"{request.value} encryption was requested at the wrong time")
            asked.add(request)
            if request is Encryption.TLS and self.rules.tls is not None:
                await self.encrypt(self.rules.tls)
            else:
                self.writer.write(b"N")

    async def encrypt(self, tls: Tls) -> None:
        """Start TLS. Bytes that arrived before the handshake would pass for encrypted ones, so there must be none."""
        transport = cast(asyncio.Transport, self.writer.transport)
        transport.pause_reading()
        if await _something_waits(self.reader):
            transport.resume_reading()
            raise ProtocolViolation("received unencrypted data after SSL request")
        self.writer.write(b"S")
        await self.writer.start_tls(tls.context)
        self.tls = True

    # --- the password ---

    async def prove(self, user: str, deadline: asyncio.Timeout) -> None:
        verifier, known = self.rules.verifiers.of(user)
        end_point = self.rules.tls.end_point if self.tls and self.rules.tls is not None else None
        exchange = ScramServer(verifier, known=known, end_point=end_point)
        self.writer.write(startup.offer(exchange.mechanisms))
        mechanism, first = startup.parse_choice(await self.sasl_message())
        self.writer.write(startup.challenge(exchange.challenge(mechanism, first)))
        final = await self.sasl_message()
        throttle = self.rules.throttle
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

    async def refuse(self, refusal: Error | None) -> None:
        """Send the error, and close."""
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
                # Closing a socket with unread bytes resets it, and the client would lose the error.
                while await self.reader.read(startup.LONGEST_STARTUP):
                    pass
        self.writer.close()
        await self.writer.wait_closed()


def address_of(writer: asyncio.StreamWriter) -> str:
    """The client's address, as far as it is known."""
    if writer.get_extra_info("socket").family == socket.AF_UNIX:
        return _LOCAL
    # A closed socket has no address, and must not count as local.
    peer = writer.get_extra_info("peername")
    return str(peer[0]) if peer else "unknown"


def is_local(address: str) -> bool:
    """Whether this address is on this machine."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address == _LOCAL
    return ((isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped) or parsed).is_loopback


async def _something_waits(reader: asyncio.StreamReader) -> bool:
    """Whether unread bytes, or end of file, have arrived. The transport must be paused."""
    probe = asyncio.ensure_future(reader.read(1))
    await asyncio.sleep(0)
    if probe.done():
        return True
    probe.cancel()
    await asyncio.wait([probe])
    return False
