"""Rules for aggregates: what the engine adds up, and how far one unit moves the sums.

Every aggregate is estimated from a few integer sums: the sums get noise, the rest is post-processing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container
from dataclasses import dataclass, replace
from enum import Enum
from fractions import Fraction
from functools import partial
from typing import Literal

from dpsql.errors import MissingDeclaration, NotSupported
from dpsql.plan.hashing import CachedHash
from dpsql.plan.scalars import Call, Op, Ref, Scalar, refs
from dpsql.privacy.bounds import LARGEST, NOTHING, UNBOUNDED, Interval, as_number, interval
from dpsql.privacy.estimators.basis import Shape, largest, weighed
from dpsql.privacy.keys.domains import domain
from dpsql.privacy.stability import Sensitivity, Stability
from dpsql.types import BOOLEAN, Kind

# A unit's whole contribution stays below this, so that squares and products fit in 128 bits on every engine.
LARGEST_CLIP = 2**48
# Where no step is declared, the grid is coarse enough for a unit's contribution to stay below this, and below the
# second number where squares of steps are summed. Noise may be 2**50 steps wide, which is enough for sensible prices;
# for lower ones the grid is coarser still (`Stability.coarser`). Rounding to it moves the sum of a billion rows by less
# than a fiftieth of what one unit may add.
DEFAULT_CLIP = 2**36
SQUARES_CLIP = 2**41
# Fixed-point factor, so that a 1 does not vanish when the clip scales it down and truncates it.
FINEST = 1024
# The weight of a unit, all of its keys together, in fixed point.
WHOLE_WEIGHT = 2**20
# Relative grain of double precision sums; far below any noise.
REAL_DIGITS = 12
# Where the policy says nothing, a limit of more rows per unit is taken to be loose: more than most units have.
MANY_ROWS = 10
# A bound search tries this many halvings of the declared clip: down to a thousandth.
HALVINGS = 10
# The most values between the bounds among which a centre is chosen.
CENTRES = 1024
# The most candidates for a quantile; wider bounds get a coarser step.
MOST_CANDIDATES = 2**20


class StatisticKind(Enum):
    ROWS = "rows"  # a sum over rows
    UNITS = "units"  # how many units have at least one row that counts
    WEIGHTS = "weights"  # the sum of weights of the units that have the key; units with more keys weigh less in each
    DISTINCT = "distinct"  # the number of distinct values
    DISTINCT_SUM = "distinct sum"  # the sum of distinct values
    CLIP = "clip"  # not a sum: the contribution bound, chosen among a few clips
    CENTRE = "centre"  # not a sum: the value that later sums count differences from
    RANKED = "ranked"  # not a sum: the value at a rank, chosen among all values of the grid
    COMMONEST = "commonest"  # not a sum: the most common value, chosen among all declared values


# Neither sums nor outputs: they decide how later sums are measured.
SEARCHED = frozenset({StatisticKind.CLIP, StatisticKind.CENTRE})
# Not sums: a value is chosen from a histogram.
CHOSEN = frozenset({StatisticKind.RANKED, StatisticKind.COMMONEST})


@dataclass(frozen=True, slots=True)
class Statistic(CachedHash):
    """One integer sum per cell: what is added, its grid, and how far one unit moves it."""

    kind: StatisticKind
    value: Scalar | None  # None: every row counts one
    where: Scalar | None  # which rows count
    bounds: Interval  # of the value, as clamped
    low: int  # the same on the grid
    high: int
    step: Fraction
    factor: int  # fixed-point factor of the clip
    clip: int  # the norm a unit's vector is clipped to, factor included
    sensitivity: Sensitivity
    rank: Fraction | None = None  # for a value at a rank: the fraction of rows below it; 0 and 1 are the extremes
    shape: Shape = Shape.ITSELF  # what a row adds, from its value on the grid
    centre: int = 0  # for residuals: what is subtracted from the value on the grid
    loose: bool = False  # whether a bound search is worthwhile
    cut: bool = False  # whether the clip was chosen by a search, so that units within the declared limits may exceed it

    __hash__ = CachedHash.__hash__

    @property
    def width(self) -> int:
        """The length of the grid in steps."""
        return max(self.high - self.low, 1)

    @property
    def value_of_one(self) -> Fraction:
        """The value of a one in the sum: a fraction of the value's own unit, or of a row."""
        match self.shape:
            case Shape.ITSELF | Shape.RESIDUAL | Shape.ABOVE | Shape.BELOW:
                return self.step
            case Shape.CENTRED:
                return self.step / 2
            case _:
                return Fraction(1, self.width**2)

    @property
    def candidates(self) -> int:
        """How many values the grid has."""
        return self.high - self.low + 1


