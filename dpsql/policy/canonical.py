"""Canonical texts of values: two texts are equal only if the values are. Identities are hashes of them.

A text is a leaf, its length and its characters (`3:i42`), or a term, texts between parentheses (`(1:T3:i423:i43)`). It
can be parsed from left to right without ambiguity, so different trees have different texts, and concatenated texts can
be separated. The first character of a leaf says what kind of value it is.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import MISSING, fields, is_dataclass
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from itertools import chain
from operator import attrgetter
from typing import Any


def leaf(text: str) -> str:
    return f"{len(text)}:{text}"


def term(*parts: str) -> str:
    return f"({''.join(parts)})"


def digest(text: str) -> bytes:
    """Texts sent by clients may hold surrogates, which UTF-8 cannot encode."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


class Canonical:
    """Writes values of a closed set of types; a subclass adds further ones."""

    def text(self, value: object) -> str:
        of = type(value)
        if (simple := _LEAVES.get(of)) is not None:
            return leaf(simple(value))
        if (written := self.special(value)) is not None:
            return written
        if isinstance(value, Enum):
            return leaf(f"e{of.__name__}.{value.value}")
        if is_dataclass(value):
            return self.dataclass_text(value)
        if isinstance(value, Mapping):
            pairs = sorted((self.text(name), self.text(each)) for name, each in value.items())
            return term(leaf("M"), *(part for pair in pairs for part in pair))
        if isinstance(value, Set):
            return term(leaf("S"), *sorted(map(self.text, value)))
        if isinstance(value, Sequence):
            return f"(1:T{''.join(map(self.text, value))})"
        raise TypeError(f"{of.__name__} has no canonical text")

    def special(self, value: object) -> str | None:
        """The text of a value that is not written field by field; None for other values."""
        del value
        return None

    def dataclass_text(self, value: object, without: Set[str] = frozenset()) -> str:
        """Required fields, in their order; then, by name, optional fields that differ from their default.

        A new field whose default describes all earlier values therefore changes no text.
        """
        of = type(value)
        if of not in _FIELDS:
            _FIELDS[of] = _fields_of(of)
        name, read, defaults = _FIELDS[of]
        parts = [name]
        for (field, default), each in zip(defaults, read(value), strict=True):
            if field in without:
                continue
            if default is None:
                parts.append(self.text(each))
            elif (written := self.text(each)) != default:
                parts += (leaf(f"k{field}"), written)
        return f"({''.join(parts)})"


_LEAVES: dict[type, Callable[..., str]] = {
    type(None): lambda _: "n",
    bool: lambda value: "b1" if value else "b0",
    int: lambda value: f"i{value}",
    float: lambda value: f"f{value.hex()}",  # zeros have signs
    str: lambda value: f"s{value}",
    bytes: lambda value: f"x{value.hex()}",
    Decimal: lambda value: f"m{value}",
    Fraction: lambda value: f"q{value}",
    datetime: lambda value: f"t{value.isoformat()}",
    date: lambda value: f"d{value.isoformat()}",
}


_Fields = tuple[str, Callable[[object], tuple[object, ...]], tuple[tuple[str, str | None], ...]]
_FIELDS: dict[type, _Fields] = {}


def _fields_of(of: Any) -> _Fields:
    """The name of a dataclass as a leaf, a getter for its compared fields, and these with their defaults.

    A renamed class keeps its old name here (`CANONICAL_NAME`), so that stored answers are still found.
    """
    compared = [field for field in fields(of) if field.compare]
    defaults = tuple((each.name, None if each.default is MISSING else canonical(each.default)) for each in compared)
    names = [field.name for field in compared]
    read = attrgetter(*names) if len(names) > 1 else lambda value: tuple(getattr(value, name) for name in names)
    return leaf(f"c{getattr(of, 'CANONICAL_NAME', of.__name__)}"), read, defaults


def canonical(value: object) -> str:
    return _PLAIN.text(value)


def rows_text(rows: Sequence[Sequence[object]]) -> str:
    """Rows of values, possibly many: types that JSON distinguishes are written by it, which is fast."""
    if _JSON.issuperset(map(type, chain.from_iterable(rows))):
        return leaf(json.dumps(rows, ensure_ascii=False, separators=(",", ":")))
    return f"(1:T{''.join([_row_text(row) for row in rows])})"  # as `canonical` writes them, in less time


def _row_text(row: Sequence[object]) -> str:
    found = [(_LEAVES.get(type(each)), each) for each in row]
    return f"(1:T{''.join([canonical(each) if simple is None else leaf(simple(each)) for simple, each in found])})"


_JSON = frozenset((bool, int, float, str, type(None)))


_PLAIN = Canonical()
