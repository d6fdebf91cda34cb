"""What a pure price promises of an answer in several parts: never more than is true, and nearly as much."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from dpsql.audit.composition import Part, composed
from dpsql.audit.losses import Trials, audited, beside_delta, epsilon, rho

RUNS = 200
DRAWS = 20_000  # as `dpsql audit` draws when nothing else is said


def test_one_sum_is_judged_by_its_epsilon() -> None:
    assert composed([Part(2.0, False)]) is epsilon


@pytest.mark.parametrize("epsilons", [(0.7, 0.7, 0.7), (0.2, 1.0, 1.8), (0.5,) * 6])
def test_coins_show_their_own_epsilon(epsilons: tuple[float, ...]) -> None:
    """Each part tells the truth with probability exp(epsilon) / (1 + exp(epsilon)): no sums may tell more."""
    loss = composed([Part(each, False) for each in epsilons])
    ways = []
    for signs in itertools.product((1, -1), repeat=len(epsilons)):
        told = [sign * each for sign, each in zip(signs, epsilons, strict=True)]
        one, other = (math.prod(1 / (1 + math.exp(-side * each)) for each in told) for side in (1, -1))
        ways.append((sum(told), one, other))
    ways.sort(reverse=True)
    shown = [loss(sum(w[1] for w in ways[:n]), sum(w[2] for w in ways[:n])) for n in range(1, len(ways))]
    assert max(shown) <= sum(epsilons)
    assert min(shown) >= 0.97 * sum(epsilons)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_a_choice_that_is_as_uneven_as_may_be_shows_its_epsilon(share: float) -> None:
    """Its losses are the ends of an interval, wherever that lies around zero."""
    whole = 2.0
    up, down = share * whole, share * whole - whole
    p = math.expm1(down) / math.expm1(down - up)
    assert 0.93 * whole <= composed([Part(whole, True)])(p, p * math.exp(-up)) <= whole


def test_a_choice_may_tell_less_than_a_sum_of_the_same_price() -> None:
    p, q = 0.7, 0.3
    assert composed([Part(1.0, True)])(p, q) > 1.5 * composed([Part(1.0, False)])(p, q)


def test_several_choices_show_more_than_the_sum_of_their_prices_does() -> None:
    parts = [Part(1.0, True)] * 3
    assert composed(parts)(0.3, 0.02) > epsilon(0.3, 0.02)


# ------------------------------------------------------------
# The bounds themselves, of seeded trials whose loss is known: no false alarm, and an alarm where a loss is larger than
# what was claimed: by half, or for a Gaussian where the deviation is two thirds, so that rho is 2.25 times as large.


def _laplace(drawn: np.random.Generator, moved: float) -> Trials:
    """The log of the likelihood ratio of one sum of scale 1 / epsilon, with epsilon 2."""
    values = moved + drawn.laplace(scale=0.5, size=DRAWS)
    return np.asarray((np.abs(values) - np.abs(values - 1)) * 2)


def _gaussian(drawn: np.random.Generator, moved: float) -> Trials:
    """A sum of deviation 1 that is moved by 1: rho is one half."""
    return drawn.normal(loc=moved, size=DRAWS)


def _choices(drawn: np.random.Generator, moved: float) -> Trials:
    """How often one of two keys is chosen, of three times: of 4/3 more epsilon, 4 in all."""
    odds = math.exp(moved * 4 / 3 - 2 / 3)
    return drawn.binomial(3, odds / (1 + odds), size=DRAWS).astype(np.float64)


LAWS = {
    "laplace": (_laplace, epsilon, 2.0, 1.5),
    "gaussian": (_gaussian, rho, 0.5, 2.25),
    "choices": (_choices, composed([Part(1.0, True)] * 3), 4.0, 1.5),
    "beside delta": (_laplace, beside_delta(epsilon, 0.001), 2.0, 1.5),
}


@pytest.mark.parametrize("law", LAWS)
def test_what_is_sound_raises_no_alarm_and_what_was_claimed_too_low_does(law: str) -> None:
    draws, loss, true, understated = LAWS[law]
    drawn = np.random.default_rng(20_260_101)
    shown = np.array([audited(draws(drawn, 1), draws(drawn, 0), loss) for _ in range(RUNS)])
    assert not (shown > true).any()
    assert (shown > true / understated).mean() > 0.75
