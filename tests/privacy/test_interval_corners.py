"""Interval arithmetic at its corners: what random rows seldom reach, the ends of both ranges at once, lies within."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from fractions import Fraction

import pytest

from dpsql.plan.scalars import Call, Field, Op, Ref
from dpsql.privacy.bounds import Fact, Facts, Interval, interval
from dpsql.types import Kind, Type

REAL = Type(Kind.DOUBLE)
ENDS = [(-7, -3), (-7, 0), (-7, 5), (0, 0), (0, 5), (2, 11)]
OPERATIONS: dict[Op, Callable[[Fraction, Fraction], Fraction]] = {
    Op.ADD: lambda a, b: a + b,
    Op.SUB: lambda a, b: a - b,
    Op.MUL: lambda a, b: a * b,
    Op.DIV: lambda a, b: a / b,
}


@pytest.mark.parametrize("op", OPERATIONS)
@pytest.mark.parametrize(("left", "right"), list(itertools.product(ENDS, ENDS)))
def test_every_corner_lies_within(op: Op, left: tuple[int, int], right: tuple[int, int]) -> None:
    fields = [Field(number, name, REAL) for number, name in enumerate("ab")]
    facts: Facts = {
        field.id: Fact(Interval(Fraction(low), Fraction(high)))
        for field, (low, high) in zip(fields, (left, right), strict=True)
    }
    found = interval(Call(op, tuple(map(Ref, fields)), REAL), facts)
    for a, b in itertools.product(left, right):
        if op is Op.DIV and b == 0:
            continue
        value = OPERATIONS[op](Fraction(a), Fraction(b))
        assert found.low is None or found.low <= value, found
        assert found.high is None or value <= found.high, found
