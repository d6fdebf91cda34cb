"""PREPARE, EXECUTE and DEALLOCATE as SQL statements: the parts of their texts."""

from __future__ import annotations

from dataclasses import dataclass

from dpsql.sql.lexer import Sort, Token
from dpsql.wire.classify import Statement


def name_of(statement: Statement) -> str | None:
    """The name in PREPARE name … or EXECUTE name …."""
    return statement.words[1].text if len(statement.words) > 1 else None


def inside_prepare(statement: Statement) -> str | None:
    """The statement behind PREPARE name (types) AS."""
    depth = 0
    for word, following in zip(statement.words, statement.words[1:], strict=False):
        if word.sort is Sort.OPERATOR:
            depth += (word.text == "(") - (word.text == ")")
        elif depth == 0 and word.is_word("as"):
            return statement.source[following.start : statement.words[-1].end]
    return None


@dataclass(frozen=True, slots=True)
class Argument:
    start: int  # in the client's text
    text: str


def arguments(statement: Statement) -> list[Argument]:
    """The arguments in EXECUTE name (a, b)."""
    inside = statement.words[3:-1]
    groups: list[list[Token]] = [[]] if inside else []
    depth = 0
    for word in inside:
        if word.sort is Sort.OPERATOR:
            depth += (word.text in "([") - (word.text in ")]")
            if word.text == "," and depth == 0:
                groups.append([])
                continue
        groups[-1].append(word)
    return [Argument(group[0].start, statement.source[group[0].start : group[-1].end]) for group in groups if group]
