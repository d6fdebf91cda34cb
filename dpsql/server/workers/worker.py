"""One of several processes that serve the same port; started and controlled by `supervisor.py`.

It ends when it is told to, or when the supervisor is gone. Only the supervisor handles signals.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from dpsql.answering.dataset import Dataset
from dpsql.answering.open_dataset import open_engine
from dpsql.policy.load_server import state_folder
from dpsql.policy.model import Policy
from dpsql.server.auth.login import LoginRules, login_rules
from dpsql.server.auth.throttle import Throttle
from dpsql.server.ending import end_within, leave
from dpsql.server.listener import DRAIN_SECONDS, Server
from dpsql.server.ops.logs import keep_engine_log, write_logs
from dpsql.server.ops.metrics import Metrics
from dpsql.server.twin import attach_twin
from dpsql.server.workers.channel import (
    Begin,
    CancelSession,
    CancelStatement,
    Channel,
    ChannelClosed,
    ClientCounts,
    EnsureTwin,
    GetState,
    Pause,
    Prepare,
    State,
    Stop,
    Switch,
    WrongPassword,
)
from dpsql.slots import Slots

_SLOTS, _CLIENT_COUNTS = "slots", "client_counts"  # files in the state folder, which all workers share
_END_SECONDS = 20.0  # for this process to end once statements are not waited for
_TWIN_SECONDS = 90.0  # for the supervisor to restart the twin


def main() -> None:
    """Arguments: the file descriptors of the channel and of the listening sockets."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    end, *listening = (socket.socket(fileno=int(text)) for text in sys.argv[1:])
    asyncio.run(_Worker(listening).run(end))
    leave()


class _Worker:
    def __init__(self, sockets: list[socket.socket]) -> None:
        self._sockets = sockets
        self._metrics = Metrics()
        self._at_once = asyncio.Event()
        self._stopped = asyncio.Event()
        self._channel: Channel
        self._slots: Slots
        self._server: Server
        self._prepared: tuple[Policy, Dataset, LoginRules] | None = None
        self._retiring: set[asyncio.Task[None]] = set()

    async def run(self, end: socket.socket) -> None:
        self._channel = await Channel.over(end, self._answer)
        listening = asyncio.create_task(self._channel.listen())
        stopped = asyncio.create_task(self._stopped.wait())
        await asyncio.wait({listening, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if not self._stopped.is_set():  # the supervisor is gone
            end_within(_END_SECONDS)
            if not hasattr(self, "_server"):
                leave()  # a start or reload under way serves no client yet
            self._at_once.set()
            await self._server.stop(self._at_once)
        if hasattr(self, "_server"):
            self._server.dataset.close()
        self._channel.close()
        await listening

    async def _answer(self, request: Any) -> object:
        match request:
            case Begin():
                await self._begin(request)
            case Prepare(policy=policy):
                await self._drop_prepared()
                dataset = await asyncio.to_thread(open_engine, policy, slots=self._slots, compiles_apart=True)
                self._prepared = policy, dataset, self._rules(policy)
            case Pause():
                assert self._prepared is not None
                return await self._server.pause(*self._prepared[:2])
            case Switch(to_new=to_new):
                await self._switch(to_new)
            case GetState():
                return State(self._metrics.counts(), self._server.busyness())
            case CancelSession(pid=pid, secret=secret):
                return await self._server.cancel_session(pid, secret)
            case CancelStatement(user=user, pid=pid):
                return self._server.cancel_statement(user, pid)
            case Stop(at_once=at_once):
                await self._stop(at_once)
                return State(self._metrics.counts(), ())
        return None

    async def _begin(self, begin: Begin) -> None:
        write_logs(sys.stderr, worker=begin.number)
        logging.getLogger().addHandler(self._metrics)
        state = state_folder(begin.policy)
        keep_engine_log(state, begin.number)
        self._slots = Slots(state / _SLOTS)
        dataset = await asyncio.to_thread(open_engine, begin.policy, slots=self._slots, compiles_apart=True)
        loop = asyncio.get_running_loop()

        def restart_twin() -> Path:
            asked = asyncio.run_coroutine_threadsafe(self._channel.ask(EnsureTwin()), loop)
            found: Path = asked.result(_TWIN_SECONDS)
            return found

        twin = await asyncio.to_thread(attach_twin, begin.twin_socket, begin.policy.server.twin, restart_twin)
        self._throttle = _SharedThrottle(self._channel, self._slots)
        rules = login_rules(begin.policy, twin.database, self._throttle)
        self._server = Server(
            *(begin.policy, dataset, twin, rules),
            slots=self._slots,
            peers=_OtherWorkers(self._channel),
            client_counts=ClientCounts(state / _CLIENT_COUNTS, begin.number, begin.count),
        )
        await self._server.start(self._sockets)

    def _rules(self, policy: Policy) -> LoginRules:
        return login_rules(policy, self._server.twin.database, self._throttle)

    async def _switch(self, to_new: bool) -> None:
        if to_new and self._prepared is not None:
            old = self._server.switch(*self._prepared)
            self._prepared = None
            task = asyncio.create_task(self._server.retire(old))
            self._retiring.add(task)
            task.add_done_callback(self._retiring.discard)
        else:
            await self._drop_prepared()
        self._server.resume()

    async def _drop_prepared(self) -> None:
        dropped, self._prepared = self._prepared, None
        if dropped is not None:
            await asyncio.to_thread(dropped[1].close)

    async def _stop(self, at_once: bool) -> None:
        end_within(_END_SECONDS if at_once else DRAIN_SECONDS + _END_SECONDS)
        if at_once:
            self._at_once.set()
        await self._server.stop(self._at_once)
        asyncio.get_running_loop().call_soon(self._stopped.set)


class _OtherWorkers:
    """The other workers, reached through the supervisor. If it is gone, this worker is about to end."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._asking: set[asyncio.Task[Any]] = set()

    async def cancel_session(self, pid: int, secret: bytes) -> None:
        with suppress(ChannelClosed):
            await self._channel.ask(CancelSession(pid, secret))

    def cancel_statement(self, user: str, pid: int) -> None:
        task = asyncio.create_task(self._tell(CancelStatement(user, pid)))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    async def _tell(self, request: object) -> None:
        with suppress(ChannelClosed):
            await self._channel.ask(request)


class _SharedThrottle(Throttle):
    """The supervisor counts failures for all workers."""

    def __init__(self, channel: Channel, slots: Slots) -> None:
        super().__init__(slots)
        self._channel = channel

    async def delay(self, user: str, address: str) -> float:
        seconds: float = await self._channel.ask(WrongPassword(user, address))
        return seconds


if __name__ == "__main__":
    main()
