"""Finds the engine for an address by its scheme, among the installed engines, and loads only that one.

An engine registers a kind in the entry-point group `dpsql.engines`, one entry for each of its schemes, under the
scheme's name. This module is below the engines, since a policy is read without any of them; `engines.base` has the full
protocol.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from dpsql.errors import PolicyError
from dpsql.policy.keys import PolicyKey, names

GROUP = "dpsql.engines"
# The schemes of dpsql's own engines, which are registered in `pyproject.toml` as well.
BUILT_IN: Mapping[str, str] = MappingProxyType(
    {
        "duckdb": "dpsql.engines.duckdb.kind:KIND",
        "postgres": "dpsql.engines.postgres.kind:KIND",
        "postgresql": "dpsql.engines.postgres.kind:KIND",
    }
)
FILES = "duckdb"  # the scheme of addresses without one, which are paths
EXAMPLE_URL = 'write: url = "duckdb:///file.duckdb" or "postgresql://user@host/database"'
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://")


@dataclass(frozen=True, slots=True)
class Address:
    """Where a database is."""

    url: str = field(repr=False)  # may hold a password
    folder: Path  # of the policy file: relative paths start here
    name: str  # the name of the database in the ledger
    file: Path | None = None  # the file that holds the database, if one does
    keys: Mapping[str, str] = field(default_factory=dict, repr=False)  # what [database] says beyond dpsql's own keys


class Addressing(Protocol):
    """The part of an engine's kind that a policy needs."""

    @property
    def schemes(self) -> tuple[str, ...]:
        """The schemes of its addresses, without `://`. The name of its dialect is one of them."""
        ...

    @property
    def keys(self) -> tuple[PolicyKey, ...]:
        """The keys of [database] that the engine declares in addition to those of dpsql. Their values are strings."""
        ...

    def address(self, url: str, folder: Path, keys: Mapping[str, str]) -> Address:
        """Parse an address, with the declared keys that are given, without opening it.

        Raises ValueError, which quotes nothing of a wrong address.
        """
        ...


def address_of(url: str, folder: Path, keys: Mapping[str, str] = MappingProxyType({})) -> Address:
    """Parse an address; raises PolicyError if no installed engine accepts it.

    The error quotes nothing of the address, which may hold a password.
    """
    kind = kind_of(url)
    try:
        return kind.address(url, folder, keys)
    except ValueError as error:
        problem = str(error)
    raise PolicyError(problem, hint=EXAMPLE_URL)


def kind_of(url: str) -> Addressing:
    """The kind of the engine that an address names."""
    found = _SCHEME.match(url)
    if found is None:
        raise PolicyError("not the address of a database", hint=EXAMPLE_URL)
    return kind_named(found[1])


@cache
def kind_named(scheme: str) -> Addressing:
    """The kind that is registered for a scheme.

    Claim: an address with a scheme of dpsql's own is opened by the engine of dpsql, whatever else is installed.
    Because: what is loaded for such a scheme is named here. An entry point that names something else is refused rather
    than ignored, since whoever installed it expects it to be used.
    Needs: unmodified code of dpsql; another installed distribution could change it.
    """
    entries = {entry.value: entry for entry in entry_points(group=GROUP, name=scheme)}
    own = BUILT_IN.get(scheme)
    if own is not None:
        if others := sorted(_shown(entry) for value, entry in entries.items() if value != own):
            raise PolicyError(
                f'{others[0]} registers an engine for "{scheme}://", which is a scheme of dpsql itself',
                hint="Uninstall it, or register it under another scheme. No engine may replace one of dpsql's.",
            )
        return _loaded(EntryPoint(scheme, own, GROUP))
    if not entries:
        known = ", ".join(f"{name}://" for name in known_schemes())
        raise PolicyError(
            "no engine is installed for the scheme of this address",
            hint=f"Engines are installed for {known}. Install the package of the engine beside dpsql.",
        )
    if len(entries) > 1:
        both = " and ".join(sorted(map(_shown, entries.values()))[:2])
        raise PolicyError(f'{both} register an engine for "{scheme}://"', hint="Uninstall all but one of them.")
    return _loaded(*entries.values())


def known_schemes() -> list[str]:
    """The schemes for which an engine is installed; nothing is loaded."""
    return sorted({*BUILT_IN, *entry_points(group=GROUP).names})


def _loaded(entry: EntryPoint) -> Addressing:
    problem: str
    try:
        kind: Addressing = entry.load()
        taken = [key.name for key in kind.keys if key.name in names("database")]
        if entry.name in kind.schemes and not taken:
            return kind
        problem = f'"{taken[0]}" is a key of dpsql' if taken else f'it does not say that it knows "{entry.name}://"'
    except Exception as error:  # a foreign module may raise anything
        problem = f"{type(error).__name__}: {error}"
    raise PolicyError(
        f'{_shown(entry)} cannot be loaded as the engine for "{entry.name}://": {problem}',
        hint="Install a version of it that is compatible with this version of dpsql.",
    )


def _shown(entry: EntryPoint) -> str:
    package = "dpsql" if entry.dist is None else entry.dist.name
    return f'the package "{package}" ({entry.value})'
