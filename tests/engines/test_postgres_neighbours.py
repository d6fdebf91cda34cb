"""No unit moves a sum on PostgreSQL further than stated. A tenth of the grammar cases; all of them with DPSQL_ALL=1."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing

import pytest

from dpsql.compliance.cases import Case
from dpsql.lowering import steps
from grammar_tests.checks import neighbour_faults
from grammar_tests.neighbours import DuckDBNeighbourhood, PostgresNeighbourhood
from tests.engines.pair import ACCEPTED, Pair

CHOSEN = ACCEPTED if os.environ.get("DPSQL_ALL") else ACCEPTED[::10]


@pytest.fixture(scope="session")
def neighbourhoods(pair: Pair) -> Iterator[dict[str, PostgresNeighbourhood]]:
    found = {}
    for name in ("toy", "dirty"):
        with closing(DuckDBNeighbourhood(pair.lab.directory / f"{name}.duckdb")) as here:
            found[name] = PostgresNeighbourhood(pair.url(name), here.units)
    yield found
    for neighbourhood in found.values():
        neighbourhood.close()


def _faults(case: Case, pair: Pair, neighbourhoods: dict[str, PostgresNeighbourhood]) -> list[str]:
    answer, asked = pair.dataset(case.policy).answer(case)
    return [
        f"{name} data, {fault}"
        for name, neighbourhood in neighbourhoods.items()
        for fault in neighbour_faults(answer.release, asked, neighbourhood)
    ]


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in CHOSEN])
def test_no_unit_moves_a_sum_further_than_stated(
    case: Case, pair: Pair, neighbourhoods: dict[str, PostgresNeighbourhood]
) -> None:
    assert _faults(case, pair, neighbourhoods)[:10] == []


def test_a_missing_clip_is_noticed(
    pair: Pair, neighbourhoods: dict[str, PostgresNeighbourhood], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "clipped", lambda _, pipeline, *_rest: pipeline)
    # Unlike any grammar case, so that no compiled query is found in its place.
    sql = "SELECT kind, COUNT(*), SUM(fee), SUM(minutes + 4711) FROM visits GROUP BY kind"
    assert _faults(Case(ACCEPTED[0].path, 1, sql, ""), pair, neighbourhoods)
