"""The bounds of Clopper and Pearson, against scipy's."""

from __future__ import annotations

import pytest
from scipy.stats import beta

from dpsql.audit.losses import MISS, Seen


@pytest.mark.parametrize(
    ("count", "trials"), [(1, 10), (5, 10), (9, 10), (3, 10_000), (5_000, 10_000), (9_999, 10_000)]
)
def test_bounds_are_the_quantiles_of_the_beta_law(count: int, trials: int) -> None:
    seen = Seen(count, trials)
    assert seen.at_least == pytest.approx(beta.ppf(MISS, count, trials - count + 1), rel=1e-6)
    assert seen.at_most == pytest.approx(beta.ppf(1 - MISS, count + 1, trials - count), rel=1e-6)


def test_what_never_came_or_always() -> None:
    assert Seen(0, 10).at_least == 0
    assert Seen(10, 10).at_most == 1
