"""Everything a client is sent, byte by byte: statements are pipelined, and what comes back is split among them."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dpsql.types import Value
from tests.server.connection import Address, Connection, Message, message, text

CORPUS = Path(__file__).parent / "corpus"
PIPELINE = 25  # statements on their way at once


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement with its parameters, and whether it is sent by the simple or the extended protocol."""

    name: str
    sql: str
    params: tuple[Value, ...] = ()
    extended: bool = False

    def encode(self) -> bytes:
        if not self.extended:
            return message("Q", text(self.sql))
        values = [None if value is None else _written(value) for value in self.params]
        sizes = b"".join(
            struct.pack("!i", -1) if value is None else struct.pack("!i", len(value)) + value for value in values
        )
        return b"".join(
            [
                message("P", text("") + text(self.sql) + struct.pack("!H", 0)),
                message("B", text("") + text("") + struct.pack("!HH", 0, len(values)) + sizes + struct.pack("!H", 0)),
                message("D", b"P" + text("")),
                message("E", text("") + struct.pack("!i", 0)),
                message("S"),
            ]
        )


def _written(value: Value) -> bytes:
    return (str(value).lower() if isinstance(value, bool) else str(value)).encode()


def corpus() -> list[Statement]:
    """The hostile statements: blocks of text; those that begin with # are prose."""
    found = []
    for path in sorted(CORPUS.glob("*.txt")):
        for number, block in enumerate(path.read_text().split("\n\n")):
            if block.strip() and not block.startswith("#"):
                found.append(Statement(f"{path.stem}:{number}", block.strip("\n")))
    return found


Transcript = dict[str, list[Message]]


def transcript(address: Address, statements: Sequence[Statement], settings: dict[str, str]) -> Transcript:
    """What was sent for each statement, up to ReadyForQuery. A transaction that one leaves open is ended."""
    found: Transcript = {}
    end = Statement("", "ROLLBACK")
    with Connection(address, settings) as connection:
        for batch in _batches(statements):
            connection.send(b"".join(each.encode() + end.encode() for each in batch))
            for each in batch:
                found[each.name] = list(_until_ready(connection)) + list(_until_ready(connection))
    return found


def ticks(address: Address, statements: Sequence[Statement], settings: dict[str, str], tick: float) -> list[int]:
    """After how many whole ticks each statement was answered, one after the other."""
    found = []
    with Connection(address, settings) as connection:
        for each in statements:
            began = time.monotonic()
            connection.send(each.encode())
            list(_until_ready(connection))
            found.append(int((time.monotonic() - began) / tick))
            connection.send(Statement("", "ROLLBACK").encode())
            list(_until_ready(connection))
    return found


def _batches(statements: Sequence[Statement]) -> Iterator[Sequence[Statement]]:
    for start in range(0, len(statements), PIPELINE):
        yield statements[start : start + PIPELINE]


def _until_ready(connection: Connection) -> Iterator[Message]:
    while True:
        found = connection.read()
        yield found
        if found.kind == "Z":
            return


def sqlstates(messages: Sequence[Message]) -> list[str]:
    """Of the errors among them."""
    fields = [part for each in messages if each.kind == "E" for part in each.body.split(b"\0")]
    return [part[1:].decode() for part in fields if part[:1] == b"C"]
