"""The driver: PEP 249 to the letter, and what dpsql adds to it."""

from __future__ import annotations

import datetime
import inspect
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import pytest

import dpsql
from dpsql import errors
from dpsql.driver.dbapi import Connection, Cursor
from dpsql.effort import Cancellation
from dpsql.privacy.accounting import Price
from tests import toy

COUNT = "SELECT COUNT(*) FROM people"
BY_STATE = "SELECT state, COUNT(*) AS n FROM people GROUP BY state ORDER BY state"


@pytest.fixture
def connection(clinic: Path) -> Iterator[Connection]:
    with dpsql.connect(clinic, user="alice") as opened:
        yield opened


@pytest.fixture
def cursor(connection: Connection) -> Iterator[Cursor]:
    with connection.cursor() as opened:
        yield opened


@pytest.fixture(scope="module")
def shared(clinic_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    """One connection for tests that only ask."""
    directory = tmp_path_factory.mktemp("shared")
    shutil.copy(clinic_database, directory / toy.DATABASE)
    with dpsql.connect(toy.write_policy(directory)) as opened:
        yield opened


@pytest.fixture
def asking(shared: Connection) -> Cursor:
    return shared.cursor()


def spent(connection: Connection) -> Price:
    return connection.budget.spent.grains


# --- the module ---


def test_the_module_is_what_pep_249_describes() -> None:
    assert dpsql.apilevel == "2.0"
    assert dpsql.threadsafety == 2
    assert dpsql.paramstyle == "pyformat"
    for name in dpsql.__all__:
        assert getattr(dpsql, name) is not None
    with pytest.raises(AttributeError):
        _ = dpsql.nonsense  # type: ignore[attr-defined]


def test_the_exceptions_form_the_tree_of_pep_249() -> None:
    assert issubclass(dpsql.Warning, Exception) and not issubclass(dpsql.Warning, dpsql.Error)
    assert issubclass(dpsql.Error, Exception)
    for kind in (dpsql.InterfaceError, dpsql.DatabaseError):
        assert kind.__bases__ == (dpsql.Error,)
    for kind in (
        dpsql.DataError,
        dpsql.OperationalError,
        dpsql.IntegrityError,
        dpsql.InternalError,
        dpsql.ProgrammingError,
        dpsql.NotSupportedError,
    ):
        assert kind.__bases__ == (dpsql.DatabaseError,)
    for name, special in inspect.getmembers(errors, inspect.isclass):
        if hasattr(special, "sqlstate"):
            assert issubclass(special, dpsql.Error), name


def test_a_connection_carries_the_exceptions(shared: Connection) -> None:
    for name in (
        "Warning",
        "Error",
        "InterfaceError",
        "DatabaseError",
        "DataError",
        "OperationalError",
        "IntegrityError",
        "InternalError",
        "ProgrammingError",
        "NotSupportedError",
    ):
        assert getattr(shared, name) is getattr(dpsql, name)


def test_the_constructors_make_values() -> None:
    ticks = datetime.datetime(2024, 2, 29, 12, 30, 15).timestamp()
    assert dpsql.Date(2024, 2, 29) == dpsql.DateFromTicks(ticks) == datetime.date(2024, 2, 29)
    assert dpsql.Time(12, 30, 15) == dpsql.TimeFromTicks(ticks) == datetime.time(12, 30, 15)
    assert (
        dpsql.Timestamp(2024, 2, 29, 12, 30, 15)
        == dpsql.TimestampFromTicks(ticks)
        == datetime.datetime(2024, 2, 29, 12, 30, 15)
    )
    assert dpsql.Binary(b"x") == b"x"


def test_importing_the_package_loads_no_engine() -> None:
    program = "import sys, dpsql; print({'duckdb', 'sqlglot', 'numpy'} & set(sys.modules), callable(dpsql.connect))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "set() True\n"


# --- users ---


def test_the_user_is_found_if_there_is_only_one(clinic: Path) -> None:
    with dpsql.connect(clinic) as connection:
        assert connection.user == "alice"


def test_the_user_must_be_named_if_there_are_several_or_none(clinic: Path) -> None:
    toy.write_policy(clinic.parent, users=["alice", "bob"])
    with pytest.raises(dpsql.InterfaceError, match="several users") as caught:
        dpsql.connect(clinic)
    assert caught.value.hint == "Name one of them: alice, bob."
    toy.write_policy(clinic.parent, users=[])
    with pytest.raises(dpsql.InterfaceError, match="no user"):
        dpsql.connect(clinic)


def test_an_unknown_user_is_refused(clinic: Path) -> None:
    with pytest.raises(errors.UnknownUser, match='user "bob" is not known') as caught:
        dpsql.connect(clinic, user="bob")
    assert caught.value.sqlstate == "28000"
    # Nothing is left open: DuckDB would not let the same process open a file in two ways.
    duckdb.connect(str(clinic.with_name(toy.DATABASE))).close()


def test_a_ledger_elsewhere_needs_the_owners_word(clinic: Path) -> None:
    clinic.write_text(clinic.read_text().replace("[privacy]", 'ledger = "account/clinic.ledger"\n[privacy]'))
    (clinic.parent / "account").mkdir()
    with pytest.raises(errors.PolicyError, match="is missing"):
        dpsql.connect(clinic)
    dpsql.connect(clinic, new_ledger=True).close()
    dpsql.connect(clinic).close()


# --- rows ---


def test_the_description_says_what_columns_hold(asking: Cursor) -> None:
    asking.execute(
        "SELECT 'x' AS word, COUNT(*) AS n, AVG(age) AS mean, 1.25 AS price, TRUE AS yes,"
        " DATE '2024-02-29' AS day, TIMESTAMP '2024-02-29 12:30:00' AS moment, NULL AS nothing FROM people"
    )
    assert asking.description is not None
    assert all(len(column) == 7 for column in asking.description)
    kinds = {
        "word": dpsql.STRING,
        "n": dpsql.NUMBER,
        "mean": dpsql.NUMBER,
        "price": dpsql.NUMBER,
        "yes": dpsql.NUMBER,
        "day": dpsql.DATETIME,
        "moment": dpsql.DATETIME,
        "nothing": dpsql.STRING,
    }
    assert [column[0] for column in asking.description] == list(kinds)
    every = [dpsql.STRING, dpsql.BINARY, dpsql.NUMBER, dpsql.DATETIME, dpsql.ROWID]
    for name, code, _, _, precision, scale, _ in asking.description:
        assert [kind for kind in every if kind == code] == [kinds[name]]
        assert (precision, scale) == ((3, 2) if name == "price" else (None, None))
    (row,) = asking.fetchall()
    assert row[0] == "x" and row[3:] == (
        Decimal("1.25"),
        True,
        datetime.date(2024, 2, 29),
        datetime.datetime(2024, 2, 29, 12, 30),
        None,
    )


def test_rows_are_fetched_in_every_way(asking: Cursor) -> None:
    assert (asking.rowcount, asking.rownumber, asking.arraysize) == (-1, None, 1)
    every = asking.execute(BY_STATE).fetchall()
    assert [row[0] for row in every] == ["CA", "NY", "TX"]
    assert (asking.rowcount, asking.rownumber, asking.lastrowid) == (3, 3, None)
    assert asking.fetchone() is None
    assert asking.fetchmany(5) == asking.fetchall() == []

    assert list(asking.execute(BY_STATE)) == every
    assert asking.execute(BY_STATE).fetchone() == every[0]
    assert asking.rownumber == 1
    assert asking.fetchmany() == every[1:2]
    assert asking.fetchall() == every[2:]

    asking.arraysize = 2
    assert asking.execute(BY_STATE).fetchmany() == every[:2]
    assert asking.fetchmany() == every[2:]
    assert asking.execute(BY_STATE).fetchmany(0) == []
    assert asking.fetchmany(size=3) == every


def test_there_is_nothing_to_fetch_without_rows(cursor: Cursor) -> None:
    for statement in (None, "SET dpsql.epsilon = 0.5"):
        if statement is not None:
            cursor.execute(BY_STATE)
            cursor.execute(statement)
        assert (cursor.description, cursor.rowcount, cursor.cost, cursor.margins) == (None, -1, None, None)
        for fetch in (cursor.fetchone, cursor.fetchmany, cursor.fetchall, lambda: next(cursor)):
            with pytest.raises(dpsql.ProgrammingError, match="no rows to fetch"):
                fetch()
    with pytest.raises(dpsql.ProgrammingError, match="negative"):
        cursor.execute(BY_STATE).fetchmany(-1)


def test_a_statement_that_fails_leaves_no_rows_behind(asking: Cursor) -> None:
    asking.execute(BY_STATE)
    with pytest.raises(errors.UnknownTable):
        asking.execute("SELECT COUNT(*) FROM nobody")
    assert (asking.description, asking.cost, asking.rownumber) == (None, None, None)
    with pytest.raises(dpsql.ProgrammingError):
        asking.fetchall()


def test_the_sizes_of_pep_249_are_accepted(asking: Cursor) -> None:
    asking.setinputsizes([25])
    asking.setoutputsize(1000)
    asking.setoutputsize(2000, 0)


def test_executemany_is_refused_before_anything_is_paid(connection: Connection, cursor: Cursor) -> None:
    with pytest.raises(dpsql.NotSupportedError, match="executemany"):
        cursor.executemany("SELECT COUNT(*) FROM people WHERE age > %s", [(1,), (2,)])
    assert spent(connection) == Price()


# --- parameters ---


def test_a_parameter_asks_the_same_as_a_literal(connection: Connection, cursor: Cursor) -> None:
    literal = cursor.execute("SELECT COUNT(*) FROM people WHERE state = 'CA' AND age >= 30").fetchall()
    paid = spent(connection)
    named = "SELECT COUNT(*) FROM people WHERE state = %(state)s AND age >= %(age)s"
    assert cursor.execute(named, {"age": 30, "state": "CA"}).fetchall() == literal
    assert (
        cursor.execute("SELECT COUNT(*) FROM people WHERE state = %s AND age >= %s", ["CA", 30]).fetchall() == literal
    )
    # The same release: had a value gone elsewhere, this would have been another, and would have cost.
    assert spent(connection) == paid


@pytest.mark.parametrize(
    ("condition", "value"),
    [
        ("age > %s", None),
        ("smoker = %s", True),
        ("age > %s", 30),
        ("age > %s", np.int64(30)),
        ("income > %s", 1000.5),
        ("income > %s", Decimal("1000.5")),
        ("sex = %s", "it's; DROP TABLE people -- $1 %s"),
        ("sex LIKE %s", "f%"),
        ("joined > %s", datetime.date(2020, 6, 1)),
        ("joined > %s", datetime.datetime(2020, 6, 1, 12)),
        ("age IN (%s)", 30),
    ],
)
def test_every_sort_of_value_can_be_a_parameter(asking: Cursor, condition: str, value: object) -> None:
    ((count,),) = asking.execute(f"SELECT COUNT(*) FROM people WHERE {condition}", [value]).fetchall()
    assert isinstance(count, int)


def test_a_value_comes_back_as_it_went_in(asking: Cursor) -> None:
    values = ["O'Hara %s", 7, 1.5, Decimal("2.50"), datetime.date(2024, 2, 29), datetime.datetime(2024, 1, 1, 2), True]
    assert asking.execute(f"SELECT {', '.join(['%s'] * len(values))}", values).fetchall() == [tuple(values)]


def test_errors_point_into_the_text_that_was_written(asking: Cursor) -> None:
    text = "SELECT COUNT(*) FROM people WHERE state LIKE '%%' AND sex = %(a very long name)s AND agee > 5"
    for run in (asking.execute, asking.explain):
        with pytest.raises(errors.UnknownColumn) as caught:
            run(text, {"a very long name": "f"})
        assert caught.value.position == text.index("agee") + 1
        assert caught.value.sqlstate == "42703"


# --- closing ---

OPERATIONS: list[Callable[[Cursor], object]] = [
    lambda c: c.execute(COUNT),
    lambda c: c.executemany(COUNT, []),
    lambda c: c.explain(COUNT),
    lambda c: c.fetchone(),
    lambda c: c.fetchmany(),
    lambda c: c.fetchall(),
    lambda c: next(c),
    lambda c: c.setinputsizes([]),
    lambda c: c.setoutputsize(1),
    lambda c: c.__enter__(),
]


def test_a_closed_cursor_refuses_everything(connection: Connection) -> None:
    cursor = connection.cursor()
    cursor.execute(COUNT)
    cursor.close()
    cursor.close()
    for operation in OPERATIONS:
        with pytest.raises(dpsql.InterfaceError, match="the cursor is closed"):
            operation(cursor)
    with connection.cursor() as other:
        other.execute(COUNT)


def test_a_closed_connection_refuses_everything(clinic: Path) -> None:
    connection = dpsql.connect(clinic)
    cursor = connection.cursor().execute(COUNT)
    connection.close()
    connection.close()
    for operation in OPERATIONS:
        with pytest.raises(dpsql.InterfaceError, match="the connection is closed"):
            operation(cursor)
    attempts: list[Callable[[], object]] = [
        connection.cursor,
        connection.commit,
        connection.rollback,
        connection.__enter__,
        lambda: connection.budget,
    ]
    for attempt in attempts:
        with pytest.raises(dpsql.InterfaceError, match="the connection is closed"):
            attempt()


def test_context_managers_close(clinic: Path) -> None:
    with dpsql.connect(clinic) as connection:
        with connection.cursor() as cursor:
            pass
        with pytest.raises(dpsql.InterfaceError, match="cursor is closed"):
            cursor.fetchone()
    with pytest.raises(dpsql.InterfaceError, match="connection is closed"):
        connection.cursor()


# --- what it costs ---


def test_cost_says_the_price_and_what_was_charged(connection: Connection, cursor: Cursor) -> None:
    cursor.execute(COUNT)
    first = cursor.cost
    assert first is not None
    assert first.epsilon == pytest.approx(1.0, abs=1e-5)
    assert (first.delta, first.charged.epsilon) == (0.0, first.epsilon)
    assert str(first).startswith("epsilon 1 (rho ")
    assert spent(connection) == first.grains == first.charged.grains

    cursor.execute(COUNT)
    again = cursor.cost
    assert again is not None
    assert (again.grains, again.charged.epsilon, str(again.charged)) == (first.grains, 0.0, "nothing")
    assert spent(connection) == first.grains


def test_unknown_keys_cost_delta(asking: Cursor) -> None:
    cost = asking.execute("SELECT kind, COUNT(*) FROM visits GROUP BY kind").cost
    assert cost is not None
    assert cost.delta == float(cost.grains.delta * Fraction(1, 10**18)) > 0


def test_under_basic_accounting_epsilon_adds_up(clinic: Path) -> None:
    toy.write_policy(clinic.parent, accounting="basic")
    with dpsql.connect(clinic) as connection, connection.cursor() as cursor:
        cost = cursor.execute(COUNT).cost
        assert cost is not None
        assert (cost.epsilon, cost.rho, str(cost)) == (1.0, None, "epsilon 1")
        assert connection.budget.left.epsilon == 99.0


def test_the_budget_is_what_is_spent_and_what_is_left(connection: Connection, cursor: Cursor) -> None:
    total = connection.budget.left.grains
    cursor.execute(COUNT)
    budget = connection.budget
    assert budget.spent.grains.loss > 0
    assert budget.spent.grains + budget.left.grains == total


def test_nothing_returns_a_charge(connection: Connection, cursor: Cursor) -> None:
    cursor.execute(COUNT)
    paid = spent(connection)
    connection.rollback()
    connection.commit()
    assert spent(connection) == paid


def test_settings_go_through_execute(cursor: Cursor) -> None:
    cursor.execute("SET dpsql.epsilon = 0.5")
    cost = cursor.execute(COUNT).cost
    assert cost is not None and cost.epsilon == pytest.approx(0.5, abs=1e-5)
    assert cursor.execute("SHOW dpsql.epsilon").fetchall() == [("0.5",)]
    assert cursor.cost is None
    cursor.execute("SET dpsql.fresh = on")
    again = cursor.execute(COUNT).cost
    assert again is not None and again.charged.grains == cost.grains


def test_margins_are_those_of_noisy_counts_and_sums(asking: Cursor) -> None:
    asking.execute("SELECT state, COUNT(*), SUM(age), AVG(age), COUNT(*) FILTER (WHERE smoker) FROM people GROUP BY 1")
    assert asking.margins is not None
    state, count, total, mean, smokers = asking.margins
    assert state is mean is None
    assert isinstance(count, int) and isinstance(smokers, int) and count > 0 and smokers > 0
    assert total is not None and total > count


def test_every_row_has_margins_of_its_own(asking: Cursor) -> None:
    asking.execute("SELECT state, COUNT(*), AVG(age) FROM people GROUP BY 1")
    asking.fetchone()
    assert len(asking.row_margins) == 3 and asking.margins is not None
    for state, count, mean in asking.row_margins:
        assert state is None and count == asking.margins[1]
        assert isinstance(mean, float) and 0 < mean < 100
    asking.execute("SHOW dpsql.epsilon")
    assert asking.row_margins == [(None,)]
    asking.execute("SET dpsql.epsilon = 1")
    assert asking.row_margins == []


def test_explain_is_free_and_leaves_the_rows(connection: Connection, cursor: Cursor) -> None:
    every = cursor.execute(BY_STATE).fetchall()
    cursor.execute(BY_STATE)
    paid = spent(connection)
    text = cursor.explain("SELECT AVG(income) FROM people WHERE state = %(state)s", {"state": "CA"})
    assert text.startswith("Price: epsilon 1 ") and "clamped to [0, 500,000]" in text
    assert spent(connection) == paid
    assert cursor.fetchall() == every


# --- several at once ---


def test_connections_in_one_process_share_only_files(clinic: Path) -> None:
    first, second = dpsql.connect(clinic), dpsql.connect(clinic)
    first.cursor().execute("SET dpsql.epsilon = 0.5")
    assert second.cursor().execute("SHOW dpsql.epsilon").fetchall() == [("default",)]
    rows = first.cursor().execute(COUNT).fetchall()
    assert spent(first) == spent(second) != Price()
    first.close()
    second.cursor().execute("SET dpsql.epsilon = 0.5")
    assert second.cursor().execute(COUNT).fetchall() == rows
    second.cursor().execute(BY_STATE)
    second.close()


def test_threads_may_share_a_connection(connection: Connection) -> None:
    def ask(age: int) -> tuple[int, Price]:
        with connection.cursor() as cursor:
            ((count, said),) = cursor.execute("SELECT COUNT(*), %s FROM people WHERE age > %s", [age, age]).fetchall()
            assert said == age and isinstance(count, int) and cursor.cost is not None
            return age, cursor.cost.charged.grains

    with ThreadPoolExecutor(8) as pool:
        charges = dict(pool.map(ask, range(24)))
    assert list(charges) == list(range(24))
    assert spent(connection) == sum(charges.values(), Price())


def test_another_thread_can_cancel(clinic: Path, connection: Connection, cursor: Cursor) -> None:
    cursor.cancel()  # nothing runs: nothing happens
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(cursor.execute, toy.ENDLESS)
        toy.wait_for_release(clinic)
        cursor.cancel()
        with pytest.raises(errors.Cancelled, match="user request") as caught:
            running.result()
    assert caught.value.sqlstate == "57014"
    paid = spent(connection)
    assert paid != Price()
    # The inner count was released before the rest was stopped, so it is there for the next query.
    cursor.execute(COUNT)
    assert spent(connection) == paid


def test_a_statement_cancelled_in_the_queue_never_starts(clinic: Path, connection: Connection) -> None:
    running, waiting = connection.cursor(), connection.cursor()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(running.execute, toy.ENDLESS)
        toy.wait_for_release(clinic)
        paid = spent(connection)
        second = pool.submit(waiting.execute, BY_STATE)
        while waiting._running is None:
            time.sleep(0.01)
        waiting.cancel()
        running.cancel()
        for future in (first, second):
            with pytest.raises(errors.Cancelled, match="user request"):
                future.result()
    assert spent(connection) == paid


def test_an_interrupt_stops_a_query(clinic: Path, cursor: Cursor, request: pytest.FixtureRequest) -> None:
    main = threading.main_thread().ident
    assert main is not None and main == threading.get_ident()
    # Tests that a shell runs in the background are told to ignore interrupts.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))

    def interrupt() -> Cancellation | None:
        try:
            toy.wait_for_release(clinic)
            return cursor._running
        finally:
            signal.pthread_kill(main, signal.SIGINT)

    with ThreadPoolExecutor(1) as pool:
        interrupted = pool.submit(interrupt)
        with pytest.raises(KeyboardInterrupt):
            cursor.execute(toy.ENDLESS)
        running = interrupted.result()
    assert running is not None and running.cancelled  # and not left to run into its timeout
    assert cursor.execute(COUNT).rowcount == 1


# --- pandas ---


def test_pandas_reads_from_it(shared: Connection) -> None:
    with pytest.warns(UserWarning, match="only supports SQLAlchemy"):
        frame = pd.read_sql(
            "SELECT state, COUNT(*) AS n, AVG(age) AS mean FROM people WHERE age > %(age)s GROUP BY state ORDER BY 1",
            shared,
            params={"age": 30},
        )
    assert list(frame.columns) == ["state", "n", "mean"]
    assert list(frame["state"]) == ["CA", "NY", "TX"]
    assert frame["n"].dtype == np.int64 and frame["mean"].dtype == np.float64
    with pytest.warns(UserWarning, match="only supports SQLAlchemy"):
        chunks = list(pd.read_sql(BY_STATE, shared, chunksize=2))
    assert [len(chunk) for chunk in chunks] == [2, 1]
    with pytest.warns(UserWarning, match="only supports SQLAlchemy"), pytest.raises(errors.PrivateRows):
        pd.read_sql("SELECT age FROM people", shared)


def test_a_copied_dataset_is_another_connection(clinic: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(clinic.parent, other, ignore=shutil.ignore_patterns("other"))
    with dpsql.connect(clinic) as here, dpsql.connect(str(other / "dpsql.toml")) as there:
        here.cursor().execute(COUNT)
        assert spent(there) == Price()
