"""Conversations as text: what a client sends, and what it is answered, message by message.

    == a limit divides the rows
    P s "SELECT 1" ; B "" s ; E "" ; S
      1 2 D(1) C(SELECT 1) ZI

A line at the margin is one write of the client: messages between semicolons, by the letters of the protocol.

    Q "text"              a simple query                    P name "text" oid ..   Parse, with types of parameters
    B portal name value .. > format ..                      Bind: "text", x00ff (binary), NULL; result formats t, b
    D S name, D P portal  Describe                          E portal limit         Execute
    C S name, C P portal  Close                             S, H, X                Sync, Flush, Terminate
    d "data", c, f "why"  COPY data, done, failed           F oid value ..         function call
    cancel                a CancelRequest, again until an error comes

Indented lines are the answer. Between it and the next write the client reads. Letters are the protocol's again; what is
in parentheses depends on the letter, `*3` says that the same comes three times.

A script holds for PostgreSQL and for dpsql. One whose title ends in `(dpsql)` holds for dpsql alone: refusals, say.
`let NAME text` at the start of a file makes `{NAME}` mean that text.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.server.connection import Connection, Message, message, settings, text

SCRIPTS = Path(__file__).parent / "scripts"
ONLY_DPSQL = "(dpsql)"
# Sent at the start, as drivers do it; else they depend on the machine. The last lets PostgreSQL plan long joins fast.
SETTINGS = {"TimeZone": "UTC", "DateStyle": "ISO, MDY", "client_encoding": "UTF8", "join_collapse_limit": "1"}
_WIDTH = 120
_QUIET = 0.4  # seconds without a message after which an unexpected answer counts as complete

_TOKEN = re.compile(r'\s*(?:"((?:[^"\\]|\\.)*)"|(;)|([^\s";]+))')
_ANSWER = re.compile(r"\s*(EOF|Z[ITE]|\S(?:\([^)]*\))?)(?:\*(\d+))?(?=\s|$)")
_TYPES = {
    16: "bool", 17: "bytea", 19: "name", 20: "int8", 21: "int2", 23: "int4", 25: "text", 26: "oid", 114: "json",
    700: "float4", 701: "float8", 705: "unknown", 1007: "int4[]", 1009: "text[]", 1016: "int8[]", 1022: "float8[]",
    1042: "bpchar", 1043: "varchar", 1082: "date", 1114: "timestamp", 1184: "timestamptz", 1186: "interval",
    1700: "numeric", 2278: "void", 3802: "jsonb",
}  # fmt: skip
_NO_TYPMOD = -1
_CANCELLED = "57014"  # dpsql adds what was charged
# Where in its source a server raised an error is its own affair.
_SOURCE_FIELDS = "FLR"


@dataclass(frozen=True, slots=True)
class Event:
    """A message of the server: as a script writes it, and all that must be the same on both servers."""

    short: str
    whole: object

    @classmethod
    def of(cls, found: Message) -> Event:
        kind, body = found.kind, found.body
        match kind:
            case "Z":
                return cls(f"Z{body.decode()}", body)
            case "C":
                return cls(f"C({_text(body[:-1])})", body)
            case "T":
                columns = _columns(body)
                return cls(f"T({' '.join(map(_column, columns))})", columns)
            case "D":
                return cls(f"D({'|'.join(map(_value, _values(body)))})", body)
            case "d":
                return cls(f"d({_value(body)})", body)
            case "t":
                (count,) = struct.unpack("!h", body[:2])
                oids = struct.unpack(f"!{count}I", body[2:])
                return cls(f"t({' '.join(map(_type, oids))})", oids)
            case "A":
                channel, payload = body[4:-1].split(b"\0")
                return cls(f"A({_text(channel)} {_text(payload)})", body[4:])
            case "E" | "N":
                fields = _fields(body)
                usual = fields["V"] == {"E": "ERROR", "N": "NOTICE"}[kind]
                place = f"@{fields['P']}" if "P" in fields else ""
                ignored = _SOURCE_FIELDS + ("DH" if fields["C"] == _CANCELLED else "")
                kept = {letter: value for letter, value in fields.items() if letter not in ignored}
                return cls(f"{kind}({'' if usual else fields['V'] + ' '}{fields['C']}{place})", kept)
            case "G" | "H":
                (width,) = struct.unpack("!h", body[1:3])
                return cls(f"{kind}({'tb'[body[0]]}{width})", body)
            case "V":
                return cls("V(NULL)" if body == b"\xff\xff\xff\xff" else f"V({_value(body[4:])})", body)
            case _:
                return cls(kind, body)

    @property
    def is_account(self) -> bool:
        """dpsql says after each answer what was paid; PostgreSQL has nothing to say."""
        return isinstance(self.whole, dict) and self.whole["V"] == "NOTICE" and self.whole["M"].startswith("paid ")


@dataclass
class Exchange:
    """What is written without reading, and the answer to all of it."""

    writes: list[str] = field(default_factory=list)
    answer: list[str] = field(default_factory=list)


@dataclass
class Script:
    """A conversation from its first write to its last answer, on a connection of its own."""

    file: str
    title: str
    comment: list[str] = field(default_factory=list)
    exchanges: list[Exchange] = field(default_factory=list)

    @property
    def only_dpsql(self) -> bool:
        return self.title.endswith(ONLY_DPSQL)

    @property
    def id(self) -> str:
        return f"{self.file}: {self.title}"


@dataclass
class ScriptFile:
    path: Path
    names: dict[str, str] = field(default_factory=dict)
    scripts: list[Script] = field(default_factory=list)
    comment: list[str] = field(default_factory=list)  # before the first script


def read_file(path: Path) -> ScriptFile:
    made = ScriptFile(path)
    for line in path.read_text().splitlines():
        scripts = made.scripts
        if not line.strip():
            continue
        if line.startswith("== "):
            scripts.append(Script(path.stem, line[3:]))
        elif line.startswith("let "):
            _, name, value = line.split(" ", 2)
            made.names[name] = value
        elif line.startswith("#"):
            (scripts[-1].comment if scripts else made.comment).append(line)
        elif line.startswith(" "):
            scripts[-1].exchanges[-1].answer += _answer(line)
        else:
            exchanges = scripts[-1].exchanges
            if not exchanges or exchanges[-1].answer:
                exchanges.append(Exchange())
            exchanges[-1].writes.append(line)
    return made


def read_all() -> list[tuple[ScriptFile, Script]]:
    return [(file, script) for file in map(read_file, sorted(SCRIPTS.glob("*.txt"))) for script in file.scripts]


def converse(connection: Connection, names: dict[str, str], exchange: Exchange) -> list[Event]:
    """Write, then read until the expected answer has come, or one that cannot become it."""
    for line in exchange.writes:
        if line == "cancel":
            connection.cancel_until_refused()
        else:
            for name, value in names.items():
                line = line.replace("{" + name + "}", value)
            connection.send(b"".join(encode(line)))
    return _without_described_cancellations(_read(connection, exchange.answer))


class Answer:
    """Messages as they come, but for what the protocol leaves open and what only dpsql says."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._reported: dict[str, str] = {}
        self.events: list[Event] = []

    def read(self) -> None:
        found = self._connection.read()
        if found.kind == "S":
            # A setting may be reported at any time; what counts is what it is when the server is ready again.
            self._reported |= settings([found])
            return
        event = Event.of(found)
        if found.kind == "Z":
            changed = sorted(self._reported.items() - self._connection.settings.items())
            self.events += [Event(f"S({name}={value})", value) for name, value in changed]
            self._connection.settings |= self._reported
            self._reported = {}
        if not event.is_account:
            self.events.append(event)

    @property
    def written(self) -> list[str]:
        return [event.short for event in self.events]


