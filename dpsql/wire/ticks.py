"""Ticks: answers, refusals and failures leave only at whole ticks after their question, so that time tells less."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


@asynccontextmanager
async def leaving_at_a_tick(tick: float | None) -> AsyncIterator[None]:
    """Whatever the block does, it is left at a whole number of ticks (in seconds) after it was entered.

    Claim: of how long the block took, one learns the number of ticks.
    Because: success, refusal, failure and cancellation by the client all wait for the same tick.
    Needs: nobody who waits; a block whose client is gone is left at once.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()

    async def wait() -> None:
        if tick is not None:
            await asyncio.sleep(math.ceil((loop.time() - began) / tick) * tick - (loop.time() - began))

    try:
        yield
    except Exception:
        await wait()
        raise
    await wait()
