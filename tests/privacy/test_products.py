"""Values that are products of others: what they are made of, and what is left to measure."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpsql.plan.constants import evaluate
from dpsql.plan.scalars import Call, Const, Field, Op, Ref, Scalar
from dpsql.privacy.bounds import Fact, Facts, Interval
from dpsql.privacy.estimators.products import products
from dpsql.types import DOUBLE, Value

PRICE, PART, TAX = (Ref(Field(number, name, DOUBLE)) for number, name in enumerate(("price", "part", "tax")))
FACTS: Facts = {
    0: Fact(Interval(Fraction(-50), Fraction(1000))),
    1: Fact(Interval(Fraction(0), Fraction(1, 10))),
    2: Fact(Interval(Fraction(0), Fraction(8, 100))),
}


def _times(*factors: Scalar) -> Scalar:
    left, *others = factors
    return Call(Op.MUL, (left, _times(*others)), DOUBLE) if others else left


LESS = Call(Op.SUB, (Const(1.0, DOUBLE), PART), DOUBLE)
MORE = Call(Op.ADD, (Const(1.0, DOUBLE), TAX), DOUBLE)


def test_products_are_told_by_what_they_have_in_common() -> None:
    found = products([_times(LESS, PRICE, MORE), _times(PRICE, LESS), PRICE], FACTS)
    assert list(found) == [_times(PRICE, LESS), _times(LESS, PRICE, MORE)]
    assert all(product.base == PRICE for product in found.values())
    less, charge = found.values()
    assert float(less.times) == pytest.approx(0.95) and float(charge.times) == pytest.approx(0.99)
    assert less.bounds.high is not None and charge.bounds.high is not None
    assert float(less.bounds.high) == pytest.approx(50) and float(charge.bounds.high) == pytest.approx(90)


def test_no_base_and_factors_that_vary_too_much() -> None:
    assert not products([_times(PRICE, LESS), _times(PRICE, MORE)], FACTS)  # neither is a factor of the other
    assert not products([PRICE, _times(PRICE, PART)], FACTS)  # from nothing to a tenth
    assert not products([PRICE, _times(PRICE, PRICE)], FACTS)
    assert not products([PRICE, _times(PRICE, LESS)], {**FACTS, 0: Fact()})


@given(price=st.floats(-50, 1000), part=st.floats(0, 0.1), tax=st.floats(0, 0.08))
def test_base_and_rest_make_the_product(price: float, part: float, tax: float) -> None:
    row: dict[int, Value] = {0: price, 1: part, 2: tax}
    for value, product in products([_times(PRICE, LESS, MORE), PRICE], FACTS).items():
        whole, base, rest = (_at(each, row) for each in (value, product.base, product.rest))
        assert whole == pytest.approx(float(product.times) * base + rest, abs=1e-9)
        assert product.bounds.low is not None and product.bounds.high is not None
        assert float(product.bounds.low) - 1e-9 <= rest <= float(product.bounds.high) + 1e-9


def _at(value: Scalar, row: dict[int, Value]) -> float:
    found = evaluate(value, row)
    assert isinstance(found, float)
    return found
