"""Passwords as PostgreSQL stores them: verifiers, which check a password but do not reveal it.

SCRAM-SHA-256 of RFC 5802 and RFC 7677, written `SCRAM-SHA-256$iterations:salt$StoredKey:ServerKey`.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
import stringprep
import unicodedata
from dataclasses import dataclass, field

from dpsql.errors import BadSetting

ITERATIONS = 32_768  # eight times PostgreSQL's default: guessing from a stolen file is eight times slower
SALT_BYTES = 16
MAX_LENGTH = 1_000  # characters of a password

KEY_BYTES = hashlib.sha256().digest_size
# RFC 7677 forbids fewer iterations; more would keep a client busy for seconds.
ITERATIONS_ALLOWED = range(4_096, 10_000_001)
_VERIFIER = re.compile(r"SCRAM-SHA-256\$([0-9]{1,8}):([A-Za-z0-9+/=]+)\$([A-Za-z0-9+/=]+):([A-Za-z0-9+/=]+)")

# Characters that RFC 4013 forbids in a password after mapping and normalisation.
_FORBIDDEN = (
    stringprep.in_table_a1,
    stringprep.in_table_c12,
    stringprep.in_table_c21_c22,
    stringprep.in_table_c3,
    stringprep.in_table_c4,
    stringprep.in_table_c5,
    stringprep.in_table_c6,
    stringprep.in_table_c7,
    stringprep.in_table_c8,
    stringprep.in_table_c9,
)


@dataclass(frozen=True, slots=True)
class Verifier:
    """What a server stores for a password. Hidden from repr: it allows guessing likely passwords."""

    iterations: int
    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)

    @classmethod
    def of(cls, password: str) -> Verifier:
        """The verifier of a new password, under a fresh salt."""
        return cls.derived(password, secrets.token_bytes(SALT_BYTES), ITERATIONS)

    @classmethod
    def derived(cls, password: str, salt: bytes, iterations: int) -> Verifier:
        client_key, server_key = derive_keys(password, salt, iterations)
        return cls(iterations, salt, hashlib.sha256(client_key).digest(), server_key)

    @classmethod
    def parse(cls, text: str) -> Verifier | None:
        """The verifier written in a text; None if it is not one."""
        found = _VERIFIER.fullmatch(text)
        if found is None or int(found[1]) not in ITERATIONS_ALLOWED:
            return None
        try:
            salt, stored_key, server_key = (base64.b64decode(part, validate=True) for part in found.groups()[1:])
        except binascii.Error:
            return None
        if not salt or len(stored_key) != KEY_BYTES or len(server_key) != KEY_BYTES:
            return None
        return cls(int(found[1]), salt, stored_key, server_key)

    def fits(self, password: str) -> bool:
        """Whether it is the verifier of this password. Slow on purpose."""
        return hmac.compare_digest(self.derived(password, self.salt, self.iterations).stored_key, self.stored_key)

    def __str__(self) -> str:
        """As PostgreSQL writes it."""
        salt, stored, server = (
            base64.b64encode(part).decode() for part in (self.salt, self.stored_key, self.server_key)
        )
        return f"SCRAM-SHA-256${self.iterations}:{salt}${stored}:{server}"


def derive_keys(password: str, salt: bytes, iterations: int) -> tuple[bytes, bytes]:
    """The client's key, which proves the password, and the server's. Slow on purpose."""
    salted = hashlib.pbkdf2_hmac("sha256", prepare(password).encode(), salt, iterations)
    return hmac.digest(salted, b"Client Key", "sha256"), hmac.digest(salted, b"Server Key", "sha256")


def prepare(password: str) -> str:
    """The form in which all clients send a password (SASLprep, RFC 4013), whatever the keyboard produced.

    A password without such a form is refused: PostgreSQL accepts it unchanged, but not all of its clients do.
    """
    if len(password) > MAX_LENGTH:
        raise BadSetting(f"the password is longer than {MAX_LENGTH:,} characters", hint="Choose a shorter one.")
    text = unicodedata.ucd_3_2_0.normalize("NFKC", "".join(map(_mapped, password)))
    if not text:
        raise BadSetting("the password is empty", hint="Choose a longer one.")
    if any(forbids(c) for c in text for forbids in _FORBIDDEN) or not _has_one_direction(text):
        raise BadSetting(
            "the password contains a character that not every client can send",
            hint="Choose letters, digits, spaces and punctuation.",
        )
    return text


def _mapped(character: str) -> str:
    if stringprep.in_table_c12(character):
        return " "
    return "" if stringprep.in_table_b1(character) else character


def _has_one_direction(text: str) -> bool:
    """RFC 3454, section 6: right-to-left letters are not mixed with others, and stand at both ends."""
    if not any(map(stringprep.in_table_d1, text)):
        return True
    ends = stringprep.in_table_d1(text[0]) and stringprep.in_table_d1(text[-1])
    return ends and not any(map(stringprep.in_table_d2, text))
