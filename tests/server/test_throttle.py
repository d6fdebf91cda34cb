"""Guessing gets slow; nobody else does; and what is remembered is bounded."""

from __future__ import annotations

import asyncio

from dpsql.server.auth import throttle as module
from dpsql.server.auth.throttle import FIRST_DELAY, FORGET_AFTER, LONGEST_DELAY, MOST_REMEMBERED, TURNS, Throttle


def test_each_failure_is_answered_later_than_the_one_before() -> None:
    throttle = Throttle()
    delays = [throttle.failed("alice", "10.0.0.1", float(second)) for second in range(2_000)]
    assert delays[:4] == [FIRST_DELAY, 2 * FIRST_DELAY, 4 * FIRST_DELAY, 8 * FIRST_DELAY]
    assert max(delays) == delays[-1] == LONGEST_DELAY


def test_many_names_from_one_address_and_one_name_from_many_addresses_count_together() -> None:
    names, addresses = Throttle(), Throttle()
    for number in range(10):
        by_address = names.failed(f"user{number}", "10.0.0.1", 0)
        by_name = addresses.failed("alice", f"10.0.0.{number}", 0)
    assert by_address == by_name == LONGEST_DELAY
    assert names.failed("alice", "10.0.0.2", 0) == FIRST_DELAY


def test_addresses_that_come_in_bulk_count_as_one() -> None:
    throttle = Throttle()
    throttle.failed("a", "2001:db8::1", 0)
    assert throttle.failed("b", "2001:db8::ffff", 0) == 2 * FIRST_DELAY
    assert throttle.failed("c", "2001:db8:0:1::1", 0) == FIRST_DELAY
    throttle.failed("d", "::ffff:10.0.0.1", 0)
    assert throttle.failed("e", "10.0.0.1", 0) == 2 * FIRST_DELAY


def test_failures_are_forgotten() -> None:
    throttle = Throttle()
    for _ in range(10):
        throttle.failed("alice", "10.0.0.1", 0)
    assert throttle.failed("alice", "10.0.0.1", FORGET_AFTER + 1) == FIRST_DELAY


def test_memory_is_bounded_and_the_guilty_are_not_pushed_out() -> None:
    throttle = Throttle()
    for number in range(2 * MOST_REMEMBERED):
        delay = throttle.failed(f"user{number}", "10.0.0.1", 0)
    assert delay == LONGEST_DELAY
    assert len(throttle._failures) == MOST_REMEMBERED


def test_one_name_has_few_turns_at_a_time_and_others_do_not_wait() -> None:
    async def scenario() -> None:
        throttle, release = Throttle(), asyncio.Event()
        judged: list[int] = []

        async def guess(number: int) -> None:
            async with throttle.turn("alice", "10.0.0.1"):
                judged.append(number)
                await release.wait()

        guesses = [asyncio.ensure_future(guess(number)) for number in range(3 * TURNS)]
        for _ in range(10):
            await asyncio.sleep(0)
        assert judged == list(range(TURNS))
        async with throttle.turn("bob", "10.0.0.1"), throttle.turn("alice", "10.0.0.2"):
            pass
        release.set()
        await asyncio.gather(*guesses)
        assert judged == list(range(3 * TURNS))
        assert not throttle._queues  # nothing is kept of those who are gone

    asyncio.run(scenario())


def test_who_gives_up_waiting_leaves_nothing_behind() -> None:
    async def scenario() -> None:
        throttle = Throttle()
        async with throttle.turn("a", "x"), throttle.turn("a", "x"), throttle.turn("a", "x"), throttle.turn("a", "x"):
            waiting = asyncio.ensure_future(throttle.turn("a", "x").__aenter__())
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait([waiting])
        assert not throttle._queues

    asyncio.run(scenario())


def test_an_address_that_is_none_stands_for_itself() -> None:
    assert module.neighbourhood("local") == "local"
