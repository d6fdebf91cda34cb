"""The declared schema as PostgreSQL tables without rows, with types, keys and comments."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from fractions import Fraction
from typing import assert_never

from psycopg import sql

from dpsql.errors import InternalError
from dpsql.policy.model import Bound, Catalog, Column, Table
from dpsql.server.twin.names import check_column, check_schema, check_table
from dpsql.types import Kind, Type, Value

DEFAULT_SCHEMA = "public"  # the default that PostgreSQL clients expect


@dataclass(frozen=True, slots=True)
class TwinColumn:
    name: str
    type: Type
    nullable: bool
    words: str | None
    declared: Column | None  # None: the unit column, where the policy declares it as nothing else


@dataclass(frozen=True, slots=True)
class TwinTable:
    """A declared table under the name that clients see."""

    schema: str
    name: str
    table: Table
    columns: tuple[TwinColumn, ...]

    @property
    def identifier(self) -> sql.Identifier:
        return sql.Identifier(self.schema, self.name)


def twin_tables(catalog: Catalog) -> list[TwinTable]:
    """Every declared table once, in order of name."""
    unique = {id(table): table for table in catalog.tables.values()}
    tables = [_twin_table(table, catalog) for table in unique.values()]
    return sorted(tables, key=lambda table: (table.schema, table.name))


def search_path(catalog: Catalog) -> list[str]:
    """The schemas for unqualified names: the engine's, and PostgreSQL's default."""
    own = catalog.default_schema
    return [DEFAULT_SCHEMA] if own == DEFAULT_SCHEMA or _default_is_public(catalog) else [own, DEFAULT_SCHEMA]


def type_name(column_type: Type) -> str:
    """PostgreSQL's name of a type."""
    match column_type.kind:
        case Kind.INTEGER:
            return "bigint" if column_type.big else "integer"
        case Kind.DECIMAL:
            return f"numeric({column_type.precision},{column_type.scale})"
        case Kind.DOUBLE:
            return "numeric" if column_type.numeric else "double precision"
        case Kind.TIMESTAMP:
            return "timestamp without time zone"
        case Kind.TIMESTAMPTZ:
            return "timestamp with time zone"
        case Kind.BOOLEAN | Kind.TEXT | Kind.DATE | Kind.INTERVAL:
            return str(column_type.kind.value)
        case Kind.UNKNOWN:
            return "text"
        case Kind.ARRAY:
            raise InternalError("no declared column is an array")
        case _:
            assert_never(column_type.kind)


def schema_statements(catalog: Catalog, users: sql.Identifier) -> Iterator[sql.Composed]:
    """Statements that create the declared schema in an empty database, readable by no user. `users`: the group role.

    Claim: no statement of a user returns a row, or the number of rows, of a declared table.
    Because: there are no rows; and a user holds REFERENCES and no other right on the tables and none on the views
    over them, so PostgreSQL itself refuses to read them (42501) wherever a statement names them.
    Needs: users own nothing but temporary objects and are members of no other role (dpsql.server.twin.roles).
    """
    tables = twin_tables(catalog)
    schemas = sorted({table.schema for table in tables} | set(search_path(catalog)))
    for schema in schemas:
        yield sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(schema))
        yield sql.SQL("REVOKE ALL ON SCHEMA {} FROM PUBLIC").format(sql.Identifier(schema))
        yield sql.SQL("GRANT USAGE ON SCHEMA {} TO {}").format(sql.Identifier(schema), users)
    for table in tables:
        yield from _table_statements(table)
        yield sql.SQL("GRANT REFERENCES ON TABLE {} TO {}").format(table.identifier, users)
    yield from _alias_statements(catalog, tables, users)
    yield from _policy_statements(tables, users)


# --- names ---


