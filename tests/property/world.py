"""A small world: a private table under some policy, one that refers to it, a public one, and every database next to it.

A `Case` is a question and a database. Cells of the database are SQL literals, so that a case prints as it could be
typed, and holds what Python has no value for: dates far outside the calendar, infinite ones.
"""

from __future__ import annotations

import atexit
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date, datetime
from decimal import Decimal
from fractions import Fraction
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import duckdb

from dpsql.engines.duckdb.engine import DuckDBEngine
from dpsql.engines.duckdb.session import lock_down
from dpsql.lowering.dialect import Dialect
from dpsql.lowering.duckdb_dialect import DUCKDB
from dpsql.lowering.query import EngineQuery
from dpsql.policy.bind import bind
from dpsql.policy.model import (
    Accounting,
    Catalog,
    ColumnPolicy,
    DatabaseSchema,
    Limits,
    Policy,
    PrivacyPolicy,
    TablePolicy,
    UnitReference,
)
from dpsql.privacy.accounting import Accountant
from dpsql.privacy.mechanisms.partition_selection import PartitionSelection
from dpsql.privacy.mechanisms.top_keys import TopKeys
from dpsql.privacy.rules.aggregates import CHOSEN, Statistic, StatisticKind, centres, clips, weight_in_keys
from dpsql.release import Measurement, QuerySettings, Release, compile_release
from dpsql.sql.parse import parse
from dpsql.sql.resolve import resolve
from dpsql.types import Kind, Type, Value

OWNER = "who"
TABLE = "t"
KEY = "k"  # numbers the rows of t
DETAILS = "d"  # a row belongs to the owner of the row of t that it names
PUBLIC = "p"

# One column of every type that the backend tells apart.
COLUMNS: Mapping[str, tuple[str, Kind]] = MappingProxyType(
    {
        "small": ("SMALLINT", Kind.INTEGER),
        "n": ("INTEGER", Kind.INTEGER),
        "big": ("BIGINT", Kind.INTEGER),
        "amount": ("DECIMAL(9,2)", Kind.DECIMAL),
        "wide": ("DECIMAL(38,4)", Kind.DECIMAL),
        "x": ("DOUBLE", Kind.DOUBLE),
        "f": ("FLOAT", Kind.DOUBLE),
        "s": ("VARCHAR", Kind.TEXT),
        "flag": ("BOOLEAN", Kind.BOOLEAN),
        "day": ("DATE", Kind.DATE),
        "moment": ("TIMESTAMP", Kind.TIMESTAMP),
    }
)
DETAIL_COLUMNS: Mapping[str, tuple[str, Kind]] = MappingProxyType(
    {"m": ("INTEGER", Kind.INTEGER), "w": ("DOUBLE", Kind.DOUBLE)}
)
# Several rows for one value, none for others, and what an engine may stumble over.
PUBLIC_COLUMNS: Mapping[str, tuple[str, Kind]] = MappingProxyType(
    {"a": ("INTEGER", Kind.INTEGER), "b": ("DOUBLE", Kind.DOUBLE), "label": ("VARCHAR", Kind.TEXT)}
)
PUBLIC_ROWS = (
    "(1, 0.5, 'one'), (1, 'nan', 'uno'), (2, 'inf', NULL), (3, 1e308, 'three'), (NULL, 7, 'none'), (0, -1, '')"
)
OWNER_TYPES = ("INTEGER", "VARCHAR", "DATE")

SALT = "0123456789abcdef0123456789abcdef"
MAX_CELLS = 200


@dataclass(frozen=True, slots=True)
class Declared:
    """The policy of the one table."""

    columns: tuple[ColumnPolicy, ...]
    owner_type: str = "INTEGER"
    unique: bool = False  # at most one row per unit, enforced by the engine
    max_rows: int = 1
    max_groups: int | None = None
    tight: bool | None = None
    accounting: Accounting = "basic"
    pure: bool = False  # whether pure answers are sold

    def __str__(self) -> str:
        unique = " PRIMARY KEY" if self.unique else ""
        groups = "" if self.max_groups is None else f", max_groups_per_unit = {self.max_groups}"
        groups += "" if self.tight is None else f", tight = {self.tight}"
        lines = [
            f"accounting {self.accounting}",
            f'[tables.t] unit = "who" ({self.owner_type}{unique}), max_rows_per_unit = {self.max_rows}{groups}',
        ]
        return "\n".join(lines + [f"{column.name} = {_written(column)}" for column in self.columns])


