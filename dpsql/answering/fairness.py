"""Fair slots for long work, so that no user can block all others."""

from __future__ import annotations

import threading
from collections import Counter
from itertools import count

from dpsql.effort import Cancellation
from dpsql.errors import Cancelled

_GLANCE = 0.05  # seconds between checks for cancellation


class FairSlots:
    """Safe for many threads. One user holds at most a quarter of all slots, or `each`; the last quarter is reserved for
    users who hold none. The waiting user with the fewest slots is next; among equals, first come, first served.
    """

    def __init__(self, slots: int, each: int) -> None:
        self._slots = slots
        self._each = each
        self._reserved = slots // 4
        self._held: Counter[str] = Counter()
        self._waiting: dict[int, str] = {}
        self._numbers = count()
        self._change = threading.Condition()

    @property
    def held(self) -> int:
        return self._held.total()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def take(self, user: str, cancellation: Cancellation | None = None) -> None:
        """Wait for a slot."""
        with self._change:
            number = next(self._numbers)
            self._waiting[number] = user
            try:
                while not self._is_next(number):
                    if cancellation is not None and cancellation.cancelled:
                        raise Cancelled("canceling statement due to user request")
                    self._change.wait(_GLANCE)
                self._held[user] += 1
            finally:
                del self._waiting[number]
                self._change.notify_all()

    def take_now(self, user: str) -> bool:
        """Take a slot if one is free and no one who waits has precedence."""
        with self._change:
            if not self._may(user) or any(map(self._may, self._waiting.values())):
                return False
            self._held[user] += 1
            return True

    def give_back(self, user: str) -> None:
        with self._change:
            self._held[user] -= 1
            if not self._held[user]:
                del self._held[user]
            self._change.notify_all()

    def _may(self, user: str) -> bool:
        free = self._slots - self._held.total()
        own = self._held[user]
        return free > (self._reserved if own else 0) and own < self._each

    def _is_next(self, number: int) -> bool:
        able = [(self._held[user], other) for other, user in self._waiting.items() if self._may(user)]
        return bool(able) and min(able)[1] == number
