"""What the owner declares: the protected unit, the columns, and the total privacy loss of all answers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from dpsql.policy.address import PostgresAddress
from dpsql.policy.protection import Protection
from dpsql.types import Kind, Type, Value

Accounting = Literal["basic", "zcdp"]
Bound = Fraction | date | datetime
TlsRule = Literal["remote", "required", "off"]


# --- the policy file, before it is joined with the database ---


@dataclass(frozen=True, slots=True)
class ColumnPolicy:
    """A column an analyst may use. Bounds are an instruction to clamp, not a promise about the data."""

    name: str
    lower: Bound | None = None
    upper: Bound | None = None
    step: Fraction | None = None
    values: tuple[Value, ...] | None = None
    nullable_key: bool = False
    line: int | None = None
    tight: bool | None = None  # whether sums are near their bounds; None: not declared
    max_rows_per_value: int | None = None  # of a public table: the most rows with the same value


@dataclass(frozen=True, slots=True)
class UnitReference:
    """The owner of a row is the owner of the row it points at: `via` here equals `key` in `table`."""

    via: tuple[str, ...]
    table: str
    key: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TablePolicy:
    name: str  # as analysts write it: "people" or "schema.people"
    public: bool = False
    unit: str | UnitReference | None = None
    max_rows_per_unit: int = 1
    max_groups_per_unit: int | None = None
    columns: Mapping[str, ColumnPolicy] = field(default_factory=lambda: MappingProxyType({}))
    line: int | None = None
    tight: bool | None = None  # whether people come near max_rows_per_unit; None: not declared


@dataclass(frozen=True, slots=True)
class ViewPolicy:
    """A named query. It grants no access: it is read as if its text replaced its name."""

    name: str
    sql: str
    line: int | None = None


@dataclass(frozen=True, slots=True)
class UserPolicy:
    name: str
    epsilon: Fraction | None = None  # None: limited by the dataset's total only
    line: int | None = None
    password: str | None = field(default=None, repr=False)  # a SCRAM-SHA-256 verifier; None: cannot log in


@dataclass(frozen=True, slots=True)
class PrivacyPolicy:
    epsilon: Fraction
    delta: Fraction
    accounting: Accounting
    query_epsilon: Fraction
    query_delta: Fraction | None  # None: the same fraction of key_delta as the price is of the total
    key_delta: Fraction  # the part of delta kept for releasing unknown keys
    max_query_epsilon: Fraction  # the most one query may cost
    pure: bool = False  # whether pure answers are enabled, with a total of their own (zcdp)
    min_query_epsilon: Fraction | None = None  # the least one query may cost; None: whatever the ledger can count


@dataclass(frozen=True, slots=True)
class StatementLimits:
    """Limits on the size of one statement, by their names in [limits]."""

    max_bytes: int = 100_000
    max_nodes: int = 50_000  # words, and parts of expressions after views and common table expressions are expanded
    max_nesting: int = 60
    max_joins: int = 64
    max_list: int = 10_000  # values of an IN


@dataclass(frozen=True, slots=True)
class CompileLimits:
    """Limits on compiling one query, by their names in [limits]."""

    max_compile_steps: int = 5_000_000
    compile_timeout: float = 10.0  # seconds of CPU time
    compile_memory: str = "500MB"

    @property
    def memory_bytes(self) -> int:
        found = re.fullmatch(r"([0-9.]+) ?([KMGT])(i?)B", self.compile_memory)
        assert found is not None  # checked when the policy was read
        return int(float(found[1]) * (1_024 if found[3] else 1_000) ** (1 + "KMGT".index(found[2])))


@dataclass(frozen=True, slots=True)
class Limits:
    max_cells: int = 100_000
    statement: StatementLimits = field(default_factory=StatementLimits)
    compiling: CompileLimits = field(default_factory=CompileLimits)
    timeout: float = 60.0  # seconds
    memory: str = "2GB"
    threads: int = 2
    replay_days: float | None = None  # None: stored answers do not expire
    max_result_cells: int = 5_000_000  # rows times columns of an answer
    max_queries_per_user: int = 4  # concurrent queries on a server
    answer_tick: float | None = None  # seconds; None: the server answers as soon as it can


LedgerLocation = Path | PostgresAddress  # a ledger file, or a database on a server


@dataclass(frozen=True, slots=True)
class PreparedPolicy:
    """The copy of the private tables that `dpsql prepare` wrote, and that is read instead of them."""

    copy: str  # a DuckDB file, from the folder of the policy file, or a schema of the PostgreSQL database
    version: int
    identity: str  # the copy holds the same
    line: int | None = None


@dataclass(frozen=True, slots=True)
class ServerPolicy:
    """Where `dpsql serve` listens, and who may connect."""

    host: str = "127.0.0.1"
    port: int = 5437
    tls: TlsRule = "remote"  # required from remote clients; "required": from all; "off": not offered
    certificate: Path | None = None  # None: a self-signed one
    key: Path | None = None
    max_connections: int = 100
    max_connections_per_user: int | None = None  # None: half of them, or 10 if that is more
    login_timeout: float = 30.0  # seconds
    metrics_port: int | None = None
    twin: str | None = field(default=None, repr=False)  # address of an empty database; None: a cluster managed by dpsql
    state: Path | None = None  # None: `.dpsql` beside the policy file
    certificate_line: int | None = None

    @property
    def most_of_one_user(self) -> int:
        """The most concurrent connections of one user."""
        return self.max_connections_per_user or max(10, self.max_connections // 2)

    @property
    def reserved_connections(self) -> int:
        """Connections reserved for users who have none yet; none if one user may have all."""
        return min(3, self.max_connections // 10) if self.most_of_one_user < self.max_connections else 0


@dataclass(frozen=True, slots=True)
class Policy:
    path: Path
    database: str = field(repr=False)  # the address; it may hold a password
    privacy: PrivacyPolicy
    tables: Mapping[str, TablePolicy]
    users: Mapping[str, UserPolicy]
    limits: Limits
    ledger: LedgerLocation | None  # None: beside the database
    server: ServerPolicy = field(default_factory=ServerPolicy)
    views: Mapping[str, ViewPolicy] = field(default_factory=lambda: MappingProxyType({}))
    prepared: PreparedPolicy | None = None
    engine_keys: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), repr=False)


# --- the policy joined with the schema of the database: what the compiler reads ---


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    type: Type  # narrowed to the declared bounds
    nullable: bool = True
    lower: Bound | None = None
    upper: Bound | None = None
    step: Fraction | None = None
    values: tuple[Value, ...] | None = None
    nullable_key: bool = False
    tight: bool | None = None
    max_rows_per_value: int | None = None

    @property
    def is_clamped(self) -> bool:
        """Whether different values in the database may look equal in a query."""
        inexact = self.type.kind in (
            Kind.DOUBLE,
            Kind.TIMESTAMP,
            Kind.TIMESTAMPTZ,
        )  # the finest timestamps are cut to microseconds
        return self.lower is not None or self.values is not None or inexact


@dataclass(frozen=True, slots=True)
class Step:
    """From a row to the row it belongs to: the columns `via` hold a unique key of another table."""

    via: tuple[str, ...]
    table: str  # its declared name
    source: tuple[str, ...]
    key: tuple[str, ...]
    types: tuple[Type, ...]


@dataclass(frozen=True, slots=True)
class Copy:
    """A prepared copy of a private table: each row with its owner and the owner's number of rows in the table."""

    source: tuple[str, ...]  # schema and table in the database that is read
    unit: str  # the path of references to the owner when the copy was made
    version: int


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """A declared table. `owner` is None for a public one. Each table is one object, compared by identity.

    Where there is a path, the owner is a column of the table at its end.
    """

    name: str
    source: tuple[str, ...]  # schema and table in the database
    columns: Mapping[str, Column]  # declared ones only, in the database's order
    owner: str | None = None
    owner_type: Type | None = None
    owner_unique: bool = False  # the engine enforces at most one row per unit
    max_rows_per_unit: int = 1
    max_groups_per_unit: int | None = None
    tight: bool | None = None
    path: tuple[Step, ...] = ()
    keys: Mapping[tuple[str, ...], tuple[Type, ...]] = field(default_factory=lambda: MappingProxyType({}))
    # `keys` are those that other tables refer to; `unique` holds all sets of columns that the engine keeps unique.
    unique: frozenset[frozenset[str]] = frozenset()
    # The distinct values in each column of a small public table; None for other tables.
    contents: Mapping[str, tuple[Value, ...]] | None = None
    # Its rows, with a value for each of `columns`, where they were read.
    rows: tuple[tuple[Value, ...], ...] | None = field(default=None, repr=False)
    # Of a larger public table: some of its columns, and every combination of values that they have.
    combinations: tuple[tuple[str, ...], tuple[tuple[Value, ...], ...]] | None = field(default=None, repr=False)
    copy: Copy | None = None  # is read instead of the table
    # By table and column: where NULL, if the schema allows it, ends the path from a row to its owner.
    optional_owner: tuple[tuple[str, str], ...] = ()

    @property
    def is_private(self) -> bool:
        return self.owner is not None

    @property
    def read_from(self) -> tuple[str, ...]:
        """The schema and table that are read."""
        return self.source if self.copy is None else self.copy.source

    @property
    def hidden(self) -> Mapping[str, Type]:
        """The columns that identify the owner of a row but are not declared: they can only be compared."""
        found: dict[str, Type] = {}
        if self.owner is not None and not self.path:
            assert self.owner_type is not None
            found[self.owner] = self.owner_type
        named = list(self.keys.items()) + [(step.via, step.types) for step in self.path[:1]]
        for columns, types in named:
            for name, type_ in zip(columns, types, strict=True):
                found.setdefault(name, type_)
        return {name: type_ for name, type_ in found.items() if name not in self.columns}

    @property
    def unowned_text(self) -> str | None:
        """A description of the rows without an owner, which never count, if the schema allows any."""
        if not self.optional_owner:
            return None
        columns = [
            f'"{column}"' if table == self.name else f'"{column}" of "{table}"' for table, column in self.optional_owner
        ]
        return f'rows of "{self.name}" whose {" or ".join(columns)} is NULL have no owner and do not count'

    @property
    def unit_text(self) -> str:
        """The unit as declared, for messages: its column, or the path to it."""
        return " → ".join([*(", ".join(step.via) for step in self.path), self.owner or ""])