def truth(statistic: Statistic) -> Interval:
    """The range of a sum without noise, in steps: no count of rows or units is negative."""
    match statistic.kind, statistic.shape:
        case ((StatisticKind.RANKED | StatisticKind.COMMONEST), _):
            return Interval(Fraction(statistic.low), Fraction(statistic.high))
        case ((StatisticKind.UNITS | StatisticKind.WEIGHTS | StatisticKind.DISTINCT), _):
            return Interval(Fraction(0), None)
        case StatisticKind.ROWS, (Shape.ABOVE | Shape.BELOW | Shape.TWICE_BELOW | Shape.BETWEEN | Shape.TWICE_ABOVE):
            return Interval(Fraction(0), None)
        case ((StatisticKind.ROWS | StatisticKind.DISTINCT_SUM), Shape.ITSELF) if statistic.low >= 0:
            return Interval(Fraction(0), None)
        case ((StatisticKind.ROWS | StatisticKind.DISTINCT_SUM), Shape.ITSELF) if statistic.high <= 0:
            return Interval(None, Fraction(0))
        case _:
            return UNBOUNDED


def share(part: Statistic, whole: Statistic) -> tuple[Fraction, Fraction] | None:
    """The range of a sum divided by a count without noise, in steps; None: unknown.

    Where its rows are among those counted, a count is at most the whole count, and a sum at most the bounds times it.
    """
    counts = whole.value is None and whole.kind in (StatisticKind.ROWS, StatisticKind.UNITS)
    same = part.kind is whole.kind or (part.kind is StatisticKind.UNITS and whole.kind is StatisticKind.ROWS)
    if not counts or not same or not _conjuncts(whole.where) <= _conjuncts(part.where):
        return None
    if part.value is None:
        return Fraction(0), Fraction(1)
    if part.kind is not StatisticKind.ROWS or part.shape is not Shape.ITSELF:
        return None
    return Fraction(min(part.low, 0)), Fraction(max(part.high, 0))


def _conjuncts(where: Scalar | None) -> frozenset[Scalar]:
    match where:
        case None:
            return frozenset()
        case Call(op=Op.AND, args=args):
            return frozenset[Scalar]().union(*map(_conjuncts, args))
        case _:
            return frozenset({where})


@dataclass(frozen=True, slots=True)
class Cells:
    """How the cells of one GROUP BY bound a unit."""

    keyed: bool  # False: one cell for everything
    groups: int  # how many cells one unit may touch
    limited: bool  # the limit on cells is enforced by choosing among the unit's own keys
    among: bool = False  # only selected cells count; a unit may touch any number of other cells
    selected: bool = False  # the cells are not declared: partition selection releases those that enough units have
    # Where noise is Gaussian: the most rows of one unit in one cell. None: all of them may be in one.
    in_one: int | None = None


def cells(child: Stability, keyed: bool, count: int | None, in_one: int | None = None) -> Cells:
    """How many cells one unit may touch.

    Claim: `groups` cells. `limited` means that a keyed hash chooses them inside the unit.
    Because: a unit has at most `rows` rows that count, each in one cell; the declared limit may be lower. Unknown keys
    need the limit for their threshold. With one row per unit the limit costs nothing and keeps sums integral.
    Needs: nothing; where the limit is not enforced, the clip bounds every sum, and `in_one` only says how closely.
    """
    if not keyed:
        return Cells(False, 1, False)
    groups = min(child.rows, child.groups or child.rows, count if count is not None else child.rows)
    groups = max(groups, 1)
    limited = count is None or groups == 1
    return Cells(True, groups, limited, selected=count is None, in_one=None if limited else in_one)


def count_rows(child: Stability, where: Scalar | None, cell: Cells) -> Statistic:
    """COUNT(*), COUNT(x).

    Claim: l1 <= rows and l2 <= rows (times the factor); l2 <= sqrt(rows * in_one) where that is known.
    Because: a unit owns at most `rows` rows that count, each adding one to one cell; the clip enforces it.
    Needs: nothing more. With one row per unit, rows and units are the same count, so that both are released once.
    """
    if child.rows == 1:
        return count_units(where, cell)
    counted = _row_sum(child, None, where, Interval(Fraction(0), Fraction(1)), Fraction(1), cell)
    return replace(counted, loose=is_loose(child, None))


