"""asyncpg: prepares everything, describes before it binds, flushes, and wants all in binary."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
import pytest

from tests.server.clients.questions import (
    COUNT,
    ENDLESS,
    MONTH_ROWS,
    MONTHS,
    MONTHS_FROM,
    MONTHS_UNTIL,
    OLDER,
    OLDER_THAN_65,
    PEOPLE,
    REFUSED,
    REFUSED_AT,
    STATE_ROWS,
    STATES,
    UNKNOWN_COLUMN,
    UNKNOWN_COLUMN_AT,
    ZONE,
)
from tests.server.connection import PATIENCE, Address


def _with_connection(address: Address, ask: Callable[[Any], Awaitable[None]]) -> None:
    async def run() -> None:
        connection = await asyncpg.connect(address.url())
        try:
            async with asyncio.timeout(PATIENCE):
                await ask(connection)
        finally:
            connection.terminate()

    asyncio.run(run())


def test_queries_and_parameters(served: Address) -> None:
    async def ask(connection: Any) -> None:
        assert await connection.fetchval(COUNT) == PEOPLE
        assert [tuple(row) for row in await connection.fetch(STATES)] == STATE_ROWS
        assert await connection.fetchval(OLDER.format("$1"), 65) == OLDER_THAN_65
        assert await connection.fetchval(OLDER.format("$1"), 65) == OLDER_THAN_65
        assert dict(await connection.fetchrow(STATES)) == {"state": "CA", "n": 9}
        # Without parameters, execute() is a simple query.
        assert await connection.execute(f"SELECT 1; {STATES}") == "SELECT 3"

    _with_connection(served, ask)


def test_prepared(served: Address) -> None:
    async def ask(connection: Any) -> None:
        statement = await connection.prepare(
            "SELECT state, count(*) AS n FROM people WHERE age > $1 GROUP BY 1 ORDER BY 1"
        )
        assert [each.name for each in statement.get_parameters()] == ["int4"]
        assert [(each.name, each.type.name) for each in statement.get_attributes()] == [
            ("state", "text"),
            ("n", "int8"),
        ]
        assert [tuple(row) for row in await statement.fetch(40)] == STATE_ROWS
        assert statement.get_statusmsg() == "SELECT 3"
        await connection.execute("DEALLOCATE ALL")
        assert await connection.fetchval(COUNT) == PEOPLE

    _with_connection(served, ask)


def test_cursor(served: Address) -> None:
    async def ask(connection: Any) -> None:
        async with connection.transaction():
            assert [tuple(row) async for row in connection.cursor(STATES, prefetch=2)] == STATE_ROWS
            cursor = await connection.cursor(STATES)
            assert await cursor.forward(1) == 1
            assert [tuple(row) for row in await cursor.fetch(5)] == STATE_ROWS[1:]

    _with_connection(served, ask)


def test_transactions_and_errors(served: Address) -> None:
    async def ask(connection: Any) -> None:
        async with connection.transaction(isolation="serializable", readonly=True):
            with pytest.raises(asyncpg.UndefinedColumnError) as caught:
                async with connection.transaction():
                    await connection.fetch(UNKNOWN_COLUMN)
            assert caught.value.position == str(UNKNOWN_COLUMN_AT)
            assert await connection.fetchval(COUNT) == PEOPLE
        with pytest.raises(asyncpg.DataError):
            await connection.fetchval(OLDER.format("$1"), "old")
        assert await connection.fetchval(COUNT) == PEOPLE

    _with_connection(served, ask)


def test_refusals(served: Address, dpsql_only: None) -> None:
    async def ask(connection: Any) -> None:
        for method in (connection.fetch, connection.execute):
            with pytest.raises(asyncpg.InsufficientPrivilegeError) as caught:
                await method(REFUSED)
            assert caught.value.position == str(REFUSED_AT)
        assert await connection.fetchval(COUNT) == PEOPLE

    _with_connection(served, ask)


def test_copy(served: Address) -> None:
    async def ask(connection: Any) -> None:
        target = io.BytesIO()
        assert await connection.copy_from_query(STATES, output=target, format="csv") == "COPY 3"
        assert target.getvalue() == b"CA,9\nNY,9\nTX,8\n"
        await connection.copy_from_query(OLDER.format("$1"), 65, output=target)
        await connection.execute("CREATE TEMP TABLE mine (x int, y text)")
        assert await connection.copy_records_to_table("mine", records=[(1, "a"), (2, None)]) == "COPY 2"
        assert await connection.fetchval("SELECT sum(x) FROM mine") == 3
        assert await connection.fetchval(COUNT) == PEOPLE

    _with_connection(served, ask)


def test_timeout(served: Address) -> None:
    async def ask(connection: Any) -> None:
        with pytest.raises(asyncio.TimeoutError):
            await connection.fetch(ENDLESS, timeout=0.5)
        assert await connection.fetchval(COUNT) == PEOPLE

    _with_connection(served, ask)


def test_pool(served: Address) -> None:
    async def run() -> None:
        async with asyncpg.create_pool(
            served.url(), min_size=1, max_size=3, server_settings={"application_name": "pool"}
        ) as pool:
            assert await asyncio.gather(*(pool.fetchval(COUNT) for _ in range(9))) == [PEOPLE] * 9

    asyncio.run(run())


def test_instants(served: Address) -> None:
    """In binary, both ways; the parameters are described as instants, or the driver would refuse those it is given."""

    async def ask(connection: Any) -> None:
        await connection.execute(f"SET TimeZone = '{ZONE}'")
        statement = await connection.prepare(MONTHS.format("$1", "$2"))
        assert [each.name for each in statement.get_parameters()] == ["timestamptz"] * 2
        rows = await statement.fetch(MONTHS_FROM, MONTHS_UNTIL)
        assert [tuple(row) for row in rows] == MONTH_ROWS

    _with_connection(served, ask)
