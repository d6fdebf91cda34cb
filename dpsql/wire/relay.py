"""One client connection: its messages go on to the twin, and queries of declared tables to the engine.

The engine runs, and charges, only at the first Execute of a portal or in a Query, only when the twin owes nothing and
no error is pending. Its noisy rows go to the twin as literals; the twin sends them in the form the client asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol

from dpsql.engine import Engine
from dpsql.errors import Error, NotSupported, SqlSyntaxError, UnknownParameter
from dpsql.generate.query import Cancellation
from dpsql.wire import asking, messages, render
from dpsql.wire.asking import Question, Reply
from dpsql.wire.classify import Kind, Statement, classify
from dpsql.wire.encodings import codec
from dpsql.wire.lexer import Sort, Token
from dpsql.wire.link import CHUNK, Link, TwinGone, without_insides
from dpsql.wire.messages import Bind, Column, Execute, Framer, Message, Named, Parse
from dpsql.wire.owed import Owed

MAX_MESSAGE = 1 << 24  # bytes of one message of a client
HEARTBEAT = 0.1  # seconds: the twin notices statement_timeout only when a message comes
HIDDEN = b"_dpsql"  # our own statements and portals on the twin
_PLAIN = str.maketrans({"…": "...", "±": "+-", "×": "x", "≥": ">=", "≤": "<="})
_ACCOUNT = ("budget", "history")  # views that show what the ledger holds


class Host(Protocol):
    """What a connection needs of the server around it."""

    @property
    def declared(self) -> frozenset[str]:
        """The last parts of the names of all declared tables."""
        ...

    async def work(self, job: Callable[[Engine], Reply]) -> Reply:
        """Run a job with the engine, in a worker thread."""
        ...

    async def refresh_account(self, user: str) -> None:
        """Let the views of the user's account show what the ledger holds now."""
        ...

    async def is_grammatical(self, text: str) -> bool:
        """Whether PostgreSQL's grammar accepts a string of several statements."""
        ...

    def cancel(self, user: str, pid: int) -> None:
        """Cancel what the engine does for another session of the same user."""
        ...

    @property
    def type_names(self) -> dict[tuple[int, int], str]:
        """Names of types by number and modifier, as far as they are known."""
        ...


class ClientGone(Exception):
    """The client has closed the connection."""


class _Skip(Exception):
    """The twin will ignore everything until Sync: the rest of what was begun is dropped."""


@dataclass(slots=True)
class _Portal:
    """A portal whose statement is not the twin's alone."""

    statement: Statement
    bind: Bind
    types: tuple[int, ...]
    columns: tuple[Column, ...] | None
    answered: bool = False


