"""The first packets: read exactly, limited in size, and answered as PostgreSQL answers."""

from __future__ import annotations

import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpsql.errors import BadSetting, Error, LoginRefused, NotSupported, ProtocolViolation
from dpsql.server.protocol import startup
from dpsql.server.protocol.startup import CancelCall, Encryption, Startup, body_length, parse_packet


def body(major: int, minor: int, rest: bytes) -> bytes:
    return struct.pack("!HH", major, minor) + rest


def opened(rest: bytes, minor: int = 0) -> Startup:
    packet = parse_packet(body(3, minor, rest))
    assert isinstance(packet, Startup)
    return packet


def test_the_length_is_limited() -> None:
    assert body_length(struct.pack("!I", 8)) == 4
    assert body_length(struct.pack("!I", 10_000)) == 9_996
    for header in (b"GET ", b"\0\0\0\x07", struct.pack("!I", 10_001), b"\xff" * 4):
        with pytest.raises(ProtocolViolation):
            body_length(header)


def test_requests_before_the_first_message() -> None:
    assert parse_packet(body(1234, 5679, b"")) is Encryption.TLS
    assert parse_packet(body(1234, 5680, b"")) is Encryption.GSS
    assert parse_packet(body(1234, 5678, struct.pack("!II", 7, 9))) == CancelCall(7, b"\0\0\0\x09")
    assert parse_packet(body(1234, 5678, struct.pack("!I", 7) + b"k" * 32)) == CancelCall(7, b"k" * 32)


def test_a_startup_message() -> None:
    found = opened(b"user\0alice\0database\0clinic\0search_path\0\0options\0-c dpsql.epsilon=1\0\0")
    assert (found.user, found.database, found.protocol, found.negotiation) == ("alice", "clinic", (3, 0), b"")
    assert found.parameters == {"search_path": "", "options": "-c dpsql.epsilon=1"}


def test_no_database_is_none() -> None:
    assert opened(b"user\0alice\0\0").database is None
    assert opened(b"user\0alice\0database\0\0\0").database is None


@pytest.mark.parametrize(("minor", "spoken"), [(0, 0), (1, 1), (2, 2)])
def test_versions_that_are_known_need_no_negotiation(minor: int, spoken: int) -> None:
    found = opened(b"user\0alice\0\0", minor)
    assert (found.protocol, found.negotiation) == ((3, spoken), b"")


def test_a_newer_version_and_unknown_extensions_are_negotiated() -> None:
    found = opened(b"user\0alice\0_pq_.zip\0on\0_pq_.x\0\0\0", 9999)
    assert found.protocol == (3, 2) and found.parameters == {}
    assert found.negotiation == b"v\0\0\0\x1c\0\x03\0\x02\0\0\0\x02_pq_.zip\0_pq_.x\0"
    assert opened(b"user\0alice\0_pq_.zip\0on\0\0").negotiation == b"v\0\0\0\x15\0\x03\0\0\0\0\0\x01_pq_.zip\0"


@pytest.mark.parametrize(
    ("packet", "refusal", "text"),
    [
        (body(2, 0, b"alice"), NotSupported, "unsupported frontend protocol 2.0"),
        (body(4, 1, b"\0"), NotSupported, "unsupported frontend protocol 4.1"),
        (body(3, 0, b"user\0alice\0replication\0true\0\0"), NotSupported, "replication"),
        (body(3, 0, b"\0"), LoginRefused, "no user name"),
        (body(3, 0, b"user\0\0\0"), LoginRefused, "no user name"),
        (body(3, 0, b"database\0x\0\0"), LoginRefused, "no user name"),
        (body(3, 0, b""), ProtocolViolation, "terminator"),
        (body(3, 0, b"user\0alice\0"), ProtocolViolation, "terminator"),
        (body(3, 0, b"user\0alice"), ProtocolViolation, "terminator"),
        (body(3, 0, b"user\0alice\0x\0\0"), ProtocolViolation, "pair"),
        (body(3, 0, b"user\0alice\0\0x\0\0"), ProtocolViolation, "pair"),
        (body(3, 0, b"user\0al\xffce\0\0"), ProtocolViolation, "UTF-8"),
        (body(1234, 5678, b"\0\0\0\x01"), ProtocolViolation, "cancel"),
        (body(1234, 5678, b"k" * 261), ProtocolViolation, "cancel"),
        (body(1234, 5679, b"x"), ProtocolViolation, "unknown request"),
        (body(1234, 1, b""), ProtocolViolation, "unknown request"),
    ],
)
def test_what_is_wrong_is_refused(packet: bytes, refusal: type[Error], text: str) -> None:
    with pytest.raises(refusal, match=text):
        parse_packet(packet)


@given(st.binary(min_size=4, max_size=60) | st.binary(max_size=60).map(lambda rest: body(3, 0, rest)))
def test_no_bytes_break_the_parser(packet: bytes) -> None:
    with suppress(Error):
        assert isinstance(parse_packet(packet), Encryption | CancelCall | Startup)


@given(st.binary(max_size=40))
def test_no_bytes_break_the_choice_of_a_mechanism(packet: bytes) -> None:
    try:
        name, first = startup.parse_choice(packet)
    except ProtocolViolation:
        return
    assert len(name.encode("ascii", errors="replace")) + len(first) + 5 == len(packet)


def test_sasl_messages_are_limited() -> None:
    assert startup.sasl_length(b"p\0\0\0\x08") == 4
    for header in (b"Q\0\0\0\x08", b"p\0\0\0\x03", b"p\0\0\x04\x01", b"p\xff\xff\xff\xff"):
        with pytest.raises(ProtocolViolation):
            startup.sasl_length(header)


def test_an_error_says_what_and_what_to_do() -> None:
    assert startup.fatal(BadSetting("no", hint="Yes.")) == b"E\0\0\0\x24SFATAL\0VFATAL\0C22023\0Mno\0HYes.\0\0"
