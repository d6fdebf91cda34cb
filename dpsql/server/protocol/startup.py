"""The startup packets of a connection, and the replies to them.

Nothing here reads or writes a socket.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import Enum

from dpsql.errors import Error, LoginRefused, NotSupported, ProtocolViolation

LONGEST_STARTUP = 10_000  # bytes, as in PostgreSQL: unauthenticated clients must not fill the memory
LONGEST_SASL = 1_024

NEWEST = (3, 2)
_OPTION = "_pq_."  # the prefix of protocol extensions; we support none

_CANCEL, _SSL, _GSS = 5678, 5679, 5680  # minor numbers of version 1234, which marks a request
_LONGEST_SECRET = 256


class Encryption(Enum):
    """SSLRequest or GSSENCRequest: the client asks to encrypt the connection."""

    TLS = "TLS"
    GSS = "GSSAPI"


@dataclass(frozen=True, slots=True)
class CancelCall:
    """CancelRequest: sent on a connection of its own, to cancel the query of another."""

    pid: int
    secret: bytes


@dataclass(frozen=True, slots=True)
class Startup:
    """StartupMessage: user, database and settings."""

    protocol: tuple[int, int]  # the protocol version that both sides speak
    user: str
    database: str | None
    parameters: dict[str, str]  # settings and `options`, as sent
    negotiation: bytes  # NegotiateProtocolVersion, to be sent first; empty if the client asked for nothing unknown


def body_length(header: bytes) -> int:
    """The length of a startup packet's body, from its four length bytes."""
    (length,) = struct.unpack("!I", header)
    if not 8 <= length <= LONGEST_STARTUP:
        raise ProtocolViolation(
            "invalid length of startup packet", hint="This server speaks only the PostgreSQL protocol."
        )
    return int(length) - 4


def parse_packet(body: bytes) -> Encryption | CancelCall | Startup:
    major, minor = struct.unpack_from("!HH", body)
    rest = body[4:]
    match major, minor:
        case 1234, n if n == _CANCEL:
            if not 8 <= len(rest) <= 4 + _LONGEST_SECRET:
                raise ProtocolViolation("invalid length of cancel request")
            (pid,) = struct.unpack_from("!i", rest)
            return CancelCall(pid, rest[4:])
        case 1234, n if n in (_SSL, _GSS) and not rest:
            return Encryption.TLS if n == _SSL else Encryption.GSS
        case 1234, _:
            raise ProtocolViolation("invalid startup packet layout: unknown request")
        case 3, _:
            return _startup(minor, rest)
        case _:
            raise NotSupported(
                f"unsupported frontend protocol {major}.{minor}: server supports 3.0 to {NEWEST[0]}.{NEWEST[1]}"
            )


def _startup(minor: int, rest: bytes) -> Startup:
    given = _pairs(rest)
    options = [name for name in given if name.startswith(_OPTION)]
    protocol = min((3, minor), NEWEST)
    negotiation = _negotiate(protocol, options) if options or (3, minor) > NEWEST else b""
    parameters = {name: value for name, value in given.items() if not name.startswith(_OPTION)}
    if "replication" in parameters:
        raise NotSupported("replication is not supported", hint="Connect without the parameter replication.")
    user = parameters.pop("user", "")
    if not user:
        raise LoginRefused("no user name specified in startup packet", hint="Add user=NAME to the connection string.")
    return Startup(protocol, user, parameters.pop("database", None) or None, parameters, negotiation)


def _pairs(data: bytes) -> dict[str, str]:
    """Names and values, each ended by a zero byte, with one more at the end."""
    if data == b"\0":
        return {}
    if not data.endswith(b"\0\0"):
        raise ProtocolViolation("invalid startup packet layout: expected terminator as last byte")
    try:
        words = data[:-2].decode().split("\0")
    except UnicodeDecodeError:
        raise ProtocolViolation(
            "the startup packet is not valid UTF-8", hint="Write user, database and settings in UTF-8."
        ) from None
    names, values = words[::2], words[1::2]
    if len(names) != len(values) or not all(names):
        raise ProtocolViolation("invalid startup packet layout: names and values do not pair")
    return dict(zip(names, values, strict=True))


# --- answers ---


def _message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!I", len(body) + 4) + body


def _negotiate(protocol: tuple[int, int], options: list[str]) -> bytes:
    """NegotiateProtocolVersion: the newest version we speak, and the extensions we do not support."""
    names = b"".join(name.encode() + b"\0" for name in options)
    return _message(b"v", struct.pack("!HHI", *protocol, len(options)) + names)


def offer(mechanisms: tuple[str, ...]) -> bytes:
    """AuthenticationSASL."""
    names = b"".join(name.encode() + b"\0" for name in mechanisms)
    return _message(b"R", struct.pack("!I", 10) + names + b"\0")


def challenge(data: bytes) -> bytes:
    """AuthenticationSASLContinue."""
    return _message(b"R", struct.pack("!I", 11) + data)


def proven(data: bytes) -> bytes:
    """AuthenticationSASLFinal. AuthenticationOk is not sent here: the twin sends it."""
    return _message(b"R", struct.pack("!I", 12) + data)


def fatal(error: Error) -> bytes:
    """ErrorResponse, after which the connection is closed."""
    fields = [("S", "FATAL"), ("V", "FATAL"), ("C", error.sqlstate), ("M", error.message)]
    if error.hint is not None:
        fields.append(("H", error.hint))
    body = b"".join(f"{name}{text}\0".encode() for name, text in fields)
    return _message(b"E", body + b"\0")


# --- what a client sends while it logs in ---


def sasl_length(header: bytes) -> int:
    """The length of a SASL message's body, from the five bytes before it."""
    kind, length = struct.unpack("!cI", header)
    if kind != b"p":
        raise ProtocolViolation("expected a SASL response", hint="This server takes SCRAM-SHA-256 passwords only.")
    if not 4 <= length <= LONGEST_SASL:
        raise ProtocolViolation("invalid length of a SASL response")
    return int(length) - 4


def parse_choice(body: bytes) -> tuple[str, bytes]:
    """SASLInitialResponse: the chosen mechanism and the first message."""
    name, separator, rest = body.partition(b"\0")
    if not separator or len(rest) < 4 or len(rest) - 4 != int.from_bytes(rest[:4], "big"):
        raise ProtocolViolation("invalid layout of a SASL response")
    return name.decode("ascii", errors="replace"), rest[4:]
