"""dpsql.budget, dpsql.history and dpsql.policy: each user's own account, as an ordinary table."""

from __future__ import annotations

from dataclasses import replace

import psycopg
import pytest

from dpsql.server.twin.account import SHOWN_TEXT
from tests.server.connection import Address

QUESTION = "SELECT count(*) FROM people WHERE age > 41"
REFUSED = "SELECT age FROM people WHERE age > 41"


def connect(address: Address) -> psycopg.Connection:
    return psycopg.connect(
        host=address.host,
        port=address.port,
        user=address.user,
        dbname=address.database,
        password=address.password,
        autocommit=True,
    )


@pytest.mark.parametrize("prepare", [False, True])
def test_what_was_paid_and_refused_is_seen_at_once_and_by_oneself_alone(served: Address, prepare: bool) -> None:
    spent = "SELECT spent_epsilon FROM dpsql.budget"
    history = "SELECT outcome, sqlstate, epsilon > 0 FROM dpsql.history WHERE query = %s ORDER BY time LIMIT 3"
    alice, bob = replace(served, user="alice"), replace(served, user="bob")
    question, refused = (f"{sql} + {int(prepare)}" for sql in (QUESTION, REFUSED))
    with connect(alice) as first, connect(bob) as second:
        (before,) = first.execute(spent, prepare=prepare).fetchone() or (None,)
        first.execute(question)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            first.execute(refused)
        (after,) = first.execute(spent, prepare=prepare).fetchone() or (None,)
        assert before is not None and after is not None and after > before
        rows = first.execute(history, [question], prepare=prepare).fetchall()
        assert rows == [("paid", "00000", True)]
        rows = first.execute(history, [refused], prepare=prepare).fetchall()
        assert rows == [("refused", "42501", None)]
        assert second.execute(history, [question], prepare=prepare).fetchall() == []


def test_the_policy_can_be_read(served: Address) -> None:
    with connect(served) as connection:
        found = connection.execute(
            "SELECT protection, lower, upper FROM dpsql.policy WHERE table_name = 'people' AND column_name = 'age'"
        ).fetchall()
    assert found and found[0][0] == "private"


def test_long_texts_are_shown_in_part(served: Address) -> None:
    with connect(served) as connection:
        ages = ", ".join(map(str, range(9_000)))
        connection.execute(f"SELECT count(*) FROM people WHERE age <> 101 AND age IN ({ages})".encode())
        [(length,)] = connection.execute("SELECT max(length(query)) FROM dpsql.history").fetchall()
    assert length == SHOWN_TEXT
