"""The watchdog: a call is interrupted from its deadline or cancellation until it ends, and never outside."""

from __future__ import annotations

import threading
import time
from contextlib import suppress

import pytest

from dpsql.effort import Cancellation
from dpsql.engines.runtime import Watchdog
from dpsql.errors import Cancelled

SOON = 0.1  # seconds: long enough for a call to begin before they are over, also on a busy machine


class ForgetfulEngine:
    """Loses its first interrupts, as an engine does when they come between two statements."""

    def __init__(self, forgets: int) -> None:
        self._left = forgets
        self.stopped = threading.Event()
        self.running = False
        self.interrupted_while_idle = False

    def interrupt(self) -> None:
        self.interrupted_while_idle |= not self.running
        self._left -= 1
        if self._left < 0:
            self.stopped.set()


@pytest.mark.parametrize("by_hand", [True, False])
def test_an_interrupt_is_repeated_until_it_is_heard(by_hand: bool) -> None:
    engine, switch = ForgetfulEngine(forgets=3), Cancellation()
    engine.running = True
    with Watchdog().guard(engine.interrupt, 30 if by_hand else SOON, switch) as watch:
        if by_hand:
            switch.cancel()
        assert engine.stopped.wait(10)
        with pytest.raises(Cancelled, match="user request" if by_hand else "statement timeout"):
            watch.check()


def test_a_call_that_ended_is_never_interrupted() -> None:
    watchdog, late = Watchdog(), Cancellation()
    for timeout in [0.0, 0.0001, 0.0005, 0.001] * 50:
        engine = ForgetfulEngine(forgets=0)
        engine.running = True
        with suppress(Cancelled), watchdog.guard(engine.interrupt, timeout, late):  # it may be late before it begins
            engine.stopped.wait(0.0005)
        engine.running = False
        assert not engine.interrupted_while_idle
    late.cancel()
    assert not engine.interrupted_while_idle


def test_each_call_has_its_own_deadline() -> None:
    watchdog = Watchdog()
    patient, hasty = ForgetfulEngine(forgets=0), ForgetfulEngine(forgets=0)
    with watchdog.guard(patient.interrupt, 30) as waiting:
        # Shorter than the one the thread sleeps for.
        with watchdog.guard(hasty.interrupt, SOON):
            assert hasty.stopped.wait(10)
        waiting.check()
    assert not patient.stopped.is_set()


def test_a_call_that_was_cancelled_beforehand_does_not_begin() -> None:
    engine, switch = ForgetfulEngine(forgets=0), Cancellation()
    switch.cancel()
    with pytest.raises(Cancelled), Watchdog().guard(engine.interrupt, 30, switch):
        pytest.fail("the block was entered")


def test_the_thread_ends_when_there_is_nothing_to_watch_and_starts_again() -> None:
    watchdog = Watchdog()
    for _ in range(3):
        engine = ForgetfulEngine(forgets=0)
        with watchdog.guard(engine.interrupt, SOON):
            assert engine.stopped.wait(10)
        while watchdog._running:
            time.sleep(0.001)


def test_quick_calls_share_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[threading.Thread] = []
    start = threading.Thread.start

    def counted(thread: threading.Thread) -> None:
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", counted)
    for watchdogs in range(1, 21):
        watchdog = Watchdog()
        for _ in range(3):
            # Over before the thread looks for the first time, at least sometimes.
            with watchdog.guard(lambda: None, 10):
                pass
            time.sleep(0.0005)
        assert len(started) == watchdogs
