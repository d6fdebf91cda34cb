"""Chooses where a query is compiled: small ones in this process, if allowed, others in one that can be killed.

Python cannot be interrupted inside a C call, such as the product of two huge numbers or a compiled parser, and other
threads wait meanwhile. A process can always be killed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from dpsql.answering.compiling.nursery import WALL_TIMES, Failure, Order
from dpsql.answering.compiling.processes import KILLED, OUT_OF_TIME, STUCK, Child, Ended, Nursery
from dpsql.answering.compiling.work import Choice, Compiled, Ground, OutOfSteps, compile_source, too_many_steps
from dpsql.answering.fairness import FairSlots
from dpsql.effort import Cancellation, Stopped
from dpsql.errors import Cancelled, Error, TooComplex
from dpsql.policy.model import CompileLimits
from dpsql.release import Source

SMALL = 100_000  # steps that may run in this process
QUICK_SECONDS = 0.5  # seconds after which a query counts as long work
# Concurrent compile processes: half for short work, half for long work. One user may hold half of each.
SLOTS, OF_ONE_USER = 4, 2
_PAID = 3  # factor on the limits for a query that was accepted and paid for before


class Compiler:
    """Safe for many threads."""

    def __init__(self, ground: Ground, limits: CompileLimits, *, apart: bool = False) -> None:
        """`apart`: compile nothing in this process, so that its other threads never wait."""
        self._ground = ground
        self._limits = limits
        self._small = 0 if apart else min(SMALL, limits.max_compile_steps)
        self._nursery = Nursery(ground)
        self.quick = FairSlots(SLOTS, OF_ONE_USER)
        self.long = FairSlots(SLOTS, OF_ONE_USER)
        if apart:
            threading.Thread(target=self._nursery.warm, name="dpsql compile", daemon=True).start()

    def compile(
        self, source: Source, chosen: Choice, *, user: str, cancellation: Cancellation | None, paid: bool = False
    ) -> Compiled:
        """The release of a text; 54001 if it exceeds the steps or the memory, 57014 if it exceeds the time.

        Time is processor time, so that a text is not refused because the machine is busy. A wall-clock limit only ends
        compilations that hang or hardly get any processor time.
        """
        if self._small:
            try:
                return compile_source(
                    self._ground,
                    source,
                    chosen,
                    self._small,
                    lambda: cancellation is not None and cancellation.cancelled,
                )
            except Stopped:
                raise _cancelled() from None
            except OutOfSteps:
                if self._small == self._limits.max_compile_steps:
                    raise too_many_steps(self._small) from None
        times = _PAID if paid else 1
        order = Order(
            source,
            chosen,
            self._limits.max_compile_steps * times,
            self._limits.compile_timeout * times,
            self._limits.memory_bytes * times,
        )
        found = self._nursery.packing.unpack(self._apart(order, user, cancellation))
        if isinstance(found, Error):
            raise found
        if isinstance(found, Failure):
            raise self._failed(found)
        assert isinstance(found, Compiled)
        return found

    def close(self) -> None:
        self._nursery.close()

    # --- in another process ---

    def _apart(self, order: Order, user: str, cancellation: Cancellation | None) -> bytes:
        packed = self._nursery.packing.pack(order)
        began = time.monotonic()
        self.quick.take(user, cancellation)
        try:
            child = self._nursery.child()
            child.ask(packed)
            if (data := self._answer(child, min(QUICK_SECONDS, order.wall_seconds), order, cancellation)) is not None:
                self._nursery.give_back(child)
                return data
            # It is long work now: it continues if a slot for long work is free, else it starts again later.
            if not (goes_on := self.long.take_now(user)):
                _end(child)
        finally:
            self.quick.give_back(user)
        if not goes_on:
            self.long.take(user, cancellation)
        try:
            if not goes_on:
                began = time.monotonic()
                child = self._nursery.child()
                child.ask(packed)
            left = began + order.wall_seconds - time.monotonic()
            data = self._answer(child, max(left, 0.0), order, cancellation)
            if data is None:
                _end(child)
                raise _stuck(order)
            child.close()  # long work may leave its memory fragmented
            return data
        finally:
            self.long.give_back(user)

    def _answer(self, child: Child, within: float, order: Order, cancellation: Cancellation | None) -> bytes | None:
        try:
            with _ended_by(cancellation, child):
                return child.answer(within)
        except Ended as ended:
            if cancellation is not None and cancellation.cancelled:
                raise _cancelled() from None
            if ended.by == OUT_OF_TIME:
                raise _too_long(order) from None
            if ended.by == STUCK:
                raise _stuck(order) from None
            if ended.by == KILLED:  # by the kernel's out-of-memory killer
                raise self._failed(Failure("memory")) from None
            raise

    def _failed(self, failure: Failure) -> Exception:
        match failure.reason:
            case "steps":
                return too_many_steps(self._limits.max_compile_steps)
            case "memory":
                return TooComplex(
                    f"the query takes more than {self._limits.compile_memory} of memory to compile",
                    hint="Split it into smaller queries; the limit is compile_memory in [limits] of the policy.",
                )
            case _:
                return RuntimeError(failure.text)


@contextmanager
def _ended_by(cancellation: Cancellation | None, child: Child) -> Iterator[None]:
    if cancellation is None:
        yield
        return
    cancellation.on_cancel(child.kill)
    try:
        yield
    finally:
        cancellation.on_cancel(None)


def _end(child: Child) -> None:
    child.kill()
    child.close()


def _too_long(order: Order) -> Cancelled:
    return Cancelled(
        f"the query takes more than {order.seconds:g} seconds of processor time to compile",
        hint="Split it into smaller queries; the limit is compile_timeout in [limits] of the policy.",
    )


def _stuck(order: Order) -> Cancelled:
    return Cancelled(
        f"the query was not compiled within {order.wall_seconds:g} seconds because the machine is busy",
        hint=f"Try again later; the limit is {WALL_TIMES} times compile_timeout in [limits] of the policy.",
    )


def _cancelled() -> Cancelled:
    return Cancelled("canceling statement due to user request")
