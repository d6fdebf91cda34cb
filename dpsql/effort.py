"""Work that can end early: cancelled statements, and compilations that exceed their limit of steps.

A step is one visit of a part of a query: an expression, a relation, a statistic. Their number depends on the text, the
policy and the schema alone, never on the machine, so that the same query is always accepted or always refused.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dpsql.errors import Cancelled

_EVERY = 256  # steps between checks for cancellation


class OutOfSteps(Exception):
    """The compilation exceeds its limit of steps."""


class Stopped(Exception):
    """The compilation was cancelled."""


class Effort:
    """The steps of one compilation, in the thread that compiles."""

    __slots__ = ("_is_stopped", "_most", "next_question", "steps")

    def __init__(self, most: int, is_stopped: Callable[[], bool] = lambda: False) -> None:
        self.steps = 0
        self._most = most
        self._is_stopped = is_stopped
        self.next_question = min(_EVERY, most)  # at how many steps to ask again

    def ask(self) -> None:
        """Whether to go on."""
        if self.steps > self._most:
            raise OutOfSteps
        if self._is_stopped():
            raise Stopped
        self.next_question = min(self.steps + _EVERY, self._most)


class _Here(threading.local):
    effort: Effort | None = None


_here = _Here()


@contextmanager
def limited(effort: Effort) -> Iterator[None]:
    """Count the steps of this thread within the block."""
    before, _here.effort = _here.effort, effort
    try:
        yield
    finally:
        _here.effort = before


def spend(steps: int = 1) -> None:
    """Count visited parts. Does nothing outside of `limited`."""
    effort = _here.effort
    if effort is not None:
        effort.steps += steps
        if effort.steps > effort.next_question:
            effort.ask()


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
