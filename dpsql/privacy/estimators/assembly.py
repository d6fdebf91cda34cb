"""Estimators: which noisy sums an aggregate needs, and the expression that computes it from them.

Everything above the sums is post-processing, so ratios, variances and correlations cost nothing beyond their sums.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from decimal import Decimal
from fractions import Fraction
from functools import reduce
from typing import Protocol

from dpsql.effort import spend
from dpsql.errors import NotSupported
from dpsql.plan.constants import NotConstant, evaluate
from dpsql.plan.scalars import Agg, Aggregated, Array, Call, Case, Const, Field, Op, Ref, Scalar, both
from dpsql.privacy.allocation import Degree
from dpsql.privacy.bounds import LARGEST, Interval, never_null
from dpsql.privacy.derive import check_aggregate
from dpsql.privacy.estimators.choose import AWAY, Asked, Form, choose, weights
from dpsql.privacy.estimators.disjoint import DisjointConditions
from dpsql.privacy.estimators.products import DIGITS, Product, products
from dpsql.privacy.mechanisms.mode import back, candidates, numbered
from dpsql.privacy.mechanisms.quantiles import better_together, levels
from dpsql.privacy.owners import is_unit
from dpsql.privacy.rules import aggregates as rules
from dpsql.privacy.rules.aggregates import Cells, Statistic, StatisticKind, rank_of
from dpsql.privacy.stability import Stability
from dpsql.types import BIGINT, BOOLEAN, DATE, DOUBLE, TIMESTAMP, Kind, Type, exact_decimal
from dpsql.types import decimal as decimal_type
from dpsql.types import integer as integer_type

EPOCH_DAY = Const(date(1970, 1, 1), DATE)
EPOCH = Const(datetime(1970, 1, 1), TIMESTAMP)
_MOST_PARTS = 10**6
_MOST_JOINED = 50  # groups tried for each sum; without a limit the time would grow with the square of their number


# An estimate from noisy sums: how far a change of one in each sum moves it.
Linear = tuple[tuple[int, Fraction], ...]


class Centres(Protocol):
    """Supplies the centres around which values with loose bounds are measured."""

    def may(self, value: Scalar) -> bool:
        """Whether a centre may be searched for."""

    def of(self, value: Scalar) -> Fraction | None:
        """The centre that is searched for; None as long as it is not chosen."""


@dataclass(slots=True)
class _Rows:
    """The aggregates over one set of rows, and the sums that they are estimated from."""

    where: Scalar | None
    counted: bool = False
    values: dict[Scalar, _Value] = field(default_factory=dict)
    count: Statistic | None = None  # None: the number of rows follows from the sums of a value

    @property
    def pivot(self) -> _Value:
        return next(value for value in self.values.values() if value.way.counts)


@dataclass(slots=True)
class _Value:
    where: Scalar | None  # as written: a NULL adds nothing in any case
    total: bool = False
    mean: bool = False
    spread: bool = False
    way: Form = Form.DIRECT
    sums: tuple[Statistic, ...] = ()
    product: Product | None = None  # where the sum is a multiple of another value's sum plus a rest


_SPREADS = frozenset({Agg.VAR_POP, Agg.VAR_SAMP, Agg.STDDEV_POP, Agg.STDDEV_SAMP})
_CHOSEN = frozenset({Agg.MIN, Agg.MAX, Agg.PERCENTILE_CONT, Agg.PERCENTILE_DISC, Agg.MODE})
# The count that decides whether there are rows to choose from gets this fraction of the price of the choice, so that
# its margin is about as many rows as the choice may be off: Laplace noise has longer tails.
_OF_CHOICE: dict[Degree, Fraction] = {2: Fraction(1, 10), 3: Fraction(1, 4)}
_JOINT = frozenset({Agg.COVAR_POP, Agg.COVAR_SAMP, Agg.CORR, Agg.REGR_SLOPE, Agg.REGR_INTERCEPT})


@dataclass(slots=True)
class Estimators:
    """Collects the statistics of one GROUP BY; equal ones are released once.

    Call `ask` for every aggregate, then `settle` to decide what is measured, then `output` for the expressions.
    """

    child: Stability
    cells: Cells
    new_field: Callable[[str, Type], Field]
    degree: Degree  # 3: Laplace noise, 2: Gaussian
    centres: Centres | None = None  # None: everything is measured by its declared bounds
    chosen: Cells | None = None  # the cells of counts of units, where these are chosen first
    statistics: dict[Statistic, Field] = field(default_factory=dict)
    weights: dict[Statistic, Fraction] = field(default_factory=dict)  # weight of the variance of each one
    groups: list[tuple[Statistic, ...]] = field(default_factory=list)  # clipped and priced together
    directly: dict[int, Linear] = field(default_factory=dict)  # output field -> the noisy sums it shows
    ratios: set[int] = field(default_factory=set)
    averages: dict[int, Linear] = field(default_factory=dict)  # output field -> error at most, times the rows
    counts: list[Linear] = field(default_factory=list)  # every count that is shown or divided by
    margins: dict[Statistic, Field] = field(default_factory=dict)  # columns of 95 % margins that decide what is shown
    _indices: dict[Statistic, int] = field(default_factory=dict)
    _rows: dict[Scalar | None, _Rows] = field(default_factory=dict)

    def statistic(self, wanted: Statistic, weight: Fraction = Fraction(1)) -> Ref:
        spend()
        if wanted not in self.statistics:
            self._indices[wanted] = len(self.statistics)
            self.statistics[wanted] = self.new_field(f"s{len(self.statistics)}", BIGINT)
            self.weights[wanted] = Fraction(0)
        self.weights[wanted] += weight
        return self._ref(wanted)

    def _ref(self, known: Statistic) -> Ref:
        return Ref(self.statistics[known])

    def index_of(self, known: Statistic) -> int:
        return self._indices[known]

    def grouped(self) -> list[tuple[Statistic, ...]]:
        """All statistics, in groups: one unit moves all sums of a group together no further than one of them alone.

        Claim: of one unit, the changes of all sums of a group, each divided by its own claim, add up to at most 1 in
        the norm of the noise.
        Because: a row adds to the sums of one condition only, where conditions exclude each other (`disjoint`), and to
        these no more than to one sum (`rules.sum_shapes`). A unit has at most `rows` rows that count, and norms of
        sums are no more than sums of norms. The clip of the group enforces it, whatever the number of rows.
        Needs: sums whose own claim is rows times what one row adds: not those of units that may be in several cells.
        All sums of a group passed in have the same condition.
        """
        cut = self._cut_in_turn()
        together = {statistic for group in (*self.groups, *cut) for statistic in group}
        alone = [(s,) for s in self.statistics if s not in together]
        found: list[list[Statistic]] = []
        joined: list[tuple[DisjointConditions, list[Statistic]]] = []  # the first groups, which others may join
        for group in (*self.groups, *alone):
            first = group[0]
            adds_up = first.kind is StatisticKind.ROWS or (first.kind is StatisticKind.UNITS and self.child.rows == 1)
            where = first.where if adds_up else None
            place = None if where is None else next((g for apart, g in joined if apart.add(where)), None)
            if place is not None:
                place.extend(group)
                continue
            found.append(list(group))
            if where is not None and len(joined) < _MOST_JOINED:
                joined.append((DisjointConditions(where), found[-1]))
        return [*map(tuple, found), *cut]

    def _cut_in_turn(self) -> list[tuple[Statistic, ...]]:
        """Quantiles of the same rows, where choosing them recursively, one within the other, has the smaller error."""
        found: dict[Statistic, list[Statistic]] = {}
        for statistic in self.statistics:
            if statistic.kind is StatisticKind.RANKED and rank_of(statistic) not in (
                0,
                1,
            ):  # extremes aim inside the ends
                found.setdefault(replace(statistic, rank=None), []).append(statistic)
        groups = (tuple(sorted(group, key=rank_of)) for group in found.values())
        return [group for group in groups if better_together(tuple(map(rank_of, group)), self.degree)]

    def weight(self, group: tuple[Statistic, ...]) -> Fraction:
        """The weight of the variance of a group; for recursive quantiles divided among the levels."""
        whole = sum((self.weights[statistic] for statistic in group), Fraction(0)) or Fraction(1)
        if group[0].kind is StatisticKind.RANKED:
            whole *= levels(group) ** (self.degree - 1)
        return whole

    def weights_once_chosen(self, settled: Mapping[Statistic, Statistic]) -> Iterator[dict[Statistic, Fraction]]:
        """Weights of variances once clips and centres are chosen, for each set of rows all of whose sums have one.

        Errors are then relative to the results: a typical value is as large as its centre plus one row's average part
        of the clip; means differ by no more than the width of the bounds. The sums of a set share what they had before,
        so the guarantee does not depend on any of this.
        """
        for rows in self._rows.values():
            sums = [statistic for value in rows.values.values() for statistic in value.sums]
            around = all(value.product is not None or value.way is Form.RESIDUAL for value in rows.values.values())
            if sums and around and rows.count is not None and all(settled[s].cut for s in (rows.count, *sums)):
                yield _relative(rows, rows.count, settled)

    # --- what is needed ---

    def ask(self, call: Aggregated) -> None:
        """Record what an aggregate needs, before anything is decided."""
        check_aggregate(call)
        call = narrowed(call)
        if call.distinct:
            return
        if call.function is Agg.COUNT:
            args = [arg for arg in call.args if not is_unit(arg)]  # the owner is never NULL
            self._of(args, call.where).counted = True
        elif call.function in _JOINT:
            self._of(list(call.args), call.where).counted = True
        elif _is_count(call):
            self._of([], call.where).counted = True
        elif call.function in (Agg.SUM, Agg.AVG, *_SPREADS):
            (arg,) = call.args
            rules.bounds_and_step(self.child, arg, self.cells)  # refuses, and names what is missing
            value = self._of([arg], call.where).values.setdefault(arg, _Value(call.where))
            value.total |= call.function is Agg.SUM
            value.mean |= call.function is Agg.AVG
            value.spread |= call.function in _SPREADS

    def settle(self, counter: Statistic | None) -> None:
        """Decide which sums are measured. `counter` is a count that is measured in any case, to select unknown keys."""
        if counter is not None:
            self.statistic(counter)
        for rows in self._rows.values():
            self._settle(rows, counter)

    def _settle(self, rows: _Rows, counter: Statistic | None) -> None:
        count = rules.count_rows(self.child, rows.where, self.cells)
        made = self._products(rows)
        apart = {arg: value for arg, value in rows.values.items() if arg not in made}
        asked = [self._asked(rows, arg, made) for arg in apart]
        design = choose(asked, counted=rows.counted, fixed=count == counter, degree=self.degree)
        found = weights(design, asked, counted=rows.counted, degree=self.degree)
        assert found is not None
        if design.counted:
            rows.count = count
            self.statistic(count, found[frozenset({None})])
        for i, ((arg, value), way) in enumerate(zip(apart.items(), design.ways, strict=True)):
            value.way = way
            sums = self._sums(arg, value, way)
            assert sums is not None
            value.sums = sums
            weight = found[frozenset((i, shape) for shape in way.shapes)]
            for statistic in sums:
                self.statistic(statistic, weight / len(sums))
            if len(sums) > 1:
                self.groups.append(sums)
        if design.counted or design.pivot is not None:
            self.counts.append(self._in_count(rows))
        for arg, product in made.items():
            value, base = rows.values[arg], asked[list(apart).index(product.base)]
            value.product = product
            rest, bounds = product.rest, product.bounds
            whole = rules.sum_expression(self.child, rest, value.where, bounds, self.cells, DIGITS)
            value.sums = (replace(whole, loose=rules.is_loose(self.child, rest)),)
            # Relative to the whole value; where bounds are loose, typical values are taken to be a quarter of them.
            size = product.part * (4 if base.loose else 1)
            self.statistic(value.sums[0], size**2 * (value.total + value.mean))

    def _products(self, rows: _Rows) -> dict[Scalar, Product]:
        """The values whose sums follow from sums of others; a variance needs sums of its own."""
        return products((arg for arg, value in rows.values.items() if not value.spread), self.child.facts)

    def _asked(self, rows: _Rows, arg: Scalar, made: Mapping[Scalar, Product]) -> Asked:
        value = rows.values[arg]
        (whole,) = self._sums(arg, value, Form.DIRECT) or (None,)
        assert whole is not None
        others = [other for other, product in made.items() if product.base == arg]
        total = value.total + sum(rows.values[other].total for other in others)
        mean = value.mean or any(rows.values[other].mean for other in others)
        if whole.loose and self._may_be_residual(arg, value):
            return Asked(Fraction(0), (Form.DIRECT, Form.RESIDUAL), total, mean, value.spread)
        ways = [way for way in (Form.CENTRED, Form.PAIR) if self._sums(arg, value, way) is not None]
        return Asked(Fraction(whole.low, whole.width), (Form.DIRECT, *ways), total, mean, value.spread)

    def _may_be_residual(self, arg: Scalar, value: _Value) -> bool:
        if self.centres is None or not self.centres.may(arg):
            return False
        squares = self.degree == 2
        return rules.sum_residuals(self.child, arg, value.where, self.cells, None, squares=squares) is not None

    def _sums(self, arg: Scalar, value: _Value, way: Form) -> tuple[Statistic, ...] | None:
        if way is Form.DIRECT:
            return (rules.sum_rows(self.child, arg, value.where, self.cells),)
        exact = way is not Form.BERNSTEIN
        squares = self.degree == 2
        if way is Form.RESIDUAL:
            centre = None if self.centres is None else self.centres.of(arg)
            found = rules.sum_residuals(self.child, arg, value.where, self.cells, centre, squares=squares)
            return None if found is None else (found,)
        return rules.sum_shapes(self.child, arg, value.where, way.shapes, self.cells, squares=squares, exact=exact)

    def _of(self, args: list[Scalar], where: Scalar | None) -> _Rows:
        """The rows in which none of the arguments is NULL."""
        complete = self._complete(args, where)
        return self._rows.setdefault(complete, _Rows(complete))

    def _complete(self, args: list[Scalar], where: Scalar | None) -> Scalar | None:
        for arg in args:
            if not never_null(arg, self.child.facts):
                where = both(where, rules.not_null(arg))
        return where

    # --- expressions over the sums ---

    def output(self, target: Field, call: Aggregated) -> Scalar:
        """The expression over noisy sums that replaces an aggregate."""
        call = narrowed(call)
        if call.function in _CHOSEN and _is_of_nothing(call):
            return Const(None, call.type)
        match call.function:
            case Agg.COUNT if call.distinct:
                return self._direct(target, self.count_distinct(call), BIGINT)
            case Agg.COUNT:
                rows = self._of([arg for arg in call.args if not is_unit(arg)], call.where)
                self.directly[target.id] = self._in_count(rows)
                return self._count(rows)
            case Agg.SUM if call.distinct:
                return self._direct(
                    target, rules.sum_distinct(self.child, call.args[0], call.where, self.cells), call.type
                )
            case Agg.SUM if _is_count(call):
                rows = self._of([], call.where)
                self.directly[target.id] = self._in_count(rows)
                return in_units(self._count(rows), Fraction(1), call.type)
            case Agg.SUM:
                return self._sum(target, call)
            case Agg.PERCENTILE_CONT | Agg.PERCENTILE_DISC:
                return self._at_rank(call, _share(call))
            case Agg.MIN | Agg.MAX if call.args[0].type.is_numeric or call.args[0].type.is_temporal:
                # DISTINCT does not change the smallest value.
                return self._at_rank(call, Fraction(call.function is Agg.MAX))
            case Agg.MODE if not call.distinct:
                return self._mode(call)
            case Agg.AVG:
                self.ratios.add(target.id)
                return self._distinct_average(target, call) if call.distinct else self._average(target, call)
            case function if function in _SPREADS and not call.distinct:
                self.ratios.add(target.id)
                return self._spread(call)
            case function if function in _JOINT and not call.distinct:
                self.ratios.add(target.id)
                return self._joint(call)
            case _:
                raise NotSupported(
                    f"{'DISTINCT in ' if call.distinct else ''}{call.function.value} over a private table"
                    " is not supported",
                    hint="It would return values of single rows; use AVG, or COUNT(*) FILTER (WHERE …)."
                    if call.function in (Agg.MIN, Agg.MAX, Agg.BOOL_AND, Agg.BOOL_OR)
                    else "Leave DISTINCT out.",
                    position=call.position,
                )

    # --- counts ---

    def _direct(self, target: Field, statistic: Statistic, type_: Type) -> Scalar:
        ref = self.statistic(statistic)
        self.directly[target.id] = ((self.index_of(statistic), statistic.value_of_one),)
        if statistic.kind in (StatisticKind.UNITS, StatisticKind.DISTINCT):
            self.counts.append(self.directly[target.id])
        return in_units(ref, statistic.step, type_)

    def count_distinct(self, call: Aggregated) -> Statistic:
        (arg,) = call.args
        if is_unit(arg):
            return rules.count_units(call.where, self.chosen or self.cells)
        if isinstance(arg, Ref) and arg.field.unit:
            return rules.count_units(both(call.where, rules.not_null(arg)), self.chosen or self.cells)
        if isinstance(arg, Array) and len(arg.items) == 1 and never_null(arg.items[0], self.child.facts):
            arg = arg.items[0]
        return rules.count_distinct(self.child, arg, call.where, self.cells)

    def _count(self, rows: _Rows) -> Scalar:
        """The noisy number of rows, as an integer."""
        if rows.count is not None:
            return self._ref(rows.count)
        return Call(Op.CAST, (Call(Op.ROUND, (self._number(rows),), DOUBLE),), BIGINT)

    def _number(self, rows: _Rows) -> Scalar:
        """The noisy number of rows, not rounded."""
        if rows.count is not None:
            return _double(self._ref(rows.count))
        sums = rows.pivot.sums
        return _divide(self._all(sums), Const(float(_together(sums)), DOUBLE))

    def _all(self, sums: tuple[Statistic, ...]) -> Scalar:
        return reduce(_plus, [_double(self._ref(statistic)) for statistic in sums])

    def _in_count(self, rows: _Rows) -> Linear:
        if rows.count is not None:
            return ((self.index_of(rows.count), Fraction(1)),)
        sums = rows.pivot.sums
        return tuple((self.index_of(statistic), Fraction(1, _together(sums))) for statistic in sums)

    def _if_any(self, rows: _Rows, value: Scalar) -> Scalar:
        """The value, or NULL where the noisy count is not positive."""
        least: Scalar = Const(0, BIGINT)
        if rows.count is not None:
            some = Call(Op.GT, (self._ref(rows.count), least), BOOLEAN)
        else:
            some = Call(Op.GE, (self._number(rows), Const(0.5, DOUBLE)), BOOLEAN)
        return Case(((some, value),), Const(None, DOUBLE), DOUBLE)

    # --- sums and means ---

    def _sum(self, target: Field, call: Aggregated) -> Scalar:
        (arg,) = call.args
        rows = self._of([arg], call.where)
        value = rows.values[arg]
        first = value.sums[0]
        if value.product is None and (value.way is Form.DIRECT or (value.way is Form.PAIR and first.low == 0)):
            self.directly[target.id] = ((self.index_of(first), first.value_of_one),)
            return in_units(self._ref(first), first.step, call.type)
        total, self.directly[target.id] = self._total(rows, value)
        return total if call.type.kind is Kind.DOUBLE else Call(Op.CAST, (total,), call.type)

    def _total(self, rows: _Rows, value: _Value) -> tuple[Scalar, Linear]:
        """The noisy sum of a value, in doubles."""
        first = value.sums[0]
        if (product := value.product) is not None:
            base, parts = self._total(rows, rows.values[product.base])
            rest = _times(_double(self._ref(first)), first.step)
            own = ((self.index_of(first), first.step),)
            return _plus(_times(base, product.times), rest), _sum_of(own, parts, product.times)
        above, parts = self._above(value)
        if start := _start(value):
            above = _plus(above, _times(self._number(rows), start))
            parts = _sum_of(parts, self._in_count(rows), start)
        return _times(above, first.step), tuple((place, size * first.step) for place, size in parts)

    def _above(self, value: _Value) -> tuple[Scalar, Linear]:
        """The noisy sum of steps above the start, in doubles."""
        refs = [_double(self._ref(statistic)) for statistic in value.sums]
        places = [self.index_of(statistic) for statistic in value.sums]
        match value.way:
            case Form.CENTRED:
                return _times(refs[0], Fraction(1, 2)), ((places[0], Fraction(1, 2)),)
            case Form.BERNSTEIN:
                width = value.sums[0].width
                halves = _plus(_times(refs[1], Fraction(1, 2)), refs[2])
                return _times(halves, Fraction(1, width)), (
                    (places[1], Fraction(1, 2 * width)),
                    (places[2], Fraction(1, width)),
                )
            case _:
                return refs[0], ((places[0], Fraction(1)),)

    def _average(self, target: Field, call: Aggregated) -> Scalar:
        (arg,) = call.args
        rows = self._of([arg], call.where)
        value = rows.values[arg]
        bounds, _ = rules.bounds_and_step(self.child, arg, self.cells)
        mean, self.averages[target.id] = self._mean_in_units(rows, value)
        return self._if_any(rows, _within(mean, bounds))

    def _mean_in_units(self, rows: _Rows, value: _Value) -> tuple[Scalar, Linear]:
        """The noisy mean of a value, in doubles, and its largest error times the number of rows."""
        first = value.sums[0]
        if (product := value.product) is not None:
            base, errors = self._mean_in_units(rows, rows.values[product.base])
            rest = _times(_divide(_double(self._ref(first)), self._number(rows)), first.step)
            assert product.bounds.high is not None
            own = _sum_of(((self.index_of(first), first.step),), self._in_count(rows), product.bounds.high)
            return _plus(_times(base, product.times), rest), _sum_of(own, errors, abs(product.times))
        above, parts = self._above(value)
        mean = _divide(above, self._number(rows))
        start = _start(value)
        furthest = max(abs(first.low - start), abs(first.high - start))
        if value.way.counts and rows.count is None and rows.pivot is value:
            furthest = Fraction(0)  # the count shares the sums' noise; at one of the bounds, it has that of one sum
        mean = _times(mean if start == 0 else _add(mean, start), first.step)
        errors = _sum_of(parts, self._in_count(rows), furthest)
        return mean, tuple((place, size * first.step) for place, size in errors)

    def _distinct_average(self, target: Field, call: Aggregated) -> Scalar:
        (arg,) = call.args
        total = rules.sum_distinct(self.child, arg, call.where, self.cells)
        count = rules.count_distinct(self.child, arg, call.where, self.cells)
        mean = _divide(in_units(self.statistic(total), total.step, DOUBLE), _double(self.statistic(count)))
        furthest = max(abs(total.low), abs(total.high)) * total.step
        self.averages[target.id] = ((self.index_of(total), total.step), (self.index_of(count), furthest))
        self.counts.append(((self.index_of(count), Fraction(1)),))
        some = Call(Op.GT, (self._ref(count), Const(0, BIGINT)), BOOLEAN)
        return Case(((some, _within(mean, total.bounds)),), Const(None, DOUBLE), DOUBLE)

    # --- values at a rank ---

    def _at_rank(self, call: Aggregated, rank: Fraction) -> Scalar:
        """A value on the argument's grid, in days for dates and in seconds for timestamps."""
        arg, type_ = call.args[0], call.type
        where = self._complete([arg], call.where)
        match arg.type.kind:
            case Kind.DATE:
                days = Call(Op.DAYS_BETWEEN, (arg, EPOCH_DAY), integer_type(8))
                chosen: Scalar = Call(Op.ADD_DAYS, (EPOCH_DAY, self._ranked(days, where, rank, days.type)), type_)
            case Kind.TIMESTAMP | Kind.TIMESTAMPTZ:
                seconds = Call(Op.SECONDS_BETWEEN, (arg, EPOCH), DOUBLE)
                chosen = Call(Op.ADD_SECONDS, (EPOCH, self._ranked(seconds, where, rank, DOUBLE)), type_)
            case Kind.INTEGER | Kind.DECIMAL | Kind.DOUBLE:
                chosen = self._ranked(arg, where, rank, type_)
            case _:
                raise NotSupported(
                    f"{call.function.value} of {arg.type.kind.value} over a private table is not supported",
                    hint="It would return values of single rows; group by it instead.",
                    position=call.position,
                )
        return self._if_some(where, chosen)

    def _ranked(self, value: Scalar, where: Scalar | None, rank: Fraction, type_: Type) -> Scalar:
        statistic = rules.value_at_rank(self.child, value, where, rank)
        found = in_units(self.statistic(statistic), statistic.step, type_)
        low, high = statistic.bounds.low, statistic.bounds.high
        assert low is not None and high is not None
        if (statistic.low * statistic.step, statistic.high * statistic.step) == (low, high):
            return found if found.type == type_ else Call(Op.CAST, (found,), type_)
        # The ends of the grid are shown as the bounds, which may lie between its values.
        return Call(Op.CAST, (_within(_double(found), statistic.bounds),), type_)

    def _mode(self, call: Aggregated) -> Scalar:
        values = candidates(call, self.child.facts)
        number, low, high = numbered(call.args[0], values)
        statistic = rules.most_common(self.child, number, call.where, low, high)
        return self._if_some(
            self._complete([call.args[0]], call.where), back(self.statistic(statistic), call.args[0], values)
        )

    def _if_some(self, where: Scalar | None, value: Scalar) -> Scalar:
        """A value chosen from rows, or NULL where there seem to be no rows.

        Claim: a function of noisy numbers: post-processing, which costs nothing.
        Because: a noisy count of the same rows decides: one that is measured anyway, else one of units, for a small
        part of the price. A value is shown where the count is above its own 95 % margin, whatever the confidence that
        the session asks for: where there are no rows, in at most 1 of 40 cases.
        Needs: nothing more. A key that was selected by a threshold has rows; no count is measured for it.
        """
        if where is None and self.cells.selected:
            return value
        rows = self._rows.get(where)
        count = None if rows is None else rows.count
        if count is None:
            count = rules.count_units(where, self.chosen or self.cells)
            self.statistic(count, _OF_CHOICE[self.degree] ** self.degree)
        margin = self.margins.setdefault(count, self.new_field("margin", DOUBLE))
        some = Call(Op.GT, (_double(self._ref(count)), Ref(margin)), BOOLEAN)
        return Case(((some, value),), Const(None, value.type), value.type)

    # --- moments ---

    def _spread(self, call: Aggregated) -> Scalar:
        rows = self._of(list(call.args), call.where)
        value = rows.values[call.args[0]]
        result = self._variance_of(value)
        if call.function in (Agg.VAR_SAMP, Agg.STDDEV_SAMP):
            first = value.sums[0]
            most = 2 * (first.width * first.step / 2) ** 2  # the variance of two values at opposite ends
            result = _within(_bessel(result, self._number(rows)), Interval(Fraction(0), most))
        if call.function in (Agg.STDDEV_POP, Agg.STDDEV_SAMP):
            result = Call(Op.SQRT, (result,), DOUBLE)
        return self._if_any(rows, result)

    def _variance_of(self, value: _Value) -> Scalar:
        """From sums p, q, r of (1 - t)², 2t(1 - t) and t², which make n: r/n - ((q/2 + r)/n)² = (pr - q²/4)/n²."""
        below, between, above = (_divide(_double(self._ref(s)), self._all(value.sums)) for s in value.sums)
        spread = _subtract(_multiply(below, above), _times(_multiply(between, between), Fraction(1, 4)))
        first = value.sums[0]
        return _not_below_rounding(_times(spread, (first.width * first.step) ** 2), first.width * first.step / 2)

    def _centred(self, args: tuple[Scalar, ...]) -> list[_Centred]:
        """The centred arguments."""
        centred = []
        for arg in args:
            bounds, _ = rules.bounds_and_step(self.child, arg, self.cells)
            assert bounds.low is not None and bounds.high is not None
            centre, half = (bounds.low + bounds.high) / 2, (bounds.high - bounds.low) / 2
            value = Call(Op.SUB, (_double(arg), Const(float(centre), DOUBLE)), DOUBLE)
            centred.append(_Centred(value, centre, half))
        return centred

    def _mean_of(self, value: Scalar, bounds: Interval, where: Scalar | None, number: Scalar) -> Scalar:
        statistic = rules.sum_expression(self.child, value, where, bounds, self.cells)
        weight = Fraction(0 if statistic in self.statistics else 1)
        return _divide(in_units(self.statistic(statistic, weight), statistic.step, DOUBLE), number)

    def _mean(self, part: _Centred, where: Scalar | None, number: Scalar) -> Scalar:
        return self._mean_of(part.value, Interval(-part.half, part.half), where, number)

    def _variance(self, part: _Centred, where: Scalar | None, number: Scalar) -> Scalar:
        mean = self._mean(part, where, number)
        square = Call(Op.MUL, (part.value, part.value), DOUBLE)
        squares = self._mean_of(square, Interval(Fraction(0), part.half**2), where, number)
        return _not_below_rounding(_subtract(squares, _multiply(mean, mean)), part.half)

    def _joint(self, call: Aggregated) -> Scalar:
        """COVAR, CORR, REGR: the first argument is Y, the second X, as in SQL."""
        y, x = self._centred(call.args)
        # Only rows in which neither argument is NULL count, as in SQL.
        rows = self._of(list(call.args), call.where)
        where, number = rows.where, self._number(rows)
        mean_y, mean_x = self._mean(y, where, number), self._mean(x, where, number)
        product = Call(Op.MUL, (y.value, x.value), DOUBLE)
        largest = y.half * x.half
        covariance = _subtract(
            self._mean_of(product, Interval(-largest, largest), where, number), _multiply(mean_y, mean_x)
        )
        match call.function:
            case Agg.COVAR_POP:
                return self._if_any(rows, _within(covariance, Interval(-largest, largest)))
            case Agg.COVAR_SAMP:
                of_sample = _within(_bessel(covariance, number), Interval(-2 * largest, 2 * largest))
                return self._if_any(rows, of_sample)
            case Agg.CORR:
                both_spreads = _multiply(self._variance(y, where, number), self._variance(x, where, number))
                ratio = _divide(covariance, Call(Op.SQRT, (both_spreads,), DOUBLE))
                return self._if_any(rows, _within(ratio, Interval(Fraction(-1), Fraction(1))))
            case Agg.REGR_SLOPE:
                return self._if_any(rows, _divide(covariance, self._variance(x, where, number)))
            case _:
                slope = _divide(covariance, self._variance(x, where, number))
                level = _subtract(_add(mean_y, y.centre), _multiply(slope, _add(mean_x, x.centre)))
                return self._if_any(rows, level)


