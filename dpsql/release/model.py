"""What a query will do, known before anything is paid or read: the Release, its measurements and its outputs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

from dpsql.lowering.bounding import Branch
from dpsql.lowering.fast_paths import Key
from dpsql.lowering.in_python import InPython
from dpsql.plan.patterns import Rising
from dpsql.plan.text import scalar_text
from dpsql.policy.model import Table
from dpsql.privacy.accounting import Price
from dpsql.privacy.confidence import USUAL, Confidence, widening
from dpsql.privacy.estimators.assembly import Linear
from dpsql.privacy.mechanisms.grouping_sets import GroupingSetsNoise
from dpsql.privacy.mechanisms.partition_selection import selected_margins
from dpsql.privacy.mechanisms.quantiles import cut_margin
from dpsql.privacy.mechanisms.running_totals import Chains, cell_margin, running_margins
from dpsql.privacy.mechanisms.top_keys import Top
from dpsql.privacy.noise_laws import Noise, margin, rank_margin, standard_deviation
from dpsql.privacy.rules import aggregates as rules
from dpsql.privacy.rules.aggregates import CHOSEN, SEARCHED, Cells, Statistic
from dpsql.privacy.stability import Derivation
from dpsql.release.identity import Asked, Question, Reads
from dpsql.release.limits import NOISE_ONLY
from dpsql.sql.clock import Clock
from dpsql.tables import Integers
from dpsql.types import Kind, Type, Value

# How a query treats loose clips: as declared; searched for and paid with a part of its price; or found before.
BoundMode = Literal["declared", "searched", "found"]


@dataclass(frozen=True, slots=True)
class QuerySettings:
    """What an analyst may set for a query; None takes the policy's default."""

    epsilon: Fraction | None = None
    delta: Fraction | None = None
    margin: Fraction | None = None  # the 95 % error wanted for counts: the least price that keeps it is paid
    pure: bool = False  # no delta, and noise whose epsilon counts by itself


@dataclass(frozen=True, slots=True)
class Source:
    """What a release is compiled from, beside policy and schema."""

    sql: str
    parameters: tuple[Value, ...]
    settings: QuerySettings
    clips: BoundMode
    clock: Clock