def count_units(where: Scalar | None, cell: Cells) -> Statistic:
    """COUNT(DISTINCT unit), and the count that selects unknown keys.

    Claim: linf <= 1, l0 <= groups, l1 <= groups, l2² <= groups (times the factor).
    Because: a unit adds at most one to each of the cells it touches, and touches at most `groups` after limit or clip,
    or where no more of them are selected.
    Needs: nothing more.
    """
    factor = 1 if not cell.keyed or cell.limited or cell.among else FINEST
    size = Fraction(cell.groups)
    sensitivity = Sensitivity(_touched(cell), Fraction(factor), size * factor, size * factor * factor)
    bounds = Interval(Fraction(0), Fraction(1))
    return Statistic(
        StatisticKind.UNITS, None, where, bounds, 0, 1, Fraction(1), factor, cell.groups * factor, sensitivity
    )


def key_weights(cell: Cells, norm: Literal["l1", "l2"]) -> Statistic:
    """The statistic for partition selection where units may have many keys: a unit gives all its keys the same weight.

    The weighted histogram of differentially private set union (Gopi et al. 2020).

    Claim: l1 <= 1 (where noise is Laplace), l2 <= 1 (where it is Gaussian), in fixed point; l0 <= groups.
    Because: a unit with d keys adds at most `key_weight(d)` to each, and d / d = d (1 / sqrt d)² = 1. The hash leaves
    it at most `groups` keys. So the noise is that of one key, however many keys units may have, and units with few keys
    weigh more in each.
    Needs: d counted after the limit, so that it depends on the unit's own rows alone.
    """
    whole = Fraction(WHOLE_WEIGHT)
    l1 = whole if norm == "l1" else cell.groups * Fraction(key_weight(cell.groups, norm) + 1)
    sensitivity = Sensitivity(cell.groups, whole, l1, whole * whole)
    bounds = Interval(Fraction(0), Fraction(1))
    return Statistic(
        StatisticKind.WEIGHTS, None, None, bounds, 0, 1, Fraction(1), WHOLE_WEIGHT, WHOLE_WEIGHT, sensitivity
    )


def key_selector(cell: Cells, asked: Container[Statistic], norm: Literal["l1", "l2"]) -> Statistic:
    """The statistic for partition selection: units where they are counted anyway or have one key each, else weights."""
    count = count_units(None, cell)
    return count if cell.groups == 1 or count in asked else key_weights(cell, norm)


def weight_in_keys(selector: Statistic, norm: Literal["l1", "l2"]) -> Callable[[int], int]:
    """The most that a unit adds to the selecting statistic of each of its keys, by its number of keys."""
    return partial(key_weight, norm=norm) if selector.kind is StatisticKind.WEIGHTS else one_in_each


def one_in_each(keys: int) -> int:
    del keys
    return 1


def key_weight(keys: int, norm: Literal["l1", "l2"]) -> int:
    """The weight of a unit in each of its keys: 1 / keys or 1 / sqrt(keys), rounded toward zero."""
    return WHOLE_WEIGHT // keys if norm == "l1" else math.isqrt(WHOLE_WEIGHT**2 // keys)


def sum_rows(child: Stability, value: Scalar, where: Scalar | None, cell: Cells) -> Statistic:
    """SUM(x).

    Claim: l1 <= rows * max(|low|, |high|), and the same for l2 (times the factor, on the grid of the step); for l2 with
    sqrt(rows * in_one) in place of rows where that is known.
    Because: each row adds a value clamped to [low, high]; the clip bounds the whole vector of the unit.
    Needs: declared bounds of the argument (checked here).
    """
    bounds, step = bounds_and_step(child, value, cell)
    return replace(_row_sum(child, value, where, bounds, step, cell), loose=is_loose(child, value))


