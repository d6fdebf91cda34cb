"""How large and how small a double can be, from the types it was made of: far from both ends no guard is needed."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dpsql.plan.scalars import Call, Case, Const, Op, Scalar
from dpsql.types import Kind, Type

# A difference of two doubles is zero or at least so much of the smaller.
_GRAIN = 2.0**-54


@dataclass(frozen=True, slots=True)
class Magnitude:
    """Every value is NULL, zero, or between the two in magnitude."""

    least: float
    most: float

    @property
    def safe(self) -> bool:
        """Far from where doubles overflow or underflow, whatever rounding adds."""
        return self.least >= 1e-290 and self.most <= 1e290

    def __or__(self, other: Magnitude) -> Magnitude:
        return Magnitude(min(self.least, other.least), max(self.most, other.most))


_ANY = Magnitude(0.0, math.inf)


def magnitude(node: Scalar) -> Magnitude:
    """Claim: holds for every value that the expression can take.

    Because: whole numbers and decimals have as many digits as their type says, and each operation carries the ends of
    its arguments on; what is not listed can be anything.
    Needs: ends computed in doubles, which round by far less than `safe` leaves room for.
    """
    match node:
        case Const(value=value) if isinstance(value, int | float) and not isinstance(value, bool):
            return Magnitude(abs(value), abs(value)) if value else Magnitude(1.0, 0.0)
        case Case(branches=branches, default=default):
            ends = magnitude(default)
            for _, then in branches:
                ends |= magnitude(then)
            return ends
        case Call(op=Op.CAST, args=(arg,), type=Type(kind=Kind.DOUBLE)) if arg.type.kind is not Kind.DOUBLE:
            return _of_digits(arg.type)
        case Call(op=Op.CAST | Op.NEG | Op.ABS, args=(arg,)):
            return magnitude(arg)
        case Call(op=Op.LEAST | Op.GREATEST | Op.COALESCE, args=args):
            ends = magnitude(args[0])
            for arg in args[1:]:
                ends |= magnitude(arg)
            return ends
        case Call(op=Op.ADD | Op.SUB | Op.MUL | Op.DIV as op, args=(left, right)) if node.type.kind is Kind.DOUBLE:
            return combined(op, magnitude(left), magnitude(right))
        case _:
            return _of_digits(node.type)


def combined(op: Op, left: Magnitude, right: Magnitude) -> Magnitude:
    """The result of an operation on two doubles."""
    if not (left.safe and right.safe):
        return _ANY
    match op:
        case Op.MUL:
            return Magnitude(left.least * right.least, left.most * right.most)
        case Op.DIV:
            return Magnitude(left.least / max(right.most, 1e-290), left.most / right.least)
        case _:
            return Magnitude(min(left.least, right.least) * _GRAIN, left.most + right.most)


def _of_digits(type_: Type) -> Magnitude:
    if type_.kind is Kind.INTEGER:
        return Magnitude(1.0, 10.0**type_.precision)
    if type_.kind is Kind.DECIMAL:
        return Magnitude(10.0**-type_.scale, 10.0 ** (type_.precision - type_.scale))
    return _ANY
