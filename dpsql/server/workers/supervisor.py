"""The supervisor of several worker processes on one port: starts them, and restarts one that has died.

The supervisor holds the sockets and the twin, and serves no client. Workers accept from the same sockets, so that a
busy or dead one leaves connections to the others. They share the ledger, the twin, `slots` and `client_counts`.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from dpsql.answering.dataset import Dataset
from dpsql.errors import OperationalError
from dpsql.policy.model import Policy
from dpsql.server.auth.login import LoginRules
from dpsql.server.listener import CHECK_SECONDS, DRAIN_SECONDS, gauges_of, problems_of, retarget
from dpsql.server.ops.logs import note, warn
from dpsql.server.ops.metrics import Counts, Gauge, page
from dpsql.server.twin import Twin
from dpsql.server.twin.sessions import OwnSession
from dpsql.server.workers.channel import (
    Begin,
    CancelSession,
    CancelStatement,
    Channel,
    ChannelClosed,
    EnsureTwin,
    GetState,
    Pause,
    Prepare,
    State,
    Stop,
    Switch,
    WrongPassword,
)

_SPARE_SECONDS = 15.0  # for a worker to end, beyond the time for statements
_SOON_SECONDS = 5.0  # a worker that died sooner is restarted only after a pause
_PAUSE = 2.0
_FIRST_TRIES = 3
_MEMORY = re.compile(r"([0-9.]+)( ?)([KMGT]i?B)")


class _Killed(OperationalError):
    """A worker was ended by a signal, so its start may be retried."""


class _Worker:
    """One process, from its start to its end."""

    def __init__(self, number: int, process: asyncio.subprocess.Process, channel: Channel) -> None:
        self.number = number
        self.process = process
        self.channel = channel
        self.counts = Counts()  # as of the last look
        self._listening = asyncio.create_task(channel.listen())

    @property
    def name(self) -> str:
        return f"worker {self.number}"

    async def look(self) -> State:
        async with asyncio.timeout(CHECK_SECONDS):
            state: State = await self.channel.ask(GetState())
        self.counts = state.counts
        return state

    async def end(self) -> int:
        """Wait until the process has ended; returns its exit status."""
        status = await self.process.wait()
        await self._listening
        return status


class Supervisor:
    """Used as a `Server`. Everything here runs in the event loop."""

    def __init__(self, policy: Policy, dataset: Dataset, twin: Twin, rules: LoginRules, count: int) -> None:
        self.policy = policy
        self.dataset = dataset
        self.twin = twin
        self.rules = rules
        self.port = policy.server.port
        self._count = count
        self._began = time.time()
        self._own = OwnSession(twin)
        self._sockets: Sequence[socket.socket] = ()
        self._workers: dict[int, _Worker] = {}
        self._keepers: list[asyncio.Task[None]] = []
        self._of_the_gone = Counts()
        self._changing = asyncio.Lock()  # no worker is started while the policy changes
        self._stopping = False

    # --- start and stop ---

    async def start(self, sockets: Sequence[socket.socket]) -> None:
        """Start the workers; returns when all of them listen."""
        self._sockets = sockets
        self.port = sockets[0].getsockname()[1]
        try:
            await asyncio.gather(*(self._launch_first(number) for number in range(1, self._count + 1)))
        except BaseException:
            for worker in self._workers.values():
                _kill(worker)
            raise
        self._keepers = [asyncio.create_task(self._keep(number)) for number in self._workers]

    async def stop(self, at_once: asyncio.Event) -> None:
        """Let the workers end in order; `at_once`, also in a second call, ends them at once."""
        self._stopping = True
        for each in self._sockets:
            each.close()
        hurry = asyncio.create_task(self._hurry(at_once))
        await asyncio.gather(*(self._stop(worker, at_once.is_set()) for worker in list(self._workers.values())))
        hurry.cancel()
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        await asyncio.to_thread(self._own.close)

    async def _hurry(self, at_once: asyncio.Event) -> None:
        await at_once.wait()
        with suppress(OperationalError):
            await self._ask_all(Stop(at_once=True))

    async def _stop(self, worker: _Worker, at_once: bool) -> None:
        try:
            async with asyncio.timeout(DRAIN_SECONDS + _SPARE_SECONDS):
                with suppress(ChannelClosed, OperationalError):
                    await worker.channel.ask(Stop(at_once))
                await worker.end()
        except TimeoutError:
            _kill(worker)
            await worker.end()

    async def _keep(self, number: int) -> None:
        """Restart a worker whenever it has died."""
        while True:
            worker, began = self._workers[number], time.monotonic()
            status = await worker.end()
            if self._stopping:
                return
            self._workers.pop(number, None)
            self._of_the_gone += worker.counts
            warn("worker_lost", worker=number, pid=worker.process.pid, status=status)
            while number not in self._workers:
                if time.monotonic() - began < _SOON_SECONDS:
                    await asyncio.sleep(_PAUSE)
                began = time.monotonic()
                try:
                    async with self._changing:
                        await self._launch(number)
                except (OperationalError, OSError) as error:
                    reason = error.message if isinstance(error, OperationalError) else error.strerror
                    warn("worker_not_started", worker=number, reason=reason or type(error).__name__)

    async def _launch_first(self, number: int) -> None:
        """Start a worker when the server starts; one that is killed meanwhile is retried a few times."""
        for _ in range(_FIRST_TRIES - 1):
            try:
                return await self._launch(number)
            except _Killed:
                warn("worker_lost", worker=number)
        return await self._launch(number)

    async def _launch(self, number: int) -> None:
        """Start a worker; it listens when this returns."""
        worker = await self._spawn(number)
        try:
            await worker.channel.ask(Begin(number, self._count, _share(self.policy, self._count), self.twin.socket))
        except ChannelClosed:
            status = await worker.end()
            failure = _Killed if status < 0 else OperationalError
            raise failure(f"{worker.name} ended with status {status}") from None
        except BaseException:
            _kill(worker)
            raise
        self._workers[number] = worker
        note("worker_started", worker=number, pid=worker.process.pid)

    async def _spawn(self, number: int) -> _Worker:
        """A new interpreter, not a fork: this one has threads, and randomness must be of each process's own."""
        ours, theirs = socket.socketpair()
        with theirs:
            files = [theirs.fileno(), *(each.fileno() for each in self._sockets)]
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "dpsql.server.workers.worker", *map(str, files)),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=files,
                start_new_session=True,  # Ctrl-C at the terminal is the supervisor's to handle
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )

        async def answer(request: Any) -> object:
            return await self._answer(number, request)

        return _Worker(number, process, await Channel.over(ours, answer))

    # --- requests from workers ---

    async def _answer(self, number: int, request: Any) -> object:
        match request:
            case CancelSession() | CancelStatement():
                await self._ask_all(request, but=number)
                return None
            case WrongPassword(user=user, address=address):
                return await self.rules.throttle.delay(user, address)
            case EnsureTwin():
                await asyncio.to_thread(self.twin.address, "")
                return self.twin.socket
        return None

    async def _ask_all(self, request: object, *, but: int | None = None) -> list[Any]:
        """The replies of all running workers; the first failure is raised when all have replied."""
        asked = [worker.channel.ask(request) for worker in self._workers.values() if worker.number != but]
        found = await asyncio.gather(*asked, return_exceptions=True)
        for each in found:
            if isinstance(each, BaseException) and not isinstance(each, ChannelClosed):
                raise each
        return [each for each in found if not isinstance(each, ChannelClosed)]

    # --- reload ---

    async def reload(self, policy: Policy, dataset: Dataset, rules: LoginRules) -> int:
        """Let all workers serve another policy; how many connections ended. On failure the old one stays in force."""
        async with self._changing:
            try:
                await self._ask_all(Prepare(_share(policy, self._count)))
                ended = sum(map(int, await self._ask_all(Pause())))
                await asyncio.to_thread(retarget, self.twin, self.policy, self.dataset, policy, dataset)
            except BaseException:
                with suppress(OperationalError):
                    await self._ask_all(Switch(to_new=False))
                raise
            old, self.dataset = self.dataset, dataset
            self.policy, self.rules = policy, rules
            await asyncio.gather(*(_switch(worker) for worker in self._workers.values()))
        await asyncio.to_thread(old.close)
        return ended

    # --- health and metrics ---

    async def problems(self) -> list[str]:
        """Why the server cannot answer; empty if it is healthy."""
        if self._stopping:
            return ["the server is shutting down"]
        found = await problems_of(self._own, self.dataset)
        missing = set(range(1, self._count + 1)) - self._workers.keys()
        found += [f"worker {number} is being started" for number in sorted(missing)]
        workers = list(self._workers.values())
        states = await asyncio.gather(*(worker.look() for worker in workers), return_exceptions=True)
        found += [
            f"{worker.name} does not answer"
            for worker, state in zip(workers, states, strict=True)
            if isinstance(state, BaseException)
        ]
        return found

    async def page(self, counts: Counts) -> str:
        """The metrics page, of all workers together."""
        workers = list(self._workers.values())
        looks = await asyncio.gather(*(worker.look() for worker in workers), return_exceptions=True)
        states = [look for look in looks if isinstance(look, State)]
        sums: Counter[tuple[str, str]] = Counter()
        for state in states:
            for gauge in state.gauges:
                sums[gauge.metric, gauge.help] += int(gauge.value)
        gauges = [Gauge(metric, text, value) for (metric, text), value in sums.items()]
        gauges.append(Gauge("dpsql_workers", "Worker processes that answer.", len(states)))
        counted = sum((worker.counts for worker in workers), counts + self._of_the_gone)
        return page(counted, [*gauges, *await gauges_of(self.dataset, self._began)])


async def _switch(worker: _Worker) -> None:
    """Point of no return: a worker that fails to switch is restarted with the new policy."""
    try:
        await worker.channel.ask(Switch(to_new=True))
    except (ChannelClosed, OperationalError):
        _kill(worker)


def _kill(worker: _Worker) -> None:
    with suppress(ProcessLookupError):
        worker.process.send_signal(signal.SIGKILL)


def _share(policy: Policy, count: int) -> Policy:
    """The policy for one of `count` workers: it gets its share of the memory limit."""
    found = _MEMORY.fullmatch(policy.limits.memory)
    assert found is not None  # checked when the policy was read
    memory = f"{float(found[1]) / count:.3f}{found[2]}{found[3]}"
    return replace(policy, limits=replace(policy.limits, memory=memory))
