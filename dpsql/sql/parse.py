"""Text to syntax tree: one read-only statement in PostgreSQL's dialect, or a refusal.

sqlglot reads a superset of many dialects. What it would read differently from PostgreSQL is refused here,
on the tokens, before the tree is read; the resolver then checks the tree against an allow-list.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import sqlglot
from sqlglot import exp
from sqlglot.errors import ParseError, TokenError
from sqlglot.tokenizer_core import Token, TokenType

from dpsql.effort import spend
from dpsql.errors import NotSupported, ReadOnly, SqlSyntaxError, UnknownType
from dpsql.policy.model import StatementLimits
from dpsql.sql.checks import (
    check_brackets,
    check_bytes,
    check_calls,
    check_clauses,
    check_levels,
    check_nesting,
    check_words,
    with_subscripts,
)
from dpsql.sql.functions import SIGNATURES
from dpsql.sql.intervals import UNITS_HINT
from dpsql.sql.tokens import is_storable

_DEFAULT = StatementLimits()

_WRITES = frozenset(
    "INSERT UPDATE DELETE MERGE CREATE DROP ALTER TRUNCATE GRANT REVOKE COPY DO CALL VACUUM COMMENT IMPORT REFRESH "
    "LOCK REINDEX CLUSTER ANALYZE NOTIFY REASSIGN SECURITY LOAD ATTACH DETACH INSTALL EXPORT".split()
)
_EXPLAIN = re.compile(r"\s*EXPLAIN\b", re.IGNORECASE)
_QUERIES = frozenset({"SELECT", "WITH", "(", "VALUES", "TABLE"})
_SESSION = frozenset(
    "SET SHOW RESET BEGIN START COMMIT ROLLBACK END ABORT SAVEPOINT RELEASE DISCARD DEALLOCATE DECLARE FETCH MOVE "
    "CLOSE LISTEN UNLISTEN CHECKPOINT PREPARE EXECUTE".split()
)


@dataclass(frozen=True, slots=True)
class Statement:
    text: str
    tree: exp.Expression
    explain: bool


def parse(text: str, limits: StatementLimits = _DEFAULT) -> Statement:
    """The single statement in `text`, with EXPLAIN taken off."""
    check_bytes(text, limits)
    if not is_storable(text):
        raise SqlSyntaxError("the statement contains a zero byte or an unpaired surrogate")
    explain = _EXPLAIN.match(text)
    if explain is not None:
        text = _query_of_explain(text, explain.end())
    tokens = _tokenize(text)
    check_words(len(tokens), limits)
    spend(len(tokens))
    while tokens and tokens[-1].token_type is TokenType.SEMICOLON:
        tokens.pop()
    if not tokens:
        raise SqlSyntaxError("the statement is empty", hint="Write a SELECT.")
    for token in tokens:
        if token.token_type is TokenType.SEMICOLON:
            raise SqlSyntaxError("only one statement at a time", position=token.start + 1)
    _check_first_word(tokens)
    _check_spaces(tokens, text)
    check_brackets(tokens)
    _check_tokens(tokens, text, limits)
    check_levels(tokens)
    check_calls(tokens, SIGNATURES)
    check_clauses(tokens)
    return Statement(text, _tree(tokens, text), explain is not None)


def tree_of(text: str) -> exp.Expression:
    """The tree of a text that is known to be one statement."""
    tokens = _tokenize(text)
    while tokens and tokens[-1].token_type is TokenType.SEMICOLON:
        tokens.pop()
    return _tree(tokens, text)


def _tokenize(text: str) -> list[Token]:
    try:
        tokens = sqlglot.tokenize(_PARAMETER.sub(_spelled, text), read="postgres")
    except TokenError:
        raise SqlSyntaxError("a quoted string, identifier or comment is not terminated") from None
    return list(tokens)


# sqlglot takes "$1,$" for the beginning of a dollar-quoted string, so parameters are handed to it in another spelling.
_PARAMETER = re.compile(
    r"""'(?:[^']|'')*' | "(?:[^"]|"")*" | --[^\n]* | /\*.*?\*/ | [^\W\d][\w$]* | \$(\d+)""", re.DOTALL | re.VERBOSE
)


def _spelled(found: re.Match[str]) -> str:
    return found[0] if found[1] is None else f"@{found[1]}"


def is_explain(text: str) -> bool:
    return _EXPLAIN.match(text) is not None


def _query_of_explain(text: str, start: int) -> str:
    """The query after EXPLAIN, at its original offset, so that positions stay correct."""
    rest = text[start:]
    if (analyze := re.match(r"\s*ANALY[SZ]E\b", rest, re.IGNORECASE)) is not None:
        raise NotSupported(
            "EXPLAIN ANALYZE is not supported",
            hint="EXPLAIN shows price, noise and derivation without running the query.",
            position=start + analyze.end() - 6,
        )
    if (verbose := re.match(r"\s*VERBOSE\b", rest, re.IGNORECASE)) is not None:
        start += verbose.end()
    elif re.match(r"\s*\(\s*(?!SELECT\b|WITH\b|VALUES\b|TABLE\b|\()", rest, re.IGNORECASE) is not None:
        raise NotSupported("options of EXPLAIN are not supported", hint="Write EXPLAIN and the query.")
    return " " * start + text[start:]


