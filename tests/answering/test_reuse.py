"""What earlier answers determine is free: which questions these are, what they say, how far off they are, who pays."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import dpsql
from dpsql.answering.answer import Answer
from dpsql.answering.reuse import _Part, _weighted, _written
from dpsql.answering.session import Session
from dpsql.noise.samplers import Sampler
from dpsql.privacy.accounting import Price
from dpsql.release import Measurement, QuerySettings
from dpsql.tables import ExactTable, NoisyTable
from tests import toy
from tests.answering.test_replay import Clinic, open_clinic

FREE = Price()
FINE = "SELECT state, smoker, COUNT(*) AS n FROM people GROUP BY state, smoker"
BY_STATE = "SELECT state, COUNT(*) AS n FROM people GROUP BY state ORDER BY state"
COUNT = "SELECT COUNT(*) FROM people"


@pytest.fixture(params=["zcdp", "basic"])
def policy_path(request: pytest.FixtureRequest, clinic: Path) -> Path:
    return toy.write_policy(clinic.parent, accounting=request.param, users=("alice", "bob"))


@pytest.fixture
def asked(policy_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Clinic]:
    found = open_clinic(policy_path, monkeypatch)
    yield found
    found.dataset.close()


def margin(answer: Answer, column: int = -1) -> float:
    (found,) = {margin for margin in answer.column_margins(column % len(answer.release.outputs)) if margin is not None}
    return found


# --- which questions ---


@pytest.mark.parametrize(
    ("sql", "cells"),
    [
        (BY_STATE, 3),  # of each state: smokers, others, and those of whom it is not known
        ("SELECT smoker, COUNT(*) AS n FROM people GROUP BY smoker ORDER BY smoker", 4),
        ("SELECT smoker, state, COUNT(*) FROM people GROUP BY smoker, state", 1),
        (COUNT, 12),
        ("SELECT COUNT(id) FROM people", 12),
        ("SELECT COUNT(DISTINCT id) FROM people", 12),
    ],
)
def test_a_coarser_question_is_free_and_as_much_further_off(asked: Clinic, sql: str, cells: int) -> None:
    fine = asked.ask(FINE)
    coarse = asked.ask(sql)
    assert coarse.charged == FREE
    assert asked.spent() == fine.charged
    assert asked.events.count("execute") == 1
    assert margin(coarse) == math.ceil(margin(fine) * math.sqrt(cells))
    assert asked.ask(sql).table == coarse.table


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT state, COUNT(*) FROM people WHERE age > 30 GROUP BY state",  # other rows
        "SELECT state, SUM(age) FROM people GROUP BY state",  # another sum
        "SELECT sex, COUNT(*) FROM people GROUP BY sex",  # another key, and unknown ones
        "SELECT state, MAX(age) FROM people GROUP BY state",
        "SELECT COUNT(*) FROM visits",
    ],
)
def test_another_question_is_bought(asked: Clinic, sql: str) -> None:
    asked.ask(FINE)
    assert asked.ask(sql).charged == asked.price(sql)


def test_sums_are_found_one_by_one(asked: Clinic) -> None:
    asked.ask("SELECT state, COUNT(*), SUM(age) FROM people GROUP BY state")
    assert asked.ask(BY_STATE).charged == FREE
    assert asked.ask("SELECT SUM(age) FROM people").charged == FREE
    asked.ask("SELECT COUNT(*) FROM people WHERE smoker")
    asked.ask("SELECT SUM(income) FROM people WHERE smoker")
    both = asked.ask("SELECT COUNT(*), SUM(income) FROM people WHERE smoker")
    assert both.charged == FREE
    assert asked.spent() == sum(map(asked.price, (BY_STATE, COUNT, COUNT)), Price())


@pytest.mark.parametrize(
    "source",
    [
        "SELECT kind, COUNT(*) FROM visits GROUP BY kind",  # unknown keys
        "SELECT date_trunc('year', seen), COUNT(*) FROM visits GROUP BY 1",  # a person is in several cells
    ],
)
def test_nothing_is_made_of_thresholds_or_of_people_in_several_cells(asked: Clinic, source: str) -> None:
    asked.ask(source)
    assert asked.ask("SELECT COUNT(*) FROM visits").charged == asked.price("SELECT COUNT(*) FROM visits")


def test_rows_without_a_declared_key_are_in_the_total(policy_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A third of the people live in a state that is not declared: no count shows them, but all of them counts them."""
    policy_path.write_text(policy_path.read_text().replace('values = ["CA", "NY", "TX"]', 'values = ["CA", "NY"]'))
    asked = open_clinic(policy_path, monkeypatch)
    dear = QuerySettings(epsilon=Fraction(9))
    shown = asked.ask(BY_STATE, settings=dear)
    whole = asked.ask(COUNT)
    asked.dataset.close()
    assert [state for state, _ in shown.table.rows] == ["CA", "NY"]
    assert whole.charged == FREE
    ((count,),) = whole.table.rows
    assert isinstance(count, int) and abs(count - toy.PEOPLE) < 60
    assert sum(n for _, n in shown.table.rows) < 500  # type: ignore[misc]


