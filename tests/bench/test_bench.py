"""That what is measured can be asked: every query of the comparison, on a few rows."""

from __future__ import annotations

from dpsql.answering.session import Session
from tests.bench.against_peers import QUERIES
from tests.bench.cases import CASES
from tests.bench.datasets import on_duckdb


def test_every_query_is_answered_by_both() -> None:
    with on_duckdb(50, prepared=True) as dataset:
        assert dataset.prepared is not None
        session, prepared = Session(dataset.dataset, "bench"), Session(dataset.prepared, "bench")
        for case in CASES:
            if "100,000" not in case.name:
                assert session.execute(case.private) is not None
                assert prepared.execute(case.private) is not None
                assert dataset.raw(case.beside)
        for sql in QUERIES.values():
            assert session.execute(sql) is not None
