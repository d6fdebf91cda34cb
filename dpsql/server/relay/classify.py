"""Classifies a statement: passed to the twin unchanged, or answered by the dataset.

A wrong guess costs convenience, never privacy: the twin holds no rows, and a client's role may not even read its empty
tables, so a query that is passed on by mistake is refused there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import lru_cache
from itertools import accumulate

from dpsql.errors import Error, NotSupported, ReadOnly, TooComplex
from dpsql.sql.tokens import Sort, Token, mentioned_tables, statements, tokens


class Kind(Enum):
    PASS = auto()  # the twin's text
    QUERY = auto()  # answered by the dataset
    WRAPPED = auto()  # DECLARE … FOR query, COPY (query) TO, CREATE TEMP TABLE … AS query
    EXPLAIN = auto()
    EXECUTE = auto()  # of a statement prepared in SQL, which may be the dataset's
    REFUSED = auto()


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement in the text that the client sent."""

    kind: Kind
    source: str  # the whole text
    words: tuple[Token, ...]
    start: int = 0  # of the query inside
    end: int = 0  # of the query inside
    refusal: Error | None = None
    json: bool = False  # EXPLAIN (FORMAT JSON)
    rewritten: bool = False  # the source is generated, so positions in it mean nothing to the client

    @property
    def text(self) -> str:
        """The statement behind as many blanks as text preceded it, so that positions are those of the client's text."""
        start = self.words[0].start
        return " " * start + self.source[start : self.words[-1].end]

    @property
    def question(self) -> str:
        """The query inside."""
        return self.source[self.start : self.end]

    @property
    def query(self) -> str:
        """The query inside, at its position."""
        return " " * self.start + self.question

    @property
    def before(self) -> str:
        return self.source[self.words[0].start : self.start]

    @property
    def behind(self) -> str:
        return self.source[self.end : self.words[-1].end]

    @property
    def wants_no_rows(self) -> bool:
        """CREATE TABLE … AS … WITH NO DATA."""
        return self.first_word == "create" and self.behind.lower().split() == ["with", "no", "data"]

    @property
    def first_word(self) -> str:
        return self.words[0].text if self.words and self.words[0].sort is Sort.WORD else ""

    @property
    def controls_transaction(self) -> bool:
        return self.first_word in _TRANSACTION or (
            self.first_word == "prepare" and len(self.words) > 1 and self.words[1].is_word("transaction")
        )

    @property
    def copies_in(self) -> bool:
        """COPY … FROM STDIN: the client sends data next."""
        return self.first_word == "copy" and any(
            word.is_word("from") and following.is_word("stdin")
            for word, following in zip(self.words, self.words[1:], strict=False)
        )

    @property
    def reads_portal(self) -> bool:
        return self.first_word in ("fetch", "move")

    def names(self, *names: str) -> bool:
        return any(word.is_name and word.text in names for word in self.words)


_TRANSACTION = frozenset("begin start commit end rollback abort savepoint release".split())
_QUERIES = frozenset("select with values table".split())
# These may use a declared table's name for something else (a cursor, a channel), and never read a table.
_HARMLESS = frozenset(
    "set show reset begin start commit end rollback abort savepoint release fetch move close deallocate discard listen "
    "unlisten notify prepare checkpoint".split()
)


MAX_READ = 1 << 18  # characters of a text that is looked at word by word
MAX_TOKENS = 1 << 15  # of such a text
MAX_WORDS = 5_000  # of queries that are read here to see which tables they are of; of further ones the engine decides
MAX_SUBSCRIPTS = 40
_CACHED = 500  # texts in the cache of tokens
MAX_REMEMBERED = 4_000  # characters of a cached text: its tokens take a hundred times as many bytes
_KEPT = r"execute|prepare|deallocate|discard|declare|close|fetch|move|copy|alter|budget|history"


def classify(text: str, declared: frozenset[str], *, standard_strings: bool = True) -> tuple[Statement, ...]:
    """The statements of a text; none if all of it can be passed to the twin without changing the relay's state.

    `declared` holds the last parts of all declared tables' names.
    """
    names, words = _worth_reading(declared)
    if names.search(text) is None and words.search(text) is None:
        return ()  # the common case: queries of the system catalog
    if len(text) <= MAX_REMEMBERED:
        return _remembered(text, declared, standard_strings)
    if len(text) <= MAX_READ:
        return _classified(text, declared, standard_strings)
    return _too_long(text, f"{MAX_READ:,} characters")


