"""Equal texts are equal values: each text can be read back."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpsql.policy.canonical import canonical, leaf, rows_text, term

Tree = str | tuple["Tree", ...]


def _read(text: str) -> Tree:
    """What a text was made of; raises where there is more than one way to read it."""
    tree, end = _part(text, 0)
    assert end == len(text)
    return tree


def _part(text: str, at: int) -> tuple[Tree, int]:
    if text[at] == "(":
        parts, at = [], at + 1
        while text[at] != ")":
            part, at = _part(text, at)
            parts.append(part)
        return tuple(parts), at + 1
    colon = text.index(":", at)
    end = colon + 1 + int(text[at:colon])
    return text[colon + 1 : end], end


def _written(tree: Tree) -> str:
    return leaf(tree) if isinstance(tree, str) else term(*map(_written, tree))


TREES = st.recursive(st.text("(:)19ab", max_size=5), lambda parts: st.lists(parts, max_size=4).map(tuple))


@given(TREES)
def test_a_tree_can_be_read_from_its_text(tree: Tree) -> None:
    assert _read(_written(tree)) == tree


class Kind(Enum):
    ONE = "one"
    OTHER = "1"


@dataclass(frozen=True)
class Before:
    given: object
    usual: int = 1


@dataclass(frozen=True)
class Behind:
    given: object
    usual: int = 1


VALUES = [
    None, True, False, 0, 1, -1, 0.0, -0.0, 1.0, float("nan"), float("inf"), "", "1", "i1", "b1", "n", "(", "3:abc",
    "\ud83d\ude00", "😀", b"", b"1", Decimal("1"), Decimal("1.0"), Fraction(1), Fraction(1, 2), date(2020, 1, 1),
    datetime(2020, 1, 1), (), ((),), (None,), (1, (2,)), ((1,), 2), (1, 2), ("1", "2"), ("1:2",), frozenset({1, 2}),
    frozenset({1}), {"a": 1}, {"a": "1"}, {1: "a"}, Kind.ONE, Kind.OTHER, Before(1), Behind(1), Before(1, 2),
    Before("1"), Before((1, 2)), Before(None), Before(Before(1)),
]  # fmt: skip


def test_no_two_values_have_one_text() -> None:
    assert len({canonical(value) for value in VALUES}) == len(VALUES)
    for value in VALUES:
        assert _read(canonical(value))


Rows = list[tuple[object, object]]
ROWS = st.lists(st.tuples(st.sampled_from(VALUES[:20]), st.sampled_from(VALUES[:20])), max_size=3)


@given(ROWS, ROWS)
def test_rows_have_one_text_only_where_they_are_the_same(one: Rows, other: Rows) -> None:
    assert (rows_text(one) == rows_text(other)) == (canonical(one) == canonical(other))


def test_what_is_no_value_has_no_text() -> None:
    with pytest.raises(TypeError):
        canonical(object())
