"""The exact answers, and the arrays that the textbook and the oracle work on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.accuracy.asked import Aggregate, Query, Table
from tests.accuracy.data import Columns

Key = tuple[Any, ...]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Rows:
    """The rows that a query reads: whose each is, and its cell by number."""

    owner: NDArray[np.int64]
    cell: NDArray[np.int64]
    keys: tuple[Key, ...]
    columns: Columns

    def numbers(self, name: str) -> Floats:
        return self.columns[name].astype(np.float64)

    def kept(self, which: NDArray[np.bool_] | NDArray[np.int64]) -> Rows:
        columns = {name: values[which] for name, values in self.columns.items()}
        return Rows(self.owner[which], self.cell[which], self.keys, columns)


def read(query: Query, table: Table, columns: Columns) -> Rows:
    """Filtered, and told apart by key: the declared keys, or those that occur."""
    size = len(columns[table.unit])
    chosen = np.ones(size, dtype=bool)
    for name, sign, value in query.where:
        values: Any = columns[name]
        chosen &= {"<": values < value, "<=": values <= value, ">=": values >= value, "=": values == value}[sign]
    used = {name for name in (*query.by, *(aggregate.column for aggregate in query.aggregates)) if name}
    picked = {name: columns[name][chosen] for name in used}
    owner = columns[table.unit][chosen].astype(np.int64)
    if not query.by:
        return Rows(owner, np.zeros(len(owner), dtype=np.int64), ((),), picked)
    if query.unknown:
        (name,) = query.by
        names, cell = np.unique(picked[name].astype(str), return_inverse=True)
        return Rows(owner, cell.astype(np.int64), tuple((str(key),) for key in names), picked)
    keys: list[Key] = [()]
    cell = np.zeros(len(owner), dtype=np.int64)
    for name in query.by:
        values = table.columns[name].values
        assert values is not None
        keys = [(*key, value) for key in keys for value in values]
        place = np.zeros(len(owner), dtype=np.int64)
        for number, value in enumerate(values):
            place[picked[name] == value] = number
        cell = cell * len(values) + place
    return Rows(owner, cell, tuple(keys), picked)


def exact(query: Query, rows: Rows) -> dict[Key, list[float]]:
    """The true numbers of every cell that has rows."""
    return {
        key: [value(aggregate, rows.columns, which) for aggregate in query.aggregates] for key, which in cells(rows)
    }


def cells(rows: Rows) -> Iterator[tuple[Key, NDArray[np.int64]]]:
    order = np.argsort(rows.cell, kind="stable")
    ends = np.searchsorted(rows.cell[order], np.arange(len(rows.keys) + 1))
    for number, key in enumerate(rows.keys):
        if ends[number] < ends[number + 1]:
            yield key, order[ends[number] : ends[number + 1]]


def value(aggregate: Aggregate, columns: Columns, which: NDArray[np.int64]) -> float:
    if aggregate.kind == "count":
        return float(len(which))
    if aggregate.kind == "count distinct":
        return float(len(np.unique(columns[aggregate.column][which])))
    values = columns[aggregate.column][which].astype(np.float64)
    match aggregate.kind:
        case "sum":
            return float(values.sum())
        case "avg":
            return float(values.mean())
        case "variance":
            return float(values.var(ddof=1))
        case "stddev":
            return float(values.std(ddof=1))
        case _:
            return float(np.quantile(values, aggregate.at))
