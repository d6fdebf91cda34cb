"""The server: listens, authenticates clients, gives each a session on the twin, and shuts down in order."""

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
from dpsql.server.auth.login import CancelCall, Client, LoginRules, address_of, authenticate
from dpsql.server.ops.logs import note, warn
from dpsql.server.ops.metrics import Counts, Gauge, page
from dpsql.server.protocol import messages
from dpsql.server.protocol.messages import BadMessage, Message
from dpsql.server.relay.execute import Reply
from dpsql.server.relay.jobs import Jobs, leaving_at_a_tick
from dpsql.server.relay.relay import Relay
from dpsql.server.relay.upstream import CHUNK, ClientGone, TwinGone, Upstream
from dpsql.server.twin import Twin
from dpsql.server.twin.account import read_account
from dpsql.server.twin.account_views import refresh
from dpsql.server.twin.sessions import OwnSession, answers, is_grammatical, open_session
from dpsql.server.workers.channel import ClientCounts, NoPeers, Peers, SingleProcess
from dpsql.slots import MOST, Slots

DRAIN_SECONDS = 10.0  # for statements to end at shutdown
# Logins under way, beyond the free connection slots; the latter is the limit for one address.
_LOGINS = 50
_BACKLOG = 512  # the backlog: connections that the kernel accepts ahead of us
_END_SECONDS = 5.0  # for connections and jobs to end once they are told to
_FAREWELL_SECONDS = 1.0  # for a client to read the last message
CHECK_SECONDS = 5.0  # for the twin and the ledger to answer a health check
_NO_ROOM_SECONDS = 1.0  # pause when the kernel has no room for another connection
_PAUSE = 0.02
_GIVE_WAY_SECONDS = 0.02  # for a process with fewer clients to take the next one

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
    upstream: Upstream
    task: asyncio.Task[None]


