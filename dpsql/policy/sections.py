"""One table of the policy file: its keys by type. A key that is wrong, missing or unknown is reported with its line."""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from fractions import Fraction

from dpsql.policy.model import Bound
from dpsql.policy.problems import Report, nearest, quoted
from dpsql.types import Value

# More digits than this before or after the point are a mistake, and no double could hold them.
MAX_MAGNITUDE = 300
MAX_BIGINT = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Rule:
    """What a number must be."""

    text: str
    holds: Callable[[Fraction], bool]


POSITIVE = Rule("greater than 0", lambda number: number > 0)
NOT_NEGATIVE = Rule("0 or more", lambda number: number >= 0)
PROBABILITY = Rule("at least 0 and less than 1", lambda number: 0 <= number < 1)


class Section:
    """Reads the keys of one table. None means absent, or wrong and reported."""

    def __init__(
        self,
        path: tuple[str, ...],
        content: Mapping[str, object],
        known: tuple[str, ...] | None,
        lines: LineIndex,
        report: Report,
    ) -> None:
        self.path = path
        self.content = content
        self.lines = lines
        self.report = report
        if known is not None:
            for key in content:
                if key not in known:
                    self._unknown(key, known)

    @property
    def title(self) -> str:
        return f"[{header(self.path)}]"

    def line(self, *path: str | int) -> int | None:
        return self.lines.line(self.path + path)

    def problem(self, key: str, message: str, fix: str | None = None) -> None:
        self.report.add(self.line(key), message, fix)

    def missing(self, key: str, fix: str) -> None:
        self.report.add(self.line(), f"{quoted(key)} is missing in {self.title}", fix)

    def section(self, key: str, known: tuple[str, ...] | None) -> Section | None:
        content = self.content.get(key)
        if content is None:
            return None
        path = (*self.path, key)
        if not isinstance(content, dict):
            self.problem(key, f"{header(path)} is {_kind(content)}, not a table", f"write: [{header(path)}]")
            return None
        return Section(path, content, known, self.lines, self.report)

    def text(self, key: str) -> str | None:
        value = self.content.get(key)
        if value is None:
            return None
        if not isinstance(value, str):
            self._wrong(key, f"must be a string, not {_kind(value)}")
            return None
        if not value or "\0" in value:
            self._wrong(key, "must be a string that is not empty and holds no NUL character")
            return None
        return value

    def texts(self, key: str) -> tuple[str, ...] | None:
        """A string, or a list of distinct strings."""
        value = self.content.get(key)
        if not isinstance(value, list):
            one = self.text(key)
            return None if one is None else (one,)
        if not value or not all(isinstance(part, str) and part and "\0" not in part for part in value):
            self._wrong(key, "must be a string, or a list of strings that are not empty")
            return None
        if len(set(value)) < len(value):
            self._wrong(key, "names the same column twice")
            return None
        return tuple(value)

    def flag(self, key: str) -> bool:
        value = self.content.get(key, False)
        if not isinstance(value, bool):
            self._wrong(key, f"must be true or false, not {_kind(value)}")
            return False
        return value

    def integer(self, key: str, default: int | None = None) -> int | None:
        """An integer of at least 1."""
        value = self.content.get(key)
        if value is None:
            return default
        if not isinstance(value, int) or isinstance(value, bool):
            self._wrong(key, f"must be an integer, not {_kind(value)}")
            return None
        if not 1 <= value <= MAX_BIGINT:
            self._wrong(key, "must be 1 or more" if value < 1 else "is too large")
            return None
        return value

    def number(self, key: str, rule: Rule, default: Fraction | None = None) -> Fraction | None:
        value = self.content.get(key)
        if value is None:
            return default
        number = self._exact(key, value)
        if number is not None and not rule.holds(number):
            self._wrong(key, f"must be {rule.text}")
            return None
        return number

    def bound(self, key: str) -> Bound | None:
        """A number, a date, or a date and time."""
        value = self.content.get(key)
        if value is None:
            return None
        if isinstance(value, datetime):
            if value.tzinfo is not None:
                self._wrong(key, "must be a date and time without an offset")
                return None
            return value
        if isinstance(value, date):
            return value
        return self._exact(key, value, "a number, a date or a date and time")

    def values(self, key: str) -> tuple[Value, ...] | None:
        """A list of distinct strings, integers, booleans or dates, all of one type."""
        given = self.content.get(key)
        if given is None:
            return None
        if not isinstance(given, list):
            self._wrong(key, f"must be a list, not {_kind(given)}")
            return None
        if not given:
            self._wrong(key, "must not be empty")
            return None
        seen: dict[Value, None] = {}
        faults = 0
        for position, value in enumerate(given):
            fault = _fault_of_value(value, type(given[0]))
            if fault is None and value in seen:
                fault = "names the same value twice"
            if fault is None:
                seen[value] = None
            else:
                faults += 1
                self.report.add(self.line(key, position), f"{quoted(key)} in {self.title} {fault}")
        return None if faults else tuple(seen)

    def _exact(self, key: str, value: object, wanted: str = "a number") -> Fraction | None:
        if isinstance(value, bool) or not isinstance(value, int | Decimal):
            fix = "write it without quotation marks" if isinstance(value, str) else None
            self._wrong(key, f"must be {wanted}, not {_kind(value)}", fix)
            return None
        if isinstance(value, Decimal) and not value.is_finite():
            self._wrong(key, "must be a finite number")
            return None
        # The exponent is checked before the Fraction is built: 1e999999999 would fill the memory.
        _, digits, exponent = Decimal(value).as_tuple()
        if len(digits) + abs(int(exponent)) > 2 * MAX_MAGNITUDE or abs(Decimal(value).adjusted()) > MAX_MAGNITUDE:
            self._wrong(key, "is too large, too small or too long")
            return None
        return Fraction(value)

    def _wrong(self, key: str, fault: str, fix: str | None = None) -> None:
        self.problem(key, f"{quoted(key)} in {self.title} {fault}", fix)

    def _unknown(self, key: str, known: Iterable[str]) -> None:
        meant = nearest(key, known)
        if self.path:
            fix = f"known keys: {', '.join(known)}" if meant is None else f"write: {meant}"
            self.problem(key, f"unknown key {quoted(key)} in {self.title}", fix)
        else:
            known_sections = ", ".join(f"[{name}]" for name in known)
            fix = f"known sections: {known_sections}" if meant is None else f"write: [{meant}]"
            self.problem(key, f"unknown section [{header((key,))}]", fix)


