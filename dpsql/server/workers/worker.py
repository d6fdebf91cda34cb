"""One of several processes that serve the same port; `supervisor.py` starts it and tells it what to do.

It ends when it is told to, or when the supervisor is gone. Signals are the supervisor's.
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
from dpsql.server.auth.login import Door, open_door
from dpsql.server.auth.throttle import Throttle
from dpsql.server.ending import end_within, leave
from dpsql.server.listener import DRAIN_SECONDS, Server
from dpsql.server.ops.logs import keep_engine_log, write_logs
from dpsql.server.ops.metrics import Metrics
from dpsql.server.twin import lease_twin
from dpsql.server.workers.channel import (
    Begin,
    CancelSession,
    CancelStatement,
    Crowding,
    Line,
    LineLost,
    Look,
    LookAfterTwin,
    Pause,
    Prepare,
    State,
    Stop,
    Switch,
    WrongPassword,
)
from dpsql.slots import Slots

_SLOTS, _CROWDING = "places", "crowding"  # files in the state folder, which all workers share
_END_SECONDS = 20.0  # that this process has to end once statements are not waited for
_TWIN_SECONDS = 90.0  # that the supervisor has to start the twin again


def main() -> None:
    """Arguments: the numbers of the files of the line and of the sockets to listen on."""
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
        self._line: Line
        self._slots: Slots
        self._server: Server
        self._prepared: tuple[Policy, Dataset, Door] | None = None
        self._retiring: set[asyncio.Task[None]] = set()

    async def run(self, end: socket.socket) -> None:
        self._line = await Line.over(end, self._answer)
        listening = asyncio.create_task(self._line.listen())
        stopped = asyncio.create_task(self._stopped.wait())
        await asyncio.wait({listening, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if not self._stopped.is_set():  # the supervisor is gone
            end_within(_END_SECONDS)
            if not hasattr(self, "_server"):
                leave()  # whatever is under way serves nobody yet
            self._at_once.set()
            await self._server.stop(self._at_once)
        if hasattr(self, "_server"):
            self._server.dataset.close()
        self._line.close()
        await listening

    async def _answer(self, request: Any) -> object:
        match request:
            case Begin():
                await self._begin(request)
            case Prepare(policy=policy):
                await self._drop_prepared()
                dataset = await asyncio.to_thread(open_engine, policy, slots=self._slots, compiles_apart=True)
                self._prepared = policy, dataset, self._door(policy)
            case Pause():
                assert self._prepared is not None
                return await self._server.pause(*self._prepared[:2])
            case Switch(to_new=to_new):
                await self._switch(to_new)
            case Look():
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

        def look_after_twin() -> Path:
            asked = asyncio.run_coroutine_threadsafe(self._line.ask(LookAfterTwin()), loop)
            found: Path = asked.result(_TWIN_SECONDS)
            return found

        twin = await asyncio.to_thread(lease_twin, begin.twin_socket, begin.policy.server.twin, look_after_twin)
        self._throttle = _SharedThrottle(self._line, self._slots)
        door = open_door(begin.policy, twin.database, self._throttle)
        self._server = Server(
            *(begin.policy, dataset, twin, door),
            slots=self._slots,
            colleagues=_Others(self._line),
            crowding=Crowding(state / _CROWDING, begin.number, begin.count),
        )
        await self._server.start(self._sockets)

    def _door(self, policy: Policy) -> Door:
        return open_door(policy, self._server.twin.database, self._throttle)

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


class _Others:
    """The other workers, as reached through the supervisor. Where it is gone, this worker is about to end."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._asking: set[asyncio.Task[Any]] = set()

    async def cancel_session(self, pid: int, secret: bytes) -> None:
        with suppress(LineLost):
            await self._line.ask(CancelSession(pid, secret))

    def cancel_statement(self, user: str, pid: int) -> None:
        task = asyncio.create_task(self._tell(CancelStatement(user, pid)))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    async def _tell(self, request: object) -> None:
        with suppress(LineLost):
            await self._line.ask(request)


class _SharedThrottle(Throttle):
    """Failures are counted by the supervisor, for all workers."""

    def __init__(self, line: Line, slots: Slots) -> None:
        super().__init__(slots)
        self._line = line

    async def delay(self, user: str, address: str) -> float:
        seconds: float = await self._line.ask(WrongPassword(user, address))
        return seconds


if __name__ == "__main__":
    main()
