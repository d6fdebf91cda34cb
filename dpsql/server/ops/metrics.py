"""Metrics for Prometheus. Counters are counted from log events, so that metrics and log always agree."""

from __future__ import annotations

import asyncio
import logging
import socket
from bisect import bisect_left
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus

from dpsql.server.ops.logs import event_of

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)  # seconds

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class _Counted:
    """A counter: the log event that it counts, and the facts that become labels. User names never do."""

    metric: str
    help: str
    facts: tuple[str, ...] = ()


_COUNTED = {
    "login": _Counted("dpsql_logins_total", "Clients that logged in."),
    "login_refused": _Counted("dpsql_logins_refused_total", "Clients whose login was refused.", ("sqlstate",)),
    "statement": _Counted("dpsql_statements_total", "Statements that name a declared table.", ("outcome",)),
    "reload": _Counted("dpsql_reloads_total", "Reloads of the policy file.", ("outcome",)),
    "twin_lost": _Counted("dpsql_twin_lost_total", "Sessions that ended because the twin was lost."),
    "worker_lost": _Counted("dpsql_workers_lost_total", "Worker processes that died and were started again."),
    "engine_failed": _Counted("dpsql_engine_failures_total", "Failures of the engine."),
    "circuit_opened": _Counted("dpsql_circuits_opened_total", "Times that a circuit breaker opened."),
    "message": _Counted("dpsql_log_messages_total", "Log lines that are not one of dpsql's events.", ("logger",)),
}
# Exported from the start, so that the first refusal is an increase from zero.
_OUTCOMES = ("answered", "replayed", "explained", "refused", "cancelled", "failed")


@dataclass(frozen=True, slots=True)
class Gauge:
    """A value at this moment."""

    metric: str
    help: str
    value: float


@dataclass(slots=True)
class Counts:
    """Counters of one process, or of several added up."""

    events: Counter[tuple[str, Labels]] = field(default_factory=Counter)
    buckets: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    seconds: float = 0.0

    def __add__(self, other: Counts) -> Counts:
        events = Counter(self.events)
        events.update(other.events)  # the operator + would drop what is zero
        buckets = [a + b for a, b in zip(self.buckets, other.buckets, strict=True)]
        return Counts(events, buckets, self.seconds + other.seconds)


class Metrics(logging.Handler):
    """A log handler that counts events."""

    def __init__(self) -> None:
        super().__init__()
        self._counts = Counts()
        for event, counted in _COUNTED.items():
            if not counted.facts:
                self._counts.events[event, ()] = 0
        for outcome in _OUTCOMES:
            self._counts.events["statement", (("outcome", outcome),)] = 0

    def emit(self, record: logging.LogRecord) -> None:
        event, facts = event_of(record)
        counted = _COUNTED.get(event)
        if counted is None:
            return
        self._counts.events[event, tuple((name, str(facts.get(name, ""))) for name in counted.facts)] += 1
        if event == "statement" and facts.get("outcome") in ("answered", "replayed"):
            seconds = float(facts["seconds"] or 0)
            self._counts.buckets[bisect_left(BUCKETS, seconds)] += 1
            self._counts.seconds += seconds

    def counts(self) -> Counts:
        """A copy of what was counted so far."""
        self.acquire()
        try:
            return self._counts + Counts()
        finally:
            self.release()


def page(counts: Counts, gauges: Iterable[Gauge]) -> str:
    """All metrics in Prometheus' text format."""
    lines = [*_counters(counts), *_histogram(counts)]
    for gauge in gauges:
        lines += _head(gauge.metric, "gauge", gauge.help)
        lines.append(f"{gauge.metric} {gauge.value:.17g}")
    return "\n".join(lines) + "\n"


def _counters(counts: Counts) -> Iterator[str]:
    for event, counted in _COUNTED.items():
        yield from _head(counted.metric, "counter", counted.help)
        for (name, labels), count in sorted(counts.events.items()):
            if name == event:
                yield f"{counted.metric}{_labelled(dict(labels))} {count}"


def _histogram(counts: Counts) -> Iterator[str]:
    metric, total = "dpsql_answer_seconds", 0
    yield from _head(metric, "histogram", "Time until an answer is ready to be sent.")
    for bound, count in zip((*map(str, BUCKETS), "+Inf"), counts.buckets, strict=True):
        total += count
        yield f"{metric}_bucket{_labelled({'le': bound})} {total}"
    yield f"{metric}_sum {counts.seconds:.17g}"
    yield f"{metric}_count {total}"


def _head(metric: str, kind: str, text: str) -> list[str]:
    return [f"# HELP {metric} {text}", f"# TYPE {metric} {kind}"]


def _labelled(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    escaped = (
        (name, value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")) for name, value in labels.items()
    )
    return "{" + ",".join(f'{name}="{value}"' for name, value in escaped) + "}"


# ------------------------------------------------------------
# /metrics and /healthz: a minimal HTTP server for monitoring, on this machine only.

HOST = "127.0.0.1"
_LONGEST_REQUEST = 8_192  # bytes of a request's head; a body is not read
_MOST_VISITORS = 16
_SECONDS = 10.0  # for a whole request
_PLAIN = "text/plain; charset=utf-8"


class _Refused(Exception):
    def __init__(self, status: HTTPStatus) -> None:
        super().__init__(status.phrase)
        self.status = status


class StatusPages:
    """`metrics` returns the metrics page, `problems` why the server cannot answer; empty if it is healthy."""

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
