"""The shell's prompt: history, multi-line input, and completion."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.history import FileHistory, History, InMemoryHistory

from dpsql.cli.catalog import tables_by_name
from dpsql.policy.model import Catalog
from dpsql.settings import SETTINGS
from dpsql.sql.functions import SIGNATURES

_PROMPT = "dpsql> "
_SQL_WORDS = """
    AND AS ASC BETWEEN BY CASE CAST CROSS DESC DISTINCT ELSE END EXISTS EXPLAIN FALSE FILTER FROM GROUP HAVING IN INNER
    INTERVAL IS JOIN LIKE LIMIT NOT NULL OFFSET ON OR ORDER OVER PARTITION RESET SELECT SET SHOW THEN TIMESTAMP TRUE
    UNION USING WHEN WHERE WITH
""".split()
_COMMANDS = ("\\?", "\\budget", "\\d", "\\explain", "\\q", "\\set")
_WORD = re.compile(r'\\?[\w.?"]*$')
_PLAIN_NAME = re.compile(r"[a-z_][a-z0-9_]*")


def prompt_for(catalog: Catalog, history: Path | None) -> Callable[[], str]:
    """A function that reads the next command or statement."""
    kept: History = InMemoryHistory() if history is None else FileHistory(str(history))
    session: PromptSession[str] = PromptSession(
        _PROMPT,
        multiline=Condition(lambda: not is_complete(get_app().current_buffer.text)),
        prompt_continuation=lambda width, *_: "> ".rjust(width),
        completer=DeclaredNames(catalog),
        complete_while_typing=False,
        history=kept,
    )
    return session.prompt


class DeclaredNames(Completer):
    """Completes commands, SQL words, functions, settings, and the names of declared tables and columns."""

    def __init__(self, catalog: Catalog) -> None:
        self._tables = tables_by_name(catalog)
        self._columns: defaultdict[str, list[str]] = defaultdict(list)
        for table in self._tables.values():
            for column in table.columns:
                self._columns[column].append(table.name)

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        del complete_event
        line = document.text_before_cursor
        found = _WORD.search(line)
        word = found[0] if found else ""
        for text, what in self._candidates(line[: len(line) - len(word)], word):
            if text.lower().startswith(word.lower()):
                yield Completion(text, start_position=-len(word), display_meta=what)

    def _candidates(self, before: str, word: str) -> Iterator[tuple[str, str]]:
        if word.startswith("\\"):
            yield from ((command, "command") for command in _COMMANDS)
            return
        if before.strip() == "\\d":
            yield from ((_written(name), "table") for name in self._tables)
            return
        table, dot, _ = word.rpartition(".")
        if dot and table in self._tables:
            yield from ((f"{table}.{_written(name)}", "column") for name in self._tables[table].columns)
            return
        yield from ((_written(name), "table") for name in self._tables)
        yield from ((_written(name), f"column of {', '.join(owners)}") for name, owners in self._columns.items())
        yield from ((f"dpsql.{name}", "setting") for name in SETTINGS)
        for name, signature in SIGNATURES.items():
            yield name.upper() if word.isupper() else name, " or ".join(signature.forms)
        yield from ((text, "") for text in _SQL_WORDS)


def _written(name: str) -> str:
    """A name in SQL, quoted if necessary."""
    if all(_PLAIN_NAME.fullmatch(part) for part in name.split(".")):
        return name
    return '"' + name.replace('"', '""') + '"'


# ------------------------------------------------------------
# Splits typed or piped text into statements.

# Semicolons inside quotes and comments do not count; an unterminated one extends to the end of the text.
_PARTS = re.compile(
    r"""
    (?P<comment> --[^\r\n]* | /\*.*?(?:\*/|\Z) )
    | '[^']*(?:'|\Z) | "[^"]*(?:"|\Z)
    | (?P<end> ; )
    """,
    re.VERBOSE | re.DOTALL,
)


def split(text: str) -> tuple[list[str], str]:
    """The statements ended by a semicolon, and the text after the last one; a comment alone is no statement."""
    statements, start = [], 0
    for found in _PARTS.finditer(text):
        if found["end"] is not None:
            statements.append(text[start : found.start()].strip())
            start = found.end()
    rest = text[start:]
    return [statement for statement in statements if statement], rest if _without_comments(rest) else ""


def is_complete(text: str) -> bool:
    """Whether Enter should run the text: a shell command, empty text, or SQL that ends with a semicolon."""
    return is_command(text) or not split(text)[1]


def is_command(text: str) -> bool:
    """Whether the text is a shell command: a backslash and a word, or a common word such as exit."""
    return text.lstrip().startswith("\\") or text.strip().lower() in ("exit", "quit", "help")


def _without_comments(text: str) -> str:
    return _PARTS.sub(lambda found: "" if found["comment"] is not None else found[0], text).strip()
