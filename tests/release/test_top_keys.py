"""The keys with most people, chosen first: the law of the choice, what a unit changes, and how close the counts are."""

from __future__ import annotations

import math
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import duckdb
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpsql.answering.answer import Answer
from dpsql.answering.open_dataset import open_dataset
from dpsql.answering.session import Session
from dpsql.noise.samplers import SystemSampler
from dpsql.privacy.mechanisms.top_keys import TopKeys, chosen_keys, share_of_choice, share_of_counts, worthwhile
from dpsql.privacy.noise_laws import epsilon_of_choice
from dpsql.privacy.rules.aggregates import Cells, StatisticKind
from dpsql.tables import ResultTable

POLICY = """
[database]
url = "duckdb:///shop.duckdb"
[privacy]
epsilon = 40.0
delta = 1e-6
query_epsilon = 1.0
accounting = "{accounting}"
[tables.orders]
unit = "person"
max_rows_per_unit = 40
tight = true
[tables.orders.columns]
product = {{ min = 0, max = 199 }}
amount = {{ min = 0, max = 9 }}
[users.alice]
"""
TOP = "SELECT product, COUNT(DISTINCT person) AS people FROM orders GROUP BY product ORDER BY people DESC LIMIT 4"


@pytest.fixture(params=["zcdp", "basic"])
def session(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Session]:
    with duckdb.connect(str(tmp_path / "shop.duckdb")) as connection:
        # Everybody buys forty products; 0 to 3 are bought by all, the others by about one in five.
        connection.execute(
            "CREATE TABLE orders AS SELECT p AS person, CASE WHEN i < 4 THEN i ELSE 4 + (p * 7 + i * 5) % 196 END AS"
            " product, p % 10 AS amount FROM range(3000) AS a(p), range(40) AS b(i)"
        )
    (tmp_path / "dpsql.toml").write_text(POLICY.format(accounting=request.param))
    dataset = open_dataset(tmp_path / "dpsql.toml")
    yield Session(dataset, "alice")
    dataset.close()


def ask(session: Session, sql: str = TOP) -> Answer:
    found = session.execute(sql)
    assert isinstance(found, Answer)
    return found


def test_the_keys_with_most_people_are_found_and_counted(session: Session) -> None:
    answer = ask(session)
    (measurement,) = answer.release.measurements
    top = measurement.mechanism
    assert isinstance(top, TopKeys) and top.keys == 4
    assert {row[0] for row in answer.table.rows} == {0, 1, 2, 3}
    margin = answer.release.outputs[1].margin
    assert margin is not None
    assert all(isinstance(row[1], int) and abs(row[1] - 3000) <= 8 * margin for row in answer.table.rows)


def test_it_is_closer_than_counts_of_all_keys(session: Session) -> None:
    chosen = ask(session).release.outputs[1].margin
    every = ask(session, TOP.replace("LIMIT 4", "LIMIT 40")).release.outputs[1].margin
    assert chosen is not None and every is not None and every > 2 * chosen


def test_it_is_replayed_and_nothing_is_made_of_it(session: Session) -> None:
    first = ask(session)
    assert ask(session).charged.loss == 0 and ask(session).table.rows == first.table.rows
    assert ask(session, "SELECT COUNT(DISTINCT person) FROM orders").charged.loss > 0


def test_both_halves_are_paid_for(session: Session) -> None:
    (measurement,) = ask(session).release.measurements
    top = measurement.mechanism
    assert isinstance(top, TopKeys)
    loss, noise, choice = measurement.price.loss_value, measurement.noises[0], top.noise
    if noise.law == "laplace":
        paid = 4 / noise.scale + 4 / choice.scale
    else:
        paid = 4 / (2 * noise.scale) + 4 * (1 / choice.scale) ** 2 / 8
    assert loss * Fraction(999, 1000) <= paid <= loss


BESIDE = TOP.replace(" AS people", " AS people, SUM(amount) AS amount, AVG(amount) AS mean, COUNT(*) AS n")


def test_beside_other_sums_the_count_pays_for_the_choice(session: Session) -> None:
    """All costs add up to the price, and the other sums are as noisy as if all keys were counted."""
    (chosen,) = ask(session, BESIDE).release.measurements
    (every,) = ask(session, BESIDE.replace("LIMIT 4", "LIMIT 40")).release.measurements
    top = chosen.mechanism
    assert isinstance(top, TopKeys) and chosen.price == every.price
    assert not isinstance(every.mechanism, TopKeys)
    by = top.by
    assert chosen.statistics[by].kind is StatisticKind.UNITS
    others = [i for i in range(len(chosen.statistics)) if i != by]
    assert others and all(chosen.noises[i] == every.noises[i] for i in others)
    assert chosen.margin(by) * 2 < every.margin(by)
    paid = Fraction(0)
    for group in chosen.groups:  # each group costs what one of its sums would
        sensitivity, noise = chosen.statistics[group[0]].sensitivity, chosen.noises[group[0]]
        is_pure = noise.law == "laplace"
        paid += sensitivity.l1 / noise.scale if is_pure else sensitivity.l2_squared / (2 * noise.scale)
    choice = top.noise.scale
    paid += 4 / choice if chosen.noises[by].law == "laplace" else 4 * (1 / choice) ** 2 / 8
    assert chosen.price.loss_value * Fraction(999, 1000) <= paid <= chosen.price.loss_value


