"""The engines that hold the data. An engine runs generated SQL and returns exact tables; it decides nothing.

An `EngineKind` is registered for the schemes of an engine: how its addresses are parsed, how it is opened, and which of
`dpsql init`, `dpsql prepare` and `dpsql audit` it supports.
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

if TYPE_CHECKING:  # not needed to answer queries
    from dpsql.lowering.copies import TableToCopy
    from dpsql.policy.draft import Suggestions
    from dpsql.policy.prepared import About
    from dpsql.policy.propose import Proposal, SchemaDetails

Tell = Callable[[str], None]


class Engine(Protocol):
    """What dpsql needs from an engine. Every method may be called from several threads at once."""

    @property
    def dialect(self) -> Dialect:
        """The engine's own SQL, which queries must be written in."""
        ...

    def schema(self) -> DatabaseSchema:
        """Tables, views, column types and enforced uniqueness, from the engine's catalog."""
        ...

    def warnings(self, sources: Sequence[tuple[str, ...]]) -> list[str]:
        """Warnings for the owner about these tables and dpsql's privileges, one sentence each."""
        ...

    def ready(
        self, sources: Sequence[tuple[str, ...]], *, timeout: float, cancellation: Cancellation | None = None
    ) -> None:
        """Raise if queries on these tables cannot run as the policy requires. Called before anything is charged.

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

        Called once, when the database is opened, for keys that the engine does not enforce. An engine whose data can
        change while it is open returns False.
        """
        ...

    def close(self) -> None:
        """Close the database. Running calls may finish."""
        ...


# --- optional support for commands ---


@dataclass(frozen=True, slots=True)
class Surveyed:
    """A database, as needed to draft a policy."""

    shown: str  # its name, for messages
    url: str  # as the policy file writes it, without a password
    ledger: str | None  # set where the policy must name one
    schema: DatabaseSchema
    details: SchemaDetails
    suggest: Callable[[Sequence[Proposal]], Suggestions]  # reads the data


class Survey(Protocol):
    """Support for `dpsql init`."""

    def __call__(self, database: str, folder: Path, tell: Tell) -> Surveyed:
        """Survey a database. A path inside the folder of the future policy file is written relative to it.

        Raises PolicyError if there is none; the error quotes nothing of the address.
        """
        ...


@dataclass(frozen=True, slots=True)
class CopyRequest:
    """A copy that the owner wants."""

    address: Address
    limits: Limits
    version: int
    to: str | None  # the target, if the owner names one
    writer: str | None  # an address whose role may write, if the owner names one


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """Where a copy will be."""

    name: str  # as the policy file names it
    places: Mapping[tuple[str, ...], tuple[str, str]]  # schema and name of each table's copy


class CopyWriter(Protocol):
    """Support for `dpsql prepare`."""

    @property
    def in_database(self) -> bool:
        """Whether a copy is written into the database itself, for which the owner is asked first."""
        ...

    def plan(
        self, request: CopyRequest, private: Sequence[tuple[str, ...]], public: Sequence[tuple[str, ...]]
    ) -> CopyPlan:
        """Where the copy will be, and of which tables; it must include the private ones."""
        ...

    def like(self, table: TableSchema) -> tuple[TableSchema, tuple[tuple[str, ...], ...]]:
        """The table as it is copied, and the unique keys that the copy will not enforce."""
        ...

    def write(self, request: CopyRequest, name: str, tables: Sequence[TableToCopy], about: About, tell: Tell) -> None:
        """Write the copy, whole or not at all, in one snapshot; `tell` is called with the name of each table."""
        ...

    def warnings(self, address: Address, prepared: PreparedPolicy) -> list[str]:
        """Warnings for the owner about the copy in use, one sentence each."""
        ...


@dataclass(frozen=True, slots=True)
class Filled:
    """A synthetic table with its columns and rows."""

    table: Table
    columns: Mapping[str, Type]
    rows: Sequence[Mapping[str, Value]]


class Scratch(Protocol):
    """Support for `dpsql audit`: creates synthetic databases."""

    def database(self, name: str, tables: Iterable[Filled]) -> Engine: ...


class EngineKind(Addressing, Protocol):
    """What is registered for an engine's schemes. Only its methods import the driver, not its module."""

    @property
    def title(self) -> str:
        """The engine's name, for messages."""
        ...

    @property
    def dialect(self) -> Dialect:
        """The dialect of every engine that it opens."""
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
