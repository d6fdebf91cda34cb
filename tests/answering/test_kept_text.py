"""What the ledger keeps of a text, and the least price of a query."""

from __future__ import annotations

import hashlib
from contextlib import closing
from pathlib import Path

import pytest

from dpsql.answering.open_dataset import open_dataset
from dpsql.answering.session import Session
from dpsql.errors import BadSetting
from dpsql.sql.kept_text import MOST, kept_text
from tests import toy


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("SELECT 1", "SELECT 1"),
        ("SELECT 1 -- one\n, 2", "SELECT 1 , 2"),
        ("/* a /* b */ c */ SELECT/**/1", "SELECT 1"),
        ("SELECT '--', \"/*\", $$ /* */ $$ FROM t  -- end", "SELECT '--', \"/*\", $$ /* */ $$ FROM t"),
        ("SELECT 1\n  FROM t", "SELECT 1\n  FROM t"),
    ],
)
def test_comments_are_not_kept(text: str, kept: str) -> None:
    assert kept_text(text) == kept


def test_a_long_text_is_cut_and_known_by_its_hash() -> None:
    text = f"SELECT COUNT(*) FROM people WHERE age IN ({', '.join(map(str, range(20_000)))})"
    kept = kept_text(text)
    assert kept.startswith(text[:MOST])
    assert hashlib.sha256(text.encode()).hexdigest() in kept
    assert len(kept) < MOST + 150


def test_a_purchase_keeps_little(tmp_path: Path) -> None:
    toy.create_database(tmp_path / toy.DATABASE)
    with closing(open_dataset(toy.write_policy(tmp_path))) as dataset:
        Session(dataset, "alice").execute(f"SELECT COUNT(*) FROM people -- {'x' * 80_000}")
        (entry,) = dataset.ledger.history("alice")
        assert entry.sql == "SELECT COUNT(*) FROM people"


def test_the_least_price(tmp_path: Path) -> None:
    toy.create_database(tmp_path / toy.DATABASE)
    policy = toy.write_policy(tmp_path)
    policy.write_text(policy.read_text().replace("[privacy]", "[privacy]\nmin_query_epsilon = 0.01"))
    with closing(open_dataset(policy)) as dataset:
        session = Session(dataset, "alice")
        for setting in ("epsilon = 1e-9", "margin = 1e9"):
            session.execute(f"SET dpsql.{setting}")
            for text in ("", "EXPLAIN "):
                with pytest.raises(BadSetting, match=r"costs less than epsilon 0\.01") as refusal:
                    session.execute(f"{text}SELECT COUNT(*) FROM people")
                assert "SET dpsql.epsilon = 0.01" in (refusal.value.hint or "")
            session.execute(f"RESET dpsql.{setting.split()[0]}")
        session.execute("SET dpsql.epsilon = 0.01")
        assert session.execute("SELECT COUNT(*) FROM people") is not None
        assert session.execute("SELECT 1") is not None