def _check_first_word(tokens: list[Token]) -> None:
    token = tokens[0]
    word = token.text.upper() if token.token_type not in (TokenType.STRING, TokenType.IDENTIFIER) else ""
    if word in _QUERIES:
        return
    if word == "COPY" and not any(other.text.upper() == "FROM" for other in _outside_parentheses(tokens)):
        raise NotSupported("COPY … TO is not supported here", hint="Write the SELECT itself.", position=token.start + 1)
    if word in _WRITES:
        raise ReadOnly(
            f"cannot execute {word} in a read-only transaction",
            hint="dpsql answers SELECT; it never changes data.",
            position=token.start + 1,
        )
    if word in _SESSION:
        raise NotSupported(f"{word} is not supported here", position=token.start + 1)
    raise SqlSyntaxError(f'syntax error at or near "{token.text}"', position=token.start + 1)


def _check_spaces(tokens: list[Token], text: str) -> None:
    """Only PostgreSQL's whitespace separates words; in PostgreSQL other whitespace would be part of a name."""
    if _FOREIGN_SPACE.search(text) is None:
        return
    ends = [0, *(token.end + 1 for token in tokens)]
    starts = [*(token.start for token in tokens), len(text)]
    for end, start in zip(ends, starts, strict=True):
        if _FOREIGN_SPACE.search(_COMMENT.sub(" ", text[end:start])) is not None:
            raise SqlSyntaxError("invalid whitespace character", position=end + 1)
    for token in tokens:
        # sqlglot makes one word of several: GROUPING SETS.
        is_quoted = token.token_type in (TokenType.STRING, TokenType.IDENTIFIER, *_STRINGS)
        if not is_quoted and (found := _FOREIGN_SPACE.search(text, token.start, token.end + 1)) is not None:
            raise SqlSyntaxError("invalid whitespace character", position=found.start() + 1)


def _outside_parentheses(tokens: list[Token]) -> Iterator[Token]:
    depth = 0
    for token in tokens:
        depth += (token.token_type is TokenType.L_PAREN) - (token.token_type is TokenType.R_PAREN)
        if depth == 0:
            yield token


def _check_tokens(tokens: list[Token], text: str, limits: StatementLimits) -> None:
    depth = 0
    casts: list[bool] = []  # for each open parenthesis, whether it is that of a CAST
    before: Token | None = None
    for token, following in zip(tokens, [*tokens[1:], None], strict=True):
        kind = token.token_type
        if kind in (TokenType.L_PAREN, TokenType.CASE):
            depth += 1
            check_nesting(depth, token.start + 1, limits)
        elif kind in (TokenType.R_PAREN, TokenType.END):
            depth -= 1
        if kind is TokenType.L_PAREN:
            casts.append(before is not None and before.text.upper() == "CAST")
        elif kind is TokenType.R_PAREN and casts:
            casts.pop()
        if before is not None and (
            before.token_type is TokenType.DCOLON
            or (before.token_type is TokenType.ALIAS and casts and casts[-1] and kind is not TokenType.R_PAREN)
        ):
            _check_type_name(token, following)
        before = token
        if kind in _STRINGS:
            raise NotSupported(
                "this kind of string literal is not supported", hint="Write '…'.", position=token.start + 1
            )
        is_parameter = token.text == "@" and text[token.start] == "$"
        if _is_operator(token) and token.text not in _OPERATORS and not is_parameter:
            hint = "Use LIKE or ILIKE." if "~" in token.text else None
            raise NotSupported(f"the operator {token.text} is not supported", hint=hint, position=token.start + 1)
        if kind in _FOREIGN:
            raise SqlSyntaxError(f'syntax error at or near "{token.text}"', position=token.start + 1)
        if following is None:
            if kind is TokenType.COMMA:
                raise SqlSyntaxError("syntax error at end of input", position=token.start + 1)
            continue
        if kind is TokenType.NUMBER and following.start == token.end + 1 and _is_letter(text[following.start]):
            is_number = token.start == 0 or text[token.start - 1] != "$"
            what, start = ("numeric literal", token.start) if is_number else ("parameter", token.start - 1)
            raise SqlSyntaxError(f"trailing junk after {what}", position=start + 1)
        if kind is TokenType.STRING and following.token_type is TokenType.STRING:
            raise NotSupported(
                "adjacent string literals are not supported", hint="Write one literal.", position=following.start + 1
            )
        if kind is TokenType.INTERVAL and not _is_interval(following):
            raise NotSupported("this interval is not supported", hint=UNITS_HINT, position=following.start + 1)
        if kind is TokenType.FILTER and following.token_type is TokenType.L_PAREN:
            condition = tokens[tokens.index(following) + 1 :][:1]
            if not condition or condition[0].token_type is not TokenType.WHERE:
                raise SqlSyntaxError("FILTER needs WHERE", position=following.start + 1)
        if kind is TokenType.ALIAS and following.token_type is TokenType.STRING:
            raise SqlSyntaxError("expected a name, found a string", position=following.start + 1)
        if kind is TokenType.SELECT and following.token_type is TokenType.COMMA:
            raise SqlSyntaxError('syntax error at or near ","', position=following.start + 1)
        if kind is TokenType.COMMA and (
            following.token_type in (TokenType.FROM, TokenType.R_PAREN, TokenType.WHERE, TokenType.ORDER_BY)
        ):
            raise SqlSyntaxError(f'syntax error at or near "{following.text}"', position=following.start + 1)


