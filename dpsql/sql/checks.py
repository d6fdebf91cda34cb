"""Checks on the tokens of a statement, before sqlglot reads it: calls, clauses, brackets, rereading, size.

The calls of a statement, with their numbers of arguments, and the order of its clauses.

sqlglot knows functions of many databases under many names, drops surplus arguments of some, and takes clauses in any
order. What PostgreSQL would refuse is refused here, before the tree is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from sqlglot.parser import Parser
from sqlglot.tokenizer_core import Token, TokenType

from dpsql.effort import spend
from dpsql.errors import NotSupported, SqlSyntaxError, TooComplex, UnknownFunction
from dpsql.policy.model import StatementLimits
from dpsql.sql.unsupported import hint_for, is_in_postgres

_OPENING = (TokenType.L_PAREN, TokenType.L_BRACKET)
_CLOSING = (TokenType.R_PAREN, TokenType.R_BRACKET)

_ALIKE = 0.75  # similarity above which one name is suggested for another
_LONGEST_NAME = 63

# Words before a parenthesis that are not function calls.
_WORDS = frozenset(
    "IN AND OR NOT ON WHERE HAVING WHEN THEN ELSE SELECT FROM JOIN AS OVER FILTER USING VALUES EXISTS ANY ALL SOME BY "
    "ROLLUP CUBE BETWEEN LIKE ILIKE UNION EXCEPT INTERSECT LIMIT OFFSET DISTINCT CASE IS WITH MATERIALIZED SETS TABLE "
    "LATERAL ONLY CAST NUMERIC DECIMAL DEC ESCAPE FETCH FIRST NEXT CROSS INNER INTERVAL ROW ARRAY TIMESTAMP VARCHAR "
    "CHAR FLOAT".split()
) | {"GROUP BY", "ORDER BY", "PARTITION BY", "GROUPING SETS", "NOT IN"}


@dataclass(frozen=True, slots=True)
class Signature:
    """How a function is called."""

    least: int  # arguments
    most: int
    forms: tuple[str, ...]  # one for each overload


def check_calls(tokens: list[Token], functions: Mapping[str, Signature]) -> None:
    """Refuse functions that are not supported under this name with this number of arguments."""
    closing = _closing(tokens)
    for i, token in enumerate(tokens[:-1]):
        if tokens[i + 1].token_type is not TokenType.L_PAREN or not is_word(token):
            continue
        if token.text.upper() in _WORDS or _names_columns(tokens, i, closing):
            continue
        name = token.text.lower() if token.token_type is not TokenType.IDENTIFIER else token.text
        if name not in functions:
            if is_in_postgres(name):
                message = f"function {name} cannot be used in a query over declared tables"
                raise NotSupported(message, hint=hint_for(name), position=token.start + 1)
            raise UnknownFunction(name, hint=hint_for(name) or _similar(name, functions), position=token.start + 1)
        signature = functions[name]
        count = _arguments(tokens, i + 1, closing)
        if not signature.least <= count <= signature.most:
            many = "no arguments" if count == 0 else f"{count} argument{'s' * (count > 1)}"
            hint = f"Write {' or '.join(signature.forms)}."
            raise UnknownFunction(f"{name} with {many}", hint=hint, position=token.start + 1)


def _similar(name: str, functions: Iterable[str]) -> str | None:
    """A hint that names the most similar function."""
    near = get_close_matches(name, functions, n=1, cutoff=_ALIKE) if len(name) <= _LONGEST_NAME else []
    return f'Perhaps you meant the function "{near[0]}".' if near else None


def is_word(token: Token) -> bool:
    return token.token_type is TokenType.IDENTIFIER or token.text.replace(" ", "_").isidentifier()


def _closing(tokens: list[Token]) -> dict[int, int]:
    """For each opening parenthesis, the index of its closing one."""
    found: dict[int, int] = {}
    stack: list[int] = []
    for i, token in enumerate(tokens):
        if token.token_type is TokenType.L_PAREN:
            stack.append(i)
        elif token.token_type is TokenType.R_PAREN and stack:
            found[stack.pop()] = i
    return found


def _names_columns(tokens: list[Token], i: int, closing: dict[int, int]) -> bool:
    """Whether a word and its parenthesis are an alias with columns: FROM x AS t (a, b), or WITH t (a, b) AS (…)."""
    before = tokens[i - 1] if i else None
    if before is None:
        return False
    if before.token_type in (TokenType.ALIAS, TokenType.R_PAREN, TokenType.VAR, TokenType.IDENTIFIER, TokenType.STAR):
        return True
    if before.text.upper() in ("INTO", "TABLESAMPLE"):
        return True
    after = closing.get(i + 1, len(tokens)) + 1
    is_cte = after < len(tokens) and tokens[after].token_type is TokenType.ALIAS
    return is_cte and (before.token_type in (TokenType.WITH, TokenType.COMMA) or before.text.upper() == "RECURSIVE")


def _arguments(tokens: list[Token], opening: int, closing: dict[int, int]) -> int:
    end = closing.get(opening)
    if end is None or end == opening + 1:
        return 0
    depth, count = 0, 1
    for token in tokens[opening + 1 : end]:
        depth += (token.token_type in _OPENING) - (token.token_type in _CLOSING)
        count += depth == 0 and token.token_type is TokenType.COMMA
    return count


_CLAUSES = {
    TokenType.FROM: 1,
    TokenType.WHERE: 2,
    TokenType.GROUP_BY: 3,
    TokenType.HAVING: 4,
    TokenType.WINDOW: 5,
    TokenType.ORDER_BY: 6,
    TokenType.LIMIT: 7,
    TokenType.OFFSET: 7,
    TokenType.FETCH: 7,
}
_RESTART = (TokenType.SELECT, TokenType.UNION, TokenType.INTERSECT, TokenType.EXCEPT)


class _Level:
    """The clauses seen at one depth of parentheses."""

    def __init__(self) -> None:
        self.clause = 0
        self.joins = 0
        self.last_join: Token | None = None


def check_clauses(tokens: list[Token]) -> None:
    """The clauses of a SELECT come in PostgreSQL's order, and every JOIN has its condition."""
    levels = [_Level()]
    before: Token | None = None
    for token in tokens:
        level = levels[-1]
        kind = token.token_type
        if kind is TokenType.L_PAREN:
            levels.append(_Level())
        elif kind is TokenType.R_PAREN and len(levels) > 1:
            _check_joins(levels.pop())
        elif kind in _RESTART:
            _check_joins(level)
            level.clause, level.joins = 0, 0
        elif kind in _CLAUSES and not (kind is TokenType.FROM and _is_operand(before)):
            if _CLAUSES[kind] < level.clause:
                raise SqlSyntaxError(f'syntax error at or near "{token.text}"', position=token.start + 1)
            level.clause = _CLAUSES[kind]
        elif kind is TokenType.COMMA and level.clause == _CLAUSES[TokenType.LIMIT]:
            raise SqlSyntaxError("LIMIT #,# syntax is not supported", position=token.start + 1)
        elif kind is TokenType.JOIN:
            level.joins += 1
            level.last_join = token
        elif kind in (TokenType.CROSS, TokenType.NATURAL, TokenType.USING) or (
            kind is TokenType.ON and not (before is not None and before.token_type is TokenType.DISTINCT)
        ):
            level.joins -= 1
        before = token
    for level in levels:
        _check_joins(level)