def header(path: Iterable[str]) -> str:
    """Keys as TOML writes them in a header: quoted where they must be."""
    return ".".join(part if re.fullmatch(r"[A-Za-z0-9_-]+", part) else quoted(part) for part in path)


def _fault_of_value(value: object, first: type) -> str | None:
    if type(value) not in (str, int, bool, date):
        return f"must hold strings, integers, booleans or dates, not {_kind(value)}"
    if type(value) is not first:
        return "must hold values of one type"
    if isinstance(value, str) and "\0" in value:
        return "holds a NUL character"
    if isinstance(value, int) and not -MAX_BIGINT - 1 <= value <= MAX_BIGINT:
        return "holds an integer that does not fit into 64 bits"
    return None


def _kind(value: object) -> str:
    # In this order: a boolean is an int to Python, and a datetime is a date.
    kinds: tuple[tuple[type, str], ...] = (
        (bool, "a boolean"),
        (int, "an integer"),
        (Decimal, "a number"),
        (str, "a string"),
        (datetime, "a date and time"),
        (date, "a date"),
        (time, "a time"),
        (list, "a list"),
    )
    return next((name for kind, name in kinds if isinstance(value, kind)), "a table")


# ------------------------------------------------------------
# The position of each key in a TOML text, for error messages. The standard parser does not report it.

Path = tuple[str | int, ...]  # names of keys, and positions in arrays

