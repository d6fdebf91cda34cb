"""Converts the driver's placeholders, %(name)s and %s, to numbered parameters. Values never enter the text.

With parameters, a percent sign is written %% everywhere, also in strings, as in other drivers of this style.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import accumulate

from dpsql.errors import BadSetting, NotSupportedError, ProgrammingError, UnknownParameter
from dpsql.types import Value

Parameters = Mapping[str, object] | Sequence[object]

_PERCENT = r"%(?: (?P<percent>%) | (?P<placeholder>(?:\((?P<name>[^)]*)\))?s) )?"
_OUTSIDE = re.compile(
    rf"""
    (?P<comment> --[^\r\n]* | /\*.*?(?:\*/|\Z) )
    | (?P<quoted> '[^']*(?:'|\Z) | "[^"]*(?:"|\Z) )
    | (?P<numbered> (?<![\w$])\$\d+ )
    | {_PERCENT}
    """,
    re.VERBOSE | re.DOTALL,
)
_IN_QUOTES = re.compile(_PERCENT, re.VERBOSE)


@dataclass(frozen=True, slots=True)
class _Piece:
    """A part of the new text and its origin in the old one."""

    text: str
    start: int
    copied: bool  # character by character; otherwise it replaces the placeholder at `start`


@dataclass(frozen=True, slots=True)
class Bound:
    """A text with $1, $2, … and their values."""

    text: str
    values: tuple[Value, ...]
    _pieces: tuple[_Piece, ...] = ()

    def position_in_original(self, position: int) -> int:
        """The one-based position in the caller's text of a position in the new text."""
        if not self._pieces:
            return position
        starts = list(accumulate((len(piece.text) for piece in self._pieces[:-1]), initial=0))
        index = bisect_right(starts, position - 1) - 1
        piece = self._pieces[index]
        return piece.start + 1 + (position - 1 - starts[index] if piece.copied else 0)


def bind(text: str, parameters: Parameters | None) -> Bound:
    """Replace placeholders by numbered parameters. Without parameters the text is unchanged."""
    if parameters is None:
        return Bound(text, ())
    if not isinstance(parameters, Mapping | Sequence) or isinstance(parameters, str | bytes | bytearray):
        raise ProgrammingError("parameters must be a mapping or a sequence", hint='Pass {"name": value} or [value].')
    binder = _Binder(parameters)
    binder.read(text)
    return Bound("".join(piece.text for piece in binder.pieces), tuple(binder.values), tuple(binder.pieces))


class _Binder:
    def __init__(self, parameters: Parameters) -> None:
        self._parameters = parameters
        self._numbers: dict[str, int] = {}
        self.values: list[Value] = []
        self.pieces: list[_Piece] = []

    def read(self, text: str) -> None:
        done = 0
        for found in _OUTSIDE.finditer(text):
            self._copy(text, done, found.start())
            done = found.end()
            if found["comment"] is not None:
                self._copy(text, *found.span())
            elif found["quoted"] is not None:
                self._read_quoted(text, *found.span())
            elif found["numbered"] is not None:
                raise UnknownParameter(
                    f"there is no parameter {found[0]}", hint="Write %(name)s or %s.", position=found.start() + 1
                )
            elif found["placeholder"] is not None:
                self._bind(found)
            else:
                self._percent(text, found)
        self._copy(text, done, len(text))
        if isinstance(self._parameters, Sequence) and len(self.values) != len(self._parameters):
            raise ProgrammingError(
                f"the statement has {len(self.values)} placeholders, but {len(self._parameters)} parameters were given"
            )

    def _read_quoted(self, text: str, start: int, end: int) -> None:
        for found in _IN_QUOTES.finditer(text, start, end):
            self._copy(text, start, found.start())
            start = found.end()
            if found["placeholder"] is not None:
                # It would be part of the string constant, and silently match nothing.
                raise ProgrammingError(
                    f"placeholder {found[0]} is inside quotes",
                    hint="Write it without quotes; the value needs none.",
                    position=found.start() + 1,
                )
            self._percent(text, found)
        self._copy(text, start, end)

    def _percent(self, text: str, found: re.Match[str]) -> None:
        if found["percent"] is None:
            raise ProgrammingError(
                "a percent sign is not part of a placeholder",
                hint="Write %% for a percent sign when parameters are given.",
                position=found.start() + 1,
            )
        self._copy(text, found.start() + 1, found.end())

    def _copy(self, text: str, start: int, end: int) -> None:
        if start < end:
            self.pieces.append(_Piece(text[start:end], start, copied=True))

    def _bind(self, found: re.Match[str]) -> None:
        position = found.start() + 1
        number = self._positional(position) if found["name"] is None else self._named(found["name"], position)
        # Spaces around it, so that it never merges with a neighbouring word or digit.
        self.pieces.append(_Piece(f" ${number} ", found.start(), copied=False))

    def _named(self, name: str, position: int) -> int:
        if not isinstance(self._parameters, Mapping):
            raise ProgrammingError("named placeholders need a mapping of parameters", position=position)
        if name not in self._parameters:
            raise UnknownParameter(f'there is no parameter "{name}"', position=position)
        if name not in self._numbers:
            self.values.append(_value(self._parameters[name], f'parameter "{name}"', position))
            self._numbers[name] = len(self.values)
        return self._numbers[name]

    def _positional(self, position: int) -> int:
        if isinstance(self._parameters, Mapping):
            raise ProgrammingError("placeholders without names need a sequence of parameters", position=position)
        number = len(self.values) + 1
        # Missing values are reported once all placeholders are counted.
        given = self._parameters[number - 1] if number <= len(self._parameters) else None
        self.values.append(_value(given, f"parameter {number}", position))
        return number


def _value(given: object, what: str, position: int) -> Value:
    """The value as one of the supported types, never as a subclass."""
    value = _from_numpy(given)
    match value:
        case None | bool():
            return value
        case int() | float() | Decimal() if not _is_finite(value):
            raise BadSetting(f"{what} is not a finite number", position=position)
        case int():
            return int(value)
        case float():
            return float(value)
        case Decimal():
            return Decimal(value)
        case str():
            if "\0" in value or not _is_unicode(value):
                raise BadSetting(f"{what} contains a character that text cannot hold", position=position)
            return str.__str__(value)
        case datetime() if value.tzinfo is None and value == value:  # pandas' NaT is not equal to itself
            return datetime.combine(value.date(), value.time())
        case datetime() if value.tzinfo is not None and value == value:
            try:
                in_utc = value.astimezone(UTC)
            except OverflowError:
                raise BadSetting(f"{what} is out of range", position=position) from None
            return datetime.combine(in_utc.date(), in_utc.time(), UTC)
        case date() if not isinstance(value, datetime):
            return date(value.year, value.month, value.day)
        case _:
            raise NotSupportedError(f"{what} is of type {type(given).__name__}", hint=_hint(value), position=position)


def _hint(value: object) -> str:
    if isinstance(value, Iterable) and not isinstance(value, bytes | bytearray | memoryview):
        return "Write a placeholder for each value: IN (%(a)s, %(b)s)."
    return "Pass None, a bool, int, float, Decimal, str, date or datetime."


def _from_numpy(value: object) -> object:
    """A NumPy scalar as a Python value. Times finer than microseconds have none: NumPy would return an integer."""
    if type(value).__module__ != "numpy" or getattr(value, "shape", None) != ():
        return value
    plain: object = value.item()  # type: ignore[attr-defined]
    return value if isinstance(plain, int) and value.dtype.kind in "mM" else plain  # type: ignore[attr-defined]


def _is_finite(number: float | Decimal) -> bool:
    try:
        return math.isfinite(float(number))
    except (OverflowError, ValueError):  # an integer beyond all floats; a signalling NaN
        return False


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
