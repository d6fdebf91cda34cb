"""Hostile but plausible SQL: what a parser of many dialects may read otherwise than PostgreSQL does.

Three ways to make a text: an unparenthesised expression, which precedence alone gives a meaning; a seed with every
spelling that somebody once read otherwise; and a text of the grammar cases. Each is then changed by a few mutations of
its words: left out, doubled, exchanged, spelled another way. Most texts are nonsense, and must be refused.
"""

from __future__ import annotations

import random
import re
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from dpsql.compliance.cases import Case

# Parts of texts: seeds, words, spellings, expressions.
_MADE_OF: dict[str, list[str]] = tomllib.loads((Path(__file__).parent / "hostile.toml").read_text())
_WORDS_AND_SIGNS = [*_MADE_OF["words"], *_MADE_OF["operators"]]

_WORDS = re.compile(
    r"""\s+|--[^\n]*\n?|/\*.*?\*/|'(?:[^']|'')*'|"(?:[^"]|"")*"|\$\d+|\d+(?:\.\d+)?|\w+|::|<=|>=|<>|!=|\|\||.""",
    re.DOTALL,
)

Words = list[str]


def words_of(text: str) -> Words:
    """The words of a text and what stands between them; joined they are the text."""
    return _WORDS.findall(text)


class Hostile:
    """Makes texts, from a seed: the same seed makes the same ones."""

    def __init__(self, cases: Sequence[Case], seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311
        self._cases = [case for case in cases if _is_seed(case)]
        self._pool = sorted({word for case in self._cases for word in words_of(case.sql) if word.strip()})

    def __iter__(self) -> Iterator[Case]:
        while True:
            yield self.case()

    def case(self) -> Case:
        """A text as a case, with the policy and parameters of the case that it was made of."""
        pick = self._random.choice
        match self._random.randrange(4):
            case 0:
                made = _plain(self._in_context())
            case 1:
                made = _plain(pick(_MADE_OF["seeds"]))
            case _:
                made = pick(self._cases)
        words = words_of(made.sql)
        for _ in range(pick((0, 0, 0, 1, 2) if made.line == 0 else (1, 1, 1, 2, 3))):
            words = self._mutated(words)
        return replace(made, sql="".join(words))

    # --- expressions that precedence alone gives a meaning ---

    def _in_context(self) -> str:
        context = self._random.choice(_CONTEXTS)
        columns = _COLUMNS[context]
        return context.format(
            b=self._condition(columns, 3), n=self._number(columns, 3), t=self._text(columns, 2), v=self._any(columns)
        )

    def _any(self, columns: _Columns) -> str:
        return self._random.choice((self._condition, self._number, self._text))(columns, 3)

    def _number(self, columns: _Columns, depth: int) -> str:
        pick = self._random.choice
        if depth == 0:
            return pick([*columns[0], *_MADE_OF["numbers"]])
        parts = [self._number(columns, self._random.randrange(depth)) for _ in range(3)]
        return self._grouped(pick(_MADE_OF["of_numbers"]).format(*parts))

    def _text(self, columns: _Columns, depth: int) -> str:
        pick = self._random.choice
        if depth == 0:
            return pick([*columns[1], *_MADE_OF["texts"]])
        parts = [self._text(columns, self._random.randrange(depth)) for _ in range(2)]
        return self._grouped(pick(_MADE_OF["of_texts"]).format(*parts))

    def _condition(self, columns: _Columns, depth: int) -> str:
        pick = self._random.choice
        if depth == 0:
            return pick([*columns[2], *_MADE_OF["truths"]])
        part = self._random.randrange
        form = pick([*_MADE_OF["of_conditions"], *_MADE_OF["comparisons"], *_MADE_OF["comparisons"]])
        return self._grouped(
            form.format(
                b=self._condition(columns, part(depth)),
                c=self._condition(columns, part(depth)),
                n=self._number(columns, part(depth)),
                m=self._number(columns, part(depth)),
                k=self._number(columns, part(depth)),
                t=self._text(columns, part(depth)),
                s=self._text(columns, part(depth)),
            )
        )

    def _grouped(self, text: str) -> str:
        return f"({text})" if self._random.random() < 0.1 else text

    # --- mutations ---

    def _mutated(self, words: Words) -> Words:
        mutation: Callable[[Words], Words] = self._random.choice(
            (
                self._left_out, self._doubled, self._exchanged, self._replaced, self._replaced, self._inserted,
                self._respelled, self._respelled, self._respelled, self._spaced, self._continued, self._wrapped,
                self._expression,
            )
        )  # fmt: skip
        return mutation(list(words)) if words else words

    def _place(self, words: Words) -> int:
        places = [i for i, word in enumerate(words) if word.strip()]
        return self._random.choice(places) if places else 0

    def _left_out(self, words: Words) -> Words:
        start = self._place(words)
        return words[:start] + words[start + self._random.choice((1, 1, 2, 3, 5)) :]

    def _doubled(self, words: Words) -> Words:
        start = self._place(words)
        end = start + self._random.choice((1, 1, 3, 5))
        between = self._random.choice(([" "], [" "], [" , "], []))
        return words[:end] + between + words[start:end] + words[end:]

    def _exchanged(self, words: Words) -> Words:
        one, other = sorted((self._place(words), self._place(words)))
        if self._random.random() < 0.5:
            other = min(one + 2, len(words) - 1)
        words[one], words[other] = words[other], words[one]
        return words

    def _replaced(self, words: Words) -> Words:
        words[self._place(words)] = self._random.choice(self._pool if self._random.random() < 0.5 else _WORDS_AND_SIGNS)
        return words

    def _inserted(self, words: Words) -> Words:
        place = self._place(words)
        word = self._random.choice(self._pool if self._random.random() < 0.5 else _WORDS_AND_SIGNS)
        return [*words[:place], word, " ", *words[place:]]

    def _respelled(self, words: Words) -> Words:
        place = self._place(words)
        words[place] = self._spelling(words[place])
        return words

    def _spelling(self, word: str) -> str:
        pick = self._random.choice
        if word[0] in "'\"":
            inside = word[1:-1]
            half = len(inside) // 2
            form = pick(_MADE_OF["of_strings" if word[0] == "'" else "of_names"])
            return (
                form.replace("<>", inside).replace("<", inside[:half]).replace(">", inside[half:]).replace("{}", word)
            )
        if word[0].isdigit():
            return pick(_MADE_OF["of_digits"]).replace("{}", word)
        if word[0].isalpha():
            lookalike = word.replace("i", "\u0131").replace("k", "\u212a")
            changed = (word.upper(), word.lower(), word.title(), f'"{word.upper()}"', lookalike)
            return pick((*changed, *_MADE_OF["of_words"])).replace("{}", word)
        return pick(_MADE_OF["operators"])

    def _spaced(self, words: Words) -> Words:
        places = [i for i, word in enumerate(words) if word.isspace()]
        if places:
            words[self._random.choice(places)] = self._random.choice(_MADE_OF["spaces"])
        return words

    def _continued(self, words: Words) -> Words:
        text = "".join(words).rstrip().rstrip(";")
        return words_of(text + self._random.choice(_MADE_OF["ends"]))

    def _wrapped(self, words: Words) -> Words:
        text = "".join(words).rstrip().rstrip(";")
        return words_of(self._random.choice(_MADE_OF["around"]).replace("{}", text))

    def _expression(self, words: Words) -> Words:
        """A number or a name becomes part of an expression, without parentheses."""
        place = self._place(words)
        if re.fullmatch(r"\w+", words[place]):
            words[place] = self._random.choice(_MADE_OF["parts"]).replace("{}", words[place])
        return words


def _is_seed(case: Case) -> bool:
    return case.problem is None and case.differs is None and case.fails is None and not _OURS.search(case.sql)


# What dpsql has and PostgreSQL has not.
_OURS = re.compile(r"\b(median|approx_count_distinct|dp_low|dp_high|explain)\b|\bdpsql\.", re.IGNORECASE)


def _plain(text: str) -> Case:
    return Case(Path("hostile"), 0, text, "")


_Columns = tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]  # numbers, texts, truth values
_PERSON: _Columns = (("age", "points", "children", "income", "height"), ("sex", "state", "city", "note"), ("smoker",))
_STATE: _Columns = (("population",), ("code", "region"), ())
_KIND: _Columns = (("rank", "base_fee"), ("kind", "label"), ())
_NONE: _Columns = ((), (), ())
_COUNTED: _Columns = (("n", "m"), ("state",), ())
_COLUMNS: dict[str, _Columns] = {
    "SELECT COUNT(*) FROM people WHERE {b}": _PERSON,
    "SELECT COUNT(*) FILTER (WHERE {b}) AS n, SUM(age) FROM people": _PERSON,
    "SELECT SUM({n}) FROM people": _PERSON,
    "SELECT state, AVG({n}) FROM people WHERE {b} GROUP BY state": _PERSON,
    "SELECT {b} AS k, COUNT(*) FROM people GROUP BY 1": _PERSON,
    "SELECT COUNT({v}) FROM people": _PERSON,
    "SELECT code, {v} FROM states": _STATE,
    "SELECT kind, {v} FROM kinds": _KIND,
    "SELECT kind, label FROM kinds WHERE {b} ORDER BY {n}, kind": _KIND,
    "SELECT {v}": _NONE,
    "SELECT {v}, {v}": _NONE,
    "SELECT state, {v} FROM (SELECT state, COUNT(*) AS n, SUM(age) AS m FROM people GROUP BY state) AS q": _COUNTED,
    "SELECT state, COUNT(*) AS n FROM people GROUP BY state HAVING COUNT(*) > 3 AND {b}": (
        ("COUNT(*)",),
        ("state",),
        (),
    ),
}
_CONTEXTS = tuple(_COLUMNS)
