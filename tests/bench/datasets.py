"""The made-up tables on an engine, ready to be asked through dpsql and raw."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import duckdb

from dpsql.answering.dataset import Dataset
from dpsql.answering.open_dataset import open_dataset
from dpsql.answering.prepare_copies import prepare
from grammar_tests.servers import Server
from tests.bench.cases import POLICY, statements


@dataclass(frozen=True)
class BenchDataset:
    """The data on one engine: asked through dpsql, and raw."""

    dataset: Dataset
    raw: Callable[[str], object]
    url: str = ""  # of a server
    prepared: Dataset | None = None  # the same over a prepared copy


@contextmanager
def on_duckdb(rows: int, *, prepared: bool = False) -> Iterator[BenchDataset]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with duckdb.connect(str(folder / "bench.duckdb")) as connection:
            for statement in statements(f"range({rows}) AS t(i)", rows):
                connection.execute(statement)
        # A copy, because two connections of one process to one file must have the same settings.
        shutil.copy(folder / "bench.duckdb", folder / "raw.duckdb")
        with (
            _prepared(folder, "duckdb:///bench.duckdb", wanted=prepared) as copied,
            _opened(folder, "duckdb:///bench.duckdb") as dataset,
            duckdb.connect(str(folder / "raw.duckdb"), read_only=True, config={"threads": 2}) as raw,
        ):
            yield BenchDataset(dataset, lambda sql: raw.execute(sql).fetchall(), prepared=copied)


@contextmanager
def on_postgres(rows: int, *, prepared: bool = False) -> Iterator[BenchDataset]:
    with tempfile.TemporaryDirectory() as folder, closing(Server(18)) as server:
        with server.connect() as connection:
            for statement in statements(f"generate_series(0, {rows - 1}::bigint) AS t(i)", rows):
                connection.execute(statement.encode())
            connection.execute("VACUUM ANALYZE")
        with (
            _prepared(Path(folder), server.url(), wanted=prepared) as copied,
            _opened(Path(folder), server.url()) as dataset,
            server.connect() as raw,
        ):
            # As much memory and as many workers as dpsql's own queries get.
            raw.execute("SET work_mem = '256MB'; SET max_parallel_workers_per_gather = 1; SET jit = off")
            yield BenchDataset(dataset, lambda sql: raw.execute(sql.encode()).fetchall(), server.url(), copied)


@contextmanager
def _opened(folder: Path, url: str) -> Iterator[Dataset]:
    (folder / "dpsql.toml").write_text(POLICY.format(url=url))
    with closing(open_dataset(folder / "dpsql.toml", new_ledger=True)) as dataset:
        yield dataset


@contextmanager
def _prepared(folder: Path, url: str, *, wanted: bool) -> Iterator[Dataset | None]:
    """The data once more, over a copy that `dpsql prepare` has made, with a ledger of its own."""
    if not wanted:
        yield None
        return
    path = folder / "prepared.toml"
    path.write_text(POLICY.format(url=url).replace("bench.ledger", "prepared.ledger"))
    prepare(path)
    with closing(open_dataset(path, new_ledger=True)) as dataset:
        yield dataset


ENGINES = {"duckdb": on_duckdb, "postgres": on_postgres}
