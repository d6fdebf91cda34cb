"""How the processes of one server talk: the channel, what is asked over it, and who has how many clients.

The line between the process that watches and one that serves: requests and their answers, in both directions.

What goes over it is pickled. Both ends are processes of ours, and it has no name by which another could reach it.
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


class LineLost(OSError):
    """The process at the other end is gone."""


@dataclass(frozen=True, slots=True)
class _Packet:
    number: int
    is_answer: bool
    content: object
    failure: str | None = None


class Line:
    """One end. `answer` is called for each request of the other side, also while earlier ones are not answered yet."""

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
    async def over(cls, end: socket.socket, answer: Callable[[Any], Awaitable[object]]) -> Line:
        return cls(*await asyncio.open_connection(sock=end), answer)

    async def ask(self, request: object) -> Any:
        """The answer of the other side; raises LineLost if it ends before, OperationalError if it cannot."""
        if self._lost:
            raise LineLost
        number = next(self._numbers)
        waiting = self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            self._send(_Packet(number, False, request))
            return await waiting
        finally:
            self._asked.pop(number, None)

    async def listen(self) -> None:
        """Take what comes until the other side is gone."""
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
                    waiting.set_exception(LineLost())

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
        except LineLost:
            failure = "a process of the server is gone"
        except Exception:
            _log.exception("a request of another process failed")
            failure = "the server failed"
        with suppress(LineLost):
            self._send(_Packet(packet.number, True, content, failure))

    def _send(self, packet: _Packet) -> None:
        if self._lost or self._writer.is_closing():
            raise LineLost
        data = _pickled(packet)
        self._writer.write(_HEAD.pack(len(data)) + data)


def _frozen(mapping: dict[Any, Any]) -> MappingProxyType[Any, Any]:
    return MappingProxyType(mapping)


class _Pickler(pickle.Pickler):
    """Policies have mappings that cannot be changed, which Python by itself does not pickle."""

    dispatch_table = copyreg.dispatch_table | {MappingProxyType: lambda mapping: (_frozen, (dict(mapping),))}


def _pickled(packet: _Packet) -> bytes:
    buffer = io.BytesIO()
    _Pickler(buffer).dump(packet)
    return buffer.getvalue()


# ------------------------------------------------------------
# What the processes of one server say to each other, and what one of them may ask of the others.

# --- to a worker ---


@dataclass(frozen=True, slots=True)
class Begin:
    """Serve. Answered when the worker listens."""

    number: int
    count: int  # of workers
    policy: Policy
    twin_socket: Path | None  # None: the policy says where the twin is


@dataclass(frozen=True, slots=True)
class Prepare:
    """Make ready to serve another policy; nothing changes yet."""

    policy: Policy


@dataclass(frozen=True, slots=True)
class Pause:
    """Let no session begin, and end those that cannot go on under the new policy; answered with their number."""


@dataclass(frozen=True, slots=True)
class Switch:
    """Serve the new policy, or after all the old one."""

    to_new: bool


@dataclass(frozen=True, slots=True)
class Look:
    """How are you? Answered with a State."""


@dataclass(frozen=True, slots=True)
class Stop:
    at_once: bool


@dataclass(frozen=True, slots=True)
class State:
    counts: Counts
    gauges: tuple[Gauge, ...]


# --- to the supervisor ---


@dataclass(frozen=True, slots=True)
class LookAfterTwin:
    """The twin cannot be reached; answered with its socket when it can."""


@dataclass(frozen=True, slots=True)
class WrongPassword:
    """Answered with the seconds for which the refusal is held back."""

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


class Colleagues(Protocol):
    """The other processes that serve the same dataset. The twin numbers all sessions, so no two share a number."""

    async def cancel_session(self, pid: int, secret: bytes) -> None:
        """Cancel what runs in a session that is none of ours."""
        ...

    def cancel_statement(self, user: str, pid: int) -> None:
        """Cancel what the engine does for a session of a user that is none of ours."""
        ...


class Nobody:
    """There are none."""

    async def cancel_session(self, pid: int, secret: bytes) -> None:
        pass

    def cancel_statement(self, user: str, pid: int) -> None:
        pass


# ------------------------------------------------------------
# How many clients each of the processes behind one port has, so that whoever has more leaves the next to the others.
#
# The system wakes all of them for a connection, and on a quiet machine the same one always comes first.

_NUMBER = struct.Struct("@I")


class Crowding:
    """Numbers in a file that the processes share; each writes its own, and takes those of the others as they are."""

    def __init__(self, path: Path, number: int, count: int) -> None:
        """For process `number`, counted from one, of so many; it has no clients yet."""
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._number = number
        self._count = count
        self.clients(0)

    def clients(self, now: int) -> None:
        """This process has so many now."""
        os.pwrite(self._file, _NUMBER.pack(now), (self._number - 1) * _NUMBER.size)

    def is_above_others(self) -> bool:
        """Whether another process has fewer clients than this one."""
        size = self._count * _NUMBER.size
        found = os.pread(self._file, size, 0).ljust(size, b"\0")
        numbers: list[int] = [number for (number,) in _NUMBER.iter_unpack(found)]
        return min(numbers) < numbers[self._number - 1]


class Alone:
    """The only process behind a port."""

    def clients(self, now: int) -> None:
        pass

    def is_above_others(self) -> bool:
        return False
