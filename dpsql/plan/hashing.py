"""Values that remember their hash: they are looked up again and again, each time through all their parts."""

from __future__ import annotations

from dataclasses import fields
from functools import cache


class CachedHash:
    """A base for frozen dataclasses, which must say `__hash__ = CachedHash.__hash__`, or they would make their own.

    What is remembered is no field, so that it is neither compared nor copied into another process, where texts hash
    otherwise.
    """

    __slots__ = ("_hash", "_parts")
    _hash: int
    _parts: int  # what kinds of parts it has, once somebody has asked

    def __hash__(self) -> int:
        try:
            return self._hash
        except AttributeError:
            of: type = type(self)
            found = hash(tuple([getattr(self, name) for name in _compared(of)]))
            object.__setattr__(self, "_hash", found)
            return found


@cache
def _compared(of: type) -> tuple[str, ...]:
    return tuple(field.name for field in fields(of) if field.compare)
