"""What a query costs: the price of the whole, its share for each sum, and the noise that each share buys."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import assert_never

from dpsql.errors import BadSetting, MissingDeclaration, NotSupported
from dpsql.privacy.accounting import DELTA_UNIT, Price, pure_price
from dpsql.privacy.allocation import shares
from dpsql.privacy.mechanisms.bound_search import BoundSearch
from dpsql.privacy.mechanisms.grouping_sets import GroupingSets
from dpsql.privacy.mechanisms.partition_selection import UnpricedSelection
from dpsql.privacy.mechanisms.running_totals import RunningTotals
from dpsql.privacy.mechanisms.sums import NoisySums, Sums
from dpsql.privacy.mechanisms.top_keys import UnpricedTopKeys, chosen_keys, share_of_choice, share_of_counts
from dpsql.privacy.mechanisms.union import Mechanism, group_of
from dpsql.privacy.noise_laws import Noise
from dpsql.release.drafts import Compilation, Draft
from dpsql.release.identity import identity_of_answer
from dpsql.release.model import Measurement, in_steps, margin_of


class Pricing:
    def __init__(self, compilation: Compilation) -> None:
        self._compilation = compilation
        self._accountant = compilation.accountant
        self._settings = compilation.settings
        self._drafts = compilation.drafts

    def priced(self) -> Callable[[Draft, int], Measurement]:
        """The price is shared for the least error of what was asked; delta equally among all thresholds.

        A sum whose clip or centre is searched for leaves a part of its share to searches (`BoundSearch.share`).
        """
        chosen = sum(isinstance(draft.mechanism, UnpricedSelection) for draft in self._drafts)
        if not any(draft.statistics for draft in self._drafts):
            return lambda draft, _: self._measure(draft, [], 0)
        policy = self._accountant.policy
        epsilon = self._settings.epsilon if self._settings.epsilon is not None else policy.query_epsilon
        if epsilon > policy.max_query_epsilon:
            raise BadSetting(
                f"epsilon must not exceed {float(policy.max_query_epsilon):g}",
                hint="The policy limits what one query may cost.",
            )
        if self._compilation.counts_pure and not self._accountant.sells_pure:
            raise MissingDeclaration(
                "pure answers are not enabled in the policy",
                detail="Without a total of their own they would cost more than other answers and have wider margins.",
                hint="SET dpsql.pure = off. The owner may write: pure = true in [privacy].",
            )
        loss = self._grains_of(epsilon)
        if self._settings.margin is not None:
            loss = self._least_loss(self._settings.margin)
        delta = 0
        if chosen:
            asked = self._settings.delta
            delta = self._accountant.default_delta(loss) if asked is None else math.floor(asked / DELTA_UNIT)
            if delta > self._accountant.total.delta:
                raise BadSetting(
                    "delta must not exceed what the policy keeps for unknown keys",
                    hint=f"That is {float(self._accountant.total.delta_value):g}.",
                )
            delta //= chosen
            if delta <= 0 and asked is not None:
                raise BadSetting("delta is too small to be counted", hint="Choose a larger delta.")
            if delta <= 0:
                raise MissingDeclaration(
                    "there is no delta for releasing unknown keys",
                    hint="Set dpsql.delta, or declare the keys in the policy.",
                )
        shared = self._shares(loss)
        given = self._given_to_searches(shared)
        shared = [[given[i]] if draft.is_search else shared[i] for i, draft in enumerate(self._drafts)]
        if not all(map(all, shared)):
            raise BadSetting("epsilon is too small for so many aggregates", hint="Ask for fewer, or pay more.")
        return lambda draft, index: self._measure(draft, self._anew(draft, shared[index]), delta)

    def _anew(self, draft: Draft, parts: list[int]) -> list[int]:
        """The parts of a price where clips are chosen: the sum is that which was paid, whatever they are.

        Claim: the parts add up to what they added up to before.
        Because: what rounding leaves of a sum is given to the first of those who share it.
        Needs: released values alone decide. Of pure answers the rho depends on the parts: these stay as they are. So do
        those that would buy no noise at all, or too wide a one: it is paid by now, and the old parts bought it.
        """
        if self._compilation.counts_pure or not draft.anew:
            return parts
        found = list(parts)
        for weights in draft.anew:
            whole = sum(parts[group] for group in weights)
            given = shares(whole, list(weights.values()), self._compilation.degree)
            given[0] += whole - sum(given)
            for group, part in zip(weights, given, strict=True):
                found[group] = part
        return found if self._buys_noise(draft, found) else parts

    def _buys_noise(self, draft: Draft, parts: list[int]) -> bool:
        try:
            self._noises(draft, parts)
        except (NotSupported, ValueError):  # more noise than 64 bits hold, or no price at all
            return False
        return True

    def _given_to_searches(self, shared: list[list[int]]) -> dict[int, int]:
        """What each search may cost: taken off the shares of the sums that use it, unless it was found before."""
        pot = 0
        for draft, parts in zip(self._drafts, shared, strict=True):
            for group, share in enumerate(parts):
                searches = {self._search(search) for place, search in draft.clips if place in draft.groups[group]}
                part = math.floor(share * sum(search.share for search in searches))
                pot += part
                parts[group] -= part if self._compilation.clips == "searched" else 0
        sizes = {i: self._search(i).share for i, draft in enumerate(self._drafts) if draft.is_search}
        return {i: math.floor(pot * size / sum(sizes.values())) for i, size in sizes.items()}

    def _search(self, index: int) -> BoundSearch:
        search = self._drafts[index].mechanism
        assert isinstance(search, BoundSearch)
        return search

    def _shares(self, loss: int) -> list[list[int]]:
        """What each group of statistics may cost, by measurement."""
        weights = [weight for draft in self._drafts for weight in draft.weights]
        parts = iter(shares(loss, weights, self._compilation.degree))
        return [[next(parts) for _ in draft.weights] for draft in self._drafts]

    def _least_loss(self, wanted: Fraction) -> int:
        """The least price of the whole query at which every count is within the margin, in 95 of 100 cases.

        It depends on the query and the policy alone. Where a price is stated as well, it is the most that is paid.
        """
        if not any(draft.counts for draft in self._drafts):
            raise BadSetting(
                "dpsql.margin is the error of counts, and the query has none",
                hint="Add COUNT(*), or RESET dpsql.margin and pay a price.",
            )
        policy = self._accountant.policy
        most = self._grains_of(self._settings.epsilon or policy.max_query_epsilon)

        def suffices(loss: int) -> bool:
            try:
                for draft, parts in zip(self._drafts, self._shares(loss), strict=True):
                    widest = [_widest(draft, i, noise) for i, noise in enumerate(self._noises(draft, parts))]
                    if any(margin_of(count, widest) > wanted for count in draft.counts):
                        return False
                return True
            except (NotSupported, ValueError):  # more noise than 64 bits hold, or no price at all
                return False

        if not suffices(most):
            raise BadSetting(
                f"a margin of ±{float(wanted):g} costs more than one query may",
                hint="Allow a wider margin, ask for fewer aggregates at once, or raise dpsql.epsilon if it is set.",
            )
        self._compilation.note(f"the price is the least that keeps counts within ±{float(wanted):g} (95 %)")
        return least(suffices, most)

    def _measure(self, draft: Draft, parts: list[int], delta: int) -> Measurement:
        price = self._price(draft, parts, delta)
        if draft.is_search and self._compilation.clips == "found":
            price = Price()
        mechanism, noises = self._priced(draft, self._noises(draft, parts), parts, delta)
        accounting = self._accountant.policy.accounting
        return Measurement(
            keys=draft.keys,
            cells=draft.cells,
            bound=draft.bound,
            statistics=draft.statistics,
            groups=draft.groups,
            noises=noises,
            mechanism=mechanism,
            branches=draft.branches,
            stages=draft.stages,
            derivation=draft.derivation,
            price=price,
            question=draft.question,
            clips=draft.clips,
            identity=identity_of_answer(draft.asked, accounting, draft.cells, mechanism, noises, price),
        )

    def _priced(
        self, draft: Draft, noises: tuple[Noise, ...], parts: list[int], delta: int
    ) -> tuple[Mechanism, tuple[Noise, ...]]:
        """The mechanism with what the price bought it, and the noises that it draws, or a refusal."""
        mechanism = draft.mechanism
        match mechanism:
            case Sums() | BoundSearch():
                return mechanism, noises
            case UnpricedSelection(by=at):
                selection, noise = mechanism.priced(draft.statistics[at], noises[at], draft.bound.groups, delta)
                return selection, (*noises[:at], noise, *noises[at + 1 :])
            case UnpricedTopKeys(keys=keys, by=by):
                loss = share_of_choice(Price(parts[draft.groups.index((by,))]).loss_value)
                return chosen_keys(keys, loss, self._compilation.law, by), noises
            case RunningTotals():
                return _rooted(mechanism, noises, draft)
            case GroupingSets():
                for number, noise in itertools.product(range(len(mechanism.sets)), noises):
                    mechanism.noise(noise, number)  # or a refusal: more than 64 bits hold
                return mechanism, noises
            case _:
                assert_never(mechanism)

    def _grains_of(self, epsilon: Fraction) -> int:
        """What is shared out: rho, or epsilon where that is what noise is calibrated to."""
        return (self._accountant.pure_of if self._compilation.counts_pure else self._accountant.price_of)(epsilon)

    def _price(self, draft: Draft, parts: list[int], delta: int) -> Price:
        if not self._compilation.counts_pure:
            return Price(sum(parts), delta if isinstance(draft.mechanism, UnpricedSelection) else 0)
        assert not isinstance(draft.mechanism, UnpricedSelection)  # keys are declared: there is no delta
        sums, choices = list[int](), list[int]()
        for group, part in zip(draft.groups, parts, strict=True):
            measured = group_of([draft.statistics[i] for i in group])
            (sums if isinstance(measured, NoisySums) else choices).append(part)
        return pure_price(sums, choices)

    def _noises(self, draft: Draft, parts: list[int]) -> tuple[Noise, ...]:
        """Noise for each statistic: of a group, what costs no more than the group pays.

        The count by which top keys are chosen leaves a part of its share to the choice.
        """
        found: dict[int, Noise] = {}
        for group, part in zip(draft.groups, parts, strict=True):
            loss = Price(part).loss_value
            if isinstance(draft.mechanism, UnpricedTopKeys) and group == (draft.mechanism.by,):
                loss = share_of_counts(loss)
            measured = group_of([draft.statistics[i] for i in group])
            found |= zip(group, measured.noises(loss, self._compilation.law), strict=True)
        return tuple(found[i] for i in range(len(draft.statistics)))


def least(suffices: Callable[[int], bool], most: int) -> int:
    """The least number that suffices, or one that is at most a millionth larger, where `most` does."""
    low, high = 0, most
    while high - low > 1 + (high >> 20):
        middle = (low + high) // 2
        low, high = (low, middle) if suffices(middle) else (middle, high)
    return high


def _rooted(running: RunningTotals, noises: tuple[Noise, ...], draft: Draft) -> tuple[RunningTotals, tuple[Noise, ...]]:
    """Running totals with the noise of their root; unless 64 bits do not hold it."""
    try:
        claims = [statistic.sensitivity for statistic in draft.statistics]
        return running, tuple(running.noise(i, noise, claims[i]) for i, noise in enumerate(noises))
    except NotSupported:
        return replace(running, rooted=False), noises


def _widest(draft: Draft, place: int, noise: Noise) -> int:
    """The widest margin of a sum, in steps, and of its running totals where they are asked for."""
    statistic, mechanism = draft.statistics[place], draft.mechanism
    if not isinstance(group_of([statistic]), NoisySums):
        return 0
    match mechanism:
        case GroupingSets(sets=sets):
            return max(mechanism.margin(noise, kept, statistic.factor) for kept in sets)
        case RunningTotals() if mechanism.is_rooted(place):
            root = mechanism.noise(place, noise, statistic.sensitivity)
            return max(mechanism.cell_margin(root, statistic.factor), mechanism.margins(root, statistic.factor)[-1])
        case Sums() | UnpricedSelection() | UnpricedTopKeys() | RunningTotals() | BoundSearch():
            return in_steps(statistic, noise)
        case _:
            assert_never(mechanism)