class Relay:
    """The client's side: reads its messages, one after the other, and sees each through."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, link: Link, host: Host, user: str
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._framer = Framer(MAX_MESSAGE)
        self._link = link
        self._host = host
        self._user = user
        self._statements: dict[bytes, Statement] = {}  # those that are not the twin's alone
        self._portals: dict[bytes, _Portal] = {}
        self._reading: asyncio.Task[bytes] | None = None
        self._working: Cancellation | None = None
        link.on_idle = self._portals.clear

    # --- the client ---

    async def run(self) -> None:
        """Serve the client until it leaves; raises BadMessage, ClientGone or TwinGone otherwise."""
        while (message := await self._next()) is not None and message.kind != b"X":
            with suppress(_Skip):
                await self._handle(message)
            await self._link.sent()

    def cancel(self) -> bool:
        """Stop what the engine does for this client; False if it does nothing."""
        if self._working is None:
            return False
        self._working.cancel()
        return True

    @property
    def is_idle(self) -> bool:
        return self._working is None and not self._link.is_busy

    async def _next(self) -> Message | None:
        while (message := self._framer.next()) is None:
            data = await self._read()
            self._reading = None
            if not data:
                return None
            self._framer.feed(data)
        return message

    def _read(self) -> asyncio.Task[bytes]:
        """The read that is under way. It is kept while the engine works, so that a client that leaves is noticed."""
        if self._reading is None:
            self._reading = asyncio.create_task(self._reader.read(CHUNK))
        return self._reading

    async def _handle(self, message: Message) -> None:
        if self._link.copying_in:
            self._copy_in(message)
            return
        if self._link.skipping and message.kind not in b"Sdcf":
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
                self._link.skipping = False
                self._link.send(message, Owed(b"S"))
            case b"F":
                self._link.send(message, Owed(b"F"))
            case _:  # Flush and COPY data; the twin ends the session if it knows no such message
                self._link.send(message)

    def _copy_in(self, message: Message) -> None:
        """The twin ignores Flush and Sync while it reads data, so they must not be owed an answer."""
        if message.kind in b"cf":
            self._link.copying_in = False
        if message.kind not in b"SH":
            self._link.send(message)

    # --- extended query ---

    def _parse(self, message: Message) -> None:
        parse = Parse.read(message.body)
        statement = self._classified(parse.sql)
        self._link.send(message, Owed(b"P", statement=parse.name, on_ok=lambda: self._prepared(parse.name, statement)))

    def _prepared(self, name: bytes, statement: Statement | None) -> None:
        if statement is None or (statement.kind is Kind.PASS and not self._needs_care(statement)):
            self._statements.pop(name, None)
        else:
            self._statements[name] = statement

    def _needs_care(self, statement: Statement) -> bool:
        """Whether a statement of the twin's own changes or uses something that is kept here."""
        return (
            statement.copies_in
            or statement.first_word in ("prepare", "deallocate", "discard")
            or statement.names(*_ACCOUNT)
        )

    async def _bind(self, message: Message) -> None:
        bind = Bind.read(message.body)
        name = bind.statement
        if not (name in self._statements or self._link.owes(lambda owed: owed.statement == name)):
            self._forget_portal_when_bound(message, bind)
            return
        await self._drained()
        statement = self._statements.get(name)
        if statement is None:
            self._forget_portal_when_bound(message, bind)
            return
        # The twin says whether the statement still is there, and what it takes and gives.
        types, columns = await self._described(b"S", name)
        portal = _Portal(statement, bind, types, columns)
        owed = Owed(b"B", portal=bind.portal, on_ok=lambda: self._portals.__setitem__(bind.portal, portal))
        if statement.kind not in (Kind.QUERY, Kind.REFUSED) or columns is None:
            self._link.send(message, owed)
            return
        # The client's role may not read the tables, so the portal is bound to a query of the same shape.
        owed.shown = _with_name(name)
        self._hide(messages.close(b"S", HIDDEN))
        self._hide(Parse(HIDDEN, render.stub(columns, await self._type_names(columns)), types).message())
        self._link.send(replace(bind, statement=HIDDEN).message(), owed)
        self._hide(messages.close(b"S", HIDDEN))

    def _forget_portal_when_bound(self, message: Message, bind: Bind) -> None:
        self._link.send(message, Owed(b"B", portal=bind.portal, on_ok=lambda: self._drop(self._portals, bind.portal)))

    @staticmethod
    def _drop(books: dict[bytes, Statement] | dict[bytes, _Portal], name: bytes) -> None:
        books.pop(name, None)

    def _describe(self, message: Message) -> None:
        named = Named.read(message.body)
        owed = Owed(b"D")
        if named.sort == b"P":
            owed.shown = lambda answer: [self._as_original(named.name, answer)]
        self._link.send(message, owed)

    def _as_original(self, name: bytes, answer: Message) -> Message:
        """The description of a portal: as if the client's own statement were bound to it."""
        portal = self._portals.get(name)
        if answer.kind != b"T" or portal is None or portal.columns is None:
            return answer
        return _described_as(portal.columns, answer)

    def _close(self, message: Message) -> None:
        named = Named.read(message.body)
        books = self._statements if named.sort == b"S" else self._portals
        self._link.send(message, Owed(b"C", on_ok=lambda: self._drop(books, named.name)))

    async def _execute(self, message: Message) -> None:
        execute = Execute.read(message.body)
        name = execute.portal
        if not (name in self._portals or self._link.owes(lambda owed: owed.portal == name)):
            self._link.send(message, Owed(b"E"))
            return
        await self._drained()
        portal = self._portals.get(name)
        if portal is None or portal.answered or not self._is_ours(portal.statement):
            await self._execute_on_twin(message, portal)
            return
        # The twin says whether the portal still is there.
        self._hide(messages.describe(b"P", name))
        await self._drained()
        try:
            reply = await self._reply(portal.statement, portal.types, portal.bind.parameters, portal.columns)
        except Error as error:
            self._refuse_in_portal(error)
            return
        portal.answered = True
        if name:
            self._hide(messages.close(b"P", name))
        self._hide(messages.close(b"S", HIDDEN))
        self._hide(Parse(HIDDEN, reply.sql, ()).message())
        self._hide(Bind(name, HIDDEN, messages.NO_PARAMETERS, portal.bind.results).message())
        self._hide(messages.close(b"S", HIDDEN))
        self._link.send(message, Owed(b"E", shown=self._with_reply(portal.statement, reply)))

    async def _execute_on_twin(self, message: Message, portal: _Portal | None) -> None:
        owed = Owed(b"E")
        if portal is not None and not portal.answered:
            owed.on_complete = [self._effect(portal.statement)]
            if portal.statement.names(*_ACCOUNT):
                await self._host.refresh_account(self._user)
        self._link.send(message, owed)
        if portal is not None and portal.statement.copies_in:
            # What the client sends next is data, or Sync which the twin swallows: know first which.
            self._link.send(messages.FLUSH)
            while self._link.is_busy and not self._link.copying_in:
                await self._link.change()

    def _refuse_in_portal(self, error: Error) -> None:
        self._hide(messages.close(b"S", HIDDEN))
        self._hide(messages.close(b"P", HIDDEN))
        self._hide(Parse(HIDDEN, self._raising(error), ()).message())
        self._hide(Bind(HIDDEN, HIDDEN, messages.NO_PARAMETERS, messages.ALL_TEXT).message())
        self._link.send(Execute(HIDDEN, 0).message(), Owed(b"E", shown=_as_refusal(error)))

    # --- simple query ---

    async def _query(self, sql: bytes) -> None:
        text = self._decoded(sql)
        parts = [] if text is None else self._classify(text)
        if not any(self._may_be_ours(part) for part in parts):
            if any(part.names(*_ACCOUNT) for part in parts):
                await self._host.refresh_account(self._user)
            self._forward_query(sql, parts)
            return
        assert text is not None
        await self._drained()
        if not any(self._is_ours(part) for part in parts):
            self._forward_query(sql, parts)
        elif len(parts) == 1:
            await self._part(parts[0], last=True)
        elif not await self._host.is_grammatical(text):
            self._forward_query(sql, [])  # the twin says what is wrong
        elif any(part.copies_in for part in parts):
            error = NotSupported("COPY FROM STDIN cannot stand in one string with a query of declared tables")
            self._link.send(messages.query(self._raising(error)), Owed(b"Q", shown=_as_refusal(error)))
        else:
            await self._parts(parts)

    def _forward_query(self, sql: bytes, parts: Sequence[Statement]) -> None:
        self._link.send(messages.query(sql), Owed(b"Q", on_complete=[self._effect(part) for part in parts]))

    async def _parts(self, parts: Sequence[Statement]) -> None:
        """Several statements, one after the other; they are one transaction unless they say otherwise."""
        together = self._link.status == b"I" and not any(part.controls_transaction for part in parts)
        if together:
            await self._hidden_query(b"BEGIN")
        done = True
        for part in parts:
            done = done and await self._part(part, last=False)
        if together:
            await self._hidden_query(b"COMMIT" if done else b"ROLLBACK")
        self._link.show(Message(b"Z", self._link.status))

    async def _hidden_query(self, sql: bytes) -> None:
        self._link.send(messages.query(sql), Owed(b"Q", hidden=True))
        await self._link.drain()

    async def _part(self, part: Statement, *, last: bool) -> bool:
        """One statement of a simple query; whether it succeeded is known only if it is not the last."""
        if part.names(*_ACCOUNT):
            await self._host.refresh_account(self._user)
        owed = Owed(b"Q", hides_ready=not last)
        if not self._is_ours(part):
            owed.on_complete = [self._effect(part)]
            sql = self._encoded(part.text)
        else:
            try:
                reply, columns = await self._simple_reply(part)
                sql, owed.shown = reply.sql, self._with_reply(part, reply, columns)
            except Error as error:
                sql, owed.shown = self._raising(error), _as_refusal(error)
            except _Skip:
                # The error was shown; Sync ends what was begun.
                self._link.skipping = False
                self._link.send(messages.SYNC, Owed(b"S", hidden=not last))
                await self._link.drain()
                return False
        self._link.send(messages.query(sql), owed)
        if not last:
            await self._link.drain()
        return not owed.failed

    async def _simple_reply(self, part: Statement) -> tuple[Reply, tuple[Column, ...] | None]:
        if (parameter := next((word for word in part.words if word.sort is Sort.PARAMETER), None)) is not None:
            raise UnknownParameter(f"there is no parameter ${parameter.text}", position=parameter.start + 1)
        self._hide(messages.close(b"S", HIDDEN))
        self._hide(Parse(HIDDEN, self._encoded(part.text), ()).message())
        _, columns = await self._described(b"S", HIDDEN)
        self._hide(messages.close(b"S", HIDDEN))
        return await self._reply(part, (), messages.NO_PARAMETERS, columns), columns

    # --- the engine ---

    async def _reply(
        self,
        statement: Statement,
        types: tuple[int, ...],
        parameters: bytes,
        columns: tuple[Column, ...] | None,
    ) -> Reply:
        """Ask the engine. Nothing was paid if this raises before the engine is reached."""
        if statement.refusal is not None:
            raise statement.refusal
        if statement.kind is Kind.EXECUTE:
            statement, types, parameters = await self._prepared_in_sql(statement)
        elif statement.kind is Kind.WRAPPED:
            columns = await self._columns_of(statement.query, types)
            await self._try_wrapper(statement, columns)
        if columns is None:
            raise NotSupported("this statement gives no rows")
        names = tuple(await self._type_names(columns))
        values, settings, quiet = await self._values(parameters, types)
        question = Question(
            statement.text[statement.start : statement.end],
            asking.decoded(values, types),
            settings,
            columns,
            names,
        )
        cancellation = Cancellation()
        is_plan, as_json = statement.kind is Kind.EXPLAIN, statement.json

        def job(engine: Engine) -> Reply:
            if is_plan:
                return asking.explain(engine, self._user, question, as_json=as_json)
            return asking.answer(engine, self._user, question, cancellation)

        try:
            reply = await self._worked(job, cancellation)
        except Error as error:
            raise _moved(error, statement.start) from None
        if statement.kind is Kind.WRAPPED:
            reply = replace(reply, sql=self._encoded(statement.before) + reply.sql + self._encoded(statement.behind))
        return replace(reply, notice=None) if quiet else reply

    async def _worked(self, job: Callable[[Engine], Reply], cancellation: Cancellation) -> Reply:
        """Wait for a job, and for everything else that may end it."""
        # The twin's clock for statement_timeout stands still after an Execute, and starts with the next Parse.
        self._hide(messages.close(b"S", HIDDEN))
        self._hide(Parse(HIDDEN, b"", ()).message())
        self._working = cancellation
        task = asyncio.ensure_future(self._host.work(job))
        try:
            while not task.done():
                watched: set[asyncio.Future[bytes] | asyncio.Future[Reply]] = {task}
                if len(self._framer) < MAX_MESSAGE:
                    watched.add(self._read())
                await asyncio.wait(watched, timeout=HEARTBEAT, return_when=asyncio.FIRST_COMPLETED)
                self._take_early()
                if self._link.skipping:  # statement_timeout, as the twin keeps it
                    raise _Skip
                self._link.send(messages.FLUSH)
            return task.result()
        except Error:
            raise
        except (_Skip, ClientGone, TwinGone, asyncio.CancelledError):
            cancellation.cancel()
            task.cancel()  # the thread ends by itself; nobody waits for it
            raise
        except Exception as error:
            raise asking.refusal(error) from None
        finally:
            self._working = None

    def _take_early(self) -> None:
        """Keep what the client sends while the engine works; an empty read means that it has left."""
        if self._reading is not None and self._reading.done():
            data = self._reading.result()
            if not data:
                raise ClientGone
            self._framer.feed(data)
            self._reading = None

    async def _values(
        self, parameters: bytes, types: tuple[int, ...]
    ) -> tuple[tuple[bytes | None, ...], dict[str, str], bool]:
        """Parameters as JSON, the settings, and whether notices are unwanted: the twin knows all of them."""
        items = [f"pg_catalog.to_jsonb(${number})::pg_catalog.text" for number in range(1, len(types) + 1)]
        items += [f"pg_catalog.current_setting('dpsql.{name}', true)" for name in asking.SETTINGS]
        items.append("pg_catalog.current_setting('client_min_messages')")
        row = await self._row(f"SELECT {', '.join(items)}", types, parameters)
        values, texts, level = row[: len(types)], row[len(types) : -1], row[-1]
        settings = {
            name: text.decode(errors="replace")
            for name, text in zip(asking.SETTINGS, texts, strict=True)
            if text is not None
        }
        return values, settings, level in (b"warning", b"error")

    async def _row(self, sql: str, types: tuple[int, ...], parameters: bytes) -> tuple[bytes | None, ...]:
        """The one row of a query on the twin, as text in UTF-8 if it is ASCII."""
        self._hide(messages.close(b"S", HIDDEN))
        self._hide(messages.close(b"P", HIDDEN))
        self._hide(Parse(HIDDEN, sql.encode("ascii"), types).message())
        self._hide(Bind(HIDDEN, HIDDEN, parameters, messages.ALL_TEXT).message())
        owed = self._hide(Execute(HIDDEN, 0).message())
        self._hide(messages.close(b"P", HIDDEN))
        self._hide(messages.close(b"S", HIDDEN))
        await self._drained()
        return next(messages.read_row(message.body) for message in owed.gathered if message.kind == b"D")

    async def _described(self, sort: bytes, name: bytes) -> tuple[tuple[int, ...], tuple[Column, ...] | None]:
        """What a statement takes and gives; None if it gives no rows."""
        owed = self._hide(messages.describe(sort, name))
        await self._drained()
        answers = {message.kind: message.body for message in owed.gathered}
        columns = messages.read_columns(answers[b"T"]) if b"T" in answers else None
        return messages.read_types(answers[b"t"]), columns

    async def _columns_of(self, query: str, types: tuple[int, ...]) -> tuple[Column, ...]:
        self._hide(messages.close(b"S", HIDDEN))
        self._hide(Parse(HIDDEN, self._encoded(query), types).message())
        _, columns = await self._described(b"S", HIDDEN)
        self._hide(messages.close(b"S", HIDDEN))
        return columns or ()

    async def _try_wrapper(self, statement: Statement, columns: tuple[Column, ...]) -> None:
        """Let the twin refuse a cursor or COPY of this form before anything is paid: it is run with no rows."""
        if statement.first_word not in ("declare", "copy"):
            return
        stub = render.stub(columns, await self._type_names(columns))
        tries = [self._encoded(statement.before) + stub + self._encoded(statement.behind)]
        if statement.first_word == "declare":
            tries.append(self._encoded(f"CLOSE {statement.text[statement.words[1].start : statement.words[1].end]}"))
        for sql in tries:
            self._hide(messages.close(b"S", HIDDEN))
            self._hide(messages.close(b"P", HIDDEN))
            self._hide(Parse(HIDDEN, sql, ()).message())
            self._hide(Bind(HIDDEN, HIDDEN, messages.NO_PARAMETERS, messages.ALL_TEXT).message())
            self._hide(Execute(HIDDEN, 0).message(), shown=_without_position)
            self._hide(messages.close(b"P", HIDDEN))
            self._hide(messages.close(b"S", HIDDEN))
        await self._drained()

    async def _type_names(self, columns: Sequence[Column]) -> list[str]:
        """The names of types, for casts. The twin is asked once for each."""
        known = self._host.type_names
        for column in columns:
            key = (column.type, column.modifier)
            if key not in known:
                if column.modifier == -1 and column.type in render.TYPE_NAMES:
                    known[key] = render.TYPE_NAMES[column.type]
                    continue
                sql = f"SELECT pg_catalog.format_type({column.type}, {column.modifier})"
                name = (await self._row(sql, (), messages.NO_PARAMETERS))[0] or b"pg_catalog.text"
                known[key] = name.decode("ascii", errors="replace")
        return [known[column.type, column.modifier] for column in columns]

    # --- statements prepared in SQL ---

    async def _prepared_in_sql(self, statement: Statement) -> tuple[Statement, tuple[int, ...], bytes]:
        """What EXECUTE runs, and its arguments in the form of a Bind."""
        name = statement.words[1].text
        prepared = self._statements[self._encoded(name)]
        if prepared.refusal is not None:
            raise prepared.refusal
        types, _ = await self._described(b"S", self._encoded(name))
        arguments = _arguments(statement)
        if len(arguments) != len(types):
            raise SqlSyntaxError(
                f'wrong number of parameters for prepared statement "{name}"',
                detail=f"Expected {len(types)} parameters but got {len(arguments)}.",
            )
        if not types:
            return prepared, (), messages.NO_PARAMETERS
        casts = [
            f"CAST(({argument}) AS {type_})::pg_catalog.text"
            for argument, type_ in zip(
                arguments, await self._type_names([Column(b"", 0, 0, oid, 0, -1, 0) for oid in types]), strict=True
            )
        ]
        values = await self._row(f"SELECT {', '.join(casts)}", (), messages.NO_PARAMETERS)
        return prepared, types, messages.text_parameters(values)

    def _effect(self, statement: Statement) -> Callable[[], None]:
        """What changes here when the twin has completed a statement."""

        def apply() -> None:
            words = statement.words
            if statement.first_word == "prepare" and len(words) > 1:
                inner = _inside_prepare(statement)
                found = None if inner is None else self._classify(inner)
                self._prepared(self._encoded(words[1].text), found[0] if found else None)
            elif statement.first_word == "deallocate":
                if words[-1].is_word("all"):
                    self._statements.clear()
                else:
                    self._statements.pop(self._encoded(words[-1].text), None)
            elif statement.first_word == "discard" and words[-1].is_word("all"):
                self._statements.clear()
                self._portals.clear()

        return apply

    # --- small things ---

    def _hide(self, message: Message, *, shown: Callable[[Message], list[Message]] | None = None) -> Owed:
        owed = Owed(message.kind, hidden=True, shown=shown)
        self._link.send(message, owed)
        return owed

    async def _drained(self) -> None:
        if not await self._link.drain():
            raise _Skip

    def _classified(self, sql: bytes) -> Statement | None:
        text = self._decoded(sql)
        parts = [] if text is None else self._classify(text)
        return parts[0] if len(parts) == 1 else None  # the twin refuses several

    def _classify(self, text: str) -> list[Statement]:
        standard = self._link.parameters.get("standard_conforming_strings") != "off"
        return classify(text, self._host.declared, standard_strings=standard)

    def _is_ours(self, statement: Statement) -> bool:
        if statement.kind is Kind.EXECUTE:
            target = self._statements.get(self._encoded(statement.words[1].text)) if len(statement.words) > 1 else None
            return target is not None and target.kind in (Kind.QUERY, Kind.REFUSED)
        return statement.kind is not Kind.PASS

    def _may_be_ours(self, statement: Statement) -> bool:
        return statement.kind is Kind.EXECUTE or self._is_ours(statement)

    @property
    def _codec(self) -> str:
        return codec(self._link.parameters.get("client_encoding", "UTF8")) or "ascii"

    def _decoded(self, sql: bytes) -> str | None:
        """A statement's text; None if it cannot be read, which the twin will say."""
        try:
            return sql.decode(self._codec)
        except UnicodeDecodeError:
            return None

    def _encoded(self, text: str) -> bytes:
        return text.encode(self._codec)

    def _with_reply(
        self, statement: Statement, reply: Reply, columns: tuple[Column, ...] | None = None
    ) -> Callable[[Message], list[Message]]:
        """The twin's answer to a rendering, as an answer to the client's own statement."""

        def shown(message: Message) -> list[Message]:
            match message.kind:
                case b"T" if columns is not None:
                    return [_described_as(columns, message)]
                case b"E":
                    return _without_position(message)
                case b"C" | b"s":
                    is_plan = message.kind == b"C" and statement.kind is Kind.EXPLAIN
                    tag = Message(b"C", b"EXPLAIN\0") if is_plan else message
                    return [tag] if reply.notice is None else [self._notice(reply.notice), tag]
                case _:
                    return [message]

        return shown

    def _raising(self, error: Error) -> bytes:
        """A statement that raises a refusal in the twin: transaction and pipeline then behave as they do there."""
        parts = (error.sqlstate, error.message, error.detail, error.hint)
        literals = [render.literal(None if part is None else self._in_clients_letters(part)) for part in parts]
        return f"CALL dpsql.refuse({', '.join(literals)})".encode("ascii")

    def _in_clients_letters(self, text: str) -> str:
        """A text of ours without what the client's encoding has no letter for."""
        try:
            text.encode(self._codec)
        except UnicodeEncodeError:
            text = text.translate(_PLAIN).encode(self._codec, errors="replace").decode(self._codec)
        return text

    def _notice(self, text: str) -> Message:
        found = {b"S": "NOTICE", b"V": "NOTICE", b"C": "00000", b"M": text}
        return messages.with_fields(b"N", {k: self._encoded(self._in_clients_letters(v)) for k, v in found.items()})


