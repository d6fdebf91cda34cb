"""Starts a server from a policy file, reloads it on SIGHUP, and shuts it down in order."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509

from dpsql.answering.dataset import Dataset
from dpsql.answering.open_dataset import open_engine
from dpsql.errors import Error, LedgerDamaged, OperationalError, PolicyError
from dpsql.ledger.opening import ledger_location, read_books, record_limits
from dpsql.policy.load import load
from dpsql.policy.load_server import state_folder
from dpsql.policy.model import Policy, ServerPolicy
from dpsql.privacy.accounting import Accountant
from dpsql.server.auth.login import LoginRules, login_rules
from dpsql.server.auth.throttle import Throttle
from dpsql.server.ending import end_within
from dpsql.server.listener import DRAIN_SECONDS, Server, bind
from dpsql.server.ops.logs import keep_engine_log, note, warn
from dpsql.server.ops.metrics import HOST, Metrics, StatusPages
from dpsql.server.twin import start_twin
from dpsql.server.workers.supervisor import Supervisor
from dpsql.slots import ARE_SHARED
from dpsql.version import __version__

_log = logging.getLogger("dpsql.server")

# Settings of [server] and [limits] that are fixed at start; another value takes effect at the next start.
_FIXED_OF_SERVER = ("host", "port", "metrics_port", "twin", "state")
_FIXED_OF_LIMITS = ("memory", "threads")  # shared by all connections to one DuckDB file
_AT_ONCE_SECONDS = 25.0  # for an orderly end when statements are not waited for
_OTHER_FILES = 200  # open files besides the two sockets of each connection


def serve(
    path: Path,
    *,
    host: str | None,
    port: int | None,
    ready: Callable[[Server | Supervisor], None],
    workers: int = 1,
    new_ledger: bool = False,
) -> None:
    """Serve until SIGTERM or SIGINT; SIGHUP reads the policy file again. `ready` is called once it listens."""
    if workers > 1 and not ARE_SHARED:
        raise PolicyError("--workers is only supported on Linux", hint="Serve without --workers.")

    def read() -> Policy:
        policy = load(path)
        server = policy.server
        wanted = replace(server, host=host or server.host, port=server.port if port is None else port)
        return replace(policy, server=wanted)

    policy = read()
    metrics = Metrics()
    with _bound(policy.server) as sockets:
        dataset = open_engine(policy, new_ledger=new_ledger, compiles_apart=workers == 1)
        try:
            if dataset.ledger.begun:  # a missing ledger is not replaced silently
                warn("ledger_begun", ledger=str(ledger_location(policy)))
            if dataset.ledger.adopted:  # from now on it counts for the units of this policy
                warn("ledger_adopted_units", ledger=str(ledger_location(policy)))
            _verify_in_background(policy, dataset)
            with _counting(metrics):
                twin = start_twin(state_folder(policy), dataset.catalog, policy.users, address=policy.server.twin)
                try:
                    rules = _login_rules(policy, twin.database)
                    keep_engine_log(state_folder(policy))
                    _warn_of_files(policy)
                    _allow_files(2 * policy.server.max_connections + _OTHER_FILES)
                    server: Server | Supervisor = (
                        Server(policy, dataset, twin, rules)
                        if workers == 1
                        else Supervisor(policy, dataset, twin, rules, workers)
                    )
                    try:
                        asyncio.run(_run(server, sockets, metrics, read, ready))
                    finally:
                        dataset = server.dataset
                finally:
                    twin.stop()
                note("stopped")
        finally:
            dataset.close()


@dataclass(frozen=True, slots=True)
class _Sockets:
    clients: list[socket.socket]
    status: socket.socket | None


@contextmanager
def _bound(server: ServerPolicy) -> Iterator[_Sockets]:
    """The sockets to listen on. Closing a socket that the server has closed already does nothing."""
    with ExitStack() as closing:
        hint = "Another server may use this port. Choose one with --port, or with port in [server] of the policy."
        clients = bind(server.host, server.port, hint)
        for each in clients:
            closing.enter_context(each)
        status = None
        if server.metrics_port is not None:
            hint = "Another server may use this port. Choose another metrics_port in [server] of the policy."
            (status,) = bind(HOST, server.metrics_port, hint)
            closing.enter_context(status)
        yield _Sockets(clients, status)


@contextmanager
def _counting(metrics: Metrics) -> Iterator[None]:
    root = logging.getLogger()
    root.addHandler(metrics)
    try:
        yield
    finally:
        root.removeHandler(metrics)


def _login_rules(policy: Policy, database: str, throttle: Throttle | None = None) -> LoginRules:
    try:
        return login_rules(policy, database, throttle)
    except OSError as error:
        raise OperationalError(
            f'the state folder "{state_folder(policy)}" cannot be used: {error.strerror}',
            hint="Choose another with state in [server] of the policy.",
        ) from None


def _warn_of_files(policy: Policy) -> None:
    """Warn of an expired certificate, and of secrets that others can read."""
    if policy.server.tls != "off":
        folder = state_folder(policy)
        certificate = policy.server.certificate or folder / "certificate.pem"
        key = policy.server.key or folder / "key.pem"
        expires = x509.load_pem_x509_certificates(certificate.read_bytes())[0].not_valid_after_utc
        if expires < datetime.now(UTC):
            warn("certificate_expired", certificate=str(certificate), expired=expires.isoformat())
        if key.stat().st_mode & 0o077:
            warn("key_open_to_others", key=str(key))
    if policy.path.stat().st_mode & 0o077 and any(user.password for user in policy.users.values()):
        warn("policy_open_to_others", policy=str(policy.path))


def _verify_in_background(policy: Policy, dataset: Dataset) -> None:
    """Verify the whole ledger once, in the background; all processes stop charging if it is damaged."""

    def verify() -> None:
        try:
            with read_books(policy) as books:
                found = [] if books is None else books.verify()
        except LedgerDamaged as error:
            found = [error.message]
        except Error as error:
            warn("ledger_not_verified", reason=error.message)
            return
        if found:
            dataset.ledger.condemn(found[0])

    threading.Thread(target=verify, name="dpsql verify", daemon=True).start()


def _allow_files(wanted: int) -> None:
    """Raise this process's limit of open files as far as needed and allowed; connections beyond it are refused."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        possible = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (possible, hard))


