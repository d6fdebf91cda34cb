"""Conversations that nobody would write, with PostgreSQL and with dpsql: the same answers, and no answer too few."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from tests.server.connection import Address, Connection
from tests.server.plain import Plain
from tests.server.script import SETTINGS, Answer, Event, encode

CONVERSATIONS = 40

COUNT = "SELECT count(*) AS n FROM people"
STATES = "SELECT state, count(*) AS n FROM people WHERE age > 40 GROUP BY state ORDER BY state"
TEXTS = [
    *(COUNT, STATES) * 5,
    *("SELECT 7 AS seven", "SELECT 1 / 0", "SELECT count(nothing) FROM people", "SELEC", ""),
    *("SELECT code FROM states ORDER BY code", "SELECT count(*) AS n FROM made"),
    *("SET application_name = 'x'", "SET LOCAL application_name = 'y'", "SHOW application_name", "RESET ALL"),
    *(f"PREPARE s AS {COUNT}", "PREPARE t AS SELECT 5 AS five", "EXECUTE s", "EXECUTE t"),
    *("DEALLOCATE s", "DEALLOCATE ALL"),
    *(f"DECLARE c CURSOR FOR {STATES}", f"DECLARE p CURSOR FOR {COUNT}", f"DECLARE h CURSOR WITH HOLD FOR {COUNT}"),
    *("FETCH 1 FROM c", "FETCH 2 FROM p", "MOVE 1 IN p", "FETCH ALL FROM h", "CLOSE c", "CLOSE p", "CLOSE ALL"),
    *(f"COPY ({STATES}) TO STDOUT", f"CREATE TEMP TABLE made AS {STATES}", "DROP TABLE IF EXISTS made"),
]
# These stand alone: in a string with others dpsql does not follow PostgreSQL in every detail.
ALONE = ["BEGIN", "BEGIN", "COMMIT", "ROLLBACK", "SAVEPOINT a", "ROLLBACK TO a", "RELEASE a", "DISCARD ALL"]
UNNAMED = '""'
STATEMENTS = [UNNAMED, UNNAMED, "s", "t"]
PORTALS = [UNNAMED, UNNAMED, "p", "q"]


def _messages(chance: random.Random) -> Iterator[str]:
    """A group of extended messages; mostly in an order that makes sense."""
    for _ in range(chance.randint(1, 3)):
        statement, portal = chance.choice(STATEMENTS), chance.choice(PORTALS)
        text = chance.choice(TEXTS + ALONE)
        if statement != UNNAMED and (text in ALONE or text.startswith(("DECLARE", "CREATE", "EXECUTE", "COPY"))):
            text = COUNT  # dpsql does not follow an SQL EXECUTE of such a statement
        wanted = {
            f'P {statement} "{text}"': 0.7,
            f"D S {statement}": 0.2,
            f"B {portal} {statement}": 0.8,
            f"D P {portal}": 0.3,
            f"E {portal} {chance.choice([0, 0, 1, 2])}": 0.8,
            f"E {portal}": 0.2,
            "H": 0.1,
            f"C S {statement}": 0.1,
            f"C P {portal}": 0.1,
        }
        chosen = [message for message, likely in wanted.items() if chance.random() < likely]
        # Not the unnamed portal of an earlier group: PostgreSQL itself may crash on it in a failed transaction.
        bound = any(message.startswith(f"B {UNNAMED}") for message in chosen)
        yield from (message for message in chosen if bound or not message.startswith(f"E {UNNAMED}"))


def _units(chance: random.Random) -> list[str]:
    """What is sent in one write: each unit is answered with one ReadyForQuery."""
    units = []
    for _ in range(chance.randint(1, 3)):
        if chance.random() < 0.2:
            units.append(f'Q "{chance.choice(ALONE)}"')
        elif chance.random() < 0.4:
            units.append('Q "' + "; ".join(chance.choices(TEXTS, k=chance.choice([1, 1, 2, 3]))) + '"')
        else:
            units.append(" ; ".join([*_messages(chance), "S"]))
    return units


def _said(connection: Connection, units: list[str]) -> list[Event]:
    connection.send(b"".join(encode(" ; ".join(units))))
    answer = Answer(connection)
    while sum(event.short.startswith("Z") for event in answer.events) < len(units):
        answer.read()
    return answer.events


@pytest.mark.parametrize("seed", range(CONVERSATIONS))
def test_same_answers(served: Address, plain: Plain, seed: int) -> None:
    chance = random.Random(seed)
    with Connection(served, SETTINGS) as ours, Connection(plain.address, SETTINGS) as theirs:
        for _ in range(10):
            units = _units(chance)
            wanted, seen = _said(theirs, units), _said(ours, units)
            assert [event.short for event in seen] == [event.short for event in wanted], "\n".join(units)
            assert [event.whole for event in seen] == [event.whole for event in wanted], "\n".join(units)
