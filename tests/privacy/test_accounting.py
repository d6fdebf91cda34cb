"""Prices: what an epsilon buys, what the total holds, and that no rounding is ever in the analyst's favour."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from statistics import NormalDist

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsql.errors import BadSetting, PolicyError
from dpsql.policy.model import Accounting, PrivacyPolicy
from dpsql.privacy.accounting import (
    DELTA_UNIT,
    LOSS_UNIT,
    MAX_EPSILON,
    Accountant,
    Price,
    admits,
    pure_price,
    pure_within,
    rho_from_epsilon,
)
from dpsql.privacy.noise_laws import gaussian, laplace, margin
from tests.privacy.conversion import proposition_12

MILLIONTH = Fraction(1, 10**6)


def accountant(
    epsilon: Fraction | str,
    delta: Fraction | str,
    *,
    key_share: Fraction = Fraction(1, 2),
    accounting: Accounting = "zcdp",
    query_delta: Fraction | None = None,
) -> Accountant:
    epsilon, delta = Fraction(epsilon), Fraction(delta)
    return Accountant(
        PrivacyPolicy(
            epsilon=epsilon,
            delta=delta,
            accounting=accounting,
            query_epsilon=epsilon,
            query_delta=query_delta,
            key_delta=delta * key_share,
            max_query_epsilon=epsilon,
        )
    )


ZCDP = accountant("4", "1e-6")
BASIC = accountant("4", "1e-6", accounting="basic")

epsilons = st.integers(1_000, 20_000_000).map(lambda millionths: millionths * MILLIONTH)
deltas = st.tuples(st.integers(1, 99), st.integers(3, 16)).map(lambda pair: Fraction(pair[0], 10 ** pair[1]))
prices = st.builds(Price, st.integers(0, 10**15), st.integers(0, 10**12))
# Claims are tested here, never timings.
untimed = settings(max_examples=50, deadline=None)
fewer_examples = settings(max_examples=25, deadline=None)


# --- the conversion ---


@fewer_examples
@given(epsilons, deltas)
def test_an_epsilon_buys_the_most_grains_the_proposition_allows_and_not_one_more(
    epsilon: Fraction, delta: Fraction
) -> None:
    grains = accountant(epsilon, delta, key_share=Fraction(0)).price_of(epsilon)
    assert Fraction(proposition_12(grains * LOSS_UNIT, epsilon)) <= delta
    assert Fraction(proposition_12((grains + 1) * LOSS_UNIT, epsilon)) > delta


@untimed
@given(epsilons, deltas)
def test_no_gaussian_leaks_more_than_its_rho_is_converted_to(epsilon: Fraction, delta: Fraction) -> None:
    # The exact delta of a Gaussian mechanism (Balle and Wang 2018) owes nothing to Renyi divergence.
    sigma, size = 1 / math.sqrt(2 * rho_from_epsilon(epsilon, delta)), float(epsilon)
    upper = NormalDist().cdf(1 / (2 * sigma) - size * sigma)
    true_delta = upper - math.exp(size) * NormalDist().cdf(-1 / (2 * sigma) - size * sigma)
    assert true_delta <= float(delta) + 1e-12


@untimed
@given(epsilons, epsilons, deltas, deltas)
def test_more_epsilon_or_more_delta_never_buys_less(e1: Fraction, e2: Fraction, d1: Fraction, d2: Fraction) -> None:
    smaller = rho_from_epsilon(min(e1, e2), min(d1, d2))
    larger = rho_from_epsilon(max(e1, e2), max(d1, d2))
    assert 0 < smaller <= larger
    assert (smaller < larger) == ((e1, d1) != (e2, d2))


@untimed
@given(epsilons, deltas)
def test_the_tight_conversion_beats_the_textbook(epsilon: Fraction, delta: Fraction) -> None:
    log = -math.log(delta)
    assert rho_from_epsilon(epsilon, delta) > (math.sqrt(log + float(epsilon)) - math.sqrt(log)) ** 2


@pytest.mark.parametrize("epsilon", ["1e-9", "1e-3", "1", "1e3", "1e6"])
@pytest.mark.parametrize("delta", ["1e-300", "1e-18", "1e-6", "0.5", "0.999"])
def test_the_conversion_is_the_propositions_at_the_extremes(epsilon: str, delta: str) -> None:
    rho = rho_from_epsilon(Fraction(epsilon), Fraction(delta))
    assert rho > 0
    assert float(proposition_12(rho, Fraction(epsilon))) == pytest.approx(float(delta), rel=1e-9)


def test_what_60_digits_cannot_tell_from_nothing_buys_nothing() -> None:
    assert rho_from_epsilon(Fraction(0), Fraction(1, 10**300)) == 0


@pytest.mark.parametrize(("epsilon", "delta"), [("-1", "0.1"), ("1", "0"), ("1", "1"), ("1", "-0.1")])
def test_the_conversion_refuses_what_has_no_meaning(epsilon: str, delta: str) -> None:
    with pytest.raises(ValueError, match="epsilon must not be negative"):
        rho_from_epsilon(Fraction(epsilon), Fraction(delta))


# --- prices under a policy ---


def test_a_query_at_the_datasets_epsilon_is_exactly_one_query() -> None:
    for books in (ZCDP, BASIC):
        charge = Price(books.price_of(Fraction(4)), books.default_delta(books.total.loss))
        assert charge == books.total
        assert admits(Price(), charge, books.total)
        assert not admits(charge, Price(loss=1), books.total)
        assert not admits(charge, Price(delta=1), books.total)


@pytest.mark.parametrize(
    ("key_share", "queries"),
    [
        (Fraction(0), 968),  # all of delta converts
        (Fraction(1, 2), 995),  # a smaller delta makes the total smaller, but each query's price smaller still
    ],
)
def test_how_many_queries_at_a_tenth_fit_into_four(key_share: Fraction, queries: int) -> None:
    books = accountant("4", "1e-6", key_share=key_share)
    assert books.total.loss // books.price_of(Fraction(1, 10)) == queries


def test_under_basic_accounting_forty_queries_at_a_tenth_fit_into_four() -> None:
    assert BASIC.total.loss // BASIC.price_of(Fraction(1, 10)) == 40


@pytest.mark.parametrize(("key_share", "queries"), [(Fraction(1, 2), 119), (Fraction(1, 100), 126)])
def test_counts_within_a_hundred_by_the_normal_formula(key_share: Fraction, queries: int) -> None:
    # sigma = 100 / 1.96, as for a Gaussian on the real line.
    rho = Fraction(NormalDist().inv_cdf(0.975)) ** 2 / (2 * 100**2)
    assert accountant("1", "1e-6", key_share=key_share).total.loss_value // rho == queries


def cheapest_within_a_hundred(books: Accountant) -> int:
    """The fewest grains for which a count's 95 % margin is at most 100, by the exact discrete law."""
    low, high = 0, books.total.loss
    while high - low > 1:
        middle = (low + high) // 2
        price = middle * LOSS_UNIT
        noise = laplace(Fraction(1), price) if books.policy.accounting == "basic" else gaussian(Fraction(1), price)
        low, high = (low, middle) if margin(noise) <= 100 else (middle, high)
    return high


