"""SCRAM-SHA-256 and SCRAM-SHA-256-PLUS (RFC 5802, RFC 7677): both sides prove that they know the password.

The password itself is never sent, and what the server keeps is not enough to log in with.
Nothing here reads or writes a socket. Refusals and their codes are PostgreSQL's.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets

from dpsql.errors import LoginRefused, NotSupported, OperationalError, ProtocolViolation
from dpsql.policy.passwords import ITERATIONS_ALLOWED, KEY_BYTES, Verifier, derive_keys

PLAIN = "SCRAM-SHA-256"
PLUS = "SCRAM-SHA-256-PLUS"  # channel binding to the certificate: excludes a man in the middle

_BINDING = "tls-server-end-point"
_NONCE = r"[!-+\--~]+"  # printable, without the comma
_EXTENSIONS = r"(?:,[A-Za-z]=[^,]+)*"
_BASE64 = r"[A-Za-z0-9+/=]+"
_CLIENT_FIRST = re.compile(
    rf"(?P<header>(?P<flag>n|y|p=(?P<binding>[A-Za-z0-9.-]+)),(?P<identity>a=[^,]*)?,)"
    rf"(?P<bare>(?P<required>m=[^,]*,)?n=[^,]*,r=(?P<nonce>{_NONCE}){_EXTENSIONS})"
)
_CLIENT_FINAL = re.compile(
    rf"(?P<bare>c=(?P<binding>{_BASE64}),r=(?P<nonce>{_NONCE}){_EXTENSIONS}),p=(?P<proof>{_BASE64})"
)
_SERVER_FIRST = re.compile(rf"r=(?P<nonce>{_NONCE}),s=(?P<salt>{_BASE64}),i=(?P<iterations>[0-9]{{1,8}}){_EXTENSIONS}")
_SERVER_FINAL = re.compile(rf"v=(?P<signature>{_BASE64}){_EXTENSIONS}")


def fresh_nonce() -> str:
    return base64.b64encode(secrets.token_bytes(18)).decode()


class ScramServer:
    """The server's side of one login. `end_point` is the hash of the certificate; None: no channel binding.

    An unknown user takes the same steps with a made-up verifier, and fails at the last.
    """

    def __init__(self, verifier: Verifier, *, known: bool, end_point: bytes | None, nonce: str | None = None) -> None:
        self.mechanisms = (PLAIN,) if end_point is None else (PLUS, PLAIN)
        self._verifier = verifier
        self._known = known
        self._end_point = end_point
        self._nonce = nonce or fresh_nonce()
        self._binding = b""  # what the client must repeat under its proof
        self._said = ""  # by both sides, so far

    def challenge(self, mechanism: str, message: bytes) -> bytes:
        """The answer to the client's first message."""
        if mechanism not in self.mechanisms:
            raise ProtocolViolation(
                "client selected an invalid SASL authentication mechanism",
                hint=f"This server offers {' and '.join(self.mechanisms)}.",
            )
        first = _matched(_CLIENT_FIRST, message)
        self._binding = first["header"].encode() + self._bound(mechanism, first)
        if first["identity"]:
            raise NotSupported("client uses authorization identity, but it is not supported")
        if first["required"]:
            raise NotSupported("client requires an unsupported SCRAM extension")
        # The user name in this message is ignored, as in PostgreSQL: the startup message names the user.
        self._nonce = first["nonce"] + self._nonce
        salt = base64.b64encode(self._verifier.salt).decode()
        answer = f"r={self._nonce},s={salt},i={self._verifier.iterations}"
        self._said = f"{first['bare']},{answer}"
        return answer.encode()

    def _bound(self, mechanism: str, first: re.Match[str]) -> bytes:
        """The channel binding data, if the client's GS2 header agrees with its choice of mechanism."""
        if (mechanism == PLUS) != (first["binding"] is not None):
            raise ProtocolViolation("the SCRAM message does not fit the selected mechanism")
        if first["flag"] == "y" and self._end_point is not None:
            # The client supports binding and believes that we do not: our offer was altered (RFC 5802, section 6).
            raise LoginRefused(
                "SCRAM channel binding negotiation error",
                hint="This server supports channel binding, but the client received an offer without it.",
            )
        if first["binding"] is None or self._end_point is None:
            return b""
        if first["binding"] != _BINDING:
            raise ProtocolViolation("unsupported SCRAM channel-binding type", hint=f"Use {_BINDING}.")
        return self._end_point

    def verdict(self, message: bytes) -> bytes | None:
        """The server's final message, which proves the server to the client; None: the password is wrong."""
        final = _matched(_CLIENT_FINAL, message)
        if not hmac.compare_digest(_decoded(final["binding"]), self._binding):
            raise LoginRefused(
                "SCRAM channel binding check failed", hint="Client and server do not see the same certificate."
            )
        if not hmac.compare_digest(final["nonce"].encode(), self._nonce.encode()):
            raise ProtocolViolation("invalid SCRAM response: the nonce does not match")
        proof = _decoded(final["proof"])
        if len(proof) != KEY_BYTES:
            raise _malformed()
        said = f"{self._said},{final['bare']}".encode()
        client_key = _xor(proof, hmac.digest(self._verifier.stored_key, said, "sha256"))
        proven = hmac.compare_digest(hashlib.sha256(client_key).digest(), self._verifier.stored_key)
        signature = hmac.digest(self._verifier.server_key, said, "sha256")
        return b"v=" + base64.b64encode(signature) if proven & self._known else None


