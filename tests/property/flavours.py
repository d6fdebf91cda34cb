"""What an owner may declare of a column, and what its cells may hold all the same.

Each flavour of a column is one declaration with literals inside and outside of it. Bounds are an instruction to clamp,
not a promise: the neighbour test mixes both, the soundness of intervals and domains speaks of those inside alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime
from fractions import Fraction
from types import MappingProxyType
from typing import Any

from dpsql.policy.model import Bound, ColumnPolicy
from dpsql.types import Value


@dataclass(frozen=True, slots=True)
class Flavour:
    declared: ColumnPolicy
    inside: tuple[str, ...]  # SQL literals; NULL is possible everywhere
    outside: tuple[str, ...] = ()


def bounded(
    name: str,
    low: int | Fraction | date,
    high: int | Fraction | date,
    *,
    step: Fraction | None = None,
    nullable_key: bool = False,
) -> ColumnPolicy:
    """A column with bounds, as the policy would declare it."""
    return ColumnPolicy(name, _bound(low), _bound(high), step, nullable_key=nullable_key)


def _flavour(
    name: str, low: int | Fraction | date, high: int | Fraction | date, inside: str, outside: str, **more: Any
) -> Flavour:
    return Flavour(bounded(name, low, high, **more), tuple(inside.split(", ")), tuple(outside.split(", ")))


def _bound(value: int | Fraction | date) -> Bound:
    return Fraction(value) if isinstance(value, int) else value


def _listed(name: str, values: tuple[Value, ...], inside: str, outside: str, *, nullable_key: bool = False) -> Flavour:
    column = ColumnPolicy(name, values=values, nullable_key=nullable_key)
    return Flavour(column, tuple(inside.split(", ")), tuple(outside.split(", ")))


def _free(name: str, inside: str) -> Flavour:
    return Flavour(ColumnPolicy(name), tuple(inside.split(", ")))


_WIDEST = "9999999999999999999999999999999999.9999"
_DOUBLES = "0, 1, -1, 0.1, 2.5, -2.5, 1e308, -1e308, 5e-324, 1e15, '-0.0'"
_NO_NUMBERS = "'nan', 'inf', '-inf'"
_DATES = "DATE '2020-02-29', DATE '2020-12-31', DATE '2021-01-03'"
_ENDS = "DATE '0001-01-01', DATE '9999-12-31'"
_STRANGE_DATES = f"{_ENDS}, DATE 'infinity', DATE '-infinity', DATE '5881580-07-10', DATE '5877642-06-25 (BC)'"
_MOMENTS = "TIMESTAMP '2020-02-29 23:59:59.999999', TIMESTAMP '2020-12-31 12:30:15', TIMESTAMP '2021-01-03'"
_STRANGE_MOMENTS = (
    "TIMESTAMP '0001-01-01', TIMESTAMP '9999-12-31 23:59:59.999999', TIMESTAMP 'infinity', TIMESTAMP '-infinity', "
    "TIMESTAMP '294247-01-10 04:00:54.775806', TIMESTAMP '290309-12-22 (BC) 00:00:00'"
)
# Numbers, dates far away and what casts stumble over.
_TEXTS = (
    "'CA', 'CA ', 'NY', 'ca', '', ' x ', 'ß', '12', '-1.5', '1e400', '99999999999999999999', 'nan', 'infinity', "
    "'2020-02-29', '5881580-07-10', '294247-01-10 04:00:54', '%', 'a\\'"
)

FLAVOURS: Mapping[str, tuple[Flavour, ...]] = MappingProxyType(
    {
        "small": (
            _flavour("small", 0, 10, "0, 1, 3, 7, 10", "-32768, 32767, 11, -1"),
            _flavour("small", -3, 3, "-3, -1, 0, 2, 3", "-32768, 32767", nullable_key=True),
            _free("small", "-32768, 32767, 0, 1, 10"),
        ),
        "n": (
            _flavour("n", 0, 100, "0, 1, 2, 50, 99, 100", "-2147483648, 2147483647, 101, -1"),
            _flavour("n", -1000, 5, "-1000, -1, 0, 5", "-2147483648, 2147483647", step=Fraction(10)),
            _listed("n", (1, 2, 3), "1, 2, 3", "0, 4, -2147483648, 2147483647"),
            _listed("n", (-5, 7), "-5, 7", "0, 2147483647", nullable_key=True),
            _free("n", "-2147483648, 2147483647, 0, 1, 2, 3"),
        ),
        "big": (
            _flavour("big", 0, 10**6, "0, 1, 1000000, 999", "-9223372036854775808, 9223372036854775807"),
            _flavour("big", -(2**63), 2**63 - 1, "-9223372036854775808, 9223372036854775807, 0, 1", "5"),
            _free("big", "-9223372036854775808, 9223372036854775807, 0, 1, -1"),
        ),
        "amount": (
            _flavour("amount", 0, 100, "0, 0.01, 1.50, 99.99, 100", "-9999999.99, 9999999.99, 100.01"),
            _flavour("amount", -5, Fraction(5, 2), "-5, -0.5, 0, 2.5", "-9999999.99, 9999999.99", step=Fraction(1, 4)),
            _listed("amount", (1, 2), "1, 2", "1.5, 9999999.99"),
            _free("amount", "-9999999.99, 9999999.99, 0, 0.5, -0.01"),
        ),
        "wide": (
            _flavour("wide", -1000, 1000, "-1000, 0.0001, 0, 999.9999, 1000", f"{_WIDEST}, -{_WIDEST}"),
            _free("wide", f"{_WIDEST}, -{_WIDEST}, 0, 0.0001, 1"),
        ),
        "x": (
            _flavour("x", 0, 1, "0, 0.1, 0.5, 1, 5e-324, 0.9999999999999999", f"{_NO_NUMBERS}, 2, -1e308"),
            _flavour("x", -(10**6), 10**6, "-1e6, 1e6, 0, -0.0, 0.1, 2.5, -2.5", f"{_NO_NUMBERS}, 1e308, -1e308"),
            _flavour("x", 1, 50, "1, 2.5, 49.5, 50", f"{_NO_NUMBERS}, 0, 1e308", step=Fraction(1, 2)),
            _listed("x", (0, 1, 2), "0, -0.0, 1, 2", f"{_NO_NUMBERS}, 0.5, 1e308"),
            _free("x", f"{_DOUBLES}, {_NO_NUMBERS}"),
        ),
        "f": (
            _flavour("f", -10, 10, "-10, 10, 0, 0.1, 2.5, 1e-45", f"{_NO_NUMBERS}, 3.4e38"),
            _free("f", f"0, 1, 0.1, 3.4e38, -3.4e38, 1e-45, {_NO_NUMBERS}"),
        ),
        "s": (
            _listed("s", ("CA", "NY", "Tx"), "'CA', 'NY', 'Tx'", "'', 'zz', 'ca', 'CA '"),
            _listed("s", ("a", "ß", ""), "'a', 'ß', ''", "'b', 'SS'", nullable_key=True),
            _listed("s", ("1", "2.5", "2020-01-01"), "'1', '2.5', '2020-01-01'", "'x', '5881580-07-10'"),
            _free("s", _TEXTS),
        ),
        "flag": (
            _free("flag", "TRUE, FALSE"),
            Flavour(ColumnPolicy("flag", nullable_key=True), ("TRUE", "FALSE")),
        ),
        "day": (
            _flavour("day", date(2020, 2, 1), date(2021, 1, 31), _DATES, _STRANGE_DATES),
            _flavour("day", date(1, 1, 1), date(9999, 12, 31), f"{_DATES}, {_ENDS}", _STRANGE_DATES),
            _listed("day", (date(2020, 2, 29), date(2021, 1, 3)), "DATE '2020-02-29', DATE '2021-01-03'", _ENDS),
            _free("day", f"{_DATES}, {_STRANGE_DATES}"),
        ),
        "moment": (
            _flavour("moment", datetime(2020, 2, 1), datetime(2021, 1, 31, 6), _MOMENTS, _STRANGE_MOMENTS),
            _free("moment", f"{_MOMENTS}, {_STRANGE_MOMENTS}"),
        ),
    }
)

# Owners of each type; few, so that units have several rows.
OWNERS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "INTEGER": ("1", "2", "-2147483648", "2147483647"),
        "VARCHAR": ("'a'", "'A'", "''", "'v' || chr(31) || 'n'"),
        "DATE": ("DATE '2020-01-01'", "DATE '2020-01-02'", "DATE 'infinity'", "DATE '5881580-07-10'"),
    }
)
