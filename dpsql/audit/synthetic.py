"""Synthetic rows for the declared tables: made-up people, and one with the largest contribution that the policy allows.

No private table is read. Public tables are copied, because their contents decide how they are joined.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Literal

from dpsql.engines.base import Engine, Filled
from dpsql.policy.model import Bound, Catalog, Column, Table
from dpsql.types import Kind, Type, Value

OTHERS = 1_200  # people besides the person who is added: enough for their keys to pass the threshold
MOST_PUBLIC_ROWS = 10_000

KEYS = 6  # keys that the others share where a column's keys are unknown
MOST_KEYS = 20  # the same, where one person may have more

# How the person's rows are distributed:
# heavy      all under one key, where a sum changes most
# various    the same, with a unique value in each row
# scattered  over many keys that others have too
# spread     the row limit in each of several keys: bounded only if the limit covers all keys together
# Where keys are unknown, to count how often a unique key is returned:
# own_key    all under one unique key
# own_keys   each under another unique key: more keys than the limit
Habit = Literal["heavy", "various", "scattered", "spread", "own_key", "own_keys"]
HABITS: tuple[Habit, ...] = ("heavy", "various", "scattered", "spread")
LONELY: tuple[Habit, ...] = ("own_key", "own_keys")


Row = dict[str, Value]

_DAY = date(2020, 1, 1)


def synthetic(catalog: Catalog, owners: Engine, habit: Habit, *, with_unit: bool) -> Iterator[Filled]:
    """The tables of the catalog, with or without the person."""
    made: dict[str, list[list[Row]]] = {}  # table -> unit -> rows
    for table in in_order(catalog):
        if table.is_private:
            made[table.name] = _rows(table, made, habit)
            rows = [row for own in made[table.name][0 if with_unit else 1 :] for row in own]
        else:
            rows = _public_rows(table, owners)
        yield Filled(table, _columns(table), rows)


def in_order(catalog: Catalog) -> list[Table]:
    """Each table once, referenced tables first."""
    tables = {table.name: table for table in catalog.tables.values()}
    return sorted(tables.values(), key=lambda table: (len(table.path), table.name))


def _columns(table: Table) -> dict[str, Type]:
    found = {name: column.type for name, column in table.columns.items()}
    for key, types in table.keys.items():
        found |= {name: type_ for name, type_ in zip(key, types, strict=True) if name not in found}
    if table.path:
        step = table.path[0]
        found |= {name: type_ for name, type_ in zip(step.via, step.types, strict=True) if name not in found}
    elif table.owner is not None and table.owner_type is not None:
        found[table.owner] = table.owner_type
    return found


def _public_rows(table: Table, owners: Engine) -> list[Row]:
    names = list(table.columns)
    columns = owners.read_public(table.source, names, MOST_PUBLIC_ROWS)
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)][:MOST_PUBLIC_ROWS]


# --- synthetic rows; unit 0 is the person who is added ---


def _rows(table: Table, made: Mapping[str, Sequence[Sequence[Row]]], habit: Habit) -> list[list[Row]]:
    """The rows of each unit."""
    found: list[list[Row]] = []
    number = 0
    for unit in range(OTHERS + 1):
        count = _count(table, unit, habit)
        found.append([])
        for place in range(count):
            share = (place + 1) / count  # the last (or only) row is at the lower end
            row = {name: _value(table, column, unit, share, place, habit) for name, column in table.columns.items()}
            row |= _numbered(table, number) | _owned(table, made, unit, place)
            found[-1].append(row)
            number += 1
    return found


def _groups(table: Table) -> int:
    """The limit on unknown keys per person."""
    return min(table.max_rows_per_unit, table.max_groups_per_unit or table.max_rows_per_unit)


def _shared_keys(table: Table) -> int:
    """As many as one person may have, so that all of theirs can be shared ones; but few enough that each is common."""
    return max(KEYS, min(_groups(table), MOST_KEYS))


def _count(table: Table, unit: int, habit: Habit) -> int:
    if table.owner_unique:
        return 1
    if unit:
        return _rows_of_others(table)
    if habit == "spread":
        return table.max_rows_per_unit * _spread_over(table)
    # More than the limit, which bounding must remove.
    return 2 * table.max_rows_per_unit + 1


def _rows_of_others(table: Table) -> int:
    """Enough that each shared key has as many people as with few of these keys."""
    return math.ceil(_shared_keys(table) / KEYS)


def _spread_over(table: Table) -> int:
    return min(_groups(table), KEYS)


def _numbered(table: Table, number: int) -> Row:
    """Key values that other tables refer to."""
    named = [pair for key, types in table.keys.items() for pair in zip(key, types, strict=True)]
    return {name: _name(number, type_) for name, type_ in named}


def _owned(table: Table, made: Mapping[str, Sequence[Sequence[Row]]], unit: int, place: int) -> Row:
    """The values that link a row to its owner: the owner column, or a reference to a row of the same owner."""
    if table.path:
        step = table.path[0]
        own = made[step.table][unit]
        parent = own[place % len(own)]
        return {via: parent[key] for via, key in zip(step.via, step.key, strict=True)}
    assert table.owner is not None and table.owner_type is not None
    return {table.owner: _name(unit, table.owner_type)}


def _name(number: int, type_: Type) -> Value:
    """A value of this type, unique for each number."""
    match type_.kind:
        case Kind.TEXT:
            return f"n{number}"
        case Kind.DATE:
            return _DAY + timedelta(days=number)
        case Kind.DECIMAL:
            return Decimal(number)
        case _:
            return number


def _value(table: Table, column: Column, unit: int, share: float, place: int, habit: Habit) -> Value:
    scattered = habit in ("scattered", "spread") and not unit
    if column.values is not None:
        among = min(len(column.values), _spread_over(table)) if habit == "spread" else len(column.values)
        return column.values[place % among if scattered else 0]
    if column.lower is not None and column.upper is not None:
        if habit == "various" and not unit:
            return _between(column, column.lower, column.upper, Fraction(share))
        return _of_bounds(column, column.lower, column.upper, heavy=not unit)
    match column.type.kind:
        case Kind.BOOLEAN:
            return bool(place % 2) if scattered else False
        case Kind.TEXT:
            return _unknown_key(table, unit, place, habit)
        case Kind.DATE:
            return _DAY
        case Kind.TIMESTAMP | Kind.TIMESTAMPTZ:
            return datetime(2020, 1, 1)
        case _:
            return place if scattered else 0


def _unknown_key(table: Table, unit: int, place: int, habit: Habit) -> str:
    if unit:
        return f"key {(unit * _rows_of_others(table) + place) % _shared_keys(table)}"
    match habit:
        case "scattered":
            return f"key {place % _shared_keys(table)}"
        case "spread":
            return f"key {place % _spread_over(table)}"
        case "own_key":
            return "own"
        case "own_keys":
            return f"own {place}"
        case _:
            return "key 0"


def _of_bounds(column: Column, lower: Bound, upper: Bound, *, heavy: bool) -> Value:
    """For the person, beyond the bound that is further from zero; for the others, as near to zero as possible."""
    if isinstance(lower, date) or isinstance(upper, date):
        return upper if heavy else lower  # type: ignore[return-value]  # a Fraction is no bound of a date
    nearest = min(max(Fraction(0), lower), upper)
    far = furthest(lower, upper)
    return _number(far + (far - nearest) if heavy else nearest, column.type)


def furthest(lower: Fraction, upper: Fraction) -> Fraction:
    """The bound that the heavy person exceeds."""
    return max(lower, upper, key=abs)


def _between(column: Column, lower: Bound, upper: Bound, share: Fraction) -> Value:
    if isinstance(lower, date) or isinstance(upper, date):
        return upper  # type: ignore[return-value]
    return _number(upper - (upper - lower) * share, column.type)


def _number(number: Fraction, type_: Type) -> Value:
    match type_.kind:
        case Kind.INTEGER:
            return int(number)
        case Kind.DECIMAL:
            return round(Decimal(number.numerator) / Decimal(number.denominator), type_.scale)
        case _:
            return float(number)
