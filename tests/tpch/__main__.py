"""`python -m tests.tpch --scale 0.1`: for each query its verdict, its price, its error and its time beside the raw one.

Nothing here is asserted: machines are noisy. The verdicts themselves are checked in grammar_tests/tpch.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from dpsql.answering.dataset import Dataset
from dpsql.compliance.cases import read
from dpsql.errors import Error
from dpsql.release import QuerySettings, Release
from dpsql.release.explain import price_text
from grammar_tests.tpch_data import TPCH, make
from tests.tpch.engines import Asked, Rows, on_duckdb, on_postgres, on_prepared

ROUNDS = 3
ENGINES = {"duckdb": on_duckdb, "prepared": on_prepared, "postgres": on_postgres}
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
    "orders by month, raw without persons": (
        "SELECT date_trunc('month', o_orderdate), COUNT(*) FROM orders GROUP BY 1",
        "SELECT date_trunc('month', o_orderdate), COUNT(*) FROM orders GROUP BY 1",
    ),
    "lines by flag and status, raw without persons": (
        "SELECT l_returnflag, l_linestatus, COUNT(*), SUM(l_quantity) FROM lineitem GROUP BY 1, 2",
        "SELECT l_returnflag, l_linestatus, COUNT(*), SUM(l_quantity) FROM lineitem GROUP BY 1, 2",
    ),
    "different suppliers, raw without persons": (
        "SELECT COUNT(DISTINCT l_suppkey) FROM lineitem",
        "SELECT COUNT(DISTINCT l_suppkey) FROM lineitem",
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
    parser.add_argument("--engine", choices=ENGINES, action="append", help="one of them alone")
    parser.add_argument("--bounded", action="store_true", help="only the bounded GROUP BYs")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        directory: Path = options.data or Path(scratch)
        policy = directory / "tpch.toml" if (directory / "tpch.duckdb").exists() else make(directory, options.scale)
        asked = [stack.enter_context(ENGINES[name](policy)) for name in options.dataset or ENGINES]
        if not options.bounded:
            _report(asked)
        _report_bounded(asked)


def _report(asked: Sequence[Asked]) -> None:
    heads = "".join(f"{each.name + ' error':>18}{'time':>8}" for each in asked)
    print(f"{'query':<8}{'verdict':<10}{'price':<12}{heads}")
    for case in [case for file in sorted(TPCH.glob("q*.txt")) for case in read(file)]:
        print(_line(case.path.stem, case.sql, asked), flush=True)
    print("price, and error as the median of |noisy / true - 1|, at epsilon 1 per query; time beside the raw query\n")


def _report_bounded(asked: Sequence[Asked]) -> None:
    print(f"{'bounded GROUP BY beside the raw query':<48}{''.join(f'{each.name:>12}' for each in asked)}")
    for name, (sql, plain) in BOUNDED.items():
        ratios = [_ratio(partial(_answer, each.dataset, sql), partial(each.raw, plain)) for each in asked]
        print(f"{name:<48}{''.join(f'{ratio:>11.2f}x' for ratio in ratios)}", flush=True)


def _line(name: str, sql: str, asked: Sequence[Asked]) -> str:
    try:
        releases = [each.dataset.compile(sql, (), QuerySettings()) for each in asked]
    except Error as refusal:
        return f"{name:<8}{'refused':<10}{refusal.sqlstate}: {refusal}"
    line = f"{name:<8}{'answered':<10}{price_text(releases[0].price, asked[0].dataset.accountant).split(' (')[0]:<12}"
    for each, release in zip(asked, releases, strict=True):
        error = _error(release, _answer(each.dataset, sql), each.raw(sql))
        ratio = _ratio(partial(_answer, each.dataset, sql), partial(each.raw, sql))
        shown = "exact" if error == 0 else "-" if error is None else f"{error:.1%}"
        line += f"{shown:>18}{ratio:>7.2f}x"
    return line


def _answer(dataset: Dataset, sql: str) -> list[tuple[object, ...]]:
    release = dataset.compile(sql, (), QuerySettings())
    return list(dataset.answer(release, user="analyst", sql=sql, fresh=True).table.rows)


def _ratio(ours: Callable[[], object], theirs: Callable[[], object]) -> float:
    """How much longer ours takes, measured in turn; both are warm."""
    ours(), theirs()
    times: list[tuple[float, float]] = []
    for _ in range(ROUNDS):
        times.append((_seconds(ours), _seconds(theirs)))
    return min(mine for mine, _ in times) / min(other for _, other in times)


def _seconds(call: Callable[[], object]) -> float:
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
