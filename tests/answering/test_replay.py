"""What is paid, when, and by whom; and which questions an answer already released serves."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import groupby
from pathlib import Path

import pytest

from dpsql.answering.answer import Answer
from dpsql.answering.dataset import Dataset
from dpsql.answering.open_dataset import build_dataset, open_backend
from dpsql.effort import Cancellation
from dpsql.engines.base import Engine
from dpsql.errors import BudgetExhausted, Cancelled, EngineFailed, TooManyRows
from dpsql.ledger import Ledger, Purchase, Receipt
from dpsql.lowering.dialect import Dialect
from dpsql.lowering.query import EngineQuery
from dpsql.noise.samplers import SystemSampler
from dpsql.policy.load import load
from dpsql.policy.model import DatabaseSchema
from dpsql.privacy.accounting import Price
from dpsql.release import QuerySettings
from dpsql.tables import ExactTable
from dpsql.types import Value
from tests import toy

FREE = Price()
COUNT = "SELECT COUNT(*) FROM people"
BY_STATE = "SELECT state, COUNT(*) AS n FROM people GROUP BY state"
ABOVE = "SELECT COUNT(*) FROM people WHERE income > (SELECT AVG(income) FROM people)"


@dataclass
class WatchedBackend:
    """The real backend; says when it is asked, and may be told to fail."""

    inner: Engine
    events: list[str]
    fail: Callable[[], None] = lambda: None

    @property
    def dialect(self) -> Dialect:
        return self.inner.dialect

    def schema(self) -> DatabaseSchema:
        return self.inner.schema()

    def warnings(self, sources: Sequence[tuple[str, ...]]) -> list[str]:
        return self.inner.warnings(sources)

    def ready(
        self, sources: Sequence[tuple[str, ...]], *, timeout: float, cancellation: Cancellation | None = None
    ) -> None:
        self.inner.ready(sources, timeout=timeout, cancellation=cancellation)

    def execute(
        self, queries: Sequence[EngineQuery], *, timeout: float, cancellation: Cancellation | None = None
    ) -> list[ExactTable]:
        self.events.append("execute")
        self.fail()
        return self.inner.execute(queries, timeout=timeout, cancellation=cancellation)

    def read_public(self, source: tuple[str, ...], columns: Sequence[str], limit: int) -> list[list[Value]]:
        return self.inner.read_public(source, columns, limit)

    def is_unique(self, source: tuple[str, ...], columns: tuple[str, ...]) -> bool:
        return self.inner.is_unique(source, columns)

    def close(self) -> None:
        self.inner.close()


@dataclass
class Clinic:
    """An engine on the toy dataset, and what happened to its ledger and its backend, in order."""

    dataset: Dataset
    engine: WatchedBackend
    events: list[str] = field(default_factory=list)

    def ask(
        self,
        sql: str,
        parameters: Sequence[Value] = (),
        *,
        settings: QuerySettings | None = None,
        user: str = "alice",
        fresh: bool = False,
        cancellation: Cancellation | None = None,
    ) -> Answer:
        release = self.dataset.compile(sql, parameters, settings or QuerySettings())
        return self.dataset.answer(release, user=user, sql=sql, fresh=fresh, cancellation=cancellation)

    def price(self, sql: str) -> Price:
        return self.dataset.compile(sql, (), QuerySettings()).price

    def spent(self, user: str | None = None) -> Price:
        return self.dataset.ledger.spent(user)


def open_clinic(policy_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clinic:
    policy = load(policy_path)
    events: list[str] = []
    engine = WatchedBackend(open_backend(policy), events)
    dataset = build_dataset(policy, engine, SystemSampler())
    _watch(dataset.ledger, events, monkeypatch)
    return Clinic(dataset, engine, events)


def _watch(ledger: Ledger, events: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    charge, store = ledger.charge, ledger.store

    def charged(user: str, purchases: Sequence[Purchase], *, sql: str, cancellation: Cancellation | None) -> Receipt:
        paid = charge(user, purchases, sql=sql, cancellation=cancellation)
        events.append("charge")
        return paid

    def stored(key: bytes, answer: bytes, beside: Mapping[bytes, bytes]) -> None:
        store(key, answer, beside)
        events.append("store")

    monkeypatch.setattr(ledger, "charge", charged)
    monkeypatch.setattr(ledger, "store", stored)


@pytest.fixture
def policy_path(clinic: Path) -> Path:
    return toy.write_policy(clinic.parent, users=("alice", "bob"))


@pytest.fixture
def asked(policy_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Clinic]:
    found = open_clinic(policy_path, monkeypatch)
    yield found
    found.dataset.close()


# --- the same question ---


@pytest.mark.parametrize("sql", [COUNT, BY_STATE, ABOVE, "SELECT sex, AVG(income) FROM people GROUP BY sex"])
def test_the_same_question_gets_the_same_answer_for_nothing(asked: Clinic, sql: str) -> None:
    first = asked.ask(sql)
    assert first.charged == asked.price(sql) != FREE
    del asked.events[:]
    second = asked.ask(sql)
    assert second.table == first.table
    assert second.charged == FREE
    assert asked.spent() == asked.spent("alice") == first.charged
    assert "execute" not in asked.events


@pytest.mark.parametrize(
    "variant",
    [
        "select  state , count( * ) as n  from  people  group by 1 -- the same",
        'SELECT p."state" AS s, COUNT(*) FROM public.people AS p GROUP BY p.state',
        f"{BY_STATE} ORDER BY n DESC",
        f"SELECT * FROM ({BY_STATE}) AS q",
        f"WITH q AS ({BY_STATE}) SELECT state, n FROM q WHERE n IS NOT NULL",
    ],
)
def test_what_differs_only_in_writing_or_above_the_release_is_the_same_question(asked: Clinic, variant: str) -> None:
    first = asked.ask(BY_STATE)
    second = asked.ask(variant)
    assert second.charged == FREE
    assert sorted(second.table.rows) == sorted(first.table.rows)


def test_limits_and_orders_show_parts_of_one_answer(asked: Clinic) -> None:
    rows = asked.ask(BY_STATE).table.rows
    largest = asked.ask(f"{BY_STATE} ORDER BY n DESC LIMIT 1")
    rest = asked.ask(f"{BY_STATE} ORDER BY n DESC OFFSET 1")
    doubled = asked.ask("SELECT state, 2 * COUNT(*) FROM people GROUP BY state")
    assert (largest.charged, rest.charged, doubled.charged) == (FREE, FREE, FREE)
    assert sorted(largest.table.rows + rest.table.rows) == sorted(rows)
    assert sorted(doubled.table.rows) == sorted((state, 2 * n) for state, n in rows)  # type: ignore[operator]


def test_an_answer_outlives_the_engine(asked: Clinic, policy_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = asked.ask(BY_STATE)
    asked.dataset.close()
    again = open_clinic(policy_path, monkeypatch)
    second = again.ask(BY_STATE)
    assert second.table == first.table
    assert second.charged == FREE
    again.dataset.close()


def test_fresh_buys_a_new_answer_which_then_replaces_the_old(asked: Clinic) -> None:
    first = asked.ask(BY_STATE)
    second = asked.ask(BY_STATE, fresh=True)
    assert second.charged == first.charged
    assert asked.spent() == first.charged + second.charged
    assert asked.ask(BY_STATE).table == second.table


# --- another question ---


def test_other_parameters_are_another_question(asked: Clinic) -> None:
    sql = "SELECT COUNT(*) FROM people WHERE age > $1"
    assert asked.ask(sql, (30,)).charged != FREE
    assert asked.ask(sql, (31,)).charged != FREE
    assert asked.ask(sql, (None,)).charged != FREE
    assert asked.ask(sql, (30,)).charged == FREE


def test_parameters_that_look_alike_do_not_collide(asked: Clinic) -> None:
    sql = "SELECT COUNT(*) FROM people WHERE state = $1 AND sex = $2"
    for parameters in [("CA", "f"), ("CA'", "f"), ("CA", "'f"), ("f", "CA"), ("", "CAf")]:
        assert asked.ask(sql, parameters).charged != FREE
    assert asked.ask(sql, ("CA", "f")).charged == FREE


def test_a_higher_price_is_another_question(asked: Clinic) -> None:
    """Otherwise a cheap answer would be shown as a dear one."""
    cheap, dear = QuerySettings(epsilon=Fraction(1, 2)), QuerySettings(epsilon=Fraction(1))
    first = asked.ask(COUNT, settings=cheap)
    second = asked.ask(COUNT, settings=dear)
    assert FREE != first.charged != second.charged != FREE
    assert asked.ask(COUNT, settings=cheap).table == first.table
    assert asked.ask(COUNT, settings=dear).table == second.table


def test_a_lower_price_is_answered_with_what_was_paid_for_and_not_by_others(asked: Clinic) -> None:
    """A dear answer is not had for little: who never paid for it buys a cheap one."""
    cheap, dear = QuerySettings(epsilon=Fraction(1, 2)), QuerySettings(epsilon=Fraction(1))
    first = asked.ask(COUNT, settings=dear)
    assert asked.ask(COUNT, settings=cheap).charged == FREE
    assert asked.ask(COUNT, settings=cheap).table == first.table
    theirs = asked.ask(COUNT, settings=cheap, user="bob")
    assert theirs.charged == asked.dataset.compile(COUNT, (), cheap).price


def test_another_rank_is_another_question(asked: Clinic) -> None:
    """Quartiles, and the two ends, have one histogram and the same scale."""
    asked.ask("SELECT MIN(age) FROM people")
    assert asked.ask("SELECT MAX(age) FROM people").charged != FREE
    quartile = "SELECT PERCENTILE_CONT({}) WITHIN GROUP (ORDER BY age) FROM people"
    asked.ask(quartile.format("0.25"))
    assert asked.ask(quartile.format("0.75")).charged != FREE
    assert asked.ask(quartile.format("0.25")).charged == FREE


def test_a_share_of_another_price_is_another_question(asked: Clinic) -> None:
    """Beside a second sum the count is worth half, so it is not the answer to the count alone."""
    asked.ask(COUNT)
    beside = asked.ask("SELECT COUNT(*), SUM(age) FROM people")
    assert beside.charged == asked.price("SELECT COUNT(*), SUM(age) FROM people")


def test_another_threshold_is_another_question(asked: Clinic) -> None:
    sql = "SELECT sex, COUNT(*) FROM people GROUP BY sex"
    assert asked.ask(sql, settings=QuerySettings(delta=Fraction(1, 10**9))).charged != FREE
    assert asked.ask(sql, settings=QuerySettings(delta=Fraction(1, 10**8))).charged != FREE
    assert asked.ask(sql, settings=QuerySettings(delta=Fraction(1, 10**9))).charged == FREE


def test_another_policy_is_another_question(asked: Clinic, policy_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it reads the declaration that is another; others are found as before."""
    ages = "SELECT SUM(age) FROM people"
    asked.ask(COUNT)
    asked.ask(ages)
    asked.dataset.close()
    text = policy_path.read_text()
    policy_path.write_text(text.replace("age = { min = 0, max = 110 }", "age = { min = 0, max = 111 }"))
    again = open_clinic(policy_path, monkeypatch)
    assert again.ask(COUNT).charged == FREE
    assert again.ask(ages).charged != FREE
    again.dataset.close()


