"""How often sqlglot reads a text. It takes time, and is compiled: nobody else in the process runs meanwhile.

The name of a type before a bracket is read as a type first, then again as a call. Inside another one, each of the two
readings does so: every level of nesting doubles the time, and forty of them would take weeks. Some functions that
dpsql does not have are read twice as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlglot.parser import Parser
from sqlglot.tokenizer_core import Token, TokenType

from dpsql.errors import TooComplex

MOST_LEVELS = 3  # of calls that are named like types, in a query that is answered
MOST_READINGS = 200_000  # of single words, in a text whose functions may be any: about a second

_OPENING = frozenset({TokenType.L_PAREN, TokenType.L_BRACKET})
_CLOSING = frozenset({TokenType.R_PAREN, TokenType.R_BRACKET})


def check_levels(tokens: Sequence[Token]) -> None:
    """Refuse a query that would be read more than eight times.

    Needs: of the functions that dpsql has, only those that are named like types are read twice.
    """

    def is_doubled(opening: int) -> bool:
        return opening > 0 and tokens[opening - 1].token_type in Parser.TYPE_TOKENS

    if _deepest(tokens, is_doubled) > MOST_LEVELS:
        raise TooComplex(
            f"functions that are named like types are nested more than {MOST_LEVELS} deep",
            hint="Write a cast: x::date.",
        )


def is_read_soon(tokens: Sequence[Token]) -> bool:
    """Whether it can be read while others wait, even if every bracket doubles the time."""
    return len(tokens) << min(_deepest(tokens, lambda _: True), 64) <= MOST_READINGS


def _deepest(tokens: Sequence[Token], counts: Callable[[int], bool]) -> int:
    """How many brackets that count stand within each other."""
    within: list[bool] = []
    depth = deepest = 0
    for place, token in enumerate(tokens):
        if token.token_type in _OPENING:
            within.append(counts(place))
            depth += within[-1]
            deepest = max(deepest, depth)
        elif token.token_type in _CLOSING and within:
            depth -= within.pop()
    return deepest
