"""psycopg 3: extended protocol, prepared statements, pipelines, server-side cursors, COPY, asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal

import psycopg
import pytest
from psycopg import sql
from psycopg.rows import dict_row, namedtuple_row

from tests.server.clients.cancelling import repeatedly
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
from tests.server.connection import Address

Connection = psycopg.Connection[tuple[object, ...]]


@pytest.fixture
def connection(served: Address) -> Iterator[Connection]:
    with psycopg.connect(served.url(), autocommit=True) as made:
        yield made


@pytest.mark.parametrize("binary", [False, True])
def test_an_array_is_a_list(connection: Connection, binary: bool) -> None:
    shares = "ARRAY[0.25, 0.5, NULL, 0.75]"
    with connection.cursor(binary=binary) as cursor:
        cursor.execute(f"SELECT percentile_cont({shares}) WITHIN GROUP (ORDER BY age) FROM people")
        ((ages,),) = cursor.fetchall()
    assert isinstance(ages, list) and [type(age) for age in ages] == [float, float, type(None), float]
    assert sorted(age for age in ages if age is not None) == [ages[0], ages[1], ages[3]]


def test_queries(connection: Connection) -> None:
    assert connection.execute(COUNT).fetchone() == (PEOPLE,)
    assert connection.execute(STATES).fetchall() == STATE_ROWS
    assert connection.execute(STATES, binary=True).fetchall() == STATE_ROWS


def test_metadata(connection: Connection) -> None:
    cursor = connection.execute(
        "SELECT sum(height)::numeric(12,2) AS height, min(age) > 0 AS old FROM people WHERE false"
    )
    assert cursor.description is not None
    assert [column.name for column in cursor.description] == ["height", "old"]
    assert cursor.description[0].precision == 12 and cursor.description[0].scale == 2
    assert cursor.statusmessage == "SELECT 1"
    assert connection.info.server_version // 10_000 == 16
    assert connection.info.encoding == "utf-8"


def test_rows_with_names(connection: Connection) -> None:
    with connection.cursor(row_factory=dict_row) as cursor:
        assert cursor.execute(STATES).fetchone() == {"state": "CA", "n": 9}
    with connection.cursor(row_factory=namedtuple_row) as named:
        assert named.execute(STATES).fetchall()[2]._asdict() == {"state": "TX", "n": 8}


def test_parameters(connection: Connection) -> None:
    for value in (65, "65", Decimal("65.0"), 65.0):
        assert connection.execute(OLDER.format("%s::int"), [str(int(float(value)))]).fetchone() == (OLDER_THAN_65,)
    assert connection.execute(OLDER.format("%s"), [65]).fetchone() == (OLDER_THAN_65,)
    assert connection.execute(OLDER.format("%(age)s"), {"age": 65}, binary=True).fetchone() == (OLDER_THAN_65,)
    assert connection.execute(OLDER.format("%b"), [65]).fetchone() == (OLDER_THAN_65,)
    assert connection.execute(OLDER.format("%s"), [None]).fetchone() == (0,)
    found = connection.execute(
        "SELECT count(*) FROM people WHERE joined >= %s AND sex = %s AND smoker IS NOT NULL", [date(2020, 1, 1), "f"]
    ).fetchone()
    assert found == (12,)


def test_client_side_binding(served: Address) -> None:
    """One simple query, values written into its text."""
    with psycopg.connect(served.url(), cursor_factory=psycopg.ClientCursor) as connection:
        assert connection.execute(OLDER.format("%s"), [65]).fetchone() == (OLDER_THAN_65,)
        cursor = connection.execute(f"SELECT 1; {COUNT}")
        assert cursor.fetchone() == (1,)
        assert cursor.nextset() and cursor.fetchone() == (PEOPLE,)


def test_raw_parameters(connection: Connection) -> None:
    with psycopg.RawCursor(connection) as cursor:
        assert cursor.execute(OLDER.format("$1"), [65]).fetchone() == (OLDER_THAN_65,)


def test_prepared(connection: Connection) -> None:
    for _ in range(3):
        assert connection.execute(OLDER.format("%s"), [65], prepare=True).fetchone() == (OLDER_THAN_65,)
    connection.execute("DISCARD ALL")
    connection.prepare_threshold = 1
    for _ in range(4):
        assert connection.execute(COUNT).fetchone() == (PEOPLE,)


def test_executemany(connection: Connection) -> None:
    with connection.cursor() as cursor:
        cursor.executemany(OLDER.format("%s"), [(65,), (80,), (20,)], returning=True)
        found = [cursor.fetchone()]
        while cursor.nextset():
            found.append(cursor.fetchone())
    assert found == [(OLDER_THAN_65,), (0,), (46,)]


def test_pipeline(connection: Connection) -> None:
    with connection.pipeline():
        one = connection.execute(COUNT)
        two = connection.execute("SELECT 2")
        three = connection.execute(STATES)
    assert (one.fetchone(), two.fetchone(), three.fetchall()) == ((PEOPLE,), (2,), STATE_ROWS)


def test_an_error_in_a_pipeline(connection: Connection) -> None:
    def ask() -> None:
        with connection.pipeline():
            connection.execute("SELECT 1 / 0")
            connection.execute(COUNT)

    with pytest.raises(psycopg.errors.DivisionByZero):
        ask()
    assert connection.execute(COUNT).fetchone() == (PEOPLE,)


def test_server_side_cursor(connection: Connection) -> None:
    with connection.transaction(), connection.cursor("c", scrollable=True) as cursor:
        cursor.execute(STATES)
        assert cursor.description is not None and cursor.description[0].name == "state"
        assert cursor.fetchmany(2) == STATE_ROWS[:2]
        assert cursor.fetchall() == STATE_ROWS[2:]
        cursor.scroll(0, mode="absolute")
        assert cursor.fetchone() == STATE_ROWS[0]
    with connection.cursor("held", withhold=True) as held:
        held.execute(OLDER.format("%s"), [65])
        assert list(held) == [(OLDER_THAN_65,)]


def test_stream(connection: Connection) -> None:
    assert list(connection.cursor().stream(STATES)) == STATE_ROWS
    assert list(connection.cursor().stream(STATES, size=2)) == STATE_ROWS


def test_copy(connection: Connection) -> None:
    with connection.cursor().copy(f"COPY ({STATES}) TO STDOUT") as copy:
        assert list(copy.rows()) == [("CA", "9"), ("NY", "9"), ("TX", "8")]
    with connection.cursor().copy(f"COPY ({STATES}) TO STDOUT (FORMAT binary)") as copy:
        copy.set_types(["text", "int8"])
        assert list(copy.rows()) == STATE_ROWS


def test_copy_into_a_temporary_table(connection: Connection) -> None:
    connection.execute("CREATE TEMP TABLE mine (x int)")
    with connection.cursor().copy("COPY mine FROM STDIN") as copy:
        for x in range(10):
            copy.write_row((x,))
    assert connection.execute("SELECT count(*) FROM mine").fetchone() == (10,)
    with (
        pytest.raises(psycopg.errors.InvalidTextRepresentation),
        connection.cursor().copy("COPY mine FROM STDIN") as copy,
    ):
        copy.write("one\n")
    assert connection.execute(COUNT).fetchone() == (PEOPLE,)


def test_errors(connection: Connection) -> None:
    with pytest.raises(psycopg.errors.UndefinedColumn) as caught:
        connection.execute(UNKNOWN_COLUMN)
    assert caught.value.diag.statement_position == str(UNKNOWN_COLUMN_AT)
    with pytest.raises(psycopg.errors.UndefinedTable):
        connection.execute("SELECT count(*) FROM nowhere")
    with pytest.raises(psycopg.errors.SyntaxError):
        connection.execute("SELECT count(* FROM people")
    with pytest.raises(psycopg.errors.InvalidTextRepresentation):
        connection.execute(OLDER.format("%s"), ["old"])


def test_refusals(connection: Connection, dpsql_only: None) -> None:
    for cursor in (connection.cursor(), psycopg.ClientCursor(connection)):
        with pytest.raises(psycopg.errors.InsufficientPrivilege) as caught:
            cursor.execute(REFUSED)
        assert caught.value.diag.statement_position == str(REFUSED_AT)
        assert caught.value.diag.message_hint
        assert caught.value.diag.context is None
        assert caught.value.diag.source_function is None


def test_transactions(connection: Connection) -> None:
    with connection.transaction():
        assert connection.execute(COUNT).fetchone() == (PEOPLE,)
        with pytest.raises(psycopg.errors.UndefinedColumn), connection.transaction():
            connection.execute(UNKNOWN_COLUMN)
        assert connection.execute(COUNT).fetchone() == (PEOPLE,)
    assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


def test_an_implicit_transaction(served: Address) -> None:
    with psycopg.connect(served.url()) as connection:
        connection.read_only = True
        connection.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
        assert connection.execute(COUNT).fetchone() == (PEOPLE,)
        assert connection.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS
        with pytest.raises(psycopg.errors.UndefinedColumn):
            connection.execute(UNKNOWN_COLUMN)
        with pytest.raises(psycopg.errors.InFailedSqlTransaction):
            connection.execute(COUNT)
        connection.rollback()
        assert connection.execute(COUNT).fetchone() == (PEOPLE,)


def test_settings_at_the_start(served: Address) -> None:
    with psycopg.connect(
        served.url(), options="-c statement_timeout=7s -c dpsql.epsilon=90", application_name="report"
    ) as connection:
        assert connection.execute("SHOW statement_timeout").fetchone() == ("7s",)
        assert connection.execute("SHOW dpsql.epsilon").fetchone() == ("90",)
        assert connection.execute("SHOW application_name").fetchone() == ("report",)
        assert connection.execute(COUNT).fetchone() == (PEOPLE,)


def test_another_encoding(served: Address) -> None:
    with psycopg.connect(served.url(), client_encoding="latin1") as connection:
        assert connection.execute("SELECT count(*) AS größe FROM people WHERE note = %s", ["Über"]).fetchone() == (9,)
        cursor = connection.execute("SELECT note AS größe, count(*) FROM people WHERE note = 'Über' GROUP BY note")
        assert cursor.description is not None and cursor.description[0].name == "größe"
        assert cursor.fetchall() == [("Über", 9)]


def test_cancel(connection: Connection) -> None:
    with repeatedly(connection.cancel_safe), pytest.raises(psycopg.errors.QueryCanceled):
        connection.execute(ENDLESS)
    assert connection.execute(COUNT).fetchone() == (PEOPLE,)


def test_cancel_from_another_connection(served: Address, connection: Connection) -> None:
    pid = connection.info.backend_pid
    with psycopg.connect(served.url(), autocommit=True) as other:
        cancel = repeatedly(lambda: other.execute("SELECT pg_cancel_backend(%s)", [pid]))
        with cancel, pytest.raises(psycopg.errors.QueryCanceled):
            connection.execute(ENDLESS)
        assert connection.execute(COUNT).fetchone() == (PEOPLE,)
        assert other.execute("SELECT pg_terminate_backend(%s)", [pid]).fetchone() == (True,)
        with pytest.raises(psycopg.OperationalError):
            connection.execute(COUNT)


def test_statement_timeout(connection: Connection) -> None:
    connection.execute("SET statement_timeout = '1s'")
    with pytest.raises(psycopg.errors.QueryCanceled, match="statement timeout"):
        connection.execute(ENDLESS)
    connection.execute("RESET statement_timeout")
    assert connection.execute(COUNT).fetchone() == (PEOPLE,)


def test_composed_names(connection: Connection) -> None:
    query = sql.SQL("SELECT {0}, count(*) FROM {1} GROUP BY {0} ORDER BY 1").format(
        sql.Identifier("select"), sql.Identifier("public", "Gifts")
    )
    assert [row[0] for row in connection.execute(query)] == ["book", "toy"]


def test_wrong_password_and_database(served: Address) -> None:
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(served.url(), password="wrong")  # noqa: S106
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        psycopg.connect(served.url(), dbname="nowhere")


def test_asyncio(served: Address) -> None:
    async def ask() -> None:
        async with await psycopg.AsyncConnection.connect(served.url(), autocommit=True) as connection:
            assert await (await connection.execute(COUNT)).fetchone() == (PEOPLE,)
            async with connection.cursor() as cursor:
                await cursor.execute(STATES)
                assert await cursor.fetchall() == STATE_ROWS
            async with connection.transaction(), connection.cursor("c") as server_side:
                await server_side.execute(STATES)
                assert [row async for row in server_side] == STATE_ROWS
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(connection.execute(ENDLESS), 0.5)
            assert await (await connection.execute(COUNT)).fetchone() == (PEOPLE,)

    asyncio.run(ask())


def test_many_connections(served: Address) -> None:
    async def one() -> object:
        async with await psycopg.AsyncConnection.connect(served.url()) as connection:
            return await (await connection.execute(COUNT)).fetchone()

    async def ask() -> list[object]:
        return await asyncio.gather(*(one() for _ in range(12)))

    assert asyncio.run(ask()) == [(PEOPLE,)] * 12


@pytest.mark.parametrize("binary", [False, True])
def test_instants_in_the_zone_of_the_startup_packet(served: Address, binary: bool) -> None:
    with psycopg.connect(served.url(), autocommit=True, options=f"-c TimeZone={ZONE}") as connection:
        rows = connection.execute(MONTHS.format("%s", "%s"), [MONTHS_FROM, MONTHS_UNTIL], binary=binary).fetchall()
        assert rows == MONTH_ROWS
        assert [str(month)[:19] for month, _ in rows] == [f"2021-{month:02}-01 00:00:00" for month in (7, 8, 9, 10)]
        # Without a zone they are times of the session's.
        local = [datetime(2021, 7, 1), datetime(2021, 11, 1)]
        assert connection.execute(MONTHS.format("%s", "%s"), local).fetchall() == MONTH_ROWS
        assert connection.execute(MONTHS.format("'2021-07-01'", "'2021-11-01'")).fetchall() == MONTH_ROWS


def test_the_zone_is_set_for_a_transaction_and_reset(connection: Connection) -> None:
    day = "SELECT count(*) AS n, to_timestamp(0)::date AS day, to_timestamp(0) AS epoch FROM people"
    with connection.transaction():
        connection.execute("SET LOCAL TimeZone = 'America/New_York'")
        shown = connection.execute(day).fetchone()
        assert shown is not None and shown[1:] == (date(1969, 12, 31), datetime(1970, 1, 1, tzinfo=UTC))
    assert connection.execute(day).fetchone() == (PEOPLE, date(1970, 1, 1), datetime(1970, 1, 1, tzinfo=UTC))
    connection.execute("SET TIME ZONE -5")
    assert connection.execute("SELECT to_timestamp(0)::text, count(*) FROM people").fetchone() == (
        "1969-12-31 19:00:00-05",
        PEOPLE,
    )
    connection.execute("RESET TimeZone")
    assert connection.execute("SELECT to_timestamp(0)::text, count(*) FROM people").fetchone() == (
        "1970-01-01 00:00:00+00",
        PEOPLE,
    )
