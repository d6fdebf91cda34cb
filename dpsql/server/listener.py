"""The server and the sockets that it listens on.

The server: listens, lets clients in, gives each a session on the twin, and ends in order.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from dpsql.answering.dataset import Dataset
from dpsql.effort import Cancellation
from dpsql.errors import Error, LedgerDamaged, LedgerLost, OperationalError, PolicyError
from dpsql.ledger.waiting import interruptible
from dpsql.policy.model import Policy
from dpsql.server.auth.login import CancelCall, Client, Door, address_of, welcome
from dpsql.server.ops.logs import note, warn
from dpsql.server.ops.metrics import Counts, Gauge, page
from dpsql.server.protocol import messages
from dpsql.server.protocol.messages import BadMessage, Message
from dpsql.server.relay.execute import Reply
from dpsql.server.relay.jobs import Jobs, leaving_at_a_tick
from dpsql.server.relay.relay import Relay
from dpsql.server.relay.upstream import CHUNK, ClientGone, Link, TwinGone
from dpsql.server.twin import Twin
from dpsql.server.twin.account import read_account
from dpsql.server.twin.account_views import refresh
from dpsql.server.twin.sessions import OwnSession, answers, is_grammatical, open_session
from dpsql.server.workers.channel import Alone, Colleagues, Crowding, Nobody
from dpsql.slots import MOST, Slots

DRAIN_SECONDS = 10.0  # that statements have to end when the server does
# Connections that may be on their way in, beyond those that could be let in; the latter is the most from one address.
_LOGINS = 50
_BACKLOG = 512  # connections that the system accepts ahead of us
_END_SECONDS = 5.0  # that connections and jobs have to end once they are told to
_FAREWELL_SECONDS = 1.0  # that a client has to read the last words
CHECK_SECONDS = 5.0  # that the twin and the ledger have to say that they are well
_NO_ROOM_SECONDS = 1.0  # to wait when the system has no room for another connection
_PAUSE = 0.02
_GIVE_WAY_SECONDS = 0.02  # that a process with fewer clients has to take the next one

_log = logging.getLogger("dpsql.server")

T = TypeVar("T")

_TOO_MANY = messages.fatal("53300", "sorry, too many clients already")
_RESERVED = messages.fatal(
    "53300", "remaining connection slots are reserved for users who have no connection yet", hint="Close another one."
)
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

    async def work(self, job: Callable[[Dataset], Reply], cancellation: Cancellation) -> Reply:
        self.statements += 1
        limits = self._server.policy.limits
        async with leaving_at_a_tick(limits.answer_tick):
            return await self._server.jobs.run(
                self._server.dataset, self._user, job, cancellation, at_once=limits.max_queries_per_user
            )

    async def refresh_account(self, user: str) -> None:
        dataset = self._server.dataset
        try:
            account = await in_time(lambda: read_account(dataset, user))
        except TimeoutError:
            raise OperationalError("the ledger does not answer", hint="Try again later.") from None
        show = partial(refresh, user=user, budget=[account.budget], history=account.history)
        await asyncio.to_thread(self._server.own.use, show)

    async def is_grammatical(self, text: str, *, standard_strings: bool) -> bool:
        ask = partial(is_grammatical, text=text, standard_strings=standard_strings)
        return await asyncio.to_thread(self._server.own.use, ask)

    def cancel(self, user: str, pid: int) -> None:
        self._server.cancel(user, pid)


class Server:
    """One dataset behind one port. Everything here runs in the event loop.

    Several processes may do this side by side: how many connections and statements there are of all of them, `places`
    knows, and sessions that are theirs, the colleagues.
    """

    def __init__(
        self,
        policy: Policy,
        dataset: Dataset,
        twin: Twin,
        door: Door,
        *,
        slots: Slots | None = None,
        colleagues: Colleagues | None = None,
        crowding: Crowding | None = None,
    ) -> None:
        self.policy = policy
        self.dataset = dataset
        self.twin = twin
        self.door = door
        self.declared = _last_names(dataset)
        self.type_names: dict[tuple[int, int], str] = {}
        self.jobs = Jobs(slots)
        self.own = OwnSession(twin)
        self._began = time.time()
        self._connections: set[_Connection] = set()
        self._visits: set[asyncio.Task[None]] = set()
        self._slots = slots or Slots()
        self._colleagues: Colleagues = colleagues or Nobody()
        self._crowding = crowding or Alone()
        self._logins = 0
        self._sockets: Sequence[socket.socket] = ()
        self._accepting: set[asyncio.Task[None]] = set()
        self.port = policy.server.port
        self._stopping = False
        self._open = asyncio.Event()  # new sessions may begin
        self._open.set()

    # --- life ---

    async def start(self, sockets: Sequence[socket.socket]) -> None:
        """Listen. The sockets are the server's own from here on."""
        self._sockets = sockets
        self.port = sockets[0].getsockname()[1]
        for each in sockets:
            each.setblocking(False)
            each.listen(_BACKLOG)
            self._accepting.add(asyncio.create_task(self._accept_all(each)))

    async def stop(self, at_once: asyncio.Event) -> None:
        """Let statements end, say goodbye, close everything. `at_once` leaves out the first."""
        self._stopping = True
        for task in self._accepting:
            task.cancel()
        await _ended(self._accepting)  # whoever was let in at the last moment is among the visits from here on
        for each in self._sockets:  # another server may have the port at once
            each.close()
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
        await self.jobs.stop(within=_END_SECONDS)
        await asyncio.to_thread(self.own.close)

    async def reload(self, policy: Policy, dataset: Dataset, door: Door) -> int:
        """Serve another policy of the same dataset; how many connections ended. If this fails, the old one goes on."""
        try:
            ended = await self.pause(policy, dataset)
            await asyncio.to_thread(retarget, self.twin, self.policy, self.dataset, policy, dataset)
            old = self.switch(policy, dataset, door)
        finally:
            self.resume()
        await self.retire(old)
        return ended

    async def pause(self, policy: Policy, dataset: Dataset) -> int:
        """Let no session begin, and end those that cannot go on under another policy; how many that are.

        They end if what they see of the dataset has changed, or if the user is gone.
        """
        changed = dataset.catalog.fingerprint != self.dataset.catalog.fingerprint
        leaving = [each for each in self._connections if changed or each.client.user not in policy.users]
        self._open.clear()
        await _ended(self._dismiss(leaving))
        return len(leaving)

    def switch(self, policy: Policy, dataset: Dataset, door: Door) -> Dataset:
        """Serve another policy; the engine of the old one, which jobs may still need."""
        old, self.dataset = self.dataset, dataset
        self.policy, self.door, self.declared = policy, door, _last_names(dataset)
        self.type_names = {}
        return old

    def resume(self) -> None:
        """Let sessions begin again."""
        self._open.set()

    async def retire(self, dataset: Dataset) -> None:
        """Close an engine when its last job has ended."""
        await self.jobs.finished(dataset)
        await asyncio.to_thread(dataset.close)

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

    async def _accept_all(self, listener: socket.socket) -> None:
        """Accept one connection after the other, and not before a process beside this one that has fewer."""
        loop = asyncio.get_running_loop()
        with listener:
            while True:
                await _readable(listener)
                if self._crowding.is_above_others():
                    await asyncio.sleep(_GIVE_WAY_SECONDS)
                try:
                    accepted, _ = listener.accept()
                except BlockingIOError:  # another process was first
                    continue
                except OSError as error:
                    _log.warning("a connection cannot be accepted: %s", error.strerror)
                    await asyncio.sleep(_NO_ROOM_SECONDS)
                    continue
                accepted.setblocking(False)
                reader = asyncio.StreamReader()
                protocol = asyncio.StreamReaderProtocol(reader, self._accept)
                with suppress(OSError):
                    await loop.connect_accepted_socket(partial(_same, protocol), accepted)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._visits.add(task)
        self._crowding.clients(len(self._visits))
        try:
            await self._visit(reader, writer)
        except asyncio.CancelledError:
            writer.transport.abort()
        finally:
            self._visits.discard(task)
            self._crowding.clients(len(self._visits))

    async def _visit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        most = self.policy.server.max_connections
        with (
            self._place(b"logins from " + address_of(writer).encode(), most) as own,
            self._place(b"logins", most + _LOGINS) as slot,
        ):
            if self._stopping or own is None or slot is None:
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
        limits = self.policy.server
        with self._place(b"connections of " + client.user.encode(), limits.most_of_one_user) as own:
            if own is None:
                refusal = messages.fatal("53300", f'too many connections for role "{client.user}"')
            else:
                reserved = 0 if own % MOST == 0 else limits.reserved_connections
                with self._place(b"connections", limits.max_connections - reserved) as slot:
                    if slot is not None:
                        return await self._serve_in_place(client, desk)
                refusal = _RESERVED if reserved else _TOO_MANY
        warn("connection_refused", user=client.user, sqlstate="53300")
        return refusal

    @contextmanager
    def _place(self, kind: bytes, most: int) -> Iterator[int | None]:
        """One of so many places, of all processes together, if there still is one; it is held within the block."""
        slot = self._slots.take(kind, most)
        try:
            yield slot
        finally:
            if slot is not None:
                self._slots.give_back(slot)

    async def _serve_in_place(self, client: Client, desk: _Desk) -> Message | None:
        try:
            reader, writer = await self._open_session(client)
        except (Error, OSError) as error:
            warn("twin_lost", user=client.user, reason=_reason(error))
            return _NO_TWIN
        except Exception:
            _log.exception("no session on the twin")
            return _NO_TWIN
        link = Link(
            *(reader, writer, client.writer),
            on_cancel=lambda pid: self.cancel(client.user, pid),
            is_own=lambda pid: self._is_session_of(client.user, pid),
        )
        return await self._relay(client, link, Relay(client.reader, link, desk, client.user))

    def _is_session_of(self, user: str, pid: int) -> bool:
        return any(each.link.pid == pid and each.client.user == user for each in self._connections)

    async def _open_session(self, client: Client) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A session on the twin. One that has died is started again, which takes a thread and a moment."""
        known = self.twin.known_address(client.user)
        if known is not None:
            with suppress(OSError):
                return await open_session(known, client.parameters)
        address = await asyncio.to_thread(self.twin.address, client.user)
        return await open_session(address, client.parameters)

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
        if not self.cancel_statement(user, pid):
            self._colleagues.cancel_statement(user, pid)

    def cancel_statement(self, user: str, pid: int) -> bool:
        """The same, if it is one of this process."""
        for connection in self._connections:
            if connection.link.pid == pid and connection.client.user == user:
                connection.relay.cancel()
                return True
        return False

    async def _cancel_call(self, call: CancelCall) -> None:
        if not await self.cancel_session(call.pid, call.secret):
            await self._colleagues.cancel_session(call.pid, call.secret)

    async def cancel_session(self, pid: int, secret: bytes) -> bool:
        """Cancel what runs in a session, if it is one of this process.

        The request goes to the engine if it works for that session, else to the twin; never to both.
        """
        for connection in list(self._connections):
            link = connection.link
            if link.pid == pid and link.secret == secret:
                if not connection.relay.cancel():
                    await self._cancel_on_twin(connection.client.user, link)
                return True
        return False

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
        return await problems_of(self.own, self.dataset)

    def busyness(self) -> tuple[Gauge, ...]:
        """What goes on in this process."""
        return (
            Gauge("dpsql_connections", "Clients that have a session.", len(self._connections)),
            Gauge("dpsql_logins_under_way", "Clients on their way in.", self._logins),
            Gauge("dpsql_statements_under_way", "Statements that the engine works on.", self.jobs.busy),
            Gauge(
                "dpsql_circuits_open",
                "Users, or all of them, whose new queries are refused for a while.",
                self.dataset.circuits.open,
            ),
        )

    async def page(self, counts: Counts) -> str:
        """The page of numbers."""
        gauges = await gauges_of(self.dataset, self._began)
        return page(counts, [*self.busyness(), *gauges])


def retarget(twin: Twin, old: Policy, old_dataset: Dataset, new: Policy, dataset: Dataset) -> None:
    """Let the twin hold another policy's users and tables; if that fails, again those of the old one."""
    try:
        twin.set_users(new.users)
        if dataset.catalog.fingerprint != old_dataset.catalog.fingerprint:
            twin.rebuild(dataset.catalog)
    except Exception:
        twin.rebuild(old_dataset.catalog)
        twin.set_users(old.users)
        raise


