"""Shares of a price: whole, never more than the whole, and the best of all splits."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from dpsql.privacy.allocation import Degree, error, shares

weights = st.lists(st.fractions(Fraction(1, 1000), 1000), min_size=1, max_size=8)
degrees = st.sampled_from((2, 3))


@given(loss=st.integers(1, 10**18), parts=weights, degree=degrees)
def test_shares_are_no_more_than_the_whole(loss: int, parts: list[Fraction], degree: Degree) -> None:
    found = shares(loss, parts, degree)
    assert loss - len(parts) < sum(found) <= loss
    assert all(share >= 0 for share in found)


@given(parts=weights, degree=degrees, moved=st.floats(0.01, 0.5), data=st.data())
def test_no_other_split_is_better(parts: list[Fraction], degree: Degree, moved: float, data: st.DataObject) -> None:
    def variance(split: list[float]) -> float:
        return sum(float(a) / s ** (degree - 1) for a, s in zip(parts, split, strict=True))

    best = [share / 10**15 for share in shares(10**15, parts, degree)]
    giver, taker = (data.draw(st.integers(0, len(parts) - 1)) for _ in range(2))
    other = list(best)
    other[giver] -= moved * best[giver]
    other[taker] += moved * best[giver]
    assert variance(best) <= variance(other) * (1 + 1e-9)
    assert abs(variance(best) / error(parts, degree) ** degree - 1) < 1e-6


def test_equal_parts_pay_equally() -> None:
    assert shares(9, [Fraction(2)] * 3, 3) == [3, 3, 3]