@dataclass(frozen=True, slots=True)
class Measurement:
    """One release of noisy sums: what the engine runs, which noise is added, what it costs."""

    keys: tuple[Key, ...]
    cells: tuple[tuple[Value, ...], ...] | None  # every key that may be returned; None: a threshold chooses
    bound: Cells
    statistics: tuple[Statistic, ...]
    groups: tuple[tuple[int, ...], ...]  # statistics that are clipped, and paid for, together; each is in one
    noises: tuple[Noise, ...]
    selection: int | None  # the statistic that counts or weighs units, where a threshold chooses
    threshold: int | None  # the least noisy value of it with which a key is returned, in its own fixed point
    branches: tuple[Branch, ...]
    stages: tuple[int, ...]  # earlier values that its SQL refers to
    derivation: Derivation
    price: Price
    chains: Chains | None = None  # the order in which running totals are asked for
    chained: tuple[int, ...] = ()  # of which statistics
    rooted: bool = False  # whether their noise is that of running totals
    # Cells of rows whose keys are not declared, which stand there as NULL: measured with the others, and never shown.
    remainder: tuple[tuple[Value, ...], ...] = ()
    # Where it may be made of other answers.
    question: Question | None = dataclasses.field(default=None, compare=False, repr=False)
    lattice: GroupingSetsNoise | None = (
        None  # the grouping sets that are measured, and made of the same cells afterwards
    )
    told: tuple[int, ...] | None = None  # margins in steps, where the answer was not bought with this noise
    derived: bool = False  # the answer is made of earlier ones
    # Statistics whose clip or centre an earlier measurement chooses, and which one.
    clips: tuple[tuple[int, int], ...] = ()
    top: Top | None = None  # of all cells, those few with most units are chosen and counted
    confidence: Fraction = USUAL  # with which each margin holds
    identity: bytes = b""  # what it is known by, but for the earlier answers that it depends on
    # The declarations that it reads, or that earlier answers read of which it is made.
    reads: Reads = dataclasses.field(default=(), repr=False)

    @property
    def is_search(self) -> bool:
        """Whether it chooses the clip of later sums, or the centre that they are counted from."""
        return any(statistic.kind in SEARCHED for statistic in self.statistics)

    @property
    def order_of_keys(self) -> tuple[int, ...]:
        """The places of the keys in an order of their own, whichever the query wrote first."""
        return tuple(sorted(range(len(self.keys)), key=lambda i: scalar_text(self.keys[i].value)))

    @property
    def every_cell(self) -> tuple[tuple[Value, ...], ...]:
        """Those that are shown, and the remainder."""
        assert self.cells is not None
        return self.cells + self.remainder

    def margin(self, statistic: int) -> Fraction:
        """The 95 % margin of a noisy sum, in the units of the column."""
        return self.steps(statistic) * self.statistics[statistic].value_of_one

    def margin_of(self, number: Linear) -> Fraction:
        """The 95 % margin of a number made of noisy sums; of several, a little wide for Laplace noise."""
        return margin_of(number, {i: self.steps(i) if self.is_sum(i) else 0 for i, _ in number})

    def average_margin(self, total: Linear, rows: int = 1_000) -> float:
        """The 95 % margin of an average of so many rows, where the mean is as bad as it can be."""
        return float(self.margin_of(total)) / rows

    def units_to_pass(self) -> tuple[int, int]:
        """Of about how many units an unknown key is returned: of those with one key, and of those with the most."""
        assert self.selection is not None and self.threshold is not None
        law = self.noises[self.selection].law
        weight = rules.weight_in_keys(self.statistics[self.selection], "l2" if law == "gaussian" else "l1")
        few, many = (math.ceil(self.threshold / max(weight(keys), 1)) for keys in (1, self.bound.groups))
        return few, many

    def rank_margin(self, statistic: int) -> int:
        """How many rows a value at a rank may be away from it."""
        wanted = self.statistics[statistic]
        rows = rank_margin(self.noises[statistic], wanted.candidates, self.confidence)
        if len(group := self.in_turn(statistic)) > 1:
            noises = {rules.rank_of(self.statistics[i]): self.noises[i] for i in group}
            rows = cut_margin(rules.rank_of(wanted), noises, wanted.candidates, self.confidence)
        return math.ceil(Fraction(rows, wanted.factor))

    def in_turn(self, statistic: int) -> tuple[int, ...]:
        """The quantiles that are chosen one within the other together with this one, itself among them."""
        return next(group for group in self.groups if statistic in group)

    def is_sum(self, statistic: int) -> bool:
        """Whether it is an exact sum with noise, whose margin is known, or a value that was chosen."""
        return self.statistics[statistic].kind not in CHOSEN | SEARCHED

    def steps(self, statistic: int) -> int:
        """The margin of a noisy sum, in steps, as the sum itself is counted."""
        if self.told is not None:
            return self._wider(statistic, self.told[statistic])
        if self.is_rooted(statistic):
            assert self.chains is not None
            factor = self.statistics[statistic].factor
            return self._wider(statistic, cell_margin(self.noises[statistic], self.chains.length, factor))
        if self.lattice is not None:
            return self.steps_in_set(statistic, self.lattice.sets[0])
        return in_steps(self.statistics[statistic], self.noises[statistic], self.confidence)

    def _wider(self, statistic: int, steps: int) -> int:
        """A margin of 95 of 100 cases, with the confidence that is wanted."""
        law = self.noises[statistic].law
        assert law != "exponential"
        return math.ceil(steps * widening(law, self.confidence))

    def deviation(self, statistic: int) -> float:
        """The standard deviation of a noisy sum, in steps, where each cell has noise of its own."""
        return standard_deviation(self.noises[statistic]) / self.statistics[statistic].factor

    def steps_in_set(self, statistic: int, kept: tuple[int, ...]) -> int:
        """The same of a cell of a grouping set, whose keys are those at these places."""
        assert self.lattice is not None
        found = self.lattice.margin(self.noises[statistic], kept, self.statistics[statistic].factor)
        return self._wider(statistic, found)

    def in_whole_steps(self, statistic: int) -> bool:
        """Whether the noise step itself rounds: what is made of several noisy numbers cannot be rounded later."""
        return self.is_rooted(statistic) or self.lattice is not None or not self.is_sum(statistic)

    def is_rooted(self, statistic: int) -> bool:
        """Whether its noise is on the root of its running totals, not on the sums themselves."""
        return self.rooted and statistic in self.chained

    def running_steps(self, statistic: int) -> list[int]:
        """The 95 % margins of the running totals of a noisy sum along a chain, in steps."""
        assert self.chains is not None and statistic in self.chained
        noise, factor = self.noises[statistic], self.statistics[statistic].factor
        if self.rooted:
            return [self._wider(statistic, each) for each in running_margins(noise, self.chains.length, factor)]
        return [math.ceil(self.steps(statistic) * math.sqrt(k + 1)) for k in range(self.chains.length)]

    def selects(self, number: Linear) -> bool:
        """Whether a number is made of the count by which its key was selected: near the threshold it is further off."""
        return self.cells is None and any(place == self.selection for place, size in number if size)

    @property
    def decides(self) -> bool:
        """Whether margins of its sums may decide which of its values are shown, not only how far off they are."""
        return any(statistic.kind in CHOSEN for statistic in self.statistics)

    def error_columns(self, sums: Sequence[Integers], rows: int) -> list[list[int | float | None]]:
        """For each of so many rows: the margin of each sum, in steps; then of each chained sum how many times as wide
        those of its running total and of its whole chain are. In front, where margins decide, those of the usual
        confidence: another one must not change the answer."""
        usual: list[list[int | float | None]] = []
        if self.decides:
            as_usual = replace(self, confidence=USUAL)
            usual = [[as_usual.steps(i) if self.is_sum(i) else None] * rows for i in range(len(self.statistics))]
        columns: list[list[int | float | None]] = [
            [self.steps(i) if self.is_sum(i) else None] * rows for i in range(len(self.statistics))
        ]
        if self.cells is None and self.selection is not None and self.threshold is not None:
            at = self.selection
            counts, factor = map(int, sums[at][:rows]), self.statistics[at].factor
            columns[at] = [
                *selected_margins(
                    self.noises[at], self.threshold, factor, counts, self.steps(at), float(self.confidence)
                )
            ]
        for i in self.chained:
            assert self.chains is not None and self.cells is not None
            cell, running = self.steps(i), self.running_steps(i)
            ratios: list[int | float | None] = [None] * rows
            for k, place in enumerate(self.chains.places(self.cells)):
                ratios[place] = running[k % self.chains.length] / cell
            columns += [ratios, [running[-1] / cell] * rows]
        return usual + columns


