"""The reference of errors."""

from __future__ import annotations

from dpsql.docs.markdown import code, table
from dpsql.docs.markdown import page as whole
from dpsql.errors import CONDITIONS

_INTRODUCTION = """\
Every refusal has one of PostgreSQL's SQLSTATEs, the position in the text where there is one, and a message that says
what to do; it never shows a value from the data. In Python they are the exceptions of PEP 249, with `sqlstate`, `hint`,
`detail` and `position`."""


def page() -> str:
    rows = [(code(each.code), code(each.name), each.when, each.remedy) for each in CONDITIONS.values()]
    return whole(
        "Errors", "dpsql/errors.py", _INTRODUCTION, table(("SQLSTATE", "Condition", "When", "What to do"), rows)
    )
