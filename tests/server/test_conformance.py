"""The same conversations with PostgreSQL and with dpsql, compared message by message.

Under the policy of these tests noise is so small that every answer is exact, so values are compared as well.
"""

from __future__ import annotations

import pytest

from tests.server.connection import Address, Connection
from tests.server.plain import Plain
from tests.server.script import SETTINGS, Event, Script, ScriptFile, converse, encode, read_all, written

ALL = read_all()


def _ids(cases: list[tuple[ScriptFile, Script]]) -> list[str]:
    return [script.id for _, script in cases]


def _conversation(address: Address, file: ScriptFile, script: Script) -> list[Event]:
    """Hold the conversation and check what is written; returns all that the server said."""
    said: list[Event] = []
    with Connection(address, SETTINGS) as connection:
        for exchange in script.exchanges:
            events = converse(connection, file.names, exchange)
            seen = written([event.short for event in events])
            assert seen == written(exchange.answer), f"after {exchange.writes}"
            said += events
        _assert_usable(connection)
    return said


def _assert_usable(connection: Connection) -> None:
    """Whatever happened before: nothing is left over, and the connection can be asked again."""
    assert _answer(connection, "S") in (["ZI"], ["ZT"], ["ZE"])
    _answer(connection, 'Q "ROLLBACK; RESET ALL"')
    count = _answer(connection, 'P "" "SELECT count(*) AS n FROM people" ; B "" "" ; E "" ; S')
    assert count == ["1", "2", "D(48)", "C(SELECT 1)", "ZI"]


def _answer(connection: Connection, line: str) -> list[str]:
    connection.send(b"".join(encode(line)))
    said: list[str] = []
    while not said or not said[-1].startswith("Z"):
        event = Event.of(connection.read())
        said += [] if event.is_account else [event.short]
    return said


COMMON = [case for case in ALL if not case[1].only_dpsql]


@pytest.mark.parametrize(("file", "script"), COMMON, ids=_ids(COMMON))
def test_postgresql_answers_as_written(plain: Plain, file: ScriptFile, script: Script) -> None:
    _conversation(plain.address, file, script)


@pytest.mark.parametrize(("file", "script"), ALL, ids=_ids(ALL))
def test_dpsql_answers_as_postgresql(served: Address, plain: Plain, file: ScriptFile, script: Script) -> None:
    seen = _conversation(served, file, script)
    if script.only_dpsql:
        return
    for ours, theirs in zip(seen, _conversation(plain.address, file, script), strict=True):
        assert ours.whole == theirs.whole
