"""A few hostile texts; `python -m grammar_tests.readings` makes more. And that faults are seen."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path

import pytest

from dpsql.compliance.cases import Case, all_cases
from dpsql.compliance.lab import Lab
from grammar_tests.hostile import Hostile, words_of
from grammar_tests.oracle import Oracle
from grammar_tests.readings import Reader, shrunk

TEXTS = 1_000
BATCHES = 4  # for several workers


@pytest.fixture(scope="module")
def reader(lab: Lab, oracle: Oracle) -> Iterator[Reader]:
    with closing(Oracle()) as turned:
        turned.turn()
        yield Reader(lab, oracle, turned)


@pytest.mark.parametrize("seed", range(BATCHES))
def test_hostile_texts_are_refused_or_mean_what_postgres_means(reader: Reader, seed: int) -> None:
    outcomes = []
    for case in islice(Hostile(all_cases(), seed), TEXTS // BATCHES):
        reading = reader.read(case)
        assert reading.fault is None, f"{reading.fault}\n{case.policy} {case.params}\n{case.sql!r}"
        outcomes.append(reading.outcome)
    assert outcomes.count("answered") > TEXTS // BATCHES // 10


def test_a_text_is_made_of_its_words() -> None:
    for case in islice(Hostile(all_cases(), 1), 100):
        assert "".join(words_of(case.sql)) == case.sql


@pytest.mark.parametrize(
    "text",
    [
        "SELECT 1 = 1 = TRUE",
        "SELECT COUNT(*) FROM people WHERE CASE WHEN smoker TRUE END",
        "SELECT state,, COUNT(*) FROM people GROUP BY state",
        "SELECT REPLACE(label, , 'x') FROM kinds",
    ],
)
def test_a_misreading_is_seen(reader: Reader, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    case = Case(Path("hostile"), 0, text, "")
    assert reader.read(case).fault is None
    monkeypatch.setattr("dpsql.sql.resolve.misreading", lambda _: None)
    assert reader.read(case).fault is not None


@pytest.mark.parametrize("text", ["SELECT COUNT(*) FROM people WHERE age > 40 LIMIT 0", "SELECT SUM(age) FROM people"])
def test_another_answer_is_seen(reader: Reader, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """PostgreSQL is asked something else: neither rows nor zeros may pass for the same."""
    original = Oracle.ask

    def ask(self: Oracle, asked: str, *rest: object) -> object:
        del rest
        return original(self, asked.replace("LIMIT 0", "").replace("SUM(age)", "SUM(age) + 1 AS sum"))

    monkeypatch.setattr(Oracle, "ask", ask)
    assert reader.read(Case(Path("hostile"), 0, text, "")).fault is not None


def test_other_operands_are_seen_though_the_answer_is_the_same(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(Path("hostile"), 0, "SELECT 1 - 0 - 0 AS n", "")
    assert reader.read(case).fault is None
    monkeypatch.setattr("grammar_tests.checks.with_parentheses", lambda _: "SELECT 1 - (0 - 0) AS n")
    assert reader.read(case).fault == "operators bind otherwise than SELECT 1 - (0 - 0) AS n"


def test_a_finding_is_made_small() -> None:
    case = Case(Path("hostile"), 0, "SELECT state, COUNT(*) FROM people WHERE age < 1 < 2 AND sex = 'f'", "")
    assert shrunk(case, lambda each: "< 1 <" in each.sql).sql == "< 1 <"
