"""Values that are products of other values, whose sums nearly determine theirs.

Let f be the product of the further factors of a product p f, a <= f <= b, and m the middle of a and b. Then
p f = m p + p (f - m). Where the sum of p is measured anyway, only the sum of p (f - m) remains, which is small: at most
p (b - a) / 2. Prices with and without a discount of at most a tenth are an example.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce

from dpsql.plan.scalars import Call, Const, Op, Scalar
from dpsql.privacy.bounds import Facts, Interval, interval
from dpsql.types import DOUBLE, Kind

# Of the rest: it is a part of what is measured, and has noise of its own that is far wider.
DIGITS = 8
# Casts after which a number is the same, but for the last digits of a double.
_EXACT = {(Kind.INTEGER, Kind.DECIMAL), (Kind.INTEGER, Kind.DOUBLE), (Kind.DECIMAL, Kind.DOUBLE)}
# Further factors that vary by more than this part of themselves leave too much.
_MOST = Fraction(1, 4)


@dataclass(frozen=True, slots=True)
class Product:
    """A value as `times` the base, plus a rest."""

    base: Scalar
    times: Fraction
    rest: Scalar
    bounds: Interval  # of the rest
    part: Fraction  # the largest deviation of the further factors from their middle, relative to it


def products(values: Iterable[Scalar], facts: Facts) -> dict[Scalar, Product]:
    """The values that are products of others among them, which are not products themselves."""
    found: dict[Scalar, Product] = {}
    bases: list[Scalar] = []
    for value in sorted(values, key=lambda each: len(_factors(each))):
        known = (_product(value, base, facts) for base in bases)
        product = next((each for each in known if each is not None), None)
        if product is None:
            bases.append(value)
        else:
            found[value] = product
    return found


def _product(value: Scalar, base: Scalar, facts: Facts) -> Product | None:
    """The value as a product of the base and factors that vary little.

    Claim: value = times * base + rest, up to the rounding of doubles, where nothing is NULL; the rest is within bounds.
    Because: see above. `times` is a double, and the same number in both places.
    Needs: nothing. Bounds only choose the clamp of a sum, as everywhere.
    """
    further = _factors(value)
    for factor in _factors(base):
        if factor not in further:
            return None
        further.remove(factor)
    whole = interval(base, facts)
    if not further or not whole.bounded:
        return None
    times = reduce(_times, map(_double, further))
    between = interval(times, facts)
    if not between.bounded:
        return None
    assert between.low is not None and between.high is not None and whole.low is not None and whole.high is not None
    middle = Fraction(float((between.low + between.high) / 2))
    away = max(between.high - middle, middle - between.low)
    if away > abs(middle) * _MOST or middle == 0:
        return None
    most = max(abs(whole.low), abs(whole.high)) * away
    rest = _times(_double(base), Call(Op.SUB, (times, Const(float(middle), DOUBLE)), DOUBLE))
    return Product(base, middle, rest, Interval(-most, most), away / abs(middle))


def _factors(value: Scalar) -> list[Scalar]:
    match value:
        case Call(op=Op.MUL, args=args):
            return [factor for arg in args for factor in _factors(arg)]
        case Call(op=Op.CAST, args=(inner,), type=type_) if (inner.type.kind, type_.kind) in _EXACT:
            return _factors(inner)
        case _:
            return [value]


def _double(value: Scalar) -> Scalar:
    return value if value.type.kind is Kind.DOUBLE else Call(Op.CAST, (value,), DOUBLE)


def _times(left: Scalar, right: Scalar) -> Scalar:
    return Call(Op.MUL, (left, right), DOUBLE)
