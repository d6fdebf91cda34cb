"""Conditions that no row fulfils both of: a row then adds to one of two sums only."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from datetime import date
from decimal import Decimal
from fractions import Fraction

from dpsql.plan.scalars import Call, Const, Op, Scalar
from dpsql.privacy.facts import as_number
from dpsql.privacy.refine import conjuncts
from dpsql.types import Kind

_MIRRORED = {Op.LT: Op.GT, Op.LE: Op.GE, Op.GT: Op.LT, Op.GE: Op.LE, Op.EQ: Op.EQ, Op.NE: Op.NE}
# NOT (x < 1) is true where x >= 1 is; of NULL neither is.
_OPPOSITE = {Op.LT: Op.GE, Op.LE: Op.GT, Op.GT: Op.LE, Op.GE: Op.LT, Op.EQ: Op.NE, Op.NE: Op.EQ, Op.IN: Op.NE}

Point = Fraction | str | bool


def disjoint(left: Scalar, right: Scalar) -> bool:
    """Whether two conditions are never true of the same row.

    Claim: if it says so, no row makes both true, whatever it holds.
    Because: both are conjunctions, and a part of one contradicts a part of the other: it is its negation, or both
    compare the same expression with constants that leave no common value. An alternative (OR) is excluded where all its
    parts are. Of the same row, an expression has the same value wherever it stands. Doubles are compared with constants
    as doubles. Texts that differ in blanks at their end are neither told apart, since an engine may take them for
    equal, nor taken for the same, since it may not.
    Needs: expressions whose value depends on the row alone (others are refused).
    """
    sides = ((left, right), (right, left))
    for one, other in sides:
        if isinstance(one, Call) and one.op is Op.OR:
            return all(disjoint(part, other) for part in one.args)
    for one, other in sides:
        if isinstance(one, Call) and one.op is Op.AND:
            return any(disjoint(part, other) for part in conjuncts(one))
    return _negates(left, right) or _negates(right, left) or _excludes(left, right)


def _negates(one: Scalar, other: Scalar) -> bool:
    return isinstance(one, Call) and one.op in (Op.NOT, Op.IS_FALSE) and one.args[0] in (other, _asserted(other))


def _asserted(condition: Scalar) -> Scalar:
    is_true = isinstance(condition, Call) and condition.op is Op.IS_TRUE
    return condition.args[0] if is_true and isinstance(condition, Call) else condition


@dataclass(frozen=True, slots=True)
class _Values:
    """The values of an expression that pass: some, all but some, or those of an interval."""

    of: Scalar
    points: frozenset[Point] | None = None
    but: frozenset[Point] = frozenset()
    low: tuple[Fraction, bool] | None = None  # and whether the end itself passes
    high: tuple[Fraction, bool] | None = None

    def has(self, point: Point) -> bool:
        """Whether a value that equals the point may pass."""
        if point in self.but or (self.points is not None and _blankless(point) not in map(_blankless, self.points)):
            return False
        if isinstance(point, str | bool):
            return True
        above = self.low is None or point > self.low[0] or (self.low[1] and point == self.low[0])
        return above and (self.high is None or point < self.high[0] or (self.high[1] and point == self.high[0]))


def _blankless(point: Point) -> Point:
    return point.rstrip(" ") if isinstance(point, str) else point


def _excludes(left: Scalar, right: Scalar) -> bool:
    one, other = _values(left), _values(right)
    if one is None or other is None or one.of != other.of:
        return False
    for these, those in ((one, other), (other, one)):
        if these.points is not None:
            return not any(those.has(point) for point in these.points)
        if these.high is not None and those.low is not None:
            ends = these.high[1] and those.low[1]
            if these.high[0] < those.low[0] or (these.high[0] == those.low[0] and not ends):
                return True
    return False


def _values(condition: Scalar) -> _Values | None:
    """What a comparison with constants leaves; None where it is something else."""
    if not isinstance(condition, Call):
        return None
    if condition.op is Op.NOT:
        inner = condition.args[0]
        opposite = _OPPOSITE.get(inner.op) if isinstance(inner, Call) else None
        return _values(replace(inner, op=opposite)) if isinstance(inner, Call) and opposite is not None else None
    subject, *constants = condition.args
    op: Op = condition.op
    if isinstance(subject, Const) and len(constants) == 1 and op in _MIRRORED:
        subject, constants, op = constants[0], [subject], _MIRRORED[op]
    points = [_point(subject, constant) for constant in constants]
    known = frozenset(point for point in points if point is not None)
    if not points or None in points:
        return None
    (first, *rest) = points
    match op:
        case Op.EQ | Op.IN:
            return _Values(subject, points=known)
        case Op.NE:
            return _Values(subject, but=known)
        case Op.LT | Op.LE if isinstance(first, Fraction) and not rest:
            return _Values(subject, high=(first, op is Op.LE))
        case Op.GT | Op.GE if isinstance(first, Fraction) and not rest:
            return _Values(subject, low=(first, op is Op.GE))
        case _:
            return None


def _point(subject: Scalar, constant: Scalar) -> Point | None:
    """A constant as the engine compares it; None where that is not known."""
    if not isinstance(constant, Const) or constant.value is None:
        return None
    kind, other = subject.type.kind, constant.type.kind
    match constant.value:
        case bool() as value:
            return value if kind is Kind.BOOLEAN else None
        case str() as value:
            return value if kind is Kind.TEXT else None
        case int() | float() | Decimal() as value if subject.type.is_numeric and constant.type.is_numeric:
            return _number(float(value), kind) if Kind.DOUBLE in (kind, other) else as_number(value)
        case date() as value if kind is other and kind in (Kind.DATE, Kind.TIMESTAMP):
            return as_number(value)
        case _:
            return None


def _number(value: float, kind: Kind) -> Fraction | None:
    """As doubles compare; where only the constant is one, the expression may be rounded before it is compared."""
    return Fraction(value) if kind is Kind.DOUBLE and math.isfinite(value) else None