def _relative(rows: _Rows, count: Statistic, settled: Mapping[Statistic, Statistic]) -> dict[Statistic, Fraction]:
    """The weights of the variances of a count and of sums around centres in their outputs, at a price of one."""

    def clip(statistic: Statistic) -> Fraction:
        return Fraction(settled[statistic].clip, statistic.factor) * statistic.step

    found = {count: Fraction(rows.counted)}
    for value in rows.values.values():
        base = value if value.product is None else rows.values[value.product.base]
        (around,), times = base.sums, Fraction(1) if value.product is None else value.product.times
        centre = around.centre * around.step
        typical = centre**2 + (clip(around) / clip(count)) ** 2
        away = min(typical, (around.width * around.step) ** 2)
        outputs = value.total / typical + value.mean / away
        found[around] = found.get(around, Fraction(0)) + outputs
        if value.product is not None:
            found[value.sums[0]] = outputs / times**2
        found[count] += value.total * centre**2 / typical + value.mean * AWAY**2
    return {statistic: weight * clip(statistic) ** 2 for statistic, weight in found.items()}


def counts_units(call: Aggregated) -> bool:
    """COUNT(DISTINCT unit)."""
    return call.function is Agg.COUNT and call.distinct and any(isinstance(a, Ref) and a.field.unit for a in call.args)


