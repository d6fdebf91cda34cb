"""The shape of a statement, on its tokens: which functions it calls, with how many arguments; the order of clauses.

sqlglot knows functions of many databases under many names, drops surplus arguments of some, and takes clauses in any
order. What PostgreSQL would refuse is refused here, before the tree is looked at.
"""

from __future__ import annotations

from sqlglot.tokenizer_core import Token, TokenType

from dpsql.errors import NotSupported, SqlSyntaxError, UnknownFunction
from dpsql.sql.elsewhere import hint_for, is_in_postgres

_MANY = 10_000

_OPENING = (TokenType.L_PAREN, TokenType.L_BRACKET)
_CLOSING = (TokenType.R_PAREN, TokenType.R_BRACKET)

# The functions dpsql knows, with the least and the most arguments.
_FUNCTIONS: dict[str, tuple[int, int]] = {
    name: (int(low), int(high))
    for words in """
        0 0 row_number rank dense_rank percent_rank cume_dist pi mode now
        1 1 abs sign floor ceil ceiling sqrt ln log10 length char_length character_length lower upper date
        1 1 exp cbrt sin cos tan asin acos atan degrees radians position
        1 1 count sum avg min max stddev stddev_samp stddev_pop variance var_samp var_pop bool_and bool_or every
        1 1 median percentile_cont percentile_disc approx_count_distinct
        1 1 ntile first_value last_value trim extract
        1 1 dp_low dp_high
        1 2 round trunc log btrim ltrim rtrim age to_timestamp
        1 3 lag lead substring
        2 3 substr
        2 2 power pow atan2 div strpos starts_with to_char to_date
        2 2 mod nullif left right date_part nth_value timezone
        2 2 covar_pop covar_samp corr regr_slope regr_intercept
        2 2 regr_count regr_avgx regr_avgy regr_sxx regr_syy regr_sxy regr_r2
        2 3 generate_series date_trunc
        3 3 replace split_part date_bin make_date
        4 4 width_bucket
        1 10000 coalesce least greatest grouping concat
        2 10000 concat_ws
    """.strip().splitlines()
    for low, high, *names in [words.split()]
    for name in names
}

# Words before a parenthesis that call nothing.
_WORDS = frozenset(
    "IN AND OR NOT ON WHERE HAVING WHEN THEN ELSE SELECT FROM JOIN AS OVER FILTER USING VALUES EXISTS ANY ALL SOME BY "
    "ROLLUP CUBE BETWEEN LIKE ILIKE UNION EXCEPT INTERSECT LIMIT OFFSET DISTINCT CASE IS WITH MATERIALIZED SETS TABLE "
    "LATERAL ONLY CAST NUMERIC DECIMAL DEC ESCAPE FETCH FIRST NEXT CROSS INNER INTERVAL ROW ARRAY TIMESTAMP VARCHAR "
    "CHAR FLOAT".split()
) | {"GROUP BY", "ORDER BY", "PARTITION BY", "GROUPING SETS", "NOT IN"}


def check_calls(tokens: list[Token]) -> None:
    """Every function is one of ours, under PostgreSQL's name, with a number of arguments that it takes."""
    closing = _closing(tokens)
    for i, token in enumerate(tokens[:-1]):
        if tokens[i + 1].token_type is not TokenType.L_PAREN or not is_word(token):
            continue
        if token.text.upper() in _WORDS or _names_columns(tokens, i, closing):
            continue
        name = token.text.lower() if token.token_type is not TokenType.IDENTIFIER else token.text
        if name not in _FUNCTIONS:
            if is_in_postgres(name):
                message = f"function {name} cannot be used in a query over declared tables"
                raise NotSupported(message, hint=hint_for(name), position=token.start + 1)
            raise UnknownFunction(name, hint=hint_for(name), position=token.start + 1)
        low, high = _FUNCTIONS[name]
        count = _arguments(tokens, i + 1, closing)
        if not low <= count <= high:
            many = "no arguments" if count == 0 else f"{count} argument{'s' * (count > 1)}"
            raise UnknownFunction(f"{name} with {many}", position=token.start + 1)


def is_word(token: Token) -> bool:
    return token.token_type is TokenType.IDENTIFIER or token.text.replace(" ", "_").isidentifier()


def _closing(tokens: list[Token]) -> dict[int, int]:
    """For each opening parenthesis the place of its closing one."""
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
    """What was seen at one depth of parentheses."""

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
