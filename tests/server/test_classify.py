"""Which statements are the twin's and which the engine's."""

from __future__ import annotations

import time

import pytest

from dpsql.server.relay.classify import MAX_READ, MAX_REMEMBERED, MAX_WORDS, Kind, Statement, classify
from tests.counted_calls import counted_calls

DECLARED = frozenset(("people", "visits"))
MOST_CALLS = 120_000


def _only(sql: str) -> Statement:
    (statement,) = classify(sql, DECLARED)
    return statement


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1",
        "SELECT version()",
        "SELECT relname FROM pg_class WHERE relname = 'people'",
        "SELECT count(*) AS people FROM pg_class",
        "SELECT people.oid FROM pg_class AS people",
        "SET search_path TO people",
        "BEGIN",
        "SAVEPOINT people",
        "FETCH 10 FROM people",
        "CLOSE people",
        "PREPARE q AS SELECT count(*) FROM people",
        "DEALLOCATE people",
        "SELECT pg_advisory_unlock_all()",
        "UNLISTEN *",
        "SELECT $$ SELECT count(*) FROM people $$",
        "DO $$ BEGIN PERFORM count(*) FROM people; END $$",
        "totally not SQL",
        "CREATE TEMP TABLE mine (a int)",
        "COPY mine FROM STDIN",
        "ALTER ROLE alice SET dpsql.epsilon = 0.5",
    ],
)
def test_for_the_twin(sql: str) -> None:
    assert all(statement.kind is Kind.PASS for statement in classify(sql, DECLARED))


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT count(*) FROM people",
        'SELECT count(*) FROM "people"',
        "select count(*) from PUBLIC.People p",
        'SELECT count(*) FROM U&"\\0070eople"',
        "SELECT count(*) FROM pg_class, people",
        "WITH x AS (SELECT * FROM visits) SELECT count(*) FROM x",
        "(SELECT count(*) FROM people)",
        "SELECT (SELECT count(*) FROM people)",
        "SELECT * FROM people FOR UPDATE NOWAIT SKIP NONSENSE",
        "TABLE people",
    ],
)
def test_for_the_engine(sql: str) -> None:
    statement = _only(sql)
    assert statement.kind is Kind.QUERY
    assert statement.query.strip() == sql


@pytest.mark.parametrize(
    ("sql", "inner", "before", "behind"),
    [
        (
            "DECLARE c NO SCROLL CURSOR WITH HOLD FOR SELECT count(*) FROM people",
            "SELECT count(*) FROM people",
            "DECLARE c NO SCROLL CURSOR WITH HOLD FOR ",
            "",
        ),
        (
            "COPY (SELECT count(*) FROM people WHERE (age) > 3) TO STDOUT (FORMAT csv)",
            "SELECT count(*) FROM people WHERE (age) > 3",
            "COPY (",
            ") TO STDOUT (FORMAT csv)",
        ),
        (
            "CREATE TEMP TABLE t AS SELECT count(*) FROM people WITH NO DATA",
            "SELECT count(*) FROM people",
            "CREATE TEMP TABLE t AS ",
            " WITH NO DATA",
        ),
        (
            "CREATE LOCAL TEMPORARY TABLE t ON COMMIT DROP AS (SELECT count(*) FROM people)",
            "(SELECT count(*) FROM people)",
            "CREATE LOCAL TEMPORARY TABLE t ON COMMIT DROP AS ",
            "",
        ),
    ],
)
def test_a_query_inside_another_statement(sql: str, inner: str, before: str, behind: str) -> None:
    statement = _only(sql)
    assert statement.kind is Kind.WRAPPED
    assert statement.query == " " * len(before) + inner
    assert statement.before == before
    assert statement.behind == behind


@pytest.mark.parametrize(
    ("sql", "read_as"),
    [
        ("COPY people TO STDOUT", "COPY (SELECT * FROM people) TO STDOUT"),
        (
            'COPY public."people" (age, "sex") TO STDOUT (FORMAT csv)',
            'COPY (SELECT age, "sex" FROM public."people") TO STDOUT (FORMAT csv)',
        ),
    ],
)
def test_a_table_is_copied_as_a_query(sql: str, read_as: str) -> None:
    statement = _only(sql)
    assert statement.kind is Kind.WRAPPED
    assert statement.before + statement.question + statement.behind == read_as


