"""An outage of the database that holds the data spends nothing, or once: real servers that are stopped and changed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from dpsql.errors import CircuitOpen, EngineFailed, EngineLost, OperationalError, SchemaChanged
from dpsql.ledger import failures
from dpsql.privacy.accounting import Price
from dpsql.release import QuerySettings
from grammar_tests.servers import Server
from tests.recovery.killing import Watched, ask, is_sound

FREE = Price()
COUNT = "SELECT COUNT(*) FROM people"
ABOVE = "SELECT COUNT(*) FROM people WHERE income > (SELECT AVG(income) FROM people)"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with closing(Server(18)) as server:
        with server.connect() as connection:
            connection.execute("CREATE ROLE reader LOGIN")
        yield server


@pytest.fixture
def policy(server: Server, tmp_path: Path) -> Path:
    server.start()
    with server.connect() as connection:
        connection.execute("DROP TABLE IF EXISTS people, folks")
        connection.execute("CREATE TABLE people (id integer PRIMARY KEY, income integer)")
        connection.execute("INSERT INTO people SELECT i, i FROM generate_series(1, 100) AS i")
        connection.execute("GRANT SELECT ON people TO reader")
    path = tmp_path / "dpsql.toml"
    path.write_text(
        f'[database]\nurl = "{server.url(user="reader")}"\nledger = "ledger"\n[privacy]\nepsilon = 4.0\ndelta = 1e-6\n'
        '[tables.people]\nunit = "id"\n[tables.people.columns]\nincome = { min = 0, max = 100 }\n'
        "[users.alice]\n[users.bob]\n"
    )
    return path


@pytest.fixture
def watched(policy: Path) -> Iterator[Watched]:
    with closing(Watched(policy, new_ledger=True)) as found:
        yield found


def test_a_database_that_is_down_spends_nothing(server: Server, watched: Watched) -> None:
    server.stop()
    for _ in range(50):
        with pytest.raises(EngineLost) as caught:
            ask(watched.dataset, COUNT)
        assert caught.value.detail == "Nothing was charged."
    assert watched.dataset.ledger.spent() == FREE
    assert watched.asked == 0
    server.start()
    assert ask(watched.dataset, COUNT)[0] != FREE


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        ("ALTER TABLE people RENAME TO folks", EngineFailed),
        ("REVOKE SELECT ON people FROM reader", EngineFailed),
        ("ALTER TABLE people ALTER income TYPE bigint", SchemaChanged),
    ],
)
def test_a_table_that_cannot_be_read_spends_nothing(
    server: Server, watched: Watched, change: str, refusal: type[Exception]
) -> None:
    with server.connect() as connection:
        connection.execute(change.encode())
    for _ in range(20):
        with pytest.raises(refusal):
            ask(watched.dataset, COUNT)
    assert watched.dataset.ledger.spent() == FREE
    assert watched.asked == 0


def outage(server: Server, watched: Watched) -> Callable[[], None]:
    """The server goes away after the charge and before the query."""

    def go() -> None:
        watched.before = lambda: None
        server.stop()

    return go


@pytest.mark.parametrize("sql", [COUNT, ABOVE])
def test_what_was_paid_is_answered_when_the_database_is_back(server: Server, watched: Watched, sql: str) -> None:
    price = watched.dataset.compile(sql, (), QuerySettings()).price
    watched.before = outage(server, watched)
    with pytest.raises(EngineLost) as caught:
        ask(watched.dataset, sql)
    assert "was charged epsilon" in str(caught.value.detail)
    assert "costs nothing more" in str(caught.value.hint)
    for _ in range(20):
        with pytest.raises(EngineLost, match="could not run"):
            ask(watched.dataset, sql)
    assert watched.dataset.ledger.spent() == price
    server.start()
    charged, rows = ask(watched.dataset, sql)
    assert (charged, watched.dataset.ledger.spent()) == (FREE, price)
    assert ask(watched.dataset, sql) == (FREE, rows)
    assert is_sound(watched.dataset)


def test_it_is_answered_by_the_next_process_as_well_and_once(server: Server, policy: Path, watched: Watched) -> None:
    watched.before = outage(server, watched)
    with pytest.raises(EngineLost):
        ask(watched.dataset, COUNT, fresh=True)
    server.start()
    with closing(Watched(policy)) as later:
        assert ask(later.dataset, COUNT, fresh=True)[0] == FREE
        assert ask(later.dataset, COUNT, fresh=True)[0] != FREE
        assert is_sound(later.dataset)


def test_other_questions_are_not_charged_while_the_circuit_is_open(
    server: Server, watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    watched.before = outage(server, watched)
    with caplog.at_level(logging.WARNING, "dpsql.answering.circuit_breaker"), pytest.raises(EngineLost):
        ask(watched.dataset, COUNT)
    assert [record.message for record in caplog.records if record.name == "dpsql.answering.circuit_breaker"] == [
        "circuit_opened"
    ]
    spent = watched.dataset.ledger.spent()
    assert watched.dataset.circuits.open == 1
    for sql in (ABOVE, f"{COUNT} WHERE income > 7"):
        with pytest.raises(CircuitOpen) as caught:
            ask(watched.dataset, sql)
        assert caught.value.detail == "Nothing was charged."
    server.start()
    # What was paid for runs, and that it does closes the circuit.
    assert ask(watched.dataset, COUNT)[0] == FREE
    assert watched.dataset.circuits.open == 0
    assert watched.dataset.ledger.spent() == spent
    assert ask(watched.dataset, ABOVE)[0] != FREE


def test_what_fails_again_and_again_is_run_less_and_less(watched: Watched) -> None:
    def fail() -> None:
        raise EngineFailed("log")

    watched.before = fail
    for _ in range(failures.QUICK_RUNS):
        with pytest.raises(EngineFailed):
            ask(watched.dataset, COUNT)
    for _ in range(5):
        with pytest.raises(OperationalError, match=f"has failed {failures.QUICK_RUNS} times") as caught:
            ask(watched.dataset, COUNT)
        assert "no further cost" in str(caught.value.detail)
    assert watched.asked == failures.QUICK_RUNS
    assert watched.dataset.ledger.spent() == watched.dataset.compile(COUNT, (), QuerySettings()).price
    # Who has not paid for it need not wait.
    watched.before = lambda: None
    release = watched.dataset.compile(COUNT, (), QuerySettings())
    assert watched.dataset.answer(release, user="bob", sql=COUNT).charged == release.price


def test_an_answer_whose_noise_was_drawn_is_never_run_again_on_the_same_charge(watched: Watched) -> None:
    """It may be in the ledger though the ledger could not say so, and then be shown."""
    store = watched.dataset.ledger.store

    def fail_late(*arguments: object, **more: object) -> None:
        store(*arguments, **more)  # type: ignore[arg-type]
        raise OperationalError("it cannot be seen whether it was stored")

    watched.dataset.ledger.store = fail_late  # type: ignore[method-assign]
    with pytest.raises(OperationalError) as caught:
        ask(watched.dataset, COUNT)
    assert "was charged" in str(caught.value.detail)
    assert "costs nothing more" not in str(caught.value.hint)
    watched.dataset.ledger.store = store  # type: ignore[method-assign]
    assert ask(watched.dataset, COUNT)[0] == FREE  # the stored answer
    assert ask(watched.dataset, COUNT, fresh=True)[0] != FREE
