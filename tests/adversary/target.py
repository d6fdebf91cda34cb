"""The person who comes and goes: in every table, beyond every bound, and sought by name in the hostile statements."""

from __future__ import annotations

from pathlib import Path

import duckdb
import psycopg

from dpsql.compliance.toy import fill_dirty
from dpsql.engines.base import Engine
from dpsql.engines.duckdb.engine import DuckDBEngine
from dpsql.engines.postgres.engine import PostgresEngine
from dpsql.policy.model import Policy
from grammar_tests import toy_postgres
from grammar_tests.servers import Server
from tests.adversary.masked import write_policy

# An income that no other has; alone in a city; and more rows than anybody may have, among them the largest values.
TARGET = """
INSERT INTO people VALUES (777, 'target', 97, 'm', 'NY', 'Erewhon', 53063, 199.75, 9, 777777, 53063, true,
    '2023-11-11', '1977-07-07 07:07:07', 'secret note');
INSERT INTO visits SELECT 7000 + i, 777, ['surgery', 'lab', NULL][1 + i % 3], 'clinic of 777, ' || i % 9,
    [999.99, 99999999.99, -1, NULL][1 + i % 4], [9.5, 'nan', 'inf', 1e308][1 + i % 4], [239, 2147483647, 0][1 + i % 3],
    true, date '2022-01-01' + CAST(i AS int), timestamp '2022-01-01' + to_hours(CAST(i AS int)) FROM range(30) AS r(i);
INSERT INTO surveys VALUES (777, 5, 24, 'alone'), (777, 5, 'inf', 'alone'), (777, 1, 'nan', NULL);
INSERT INTO "Gifts" SELECT 777, 2147483647 - i, ['book', 'jet'][1 + i % 2], 'shop of 777, ' || i FROM range(20) AS r(i);
INSERT INTO items SELECT 7000 + i, 1, 'pill', 999999.99, 2147483647, 'inf' FROM range(30) AS r(i);
INSERT INTO remarks SELECT 7000 + i, 1, 'topic of 777', 2147483647 FROM range(30) AS r(i);
"""


def _fill(connection: duckdb.DuckDBPyConnection, *, target: bool) -> None:
    fill_dirty(connection)
    if target:
        connection.execute(TARGET)


def on_duckdb(folder: Path, *, target: bool) -> tuple[Policy, Engine]:
    with duckdb.connect(str(folder / "toy.duckdb")) as connection:
        _fill(connection, target=target)
    return write_policy(folder, "duckdb:///toy.duckdb"), DuckDBEngine(folder / "toy.duckdb", memory="1GB", threads=1)


def on_postgres(server: Server, folder: Path, *, target: bool) -> tuple[Policy, Engine]:
    name = "with_target" if target else "without_target"
    server.create_database(name)
    with duckdb.connect() as data:
        _fill(data, target=target)
        with psycopg.connect(server.url(name), autocommit=True) as connection:
            toy_postgres.fill(connection, data)
    # The ledger of a database on a server is a file beside the policy: not the same for two policies.
    return write_policy(folder, server.url(name)), PostgresEngine(server.url(name), memory="64MB", threads=1)
