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
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import duckdb

from dpsql.dataset import open_dataset
from dpsql.engine import Engine
from dpsql.session import Session

POLICY = """
[database]
url = "duckdb:///bench.duckdb"
[privacy]
epsilon = 9000.0
accounting = "basic"
query_epsilon = 0.01
[tables.people]
unit = "id"
[tables.people.columns]
state = { min = 0, max = 49 }
income = { min = 0, max = 500000 }
[tables.anybody]
unit = "id"
[tables.anybody.columns]
state = { min = 0, max = 49 }
income = { min = 0, max = 500000 }
[tables.visits]
unit = "person"
max_rows_per_unit = 10
[tables.visits.columns]
kind = { min = 0, max = 9 }
fee = { min = 0, max = 1000 }
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
    name: str
    rows: int
    raw_ms: float
    dpsql_ms: float
    ratio: float


def make_data(folder: Path, rows: int) -> None:
    connection = duckdb.connect(str(folder / "bench.duckdb"))
    columns = "(i * 7919) % 50 AS state, (i * 104729) % 500000 AS income"
    connection.execute("CREATE TABLE people (id BIGINT PRIMARY KEY, state INTEGER, income INTEGER)")
    connection.execute(f"INSERT INTO people SELECT i, {columns} FROM range({rows}) t(i)")
    connection.execute(f"CREATE TABLE anybody AS SELECT i AS id, {columns} FROM range({rows}) t(i)")
    visits = f"i % {max(1, rows // 5)} AS person, (i * 31) % 10 AS kind, (i * 7) % 1000 AS fee"
    connection.execute(f"CREATE TABLE visits AS SELECT {visits} FROM range({rows}) t(i)")
    connection.close()
    (folder / "dpsql.toml").write_text(POLICY)


def median_ms(action: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        action()
        times.append((time.perf_counter() - started) * 1000)
    return statistics.median(times)


def compare(engine: Engine, raw: duckdb.DuckDBPyConnection, case: Case, rows: int, repeats: int) -> Result:
    session = Session(engine, "bench")
    session.settings.fresh = True
    session.execute(case.private)
    raw.execute(case.raw).fetchall()
    raw_ms = median_ms(lambda: raw.execute(case.raw).fetchall(), repeats)
    dpsql_ms = median_ms(lambda: session.execute(case.private), repeats)
    return Result(case.name, rows, raw_ms, dpsql_ms, dpsql_ms / raw_ms)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--rows", type=int, nargs="*", default=[100, 10_000_000])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results = []
    for rows in options.rows:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            make_data(folder, rows)
            engine = open_dataset(folder / "dpsql.toml")
            # A copy, because two connections of one process to one file must have the same settings.
            shutil.copy(folder / "bench.duckdb", folder / "raw.duckdb")
            raw = duckdb.connect(str(folder / "raw.duckdb"), read_only=True, config={"threads": 2})
            repeats = 5 if rows > 100_000 else 50
            for case in CASES:
                result = compare(engine, raw.cursor(), case, rows, repeats)
                results.append(result)
                print(
                    f"{result.rows:>12,} rows  {result.name:<48} raw {result.raw_ms:9.2f} ms"
                    f"  dpsql {result.dpsql_ms:9.2f} ms  ratio {result.ratio:6.2f}",
                    flush=True,
                )
            replay = Session(engine, "bench")
            replay.execute(CASES[0].private)
            again = median_ms(lambda: replay.execute(CASES[0].private), repeats)  # noqa: B023
            print(f"{rows:>12,} rows  a stored answer again: {again:.2f} ms", flush=True)
            raw.close()
            engine.close()
    print("dpsql: cached text, fresh answer, durable charge included; raw: the same text on the same file")
    if options.json:
        options.json.write_text(json.dumps([asdict(result) for result in results], indent=2))


if __name__ == "__main__":
    main()