def test_a_running_total_is_made_of_counts_that_are_known(asked: Clinic) -> None:
    counts = asked.ask("SELECT age, COUNT(*) AS n FROM people GROUP BY age")
    totals = asked.ask("SELECT age, SUM(COUNT(*)) OVER (ORDER BY age) FROM people GROUP BY age ORDER BY age")
    assert totals.charged == FREE
    margins = totals.column_margins(1)
    assert margins[0] == margin(counts)
    assert margins[99] == pytest.approx(10 * margin(counts), abs=1)


# --- what was stated ---


def test_who_states_a_price_gets_what_it_buys(asked: Clinic) -> None:
    asked.ask(FINE)
    dear = QuerySettings(epsilon=Fraction(1))
    bought = asked.ask(COUNT, settings=dear)
    assert bought.charged == asked.dataset.compile(COUNT, (), dear).price
    # It is closer than the sum of the cells: a cheaper one is made of it.
    assert asked.ask(COUNT, settings=QuerySettings(epsilon=Fraction(1, 2))).charged == FREE
    assert asked.ask(COUNT).table == bought.table


def test_who_states_an_error_gets_none_wider(asked: Clinic) -> None:
    fine = asked.ask(FINE)
    wide = QuerySettings(margin=Fraction(math.ceil(4 * margin(fine))))
    assert asked.ask(COUNT, settings=wide).charged == FREE
    narrow = QuerySettings(margin=Fraction(math.floor(2 * margin(fine))))
    bought = asked.ask(COUNT, settings=narrow)
    assert bought.charged != FREE
    assert margin(bought) <= 2 * margin(fine)


def test_fresh_buys(asked: Clinic) -> None:
    asked.ask(FINE)
    assert asked.ask(COUNT, fresh=True).charged == asked.price(COUNT)


# --- who pays ---


def test_nobody_pays_for_a_wider_answer_than_a_new_one(asked: Clinic) -> None:
    """Another user's cells add up to the total, with a margin that a new answer at the same price would not have."""
    asked.ask(FINE, user="alice")
    theirs = asked.ask(BY_STATE, user="bob")
    assert theirs.charged == asked.price(BY_STATE)
    assert margin(theirs) == margin(asked.ask(FINE, user="alice"))
    assert asked.ask(BY_STATE, user="bob").charged == FREE


