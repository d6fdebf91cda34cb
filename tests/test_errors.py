"""The table of errors: every SQLSTATE that is sent is in it, under PostgreSQL's name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import psycopg.errors
import pytest

import dpsql
from dpsql.errors import CONDITIONS, Condition, Error

LISTENER = Path(dpsql.__file__).parent / "server" / "listener.py"


def classes(of: type[Error] = Error) -> Iterator[type[Error]]:
    if of.__module__ == "dpsql.errors":
        yield of
    for each in of.__subclasses__():
        yield from classes(each)


def sent_by_the_listener() -> set[str]:
    return set(re.findall(r'messages\.fatal\(\s*"(\w{5})"', LISTENER.read_text(encoding="utf-8")))


@pytest.mark.parametrize("error", sorted(classes(), key=str))
def test_every_error_has_a_row(error: type[Error]) -> None:
    assert error.sqlstate in CONDITIONS


def test_what_the_listener_sends_has_a_row() -> None:
    sent = sent_by_the_listener()
    assert {"53300", "57P01", "57P03"} <= sent <= set(CONDITIONS)


def test_every_row_is_sent() -> None:
    assert set(CONDITIONS) == {each.sqlstate for each in classes()} | sent_by_the_listener()


@pytest.mark.parametrize("condition", CONDITIONS.values(), ids=CONDITIONS)
def test_a_condition_has_the_name_that_postgres_gives_it(condition: Condition) -> None:
    name = psycopg.errors.lookup(condition.code).__name__.removesuffix("_")
    assert condition.name.replace("_", "") == name.lower()