def _default_is_public(catalog: Catalog) -> bool:
    """Whether "public" stands for the database's default schema: it does unless the database has a real one."""
    own = [table for table in catalog.tables.values() if table.source[0] == catalog.default_schema]
    return all(catalog.tables.get(f"{DEFAULT_SCHEMA}.{_bare_name(table)}") is table for table in own)


def _bare_name(table: Table) -> str:
    return table.name.rpartition(".")[2]


def _twin_table(table: Table, catalog: Catalog) -> TwinTable:
    schema = table.name.rpartition(".")[0] or catalog.default_schema
    if table.source[0] == catalog.default_schema:
        schema = search_path(catalog)[0]
    check_schema(schema)
    check_table(_bare_name(table))
    columns = tuple(_twin_columns(table))
    for column in columns:
        check_column(column.name)
    return TwinTable(schema, _bare_name(table), table, columns)


def _twin_columns(table: Table) -> Iterator[TwinColumn]:
    for name, type_ in table.hidden.items():
        is_unit = name == table.owner and not table.path
        yield TwinColumn(name, type_, True, unit_words(name) if is_unit else reference_words(table, name), None)
    for column in table.columns.values():
        is_unit = column.name == table.owner and not table.path
        words = column_words(column, is_unit=is_unit) if table.is_private else None
        yield TwinColumn(column.name, column.type, column.nullable, words, column)


# --- tables ---


def _table_statements(table: TwinTable) -> Iterator[sql.Composed]:
    lines: list[sql.Composable] = [
        sql.SQL("{} {}{}").format(
            sql.Identifier(column.name),
            sql.SQL(type_name(column.type)),
            sql.SQL("" if column.nullable else " NOT NULL"),
        )
        for column in table.columns
    ]
    if table.table.owner_unique and table.table.owner is not None and not table.table.path:
        lines.append(sql.SQL("PRIMARY KEY ({})").format(sql.Identifier(table.table.owner)))
    yield sql.SQL("CREATE TABLE {} ({})").format(table.identifier, sql.SQL(", ").join(lines))
    yield sql.SQL("COMMENT ON TABLE {} IS {}").format(table.identifier, sql.Literal(table_words(table.table)))
    for column in table.columns:
        if column.words is not None:
            name = sql.Identifier(table.schema, table.name, column.name)
            yield sql.SQL("COMMENT ON COLUMN {} IS {}").format(name, sql.Literal(column.words))


def _alias_statements(catalog: Catalog, tables: list[TwinTable], users: sql.Identifier) -> Iterator[sql.Composed]:
    """Views for the engine's other names of a table ("main.people" for "public.people").

    A view without any grant can be named and described, but tools that list readable relations leave it out.
    """
    placed = {(table.schema, table.name) for table in tables}
    home = {id(table.table): table.identifier for table in tables}
    aliases = {
        (schema, name): home[id(table)]
        for full, table in catalog.tables.items()
        for schema, _, name in [full.rpartition(".")]
        if schema and (schema, name) not in placed
    }
    for schema in sorted({schema for schema, _ in aliases}):
        check_schema(schema)
        yield sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(schema))
        yield sql.SQL("GRANT USAGE ON SCHEMA {} TO {}").format(sql.Identifier(schema), users)
    for alias in sorted(aliases):
        yield sql.SQL("CREATE VIEW {} AS SELECT * FROM {}").format(sql.Identifier(*alias), aliases[alias])


# --- the view of the policy ---


def _policy_statements(tables: list[TwinTable], users: sql.Identifier) -> Iterator[sql.Composed]:
    """dpsql.policy: a row for each column an analyst may use."""
    yield sql.SQL(
        "CREATE TABLE dpsql_internal.policy ("
        "table_schema text, table_name text, column_name text, data_type text, protection text, "
        "lower text, upper text, step text, allowed_values text[], max_rows_per_unit integer, description text)"
    ).format()
    for table in tables:
        for column in table.columns:
            cells = [sql.Literal(cell) for cell in _policy_row(table, column)]
            yield sql.SQL("INSERT INTO dpsql_internal.policy VALUES ({})").format(sql.SQL(", ").join(cells))
    yield sql.SQL("CREATE VIEW dpsql.policy AS SELECT * FROM dpsql_internal.policy").format()
    yield sql.SQL("COMMENT ON VIEW dpsql.policy IS 'What may be asked: every column, with its bounds.'").format()
    yield sql.SQL("GRANT SELECT ON dpsql.policy TO {}").format(users)


