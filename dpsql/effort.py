"""How much work one compilation may be: steps are counted, and it ends where it is told to.

A step is one visit of a part of a query: an expression, a relation, a statistic. Their number depends on the text, the
policy and the schema alone, never on the machine, so that the same query is always accepted or always refused.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_EVERY = 256  # steps between questions whether to go on


class OutOfSteps(Exception):
    """The compilation takes more steps than it was given."""


class Stopped(Exception):
    """Nobody waits for the compilation any more."""


class Effort:
    """The steps of one compilation, in the thread that compiles."""

    __slots__ = ("_is_stopped", "_most", "_next_question", "steps")

    def __init__(self, most: int, is_stopped: Callable[[], bool] = lambda: False) -> None:
        self.steps = 0
        self._most = most
        self._is_stopped = is_stopped
        self._next_question = min(_EVERY, most)

    def spend(self, steps: int) -> None:
        self.steps += steps
        if self.steps > self._next_question:
            if self.steps > self._most:
                raise OutOfSteps
            if self._is_stopped():
                raise Stopped
            self._next_question = min(self.steps + _EVERY, self._most)


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
    """Say that so many parts are visited. Does nothing where nobody counts."""
    effort = _here.effort
    if effort is not None:
        effort.spend(steps)