@pytest.mark.parametrize(
    ("books", "queries"),
    [
        # On the integers an error of at most 100 is one below 101: a little more noise is allowed.
        (accountant("1", "1e-6"), 120),
        (accountant("1", "1e-6", key_share=Fraction(1, 100)), 127),
        (accountant("1", "1e-6", accounting="basic"), 33),
    ],
)
def test_counts_within_a_hundred_by_the_exact_law(books: Accountant, queries: int) -> None:
    assert books.total.loss // cheapest_within_a_hundred(books) == queries


def test_the_total_keeps_delta_for_keys_as_the_accounting_says() -> None:
    assert ZCDP.total.delta_value == Fraction(1, 2 * 10**6)
    assert BASIC.total == Price(4 * 10**15, 10**12)
    assert accountant("1", "0", accounting="basic").total.delta == 0


@untimed
@given(epsilons)
def test_a_basic_price_is_epsilon_rounded_down(epsilon: Fraction) -> None:
    third = epsilon / 3
    assert 0 <= third - BASIC.price_of(third) * LOSS_UNIT < LOSS_UNIT


@fewer_examples
@given(epsilons)
def test_the_epsilon_shown_is_the_least_that_buys_the_price(epsilon: Fraction) -> None:
    loss = ZCDP.price_of(epsilon)
    shown = ZCDP.epsilon_of(loss)
    assert shown <= epsilon
    assert ZCDP.price_of(shown) >= loss
    assert ZCDP.price_of(shown - MILLIONTH) < loss
    assert BASIC.epsilon_of(BASIC.price_of(epsilon)) == epsilon


