"""A query as a value: named steps, each a small SELECT over the steps before it, written as text once.

A step is written as a common table expression under its own name, so that the text reads as the steps it is made of.
An engine that cannot have one computed once may make temporary views of them instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dpsql.lowering.dialect import Dialect


@dataclass(frozen=True, slots=True)
class Select:
    """One SELECT. Expressions are text of the dialect; `source` names steps, or is a relation in parentheses."""

    columns: tuple[str, ...]
    source: str
    where: tuple[str, ...] = ()  # conditions, all of which must hold
    group_by: tuple[str, ...] = ()
    having: tuple[str, ...] = ()  # conditions, one of which must hold
    distinct: bool = False
    fence: str = ""  # what keeps the engine from copying its expressions to wherever they are used

    def __str__(self) -> str:
        text = f"SELECT {'DISTINCT ' if self.distinct else ''}{', '.join(self.columns)} FROM {self.source}"
        text += f" WHERE {' AND '.join(self.where)}" if self.where else ""
        text += f" GROUP BY {', '.join(self.group_by)}" if self.group_by else ""
        text += f" HAVING {' OR '.join(self.having)}" if self.having else ""
        return text + self.fence


@dataclass(frozen=True, slots=True)
class UnionAll:
    """The rows of several SELECTs with the same columns."""

    parts: tuple[Select, ...]

    def __str__(self) -> str:
        return " UNION ALL ".join(map(str, self.parts))


@dataclass(frozen=True, slots=True)
class Step:
    name: str
    query: Select | UnionAll
    once: bool = False  # it is used more than once, and to be computed once

    def __str__(self) -> str:
        return str(self.query)


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Steps, each of which may read those before it."""

    steps: tuple[Step, ...] = ()

    @property
    def last(self) -> str:
        """The name of the step whose rows the next one reads."""
        return self.steps[-1].name

    def then(self, name: str, query: Select | UnionAll, *, once: bool = False) -> Pipeline:
        """With one step more; its name is numbered if there is one of that name."""
        names = {step.name for step in self.steps}
        numbered, number = name, 1
        while numbered in names:
            number += 1
            numbered = f"{name}_{number}"
        return Pipeline((*self.steps, Step(numbered, query, once)))

    def computed_once(self) -> Pipeline:
        """The same, where the last step will be read more than once."""
        return Pipeline((*self.steps[:-1], replace(self.steps[-1], once=True)))


def rendered(steps: Sequence[Step], dialect: Dialect) -> str:
    """The text of the last step, over the others."""
    *inner, outer = steps
    written = [f"{step.name} {dialect.materialized if step.once else dialect.inlined} ({step})" for step in inner]
    return f"WITH {', '.join(written)} {outer}" if written else str(outer)
