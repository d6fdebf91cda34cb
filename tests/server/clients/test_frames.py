"""Data frames without a driver in Python: ADBC and connectorx read every query with COPY or cursors, all in binary."""

from __future__ import annotations

from typing import Any

import adbc_driver_postgresql.dbapi as adbc
import polars
import pytest

from tests.server.clients.questions import (
    COUNT,
    OLDER,
    OLDER_THAN_65,
    PEOPLE,
    REFUSED,
    STATE_ROWS,
    STATES,
    TABLES,
    UNKNOWN_COLUMN,
)
from tests.server.connection import Address

# What each type of column comes as.
TYPES = """
SELECT state, count(*) AS n, count(*)::int4 AS four, avg(income)::float8 > 0 AS rich, count(*)::float8 AS eight,
       date '2020-02-29' AS day, timestamp '2020-02-29 12:30:00' AS moment
FROM people GROUP BY state ORDER BY state
"""


def test_adbc(served: Address) -> None:
    with adbc.connect(served.url()) as connection, connection.cursor() as cursor:
        cursor.execute(STATES)
        assert cursor.fetch_arrow_table().to_pydict() == {"state": ["CA", "NY", "TX"], "n": [9, 9, 8]}
        cursor.execute(OLDER.format("$1"), (65,))
        assert cursor.fetchone() == (OLDER_THAN_65,)
        assert cursor.adbc_execute_schema(STATES).names == ["state", "n"]
        cursor.execute(TYPES)
        assert [str(kind) for kind in cursor.fetch_arrow_table().schema.types] == [
            "string", "int64", "int32", "bool", "double", "date32[day]", "timestamp[us]",
        ]  # fmt: skip


def test_adbc_looks_around(served: Address) -> None:
    with adbc.connect(served.url()) as connection:
        (catalog,) = (
            connection.adbc_get_objects(depth="columns", catalog_filter=served.database, db_schema_filter="public")
            .read_all()
            .to_pylist()
        )
        (schema,) = catalog["catalog_db_schemas"]
        tables: dict[str, Any] = {table["table_name"]: table for table in schema["db_schema_tables"]}
        assert set(tables) >= TABLES
        assert "age" in {column["column_name"] for column in tables["people"]["table_columns"]}
        assert connection.adbc_get_table_schema("people").field("age").type == "int32"


def test_adbc_errors(served: Address) -> None:
    with adbc.connect(served.url(), autocommit=True) as connection, connection.cursor() as cursor:
        with pytest.raises(adbc.ProgrammingError) as caught:
            cursor.execute(UNKNOWN_COLUMN)
        assert caught.value.sqlstate == "42703"
        cursor.execute(COUNT)
        assert cursor.fetchone() == (PEOPLE,)


def test_adbc_refusals(served: Address, dpsql_only: None) -> None:
    with adbc.connect(served.url(), autocommit=True) as connection, connection.cursor() as cursor:
        with pytest.raises(adbc.Error) as caught:
            cursor.execute(REFUSED)
        assert caught.value.sqlstate == "42501"
        cursor.execute(COUNT)
        assert cursor.fetchone() == (PEOPLE,)


@pytest.mark.parametrize("engine", ["adbc", "connectorx"])
def test_polars(served: Address, engine: Any) -> None:
    frame = polars.read_database_uri(STATES, served.url(), engine=engine)
    assert frame.rows() == STATE_ROWS
    assert polars.read_database_uri(TYPES, served.url(), engine=engine).shape == (3, 7)
    assert polars.read_database_uri("SELECT * FROM states", served.url(), engine=engine).height == 3


@pytest.mark.parametrize("protocol", ["binary", "csv", "cursor", "simple"])
def test_connectorx_protocols(served: Address, protocol: Any) -> None:
    frame = polars.read_database_uri(STATES, served.url(), engine="connectorx", protocol=protocol)
    assert frame.rows() == STATE_ROWS


def test_connectorx_partitions(served: Address) -> None:
    """It asks for the bounds of a column first, then for its parts."""
    query = "SELECT n, count(*) AS states FROM (SELECT state, count(*) AS n FROM people GROUP BY state) AS s GROUP BY n"
    frame = polars.read_database_uri(
        query, served.url(), engine="connectorx", partition_on="n", partition_num=2, partition_range=(0, 40)
    )
    assert frame.rows() == [(16, 3)]
