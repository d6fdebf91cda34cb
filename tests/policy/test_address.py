"""Addresses of servers are read as libpq reads them, and shown without what is secret."""

from __future__ import annotations

import pytest

from dpsql.policy.address import PostgresAddress


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://host/db", "postgresql://host/db"),
        ("postgres://alice:secret@host:5433/db", "postgresql://alice@host:5433/db"),
        ("postgresql://alice@host/db?password=secret&sslmode=require", "postgresql://alice@host/db"),
        ("postgresql:///db?host=/tmp/secret-less&user=al%20ice", "postgresql://al%20ice@%2Ftmp%2Fsecret-less/db"),
        ("postgresql://a,b:secret@one:1,two:2/db", "postgresql://a,b@one,two:1,2/db"),
        ("postgresql://al%40ice:s%2Fecret@[::1]/d%2Fb", "postgresql://al%40ice@%3A%3A1/d%2Fb"),
    ],
)
def test_what_is_shown(url: str, shown: str) -> None:
    address = PostgresAddress(url)
    assert str(address) == f"{address}" == shown
    assert "secret" not in repr(address)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "host/db",
        "mysql://root:secret@host/db",
        "postgresql://alice:secret@host",
        "postgresql://alice:secret@host/",
        "postgresql://alice:secret@[host/db",
        "postgresql://alice:secret%zz@host/db",
        "postgresql://alice:secret@host/db?unknown=1",
        "host=db password=secret dbname=x",
    ],
)
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(ValueError, match="not the address of a PostgreSQL database") as refusal:
        PostgresAddress(url)
    assert "secret" not in str(refusal.value)
    assert refusal.value.__cause__ is None
