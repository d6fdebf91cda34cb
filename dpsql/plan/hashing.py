"""Values that cache their hash, which would otherwise be computed over all their parts at each lookup."""

from __future__ import annotations

from dataclasses import fields
from functools import cache


class CachedHash:
    """A base for frozen dataclasses, which must set `__hash__ = CachedHash.__hash__`, or they would generate their own.

    The cache is not a field, so that it is neither compared nor copied into another process, where strings hash
    differently.
    """

    __slots__ = ("_hash", "_parts")
    _hash: int
    _parts: int  # the kinds of its parts, cached by `parts_in`

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
