"""How large a statement may be: each limit has its message, its setting, and a default that leaves room."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from dpsql.answering.dataset import Dataset
from dpsql.answering.open_dataset import open_dataset
from dpsql.answering.session import SessionSettings
from dpsql.errors import BadSetting, NotSupported, TooComplex
from dpsql.policy.load import load
from dpsql.policy.model import StatementLimits
from dpsql.policy.problems import PolicyProblems
from dpsql.release import QuerySettings
from tests import toy

DOUBLING = "WITH a0 AS (SELECT age FROM people), " + ", ".join(
    f"a{i} AS (SELECT age FROM a{i - 1} UNION ALL SELECT age FROM a{i - 1})" for i in range(1, 40)
)
JOINED = "SELECT COUNT(*) FROM people p " + " ".join(f"JOIN states s{i} ON s{i}.code = p.state" for i in range(9))
# Of each setting, a value, a statement beyond it, and what is said.
BEYOND = {
    "max_bytes": (1_000, f"SELECT COUNT(*) FROM people -- {'ä' * 500}", "the statement is longer than 1,000 bytes"),
    "max_nodes": (1_000, f"{DOUBLING} SELECT COUNT(*) FROM a39", "the query has more than 1,000 parts"),
    "max_nesting": (5, "SELECT COUNT(*) FROM people WHERE ((((((age > 1))))))", "nested more than 5 deep"),
    "max_joins": (8, JOINED, "the query has more than 8 joins"),
    "max_list": (3, "SELECT COUNT(*) FROM people WHERE age IN (1, 2, 3, 4)", "IN lists more than 3 values"),
}


def policy(folder: Path, line: str) -> Path:
    path = toy.write_policy(folder)
    path.write_text(path.read_text() + f"\n[limits]\n{line}\n")
    return path


@pytest.fixture
def generous(clinic: Path) -> Iterator[Dataset]:
    dataset = open_dataset(toy.write_policy(clinic.parent))
    yield dataset
    dataset.close()


def test_every_limit_is_tried() -> None:
    assert set(BEYOND) == {part.name for part in fields(StatementLimits)}


@pytest.mark.parametrize("name", BEYOND)
def test_a_statement_beyond_a_limit_is_refused_by_its_name(name: str, clinic: Path) -> None:
    value, sql, said = BEYOND[name]
    dataset = open_dataset(policy(clinic.parent, f"{name} = {value}"))
    try:
        with pytest.raises(TooComplex, match=said) as refusal:
            dataset.compile(sql, (), QuerySettings())
        assert refusal.value.sqlstate == "54001"
        assert refusal.value.hint is not None and f"the limit is {name} in [limits]" in refusal.value.hint
    finally:
        dataset.close()


@pytest.mark.parametrize("name", [name for name in BEYOND if name != "max_nodes"])
def test_the_defaults_leave_room(name: str, generous: Dataset) -> None:
    generous.compile(BEYOND[name][1], (), QuerySettings())


def test_what_grows_by_doubling_is_refused_soon(generous: Dataset) -> None:
    with pytest.raises(TooComplex, match="more than 50,000 parts"):
        generous.compile(BEYOND["max_nodes"][1], (), QuerySettings())


def test_tables_listed_with_commas_are_joins_too(clinic: Path) -> None:
    dataset = open_dataset(policy(clinic.parent, "max_joins = 2"))
    try:
        with pytest.raises(TooComplex, match="more than 2 joins"):
            dataset.compile("SELECT COUNT(*) FROM people, states a, states b, states c", (), QuerySettings())
    finally:
        dataset.close()


def test_many_words_are_refused_before_they_are_read(clinic: Path) -> None:
    dataset = open_dataset(policy(clinic.parent, "max_nodes = 1_000"))
    try:
        with pytest.raises(TooComplex, match="the statement has more than 1,000 words"):
            dataset.compile(f"SELECT COUNT(*) FROM people WHERE {'NOT ' * 1_000} smoker", (), QuerySettings())
    finally:
        dataset.close()


@pytest.mark.parametrize("words", ["NOT " * 5_000, "-" + " -" * 5_000])
def test_what_sqlglot_cannot_read_so_deep_is_refused(words: str, generous: Dataset) -> None:
    """Without a parenthesis, nothing tells before how deep the tree will be."""
    with pytest.raises(NotSupported):
        generous.compile(f"SELECT COUNT(*) FROM people WHERE {words} age > 0", (), QuerySettings())


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("max_nesting = 61", '"max_nesting" in [limits] is more than 60'),
        ("max_bytes = 0", '"max_bytes" in [limits] must be 1 or more'),
        ("max_joins = 1.5", '"max_joins" in [limits] must be an integer'),
    ],
)
def test_limits_have_limits(line: str, said: str, clinic: Path) -> None:
    with pytest.raises(PolicyProblems) as problems:
        load(policy(clinic.parent, line))
    assert said in str(problems.value)


def test_other_limits_are_no_other_questions(clinic: Path) -> None:
    """What was bought stays bought: a limit decides what is asked, not what it means."""
    fingerprints = set()
    for line in ("", "max_joins = 7\nmax_bytes = 5_000"):
        dataset = open_dataset(policy(clinic.parent, line))
        fingerprints.add(dataset.catalog.fingerprint)
        dataset.close()
    assert len(fingerprints) == 1


@pytest.mark.parametrize("name", ["epsilon", "delta", "margin"])
def test_a_setting_of_very_many_digits_is_refused_at_once(name: str) -> None:
    """Its exact arithmetic would hold up every other session: a million digits took more than a minute."""
    with pytest.raises(BadSetting, match=f'"dpsql.{name}" is longer than 100 characters'):
        SessionSettings().set(name, f"0.1{'0' * 1_000_000}1")
    SessionSettings().set(name, f"0.1{'0' * 90}1")


@pytest.mark.parametrize("call", ["DATE(", "NUMERIC(", "TIMESTAMP(", "(1 + DATE("])
def test_what_would_be_read_again_at_each_level_is_refused_before(call: str, generous: Dataset) -> None:
    """Twenty levels would take minutes, and forty weeks; the parser is compiled: it lets no other thread run."""

    def query(levels: int) -> str:
        closing = ")" * call.count("(")
        return f"SELECT COUNT(*) FROM people WHERE {call * levels}joined{closing * levels} IS NULL"

    with pytest.raises(TooComplex, match="nested more than 3 deep"):
        generous.compile(query(28), (), QuerySettings())
    if call == "DATE(":
        generous.compile(query(3), (), QuerySettings())
