"""The toy tables as an engine can store them, and policies for them, on the engine and on DuckDB."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import duckdb

from dpsql.compliance.lab import ToyDataset, open_database
from dpsql.compliance.toy import OWNERS, fill_clean, fill_dirty, policy_text
from dpsql.engines.base import Engine
from dpsql.engines.registry import engine_kind
from dpsql.policy.model import Limits
from dpsql.policy.schemes import address_of
from dpsql.types import Kind, Type

KINDS = frozenset(
    (Kind.BOOLEAN, Kind.INTEGER, Kind.DECIMAL, Kind.DOUBLE, Kind.TEXT, Kind.DATE, Kind.TIMESTAMP)
)  # that the toy tables have
MISSING = 1  # the person removed in the neighbour of the dirty data: the one with the most rows
_NATIVE = {Kind.BOOLEAN: "BOOLEAN", Kind.DOUBLE: "DOUBLE", Kind.TEXT: "VARCHAR", Kind.DATE: "DATE"}
_NATIVE |= {Kind.TIMESTAMP: "TIMESTAMP"}


@dataclass(frozen=True, slots=True)
class ToyColumn:
    name: str
    type: Type
    nullable: bool


@dataclass(frozen=True, slots=True)
class ToyTable:
    """A table of the schema `main`. Cells are texts as DuckDB writes them: `nan`, `-inf`, `0044-03-15 (BC)`, `true`."""

    name: str
    columns: tuple[ToyColumn, ...]
    key: tuple[str, ...]  # a primary key; empty if there is none
    rows: Sequence[tuple[str | None, ...]]


class Server(Protocol):
    """A server of databases, apart from dpsql's own process."""

    def running(self, url: str) -> int:
        """How many queries it works on in the database."""
        ...

    def hang_up(self, url: str) -> None:
        """End all connections to the database, as when the server goes away."""
        ...

    def refused(self, url: str) -> str:
        """The same address for somebody whom it does not let in, with "secret" for a password."""
        ...


class Place(Protocol):
    """Creates databases of the engine under test. The author of the engine implements it."""

    @property
    def kinds(self) -> frozenset[Kind]:
        """The kinds of values that its columns may hold. Other columns are left out of the toy tables."""
        ...

    @property
    def server(self) -> Server | None:
        """None: the engine works within dpsql's own process. A class of tests says so in `without`."""
        ...

    @property
    def change(self) -> Callable[[str], None] | None:
        """Adds a column to `people` in a database that is open, and drops the column `age`.

        None: nobody can while it is open. A class of tests says so in `without`.
        """
        ...

    def make(self, name: str, tables: Sequence[ToyTable]) -> str:
        """Create a database with these tables and rows; returns its address."""
        ...


class DuckDBPlace:
    """DuckDB, which other engines are compared with."""

    server = None
    change = None

    def __init__(self, folder: Path, kinds: frozenset[Kind] = KINDS) -> None:
        self.kinds = kinds
        self._folder = folder

    def make(self, name: str, tables: Sequence[ToyTable]) -> str:
        path = self._folder / f"{name}.duckdb"
        with duckdb.connect(str(path)) as connection:
            for table in tables:
                columns = [
                    f'"{column.name}" {_native(column.type)}{"" if column.nullable else " NOT NULL"}'
                    for column in table.columns
                ]
                key = [f"PRIMARY KEY ({', '.join(table.key)})"] if table.key else []
                connection.execute(f'CREATE TABLE "{table.name}" ({", ".join([*columns, *key])})')
                if table.rows:
                    marks = ", ".join("?" * len(columns))
                    connection.executemany(f'INSERT INTO "{table.name}" VALUES ({marks})', table.rows)
        return f"duckdb:///{path}"


def _native(type_: Type) -> str:
    if type_.kind is Kind.DECIMAL:
        return f"DECIMAL({type_.precision},{type_.scale})"
    if type_.kind is Kind.INTEGER:
        return "BIGINT" if type_.precision > 10 else "INTEGER" if type_.precision > 5 else "SMALLINT"
    return _NATIVE[type_.kind]


