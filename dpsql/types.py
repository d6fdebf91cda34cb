"""The SQL types dpsql knows, and how many digits they may hold.

`precision` bounds the magnitude of a value by 10**precision (before the scale), so the generator can
tell from types alone where 64 or 128 bits suffice and nothing can overflow.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from fractions import Fraction

# A constant of the analyst or the policy: never a value read from private rows.
Value = bool | int | Decimal | float | str | date | datetime | None
# One value of an answer. An array is an immutable tuple, and a list once it is fetched.
Cell = Value | tuple[Value, ...] | list[Value]

INT_DIGITS = 19
MAX_DIGITS = 38
SAFE_DIGITS = 28  # digits of numbers that an engine may add up in 128 bits (38 digits), whatever the number of rows


class Kind(Enum):
    BOOLEAN = "boolean"
    INTEGER = "bigint"
    DECIMAL = "numeric"
    DOUBLE = "double precision"
    TEXT = "text"
    DATE = "date"
    TIMESTAMP = "timestamp"
    TIMESTAMPTZ = "timestamptz"  # an instant: a datetime without a zone, in UTC, until it is shown
    INTERVAL = "interval"
    ARRAY = "array"  # of released values: private rows have none
    UNKNOWN = "unknown"  # a bare NULL or string literal before its context gives it a type

    __hash__ = object.__hash__  # members are compared by identity; Enum would hash their names


@dataclass(frozen=True, slots=True)
class Type:
    kind: Kind
    precision: int = 0
    scale: int = 0
    big: bool = False  # an integer that PostgreSQL calls bigint: its SUM is numeric, not bigint
    numeric: bool = False  # double precision that PostgreSQL calls numeric: it rounds halves away from zero
    mixed: bool = field(default=False, compare=False, repr=False)  # a decimal whose places differ from value to value
    element: Type | None = None  # of an array

    def __eq__(self, other: object) -> bool:
        # Most are one of the constants below, and each step of a compilation compares some.
        if self is other:
            return True
        return (
            isinstance(other, Type)
            and self.kind is other.kind
            and self.precision == other.precision
            and self.scale == other.scale
            and self.big is other.big
            and self.numeric is other.numeric
            and self.element == other.element
        )

    def __hash__(self) -> int:
        return hash((self.kind, self.precision, self.scale))

    @property
    def is_numeric(self) -> bool:
        return self.kind in (Kind.INTEGER, Kind.DECIMAL, Kind.DOUBLE)

    @property
    def is_exact(self) -> bool:
        """Integer or numeric in PostgreSQL, however it is computed here."""
        return self.kind in (Kind.INTEGER, Kind.DECIMAL) or self.numeric

    @property
    def is_temporal(self) -> bool:
        return self.kind in (Kind.DATE, Kind.TIMESTAMP, Kind.TIMESTAMPTZ)

    @property
    def is_moment(self) -> bool:
        """A date with a time of day, with or without a time zone: one representation in engines and in Python."""
        return self.kind in (Kind.TIMESTAMP, Kind.TIMESTAMPTZ)

    def __str__(self) -> str:
        if self.element is not None:
            return f"{self.element}[]"
        if self.kind is Kind.DECIMAL:
            return f"numeric({self.precision},{self.scale})"
        name: str = self.kind.value
        return "numeric" if self.numeric else name


BOOLEAN = Type(Kind.BOOLEAN)
BIGINT = Type(Kind.INTEGER, INT_DIGITS, big=True)
DOUBLE = Type(Kind.DOUBLE)
NUMERIC = Type(Kind.DOUBLE, numeric=True)
TEXT = Type(Kind.TEXT)
DATE = Type(Kind.DATE)
TIMESTAMP = Type(Kind.TIMESTAMP)
TIMESTAMPTZ = Type(Kind.TIMESTAMPTZ)
INTERVAL = Type(Kind.INTERVAL)
UNKNOWN = Type(Kind.UNKNOWN)


def array_of(element: Type) -> Type:
    return Type(Kind.ARRAY, element=element)


def exact_decimal(value: Fraction, scale: int) -> Decimal:
    """A multiple of 10**-scale of any length: Decimal's own arithmetic would round to 28 digits."""
    steps = value * 10**scale
    if steps.denominator != 1:
        raise ValueError("the value is not a multiple of the scale")
    return Decimal(f"{steps.numerator}e-{scale}")


def integer(digits: int, *, big: bool | None = None) -> Type:
    """An integer of at most `digits` decimal digits; never wider than PostgreSQL's bigint."""
    return Type(Kind.INTEGER, min(digits, INT_DIGITS), big=digits > 10 if big is None else big)


def decimal(precision: int, scale: int) -> Type:
    """A decimal; if 38 digits cannot hold it, a double in place of PostgreSQL's numeric."""
    if precision > MAX_DIGITS or scale > MAX_DIGITS:
        return NUMERIC
    return Type(Kind.DECIMAL, max(precision, scale, 1), scale)
