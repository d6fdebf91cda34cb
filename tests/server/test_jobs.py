"""Statements of one user: as many run at once as the policy says; the others wait, and can be cancelled meanwhile."""

from __future__ import annotations

import asyncio
import threading
from typing import cast

import pytest

from dpsql.answering.dataset import Dataset
from dpsql.effort import Cancellation
from dpsql.errors import Cancelled
from dpsql.server.relay.execute import Reply
from dpsql.server.relay.jobs import Jobs

ENGINE = cast(Dataset, "no engine is needed: jobs only wait")


class Held:
    """Jobs that run until they are let go; how many run, of each user."""

    def __init__(self) -> None:
        self.running: dict[str, int] = {"alice": 0, "bob": 0}
        self.most = 0
        self.go = threading.Event()
        self._lock = threading.Lock()

    def of(self, user: str) -> Reply:
        with self._lock:
            self.running[user] += 1
            self.most = max(self.most, self.running["alice"])
        self.go.wait(30)
        with self._lock:
            self.running[user] -= 1
        return Reply(b"")


async def _until(jobs: Held, user: str, count: int) -> None:
    async with asyncio.timeout(30):
        while jobs.running[user] < count:
            await asyncio.sleep(0.01)


def test_others_are_served_while_one_user_has_many_under_way() -> None:
    async def scenario() -> None:
        jobs, held = Jobs(), Held()
        asked = [
            asyncio.create_task(jobs.run(ENGINE, "alice", lambda _: held.of("alice"), Cancellation(), at_once=3))
            for _ in range(20)
        ]
        await _until(held, "alice", 3)
        other = asyncio.create_task(jobs.run(ENGINE, "bob", lambda _: held.of("bob"), Cancellation(), at_once=3))
        await _until(held, "bob", 1)
        held.go.set()
        await asyncio.gather(*asked, other)
        assert held.most == 3
        await jobs.stop(within=5)

    asyncio.run(scenario())


def test_one_that_waits_can_be_cancelled() -> None:
    async def scenario() -> None:
        jobs, held, cancellation = Jobs(), Held(), Cancellation()
        first = asyncio.create_task(jobs.run(ENGINE, "alice", lambda _: held.of("alice"), Cancellation(), at_once=1))
        await _until(held, "alice", 1)
        second = asyncio.create_task(jobs.run(ENGINE, "alice", lambda _: held.of("alice"), cancellation, at_once=1))
        await asyncio.sleep(0)
        cancellation.cancel()
        with pytest.raises(Cancelled):
            await second
        held.go.set()
        await first
        await jobs.stop(within=5)

    asyncio.run(scenario())


def test_one_that_does_not_end_when_it_is_cancelled_is_left_alone() -> None:
    async def scenario() -> None:
        jobs, held, cancellation = Jobs(), Held(), Cancellation()
        asked = asyncio.create_task(jobs.run(ENGINE, "alice", lambda _: held.of("alice"), cancellation, at_once=1))
        await _until(held, "alice", 1)
        cancellation.cancel()
        with pytest.raises(Cancelled) as found:
            await asked
        assert held.running["alice"] == 1 == jobs.busy
        assert "the charge stands" in (found.value.detail or "")
        # The next one of its user does not wait for it.
        async with asyncio.timeout(15):
            following = await jobs.run(ENGINE, "alice", lambda _: Reply(b"next"), Cancellation(), at_once=1)
        assert following == Reply(b"next") and held.running["alice"] == 1
        held.go.set()
        assert await jobs.finished(within=30)
        await jobs.stop(within=5)

    asyncio.run(scenario())
