"""The engines that hold the data. An engine runs generated SQL and returns exact tables; it decides nothing.

`EngineKind` is what is registered for the schemes of an engine: how its addresses are read, how it is opened, and what
of `dpsql init`, `dpsql prepare` and `dpsql audit` it takes part in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from dpsql.effort import Cancellation
from dpsql.lowering.dialect import Dialect
from dpsql.lowering.query import EngineQuery
from dpsql.policy.model import DatabaseSchema, Limits, PreparedPolicy, Table, TableSchema
from dpsql.policy.schemes import Address, Addressing
from dpsql.tables import ExactTable
from dpsql.types import Type, Value

if TYPE_CHECKING:  # what a query has no need of
    from dpsql.lowering.copies import TableToCopy
    from dpsql.policy.draft import Suggestions
    from dpsql.policy.prepared import About
    from dpsql.policy.propose import Proposal, SchemaDetails

Tell = Callable[[str], None]


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


# --- what a kind of engine may take part in ---


@dataclass(frozen=True, slots=True)
class Surveyed:
    """A database as the draft of a policy sees it."""

    shown: str  # its name, for messages
    url: str  # as the policy file writes it, without a password
    ledger: str | None  # where the policy must name one
    schema: DatabaseSchema
    details: SchemaDetails
    suggest: Callable[[Sequence[Proposal]], Suggestions]  # reads the data


class Survey(Protocol):
    """What `dpsql init` asks for."""

    def __call__(self, database: str, folder: Path, tell: Tell) -> Surveyed:
        """Look at a database. A path is written from the folder, where the policy file will be, if it lies there.

        Raises PolicyError if there is none, whose text repeats nothing of an address.
        """
        ...


@dataclass(frozen=True, slots=True)
class CopyRequest:
    """A copy that the owner wants."""

    address: Address
    limits: Limits
    version: int
    to: str | None  # where, if the owner says so
    writer: str | None  # an address whose role may write, if the owner gives one


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """Where a copy will be."""

    name: str  # as the policy file names it
    places: Mapping[tuple[str, ...], tuple[str, str]]  # of the tables that are copied: schema and name of the copy


class CopyWriter(Protocol):
    """Copies for `dpsql prepare`."""

    @property
    def in_database(self) -> bool:
        """Whether a copy is written into the database itself. Then the owner is asked before."""
        ...

    def plan(
        self, request: CopyRequest, private: Sequence[tuple[str, ...]], public: Sequence[tuple[str, ...]]
    ) -> CopyPlan:
        """Where the copy will be, and of which tables. Private ones must be among them."""
        ...

    def like(self, table: TableSchema) -> tuple[TableSchema, tuple[tuple[str, ...], ...]]:
        """The table as it is copied, and the keys that are held unique in it and will not be in the copy."""
        ...

    def write(self, request: CopyRequest, name: str, tables: Sequence[TableToCopy], about: About, tell: Tell) -> None:
        """Write the copy, whole or not at all, in one snapshot; `tell` is called with the name of each table."""
        ...

    def warnings(self, address: Address, prepared: PreparedPolicy) -> list[str]:
        """What the owner should know about the copy that is read, a sentence each."""
        ...


@dataclass(frozen=True, slots=True)
class Filled:
    """A made-up table with its columns and rows."""

    table: Table
    columns: Mapping[str, Type]
    rows: Sequence[Mapping[str, Value]]


class Scratch(Protocol):
    """Where `dpsql audit` makes databases of its own."""

    def database(self, name: str, tables: Iterable[Filled]) -> Engine: ...


class EngineKind(Addressing, Protocol):
    """What is registered for an engine's schemes. Its module imports no driver: that is left to its methods."""

    @property
    def title(self) -> str:
        """The engine's name, for messages."""
        ...

    @property
    def dialect(self) -> Dialect:
        """Its SQL. Every engine that it opens speaks it."""
        ...

    def open(self, address: Address, limits: Limits, prepared: PreparedPolicy | None) -> Engine:
        """Open the database, or the prepared copy that is read instead of it."""
        ...

    @property
    def survey(self) -> Survey | None:
        """None: `dpsql init` cannot draft a policy."""
        ...

    @property
    def copies(self) -> CopyWriter | None:
        """None: `dpsql prepare` makes no copies."""
        ...

    def scratch(self, folder: Path) -> AbstractContextManager[Scratch] | None:
        """Databases of the same kind in a folder; None: `dpsql audit` cannot make any."""
        ...