def narrowed(call: Aggregated) -> Aggregated:
    """Rewrite SUM(CASE WHEN c THEN x ELSE 0 END), and the like, as SUM(x) FILTER (WHERE c)."""
    if call.distinct or len(call.args) != 1 or call.function not in (Agg.COUNT, Agg.SUM, Agg.AVG):
        return call
    match call.args[0]:
        case Case(branches=((when, then),), default=Const(value=other), type=type_):
            is_nothing = other is None or (call.function is Agg.SUM and not isinstance(other, str) and other == 0)
            if not is_nothing or (call.function is not Agg.COUNT and not type_.is_numeric):
                return call
            value = then if then.type == type_ else Call(Op.CAST, (then,), type_)
            known = call.function is Agg.COUNT and isinstance(then, Const) and then.value is not None
            return replace(call, args=() if known else (value,), where=both(call.where, when))
        case _:
            return call


def _is_count(call: Aggregated) -> bool:
    """SUM(1), which is COUNT(*)."""
    return (
        call.function is Agg.SUM
        and not call.distinct
        and isinstance(call.args[0], Const)
        and not isinstance(call.args[0].value, str | bool)
        and call.args[0].value == 1
    )


def _is_of_nothing(call: Aggregated) -> bool:
    """Whether no row can have a value, whatever the data."""
    try:
        if call.where is not None and evaluate(call.where) is not True:
            return True
    except NotConstant:
        pass
    try:
        return evaluate(call.args[0]) is None
    except NotConstant:
        return False