class ScramClient:
    """The client's side of one login."""

    def __init__(self, password: str, *, end_point: bytes | None = None, nonce: str | None = None) -> None:
        self.mechanism = PLAIN if end_point is None else PLUS
        self._password = password
        self._header = "n,," if end_point is None else f"p={_BINDING},,"
        self._binding = base64.b64encode(self._header.encode() + (end_point or b"")).decode()
        self._nonce = nonce or fresh_nonce()
        self._server_signature = b""

    def first(self, user: str = "") -> bytes:
        self._bare = f"n={user},r={self._nonce}"
        return f"{self._header}{self._bare}".encode()

    def proof(self, challenge: bytes) -> bytes:
        """The reply to the server's challenge. Slow on purpose: never call it in an event loop."""
        first = _matched(_SERVER_FIRST, challenge)
        iterations = int(first["iterations"])
        if not first["nonce"].startswith(self._nonce) or first["nonce"] == self._nonce:
            raise ProtocolViolation("invalid SCRAM challenge: the nonce does not match")
        if iterations not in ITERATIONS_ALLOWED:
            raise ProtocolViolation("invalid SCRAM challenge: the iteration count is out of range")
        client_key, server_key = derive_keys(self._password, _decoded(first["salt"]), iterations)
        unproved = f"c={self._binding},r={first['nonce']}"
        said = f"{self._bare},{challenge.decode()},{unproved}".encode()
        self._server_signature = hmac.digest(server_key, said, "sha256")
        stored_key = hashlib.sha256(client_key).digest()
        proof = _xor(client_key, hmac.digest(stored_key, said, "sha256"))
        return f"{unproved},p={base64.b64encode(proof).decode()}".encode()

    def check(self, verdict: bytes) -> None:
        """Make sure that the server knows the password too."""
        signature = _decoded(_matched(_SERVER_FINAL, verdict)["signature"])
        if not self._server_signature or not hmac.compare_digest(signature, self._server_signature):
            raise OperationalError("the server could not prove that it knows the password")


def _matched(pattern: re.Pattern[str], message: bytes) -> re.Match[str]:
    try:
        found = pattern.fullmatch(message.decode())
    except UnicodeDecodeError:
        found = None
    if found is None or b"\0" in message:
        raise _malformed()
    return found


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise _malformed() from None


def _malformed() -> ProtocolViolation:
    return ProtocolViolation("malformed SCRAM message")


def _xor(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))
