"""Unknown keys: candidates in an order of their own, of which a threshold keeps some."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime

from dpsql.tables import columns_of
from dpsql.types import Value


def in_order(keys: Sequence[tuple[Value, ...]]) -> list[tuple[Value, ...]]:
    """An order of the keys' own, so that nothing of the engine's order shows."""
    kinds = [set(map(type, column)) for column in columns_of(keys)]
    if all(len(kind) == 1 and type(None) not in kind for kind in kinds):
        return sorted(keys)  # as by `_sort_key`, and much quicker
    return sorted(keys, key=_sort_key)


def _sort_key(key: tuple[Value, ...]) -> tuple[tuple[bool, object], ...]:
    return tuple((value is None, _comparable(value)) for value in key)


def _comparable(value: Value) -> object:
    if value is None:
        return 0
    if isinstance(value, date) and not isinstance(value, datetime):
        return datetime(value.year, value.month, value.day)
    return value
