"""Communication between the processes of one server: the channel, its messages, and the client counts.

The channel connects the supervisor with one worker: requests and replies, in both directions.

Messages are pickled. Both ends are our own processes, and the socket pair has no name for another to connect to.
"""

from __future__ import annotations

import asyncio
import copyreg
import io
import logging
import os
import pickle
import socket
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from dpsql.errors import Error, OperationalError
from dpsql.policy.model import Policy
from dpsql.server.ops.metrics import Counts, Gauge

_log = logging.getLogger("dpsql.server")

_HEAD = struct.Struct("!I")


class ChannelClosed(OSError):
    """The process at the other end is gone."""


@dataclass(frozen=True, slots=True)
class _Packet:
    number: int
    is_answer: bool
    content: object
    failure: str | None = None


class Channel:
    """One end. `answer` is called for each request of the other side, even while earlier ones are pending."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        answer: Callable[[Any], Awaitable[object]],
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._answer = answer
        self._numbers = count()
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._answering: set[asyncio.Task[None]] = set()
        self._lost = False

    @classmethod
    async def over(cls, end: socket.socket, answer: Callable[[Any], Awaitable[object]]) -> Channel:
        return cls(*await asyncio.open_connection(sock=end), answer)

    async def ask(self, request: object) -> Any:
        """The reply of the other side; raises ChannelClosed if that process ends, OperationalError if it fails."""
        if self._lost:
            raise ChannelClosed
        number = next(self._numbers)
        waiting = self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            self._send(_Packet(number, False, request))
            return await waiting
        finally:
            self._asked.pop(number, None)

    async def listen(self) -> None:
        """Receive until the other side is gone."""
        try:
            while True:
                (length,) = _HEAD.unpack(await self._reader.readexactly(_HEAD.size))
                packet: _Packet = pickle.loads(await self._reader.readexactly(length))  # noqa: S301 - our own
                if packet.is_answer:
                    self._take(packet)
                else:
                    task = asyncio.create_task(self._reply(packet))
                    self._answering.add(task)
                    task.add_done_callback(self._answering.discard)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._lost = True
            self._writer.close()
            for waiting in self._asked.values():
                if not waiting.done():
                    waiting.set_exception(ChannelClosed())

    def close(self) -> None:
        self._writer.close()

    def _take(self, packet: _Packet) -> None:
        waiting = self._asked.get(packet.number)
        if waiting is None or waiting.done():
            return
        if packet.failure is not None:
            waiting.set_exception(OperationalError(packet.failure))
        else:
            waiting.set_result(packet.content)

    async def _reply(self, packet: _Packet) -> None:
        content, failure = None, None
        try:
            content = await self._answer(packet.content)
        except Error as error:
            failure = error.message
        except ChannelClosed:
            failure = "a process of the server has ended"
        except Exception:
            _log.exception("a request of another process failed")
            failure = "the server failed"
        with suppress(ChannelClosed):
            self._send(_Packet(packet.number, True, content, failure))

    def _send(self, packet: _Packet) -> None:
        if self._lost or self._writer.is_closing():
            raise ChannelClosed
        data = _pickled(packet)
        self._writer.write(_HEAD.pack(len(data)) + data)


def _frozen(mapping: dict[Any, Any]) -> MappingProxyType[Any, Any]:
    return MappingProxyType(mapping)


class _Pickler(pickle.Pickler):
    """Pickles the read-only mappings of policies, which Python by itself does not."""

    dispatch_table = copyreg.dispatch_table | {MappingProxyType: lambda mapping: (_frozen, (dict(mapping),))}


def _pickled(packet: _Packet) -> bytes:
    buffer = io.BytesIO()
    _Pickler(buffer).dump(packet)
    return buffer.getvalue()


# ------------------------------------------------------------
# The messages between the processes of one server.

# --- to a worker ---


@dataclass(frozen=True, slots=True)
class Begin:
    """Serve. Answered when the worker listens."""

    number: int
    count: int  # number of workers
    policy: Policy
    twin_socket: Path | None  # None: the policy has the twin's address


@dataclass(frozen=True, slots=True)
class Prepare:
    """Get ready to serve another policy; nothing changes yet."""

    policy: Policy


@dataclass(frozen=True, slots=True)
class Pause:
    """Hold back new sessions, and end those that cannot continue under the new policy; answered with their number."""


@dataclass(frozen=True, slots=True)
class Switch:
    """Serve the new policy, or stay with the old one."""

    to_new: bool


@dataclass(frozen=True, slots=True)
class GetState:
    """Ask for the worker's health and metrics. Answered with a State."""


@dataclass(frozen=True, slots=True)
class Stop:
    at_once: bool


@dataclass(frozen=True, slots=True)
class State:
    counts: Counts
    gauges: tuple[Gauge, ...]


# --- to the supervisor ---


@dataclass(frozen=True, slots=True)
class EnsureTwin:
    """The twin cannot be reached. Answered with its socket once it runs."""


@dataclass(frozen=True, slots=True)
class WrongPassword:
    """Answered with the seconds by which to delay the refusal."""

    user: str
    address: str


# --- in both directions: from a worker that does not know the session, to all others ---


@dataclass(frozen=True, slots=True)
class CancelSession:
    pid: int
    secret: bytes


@dataclass(frozen=True, slots=True)
class CancelStatement:
    user: str
    pid: int


class Peers(Protocol):
    """The other processes that serve the same dataset. The twin numbers the sessions of all of them."""

    async def cancel_session(self, pid: int, secret: bytes) -> None:
        """Cancel what runs in a session of another process."""
        ...

    def cancel_statement(self, user: str, pid: int) -> None:
        """Cancel the engine's work for a user's session in another process."""
        ...


class NoPeers:
    """For a server of a single process."""

    async def cancel_session(self, pid: int, secret: bytes) -> None:
        pass

    def cancel_statement(self, user: str, pid: int) -> None:
        pass


# ------------------------------------------------------------
# How many clients each process on a port has, so that the one with fewer accepts the next.
#
# The kernel wakes all processes for a connection, and on a quiet machine the same one would always win.

_NUMBER = struct.Struct("@I")


class ClientCounts:
    """Client counts in a shared file; each process writes its own, and reads the others' without locking."""

    def __init__(self, path: Path, number: int, count: int) -> None:
        """For process `number` of `count`, counted from one; it has no clients yet."""
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._number = number
        self._count = count
        self.clients(0)

    def clients(self, now: int) -> None:
        """Publish this process's number of clients."""
        os.pwrite(self._file, _NUMBER.pack(now), (self._number - 1) * _NUMBER.size)

    def another_has_fewer(self) -> bool:
        """Whether another process has fewer clients than this one."""
        size = self._count * _NUMBER.size
        found = os.pread(self._file, size, 0).ljust(size, b"\0")
        numbers: list[int] = [number for (number,) in _NUMBER.iter_unpack(found)]
        return min(numbers) < numbers[self._number - 1]


class SingleProcess:
    """For the only process on a port."""

    def clients(self, now: int) -> None:
        pass

    def another_has_fewer(self) -> bool:
        return False