@fewer_examples
@given(st.integers(1, 10**18))
def test_any_sum_of_prices_can_be_shown(loss: int) -> None:
    shown = ZCDP.epsilon_of(loss)
    assert ZCDP.price_of(shown) >= loss
    assert shown == MILLIONTH or ZCDP.price_of(shown - MILLIONTH) < loss
    assert shown <= ZCDP.epsilon_of(loss + 1)


def test_one_grain_beyond_what_an_epsilon_buys_shows_a_larger_epsilon() -> None:
    # Near 500, floats are coarser than a grain: the answer must not rest on them.
    for epsilon in range(500, 520):
        assert ZCDP.epsilon_of(ZCDP.price_of(Fraction(epsilon))) == epsilon
        assert ZCDP.epsilon_of(ZCDP.price_of(Fraction(epsilon)) + 1) == epsilon + MILLIONTH


def test_nothing_spent_is_shown_as_zero() -> None:
    assert ZCDP.epsilon_of(0) == BASIC.epsilon_of(0) == 0
    with pytest.raises(ValueError, match="never negative"):
        ZCDP.epsilon_of(-1)


@pytest.mark.parametrize("epsilon", [Fraction(0), Fraction(-1), Fraction(MAX_EPSILON + 1), Fraction(1, 10**16)])
def test_an_epsilon_without_a_price_is_refused(epsilon: Fraction) -> None:
    for books in (accountant("1", "1e-12"), BASIC):
        with pytest.raises(BadSetting) as refusal:
            books.price_of(epsilon)
        assert refusal.value.sqlstate == "22023"


def test_zcdp_without_a_delta_to_convert_with_is_refused() -> None:
    for delta, key_share in (("0", "0"), ("1e-6", "1"), ("1e-6", "2"), ("1", "0.5")):
        with pytest.raises(PolicyError):
            accountant("1", delta, key_share=Fraction(key_share))


@untimed
@given(st.integers(1, 10**15))
def test_a_query_gets_the_share_of_delta_that_it_has_of_the_loss(loss: int) -> None:
    share = ZCDP.total.delta * Fraction(loss, ZCDP.total.loss)
    assert 0 <= share - ZCDP.default_delta(loss) < 1


def test_the_policys_delta_of_a_query_goes_first() -> None:
    books = accountant("1", "1e-6", query_delta=Fraction(5, 2) * DELTA_UNIT)
    assert books.default_delta(1) == books.default_delta(10**12) == 2


@untimed
@given(epsilons)
def test_an_allowance_is_a_ration_of_the_total(epsilon: Fraction) -> None:
    for books in (ZCDP, BASIC):
        allowance = books.allowance(epsilon)
        assert allowance.fits_in(books.total)
        assert allowance.loss == min(books.price_of(epsilon), books.total.loss)
        assert allowance.delta == books.total.delta * allowance.loss // books.total.loss
        assert books.allowance(None) == books.total


# --- sums ---


@untimed
@given(st.lists(prices))
def test_what_was_admitted_always_fits_in_the_total(charges: list[Price]) -> None:
    spent = Price()
    for charge in charges:
        fits = spent.loss + charge.loss <= ZCDP.total.loss and spent.delta + charge.delta <= ZCDP.total.delta
        assert admits(spent, charge, ZCDP.total) == fits
        if fits:
            spent += charge
    assert spent.fits_in(ZCDP.total)
    assert ZCDP.total - spent + spent == ZCDP.total


