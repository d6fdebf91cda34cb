"""psycopg2: simple queries with the values in their text."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg2
import psycopg2.extras
import pytest

from tests.server.clients.cancelling import repeatedly
from tests.server.clients.questions import (
    COUNT,
    ENDLESS,
    OLDER,
    OLDER_THAN_65,
    PEOPLE,
    REFUSED,
    REFUSED_AT,
    STATE_ROWS,
    STATES,
    UNKNOWN_COLUMN,
    UNKNOWN_COLUMN_AT,
)
from tests.server.connection import Address


@pytest.fixture
def connection(served: Address) -> Iterator[Any]:
    with closing(psycopg2.connect(served.url())) as made:
        yield made


def _ask(connection: Any, query: str, values: object = None) -> list[tuple[object, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(query, values)
        rows: list[tuple[object, ...]] = cursor.fetchall()
        return rows


def test_queries_and_parameters(connection: Any) -> None:
    assert _ask(connection, COUNT) == [(PEOPLE,)]
    assert _ask(connection, STATES) == STATE_ROWS
    assert _ask(connection, OLDER.format("%s"), [65]) == [(OLDER_THAN_65,)]
    assert _ask(connection, "SELECT count(*) FROM people WHERE note = %(note)s", {"note": "it's"}) == [(0,)]


def test_metadata(connection: Any) -> None:
    with connection.cursor(cursor_factory=psycopg2.extras.RealDictCursor) as cursor:
        cursor.execute(STATES)
        assert [(column.name, column.type_code) for column in cursor.description] == [("state", 25), ("n", 20)]
        assert dict(cursor.fetchone()) == {"state": "CA", "n": 9}
        assert cursor.rowcount == 3
    assert connection.server_version // 10_000 == 16


def test_named_cursor(connection: Any) -> None:
    with connection.cursor("c", scrollable=True) as cursor:
        cursor.itersize = 2
        cursor.execute(STATES)
        assert list(cursor) == STATE_ROWS
        cursor.scroll(-2)
        assert cursor.fetchone() == STATE_ROWS[-1]


def test_copy(connection: Any) -> None:
    target = io.StringIO()
    with connection.cursor() as cursor:
        cursor.copy_expert(f"COPY ({STATES}) TO STDOUT WITH CSV", target)
        assert target.getvalue() == "CA,9\nNY,9\nTX,8\n"
        cursor.execute("CREATE TEMP TABLE mine (x int)")
        cursor.copy_expert("COPY mine FROM STDIN", io.StringIO("1\n2\n"))
        cursor.execute("SELECT sum(x) FROM mine")
        assert cursor.fetchone() == (3,)
    assert _ask(connection, COUNT) == [(PEOPLE,)]


def test_errors_abort_the_transaction(connection: Any) -> None:
    with pytest.raises(psycopg2.errors.UndefinedColumn) as caught:
        _ask(connection, UNKNOWN_COLUMN)
    assert caught.value.diag.statement_position == str(UNKNOWN_COLUMN_AT)
    with pytest.raises(psycopg2.errors.InFailedSqlTransaction):
        _ask(connection, COUNT)
    connection.rollback()
    assert _ask(connection, COUNT) == [(PEOPLE,)]


def test_refusals(connection: Any, dpsql_only: None) -> None:
    with pytest.raises(psycopg2.errors.InsufficientPrivilege) as caught:
        _ask(connection, REFUSED)
    assert caught.value.pgcode == "42501"
    assert caught.value.diag.statement_position == str(REFUSED_AT)


def test_sessions(connection: Any) -> None:
    connection.set_session(isolation_level="REPEATABLE READ", readonly=True, autocommit=True)
    assert _ask(connection, COUNT) == [(PEOPLE,)]
    connection.set_client_encoding("LATIN1")
    assert _ask(connection, "SELECT note, count(*) FROM people WHERE note = 'Über' GROUP BY note") == [("Über", 9)]
    connection.reset()
    assert _ask(connection, COUNT) == [(PEOPLE,)]


def test_cancel(connection: Any) -> None:
    connection.autocommit = True
    with repeatedly(connection.cancel), pytest.raises(psycopg2.errors.QueryCanceled):
        _ask(connection, ENDLESS)
    assert _ask(connection, COUNT) == [(PEOPLE,)]
