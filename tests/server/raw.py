"""A client that says exactly the bytes it is told to, and reads what comes back."""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

from dpsql.server.protocol.scram import ScramClient
from tests.server.hall import PASSWORD, Hall


def packet(code: int, rest: bytes = b"") -> bytes:
    return struct.pack("!II", len(rest) + 8, code) + rest


def message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!I", len(body) + 4) + body


def startup(minor: int = 0, **parameters: str) -> bytes:
    pairs = "".join(f"{name}\0{value}\0" for name, value in parameters.items())
    return packet((3 << 16) + minor, pairs.encode() + b"\0")


def cancel(pid: int, secret: bytes) -> bytes:
    return packet(80877102, struct.pack("!I", pid) + secret)


def choice(mechanism: str, first: bytes) -> bytes:
    return message(b"p", mechanism.encode() + b"\0" + struct.pack("!I", len(first)) + first)


SSL_REQUEST, GSS_REQUEST = packet(80877103), packet(80877104)


class RawClient:
    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.scram = ScramClient(PASSWORD)

    def send(self, data: bytes) -> None:
        self.connection.sendall(data)

    def receive(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self.connection.recv(size - len(data))
            assert part, f"the server closed after {data!r}"
            data += part
        return data

    def rest(self) -> bytes:
        """All that comes until the server closes."""
        data = b""
        while part := self.connection.recv(10_000):
            data += part
        return data

    def message(self) -> tuple[bytes, bytes]:
        kind, length = struct.unpack("!cI", self.receive(5))
        return kind, self.receive(length - 4)

    def error(self) -> dict[str, str]:
        """The fields of a FATAL error, after which the server must have closed."""
        kind, body = self.message()
        assert kind == b"E", (kind, body)
        fields = {field[:1].decode(): field[1:].decode() for field in body.split(b"\0") if field}
        assert fields["S"] == fields["V"] == "FATAL"
        assert self.rest() == b""
        return fields

    def encrypt(self) -> None:
        self.send(SSL_REQUEST)
        assert self.receive(1) == b"S"
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        self.connection = cast(socket.socket, context.wrap_socket(self.connection))

    def answer_offer(self) -> tuple[bytes, bytes]:
        """Choose SCRAM-SHA-256 and return the challenge."""
        self.send(choice("SCRAM-SHA-256", self.scram.first()))
        kind, body = self.message()
        assert body.startswith(b"\0\0\0\x0b")
        return kind, body[4:]

    def log_in(self, packet: bytes, *, behind: bytes = b"") -> None:
        self.send(packet)
        self.finish_login(behind)

    def finish_login(self, behind: bytes = b"") -> None:
        assert self.message()[1].startswith(b"\0\0\0\x0a")
        _, challenge = self.answer_offer()
        self.send(message(b"p", self.scram.proof(challenge)) + behind)
        _, verdict = self.message()
        assert verdict.startswith(b"\0\0\0\x0c")
        self.scram.check(verdict[4:])


@contextmanager
def connected(hall: Hall) -> Iterator[RawClient]:
    client = RawClient(socket.create_connection(("127.0.0.1", hall.port)))
    client.connection.settimeout(30)  # a server that hangs fails the test instead of stopping it
    try:
        yield client
    finally:
        client.connection.close()