def _is_interval(token: Token) -> bool:
    """Whether a literal is an interval of numbers and units; sqlglot drops what it does not know."""
    words = token.text.split()
    return token.token_type is TokenType.STRING and all(
        re.fullmatch(r"[+-]?\d+(\.\d+)?", word, re.ASCII) if i % 2 == 0 else word.lower().rstrip("s") in _UNITS
        for i, word in enumerate(words)
    )


_UNITS = frozenset(
    ("year", "quarter", "month", "week", "day", "hour", "minute", "second", "millisecond", "microsecond")
)


def _is_operator(token: Token) -> bool:
    if token.token_type in (TokenType.STRING, TokenType.IDENTIFIER, TokenType.NUMBER, *_STRINGS):
        return False
    return not any(character.isalnum() or character == "_" for character in token.text)


def _check_type_name(token: Token, following: Token | None) -> None:
    """Refuse type names that sqlglot accepts from other databases."""
    name = token.text.lower()
    if token.token_type is TokenType.IDENTIFIER or (name not in _TYPES and name not in _OTHER_TYPES):
        raise UnknownType(token.text, position=token.start + 1)
    sized = following is not None and following.token_type is TokenType.L_PAREN
    if name in _OTHER_TYPES or (sized and name not in ("numeric", "decimal", "dec")):
        size = "(n)" if sized else ""
        hint = "Use double precision." if name in ("real", "float4", "float") else None
        raise NotSupported(f"casts to {name}{size} are not supported", hint=hint, position=token.start + 1)


_TYPES = frozenset(
    "int integer int2 int4 int8 smallint bigint numeric decimal dec float float8 text varchar boolean bool date "
    "timestamp timestamptz interval".split()
) | {"double precision", "character varying"}
# Types of PostgreSQL that dpsql does not compute with.
_OTHER_TYPES = frozenset(
    "real float4 char character bpchar name bytea time timetz json jsonb uuid xml money bit varbit inet "
    "cidr macaddr point line circle box path polygon oid regclass tsvector tsquery int4range int8range daterange "
    "numrange tsrange tstzrange serial bigserial".split()
)
_OPERATORS = frozenset("( ) [ ] , . + - * / % ^ ^@ = < > <= >= <> != || :: $".split())

_WORD = frozenset("_abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")


def _is_letter(character: str) -> bool:
    """Whether a name may begin with it: to PostgreSQL every character beyond ASCII is a letter."""
    return character in _WORD or character > "\x7f"


_FOREIGN_SPACE = re.compile(r"[^\S \t\n\r\f]")
_COMMENT = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)

_STRINGS = frozenset(
    getattr(TokenType, f"{name}_STRING")
    for name in ("BYTE", "NATIONAL", "RAW", "HEREDOC", "UNICODE", "BIT", "HEX")
    if hasattr(TokenType, f"{name}_STRING")
)

# Tokens that sqlglot accepts and PostgreSQL does not, or reads differently.
_FOREIGN = frozenset(
    getattr(TokenType, name)
    for name in (
        "NULLSAFE_EQ",
        "QUALIFY",
        "PIVOT",
        "UNPIVOT",
        "PLACEHOLDER",
        "L_BRACE",
        "R_BRACE",
        "LAMBDA",
        "ARROW",
        "FARROW",
        "BLOCK_START",
        "BLOCK_END",
        "HINT",
    )
    if hasattr(TokenType, name)
)


def _tree(tokens: list[Token], text: str) -> exp.Expression:
    try:
        trees = sqlglot.Dialect.get_or_raise("postgres").parser().parse(with_subscripts(tokens), text)
    except ParseError as error:
        raise _syntax_error(error, text) from None
    except RecursionError:
        raise NotSupported("the statement is nested too deeply") from None
    tree = trees[0] if len(trees) == 1 else None
    if tree is None or not isinstance(tree, exp.Expression):
        raise SqlSyntaxError("the statement cannot be read")
    return tree


def _syntax_error(error: ParseError, text: str) -> SqlSyntaxError:
    details = error.errors[0] if error.errors else {}
    word = str(details.get("highlight") or "").strip()
    position = None
    line, column = details.get("line"), details.get("col")
    if isinstance(line, int) and isinstance(column, int):
        lines = text.splitlines(keepends=True)[: line - 1]
        # sqlglot gives the last column of the offending word
        position = max(1, sum(map(len, lines)) + column - len(word) + 1)
    message = f'syntax error at or near "{word}"' if word else "syntax error"
    return SqlSyntaxError(message, position=position)
