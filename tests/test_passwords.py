"""What is kept of a password is what PostgreSQL would keep, and says nothing of the password."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest

from dpsql.errors import BadSetting
from dpsql.policy.passwords import ITERATIONS, Verifier, prepare

SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
# The exchange of RFC 7677, section 3.
AUTH_MESSAGE = (
    "n=user,r=rOprNGfwEbeRWgbNEkqO,"
    "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096,"
    "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
)
PROOF = "dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
SIGNATURE = "6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def test_the_verifier_serves_the_exchange_of_the_standard() -> None:
    verifier = Verifier.derived("pencil", SALT, 4096)
    message = AUTH_MESSAGE.encode()
    # What a server does: the client's key is recovered from the proof, and must hash to the stored key.
    signature = hmac.digest(verifier.stored_key, message, "sha256")
    client_key = bytes(a ^ b for a, b in zip(base64.b64decode(PROOF), signature, strict=True))
    assert hashlib.sha256(client_key).digest() == verifier.stored_key
    assert base64.b64encode(hmac.digest(verifier.server_key, message, "sha256")).decode() == SIGNATURE
    other = Verifier.derived("pencils", SALT, 4096)
    assert other.stored_key != verifier.stored_key and other.server_key != verifier.server_key


def test_the_text_is_postgresqls_and_comes_back() -> None:
    verifier = Verifier.derived("pencil", SALT, 4096)
    assert str(verifier) == (
        "SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ=="
        "$WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU="
    )
    assert Verifier.parse(str(verifier)) == verifier


def test_each_password_gets_a_salt_of_its_own_and_nothing_shows_it() -> None:
    first, second = Verifier.of("pencil"), Verifier.of("pencil")
    assert first.salt != second.salt and first.iterations == ITERATIONS >= 4096
    assert "pencil" not in str(first)
    assert repr(first) == f"Verifier(iterations={ITERATIONS})"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "pencil",
        "md5f8a1d0c2e9b34f0b7f8f4b8f2b1c0d9e",
        "SCRAM-SHA-256$4096:W22Z$AAAA:AAAA",  # keys of another length
        f"SCRAM-SHA-256$4095:W22Z${'A' * 43}=:{'A' * 43}=",  # too few iterations
        f"SCRAM-SHA-256$99999999:W22Z${'A' * 43}=:{'A' * 43}=",  # too many
        f"SCRAM-SHA-256$4096:W22${'A' * 43}=:{'A' * 43}=",  # not base64
        f"SCRAM-SHA-256$4096:====${'A' * 43}=:{'A' * 43}=",
        f"SCRAM-SHA-256$4096:W22Z${'A' * 43}=:{'A' * 43}=\n",
    ],
)
def test_what_is_no_verifier_is_not_taken_for_one(text: str) -> None:
    assert Verifier.parse(text) is None


@pytest.mark.parametrize(
    ("typed", "prepared"),
    [
        ("pass word", "pass word"),
        ("I\u00adX", "IX"),  # the examples of RFC 4013, section 3
        ("user", "user"),
        ("USER", "USER"),
        ("\u00aa", "a"),
        ("\u2168", "IX"),
        ("a\u00a0b", "a b"),  # another space
        ("a\u200bb", "a b"),  # as PostgreSQL reads the tables, in which it stands twice
        ("ü", "ü"),
        ("u\u0308", "ü"),
        ("\u0627\u0031\u0628", "\u0627\u0031\u0628"),
    ],
)
def test_passwords_are_prepared_as_all_clients_do(typed: str, prepared: str) -> None:
    assert prepare(typed) == prepared


@pytest.mark.parametrize(
    "typed", ["\u0007", "a\x00b", "a\tb", "\u06271", "\ufffd", "\U0001f512", chr(0xDC80), "\ue000"]
)
def test_a_password_that_not_every_client_can_send_is_refused(typed: str) -> None:
    with pytest.raises(BadSetting, match="not every client") as refusal:
        Verifier.of(typed)
    assert typed not in str(refusal.value)


def test_no_password_is_no_password() -> None:
    for typed in ("", "\u00ad"):
        with pytest.raises(BadSetting, match="empty"):
            Verifier.of(typed)
    with pytest.raises(BadSetting, match="longer"):
        Verifier.of("x" * 1001)
