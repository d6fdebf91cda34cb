"""Sums of very many terms: the same numbers, bounds and margins as if they were added up one by one."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from functools import reduce
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpsql.answering.answer import Answer
from dpsql.answering.open_dataset import open_dataset
from dpsql.answering.session import Session
from dpsql.plan.constants import evaluate
from dpsql.plan.scalars import Call, Const, Op, Scalar
from dpsql.sql.functions.core import balanced
from dpsql.sql.types import arithmetic_type, constant
from dpsql.types import BIGINT


@pytest.fixture
def session(clinic: Path) -> Iterator[Session]:
    dataset = open_dataset(clinic)
    yield Session(dataset, "alice")
    dataset.close()


def ask(session: Session, sql: str) -> tuple[int, int | float]:
    """A number and its margin."""
    answer = session.execute(sql)
    assert isinstance(answer, Answer)
    ((value,),) = answer.table.rows
    ((margin,),) = answer.margins
    assert isinstance(value, int) and margin is not None
    return value, margin


def test_two_hundred_counts_are_two_hundred_times_the_count(session: Session) -> None:
    value, margin = ask(session, "SELECT COUNT(*) FROM people")
    many = ask(session, f"SELECT {' + '.join(['COUNT(*)'] * 200)} FROM people")
    assert many == (200 * value, 200 * margin)


@pytest.mark.parametrize("terms", [3, 16, 17, 200])
def test_what_is_subtracted_is_subtracted(terms: int, session: Session) -> None:
    value, margin = ask(session, "SELECT COUNT(*) FROM people")
    mixed = ask(session, f"SELECT COUNT(*) {' '.join('+ 3' if i % 3 else '- 1' for i in range(terms))} FROM people")
    assert mixed == (value + sum(3 if i % 3 else -1 for i in range(terms)), margin)


@pytest.mark.parametrize("items", [8, 16, 100])
def test_a_score_is_bounded_by_the_number_of_its_items(items: int, session: Session) -> None:
    score = " + ".join(f"CASE WHEN age > {i} THEN 1 ELSE 0 END" for i in range(items))
    assert any(
        f"clamped to [0, {items}] in steps of 1" in line for line in session.explain(f"SELECT SUM({score}) FROM people")
    )


Numbers = st.none() | st.integers(-(10**9), 10**9)


@given(st.lists(st.tuples(st.booleans(), Numbers), min_size=1, max_size=70))
def test_balanced_sums_have_the_same_value(terms: list[tuple[bool, int | None]]) -> None:
    def plus(total: Scalar, term: tuple[bool, int | None]) -> Scalar:
        op, value = Op.ADD if term[0] else Op.SUB, Const(term[1], BIGINT)
        type_ = arithmetic_type(op, total.type, value.type)
        assert type_ is not None
        return Call(op, (total, value), type_)

    start: Scalar = constant(7)
    total = reduce(plus, terms, start)
    assert evaluate(balanced(total)) == evaluate(total)


def test_decimals_of_many_scales_are_added_exactly() -> None:
    parts = [constant(Decimal(1).scaleb(-(i % 5))) for i in range(40)]
    total: Scalar = parts[0]
    for part in parts[1:]:
        type_ = arithmetic_type(Op.ADD, total.type, part.type)
        assert type_ is not None
        if total.type.kind is not type_.kind:
            break
        total = Call(Op.ADD, (total, part), type_)
    assert evaluate(balanced(total)) == evaluate(total)