def _read(connection: Connection, expected: list[str]) -> list[Event]:
    answer = Answer(connection)
    while True:
        fits = bool(expected) and answer.written == expected[: len(answer.events)]
        if fits and len(answer.events) == len(expected):
            return answer.events
        try:
            if not fits and connection.waits(_QUIET):
                return answer.events
            answer.read()
        except TimeoutError:
            return answer.events
        except (EOFError, ConnectionError):
            return [*answer.events, Event("EOF", None)]


def _without_described_cancellations(events: list[Event]) -> list[Event]:
    """A statement that is cancelled may have described its rows before: without rows that says nothing."""
    nexts = [*events, Event("", None)][1:]
    return [
        event
        for event, following in zip(events, nexts, strict=True)
        if not (event.short.startswith(("T(", "H(")) and following.short.startswith(f"E({_CANCELLED}"))
    ]


def encode(line: str) -> Iterator[bytes]:
    """The messages of one write."""
    words: list[bytes | str] = []
    for word in [*_words(line), ";"]:
        if word != ";":
            words.append(word)
        elif words:
            yield _encode(str(words[0]), words[1:])
            words = []


def _words(line: str) -> Iterator[bytes | str]:
    """Quoted words are bytes; others stay text, so that NULL is not "NULL"."""
    position = 0
    while position < len(line.rstrip()):
        found = _TOKEN.match(line, position)
        if found is None:
            raise ValueError(f"not understood at {position}: {line}")
        quoted, mark, plain = found.groups()
        yield mark or plain or _unescaped(quoted)
        position = found.end()


