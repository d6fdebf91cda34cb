"""Tidy answers: counts not below zero, fractions without digits that noise made up; nothing else changes."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from dpsql.answering.answer import Answer
from dpsql.answering.open_dataset import open_dataset
from dpsql.answering.session import Session
from dpsql.answering.tidy import _least_squares, _rounded
from dpsql.errors import BadSetting
from tests import toy

# In 33 of the cells is nobody: that none of their noisy counts is below zero happens once in 10**9 runs.
MANY = """SELECT age, state, COUNT(*) AS n, AVG(income) AS income, SUM(age) AS s FROM people WHERE age > 80
GROUP BY age, state"""


@pytest.fixture
def session(clinic: Path) -> Iterator[Session]:
    dataset = open_dataset(toy.write_policy(clinic.parent, users=("alice",)))
    yield Session(dataset, "alice")
    dataset.close()


def column(answer: Answer, name: str) -> list[Any]:
    place = answer.table.names.index(name)
    return [row[place] for row in answer.table.rows]


def ask(session: Session, sql: str) -> Answer:
    found = session.execute(sql)
    assert isinstance(found, Answer)
    return found


def test_counts_are_not_below_zero_and_fractions_are_rounded(session: Session) -> None:
    plain = ask(session, MANY)
    session.execute("SET dpsql.tidy = on")
    tidy = ask(session, MANY)
    counts = column(plain, "n")
    assert min(counts) < 0
    assert column(tidy, "n") == [max(count, 0) for count in counts]
    assert column(tidy, "s") == column(plain, "s")  # a sum may be negative, and is whole
    assert tidy.margins == plain.margins
    margins = plain.column_margins(plain.table.names.index("income"))
    known = [place for place, margin in enumerate(margins) if margin]
    before, after = ([column(answer, "income")[place] for place in known] for answer in (plain, tidy))
    assert all(abs(a - b) <= (margins[at] or 0) / 10 for a, b, at in zip(before, after, known, strict=True))


def test_it_is_off_unless_asked_for_and_costs_nothing(session: Session) -> None:
    plain = ask(session, MANY)
    session.execute("SET dpsql.tidy = on")
    assert ask(session, MANY).charged.loss == 0
    session.execute("RESET dpsql.tidy")
    assert ask(session, MANY).table == plain.table
    with pytest.raises(BadSetting):
        session.execute("SET dpsql.tidy = perhaps")


def test_inside_a_query_counts_are_plain(session: Session) -> None:
    """The sum of noisy counts is the same as before; only counts that are shown are cut."""
    whole = f"SELECT SUM(n) AS whole FROM ({MANY}) AS q"
    plain = ask(session, whole)
    session.execute("SET dpsql.tidy = on")
    assert ask(session, whole).table.rows == plain.table.rows


@pytest.mark.parametrize(
    ("value", "margin", "expected"),
    [
        (38_812.37, 2_214.0, 38_800.0),
        (0.123456, 0.0312, 0.123),
        (-0.0004, 0.5, 0.0),
        (Decimal("12.3456"), 1.5, Decimal("12.3000")),
        (Decimal("7.0000"), 1e-9, Decimal("7.0000")),
    ],
)
def test_a_fraction_keeps_the_second_digit_of_its_margin(
    value: float | Decimal, margin: float, expected: float | Decimal
) -> None:
    assert _rounded(value, margin, 4) == expected


RUNNING = """SELECT state, age, SUM(n) OVER (PARTITION BY state ORDER BY age DESC) AS so_far,
ROUND(100.0 * SUM(n) OVER (PARTITION BY state ORDER BY age DESC) / SUM(n) OVER (PARTITION BY state), 3) AS percent
FROM (SELECT state, age, COUNT(*) AS n FROM people WHERE age > 40 GROUP BY state, age) AS t ORDER BY age, state"""


def by_state(answer: Answer, name: str) -> list[list[Any]]:
    """What is shown of each state, from the highest age on."""
    rows = list(zip(column(answer, "state"), column(answer, "age"), column(answer, name), strict=True))
    states = sorted({state for state, _, _ in rows})
    return [[value for state, _, value in sorted(rows, key=lambda row: -row[1]) if state == of] for of in states]


def test_running_totals_do_not_fall(session: Session) -> None:
    plain = ask(session, RUNNING)
    session.execute("SET dpsql.tidy = on")
    tidy = ask(session, RUNNING)
    assert any(chain != sorted(chain) for chain in by_state(plain, "so_far"))
    for name in ("so_far", "percent"):
        for before, after in zip(by_state(plain, name), by_state(tidy, name), strict=True):
            assert after == sorted(after) and min(after) >= 0
            assert [type(value) for value in after] == [type(value) for value in before]
    assert tidy.margins == plain.margins and tidy.charged.loss == 0


@pytest.mark.parametrize(
    "sql",
    [
        # Sums may fall; the age along which it rises is not shown; a frame that does not begin at the start.
        "SELECT age, SUM(s) OVER (ORDER BY age) AS x FROM (SELECT age, SUM(income) AS s FROM people GROUP BY age) AS t",
        "SELECT SUM(n) OVER (ORDER BY age) AS x FROM (SELECT age, COUNT(*) AS n FROM people GROUP BY age) AS t",
        "SELECT age, SUM(n) OVER (ORDER BY age ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) AS x"
        " FROM (SELECT age, COUNT(*) AS n FROM people GROUP BY age) AS t",
        "SELECT age, - SUM(n) OVER (ORDER BY age) AS x FROM (SELECT age, COUNT(*) AS n FROM people GROUP BY age) AS t",
    ],
)
def test_nothing_else_is_made_to_rise(session: Session, sql: str) -> None:
    assert all(output.rising is None for output in ask(session, sql).release.outputs)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([3, 1, 2, 5], [2, 2, 2, 5]),
        ([-4, -1, 0], [0, 0, 0]),
        ([1.5, 0.5], [1.0, 1.0]),
        ([Decimal("2.0"), Decimal("1.5"), None], [Decimal("2.0"), Decimal("1.5"), None]),
        ([], []),
    ],
)
def test_what_falls_shares_its_mean(values: list[Any], expected: list[Any]) -> None:
    assert _least_squares(values, 1) == expected
