"""Chooses which sums to measure, so that the aggregates over one set of rows have the least error.

A mean can be estimated from a sum and a count, from a sum centred at the middle of the bounds and a count, or from a
pair of sums that also give the count (`basis`). Which is best depends on the other aggregates over the same rows, and
on the noise. Only errors decide: no data are read, and the guarantee does not depend on the choice.

Where bounds are loose and a centre is searched for, sums count differences from it. A typical value then takes the
place of the width: differences are assumed to be half of it in size, and the mean of a cell a sixth of it away from the
centre.

With R the width of the bounds, a value is L + R t. For each output, its error is a sum over the noises of a coefficient
times the noise; a mean's coefficients depend on the mean itself, which is private: it is assumed to be uniform.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction

from dpsql.privacy.allocation import Degree, error
from dpsql.privacy.estimators.basis import BERNSTEIN, BETWEEN_IN_L2, PAIR, Shape

_MOST_PAIRS = 50  # values tried as the one that counts the rows; each trial visits all values


class Form(Enum):
    """How the sum of a value is measured."""

    DIRECT = (Shape.ITSELF,)
    CENTRED = (Shape.CENTRED,)
    RESIDUAL = (Shape.RESIDUAL,)
    PAIR = PAIR
    BERNSTEIN = BERNSTEIN

    @property
    def shapes(self) -> tuple[Shape, ...]:
        shapes: tuple[Shape, ...] = self.value
        return shapes

    @property
    def counts(self) -> bool:
        """Whether it also gives the number of rows."""
        return self in (Form.PAIR, Form.BERNSTEIN)


@dataclass(frozen=True, slots=True)
class Asked:
    """The aggregates of one value."""

    low: Fraction  # the lower bound, in widths of the bounds
    ways: tuple[Form, ...]  # the forms that its grid allows
    total: int  # the number of outputs with its sum
    mean: bool
    spread: bool

    @property
    def loose(self) -> bool:
        """Whether its bounds are loose, so that a centre may be searched for."""
        return Form.RESIDUAL in self.ways


@dataclass(frozen=True, slots=True)
class Design:
    """The form of each value, and whether rows have a count of their own."""

    ways: tuple[Form, ...]
    counted: bool

    @property
    def pivot(self) -> int | None:
        """The value whose sums give the number of rows."""
        if self.counted:
            return None
        return next((i for i, way in enumerate(self.ways) if way.counts), None)


# A noise term: of the count, or of a shape of a value.
Term = tuple[int, Shape] | None
# The coefficient a + b t of a noise term, where t is the mean.
Coefficient = tuple[Fraction, Fraction]
Errors = dict[Term, Coefficient]

# Where bounds are loose: the distance of a cell's mean from the centre, in typical values.
AWAY = Fraction(1, 6)
_ZERO, _HALF, _ONE = Fraction(0), Fraction(1, 2), Fraction(1)
# The error of a variance around the mean t: the squares of t², t(1 - t) and (1 - t)², averaged over t.
_SPREAD = dict(zip(BERNSTEIN, (Fraction(1, 5), Fraction(1, 30), Fraction(1, 5)), strict=True))


def choose(asked: Sequence[Asked], *, counted: bool, fixed: bool, degree: Degree) -> Design:
    """The design with the least error. `counted`: the row count is an output; `fixed`: it is measured anyway."""
    found = [
        (error(list(sized.values()), degree), design)
        for design in _candidates(asked, fixed=fixed, degree=degree)
        if (sized := weights(design, asked, counted=counted, degree=degree)) is not None
    ]
    # Rounding decides nothing: of equally good designs, the first is the simplest.
    least = min(size for size, _ in found) * (1 + 1e-9)
    return next(design for size, design in found if size <= least)


def _candidates(asked: Sequence[Asked], *, fixed: bool, degree: Degree) -> Iterator[Design]:
    for ways in _ways(asked):
        if not fixed:
            yield Design(tuple(ways), False)
            # Under Gaussian noise a pair equals a centred sum and a count: it is their rotation by 45°.
            for i, one in enumerate(asked[:_MOST_PAIRS]):
                if degree == 3 and Form.PAIR in one.ways and not one.spread:
                    yield Design((*ways[:i], Form.PAIR, *ways[i + 1 :]), False)
        yield Design(tuple(ways), True)


def _ways(asked: Sequence[Asked]) -> Iterator[list[Form]]:
    for base in (Form.DIRECT, Form.CENTRED):
        found = [Form.BERNSTEIN if one.spread else base if base in one.ways else Form.DIRECT for one in asked]
        yield found
        for wanted in (True, False):  # the loose ones of which a mean is asked; or all, where there is such a mean
            if any(one.loose and one.mean and not one.spread for one in asked):
                yield [
                    Form.RESIDUAL if one.loose and not one.spread and one.mean >= wanted else way
                    for way, one in zip(found, asked, strict=True)
                ]


def weights(
    design: Design, asked: Sequence[Asked], *, counted: bool, degree: Degree
) -> dict[frozenset[Term], Fraction] | None:
    """The weight of the variance of each group of sums in all outputs, each relative to its best possible error.

    None where the design cannot give all outputs.
    """
    around = (Form.CENTRED, Form.RESIDUAL)
    needs = counted or any(way in around or one.mean for way, one in zip(design.ways, asked, strict=True))
    rows: Errors | None = None
    if design.counted:
        rows = {None: (_ONE, _ZERO)}
    elif design.pivot is not None:
        rows = {(design.pivot, shape): (_ONE, _ZERO) for shape in design.ways[design.pivot].shapes}
    elif needs:
        return None
    found: dict[frozenset[Term], Fraction] = {}

    def count(errors: Errors, best: Fraction, sizes: dict[Term, Fraction]) -> None:
        for term, (a, b) in errors.items():
            group = frozenset({term}) if term is None else frozenset((term[0], s) for s in design.ways[term[0]].shapes)
            square = a * a + a * b + b * b / 3  # the average over t in [0, 1]
            found[group] = found.get(group, _ZERO) + square * sizes[term] / best

    sizes: dict[Term, Fraction] = {None: _ONE}
    for i, (way, one) in enumerate(zip(design.ways, asked, strict=True)):
        sizes |= {(i, shape): _variance(shape, one, degree) for shape in way.shapes}
    for i, (way, one) in enumerate(zip(design.ways, asked, strict=True)):
        total = _total(i, way, one, rows or {})
        for _ in range(one.total):
            count(_plus(total, rows or {}, (one.low, _ZERO)), _largest(one) ** 2, sizes)
        if one.mean:
            assert rows is not None
            if one.loose:
                count(_plus(total, rows, (AWAY - 1, _ZERO)), _HALF**2, sizes)
            else:
                count(_plus(total, rows, (_ZERO, -_ONE)), Fraction(2, 3), sizes)
        if one.spread:
            best = sum(_SPREAD.values())
            for shape in BERNSTEIN:
                group = frozenset((i, s) for s in BERNSTEIN)
                found[group] = found.get(group, _ZERO) + _SPREAD[shape] * sizes[i, shape] / best
    if counted:
        assert rows is not None
        count(rows, _ONE, sizes)
    if design.counted:
        found.setdefault(frozenset({None}), _ZERO)
    return found


def _total(i: int, way: Form, one: Asked, rows: Errors) -> Errors:
    """The errors of the sum of t, in widths of the bounds."""
    match way:
        case Form.DIRECT:
            return _plus({(i, Shape.ITSELF): (_ONE, _ZERO)}, rows, (-one.low, _ZERO))
        case Form.CENTRED:
            return _plus({(i, Shape.CENTRED): (_ONE, _ZERO)}, rows, (_HALF, _ZERO))
        case Form.RESIDUAL:
            return _plus({(i, Shape.RESIDUAL): (_ONE, _ZERO)}, rows, (_ONE, _ZERO))
        case Form.PAIR:
            return {(i, Shape.ABOVE): (_ONE, _ZERO)}
        case Form.BERNSTEIN:
            return {(i, Shape.BETWEEN): (_HALF, _ZERO), (i, Shape.TWICE_ABOVE): (_ONE, _ZERO)}


def _plus(errors: Errors, others: Errors, times: Coefficient) -> Errors:
    """The errors of one part plus a multiple of the other, whose errors must not depend on t."""
    found = dict(errors)
    for term, (c, _) in others.items():
        a, b = found.get(term, (_ZERO, _ZERO))
        found[term] = (a + c * times[0], b + c * times[1])
    return found


def _variance(shape: Shape, one: Asked, degree: Degree) -> Fraction:
    """The variance of its noise at the whole price, in squares of the width, or of a row."""
    match shape:
        case Shape.ITSELF:
            return _largest(one) ** 2
        case Shape.CENTRED | Shape.RESIDUAL:
            return _HALF**2
        case Shape.BETWEEN if degree == 2:
            return BETWEEN_IN_L2**2
        case _:
            return _ONE


def _largest(one: Asked) -> Fraction:
    return max(abs(one.low), abs(one.low + 1))
