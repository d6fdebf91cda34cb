"""The textbook: keep so many rows of a person, clamp them, give every statistic an equal part of epsilon, add Laplace.

A quantile is read off a noisy histogram of a hundred equal bins. Unknown keys: half of epsilon for a noisy count of
persons and a threshold, half for the values. Queries of a session share epsilon equally. For comparison only: floats.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tests.accuracy.asked import Aggregate, Answers, Case, Query, Table
from tests.accuracy.data import DELTA, EPSILON, Columns
from tests.accuracy.truth import Floats, Rows, read

BINS = 100
Statistic = tuple[str, str]


def answers(case: Case, table: Table, columns: Columns, runs: int) -> Answers:
    draw = np.random.default_rng()
    epsilon = EPSILON / len(case.queries)
    found = []
    for query in case.queries:
        rows = _limited(read(query, table, columns), table.rows, draw)
        asked = _keys if query.unknown else _values
        found.append(asked(query, table, rows, epsilon, runs, draw))
    return Answers(found)


def _limited(rows: Rows, most: int, draw: np.random.Generator) -> Rows:
    """At most so many rows of each person, chosen at random."""
    shuffled = draw.permutation(len(rows.owner))
    order = shuffled[np.argsort(rows.owner[shuffled], kind="stable")]
    owner = rows.owner[order]
    first = np.searchsorted(owner, owner, side="left")
    return rows.kept(order[np.arange(len(owner)) - first < most])


def _values(
    query: Query, table: Table, rows: Rows, epsilon: float, runs: int, draw: np.random.Generator
) -> list[list[list[Any]]]:
    wanted = list(dict.fromkeys(part for aggregate in query.aggregates for part in _parts(aggregate)))
    noisy = {part: _measured(part, table, rows, len(wanted) / epsilon, runs, draw) for part in wanted}
    results = [_result(aggregate, table, noisy) for aggregate in query.aggregates]
    return [
        [[list(key), [float(result[run, cell]) for result in results]] for cell, key in enumerate(rows.keys)]
        for run in range(runs)
    ]


def _parts(aggregate: Aggregate) -> list[Statistic]:
    name = aggregate.column
    match aggregate.kind:
        case "count":
            return [("count", "")]
        case "sum":
            return [("sum", name)]
        case "avg":
            return [("sum", name), ("count", "")]
        case "variance" | "stddev":
            return [("square", name), ("sum", name), ("count", "")]
        case "quantile":
            return [("histogram", name)]
        case _:
            return [("distinct", name)]


def _measured(part: Statistic, table: Table, rows: Rows, scale: float, runs: int, draw: np.random.Generator) -> Floats:
    """By run and cell; a histogram has its bins as a third dimension. `scale` is that of sensitivity one."""
    kind, name = part
    cells = len(rows.keys)
    if kind == "count":
        counts = np.bincount(rows.cell, minlength=cells).astype(float)
        return counts + draw.laplace(0, table.rows * scale, (runs, cells))
    if kind == "distinct":
        distinct = np.array([len(np.unique(rows.columns[name][rows.cell == cell])) for cell in range(cells)])
        return distinct + draw.laplace(0, table.rows * scale, (runs, cells))
    lower, upper = table.columns[name].lower, table.columns[name].upper
    assert lower is not None and upper is not None
    clamped = np.clip(rows.numbers(name), lower, upper)
    if kind == "histogram":
        bins = np.minimum((clamped - lower) / (upper - lower) * BINS, BINS - 1).astype(np.int64)
        counts = np.bincount(rows.cell * BINS + bins, minlength=cells * BINS).reshape(cells, BINS).astype(float)
        return counts + draw.laplace(0, table.rows * scale, (runs, cells, BINS))
    largest = max(abs(lower), abs(upper))
    power = 2 if kind == "square" else 1
    sums = np.bincount(rows.cell, weights=clamped**power, minlength=cells)
    return sums + draw.laplace(0, table.rows * largest**power * scale, (runs, cells))


def _result(aggregate: Aggregate, table: Table, noisy: dict[Statistic, Floats]) -> Floats:
    parts = [noisy[part] for part in _parts(aggregate)]
    match aggregate.kind:
        case "count" | "sum" | "count distinct":
            return parts[0]
        case "avg":
            return parts[0] / np.maximum(parts[1], 1)
        case "quantile":
            column = table.columns[aggregate.column]
            assert column.lower is not None and column.upper is not None
            below = np.cumsum(parts[0], axis=2)
            reached = np.argmax(below >= aggregate.at * below[:, :, -1:], axis=2)
            middle: Floats = column.lower + (reached + 0.5) * (column.upper - column.lower) / BINS
            return middle
        case _:
            size = np.maximum(parts[2], 2)
            variance = np.maximum(parts[0] / size - (parts[1] / size) ** 2, 0)
            return variance if aggregate.kind == "variance" else np.sqrt(variance)


def _keys(
    query: Query, table: Table, rows: Rows, epsilon: float, runs: int, draw: np.random.Generator
) -> list[list[list[Any]]]:
    pairs = np.unique(np.stack([rows.owner, rows.cell]), axis=1)
    persons = np.bincount(pairs[1], minlength=len(rows.keys))
    scale = table.rows / (epsilon / 2)
    threshold = 1 + scale * math.log(table.rows / (2 * float(DELTA)))
    shown = persons + draw.laplace(0, scale, (runs, len(persons))) > threshold
    return [[[list(rows.keys[place]), []] for place in np.flatnonzero(run)] for run in shown]
