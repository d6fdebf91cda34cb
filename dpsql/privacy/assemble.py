"""Aggregates from noisy sums: which sums an aggregate needs, and the expression that puts them together.

Everything above the sums is post-processing, so ratios, variances and correlations cost nothing beyond their sums.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from fractions import Fraction

from dpsql.errors import NotSupported
from dpsql.plan.scalars import Agg, Aggregated, Call, Case, Const, Field, Op, Ref, Scalar, both
from dpsql.privacy.derive import check_aggregate
from dpsql.privacy.facts import Interval
from dpsql.privacy.intervals import never_null
from dpsql.privacy.owners import is_unit
from dpsql.privacy.rules import aggregates as rules
from dpsql.privacy.rules.aggregates import Cells, Statistic
from dpsql.privacy.stability import Stability
from dpsql.types import BIGINT, BOOLEAN, DATE, DOUBLE, TIMESTAMP, Kind, Type, exact_decimal
from dpsql.types import decimal as decimal_type
from dpsql.types import integer as integer_type

EPOCH_DAY = Const(date(1970, 1, 1), DATE)
EPOCH = Const(datetime(1970, 1, 1), TIMESTAMP)
_MOST_PARTS = 10**6


@dataclass(slots=True)
class Assembly:
    """Collects the statistics of one GROUP BY; equal ones are released once."""

    child: Stability
    cells: Cells
    new_field: Callable[[str, Type], Field]
    statistics: dict[Statistic, Field] = field(default_factory=dict)
    directly: dict[int, int] = field(default_factory=dict)  # output field -> the statistic it shows as it is
    ratios: set[int] = field(default_factory=set)
    averages: dict[int, tuple[int, int]] = field(default_factory=dict)  # output field -> its sum and its count

    def statistic(self, wanted: Statistic) -> Ref:
        if wanted not in self.statistics:
            self.statistics[wanted] = self.new_field(f"s{len(self.statistics)}", BIGINT)
        return Ref(self.statistics[wanted])

    def output(self, target: Field, call: Aggregated) -> Scalar:
        """The expression over noisy sums that stands for an aggregate."""
        check_aggregate(call)
        match call.function:
            case Agg.COUNT:
                statistic = self._count(call)
                return self._direct(target, statistic, BIGINT)
            case Agg.SUM:
                if call.distinct:
                    statistic = rules.sum_distinct(self.child, call.args[0], call.where, self.cells)
                else:
                    statistic = rules.sum_rows(self.child, call.args[0], call.where, self.cells)
                return self._direct(target, statistic, call.type)
            case Agg.PERCENTILE_CONT | Agg.PERCENTILE_DISC:
                return self._at_rank(call, _share(call))
            case Agg.MIN | Agg.MAX if call.args[0].type.is_numeric or call.args[0].type.is_temporal:
                # Of different values, the smallest is the same as of all.
                return self._at_rank(call, Fraction(call.function is Agg.MAX))
            case Agg.AVG:
                self.ratios.add(target.id)
                return self._average(target, call)
            case Agg.VAR_POP | Agg.VAR_SAMP | Agg.STDDEV_POP | Agg.STDDEV_SAMP if not call.distinct:
                self.ratios.add(target.id)
                return self._spread(call)
            case Agg.COVAR_POP | Agg.COVAR_SAMP | Agg.CORR | Agg.REGR_SLOPE | Agg.REGR_INTERCEPT if not call.distinct:
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

    # --- counts and sums ---

    def _direct(self, target: Field, statistic: Statistic, type_: Type) -> Scalar:
        ref = self.statistic(statistic)
        self.directly[target.id] = list(self.statistics).index(statistic)
        return in_units(ref, statistic.step, type_)

    def _count(self, call: Aggregated) -> Statistic:
        if not call.args:
            return rules.count_rows(self.child, call.where, self.cells)
        (arg,) = call.args
        if is_unit(arg):
            if call.distinct:
                return rules.count_units(call.where, self.cells)
            return rules.count_rows(self.child, call.where, self.cells)  # the owner is never NULL
        if call.distinct and isinstance(arg, Ref) and arg.field.unit:
            return rules.count_units(both(call.where, rules.not_null(arg)), self.cells)
        if call.distinct:
            return rules.count_distinct(self.child, arg, call.where, self.cells)
        return self._count_known([arg], call.where)

    def _count_known(self, args: list[Scalar], where: Scalar | None) -> Statistic:
        """How many rows have all the values."""
        for arg in args:
            if not never_null(arg, self.child.facts):
                where = both(where, rules.not_null(arg))
        return rules.count_rows(self.child, where, self.cells)

    def _average(self, target: Field, call: Aggregated) -> Scalar:
        (arg,) = call.args
        if call.distinct:
            total = rules.sum_distinct(self.child, arg, call.where, self.cells)
            count = rules.count_distinct(self.child, arg, call.where, self.cells)
        else:
            total = rules.sum_rows(self.child, arg, call.where, self.cells)
            count = self._count_known([arg], call.where)
        mean = _divide(in_units(self.statistic(total), total.step, DOUBLE), _double(self.statistic(count)))
        places = list(self.statistics)
        self.averages[target.id] = (places.index(total), places.index(count))
        return _if_positive(self.statistic(count), _within(mean, total.bounds))

    # --- values at a rank ---

    def _at_rank(self, call: Aggregated, rank: Fraction) -> Scalar:
        """A value of the argument's grid; that of dates counts days, that of timestamps seconds."""
        arg, type_ = call.args[0], call.type
        where = call.where if never_null(arg, self.child.facts) else both(call.where, rules.not_null(arg))
        match arg.type.kind:
            case Kind.DATE:
                days = Call(Op.DAYS_BETWEEN, (arg, EPOCH_DAY), integer_type(8))
                return Call(Op.ADD_DAYS, (EPOCH_DAY, self._ranked(days, where, rank, days.type)), type_)
            case Kind.TIMESTAMP:
                seconds = Call(Op.SECONDS_BETWEEN, (arg, EPOCH), DOUBLE)
                return Call(Op.ADD_SECONDS, (EPOCH, self._ranked(seconds, where, rank, DOUBLE)), type_)
            case Kind.INTEGER | Kind.DECIMAL | Kind.DOUBLE:
                return self._ranked(arg, where, rank, type_)
            case _:
                raise NotSupported(
                    f"{call.function.value} of {arg.type.kind.value} over a private table is not supported",
                    hint="It would return values of single rows; group by it instead.",
                    position=call.position,
                )

    def _ranked(self, value: Scalar, where: Scalar | None, rank: Fraction, type_: Type) -> Scalar:
        statistic = rules.value_at_rank(self.child, value, where, rank)
        found = in_units(self.statistic(statistic), statistic.step, type_)
        low, high = statistic.bounds.low, statistic.bounds.high
        assert low is not None and high is not None
        if (statistic.low * statistic.step, statistic.high * statistic.step) == (low, high):
            return found if found.type == type_ else Call(Op.CAST, (found,), type_)
        # The ends of the grid stand for the bounds, which may lie between its values.
        return Call(Op.CAST, (_within(_double(found), statistic.bounds),), type_)

    # --- moments ---

    def _moments(self, args: list[Scalar], where: Scalar | None) -> tuple[Scalar, list[_Centred]]:
        """The noisy count of complete rows and the centred arguments."""
        count = self.statistic(self._count_known(args, where))
        centred = []
        for arg in args:
            bounds, _ = rules.bounds_and_step(self.child, arg, self.cells)
            assert bounds.low is not None and bounds.high is not None
            centre, half = (bounds.low + bounds.high) / 2, (bounds.high - bounds.low) / 2
            value = Call(Op.SUB, (_double(arg), Const(float(centre), DOUBLE)), DOUBLE)
            centred.append(_Centred(value, centre, half))
        return count, centred

    def _mean_of(self, value: Scalar, bounds: Interval, where: Scalar | None, count: Scalar) -> Scalar:
        statistic = rules.sum_expression(self.child, value, where, bounds, self.cells)
        total = in_units(self.statistic(statistic), statistic.step, DOUBLE)
        return _divide(total, _double(count))

    def _mean(self, part: _Centred, where: Scalar | None, count: Scalar) -> Scalar:
        return self._mean_of(part.value, Interval(-part.half, part.half), where, count)

    def _square(self, part: _Centred, where: Scalar | None, count: Scalar) -> Scalar:
        square = Call(Op.MUL, (part.value, part.value), DOUBLE)
        return self._mean_of(square, Interval(Fraction(0), part.half**2), where, count)

    def _variance(self, part: _Centred, where: Scalar | None, count: Scalar) -> Scalar:
        mean = self._mean(part, where, count)
        spread = _subtract(self._square(part, where, count), _multiply(mean, mean))
        # Below the rounding of its sums a spread is none; NULL instead of a quotient of rounding errors.
        smallest = Const(float(part.half**2 / 10**12), DOUBLE)
        known = Case(((Call(Op.LT, (spread, smallest), BOOLEAN), Const(0.0, DOUBLE)),), spread, DOUBLE)
        return _within(known, Interval(Fraction(0), part.half**2))

    def _spread(self, call: Aggregated) -> Scalar:
        count, (part,) = self._moments(list(call.args), call.where)
        result = self._variance(part, call.where, count)
        if call.function in (Agg.VAR_SAMP, Agg.STDDEV_SAMP):
            result = _bessel(result, count)
        if call.function in (Agg.STDDEV_POP, Agg.STDDEV_SAMP):
            result = Call(Op.SQRT, (result,), DOUBLE)
        return _if_positive(count, result)

    def _joint(self, call: Aggregated) -> Scalar:
        """COVAR, CORR, REGR: the first argument is Y, the second X, as in SQL."""
        count, (y, x) = self._moments(list(call.args), call.where)
        where = call.where
        # Only rows in which both arguments are known count, as in SQL.
        for arg in call.args:
            if not never_null(arg, self.child.facts):
                where = both(where, rules.not_null(arg))
        mean_y, mean_x = self._mean(y, where, count), self._mean(x, where, count)
        product = Call(Op.MUL, (y.value, x.value), DOUBLE)
        largest = y.half * x.half
        covariance = _subtract(
            self._mean_of(product, Interval(-largest, largest), where, count), _multiply(mean_y, mean_x)
        )
        match call.function:
            case Agg.COVAR_POP:
                return _if_positive(count, covariance)
            case Agg.COVAR_SAMP:
                return _if_positive(count, _bessel(covariance, count))
            case Agg.CORR:
                both_spreads = _multiply(self._variance(y, where, count), self._variance(x, where, count))
                ratio = _divide(covariance, Call(Op.SQRT, (both_spreads,), DOUBLE))
                return _if_positive(count, _within(ratio, Interval(Fraction(-1), Fraction(1))))
            case Agg.REGR_SLOPE:
                return _if_positive(count, _divide(covariance, self._variance(x, where, count)))
            case _:
                slope = _divide(covariance, self._variance(x, where, count))
                level = _subtract(_add(mean_y, y.centre), _multiply(slope, _add(mean_x, x.centre)))
                return _if_positive(count, level)


