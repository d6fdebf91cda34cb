"""How large a query is, while it is read. What is beyond the owner's limits is refused; the hint names the limit."""

from __future__ import annotations

from dpsql.effort import spend
from dpsql.errors import TooComplex
from dpsql.policy.model import StatementLimits


class Meter:
    """Counts the parts of a query with views and common table expressions in their places: each use counts anew."""

    def __init__(self, limits: StatementLimits) -> None:
        self._limits = limits
        self._nodes = 0
        self._joins = 0

    def node(self) -> None:
        """A query block, or a part of an expression."""
        self._nodes += 1
        spend()
        if self._nodes > self._limits.max_nodes:
            raise TooComplex(f"the query has more than {self._limits.max_nodes:,} parts", hint=_hint("max_nodes"))

    def join(self, position: int | None) -> None:
        self._joins += 1
        if self._joins > self._limits.max_joins:
            message = f"the query has more than {self._limits.max_joins:,} joins"
            raise TooComplex(message, hint=_hint("max_joins"), position=position)

    def listed(self, values: int, position: int | None) -> None:
        if values > self._limits.max_list:
            message = f"IN lists more than {self._limits.max_list:,} values"
            raise TooComplex(message, hint=_hint("max_list"), position=position)


def check_bytes(text: str, limits: StatementLimits) -> None:
    if len(text) > limits.max_bytes or len(text.encode("utf-8", "surrogatepass")) > limits.max_bytes:
        raise TooComplex(f"the statement is longer than {limits.max_bytes:,} bytes", hint=_hint("max_bytes"))


def check_words(words: int, limits: StatementLimits) -> None:
    if words > limits.max_nodes:
        raise TooComplex(f"the statement has more than {limits.max_nodes:,} words", hint=_hint("max_nodes"))


def check_nesting(depth: int, position: int, limits: StatementLimits) -> None:
    if depth > limits.max_nesting:
        message = f"expressions are nested more than {limits.max_nesting} deep"
        raise TooComplex(message, hint=_hint("max_nesting"), position=position)


def _hint(setting: str) -> str:
    return f"Split it into smaller queries; the limit is {setting} in [limits] of the policy."
