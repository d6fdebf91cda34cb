"""Brackets, on the tokens: ARRAY[…] lists the shares of a percentile, or what = ANY compares with; so does text[].

(…)[2] takes one value of the percentiles.

All else that PostgreSQL writes with brackets is refused here, before sqlglot reads it. It counts subscripts from zero
or from one by what it takes the type of their operand for, and looks through the whole operand at each.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot.tokenizer_core import Token, TokenType

from dpsql.errors import NotSupported, TooComplex
from dpsql.sql.shape import is_word

MOST_LEVELS = 3  # of operands with a subscript within each other
_LONGEST = 9  # digits of a subscript: one of more is beyond PostgreSQL's integers, or nearly

_HINT = "ARRAY[…] lists the shares of a percentile, and (…)[2] takes one value of it; write IN (…) for other lists."
_OF_LISTS = frozenset("INT INTEGER INT4 INT8 BIGINT SMALLINT TEXT VARCHAR NUMERIC FLOAT8 DATE".split())


def check_brackets(tokens: Sequence[Token]) -> None:
    for place, token in enumerate(tokens):
        if token.token_type is not TokenType.L_BRACKET:
            continue
        if not (_lists(tokens, place) or _is_subscript(tokens, place) or _is_of_type(tokens, place)):
            raise NotSupported("an array is not supported here", hint=_HINT, position=token.start + 1)
    _check_levels(tokens)


def with_subscripts(tokens: list[Token]) -> list[Token]:
    """The tokens with each subscript in quotes, which sqlglot leaves as it is."""
    found = list(tokens)
    for place, token in enumerate(tokens):
        if token.token_type is TokenType.L_BRACKET and _is_subscript(tokens, place):
            number = tokens[place + 1]
            found[place + 1] = Token(
                TokenType.STRING, number.text, number.line, number.col, number.start, number.end, number.comments
            )
    return found


def _lists(tokens: Sequence[Token], place: int) -> bool:
    return place > 0 and tokens[place - 1].token_type is TokenType.ARRAY


def _is_of_type(tokens: Sequence[Token], place: int) -> bool:
    """Whether it stands behind a type: text[]."""
    named = place > 1 and tokens[place - 1].text.upper() in _OF_LISTS
    return (
        named and tokens[place - 2].token_type is TokenType.DCOLON and _follows(tokens, place + 1, TokenType.R_BRACKET)
    )


def _is_subscript(tokens: Sequence[Token], place: int) -> bool:
    """Whether a plain number stands in brackets, behind a name or a parenthesis."""
    before = tokens[place - 1] if place else None
    if before is None or _lists(tokens, place) or not (before.token_type is TokenType.R_PAREN or is_word(before)):
        return False
    if not _follows(tokens, place + 1, TokenType.NUMBER) or not _follows(tokens, place + 2, TokenType.R_BRACKET):
        return False
    number = tokens[place + 1].text
    return number.isascii() and number.isdigit() and len(number) <= _LONGEST


def _follows(tokens: Sequence[Token], place: int, kind: TokenType) -> bool:
    return place < len(tokens) and tokens[place].token_type is kind


def _check_levels(tokens: Sequence[Token]) -> None:
    levels = [0]  # the most levels seen so far in each open parenthesis
    for place, token in enumerate(tokens):
        if token.token_type is TokenType.L_PAREN:
            levels.append(0)
        elif token.token_type is TokenType.R_PAREN and len(levels) > 1:
            inner = levels.pop() + _follows(tokens, place + 1, TokenType.L_BRACKET)
            levels[-1] = max(levels[-1], inner)
            if inner > MOST_LEVELS:
                message = f"subscripts are nested more than {MOST_LEVELS} deep"
                raise TooComplex(message, hint="An array of a percentile has one level.", position=token.start + 1)