def _unescaped(quoted: str) -> bytes:
    r"""\n, \t, \", \\ and \xe9, a byte of any encoding; all else is UTF-8."""
    plain = {b"n": b"\n", b"t": b"\t"}

    def one(found: re.Match[bytes]) -> bytes:
        code = found[1]
        return bytes.fromhex(code[1:].decode()) if len(code) == 3 else plain.get(code, code)

    return re.sub(rb"\\(x[0-9a-f]{2}|.)", one, quoted.encode())


def _encode(kind: str, words: list[bytes | str]) -> bytes:
    match kind:
        case "Q":
            return message("Q", text(words[0]))
        case "P":
            oids = [int(word) for word in words[2:]]
            return message("P", text(words[0]) + text(words[1]) + struct.pack(f"!h{len(oids)}I", len(oids), *oids))
        case "B":
            cut = words.index(">") if ">" in words else len(words)
            formats = [b"tb".index(str(word).encode()) for word in words[cut + 1 :]]
            results = struct.pack(f"!h{len(formats)}h", len(formats), *formats)
            return message("B", text(words[0]) + text(words[1]) + _arguments(words[2:cut]) + results)
        case "D" | "C":
            return message(kind, str(words[0]).encode() + text(words[1]))
        case "E":
            return message("E", text(words[0]) + struct.pack("!i", int(words[1]) if len(words) > 1 else 0))
        case "d":
            assert isinstance(words[0], bytes)
            return message("d", words[0])
        case "f":
            return message("f", text(words[0]))
        case "F":
            return message("F", struct.pack("!I", int(words[0])) + _arguments(words[1:]) + struct.pack("!h", 0))
        case "S" | "H" | "c" | "X":
            return message(kind)
        case _:
            raise ValueError(f"there is no message {kind}")


def _arguments(words: list[bytes | str]) -> bytes:
    """Formats and values. None is binary: no formats are sent, as most clients do it."""
    binary = [isinstance(word, str) and word != "NULL" for word in words]
    formats = struct.pack(f"!h{len(words)}h", len(words), *binary) if any(binary) else struct.pack("!h", 0)
    values = b""
    for word in words:
        if word == "NULL":
            values += struct.pack("!i", -1)
        else:
            data = word if isinstance(word, bytes) else bytes.fromhex(word.removeprefix("x"))
            values += struct.pack("!i", len(data)) + data
    return formats + struct.pack("!h", len(words)) + values


def _answer(line: str) -> list[str]:
    found: list[str] = []
    position = 0
    while position < len(line.rstrip()):
        match = _ANSWER.match(line, position)
        if match is None:
            raise ValueError(f"not understood at {position}: {line}")
        found += [match[1]] * int(match[2] or 1)
        position = match.end()
    return found


def written(events: list[str]) -> list[str]:
    """The answer as a script writes it, in lines."""
    parts: list[tuple[str, int]] = []
    for short in events:
        if parts and parts[-1][0] == short:
            parts[-1] = short, parts[-1][1] + 1
        else:
            parts.append((short, 1))
    lines = [" "]
    for short, count in parts:
        part = " " + (short if count == 1 else f"{short}*{count}")
        if len(lines[-1]) + len(part) > _WIDTH and lines[-1].strip():
            lines.append(" ")
        lines[-1] += part
    return lines


def _text(data: bytes) -> str:
    """Readable in a script: one line, no parentheses that would end it, bytes of other encodings visible."""
    shown = data.decode(errors="backslashreplace").replace("\n", "\\n").replace("\t", "\\t")
    return shown.replace(")", "]").replace("(", "[")


def _value(data: bytes | None) -> str:
    if data is None:
        return "NULL"
    if any(byte < 32 and byte not in b"\n\t" for byte in data):
        return "x" + data.hex()
    return _text(data)


def _values(body: bytes) -> Iterator[bytes | None]:
    position = 2
    while position < len(body):
        (length,) = struct.unpack_from("!i", body, position)
        position += 4
        yield None if length < 0 else body[position : position + length]
        position += max(length, 0)


def _columns(body: bytes) -> list[tuple[str, int, int, int, int]]:
    """Name, type, its width, typmod and format; where a column comes from may differ."""
    columns, position = [], 2
    while position < len(body):
        end = body.index(b"\0", position)
        _, _, oid, width, typmod, format_ = struct.unpack_from("!IhIhih", body, end + 1)
        columns.append((_text(body[position:end]), oid, width, typmod, format_))
        position = end + 19
    return columns


def _column(column: tuple[str, int, int, int, int]) -> str:
    name, oid, _, typmod, format_ = column
    return f"{name}:{_type(oid)}{'' if typmod == _NO_TYPMOD else f'/{typmod}'}{':b' if format_ else ''}"


def _type(oid: int) -> str:
    return _TYPES.get(oid, str(oid))


def _fields(body: bytes) -> dict[str, str]:
    return {chr(part[0]): part[1:].decode(errors="backslashreplace") for part in body.split(b"\0") if part}