def _too_long(text: str, limit: str) -> tuple[Statement]:
    """A refusal of a text whose reading would hold up everybody else; no query that is answered is nearly as long.

    What the relay keeps must not change behind its back either, nor may a user's role: ALTER ROLE, DISCARD, EXECUTE of
    what is the engine's.
    """
    refusal = TooComplex(
        f"a statement of more than {limit} must not name a declared table or control the session",
        hint="Send it in parts.",
    )
    return (Statement(Kind.REFUSED, text, (Token(Sort.STRING, "", 0, len(text)),), refusal=refusal),)


@lru_cache(8)
def _worth_reading(declared: frozenset[str]) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Matches texts that need tokenizing: they hold a declared name, in any spelling, or a keyword for the relay."""
    spellings = {name for each in declared for name in (each, each.replace('"', '""'))}
    names = "|".join([*map(re.escape, sorted(spellings)), 'u&"'])
    return re.compile(names, re.IGNORECASE), re.compile(_KEPT, re.IGNORECASE)


@lru_cache(_CACHED)
def _remembered(text: str, declared: frozenset[str], standard_strings: bool) -> tuple[Statement, ...]:
    return _classified(text, declared, standard_strings)


def _classified(text: str, declared: frozenset[str], standard_strings: bool) -> tuple[Statement, ...]:
    found = tokens(text, standard_strings=standard_strings, most=MAX_TOKENS + 1)
    if len(found) > MAX_TOKENS:
        return _too_long(text, f"{MAX_TOKENS:,} words and signs")
    parts = statements(found)
    read = accumulate(map(len, parts))  # words up to each statement, itself included
    return tuple(
        _statement(text, part, declared, standard_strings, few=words <= MAX_WORDS)
        for part, words in zip(parts, read, strict=True)
    )


def _statement(
    text: str, words: list[Token], declared: frozenset[str], standard_strings: bool, *, few: bool
) -> Statement:
    first = words[0]
    if first.is_word("execute"):
        return Statement(Kind.EXECUTE, text, tuple(words))
    if not _changes_a_role(words) and (not _named(words, declared) or first.is_word(*_HARMLESS)):
        return Statement(Kind.PASS, text, tuple(words))
    try:
        return _protected(text, words, declared, standard_strings, few=few)
    except Error as refusal:
        return Statement(Kind.REFUSED, text, tuple(words), first.start, words[-1].end, refusal)


def _protected(
    text: str, words: list[Token], declared: frozenset[str], standard_strings: bool, *, few: bool
) -> Statement:
    if not standard_strings and any(word.sort is Sort.STRING and "\\" in word.text for word in words):
        raise NotSupported(
            "a string constant with a backslash is not supported while standard_conforming_strings is off",
            hint="SET standard_conforming_strings = on.",
        )
    first = words[0]
    start, end = first.start, words[-1].end
    if first.is_word(*_QUERIES) or first.text == "(":
        # Read by sqlglot in the loop that serves everybody: of subscripts, it reads all again for each.
        is_read = few and sum(word.text == "[" for word in words) <= MAX_SUBSCRIPTS
        names = mentioned_tables(text[start:end]) if is_read else None
        if names is not None and not any(name in declared for name in names):
            return Statement(Kind.PASS, text, tuple(words))
        return Statement(Kind.QUERY, text, tuple(words), start, end)
    if first.is_word("explain"):
        return _explain(text, words)
    if first.is_word("declare"):
        found = _behind(words, "for")
        return _wrapped(text, words, found, None)
    if first.is_word("copy"):
        return _copy(text, words)
    if first.is_word("create") and (found := _created_as(words)) is not None and not _named(words[:found], declared):
        return _wrapped(text, words, found, _data_clause(words))
    raise ReadOnly(
        f"cannot execute {first.text.upper()} in a read-only transaction",
        hint="dpsql answers SELECT; it never changes data.",
        position=start + 1,
    )


def _named(words: Sequence[Token], declared: frozenset[str]) -> bool:
    return any(word.is_name and word.text in declared for word in words)


def _changes_a_role(words: Sequence[Token]) -> bool:
    """ALTER ROLE of anything but a setting: the policy defines names and passwords."""
    return (
        len(words) > 1
        and words[0].is_word("alter")
        and words[1].is_word("role", "user")
        and not any(word.is_word("set", "reset") for word in words)
    )


def _behind(words: Sequence[Token], *wanted: str) -> int | None:
    """The index after the first of these keywords outside parentheses."""
    depth = 0
    for number, word in enumerate(words):
        if word.sort is Sort.OPERATOR:
            depth += (word.text == "(") - (word.text == ")")
        elif depth == 0 and word.is_word(*wanted) and number + 1 < len(words):
            return number + 1
    return None


def _wrapped(text: str, words: list[Token], first: int | None, last: int | None) -> Statement:
    if first is None or not (words[first].is_word(*_QUERIES) or words[first].text == "("):
        raise NotSupported("this statement contains no query that can be answered")
    end = words[-1].end if last is None else words[last - 1].end
    return Statement(Kind.WRAPPED, text, tuple(words), words[first].start, end)


def _copy(text: str, words: list[Token]) -> Statement:
    if len(words) > 1 and words[1].text == "(":
        depth = 0
        for word in words[1:]:
            if word.sort is Sort.OPERATOR:
                depth += (word.text == "(") - (word.text == ")")
            if depth == 0:
                return Statement(Kind.WRAPPED, text, tuple(words), words[1].end, word.start)
    if _behind(words, "from") is not None and _behind(words, "to") is None:
        raise ReadOnly(
            "cannot execute COPY FROM in a read-only transaction",
            hint="dpsql answers SELECT; it never changes data.",
            position=words[0].start + 1,
        )
    return _copy_of_table(text, words)


def _copy_of_table(text: str, words: list[Token]) -> Statement:
    """COPY table (columns) TO … as COPY (SELECT columns FROM table) TO …: the dataset decides whether it is allowed."""
    to = _behind(words, "to")
    if to is None:
        raise NotSupported("this form of COPY is not supported")
    named = words[1 : to - 1]
    opening = next((number for number, word in enumerate(named) if word.text == "("), len(named))
    columns = text[named[opening].end : named[-1].start] if opening < len(named) else "*"
    if opening == 0:
        raise NotSupported("COPY names no table")
    table = text[named[0].start : named[opening - 1].end]
    query = f"SELECT {columns} FROM {table}"
    source = f"COPY ({query}) {text[words[to - 1].start : words[-1].end]}"
    return Statement(Kind.WRAPPED, source, tuple(tokens(source)), 6, 6 + len(query), rewritten=True)


def _created_as(words: list[Token]) -> int | None:
    """Where the query of CREATE TEMP TABLE … AS begins; None for any other CREATE."""
    at = 1
    while at < len(words) and words[at].is_word("local", "global"):
        at += 1
    if not (at + 1 < len(words) and words[at].is_word("temp", "temporary") and words[at + 1].is_word("table")):
        return None
    return _behind(words, "as")


def _data_clause(words: list[Token]) -> int | None:
    """Where WITH [NO] DATA begins at the end of CREATE TABLE … AS."""
    tail = [word.text if word.sort is Sort.WORD else "" for word in words[-3:]]
    if tail[-2:] == ["with", "data"]:
        return len(words) - 2
    return len(words) - 3 if tail == ["with", "no", "data"] else None


_EXPLAIN_OPTIONS = frozenset("verbose costs settings generic_plan buffers wal timing summary memory serialize".split())


def _explain(text: str, words: list[Token]) -> Statement:
    at, json = 1, False
    if len(words) > 2 and words[1].text == "(" and not (words[2].is_word(*_QUERIES) or words[2].text == "("):
        end = next((n for n, word in enumerate(words) if n > 1 and word.text == ")"), len(words) - 1)
        json = _options(words[2:end])
        at = end + 1
    else:
        while at < len(words) and words[at].is_word("analyze", "analyse", "verbose"):
            if not words[at].is_word("verbose"):
                raise _no_analyze(words[at])
            at += 1
    if at >= len(words):
        raise NotSupported("EXPLAIN needs a query")
    return Statement(Kind.EXPLAIN, text, tuple(words), words[at].start, words[-1].end, json=json)


def _options(words: Sequence[Token]) -> bool:
    """Whether the options ask for JSON. Options for details of PostgreSQL's plans are accepted without effect."""
    json = False
    option: list[Token] = []
    for word in [*words, None]:
        if word is not None and word.text != ",":
            option.append(word)
            continue
        name = option[0].text if option else ""
        value = option[1].text.strip("'").lower() if len(option) > 1 else "on"
        if name in ("analyze", "analyse"):
            if value not in ("off", "false", "0"):
                raise _no_analyze(option[0])
        elif name == "format":
            if value not in ("text", "json"):
                raise NotSupported("EXPLAIN supports FORMAT TEXT and FORMAT JSON only", position=option[0].start + 1)
            json = value == "json"
        elif name not in _EXPLAIN_OPTIONS:
            raise NotSupported(f'unrecognized EXPLAIN option "{name}"', position=words[0].start + 1 if words else None)
        option = []
    return json


def _no_analyze(word: Token) -> NotSupported:
    return NotSupported(
        "EXPLAIN ANALYZE is not supported",
        hint="EXPLAIN shows price, noise and derivation without running the query.",
        position=word.start + 1,
    )


# ------------------------------------------------------------
# PREPARE, EXECUTE and DEALLOCATE as SQL statements: the parts of their text.


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
