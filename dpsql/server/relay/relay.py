"""One client connection: its messages go to the twin, and queries of declared tables to the dataset.

A query is charged and run only at the first Execute of a portal or in a Query, and only when the twin has answered
everything and no error is pending. The noisy rows go to the twin as literals; the twin sends them in the formats that
the client asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, replace
from typing import Protocol

from dpsql.answering.dataset import Dataset
from dpsql.effort import Cancellation
from dpsql.errors import Error, NotSupported, SqlSyntaxError, UnknownParameter
from dpsql.server.protocol import messages
from dpsql.server.protocol.encodings import ClientEncoding
from dpsql.server.protocol.messages import Bind, Execute, Framer, Message, Named, Parse
from dpsql.server.relay import classify as prepared
from dpsql.server.relay import execute as asking
from dpsql.server.relay import hidden, render
from dpsql.server.relay.classify import Kind, Statement, classify
from dpsql.server.relay.execute import Question, Reply
from dpsql.server.relay.hidden import Circumstances, Described, HiddenMessages, Skip
from dpsql.server.relay.render import Shown, described_as, refusing, renaming, replying
from dpsql.server.relay.upstream import CHUNK, ClientGone, Pending, TwinGone, Upstream
from dpsql.sql.tokens import Sort

MAX_MESSAGE = 1 << 24  # bytes of one message of a client
MAX_PARTS = 200  # statements of one string in which some query is the dataset's
HEARTBEAT = 0.1  # seconds: the twin notices statement_timeout only when a message comes
_NOWHERE = b"_dpsql_nowhere"  # a statement whose portal is never bound
_ACCOUNT = ("budget", "history")  # views that show what the ledger holds


class Host(Protocol):
    """What a connection needs of the server."""

    @property
    def declared(self) -> frozenset[str]:
        """The last parts of the names of all declared tables."""
        ...

    @property
    def type_names(self) -> dict[tuple[int, int], str]:
        """The cache of type names, by OID and modifier."""
        ...

    async def work(self, job: Callable[[Dataset], Reply], cancellation: Cancellation) -> Reply:
        """Run a job in a worker thread; raises Cancelled if it was cancelled before it began."""
        ...

    async def refresh_account(self, user: str) -> None:
        """Refresh the views of the user's account from the ledger; raises Error if it does not answer."""
        ...

    async def is_grammatical(self, text: str, *, standard_strings: bool) -> bool:
        """Whether PostgreSQL's grammar accepts a string of several statements."""
        ...

    def cancel(self, user: str, pid: int) -> None:
        """Cancel the engine's work for another session of the same user."""
        ...


@dataclass(slots=True)
class _Portal:
    """A portal whose statement the twin cannot answer alone."""

    statement: Statement
    bind: Bind
    described: Described
    answered: bool = False


