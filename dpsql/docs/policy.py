"""The reference of policy keys."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dpsql.docs.markdown import code, table
from dpsql.docs.markdown import page as whole
from dpsql.engines.base import EngineKind
from dpsql.engines.registry import engine_kind
from dpsql.policy.keys import HEADERS, KEYS, PolicyKey
from dpsql.policy.schemes import BUILT_IN

_INTRODUCTION = """\
Everything that a policy file may hold. `dpsql init` drafts one, and `dpsql check` says what is wrong in it, with
its line. A key that is not here is refused, except those that the engine of another package declares for `[database]`.
Bounds are an instruction to clamp, not a promise about the data."""


def page() -> str:
    own = {kind.title: kind for scheme in BUILT_IN for kind in [engine_kind(f"{scheme}://")]}
    return whole("Policy", "dpsql/policy/keys.py", _INTRODUCTION, *_sections(), *of_engines(own.values()))


def _sections() -> Iterator[str]:
    for section, keys in KEYS.items():
        yield _section(code(HEADERS[section]), keys)


def of_engines(kinds: Iterable[EngineKind]) -> Iterator[str]:
    """What [database] may hold beside its own keys, for each engine that takes any."""
    for kind in kinds:
        if kind.keys:
            yield _section(f"{code(HEADERS['database'])} of {kind.title}", kind.keys)


def _section(header: str, keys: Iterable[PolicyKey]) -> str:
    rows = [(code(each.name), each.takes, each.default, each.meaning) for each in keys]
    return f"## {header}\n\n{table(('Key', 'Takes', 'Default', 'Meaning'), rows)}"