def _share(call: Aggregated) -> Fraction:
    """The rank of a percentile, in the fractions of a row that losses are counted in."""
    share = call.args[1]
    assert isinstance(share, Const) and isinstance(share.value, int | float | Decimal)
    rank = Fraction(str(share.value))
    if rank.denominator > _MOST_PARTS:
        raise NotSupported(
            "a percentile with more than six decimals is not supported",
            hint="Write at most six decimals.",
            position=call.position,
        )
    return rank


@dataclass(frozen=True, slots=True)
class _Centred:
    """An argument minus the middle of its bounds: its magnitude is at most half the range."""

    value: Scalar
    centre: Fraction
    half: Fraction


def in_units(ref: Scalar, step: Fraction, type_: Type) -> Scalar:
    """A number of steps, as a value of the aggregate's type."""
    if type_.kind is Kind.INTEGER:
        return ref if step == 1 else Call(Op.MUL, (ref, Const(int(step), BIGINT)), BIGINT)
    if type_.kind is Kind.DECIMAL and step.denominator == 1 and step > 10**12:
        return Call(Op.CAST, (in_units(ref, step, DOUBLE),), type_)  # more digits than decimals hold
    if type_.kind is Kind.DECIMAL:
        scale = 0
        while (step * 10**scale).denominator != 1:
            scale += 1
        grain = Const(exact_decimal(step, scale), decimal_type(13 + scale, scale))
        whole = Call(Op.CAST, (ref,), decimal_type(19, 0))
        return Call(Op.CAST, (Call(Op.MUL, (whole, grain), decimal_type(32 + scale, scale)),), type_)
    return _times(_double(ref), step)