class _RelayHost:
    """The server as the relay of one connection sees it."""

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
    """One dataset on one port. Everything here runs in the event loop.

    Several processes may serve the same port: `slots` counts the connections and statements of all of them, and
    `peers` reaches the sessions of the others.
    """

    def __init__(
        self,
        policy: Policy,
        dataset: Dataset,
        twin: Twin,
        rules: LoginRules,
        *,
        slots: Slots | None = None,
        peers: Peers | None = None,
        client_counts: ClientCounts | None = None,
    ) -> None:
        self.policy = policy
        self.dataset = dataset
        self.twin = twin
        self.rules = rules
        self.declared = _last_names(dataset)
        self.type_names: dict[tuple[int, int], str] = {}
        self.jobs = Jobs(slots)
        self.own = OwnSession(twin)
        self._began = time.time()
        self._connections: set[_Connection] = set()
        self._visits: set[asyncio.Task[None]] = set()
        self._slots = slots or Slots()
        self._peers: Peers = peers or NoPeers()
        self._client_counts = client_counts or SingleProcess()
        self._logins = 0
        self._sockets: Sequence[socket.socket] = ()
        self._accepting: set[asyncio.Task[None]] = set()
        self.port = policy.server.port
        self._stopping = False
        self._open = asyncio.Event()  # set: new sessions may begin
        self._open.set()

    # --- start and stop ---

    async def start(self, sockets: Sequence[socket.socket]) -> None:
        """Listen. The server owns the sockets from here on."""
        self._sockets = sockets
        self.port = sockets[0].getsockname()[1]
        for each in sockets:
            each.setblocking(False)
            each.listen(_BACKLOG)
            self._accepting.add(asyncio.create_task(self._accept_all(each)))

    async def stop(self, at_once: asyncio.Event) -> None:
        """Let statements end, tell the clients, close everything. `at_once` cancels statements instead."""
        self._stopping = True
        for task in self._accepting:
            task.cancel()
        await _ended(self._accepting)  # a client accepted at the last moment is among the visits from here on
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

    async def reload(self, policy: Policy, dataset: Dataset, rules: LoginRules) -> int:
        """Serve another policy of the same dataset; how many connections ended. On failure the old one stays."""
        try:
            ended = await self.pause(policy, dataset)
            await asyncio.to_thread(retarget, self.twin, self.policy, self.dataset, policy, dataset)
            old = self.switch(policy, dataset, rules)
        finally:
            self.resume()
        await self.retire(old)
        return ended

    async def pause(self, policy: Policy, dataset: Dataset) -> int:
        """Hold back new sessions, and end those that cannot continue under another policy; how many ended.

        A session ends if the schema that it sees has changed, or if its user was removed.
        """
        changed = dataset.catalog.fingerprint != self.dataset.catalog.fingerprint
        leaving = [each for each in self._connections if changed or each.client.user not in policy.users]
        self._open.clear()
        await _ended(self._dismiss(leaving))
        return len(leaving)

    def switch(self, policy: Policy, dataset: Dataset, rules: LoginRules) -> Dataset:
        """Serve another policy; returns the old dataset, which jobs may still use."""
        old, self.dataset = self.dataset, dataset
        self.policy, self.rules, self.declared = policy, rules, _last_names(dataset)
        self.type_names = {}
        return old

    def resume(self) -> None:
        """Let new sessions begin again."""
        self._open.set()

    async def retire(self, dataset: Dataset) -> None:
        """Close a dataset when its last job has ended."""
        await self.jobs.finished(dataset)
        await asyncio.to_thread(dataset.close)

    def _dismiss(self, connections: Iterable[_Connection]) -> set[asyncio.Task[None]]:
        """End connections, whatever they do; returns their tasks, which have still to tell the client."""
        tasks = set()
        for connection in list(connections):
            self._connections.discard(connection)
            connection.upstream.show(_DISMISSED)
            connection.task.cancel()
            tasks.add(connection.task)
        return tasks

    # --- connections ---

    async def _accept_all(self, listener: socket.socket) -> None:
        """Accept connections one by one, and let another process with fewer clients go first."""
        loop = asyncio.get_running_loop()
        with listener:
            while True:
                await _readable(listener)
                if self._client_counts.another_has_fewer():
                    await asyncio.sleep(_GIVE_WAY_SECONDS)
                try:
                    accepted, _ = listener.accept()
                except BlockingIOError:  # another process took it
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
        self._client_counts.clients(len(self._visits))
        try:
            await self._visit(reader, writer)
        except asyncio.CancelledError:
            writer.transport.abort()
        finally:
            self._visits.discard(task)
            self._client_counts.clients(len(self._visits))

    async def _visit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        most = self.policy.server.max_connections
        with (
            self._slot(b"logins from " + address_of(writer).encode(), most) as own,
            self._slot(b"logins", most + _LOGINS) as slot,
        ):
            if self._stopping or own is None or slot is None:
                await _say_goodbye(reader, writer, _SHUTTING_DOWN if self._stopping else _TOO_MANY)
                return
            self._logins += 1
            try:
                visitor = await authenticate(reader, writer, self.rules)
            finally:
                self._logins -= 1
        match visitor:
            case CancelCall():
                await self._cancel_call(visitor)
                writer.close()
            case Client():
                note("login", user=visitor.user, address=visitor.address, tls=visitor.tls)
                began, host = time.monotonic(), _RelayHost(self, visitor.user)
                try:
                    farewell = await self._serve(visitor, host)
                    await _say_goodbye(visitor.reader, visitor.writer, farewell)
                finally:
                    note(
                        "connection_ended",
                        user=visitor.user,
                        address=visitor.address,
                        seconds=round(time.monotonic() - began, 3),
                        statements=host.statements,
                    )
            case None:
                pass

    async def _serve(self, client: Client, host: _RelayHost) -> Message | None:
        """Serve a client until either side ends; returns the last message for the client."""
        await self._open.wait()
        if self._stopping:
            return _SHUTTING_DOWN
        if client.user not in self.policy.users:  # any more
            return _DISMISSED
        limits = self.policy.server
        with self._slot(b"connections of " + client.user.encode(), limits.most_of_one_user) as own:
            if own is None:
                refusal = messages.fatal("53300", f'too many connections for role "{client.user}"')
            else:
                reserved = 0 if own % MOST == 0 else limits.reserved_connections
                with self._slot(b"connections", limits.max_connections - reserved) as slot:
                    if slot is not None:
                        return await self._serve_in_slot(client, host)
                refusal = _RESERVED if reserved else _TOO_MANY
        warn("connection_refused", user=client.user, sqlstate="53300")
        return refusal

    @contextmanager
    def _slot(self, kind: bytes, most: int) -> Iterator[int | None]:
        """Hold one of `most` slots, counted over all processes, during the block; None if none is free."""
        slot = self._slots.take(kind, most)
        try:
            yield slot
        finally:
            if slot is not None:
                self._slots.give_back(slot)

    async def _serve_in_slot(self, client: Client, host: _RelayHost) -> Message | None:
        try:
            reader, writer = await self._open_session(client)
        except (Error, OSError) as error:
            warn("twin_lost", user=client.user, reason=_reason(error))
            return _NO_TWIN
        except Exception:
            _log.exception("no session on the twin")
            return _NO_TWIN
        upstream = Upstream(
            *(reader, writer, client.writer),
            on_cancel=lambda pid: self.cancel(client.user, pid),
            is_own=lambda pid: self._is_session_of(client.user, pid),
        )
        return await self._relay(client, upstream, Relay(client.reader, upstream, host, client.user))

    def _is_session_of(self, user: str, pid: int) -> bool:
        return any(each.upstream.pid == pid and each.client.user == user for each in self._connections)

    async def _open_session(self, client: Client) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A session on the twin. A twin that has died is started again, in a thread."""
        known = self.twin.known_address(client.user)
        if known is not None:
            with suppress(OSError):
                return await open_session(known, client.parameters)
        address = await asyncio.to_thread(self.twin.address, client.user)
        return await open_session(address, client.parameters)

    async def _relay(self, client: Client, upstream: Upstream, relay: Relay) -> Message | None:
        task = asyncio.current_task()
        assert task is not None
        connection = _Connection(client, relay, upstream, task)
        self._connections.add(connection)
        listening = asyncio.create_task(upstream.listen())
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
            if upstream.dismissed or client.writer.is_closing():  # the twin has sent the error, or the client is gone
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
            await self._leave(client.user, upstream, listening)

    async def _leave(self, user: str, upstream: Upstream, listening: asyncio.Task[None]) -> None:
        """End a session on the twin. A statement that does not end soon is cancelled."""
        try:
            patience = asyncio.get_running_loop().time() + _FAREWELL_SECONDS
            while upstream.is_busy and not upstream.closed and asyncio.get_running_loop().time() < patience:
                await asyncio.sleep(_PAUSE)
            if upstream.is_busy:  # without it, the twin would notice only when it next writes
                await self._cancel_on_twin(user, upstream)
        finally:
            upstream.close()
            listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)

    # --- cancellation ---

    def cancel(self, user: str, pid: int) -> None:
        """Cancel the engine's work for a session of a user."""
        if not self.cancel_statement(user, pid):
            self._peers.cancel_statement(user, pid)

    def cancel_statement(self, user: str, pid: int) -> bool:
        """The same, for a session of this process only."""
        for connection in self._connections:
            if connection.upstream.pid == pid and connection.client.user == user:
                connection.relay.cancel()
                return True
        return False

    async def _cancel_call(self, call: CancelCall) -> None:
        if not await self.cancel_session(call.pid, call.secret):
            await self._peers.cancel_session(call.pid, call.secret)

    async def cancel_session(self, pid: int, secret: bytes) -> bool:
        """Cancel what runs in a session, if it belongs to this process.

        The request goes to the engine if it works for that session, else to the twin; never to both.
        """
        for connection in list(self._connections):
            upstream = connection.upstream
            if upstream.pid == pid and upstream.secret == secret:
                if not connection.relay.cancel():
                    await self._cancel_on_twin(connection.client.user, upstream)
                return True
        return False

    async def _cancel_on_twin(self, user: str, upstream: Upstream) -> None:
        if upstream.pid is None:
            return
        with suppress(OSError, Error):
            address = await asyncio.to_thread(self.twin.address, user)
            if address.path is not None:
                _, writer = await asyncio.open_unix_connection(address.path)
            else:
                _, writer = await asyncio.open_connection(address.host, address.port)
            writer.write(messages.cancel_request(upstream.pid, upstream.secret))
            await writer.drain()
            writer.close()

    # --- health and metrics ---

    async def problems(self) -> list[str]:
        """Why the server cannot answer; empty if it is healthy."""
        if self._stopping:
            return ["the server is shutting down"]
        return await problems_of(self.own, self.dataset)

    def busyness(self) -> tuple[Gauge, ...]:
        """The gauges of this process."""
        return (
            Gauge("dpsql_connections", "Clients that have a session.", len(self._connections)),
            Gauge("dpsql_logins_under_way", "Clients that are logging in.", self._logins),
            Gauge("dpsql_statements_under_way", "Statements that are running.", self.jobs.busy),
            Gauge(
                "dpsql_circuits_open",
                "Open circuit breakers: users, or all of them, whose new queries are refused for a while.",
                self.dataset.circuits.open,
            ),
        )

    async def page(self, counts: Counts) -> str:
        """The metrics page."""
        gauges = await gauges_of(self.dataset, self._began)
        return page(counts, [*self.busyness(), *gauges])


