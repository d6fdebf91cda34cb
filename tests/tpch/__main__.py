"""`python -m tests.tpch --scale 0.1`: for each query its verdict, its price, its error and its time beside the raw one.

Nothing here is asserted: machines are noisy. The verdicts themselves are checked in grammar_tests/tpch.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import duckdb

from dpsql.dataset import build_engine, open_backend
from dpsql.engine import Engine
from dpsql.errors import Error
from dpsql.explain import price_text
from dpsql.noise.samplers import SystemSampler
from dpsql.policy.loader import load
from dpsql.release import Release, Settings
from grammar_tests.case import read
from grammar_tests.tpch_data import TPCH, make

T = TypeVar("T")
Rows = Sequence[Sequence[object]]
ROUNDS = 3
KEYS = ("l_year", "o_year", "c_count", "s_suppkey")  # numbers that are no noisy ones

# What a person-level system must at least know is added to the raw query: how many persons there are.
BOUNDED = {
    "orders by priority": (
        "SELECT o_orderpriority, COUNT(*), SUM(o_totalprice) FROM orders GROUP BY o_orderpriority",
        "SELECT o_orderpriority, COUNT(*), SUM(o_totalprice), COUNT(DISTINCT o_custkey) FROM orders GROUP BY 1",
    ),
    "orders by month": (
        "SELECT date_trunc('month', o_orderdate), COUNT(*) FROM orders GROUP BY 1",
        "SELECT date_trunc('month', o_orderdate), COUNT(*), COUNT(DISTINCT o_custkey) FROM orders GROUP BY 1",
    ),
    "lines by mode": (
        "SELECT l_shipmode, COUNT(*), SUM(l_quantity) FROM orders, lineitem WHERE o_orderkey = l_orderkey GROUP BY 1",
        "SELECT l_shipmode, COUNT(*), SUM(l_quantity) FROM orders, lineitem WHERE o_orderkey = l_orderkey GROUP BY 1",
    ),
    "revenue by priority": (
        "SELECT o_orderpriority, SUM(l_extendedprice * (1 - l_discount)) FROM orders JOIN lineitem"
        " ON o_orderkey = l_orderkey WHERE l_shipdate < DATE '1997-01-01' GROUP BY 1",
        "SELECT o_orderpriority, SUM(l_extendedprice * (1 - l_discount)) FROM orders JOIN lineitem"
        " ON o_orderkey = l_orderkey WHERE l_shipdate < DATE '1997-01-01' GROUP BY 1",
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.tpch", description=__doc__)
    parser.add_argument("--scale", type=float, default=0.1)
    parser.add_argument("--data", type=Path, help="a directory with data made before, or to be kept")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        directory: Path = options.data or Path(scratch)
        policy = directory / "tpch.toml" if (directory / "tpch.duckdb").exists() else make(directory, options.scale)
        _report(policy)


def _report(path: Path) -> None:
    policy = load(path)
    engine = build_engine(policy, open_backend(policy), SystemSampler(), new_ledger=True)
    # The same limits on both sides; raw SQL runs in the optimizer's full strength.
    raw = duckdb.connect(config={"threads": policy.limits.threads, "memory_limit": policy.limits.memory})
    raw.execute(f"ATTACH '{path.parent / 'tpch.duckdb'}' AS tpch (READ_ONLY)")
    raw.execute("USE tpch")
    print(f"{'query':<8}{'verdict':<10}{'price':<12}{'error':>10}{'time':>8}  (error: median of |noisy / true - 1|)")
    for case in [case for file in sorted(TPCH.glob("q*.txt")) for case in read(file)]:
        print(_line(case.path.stem, case.sql, engine, raw))
    print("\nbounded GROUP BY beside the raw query")
    for name, (sql, plain) in BOUNDED.items():
        ratio = _ratio(partial(_answer, engine, sql), partial(_raw, raw, plain))
        print(f"{name:<24}{ratio:>6.2f}x")
    raw.close()
    engine.close()


def _line(name: str, sql: str, engine: Engine, raw: duckdb.DuckDBPyConnection) -> str:
    try:
        release = engine.compile(sql, (), Settings())
    except Error as refusal:
        return f"{name:<8}{'refused':<10}{refusal.sqlstate}: {refusal}"
    rows = _answer(engine, sql)
    error = _error(release, rows, _raw(raw, sql))
    ratio = _ratio(partial(_answer, engine, sql), partial(_raw, raw, sql))
    price = price_text(release.price, engine.accountant).split(" (")[0]
    shown = "exact" if error == 0 else "-" if error is None else f"{error:.1%}"
    return f"{name:<8}{'answered':<10}{price:<12}{shown:>10}{ratio:>7.2f}x"


def _answer(engine: Engine, sql: str) -> list[tuple[object, ...]]:
    release = engine.compile(sql, (), Settings())
    return list(engine.answer(release, user="analyst", sql=sql, fresh=True).table.rows)


def _raw(connection: duckdb.DuckDBPyConnection, sql: str) -> list[tuple[object, ...]]:
    return connection.execute(sql).fetchall()


def _ratio(ours: Callable[[], T], theirs: Callable[[], T]) -> float:
    """How much longer ours takes, measured in turn; both are warm."""
    ours(), theirs()
    times: list[tuple[float, float]] = []
    for _ in range(ROUNDS):
        times.append((_seconds(ours), _seconds(theirs)))
    return min(mine for mine, _ in times) / min(other for _, other in times)


def _seconds(call: Callable[[], T]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def _error(release: Release, rows: Rows, truth: Rows) -> float | None:
    """The median relative error of the noisy numbers in rows that both have."""
    if not release.measurements:
        return 0.0
    noisy = [i for i, output in enumerate(release.outputs) if output.type.is_numeric and output.name not in KEYS]
    keys = [i for i in range(len(release.outputs)) if i not in noisy]
    found = {tuple(str(row[i]) for i in keys): row for row in rows}
    errors = []
    for row in truth:
        mine = found.get(tuple(str(row[i]) for i in keys))
        pairs = [] if mine is None else [(mine[i], row[i]) for i in noisy]
        errors += [abs(float(str(ours)) / float(str(exact)) - 1) for ours, exact in pairs if ours is not None and exact]
    return statistics.median(errors) if errors else None


if __name__ == "__main__":
    main()
