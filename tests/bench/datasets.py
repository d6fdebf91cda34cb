"""The made-up tables on an engine, ready to be asked through dpsql and raw."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import duckdb

from dpsql.dataset import open_dataset
from dpsql.engine import Engine
from grammar_tests.servers import Server
from tests.bench.cases import POLICY, statements


@dataclass(frozen=True)
class Dataset:
    """The data on one engine: asked through dpsql, and raw."""

    engine: Engine
    raw: Callable[[str], object]
    url: str = ""  # of a server


@contextmanager
def on_duckdb(rows: int) -> Iterator[Dataset]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with duckdb.connect(str(folder / "bench.duckdb")) as connection:
            for statement in statements(f"range({rows}) AS t(i)", rows):
                connection.execute(statement)
        # A copy, because two connections of one process to one file must have the same settings.
        shutil.copy(folder / "bench.duckdb", folder / "raw.duckdb")
        with (
            _opened(folder, "duckdb:///bench.duckdb") as engine,
            duckdb.connect(str(folder / "raw.duckdb"), read_only=True, config={"threads": 2}) as raw,
        ):
            yield Dataset(engine, lambda sql: raw.execute(sql).fetchall())


@contextmanager
def on_postgres(rows: int) -> Iterator[Dataset]:
    with tempfile.TemporaryDirectory() as folder, closing(Server(18)) as server:
        with server.connect() as connection:
            for statement in statements(f"generate_series(0, {rows - 1}::bigint) AS t(i)", rows):
                connection.execute(statement.encode())
            connection.execute("VACUUM ANALYZE")
        with _opened(Path(folder), server.url()) as engine, server.connect() as raw:
            # As much memory and as many workers as dpsql's own queries get.
            raw.execute("SET work_mem = '256MB'; SET max_parallel_workers_per_gather = 1; SET jit = off")
            yield Dataset(engine, lambda sql: raw.execute(sql.encode()).fetchall(), server.url())


@contextmanager
def _opened(folder: Path, url: str) -> Iterator[Engine]:
    (folder / "dpsql.toml").write_text(POLICY.format(url=url))
    with closing(open_dataset(folder / "dpsql.toml", new_ledger=True)) as engine:
        yield engine


ENGINES = {"duckdb": on_duckdb, "postgres": on_postgres}
