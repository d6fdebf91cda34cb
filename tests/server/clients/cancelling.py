"""Requests to cancel, sent until one arrives in time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def repeatedly(action: Callable[[], object]) -> Iterator[None]:
    """Do it every 0.3 seconds within the block: a request that comes too early is lost.

    The last one has ended before what follows begins, which it would cancel.
    """
    done = threading.Event()

    def run() -> None:
        while not done.wait(0.3):
            action()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