def _double(value: Scalar) -> Scalar:
    return value if value.type.kind is Kind.DOUBLE else Call(Op.CAST, (value,), DOUBLE)


def _multiply(left: Scalar, right: Scalar) -> Scalar:
    return Call(Op.MUL, (left, right), DOUBLE)


def _subtract(left: Scalar, right: Scalar) -> Scalar:
    return Call(Op.SUB, (left, right), DOUBLE)


def _divide(left: Scalar, right: Scalar) -> Scalar:
    return Call(Op.DIV, (left, right), DOUBLE)


def _plus(left: Scalar, right: Scalar) -> Scalar:
    return Call(Op.ADD, (left, right), DOUBLE)


def _times(value: Scalar, constant: Fraction) -> Scalar:
    """Multiplied and divided by whole numbers, where that is exact."""
    if max(constant.numerator, constant.denominator) > LARGEST:
        raise NotSupported(
            "bounds are outside the range that can be aggregated",
            hint="Multiply by a constant, so that the bounds are closer to 1.",
        )
    if constant.numerator != 1:
        value = _multiply(value, Const(float(constant.numerator), DOUBLE))
    if constant.denominator != 1:
        value = _divide(value, Const(float(constant.denominator), DOUBLE))
    return value


def _add(left: Scalar, constant: Fraction) -> Scalar:
    return Call(Op.ADD, (left, Const(float(constant), DOUBLE)), DOUBLE)