def _is_operand(before: Token | None) -> bool:
    """IS DISTINCT FROM is a comparison, not a clause."""
    return before is not None and before.token_type is TokenType.DISTINCT


def _check_joins(level: _Level) -> None:
    if level.joins == 0 or level.last_join is None:
        return
    message = "JOIN needs ON or USING" if level.joins > 0 else "a join has two conditions"
    raise SqlSyntaxError(message, position=level.last_join.start + 1)


# ------------------------------------------------------------ Brackets, on the tokens: ARRAY[…] and text[] list the
# fractions of percentiles, or the values of = ANY. (…)[2] takes one of several percentiles.
#
# All else that PostgreSQL writes with brackets is refused here, before sqlglot reads it. It counts subscripts from
# zero or from one by what it takes the type of their operand for, and looks through the whole operand at each.

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
    """The tokens with each subscript in quotes, which sqlglot does not change."""
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
    """Whether the bracket follows a type: text[]."""
    named = place > 1 and tokens[place - 1].text.upper() in _OF_LISTS
    return (
        named and tokens[place - 2].token_type is TokenType.DCOLON and _follows(tokens, place + 1, TokenType.R_BRACKET)
    )


def _is_subscript(tokens: Sequence[Token], place: int) -> bool:
    """Whether the bracket holds a plain number and follows a name or a parenthesis."""
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
                raise TooComplex(message, hint="Use an array with one dimension.", position=token.start + 1)


# ------------------------------------------------------------
# How often sqlglot reads a text. Parsing is compiled code, which blocks the whole process.
#
# The name of a type before a bracket is read as a type first, then again as a call. Inside another one, each of the
# two readings does so: every level of nesting doubles the time, and forty of them would take weeks. Some functions
# that dpsql does not have are read twice as well.

MOST_TYPE_CALLS = 3  # of calls that are named like types, in a query that is answered
MOST_READINGS = 200_000  # of single words, in a text whose functions may be any: about a second

_OPEN = frozenset({TokenType.L_PAREN, TokenType.L_BRACKET})
_CLOSE = frozenset({TokenType.R_PAREN, TokenType.R_BRACKET})


def check_levels(tokens: Sequence[Token]) -> None:
    """Refuse a query that would be read more than eight times.

    Needs: of the functions that dpsql has, only those that are named like types are read twice.
    """

    def is_doubled(opening: int) -> bool:
        return opening > 0 and tokens[opening - 1].token_type in Parser.TYPE_TOKENS

    if _deepest(tokens, is_doubled) > MOST_TYPE_CALLS:
        raise TooComplex(
            f"functions with names of types are nested more than {MOST_TYPE_CALLS} deep",
            hint="Write a cast: x::date.",
        )


def is_read_soon(tokens: Sequence[Token]) -> bool:
    """Whether parsing is fast enough to block the process, even if every bracket doubles the time."""
    return len(tokens) << min(_deepest(tokens, lambda _: True), 64) <= MOST_READINGS


def _deepest(tokens: Sequence[Token], counts: Callable[[int], bool]) -> int:
    """The depth of nested brackets, of those that count."""
    within: list[bool] = []
    depth = deepest = 0
    for place, token in enumerate(tokens):
        if token.token_type in _OPEN:
            within.append(counts(place))
            depth += within[-1]
            deepest = max(deepest, depth)
        elif token.token_type in _CLOSE and within:
            depth -= within.pop()
    return deepest


# ------------------------------------------------------------
# The size of a query, checked while it is read. A query beyond the owner's limits is refused; the hint names the limit.


class Meter:
    """Counts the parts of a query after views and common table expressions are expanded: each use counts."""

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
