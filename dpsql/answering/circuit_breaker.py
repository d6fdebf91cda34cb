"""A circuit breaker (Nygard 2007): after failures of the engine nothing is charged until it is tried again."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass

from dpsql.errors import CircuitOpen, EngineLost, Error

THRESHOLD = 2  # failures of one user's queries in a row; an engine that is lost opens the circuit of everybody at once
FIRST_SECONDS, LONGEST_SECONDS = 2.0, 60.0

_log = logging.getLogger("dpsql.answering.circuit_breaker")


@dataclass(slots=True)
class _Circuit:
    failures: int = 0
    seconds: float = 0.0  # of the present pause
    until: float = 0.0


class CircuitBreaker:
    """One circuit for each user, and one for all. Safe for many threads.

    A query that fails may be to blame itself, and must not keep others from asking: it opens the circuit of its user.
    After the pause one query is let through; if it fails, the next pause is twice as long.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._circuits: dict[str | None, _Circuit] = {}  # None is everybody's

    @property
    def open(self) -> int:
        """How many circuits are open now."""
        now = time.monotonic()
        with self._lock:
            return sum(now < circuit.until for circuit in self._circuits.values())

    def require_closed(self, user: str) -> None:
        """Raise CircuitOpen unless the user's next query may be charged; ask once for each."""
        now = time.monotonic()
        with self._lock:
            found = [circuit for whose in (None, user) if (circuit := self._circuits.get(whose)) and circuit.seconds]
            waits = [circuit.until - now for circuit in found if now < circuit.until]
            if waits:
                raise CircuitOpen(max(waits))
            for circuit in found:  # one at a time, until it is known how that one ends
                circuit.until = now + circuit.seconds

    def failed(self, user: str, error: Error) -> None:
        """An engine failed on a query that was charged."""
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
