"""`python -m tests.bench`: what dpsql costs beside the raw engine, as ratios measured side by side in one run.

Nothing here is asserted: machines are noisy. Each line says what was compared.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import duckdb

from dpsql.dataset import open_dataset
from dpsql.engine import Engine
from dpsql.session import Session
from grammar_tests.servers import Server

POLICY = """
[database]
url = "{url}"
ledger = "bench.ledger"
[privacy]
epsilon = 9000.0
accounting = "basic"
query_epsilon = 0.01
[tables.people]
unit = "id"
[tables.people.columns]
state = {{ min = 0, max = 49 }}
income = {{ min = 0, max = 500000 }}
[tables.anybody]
unit = "id"
[tables.anybody.columns]
state = {{ min = 0, max = 49 }}
income = {{ min = 0, max = 500000 }}
[tables.visits]
unit = "person"
max_rows_per_unit = 10
[tables.visits.columns]
kind = {{ min = 0, max = 9 }}
fee = {{ min = 0, max = 1000 }}
[users.bench]
"""


@dataclass(frozen=True)
class Case:
    name: str
    private: str
    raw: str


CASES = [
    Case(
        "count by state, one row per person, enforced",
        "SELECT state, COUNT(*) FROM people GROUP BY state",
        "SELECT state, COUNT(*) FROM people GROUP BY state",
    ),
    Case(
        "sum by state, one row per person, enforced",
        "SELECT state, SUM(income) FROM people GROUP BY state",
        "SELECT state, SUM(income) FROM people GROUP BY state",
    ),
    Case(
        "count, one row per person, not enforced",
        "SELECT COUNT(*) FROM anybody",
        "SELECT COUNT(*), COUNT(DISTINCT id) FROM anybody",
    ),
    Case(
        "count by kind, many rows per person",
        "SELECT kind, COUNT(*) FROM visits GROUP BY kind",
        "SELECT kind, COUNT(*), COUNT(DISTINCT person) FROM visits GROUP BY kind",
    ),
]


@dataclass(frozen=True)
class Result:
    engine: str
    name: str
    rows: int
    raw_ms: float
    dpsql_ms: float
    ratio: float


@dataclass(frozen=True)
class Prepared:
    """The data on one engine: asked through dpsql, and raw."""

    engine: Engine
    raw: Callable[[str], object]


def tables(series: str, rows: int) -> list[str]:
    """Statements for both engines; `series` yields the numbers i below `rows`."""
    columns = "CAST((i * 7919) % 50 AS integer) AS state, CAST((i * 104729) % 500000 AS integer) AS income"
    kind, fee = "CAST((i * 31) % 10 AS integer) AS kind", "CAST((i * 7) % 1000 AS integer) AS fee"
    visits = f"i % {max(1, rows // 5)} AS person, {kind}, {fee}"
    return [
        "CREATE TABLE people (id bigint PRIMARY KEY, state integer, income integer)",
        f"INSERT INTO people SELECT i, {columns} FROM {series}",
        f"CREATE TABLE anybody AS SELECT i AS id, {columns} FROM {series}",
        f"CREATE TABLE visits AS SELECT {visits} FROM {series}",
    ]


@contextmanager
def on_duckdb(folder: Path, rows: int) -> Iterator[Prepared]:
    with duckdb.connect(str(folder / "bench.duckdb")) as connection:
        for statement in tables(f"range({rows}) AS t(i)", rows):
            connection.execute(statement)
    # A copy, because two connections of one process to one file must have the same settings.
    shutil.copy(folder / "bench.duckdb", folder / "raw.duckdb")
    with (
        opened(folder, "duckdb:///bench.duckdb") as engine,
        duckdb.connect(str(folder / "raw.duckdb"), read_only=True, config={"threads": 2}) as raw,
    ):
        yield Prepared(engine, lambda sql: raw.execute(sql).fetchall())


@contextmanager
def on_postgres(folder: Path, rows: int) -> Iterator[Prepared]:
    with closing(Server(18)) as server:
        with server.connect() as connection:
            for statement in tables(f"generate_series(0, {rows - 1}::bigint) AS t(i)", rows):
                connection.execute(statement)
            connection.execute("VACUUM ANALYZE")
        with opened(folder, server.url()) as engine, server.connect() as raw:
            # As much memory and as many workers as dpsql's own queries get.
            raw.execute("SET work_mem = '256MB'; SET max_parallel_workers_per_gather = 1; SET jit = off")
            yield Prepared(engine, lambda sql: raw.execute(sql).fetchall())


@contextmanager
def opened(folder: Path, url: str) -> Iterator[Engine]:
    (folder / "dpsql.toml").write_text(POLICY.format(url=url))
    with closing(open_dataset(folder / "dpsql.toml", new_ledger=True)) as engine:
        yield engine


ENGINES = {"duckdb": on_duckdb, "postgres": on_postgres}


def median_ms(action: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        action()
        times.append((time.perf_counter() - started) * 1000)
    return statistics.median(times)


def compare(name: str, prepared: Prepared, case: Case, rows: int, repeats: int) -> Result:
    session = Session(prepared.engine, "bench")
    session.settings.fresh = True
    session.execute(case.private)
    prepared.raw(case.raw)
    raw_ms = median_ms(lambda: prepared.raw(case.raw), repeats)
    dpsql_ms = median_ms(lambda: session.execute(case.private), repeats)
    return Result(name, case.name, rows, raw_ms, dpsql_ms, dpsql_ms / raw_ms)


def measure(name: str, prepared: Prepared, rows: int) -> list[Result]:
    repeats = 5 if rows > 100_000 else 50
    results = []
    for case in CASES:
        result = compare(name, prepared, case, rows, repeats)
        results.append(result)
        print(
            f"{name:<8} {result.rows:>12,} rows  {result.name:<48} raw {result.raw_ms:9.2f} ms"
            f"  dpsql {result.dpsql_ms:9.2f} ms  ratio {result.ratio:6.2f}",
            flush=True,
        )
    replay = Session(prepared.engine, "bench")
    replay.execute(CASES[0].private)
    again = median_ms(lambda: replay.execute(CASES[0].private), repeats)
    print(f"{name:<8} {rows:>12,} rows  a stored answer again: {again:.2f} ms", flush=True)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--rows", type=int, nargs="*", default=[100, 10_000_000])
    parser.add_argument("--engine", choices=ENGINES, nargs="*", default=list(ENGINES))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results = []
    for name in options.engine:
        for rows in options.rows:
            with tempfile.TemporaryDirectory() as folder, ENGINES[name](Path(folder), rows) as prepared:
                results += measure(name, prepared, rows)
    print("dpsql: cached text, fresh answer, durable charge included; raw: the same text on the same data")
    if options.json:
        options.json.write_text(json.dumps([asdict(result) for result in results], indent=2))


if __name__ == "__main__":
    main()
