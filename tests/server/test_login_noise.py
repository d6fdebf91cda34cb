"""Whatever bytes come, and whenever: nobody gets in, nothing hangs or breaks, and the client is told in proper form."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpsql.server.auth.login import Client
from tests.server import raw
from tests.server.hall import Hall, make_door, own_tls, running
from tests.server.process import eventually
from tests.server.raw import RawClient


@pytest.fixture(scope="module")
def hall(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hall]:
    with running(make_door(own_tls(tmp_path_factory.mktemp("state"))[0])) as hall:
        yield hall


# --- how far the client comes before it sends nonsense ---


def nowhere(client: RawClient) -> None:
    pass


def declined(client: RawClient) -> None:
    client.send(raw.GSS_REQUEST)
    assert client.receive(1) == b"N"


def before_handshake(client: RawClient) -> None:
    client.send(raw.SSL_REQUEST)
    assert client.receive(1) == b"S"


def offered(client: RawClient) -> None:
    client.send(raw.startup(user="alice"))
    assert client.message()[0] == b"R"


def challenged(client: RawClient) -> None:
    offered(client)
    client.answer_offer()


Stage = Callable[[RawClient], None]

VALID = [
    raw.startup(user="alice", database="clinic"),
    raw.startup(2, user="alice", **{"_pq_.x": "y"}),
    raw.SSL_REQUEST,
    raw.GSS_REQUEST,
    raw.cancel(1, b"1234"),
    raw.choice("SCRAM-SHA-256", b"n,,n=,r=abc"),
    raw.choice("SCRAM-SHA-256-PLUS", b"p=tls-server-end-point,,n=,r=abc"),
    raw.message(b"p", b"c=biws,r=abc,p=" + b"A" * 43 + b"="),
    raw.message(b"Q", b"SELECT 1\0"),
    raw.message(b"X", b""),
    b"GET / HTTP/1.1\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # how TLS begins
    struct.pack("!II", 10_000, 196_608),
    b"\xff" * 20_000,
]


def damaged(data: bytes, place: int, replacement: bytes) -> bytes:
    place %= len(data)
    return data[:place] + replacement + data[place + len(replacement) :]


NONSENSE = (
    st.binary(max_size=40)
    | st.binary(max_size=40).map(lambda rest: raw.packet(196_608, rest))
    | st.binary(max_size=40).map(lambda rest: raw.message(b"p", rest))
    | st.sampled_from(VALID)
    | st.builds(damaged, st.sampled_from(VALID), st.integers(0, 200), st.binary(max_size=3))
    | st.lists(st.sampled_from(VALID), min_size=2, max_size=3).map(b"".join)
)


def last_words(data: bytes) -> bytes:
    """The last message of a well-formed answer; empty if there was none."""
    last = b""
    while data:
        if data[:1] in b"NS" and data[1:5] != b"\0\0\0":
            data = data[1:]  # the answer to a request for encryption has no length
            continue
        (length,) = struct.unpack("!I", data[1:5])
        last, data = data[: length + 1], data[length + 1 :]
        assert len(last) == length + 1
    return last


@pytest.mark.parametrize("stage", [nowhere, declined, offered, challenged])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(nonsense=NONSENSE)
def test_nonsense_is_answered_in_form(hall: Hall, stage: Stage, nonsense: bytes) -> None:
    with raw.connected(hall) as client:
        stage(client)
        client.send(nonsense)
        client.connection.shutdown(socket.SHUT_WR)
        answer = client.rest()
    assert not any(isinstance(outcome, Client) for outcome in hall.outcomes)
    if answer.endswith((b"N", b"S")) or raw.cancel(1, b"")[4:8] in nonsense:
        return  # a client that leaves after its request for encryption, and one that cancels, hear no more
    last = last_words(answer)
    if last[5:] and last[:1] == b"R":
        assert last[8] in (10, 11)  # it went well so far, and then the client left
    elif nonsense:
        assert last.startswith(b"E") and b"SFATAL\0VFATAL\0C" in last, answer
        assert b"CXX000" not in last


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(nonsense=NONSENSE)
def test_nonsense_instead_of_a_handshake_ends_the_connection(hall: Hall, nonsense: bytes) -> None:
    before = len(hall.outcomes)
    with raw.connected(hall) as client:
        before_handshake(client)
        client.send(nonsense)
        client.connection.shutdown(socket.SHUT_WR)
        try:
            answer = client.rest()
        except ConnectionError:
            answer = b""
    assert answer[:1] in (b"", b"\x15")  # nothing, or an alert of TLS
    eventually(lambda: len(hall.outcomes) > before)  # the client may see the end a moment earlier
    assert hall.outcomes[-1] is None


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rest=st.binary(max_size=40))
def test_nonsense_through_tls_is_answered_in_form(hall: Hall, rest: bytes) -> None:
    with raw.connected(hall) as client:
        client.encrypt()
        client.send(raw.packet(196_608, rest + b"x"))
        assert client.error()["C"] == "08P01"


def test_a_flood_is_cut_off_and_the_reason_still_arrives(hall: Hall) -> None:
    with raw.connected(hall) as client:
        client.send(b"\xff" * 3_000_000)
        client.connection.shutdown(socket.SHUT_WR)
        assert client.error()["C"] == "08P01"


def test_who_leaves_without_a_word_is_told_nothing(hall: Hall) -> None:
    for stage in (nowhere, declined, offered, challenged):
        with raw.connected(hall) as client:
            stage(client)
    with raw.connected(hall) as client:
        client.connection.shutdown(socket.SHUT_WR)
        assert client.rest() == b""


def test_the_door_still_opens(hall: Hall) -> None:
    with raw.connected(hall) as client:
        client.log_in(raw.startup(user="alice"))