class Relay:
    """The client's side: reads its messages one by one, and handles each to its end."""

    def __init__(self, reader: asyncio.StreamReader, upstream: Upstream, host: Host, user: str) -> None:
        self._reader = reader
        self._framer = Framer(MAX_MESSAGE)
        self._upstream = upstream
        self._host = host
        self._user = user
        self._hidden = HiddenMessages(upstream, host.type_names)
        self._encoding = ClientEncoding(upstream.parameters)
        self._statements: dict[bytes, Statement] = {}  # only statements that the twin cannot answer alone
        self._portals: dict[bytes, _Portal] = {}
        self._has_unnamed = False  # the client has bound the unnamed portal since its last Query
        self._reading: asyncio.Task[bytes] | None = None
        self._working: Cancellation | None = None
        upstream.on_idle = self._portals.clear
        upstream.on_wait = self._read_meanwhile

    # --- the client ---

    async def run(self) -> None:
        """Serve the client until it leaves; raises BadMessage, ClientGone or TwinGone otherwise."""
        try:
            while (message := await self._next()) is not None and message.kind != b"X":
                with suppress(Skip):
                    await self._handle(message)
                await self._upstream.sent()
        finally:
            if self._reading is not None:
                self._reading.cancel()
                await asyncio.wait([self._reading])

    def cancel(self) -> bool:
        """Cancel the engine's work for this client; False if there is none."""
        if self._working is None:
            return False
        self._working.cancel()
        return True

    @property
    def is_idle(self) -> bool:
        return self._working is None and not self._upstream.is_busy

    async def _next(self) -> Message | None:
        while (message := self._framer.next()) is None:
            data = await self._read()
            self._reading = None
            if not data:
                return None
            self._framer.feed(data)
        return message

    def _read(self) -> asyncio.Task[bytes]:
        """The read under way. It is kept while a query runs, so that a client that disconnects is noticed."""
        if self._reading is None:
            self._reading = asyncio.create_task(self._reader.read(CHUNK))
            self._reading.add_done_callback(lambda _: self._read_meanwhile())
        return self._reading

    def _read_meanwhile(self) -> None:
        """Keep reading while waiting for the twin, so that a client that disconnects is noticed."""
        if not self._upstream.waiting:
            return
        try:
            self._take_early()
            if len(self._framer) < MAX_MESSAGE:
                self._read()
        except ClientGone:
            self._upstream.abandon()

    async def _handle(self, message: Message) -> None:
        if self._upstream.copying_in:
            await self._copy_in(message)
            return
        if self._upstream.skipping and message.kind not in b"Sdcf":
            return
        match message.kind:
            case b"Q":
                await self._query(messages.read_query(message.body))
            case b"P":
                self._parse(message)
            case b"B":
                await self._bind(message)
            case b"D":
                self._describe(message)
            case b"E":
                await self._execute(message)
            case b"C":
                self._close(message)
            case b"S":
                self._upstream.skipping = False
                self._upstream.send(message, Pending(b"S"))
            case b"F":
                self._upstream.send(message, Pending(b"F"))
            case _:  # Flush and COPY data; the twin ends the session if it knows no such message
                self._upstream.send(message)

    async def _copy_in(self, message: Message) -> None:
        """The twin ignores Flush and Sync while it reads data, so no answer to them is pending."""
        if message.kind not in b"SH":
            self._upstream.send(message)
        if message.kind in b"cf":
            self._upstream.copying_in = False
            await self._copying_or_done()

    async def _copying_or_done(self) -> None:
        """Wait until the twin reads COPY data or has answered: this decides what the client's next messages mean."""
        self._upstream.send(messages.FLUSH)
        while self._upstream.is_busy and not self._upstream.copying_in:
            await self._upstream.change()

    # --- extended query ---

    def _parse(self, message: Message) -> None:
        parse = Parse.read(message.body)
        statement = self._only_statement(parse.sql)
        self._upstream.send(
            message, Pending(b"P", statement=parse.name, on_ok=lambda: self._keep(parse.name, statement))
        )

    def _keep(self, name: bytes, statement: Statement | None) -> None:
        if statement is None or (statement.kind is Kind.PASS and not _needs_care(statement)):
            self._statements.pop(name, None)
        else:
            self._statements[name] = statement

    async def _bind(self, message: Message) -> None:
        bind = Bind.read(message.body)
        name = bind.statement
        if name in self._statements or self._upstream.has_pending(
            lambda pending: pending.statement == name or bool(pending.on_complete)
        ):
            await self._hidden.drained()
        statement = self._statements.get(name)
        if statement is None:
            self._upstream.send(
                message, Pending(b"B", portal=bind.portal, on_ok=lambda: self._bound(bind.portal, None))
            )
            return
        # The twin says whether the statement still exists, and its parameters and columns.
        described = await self._hidden.described(name)
        portal = _Portal(statement, bind, described)
        pending = Pending(b"B", portal=bind.portal, on_ok=lambda: self._bound(bind.portal, portal))
        if statement.kind not in (Kind.QUERY, Kind.REFUSED) or described.columns is None:
            try:  # at Bind, not at Execute: the twin's snapshot is that of Bind
                await self._refresh_account(statement)
            except Error as error:
                self._raise_in_portal(error)
                return
            self._upstream.send(message, pending)
            return
        # The client's role may not read the tables, so the portal is bound to a query of the same shape.
        pending.shown = renaming(hidden.NAME, name)
        names = await self._hidden.names_of(described.columns)
        self._hidden.prepare(render.stub(described.columns, names), described.types)
        self._upstream.send(replace(bind, statement=hidden.NAME).message(), pending)
        self._hidden.forget()

    def _bound(self, name: bytes, portal: _Portal | None) -> None:
        self._has_unnamed = self._has_unnamed or not name
        if portal is None:
            self._portals.pop(name, None)
        else:
            self._portals[name] = portal

    def _describe(self, message: Message) -> None:
        named = Named.read(message.body)
        pending = Pending(b"D")
        if named.sort == b"P":
            pending.shown = lambda answer: [self._as_original(named.name, answer)]
        self._upstream.send(message, pending)

    def _as_original(self, name: bytes, answer: Message) -> Message:
        """The description of a portal, as if the client's own statement were bound to it."""
        portal = self._portals.get(name)
        if answer.kind != b"T" or portal is None or portal.described.columns is None:
            return answer
        return described_as(portal.described.columns, answer)

    def _close(self, message: Message) -> None:
        named = Named.read(message.body)
        books: dict[bytes, Statement] | dict[bytes, _Portal]
        books = self._statements if named.sort == b"S" else self._portals
        self._upstream.send(message, Pending(b"C", on_ok=lambda: books.pop(named.name, None)))

    async def _execute(self, message: Message) -> None:
        name = Execute.read(message.body).portal
        if (
            not name
            and not self._has_unnamed
            and not self._upstream.has_pending(lambda pending: pending.portal == name)
        ):
            # A Query that failed in a transaction leaves an unnamed portal behind; PostgreSQL 16 may crash on it.
            self._upstream.send(Execute(_NOWHERE, 0).message(), Pending(b"E", shown=renaming(_NOWHERE, name)))
            return
        if name in self._portals or self._upstream.has_pending(lambda pending: pending.portal == name):
            await self._hidden.drained()
        portal = self._portals.get(name)
        if portal is None or portal.answered or not self._is_ours(portal.statement):
            await self._execute_on_twin(message, portal)
            return
        try:
            reply = await self._fill(name, portal)
        except Error as error:
            self._raise_in_portal(error)
            return
        shown = replying(None, self._notice(reply), is_plan=portal.statement.kind is Kind.EXPLAIN)
        self._upstream.send(message, Pending(b"E", shown=shown, on_complete=[self._effect(portal.statement)]))

    async def _fill(self, name: bytes, portal: _Portal) -> Reply:
        """Answer the query, and bind the portal to the rows."""
        # The twin says whether the portal still exists.
        self._hidden.hide(messages.describe(b"P", name))
        asked, gives_rows = portal.statement, portal.described.columns is not None
        if asked.kind is not Kind.QUERY or asked.refusal is not None or not gives_rows:
            await self._hidden.drained()  # for a plain query, its circumstances come in the same round trip
        reply = await self._reply(portal.statement, portal.described, portal.bind.parameters)
        portal.answered = True
        if name:
            self._hidden.hide(messages.close(b"P", name))
        self._hidden.prepare(reply.sql)
        self._hidden.hide(Bind(name, hidden.NAME, messages.NO_PARAMETERS, portal.bind.results).message())
        self._hidden.forget()
        return reply

    def _raise_in_portal(self, error: Error) -> None:
        self._hidden.prepare(self._raising(error))
        self._hidden.bind()
        self._upstream.send(Execute(hidden.NAME, 0).message(), Pending(b"E", shown=refusing(error)))

    async def _execute_on_twin(self, message: Message, portal: _Portal | None) -> None:
        pending = Pending(b"E")
        if portal is not None and not portal.answered:
            pending.on_complete = [self._effect(portal.statement)]
            try:
                pending.shown = await self._fill_named(portal.statement)
            except Error as error:
                self._raise_in_portal(error)
                return
        self._upstream.send(message, pending)
        if portal is not None and portal.statement.copies_in:
            await self._copying_or_done()

    def _unfilled(self, statement: Statement) -> list[tuple[bytes, _Portal]]:
        """The portals that FETCH or MOVE would read first."""
        if not statement.reads_portal:
            return []
        names = {self._encoding.encoded(word.text) for word in statement.words if word.is_name}
        return [
            (name, portal)
            for name, portal in self._portals.items()
            if name in names and not portal.answered and portal.statement.kind in (Kind.QUERY, Kind.REFUSED)
        ]

    async def _fill_named(self, statement: Statement) -> Shown | None:
        """Fill the portals that the statement reads; returns how its answer is shown."""
        shown = None
        for name, portal in self._unfilled(statement):
            try:
                reply = await self._fill(name, portal)
            except Error as error:
                refusal = copy(error)
                refusal.position = None  # its position is in another text
                raise refusal from None
            shown = replying(None, self._notice(reply), is_plan=False)
        return shown

    # --- simple query ---

    async def _query(self, sql: bytes) -> None:
        if self._upstream.is_busy:
            # Pending messages may change the settings under which this text is read.
            await self._hidden.drained()
        self._has_unnamed = False
        text = self._encoding.decoded(sql)
        parts = () if text is None else self._classify(text)
        if not any(self._is_ours(part) or self._unfilled(part) or _is_prepared_in(parts, part) for part in parts):
            try:
                await self._refresh_account(*parts)
            except Error as error:
                self._upstream.send(messages.query(self._raising(error)), Pending(b"Q", shown=refusing(error)))
                return
            self._upstream.send(messages.query(sql), Pending(b"Q", on_complete=[self._effect(part) for part in parts]))
            if any(part.copies_in for part in parts):
                await self._copying_or_done()
            return
        self._hidden.hide(messages.close(b"S", b""))  # a Query drops the unnamed statement
        if len(parts) == 1:
            await self._part(parts[0], last=True)
        elif text is None or not await self._is_grammatical(text):
            self._upstream.send(messages.query(sql), Pending(b"Q"))  # the twin reports the error
        elif (refusal := _as_one_string(parts)) is not None:
            self._upstream.send(messages.query(self._raising(refusal)), Pending(b"Q", shown=refusing(refusal)))
        else:
            await self._parts(parts)

    async def _parts(self, parts: Sequence[Statement]) -> None:
        """Several statements, one after the other; they are one transaction unless they say otherwise."""
        together = self._upstream.status == b"I" and not any(part.controls_transaction for part in parts)
        if together:
            await self._hidden_query(b"BEGIN")
        done = True
        for part in parts:
            done = done and await self._part(part, last=False)
        if together:
            await self._hidden_query(b"COMMIT" if done else b"ROLLBACK")
        self._upstream.show(Message(b"Z", self._upstream.status))

    async def _hidden_query(self, sql: bytes) -> None:
        self._upstream.send(messages.query(sql), Pending(b"Q", hidden=True))
        await self._upstream.drain()

    async def _part(self, part: Statement, *, last: bool) -> bool:
        """One statement of a simple query; whether it succeeded is known only if it is not the last."""
        pending = Pending(b"Q", hides_ready=not last, on_complete=[self._effect(part)])
        try:
            await self._refresh_account(part)
            if self._is_ours(part):
                described, reply = await self._simple_reply(part)
                is_plan = part.kind is Kind.EXPLAIN
                sql, pending.shown = reply.sql, replying(described.columns, self._notice(reply), is_plan=is_plan)
            else:
                sql, pending.shown = self._encoding.encoded(part.text), await self._fill_named(part)
        except Error as error:
            sql, pending.shown = self._raising(error), refusing(error)
        except Skip:
            # The error was sent; Sync ends the implicit transaction.
            self._upstream.skipping = False
            self._upstream.send(messages.SYNC, Pending(b"S", hidden=not last))
            await self._upstream.drain()
            return False
        self._upstream.send(messages.query(sql), pending)
        if not last:
            await self._upstream.drain()
        return not pending.failed

    async def _refresh_account(self, *parts: Statement) -> None:
        if any(part.names(*_ACCOUNT) for part in parts):
            await self._host.refresh_account(self._user)

    async def _simple_reply(self, part: Statement) -> tuple[Described, Reply]:
        if (parameter := next((word for word in part.words if word.sort is Sort.PARAMETER), None)) is not None:
            raise UnknownParameter(f"there is no parameter ${parameter.text}", position=parameter.start + 1)
        text = self._encoding.encoded(part.text)
        if part.kind in (Kind.QUERY, Kind.EXPLAIN) and part.refusal is None:
            described, around = await self._hidden.described_with_circumstances(text)
            return described, await self._reply(part, described, messages.NO_PARAMETERS, around)
        described = await self._hidden.described_text(text)
        return described, await self._reply(part, described, messages.NO_PARAMETERS)

    # --- the dataset ---

    async def _reply(
        self, statement: Statement, described: Described, parameters: bytes, around: Circumstances | None = None
    ) -> Reply:
        """Answer a query. Nothing is charged if this raises before the job starts.

        `around`: the circumstances, if the twin was asked for them already.
        """
        asked = statement
        if statement.kind is Kind.EXECUTE:
            asked, types, parameters = await self._prepared_in_sql(statement, described.types, parameters)
            described = replace(described, types=types)
        if asked.refusal is not None:
            await self._refused(asked, asked.refusal)
        if asked.kind is Kind.WRAPPED:
            described = await self._hidden.described_text(self._encoding.encoded(asked.query), described.types)
        if described.columns is None:
            raise NotSupported("this statement returns no rows")
        names = tuple(await self._hidden.names_of(described.columns))
        if asked.kind is Kind.WRAPPED:
            stub = render.stub(described.columns, names)
            await self._try_wrapper(asked, stub)
            if asked.wants_no_rows:
                return Reply(self._wrapped(asked, stub))
        if around is None:
            around = await self._hidden.circumstances(described.types, parameters)
        values = asking.decoded(around.values, described.types)
        question = Question(asked.question, values, around.settings, described.columns, names, around.zone)
        cancellation = Cancellation()

        def job(dataset: Dataset) -> Reply:
            if asked.kind is Kind.EXPLAIN:
                return asking.explain(dataset, self._user, question, cancellation, as_json=asked.json)
            return asking.answer(dataset, self._user, question, cancellation)

        try:
            reply = await self._worked(job, cancellation)
        except Error as error:
            # Keep the position only if the query is part of the client's own text.
            if error.position is not None:
                is_own_text = asked is statement and not asked.rewritten
                error.position = error.position + asked.start if is_own_text else None
            raise
        if asked.kind is Kind.WRAPPED:
            reply = replace(reply, sql=self._wrapped(asked, reply.sql))
        return reply if around.wants_notices else replace(reply, notice=None)

    async def _refused(self, statement: Statement, refusal: Error) -> None:
        text = statement.text.strip()
        await self._worked(lambda dataset: asking.refuse(dataset, self._user, text, refusal), Cancellation())

    async def _worked(self, job: Callable[[Dataset], Reply], cancellation: Cancellation) -> Reply:
        """Wait for a job, and meanwhile for whatever may cancel it."""
        self._hidden.start_clock()
        self._working = cancellation
        task = asyncio.ensure_future(self._host.work(job, cancellation))
        try:
            while not task.done():
                watched: set[asyncio.Future[bytes] | asyncio.Future[Reply]] = {task}
                if len(self._framer) < MAX_MESSAGE:
                    watched.add(self._read())
                await asyncio.wait(watched, timeout=HEARTBEAT, return_when=asyncio.FIRST_COMPLETED)
                self._take_early()
                if self._upstream.skipping:  # statement_timeout, enforced by the twin
                    raise Skip
                self._upstream.send(messages.FLUSH)
            return task.result()
        except (Skip, ClientGone, TwinGone, asyncio.CancelledError):
            cancellation.cancel()
            task.cancel()  # the thread ends by itself; no one waits for it
            raise
        except Error:
            raise
        except Exception as error:
            raise asking.defect(error) from None
        finally:
            self._working = None

    def _take_early(self) -> None:
        """Buffer what the client sends while a query runs; an empty read means that it has disconnected."""
        if self._reading is not None and self._reading.done():
            try:
                data = self._reading.result()
            except ConnectionError:
                data = b""
            if not data:
                raise ClientGone
            self._framer.feed(data)
            self._reading = None

    # --- queries inside other statements ---

    async def _try_wrapper(self, statement: Statement, stub: bytes) -> None:
        """Run a cursor or COPY with no rows first, so that the twin refuses a bad form before anything is charged."""
        if statement.first_word in ("declare", "copy"):
            attempts = [self._wrapped(statement, stub)]
            if statement.first_word == "declare":
                name = statement.words[1]
                attempts.append(self._encoding.encoded(f"CLOSE {statement.source[name.start : name.end]}"))
            await self._hidden.attempt(attempts)

    def _wrapped(self, statement: Statement, query: bytes) -> bytes:
        return self._encoding.encoded(statement.before) + query + self._encoding.encoded(statement.behind)

    async def _prepared_in_sql(
        self, statement: Statement, types: tuple[int, ...], parameters: bytes
    ) -> tuple[Statement, tuple[int, ...], bytes]:
        """What EXECUTE runs, the types of its parameters, and its arguments in the form of a Bind."""
        target = self._target(statement)
        assert target is not None
        name, found = target
        wanted = (await self._hidden.described(name)).types
        arguments = prepared.arguments(statement)
        if len(arguments) != len(wanted):
            raise SqlSyntaxError(
                f'wrong number of parameters for prepared statement "{prepared.name_of(statement)}"',
                detail=f"Expected {len(wanted)} parameters but got {len(arguments)}.",
            )
        names = await self._hidden.type_names([(number, -1) for number in wanted])
        values: list[bytes | None] = []
        for argument, type_name in zip(arguments, names, strict=True):
            # One by one, each at its position in the client's text, so that errors point to it.
            sql = f"{'SELECT':{argument.start - 1}}({argument.text})::{type_name}::pg_catalog.text"
            values += await self._hidden.row(self._encoding.encoded(sql), types, parameters)
        return found, wanted, messages.text_parameters(values)

    def _target(self, statement: Statement) -> tuple[bytes, Statement] | None:
        """The statement that EXECUTE runs, if it is the dataset's."""
        name = self._encoding.encoded(prepared.name_of(statement) or "")
        found = self._statements.get(name)
        return (name, found) if found is not None and found.kind in (Kind.QUERY, Kind.REFUSED) else None

    def _effect(self, statement: Statement) -> Callable[[], None]:
        """Update the relay's state when the twin has completed a statement."""

        def apply() -> None:
            last = statement.words[-1]
            if statement.first_word == "prepare":
                inner = prepared.inside_prepare(statement)
                name = self._encoding.encoded(prepared.name_of(statement) or "")
                self._keep(name, None if inner is None else self._only_statement(self._encoding.encoded(inner)))
            elif statement.first_word == "deallocate" and not last.is_word("all"):
                self._statements.pop(self._encoding.encoded(last.text), None)
            elif statement.first_word in ("deallocate", "discard") and last.is_word("all"):
                self._statements.clear()
            elif statement.first_word == "close" and last.is_word("all"):
                self._portals.clear()
            elif statement.first_word in ("close", "declare"):
                # The name is now free or a cursor's, whichever portal had it before.
                self._portals.pop(self._encoding.encoded(statement.words[1].text), None)

        return apply

    # --- helpers ---

    def _only_statement(self, sql: bytes) -> Statement | None:
        text = self._encoding.decoded(sql)
        parts = () if text is None else self._classify(text)
        return parts[0] if len(parts) == 1 else None  # the twin refuses several statements here

    def _classify(self, text: str) -> tuple[Statement, ...]:
        return classify(text, self._host.declared, standard_strings=self._encoding.standard_strings)

    async def _is_grammatical(self, text: str) -> bool:
        return await self._host.is_grammatical(text, standard_strings=self._encoding.standard_strings)

    def _is_ours(self, statement: Statement) -> bool:
        if statement.kind is Kind.EXECUTE:
            return self._target(statement) is not None
        return statement.kind is not Kind.PASS

    def _raising(self, error: Error) -> bytes:
        """A statement that raises the error in the twin, so that transaction and pipeline behave as in PostgreSQL."""
        parts = (error.sqlstate, error.message, error.detail, error.hint)
        literals = [render.literal(None if part is None else self._encoding.fitted(part)) for part in parts]
        return f"CALL dpsql.refuse({', '.join(literals)})".encode("ascii")

    def _notice(self, reply: Reply) -> Message | None:
        if reply.notice is None:
            return None
        found = {b"S": "NOTICE", b"V": "NOTICE", b"C": "00000", b"M": self._encoding.fitted(reply.notice)}
        if reply.cautions:
            found[b"D"] = self._encoding.fitted("\n".join(reply.cautions))
        return messages.with_fields(b"N", {letter: self._encoding.encoded(text) for letter, text in found.items()})


def _needs_care(statement: Statement) -> bool:
    """Whether a statement for the twin changes or uses state that the relay keeps."""
    return (
        statement.copies_in
        or statement.reads_portal
        or statement.first_word in ("prepare", "deallocate", "discard")
        or statement.names(*_ACCOUNT)
    )


def _is_prepared_in(parts: Sequence[Statement], statement: Statement) -> bool:
    """Whether EXECUTE runs what the same string prepares."""
    return statement.kind is Kind.EXECUTE and any(
        part.first_word == "prepare" and prepared.name_of(part) == prepared.name_of(statement) for part in parts
    )


def _as_one_string(parts: Sequence[Statement]) -> Error | None:
    """The error if these statements cannot be sent in one string."""
    if len(parts) > MAX_PARTS:
        return NotSupported(f"more than {MAX_PARTS} statements in one string with a query of declared tables")
    if any(part.copies_in for part in parts):
        return NotSupported("COPY FROM STDIN cannot be sent in one string with a query of declared tables")
    return None
