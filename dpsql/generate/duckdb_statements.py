"""Generated SQL as DuckDB has read it. Reading takes a good part of a short query, and texts come again.

Here, below both, because the backend and the post-processor need it and must not import each other.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any, Protocol

from dpsql.errors import InternalError

REMEMBERED = 500
LONGEST = 100_000  # characters; a longer text is read each time


class Connection(Protocol):
    """As much of a DuckDB connection as is needed here."""

    def extract_statements(self, query: str, /) -> list[Any]: ...


class Statements:
    """Single SELECTs by their text. Safe for many threads: DuckDB runs a copy of what it is given."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[str, Any] = OrderedDict()

    def read(self, connection: Connection, sql: str) -> Any:
        """The statement; a text that is anything but one SELECT is a defect of ours."""
        with self._lock:
            found = self._known.get(sql)
            if found is not None:
                self._known.move_to_end(sql)
                return found
        statements = connection.extract_statements(sql)
        if [statement.type.name for statement in statements] != ["SELECT"]:
            raise InternalError("generated SQL is not a single SELECT")
        if len(sql) <= LONGEST:
            with self._lock:
                self._known[sql] = statements[0]
                while len(self._known) > REMEMBERED:
                    self._known.popitem(last=False)
        return statements[0]