def _policy_row(table: TwinTable, column: TwinColumn) -> list[str | int | list[str] | None]:
    declared = column.declared
    lower, upper, step, values = (
        (None, None, None, None)
        if declared is None
        else (declared.lower, declared.upper, declared.step, declared.values)
    )
    return [
        table.schema,
        table.name,
        column.name,
        type_name(column.type),
        _protection(table.table, column.name),
        None if lower is None else bound_text(lower),
        None if upper is None else bound_text(upper),
        None if step is None else bound_text(step),
        None if values is None else [value_text(value) for value in values],
        table.table.max_rows_per_unit if table.table.is_private else None,
        column.words,
    ]


def _protection(table: Table, column: str) -> str:
    if not table.is_private:
        return "public"
    return "unit" if column == table.owner and not table.path else "private"


# ------------------------------------------------------------
# The policy as text: the comments on tables and columns that `\d+` shows.

_MOST_VALUES = 20


def table_words(table: Table) -> str:
    if table.owner is None:
        return "Public: answered exactly, at no cost."
    rows = "one row" if table.max_rows_per_unit == 1 else f"{table.max_rows_per_unit:,} rows"
    words = f"Private: only aggregates are answered. The unit is {table.unit_text}; at most {rows} of a unit count."
    if table.max_groups_per_unit is not None:
        words += f" A unit counts in at most {table.max_groups_per_unit:,} groups."
    return words


def column_words(column: Column, *, is_unit: bool) -> str:
    """The comment on a declared column of a private table."""
    parts = []
    if is_unit:
        parts.append(unit_words(column.name))
    if column.lower is not None and column.upper is not None:
        parts.append(f"Clamped to {bound_text(column.lower)} .. {bound_text(column.upper)}.")
    if column.step is not None:
        parts.append(f"Rounded to multiples of {bound_text(column.step)}.")
    if column.values is not None:
        shown = ", ".join(map(value_text, column.values[:_MOST_VALUES]))
        more = len(column.values) - _MOST_VALUES
        parts.append(f"One of: {shown}{f', and {more:,} more' if more > 0 else ''}.")
    if column.nullable_key:
        parts.append("NULL is a key of its own.")
    if not parts:
        parts.append("Not bounded: rare values are held back as keys.")
    return " ".join(parts)


def unit_words(name: str) -> str:
    return f"The unit: for COUNT(DISTINCT {name}) and for joining the rows of one unit; never shown."


def reference_words(table: Table, name: str) -> str:
    """The comment on a key or foreign key column that is not declared."""
    targets = [step.table for step in table.path[:1] if name in step.via]
    what = f"Names the row of {targets[0]} that it belongs to" if targets else "A key that other tables refer to"
    return f"{what}: for joining the rows of one unit; never shown."


def bound_text(bound: Bound) -> str:
    if isinstance(bound, Fraction):
        return _number_text(bound)
    return bound.isoformat(sep=" ") if isinstance(bound, datetime) else bound.isoformat()


def value_text(value: Value) -> str:
    return "NULL" if value is None else str(value)


def _number_text(number: Fraction) -> str:
    """The number as a decimal where it is one."""
    if number.denominator == 1:
        return str(number.numerator)
    digits = 0
    while digits < 40:
        digits += 1
        if (number * 10**digits).denominator == 1:
            return f"{Decimal(int(number * 10**digits)).scaleb(-digits):f}"
    return str(number)
