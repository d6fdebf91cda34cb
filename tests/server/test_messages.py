"""Framing and the fields of messages: whole, cut short, and random."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpsql.server.protocol import messages
from dpsql.server.protocol.messages import BadMessage, Bind, Column, Execute, Framer, Message, Named, Parse


@given(st.lists(st.tuples(st.sampled_from([b"Q", b"P", b"S"]), st.binary(max_size=50))), st.integers(1, 20))
def test_messages_come_out_as_they_went_in(sent: list[tuple[bytes, bytes]], size: int) -> None:
    stream = b"".join(Message(kind, body).encode() for kind, body in sent)
    framer = Framer(1_000)
    found = []
    for start in range(0, len(stream), size):
        framer.feed(stream[start : start + size])
        while (message := framer.next()) is not None:
            found.append((message.kind, message.body))
    assert found == sent
    assert len(framer) == 0


@given(st.lists(st.tuples(st.sampled_from([b"D", b"C"]), st.binary(max_size=50))), st.integers(1, 60))
def test_runs_of_one_kind_come_out_in_their_place(sent: list[tuple[bytes, bytes]], size: int) -> None:
    stream = b"".join(Message(kind, body).encode() for kind, body in sent)
    framer, found = Framer(1_000), b""
    for start in range(0, len(stream), size):
        framer.feed(stream[start : start + size])
        run = framer.run_of(b"D")
        assert all(message.startswith(b"D") for message in _cut(run))
        found += run
        while (message := framer.next()) is not None:
            found += message.encode() + framer.run_of(b"D")
    assert found == stream and len(framer) == 0


def _cut(stream: bytes) -> list[bytes]:
    framer, found = Framer(1_000), []
    framer.feed(stream)
    while (message := framer.next()) is not None:
        found.append(message.encode())
    assert b"".join(found) == stream
    return found


def test_a_long_message_is_refused_before_it_is_gathered() -> None:
    framer = Framer(100)
    framer.feed(b"Q" + struct.pack("!I", 101))
    with pytest.raises(BadMessage, match="longer than 100 bytes"):
        framer.next()


@pytest.mark.parametrize("length", [0, 3])
def test_a_length_that_cannot_be(length: int) -> None:
    framer = Framer(100)
    framer.feed(b"Q" + struct.pack("!I", length))
    with pytest.raises(BadMessage):
        framer.next()


def test_what_is_read_is_written_back() -> None:
    parse = Parse(b"s", b"SELECT $1", (23, 0))
    assert Parse.read(parse.message().body) == parse
    parameters = struct.pack("!HHHI", 1, 1, 1, 2) + b"\x00\x01"
    bind = Bind(b"p", b"s", parameters, struct.pack("!HH", 1, 1))
    assert Bind.read(bind.message().body) == bind
    assert Execute.read(Execute(b"p", 7).message().body) == Execute(b"p", 7)
    columns = (Column(b"n", 16_400, 2, 20, 8, -1, 1), Column(b"x", 0, 0, 1_700, -1, 655_366, 0))
    assert messages.read_columns(messages.row_description(columns).body) == columns
    report = messages.fatal("08P01", "no", hint="yes")
    assert messages.read_fields(report.body)[b"H"] == b"yes"


_READERS: list[Callable[[bytes], object]] = [
    Parse.read,
    Bind.read,
    Named.read,
    Execute.read,
    messages.read_query,
    messages.read_columns,
    messages.read_types,
    messages.read_row,
    messages.read_fields,
    messages.read_status,
]


@pytest.mark.parametrize("read", _READERS)
@given(body=st.binary(max_size=60))
def test_random_bytes_are_read_or_refused(read: Callable[[bytes], object], body: bytes) -> None:
    try:
        read(body)
    except BadMessage as error:
        assert str(error)  # noqa: PT017 - that nothing else is raised is the point
