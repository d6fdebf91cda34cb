"""What noise alone would cost somebody who knows the data: a bound to see how much is left to gain.

Each number is released by itself, with all of the query's price, and everything that is not asked is known. Precisely:
- counts and sums: each person's part of the cell is clipped where all that is cut off, plus the mean noise, is least;
- averages: the number of rows is known, and the sum of differences from the true mean is released, clipped at its best;
- variances: the number of rows and the mean are known; the sum of squared differences is released, clipped likewise;
- quantiles: the value whose rank is off by Laplace noise of scale max(q, 1 - q) / epsilon;
- distinct values: Laplace noise of scale 1 / epsilon;
- unknown keys: every key of at least so many persons that it would be shown in half of all cases if nobody had another.
Laplace noise for `basic`, Gaussian for `zcdp`. It is no proof that nobody can do better; no private system could do it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.accuracy.asked import Aggregate, Answers, Case, Query, Table
from tests.accuracy.data import DELTA, EPSILON, Columns
from tests.accuracy.truth import Floats, Rows, cells, exact, read


class Noise:
    """Draws for sensitivity one, and their mean size."""

    def __init__(self, case: Case, rho: float) -> None:
        self._draw = np.random.default_rng()
        self._gaussian = case.accounting == "zcdp"
        share = len(case.queries)
        self.scale = math.sqrt(share / (2 * rho)) if self._gaussian else share / EPSILON
        self.mean_size = self.scale * (math.sqrt(2 / math.pi) if self._gaussian else 1)

    def draws(self, sensitivity: float, runs: int) -> Floats:
        drawn = self._draw.normal if self._gaussian else self._draw.laplace
        return drawn(0, sensitivity * self.scale, runs)


def answers(case: Case, table: Table, columns: Columns, runs: int, rho: float) -> Answers:
    noise = Noise(case, rho)
    found = []
    for query in case.queries:
        rows = read(query, table, columns)
        found.append(_keys(rows, runs) if query.unknown else _values(query, rows, noise, runs))
    return Answers(found)


def _values(query: Query, rows: Rows, noise: Noise, runs: int) -> list[list[list[Any]]]:
    truth = exact(query, rows)
    results: dict[Any, list[Floats]] = {}
    for key, which in cells(rows):
        _, owner = np.unique(rows.owner[which], return_inverse=True)
        results[key] = [
            _released(aggregate, true, owner, _numbers(aggregate, rows, which), noise, runs)
            for aggregate, true in zip(query.aggregates, truth[key], strict=True)
        ]
    return [
        [[list(key), [float(result[run]) for result in found]] for key, found in results.items()] for run in range(runs)
    ]


def _numbers(aggregate: Aggregate, rows: Rows, which: NDArray[np.int64]) -> Floats:
    if aggregate.kind in ("count", "count distinct"):
        return np.ones(len(which))
    return rows.numbers(aggregate.column)[which]


def _released(
    aggregate: Aggregate, true: float, owner: NDArray[np.int64], values: Floats, noise: Noise, runs: int
) -> Floats:
    size = len(values)
    match aggregate.kind:
        case "count" | "sum":
            return true + _clipped(_by_owner(owner, values), noise, runs)
        case "avg":
            return true + _clipped(_by_owner(owner, values - true), noise, runs) / size
        case "variance" | "stddev":
            mean, variance = values.mean(), values.var()
            off = _clipped(_by_owner(owner, (values - mean) ** 2 - variance), noise, runs) / size
            found: Floats = np.maximum(variance + off, 0)
            return found if aggregate.kind == "variance" else np.sqrt(found)
        case "quantile":
            ranks = aggregate.at * (size - 1) + noise.draws(max(aggregate.at, 1 - aggregate.at), runs)
            places = np.clip(np.round(ranks), 0, size - 1).astype(np.int64)
            return np.sort(values)[places]
        case _:
            return true + noise.draws(1, runs)


def _by_owner(owner: NDArray[np.int64], values: Floats) -> Floats:
    return np.bincount(owner, weights=values).astype(np.float64)


def _clipped(parts: Floats, noise: Noise, runs: int) -> Floats:
    """How far off the sum of these parts of persons is, clipped at the best of many clips."""
    sizes = np.sort(np.abs(parts))
    clips = np.unique(np.concatenate([np.quantile(sizes, 1 - np.geomspace(1e-6, 1, 60)), sizes[-1:]]))
    # Without regard to sign: differences from a mean add up to nothing, however many are cut off.
    cut = [float(np.maximum(sizes - clip, 0).sum()) for clip in clips]
    clip = float(clips[int(np.argmin(np.asarray(cut) + clips * noise.mean_size))])
    return float(np.clip(parts, -clip, clip).sum() - parts.sum()) + noise.draws(clip, runs)


def _keys(rows: Rows, runs: int) -> list[list[list[Any]]]:
    """By the optimal selection of keys where everybody has one: the threshold of mechanisms for a single key."""
    pairs = np.unique(np.stack([rows.owner, rows.cell]), axis=1)
    persons = np.bincount(pairs[1], minlength=len(rows.keys))
    grown, delta = math.exp(EPSILON), float(DELTA)
    least = math.ceil(math.log((grown + 2 * delta - 1) / ((grown + 1) * delta)) / EPSILON)
    shown = [[list(rows.keys[place]), []] for place in np.flatnonzero(persons >= least)]
    return [shown for _ in range(runs)]