def _written(column: ColumnPolicy) -> str:
    parts = {
        "min": column.lower,
        "max": column.upper,
        "step": column.step,
        "values": None if column.values is None else list(column.values),
        "nullable_key": column.nullable_key or None,
    }
    return "{ " + ", ".join(f"{name} = {value}" for name, value in parts.items() if value is not None) + " }"


Row = Mapping[str, str]  # column to SQL literal; a column left out is NULL


@dataclass(frozen=True, slots=True, repr=False)
class Case:
    """A question, the policy it is asked under, a database, and what its earlier stages answered."""

    sql: str
    declared: Declared
    rows: tuple[Row, ...]
    stage_values: tuple[Value, ...] = ()  # used in turn
    details: tuple[Row, ...] = ()

    def __repr__(self) -> str:
        """As a grammar case would be written: what a failing test prints can be read, and typed."""
        rows = [
            f"INSERT{'' if count == 1 else f' {count} times'} {', '.join(f'{name} {cell}' for name, cell in row)}"
            for row, count in Counter(tuple(row.items()) for row in self.rows).items()
        ]
        rows += [f"INSERT INTO d {', '.join(f'{name} {cell}' for name, cell in row.items())}" for row in self.details]
        stages = [f"stages {', '.join(map(repr, self.stage_values))}"] if self.stage_values else []
        return "\n".join(["", "policy", str(self.declared), "", *rows, *stages, "", self.sql, "----"])


# --- compiling ---


@cache
def _schemas() -> Mapping[tuple[str, bool], DatabaseSchema]:
    """What the backend reads from the engine's catalog, for each kind of owner."""
    kinds = [(owner, unique) for owner in OWNER_TYPES for unique in (False, True)]
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "schema.duckdb"
        with duckdb.connect(str(path)) as connection:
            for i, (owner, unique) in enumerate(kinds):
                connection.execute(f"CREATE SCHEMA v{i}")
                connection.execute(f"CREATE TABLE v{i}.{TABLE} ({_definition(owner, unique)})")
                connection.execute(f"CREATE TABLE v{i}.{DETAILS} ({_details_definition()})")
                connection.execute(f"CREATE TABLE v{i}.{PUBLIC} ({_public_definition()})")
        engine = DuckDBEngine(path, memory="1GB", threads=1)
        schema = engine.schema()
        engine.close()
    found = {}
    for i, kind in enumerate(kinds):
        sources = {("main", name): ("main", name) for name in (TABLE, DETAILS, PUBLIC)}
        tables = {source: replace(schema.tables[f"v{i}", source[1]], source=source) for source in sources}
        found[kind] = DatabaseSchema(tables, "main")
    return found


def _definition(owner: str, unique: bool) -> str:
    columns = [f"{OWNER} {owner}{' PRIMARY KEY' if unique else ''}", f"{KEY} INTEGER"]
    return ", ".join([*columns, *(f"{name} {native}" for name, (native, _) in COLUMNS.items())])


def _details_definition() -> str:
    return ", ".join(["ref INTEGER", *(f"{name} {native}" for name, (native, _) in DETAIL_COLUMNS.items())])


def _public_definition() -> str:
    return ", ".join(f"{name} {native}" for name, (native, _) in PUBLIC_COLUMNS.items())


