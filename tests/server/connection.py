"""The PostgreSQL protocol with bare hands: a blocking connection that sends and reads single messages.

Written apart from the product's own encoder and SCRAM, so that a mistake there is not repeated here.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import TracebackType
from urllib.parse import quote, unquote, urlsplit

PATIENCE = 30.0  # seconds until an answer that does not come is taken for lost
_VERSION_3_0 = 0x00030000
_CANCEL = 80877102


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens, and who asks. A host that begins with a slash is the folder of a Unix socket."""

    host: str
    port: int
    user: str
    database: str
    password: str | None = None

    @classmethod
    def of(cls, url: str) -> Address:
        parts = urlsplit(url)
        assert parts.hostname and parts.port and parts.username and parts.password
        return cls(
            parts.hostname, parts.port, unquote(parts.username), parts.path.removeprefix("/"), unquote(parts.password)
        )

    def url(self, scheme: str = "postgresql") -> str:
        """As most clients take it; only for a server that is reached by TCP and wants a password."""
        assert self.password is not None
        return f"{scheme}://{self.user}:{quote(self.password)}@{self.host}:{self.port}/{self.database}"

    def connect(self) -> socket.socket:
        if self.host.startswith("/"):
            made = socket.socket(socket.AF_UNIX)
            made.connect(f"{self.host}/.s.PGSQL.{self.port}")
        else:
            made = socket.create_connection((self.host, self.port))
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return made


@dataclass(frozen=True, slots=True)
class Message:
    """One message of the server: its letter and what follows the length."""

    kind: str
    body: bytes = b""


def message(kind: str, body: bytes = b"") -> bytes:
    return kind.encode() + struct.pack("!i", len(body) + 4) + body


def settings(messages: list[Message]) -> dict[str, str]:
    """What the server has reported of its settings, the last word on each."""
    pairs = (message.body.decode().split("\0") for message in messages if message.kind == "S")
    return {name: value for name, value, _ in pairs}


def text(value: str | bytes) -> bytes:
    return (value.encode() if isinstance(value, str) else value) + b"\0"


@dataclass
class Connection:
    """A session, ready for its first message; what came before is in `greeting`."""

    address: Address
    parameters: dict[str, str] = field(default_factory=dict)
    greeting: list[Message] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._socket = self.address.connect()
        self._received = bytearray()
        sent = {"user": self.address.user, "database": self.address.database, **self.parameters}
        body = b"".join(text(part) for pair in sent.items() for part in pair) + b"\0"
        self._socket.sendall(struct.pack("!ii", len(body) + 8, _VERSION_3_0) + body)
        self._authenticate()
        while not self.greeting or self.greeting[-1].kind not in ("Z", "E"):
            self.greeting.append(self.read())
        assert self.greeting[-1].kind == "Z", f"the server refused: {self.greeting[-1].body!r}"
        self.settings = settings(self.greeting)

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def read(self, patience: float = PATIENCE) -> Message:
        """The next message; raises TimeoutError if none comes, EOFError if none can come."""
        head = self._bytes(5, patience)
        kind, length = chr(head[0]), struct.unpack("!i", head[1:])[0]
        return Message(kind, self._bytes(length - 4, patience))

    def waits(self, seconds: float) -> bool:
        """True if nothing comes for so long."""
        return not self._received and not self._receive(seconds)

    def cancel(self) -> None:
        """Ask to cancel what runs; returns when the server has passed it on."""
        key = next(message.body for message in self.greeting if message.kind == "K")
        with self.address.connect() as other:
            other.settimeout(PATIENCE)
            other.sendall(struct.pack("!ii", len(key) + 8, _CANCEL) + key)
            other.recv(1)

    def cancel_until_refused(self) -> None:
        """A request that comes before the statement runs is lost, as it is with PostgreSQL: ask again."""
        deadline = time.monotonic() + PATIENCE
        while "E" not in self._kinds():
            if self._receive(0.25):
                continue
            if time.monotonic() > deadline:
                raise TimeoutError("cancelled, but nothing happened")
            self.cancel()

    def close(self) -> None:
        self._socket.close()

    def _kinds(self) -> Iterator[str]:
        """Types of the messages that have arrived and are not read yet."""
        position = 0
        while position + 5 <= len(self._received):
            yield chr(self._received[position])
            position += 1 + struct.unpack_from("!i", self._received, position + 1)[0]

    def _receive(self, seconds: float) -> bool:
        """False if nothing came for so long."""
        self._socket.settimeout(seconds)
        try:
            data = self._socket.recv(65_536)
        except TimeoutError:
            return False
        if not data:
            raise EOFError("the server closed the connection")
        self._received += data
        return True

    def _bytes(self, count: int, patience: float) -> bytes:
        deadline = time.monotonic() + patience
        while len(self._received) < count:
            if not self._receive(max(deadline - time.monotonic(), 0.001)):
                raise TimeoutError("the server does not answer")
        taken = bytes(self._received[:count])
        del self._received[:count]
        return taken

    def _authenticate(self) -> None:
        """SCRAM-SHA-256 (RFC 5802, 7677) if the server wants it; any other message ends the exchange."""
        first = b"n=,r=" + base64.b64encode(secrets.token_bytes(18))
        proven = b""
        while True:
            found = self.read()
            self.greeting.append(found)
            if found.kind != "R":
                return
            step, data = struct.unpack("!i", found.body[:4])[0], found.body[4:]
            if step == 0:
                return
            if step == 10:
                assert b"SCRAM-SHA-256" in data.split(b"\0")
                initial = b"n,," + first
                self.send(message("p", text("SCRAM-SHA-256") + struct.pack("!i", len(initial)) + initial))
            elif step == 11:
                assert self.address.password is not None
                answer, proven = _scram(self.address.password, first, data)
                self.send(message("p", answer))
            elif step == 12:
                assert data == proven, "the server does not know the password either"
            else:
                raise ValueError(f"authentication {step} is not known here")


def _scram(password: str, first: bytes, challenge: bytes) -> tuple[bytes, bytes]:
    """The client's final message, and the server's that must answer it."""
    fields = dict(part.split(b"=", 1) for part in challenge.split(b","))
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), base64.b64decode(fields[b"s"]), int(fields[b"i"]))
    key = hmac.digest(salted, b"Client Key", "sha256")
    final = b"c=biws,r=" + fields[b"r"]
    signed = b",".join((first, challenge, final))
    signature = hmac.digest(hashlib.sha256(key).digest(), signed, "sha256")
    proof = bytes(a ^ b for a, b in zip(key, signature, strict=True))
    server_key = hmac.digest(salted, b"Server Key", "sha256")
    verifier = hmac.digest(server_key, signed, "sha256")
    return final + b",p=" + base64.b64encode(proof), b"v=" + base64.b64encode(verifier)
