"""An empirical audit of a policy: lower bounds on the privacy loss of its answers, against their price.

Two neighbouring synthetic databases have the declared tables, with and without one person who exceeds every bound. Each
kind of query that the policy allows is run on both, with many draws of noise, to bound the privacy loss from below.
Nothing private is read, and nothing is spent.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path

import numpy as np

from dpsql.audit.composition import Part, choices_of_top, composed, parts_of
from dpsql.audit.losses import Flags, Loss, Seen, Trials, audited, beside_delta, rho
from dpsql.audit.questions import TOTALS, Question, questions
from dpsql.audit.synthetic import HABITS, LONELY, Habit, synthetic
from dpsql.audit.trials import Scores, came_out, is_slow, scores
from dpsql.engines.base import Engine, EngineKind
from dpsql.errors import Error, PolicyError
from dpsql.lowering.dialect import Dialect
from dpsql.noise.samplers import Sampler
from dpsql.policy.model import Catalog, PrivacyPolicy
from dpsql.policy.prepared import without_copies
from dpsql.privacy.accounting import Accountant, Price
from dpsql.privacy.mechanisms.top_keys import share_of_choice
from dpsql.privacy.rules.aggregates import StatisticKind, centres, clips
from dpsql.release import BoundMode, Measurement, QuerySettings, Release, compile_release
from dpsql.sql.parse import parse
from dpsql.sql.resolve import resolve

LEAST_TRIALS = 1_000  # to choose by
BLIND = 0.3  # a bound below this share of the claim proves nothing
_OF_SEARCHES = {"epsilon": Fraction(20), "rho": Fraction(6)}  # the price of a query that gives a small part to a search
# Of epsilon: for one choice, and for what many choices or noisy sums share.
_OF_CHOICE, _OF_MANY = Fraction(2), Fraction(4)
# At a low price noise is wide, and one unit more in a threshold changes little: delta is nearly used up.
_OF_KEYS = Fraction(1, 4)

Pair = tuple[Engine, Engine]


@dataclass(frozen=True, slots=True)
class Finding:
    """What the answers to one query prove, in the policy's currency: epsilon, or rho under zcdp."""

    question: Question
    claimed: float
    shown: float
    shares: float  # of the claim, in epsilon: rho grows with the square of the distance of two distributions
    distributions: tuple[Trials, Trials] = field(repr=False)
    # The probability that a key is returned that one person alone has: allowed, and observed at least.
    claimed_delta: float = 0.0
    shown_delta: float = 0.0

    @property
    def is_defect(self) -> bool:
        return self.shown > self.claimed or self.shown_delta > self.claimed_delta

    @property
    def has_power(self) -> bool:
        """Whether it can detect a violation: of the loss and, with unknown keys, of delta."""
        return self.shares >= BLIND and self.shown_delta >= BLIND * self.claimed_delta


@dataclass(frozen=True, slots=True)
class Refused:
    question: Question
    reason: str


def audit_prices(privacy: PrivacyPolicy) -> tuple[PrivacyPolicy, QuerySettings]:
    """The prices at which an audit has most power; noise is made the same way for every other price.

    Under zcdp an epsilon of 2 at the conversion's delta of 0.09 is a rho of about one half. A delta of 0.02 returns a
    key of one person often enough to count.
    """
    rich = replace(
        privacy,
        epsilon=Fraction(1_000),
        delta=Fraction(99, 100),
        key_delta=Fraction(9, 10),
        max_query_epsilon=Fraction(1_000),
        query_delta=None,
    )
    if privacy.accounting == "basic":
        has_keys = privacy.delta > 0
        return replace(rich, delta=rich.delta if has_keys else Fraction(0)), QuerySettings(Fraction(1), Fraction(1, 50))
    return rich, QuerySettings(Fraction(2), Fraction(1, 50))


