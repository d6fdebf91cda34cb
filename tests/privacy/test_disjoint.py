"""Conditions that exclude each other, told from their text alone."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpsql.plan.constants import evaluate
from dpsql.plan.scalars import Call, Const, Field, Op, Ref, Scalar
from dpsql.privacy.estimators import disjoint as module
from dpsql.privacy.estimators.disjoint import DisjointConditions, disjoint
from dpsql.types import BIGINT, BOOLEAN, DATE, DOUBLE, TEXT, TIMESTAMP, Type, Value
from dpsql.types import decimal as decimal_type

N, M = Ref(Field(1, "n", BIGINT)), Ref(Field(2, "m", BIGINT))
X, T, B = Ref(Field(3, "x", DOUBLE)), Ref(Field(4, "t", TEXT)), Ref(Field(5, "b", BOOLEAN))
DAY, AT = Ref(Field(6, "day", DATE)), Ref(Field(7, "at", TIMESTAMP))


def test(op: Op, *args: Scalar | Value) -> Scalar:
    """A condition; constants take the type of what they stand beside."""
    type_ = next(arg.type for arg in args if isinstance(arg, Ref | Call))
    values = bool | int | float | str | Decimal | date | None
    parts = tuple(Const(arg, type_) if isinstance(arg, values) else arg for arg in args)
    return Call(op, parts, BOOLEAN)


test.__test__ = False  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (test(Op.EQ, T, "a"), test(Op.EQ, T, "b")),
        (test(Op.EQ, T, "a"), test(Op.NE, T, "a")),
        (test(Op.IN, T, "a", "b"), test(Op.EQ, "c", T)),
        (test(Op.LT, N, 5), test(Op.GE, N, 5)),
        (test(Op.LE, N, 4), test(Op.LT, 4, N)),
        (test(Op.EQ, N, 4), test(Op.GT, N, 4)),
        (test(Op.LT, X, 0.5), test(Op.GT, X, 0.75)),
        (test(Op.LT, DAY, date(2020, 1, 1)), test(Op.GE, DAY, date(2020, 1, 1))),
        (test(Op.NOT, test(Op.IN, T, "a", "b")), test(Op.EQ, T, "a")),
        (test(Op.NOT, test(Op.LT, N, 5)), test(Op.EQ, N, 4)),
        (B, test(Op.NOT, B)),
        (test(Op.IS_TRUE, B), test(Op.NOT, B)),
        (test(Op.IS_FALSE, B), B),
        (test(Op.IS_NULL, T), test(Op.NOT, test(Op.IS_NULL, T))),
        (test(Op.AND, test(Op.GT, M, 1), test(Op.LT, N, 5)), test(Op.AND, B, test(Op.GE, N, 5))),
        (
            test(Op.OR, test(Op.EQ, T, "a"), test(Op.EQ, T, "b")),
            test(Op.AND, test(Op.NE, T, "b"), test(Op.NE, T, "a")),
        ),
    ],
)
def test_conditions_that_exclude_each_other(left: Scalar, right: Scalar) -> None:
    assert disjoint(left, right)
    assert disjoint(right, left)


HALF = Const(Decimal("0.5"), decimal_type(2, 1))


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (test(Op.EQ, T, "a"), test(Op.EQ, T, "a")),
        (test(Op.EQ, T, "a"), test(Op.EQ, T, "a  ")),  # the same for a column of fixed width
        (test(Op.NE, T, "a"), test(Op.EQ, T, "a ")),  # and different for others
        (test(Op.NOT, test(Op.IN, T, "b", "a")), test(Op.EQ, T, "a ")),
        (test(Op.EQ, N, 1), test(Op.EQ, M, 2)),
        (test(Op.LE, N, 5), test(Op.GE, N, 5)),
        (test(Op.NE, N, 5), test(Op.NE, N, 6)),
        (test(Op.EQ, X, Const(Decimal("0.3"), decimal_type(1, 1))), test(Op.EQ, X, 0.3)),  # the same double
        (test(Op.EQ, N, Const(5.0, DOUBLE)), test(Op.EQ, N, 6)),  # rounded before it is compared
        (test(Op.LT, AT, Const(date(2020, 1, 1), DATE)), test(Op.GT, AT, datetime(2020, 1, 1))),
        (test(Op.EQ, T, None), test(Op.EQ, T, "b")),
        (test(Op.OR, test(Op.EQ, T, "a"), B), test(Op.EQ, T, "b")),
        (test(Op.LT, T, "a"), test(Op.GT, T, "b")),  # an order of texts is the engine's
        (B, B),
    ],
)
def test_conditions_that_may_both_be_true(left: Scalar, right: Scalar) -> None:
    assert not disjoint(left, right)
    assert not disjoint(right, left)


def conditions(comparisons: st.SearchStrategy[Scalar]) -> st.SearchStrategy[Scalar]:
    return st.recursive(
        comparisons,
        lambda inner: (
            st.builds(lambda op, a, b: test(op, a, b), st.sampled_from((Op.AND, Op.OR)), inner, inner)
            | st.builds(lambda a: test(Op.NOT, a), inner)
        ),
        max_leaves=4,
    )


of_numbers = conditions(
    st.builds(test, st.sampled_from((Op.EQ, Op.NE, Op.LT, Op.LE, Op.GT, Op.GE)), st.just(N), st.integers(0, 4))
    | st.builds(lambda a, b: test(Op.IN, N, a, b), st.integers(0, 4), st.integers(0, 4))
)
TEXTS = ("", " ", "a", "a ", "a  ", " a", "b")
texts = st.sampled_from(TEXTS)
of_texts = conditions(
    st.builds(test, st.sampled_from((Op.EQ, Op.NE)), st.just(T), texts)
    | st.builds(lambda a, b: test(Op.IN, T, a, b), texts, texts)
)


@given(left=of_numbers, right=of_numbers)
def test_no_value_passes_both(left: Scalar, right: Scalar) -> None:
    if disjoint(left, right):
        for n in (None, *range(-1, 6)):
            row: dict[int, Value] = {N.field.id: n}
            assert not (evaluate(left, row) is True and evaluate(right, row) is True)


@given(left=of_texts, right=of_texts)
def test_no_text_passes_both(left: Scalar, right: Scalar) -> None:
    if disjoint(left, right):
        for text in (None, *TEXTS):
            row: dict[int, Value] = {T.field.id: text}
            assert not (evaluate(left, row) is True and evaluate(right, row) is True)


def test_halves_are_told_apart_by_their_constants() -> None:
    x: Type = decimal_type(5, 2)
    price = Ref(Field(8, "price", x))
    assert disjoint(test(Op.LT, price, HALF), test(Op.GE, price, HALF))


def accepted(conditions: list[Scalar]) -> list[Scalar]:
    """Those that are taken into one set, in order."""
    apart = DisjointConditions(conditions[0])
    return [conditions[0], *(each for each in conditions[1:] if apart.add(each))]


of_both = st.builds(lambda a, b: test(Op.AND, a, b), of_numbers, of_texts)


@given(st.lists(of_numbers | of_both, min_size=1, max_size=8))
def test_no_row_passes_two_of_a_set_and_none_is_turned_away_in_vain(conditions: list[Scalar]) -> None:
    apart = DisjointConditions(conditions[0])
    members = [conditions[0]]
    for condition in conditions[1:]:
        is_disjoint = all(disjoint(condition, each) for each in members)
        if apart.add(condition):
            members.append(condition)
        else:
            assert not is_disjoint
    rows: list[dict[int, Value]] = [{N.field.id: n, T.field.id: t} for n in (None, *range(-1, 6)) for t in TEXTS]
    for row in rows:
        assert sum(evaluate(member, row) is True for member in members) <= 1


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 5), st.booleans(), st.booleans()), min_size=1))
def test_intervals_that_do_not_overlap_are_taken_in(drawn: list[tuple[int, int, bool, bool]]) -> None:
    conditions = [
        test(
            Op.AND, test(Op.GT if left else Op.GE, X, float(low)), test(Op.LT if right else Op.LE, X, float(low + size))
        )
        for low, size, left, right in drawn
    ]
    members = accepted(conditions)
    for halves in range(-1, 80):
        assert sum(evaluate(member, {X.field.id: halves / 2}) is True for member in members) <= 1
    for condition in conditions:
        assert condition in members or not all(disjoint(condition, each) for each in members)


@pytest.mark.parametrize(
    "condition",
    [
        lambda i: test(Op.EQ, N, i),
        lambda i: test(Op.EQ, T, f"t{i}"),
        lambda i: test(Op.AND, test(Op.GE, N, i), test(Op.LT, N, i + 1)),
        lambda i: test(Op.AND, test(Op.NOT, test(Op.IS_NULL, M)), test(Op.EQ, N, i)),
        lambda i: test(Op.AND, test(Op.EQ, T, "a"), test(Op.EQ, N, i)),
    ],
)
def test_many_are_compared_at_once(condition: Callable[[int], Scalar], monkeypatch: pytest.MonkeyPatch) -> None:
    compared = 0

    def counted(left: Scalar, right: Scalar) -> bool:
        nonlocal compared
        compared += 1
        return disjoint(left, right)

    monkeypatch.setattr(module, "disjoint", counted)
    assert len(accepted([condition(i) for i in range(200)])) == 200
    assert compared < 20
