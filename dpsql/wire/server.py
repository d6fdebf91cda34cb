"""The server: listens, lets clients in, gives each a session on the twin, and ends in order."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from dpsql.engine import Engine
from dpsql.errors import Error
from dpsql.generate.query import Cancellation
from dpsql.policy.model import Policy
from dpsql.twin import Twin
from dpsql.wire import messages
from dpsql.wire.account import refresh_account
from dpsql.wire.asking import Reply
from dpsql.wire.door import CancelCall, Client, Door, welcome
from dpsql.wire.link import CHUNK, ClientGone, Link, TwinGone
from dpsql.wire.logs import note, warn
from dpsql.wire.messages import BadMessage, Message
from dpsql.wire.metrics import Gauge
from dpsql.wire.own_session import OwnSession, answers, is_grammatical
from dpsql.wire.relay import Relay
from dpsql.wire.ticks import leaving_at_a_tick
from dpsql.wire.twin_session import open_session
from dpsql.wire.workers import Workers

DRAIN_SECONDS = 10.0  # that statements have to end when the server does
_LOGINS = 50  # connections that may be on their way in, beyond those that could be let in
_BACKLOG = 512  # connections that the system accepts ahead of us
_END_SECONDS = 5.0  # that connections and jobs have to end once they are told to
_FAREWELL_SECONDS = 1.0  # that a client has to read the last words
_CHECK_SECONDS = 5.0  # that the twin and the ledger have to say that they are well
_PAUSE = 0.02

_log = logging.getLogger("dpsql.wire")

_TOO_MANY = messages.fatal("53300", "sorry, too many clients already")
_SHUTTING_DOWN = messages.fatal("57P03", "the database system is shutting down")
_DISMISSED = messages.fatal("57P01", "terminating connection due to administrator command")
_NO_TWIN = messages.fatal("57P03", "the server cannot serve at the moment", hint="Try again soon.")
_TWIN_LOST = messages.fatal("57P02", "the session was lost within the server", hint="Connect again.")
_FAILED = messages.fatal("58000", "the server failed", hint="The owner finds the cause in the log.")


@dataclass(slots=True, eq=False)
class _Connection:
    client: Client
    relay: Relay
    link: Link
    task: asyncio.Task[None]


class _Desk:
    """What the relay of one connection needs of the server."""

    def __init__(self, server: Server, user: str) -> None:
        self._server = server
        self._user = user
        self.statements = 0

    @property
    def declared(self) -> frozenset[str]:
        return self._server.declared

    @property
    def type_names(self) -> dict[tuple[int, int], str]:
        return self._server.type_names

    async def work(self, job: Callable[[Engine], Reply], cancellation: Cancellation) -> Reply:
        self.statements += 1
        limits = self._server.policy.limits
        async with leaving_at_a_tick(limits.answer_tick):
            return await self._server.workers.run(
                self._server.engine, self._user, job, cancellation, at_once=limits.max_queries_per_user
            )

    async def refresh_account(self, user: str) -> None:
        engine = self._server.engine
        await asyncio.to_thread(self._server.own.use, lambda twin: refresh_account(twin, engine, user))

    async def is_grammatical(self, text: str, *, standard_strings: bool) -> bool:
        ask = partial(is_grammatical, text=text, standard_strings=standard_strings)
        return await asyncio.to_thread(self._server.own.use, ask)

    def cancel(self, user: str, pid: int) -> None:
        self._server.cancel(user, pid)


class Server:
    """One dataset behind one port. Everything here runs in the event loop."""

    def __init__(self, policy: Policy, engine: Engine, twin: Twin, door: Door) -> None:
        self.policy = policy
        self.engine = engine
        self.twin = twin
        self.door = door
        self.declared = _last_names(engine)
        self.type_names: dict[tuple[int, int], str] = {}
        self.workers = Workers()
        self.own = OwnSession(twin)
        self._began = time.time()
        self._connections: set[_Connection] = set()
        self._visits: set[asyncio.Task[None]] = set()
        self._logins = 0
        self._listeners: list[asyncio.Server] = []
        self.port = policy.server.port
        self._stopping = False
        self._open = asyncio.Event()  # new sessions may begin
        self._open.set()

    # --- life ---

    async def start(self, sockets: Sequence[socket.socket]) -> None:
        """Listen. The sockets are the server's own from here on."""
        self.port = sockets[0].getsockname()[1]
        for each in sockets:
            self._listeners.append(await asyncio.start_server(self._accept, sock=each, backlog=_BACKLOG))

    async def stop(self, at_once: asyncio.Event) -> None:
        """Let statements end, say goodbye, close everything. `at_once` leaves out the first."""
        self._stopping = True
        for listener in self._listeners:
            listener.close()
        deadline = asyncio.get_running_loop().time() + DRAIN_SECONDS
        ending: set[asyncio.Task[None]] = set()
        while self._connections and not at_once.is_set() and asyncio.get_running_loop().time() < deadline:
            ending |= self._dismiss([each for each in self._connections if each.relay.is_idle])
            await asyncio.sleep(_PAUSE)
        ending |= self._dismiss(self._connections)
        await _ended(ending)
        for visit in self._visits:
            visit.cancel()
        await _ended(self._visits)
        await self.workers.stop(within=_END_SECONDS)
        await asyncio.to_thread(self.own.close)

    async def reload(self, policy: Policy, engine: Engine, door: Door) -> int:
        """Serve another policy of the same dataset; how many connections ended.

        They end if what they see of the dataset has changed, or if the user is gone. If this fails, the old policy
        goes on.
        """
        changed = engine.catalog.fingerprint != self.engine.catalog.fingerprint
        leaving = [each for each in self._connections if changed or each.client.user not in policy.users]
        self._open.clear()
        try:
            await _ended(self._dismiss(leaving))
            await self._rebuild(engine if changed else None, policy.users)
            old, self.engine = self.engine, engine
            self.policy, self.door, self.declared = policy, door, _last_names(engine)
            self.type_names = {}
        finally:
            self._open.set()
        await self.workers.finished(old)  # a job under way still needs its ledger
        await asyncio.to_thread(old.close)
        return len(leaving)

    async def _rebuild(self, engine: Engine | None, users: Collection[str]) -> None:
        try:
            await asyncio.to_thread(self.twin.set_users, users)
            if engine is not None:
                await asyncio.to_thread(self.twin.rebuild, engine.catalog)
        except Exception:
            await asyncio.to_thread(self.twin.rebuild, self.engine.catalog)
            await asyncio.to_thread(self.twin.set_users, self.policy.users)
            raise

    def _dismiss(self, connections: Iterable[_Connection]) -> set[asyncio.Task[None]]:
        """End connections, whatever they do; their tasks, which have still to say goodbye."""
        tasks = set()
        for connection in list(connections):
            self._connections.discard(connection)
            connection.link.show(_DISMISSED)
            connection.task.cancel()
            tasks.add(connection.task)
        return tasks

    # --- connections ---

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._visits.add(task)
        try:
            await self._visit(reader, writer)
        except asyncio.CancelledError:
            writer.transport.abort()
        finally:
            self._visits.discard(task)

    async def _visit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._stopping or self._logins >= self.policy.server.max_connections + _LOGINS:
            await _say_goodbye(reader, writer, _SHUTTING_DOWN if self._stopping else _TOO_MANY)
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
                note("login", user=visitor.user, address=visitor.address, tls=visitor.tls)
                began, desk = time.monotonic(), _Desk(self, visitor.user)
                try:
                    farewell = await self._serve(visitor, desk)
                    await _say_goodbye(visitor.reader, visitor.writer, farewell)
                finally:
                    note(
                        "connection_ended",
                        user=visitor.user,
                        address=visitor.address,
                        seconds=round(time.monotonic() - began, 3),
                        statements=desk.statements,
                    )
            case None:
                pass

    async def _serve(self, client: Client, desk: _Desk) -> Message | None:
        """Serve a client until either side ends; what is to be said at last."""
        await self._open.wait()
        if self._stopping:
            return _SHUTTING_DOWN
        if client.user not in self.policy.users:  # any more
            return _DISMISSED
        if len(self._connections) >= self.policy.server.max_connections:
            warn("connection_refused", user=client.user, sqlstate="53300")
            return _TOO_MANY
        try:
            # In a thread: a twin that has died is started again.
            address = await asyncio.to_thread(self.twin.address, client.user)
            reader, writer = await open_session(address, client.parameters)
        except (Error, OSError) as error:
            warn("twin_lost", user=client.user, reason=_reason(error))
            return _NO_TWIN
        except Exception:
            _log.exception("no session on the twin")
            return _NO_TWIN
        link = Link(reader, writer, client.writer, lambda pid: self.cancel(client.user, pid))
        return await self._relay(client, link, Relay(client.reader, link, desk, client.user))

    async def _relay(self, client: Client, link: Link, relay: Relay) -> Message | None:
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
            raise TwinGone
        except BadMessage as error:
            return messages.fatal("08P01", str(error))
        except TwinGone:
            if link.dismissed or client.writer.is_closing():  # the twin has said why, or nobody listens
                return None
            warn("twin_lost", user=client.user)
            return _TWIN_LOST
        except (ClientGone, ConnectionError, asyncio.CancelledError):
            return None
        except Exception:
            _log.exception("a connection failed")
            return _FAILED
        finally:
            self._connections.discard(connection)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await self._leave(client.user, link, listening)

    async def _leave(self, user: str, link: Link, listening: asyncio.Task[None]) -> None:
        """End a session on the twin. A statement that runs may end too, if it does so soon."""
        try:
            patience = asyncio.get_running_loop().time() + _FAREWELL_SECONDS
            while link.is_busy and not link.closed and asyncio.get_running_loop().time() < patience:
                await asyncio.sleep(_PAUSE)
            if link.is_busy:  # by itself, the twin would notice only when it has something to say
                await self._cancel_on_twin(user, link)
        finally:
            link.close()
            listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)

    # --- cancelling ---

    def cancel(self, user: str, pid: int) -> None:
        """Cancel what the engine does for a session of a user."""
        for connection in self._connections:
            if connection.link.pid == pid and connection.client.user == user:
                connection.relay.cancel()

    async def _cancel_call(self, call: CancelCall) -> None:
        """A cancel request goes to the engine if it works for that session, else to the twin; never to both."""
        for connection in list(self._connections):
            link = connection.link
            if link.pid == call.pid and link.secret == call.secret:
                if not connection.relay.cancel():
                    await self._cancel_on_twin(connection.client.user, link)
                return

    async def _cancel_on_twin(self, user: str, link: Link) -> None:
        if link.pid is None:
            return
        with suppress(OSError, Error):
            address = await asyncio.to_thread(self.twin.address, user)
            if address.path is not None:
                _, writer = await asyncio.open_unix_connection(address.path)
            else:
                _, writer = await asyncio.open_connection(address.host, address.port)
            writer.write(messages.cancel_request(link.pid, link.secret))
            await writer.drain()
            writer.close()

    # --- how it is ---

    async def problems(self) -> list[str]:
        """What keeps the server from answering."""
        if self._stopping:
            return ["the server is shutting down"]
        checks: dict[str, Callable[[], object]] = {
            "the twin does not answer": lambda: self.own.use(answers),
            "the ledger cannot be read": self.engine.ledger.spent,
        }
        found = []
        for problem, check in checks.items():
            try:
                async with asyncio.timeout(_CHECK_SECONDS):
                    await asyncio.to_thread(check)
            except Exception:
                found.append(problem)
        return found

    async def gauges(self) -> list[Gauge]:
        accountant = self.engine.accountant
        spent = await asyncio.to_thread(self.engine.ledger.spent)
        return [
            Gauge("dpsql_connections", "Clients that have a session.", len(self._connections)),
            Gauge("dpsql_logins_under_way", "Clients on their way in.", self._logins),
            Gauge("dpsql_statements_under_way", "Statements that the engine works on.", self.workers.busy),
            Gauge(
                "dpsql_epsilon_spent",
                "What all answers ever given have cost.",
                float(accountant.epsilon_of(spent.loss)),
            ),
            Gauge("dpsql_epsilon_limit", "What they may cost together.", float(accountant.policy.epsilon)),
            Gauge("dpsql_start_time_seconds", "When the server was started, in Unix time.", self._began),
        ]


async def _say_goodbye(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, farewell: Message | None) -> None:
    """Close a connection when the client has read what it was sent, if it does so soon."""
    try:
        async with asyncio.timeout(_FAREWELL_SECONDS):
            if farewell is not None:
                writer.write(farewell.encode())
            # Closing over bytes that were not read would tear up what the client has still to read.
            if writer.can_write_eof():
                writer.write_eof()
                while await reader.read(CHUNK):
                    pass
            writer.close()
            await writer.wait_closed()
    except (OSError, TimeoutError):
        writer.transport.abort()


async def _ended(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Wait for tasks that were told to end."""
    if waiting := list(tasks):
        await asyncio.wait(waiting, timeout=_END_SECONDS)


def _reason(error: Error | OSError) -> str:
    return error.message if isinstance(error, Error) else error.strerror or type(error).__name__


def _last_names(engine: Engine) -> frozenset[str]:
    names = [*engine.catalog.tables, *engine.catalog.views]
    return frozenset(name.rpartition(".")[2] for name in names)
