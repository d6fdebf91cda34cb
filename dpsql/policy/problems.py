"""Everything that is wrong with a policy, reported at once, each problem with its line and what to write instead."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dpsql.errors import PolicyError


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing to correct. It is shown to the owner, never to an analyst."""

    file: str
    line: int | None
    message: str
    fix: str | None = None

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        text = f"{place}: {self.message}"
        return text if self.fix is None else f"{text}\n  {self.fix}"


class PolicyProblems(PolicyError):
    """The policy cannot be used. `problems` holds all problems, in the order of the file."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(sorted(problems, key=lambda problem: problem.line or 0))
        super().__init__(describe_problems(self.problems))


class Report:
    """Collects problems, so that the owner sees all of them and not only the first."""

    def __init__(self, file: Path) -> None:
        self.file = str(file)
        self.problems: list[Problem] = []

    def add(self, line: int | None, message: str, fix: str | None = None) -> None:
        self.problems.append(Problem(self.file, line, message, fix))

    def raise_if_any(self) -> None:
        if self.problems:
            raise PolicyProblems(self.problems)


def describe_problems(problems: Sequence[Problem]) -> str:
    """The report for the command line: all problems, and their number."""
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    return "\n".join([*map(str, problems), f"{count} in the policy"])


def quoted(name: str) -> str:
    """A name in a message: in double quotes, control characters escaped, so that it stays on its line."""
    return json.dumps(name, ensure_ascii=False)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name closest to a misspelled one."""
    by_folded = {candidate.casefold(): candidate for candidate in known}
    close = difflib.get_close_matches(name.casefold(), by_folded, n=1)
    return by_folded[close[0]] if close else None
