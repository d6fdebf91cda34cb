"""The table of functions and operators: form, result type, handler and operation of each.

Each family has its rows at the end of its module, next to their handlers. Which calls are accepted, under which names
and with how many arguments, completion, hints and the reference page follow from the rows. The operations of a row link
it to other packages: bounds (`privacy/bounds.py`), values of constants (`plan/constants.py`) and the form for each
engine (`lowering/`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from sqlglot import exp

from dpsql.plan.scalars import Agg, Op
from dpsql.sql.checks import Signature
from dpsql.sql.functions.core import Rule

MANY = 10_000  # arguments

_CALL = re.compile(r"([a-z_][a-z0-9_]*)\(([^)]*)\)")


@dataclass(frozen=True)
class Function:
    """A function, or an operator: one whose form does not begin with a name in lower case and a parenthesis."""

    form: str  # as in the reference: round(number [, digits])
    result: str  # its type
    about: str  # one sentence
    node: type[exp.Expression] | None = None  # the parser's node; None: a call that is identified by its name
    rule: Rule | None = None  # its handler; None: it is read as a part of something else, such as OVER
    reads: frozenset[str] = frozenset({"this"})  # the arguments of the node that are read; others are refused
    computes: tuple[Op | Agg, ...] = ()
    counted: tuple[int, int] | None = None  # least and most arguments, where they differ from the form

    @cached_property
    def name(self) -> str | None:
        call = _CALL.match(self.form)
        return None if call is None else call[1]

    @cached_property
    def arguments(self) -> tuple[int, int]:
        """The least and the most arguments."""
        call = _CALL.match(self.form)
        assert call is not None, self.form
        if self.counted is not None:
            return self.counted
        needed = call[2].partition("[")[0].replace(", …", "")
        least = needed.count(",") + 1 if needed.strip() else 0
        return least, MANY if "…" in call[2] else call[2].count(",") + (call[2].strip() != "")


def signature(rows: Sequence[Function]) -> Signature:
    """The signature of a function, from its rows, one per overload."""
    least, most = zip(*(row.arguments for row in rows), strict=True)
    return Signature(min(least), max(most), tuple(row.form for row in rows))


UNARY = frozenset({"this"})
BINARY = frozenset({"this", "expression"})
