"""Runs around every engine call: a watchdog that ends it, and a log for the engine's messages.

The watchdog stops calls that take too long or are cancelled, with one thread for all calls.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dpsql.effort import Cancellation
from dpsql.errors import Cancelled, EngineFailed, EngineLost

TIMED_OUT = "canceling statement due to statement timeout"
_USER_REQUEST = "canceling statement due to user request"

# An engine loses an interrupt that arrives between two statements, so it is repeated until the call has ended.
_REPEAT_SECONDS = 0.02
_LONGEST_SLEEP = 3600.0


def stopped(reason: str) -> Cancelled:
    return Cancelled(reason)


class Watch:
    """One guarded call."""

    __slots__ = ("deadline", "interrupt", "reason")

    def __init__(self, interrupt: Callable[[], None], deadline: float) -> None:
        self.interrupt = interrupt
        self.deadline = deadline
        self.reason: str | None = None  # why it was stopped

    def check(self) -> None:
        """Raise if the call was stopped. Called before each statement and when the engine reports an interrupt."""
        if self.reason is not None:
            raise stopped(self.reason)


class Watchdog:
    """Interrupts guarded calls, each for as long as it runs and never after.

    A call that ends in time does not wake the thread, which sleeps until the earliest deadline that it knows, and ends
    when it then has nothing to watch. A quick call therefore costs two uncontended locks.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._active: set[Watch] = set()
        self._running = False
        self._next_look = 0.0  # when the running thread looks again

    @contextmanager
    def guard(
        self, interrupt: Callable[[], None], timeout: float, cancellation: Cancellation | None = None
    ) -> Iterator[Watch]:
        """Call `interrupt` after `timeout` seconds or on cancellation, until the block ends."""
        watch = Watch(interrupt, time.monotonic() + timeout)
        with self._changed:
            self._active.add(watch)
            self._look_by(watch.deadline)
        try:
            if cancellation is not None:
                cancellation.on_cancel(lambda: self._cancel(watch))
            watch.check()
            yield watch
        finally:
            # Interrupts happen under this lock, so none can reach the caller's next statement.
            with self._changed:
                self._active.discard(watch)
            if cancellation is not None:
                cancellation.on_cancel(None)

    def _cancel(self, watch: Watch) -> None:
        with self._changed:
            watch.reason = watch.reason or _USER_REQUEST
            self._look_by(time.monotonic())

    def _look_by(self, moment: float) -> None:
        if not self._running:
            self._running = True
            self._next_look = moment
            threading.Thread(target=self._run, name="dpsql watchdog", daemon=True).start()
        elif moment < self._next_look:
            self._next_look = moment
            self._changed.notify()

    def _run(self) -> None:
        with self._changed:
            now = time.monotonic()
            while self._active or now < self._next_look:
                self._interrupt_due(now)
                self._changed.wait(min(max(self._next_look - now, 0.0), _LONGEST_SLEEP))
                now = time.monotonic()
            self._running = False

    def _interrupt_due(self, now: float) -> None:
        for watch in self._active:
            if watch.deadline <= now:
                watch.reason = watch.reason or TIMED_OUT
            if watch.reason is not None:
                watch.interrupt()
        looks = [watch.deadline if watch.reason is None else now + _REPEAT_SECONDS for watch in self._active]
        if looks:
            self._next_look = min(looks)


# ------------------------------------------------------------
# The engine's messages go to the owner's log; clients get a fixed sentence and an id to find them by.

_log = logging.getLogger("dpsql.answering.dataset")


def log_engine_error(error: Exception) -> str:
    """Write the engine's text to the owner's log and return the id it is found under."""
    log_id = uuid.uuid4().hex[:12]
    kind = type(error).__name__
    # The text may quote data; a log that others may read contains only the other two fields.
    _log.error("%s: %s: %s", log_id, kind, error, extra={"log_id": log_id, "error": kind})
    return log_id


def log_another_try(error: Exception) -> None:
    """Log that a query is run again without the engine's statistics."""
    kind = type(error).__name__
    _log.info("%s: a query is run once more without the engine's statistics", kind, extra={"error": kind})


def engine_failed(error: Exception, *, lost: bool = False) -> EngineFailed:
    """The error that is shown instead of the engine's; `lost` if the engine itself is gone.

    Claim: it depends on no value the engine held.
    Because: its text is fixed except for a random id; the original is neither quoted nor chained.
    Needs: the caller raises it outside the `except` block, or Python attaches the original as its context.
    """
    return (EngineLost if lost else EngineFailed)(log_engine_error(error))
