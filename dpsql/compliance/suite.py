"""Tests that every engine must pass. An external engine subclasses them, as `README.md` shows."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import pytest

from dpsql.compliance.cases import Case, all_cases
from dpsql.compliance.lab import RecordingBackend, ToyDataset
from dpsql.compliance.toys import KINDS, DuckDBPlace, Place, Server, Toys, open_url
from dpsql.effort import Cancellation
from dpsql.engines.base import Engine
from dpsql.engines.registry import dialect_named, engine_kind
from dpsql.errors import (
    Cancelled,
    EngineFailed,
    EngineLost,
    Error,
    InternalError,
    NotSupported,
    PolicyError,
    SchemaChanged,
    UnknownColumn,
    UnknownTable,
)
from dpsql.lowering.query import EngineQuery
from dpsql.privacy.accounting import Price
from dpsql.tables import ExactTable
from dpsql.types import Value

ACCEPTED = [case for case in all_cases() if not case.expected.startswith("reject") and case.fails is None]
# Texts that would end a constant, or hide what follows, under other quoting rules.
HOSTILE = (
    "'", "''", "\\", "\\'", "\\' OR 1 = 1 -- ", "' OR 1 = 1 -- ", '"', "`", "--", "/*", "*/", ";", "$1", "$salt", ":s0",
    "?", "%", "_", "{0}", "\n", "\r\n", "\t", "\x1f", "\x7f", "é", "e\u0301", "ß", "ﬀ", "\u202e", "🦆", "\U0010ffff",
)  # fmt: skip

Rows = dict[tuple[Value, ...], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Gap:
    """Something that an engine lacks, and refuses with 0A000 before anything is charged."""

    refusal: str  # a regular expression for the whole message
    reason: str
    sql: str  # a query that is refused for it; if it is answered, the gap is closed and a test fails


class EngineCompliance:
    """The tests: one language on every engine, and one way to fail."""

    gaps: Sequence[Gap] = ()
    endless: str  # a SELECT of the engine that runs for minutes unless it is stopped
    failing: str  # one that fails, with a value of the data ("Oslo") in the engine's message
    writing: Sequence[str]  # statements that would change the database, or reach outside it
    wrong: Sequence[str] = ()  # addresses without a database; with the password "secret"
    without: Mapping[Literal["server", "change"], str] = MappingProxyType({})  # what the place does not have, and why

    @pytest.fixture(scope="class")
    @classmethod
    def place(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
        """Creates databases of the engine; a subclass must override it."""
        raise NotImplementedError

    @pytest.fixture(scope="class")
    @classmethod
    def toys(cls, place: Place, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Toys]:
        with closing(Toys(tmp_path_factory.mktemp("toys"), place)) as made:
            yield made

    @pytest.fixture(scope="class")
    @classmethod
    def reference(cls, place: Place, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Toys]:
        """The same tables on DuckDB."""
        folder = tmp_path_factory.mktemp("reference")
        with closing(Toys(folder, DuckDBPlace(folder, place.kinds))) as made:
            yield made

    # --- one language ---

    @pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in ACCEPTED])
    def test_exact_tables_are_those_of_duckdb(self, case: Case, place: Place, toys: Toys, reference: Toys) -> None:
        """On clean data, on data that violates every declaration, and on that data without one person.

        That no person moves a sum further than stated is tested on DuckDB, with every person. An engine with the same
        tables, with and without a person, has the same sensitivity.
        """
        theirs = reference.dataset(case.policy)
        try:
            expected, asked_duckdb = theirs.answer(case)
        except (UnknownColumn, UnknownTable):
            assert place.kinds != KINDS
            pytest.xfail("it names a column of a type that the engine does not have")
        ours = toys.dataset(case.policy)
        try:
            found, asked = ours.answer(case)
        except NotSupported as refusal:
            pytest.xfail(self._gap(refusal, ours).reason)
        zeros = toys.dirty.dialect.grouping_sets  # sums in one pass contain declared keys with zeros, others omit them
        assert [rows_of(t, zeros=zeros) for t in ours.engine.found] == [
            rows_of(t, zeros=zeros) for t in theirs.engine.found
        ]
        assert found.table.rows == expected.table.rows
        for mine, other in zip(asked, asked_duckdb, strict=True):
            assert run_on(toys.dirty, mine, zeros=zeros) == run_on(reference.dirty, other, zeros=zeros)
            assert run_on(toys.neighbour, mine, zeros=zeros) == run_on(reference.neighbour, other, zeros=zeros)

    def test_every_gap_is_one(self, toys: Toys) -> None:
        for gap in self.gaps:
            dataset = toys.dataset("zcdp")
            with pytest.raises(NotSupported) as refusal:
                dataset.answer(replace(_SOME_CASE, sql=gap.sql))
            assert self._gap(refusal.value, dataset) is gap

    def _gap(self, refusal: NotSupported, dataset: ToyDataset) -> Gap:
        """The declared gap of a refusal. The engine was not queried, since nothing was charged."""
        assert refusal.sqlstate == "0A000" and not dataset.engine.asked
        found = [gap for gap in self.gaps if re.fullmatch(gap.refusal, refusal.message)]
        assert found, f"no gap is declared for: {refusal.message}"
        return found[0]

    @pytest.mark.parametrize("text", HOSTILE)
    @pytest.mark.parametrize("form", ["note = {}", "note <> {}", "note IN ('fine', {})", "{} = 'x' OR age > 50"])
    def test_a_hostile_constant_is_a_constant(self, text: str, form: str, toys: Toys, reference: Toys) -> None:
        """Written as a constant and bound as a parameter."""
        written = "'" + text.replace("'", "''") + "'"
        case = replace(_SOME_CASE, sql=f"SELECT COUNT(*) FROM people WHERE {form.format(written)}")
        bound = replace(_SOME_CASE, sql=f"SELECT COUNT(*) FROM people WHERE {form.format('$1')}", params=(text,))
        for each in (case, bound):
            try:
                expected, asked_duckdb = reference.dataset(each.policy).answer(each)
            except Error as refusal:
                with pytest.raises(type(refusal)):
                    toys.dataset(each.policy).answer(each)
                continue
            found, asked = toys.dataset(each.policy).answer(each)
            assert found.table.rows == expected.table.rows
            for mine, other in zip(asked, asked_duckdb, strict=True):
                assert run_on(toys.dirty, mine) == run_on(reference.dirty, other)

    @pytest.mark.parametrize("text", HOSTILE)
    def test_a_hostile_name_is_a_name(self, text: str, toys: Toys) -> None:
        """As an identifier of the dialect it names a column that does not exist, and nothing else."""
        dialect = toys.dirty.dialect
        query = EngineQuery(
            f"SELECT COUNT(*) FROM {dialect.qualified(('main', 'people'))} WHERE {dialect.quote(text)} = 1", 0
        )
        with pytest.raises(Error):
            toys.dirty.execute([query], timeout=30)

    def test_a_zero_byte_is_in_no_constant(self, toys: Toys) -> None:
        with pytest.raises(ValueError, match="zero byte"):
            toys.dirty.dialect.string("a\x00b")

    # --- one way to fail ---

    def test_the_engines_words_go_to_the_owners_log(self, toys: Toys, caplog: pytest.LogCaptureFixture) -> None:
        dataset = toys.dataset("zcdp")
        with caplog.at_level(logging.ERROR, "dpsql.answering.dataset"), pytest.raises(EngineFailed) as caught:
            dataset.engine.execute([EngineQuery(self.failing, 0)], timeout=30)
        failure = caught.value
        assert failure.log_id in caplog.text
        assert failure.__cause__ is None and failure.__context__ is None
        assert "Oslo" not in f"{failure} {failure.hint} {failure.detail}"

    def test_nothing_is_written(self, toys: Toys) -> None:
        before = toys.dirty.schema()
        for statement in self.writing:
            with pytest.raises(Error):
                toys.dirty.execute([EngineQuery(statement, 0)], timeout=30)
        assert toys.dirty.schema() == before

    def test_a_call_that_takes_too_long_is_stopped(self, toys: Toys) -> None:
        with pytest.raises(Cancelled, match=r"^canceling statement due to statement timeout$") as caught:
            toys.dirty.execute([EngineQuery(self.endless, 0)], timeout=0.1)
        assert caught.value.__cause__ is None and caught.value.sqlstate == "57014"

    def test_the_timeout_covers_all_queries_of_a_call(self, toys: Toys) -> None:
        with pytest.raises(Cancelled, match="statement timeout"):
            toys.dirty.execute([_people(toys.dirty)] * 1_000_000, timeout=0.2)

    def test_a_running_call_is_cancelled_from_another_thread(self, toys: Toys) -> None:
        switch = _Watched()

        def cancel() -> None:
            switch.watched.wait()
            switch.cancel()

        other = threading.Thread(target=cancel)
        other.start()
        with pytest.raises(Cancelled, match=r"^canceling statement due to user request$"):
            toys.dirty.execute([EngineQuery(self.endless, 0)], timeout=60, cancellation=switch)
        other.join()

    def test_a_call_cancelled_beforehand_never_reaches_the_engine(self, toys: Toys) -> None:
        switch = Cancellation()
        switch.cancel()
        with pytest.raises(Cancelled):
            toys.dirty.execute([EngineQuery(self.endless, 0)], timeout=60, cancellation=switch)

    def test_a_call_cancelled_between_two_queries_runs_no_further(self, toys: Toys) -> None:
        switch = Cancellation()
        query = _people(toys.dirty)

        class CancelledOnTheWay(list[EngineQuery]):
            def __iter__(self) -> Iterator[EngineQuery]:
                yield query
                switch.cancel()
                yield EngineQuery("not even SQL", 0)

        with pytest.raises(Cancelled, match="user request"):
            toys.dirty.execute(CancelledOnTheWay([query, query]), timeout=60, cancellation=switch)

    def test_cancelling_a_finished_call_stops_nothing(self, toys: Toys) -> None:
        switch = Cancellation()
        before = run_on(toys.dirty, [_people(toys.dirty)])
        toys.dirty.execute([_people(toys.dirty)], timeout=60, cancellation=switch)
        switch.cancel()
        assert run_on(toys.dirty, [_people(toys.dirty)]) == before

    def test_stopping_one_call_leaves_the_others_alone(self, toys: Toys) -> None:
        """Many short calls beside calls that are stopped: every answer is right and every endless one is stopped."""
        before = run_on(toys.dirty, [_people(toys.dirty)])
        outcomes: list[object] = []
        done = threading.Event()

        def endless() -> None:
            try:
                for _ in range(10):
                    with pytest.raises(Cancelled):
                        toys.dirty.execute([EngineQuery(self.endless, 0)], timeout=0.05)
            finally:
                done.set()

        def short() -> None:
            while not done.is_set():
                try:
                    outcomes.append(run_on(toys.dirty, [_people(toys.dirty)]))
                except Error as error:
                    outcomes.append(error)

        threads = [threading.Thread(target=endless), threading.Thread(target=short)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert outcomes and all(outcome == before for outcome in outcomes)

    # --- what comes back ---

    def test_sums_come_back_as_exact_64_bit_integers(self, toys: Toys) -> None:
        most, int64 = 2**63 - 1, toys.dirty.dialect.int64
        sql = f"SELECT CAST({most} AS {int64}), -CAST({most} AS {int64})"
        (table,) = toys.dirty.execute([EngineQuery(sql, 0)], timeout=60)
        assert table.keys == ((),)
        assert [(column.dtype.name, column.tolist()) for column in table.sums] == [
            ("int64", [most]),
            ("int64", [-most]),
        ]

    def test_an_empty_result_keeps_its_shape(self, toys: Toys) -> None:
        people = toys.dirty.dialect.qualified(("main", "people"))
        sql = f"SELECT city, COUNT(*), COUNT(*) FROM {people} WHERE 1 = 0 GROUP BY city"
        (table,) = toys.dirty.execute([EngineQuery(sql, 1)], timeout=60)
        assert table.keys == ()
        assert [(column.dtype.name, len(column)) for column in table.sums] == [("int64", 0)] * 2

    @pytest.mark.parametrize("value", ["1.5", "'1'"])
    def test_a_sum_of_another_type_is_never_converted(self, toys: Toys, value: str) -> None:
        with pytest.raises(InternalError, match="not a 64-bit integer"):
            toys.dirty.execute([EngineQuery(f"SELECT {value}", 0)], timeout=60)

    def test_a_sum_is_never_null(self, toys: Toys) -> None:
        with pytest.raises(InternalError):
            toys.dirty.execute([EngineQuery(f"SELECT CAST(NULL AS {toys.dirty.dialect.int64})", 0)], timeout=60)

    # --- the world around ---

    def _server(self, place: Place) -> Server:
        """The server, or the end of the test where a class says that there is none."""
        if place.server is None:
            pytest.xfail(self.without["server"])
        assert "server" not in self.without
        return place.server

    def test_a_call_that_is_stopped_ends_on_the_server(self, place: Place, toys: Toys) -> None:
        """By its client, who cancels it or is gone, or by its time."""
        server = self._server(place)
        dataset, url = toys.apart("stopped")
        with closing(dataset):
            switch = Cancellation()
            failures, thread = _begun(lambda: _endless(dataset.engine, self.endless, switch))
            _wait_until(lambda: server.running(url) == 1)
            switch.cancel()
            thread.join()
            assert [str(failure) for failure in failures] == ["canceling statement due to user request"]
            _wait_until(lambda: server.running(url) == 0)
            with pytest.raises(Cancelled):
                dataset.engine.execute([EngineQuery(self.endless, 0)], timeout=0.2)
            _wait_until(lambda: server.running(url) == 0)
            assert dataset.engine.execute([_people(dataset.engine)], timeout=60)

    def test_a_server_that_goes_away_in_mid_query(self, place: Place, toys: Toys) -> None:
        """What was charged stays charged, the error is clear, and the next query has a new connection."""
        server = self._server(place)
        dataset, url = toys.apart("lost", lambda engine: _Endless(engine, self.endless))
        with closing(dataset):
            failures, thread = _begun(lambda: dataset.answer(replace(_SOME_CASE, sql="SELECT COUNT(*) FROM people")))
            _wait_until(lambda: server.running(url) == 1)
            server.hang_up(url)
            thread.join()
            (failure,) = failures
            assert isinstance(failure, EngineLost) and failure.sqlstate == "58000"
            assert failure.__cause__ is None and failure.__context__ is None
            assert dataset.purse.spent() != Price()
            assert dataset.engine.execute([_people(dataset.engine)], timeout=60)

    def test_whom_the_server_does_not_let_in(
        self, place: Place, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        url = self._server(place).refused(place.make("closed", []))
        with pytest.raises(PolicyError) as refusal:
            open_url(url, tmp_path)
        assert refusal.value.__cause__ is None and refusal.value.__context__ is None
        assert "secret" not in f"{refusal.value} {refusal.value.hint} {caplog.text}"

    def test_a_table_that_changed_after_the_policy_was_read(self, place: Place, toys: Toys) -> None:
        """Refused before anything is paid, until the schema is read again."""
        if place.change is None:
            pytest.xfail(self.without["change"])
        assert "change" not in self.without
        dataset, url = toys.apart("changed")
        with closing(dataset):
            place.change(url)
            with pytest.raises(SchemaChanged) as refusal:
                dataset.answer(replace(_SOME_CASE, sql="SELECT COUNT(*) FROM people WHERE age > 50"))
            assert refusal.value.sqlstate == "55000" and refusal.value.hint
            assert not dataset.engine.asked and dataset.purse.spent() == Price()
            assert "age" not in dataset.engine.schema().tables["main", "people"].columns
            dataset.engine.ready([("main", "people")], timeout=60)

    def test_a_closed_or_wrong_address_tells_no_password(self, tmp_path: Path) -> None:
        for url in self.wrong:
            with pytest.raises(Error) as refusal, closing(open_url(url, tmp_path)) as engine:
                engine.schema()
            assert "secret" not in f"{refusal.value} {refusal.value.hint}"

    def test_the_kind_is_whole(self, place: Place) -> None:
        kind = engine_kind(place.make("whole", []))
        assert dialect_named(kind.dialect.name) is kind.dialect


class _Endless(RecordingBackend):
    """The first time, it asks the engine for what takes for ever, whatever it is asked itself."""

    def __init__(self, engine: Engine, sql: str) -> None:
        super().__init__(engine)
        self._sql = sql

    def execute(
        self, queries: Sequence[EngineQuery], *, timeout: float, cancellation: Cancellation | None = None
    ) -> list[ExactTable]:
        asked = queries if self.asked else [EngineQuery(self._sql, 0)]
        return super().execute(asked, timeout=timeout, cancellation=cancellation)


def _endless(engine: Engine, sql: str, switch: Cancellation) -> list[ExactTable]:
    return engine.execute([EngineQuery(sql, 0)], timeout=60, cancellation=switch)


def _begun(work: Callable[[], object]) -> tuple[list[Error], threading.Thread]:
    """Work in a thread, and how it fails."""
    failures: list[Error] = []

    def run() -> None:
        try:
            work()
        except Error as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return failures, thread


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("it did not happen")
        time.sleep(0.01)


def _people(engine: Engine) -> EngineQuery:
    return EngineQuery(f"SELECT COUNT(*) FROM {engine.dialect.qualified(('main', 'people'))}", 0)


class _Watched(Cancellation):
    """Signals when the engine starts to watch it."""

    def __init__(self) -> None:
        super().__init__()
        self.watched = threading.Event()

    def on_cancel(self, callback: Callable[[], None] | None) -> None:
        super().on_cancel(callback)
        self.watched.set()


_SOME_CASE = Case(Path("hostile"), 1, "", "")


def run_on(engine: Engine, queries: Sequence[EngineQuery], *, zeros: bool = True) -> list[Rows]:
    return rows_of(engine.execute(queries, timeout=60), zeros=zeros)


def rows_of(tables: Sequence[ExactTable], *, zeros: bool = True) -> list[Rows]:
    found: list[Rows] = []
    for table in tables:
        sums = [column.tolist() for column in table.sums]
        rows = {key: tuple(column[i] for column in sums) for i, key in enumerate(table.keys)}
        found.append({key: row for key, row in rows.items() if zeros or any(row)})
    return found
