"""SCRAM as the standard has it, and every deviation from it refused."""

from __future__ import annotations

import base64
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpsql.errors import Error, LoginRefused, NotSupported, OperationalError, ProtocolViolation
from dpsql.policy.passwords import Verifier
from dpsql.server.auth.throttle import Verifiers
from dpsql.server.protocol.scram import PLAIN, PLUS, ScramClient, ScramServer

# The exchange of RFC 7677, section 3.
VERIFIER = Verifier.derived("pencil", base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ=="), 4096)
CLIENT_NONCE, SERVER_NONCE = "rOprNGfwEbeRWgbNEkqO", "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
CLIENT_FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
CLIENT_FINAL = (
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
END_POINT = b"hash of the certificate"


def server(*, known: bool = True, end_point: bytes | None = None) -> ScramServer:
    return ScramServer(VERIFIER, known=known, end_point=end_point, nonce=SERVER_NONCE)


def challenged() -> ScramServer:
    exchange = server()
    exchange.challenge(PLAIN, CLIENT_FIRST)
    return exchange


def test_the_server_holds_the_exchange_of_the_standard() -> None:
    exchange = server()
    assert exchange.mechanisms == (PLAIN,)
    assert exchange.challenge(PLAIN, CLIENT_FIRST) == SERVER_FIRST
    assert exchange.verdict(CLIENT_FINAL) == SERVER_FINAL


def test_the_client_holds_the_exchange_of_the_standard() -> None:
    client = ScramClient("pencil", nonce=CLIENT_NONCE)
    assert client.first("user") == CLIENT_FIRST
    assert client.proof(SERVER_FIRST) == CLIENT_FINAL
    client.check(SERVER_FINAL)


@pytest.mark.parametrize("end_point", [None, END_POINT])
def test_only_the_right_password_gets_in(end_point: bytes | None) -> None:
    for password, right in [("pencil", True), ("Pencil", False)]:
        client, exchange = ScramClient(password, end_point=end_point), server(end_point=end_point)
        challenge = exchange.challenge(client.mechanism, client.first("somebody else"))
        verdict = exchange.verdict(client.proof(challenge))
        assert (verdict is not None) == right
        if verdict is not None:
            client.check(verdict)


def test_an_unknown_user_fails_with_any_password() -> None:
    exchange = server(known=False)
    assert exchange.challenge(PLAIN, CLIENT_FIRST) == SERVER_FIRST
    assert exchange.verdict(CLIENT_FINAL) is None


def test_a_proof_of_another_exchange_does_not_get_in() -> None:
    exchange = ScramServer(VERIFIER, known=True, end_point=None)
    exchange.challenge(PLAIN, CLIENT_FIRST)
    with pytest.raises(ProtocolViolation, match="nonce"):
        exchange.verdict(CLIENT_FINAL)


def test_two_exchanges_have_different_nonces() -> None:
    first, second = (ScramServer(VERIFIER, known=True, end_point=None).challenge(PLAIN, CLIENT_FIRST) for _ in "ab")
    assert first != second


@pytest.mark.parametrize(
    "extra", [b"n,,n=,r=abc", b"n,,n=*,r=abc,x=unknown", "n,,n=jürgen,r=abc".encode(), b"y,,n=user,r=abc"]
)
def test_what_the_standard_allows_is_taken(extra: bytes) -> None:
    assert server().challenge(PLAIN, extra).startswith(b"r=abc" + SERVER_NONCE.encode())


@pytest.mark.parametrize(
    ("mechanism", "message", "refusal", "text"),
    [
        ("SCRAM-SHA-1", CLIENT_FIRST, ProtocolViolation, "mechanism"),
        (PLUS, b"n,,n=user,r=abc", ProtocolViolation, "does not fit"),
        (PLUS, b"y,,n=user,r=abc", ProtocolViolation, "does not fit"),
        (PLAIN, b"p=tls-server-end-point,,n=user,r=abc", ProtocolViolation, "does not fit"),
        (PLUS, b"p=tls-unique,,n=user,r=abc", ProtocolViolation, "type"),
        (PLAIN, b"y,,n=user,r=abc", LoginRefused, "negotiation"),  # the offer was changed on the way
        (PLAIN, b"n,a=root,n=user,r=abc", NotSupported, "identity"),
        (PLAIN, b"n,,m=x,n=user,r=abc", NotSupported, "extension"),
        (PLAIN, b"n,,n=user,r=", ProtocolViolation, "malformed"),
        (PLAIN, b"n,,n=user,r=a b", ProtocolViolation, "malformed"),
        (PLAIN, b"n,,n=us\0er,r=abc", ProtocolViolation, "malformed"),
        (PLAIN, b"n,,n=\xff,r=abc", ProtocolViolation, "malformed"),
        (PLAIN, b"x,,n=user,r=abc", ProtocolViolation, "malformed"),
        (PLAIN, b"n,,n=user,r=abc\n", ProtocolViolation, "malformed"),
        (PLAIN, b"", ProtocolViolation, "malformed"),
    ],
)
def test_a_first_message_that_is_wrong_is_refused(
    mechanism: str, message: bytes, refusal: type[Error], text: str
) -> None:
    with pytest.raises(refusal, match=text):
        server(end_point=END_POINT).challenge(mechanism, message)


def test_without_a_certificate_there_is_nothing_to_bind_to() -> None:
    with pytest.raises(ProtocolViolation, match="mechanism"):
        server().challenge(PLUS, b"p=tls-server-end-point,,n=user,r=abc")


def test_a_login_bound_to_another_certificate_is_refused() -> None:
    client, exchange = ScramClient("pencil", end_point=b"that of a third"), server(end_point=END_POINT)
    challenge = exchange.challenge(PLUS, client.first())
    with pytest.raises(LoginRefused, match="channel binding check"):
        exchange.verdict(client.proof(challenge))


@pytest.mark.parametrize(
    ("old", "new", "refusal"),
    [
        (b"c=biws", b"c=eSws", LoginRefused),  # "y,," instead of the "n,," that was said first
        (b"c=biws", b"c=biw", ProtocolViolation),
        (b"k0,", b"k1,", ProtocolViolation),
        (b"p=dHzb", b"p=", ProtocolViolation),
        (b",p=", b",q=", ProtocolViolation),
        (b"c=", b"", ProtocolViolation),
    ],
)
def test_a_final_message_that_is_wrong_is_refused(old: bytes, new: bytes, refusal: type[Error]) -> None:
    with pytest.raises(refusal):
        challenged().verdict(CLIENT_FINAL.replace(old, new))


def test_an_extension_is_proven_too() -> None:
    assert challenged().verdict(CLIENT_FINAL.replace(b",p=", b",x=y,p=")) is None


@given(
    message=st.binary(max_size=80)
    | st.text(alphabet="nypcrsvi=,abA/+ ", max_size=60).map(str.encode)
    | st.builds(lambda n, b: CLIENT_FINAL[:n] + b + CLIENT_FINAL[n + 1 :], st.integers(0, 110), st.binary(max_size=2))
)
def test_no_bytes_break_the_exchange(message: bytes) -> None:
    for mechanism in (PLAIN, PLUS):
        answer = outcome(partial(server(end_point=END_POINT).challenge, mechanism, message))
        assert answer in ("08P01", "28000", "0A000") or (isinstance(answer, bytes) and answer.startswith(b"r="))
    verdict = outcome(partial(challenged().verdict, message))
    assert verdict in ("08P01", "28000", None) or (verdict == SERVER_FINAL and message == CLIENT_FINAL)


def outcome(step: Callable[[], bytes | None]) -> bytes | str | None:
    """What a step answers, or the code of its refusal."""
    try:
        return step()
    except Error as error:
        return error.sqlstate


@pytest.mark.parametrize(
    "challenge",
    [
        b"r=another,s=W22Z,i=4096",
        b"r=rOprNGfwEbeRWgbNEkqO,s=W22Z,i=4096",  # the server added nothing
        b"r=rOprNGfwEbeRWgbNEkqOx,s=W22Z,i=4095",
        b"r=rOprNGfwEbeRWgbNEkqOx,s=W22Z,i=99999999",
        b"r=rOprNGfwEbeRWgbNEkqOx,s=W22,i=4096",
        b"e=other-error",
    ],
)
def test_the_client_refuses_a_wrong_challenge(challenge: bytes) -> None:
    client = ScramClient("pencil", nonce=CLIENT_NONCE)
    client.first("user")
    with pytest.raises(ProtocolViolation):
        client.proof(challenge)


def test_the_client_refuses_a_server_that_does_not_know_the_password() -> None:
    client = ScramClient("pencil", nonce=CLIENT_NONCE)
    client.first("user")
    with pytest.raises(OperationalError, match="prove"):
        client.check(SERVER_FINAL)  # before any proof
    client.proof(SERVER_FIRST)
    with pytest.raises(OperationalError, match="prove"):
        client.check(SERVER_FINAL.replace(b"6r", b"7r"))


# --- names that nobody has ---


def imported(iterations: int, salt: bytes) -> Verifier:
    return Verifier(iterations, salt, b"k" * 32, b"k" * 32)


def test_an_unknown_name_looks_like_a_user() -> None:
    users = {"alice": imported(4096, b"a" * 16), "bob": imported(32_768, b"b" * 40)}
    verifiers = Verifiers(users, b"secret")
    assert verifiers.of("alice") == (users["alice"], True)
    unknown = [verifiers.of(f"guess{number}") for number in range(60)]
    assert not any(known for _, known in unknown)
    assert {(each.iterations, len(each.salt)) for each, _ in unknown} == {(4096, 16), (32_768, 40)}
    assert len({each.salt for each, _ in unknown}) == 60


def test_an_unknown_name_always_gets_the_same_salt() -> None:
    first, again, other = (Verifiers({}, secret).of("mallory")[0] for secret in (b"one", b"one", b"two"))
    assert first == again != other
    more = Verifiers({"alice": Verifier.of("x")}, b"one").of("mallory")[0]
    assert more == first  # another user of the usual shape changes nothing
