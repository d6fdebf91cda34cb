"""Where in a TOML text each key stands. The standard parser does not tell, and an owner wants to know."""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_right
from dataclasses import dataclass

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
class Place:
    """Where a header or an assignment stands: characters from `start` to `end`, its value from `value` to `end`."""

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
        """The line of `path`, or of the nearest thing around it."""
        while path and path not in self._lines:
            path = path[:-1]
        return self._lines.get(path)


class Scanner:
    """Walks over the text once. It checks nothing: the text is known to be valid TOML, with plain newlines."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.line_starts = [0, *(match.end() for match in re.finditer("\n", text))]
        self.lines: dict[Path, int] = {}
        self.headers: dict[Path, Place] = {}
        self.assignments: dict[Path, Place] = {}

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
        self.headers[path] = Place(start, self.at, self.at)
        return path

    def _assignment(self, table: Path) -> None:
        start = self._skip_blank()
        path = table + self._key()
        self._note(path, start)
        self.at += len("=")
        value = self._skip_blank()
        self._value(path)
        written = self.text[value : self.at].rstrip()
        self.assignments[path] = Place(start, value, value + len(written))

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