def _described_as(columns: Sequence[Column], message: Message) -> Message:
    """The columns of the client's statement, in the formats of the twin's answer."""
    formats = [column.format for column in messages.read_columns(message.body)]
    return messages.row_description([replace(c, format=f) for c, f in zip(columns, formats, strict=True)])


def _with_name(name: bytes) -> Callable[[Message], list[Message]]:
    """Errors that name our statement name the client's."""

    def shown(message: Message) -> list[Message]:
        if message.kind != b"E":
            return [message]
        found = messages.read_fields(message.body)
        found[b"M"] = found[b"M"].replace(b'"' + HIDDEN + b'"', b'"' + name + b'"')
        return [messages.with_fields(b"E", found)]

    return shown


def _without_position(message: Message) -> list[Message]:
    """An error in text that the client never sent."""
    if message.kind != b"E":
        return [message]
    found = messages.read_fields(without_insides(message).body)
    found.pop(b"P", None)
    return [messages.with_fields(b"E", found)]


def _as_refusal(error: Error) -> Callable[[Message], list[Message]]:
    """The error that the twin raised for us, at the place that we know."""

    def shown(message: Message) -> list[Message]:
        if message.kind != b"E":
            return [message]
        found = messages.read_fields(_without_position(message)[0].body)
        if error.position is not None and found.get(b"C") == error.sqlstate.encode():
            found[b"P"] = str(error.position).encode()
        return [messages.with_fields(b"E", found)]

    return shown


def _moved(error: Error, start: int) -> Error:
    """Errors of the query inside a statement, at their place in the statement. Cached errors stay as they are."""
    if error.position is not None:
        error.position += start
    return error


def _inside_prepare(statement: Statement) -> str | None:
    """The statement behind PREPARE name (types) AS."""
    depth = 0
    for word, following in zip(statement.words, statement.words[1:], strict=False):
        if word.sort is Sort.OPERATOR:
            depth += (word.text == "(") - (word.text == ")")
        elif depth == 0 and word.is_word("as"):
            return statement.text[following.start :]
    return None


def _arguments(statement: Statement) -> list[str]:
    """The argument texts of EXECUTE name (a, b)."""
    inside = statement.words[3:-1] if len(statement.words) > 3 else ()
    groups: list[list[Token]] = [[]] if inside else []
    depth = 0
    for word in inside:
        if word.sort is Sort.OPERATOR:
            depth += (word.text in "([") - (word.text in ")]")
            if word.text == "," and depth == 0:
                groups.append([])
                continue
        groups[-1].append(word)
    return [statement.text[group[0].start : group[-1].end] for group in groups if group]