def sum_expression(
    child: Stability,
    value: Scalar,
    where: Scalar | None,
    bounds: Interval,
    cell: Cells,
    digits: int = REAL_DIGITS,
) -> Statistic:
    """A sum that an estimator needs (a product, a square), with known bounds. Same claim as `sum_rows`."""
    assert bounds.low is not None and bounds.high is not None
    if max(abs(bounds.low), abs(bounds.high)) > LARGEST:
        raise MissingDeclaration(
            "the bounds are too wide for a sum of products",
            hint="Declare narrower bounds, or write LEAST and GREATEST.",
        )
    step = _coarsened(child, _default_step(value, bounds, digits), bounds, cell)
    return _row_sum(child, value, where, bounds, step, cell)


def sum_shapes(
    child: Stability,
    value: Scalar,
    where: Scalar | None,
    shapes: tuple[Shape, ...],
    cell: Cells,
    *,
    squares: bool,
    exact: bool = True,
) -> tuple[Statistic, ...] | None:
    """Sums of shapes of a value: one unit moves all of them together no further than one of them alone.

    Claim: of one unit, the changes of all sums, each divided by its own claim (l1, or l2 with `squares`), add up to at
    most 1 in that norm. Of one shape alone this is the claim of `sum_rows`, with what the shape adds at most.
    Because: it holds for one row (`basis.weighed`), and a unit has at most `rows` rows that count; norms of sums are at
    most sums of norms. The clip of the group enforces it (`lowering.bounding`), whatever the number of rows.
    Needs: the sums are clipped together, as one vector. None where the grid is too fine for them: with `exact` it is
    the grid of `sum_rows`, else it may be made coarser.
    """
    bounds, step = bounds_and_step(child, value, cell)
    while True:
        low, high, _ = _grid(bounds, step)
        high = max(high, low + 1)
        sizes = [weighed(shape, low, high, squares=squares) for shape in shapes]
        factor = _factor(max(sizes), scaled=len(shapes) > 1 or _is_scaled(cell))
        if child.rows * max(sizes) * factor <= (LARGEST_CLIP if exact else SQUARES_CLIP >> child.coarser):
            break
        if exact:
            return None
        if high - low == 1:
            raise NotSupported("max_rows_per_unit is too large for a sum", hint="Declare fewer rows per unit.")
        step *= 2
    return tuple(
        _clipped_sum(child, value, where, bounds, (low, high), step, size, factor, cell, shape)
        for shape, size in zip(shapes, sizes, strict=True)
    )


def sum_residuals(
    child: Stability, value: Scalar, where: Scalar | None, cell: Cells, centre: Fraction | None, *, squares: bool
) -> Statistic | None:
    """The sum of differences from a centre that an earlier measurement chose; from the middle until it is known.

    Claim: l1 and l2 <= rows * (high - low), as of any shape alone (`sum_shapes`).
    Because: the centre is one of the values from `low` to `high`, whatever was chosen.
    Needs: a bound search for its clip, since the claim is wide. None where the grid is too fine.
    """
    found = sum_shapes(child, value, where, (Shape.RESIDUAL,), cell, squares=squares)
    if found is None:
        return None
    (whole,) = found
    return replace(_around(whole, centre), loose=True)


def _around(residuals: Statistic, centre: Fraction | None) -> Statistic:
    low, high = residuals.low, residuals.high
    wanted = (low + high) // 2 if centre is None else round(centre / residuals.step)
    return replace(residuals, centre=min(max(wanted, low), high))


def count_distinct(child: Stability, value: Scalar, where: Scalar | None, cell: Cells) -> Statistic:
    """COUNT(DISTINCT x).

    Claim: l1 <= rows, l2 <= rows, linf <= rows.
    Because: at most `rows` pairs of key and value are kept per unit, chosen by a keyed hash over the unit's own rows; a
    pair that another unit also has is counted once with or without this unit. Several values in a row (`Array`) are one
    value, in which NULL is like any other.
    Needs: nothing more.
    """
    rows = Fraction(child.rows)
    sensitivity = Sensitivity(child.rows if cell.keyed else 1, rows, rows, rows * rows)
    bounds = Interval(Fraction(0), Fraction(1))
    return Statistic(StatisticKind.DISTINCT, value, where, bounds, 0, 1, Fraction(1), 1, child.rows, sensitivity)


