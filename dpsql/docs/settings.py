"""The reference of session settings."""

from __future__ import annotations

from dpsql.docs.markdown import code, table
from dpsql.docs.markdown import page as whole
from dpsql.settings import SETTINGS

_INTRODUCTION = """\
`SET dpsql.NAME = value`, `SHOW dpsql.NAME` and `RESET dpsql.NAME` in SQL; `--NAME` of `dpsql query` and
`dpsql explain`; `\\set NAME value` in `dpsql shell`. A setting holds until the session ends. `SET TimeZone` is
PostgreSQL's own."""


def page() -> str:
    rows = [
        (code(f"dpsql.{each.name}"), each.takes.value, code(each.default), each.meaning) for each in SETTINGS.values()
    ]
    return whole(
        "Session settings", "dpsql/settings.py", _INTRODUCTION, table(("Setting", "Takes", "Default", "Meaning"), rows)
    )