@pytest.mark.parametrize(
    "sql", ["SELECT smoker, state, COUNT(*) AS n FROM people GROUP BY smoker, state", FINE.replace("*", "DISTINCT id")]
)
def test_an_answer_made_of_another_users_costs_what_that_cost(asked: Clinic, sql: str) -> None:
    """Cell by cell it is the same, so as close as a new answer, which would cost as much."""
    first = asked.ask(FINE, user="alice")
    made = asked.ask(sql, user="bob")
    assert sorted(str(row[-1]) for row in made.table.rows) == sorted(str(row[-1]) for row in first.table.rows)
    assert made.charged == asked.spent("bob") == first.charged
    assert asked.ask(sql, user="bob").charged == FREE


def test_what_is_made_of_paid_answers_is_free_although_it_is_wider(asked: Clinic) -> None:
    fine = asked.ask(FINE, user="bob")
    assert asked.ask(COUNT, user="bob").charged == FREE
    assert margin(asked.ask(COUNT, user="bob")) > margin(fine)


def test_another_user_buys_what_is_cheaper_to_buy(asked: Clinic) -> None:
    asked.ask(FINE, settings=QuerySettings(epsilon=Fraction(2)))
    assert asked.ask(COUNT, user="bob").charged == asked.price(COUNT)


def test_explain_says_so_for_nothing(asked: Clinic) -> None:
    asked.ask(FINE, user="alice")
    spent = asked.spent()
    alice, bob = (Session(asked.dataset, user).explain(BY_STATE) for user in ("alice", "bob"))
    assert "Price: free" in alice and "Release 1: made of earlier answers" in alice
    assert "Note: SET dpsql.fresh = on buys a new answer" in alice
    assert "Price: free" not in bob
    assert asked.spent() == spent
    derived = asked.ask(BY_STATE)
    assert f'Margins (95 %): "n" ±{margin(derived)}' in alice