def sum_distinct(child: Stability, value: Scalar, where: Scalar | None, cell: Cells) -> Statistic:
    """SUM(DISTINCT x).

    Claim: l1 <= rows * max(|low|, |high|).
    Because: as for `count_distinct`, at most `rows` pairs appear or vanish with a unit, each worth one value.
    Needs: declared bounds of the argument, and a grid that doubles hold exactly (checked here).
    """
    bounds, step = bounds_and_step(child, value, cell)
    low, high, most = _grid(bounds, step)
    size = _fitting(child.rows * most)
    sensitivity = Sensitivity(child.rows if cell.keyed else 1, size, size, size * size)
    return Statistic(StatisticKind.DISTINCT_SUM, value, where, bounds, low, high, step, 1, int(size), sensitivity)


def value_at_rank(child: Stability, value: Scalar, where: Scalar | None, rank: Fraction) -> Statistic:
    """MEDIAN, PERCENTILE_CONT, PERCENTILE_DISC, and MIN and MAX as the values at the ranks 0 and 1.

    Claim: in the histogram that counts the rows of each cell by their value on the grid, one unit changes at most
    `rows` in L1 (times the factor), over all cells and values together. So the loss of a candidate, the distance in
    rows between the wanted rank and its own, moves by max(rank, 1 - rank) times as much at most (`noise_laws.chosen`).
    Because: a unit owns at most `rows` rows that count, each in one bar of the histogram; the clip enforces it in L1
    whatever the accounting. With one row per unit, one bar is chosen by the keyed hash instead.
    Needs: declared bounds of the argument, so that the candidates do not depend on data; a grid that doubles hold
    exactly, or a value could round to one beyond its ends, which would not be a candidate without that row.
    """
    cell = Cells(True, child.rows, child.rows == 1)
    bounds, step = bounds_and_step(child, value, cell)
    while (grid := _grid(bounds, step))[1] - grid[0] >= MOST_CANDIDATES or grid[2] > LARGEST_CLIP:
        step *= 10
    bars = _row_sum(child, None, where, Interval(Fraction(0), Fraction(1)), Fraction(1), cell)
    return replace(
        bars, kind=StatisticKind.RANKED, value=value, bounds=bounds, low=grid[0], high=grid[1], step=step, rank=rank
    )


def rank_of(statistic: Statistic) -> Fraction:
    assert statistic.rank is not None
    return statistic.rank


def most_common(child: Stability, value: Scalar, where: Scalar | None, low: int, high: int) -> Statistic:
    """MODE: the value that most rows have, where each value is an integer from `low` to `high`.

    Claim: in the histogram that counts the rows of each cell by their value, one unit adds at most `rows` in L1 (times
    the factor), over all cells and values together, and takes nothing from any bar.
    Because: as for `value_at_rank`; a unit's rows are clipped and limited by themselves, so that without it every other
    unit adds what it added before.
    Needs: candidates that do not depend on data.
    """
    cell = Cells(True, child.rows, child.rows == 1)
    bars = _row_sum(child, None, where, Interval(Fraction(0), Fraction(1)), Fraction(1), cell)
    bounds = Interval(Fraction(low), Fraction(high))
    return replace(bars, kind=StatisticKind.COMMONEST, value=value, bounds=bounds, low=low, high=high)


def is_loose(child: Stability, value: Scalar | None) -> bool:
    """Whether units may stay far below the declared clip: as the policy says, else by the number of rows it allows."""
    said = {child.facts.get(ref.field.id, NOTHING).tight for ref in refs(value)} if value is not None else set()
    if False in said or said == {True}:
        return False in said
    return child.rows > MANY_ROWS if child.tight is None else not child.tight and child.rows > 1


def centre_search(child: Stability, value: Scalar) -> Statistic:
    """The value that later sums count differences from: about the median, over units, of each unit's mean.

    Claim: in the histogram that counts units by the place of their mean between the bounds, one unit changes one bar by
    one. The choice is that of a value at a rank (`noise_laws.chosen`).
    Because: the engine makes one mean of all that a unit has, and looks up one place for it.
    Needs: declared bounds of the argument, so that the places do not depend on data.
    """
    cell = Cells(False, 1, False)
    whole = _row_sum(child, value, None, *bounds_and_step(child, value, cell), cell)
    one = Fraction(1)
    return replace(whole, kind=StatisticKind.CENTRE, rank=Fraction(1, 2), sensitivity=Sensitivity(1, one, one, one))


def centres(search: Statistic) -> int:
    """The number of places between the bounds among which a centre is chosen."""
    return min(search.width, CENTRES)


def centre_at(search: Statistic, place: int) -> Fraction:
    """The value in the middle of a place, in the units of the column."""
    return search.step * (search.low + Fraction(search.width * (2 * place + 1), 2 * centres(search)))