class Audit:
    """The queries of one catalog, and the pairs of neighbouring databases to run them on."""

    def __init__(
        self, catalog: Catalog, privacy: PrivacyPolicy, dialect: Dialect, pairs: Mapping[Habit, Pair], sampler: Sampler
    ) -> None:
        self._catalog = catalog = without_copies(catalog)  # none for the synthetic tables
        self._dialect = dialect
        priced, self._settings = audit_prices(privacy)
        self._accountant = Accountant(priced)
        self.pairs = pairs
        self._sampler = sampler
        asked = list(questions(catalog))
        self.questions = [*asked, *(search for question in asked for search in self._searches(question))]

    @property
    def currency(self) -> str:
        return "epsilon" if self._accountant.policy.accounting == "basic" else "rho"

    def run(self, trials: int, tell: Callable[[], None] = lambda: None) -> Iterator[Finding | Refused]:
        """One finding for each query; `tell` is called after each."""
        for question in self.questions:
            try:
                measurements, price = self._asked(question)
            except Error as error:
                yield Refused(question, error.message)
            else:
                yield self._finding(question, measurements, price, trials)
            tell()

    def _searches(self, question: Question) -> Iterator[Question]:
        """The bound searches of a query, and the sums that use their results."""
        if question.keys != "none" or question.aggregate not in ("SUM", "AVG"):
            return
        with suppress(Error):
            release = self._release(question.sql, self._settings, "searched")
            for index, measurement in enumerate(release.measurements if release.searches else ()):
                named = _named(measurement).format(question.aggregate)
                yield replace(question, aggregate=named, part=index)

    def _asked(self, question: Question) -> tuple[list[Measurement], Price]:
        """The measurements under audit, and their joint price."""
        if question.part is None:
            release = self._release(question.sql, self._settings, "declared")
            if self.currency == "epsilon" and any(map(is_slow, release.measurements)):
                choices = sum(part.is_choice for each in release.measurements for part in parts_of(each))
                dear = replace(self._settings, epsilon=_OF_CHOICE if choices == 1 else _OF_MANY)
                release = self._release(question.sql, dear, "declared")
            return list(release.measurements), release.price
        measurement = self._part(question.sql, question.part)
        return [measurement], measurement.price

    def _part(self, sql: str, index: int) -> Measurement:
        """One measurement of a query with bound searches, given the results of the earlier ones.

        Claim: the loss that its answers show is a lower bound of its price.
        Because: prices add up where each measurement keeps its price whatever the earlier ones returned (adaptive
        composition), so it must keep its price given any results, and so given the middle of their candidates.
        Needs: nothing.
        """
        release = self._release(sql, self._settings, "searched")
        if release.measurements[index].is_search:
            release = self._release(sql, replace(self._settings, epsilon=_OF_SEARCHES[self.currency]), "searched")
        settled, chosen = release, dict[int, int]()
        for search in sorted({search for _, search in release.measurements[index].clips}):
            (statistic,) = settled.measurements[search].statistics
            chosen[search] = (
                centres(statistic) if statistic.kind is StatisticKind.CENTRE else len(clips(statistic))
            ) // 2
            assert release.settle is not None
            settled = release.settle(chosen)
        return settled.measurements[index]

    def _release(self, sql: str, settings: QuerySettings, clips: BoundMode) -> Release:
        plan = resolve(parse(sql), self._catalog)
        return compile_release(plan, self._catalog, self._accountant, settings, self._dialect, clips)

    def _finding(self, question: Question, measurements: Sequence[Measurement], price: Price, trials: int) -> Finding:
        claimed = float(price.loss_value)
        seen = [
            _all_scores(measurements, self.pairs[habit], self._sampler, trials)
            for habit in self._telling(question, measurements, trials)
        ]
        found = [(self._shown(measurements, each, price), each) for each in seen]
        shown, best = max(found, key=lambda each: each[0])
        share = shown / claimed
        shares = share if self.currency == "epsilon" else share**0.5
        delta = self._delta(question, trials) if price.delta else (0.0, 0.0)
        return Finding(question, claimed, shown, shares, best.shown, *delta)

    def _telling(self, question: Question, measurements: Sequence[Measurement], trials: int) -> Sequence[Habit]:
        """The habits that are looked at: where trials are slow, that which a few trials of each show to tell most.

        These are drawn anew, so that the choice costs no confidence.
        """
        habits = _habits(question)
        if not any(map(is_slow, measurements)):
            return habits
        few = max(trials // 10, LEAST_TRIALS)
        told = [_all_scores(measurements, self.pairs[habit], self._sampler, few).apart for habit in habits]
        return (habits[told.index(max(told))],)

    def _shown(self, measurements: Sequence[Measurement], seen: Scores, price: Price) -> float:
        """The loss that is shown of all measurements; or, if that is a larger part of what it costs, of a choice."""
        if not seen.moved:
            return 0.0
        whole = [part for measurement in measurements for part in parts_of(measurement)]
        found = audited(seen.with_unit, seen.without_unit, self._loss(whole, price))
        if seen.choices is not None:
            chosen = [part for measurement in measurements for part in choices_of_top(measurement)]
            found = max(found, audited(*seen.choices, self._loss(chosen, price)) / float(share_of_choice(Fraction(1))))
        return max(found, 0.0)

    def _loss(self, parts: Sequence[Part], price: Price) -> Loss:
        return beside_delta(composed(parts) if self.currency == "epsilon" else rho, float(price.delta_value))

    def _delta(self, question: Question, trials: int) -> tuple[float, float]:
        """Delta: claimed, and shown."""
        release = self._release(question.sql, replace(self._settings, epsilon=_OF_KEYS), "declared")
        plain = [measurement for measurement in release.measurements if not measurement.stages]
        shown = 0.0
        for habit in LONELY:
            seen = [came_out(measurement, self.pairs[habit], self._sampler, trials) for measurement in plain]
            if came := [each for each in seen if each is not None]:
                least = min(map(len, came))
                shown = max(shown, _at_least(np.logical_or.reduce([each[:least] for each in came])))
        return float(release.price.delta_value), shown


def _habits(question: Question) -> tuple[Habit, ...]:
    """The ways to place the person's rows that reveal something about such keys."""
    return {"none": HABITS[:3], TOTALS: (*HABITS, "own_keys")}.get(question.keys, HABITS)


def _named(measurement: Measurement) -> str:
    if not measurement.is_search:
        return "{} with what is chosen"
    if measurement.statistics[0].kind is StatisticKind.CENTRE:
        return "centre of {}"
    return "clip of differences of {}" if measurement.clips else "clip of {}"


def _at_least(came: Flags) -> float:
    """A lower bound on the probability of an event, from these trials.

    Claim: a lower bound on delta, for an event that is impossible without the unit.
    Because: (epsilon, delta)-DP and delta-approximate zCDP allow an event that is impossible on a neighbour with
    probability delta at most.
    Needs: keys that the neighbour does not have; such keys are never returned.
    """
    return Seen(int(np.count_nonzero(came)), len(came)).at_least


def _all_scores(measurements: Sequence[Measurement], pair: Pair, sampler: Sampler, trials: int) -> Scores:
    """The scores of all measurements together: their noise is independent, so log-likelihood ratios add up.

    A measurement that uses an earlier answer is left out: the others show a part of the whole, which is a sound bound.
    """
    plain = [measurement for measurement in measurements if not measurement.stages]
    found = [scores(measurement, pair, sampler, trials) for measurement in plain]
    least = min(len(each.with_unit) for each in found)
    with_unit = sum(each.with_unit[:least] for each in found)
    without_unit = sum(each.without_unit[:least] for each in found)
    choices = next((each.choices for each in found if each.choices is not None), None)
    return Scores(np.asarray(with_unit), np.asarray(without_unit), found[0].shown, choices)


@contextmanager
def open_audit(
    catalog: Catalog, privacy: PrivacyPolicy, kind: EngineKind, owners: Engine, sampler: Sampler
) -> Iterator[Audit]:
    """Synthetic neighbouring databases of the owner's engine, in a temporary folder that is deleted at the end."""
    with ExitStack() as closing:
        folder = Path(closing.enter_context(tempfile.TemporaryDirectory(prefix="dpsql-audit-")))
        scratch = kind.scratch(folder)
        if scratch is None:
            raise PolicyError(
                f"an audit needs synthetic databases, which cannot be created for {kind.title}",
                hint="Audit the same policy with a database of another engine that has the same tables.",
            )
        places = closing.enter_context(scratch)
        pairs: dict[Habit, Pair] = {}
        for habit in (*HABITS, *LONELY):
            made: list[Engine] = []
            for with_unit in (True, False):
                tables = synthetic(catalog, owners, habit, with_unit=with_unit)
                engine = places.database(f"{habit}_{'with' if with_unit else 'without'}", tables)
                closing.callback(engine.close)
                made.append(engine)
            pairs[habit] = made[0], made[1]
        yield Audit(catalog, privacy, owners.dialect, pairs, sampler)
