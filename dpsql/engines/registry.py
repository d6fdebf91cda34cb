"""Finds the kind of engine for an address."""

from __future__ import annotations

from functools import cache
from inspect import getattr_static
from typing import cast

from dpsql.engines.base import EngineKind
from dpsql.errors import PolicyError
from dpsql.lowering.dialect import Dialect
from dpsql.policy.schemes import kind_named, kind_of

_MEMBERS = ("schemes", "keys", "address", "title", "dialect", "open", "survey", "copies", "scratch")


def engine_kind(url: str) -> EngineKind:
    """The kind of the engine that an address names; raises PolicyError if none is installed."""
    return _whole(cast(EngineKind, kind_of(url)))


def dialect_named(name: str) -> Dialect:
    """The dialect of an installed engine by name, for use across processes."""
    return _dialect(name)


@cache
def _dialect(name: str) -> Dialect:
    return _whole(cast(EngineKind, kind_named(name))).dialect


def _whole(kind: EngineKind) -> EngineKind:
    """Refuse an engine that lacks methods of this version of dpsql, before it is used."""
    missing = [member for member in _MEMBERS if getattr_static(kind, member, _ABSENT) is _ABSENT]
    if missing:
        raise PolicyError(
            f'the engine for "{kind.schemes[0]}://" lacks what this version of dpsql requires: {missing[0]}',
            hint="Install a version of it that is compatible with this version of dpsql.",
        )
    return kind


_ABSENT = object()