def test_beside_other_sums_the_keys_are_found_and_every_sum_is_theirs(session: Session) -> None:
    answer = ask(session, BESIDE)
    assert {row[0] for row in answer.table.rows} == {0, 1, 2, 3}
    for row, margins in zip(answer.table.rows, answer.margins, strict=True):
        for value, margin, truth in zip(row[1:], margins[1:], (3_000, 13_500, 4.5, 3_000), strict=True):
            assert isinstance(value, int | float | Decimal) and margin is not None
            assert abs(float(value) - truth) <= 8 * margin  # of Laplace noise, beyond once in 10**10 times


def test_the_count_that_is_sorted_by_chooses(session: Session) -> None:
    """Also where two questions differ in nothing else."""
    few = "COUNT(DISTINCT person) FILTER (WHERE amount = 0)"
    counts = f"{few} AS few, COUNT(DISTINCT person) AS people"
    sql = f"SELECT product, {counts} FROM orders GROUP BY 1 ORDER BY {{}} DESC LIMIT 4"
    (first,), (second,) = (ask(session, sql.format(name)).release.measurements for name in ("few", "people"))
    one = first.mechanism
    other = second.mechanism
    assert isinstance(one, TopKeys) and isinstance(other, TopKeys)
    assert first.statistics[one.by].where is not None and second.statistics[other.by].where is None
    assert ask(session, sql.format("few")).charged.loss == 0


def test_explain_says_so(session: Session) -> None:
    lines = session.execute(f"EXPLAIN {TOP}")
    assert isinstance(lines, ResultTable)
    (said,) = [str(line) for (line,) in lines.rows if "Keys:" in str(line)]
    assert "200 declared; the 4 with most units are chosen first" in said


@given(
    counts=st.lists(st.integers(0, 9), min_size=3, max_size=6),
    added=st.lists(st.booleans(), min_size=6, max_size=6),
    keys=st.integers(1, 2),
)
def test_no_unit_shows_more_than_its_price_whatever_keys_it_has(
    counts: list[int], added: list[bool], keys: int
) -> None:
    """The exact law of all choices, with the unit and without; of one choice, the range of the loss as well."""
    epsilon = Fraction(1, 2)
    top = chosen_keys(keys, epsilon, "laplace")
    more = [count + one for count, one in zip(counts, added, strict=False)]
    ones, others = _law(counts, top), _law(more, top)
    losses = [math.log(ones[order] / others[order]) for order in ones]
    assert max(map(abs, losses)) <= float(epsilon) * (1 + 1e-9)
    if keys == 1:
        assert max(losses) - min(losses) <= float(epsilon) * (1 + 1e-9)


def _law(counts: list[int], top: TopKeys) -> dict[tuple[int, ...], float]:
    weights = [math.exp(count / float(top.noise.scale)) for count in counts]
    found: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(top.keys):
        found = {
            (*order, key): chance * weights[key] / sum(w for k, w in enumerate(weights) if k not in order)
            for order, chance in found.items()
            for key in range(len(counts))
            if key not in order
        }
    return found


def test_a_choice_costs_an_eighth_of_its_squared_epsilon_in_zcdp() -> None:
    top = chosen_keys(5, Fraction(1, 100), "gaussian")
    assert 1 / top.noise.scale <= epsilon_of_choice(Fraction(1, 500))
    assert share_of_choice(Fraction(1)) + share_of_counts(Fraction(1)) == 1


@pytest.mark.parametrize(
    ("keys", "groups", "cells", "expected"),
    [(5, 20, 100, True), (5, 19, 100, False), (20, 80, 20, False), (0, 20, 100, False), (1, 1, 100, False)],
)
def test_it_is_done_where_units_may_have_many_times_as_many_keys(
    keys: int, groups: int, cells: int, expected: bool
) -> None:
    assert worthwhile(keys, Cells(True, groups, False), cells) is expected


def test_a_chosen_key_is_within_its_margin_of_those_left_out() -> None:
    top, counts, draws = chosen_keys(3, Fraction(1), "laplace"), np.arange(40) * 2, 400
    away = 0
    for _ in range(draws):
        left = list(range(len(counts)))
        for _ in range(top.keys):
            losses = counts[left].max() - counts[left]
            del left[SystemSampler().exponential(np.ones_like(losses), losses, top.noise.scale)]
        chosen = min(counts[i] for i in range(len(counts)) if i not in left)
        away += counts[left].max() - chosen > top.margin(len(counts))
    assert away <= draws / 20
