"""The upstream side of a connection, to the twin: messages sent, answers pending, and what the client sees of them.

The twin's side of a connection: what it is sent, what it has_pending, and what of its answers the client sees.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from dpsql.server.protocol import messages
from dpsql.server.protocol.messages import BadMessage, Framer, Message
from dpsql.server.relay.render import Shown
from dpsql.server.twin.system_catalog import CANCEL_NOTICE

MAX_ANSWER = 1 << 26  # bytes of one message of the twin
CHUNK = 1 << 16


class TwinGone(Exception):
    """The twin's session has ended."""


class ClientGone(Exception):
    """The client has closed the connection."""


class Upstream:
    """A session on the twin. Answers go to the client as they come, except those to hidden messages."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        client: asyncio.StreamWriter,
        on_cancel: Callable[[int], None],
        is_own: Callable[[int], bool],  # cancels another session of the same user
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._to_twin = Outbox(writer)
        self._to_client = Outbox(client)
        self._on_cancel = on_cancel
        self._is_own = is_own
        self._queue: deque[Pending] = deque()
        self._changed = asyncio.Event()
        self.status = b"I"  # transaction status of the last ReadyForQuery
        self.skipping = False  # the twin ignores everything until Sync
        self.copying_in = False  # the twin reads COPY data, and nothing else
        self.closed = False
        self.dismissed = False  # the twin has sent the client the error that ends the session
        self.pid: int | None = None
        self.secret = b""
        self.parameters: dict[str, str] = {}
        self.waiting = False  # waits for the twin while the client is not being read
        self.on_wait: Callable[[], None] | None = None
        self._abandoned = False
        self.on_idle: Callable[[], None] | None = None  # called when a transaction has ended

    # --- to the twin ---

    def send(self, message: Message, pending: Pending | None = None) -> Pending | None:
        if self.closed:
            raise TwinGone
        if pending is not None:
            self._queue.append(pending)
        self._to_twin.put(message.encode())
        return pending

    async def sent(self) -> None:
        """Wait until the twin has room for more."""
        with suppress(ConnectionError):
            await self._to_twin.drain()

    async def drain(self) -> bool:
        """Wait until no answer is pending; False if the twin will answer nothing more before Sync."""
        self.send(messages.FLUSH)
        while self._queue and not self.skipping:
            if self.copying_in:
                raise BadMessage("unexpected message during COPY from stdin")
            await self.change()
        if self.closed:
            raise TwinGone
        return not self.skipping

    async def change(self) -> None:
        """Wait for the next answer of the twin."""
        await self.sent()
        if self.closed:
            raise TwinGone
        self._changed.clear()
        self.waiting = True
        if self.on_wait is not None:
            self.on_wait()
        try:
            await self._changed.wait()
        finally:
            self.waiting = False
        if self._abandoned:
            raise ClientGone

    def abandon(self) -> None:
        """The client has disconnected: stop waiting for the twin."""
        self._abandoned = True
        self._changed.set()

    def has_pending(self, test: Callable[[Pending], bool]) -> bool:
        return any(test(pending) for pending in self._queue)

    @property
    def is_busy(self) -> bool:
        return bool(self._queue)

    def close(self) -> None:
        self.closed = True
        self._changed.set()
        self._to_client.flush()
        self._to_twin.flush()
        # Buffered messages may never be written: a twin that cannot write does not read either.
        self._writer.transport.abort()

    # --- from the twin ---

    async def listen(self) -> None:
        """Read answers until the twin closes the connection."""
        framer = Framer(MAX_ANSWER)
        try:
            while data := await self._reader.read(CHUNK):
                framer.feed(data)
                self._pass_rows(framer)
                while (message := framer.next()) is not None:
                    self._take(message)
                    self._pass_rows(framer)
                self._changed.set()
                await self._to_client.drain()
        except (ConnectionError, BadMessage):
            pass
        finally:
            self.closed = True
            self._changed.set()

    def show(self, message: Message) -> None:
        self._to_client.put(message.encode())

    def _pass_rows(self, framer: Framer) -> None:
        """Pass rows on unparsed, even if the rest of the answer is adjusted; rows of a hidden answer are collected."""
        if not (self._queue and self._queue[0].hidden) and (rows := framer.run_of(b"D")):
            self._to_client.put(rows)

    def _take(self, message: Message) -> None:
        match message.kind:
            case b"S":
                name, value = messages.read_status(message.body)
                self.parameters[name] = value
                self.show(message)
            case b"K":
                self.pid, self.secret = messages.read_key(message.body)
                self.show(message)
            case b"N":
                self._notice(message)
            case b"A" if self._is_own(int.from_bytes(message.body[:4], "big")):
                self.show(message)
            case b"A":
                pass  # of another user: NOTIFY must not carry messages between users
            case b"E":
                self._error(message)
            case b"Z":
                self._ready(message)
            case _:
                self._answer(message)

    def _notice(self, message: Message) -> None:
        found = messages.read_fields(message.body)
        if found.get(b"C") == CANCEL_NOTICE.encode():
            if (pid := found.get(b"M", b"")).isdigit():
                self._on_cancel(int(pid))
        elif not (self._queue and self._queue[0].hidden):
            self.show(message)

    def _error(self, message: Message) -> None:
        self.copying_in = False
        front = self._queue[0] if self._queue else None
        if front is not None:
            front.failed = True
        self.dismissed = messages.read_fields(message.body).get(b"V") in (b"FATAL", b"PANIC")
        message = _with_hint(message)
        for part in [message] if front is None or front.shown is None else front.shown(message):
            self.show(part)
        if front is not None and front.kind in (b"Q", b"F"):
            return  # ReadyForQuery follows
        while self._queue and self._queue[0].kind != b"S":
            self._queue.popleft().failed = True
        self.skipping = not self._queue

    def _ready(self, message: Message) -> None:
        self.status = message.body
        if self.status == b"I" and self.on_idle is not None:
            self.on_idle()
        if not self._queue:  # at the beginning of the session
            self.show(message)
            return
        front = self._queue.popleft()
        if front.on_ok is not None:
            front.on_ok()
        if not (front.hidden or front.hides_ready):
            self.show(message)

    def _answer(self, message: Message) -> None:
        if not self._queue:
            self.show(message)
            return
        front = self._queue[0]
        if message.kind in b"GW":
            self.copying_in = True
        if message.kind in b"CI" and front.on_complete:
            front.on_complete.pop(0)()
        if front.hidden:
            front.gathered.append(message)
        else:
            for part in [message] if front.shown is None else front.shown(message):
                self.show(part)
        if front.ends_with(message):
            self._queue.popleft()
            if front.on_ok is not None:
                front.on_ok()


def _with_hint(message: Message) -> Message:
    """Add a hint to "permission denied": a client's role may not read the twin's tables."""
    found = messages.read_fields(message.body)
    if found.get(b"C") != b"42501" or not found.get(b"M", b"").startswith(b"permission denied for table "):
        return message
    return messages.with_fields(
        message.kind,
        found | {b"H": b"Name the table itself in the query: dpsql does not see what a view or function reads."},
    )


# ------------------------------------------------------------
# The outgoing buffer: messages of one turn of the event loop leave in one packet.


class Outbox:
    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._waiting = bytearray()

    def put(self, data: bytes) -> None:
        """Send at the end of this turn of the event loop."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self.flush)
        self._waiting += data

    def flush(self) -> None:
        if self._waiting:
            if not self._writer.is_closing():  # else the peer is gone
                self._writer.write(bytes(self._waiting))
            self._waiting.clear()

    async def drain(self) -> None:
        """Send now, and wait until the peer can take more."""
        self.flush()
        await self._writer.drain()


# ------------------------------------------------------------
# Pending answers: one entry for each message that the twin was sent, in the order in which it answers.
#
# State changes on the answer, not on the request: a message takes effect here when the twin has confirmed it.

# The message types that end the answer to each message.
ENDS = {
    b"P": b"1",
    b"B": b"2",
    b"C": b"3",
    b"D": b"Tn",
    b"E": b"CsI",
    b"S": b"Z",
    b"Q": b"Z",
    b"F": b"Z",
}


@dataclass(slots=True)
class Pending:
    """The pending answer to one message."""

    kind: bytes  # the type of the message
    hidden: bool = False  # sent by the relay: the client does not see the answer, except for errors
    statement: bytes | None = None  # the statement that the message prepares
    portal: bytes | None = None  # the portal that the message binds or describes
    on_ok: Callable[[], object] | None = None
    on_complete: list[Callable[[], None]] = field(default_factory=list)  # one for each statement of a Query
    gathered: list[Message] = field(default_factory=list)  # of a hidden answer
    shown: Shown | None = None  # adjusts the messages of the answer for the client
    hides_ready: bool = False  # of a Query: more statements of the same string follow
    failed: bool = False

    def ends_with(self, message: Message) -> bool:
        return message.kind in ENDS[self.kind]
