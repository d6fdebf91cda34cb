"""The data: people and their visits, made up; others with heavy tails that nothing was tuned on; TPC-H.

Each dataset is a DuckDB file with its policy for dpsql, and a flat file of each table for everyone else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import duckdb
import numpy as np
from numpy.typing import NDArray

from grammar_tests.tpch_data import make as make_tpch
from tests.accuracy.asked import Accounting, Column, Table
from tests.accuracy.tables import KINDS, LINES, ORDERS, PEOPLE, REGIONS, VISITS

Columns = Mapping[str, NDArray[np.generic]]
EPSILON, DELTA, KEY_DELTA = 1, "1e-6", "5e-7"  # of delta, what unknown keys take under zcdp


@dataclass(frozen=True)
class AccuracyData:
    """One dataset on disk."""

    folder: Path
    tables: Mapping[str, Table]

    def flat(self, table: str) -> Path:
        return self.folder / f"{table}.parquet"

    def columns(self, table: str) -> Columns:
        """A flat file as arrays, one for each column."""
        return _read(self.flat(table))

    def policy(self, accounting: Accounting, *, unknown: bool) -> Path:
        """All of epsilon 1 and delta 1e-6 for one case."""
        path = self.folder / f"{accounting}{'-keys' if unknown else ''}.toml"
        kept = "" if accounting == "basic" else f"key_delta = {KEY_DELTA if unknown else 0}\n"
        privacy = (
            f"[privacy]\nepsilon = {EPSILON}\ndelta = {DELTA}\nquery_epsilon = {EPSILON}\n{kept}"
            f'accounting = "{accounting}"\n'
        )
        path.write_text((self.folder / "policy.toml").read_text().replace("# privacy", privacy))
        return path


@lru_cache(maxsize=1)
def _read(path: Path) -> Columns:
    with duckdb.connect() as connection:
        found = connection.execute(f"SELECT * FROM '{path}'").fetchnumpy()
    return {name: np.asarray(values) for name, values in found.items()}


def people(folder: Path, size: int) -> AccuracyData:
    """Log-normal incomes, ages of a population, regions of different size; visits are few for most."""
    draw = np.random.default_rng(20_260_101)
    regions = draw.choice(np.array(REGIONS), size, p=[0.15, 0.27, 0.36, 0.2, 0.02])
    return _made_up(
        folder,
        {
            "id": np.arange(size),
            "region": regions,
            "age": np.clip(draw.normal(42, 22, size), 0, 105).astype(np.int64),
            "income": np.minimum(draw.lognormal(10.4, 0.6, size), 500_000).astype(np.int64),
            "city": _names("city", draw.zipf(1.6, size)),
        },
        _visits(draw, draw.geometric(0.25, size), lambda rows: draw.gamma(2, 60, rows)),
    )


def heavy(folder: Path, size: int) -> AccuracyData:
    """Pareto incomes, one region with almost everybody and one with almost nobody, a few who visit all the time."""
    draw = np.random.default_rng(77)
    regions = draw.choice(np.array(REGIONS), size, p=[0.9, 0.06, 0.03, 0.008, 0.002])
    rows = np.minimum(np.floor(draw.pareto(1.3, size)) + 1, 400).astype(np.int64)
    return _made_up(
        folder,
        {
            "id": np.arange(size),
            "region": regions,
            "age": np.clip(draw.gamma(3, 10, size), 0, 130).astype(np.int64),  # some beyond the bounds
            "income": np.minimum((draw.pareto(1.5, size) + 1) * 9_000, 500_000).astype(np.int64),
            "city": _names("city", draw.zipf(1.25, size)),
        },
        _visits(draw, rows, lambda total: draw.lognormal(3, 1.5, total)),
    )


def _visits(draw: np.random.Generator, rows: NDArray[np.int64], fee: Callable[[int], NDArray[np.float64]]) -> Columns:
    total = int(rows.sum())
    return {
        "person": np.repeat(np.arange(len(rows)), rows),
        "kind": np.minimum(draw.geometric(0.3, total) - 1, len(KINDS) - 1),
        "fee": np.round(100 * fee(total)).astype(np.int64),
        "town": _names("town", draw.zipf(1.4, total)),
    }


def _names(kind: str, numbers: NDArray[np.int64]) -> NDArray[np.str_]:
    return np.char.add(f"{kind} ", np.minimum(numbers, 99_999).astype(str))


def _made_up(folder: Path, persons: Columns, visits: Columns) -> AccuracyData:
    dataset = AccuracyData(folder, _PERSONS)
    folder.mkdir(parents=True, exist_ok=True)
    with duckdb.connect(str(folder / "data.duckdb")) as connection:
        for name, columns in (("people", persons), ("visits", visits)):
            connection.register("made", dict(columns))
            connection.execute(f"CREATE TABLE {name} AS SELECT * FROM made")
            connection.unregister("made")
            connection.execute(f"COPY {name} TO '{dataset.flat(name)}'")
    sections = [_section(table) for table in dataset.tables.values()]
    (folder / "policy.toml").write_text(_HEAD.format(database="data.duckdb") + "\n".join(sections))
    return dataset


_HEAD = '[database]\nurl = "duckdb:///{database}"\n\n# privacy\n[users.analyst]\n\n'


def _section(table: Table) -> str:
    columns = "\n".join(f"{name} = {_declared(column)}" for name, column in table.columns.items())
    return (
        f'[tables.{table.name}]\nunit = "{table.unit}"\nmax_rows_per_unit = {table.rows}\n'
        f"[tables.{table.name}.columns]\n{columns}\n"
    )


def _declared(column: Column) -> str:
    if column.lower is not None:
        return f"{{ min = {column.lower}, max = {column.upper}, step = {column.step} }}"
    return f"{{ values = {list(column.values)} }}" if column.values is not None else "{}"


def tpch(folder: Path, scale: float) -> AccuracyData:
    """TPC-H with customers as persons; the flat files hold the lines and orders with their customer."""
    folder.mkdir(parents=True, exist_ok=True)
    policy = make_tpch(folder, scale)
    dataset = AccuracyData(folder, _SHOP)
    lines = ", ".join(_flat(name, column) for name, column in LINES.columns.items())
    orders = ", ".join(_flat(name, column) for name, column in ORDERS.columns.items())
    with duckdb.connect(str(folder / "tpch.duckdb"), read_only=True) as connection:
        joined = "lineitem JOIN orders ON l_orderkey = o_orderkey"
        connection.execute(f"COPY (SELECT o_custkey AS person, {lines} FROM {joined}) TO '{dataset.flat('lineitem')}'")
        connection.execute(f"COPY (SELECT o_custkey AS person, {orders} FROM orders) TO '{dataset.flat('orders')}'")
    text = policy.read_text().replace("tight = true\n", "")  # nobody looked how many lines customers have
    head, rest = text.split("[privacy]", 1)
    (folder / "policy.toml").write_text(f"{head}# privacy\n[limits]{rest.split('[limits]', 1)[1]}")
    return dataset


def _flat(name: str, column: Column) -> str:
    if column.lower is not None:
        return f"CAST({column.expression or name} AS double) AS {name}"
    return f"CAST({name} AS varchar) AS {name}"


def dataset(name: str, folder: Path, size: int) -> AccuracyData:
    """The dataset of this name, made now or before; `size` is the number of people."""
    made: dict[str, tuple[Mapping[str, Table], Callable[[Path], AccuracyData]]] = {
        "people": (_PERSONS, lambda place: people(place, size)),
        "heavy": (_PERSONS, lambda place: heavy(place, size)),
        "TPC-H 0.1": (_SHOP, lambda place: tpch(place, 0.1)),
        "TPC-H 1": (_SHOP, lambda place: tpch(place, 1)),
    }
    tables, make = made[name]
    place = folder / name.replace(" ", "-")
    return AccuracyData(place, tables) if (place / "policy.toml").exists() else make(place)


_PERSONS = {"people": PEOPLE, "visits": VISITS}
_SHOP = {"lineitem": LINES, "orders": ORDERS}