class Toys:
    """The toy data on one engine: clean, under every policy; dirty, with and without one person."""

    def __init__(self, folder: Path, place: Place) -> None:
        self._folder = folder
        self._place = place
        self._kinds = place.kinds
        self._clean = tables(folder, place.kinds, dirty=False)
        self._columns = {table.name: {column.name for column in table.columns} for table in self._clean}
        self._url = place.make("clean", self._clean)
        dirty = tables(folder, place.kinds, dirty=True)
        self.dirty = self._opened(place.make("dirty", dirty))
        self.neighbour = self._opened(place.make("neighbour", [_without(table, MISSING) for table in dirty]))
        self._datasets: dict[str, ToyDataset] = {}

    def dataset(self, policy: str) -> ToyDataset:
        if policy not in self._datasets:
            self._datasets[policy] = self._bound(policy, open_url(self._url, self._folder))
        return self._datasets[policy]

    def apart(self, name: str, wrapped: Callable[[Engine], Engine] = lambda engine: engine) -> tuple[ToyDataset, str]:
        """A database of its own with the clean data, and its address."""
        url = self._place.make(name, self._clean)
        return self._bound("zcdp", wrapped(open_url(url, self._folder))), url

    def _bound(self, policy: str, engine: Engine) -> ToyDataset:
        text = reduced(policy_text(policy), self._columns) if self._kinds != KINDS else policy_text(policy)
        return ToyDataset(self._folder, policy, engine, text)

    def _opened(self, url: str) -> Engine:
        engine = open_url(url, self._folder)
        engine.schema()  # reads the tables that queries may use
        return engine

    def close(self) -> None:
        for dataset in self._datasets.values():
            dataset.close()
        self.dirty.close()
        self.neighbour.close()


def open_url(url: str, folder: Path) -> Engine:
    return engine_kind(url).open(address_of(url, folder), Limits(memory="1GB", threads=1), None)


def tables(folder: Path, kinds: frozenset[Kind], *, dirty: bool) -> list[ToyTable]:
    """The toy tables with the columns that the engine can store."""
    path = folder / f"source-{'dirty' if dirty else 'clean'}.duckdb"
    if not path.exists():
        with duckdb.connect(str(path)) as connection:
            (fill_dirty if dirty else fill_clean)(connection)
    with closing(open_database(path)) as engine:
        schema = engine.schema()
    found = []
    with duckdb.connect(str(path), read_only=True) as connection:
        for table in schema.tables.values():
            kept = [c for c in table.columns.values() if c.type is not None and c.type.kind in kinds]
            columns = tuple(ToyColumn(c.name, c.type, c.nullable) for c in kept if c.type is not None)
            shown = ", ".join(f'CAST("{column.name}" AS VARCHAR)' for column in columns)
            rows = connection.execute(f'SELECT {shown} FROM "{table.source[1]}"').fetchall()
            keys = sorted((sorted(key) for key in table.unique), key=len)
            found.append(ToyTable(table.source[1], columns, tuple(keys[0]) if keys else (), rows))
    return found


def _without(table: ToyTable, person: int) -> ToyTable:
    owner = OWNERS.get(table.name)
    if owner is None:
        return table  # rows that refer to removed rows have no owner
    place = [column.name for column in table.columns].index(owner)
    rows = [row for row in table.rows if row[place] != str(person)]
    return ToyTable(table.name, table.columns, table.key, rows)


def reduced(policy: str, columns: Mapping[str, set[str]]) -> str:
    """The policy without the columns that the tables lack, and without the views that use them."""
    gone: set[str] = set()
    kept: list[str] = []
    table = ""
    for line in policy.splitlines():
        if found := re.fullmatch(r"\[tables\.(\w+)(\.columns)?\]", line):
            table = found[1] if found[2] else ""
        elif line.startswith("["):
            table = ""
        name = re.match(r'"?(\w+)"? = ', line)
        if table and name and name[1] not in columns[table]:
            gone.add(name[1])
        else:
            kept.append(line)
    parts = re.split(r"^(?=\[)", "\n".join(kept), flags=re.MULTILINE)
    names = re.compile(rf"\b({'|'.join(gone)})\b") if gone else re.compile("(?!)")
    return "".join(part for part in parts if not (part.startswith("[views") and names.search(part)))