def _bessel(value: Scalar, n: Scalar) -> Scalar:
    """From the population's moment to the sample's: times n / (n - 1), NULL below two."""
    above = Call(Op.GT, (n, Const(1.0, DOUBLE)), BOOLEAN)
    scaled = _divide(_multiply(value, n), _add(n, Fraction(-1)))
    return Case(((above, scaled),), Const(None, DOUBLE), DOUBLE)


def _not_below_rounding(spread: Scalar, half: Fraction) -> Scalar:
    """A variance within what half the range allows, or 0 where it is below the rounding error of its sums.

    A division by it then gives NULL instead of a quotient of rounding errors.
    """
    smallest = Const(float(half**2 / 10**9), DOUBLE)
    known = Case(((Call(Op.LT, (spread, smallest), BOOLEAN), Const(0.0, DOUBLE)),), spread, DOUBLE)
    return _within(known, Interval(Fraction(0), half**2))


def _start(value: _Value) -> Fraction:
    """The value that the sums count differences from, in steps."""
    first = value.sums[0]
    match value.way:
        case Form.DIRECT:
            return Fraction(0)
        case Form.CENTRED:
            return Fraction(first.low + first.high, 2)
        case Form.RESIDUAL:
            return Fraction(first.centre)
        case Form.PAIR | Form.BERNSTEIN:
            return Fraction(first.low)


def _together(sums: tuple[Statistic, ...]) -> int:
    """What one row adds to all sums of a group together."""
    return math.prod([sums[0].width] * (len(sums) - 1))


def _sum_of(parts: Linear, others: Linear, times: Fraction) -> Linear:
    found = dict(parts)
    for place, size in others:
        found[place] = found.get(place, Fraction(0)) + size * times
    return tuple((place, size) for place, size in found.items() if size)


def _within(value: Scalar, bounds: Interval) -> Scalar:
    """Clamp to what the declared bounds allow: at no cost, and never further from the truth."""
    assert bounds.low is not None and bounds.high is not None
    low, high = Const(float(bounds.low), DOUBLE), Const(float(bounds.high), DOUBLE)
    return Case(
        (
            (Call(Op.LT, (value, low), BOOLEAN), low),
            (Call(Op.GT, (value, high), BOOLEAN), high),
        ),
        value,
        DOUBLE,
    )
