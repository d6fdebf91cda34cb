"""Fixtures as text: a comment, directives, SQL, a line of dashes, the expectation. Blocks are separated by blank lines.

    # Why this case is here.
    policy basic                    which toy policy; zcdp if there is none
    params [40, "CA"]               values of $1, $2 …, as JSON
    set dpsql.epsilon = 2           settings of the session
    rewrite                         show the generated SQL as well
    differs: why                    PostgreSQL's answer differs, for a documented reason
    fails 21000                     accepted and charged, then fails on released values, as in PostgreSQL
    SELECT COUNT(*) FROM people
    ----
    price   epsilon 100

A block of comments alone is prose.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from dpsql.compliance.data import data
from dpsql.types import Value

CASES = data("cases")
DASHES = "----"
LONGEST = 25


@dataclass(frozen=True, slots=True)
class Case:
    path: Path
    line: int  # the first line of the block
    sql: str
    expected: str
    policy: str = "zcdp"
    params: tuple[Value, ...] = ()
    settings: tuple[str, ...] = ()
    rewrite: bool = False
    differs: str | None = None
    fails: str | None = None
    problem: str | None = None  # why the text is not a case

    @property
    def name(self) -> str:
        return f"{self.path.name}:{self.line}"


def all_files() -> list[Path]:
    return sorted(CASES.glob("*.txt"))


def all_cases() -> list[Case]:
    return [case for path in all_files() for case in read(path)]


def read(path: Path) -> list[Case]:
    return [
        _case(path, line, block)
        for line, block in _blocks(path.read_text())
        if not all(text.startswith("#") for text in block)
    ]


def rewritten(path: Path, expectations: dict[int, str]) -> str:
    """The file's text with new expectations, by line of the case; everything above the dashes stays as it is."""
    parts = []
    for line, block in _blocks(path.read_text()):
        if line in expectations:
            head = block[: block.index(DASHES)] if DASHES in block else block
            parts.append("\n".join([*head, DASHES, expectations[line]]))
        else:
            parts.append("\n".join(block))
    return "\n\n".join(parts) + "\n"


def _blocks(text: str) -> list[tuple[int, list[str]]]:
    found: list[tuple[int, list[str]]] = []
    previous = ""
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            if not previous.strip():
                found.append((number, []))
            found[-1][1].append(line.rstrip())
        previous = line
    return found


def _case(path: Path, line: int, block: list[str]) -> Case:
    at = block.index(DASHES) if DASHES in block else len(block)
    head, expected = block[:at], "\n".join(block[at + 1 :])
    comment = [text for text in head if text.startswith("#")]
    rest = head[len(comment) :]
    policy, rewrite = "zcdp", False
    params: tuple[Value, ...] = ()
    settings: list[str] = []
    differs = fails = problem = None
    if not comment or comment != head[: len(comment)]:
        problem = "a case begins with a comment that says why"
    elif len(block) > LONGEST:
        problem = f"{len(block)} lines, more than {LONGEST}"
    while rest:
        match rest[0].split(maxsplit=1):
            case ["policy", name]:
                policy = name
            case ["params", values]:
                try:
                    params = tuple(json.loads(values))
                except ValueError:
                    problem = "the parameters are not JSON"
            case ["set", _]:
                settings.append(rest[0])
            case ["rewrite"]:
                rewrite = True
            case ["differs:", reason]:
                differs = reason
            case ["fails", sqlstate]:
                fails = sqlstate
            case _:
                break
        rest = rest[1:]
    if not rest:
        problem = "there is no SQL"
    return Case(
        path, line, "\n".join(rest), expected, policy, params, tuple(settings), rewrite, differs, fails, problem
    )