@untimed
@given(prices, st.lists(st.integers(0, 1000), min_size=1).filter(any))
def test_the_parts_of_a_split_never_cost_more_than_the_whole(whole: Price, weights: list[int]) -> None:
    parts = [whole.share(weight, sum(weights)) for weight in weights]
    together = sum(parts, start=Price())
    assert together.fits_in(whole)
    lost = whole - together
    assert lost.loss < len(weights)
    assert lost.delta < len(weights)


def test_one_part_of_a_price_cannot_pay_for_the_other() -> None:
    assert not Price(1, 2).fits_in(Price(2, 1))
    assert not Price(2, 1).fits_in(Price(1, 2))
    assert Price(1, 1).fits_in(Price(1, 1))


def test_a_price_is_whole_and_never_negative() -> None:
    with pytest.raises(ValueError, match="never negative"):
        Price(1) - Price(2)
    with pytest.raises(ValueError, match="never negative"):
        Price(delta=-1)
    with pytest.raises(TypeError):
        Price(0.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="part of the whole"):
        Price(1).share(2, 1)
    with pytest.raises(ValueError, match="part of the whole"):
        Price(1).share(0, 0)


# --- pure answers ---

GRAINS = LOSS_UNIT.denominator
BOTH = Accountant(replace(ZCDP.policy, pure=True))


def test_a_sum_fits_where_one_of_two_sides_holds() -> None:
    limit = Price(10, 5, 20)
    assert Price(10, 5).fits_in(limit)
    assert Price(10, 5, 21).fits_in(limit)
    assert Price(11, 0, 20).fits_in(limit)
    assert not Price(11, 0, 21).fits_in(limit)
    assert not Price(11, 0).fits_in(limit)
    assert not Price(11, 1, 20).fits_in(limit)
    assert not Price(11, 0, 20).fits_in(Price(10, 5))


def test_what_is_not_pure_stays_so() -> None:
    assert (Price(1, 0, 1) + Price(1, 0, 2)).pure == 3
    assert (Price(1, 0, 1) + Price(1)).pure is None
    assert (Price() + Price(1, 0, 2)).pure == 2
    assert (Price(1) + Price()).pure is None
    assert Price().pure == 0


def test_the_policy_opens_the_second_side() -> None:
    assert ZCDP.total.pure is None
    assert BASIC.total.pure is None
    assert BOTH.total == Price(ZCDP.total.loss, ZCDP.total.delta, 4 * GRAINS)
    assert BOTH.allowance(Fraction(1)).pure == GRAINS
    assert BOTH.allowance(None) == BOTH.total


@untimed
@given(st.integers(1, 10 * GRAINS))
def test_the_rho_of_a_pure_step_is_never_rounded_down(epsilon: int) -> None:
    value = Fraction(epsilon, GRAINS)
    for price, divisor in ((pure_price([epsilon]), 2), (pure_price([], [epsilon]), 8)):
        exact = min(value**2 / divisor, value)
        assert 0 <= price.loss_value - exact < LOSS_UNIT
        assert price.pure == epsilon and price.delta == 0


@untimed
@given(st.integers(0, 10 * GRAINS))
def test_so_much_is_pure_within_a_rho_and_no_more(loss: int) -> None:
    most = pure_within(loss)
    assert most == 0 or pure_price([most]).loss <= loss
    assert pure_price([most + 1]).loss > loss


@pytest.mark.parametrize("epsilon", [0.01, 0.3, 1.0, 2.0, 4.0, 9.0])
def test_no_pure_step_is_further_off_in_zcdp_than_it_pays_for(epsilon: float) -> None:
    """Randomised response is the pure step with the largest divergences."""
    rho = float(pure_price([round(epsilon * GRAINS)]).loss_value)
    for alpha in [1 + 10 ** (step / 4) for step in range(-16, 12)]:
        # The answer that is exp(epsilon) times as likely as the other, on one neighbour and on the other.
        above = alpha * epsilon + math.log1p(math.exp((1 - 2 * alpha) * epsilon)) - math.log1p(math.exp(epsilon))
        assert above / (alpha - 1) <= alpha * rho * (1 + 1e-9)


