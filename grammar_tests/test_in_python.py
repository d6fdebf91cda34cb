"""The rest of every case, in Python and in DuckDB: the same values and margins to the last bit, whatever the noise."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from dpsql.answering.answer import Rows
from dpsql.answering.answer_store import StoredAnswer
from dpsql.answering.rest import RestOfQueries
from dpsql.compliance.cases import all_files, read
from dpsql.compliance.lab import Lab
from dpsql.errors import Error
from dpsql.lowering.in_python import FEW, InPython
from dpsql.noise.add_noise import add_noise
from dpsql.noise.samplers import Sampler
from dpsql.plan.nodes import OneRow
from dpsql.release import Measurement, Release, Rest
from dpsql.tables import ExactTable, Integers, NoisyTable
from dpsql.types import Value

SIZES = (0, 1, 30, 10**4, 10**9, 2**53 + 1, 2**60)


def shown(rows: Rows) -> list[list[tuple[type, str]]]:
    """Values with their types, as decimals of different scale and zeros of different sign differ."""
    return [[(type(value), repr(value)) for value in row] for row in rows]


def differently_noisy(chance: random.Random) -> object:
    """A noise step whose sums are of any size, and of either sign."""

    def noisy(measurement: Measurement, exact: Sequence[ExactTable], sampler: Sampler) -> NoisyTable:
        table = add_noise(measurement, exact, sampler)
        if measurement.is_search:
            return table
        sums = [_moved(column, chance) if measurement.is_sum(i) else column for i, column in enumerate(table.sums)]
        return NoisyTable(table.keys, tuple(sums))

    return noisy


def _moved(column: Integers, chance: random.Random) -> Integers:
    sizes = [chance.choice(SIZES) for _ in range(len(column))]
    return np.asarray([chance.randint(-size, size) for size in sizes], dtype=np.int64)


@pytest.mark.parametrize("path", [pytest.param(path, id=path.stem) for path in all_files()])
def test_python_and_duckdb_agree(path: Path, lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    computed = RestOfQueries.computed
    agreed = Counter[bool]()

    def both(self: RestOfQueries, release: Release, rest: Rest, known: Mapping[int, StoredAnswer]) -> Rows | None:
        ours = computed(self, release, rest, known)
        if ours is not None:
            monkeypatch.setattr(RestOfQueries, "computed", lambda *_: None)
            theirs = self.rows(release, rest, known, None)
            monkeypatch.setattr(RestOfQueries, "computed", both)
            assert shown(ours) == shown(theirs), rest.sql
        agreed[ours is not None] += 1
        return ours

    monkeypatch.setattr(RestOfQueries, "computed", both)
    chance = random.Random(path.stem)  # noqa: S311
    for case in read(path):
        for _ in range(3):
            monkeypatch.setattr("dpsql.answering.dataset.add_noise", differently_noisy(chance))
            try:
                lab.dataset(case.policy).session(case).execute(case.sql, case.params)
            except Error:
                break
    # Nobody would notice if nothing were computed in Python any more.
    assert agreed[True] > 0 or path.stem not in ("counts", "averages", "moments", "margins", "groups_declared")


def test_what_is_too_much_for_python_is_left_to_duckdb() -> None:
    columns: list[list[Value]] = [[1.0] * (FEW + 1)]
    way = InPython(0, (), (), None, only_handed_on=False, plan=OneRow())
    assert way.rows(columns) is None
