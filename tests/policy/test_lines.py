"""Every key of a TOML text is found on the line where it stands."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator

import pytest

from dpsql.policy.sections import LineIndex, Path

TEXT = '''# a comment with [brackets] and key = "value"
title = "not [a.header] # nor a comment"

[privacy]
epsilon = 1.0 # = 2
"quoted.key" = 'literal \\'

[tables."sales.orders"]
note = """
[not.a.header]
key = 3 \\""" still inside """""
when = 2020-01-01 10:00:00
columns.age = { min = 0, "max" = 110, values = ["}", ']'] }
columns.state = { values = [
  "CA", # first
  "NY",
  { deep = 1 },
] }

  [ tables . items ]
  unit = { via = "a", table = "b" }

[[list]]
x = 1
'''


def paths(value: object, prefix: Path = ()) -> Iterator[Path]:
    children: list[tuple[str | int, object]] = []
    if isinstance(value, dict):
        children = list(value.items())
    elif isinstance(value, list):
        children = list(enumerate(value))
    for key, child in children:
        yield (*prefix, key)
        yield from paths(child, (*prefix, key))


def test_every_key_the_parser_sees_is_found() -> None:
    document = tomllib.loads(TEXT)
    del document["list"]  # arrays of tables are indexed by their name only
    index = LineIndex(TEXT)
    assert [path for path in paths(document) if path not in index] == []


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("title",), 2),
        (("privacy",), 4),
        (("privacy", "epsilon"), 5),
        (("privacy", "quoted.key"), 6),
        (("tables", "sales.orders"), 8),
        (("tables", "sales.orders", "note"), 9),
        (("tables", "sales.orders", "when"), 12),
        (("tables", "sales.orders", "columns", "age", "max"), 13),
        (("tables", "sales.orders", "columns", "state"), 14),
        (("tables", "sales.orders", "columns", "state", "values", 1), 16),
        (("tables", "sales.orders", "columns", "state", "values", 2, "deep"), 17),
        (("tables", "items"), 20),
        (("tables", "items", "unit", "table"), 21),
        (("list",), 23),
    ],
)
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_a_key_is_found_on_its_line(path: Path, line: int, newline: str) -> None:
    assert LineIndex(TEXT.replace("\n", newline)).line(path) == line


def test_a_key_that_is_not_there_is_placed_at_what_surrounds_it() -> None:
    index = LineIndex(TEXT)
    assert index.line(("privacy", "delta")) == 4
    assert index.line(("nowhere",)) is None


def test_a_header_counts_more_than_its_mention_in_an_earlier_one() -> None:
    assert LineIndex("[a.b]\nx = 1\n[a]\ny = 1\n").line(("a",)) == 3