Step = tuple[Price, list[float], list[float]]  # what it costs, and its outcomes on two neighbours


def response(epsilon: int) -> Step:
    often = 1 / (1 + math.exp(-epsilon / GRAINS))
    return pure_price([epsilon]), [often, 1 - often], [1 - often, often]


def gaussian_step(loss: int) -> Step:
    """Of a value that one person moves by one, seen in a few cells: post-processing."""
    variance = 1 / (2 * loss / GRAINS)
    laws = []
    for mean in (0, 1):
        weights = {k: math.exp(-((k - mean) ** 2) / (2 * variance)) for k in range(-200, 201)}
        cells = [0.0] * 5
        for k, weight in weights.items():
            cells[min(max(math.floor((k - 0.5) / math.sqrt(variance) + 2.5), 0), 4)] += weight / sum(weights.values())
        laws.append(cells)
    return Price(loss), laws[0], laws[1]


def lonely_key(delta: int) -> Step:
    chance = delta * float(DELTA_UNIT)
    return Price(0, delta), [1 - chance, chance], [1.0, 0.0]


Rule = Callable[[Price, Price, Price], bool]


def excess(books: Accountant, choose: Callable[[tuple[int, ...]], Step], depth: int, admitted: Rule = admits) -> float:
    """The largest P(S) - exp(epsilon) Q(S) over all sets S of transcripts, of both neighbours the larger."""
    ratio = math.exp(books.policy.epsilon)
    found = [0.0, 0.0]

    def follow(transcript: tuple[int, ...], spent: Price, one: float, other: float) -> None:
        if len(transcript) < depth:
            price, first, second = choose(transcript)
            if admitted(spent, price, books.total):
                for outcome, (p, q) in enumerate(zip(first, second, strict=True)):
                    follow((*transcript, outcome), spent + price, one * p, other * q)
                return
            follow((*transcript, -1), spent, one, other)  # a refusal, after which something else may be asked
            return
        found[0] += max(0.0, one - ratio * other)
        found[1] += max(0.0, other - ratio * one)

    follow((), Price(), 1.0, 1.0)
    return max(found)


@pytest.mark.parametrize("seed", range(40))
def test_whoever_chooses_between_both_sides_by_what_was_answered_learns_no_more(seed: int) -> None:
    policy = PrivacyPolicy(Fraction(1), Fraction(1, 10), "zcdp", Fraction(1), None, Fraction(1, 40), Fraction(1), True)
    books = Accountant(policy)
    rho, keys = books.total.loss, books.total.delta
    steps = [
        *(response(GRAINS // parts) for parts in (1, 2, 3, 4)),
        *(response(pure_within(rho // parts)) for parts in (1, 2)),
        *(gaussian_step(rho // parts) for parts in (1, 2, 3)),
        *(lonely_key(keys // parts) for parts in (1, 2)),
    ]
    rng, chosen = random.Random(seed), dict[tuple[int, ...], Step]()

    def choose(transcript: tuple[int, ...]) -> Step:
        return chosen.setdefault(transcript, rng.choice(steps))

    assert excess(books, choose, depth=5) <= 0.1


def test_counting_wrongly_would_be_seen() -> None:
    """Both sides used up one after the other, as if each had a budget of its own."""
    policy = PrivacyPolicy(Fraction(1), Fraction(1, 10), "zcdp", Fraction(1), None, Fraction(1, 40), Fraction(1), True)
    books = Accountant(policy)

    steps = [response(GRAINS), gaussian_step(books.total.loss), gaussian_step(books.total.loss)]
    assert excess(books, lambda transcript: steps[len(transcript)], 3, lambda *_: True) > 0.1
    assert excess(books, lambda transcript: steps[len(transcript)], 3) <= 0.1