def catalog_of(declared: Declared) -> tuple[Catalog, Accountant]:
    privacy = PrivacyPolicy(
        epsilon=Fraction(100),
        delta=Fraction(1, 1000),
        accounting=declared.accounting,
        query_epsilon=Fraction(1),
        query_delta=None,
        key_delta=Fraction(1, 2000),
        max_query_epsilon=Fraction(100),
        pure=declared.pure,
    )
    table = TablePolicy(
        TABLE,
        unit=OWNER,
        max_rows_per_unit=declared.max_rows,
        max_groups_per_unit=declared.max_groups,
        tight=declared.tight,
        columns={column.name: column for column in declared.columns},
    )
    details = TablePolicy(
        DETAILS,
        unit=UnitReference(("ref",), TABLE, (KEY,)),
        max_rows_per_unit=declared.max_rows,
        columns={
            "m": ColumnPolicy("m", Fraction(0), Fraction(9)),
            "w": ColumnPolicy("w", Fraction(-1), Fraction(1)),
        },
    )
    bounds = {"b": ColumnPolicy("b", Fraction(0), Fraction(10))}
    public = TablePolicy(PUBLIC, public=True, columns=bounds)
    tables = {TABLE: table, DETAILS: details, PUBLIC: public}
    policy = Policy(Path("dpsql.toml"), "duckdb:///d", privacy, tables, {}, Limits(max_cells=MAX_CELLS), ledger=None)
    # The rows of a case are numbered, each once.
    schema = _schemas()[declared.owner_type, declared.unique]
    return bind(policy, schema, lambda *_: True), Accountant(privacy)


def release_of(case: Case, dialect: Dialect = DUCKDB) -> Release:
    catalog, accountant = catalog_of(case.declared)
    plan = resolve(parse(case.sql), catalog)
    release = compile_release(plan, catalog, accountant, QuerySettings(), dialect, "searched")
    if release.settle is None:
        return release
    # Any clip may be chosen; which one, is no matter of the rows.
    found = {index: choices(release.measurements[index].statistics[0]) for index in release.searches}
    return release.settle({index: len(case.sql) % count for index, count in found.items()})


def choices(search: Statistic) -> int:
    """Among how many clips or centres a search chooses."""
    return centres(search) if search.kind is StatisticKind.CENTRE else len(clips(search))


# --- running ---


class World(Protocol):
    """An engine with the tables, filled again and again."""

    @property
    def dialect(self) -> Dialect: ...

    def fill(self, declared: Declared, rows: Sequence[Row], details: Sequence[Row] = ()) -> None: ...

    def run(self, query: EngineQuery, parameters: Mapping[str, object]) -> dict[tuple[Any, ...], tuple[int, ...]]:
        """The sums of each key, as the engine computes them."""
        ...


class Database:
    """One connection, one table, filled again and again."""

    dialect = DUCKDB

    def __init__(self) -> None:
        self.connection = duckdb.connect(":memory:", config={"threads": 1})
        lock_down(self.connection)
        self._by_statistics = duckdb.connect(":memory:", config={"threads": 1})
        lock_down(self._by_statistics, statistics=True)
        self._on_both(f"CREATE TABLE {PUBLIC} ({_public_definition()})")
        self._on_both(f"INSERT INTO {PUBLIC} VALUES {PUBLIC_ROWS}")

    def _on_both(self, statement: str) -> None:
        for connection in (self.connection, self._by_statistics):
            connection.execute(statement)

    def close(self) -> None:
        self.connection.close()
        self._by_statistics.close()

    def fill(self, declared: Declared, rows: Sequence[Row], details: Sequence[Row] = ()) -> None:
        self._fill(TABLE, _definition(declared.owner_type, False), [OWNER, KEY, *COLUMNS], rows)
        self._fill(DETAILS, _details_definition(), ["ref", *DETAIL_COLUMNS], details)

    def _fill(self, table: str, definition: str, names: Sequence[str], rows: Sequence[Row]) -> None:
        self._on_both(f"CREATE OR REPLACE TABLE {table} ({definition})")
        if rows:
            listed = ", ".join(f"({', '.join(row.get(name, 'NULL') for name in names)})" for row in rows)
            self._on_both(f"INSERT INTO {table} VALUES {listed}")

    def run(self, query: EngineQuery, parameters: Mapping[str, object]) -> dict[tuple[Any, ...], tuple[int, ...]]:
        """The sums of each key, as the engine computes them; those by its statistics are the same, where it can."""
        found = self._run(self.connection, query, parameters)
        with suppress(duckdb.Error):  # then the other is what is asked
            assert self._run(self._by_statistics, query, parameters) == found, "statistics make other sums"
        return found

    def _run(
        self, connection: duckdb.DuckDBPyConnection, query: EngineQuery, parameters: Mapping[str, object]
    ) -> dict[tuple[Any, ...], tuple[int, ...]]:
        (statement,) = connection.extract_statements(query.sql)
        used = {name: parameters[name] for name in statement.named_parameters}
        rows = connection.execute(statement, used).fetchall()
        found = {row[: query.keys]: row[query.keys :] for row in rows}
        assert len(found) == len(rows), "a key came twice"
        return found