@dataclass(frozen=True, slots=True)
class Rest:
    """What is computed of noisy and public tables, in each way that it can be."""

    sql: str  # over noisy tables that come as lists
    of_tables: str | None  # over those that come as tables of arrays; None where none is read
    columns: Mapping[int, int]  # of each noisy table that is read: how many of its columns, from the first
    in_python: InPython | None


@dataclass(frozen=True, slots=True)
class Stage:
    """A released or public value that a later measurement uses as a constant."""

    kind: str  # "scalar", "exists" or "in"
    type: Type
    rest: Rest = dataclasses.field(compare=False, repr=False)
    asked: Asked
    measurements: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Output:
    name: str
    type: Type
    margin: Fraction | None  # 95 %, for counts and sums shown as they are: the least, where rows have their own
    ratio: bool  # made of several noisy sums
    at_thousand: float | None  # of an average of a thousand rows, the widest margin that the bounds allow
    shown: tuple[tuple[int, Linear], ...] = ()  # the measurements and sums whose margin it has
    averaged: tuple[tuple[int, Linear], ...] = ()  # those of which it is an average, times the rows
    noisy: bool = False  # noise has a say in it: without a margin, a value is marked
    # Why its numbers may be far from the truth, in a few words: they are marked, and no margin is shown.
    mark: str | None = None
    limited: bool = False  # declared or chosen limits may cut off part of its numbers
    margin_at: int | None = None  # for other noisy numbers, the column behind the outputs that holds each row's margin
    count: bool = False  # a noisy count, shown as it is
    rising: Rising | None = None  # a running total of counts, or a share of one: it would not fall without noise

    @property
    def margin_of_all(self) -> Fraction | None:
        """The margin where it is the same in all rows."""
        return None if self.is_marked or self.margin_at is not None else self.margin

    @property
    def noise_only(self) -> bool:
        """Whether its margins are of the noise alone, where limits may cut off more."""
        return self.limited and not self.is_marked

    @property
    def mark_of_margin(self) -> str:
        return NOISE_ONLY if self.noise_only else ""

    @property
    def is_marked(self) -> bool:
        """Whether all its values are shown with a mark, and none with a margin."""
        return self.mark is not None or (self.noisy and self.margin is None and self.margin_at is None)