_BLANK = re.compile(r"(?:[ \t\n]|#[^\n]*)*")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
# A multi-line string may end in up to five quotation marks: the last three close it.
_STRING = re.compile(
    r'"""(?:[^\\]|\\.)*?"""(?:"{0,2})'
    r"|'''.*?'''(?:'{0,2})"
    r'|"(?:[^"\\]|\\.)*"'
    r"|'[^']*'",
    re.DOTALL,
)
_SCALAR = re.compile(r"[^,\]}\n#]+")


@dataclass(frozen=True, slots=True)
class Span:
    """The position of a header or an assignment: characters from `start` to `end`, its value from `value` to `end`."""

    start: int
    value: int
    end: int


class LineIndex:
    """The lines of all headers, keys and array elements of a text that the standard parser has accepted."""

    def __init__(self, text: str) -> None:
        self._lines = Scanner(text.replace("\r\n", "\n")).scan()

    def __contains__(self, path: Path) -> bool:
        return path in self._lines

    def line(self, path: Path) -> int | None:
        """The line of `path`, or of the nearest enclosing element."""
        while path and path not in self._lines:
            path = path[:-1]
        return self._lines.get(path)


class Scanner:
    """Scans the text once. It checks nothing: the text is valid TOML, with plain newlines."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.line_starts = [0, *(match.end() for match in re.finditer("\n", text))]
        self.lines: dict[Path, int] = {}
        self.headers: dict[Path, Span] = {}
        self.assignments: dict[Path, Span] = {}

    def scan(self) -> dict[Path, int]:
        table: Path = ()
        while self._skip_blank() < len(self.text):
            if self.text[self.at] == "[":
                table = self._header()
            else:
                self._assignment(table)
        return self.lines

    def _header(self) -> Path:
        start = self.at
        brackets = 2 if self.text.startswith("[[", start) else 1
        self.at += brackets
        path = self._key()
        self._note(path, start)
        self.at += brackets
        self.headers[path] = Span(start, self.at, self.at)
        return path

    def _assignment(self, table: Path) -> None:
        start = self._skip_blank()
        path = table + self._key()
        self._note(path, start)
        self.at += len("=")
        value = self._skip_blank()
        self._value(path)
        written = self.text[value : self.at].rstrip()
        self.assignments[path] = Span(start, value, value + len(written))

    def _key(self) -> Path:
        """One key, dotted or not; stops at the first character after it that is not blank."""
        parts: list[str] = []
        while True:
            self._skip_blank()
            if self.text[self.at] in "\"'":
                parts.append(tomllib.loads(f"key = {self._take(_STRING)}")["key"])
            else:
                parts.append(self._take(_BARE_KEY))
            self._skip_blank()
            if self.text[self.at] != ".":
                return tuple(parts)
            self.at += len(".")

    def _value(self, path: Path) -> None:
        self._skip_blank()
        match self.text[self.at]:
            case "[":
                self._array(path)
            case "{":
                self._inline_table(path)
            case '"' | "'":
                self._take(_STRING)
            case _:
                self._take(_SCALAR)

    def _array(self, path: Path) -> None:
        self.at += len("[")
        position = 0
        while self.text[self._skip_blank()] != "]":
            self._note((*path, position), self.at)
            self._value((*path, position))
            self._skip_comma()
            position += 1
        self.at += len("]")

    def _inline_table(self, path: Path) -> None:
        self.at += len("{")
        while self.text[self._skip_blank()] != "}":
            self._assignment(path)
            self._skip_comma()
        self.at += len("}")

    def _note(self, path: Path, start: int) -> None:
        line = bisect_right(self.line_starts, start)
        for length in range(1, len(path)):
            self.lines.setdefault(path[:length], line)
        self.lines[path] = line

    def _skip_comma(self) -> None:
        if self.text[self._skip_blank()] == ",":
            self.at += len(",")

    def _skip_blank(self) -> int:
        self._take(_BLANK)
        return self.at

    def _take(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self.text, self.at)
        if match is None:
            raise ValueError(f"not TOML at character {self.at}")
        self.at = match.end()
        return match.group()