def test_another_answer_to_the_inner_question_is_another_question(asked: Clinic) -> None:
    first = asked.ask(ABOVE)
    # The same inner question at the same price, bought again beside another outer one.
    asked.ask(ABOVE.replace("COUNT(*)", "COUNT(DISTINCT id)").replace(">", "<="), fresh=True)
    second = asked.ask(ABOVE)
    inner, outer = asked.dataset.compile(ABOVE, (), QuerySettings()).measurements
    assert second.charged == outer.price
    assert first.charged == inner.price + outer.price


# --- another user ---


def test_the_first_replay_of_another_user_costs_only_that_user(asked: Clinic) -> None:
    first = asked.ask(BY_STATE)
    second = asked.ask(BY_STATE, user="bob")
    assert second.table == first.table
    assert second.charged == first.charged
    assert asked.spent() == asked.spent("alice") == asked.spent("bob") == first.charged
    assert asked.ask(BY_STATE, user="bob").charged == FREE
    assert asked.spent() == asked.spent("bob") == first.charged


def test_a_user_without_allowance_left_gets_no_replay(clinic: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = toy.write_policy(clinic.parent, users=("alice", "bob"))
    path.write_text(path.read_text().replace("[users.bob]\n", "[users.bob]\nepsilon = 0.5\n"))
    found = open_clinic(path, monkeypatch)
    found.ask(BY_STATE)
    with pytest.raises(BudgetExhausted):
        found.ask(BY_STATE, user="bob")
    assert found.spent("bob") == FREE
    found.dataset.close()


# --- charge first ---


def test_the_charge_is_durable_before_the_engine_sees_the_query(asked: Clinic, policy_path: Path) -> None:
    seen: list[Price] = []

    def look() -> None:
        # Through another handle: what is not in the file yet would not be there after a crash.
        policy = load(policy_path)
        other = build_dataset(policy, asked.engine.inner, SystemSampler())
        seen.append(other.ledger.spent())
        other.ledger.close()

    asked.engine.fail = look
    asked.ask(ABOVE)
    assert [event for event, _ in groupby(asked.events)] == ["charge", "execute", "store", "execute", "store"]
    assert seen == [asked.price(ABOVE)] * 2


def test_what_cannot_be_paid_never_reaches_the_engine(clinic: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = open_clinic(toy.write_policy(clinic.parent, epsilon="1.0"), monkeypatch)
    found.ask(COUNT)
    spent = found.spent()
    del found.events[:]
    with pytest.raises(BudgetExhausted):
        found.ask(BY_STATE)
    assert found.events == []
    assert found.spent() == spent
    found.dataset.close()


def test_compiling_costs_nothing_and_asks_nothing(asked: Clinic) -> None:
    asked.dataset.compile(ABOVE, (), QuerySettings())
    assert asked.events == []
    assert asked.spent() == FREE


class Gone(BaseException):
    """Not an error that anything handles: what a signal raises in the middle of a query."""


def _fail() -> None:
    raise EngineFailed("log")


def _vanish() -> None:
    raise Gone


@pytest.mark.parametrize(("fail", "error"), [(_fail, EngineFailed), (_vanish, Gone)])
def test_a_failure_of_the_engine_keeps_the_charge(
    asked: Clinic, fail: Callable[[], None], error: type[BaseException]
) -> None:
    asked.engine.fail = fail
    with pytest.raises(error):
        asked.ask(ABOVE)
    price = asked.price(ABOVE)
    assert asked.spent() == asked.spent("alice") == price
    assert asked.events == ["charge", "execute"]
    asked.engine.fail = lambda: None
    assert asked.ask(ABOVE).charged == FREE
    assert asked.spent() == price


def test_a_failure_after_the_first_stage_keeps_the_charge_of_all(asked: Clinic) -> None:
    calls: list[None] = []

    def second() -> None:
        calls.append(None)
        if len(calls) == 2:
            raise EngineFailed("log")

    asked.engine.fail = second
    with pytest.raises(EngineFailed):
        asked.ask(ABOVE)
    assert asked.spent() == asked.price(ABOVE)
    # The first stage was answered, the second was paid for: neither is bought twice.
    assert asked.ask(ABOVE).charged == FREE
    assert len(calls) == 3


def test_a_cancelled_query_keeps_the_charge(asked: Clinic) -> None:
    cancellation = Cancellation()
    asked.engine.fail = cancellation.cancel
    with pytest.raises(Cancelled):
        asked.ask(COUNT, cancellation=cancellation)
    assert asked.spent() == asked.price(COUNT)
    assert "store" not in asked.events


def test_nothing_is_charged_after_a_statement_was_cancelled(asked: Clinic) -> None:
    cancellation = Cancellation()
    cancellation.cancel()
    with pytest.raises(Cancelled) as caught:
        asked.ask(COUNT, cancellation=cancellation)
    assert caught.value.detail is None
    assert asked.events == []
    assert asked.spent() == FREE


def test_a_query_that_takes_too_long_keeps_the_charge(policy_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A query that never ends: a quick one could be over before anyone looks at the clock.
    policy_path.write_text(policy_path.read_text() + "\n[limits]\ntimeout = 0.5\n")
    found = open_clinic(policy_path, monkeypatch)
    with pytest.raises(Cancelled):
        found.ask(toy.ENDLESS)
    assert found.spent() == found.price(toy.ENDLESS)
    found.dataset.close()


def test_an_error_in_the_rest_of_the_query_keeps_the_charge_and_the_answer(asked: Clinic) -> None:
    with pytest.raises(TooManyRows):
        asked.ask(f"SELECT (SELECT n FROM ({BY_STATE}) AS q)")
    spent = asked.spent()
    assert spent == asked.price(BY_STATE)
    # The release was paid for and stored; asking for it alone is free.
    assert asked.ask(BY_STATE).charged == FREE
    assert asked.spent() == spent


def test_a_process_that_dies_in_the_engine_keeps_the_charge(policy_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = f"""
        import os, sys
        from pathlib import Path
        from dpsql.engines.duckdb.engine import DuckDBEngine
        from dpsql.answering.open_dataset import open_dataset
        from dpsql.release import QuerySettings

        DuckDBEngine.execute = lambda *_, **__: os._exit(9)
        dataset = open_dataset(Path(sys.argv[1]))
        dataset.answer(dataset.compile({COUNT!r}, (), QuerySettings()), user="alice", sql={COUNT!r})
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script), str(policy_path)], check=False)
    assert done.returncode == 9
    found = open_clinic(policy_path, monkeypatch)
    assert found.spent() == found.spent("alice") == found.price(COUNT)
    assert found.ask(COUNT).charged == found.price(COUNT)
    found.dataset.close()


def test_the_same_question_at_the_same_moment_is_paid_once(asked: Clinic) -> None:
    askers = 8
    start = threading.Barrier(askers)

    def ask() -> Answer:
        start.wait()
        return asked.ask(BY_STATE)

    with ThreadPoolExecutor(askers) as pool:
        answers = [future.result() for future in [pool.submit(ask) for _ in range(askers)]]
    assert all(answer.table.rows == answers[0].table.rows for answer in answers)
    assert asked.spent() == asked.spent("alice") == asked.price(BY_STATE)
    assert asked.events.count("execute") == 1


def test_who_waits_for_an_answer_that_fails_takes_up_what_was_paid(asked: Clinic) -> None:
    fails = iter([True, False])

    def fail() -> None:
        if next(fails):
            waiting.wait()
            raise EngineFailed("x")

    waiting = threading.Event()
    asked.engine.fail = fail
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(asked.ask, BY_STATE)
        while "charge" not in asked.events:
            pass
        second = pool.submit(asked.ask, BY_STATE)
        waiting.set()
        with pytest.raises(EngineFailed):
            first.result()
        assert second.result().table.rows
    assert asked.spent() == asked.price(BY_STATE)


def test_who_waits_can_be_cancelled(asked: Clinic) -> None:
    waiting = threading.Event()

    def wait() -> None:
        waiting.wait()

    asked.engine.fail = wait
    cancellation = Cancellation()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(asked.ask, BY_STATE)
        while "charge" not in asked.events:
            pass
        second = pool.submit(asked.ask, BY_STATE, cancellation=cancellation)
        cancellation.cancel()
        with pytest.raises(Cancelled):
            second.result()
        waiting.set()
        assert first.result().table.rows
    assert asked.spent() == asked.price(BY_STATE)
