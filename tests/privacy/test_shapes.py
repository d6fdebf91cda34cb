"""What a row adds to the sums of a group, all together, and which group is chosen."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpsql.privacy.estimators.basis import BERNSTEIN, PAIR, Shape, largest, polynomial, weighed
from dpsql.privacy.estimators.choose import Asked, Design, Form, choose


def added(shape: Shape, g: int, low: int, high: int) -> int:
    above, below = g - low, high - g
    return {
        Shape.ITSELF: g,
        Shape.CENTRED: above - below,
        Shape.RESIDUAL: -below,  # around the centre that is furthest away
        Shape.ABOVE: above,
        Shape.BELOW: below,
        Shape.TWICE_BELOW: below * below,
        Shape.BETWEEN: 2 * above * below,
        Shape.TWICE_ABOVE: above * above,
    }[shape]


@given(low=st.integers(-(10**6), 10**6), width=st.integers(1, 10**6), data=st.data())
def test_of_one_row_a_group_takes_no_more_than_one(low: int, width: int, data: st.DataObject) -> None:
    high = low + width
    g = data.draw(st.integers(low, high) | st.sampled_from((low, high, low + width // 2)))
    for group in (PAIR, BERNSTEIN, *((shape,) for shape in Shape)):
        for shape in group:
            assert abs(added(shape, g, low, high)) <= largest(shape, low, high)
        parts = [Fraction(abs(added(shape, g, low, high)), weighed(shape, low, high, squares=False)) for shape in group]
        assert sum(parts) <= 1
        parts = [Fraction(added(shape, g, low, high), weighed(shape, low, high, squares=True)) for shape in group]
        assert sum(part**2 for part in parts) <= 1 or group == PAIR  # pairs are for Laplace noise alone
    assert sum(added(shape, g, low, high) for shape in PAIR) == width
    assert sum(added(shape, g, low, high) for shape in BERNSTEIN) == width**2


@given(low=st.integers(-(10**6), 10**6), width=st.integers(1, 10**6), g=st.integers(-(10**7), 10**7))
def test_every_shape_is_a_polynomial(low: int, width: int, g: int) -> None:
    high = low + width
    for shape in Shape:
        of_value = polynomial(shape, low, high, centre=high)
        above = of_value.above(low)
        assert of_value.squares * g**2 + of_value.times * g + of_value.plus == added(shape, g, low, high)
        assert above.squares * (g - low) ** 2 + above.times * (g - low) + above.plus == added(shape, g, low, high)


ALL = (Form.DIRECT, Form.CENTRED, Form.PAIR)


def asked(*, low: int = 0, total: bool = False, mean: bool = False, spread: bool = False) -> Asked:
    return Asked(Fraction(low), ALL, total, mean, spread)


@pytest.mark.parametrize(
    ("degree", "values", "counted", "ways", "own"),
    [
        (3, [asked(mean=True)], False, [Form.PAIR], False),
        (3, [asked(total=True)], True, [Form.PAIR], False),
        (3, [asked(total=True)], False, [Form.DIRECT], False),
        (3, [asked(mean=True), asked(mean=True)], True, [Form.PAIR, Form.CENTRED], False),
        (3, [asked(mean=True, spread=True)], True, [Form.BERNSTEIN], False),
        (2, [asked(mean=True)], False, [Form.CENTRED], True),
        (2, [asked(total=True)], False, [Form.DIRECT], False),
        (2, [asked(total=True)], True, [Form.CENTRED], True),
        (2, [asked(spread=True)], False, [Form.BERNSTEIN], False),
        (2, [], True, [], True),
    ],
)
def test_what_is_measured(degree: int, values: list[Asked], counted: bool, ways: list[Form], own: bool) -> None:
    chosen = choose(values, counted=counted, fixed=False, degree=3 if degree == 3 else 2)
    assert chosen == Design(tuple(ways), own)


def test_a_count_that_is_there_anyway_is_used() -> None:
    chosen = choose([asked(mean=True)], counted=True, fixed=True, degree=3)
    assert chosen == Design((Form.CENTRED,), True)
