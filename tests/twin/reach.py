"""How tests reach the twin as a role."""

from __future__ import annotations

import os
from pathlib import Path

import psycopg
from psycopg.rows import TupleRow

from dpsql.server.twin import Twin


def connect(twin: Twin, user: str, *, database: str | None = None) -> psycopg.Connection[TupleRow]:
    """As the relay does, which knows the address only."""
    address = twin.address(user)
    host = address.host if address.path is None else os.path.dirname(address.path)
    return psycopg.connect(
        host=host,
        port=address.port,
        user=address.user,
        password=address.password,
        dbname=database or address.database,
        autocommit=True,
    )


def value(connection: psycopg.Connection[TupleRow], query: str) -> object:
    row = connection.execute(query.encode()).fetchone()
    assert row is not None
    return row[0]


def sqlstate(connection: psycopg.Connection[TupleRow], query: str) -> str | None:
    """The code of the error, or None if there was none; what was begun is undone."""
    try:
        connection.execute(query.encode())
    except psycopg.Error as error:
        return error.sqlstate
    finally:
        connection.execute("ROLLBACK")
    return None


def server_folder(state: Path) -> Path:
    return state / "twin" / "server"