def test_long_texts_are_not_read_word_by_word() -> None:
    assert classify("SELECT 1" + " " * MAX_READ, DECLARED) == ()
    for text in (
        "SELECT 'PEOPLE'",
        "ALTER ROLE alice PASSWORD 'x'",
        "Execute s",
        "DISCARD ALL",
        "SELECT * FROM dpsql.budget",
    ):
        found = _only(text + " " * MAX_READ)
        assert found.kind is Kind.REFUSED and found.refusal is not None and found.refusal.sqlstate == "54001"


@pytest.mark.parametrize(
    "text",
    [
        "SELECT a FROM people WHERE " + "a " * MAX_READ,
        "SELECT a FROM people WHERE " + "(" * MAX_READ,
        "SELECT a FROM people WHERE " + "'' " * MAX_READ,
        "SELECT people " + "$$" * MAX_READ,
        "SELECT a FROM people " + "/**/" * MAX_READ,
        "SELECT a FROM people " + "--\n" * MAX_READ,
        "EXECUTE a;" * MAX_READ,
        "SELECT people;" * MAX_READ,
        "SELECT 1 FROM people;" * MAX_READ,
        "SELECT 1 FROM people" + " JOIN people ON a" * MAX_READ,
    ],
)
def test_no_text_holds_up_the_loop(text: str) -> None:
    """Whatever is sent, the loop that serves everybody reads no more than so much of it; steps are Python's calls."""
    calls, _ = counted_calls(lambda: classify(text[:MAX_READ], DECLARED))
    assert calls < MOST_CALLS


def test_of_many_statements_only_the_first_are_read_for_their_tables() -> None:
    named_only = "SELECT people; "
    many = classify(named_only * MAX_WORDS, DECLARED)
    assert many[0].kind is Kind.PASS
    assert many[-1].kind is Kind.QUERY  # the engine decides
    assert len(many) == MAX_WORDS


def test_names_with_quotes_are_found() -> None:
    (statement,) = classify('SELECT count(*) FROM "pe""ople"', frozenset(['pe"ople']))
    assert statement.kind is Kind.QUERY


def test_explain() -> None:
    for prefix in ("EXPLAIN ", "explain verbose ", "EXPLAIN (COSTS off, VERBOSE) ", "EXPLAIN (ANALYZE false) "):
        statement = _only(f"{prefix}SELECT count(*) FROM people")
        assert statement.kind is Kind.EXPLAIN and not statement.json
        assert statement.query.strip() == "SELECT count(*) FROM people"
    assert _only("EXPLAIN (FORMAT JSON) SELECT count(*) FROM people").json
    assert _only("EXPLAIN (SELECT count(*) FROM people)").kind is Kind.EXPLAIN


@pytest.mark.parametrize(
    ("sql", "sqlstate"),
    [
        ("INSERT INTO people VALUES (1)", "25006"),
        ("DELETE FROM people", "25006"),
        ("DROP TABLE people", "25006"),
        ("CREATE VIEW v AS SELECT count(*) FROM people", "25006"),
        ("CREATE TEMP TABLE people (a int)", "25006"),
        ("CREATE TABLE t AS SELECT count(*) FROM people", "25006"),
        ("COPY people FROM STDIN", "25006"),
        ("CREATE TEMP TABLE people AS TABLE people WITH NO DATA", "25006"),
        ("ALTER ROLE alice PASSWORD 'x'", "25006"),
        ("ALTER USER alice RENAME TO bob", "25006"),
        ("EXPLAIN ANALYZE SELECT count(*) FROM people", "0A000"),
        ("EXPLAIN (ANALYZE) SELECT count(*) FROM people", "0A000"),
        ("EXPLAIN (FORMAT xml) SELECT count(*) FROM people", "0A000"),
        ("EXPLAIN (SPELL) SELECT count(*) FROM people", "0A000"),
        ("DECLARE c CURSOR FOR people", "0A000"),
        ("TRUNCATE visits", "25006"),
        ("ALTER TABLE mine RENAME TO people", "25006"),
    ],
)
def test_refused(sql: str, sqlstate: str) -> None:
    statement = _only(sql)
    assert statement.kind is Kind.REFUSED
    assert statement.refusal is not None and statement.refusal.sqlstate == sqlstate