@cache
def database() -> Database:
    """One for all examples: opening a connection takes longer than most questions."""
    opened = Database()
    atexit.register(opened.close)
    atexit.register(database.cache_clear)
    return opened


Vector = dict[tuple[Any, ...], int]  # one statistic over its keys


def vectors(measurement: Measurement, parameters: Mapping[str, object], here: World | None = None) -> list[Vector]:
    """The exact integers of each statistic, before noise."""
    here = here or database()
    found: list[Vector] = [{} for _ in measurement.statistics]
    for branch in measurement.branches:
        for key, sums in here.run(branch.query, parameters).items():
            is_histogram = measurement.statistics[branch.statistics[0]].kind in CHOSEN
            for statistic, value in zip(
                branch.statistics, sums * len(branch.statistics) if is_histogram else sums, strict=True
            ):
                assert type(value) is int, "a sum is not an integer"
                found[statistic][key] = value
    return found


def parameters_of(release: Release, values: Sequence[Value]) -> dict[str, object]:
    """The salt, and for each stage an answer of its type from `values`: neighbours see the same released ones."""
    parameters: dict[str, object] = {"salt": SALT}
    for number, stage in enumerate(release.stages):
        fitting = [value for value in values if _fits(value, stage.type)]
        if stage.kind == "in":
            known = [value for value in fitting if value is not None]
            parameters |= {f"s{number}": known, f"s{number}_null": None in fitting, f"s{number}_empty": not fitting}
        else:
            parameters[f"s{number}"] = fitting[number % len(fitting)] if fitting else None
    return parameters


_PYTHON = {
    Kind.INTEGER: int,
    Kind.DECIMAL: Decimal,
    Kind.DOUBLE: float,
    Kind.BOOLEAN: bool,
    Kind.TEXT: str,
    Kind.DATE: date,
    Kind.TIMESTAMP: datetime,
}


def _fits(value: Value, type_: Type) -> bool:
    if isinstance(value, Decimal) and abs(value) >= 10 ** (type_.precision - type_.scale):
        return False
    return value is None or type(value) is _PYTHON.get(type_.kind)


# --- neighbours ---


NOBODY = "nobody"
NOT_OWNED = "the rows without an owner"


def neighbours(rows: Sequence[Row]) -> Iterator[tuple[str, tuple[Row, ...]]]:
    """Who left, and the rows that stay, in the opposite order.

    Nothing may depend on the physical order of rows: it is another one after a unit has left. Rows without an owner do
    not exist, so nobody leaves with them either.
    """
    yield NOBODY, tuple(reversed(rows))
    owned = tuple(row for row in reversed(rows) if row[OWNER] != "NULL")
    if len(owned) < len(rows):
        yield NOT_OWNED, owned
    for unit in dict.fromkeys(row[OWNER] for row in owned):
        yield unit, tuple(row for row in reversed(rows) if row[OWNER] != unit)


def _remaining(details: Sequence[Row], rows: Sequence[Row], before: Sequence[Row]) -> tuple[Row, ...]:
    """The details that stay when some rows have left: those of the others, and those of nobody."""
    gone = {row.get(KEY) for row in before} - {row.get(KEY) for row in rows}
    return tuple(row for row in reversed(details) if row["ref"] == "NULL" or row["ref"] not in gone)


