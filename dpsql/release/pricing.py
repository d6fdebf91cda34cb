"""What a query costs: the price of the whole, its share for each sum, and the noise that each share buys."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction

from dpsql.errors import BadSetting, MissingDeclaration, NotSupported
from dpsql.privacy.accounting import DELTA_UNIT, Price, pure_price
from dpsql.privacy.allocation import shares
from dpsql.privacy.mechanisms.quantiles import cuts_chosen, levels, ranks_within
from dpsql.privacy.mechanisms.running_totals import cell_margin, running_margins, widened
from dpsql.privacy.mechanisms.top_keys import Top, chosen_keys, share_of_choice, share_of_counts
from dpsql.privacy.noise_laws import (
    Noise,
    chosen,
    clip_chosen,
    epsilon_of_choice,
    gaussian,
    laplace,
    most_common,
    selecting,
)
from dpsql.privacy.rules import aggregates as rules
from dpsql.privacy.rules.aggregates import CHOSEN, SEARCHED, Statistic, StatisticKind
from dpsql.release.drafts import Compilation, Draft
from dpsql.release.identity import identity_of_answer
from dpsql.release.model import Measurement, in_steps, margin_of

# Of the price of a sum whose clip or centre is searched for, this part goes to all searches of the query together.
_SEARCHES = {StatisticKind.CLIP: Fraction(1, 5), StatisticKind.CENTRE: Fraction(1, 20)}


class Pricing:
    def __init__(self, compilation: Compilation) -> None:
        self._compilation = compilation
        self._accountant = compilation.accountant
        self._settings = compilation.settings
        self._drafts = compilation.drafts

    def priced(self) -> Callable[[Draft, int], Measurement]:
        """The price is shared for the least error of what was asked; delta equally among all thresholds.

        A sum whose clip is searched for leaves a fifth of its share to searches, and a twentieth for its centre. They
        share it by kind alone: what they find serves later queries too, however little this one makes of it.
        """
        chosen = sum(draft.selection is not None for draft in self._drafts)
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
                kinds = {self._kind(search) for place, search in draft.clips if place in draft.groups[group]}
                part = math.floor(share * sum(_SEARCHES[kind] for kind in kinds))
                pot += part
                parts[group] -= part if self._compilation.clips == "searched" else 0
        sizes = {i: _SEARCHES[self._kind(i)] for i, draft in enumerate(self._drafts) if draft.is_search}
        return {i: math.floor(pot * size / sum(sizes.values())) for i, size in sizes.items()}

    def _kind(self, search: int) -> StatisticKind:
        return self._drafts[search].statistics[0].kind

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
        noises = self._noises(draft, parts)
        noises, rooted = _rooted(noises, draft)
        if (sets := draft.lattice) is not None:
            for number, noise in itertools.product(range(len(sets.sets)), noises):
                sets.noise(noise, number)  # or a refusal: more than 64 bits hold
        lowest = None
        if (at := draft.selection) is not None:
            weight = rules.weight_in_keys(draft.statistics[at], self._compilation.norm)
            noise, lowest = selecting(noises[at], draft.bound.groups, Price(0, delta).delta_value, weight)
            noises = (*noises[:at], noise, *noises[at + 1 :])
        top = self._top(draft, parts)
        # A search is known by what it asks alone, whatever was paid for it: what it found serves everybody.
        decides = () if draft.is_search else (noises, draft.selection, lowest, price, draft.lattice, top)
        running = (draft.chains, draft.chained) if rooted else None
        identity = identity_of_answer(draft.asked, self._accountant.policy.accounting, draft.cells, decides, running)
        return Measurement(
            draft.keys,
            draft.cells,
            draft.bound,
            draft.statistics,
            draft.groups,
            noises,
            draft.selection,
            lowest,
            draft.branches,
            draft.stages,
            draft.derivation,
            price,
            draft.chains,
            draft.chained,
            rooted,
            draft.remainder,
            draft.question,
            draft.lattice,
            clips=draft.clips,
            top=top,
            identity=identity,
        )

    def _top(self, draft: Draft, parts: list[int]) -> Top | None:
        if draft.top is None:
            return None
        part = parts[draft.groups.index((draft.top.by,))]
        loss = share_of_choice(Price(part).loss_value)
        return chosen_keys(draft.top.keys, loss, self._compilation.law, draft.top.by)

    def _grains_of(self, epsilon: Fraction) -> int:
        """What is shared out: rho, or epsilon where that is what noise is calibrated to."""
        return (self._accountant.pure_of if self._compilation.counts_pure else self._accountant.price_of)(epsilon)

    def _price(self, draft: Draft, parts: list[int], delta: int) -> Price:
        if not self._compilation.counts_pure:
            return Price(sum(parts), delta if draft.selection is not None else 0)
        assert draft.selection is None  # keys are declared: there is no delta
        chosen = [all(draft.statistics[i].kind in CHOSEN | SEARCHED for i in group) for group in draft.groups]
        sums = [part for part, is_choice in zip(parts, chosen, strict=True) if not is_choice]
        choices = [part for part, is_choice in zip(parts, chosen, strict=True) if is_choice]
        return pure_price(sums, choices)

    def _noises(self, draft: Draft, parts: list[int]) -> tuple[Noise, ...]:
        """Noise for each statistic.

        Claim: all statistics of a group together cost what the group pays. Quantiles that are cut in turn share it
        by levels (`quantiles.cuts_chosen`); of sums:
        Because: each gets the noise that it would need if it alone cost that, so with the scale b = l1 / epsilon or the
        variance v = l2² / (2 rho). A unit that moves them by m costs the sum of m / b, or of m² / (2 v): of the price
        as large a part as the sum of m / l1, or of m² / l2², is of 1, and that is no more than all of it.
        Needs: the claims of a group's statistics hold together (`rules.sum_shapes`).
        """
        found: dict[int, Noise] = {}
        for group, part in zip(draft.groups, parts, strict=True):
            statistics, loss = [draft.statistics[i] for i in group], Price(part).loss_value
            if draft.top is not None and group == (draft.top.by,):
                loss = share_of_counts(loss)
            if len(group) > 1 and statistics[0].kind is StatisticKind.RANKED:
                found |= zip(group, self._noises_in_turn(statistics, loss), strict=True)
            else:
                found |= {i: self._noise(draft.statistics[i], loss) for i in group}
        return tuple(found[i] for i in range(len(draft.statistics)))

    def _noises_in_turn(self, quantiles: Sequence[Statistic], loss: Fraction) -> list[Noise]:
        each = loss / levels(quantiles)
        epsilon = each if self._compilation.law == "laplace" else epsilon_of_choice(each)
        within = ranks_within(tuple(map(rules.rank_of, quantiles)))
        return [cuts_chosen(s.sensitivity.l1, within[rules.rank_of(s)], epsilon) for s in quantiles]

    def _noise(self, statistic: Statistic, loss: Fraction) -> Noise:
        is_epsilon = self._compilation.law == "laplace"
        if statistic.kind is StatisticKind.COMMONEST:
            return most_common(statistic.sensitivity.l1, loss if is_epsilon else epsilon_of_choice(loss))
        if statistic.kind is StatisticKind.CLIP:
            return clip_chosen(loss if is_epsilon else epsilon_of_choice(loss))
        if statistic.rank is not None:
            return chosen(statistic.sensitivity.l1, statistic.rank, loss if is_epsilon else epsilon_of_choice(loss))
        if is_epsilon:
            return laplace(statistic.sensitivity.l1, loss)
        return gaussian(statistic.sensitivity.l2_squared, loss)


def least(suffices: Callable[[int], bool], most: int) -> int:
    """The least number that suffices, or one that is at most a millionth larger, where `most` does."""
    low, high = 0, most
    while high - low > 1 + (high >> 20):
        middle = (low + high) // 2
        low, high = (low, middle) if suffices(middle) else (middle, high)
    return high


def _rooted(noises: tuple[Noise, ...], draft: Draft) -> tuple[tuple[Noise, ...], bool]:
    """The noises, where running totals are asked for those of their root; unless 64 bits do not hold these."""
    if draft.chains is None:
        return noises, False
    length = draft.chains.length
    try:
        return tuple(
            widened(noise, length, draft.statistics[i].sensitivity) if i in draft.chained else noise
            for i, noise in enumerate(noises)
        ), True
    except NotSupported:
        return noises, False


def _widest(draft: Draft, place: int, noise: Noise) -> int:
    """The widest margin of a sum, in steps, and of its running totals where they are asked for."""
    statistic = draft.statistics[place]
    if statistic.kind in CHOSEN:
        return 0
    if draft.lattice is not None:
        return max(draft.lattice.margin(noise, kept, statistic.factor) for kept in draft.lattice.sets)
    if draft.chains is None or place not in draft.chained:
        return in_steps(statistic, noise)
    length = draft.chains.length
    root = widened(noise, length, statistic.sensitivity)
    return max(cell_margin(root, length, statistic.factor), running_margins(root, length, statistic.factor)[-1])
