"""LIKE over what is known beforehand is LIKE as engines have it."""

from __future__ import annotations

import duckdb
from hypothesis import given
from hypothesis import strategies as st

from dpsql.effort import Effort, limited
from dpsql.plan.constants import evaluate
from dpsql.plan.scalars import Call, Const, Op
from dpsql.types import BOOLEAN, TEXT


@given(text=st.text("ab%_!\n", max_size=8), pattern=st.text("ab%_!", max_size=8))
def test_like_is_that_of_the_engine(text: str, pattern: str) -> None:
    if (len(pattern) - len(pattern.rstrip("!"))) % 2:
        pattern += "!"
    node = Call(Op.LIKE, (Const(text, TEXT), Const(pattern, TEXT)), BOOLEAN, "!")
    ((wanted,),) = duckdb.execute("SELECT ? LIKE ? ESCAPE '!'", [text, pattern]).fetchall()
    assert evaluate(node) is wanted


def test_no_pattern_takes_more_steps_than_its_characters_times_those_of_the_text() -> None:
    node = Call(Op.LIKE, (Const("a" * 500, TEXT), Const("%a" * 100 + "b", TEXT)), BOOLEAN, "\\")
    effort = Effort(500 * 201)
    with limited(effort):
        assert evaluate(node) is False
