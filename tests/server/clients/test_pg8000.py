"""pg8000: the protocol in pure Python, with statements prepared and bound as text."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pg8000.dbapi
import pg8000.native
import pytest

from tests.server.clients.questions import (
    COUNT,
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


def _arguments(address: Address) -> dict[str, Any]:
    return {
        "user": address.user,
        "password": address.password,
        "host": address.host,
        "port": address.port,
        "database": address.database,
    }


@pytest.fixture
def connection(served: Address) -> Iterator[Any]:
    with closing(pg8000.native.Connection(**_arguments(served))) as made:
        yield made


def test_queries_and_parameters(connection: Any) -> None:
    assert connection.run(COUNT) == [[PEOPLE]]
    assert [tuple(row) for row in connection.run(STATES)] == STATE_ROWS
    assert [column["name"] for column in connection.columns] == ["state", "n"]
    assert connection.run(OLDER.format("cast(:age AS int)"), age=65) == [[OLDER_THAN_65]]
    assert connection.run(f"SELECT 1; {COUNT}") == [[1], [PEOPLE]]


def test_prepared(connection: Any) -> None:
    statement = connection.prepare(OLDER.format("cast(:age AS int)"))
    assert statement.run(age=65) == [[OLDER_THAN_65]]
    assert statement.run(age=20) == [[46]]
    statement.close()


def test_copy(connection: Any) -> None:
    target = io.BytesIO()
    connection.run(f"COPY ({STATES}) TO STDOUT WITH (FORMAT csv)", stream=target)
    assert target.getvalue() == b"CA,9\nNY,9\nTX,8\n"
    connection.run("CREATE TEMP TABLE mine (x int)")
    connection.run("COPY mine FROM STDIN", stream=io.BytesIO(b"1\n2\n"))
    assert connection.run("SELECT sum(x) FROM mine") == [[3]]
    assert connection.run(COUNT) == [[PEOPLE]]


def test_transactions_and_errors(served: Address) -> None:
    with closing(pg8000.dbapi.connect(**_arguments(served))) as connection:
        cursor = connection.cursor()
        cursor.execute(OLDER.format("%s"), (65,))
        assert cursor.fetchone() == [OLDER_THAN_65]
        with pytest.raises(pg8000.dbapi.DatabaseError) as caught:
            cursor.execute(UNKNOWN_COLUMN)
        assert (caught.value.args[0]["C"], caught.value.args[0]["P"]) == ("42703", str(UNKNOWN_COLUMN_AT))
        connection.rollback()
        cursor.execute(COUNT)
        assert cursor.fetchone() == [PEOPLE]


def test_refusals(connection: Any, dpsql_only: None) -> None:
    with pytest.raises(pg8000.native.DatabaseError) as caught:
        connection.run(REFUSED)
    assert (caught.value.args[0]["C"], caught.value.args[0]["P"]) == ("42501", str(REFUSED_AT))
