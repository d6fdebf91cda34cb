"""What an error does to an expression: half the way between the values at both ends of its margin."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dpsql.plan.constants import evaluate
from dpsql.plan.scalars import Call, Case, Const, Field, Op, Ref, Scalar
from dpsql.privacy.bounds import Interval
from dpsql.release.margins.errors import Atom, Row, Term, as_one, end, errors_of, margin, within
from dpsql.types import BOOLEAN, DOUBLE

# Two noisy numbers, an error that both have and one that only the first has, and a number that is exact.
X, Y, BOTH, ALONE, EXACT = (Field(i, name, DOUBLE) for i, name in enumerate(("x", "y", "both", "alone", "exact")))
SHARED, OWN = Atom("shared", 0), Atom("own", 0)
KNOWN = {
    X.id: {SHARED: Term(Ref(BOTH), True), OWN: Term(Ref(ALONE), True)},
    Y.id: {SHARED: Term(Call(Op.MUL, (Const(3.0, DOUBLE), Ref(BOTH)), DOUBLE), True)},
}


def _call(op: Op) -> st.SearchStrategy[Scalar]:
    return st.deferred(lambda: st.builds(lambda a, b: Call(op, (a, b), DOUBLE), expressions, expressions))


def _case(value: Scalar, other: Scalar) -> Scalar:
    positive = Call(Op.GE, (Ref(EXACT), Const(0.0, DOUBLE)), BOOLEAN)
    return Case(((positive, value),), other, DOUBLE)


LEAVES: list[Scalar] = [Ref(X), Ref(Y), Ref(X), Ref(EXACT), Const(2.0, DOUBLE)]


def _negated(value: Scalar) -> Scalar:
    return Call(Op.NEG, (value,), DOUBLE)


def _expressions() -> st.SearchStrategy[Scalar]:
    operations = [_call(op) for op in (Op.ADD, Op.SUB, Op.MUL, Op.DIV)]
    others = [st.builds(_negated, expressions), st.builds(_case, expressions, expressions)]
    return st.one_of(st.sampled_from(LEAVES), *operations, *others)


expressions: st.SearchStrategy[Scalar] = st.deferred(_expressions)
numbers = st.integers(1, 60).map(lambda n: n / 4) | st.integers(-60, -1).map(lambda n: n / 4)


@given(value=expressions, x=numbers, y=numbers, exact=numbers)
def test_half_way_between_both_ends(value: Scalar, x: float, y: float, exact: float) -> None:
    sizes = {BOTH.id: 0.03, ALONE.id: 0.07}
    env = {X.id: x, Y.id: y, EXACT.id: exact, **sizes}
    errors = errors_of(value, KNOWN)
    assume(errors)
    assert errors is not None
    moves = {SHARED: {X.id: 0.03, Y.id: 0.09}, OWN: {X.id: 0.07}}
    for atom, by in moves.items():
        assume(atom in errors)
        ends = [
            evaluate(value, env | {field: env[field] + sign * size for field, size in by.items()}) for sign in (1, -1)
        ]
        half = Row(KNOWN)._moved(value).half(atom)
        found = evaluate(Const(0.0, DOUBLE) if half is None else half, env)
        if found is not None and None not in ends:
            up, down = ends
            assert isinstance(up, float) and isinstance(down, float) and isinstance(found, float)
            assert found == pytest.approx((up - down) / 2, rel=1e-6, abs=1e-6 * max(abs(up), abs(down), 1.0))


@pytest.mark.parametrize(("divisor", "told"), [(1.0, True), (0.02, False), (-0.02, False), (-1.0, True)])
def test_nothing_is_told_where_an_error_carries_a_divisor_across_zero(divisor: float, told: bool) -> None:
    errors = errors_of(Call(Op.DIV, (Const(1.0, DOUBLE), Ref(Y)), DOUBLE), KNOWN)
    assert errors is not None
    found = evaluate(errors[SHARED].value, {Y.id: divisor, BOTH.id: 0.03})
    assert (found is not None) == told


@pytest.mark.parametrize("divisor", [2.0, 2.5, 4.0, 20.0, -3.0])
@pytest.mark.parametrize("dividend", [0.0, 1.0, -7.0])
def test_a_quotient_is_as_wide_as_fieller_says(dividend: float, divisor: float) -> None:
    """Seen from the quotient, no end of Fieller's interval is further away; nor is much room left beyond it."""
    a, b = 0.7, 1.0
    errors = errors_of(Call(Op.DIV, (Ref(X), Ref(Y)), DOUBLE), {X.id: {OWN: TERMS[0]}, Y.id: {SHARED: TERMS[1]}})
    assert errors is not None
    env = {X.id: dividend, Y.id: divisor, ALONE.id: a, BOTH.id: b}
    sizes = [evaluate(term.value, env) for term in errors.values()]
    assert all(isinstance(size, float) for size in sizes)
    found = math.hypot(*sizes)  # type: ignore[arg-type]
    square = divisor**2 - b**2
    middle = dividend * divisor / square
    half = math.sqrt(middle**2 - (dividend**2 - a**2) / square)
    exact = abs(middle - dividend / divisor) + half
    assert 0.93 * exact <= found <= 1.2 * exact


TERMS = Term(Ref(ALONE), True), Term(Ref(BOTH), True)
KNOWN_ENDS = Interval(Fraction(0), Fraction(10))


@pytest.mark.parametrize(
    ("value", "size", "margin_shown", "low", "high"),
    [(4.0, 1.0, 1.0, 3.0, 5.0), (4.0, 5.0, 5.0, 0.0, 9.0), (4.0, None, 6.0, 0.0, 10.0), (9.0, 20.0, 9.0, 0.0, 10.0)],
)
def test_no_end_is_beyond_what_is_known(
    value: float, size: float | None, margin_shown: float, low: float, high: float
) -> None:
    shown = within(Const(size, DOUBLE), Ref(X), KNOWN_ENDS)
    env = {X.id: value}
    assert evaluate(shown, env) == margin_shown
    assert [evaluate(end(shown, Ref(X), KNOWN_ENDS, high=up), env) for up in (False, True)] == [low, high]
    assert evaluate(within(Const(size, DOUBLE), Ref(X), Interval(Fraction(0))), env) == size


def test_many_errors_as_one_are_as_large_and_only_add_up_with_others() -> None:
    mine, its = (Atom(i, 0) for i in range(2))
    errors = {mine: Term(Ref(BOTH), True), its: Term(Ref(ALONE), True)}
    folded = as_one(errors, 1)
    ((atom, term),) = folded.items()
    assert term.value == margin(errors)
    assert not atom.is_own
    # Nobody knows any more that the other is one of them.
    sizes = [Call(Op.ABS, (value,), DOUBLE) for value in (term.value, Ref(BOTH))]
    assert margin({**folded, mine: errors[mine]}) == Call(Op.ABS, (Call(Op.ADD, tuple(sizes), DOUBLE),), DOUBLE)