@dataclass(frozen=True, slots=True)
class Catalog:
    """Policy and schema joined: all that accepting, pricing and rewriting a query may read."""

    tables: Mapping[str, Table]
    max_cells: int
    fingerprint: str
    default_schema: str = "main"
    views: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    limits: StatementLimits = field(default_factory=StatementLimits)
    protection: Protection = field(default_factory=Protection)

    @property
    def is_renewed(self) -> bool:
        """Whether the owner has prepared the data again: earlier answers are from an older version."""
        return any(table.copy is not None and table.copy.version > 1 for table in self.tables.values())


# --- the schema of the database, as read from the engine's catalog ---


@dataclass(frozen=True, slots=True)
class ColumnSchema:
    name: str
    type: Type | None  # None: a type dpsql does not know; the column cannot be declared
    native: str  # the engine's name of the type, for messages
    nullable: bool


@dataclass(frozen=True, slots=True)
class TableSchema:
    source: tuple[str, ...]
    columns: Mapping[str, ColumnSchema]
    unique: frozenset[frozenset[str]]  # sets of columns the engine enforces as unique
    is_view: bool = False
    obstacle: str | None = None  # why dpsql cannot read it, such as "is a foreign table"
    case_matters: bool = False  # whether names are case-sensitive in the engine's own queries
    copy: Copy | None = None


@dataclass(frozen=True, slots=True)
class DatabaseSchema:
    tables: Mapping[tuple[str, str], TableSchema]  # (schema, table)
    default_schema: str
