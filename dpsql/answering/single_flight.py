"""Single-flight: a request for an answer that is being bought waits for it instead of buying it again."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from dpsql.effort import Cancellation
from dpsql.errors import Cancelled
from dpsql.slots import Slots

_GLANCE = 0.02  # seconds between checks for cancellation, and of other processes


class SingleFlight:
    """Safe for many threads, and for the processes that share the slots.

    A caller's keys are all taken at once or not at all, so there is no deadlock. It is an optimisation: an answer
    that is bought twice all the same is paid for twice, if the ledger allows it.
    """

    def __init__(self, slots: Slots | None = None) -> None:
        self._slots = slots or Slots()
        self._change = threading.Condition()

    @contextmanager
    def of(self, keys: Iterable[bytes], cancellation: Cancellation | None) -> Iterator[None]:
        wanted = set(keys)
        with self._change:
            while (taken := self._take(wanted)) is None:
                if cancellation is not None and cancellation.cancelled:
                    raise Cancelled("canceling statement due to user request")
                self._change.wait(_GLANCE)
        try:
            yield
        finally:
            with self._change:
                self._give_back(taken)
                self._change.notify_all()

    def _take(self, wanted: set[bytes]) -> list[int] | None:
        taken: list[int] = []
        for key in wanted:
            slot = self._slots.take(b"answer " + key, 1)
            if slot is None:
                self._give_back(taken)
                return None
            taken.append(slot)
        return taken

    def _give_back(self, taken: list[int]) -> None:
        for slot in taken:
            self._slots.give_back(slot)
