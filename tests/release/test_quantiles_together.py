"""Quantiles that are asked for together cost what was said, and come in order; by group as well."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import pytest

from dpsql.answering.answer import Answer
from dpsql.answering.open_dataset import open_dataset
from dpsql.answering.session import Session
from dpsql.privacy.mechanisms.quantiles import ranks_within
from dpsql.release import Measurement
from dpsql.tables import ResultTable
from tests import toy

DECILES = ", ".join(f"PERCENTILE_DISC({i / 10}) WITHIN GROUP (ORDER BY age) AS d{i}" for i in range(1, 10))


@pytest.fixture
def session(clinic: Path) -> Iterator[Session]:
    dataset = open_dataset(toy.write_policy(clinic.parent, users=("alice",)))
    yield Session(dataset, "alice")
    dataset.close()


def ask(session: Session, sql: str) -> Answer:
    found = session.execute(sql)
    assert isinstance(found, Answer)
    return found


def spent(measurement: Measurement, group: tuple[int, ...], levels: int) -> Fraction:
    """What a unit costs that changes as much as it may, in each level at the place where it costs most."""
    ranks = tuple(measurement.statistics[i].rank or Fraction(0) for i in group)
    within, most = ranks_within(ranks), Fraction(0)
    for i, rank in zip(group, ranks, strict=True):
        l1, inside = measurement.statistics[i].sensitivity.l1, within[rank]
        most = max(most, (2 * l1 * max(inside, 1 - inside) / measurement.noises[i].scale) ** 2 / 8)
    return most * levels


def test_levels_share_the_price(session: Session) -> None:
    (measurement,) = ask(session, f"SELECT {DECILES} FROM people").release.measurements
    count, group = sorted(measurement.groups, key=len)
    counted = measurement.statistics[count[0]].sensitivity.l2_squared / (2 * measurement.noises[count[0]].scale)
    paid = measurement.price.loss_value - counted
    assert paid * Fraction(999, 1000) <= spent(measurement, group, 4) <= paid


def test_deciles_come_in_order_in_every_group(session: Session) -> None:
    rows = ask(session, f"SELECT state, COUNT(*), {DECILES} FROM people GROUP BY state").table.rows
    assert rows
    assert all(list(row[2:]) == sorted(row[2:]) for row in rows)  # type: ignore[type-var]


def test_explain_says_that_they_belong_together(session: Session) -> None:
    lines = session.execute(f"EXPLAIN SELECT MAX(age), {DECILES} FROM people")
    assert isinstance(lines, ResultTable)
    (said,) = [str(line) for (line,) in lines.rows if "one within the other" in str(line)]
    assert "9 quantiles" in said and "the price of 4 choices" in said


def test_the_same_question_is_replayed(session: Session) -> None:
    first = ask(session, f"SELECT {DECILES} FROM people")
    again = ask(session, f"SELECT {DECILES} FROM people")
    assert again.charged.loss == 0 and again.table.rows == first.table.rows