def _share(call: Aggregated) -> Fraction:
    """The rank of a percentile, of which the parts of a row are made that losses are counted in."""
    share = call.args[1]
    assert isinstance(share, Const) and isinstance(share.value, int | float | Decimal)
    rank = Fraction(str(share.value))
    if rank.denominator > _MOST_PARTS:
        raise NotSupported(
            "a percentile with so many decimals is not supported",
            hint="Write at most six decimals.",
            position=call.position,
        )
    return rank


@dataclass(frozen=True, slots=True)
class _Centred:
    """An argument with the middle of its bounds subtracted: half the range bounds it on both sides."""

    value: Scalar
    centre: Fraction
    half: Fraction


def in_units(ref: Scalar, step: Fraction, type_: Type) -> Scalar:
    """A number of steps as a value of the aggregate's type."""
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
    result = _double(ref)
    if step.numerator != 1:
        result = _multiply(result, Const(float(step.numerator), DOUBLE))
    if step.denominator != 1:
        result = _divide(result, Const(float(step.denominator), DOUBLE))
    return result


def _double(value: Scalar) -> Scalar:
    return value if value.type.kind is Kind.DOUBLE else Call(Op.CAST, (value,), DOUBLE)


def _multiply(left: Scalar, right: Scalar) -> Scalar:
    return Call(Op.MUL, (left, right), DOUBLE)


