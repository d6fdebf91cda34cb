"""What the columns of an answer show of noisy sums, and how far off each is."""

from __future__ import annotations

from fractions import Fraction

from dpsql.plan.nodes import Plan
from dpsql.plan.scalars import Agg, Aggregated, Field
from dpsql.plan.visit import source_of
from dpsql.privacy.bounds import UNBOUNDED, Interval
from dpsql.privacy.estimators.assembly import Estimators, Linear
from dpsql.privacy.keys.domains import domain
from dpsql.privacy.mechanisms.grouping_sets import GroupingSets
from dpsql.privacy.mechanisms.mode import Mode
from dpsql.privacy.mechanisms.quantiles import Quantiles
from dpsql.privacy.mechanisms.running_totals import RunningTotals
from dpsql.privacy.mechanisms.union import group_of
from dpsql.privacy.noise_laws import Noise
from dpsql.privacy.rules import aggregates as rules
from dpsql.privacy.rules.aggregates import StatisticKind
from dpsql.release.drafts import Compilation
from dpsql.release.limits import made_of
from dpsql.release.margins.trace import with_margins
from dpsql.release.model import Measurement, Output, widest_mean, widest_of
from dpsql.types import Kind, Type


def is_measured(type_: Type) -> bool:
    """Whether values of a type can be near the truth or far from it: numbers and times, and arrays of them."""
    if type_.kind is Kind.ARRAY:
        return type_.element is not None and is_measured(type_.element)
    return type_.is_numeric or type_.is_temporal or type_.kind is Kind.INTERVAL