async def _run(
    server: Server | Supervisor,
    sockets: _Sockets,
    metrics: Metrics,
    read: Callable[[], Policy],
    ready: Callable[[Server | Supervisor], None],
) -> None:
    signals = _Signals(server, read)
    pages = StatusPages(lambda: server.page(metrics.counts()), server.problems)
    try:
        try:
            await server.start(sockets.clients)
            if sockets.status is not None:
                await pages.start(sockets.status)
            signals.heed()
            note("started", version=__version__, pid=os.getpid(), host=server.policy.server.host, port=server.port)
            ready(server)
            note("stopping", signal=await signals.end())
        finally:
            await server.stop(signals.at_once)
    finally:
        pages.stop()


class _Signals:
    """Signals: SIGTERM or SIGINT to stop, a second one to stop at once, SIGHUP to reload the policy."""

    def __init__(self, server: Server | Supervisor, read: Callable[[], Policy]) -> None:
        self._server = server
        self._read = read
        self._ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._reloads: set[asyncio.Task[None]] = set()
        self._one_at_a_time = asyncio.Lock()
        self.at_once = asyncio.Event()

    def heed(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._end, number.name)
        loop.add_signal_handler(signal.SIGHUP, self._reload)

    async def end(self) -> str:
        """Wait for a signal to stop; returns which it was."""
        return await self._ended

    def _end(self, name: str) -> None:
        if self._ended.done():
            self.at_once.set()
            end_within(_AT_ONCE_SECONDS)
        else:
            self._ended.set_result(name)
            end_within(DRAIN_SECONDS + _AT_ONCE_SECONDS)

    def _reload(self) -> None:
        task = asyncio.create_task(self._reload_in_turn())
        self._reloads.add(task)
        task.add_done_callback(self._reloads.discard)

    async def _reload_in_turn(self) -> None:
        async with self._one_at_a_time:
            await reload(self._server, self._read)


async def reload(server: Server | Supervisor, read: Callable[[], Policy]) -> None:
    """Reload the policy file; one that does not load changes nothing."""
    try:
        policy, waiting = _as_far_as_possible(await asyncio.to_thread(read), server.policy)
        is_alone = isinstance(server, Server)
        dataset = await asyncio.to_thread(open_engine, policy, compiles_apart=is_alone)
        try:
            rules = _login_rules(policy, server.twin.database, server.rules.throttle)
            ended = await server.reload(policy, dataset, rules)
        except BaseException:
            dataset.close()
            await asyncio.to_thread(_put_in_force, server.policy)
            raise
    except Error as error:
        warn("reload", outcome="failed", reason=error.message)
    except Exception:
        _log.exception("the policy was not reloaded")
        warn("reload", outcome="failed", reason="the server failed")
    else:
        note("reload", outcome="done", connections_ended=ended, waits_for_restart=", ".join(waiting) or None)


def _put_in_force(policy: Policy) -> None:
    """Restore the ledger's limits: they are those of the policy opened last, even if its reload failed."""
    with suppress(Error):
        record_limits(policy, Accountant(policy.privacy))


def _as_far_as_possible(new: Policy, old: Policy) -> tuple[Policy, list[str]]:
    """The new policy with the old values of settings that need a restart, and the names of those settings."""
    server = {name: getattr(old.server, name) for name in _FIXED_OF_SERVER}
    limits = {name: getattr(old.limits, name) for name in _FIXED_OF_LIMITS}
    waiting = [name for name, value in server.items() if getattr(new.server, name) != value]
    waiting += [name for name, value in limits.items() if getattr(new.limits, name) != value]
    kept = replace(new, server=replace(new.server, **server), limits=replace(new.limits, **limits))
    return kept, waiting
