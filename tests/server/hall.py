"""A tiny server with the real login: an authenticated client gets AuthenticationOk and ReadyForQuery only."""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import cache
from pathlib import Path

from dpsql.policy.model import TlsRule
from dpsql.policy.passwords import Verifier
from dpsql.server.auth.login import CancelCall, Client, LoginRules, authenticate
from dpsql.server.auth.throttle import Throttle, Verifiers
from dpsql.server.auth.tls import Tls, load_tls, own_certificate

DATABASE = "clinic"
PASSWORD = "correct horse"  # noqa: S105
SECRET = b"s" * 32

_STEPS = 10  # of the loop, and more than it takes from accepting somebody to the guests

Outcome = Client | CancelCall | None


@cache
def verifier() -> Verifier:
    """Few iterations: clients are not slowed down here."""
    return Verifier.derived(PASSWORD, b"salt of sixteen!", 4096)


def make_door(tls: Tls | None = None, rule: TlsRule = "remote", *, login_timeout: float = 30) -> LoginRules:
    verifiers = Verifiers({"alice": verifier()}, SECRET)
    return LoginRules(DATABASE, verifiers, tls, rule, login_timeout, Throttle())


def own_tls(folder: Path) -> tuple[Tls, Path]:
    certificate, key = own_certificate(folder, "127.0.0.1")
    return load_tls(certificate, key), certificate


def message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!I", len(body) + 4) + body


READY = (
    message(b"R", struct.pack("!I", 0))
    + message(b"S", b"server_version\x0016.0\0")
    + message(b"S", b"client_encoding\0UTF8\0")
    + message(b"S", b"standard_conforming_strings\0on\0")
    + message(b"K", struct.pack("!II", 77, 4711))
    + message(b"Z", b"I")
)


class Hall:
    def __init__(self) -> None:
        self.port = 0
        self.outcomes: list[Outcome] = []


@asynccontextmanager
async def opened(rules: LoginRules, *, host: str = "127.0.0.1", path: Path | None = None) -> AsyncIterator[Hall]:
    """The server, in the running loop, on a port or on a Unix socket."""
    hall = Hall()
    failures: list[BaseException] = []
    guests: set[asyncio.Task[None]] = set()

    async def receive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        guests.add(task)
        try:
            outcome = await authenticate(reader, writer, rules)
            hall.outcomes.append(outcome)
            if isinstance(outcome, Client):
                outcome.writer.write(READY)
                while await outcome.reader.read(1000):
                    pass
        except (ConnectionError, asyncio.CancelledError):
            pass
        except Exception as error:
            failures.append(error)
        finally:
            writer.close()
            with suppress(OSError):
                async with asyncio.timeout(1):
                    await writer.wait_closed()
            writer.transport.abort()
            guests.discard(task)

    if path is None:
        server = await asyncio.start_server(receive, host, 0)
        hall.port = server.sockets[0].getsockname()[1]
    else:
        server = await asyncio.start_unix_server(receive, path)
    try:
        yield hall
    finally:
        # asyncio loses whom it has accepted when its server is closed just then.
        for listener in server.sockets:
            asyncio.get_running_loop().remove_reader(listener.fileno())
        for _ in range(_STEPS):
            await asyncio.sleep(0)
        server.close()
        for guest in list(guests):
            guest.cancel()
        await asyncio.gather(*guests, return_exceptions=True)
        assert not failures, failures


@contextmanager
def running(rules: LoginRules, *, host: str = "127.0.0.1") -> Iterator[Hall]:
    """The server in a thread of its own, for clients that block."""
    started = threading.Event()
    halls: list[Hall] = []
    stop: list[Callable[[], object]] = []

    async def serve() -> None:
        end = asyncio.Event()
        loop = asyncio.get_running_loop()
        stop.append(lambda: loop.call_soon_threadsafe(end.set))
        async with opened(rules, host=host) as hall:
            halls.append(hall)
            started.set()
            await end.wait()

    errors: list[BaseException] = []

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            errors.append(error)
            started.set()

    thread = threading.Thread(target=run)
    thread.start()
    started.wait()
    try:
        yield halls[0]
    finally:
        stop[0]()
        thread.join()
        assert not errors, errors
