"""Runs statements for the dataset, each in a thread, a few at a time, and logs each when it has ended."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress

from dpsql.answering.dataset import Dataset
from dpsql.effort import Cancellation
from dpsql.errors import Cancelled, EngineFailed, Error, InternalError
from dpsql.ledger.waiting import interruptible
from dpsql.privacy.accounting import Price
from dpsql.server.ops.logs import note
from dpsql.server.relay.execute import Reply
from dpsql.slots import Slots

_THREADS = 1_000  # one for each statement that runs or waits: the dataset itself limits concurrent work

_PAUSE = 0.02
_PATIENCE = 2.0  # seconds for a cancelled job to end
_GLANCE = 0.05  # seconds between checks of a waiting job's cancellation, and of other processes


class Jobs:
    """Belongs to the event loop, in which all of its methods are called."""

    def __init__(self, slots: Slots | None = None) -> None:
        self._slots = slots or Slots()
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="dpsql-answer")
        self._jobs: Counter[Dataset] = Counter()
        self._an_end = asyncio.Event()  # set when some job has ended
        self._cancellations: set[Cancellation] = set()  # of all jobs

    @property
    def busy(self) -> int:
        return self._jobs.total()

    async def run(
        self, dataset: Dataset, user: str, job: Callable[[Dataset], Reply], cancellation: Cancellation, *, at_once: int
    ) -> Reply:
        """The reply of a job. A caller that stops waiting does not end it; its cancellation does.

        At most `at_once` jobs of one user run, over all processes that share the slots; further ones wait, so that
        one user cannot block the others.
        """
        while (slot := self._slots.take(b"statement of " + user.encode(), at_once)) is None:
            if cancellation.cancelled:
                raise Cancelled("canceling statement due to user request")
            self._an_end.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(_GLANCE):
                    await self._an_end.wait()
        loop = asyncio.get_running_loop()
        began = loop.time()
        submitted: list[Future[Reply]] = []
        held = [slot]

        def work() -> Reply:
            with interruptible(cancellation):
                return job(dataset)

        def drop() -> None:
            submitted[0].cancel()

        def leave() -> None:
            """Idempotent: an abandoned job must not keep the next one of its user waiting."""
            if held:
                self._slots.give_back(held.pop())
                self._an_end.set()

        def ended(future: Future[Reply]) -> None:
            self._jobs[dataset] -= 1
            leave()
            self._cancellations.discard(cancellation)
            _note(dataset, user, future, loop.time() - began)

        def tell(future: Future[Reply]) -> None:
            with suppress(RuntimeError):  # the event loop has ended
                loop.call_soon_threadsafe(ended, future)

        # While it waits for its turn it is dropped. Once it runs, the engine's own cancellation replaces this.
        cancellation.on_cancel(drop)
        self._jobs[dataset] += 1
        self._cancellations.add(cancellation)
        submitted.append(self._pool.submit(work))
        submitted[0].add_done_callback(tell)
        running = asyncio.wrap_future(submitted[0])
        try:
            return await _outcome(running, cancellation)
        except _Abandoned:
            leave()
            raise
        except asyncio.CancelledError:
            running.cancel()
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise Cancelled("canceling statement due to user request") from None

    async def finished(self, dataset: Dataset | None = None, *, within: float = 3_600.0) -> bool:
        """Wait until no job of a dataset, or of any, is under way; False if that takes too long."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within
        while self.busy if dataset is None else self._jobs[dataset]:
            if loop.time() > deadline:
                return False
            await asyncio.sleep(_PAUSE)
        return True

    async def stop(self, *, within: float) -> None:
        """Cancel the jobs under way, and wait for their end."""
        for cancellation in list(self._cancellations):
            cancellation.cancel()
        await self.finished(within=within)
        self._pool.shutdown(wait=False, cancel_futures=True)


class _Abandoned(Cancelled):
    """A job that was cancelled, has not ended, and is abandoned."""


async def _outcome(running: asyncio.Future[Reply], cancellation: Cancellation) -> Reply:
    """The outcome of a job. A cancelled job that does not end, as it waits for something outside, is abandoned.

    An abandoned job ends by itself, and begins no new charge.
    """
    loop = asyncio.get_running_loop()
    since: float | None = None
    while not running.done():
        await asyncio.wait({running}, timeout=_GLANCE)
        if cancellation.cancelled and since is None:
            since = loop.time()
        if since is not None and loop.time() - since > _PATIENCE and not running.done():
            running.add_done_callback(
                lambda future: future.cancelled() or future.exception()
            )  # no one retrieves the result
            raise _Abandoned(
                "canceling statement due to user request",
                detail="The ledger or the database has not answered yet. If the query was charged, the charge stands.",
                hint="Run the query again: a charge without an answer is not made twice.",
            )
    return running.result()


def _note(dataset: Dataset, user: str, future: Future[Reply], seconds: float) -> None:
    outcome, price, sqlstate = "cancelled", None, None
    if not future.cancelled():
        error = future.exception()
        if error is None:
            outcome, price = future.result().outcome, future.result().price
        else:
            sqlstate = error.sqlstate if isinstance(error, Error) else InternalError.sqlstate
            if not isinstance(error, Error) or isinstance(error, EngineFailed | InternalError):
                outcome = "failed"
            elif not isinstance(error, Cancelled):
                outcome = "refused"
    note(
        "statement",
        user=user,
        outcome=outcome,
        sqlstate=sqlstate,
        seconds=round(seconds, 4),
        **_price_facts(price, dataset),
    )


def _price_facts(price: Price | None, dataset: Dataset) -> dict[str, float]:
    if price is None or price == Price():
        return {}
    accountant = dataset.accountant
    found = {"epsilon": float(accountant.epsilon_of(price.loss))}
    if accountant.policy.accounting == "zcdp":
        found["rho"] = float(price.loss_value)
        if price.pure_value is not None:
            found["pure"] = float(price.pure_value)
    return found | ({"delta": float(price.delta_value)} if price.delta else {})


# ------------------------------------------------------------
# Ticks: replies of every kind leave at whole ticks after their query, which limits what response times reveal.


@asynccontextmanager
async def leaving_at_a_tick(tick: float | None) -> AsyncIterator[None]:
    """Leave the block at a whole number of ticks (in seconds) after it was entered, however it ends.

    Claim: the block's duration reveals no more than its number of ticks.
    Because: success, refusal, failure and cancellation by the client all wait for the same tick.
    Needs: no observer other than the client; a block whose client is gone is left at once.
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
