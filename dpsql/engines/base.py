"""The engines that hold the data. A backend runs generated SQL and returns exact tables; it decides nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from dpsql.lowering.dialect import Dialect
from dpsql.lowering.query import Cancellation, EngineQuery
from dpsql.policy.model import DatabaseSchema
from dpsql.tables import ExactTable
from dpsql.types import Value


class Engine(Protocol):
    """What dpsql needs of an engine. Every method may be called from several threads at once."""

    @property
    def dialect(self) -> Dialect:
        """The engine's own SQL, which queries must be written in."""
        ...

    def schema(self) -> DatabaseSchema:
        """Tables, views, column types and enforced uniqueness, from the engine's catalog."""
        ...

    def warnings(self, sources: Sequence[tuple[str, ...]]) -> list[str]:
        """What the owner should know about these tables and dpsql's rights, a sentence each."""
        ...

    def ready(
        self, sources: Sequence[tuple[str, ...]], *, timeout: float, cancellation: Cancellation | None = None
    ) -> None:
        """Raise if no query on these tables can run as the policy means it. Asked before anything is paid.

        It reads no row of a table: only whether the engine can be reached, and what its catalog says.
        """
        ...

    def execute(
        self, queries: Sequence[EngineQuery], *, timeout: float, cancellation: Cancellation | None = None
    ) -> list[ExactTable]:
        """Run the queries on one snapshot of the data. The timeout, in seconds, covers all of them together."""
        ...

    def read_public(self, source: tuple[str, ...], columns: Sequence[str], limit: int) -> list[list[Value]]:
        """The named columns of a public table, column by column, of at most `limit` + 1 rows."""
        ...

    def is_unique(self, source: tuple[str, ...], columns: tuple[str, ...]) -> bool:
        """Whether no two rows share the values of these columns, NULL aside.

        Asked once, when the database is opened, for keys that the engine does not enforce. An engine whose data can
        change while it is open answers False.
        """
        ...

    def close(self) -> None:
        """Let go of the database. Calls that still run may finish."""
        ...