def test_many_cheap_sums_neither_push_out_what_was_dear_nor_grow_without_end(
    asked: Clinic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that is remembered of the same rows is read for every question about them, whoever asks."""
    monkeypatch.setattr("dpsql.answering.reuse.MOST_RECORDS", 4)
    lengths: list[int] = []

    def written(records: dict[str, _Part]) -> bytes:
        lengths.append(len(records))
        return _written(records)

    monkeypatch.setattr("dpsql.answering.reuse._written", written)
    asked.ask(FINE)
    filtered = "COUNT(*) FILTER (WHERE age > {})"
    for i in range(5):
        sums = ", ".join(filtered.format(2 * i + j) for j in range(2))
        asked.ask(f"SELECT {sums} FROM people", settings=QuerySettings(epsilon=Fraction(1, 1000)))
    assert max(lengths) == 4
    assert asked.ask(COUNT).charged == FREE
    last = f"SELECT {filtered.format(9)} FROM people"
    assert asked.ask(last).charged == FREE


# --- old and new ---


def test_a_new_answer_to_an_old_question_is_joined_with_it(asked: Clinic) -> None:
    first = asked.ask(COUNT)
    second = asked.ask(COUNT, fresh=True)
    assert margin(second) == pytest.approx(margin(first) / math.sqrt(2), abs=1)
    assert asked.ask(COUNT).table == second.table
    assert margin(asked.ask(COUNT)) == margin(second)
    fourth = [asked.ask(COUNT, fresh=True) for _ in range(2)][-1]
    assert margin(fourth) == pytest.approx(margin(first) / 2, abs=1)
    assert asked.spent() == sum([first.charged] * 4, Price())


def test_what_another_user_paid_for_is_not_joined(asked: Clinic) -> None:
    cheap, dear = QuerySettings(epsilon=Fraction(1, 2)), QuerySettings(epsilon=Fraction(1))
    asked.ask(COUNT, settings=dear)
    theirs = asked.ask(COUNT, settings=cheap, user="bob")
    assert margin(theirs) == asked.dataset.compile(COUNT, (), cheap).outputs[0].margin


def test_what_another_user_paid_for_is_not_joined_either_where_question_and_price_are_the_same(asked: Clinic) -> None:
    cheap = QuerySettings(epsilon=Fraction(1, 10))
    first = asked.ask(COUNT, settings=cheap)
    theirs = asked.ask(COUNT, settings=cheap, user="bob", fresh=True)
    assert (theirs.charged, margin(theirs)) == (first.charged, margin(first))
    assert margin(asked.ask(COUNT, settings=cheap, user="bob", fresh=True)) < margin(first)


@pytest.fixture
def changing(policy_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Clinic]:
    """Answers expire, since the data change."""
    text = policy_path.read_text()
    policy_path.write_text(text.replace("[tables.people]", "[limits]\nreplay_days = 30\n\n[tables.people]", 1))
    found = open_clinic(policy_path, monkeypatch)
    yield found
    found.dataset.close()


def test_nothing_is_joined_where_the_data_change(changing: Clinic, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mean of yesterday's count and today's is true of neither day, and its margin of none."""
    monkeypatch.setattr("dpsql.answering.dataset.add_noise", _fixed(iter([600, 1200])))
    first = changing.ask(COUNT)
    second = changing.ask(COUNT, fresh=True)
    assert second.table.rows == changing.ask(COUNT).table.rows == [(1200,)]
    assert margin(second) == margin(first)


def test_where_the_data_change_an_answer_is_made_of_one_other_alone(changing: Clinic) -> None:
    """An average is no quotient of a sum and a count of different days."""
    changing.ask(BY_STATE)
    changing.ask("SELECT state, COUNT(*) FILTER (WHERE age > 50) FROM people GROUP BY state")
    assert changing.ask(COUNT).charged == FREE
    both = "SELECT COUNT(*), COUNT(*) FILTER (WHERE age > 50) FROM people"
    assert changing.ask(both).charged == changing.price(both)


def test_the_joined_answer_is_the_weighted_mean(asked: Clinic, monkeypatch: pytest.MonkeyPatch) -> None:
    dear = QuerySettings(epsilon=Fraction(1, 10))
    noise = iter([1000, 40])
    monkeypatch.setattr("dpsql.answering.dataset.add_noise", _fixed(noise))
    asked.ask(COUNT, settings=dear)
    joined = asked.ask(COUNT, settings=QuerySettings(epsilon=Fraction(1)))
    compiled = [asked.dataset.compile(COUNT, (), settings) for settings in (dear, QuerySettings(Fraction(1)))]
    one, other = (release.measurements[0].deviation(0) for release in compiled)
    weight = one**2 / (one**2 + other**2)
    assert joined.table.rows == [(round(40 * weight + 1000 * (1 - weight)),)]


def _fixed(values: Iterator[int]) -> Callable[[Measurement, Sequence[ExactTable], Sampler], NoisyTable]:
    def add_noise(measurement: Measurement, exact: Sequence[ExactTable], sampler: Sampler) -> NoisyTable:
        return NoisyTable(measurement.every_cell, (np.asarray([next(values)], dtype=np.int64),))

    return add_noise


def test_a_weighted_mean_lies_between_both_however_large_they_are() -> None:
    new, old = np.asarray([[2**61, -(2**61), 7, 0], [-(2**61), 2**61, 7, 10**6]], dtype=np.int64)
    for share in (0.0, 0.25, 0.5, 1.0):
        found = _weighted(new, share, old)
        exact = [Fraction(share) * int(a) + (1 - Fraction(share)) * int(b) for a, b in zip(new, old, strict=True)]
        assert found.tolist() == [int(wanted) for wanted in exact]


def test_an_answer_that_has_expired_is_no_source(policy_path: Path) -> None:
    text = policy_path.read_text().replace("[tables.people]", "[limits]\nreplay_days = 1e-9\n\n[tables.people]", 1)
    policy_path.write_text(text)
    with dpsql.connect(policy_path, user="alice") as connection, connection.cursor() as cursor:
        cursor.execute(FINE)
        cursor.execute(COUNT)
        assert cursor.cost is not None and cursor.cost.charged.grains != FREE
