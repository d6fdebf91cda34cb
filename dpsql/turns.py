"""Turns: who asks for what is being bought just now waits for it, rather than buying it again."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from dpsql.errors import Cancelled
from dpsql.generate.query import Cancellation

_GLANCE = 0.1  # seconds between looks at the cancellation


class Turns:
    """Safe for many threads. All that a caller wants is taken at once, so nobody waits for each other."""

    def __init__(self) -> None:
        self._taken: set[bytes] = set()
        self._change = threading.Condition()

    @contextmanager
    def of(self, keys: Iterable[bytes], cancellation: Cancellation | None) -> Iterator[None]:
        wanted = set(keys)
        with self._change:
            while self._taken & wanted:
                if cancellation is not None and cancellation.cancelled:
                    raise Cancelled("canceling statement due to user request")
                self._change.wait(_GLANCE)
            self._taken |= wanted
        try:
            yield
        finally:
            with self._change:
                self._taken -= wanted
                self._change.notify_all()