def clip_search(child: Stability, value: Scalar | None) -> Statistic:
    """Bound search: the contribution bound of a sum, or of a count of rows, chosen among a few clips
    (`noise_laws.clip_chosen`).

    Claim: in the histogram that counts units by the least clip that holds their whole contribution, one unit changes
    one bar by one.
    Because: the engine adds up what each unit contributes to each cell, and looks up one clip for the norm of all.
    Needs: declared bounds of the argument, so that the clips do not depend on data.
    """
    cell = Cells(False, 1, False)
    if value is None:
        whole = _row_sum(child, None, None, Interval(Fraction(0), Fraction(1)), Fraction(1), cell)
    else:
        whole = _row_sum(child, value, None, *bounds_and_step(child, value, cell), cell)
    return _as_search(whole)


def residual_search(child: Stability, value: Scalar, centre: Fraction | None, *, squares: bool) -> Statistic | None:
    """The same for the sum of one unit's distances from a centre. None where the grid is too fine."""
    whole = sum_residuals(child, value, None, Cells(False, 1, False), centre, squares=squares)
    return None if whole is None else _as_search(replace(whole, loose=False))


def _as_search(whole: Statistic) -> Statistic:
    one = Fraction(1)
    return replace(whole, kind=StatisticKind.CLIP, sensitivity=Sensitivity(1, one, one, one))


def clips(search: Statistic) -> tuple[int, ...]:
    """The clips that a search chooses among, in steps: the declared one, its halves, and one between each two."""
    halvings = min(HALVINGS, search.clip.bit_length() - 1)
    squares = (-(-(search.clip**2) >> k) for k in range(2 * halvings, -1, -1))
    return tuple(dict.fromkeys(math.isqrt(square - 1) + 1 for square in squares))


def clipped_at(statistic: Statistic, limit: Fraction) -> Statistic:
    """The same sum where one unit counts no more than `limit`, in the units of the column.

    Claim: l1 and l2 are the new clip, which is never above the declared one.
    Because: rows are clamped to it, the unit's sum in each cell is cut to it, and its vector scaled down to it.
    Needs: nothing of `limit`, which may be any released number.
    """
    clip = min(statistic.clip, max(math.ceil(limit / statistic.step), 1) * statistic.factor)
    size = Fraction(clip)
    sensitivity = Sensitivity(statistic.sensitivity.l0, size, size, size * size)
    changed = replace(statistic, clip=clip, sensitivity=sensitivity, cut=True)
    if statistic.value is None:
        return changed
    assert statistic.bounds.low is not None and statistic.bounds.high is not None
    end = clip // statistic.factor
    least, most = statistic.centre - end, statistic.centre + end
    low, high = (max(least, min(most, bound)) for bound in (statistic.low, statistic.high))
    below, above = (
        max(least * statistic.step, min(most * statistic.step, bound))
        for bound in (statistic.bounds.low, statistic.bounds.high)
    )
    return replace(changed, low=low, high=high, bounds=Interval(below, above))


def _row_sum(
    child: Stability, value: Scalar | None, where: Scalar | None, bounds: Interval, step: Fraction, cell: Cells
) -> Statistic:
    low, high, size = _grid(bounds, step)
    factor = _factor(size, scaled=_is_scaled(cell))
    _fitting(child.rows * size * factor)
    return _clipped_sum(child, value, where, bounds, (low, high), step, size, factor, cell, Shape.ITSELF)


def _fitting(clip: int) -> Fraction:
    """The most that one unit adds, or a refusal: it must leave room for squares and products."""
    if clip > LARGEST_CLIP:
        raise MissingDeclaration(
            "the bounds are too wide for the step",
            hint="Declare narrower bounds or a larger step in the policy.",
        )
    return Fraction(clip)


def _is_scaled(cell: Cells) -> bool:
    """Whether a unit's vector has several entries, which the clip scales down together."""
    return cell.keyed and not (cell.limited and cell.groups == 1)


def _factor(size: int, *, scaled: bool) -> int:
    """The fixed-point factor, above 1 where a unit's vector may be scaled down."""
    factor = 1
    while scaled and size * factor < FINEST:
        factor *= 2
    return factor


