"""Waits for the ledger end when the waiting statement is cancelled.

A thread that runs a statement declares it once (`interruptible`); waits in that thread, for a lock of the ledger or for
its server, then check for cancellation from time to time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from dpsql.effort import Cancellation
from dpsql.errors import Cancelled

GLANCE = 0.05  # seconds between checks


class Abandoned(Cancelled):
    """The statement was cancelled while it waited. Its work had not begun, or left nothing."""

    def __init__(self) -> None:
        super().__init__("canceling statement due to user request")


class _Statement(threading.local):
    cancellation: Cancellation | None = None


_current = _Statement()


@contextmanager
def interruptible(cancellation: Cancellation | None) -> Iterator[None]:
    """Within the block, this thread's waits end once the statement is cancelled; None: they never do."""
    outer, _current.cancellation = _current.cancellation, cancellation
    try:
        yield
    finally:
        _current.cancellation = outer


def go_on() -> None:
    """Raise if the statement of this thread was cancelled."""
    if _current.cancellation is not None and _current.cancellation.cancelled:
        raise Abandoned


class Lock(Protocol):
    def acquire(self, blocking: bool = ..., timeout: float = ...) -> bool: ...


def acquire(lock: Lock, seconds: float) -> bool:
    """Take a lock; False on timeout."""
    deadline = time.monotonic() + seconds
    while not lock.acquire(timeout=GLANCE):
        if time.monotonic() > deadline:
            return False
        go_on()
    return True
