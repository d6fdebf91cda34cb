"""A text as PostgreSQL's scanner cuts it: words, names, literals and whole operators; and a place in it."""

from __future__ import annotations

import re
from typing import NoReturn

from dpsql.errors import NameTooLong, SqlSyntaxError
from dpsql.sql.tokens import Sort, Token, tokens

# Of PostgreSQL 16 (pg_get_keywords): no name at all; the name of a function or type, not of a column; the reverse; and
# no name of an output column without AS.
_RESERVED = frozenset(
    "all analyse analyze and any array as asc asymmetric both case cast check collate column constraint create "
    "current_catalog current_date current_role current_time current_timestamp current_user default deferrable desc "
    "distinct do else end except false fetch for foreign from grant group having in initially intersect into lateral "
    "leading limit localtime localtimestamp not null offset on only or order placing primary references returning "
    "select session_user some symmetric system_user table then to trailing true union unique user using variadic when "
    "where window with".split()
)
_OF_FUNCTIONS = frozenset(
    "authorization binary collation concurrently cross current_schema freeze full ilike inner is isnull join left like "
    "natural notnull outer overlaps right similar tablesample verbose".split()
)
_OF_COLUMNS = frozenset(
    "between bigint bit boolean char character coalesce dec decimal exists extract float greatest grouping inout int "
    "integer interval json_array json_arrayagg json_object json_objectagg least national nchar none normalize nullif "
    "numeric out overlay position precision real row setof smallint substring time timestamp treat trim values varchar "
    "xmlattributes xmlconcat xmlelement xmlexists xmlforest xmlnamespaces xmlparse xmlpi xmlroot xmlserialize "
    "xmltable".split()
)
_NEEDS_AS = frozenset(
    "array as char character create day except fetch filter for from grant group having hour intersect into isnull "
    "limit minute month notnull offset on order over overlaps precision returning second to union varying where window "
    "with within without year".split()
)

_LONGEST_NAME = 63  # bytes; PostgreSQL cuts what is longer, and two names may become one
_OPERATOR = re.compile(r"[-+*/<>=~!@#%^&|`?]+")
_NUMBER = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


class Words:
    """The words of a statement, read from left to right."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.words = _whole(text)
        self.place = 0

    @property
    def word(self) -> Token | None:
        return self.words[self.place] if self.place < len(self.words) else None

    def fail(self) -> NoReturn:
        if self.word is None:
            raise SqlSyntaxError("syntax error at end of input", position=self.words[-1].end if self.words else 1)
        written = self.text[self.word.start : self.word.end]
        run_together = self.word.sort is Sort.OPERATOR and len(written) > 1
        hint = "PostgreSQL reads these signs as one operator: write spaces between several." if run_together else None
        raise SqlSyntaxError(f'syntax error at or near "{written}"', hint=hint, position=self.word.start + 1)

    def sees(self, *texts: str, ahead: int = 0) -> bool:
        """Whether the next word is one of these keywords or signs."""
        at = self.place + ahead
        if at >= len(self.words) or self.words[at].sort not in (Sort.WORD, Sort.OPERATOR):
            return False
        return self.words[at].text in texts

    def takes(self, *texts: str) -> bool:
        """Take these words, if all of them come next."""
        if not all(self.sees(text, ahead=ahead) for ahead, text in enumerate(texts)):
            return False
        self.place += len(texts)
        return True

    def takes_one(self, *texts: str) -> bool:
        found = self.sees(*texts)
        self.place += found
        return found

    def needs(self, *texts: str) -> None:
        for text in texts:
            if not self.takes(text):
                self.fail()

    def needs_one(self, *texts: str) -> None:
        if not self.takes_one(*texts):
            self.fail()

    def takes_sort(self, *sorts: Sort) -> bool:
        found = self.word is not None and self.word.sort in sorts
        self.place += found
        return found

    # --- names ---

    def is_column_name(self, ahead: int = 0) -> bool:
        return self._is_name(_RESERVED | _OF_FUNCTIONS, ahead)

    def is_function_name(self) -> bool:
        return self._is_name(_RESERVED | _OF_COLUMNS, 0)

    def is_bare_label(self) -> bool:
        return self._is_name(_NEEDS_AS, 0)

    def _is_name(self, never: frozenset[str], ahead: int) -> bool:
        at = self.place + ahead
        if at >= len(self.words) or not self.words[at].is_name:
            return False
        return self.words[at].sort is Sort.NAME or self.words[at].text not in never

    def needs_column_name(self) -> None:
        if not self.is_column_name():
            self.fail()
        self.place += 1

    def needs_label(self) -> None:
        """Behind AS or a point every word is a name."""
        if not self.takes_sort(Sort.WORD, Sort.NAME):
            self.fail()


def _whole(text: str) -> list[Token]:
    """Tokens, with operators as PostgreSQL cuts them: a!=-1 has one operator, a<-1 has two."""
    found: list[Token] = []
    end = -1  # of the operator that the next signs are part of
    for token in tokens(text):
        if token.start < end:
            continue
        if token.sort is Sort.NUMBER and _NUMBER.fullmatch(token.text) is None:
            raise SqlSyntaxError("trailing junk after numeric literal", position=token.start + 1)
        if token.sort is Sort.WORD and found and found[-1].sort is Sort.PARAMETER and found[-1].end == token.start:
            raise SqlSyntaxError("trailing junk after parameter", position=found[-1].start + 1)
        if token.is_name and len(token.text.encode()) > _LONGEST_NAME:
            raise NameTooLong(
                f"a name is longer than {_LONGEST_NAME} bytes",
                hint="PostgreSQL would truncate it.",
                position=token.start + 1,
            )
        if token.sort is Sort.OPERATOR and (operator := _operator(text, token.start)):
            end = token.start + len(operator)
            token = Token(Sort.OPERATOR, operator, token.start, end)
        elif text.startswith("::", token.start):
            end = token.start + 2
            token = Token(Sort.OPERATOR, "::", token.start, end)
        found.append(token)
    while found and found[-1].text == ";" and found[-1].sort is Sort.OPERATOR:
        found.pop()
    return found


def _operator(text: str, start: int) -> str:
    """The longest run of signs, up to a comment; it ends in + or - only if a sign is in it that arithmetic has not."""
    match = _OPERATOR.match(text, start)
    if match is None:
        return ""
    signs = re.split(r"--|/\*", match[0], maxsplit=1)[0]
    while len(signs) > 1 and signs[-1] in "+-" and not re.search(r"[~!@#%^&|`?]", signs[:-1]):
        signs = signs[:-1]
    return signs
