"""PostgreSQL's grammar: what binds what, and what is no statement. PostgreSQL itself is asked in grammar_tests."""

from __future__ import annotations

import pytest

from dpsql.errors import Error, NameTooLong, NotSupported, SqlSyntaxError
from dpsql.sql.grammar import with_parentheses
from dpsql.sql.judge import misreading
from dpsql.sql.parse import parse

BINDS = {
    "a + b * c": "(a + (b * c))",
    "a - b - c": "(a - b - c)",
    "2 ^ 3 ^ 2": "((2 ^ 3) ^ 2)",
    "- a ^ b": "((- a) ^ b)",
    "- a::int": "(- (a::int))",
    "NOT a = b": "(NOT (a = b))",
    "a = NOT b IS NULL": "(a = (NOT (b IS NULL)))",
    "a OR b AND NOT c OR d": "(a OR (b AND (NOT c)) OR d)",
    "a BETWEEN b AND c AND d": "((a BETWEEN b AND c) AND d)",
    "a || b = c": "((a || b) = c)",
    "a < b IS NULL": "((a < b) IS NULL)",
    "a IS NULL = b": "((a IS NULL) = b)",
    "a IN (1) = b": "((a IN (1)) = b)",
    "a IN (1) IN (TRUE)": "((a IN (1)) IN (TRUE))",
    "a LIKE b || c ESCAPE 'x' AND d": "((a LIKE (b || c) ESCAPE 'x') AND d)",
    "a IS DISTINCT FROM b + c": "(a IS DISTINCT FROM (b + c))",
    "a<-1": "(a<(-1))",
    "(a + b) * c": "((a + b) * c)",
    "(SELECT 1) + 2": "((SELECT 1) + 2)",
    "((SELECT 1))": "((SELECT 1))",
    "CASE a WHEN b + c THEN d END": "CASE a WHEN (b + c) THEN d END",
    "x::numeric(3, 1)::text": "(x::numeric(3, 1)::text)",
}


@pytest.mark.parametrize("text", list(BINDS))
def test_operators_bind_as_in_postgres(text: str) -> None:
    assert with_parentheses(f"SELECT {text}") == f"SELECT {BINDS[text]}"


@pytest.mark.parametrize(
    "text",
    [
        "a < b < c", "a = b = c", "a LIKE b LIKE c", "a BETWEEN b AND c BETWEEN d AND e", "a!=-1", "a IS", "a b c",
        "1a", "1é", "1.5e2é", "$1a",
        "(a, b", "CASE a END", "CASE WHEN a b END", "f(, a)", "f(a,)", "a IN ()", "a BETWEEN NOT b AND c",
        "a::", "a::numeric()", "TRIM()", "a.", ".a", "a FROM (t)", "a FROM t JOIN u", "a FROM t ON b",
        "a FROM t GROUP BY", "a LIMIT 1 LIMIT 2", "a FROM t NULL", "a FROM t ORDER BY a USING <",
        "a FETCH FIRST 1 ROW WITH TIES", "a UNION", "a; SELECT b", "a year", "from",
    ],
)  # fmt: skip
def test_what_is_none_of_postgres_is_refused(text: str) -> None:
    with pytest.raises(SqlSyntaxError):
        with_parentheses(f"SELECT {text}")


def test_long_names_are_refused() -> None:
    with pytest.raises(NameTooLong):
        with_parentheses(f"SELECT {'é' * 32}")
    assert with_parentheses(f"SELECT {'é' * 31}")


@pytest.mark.parametrize(
    "text", ["a AS year", "a no", 'a "year"', "left('a', 1)", "t.select", '"from"', "a FROM t x(y)"]
)
def test_keywords_are_names_where_postgres_takes_them(text: str) -> None:
    assert with_parentheses(f"SELECT {text}") == f"SELECT {text}"


def test_a_tree_that_binds_otherwise_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    statement = parse("SELECT 1 + 2 * 3")
    assert misreading(statement) is None
    monkeypatch.setattr("dpsql.sql.judge.with_parentheses", lambda _: "SELECT (1 + 2) * 3")
    found = misreading(statement)
    assert isinstance(found, NotSupported) and isinstance(found, Error)