def retarget(twin: Twin, old: Policy, old_dataset: Dataset, new: Policy, dataset: Dataset) -> None:
    """Rebuild the twin for another policy's users and tables; if that fails, for the old one again."""
    try:
        twin.set_users(new.users)
        if dataset.catalog.fingerprint != old_dataset.catalog.fingerprint:
            twin.rebuild(dataset.catalog)
    except Exception:
        twin.rebuild(old_dataset.catalog)
        twin.set_users(old.users)
        raise


async def problems_of(own: OwnSession, dataset: Dataset) -> list[str]:
    """What is wrong with what all processes of a server share."""
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
    """The reply of the ledger or the twin. Raises TimeoutError when it is late, and stops waiting."""
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
        Gauge("dpsql_epsilon_limit", "The total budget of all answers.", float(accountant.policy.epsilon)),
        Gauge("dpsql_start_time_seconds", "When the server was started, in Unix time.", began),
    ]
    with suppress(Error, TimeoutError):  # the other metrics are shown all the same, and /healthz says what is wrong
        spent = float(accountant.epsilon_of((await in_time(dataset.ledger.spent)).loss))
        gauges.insert(0, Gauge("dpsql_epsilon_spent", "What all answers so far have cost.", spent))
    return gauges


async def _say_goodbye(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, farewell: Message | None) -> None:
    """Close a connection once the client has read what was sent, or after a short wait."""
    try:
        async with asyncio.timeout(_FAREWELL_SECONDS):
            if farewell is not None:
                writer.write(farewell.encode())
            # Closing a socket with unread bytes resets it, and the client would lose the last message.
            if writer.can_write_eof():
                writer.write_eof()
                while await reader.read(CHUNK):
                    pass
            writer.close()
            await writer.wait_closed()
    except (OSError, TimeoutError):
        writer.transport.abort()


async def _readable(listener: socket.socket) -> None:
    """Wait until a connection can be accepted."""
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
    """Wait for cancelled tasks to end."""
    if waiting := list(tasks):
        await asyncio.wait(waiting, timeout=_END_SECONDS)


def _reason(error: Error | OSError) -> str:
    return error.message if isinstance(error, Error) else error.strerror or type(error).__name__


def _last_names(dataset: Dataset) -> frozenset[str]:
    names = [*dataset.catalog.tables, *dataset.catalog.views]
    return frozenset(name.rpartition(".")[2] for name in names)


# ------------------------------------------------------------
# Listening sockets, bound before anything else starts: a port in use is reported at once.

ORPHAN_SECONDS = 3.0  # for the workers of a killed server to release its port
_BIND_PAUSE = 0.1


def bind(host: str, port: int, hint: str) -> list[socket.socket]:
    """A socket for each address of a host, all on one port. They refuse connections until `start`."""
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
                if (
                    error.errno != errno.EADDRNOTAVAIL
                ):  # a machine without IPv6 may still resolve a name to an IPv6 address
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
