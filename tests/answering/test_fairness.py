"""Places for long work: nobody keeps all others waiting."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from dpsql.answering.fairness import FairSlots
from dpsql.effort import Cancellation
from dpsql.errors import Cancelled


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_one_user_holds_no_more_than_a_share() -> None:
    slots = FairSlots(16, 4)
    assert [slots.take_now("eve") for _ in range(6)] == [True] * 4 + [False] * 2
    assert slots.take_now("bob")


def test_the_last_places_are_for_those_who_hold_none() -> None:
    slots = FairSlots(16, 4)
    for user in ("a", "b", "c"):
        assert all(slots.take_now(user) for _ in range(4))
    assert slots.take_now("d")
    assert not slots.take_now("d")
    assert slots.take_now("e")


def test_who_holds_fewer_is_next() -> None:
    slots = FairSlots(2, 2)
    slots.take("eve")
    slots.take("mallory")
    served: list[str] = []

    def wait(user: str) -> None:
        slots.take(user)
        served.append(user)

    threads = [threading.Thread(target=wait, args=("eve",))]
    threads[0].start()
    eventually(lambda: slots.waiting == 1)
    threads.append(threading.Thread(target=wait, args=("bob",)))
    threads[1].start()
    eventually(lambda: slots.waiting == 2)
    slots.give_back("mallory")  # eve came first, but has a place already
    eventually(lambda: served == ["bob"])
    assert not slots.take_now("mallory")
    slots.give_back("bob")
    for thread in threads:
        thread.join(30)
    assert served == ["bob", "eve"]


def test_one_that_waits_can_be_cancelled() -> None:
    slots, cancellation = FairSlots(1, 1), Cancellation()
    slots.take("eve")
    cancellation.cancel()
    with pytest.raises(Cancelled):
        slots.take("bob", cancellation)
    assert slots.waiting == 0
    slots.give_back("eve")
    assert slots.held == 0