async def problems_of(own: OwnSession, dataset: Dataset) -> list[str]:
    """What keeps a server from answering that all of its processes share."""
    checks: dict[str, Callable[[], object]] = {
        "the twin does not answer": lambda: own.use(answers),
        "the ledger cannot be read": dataset.ledger.check,
    }
    found = []
    for problem, check in checks.items():
        try:
            await in_time(check)
        except (LedgerLost, LedgerDamaged) as error:
            found.append(error.message)
        except Exception:
            found.append(problem)
    return found


async def in_time(ask: Callable[[], T]) -> T:
    """What the ledger or the twin says, if it does so soon. Raises TimeoutError, and then no longer waits for it."""
    cancellation = Cancellation()

    def asked() -> T:
        with interruptible(cancellation):
            return ask()

    try:
        async with asyncio.timeout(CHECK_SECONDS):
            return await asyncio.to_thread(asked)
    finally:
        cancellation.cancel()


async def gauges_of(dataset: Dataset, began: float) -> list[Gauge]:
    accountant = dataset.accountant
    gauges = [
        Gauge("dpsql_epsilon_limit", "What they may cost together.", float(accountant.policy.epsilon)),
        Gauge("dpsql_start_time_seconds", "When the server was started, in Unix time.", began),
    ]
    with suppress(Error, TimeoutError):  # the other numbers are shown all the same, and /healthz says what is wrong
        spent = float(accountant.epsilon_of((await in_time(dataset.ledger.spent)).loss))
        gauges.insert(0, Gauge("dpsql_epsilon_spent", "What all answers ever given have cost.", spent))
    return gauges


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