class Outputs:
    def __init__(self, compilation: Compilation) -> None:
        self._compilation = compilation
        self._sums: dict[int, tuple[tuple[int, Linear], ...]] = {}  # field -> measurements and noisy sums it shows
        self._averages: dict[int, tuple[tuple[int, Linear], ...]] = {}  # the same, of averages
        self._ratios: set[int] = set()
        self._counted: set[int] = set()  # fields that show counts
        self._limited: set[int] = set()  # fields that show numbers of which limits may cut off a part
        self._marks: dict[int, str] = {}  # fields whose numbers may be far from the truth, and why
        self._measurements: tuple[Measurement, ...] = ()

    def priced(self, measurements: tuple[Measurement, ...]) -> None:
        """From now on, margins are those of these."""
        self._measurements = measurements

    def show(self, target: Field, field: Field, call: Aggregated, assembly: Estimators) -> None:
        """A column shows what the assembly made of an aggregate."""
        if call.function is Agg.COUNT:
            self._counted.add(target.id)
        if field.id in assembly.ratios:
            self._ratios.add(target.id)

    def show_sums(self, target: Field, field: Field, assembly: Estimators, index: int) -> None:
        """… of the cells of one measurement, as they are."""
        if field.id in assembly.directly:
            self._sums[target.id] = ((index, assembly.directly[field.id]),)
        if field.id in assembly.averages:
            self._averages[target.id] = ((index, assembly.averages[field.id]),)

    def mark(self, target: Field, reason: str) -> None:
        """The numbers of a column may be far from the truth, for a reason that no margin covers."""
        self._marks[target.id] = reason

    def limit(self, target: Field) -> None:
        """Limits may cut off part of the numbers of a column: its margin is of the noise alone."""
        self._limited.add(target.id)

    def limited(self, rest: Plan) -> frozenset[int]:
        """The fields that are made of such numbers."""
        return made_of(rest, self._limited)

    def unite(self, both: Field, one: Field, other: Field) -> None:
        """A column shows what two others show, one below the other."""
        for shown in (self._sums, self._averages):
            if one.id in shown and other.id in shown:
                shown[both.id] = shown[one.id] + shown[other.id]
        for marked in (self._ratios, self._counted):
            if one.id in marked:
                marked.add(both.id)
        for side in (one, other):
            if side.id in self._marks:
                self._marks[both.id] = self._marks[side.id]

    def with_margins(self, rest: Plan, wanted: tuple[Field, ...]) -> tuple[Plan, dict[int, int], frozenset[int]]:
        widths = {index: len(draft.keys) for index, draft in enumerate(self._compilation.drafts)}
        sums = {index: len(draft.statistics) for index, draft in enumerate(self._compilation.drafts)}
        choices = {
            (index, i)
            for index, draft in enumerate(self._compilation.drafts)
            for i, statistic in enumerate(draft.statistics)
            if isinstance(group_of([statistic]), Quantiles | Mode)
        }
        chains = {
            index: (draft.mechanism.chains, draft.mechanism.chained)
            for index, draft in enumerate(self._compilation.drafts)
            if isinstance(draft.mechanism, RunningTotals)
        }
        sets = {
            index: [self._in_sets(index, draft.mechanism, i) for i in range(len(draft.statistics))]
            for index, draft in enumerate(self._compilation.drafts)
            if isinstance(draft.mechanism, GroupingSets)
        }
        truths = {
            (index, i): truth
            for index, draft in enumerate(self._compilation.drafts)
            for i in range(len(draft.statistics))
            if (truth := self._truth(index, i)) is not UNBOUNDED
        }
        return with_margins(
            rest, wanted, widths, sums, choices, chains, sets, truths, self._share, self._compilation.ids
        )

    def _truth(self, index: int, statistic: int) -> Interval:
        """Between which numbers a sum would lie without noise, in steps."""
        draft = self._compilation.drafts[index]
        wanted = draft.statistics[statistic]
        if wanted.kind is StatisticKind.DISTINCT and wanted.value is not None:
            most = domain(wanted.value, draft.derivation.conclusion.facts, self._compilation.catalog.max_cells)
            return Interval(Fraction(0), None if most is None else Fraction(len(set(most) - {None})))
        return rules.truth(wanted)

    def _share(self, index: int, part: int, whole: int) -> tuple[Fraction, Fraction] | None:
        statistics = self._compilation.drafts[index].statistics
        return rules.share(statistics[part], statistics[whole])

    def _in_sets(self, index: int, sets: GroupingSets, statistic: int) -> dict[tuple[int, ...], float]:
        """How many times as far off as the finest cells those of each set are; before the price is known, about."""
        if index < len(self._measurements):
            measurement = self._measurements[index]
            finest = measurement.steps(statistic)
            return {kept: measurement.steps_in_set(statistic, kept) / finest for kept in sets.sets}
        coarse = Noise(self._compilation.law, Fraction(2**40))
        finest = sets.margin(coarse, sets.sets[0], 1)
        return {kept: sets.margin(coarse, kept, 1) / finest for kept in sets.sets}

    def output(self, field: Field, plan: Plan, measurements: tuple[Measurement, ...]) -> Output:
        source = source_of(field, plan, self._sums.keys() | self._ratios | self._counted | self._marks.keys())
        # Of several grouping sets, the largest margin is true of all.
        shown = self._sums.get(source, ())
        found = widest_of(shown, field.type, measurements)
        if found is not None:
            self._warn_if_useless(field.name, found, shown)
        averaged = self._averages.get(source, ())
        mean = widest_mean(averaged, measurements)
        is_count = source in self._counted
        return Output(
            field.name,
            field.type,
            found,
            source in self._ratios,
            mean,
            shown,
            averaged,
            mark=self._marks.get(source),
            count=is_count,
        )

    def _warn_if_useless(self, name: str, margin: Fraction, shown: tuple[tuple[int, Linear], ...]) -> None:
        """Where a margin is wider than all that a count can be: the answer would be noise, and is known to be so."""
        most = Fraction(0)
        for index, number in shown:
            truths = [(self._truth(index, place), size) for place, size in number if size]
            if len(truths) != 1 or truths[0][0].high is None:
                return
            most = max(most, truths[0][0].high * truths[0][1])
        if margin >= most > 0:
            self._compilation.caution(f'± of "{name}" is wider than all it can be, from 0 to {int(most):,}')
