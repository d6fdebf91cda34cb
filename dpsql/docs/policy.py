"""The reference of policy keys."""

from __future__ import annotations

from collections.abc import Iterator

from dpsql.docs.markdown import code, table
from dpsql.docs.markdown import page as whole
from dpsql.policy.keys import HEADERS, KEYS

_INTRODUCTION = """\
Everything that a policy file may hold. `dpsql init` drafts one, and `dpsql check` says what is wrong in it, with
its line. A key that is not here is refused. Bounds are an instruction to clamp, not a promise about the data."""


def page() -> str:
    return whole("Policy", "dpsql/policy/keys.py", _INTRODUCTION, *_sections())


def _sections() -> Iterator[str]:
    for section, keys in KEYS.items():
        rows = [(code(each.name), each.takes, each.default, each.meaning) for each in keys]
        yield f"## {code(HEADERS[section])}\n\n{table(('Key', 'Takes', 'Default', 'Meaning'), rows)}"
