"""Success and failure leave at a tick; a client that is gone waits for nothing."""

from __future__ import annotations

import asyncio

import pytest

from dpsql.errors import Cancelled
from dpsql.server.relay.jobs import leaving_at_a_tick

TICK = 0.05


async def _ticks(work: float, error: Exception | None) -> float:
    """How many ticks a block takes."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    try:
        async with leaving_at_a_tick(TICK):
            await asyncio.sleep(work)
            if error is not None:
                raise error
    except Cancelled:
        pass
    return (loop.time() - began) / TICK


@pytest.mark.parametrize("error", [None, Cancelled("cancelled")], ids=["success", "failure"])
@pytest.mark.parametrize(("work", "least"), [(0.0, 0), (0.2 * TICK, 1), (0.9 * TICK, 1), (1.1 * TICK, 2)])
def test_never_before_the_tick(work: float, least: int, error: Exception | None) -> None:
    assert asyncio.run(_ticks(work, error)) >= least * 0.99


def test_without_ticks_nothing_waits() -> None:
    async def scenario() -> None:
        async with leaving_at_a_tick(None):
            pass

    asyncio.run(scenario())


def test_who_is_gone_waits_for_nothing() -> None:
    async def scenario() -> None:
        async def block() -> None:
            async with leaving_at_a_tick(3_600):
                await asyncio.sleep(3_600)

        task = asyncio.create_task(block())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scenario())
