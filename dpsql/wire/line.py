"""The line between the process that watches and one that serves: requests and their answers, in both directions.

What goes over it is pickled. Both ends are processes of ours, and it has no name by which another could reach it.
"""

from __future__ import annotations

import asyncio
import copyreg
import io
import logging
import pickle
import socket
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from types import MappingProxyType
from typing import Any

from dpsql.errors import Error, OperationalError

_log = logging.getLogger("dpsql.wire")

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