async def _readable(listener: socket.socket) -> None:
    """Wait until somebody knocks."""
    loop = asyncio.get_running_loop()
    knocked = asyncio.Event()
    loop.add_reader(listener, knocked.set)
    try:
        await knocked.wait()
    finally:
        loop.remove_reader(listener)


def _same(protocol: asyncio.StreamReaderProtocol) -> asyncio.StreamReaderProtocol:
    return protocol


async def _ended(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Wait for tasks that were told to end."""
    if waiting := list(tasks):
        await asyncio.wait(waiting, timeout=_END_SECONDS)


def _reason(error: Error | OSError) -> str:
    return error.message if isinstance(error, Error) else error.strerror or type(error).__name__


def _last_names(dataset: Dataset) -> frozenset[str]:
    names = [*dataset.catalog.tables, *dataset.catalog.views]
    return frozenset(name.rpartition(".")[2] for name in names)


# ------------------------------------------------------------
# Sockets to listen on, bound before anything is started: a port that is taken is noticed at once.

ORPHAN_SECONDS = 3.0  # in which the workers of a server that was killed let go of its port
_BIND_PAUSE = 0.1


def bind(host: str, port: int, hint: str) -> list[socket.socket]:
    """A socket for each address of a host, all on one port. They refuse connections until they are listened on."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        addresses: dict[tuple[int, str | int], None] = {(family, each[0]): None for family, _, _, _, each in found}
        deadline = time.monotonic() + ORPHAN_SECONDS
        while True:
            try:
                return _bound(addresses, port)
            except OSError as error:
                if error.errno != errno.EADDRINUSE or time.monotonic() > deadline:
                    raise
            time.sleep(_BIND_PAUSE)
    except OSError as error:
        is_name = isinstance(error, socket.gaierror)
        reason = (error.strerror if is_name or not error.errno else os.strerror(error.errno)) or "unknown"
        raise PolicyError(f"cannot listen on {host}:{port}: {reason.lower()}", hint=hint) from None


def _bound(addresses: dict[tuple[int, str | int], None], port: int) -> list[socket.socket]:
    sockets: list[socket.socket] = []
    missing: OSError | None = None
    with ExitStack() as on_failure:
        for family, address in addresses:
            # The protocol is named because asyncio switches Nagle's delay off only where it is.
            made = on_failure.enter_context(socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP))
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            try:
                made.bind((address, port))
            except OSError as error:
                if error.errno != errno.EADDRNOTAVAIL:  # a machine without IPv6 may still have a name for it
                    raise
                missing = error
                continue
            sockets.append(made)
            port = made.getsockname()[1]
        if not sockets:
            assert missing is not None
            raise missing
        on_failure.pop_all()
    return sockets
