"""A query for the engine: generated text, its parameters and the shape of what comes back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from dpsql.lowering.select import Step


@dataclass(frozen=True, slots=True)
class EngineQuery:
    """Generated SQL. Its first `keys` columns are group keys; the others are 64-bit integer sums, never NULL."""

    sql: str
    keys: int
    parameters: Mapping[str, object] = field(default_factory=dict, repr=False)
    sources: tuple[tuple[str, ...], ...] = ()  # schema and name of every table that it reads
    names: frozenset[str] = frozenset()  # of the parameters that it has
    steps: tuple[Step, ...] = field(default=(), repr=False)  # what the text is made of

    def filled(self, parameters: Mapping[str, object]) -> EngineQuery:
        """The same with those of the parameters that it has."""
        return replace(self, parameters={name: parameters[name] for name in sorted(self.names)})
