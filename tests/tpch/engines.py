"""The same TPC-H data on both engines, each ready to be asked through dpsql and raw."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import duckdb
import psycopg

from dpsql.answering.dataset import Dataset
from dpsql.answering.open_dataset import open_dataset
from dpsql.answering.prepare_copies import prepare
from dpsql.policy.load import load
from grammar_tests.servers import Server
from grammar_tests.tpch_data import KEYS

Rows = Sequence[Sequence[object]]
# Nobody can write to a DuckDB file that is open, so it is enough to look once; in PostgreSQL a key must be enforced.
ENFORCED = KEYS | {"orders": "o_orderkey", "lineitem": "l_orderkey, l_linenumber"}
AT_ONCE = 10_000


@dataclass(frozen=True)
class Asked:
    """The data on one engine."""

    name: str
    dataset: Dataset
    raw: Callable[[str], Rows]


@contextmanager
def on_prepared(policy: Path) -> Iterator[Asked]:
    """The DuckDB file and its copy; raw SQL still runs on the file itself."""
    mine = policy.with_name("prepared.toml")
    if not mine.exists():
        mine.write_text(policy.read_text())
        prepare(mine)
    with on_duckdb(mine) as asked:
        yield replace(asked, name="prepared")


@contextmanager
def on_duckdb(policy: Path) -> Iterator[Asked]:
    limits = load(policy).limits
    # The same limits on both sides; raw SQL runs in the optimizer's full strength.
    config: dict[str, Any] = {"threads": limits.threads, "memory_limit": limits.memory}
    with closing(open_dataset(policy, new_ledger=True)) as dataset, _raw(policy, config) as raw:
        yield Asked("DuckDB", dataset, lambda sql: raw.execute(sql).fetchall())


@contextmanager
def on_postgres(policy: Path) -> Iterator[Asked]:
    """A server of its own, filled from the DuckDB file."""
    limits = load(policy).limits
    with closing(Server(18)) as server:
        with server.connect() as target, _raw(policy) as source:
            _copy(source, target)
        mine = policy.with_name("postgres.toml")
        text = policy.read_text().replace('"duckdb:///tpch.duckdb"', f'"{server.url()}"\nledger = "postgres.ledger"')
        mine.write_text(text)
        with closing(open_dataset(mine, new_ledger=True)) as dataset, server.connect() as raw:
            # As much memory and as many workers as dpsql's own queries get.
            workers = limits.threads - 1
            raw.execute(
                f"SET work_mem = '256MB'; SET max_parallel_workers_per_gather = {workers}; SET jit = off".encode()
            )
            yield Asked("PostgreSQL", dataset, lambda sql: raw.execute(sql.encode()).fetchall())


def _raw(policy: Path, config: dict[str, Any] | None = None) -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(config=config or {})
    connection.execute(f"ATTACH '{policy.parent / 'tpch.duckdb'}' AS tpch (READ_ONLY)")
    connection.execute("USE tpch")
    return connection


def _copy(source: duckdb.DuckDBPyConnection, target: psycopg.Connection[Any]) -> None:
    for table, key in ENFORCED.items():
        described = source.execute(f"DESCRIBE {table}").fetchall()
        columns = ", ".join(f"{name} {type_} NOT NULL" for name, type_, *_ in described)
        target.execute(f"CREATE TABLE {table} ({columns})".encode())
        rows = source.execute(f"SELECT COLUMNS(*)::text FROM {table}")
        with target.cursor().copy(f"COPY {table} FROM STDIN".encode()) as copy:
            while some := rows.fetchmany(AT_ONCE):
                for row in some:
                    copy.write_row(row)
        if key is not None:
            target.execute(f"ALTER TABLE {table} ADD PRIMARY KEY ({key})".encode())
    target.execute("VACUUM ANALYZE")
