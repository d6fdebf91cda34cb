"""From answers to figures: how far off, or how many keys."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.accuracy.asked import Answers, Case, Table
from tests.accuracy.data import Columns
from tests.accuracy.tables import TABLES
from tests.accuracy.truth import Key, exact, read

System = str
DPSQL, SMARTNOISE, OPENDP, NAIVE, ORACLE = SYSTEMS = ("dpsql", "smartnoise-sql", "opendp", "naive", "oracle")
PEERS = (SMARTNOISE, OPENDP)
EXACT = 1e-7  # as good as exact; smaller errors count as this one


@dataclass
class Figure:
    """A system's figure for a case: a median relative error, or a median number of keys."""

    value: float | None
    runs: int = 0
    refused: str = ""
    parts: dict[str, float] = field(default_factory=dict)  # by aggregate, or by query of a session


class Truth:
    """The exact answers of a case, computed once for all systems."""

    def __init__(self, case: Case, table: Table, columns: Columns) -> None:
        self._case = case
        self._exact = [exact(query, read(query, table, columns)) for query in case.queries if not query.unknown]

    def figure(self, answers: Answers) -> Figure:
        if answers.refused:
            return Figure(None, refused=answers.refused)
        runs = len(answers.runs[0])
        if self._case.unknown:
            return Figure(statistics.median(len(run) for run in answers.runs[0]), runs)
        parts: dict[str, float] = {}
        for number, (query, truth, found) in enumerate(zip(self._case.queries, self._exact, answers.runs, strict=True)):
            for place, aggregate in enumerate(query.aggregates):
                name = str(aggregate) if len(self._case.queries) == 1 else f"query {number + 1}: {aggregate}"
                whole = aggregate.kind in ("count", "count distinct")
                parts[name] = statistics.median(_errors(truth, found, place, whole=whole))
        return Figure(combined(parts), runs, "", parts)


def combined(parts: dict[str, float]) -> float:
    """Of several numbers the geometric mean: each weighs the same, whatever its size."""
    return statistics.geometric_mean([max(part, EXACT) for part in parts.values()])


def _errors(truth: dict[Key, list[float]], runs: Sequence[Any], place: int, *, whole: bool) -> list[float]:
    """Of every cell that has rows, in every run. No answer is as far off as a zero.

    The errors of whole numbers are spread by a half to both sides: else their median would jump from 0 to 1 by chance.
    """
    errors = []
    spread = np.random.default_rng(0)
    for run in runs:
        found = {tuple(str(part) for part in key): values for key, values in run}
        for key, true in truth.items():
            values = found.get(tuple(str(part) for part in key))
            noisy = None if values is None else values[place]
            if true[place]:
                off = spread.uniform(-0.5, 0.5) if whole else 0.0
                errors.append(1.0 if noisy is None else abs(noisy + off - true[place]) / abs(true[place]))
    return errors


@dataclass
class Line:
    """A case with the figures of all systems."""

    case: Case
    figures: dict[System, Figure]

    @property
    def best_peer(self) -> float | None:
        found = [self.figures[peer].value for peer in PEERS if peer in self.figures]
        answered = [value for value in found if value is not None]
        if not answered:
            return None
        return max(answered) if self.case.unknown else min(answered)

    @property
    def ratio(self) -> float | None:
        """Above one, dpsql is better than the best peer by so much."""
        ours = self.figures[DPSQL].value if DPSQL in self.figures else None
        if ours is None or self.best_peer is None:
            return None
        if self.case.unknown:
            return ours / max(self.best_peer, 1)
        return self.best_peer / ours

    @property
    def doubt(self) -> float:
        """Two standard errors of the ratio, as a part of it: the median of N Laplace noises has 1.44 / sqrt(N)."""
        if self.case.unknown:
            return 0.0
        runs = [figure.runs for system, figure in self.figures.items() if system in (DPSQL, *PEERS) and figure.runs]
        numbers = sum(len(query.aggregates) * _cells(self.case, query.by) for query in self.case.queries)
        return 2 * 1.44 * math.sqrt(2 / (min(runs, default=1) * numbers))

    @property
    def missed(self) -> bool:
        """Whether the ratio is below what is wanted by more than chance explains."""
        return self.ratio is not None and self.ratio * (1 + self.doubt) < self.case.better


def _cells(case: Case, by: Sequence[str]) -> int:
    return math.prod(len(TABLES[case.table].columns[name].values or ()) for name in by)
