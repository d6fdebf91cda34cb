"""/metrics and /healthz: just enough of HTTP for those who watch over a server, on this machine only."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from http import HTTPStatus

from dpsql.wire.metrics import CONTENT_TYPE

HOST = "127.0.0.1"
_LONGEST_REQUEST = 8_192  # bytes of its head; a body is not read
_MOST_VISITORS = 16
_SECONDS = 10.0  # for a whole visit
_PLAIN = "text/plain; charset=utf-8"


class _Refused(Exception):
    def __init__(self, status: HTTPStatus) -> None:
        super().__init__(status.phrase)
        self.status = status


class StatusPages:
    """`metrics` gives the page of numbers, `problems` what keeps the server from answering: nothing, if it is well."""

    def __init__(self, metrics: Callable[[], Awaitable[str]], problems: Callable[[], Awaitable[Sequence[str]]]) -> None:
        self._metrics = metrics
        self._problems = problems
        self._visitors = 0
        self._listener: asyncio.Server | None = None

    async def start(self, bound: socket.socket) -> None:
        self._listener = await asyncio.start_server(self._visit, sock=bound, limit=_LONGEST_REQUEST)

    def stop(self) -> None:
        if self._listener is not None:
            self._listener.close()

    async def _visit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._visitors += 1
        try:
            async with asyncio.timeout(_SECONDS):
                writer.write(await self._answer(reader))
                await writer.drain()
        except (OSError, TimeoutError):
            pass
        finally:
            self._visitors -= 1
            with suppress(OSError):
                writer.close()

    async def _answer(self, reader: asyncio.StreamReader) -> bytes:
        method = ""
        try:
            if self._visitors > _MOST_VISITORS:
                raise _Refused(HTTPStatus.SERVICE_UNAVAILABLE)
            method, path = await _request(reader)
            status, kind, text = await self._page(path)
        except _Refused as refusal:
            status, kind, text = refusal.status, _PLAIN, f"{refusal.status.phrase}\n"
        body = text.encode()
        head = [
            f"HTTP/1.1 {status.value} {status.phrase}",
            f"Content-Type: {kind}",
            f"Content-Length: {len(body)}",
            "Cache-Control: no-store",
            "Connection: close",
        ]
        if status is HTTPStatus.METHOD_NOT_ALLOWED:
            head.append("Allow: GET, HEAD")
        return "\r\n".join([*head, "", ""]).encode() + (b"" if method == "HEAD" else body)

    async def _page(self, path: str) -> tuple[HTTPStatus, str, str]:
        match path:
            case "/metrics":
                return HTTPStatus.OK, CONTENT_TYPE, await self._metrics()
            case "/healthz":
                problems = await self._problems()
                status = HTTPStatus.SERVICE_UNAVAILABLE if problems else HTTPStatus.OK
                return status, _PLAIN, "".join(f"{line}\n" for line in problems or ["ok"])
            case _:
                raise _Refused(HTTPStatus.NOT_FOUND)


async def _request(reader: asyncio.StreamReader) -> tuple[str, str]:
    """Method and path of a request."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        raise _Refused(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE) from None
    except asyncio.IncompleteReadError:
        raise _Refused(HTTPStatus.BAD_REQUEST) from None
    words = head.partition(b"\r\n")[0].decode("latin-1").split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        raise _Refused(HTTPStatus.BAD_REQUEST)
    if words[0] not in ("GET", "HEAD"):
        raise _Refused(HTTPStatus.METHOD_NOT_ALLOWED)
    return words[0], words[1].partition("?")[0]