def _subtract(left: Scalar, right: Scalar) -> Scalar:
    return Call(Op.SUB, (left, right), DOUBLE)


def _divide(left: Scalar, right: Scalar) -> Scalar:
    return Call(Op.DIV, (left, right), DOUBLE)


def _add(left: Scalar, constant: Fraction) -> Scalar:
    return Call(Op.ADD, (left, Const(float(constant), DOUBLE)), DOUBLE)


def _bessel(value: Scalar, count: Scalar) -> Scalar:
    """From the population's moment to the sample's: times n / (n - 1), NULL below two."""
    n = _double(count)
    above = Call(Op.GT, (n, Const(1.0, DOUBLE)), BOOLEAN)
    scaled = _divide(_multiply(value, n), _add(n, Fraction(-1)))
    return Case(((above, scaled),), Const(None, DOUBLE), DOUBLE)


def _if_positive(count: Scalar, value: Scalar) -> Scalar:
    """NULL where the noisy count leaves nothing to divide by."""
    return Case(((Call(Op.GT, (count, Const(0, BIGINT)), BOOLEAN), value),), Const(None, DOUBLE), DOUBLE)


def _within(value: Scalar, bounds: Interval) -> Scalar:
    """Cut to what the declared bounds allow: free, and never further from the truth."""
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