def check_neighbours(case: Case, here: World | None = None) -> Release:
    """No unit moves a statistic further than its sensitivity says, and the engine raises no error on either side."""
    here = here or database()
    release = release_of(case, here.dialect)
    parameters = parameters_of(release, case.stage_values)
    here.fill(case.declared, case.rows, case.details)
    before = [vectors(measurement, parameters, here) for measurement in release.measurements]
    for gone, rows in neighbours(case.rows):
        here.fill(case.declared, rows, _remaining(case.details, rows, case.rows))
        for measurement, mine in zip(release.measurements, before, strict=True):
            others = vectors(measurement, parameters, here)
            for number, other in enumerate(others):
                _check_distance(measurement, number, gone, mine[number], other)
            for group in measurement.groups:
                if measurement.is_sum(group[0]):
                    _check_together(measurement, group, gone, mine, others)
                elif measurement.statistics[group[0]].kind in CHOSEN:
                    _check_only_less(group, gone, mine, others)
    return release


def _check_together(
    measurement: Measurement, group: Sequence[int], gone: str, before: Sequence[Vector], after: Sequence[Vector]
) -> None:
    """Sums of one group share a price: all moves together, each as a part of its own claim, are at most the whole."""
    if isinstance(measurement.mechanism, TopKeys):
        return  # one count, of which only some cells are looked at (`_check_distance`)
    part = Fraction(0)
    for number in group:
        mine, other, claim = before[number], after[number], measurement.statistics[number].sensitivity
        moved = [abs(mine.get(key, 0) - other.get(key, 0)) for key in mine.keys() | other.keys()]
        if measurement.noises[number].law == "gaussian":
            part += sum(distance**2 for distance in moved) / claim.l2_squared
        else:
            part += sum(moved) / claim.l1
    assert part <= 1, f"without {gone}, sums {group} moved by {float(part)} of what they may together"


def _check_only_less(group: Sequence[int], gone: str, before: Sequence[Vector], after: Sequence[Vector]) -> None:
    """What is chosen from a histogram needs units that only add to it: quantiles cut in turn, and the most common."""
    for number in group:
        more = {key for key, bar in after[number].items() if bar > before[number].get(key, 0)}
        assert not more, f"without {gone}, bars of histogram {number} rose: {more}"


def _check_distance(measurement: Measurement, number: int, gone: str, before: Vector, after: Vector) -> None:
    statistic, law = measurement.statistics[number], measurement.noises[number].law
    claim = statistic.sensitivity
    keys = before.keys() | after.keys()
    if measurement.cells is not None:
        width = len(measurement.keys)  # behind them stands the value, in a histogram
        assert {key[:width] for key in keys} <= set(measurement.every_cell), (
            f"keys that were not declared: {keys - set(measurement.every_cell)}"
        )
    if statistic.kind in CHOSEN:
        strange = {key for key in keys if not statistic.low <= key[-1] <= statistic.high}
        assert not strange, f"values that are no candidates: {strange}"
    moved = sorted(distance for key in keys if (distance := abs(before.get(key, 0) - after.get(key, 0))))
    if isinstance(top := measurement.mechanism, TopKeys):
        rose = {key for key in after if after[key] > before.get(key, 0)}
        assert not rose, f"without {gone}, counts among which is chosen rose: {rose}"
        moved = moved[-top.keys :]  # of those that are chosen, as bad as can be
    found = f"without {gone}, sum {number} ({statistic.kind.value}) moved by {moved}; stated: {claim}"
    if gone in (NOBODY, NOT_OWNED):
        assert not moved, found
    assert max(moved, default=0) <= claim.linf, found
    # Each law needs one norm; the other two are bounds on the way. On the root of running totals noise is made for L1.
    if law in ("laplace", "exponential") or measurement.is_rooted(number):
        assert sum(moved) <= claim.l1, found
    else:
        assert sum(distance**2 for distance in moved) <= claim.l2_squared, found
    if claim.l0 is not None:
        assert len(moved) <= claim.l0, found
    if isinstance(selection := measurement.mechanism, PartitionSelection) and number == selection.by:
        weight = weight_in_keys(statistic, "l2" if law == "gaussian" else "l1")
        alone = [before[key] for key in before.keys() - after.keys()]
        assert len(alone) <= measurement.bound.groups, f"without {gone}, {len(alone)} keys vanish"
        assert all(1 <= size <= weight(len(alone)) for size in alone), f"without {gone}, keys of {alone} vanish"
