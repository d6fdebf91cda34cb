"""The database interface of the ledger. Statements are written once, with `?` for values, for SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol

Row = tuple[Any, ...]


class Rows(Protocol):
    """What a statement returned."""

    def __iter__(self) -> Iterator[Row]: ...

    def fetchone(self) -> Row | None: ...

    def fetchall(self) -> list[Row]: ...


class Database(Protocol):
    """One connection, inside a transaction that the caller begins and ends."""

    def execute(self, sql: str, parameters: Sequence[Any] = ..., /) -> Rows: ...

    def executemany(self, sql: str, parameters: Iterable[Sequence[Any]], /) -> object: ...

    def format(self) -> int:
        """The format in which the ledger is written."""
        ...

    def damage(self) -> list[str]:
        """What the database's own integrity check reports."""
        ...


# ------------------------------------------------------------
# Timestamps of the rows: UTC, as text of fixed width, so that text order is time order.


def now() -> datetime:
    return datetime.now(UTC)


def timestamp() -> str:
    return stored(now())


def stored(time: datetime) -> str:
    return time.astimezone(UTC).isoformat(timespec="microseconds")
