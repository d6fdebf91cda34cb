"""A query for the engine: generated text, its parameters and the shape of what comes back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from dpsql.errors import Cancelled


@dataclass(frozen=True, slots=True)
class EngineQuery:
    """Generated SQL. Its first `keys` columns are group keys; the others are 64-bit integer sums, never NULL."""

    sql: str
    keys: int
    parameters: Mapping[str, object] = field(default_factory=dict, repr=False)
    sources: tuple[tuple[str, ...], ...] = ()  # schema and name of every table that it reads
    names: frozenset[str] = frozenset()  # of the parameters that it has

    def filled(self, parameters: Mapping[str, object]) -> EngineQuery:
        """The same with those of the parameters that it has."""
        return replace(self, parameters={name: parameters[name] for name in sorted(self.names)})


class Cancellation:
    """A switch another thread may throw to stop a query. What was charged by then is not refunded."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._callback: Callable[[], None] | None = None
        self.cancelled = False

    def check(self) -> None:
        """Raise if the statement was cancelled: to be asked before something is begun that cannot be undone."""
        if self.cancelled:
            raise Cancelled("canceling statement due to user request")

    def cancel(self) -> None:
        with self._lock:
            self.cancelled = True
            callback = self._callback
        if callback is not None:
            callback()

    def on_cancel(self, callback: Callable[[], None] | None) -> None:
        """Register what stops the query; called at once if it was cancelled before."""
        with self._lock:
            self._callback = callback
            already = self.cancelled
        if already and callback is not None:
            callback()
