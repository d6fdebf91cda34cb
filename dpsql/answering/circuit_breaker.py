"""A circuit breaker (Nygard 2007): after failures of the engine, new queries are refused for a while, uncharged."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass

from dpsql.errors import CircuitOpen, EngineLost, Error

THRESHOLD = 2  # consecutive failures of one user's queries; a lost engine opens the circuit of all users at once
FIRST_SECONDS, LONGEST_SECONDS = 2.0, 60.0

_log = logging.getLogger("dpsql.answering.circuit_breaker")


@dataclass(slots=True)
class _Circuit:
    failures: int = 0
    seconds: float = 0.0  # the end of the current pause
    until: float = 0.0


class CircuitBreaker:
    """One circuit for each user, and one for all users. Safe for many threads.

    A failing query may be the cause itself, so it opens its user's circuit only. After the pause one query is let
    through; if it fails, the next pause is twice as long.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._circuits: dict[str | None, _Circuit] = {}  # None: the circuit of all users

    @property
    def open(self) -> int:
        """The number of open circuits."""
        now = time.monotonic()
        with self._lock:
            return sum(now < circuit.until for circuit in self._circuits.values())

    def require_closed(self, user: str) -> None:
        """Raise CircuitOpen unless the user's next query may be charged; call once per query."""
        now = time.monotonic()
        with self._lock:
            found = [circuit for whose in (None, user) if (circuit := self._circuits.get(whose)) and circuit.seconds]
            waits = [circuit.until - now for circuit in found if now < circuit.until]
            if waits:
                raise CircuitOpen(max(waits))
            for circuit in found:  # half-open: one at a time, until its outcome is known
                circuit.until = now + circuit.seconds

    def failed(self, user: str, error: Error) -> None:
        """Record that the engine failed on a charged query."""
        lost = isinstance(error, EngineLost)
        with self._lock:
            circuit = self._circuits.setdefault(None if lost else user, _Circuit())
            circuit.failures += 1
            if not lost and circuit.failures < THRESHOLD:
                return
            circuit.seconds = min(max(FIRST_SECONDS, 2 * circuit.seconds), LONGEST_SECONDS)
            circuit.until = time.monotonic() + circuit.seconds
            seconds = circuit.seconds
        facts = {"user": None if lost else user, "seconds": seconds}
        _log.warning(
            "circuit_opened", extra={"facts": {name: fact for name, fact in facts.items() if fact is not None}}
        )

    def succeeded(self, user: str) -> None:
        with self._lock:
            for whose in (None, user):
                self._circuits.pop(whose, None)
