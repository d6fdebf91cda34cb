"""What is promised to several people: closed forms, and probabilities added up directly from the laws of the noise."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsql.policy.model import PrivacyPolicy
from dpsql.privacy.accounting import DELTA_UNIT, LOSS_UNIT, Accountant, Price
from dpsql.privacy.group_privacy import (
    GroupLoss,
    keys_for_group,
    keys_of_all_for_group,
    spent_for_group,
    total_for_group,
)
from dpsql.privacy.noise_laws import Noise, gaussian, laplace, selecting
from dpsql.privacy.rules.aggregates import WHOLE_WEIGHT, key_weight, one_in_each
from tests.privacy.conversion import proposition_12


def accountant(
    epsilon: str = "4",
    delta: str = "1e-6",
    key_delta: str = "0",
    accounting: Literal["basic", "zcdp"] = "zcdp",
    *,
    pure: bool = False,
) -> Accountant:
    total = Fraction(epsilon)
    return Accountant(
        PrivacyPolicy(total, Fraction(delta), accounting, total / 10, None, Fraction(key_delta), total, pure)
    )


def grains(loss: float, delta: float = 0) -> Price:
    return Price(int(loss / LOSS_UNIT), int(delta / DELTA_UNIT))


# --- losses, in closed form ---


@pytest.mark.parametrize(
    ("epsilon", "expected"),
    [("4", {1: 4.0, 2: 8.82, 3: 14.33, 5: 27.30}), ("1", {1: 1.0, 2: 2.11, 3: 3.29, 5: 5.84})],
)
def test_rho_grows_with_the_square_of_the_people(epsilon: str, expected: dict[int, float]) -> None:
    for people, value in expected.items():
        found = total_for_group(accountant(epsilon), people)
        assert found is not None
        assert float(found.epsilon) == pytest.approx(value, abs=0.01)
        assert found.delta == Fraction(1, 10**6)


@pytest.mark.parametrize("people", [1, 2, 7])
def test_a_gaussian_that_so_many_people_move_keeps_the_bound(people: int) -> None:
    """The whole total spent on one number: its exact curve (Balle and Wang 2018) lies below."""
    found = total_for_group(accountant(), people)
    assert found is not None
    shift, epsilon = people * math.sqrt(2 * float(accountant().total.loss_value)), float(found.epsilon)
    exact = _phi(shift / 2 - epsilon / shift) - math.exp(epsilon) * _phi(-shift / 2 - epsilon / shift)
    assert exact <= float(found.delta)
    assert exact > float(found.delta) / 100


def _phi(x: float) -> float:
    return math.erfc(-x / math.sqrt(2)) / 2


@pytest.mark.parametrize("people", [1, 2, 5, 1_000])
def test_epsilon_grows_with_the_people_where_it_is_what_adds_up(people: int) -> None:
    assert total_for_group(accountant("1", "0", accounting="basic"), people) == GroupLoss(
        people, Fraction(people), Fraction(0)
    )


def test_of_two_sums_the_larger_holds() -> None:
    found, alone = total_for_group(accountant("0.01", pure=True), 3), total_for_group(accountant("0.01"), 3)
    assert found is not None and alone is not None
    assert found.epsilon == max(alone.epsilon, Fraction(3, 100))
    large = total_for_group(accountant("0.0001", "0.9", pure=True), 3)
    assert large is not None and large.epsilon >= Fraction(3, 10_000)


# --- keys that only these people have ---


def law(noise: Noise) -> Callable[[int], float]:
    """P(X >= t), added up from the probabilities themselves."""
    if noise.law == "laplace":
        b, most = float(noise.scale), noise.most
        assert most is not None
        weights = {k: math.exp(-abs(k) / b) for k in range(-most, most + 1)}
    else:
        v = float(noise.scale)
        far = int(40 * math.sqrt(v)) + 10
        weights = {k: math.exp(-k * k / (2 * v)) for k in range(-far, far + 1)}
    total = math.fsum(weights.values())
    return lambda t: math.fsum(weight for k, weight in weights.items() if k >= t) / total


def released(noise: Noise, lowest: int, added: Sequence[int]) -> float:
    """P(any of the keys is released), with this much added to each."""
    tail = law(noise)
    return -math.expm1(math.fsum(math.log1p(-min(tail(lowest - weight), 1 - 1e-16)) for weight in added))


# Which keys each of up to four people has, of at most three.
HABITS = st.lists(st.sets(st.integers(0, 4), min_size=1, max_size=3), min_size=1, max_size=4)


@settings(max_examples=150, deadline=None)
@given(
    habits=HABITS,
    loss=st.floats(0.05, 2),
    delta=st.sampled_from([1e-3, 1e-6, 1e-9]),
    accounting=st.sampled_from(["basic", "zcdp"]),
)
def test_no_group_shows_its_keys_more_often_than_claimed(
    habits: list[set[int]], loss: float, delta: float, accounting: str
) -> None:
    price, keys = grains(loss, delta), 3
    sizes = Fraction(keys)
    noise = laplace(sizes, price.loss_value) if accounting == "basic" else gaussian(sizes, price.loss_value)
    noise, lowest = selecting(noise, keys, price.delta_value, one_in_each)
    added = [sum(key in habit for habit in habits) for key in range(5)]
    exact = released(noise, lowest, [count for count in added if count])
    assert exact <= float(keys_for_group(accounting, len(habits), price)) * (1 + 1e-9)


@settings(max_examples=25, deadline=None)
@given(habits=HABITS, loss=st.floats(0.3, 2), accounting=st.sampled_from(["basic", "zcdp"]))
def test_nor_where_people_weigh_less_the_more_keys_they_have(
    habits: list[set[int]], loss: float, accounting: str
) -> None:
    """Weights are in fixed point; the law is that of the rounded-off whole, so a coarser grid shows the same."""
    price, coarse = grains(loss, 1e-4), 2**12
    norm: Literal["l1", "l2"] = "l1" if accounting == "basic" else "l2"

    def weight(keys: int) -> int:
        return key_weight(keys, norm) * coarse // WHOLE_WEIGHT

    whole = Fraction(coarse)
    noise = laplace(whole, price.loss_value) if accounting == "basic" else gaussian(whole**2, price.loss_value)
    noise, lowest = selecting(noise, 3, price.delta_value, weight)
    added = [sum(weight(len(habit)) for habit in habits if key in habit) for key in range(5)]
    exact = released(noise, lowest, [amount for amount in added if amount])
    assert exact <= float(keys_for_group(accounting, len(habits), price)) * (1 + 1e-9)


@pytest.mark.parametrize("people", [2, 3, 5])
def test_the_bound_is_near_what_a_shared_key_shows(people: int) -> None:
    """All of them have one key, and no other: near the worst case."""
    for accounting, noise in (("basic", laplace), ("zcdp", gaussian)):
        price = grains(0.05, 1e-7)
        cut, lowest = selecting(noise(Fraction(1), price.loss_value), 1, price.delta_value, one_in_each)
        bound = float(keys_for_group(accounting, people, price))
        assert released(cut, lowest, [people]) <= bound
        assert bound < 2 * people * released(cut, lowest, [people])


@pytest.mark.parametrize("accounting", ["basic", "zcdp"])
def test_people_with_keys_of_their_own_add_up(accounting: str) -> None:
    """At a small loss the people hardly help each other, and each has a key to show."""
    price = grains(0.02 if accounting == "basic" else 1e-4, 1e-6)
    noise = (laplace if accounting == "basic" else gaussian)(Fraction(1), price.loss_value)
    noise, lowest = selecting(noise, 1, price.delta_value, one_in_each)
    exact = released(noise, lowest, [1, 1, 1, 1])
    assert 3.5e-6 < exact <= float(keys_for_group(accounting, 4, price)) < 6e-6


def test_enough_people_are_certain_to_show_their_key() -> None:
    """Five at epsilon 4 are more than noise can hide, so that no bound is the truth."""
    price = grains(4, 1e-6)
    cut, lowest = selecting(laplace(Fraction(1), price.loss_value), 1, price.delta_value, one_in_each)
    assert lowest == 5
    assert released(cut, lowest, [5]) > 0.4
    assert keys_for_group("basic", 5, price) == 1
    assert total_for_group(accountant("4", "1e-6", accounting="basic"), 5) is None


def test_one_person_is_promised_what_was_paid() -> None:
    for accounting in ("basic", "zcdp"):
        price = grains(0.3, 1e-7)
        assert keys_for_group(accounting, 1, price) == price.delta_value
        assert keys_of_all_for_group(accounting, 1, price, grains(0.1)) == price.delta_value
    for one in (accountant(key_delta="5e-7"), accountant("1", accounting="basic")):
        assert total_for_group(one, 1) == GroupLoss(1, one.policy.epsilon, one.policy.delta)


# --- all answers together ---


@st.composite
def purchases(draw: st.DrawFn) -> tuple[Price, Price, list[Price]]:
    """A total, the largest answer, and answers within both that use them up in some way."""
    total, parts = grains(draw(st.floats(0.01, 2)), 10 ** draw(st.floats(-12, -4))), draw(st.integers(1, 40))
    largest = Price(total.loss // parts + 1)
    losses = [largest.loss if draw(st.booleans()) else largest.loss // 100 for _ in range(parts)]
    shares = [draw(st.integers(1, 1_000)) for _ in range(parts)]
    deltas = [total.delta * share // sum(shares) for share in shares]
    scale = max(1, -(-sum(losses) // total.loss))
    return total, largest, [Price(loss // scale, delta) for loss, delta in zip(losses, deltas, strict=True)]


@settings(max_examples=300, deadline=None)
@given(paid=purchases(), people=st.sampled_from([2, 3, 5, 10]), accounting=st.sampled_from(["basic", "zcdp"]))
def test_no_way_to_spend_the_total_shows_more_than_claimed(
    paid: tuple[Price, Price, list[Price]], people: int, accounting: str
) -> None:
    total, largest, answers = paid
    claimed = keys_of_all_for_group(accounting, people, total, largest)
    together = sum((keys_for_group(accounting, people, answer) for answer in answers), Fraction(0))
    as_one = keys_for_group(accounting, people, total)
    assert claimed <= 1
    # One step that costs all of it bounds the probability, if not the sum of what is known of single ones.
    assert together <= claimed or (accounting == "zcdp" and claimed == as_one)


@pytest.mark.parametrize("people", [2, 5])
def test_small_answers_leave_a_group_a_better_bound(people: int) -> None:
    of = accountant(key_delta="5e-7")
    loose, tight = total_for_group(of, people), total_for_group(of, people, largest=of.total.loss // 100)
    assert loose is not None and tight is not None
    assert loose.epsilon == tight.epsilon
    assert tight.delta < loose.delta / 10
    assert tight.delta < people * 5 * of.policy.delta


def test_what_was_spent_is_added_up_charge_by_charge() -> None:
    of = accountant(key_delta="5e-7")
    each = Price(of.total.loss // 100, of.total.delta // 100)
    found, all_ = spent_for_group(of, 5, [(each, 60), (Price(each.loss), 40)]), total_for_group(of, 5)
    assert found is not None and all_ is not None
    assert found.epsilon <= all_.epsilon
    assert found.delta == of.conversion_delta + 60 * keys_for_group("zcdp", 5, each)
    assert spent_for_group(of, 5, []) == GroupLoss(5, Fraction(0), Fraction(0))


def test_a_total_that_was_lowered_promises_what_was_spent() -> None:
    of = accountant("1")
    more = Price(4 * of.total.loss)
    assert total_for_group(of, 1, spent=more) == GroupLoss(1, of.epsilon_of(more.loss), of.policy.delta)


@pytest.mark.parametrize("people", [0, 1_001])
def test_a_group_has_somebody(people: int) -> None:
    with pytest.raises(ValueError, match="people"):
        total_for_group(accountant(), people)
    with pytest.raises(ValueError, match="people"):
        spent_for_group(accountant(), people, [])


def test_the_proposition_converts_what_a_group_loses() -> None:
    of = accountant()
    found = total_for_group(of, 4)
    assert found is not None
    assert Fraction(proposition_12(16 * of.total.loss_value, found.epsilon)) <= found.delta