def test_statements_keep_their_places() -> None:
    sql = "BEGIN; SELECT count(*) FROM people ;EXECUTE q (1)"
    begin, query, execute = classify(sql, DECLARED)
    assert begin.controls_transaction and not query.controls_transaction
    assert query.text[query.start : query.end] == sql[7:34]
    assert query.start == 7
    assert execute.kind is Kind.EXECUTE


def test_what_reads_data_from_the_client() -> None:
    assert _only("COPY mine (a, b) FROM STDIN (FORMAT csv)").copies_in
    assert not _only("COPY mine TO STDOUT").copies_in
    assert not _only("SELECT copy FROM stdin").copies_in


def test_backslashes_where_strings_are_not_standard() -> None:
    (statement,) = classify(r"SELECT count(*) FROM people WHERE city = 'a\'b'", DECLARED, standard_strings=False)
    assert statement.refusal is not None and statement.refusal.sqlstate == "0A000"
    (statement,) = classify("SELECT count(*) FROM people WHERE city = 'b'", DECLARED, standard_strings=False)
    assert statement.kind is Kind.QUERY


LONG = {
    "subscripts": "SELECT people" + "[1]" * 80_000,
    "subscripts that are not many": "SELECT people" + "[1]" * 40,
    "operators": "SELECT 1 FROM people WHERE " + "1+" * 120_000 + "1",
    "signs": "SELECT people FROM t WHERE " + "- " * 120_000 + "1",
    "brackets": "SELECT people " + "[" * 240_000,
    "parentheses": "SELECT " + "(" * 200_000 + "people",
    "strings": "SELECT people, " + "'a''b' || " * 20_000 + "1",
    "comments": "SELECT people " + "/*" * 100_000,
    "closed comments": "SELECT people " + "/**/" * 60_000,
    "dollars": "SELECT people, " + "$a" * 100_000,
    "names": 'SELECT people, "' + '""' * 100_000,
    "statements": "SELECT people;" * 18_000,
}


@pytest.mark.parametrize("text", LONG.values(), ids=LONG)
def test_no_text_holds_everybody_up(text: str) -> None:
    """It is read in the loop that serves all clients: subscripts once took minutes."""
    began = time.thread_time()  # not the clock: others use the machine as well
    assert classify(text, frozenset({"people"}))
    assert time.thread_time() - began < 10


def test_the_words_of_long_texts_are_not_remembered() -> None:
    """They take a hundred times as much memory as the text, and cost who sends them nothing."""
    long = f"SELECT COUNT(*) FROM people WHERE age IN (0{',1' * MAX_REMEMBERED})"
    for text, same in ((long, False), (long[:40], True)):
        assert (classify(text, DECLARED)[0] is classify(text, DECLARED)[0]) is same


@pytest.mark.parametrize(
    ("opening", "closing"),
    [("DATE(", ")"), ("ARRAY[", "]"), ("IF[", "]"), ("SORT_ARRAY(1, ", ")"), ("(1 + INT(", "))")],
)
def test_what_sqlglot_reads_again_at_each_level_holds_up_nobody(opening: str, closing: str) -> None:
    """Forty levels would take weeks."""
    assert _only(f"SELECT {opening * 40}age{closing * 40} FROM people").kind is Kind.QUERY


@pytest.mark.parametrize("text", ["SELECT age #> FROM people", "SELECT people #>> "])
def test_what_sqlglot_stumbles_over_is_for_the_engine_to_refuse(text: str) -> None:
    """It then raises errors that are not its own, which ended the session."""
    assert _only(text).kind is Kind.QUERY