def _clipped_sum(
    child: Stability,
    value: Scalar | None,
    where: Scalar | None,
    bounds: Interval,
    grid: tuple[int, int],
    step: Fraction,
    size: int,
    factor: int,
    cell: Cells,
    shape: Shape,
) -> Statistic:
    clip = child.rows * size * factor
    if cell.in_one is not None:
        # The squares of numbers that add up to `rows`, none above `in_one`, add up to at most their product.
        clip = min(clip, math.isqrt(max(child.rows * cell.in_one * (size * factor) ** 2 - 1, 0)) + 1)
    sensitivity = Sensitivity(_touched(cell), Fraction(clip), Fraction(clip), Fraction(clip) ** 2)
    return Statistic(StatisticKind.ROWS, value, where, bounds, *grid, step, factor, clip, sensitivity, shape=shape)


def _touched(cell: Cells) -> int | None:
    """The number of cells a unit changes; None where only a clip bounds its vector."""
    if not cell.keyed:
        return 1
    return cell.groups if cell.limited or cell.among else None


def _grid(bounds: Interval, step: Fraction) -> tuple[int, int, int]:
    """Bounds on the grid, rounded outward, and the largest magnitude among them."""
    assert bounds.low is not None and bounds.high is not None
    low, high = math.floor(bounds.low / step), math.ceil(bounds.high / step)
    return low, high, largest(Shape.ITSELF, low, high)


def bounds_and_step(child: Stability, value: Scalar, cell: Cells) -> tuple[Interval, Fraction]:
    """The bounds of an argument and the step of its sum, or a refusal that names what is missing."""
    bounds = interval(value, child.facts)
    if not bounds.bounded:
        keys = domain(value, child.facts, 10_000)
        numbers = [as_number(key) for key in keys or ()]
        if keys is not None and all(
            number is not None or key is None for number, key in zip(numbers, keys, strict=True)
        ):
            known = [number for number in numbers if number is not None]
            bounds = Interval(min(known), max(known)) if known else Interval(Fraction(0), Fraction(0))
    if not bounds.bounded:
        raise _unbounded(child, value)
    declared = child.facts.get(value.field.id, NOTHING).step if isinstance(value, Ref) else None
    if declared is not None:
        return bounds, declared
    return bounds, _coarsened(child, _default_step(value, bounds), bounds, cell)


def _default_step(value: Scalar, bounds: Interval, digits: int = REAL_DIGITS) -> Fraction:
    """The step of a sum whose column declares none, from type and bounds alone."""
    match value.type.kind:
        case Kind.INTEGER:
            return Fraction(1)
        case Kind.DECIMAL:
            return Fraction(1, 10**value.type.scale)
        case _:
            assert bounds.low is not None and bounds.high is not None
            most = max(abs(bounds.low), abs(bounds.high))
            exponent = 0
            while Fraction(10) ** exponent < most:
                exponent += 1
            while most and Fraction(10) ** (exponent - 1) >= most:
                exponent -= 1
            return Fraction(10) ** (exponent - digits)


def _coarsened(child: Stability, step: Fraction, bounds: Interval, cell: Cells) -> Fraction:
    """The step, made coarser by tens until a unit's whole contribution fits."""
    size = _grid(bounds, step)[2]
    room = FINEST if cell.keyed else 1
    while child.rows * max(size, room) > DEFAULT_CLIP >> child.coarser:
        step *= 10
        size = _grid(bounds, step)[2]
        if size == 1:
            raise NotSupported("max_rows_per_unit is too large for a sum", hint="Declare fewer rows per unit.")
    return step


def _unbounded(child: Stability, value: Scalar) -> MissingDeclaration:
    for ref in refs(value):
        fact = child.facts.get(ref.field.id, NOTHING)
        if not fact.interval.bounded and fact.origin is not None and ref.type.kind not in (Kind.TEXT, Kind.BOOLEAN):
            table, column = fact.origin
            return MissingDeclaration(
                f'column "{column}" of table "{table}" has no declared bounds',
                hint=f"Declare min and max for {table}.{column} in the policy, or write LEAST and GREATEST around it.",
                position=ref.position,
            )
    return MissingDeclaration(
        "the bounds of the aggregated expression are not known",
        hint="Write LEAST and GREATEST around it to bound it.",
    )


def not_null(value: Scalar) -> Scalar:
    return Call(Op.NOT, (Call(Op.IS_NULL, (value,), BOOLEAN),), BOOLEAN)
