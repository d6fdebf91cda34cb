"""With the noise step masked, a client is sent the same bytes whether one person is in the data or not.

Messages, SQLSTATEs, texts, tags, names, types, row counts, notices and what the ledger recorded: all of it, for hostile
statements and for every case of the grammar tests, over the real wire, on DuckDB and on PostgreSQL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

import pytest

import dpsql.answering.dataset
from dpsql.compliance.cases import all_cases
from dpsql.errors import TooManyRows
from dpsql.noise.samplers import Sampler
from dpsql.privacy.accounting import Price
from dpsql.release import Measurement
from dpsql.tables import ExactTable, NoisyTable
from grammar_tests.servers import VERSIONS, Server
from tests.adversary.masked import MaskedServer, masked, masked_noise
from tests.adversary.target import on_duckdb, on_postgres
from tests.adversary.transcript import Statement, corpus, sqlstates, ticks, transcript

FRESH = {"options": "-c dpsql.fresh=on"}
AT_LEAST = 300  # hostile statements

# Codes that tell of a failure: with data that is this dirty, nothing may fail.
FAILURES = ("58000", "XX000", "57014")

Pair = tuple[MaskedServer, MaskedServer]
NoiseStep = Callable[[Measurement, Sequence[ExactTable], Sampler], NoisyTable]


@pytest.fixture(scope="module", autouse=True)
def _masked() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dpsql.answering.dataset, "add_noise", masked_noise)
        yield


@pytest.fixture(scope="module")
def duckdb_pair() -> Iterator[Pair]:
    with masked(partial(on_duckdb, target=True)) as one, masked(partial(on_duckdb, target=False)) as other:
        yield one, other


@pytest.fixture(scope="module")
def postgres_pair() -> Iterator[Pair]:
    server = Server(VERSIONS[0])
    with ExitStack() as closing:
        closing.callback(server.close)
        one = closing.enter_context(masked(partial(on_postgres, server, target=True)))
        other = closing.enter_context(masked(partial(on_postgres, server, target=False)))
        yield one, other


def simple(statements: Sequence[Statement]) -> list[Statement]:
    return [each for each in statements if not each.params]


def extended(statements: Sequence[Statement]) -> list[Statement]:
    return [replace(each, name=f"{each.name} (extended)", extended=True) for each in statements]


def grammar() -> list[Statement]:
    return [Statement(case.name, case.sql, case.params) for case in all_cases()]


def check(pair: Pair, statements: Sequence[Statement], settings: dict[str, str], user: str = "alice") -> None:
    with_target, without_target = (transcript(server.address(user), statements, settings) for server in pair)
    assert with_target.keys() == without_target.keys() == {each.name for each in statements}
    for each in statements:
        assert with_target[each.name] == without_target[each.name], f"{each.name}: {each.sql}"
    failed = [
        f"{each.name}: {each.sql}"
        for each in statements
        if any(code in FAILURES for code in sqlstates(with_target[each.name]))
    ]
    assert not failed
    assert charges(pair[0]) == charges(pair[1])


def charges(server: MaskedServer) -> list[tuple[str, str, Price, Price]]:
    entries = server.dataset.ledger.history(None, 10_000)
    return [(entry.user, entry.sql, entry.dataset_price, entry.user_price) for entry in entries]


def test_hostile_statements_on_duckdb(duckdb_pair: Pair) -> None:
    statements = corpus()
    assert len(statements) >= AT_LEAST
    check(duckdb_pair, statements, FRESH)
    check(duckdb_pair, extended(statements), {})


def test_all_grammar_cases_on_duckdb(duckdb_pair: Pair) -> None:
    check(duckdb_pair, extended(grammar()), FRESH)
    check(duckdb_pair, simple(grammar()[::6]), {})


def test_a_user_who_runs_out(duckdb_pair: Pair) -> None:
    check(duckdb_pair, extended(corpus()[::4]), FRESH, "bob")


def test_hostile_statements_on_postgresql(postgres_pair: Pair) -> None:
    check(postgres_pair, corpus()[::3], FRESH)
    check(postgres_pair, extended(grammar()[::10]), FRESH)


TICK = 2.0
TRIES = 4  # a busy machine may miss a tick; what depends on the data misses it every time


def timed(pair: Pair, statements: Sequence[Statement]) -> tuple[list[int], list[int]]:
    """After how many ticks each server answered, both at the same time."""
    with ThreadPoolExecutor(2) as both, pair[0].ticking(TICK), pair[1].ticking(TICK):
        found = list(both.map(lambda server: ticks(server.address(), statements, FRESH, TICK), pair))
    return found[0], found[1]


def test_answers_refusals_and_failures_come_after_as_many_ticks(duckdb_pair: Pair) -> None:
    hostile = [each for each in corpus() if each.name.startswith(("oracles", "shapes"))]
    left = [*hostile[::25], Statement("refused", "SELECT income FROM people"), Statement("twin", "SELECT 1")]
    for number in range(TRIES):
        one, other = timed(duckdb_pair, left)
        # What the twin refuses by itself does not wait; most are the engine's.
        assert number or sum(count >= 1 for count in one) > len(left) // 2
        left = [each for each, mine, its in zip(left, one, other, strict=True) if mine != its]
        if not left:
            return
    raise AssertionError(f"answered after other numbers of ticks: {[each.sql for each in left]}")


def _one_row_less(measurement: Measurement, exact: Sequence[ExactTable], sampler: Sampler) -> NoisyTable:
    """A planted leak: the last key is missing if the engine found none."""
    table = masked_noise(measurement, exact, sampler)
    kept = slice(None if len(exact[0]) else -1)
    return NoisyTable(table.keys[kept], tuple(column[kept] for column in table.sums))


def _an_error(measurement: Measurement, exact: Sequence[ExactTable], sampler: Sampler) -> NoisyTable:
    """A planted leak: an error that depends on a row."""
    if sum(column.sum() for column in exact[0].sums):
        raise TooManyRows("the sum is not zero")
    return masked_noise(measurement, exact, sampler)


PLANTED = {
    "a row less": (
        _one_row_less,
        "SELECT clinic, COUNT(*) FROM visits WHERE clinic LIKE '%777%' GROUP BY clinic",
    ),
    "an error": (_an_error, "SELECT COUNT(*) FROM people WHERE income = 53063"),
}


@pytest.mark.parametrize(("leak", "sql"), PLANTED.values(), ids=PLANTED)
def test_a_planted_leak_is_seen(duckdb_pair: Pair, leak: NoiseStep, sql: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dpsql.answering.dataset, "add_noise", leak)
    statement = [Statement("planted", sql)]
    with_target, without_target = (transcript(server.address(), statement, FRESH) for server in duckdb_pair)
    assert with_target != without_target
