"""PostgreSQL's tokens, in enough detail to distinguish statements, names, strings and parameters.

Unterminated text becomes one last token: the twin's own scanner then reports the error.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto

import sqlglot
from sqlglot import exp

from dpsql.sql.checks import is_read_soon
from dpsql.sql.scope import fold, folded


class Sort(Enum):
    WORD = auto()  # a keyword or an unquoted name, folded
    NAME = auto()  # a quoted name, unquoted
    STRING = auto()
    PARAMETER = auto()
    NUMBER = auto()
    OPERATOR = auto()  # one character of punctuation


@dataclass(frozen=True, slots=True)
class Token:
    sort: Sort
    text: str
    start: int
    end: int  # after the last character

    @property
    def is_name(self) -> bool:
        return self.sort in (Sort.WORD, Sort.NAME)

    def is_word(self, *words: str) -> bool:
        return self.sort is Sort.WORD and self.text in words


_SPACE = " \t\n\r\f"  # PostgreSQL 16 has no vertical tab among them
_WORD = re.compile(r"[A-Za-z_\x80-\U0010ffff][A-Za-z0-9_$\x80-\U0010ffff]*")
_NUMBER = re.compile(r"\.?[0-9](?:[0-9A-Za-z_.\x80-\U0010ffff]|(?<=[eE])[+-])*")
_PARAMETER = re.compile(r"\$([0-9]+)")
_DOLLAR = re.compile(r"\$(?:[A-Za-z_\x80-\U0010ffff][A-Za-z0-9_\x80-\U0010ffff]*)?\$")
_LINE_END = re.compile(r"[\n\r]")
_COMMENT_EDGE = re.compile(r"/\*|\*/")
_UNICODE = re.compile(r"\\(?:\\|([0-9A-Fa-f]{4})|\+([0-9A-Fa-f]{6}))")


def is_storable(text: str) -> bool:
    """Whether text can be sent to a database: no zero byte, no lone surrogate."""
    return "\x00" not in text and not any("\ud800" <= character <= "\udfff" for character in text)


def tokens(text: str, *, standard_strings: bool = True, most: int | None = None) -> list[Token]:
    """The tokens of a text, or the first so many. Without `standard_strings` a backslash escapes in plain strings."""
    found: list[Token] = []
    at = 0
    while at < len(text) and (most is None or len(found) < most):
        character = text[at]
        if character in _SPACE:
            at += 1
        elif text.startswith("--", at):
            at = _end_of_line(text, at)
        elif text.startswith("/*", at):
            at = _end_of_comment(text, at)
        else:
            token = _token(text, at, standard_strings)
            found.append(token)
            at = token.end
    return found


def statements(found: list[Token]) -> list[list[Token]]:
    """The tokens of each statement, without the semicolons; empty statements are left out."""
    parts: list[list[Token]] = [[]]
    depth = 0
    for token in found:
        if token.sort is Sort.OPERATOR:
            depth += (token.text == "(") - (token.text == ")")
            if token.text == ";" and depth <= 0:
                parts.append([])
                depth = 0
                continue
        parts[-1].append(token)
    return [part for part in parts if part]


def _token(text: str, at: int, standard_strings: bool) -> Token:
    character = text[at]
    if character == "'":
        return _string(text, at, at, escapes=not standard_strings)
    if character == '"':
        return _quoted_name(text, at, at)
    following = text[at + 1 : at + 2]
    if character in "eE" and following == "'":
        return _string(text, at, at + 1, escapes=True)
    if character in "bBxXnN" and following == "'":
        return _string(text, at, at + 1, escapes=not standard_strings and character in "nN")
    if character in "uU" and following == "&":
        quote = text[at + 2 : at + 3]
        if quote == "'":
            return _string(text, at, at + 2, escapes=False)
        if quote == '"':
            name = _quoted_name(text, at, at + 2)
            return Token(name.sort, _UNICODE.sub(_decoded, name.text), at, name.end)
    if character == "$":
        if (parameter := _PARAMETER.match(text, at)) is not None:
            return Token(Sort.PARAMETER, parameter[1], at, parameter.end())
        if (dollar := _DOLLAR.match(text, at)) is not None:
            end = text.find(dollar[0], dollar.end())
            end = len(text) if end < 0 else end + len(dollar[0])
            return Token(Sort.STRING, text[at:end], at, end)
    if (word := _WORD.match(text, at)) is not None:
        return Token(Sort.WORD, fold(word[0]), at, word.end())
    if (number := _NUMBER.match(text, at)) is not None:
        return Token(Sort.NUMBER, number[0], at, number.end())
    return Token(Sort.OPERATOR, character, at, at + 1)


def _string(text: str, start: int, quote: int, *, escapes: bool) -> Token:
    at = quote + 1
    while at < len(text):
        if escapes and text[at] == "\\":
            at += 2
        elif text[at] != "'":
            at += 1
        elif text.startswith("''", at):
            at += 2
        else:
            return Token(Sort.STRING, text[start : at + 1], start, at + 1)
    return Token(Sort.STRING, text[start:], start, len(text))


def _quoted_name(text: str, start: int, quote: int) -> Token:
    at = quote + 1
    while (at := text.find('"', at)) >= 0:
        if not text.startswith('""', at):
            return Token(Sort.NAME, text[quote + 1 : at].replace('""', '"'), start, at + 1)
        at += 2
    return Token(Sort.NAME, text[quote + 1 :], start, len(text))


def _decoded(escape: re.Match[str]) -> str:
    code = escape[1] or escape[2]
    if code is None:
        return "\\"
    return chr(int(code, 16)) if int(code, 16) < 0x110000 else "\ufffd"


def _end_of_line(text: str, at: int) -> int:
    end = _LINE_END.search(text, at)
    return len(text) if end is None else end.start()


def _end_of_comment(text: str, at: int) -> int:
    """Comments nest."""
    depth = 0
    while (edge := _COMMENT_EDGE.search(text, at)) is not None:
        depth += 1 if edge[0] == "/*" else -1
        at = edge.end()
        if depth == 0:
            return at
    return len(text)


# ------------------------------------------------------------
# The tables that a query names, which distinguish queries for the engine from catalog queries.


def mentioned_tables(text: str) -> set[str] | None:
    """The last parts of all table names in a statement, including CTEs; None if it cannot be read fast enough."""
    try:
        tokens = sqlglot.tokenize(text, read="postgres")
        if not is_read_soon(tokens):
            return None
        trees = sqlglot.Dialect.get_or_raise("postgres").parser().parse(tokens, text)
    except Exception:  # sqlglot raises errors other than its own
        return None
    if len(trees) != 1 or trees[0] is None or isinstance(trees[0], exp.Command):
        return None
    return {folded(table.this) for table in trees[0].find_all(exp.Table) if isinstance(table.this, exp.Identifier)}
