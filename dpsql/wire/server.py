"""`dpsql serve`: listens, lets clients in, gives each a session on the twin, and ends in order."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import psycopg
from psycopg.pq import ExecStatus
from psycopg.rows import TupleRow

from dpsql.engine import Engine
from dpsql.policy.model import Policy, Table
from dpsql.twin import Twin
from dpsql.wire import messages
from dpsql.wire.account import refresh_account
from dpsql.wire.asking import Reply
from dpsql.wire.door import CancelCall, Client, Door, welcome
from dpsql.wire.link import Link, TwinGone
from dpsql.wire.messages import BadMessage, Message
from dpsql.wire.relay import ClientGone, Relay
from dpsql.wire.twin_session import open_session

WORKERS = 16  # queries that the engine works on at once
LOGINS = 50  # connections that may be on their way in at once
DRAIN_SECONDS = 10.0  # that statements have to end when the server does
_POLL_SECONDS = 0.02

_log = logging.getLogger("dpsql.wire")
_MULTIPLE = b"cannot insert multiple commands into a prepared statement"


@dataclass(slots=True, eq=False)
class _Connection:
    client: Client
    relay: Relay
    link: Link
    task: asyncio.Task[None]


class Server:
    """One dataset behind one port. Everything here runs in the event loop unless it says otherwise."""

    def __init__(self, policy: Policy, engine: Engine, twin: Twin, door: Door) -> None:
        self.policy = policy
        self.engine = engine
        self.twin = twin
        self.door = door
        self.declared = _last_names(engine)
        self.type_names: dict[tuple[int, int], str] = {}
        self._connections: set[_Connection] = set()
        self._logins = 0
        self._jobs: Counter[Engine] = Counter()
        self._workers = ThreadPoolExecutor(WORKERS, thread_name_prefix="dpsql-answer")
        self._admin_lock = threading.Lock()
        self._admin = twin.admin()
        self._listener: asyncio.Server | None = None
        self._stopping = False

    # --- life ---

    async def start(self) -> None:
        server = self.policy.server
        self._listener = await asyncio.start_server(self._accept, server.host, server.port)

    @property
    def port(self) -> int:
        assert self._listener is not None
        port: int = self._listener.sockets[0].getsockname()[1]
        return port

    async def stop(self) -> None:
        """Let statements end, say goodbye, close everything."""
        self._stopping = True
        if self._listener is not None:
            self._listener.close()
        deadline = asyncio.get_running_loop().time() + DRAIN_SECONDS
        while self._connections and asyncio.get_running_loop().time() < deadline:
            for connection in list(self._connections):
                if connection.relay.is_idle:
                    self._dismiss(connection)
            await asyncio.sleep(_POLL_SECONDS)
        for connection in list(self._connections):
            connection.relay.cancel()
            self._dismiss(connection)
        await asyncio.gather(*(c.task for c in self._connections), return_exceptions=True)
        self._workers.shutdown(wait=False, cancel_futures=True)
        self._admin.close()

    async def reload(self, policy: Policy, engine: Engine, door: Door) -> None:
        """Serve another policy of the same dataset. Connections stay unless what they see of it has changed."""
        changed = engine.catalog.fingerprint != self.engine.catalog.fingerprint
        for connection in list(self._connections):
            if changed or connection.client.user not in policy.users:
                self._dismiss(connection)
        if changed:
            await asyncio.to_thread(self.twin.rebuild, engine.catalog)
        await asyncio.to_thread(self.twin.set_users, policy.users)
        old, self.engine = self.engine, engine
        self.policy, self.door, self.declared = policy, door, _last_names(engine)
        while self._jobs[old]:  # a job under way still needs its ledger
            await asyncio.sleep(_POLL_SECONDS)
        old.close()

    def _dismiss(self, connection: _Connection) -> None:
        connection.link.show(messages.fatal("57P01", "terminating connection due to administrator command"))
        connection.task.cancel()

    # --- connections ---

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._stopping or self._logins >= LOGINS:
            writer.close()
            return
        self._logins += 1
        try:
            visitor = await welcome(reader, writer, self.door)
        finally:
            self._logins -= 1
        match visitor:
            case CancelCall():
                await self._cancel_call(visitor)
                writer.close()
            case Client():
                await self._serve(visitor)
            case None:
                pass

    async def _serve(self, client: Client) -> None:
        farewell: Message | None = None
        if self._stopping:
            farewell = messages.fatal("57P03", "the database system is shutting down")
        elif len(self._connections) >= self.policy.server.max_connections:
            farewell = messages.fatal("53300", "sorry, too many clients already")
        else:
            try:
                reader, writer = await open_session(self.twin.address(client.user), client.parameters)
            except Exception:
                _log.exception("no session on the twin")
                farewell = messages.fatal("57P03", "the server cannot serve at the moment", hint="Try again soon.")
            else:
                farewell = await self._relay(client, reader, writer)
        if farewell is not None:
            client.writer.write(farewell.encode())
        with suppress(ConnectionError, TimeoutError, asyncio.CancelledError):
            async with asyncio.timeout(1):
                await client.writer.drain()
        client.writer.close()

    async def _relay(
        self, client: Client, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> Message | None:
        """Serve a client until either side ends; what is to be said at last."""
        link = Link(reader, writer, client.writer, lambda pid: self.cancel(client.user, pid))
        relay = Relay(client.reader, link, self, client.user)
        task = asyncio.current_task()
        assert task is not None
        connection = _Connection(client, relay, link, task)
        self._connections.add(connection)
        listening = asyncio.create_task(link.listen())
        running = asyncio.create_task(relay.run())
        try:
            await asyncio.wait({listening, running}, return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                running.result()
            return None
        except BadMessage as error:
            return messages.fatal("08P01", str(error))
        except (ClientGone, TwinGone, ConnectionError, asyncio.CancelledError):
            return None
        except Exception:
            _log.exception("a connection failed")
            return messages.fatal("58000", "the server failed", hint="The owner finds the cause in the log.")
        finally:
            self._connections.discard(connection)
            link.close()
            for side in (running, listening):
                side.cancel()
            await asyncio.gather(running, listening, return_exceptions=True)

    async def _cancel_call(self, call: CancelCall) -> None:
        """A cancel request goes to the engine if it works for that session, else to the twin; never to both."""
        for connection in self._connections:
            link = connection.link
            if link.pid == call.pid and link.secret == call.secret:
                if not connection.relay.cancel():
                    await self._cancel_on_twin(connection.client.user, call)
                return

    async def _cancel_on_twin(self, user: str, call: CancelCall) -> None:
        address = self.twin.address(user)
        with suppress(OSError):
            if address.path is not None:
                _, writer = await asyncio.open_unix_connection(address.path)
            else:
                _, writer = await asyncio.open_connection(address.host, address.port)
            writer.write(messages.cancel_request(call.pid, call.secret))
            await writer.drain()
            writer.close()

    # --- what a relay needs ---

    def cancel(self, user: str, pid: int) -> None:
        for connection in self._connections:
            if connection.link.pid == pid and connection.client.user == user:
                connection.relay.cancel()

    async def work(self, job: Callable[[Engine], Reply]) -> Reply:
        engine = self.engine
        self._jobs[engine] += 1
        future = asyncio.get_running_loop().run_in_executor(self._workers, job, engine)
        future.add_done_callback(lambda _: self._jobs.subtract([engine]))
        return await future

    async def refresh_account(self, user: str) -> None:
        def refresh() -> None:
            with self._admin_lock:
                refresh_account(self._admin, self.engine, user)

        await asyncio.get_running_loop().run_in_executor(self._workers, refresh)

    async def is_grammatical(self, text: str, *, standard_strings: bool) -> bool:
        def ask() -> bool:
            with self._admin_lock, _strings(self._admin, standard=standard_strings):
                result = self._admin.pgconn.prepare(b"", text.encode())
                return result.status != ExecStatus.FATAL_ERROR or _MULTIPLE in result.error_message

        return await asyncio.get_running_loop().run_in_executor(self._workers, ask)


@contextmanager
def _strings(connection: psycopg.Connection[TupleRow], *, standard: bool) -> Iterator[None]:
    """Let a session read strings as the client's does."""
    if standard:
        yield
        return
    connection.execute("SET standard_conforming_strings = off")
    try:
        yield
    finally:
        connection.execute("RESET standard_conforming_strings")


def _last_names(engine: Engine) -> frozenset[str]:
    tables: dict[str, Table] = dict(engine.catalog.tables)
    return frozenset(name.rpartition(".")[2] for name in tables)
