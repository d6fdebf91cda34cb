"""What a pure price promises of an answer in several parts: more than that no event is exp(epsilon) times as likely.

A part has a price of its own: a group of sums that are clipped together, or one of several choices. Where parts are
many, the whole epsilon is hardly ever lost: half the noise of all of them would not show in any number of draws, if
only the sum of their prices were looked at. A choice loses epsilon only where it is nearly certain, for it has a
bounded range: its losses lie in an interval of length epsilon, not of twice that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import assert_never

import numpy as np

from dpsql.audit.losses import Loss, Trials, epsilon
from dpsql.privacy.mechanisms.bound_search import Search
from dpsql.privacy.mechanisms.mode import Mode
from dpsql.privacy.mechanisms.quantiles import Quantiles, levels, ranks_within
from dpsql.privacy.mechanisms.sums import NoisySums
from dpsql.privacy.mechanisms.top_keys import TopKeys
from dpsql.privacy.rules.aggregates import StatisticKind
from dpsql.release import Measurement

_EPSILONS = np.geomspace(0.05, 30, 400)  # what is told apart
_PLACES = 48  # of the interval of a choice's losses
_WEIGHTS = np.exp(np.linspace(-12, 12, 481))


@dataclass(frozen=True, slots=True)
class Part:
    """What its noise promises: so much epsilon; of choices, losses in an interval of that length."""

    epsilon: float
    is_choice: bool


def composed(parts: Sequence[Part]) -> Loss:
    """The least epsilon of the whole with which an event may be as likely with the unit, and as unlikely without.

    Claim: a lower bound on epsilon, if the whole is shared out among the parts in these proportions.
    Because: let V(w) be the most that P(event | one) - w P(event | other) can be, over all events and all answers with
    such parts (`_largest`). Where some w has p - w q > V(w), the answer is no such answer. V rises with epsilon.
    Needs: parts in proportion to their epsilons; choices that depend on one another have the same.
    """
    if len(parts) == 1 and not parts[0].is_choice:
        return epsilon
    whole = sum(part.epsilon for part in parts)
    largest = _table(tuple(Part(round(part.epsilon / whole, 6), part.is_choice) for part in parts))

    def loss(p: float, q: float) -> float:
        if p <= q:
            return 0.0
        exceeded = np.flatnonzero((p - _WEIGHTS * q > largest).any(axis=1))
        return float(_EPSILONS[exceeded[-1]]) if exceeded.size else 0.0

    return loss


@lru_cache(maxsize=64)
def _table(shares: tuple[Part, ...]) -> Trials:
    """V by epsilon and weight."""
    ordered = sorted(shares, key=lambda part: not part.is_choice)
    return np.array([_largest([Part(part.epsilon * whole, part.is_choice) for part in ordered]) for whole in _EPSILONS])


def _largest(parts: Sequence[Part]) -> Trials:
    """V(w) for each of the weights, with the last part first.

    Claim: never too small.
    Because: V(w) without parts is max(1 - w, 0). Before a part whose losses are `up` and `down` with probabilities h
    and 1 - h it is h V(w exp(-up)) + (1 - h) V(w exp(-down)). Of all laws of losses within an interval, that on its two
    ends tells most (Kairouz, Oh, Viswanath 2015). Of sums these are epsilon and -epsilon, of choices t and t - epsilon
    for some t (Dong, Durfee, Rogers 2020), which may depend on the parts before: so the largest over all t, and choices
    come last. The interval of each place of the grid is wider by the distance of two, so that it holds those of all t
    between. V is convex, so that what is interpolated is too large, and so is what stands beyond the ends.
    Needs: nothing.
    """
    found: Trials = np.maximum(1 - _WEIGHTS, 0)
    for part in parts:
        step = part.epsilon / _PLACES
        ends = [(part.epsilon, -part.epsilon)]
        if part.is_choice:
            ends = [(at * step, (at - 1) * step - part.epsilon) for at in range(1, _PLACES + 1)]
        found = np.max([_before(found, up, down) for up, down in ends], axis=0)
    return found


def _before(found: Trials, up: float, down: float) -> Trials:
    likely = math.expm1(down) / math.expm1(down - up)  # with the unit, for `up`
    after_up, after_down = (np.interp(_WEIGHTS * math.exp(-loss), _WEIGHTS, found, left=1.0) for loss in (up, down))
    return np.asarray(likely * after_up + (1 - likely) * after_down)


# ------------------------------------------------------------
# The parts of a measurement.


def parts_of(measurement: Measurement) -> list[Part]:
    """Its choices and groups of sums, with the epsilon that the noise of each promises.

    As the laws say it, the other way round: one person moves what is chosen by, or the sums, by `l1`.
    """
    found = choices_of_top(measurement)
    for group in measurement.groups:
        statistic, noise = measurement.statistics[group[0]], measurement.noises[group[0]]
        moved = float(statistic.sensitivity.l1 / noise.scale)
        measured = measurement.measured(group)
        match measured:
            case NoisySums():
                count = 1
                if isinstance(measurement.mechanism, TopKeys) and statistic.kind is StatisticKind.UNITS:
                    count = measurement.mechanism.keys  # of those that are counted, one person moves each by one
                found += [Part(moved / count, is_choice=False)] * count
            case Quantiles(ranks=ranks):
                rank = ranks_within(ranks)[ranks[0]] if len(ranks) > 1 else ranks[0]
                found += [Part(moved * 2 * float(max(rank, 1 - rank)), is_choice=True)] * levels(ranks)
            case Mode():
                found.append(Part(moved, is_choice=True))
            case Search():
                found.append(Part(float(1 / noise.scale), is_choice=True))
            case _:
                assert_never(measured)
    return found


def choices_of_top(measurement: Measurement) -> list[Part]:
    """The choices of keys, one after another."""
    top = measurement.mechanism
    return [Part(float(1 / top.noise.scale), is_choice=True)] * top.keys if isinstance(top, TopKeys) else []