@dataclass(frozen=True, slots=True)
class Release:
    """All that a query will do, known before anything is paid or read."""

    measurements: tuple[Measurement, ...]  # in the order in which they can run
    stages: tuple[Stage, ...]
    rest: Rest  # behind the outputs, margins that differ by row
    outputs: tuple[Output, ...]
    public: Mapping[str, Table]  # the name of the loaded copy of each public table
    price: Price
    notes: tuple[str, ...]
    # Sentences that whoever reads the answer should know, from text, policy and schema alone.
    cautions: tuple[str, ...]
    asked: QuerySettings = QuerySettings()
    confidence: Confidence = dataclasses.field(default_factory=Confidence)
    # Where clips are searched for: the same release with those that were chosen, by measurement and place.
    settle: Callable[[Mapping[int, int]], Release] | None = dataclasses.field(default=None, repr=False, compare=False)
    # Of a settled one: what is paid, and the measurements whose clip is known.
    unsettled: Release | None = dataclasses.field(default=None, repr=False, compare=False)
    chosen: frozenset[int] = frozenset()
    source: Source | None = dataclasses.field(default=None, repr=False, compare=False)  # so that it can be settled

    @property
    def searches(self) -> tuple[int, ...]:
        """The measurements that choose clips."""
        return tuple(index for index, measurement in enumerate(self.measurements) if measurement.is_search)


def as_told(release: Release, told: Mapping[int, tuple[int, ...]], derived: Set[int]) -> Release:
    """The release with the margins of answers that were not bought with its own noise; those derived cost nothing."""
    if not told:
        return release
    measurements = tuple(
        m
        if i not in told
        else replace(m, told=told[i], rooted=False, derived=i in derived, price=Price() if i in derived else m.price)
        for i, m in enumerate(release.measurements)
    )
    outputs = _with_margins_of(measurements, release.outputs)
    price = sum((m.price for m in measurements), Price())
    return replace(release, measurements=measurements, outputs=outputs, price=price)


def widest_of(shown: Sequence[tuple[int, Linear]], type_: Type, measurements: Sequence[Measurement]) -> Fraction | None:
    found = max((measurements[index].margin_of(number) for index, number in shown), default=None)
    return Fraction(math.ceil(found)) if found is not None and type_.kind is Kind.INTEGER else found


def widest_mean(averaged: Sequence[tuple[int, Linear]], measurements: Sequence[Measurement]) -> float | None:
    return max((measurements[index].average_margin(number) for index, number in averaged), default=None)


def in_steps(statistic: Statistic, noise: Noise, confidence: Fraction = USUAL) -> int:
    """The margin of a noisy sum, in whole steps; below the usual confidence no less than that of Gaussian noise."""
    found = math.ceil(Fraction(margin(noise, confidence), statistic.factor))
    if confidence >= USUAL or noise.law == "exponential":
        return found
    return max(found, math.ceil(margin(noise) * widening(noise.law, confidence) / statistic.factor))


def with_confidence(release: Release, confidence: Confidence) -> Release:
    """The release whose margins hold with another confidence: nothing else about it changes."""
    if confidence == release.confidence:
        return release
    measurements = tuple(replace(m, confidence=confidence.of_each) for m in release.measurements)
    outputs = _with_margins_of(measurements, release.outputs)
    return replace(release, measurements=measurements, outputs=outputs, confidence=confidence)


def _with_margins_of(measurements: tuple[Measurement, ...], outputs: tuple[Output, ...]) -> tuple[Output, ...]:
    return tuple(
        replace(
            output,
            margin=widest_of(output.shown, output.type, measurements),
            at_thousand=widest_mean(output.averaged, measurements),
        )
        for output in outputs
    )


def margin_of(number: Linear, steps: Sequence[int] | Mapping[int, int]) -> Fraction:
    """The 95 % margin of a number made of noisy sums, in its own unit, from those of the sums."""
    sizes = [(i, abs(size)) for i, size in number if size]
    parts = [size * steps[i] for i, size in sizes]
    if len(parts) <= 1:
        return parts[0] if parts else Fraction(0)
    squares = sum(part * part for part in parts)
    grain = min(size for _, size in sizes)  # rounded up, to no finer than what it is made of
    return (math.isqrt(math.floor(squares / grain**2)) + 1) * grain
