"""Tokens and statements, as PostgreSQL's own scanner sees them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpsql.sql.tokens import Sort, statements, tokens


def _texts(sql: str, **options: bool) -> list[str]:
    return [token.text for token in tokens(sql, **options)]


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT Age FROM People", ["select", "age", "from", "people"]),
        ('SELECT "Age" FROM "Peo""ple"', ["select", "Age", "from", 'Peo"ple']),
        ('SELECT 1 FROM U&"\\0070eople"', ["select", "1", "from", "people"]),
        ('SELECT 1 FROM U&"\\+000070eople"', ["select", "1", "from", "people"]),
        ("SELECT 'it''s; people'", ["select", "'it''s; people'"]),
        (r"SELECT E'it\'s; people'", ["select", r"E'it\'s; people'"]),
        (r"SELECT 'a\'; people", ["select", r"'a\'", ";", "people"]),
        ("SELECT $1, $2", ["select", "1", ",", "2"]),
        ("SELECT $$ a; people $$", ["select", "$$ a; people $$"]),
        ("SELECT $x$ $$ ; $x$ , b", ["select", "$x$ $$ ; $x$", ",", "b"]),
        ("SELECT 1 -- people;\n, 2", ["select", "1", ",", "2"]),
        ("SELECT 1 /* people /* nested */ ; */ , 2", ["select", "1", ",", "2"]),
        ("SELECT 1e-5, .5, 1_000, 0x1F", ["select", "1e-5", ",", ".5", ",", "1_000", ",", "0x1F"]),
        ("SELECT B'01', x'ff', N'a;b'", ["select", "B'01'", ",", "x'ff'", ",", "N'a;b'"]),
        ("SELECT a$b, Ümlaut", ["select", "a$b", ",", "Ümlaut"]),
        ("SELECT 'never ended; people", ["select", "'never ended; people"]),
        ('SELECT "never ended', ["select", "never ended"]),
        ("SELECT $$never ended", ["select", "$$never ended"]),
        ("SELECT 1 /* never ended", ["select", "1"]),
    ],
)
def test_tokens(sql: str, expected: list[str]) -> None:
    assert _texts(sql) == expected


def test_a_backslash_escapes_where_strings_are_not_standard() -> None:
    assert _texts(r"SELECT 'a\'; people' , 1", standard_strings=False) == ["select", r"'a\'; people'", ",", "1"]


@pytest.mark.parametrize(
    ("sql", "count"),
    [
        ("", 0),
        (" ; ;", 0),
        ("SELECT 1", 1),
        ("SELECT 1;", 1),
        ("SELECT ';'; SELECT $$;$$; -- ;\n SELECT 3", 3),
        ("CREATE RULE r AS ON INSERT TO t DO ALSO (SELECT 1; SELECT 2)", 1),
    ],
)
def test_statements(sql: str, count: int) -> None:
    assert len(statements(tokens(sql))) == count


@given(st.text())
def test_every_text_has_tokens_at_their_places(sql: str) -> None:
    end = 0
    for token in tokens(sql):
        assert end <= token.start < token.end <= len(sql)
        end = token.end
        if token.sort in (Sort.STRING, Sort.NUMBER, Sort.OPERATOR):
            assert sql[token.start : token.end] == token.text
