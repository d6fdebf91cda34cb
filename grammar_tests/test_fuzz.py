"""A few made-up queries each time; `python -m grammar_tests.fuzz` makes more. And what a finding is shrunk to."""

from __future__ import annotations

from dpsql.compliance.lab import Lab
from grammar_tests.fuzz import Maker, Query, fault, shrunk
from grammar_tests.neighbours import Neighbourhood

QUERIES = 40


def test_made_up_queries_are_refused_or_private(lab: Lab, dirty: Neighbourhood) -> None:
    maker = Maker(20)
    outcomes = []
    for _ in range(QUERIES):
        query = maker.query()
        outcome, wrong = fault(query, lab, [dirty])
        assert wrong is None, f"{wrong}\n{query}"
        outcomes.append(outcome)
    assert outcomes.count("answered") > QUERIES // 4


def test_a_finding_is_made_small() -> None:
    query = Query("people AS p", ("COUNT(*)", "SUM(p.age)"), ("p.age > 3", "p.id = 777"), ("p.sex",), " ORDER BY 1")
    assert shrunk(query, lambda each: "777" in str(each)) == Query("people AS p", ("SUM(p.age)",), ("p.id = 777",))
