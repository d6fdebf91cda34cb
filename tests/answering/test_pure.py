"""Pure answers in a zcdp ledger: what they cost, what they end, and that they are answers of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import dpsql
from dpsql.answering.session import Session
from dpsql.cli import commands
from dpsql.errors import BudgetExhausted, MissingDeclaration
from dpsql.noise.samplers import Sampler
from dpsql.policy.edit import set_allowance
from dpsql.policy.load import load
from dpsql.policy.problems import PolicyProblems
from dpsql.privacy.accounting import Accountant, Price, pure_price
from dpsql.privacy.mechanisms.top_keys import TopKeys
from dpsql.release import Measurement, QuerySettings
from dpsql.tables import ExactTable, NoisyTable
from tests import toy
from tests.answering.test_replay import Clinic, open_clinic

FREE = Price()
COUNT = "SELECT COUNT(*) FROM people"
BY_STATE = "SELECT state, COUNT(*) AS n FROM people GROUP BY state ORDER BY state"
TENTH = 10**14  # grains


def pure(epsilon: str) -> QuerySettings:
    return QuerySettings(epsilon=Fraction(epsilon), pure=True)


@pytest.fixture
def policy_path(clinic: Path) -> Path:
    """Epsilon 1 in all: a rho of 0.0229."""
    return toy.write_policy(clinic.parent, epsilon="1.0", query_epsilon="0.1", pure=True, users=("alice", "bob"))


@pytest.fixture
def asked(policy_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Clinic]:
    found = open_clinic(policy_path, monkeypatch)
    yield found
    found.dataset.close()


def session(asked: Clinic, user: str = "alice", **settings: str) -> Session:
    found = Session(asked.dataset, user)
    for name, value in settings.items():
        found.settings.set(name, value)
    return found


def above(number: int) -> str:
    return f"SELECT COUNT(*) FROM people WHERE income > {number}"


# --- what it costs ---


def test_a_pure_answer_costs_its_epsilon_and_the_rho_that_it_implies(asked: Clinic) -> None:
    answer = asked.ask(COUNT, settings=pure("0.5"))
    assert answer.charged == asked.spent() == pure_price([5 * TENTH]) == Price(125 * 10**12, 0, 5 * TENTH)
    (measurement,) = answer.release.measurements
    assert measurement.noises[0].law == "laplace"
    assert measurement.noises[0].scale == 2


def test_parts_cost_together_what_the_whole_does_in_epsilon_and_less_in_rho(asked: Clinic) -> None:
    release = asked.dataset.compile("SELECT COUNT(*), MEDIAN(age) FROM people", (), pure("1"))
    assert release.price.pure is not None
    assert 10 * TENTH - 4 <= release.price.pure <= 10 * TENTH
    assert release.price.loss < pure_price([5 * TENTH, 5 * TENTH]).loss


def test_keys_that_are_chosen_first_share_the_epsilon_and_not_the_rho(asked: Clinic) -> None:
    sql = (
        "SELECT date_trunc('month', seen) AS m, COUNT(DISTINCT patient_id) AS n FROM visits"
        " GROUP BY m ORDER BY n DESC, m LIMIT 1"
    )
    (measurement,) = asked.dataset.compile(sql, (), pure("0.5")).measurements
    top = measurement.mechanism
    assert isinstance(top, TopKeys)
    assert top.noise.scale == measurement.noises[0].scale == 4
    assert measurement.price == pure_price([5 * TENTH])


def test_the_price_of_a_margin_is_that_of_laplace_noise(asked: Clinic) -> None:
    release = asked.dataset.compile(COUNT, (), QuerySettings(margin=Fraction(10), pure=True))
    assert release.outputs[0].margin == 10
    assert release.price.pure is not None
    assert release.price.pure * 3 <= Accountant(load(asked_policy(asked)).privacy).pure_of(Fraction(1))


def asked_policy(asked: Clinic) -> Path:
    place: Path = asked.dataset.ledger._location  # type: ignore[attr-defined]
    return place.with_name("dpsql.toml")


def test_the_policy_decides_whether_they_are_sold(clinic: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = open_clinic(toy.write_policy(clinic.parent), monkeypatch)
    with pytest.raises(MissingDeclaration, match="pure answers are not enabled") as refusal:
        found.ask(COUNT, settings=pure("0.5"))
    assert refusal.value.sqlstate == "55000"
    assert found.spent() == FREE
    found.dataset.close()


def test_basic_accounting_has_no_second_total(clinic: Path) -> None:
    policy = toy.write_policy(clinic.parent, accounting="basic", pure=True)
    with pytest.raises(PolicyProblems, match="no meaning under basic"):
        load(policy)


def test_under_basic_accounting_the_setting_changes_no_price(clinic: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = open_clinic(toy.write_policy(clinic.parent, accounting="basic"), monkeypatch)
    assert found.dataset.compile(COUNT, (), pure("0.5")).price == Price(5 * TENTH)
    found.dataset.close()


# --- both sides ---


def test_a_session_uses_both_sides_and_is_told_where_it_stands(asked: Clinic) -> None:
    exact, others = session(asked, pure="on"), session(asked)
    assert "or epsilon 1 as pure" in exact.left()
    exact.execute(COUNT)
    assert asked.spent() == pure_price([TENTH])
    assert "or epsilon 0.9 as pure" in exact.left()
    assert "Warning: afterwards pure answers are charged in rho, like others, for all users" in others.explain(above(1))
    others.execute(above(1))
    assert asked.spent().pure is None
    assert exact.left().endswith("; pure answers are charged like others, because not all answers were pure")
    assert not any(line.startswith("Warning") for line in others.explain(above(2)))
    exact.execute(above(2))  # in what is left of rho
    with pytest.raises(BudgetExhausted) as refusal:
        asked.ask(above(3), settings=pure("0.9"))
    assert refusal.value.detail is not None
    assert "epsilon 0.9 as pure; left is epsilon" in refusal.value.detail


def test_who_would_overdraw_rho_is_warned_and_may(asked: Clinic) -> None:
    exact, others = session(asked, pure="on", epsilon="0.25"), session(asked, "bob")
    warning = "Warning: this query uses more rho than is left: afterwards only pure answers can be paid, for all users"
    assert warning in exact.explain(COUNT)
    exact.execute(COUNT)
    assert warning not in exact.explain(COUNT)  # it is bought
    assert exact.left() == others.left() == "epsilon 0.75 as pure, and nothing else"
    with pytest.raises(BudgetExhausted):
        others.execute(above(1))
    exact.settings.set("epsilon", "0.75")
    exact.execute(above(1))
    assert exact.left() == "nothing"
    assert asked.spent().pure == 10 * TENTH
    exact.settings.set("epsilon", "0.25")
    exact.execute(COUNT)  # again, for nothing
    assert asked.dataset.ledger.verify() == []


def test_an_allowance_has_both_sides_too(policy_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_allowance(policy_path, "bob", Decimal("0.2"))
    asked = open_clinic(policy_path, monkeypatch)
    bob = session(asked, "bob", pure="on", epsilon="0.1")
    assert any("for your allowance" in line for line in bob.explain(COUNT))
    bob.execute(COUNT)
    bob.execute(above(1))
    assert asked.spent("bob").pure == 2 * TENTH
    with pytest.raises(BudgetExhausted, match="bob"):
        bob.execute(above(2))
    asked.dataset.close()


# --- answers of their own ---


def test_a_pure_answer_and_another_to_the_same_question_are_two(asked: Clinic) -> None:
    one = asked.ask(BY_STATE, settings=pure("0.1"))
    other = asked.ask(BY_STATE, settings=QuerySettings(epsilon=Fraction(3, 5)))
    assert FREE not in (one.charged, other.charged)
    assert asked.ask(BY_STATE, settings=pure("0.1")).table == one.table
    assert asked.ask(BY_STATE, settings=QuerySettings(epsilon=Fraction(3, 5))).table == other.table
    assert asked.spent() == one.charged + other.charged


def test_a_choice_of_either_kind_is_another_answer(asked: Clinic) -> None:
    median = "SELECT MEDIAN(age) FROM people"
    one = asked.ask(median, settings=pure("0.2"))
    assert one.charged.loss == 4 * 10**12  # a fifth of the epsilon counts those who have an age
    other = asked.ask(median, settings=QuerySettings(epsilon=Fraction(1, 2)))
    assert other.charged != FREE
    assert asked.ask(median, settings=pure("0.2")).charged == FREE


def _fixed(values: Iterator[int]) -> Callable[[Measurement, Sequence[ExactTable], Sampler], NoisyTable]:
    def add_noise(measurement: Measurement, exact: Sequence[ExactTable], sampler: Sampler) -> NoisyTable:
        return NoisyTable(measurement.every_cell, (np.asarray([next(values)], dtype=np.int64),))

    return add_noise


def test_answers_of_both_laws_are_joined_by_their_variances(asked: Clinic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpsql.answering.dataset.add_noise", _fixed(iter([10_000, 0, 30_000])))
    exact, other = pure("0.05"), QuerySettings(epsilon=Fraction(3, 10))
    noises = [asked.dataset.compile(COUNT, (), settings).measurements[0].noises[0] for settings in (exact, other)]
    assert [noise.law for noise in noises] == ["laplace", "gaussian"]
    laplace, gaussian = 2 * float(noises[0].scale) ** 2, float(noises[1].scale)  # variances
    asked.ask(COUNT, settings=exact)
    joined = asked.ask(COUNT, settings=other, fresh=True)
    expected = 10_000 * gaussian / (laplace + gaussian)
    (((value,),), ((margin,),)) = joined.table.rows, joined.margins
    assert isinstance(value, int) and margin is not None
    assert abs(value - expected) <= 2
    alone = [asked.dataset.compile(COUNT, (), settings).outputs[0].margin for settings in (exact, other)]
    assert margin < min(float(m) for m in alone if m is not None)
    # A third is joined with both, which are as far off as they are together.
    together = laplace * gaussian / (laplace + gaussian)
    third = asked.ask(COUNT, settings=exact, fresh=True).table.rows[0][0]
    assert isinstance(third, int)
    assert abs(third - (30_000 * together + value * laplace) / (laplace + together)) <= 20


def test_what_earlier_answers_determine_is_taken_where_it_is_as_close(asked: Clinic) -> None:
    assert asked.ask(BY_STATE, settings=QuerySettings(epsilon=Fraction(1, 2))).charged != FREE
    assert asked.ask(COUNT, settings=pure("0.01")).charged == FREE
    assert asked.ask(COUNT, settings=pure("0.1")).charged == pure_price([TENTH])


# --- other ways in ---


def test_the_driver_and_the_command_line_ask_for_it(policy_path: Path) -> None:
    with dpsql.connect(policy_path, user="alice") as connection, connection.cursor() as cursor:
        cursor.execute("SET dpsql.pure = on")
        cursor.execute("SHOW dpsql.pure")
        assert cursor.fetchall() == [("on",)]
        cursor.execute(COUNT)
        assert cursor.cost is not None
        assert cursor.cost.pure == cursor.cost.charged.pure == 0.1
        assert str(cursor.cost).endswith("(rho 0.005), or epsilon 0.1 as pure")
        assert connection.budget.left.pure == 0.9
        assert connection.budget.spent.pure == 0.1
    asked = ["--user", "bob", "--policy", str(policy_path), "--pure", "--epsilon", "0.3", COUNT]
    explained = CliRunner().invoke(commands, ["explain", *asked])
    assert "or epsilon 0.3 as pure" in explained.stdout
    assert "Warning: this query uses more rho than is left" in explained.stdout
    answered = CliRunner().invoke(commands, ["query", *asked])
    assert answered.exit_code == 0, answered.stderr
    assert "left: epsilon 0.6 as pure" in answered.stderr


def test_the_owner_sees_both_balances(policy_path: Path) -> None:
    def budget() -> str:
        return CliRunner().invoke(commands, ["budget", "--policy", str(policy_path)]).stdout

    def ask(sql: str, kind: str, epsilon: str) -> None:
        with dpsql.connect(policy_path, user="alice") as connection, connection.cursor() as cursor:
            cursor.execute(f"SET dpsql.pure = {kind}")
            cursor.execute(f"SET dpsql.epsilon = {epsilon}")
            cursor.execute(sql)

    assert "left   epsilon 1 (rho 0.02294), delta 5e-07 for keys, or epsilon 1 as pure" in budget()
    assert "queries at the default price of epsilon 0.1, or 10 pure ones" in budget()
    ask(COUNT, "on", "0.1")
    assert "or epsilon 0.9 as pure" in budget()
    ask(above(1), "on", "0.4")
    found = budget()
    assert "50 % spent" in found
    assert "left   epsilon 0.5 as pure, and nothing else" in found
    assert "enough for 5 pure queries at the default price of epsilon 0.1" in found
    log = CliRunner().invoke(commands, ["log", "--policy", str(policy_path)]).stdout
    assert "as pure" in log and "0.4" in log


def test_the_owner_sees_that_nothing_more_is_paid_as_pure(policy_path: Path) -> None:
    with dpsql.connect(policy_path, user="alice") as connection, connection.cursor() as cursor:
        cursor.execute(COUNT)
    found = CliRunner().invoke(commands, ["budget", "--policy", str(policy_path)]).stdout
    assert found.count("pure   answers are charged like others, because not all answers were pure") == 3
