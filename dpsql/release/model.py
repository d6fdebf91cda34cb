"""What a query will do, known before anything is paid or read: the Release, its measurements and its outputs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal, assert_never

from dpsql.lowering.bounding import Branch
from dpsql.lowering.fast_paths import Key
from dpsql.lowering.in_python import InPython
from dpsql.plan.patterns import Rising
from dpsql.plan.text import scalar_text
from dpsql.policy.model import Table
from dpsql.privacy.accounting import Price
from dpsql.privacy.confidence import USUAL, Confidence, widening
from dpsql.privacy.estimators.assembly import Linear
from dpsql.privacy.mechanisms.bound_search import BoundSearch
from dpsql.privacy.mechanisms.grouping_sets import GroupingSets
from dpsql.privacy.mechanisms.mode import Mode
from dpsql.privacy.mechanisms.partition_selection import PartitionSelection, selected_margins
from dpsql.privacy.mechanisms.quantiles import Quantiles
from dpsql.privacy.mechanisms.running_totals import RunningTotals
from dpsql.privacy.mechanisms.sums import NoisySums, Sums
from dpsql.privacy.mechanisms.top_keys import TopKeys
from dpsql.privacy.mechanisms.union import Group, Mechanism, group_of
from dpsql.privacy.noise_laws import Noise, margin, standard_deviation
from dpsql.privacy.rules.aggregates import Cells, Statistic
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
    """One release of noisy sums and chosen values: what the engine runs, which noise is added, what it costs."""

    keys: tuple[Key, ...]
    cells: tuple[tuple[Value, ...], ...] | None  # every key that may be returned; None: partition selection
    bound: Cells
    statistics: tuple[Statistic, ...]
    groups: tuple[tuple[int, ...], ...]  # statistics that are clipped, and paid for, together; each is in one
    noises: tuple[Noise, ...]
    mechanism: Mechanism  # how its cells are released, with all that this mechanism alone needs
    branches: tuple[Branch, ...]
    stages: tuple[int, ...]  # earlier values that its SQL refers to
    derivation: Derivation
    price: Price
    # Where it may be made of other answers.
    question: Question | None = dataclasses.field(default=None, compare=False, repr=False)
    told: tuple[int, ...] | None = None  # margins in steps, where the answer was not bought with this noise
    derived: bool = False  # the answer is made of earlier ones
    # Statistics whose clip or centre an earlier measurement chooses, and which one.
    clips: tuple[tuple[int, int], ...] = ()
    confidence: Fraction = USUAL  # with which each margin holds
    identity: bytes = b""  # what it is known by, but for the earlier answers that it depends on
    # The declarations that it reads, or that earlier answers read of which it is made.
    reads: Reads = dataclasses.field(default=(), repr=False)

    def __post_init__(self) -> None:
        if (self.cells is None) != isinstance(self.mechanism, PartitionSelection):
            raise ValueError("partition selection is for unknown keys, and they are released by nothing else")

    @property
    def is_search(self) -> bool:
        """Whether it chooses the clip of later sums, or the centre that they are counted from."""
        return isinstance(self.mechanism, BoundSearch)

    @property
    def is_combined(self) -> bool:
        """Whether what is shown of a cell is made of several noisy numbers, which other cells share."""
        match self.mechanism:
            case RunningTotals(rooted=rooted):
                return rooted
            case GroupingSets():
                return True
            case Sums() | PartitionSelection() | TopKeys() | BoundSearch():
                return False
            case _:
                assert_never(self.mechanism)

    @property
    def order_of_keys(self) -> tuple[int, ...]:
        """The places of the keys in an order of their own, whichever the query wrote first."""
        return tuple(sorted(range(len(self.keys)), key=lambda i: scalar_text(self.keys[i].value)))

    @property
    def every_cell(self) -> tuple[tuple[Value, ...], ...]:
        """Those that are shown, and the remainder."""
        assert self.cells is not None
        return self.cells + self.mechanism.remainder if isinstance(self.mechanism, Sums) else self.cells

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
        selection = self.mechanism
        assert isinstance(selection, PartitionSelection)
        return selection.units_to_pass(self.statistics[selection.by], self.noises[selection.by], self.bound.groups)

    def paid_with(self, statistic: int) -> tuple[int, ...]:
        """The group of statistics that is paid for together with this one, itself among them."""
        return next(group for group in self.groups if statistic in group)

    def measured(self, group: Sequence[int]) -> Group:
        """How the statistics of a group are measured."""
        return group_of([self.statistics[i] for i in group])

    def is_sum(self, statistic: int) -> bool:
        """Whether it is an exact sum with noise, whose margin is known, or a value that was chosen."""
        return isinstance(self.measured([statistic]), NoisySums)

    def steps(self, statistic: int) -> int:
        """The margin of a noisy sum, in steps, as the sum itself is counted."""
        if self.told is not None:
            return self._wider(statistic, self.told[statistic])
        noise, factor = self.noises[statistic], self.statistics[statistic].factor
        match self.mechanism:
            case RunningTotals() as running if running.is_rooted(statistic):
                return self._wider(statistic, running.cell_margin(noise, factor))
            case GroupingSets(sets=sets):
                return self.steps_in_set(statistic, sets[0])
            case Sums() | PartitionSelection() | TopKeys() | RunningTotals() | BoundSearch():
                return in_steps(self.statistics[statistic], noise, self.confidence)
            case _:
                assert_never(self.mechanism)

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
        assert isinstance(self.mechanism, GroupingSets)
        found = self.mechanism.margin(self.noises[statistic], kept, self.statistics[statistic].factor)
        return self._wider(statistic, found)

    def in_whole_steps(self, statistic: int) -> bool:
        """Whether the noise step itself rounds: what is made of several noisy numbers cannot be rounded later."""
        return self.is_rooted(statistic) or isinstance(self.mechanism, GroupingSets) or not self.is_sum(statistic)

    @property
    def chained(self) -> tuple[int, ...]:
        """The sums whose running totals are asked for."""
        return self.mechanism.chained if isinstance(self.mechanism, RunningTotals) else ()

    def is_rooted(self, statistic: int) -> bool:
        """Whether its noise is on the root of its running totals, not on the sums themselves."""
        return isinstance(self.mechanism, RunningTotals) and self.mechanism.is_rooted(statistic)

    def running_steps(self, statistic: int) -> list[int]:
        """The 95 % margins of the running totals of a noisy sum along a chain, in steps."""
        running = self.mechanism
        assert isinstance(running, RunningTotals) and statistic in running.chained
        noise, factor = self.noises[statistic], self.statistics[statistic].factor
        if running.rooted:
            return [self._wider(statistic, each) for each in running.margins(noise, factor)]
        return [math.ceil(self.steps(statistic) * math.sqrt(k + 1)) for k in range(running.chains.length)]

    def selects(self, number: Linear) -> bool:
        """Whether a number is made of the count by which its key was selected: near the threshold it is further off."""
        selection = self.mechanism
        return isinstance(selection, PartitionSelection) and any(i == selection.by for i, size in number if size)

    @property
    def decides(self) -> bool:
        """Whether margins of its sums may decide which of its values are shown, not only how far off they are."""
        return any(isinstance(self.measured(group), Quantiles | Mode) for group in self.groups)

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
        match self.mechanism:
            case PartitionSelection(by=at, threshold=threshold):
                noise, factor, plain = self.noises[at], self.statistics[at].factor, self.steps(at)
                counts = map(int, sums[at][:rows])
                columns[at] = [*selected_margins(noise, threshold, factor, counts, plain, float(self.confidence))]
            case RunningTotals(chains=chains, chained=chained):
                assert self.cells is not None
                for i in chained:
                    cell, running = self.steps(i), self.running_steps(i)
                    ratios: list[int | float | None] = [None] * rows
                    for k, place in enumerate(chains.places(self.cells)):
                        ratios[place] = running[k % chains.length] / cell
                    columns += [ratios, [running[-1] / cell] * rows]
            case Sums() | TopKeys() | GroupingSets() | BoundSearch():
                pass
            case _:
                assert_never(self.mechanism)
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
        else replace(
            m,
            told=told[i],
            mechanism=replace(m.mechanism, rooted=False) if isinstance(m.mechanism, RunningTotals) else m.mechanism,
            derived=i in derived,
            price=Price() if i in derived else m.price,
        )
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
