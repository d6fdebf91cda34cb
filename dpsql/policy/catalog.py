"""Joins the policy with the schema of the database: the one thing that accepting and rewriting a query looks at."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType

from dpsql.policy.columns import bind_column, known_type
from dpsql.policy.fingerprint import fingerprint_of
from dpsql.policy.model import (
    Catalog,
    Column,
    ColumnSchema,
    DatabaseSchema,
    Policy,
    Table,
    TablePolicy,
    TableSchema,
    UnitReference,
)
from dpsql.policy.problems import Report, nearest, quoted
from dpsql.policy.section import header
from dpsql.types import Kind, Type

# Equal values of these types are the same value. Doubles are left out: there is NaN, -0 and rounding.
_UNIT_KINDS = (Kind.INTEGER, Kind.DECIMAL, Kind.TEXT, Kind.DATE)

# What tools made for PostgreSQL call the schema that needs no name.
_POSTGRESQL_DEFAULT_SCHEMA = "public"


def bind(policy: Policy, schema: DatabaseSchema) -> Catalog:
    """Join the policy with the schema, or raise PolicyProblems with every place where the two do not fit.

    `Catalog.tables` finds a table under its declared name, as an analyst writes it after folding to lower case.
    A table of the default schema is also found without its schema, with it, and as "public.NAME", unless that
    name belongs to another table. One table can thus stand under several keys; `Table.name` tells them apart.

    Names in the policy match the database exactly or, if only one name fits, without regard to case. Tables and columns
    then keep the spelling of the policy, since that is what analysts write.
    """
    report = Report(policy.path)
    tables: dict[str, Table] = {}
    for declared in policy.tables.values():
        found = _find_table(declared, schema, report)
        table = None if found is None else _bind_table(declared, found, report)
        if table is not None:
            tables[table.name] = table
    _check_declared_once(policy, tables, report)
    _check_one_kind_of_unit(policy, tables, report)
    report.raise_if_any()
    return Catalog(
        tables=MappingProxyType(_aliases(tables, schema) | tables),
        max_cells=policy.limits.max_cells,
        fingerprint=fingerprint_of(policy, tables),
        default_schema=schema.default_schema,
    )


# --- names ---


def _spelled(name: str, names: Collection[str]) -> list[str]:
    """The names that `name` may mean: itself, else those that differ in case only."""
    return [name] if name in names else [other for other in names if other.casefold() == name.casefold()]


def _find_table(declared: TablePolicy, schema: DatabaseSchema, report: Report) -> TableSchema | None:
    by_name = {".".join(source): table for source, table in schema.tables.items()}
    name = declared.name if "." in declared.name else f"{schema.default_schema}.{declared.name}"
    match _spelled(name, by_name):
        case [only]:
            return by_name[only]
        case []:
            meant = nearest(name, by_name)
            fix = None if meant is None else f"write: [{header(('tables', _short(meant, schema)))}]"
            report.add(declared.line, f"table {quoted(declared.name)} does not exist in the database", fix)
        case several:
            options = " or ".join(f"[{header(('tables', _short(other, schema)))}]" for other in several)
            report.add(declared.line, f"table {quoted(declared.name)} may mean several tables", f"write: {options}")
    return None


def _short(name: str, schema: DatabaseSchema) -> str:
    return name.removeprefix(f"{schema.default_schema}.")


def _find_column(name: str, what: str, table: TableSchema, report: Report, line: int | None) -> ColumnSchema | None:
    match _spelled(name, table.columns):
        case [only]:
            return table.columns[only]
        case []:
            meant = nearest(name, table.columns)
            fix = None if meant is None else f"write: {quoted(meant) if what == 'unit' else header((meant,))}"
            report.add(line, f"{what} {quoted(name)} does not exist in table {quoted(table.source[-1])}", fix)
        case several:
            report.add(line, f"{what} {quoted(name)} may mean several columns", f"write: {' or '.join(several)}")
    return None


def _aliases(tables: Mapping[str, Table], schema: DatabaseSchema) -> dict[str, Table]:
    """Further names for the tables of the default schema."""
    default = schema.default_schema
    schemas = {default}
    # A database that has a schema "public" of its own means that one.
    if all(name.casefold() != _POSTGRESQL_DEFAULT_SCHEMA for name, _ in schema.tables):
        schemas.add(_POSTGRESQL_DEFAULT_SCHEMA)
    aliases: dict[str, Table] = {}
    for table in tables.values():
        if table.source[0] == default:
            name = table.name.rpartition(".")[2]
            for alias in (name, *(f"{prefix}.{name}" for prefix in schemas)):
                aliases[alias] = table
    return aliases


# --- tables ---


def _bind_table(declared: TablePolicy, found: TableSchema, report: Report) -> Table | None:
    if found.is_view:
        # Also if it is called public: what a view reads may be private.
        report.add(declared.line, f"{quoted(declared.name)} is a view", "declare the tables it reads")
        return None
    if found.obstacle is not None:
        report.add(declared.line, f"{quoted(declared.name)} {found.obstacle}", "remove the table")
        return None
    if declared.public:
        return _public_table(declared, found, report)
    columns = _bind_columns(declared, found, report)
    unit = _find_unit(declared, found, report)
    if unit is None:
        return None
    # The unit is recognised by its name, so it has one spelling: that of the column where it is declared as one too.
    owner = columns[unit.name].name if unit.name in columns else str(declared.unit)
    return Table(
        name=declared.name,
        source=found.source,
        columns=_by_name(columns),
        owner=owner,
        owner_type=unit.type,
        owner_unique=frozenset({unit.name}) in found.unique,
        max_rows_per_unit=declared.max_rows_per_unit,
        max_groups_per_unit=declared.max_groups_per_unit,
    )


def _public_table(declared: TablePolicy, found: TableSchema, report: Report) -> Table | None:
    """A public table shows all its columns, except those of a type that dpsql does not know."""
    types = {name: known_type(column) for name, column in found.columns.items()}
    columns = {
        name: Column(name, column_type, nullable=found.columns[name].nullable)
        for name, column_type in types.items()
        if column_type is not None
    }
    if not columns:
        report.add(declared.line, f"table {quoted(declared.name)} has no column of a type that dpsql knows")
        return None
    return Table(name=declared.name, source=found.source, columns=_by_name(columns))


def _bind_columns(declared: TablePolicy, found: TableSchema, report: Report) -> dict[str, Column]:
    """The declared columns under their names in the database, and in its order."""
    bound: dict[str, Column | None] = {}
    for column in declared.columns.values():
        line = column.line or declared.line
        source = _find_column(column.name, "column", found, report, line)
        if source is None:
            continue
        if source.name in bound:
            report.add(line, f"column {quoted(source.name)} is declared twice", "remove one of the two")
            continue
        bound[source.name] = bind_column(column, source, report, line)
    return {name: usable for name in found.columns if (usable := bound.get(name)) is not None}


def _find_unit(declared: TablePolicy, found: TableSchema, report: Report) -> ColumnSchema | None:
    """The column that names the owner of a row.

    Claim: rows with equal owners are exactly the rows of one unit.
    Because: the values of the types allowed here are equal only if they are the same.
    Needs: the owner declared the column that identifies the person.
    """
    if isinstance(declared.unit, UnitReference):
        report.add(declared.line, "unit by reference is not supported yet", 'write: unit = "COLUMN"')
        return None
    if declared.unit is None:
        report.add(declared.line, f"table {quoted(declared.name)} has no unit", 'write: unit = "COLUMN"')
        return None
    unit = _find_column(declared.unit, "unit", found, report, declared.line)
    if unit is None:
        return None
    if unit.type is None or unit.type.kind not in _UNIT_KINDS:
        report.add(
            declared.line,
            f"unit {quoted(declared.unit)} of table {quoted(declared.name)} is of type {unit.native}",
            "a unit is an integer, a decimal, a text, a date or a timestamp",
        )
        return None
    return unit


def _by_name(columns: Mapping[str, Column]) -> Mapping[str, Column]:
    return MappingProxyType({column.name: column for column in columns.values()})


# --- all tables together ---


def _check_declared_once(policy: Policy, tables: Mapping[str, Table], report: Report) -> None:
    """Two declarations of one table could disagree on its unit or its bounds."""
    first: dict[tuple[str, ...], str] = {}
    for table in tables.values():
        other = first.setdefault(table.source, table.name)
        if other != table.name:
            line = policy.tables[table.name].line
            report.add(line, f"{quoted(table.name)} and {quoted(other)} are the same table", "remove one of the two")


def _check_one_kind_of_unit(policy: Policy, tables: Mapping[str, Table], report: Report) -> None:
    """A dataset protects one kind of unit. Units whose types cannot be compared are certainly of two kinds."""
    private = [table for table in tables.values() if table.owner_type is not None]
    for table in private[1:]:
        if _comparison_class(table.owner_type) != _comparison_class(private[0].owner_type):
            report.add(
                policy.tables[table.name].line,
                f"the units of {quoted(table.name)} and {quoted(private[0].name)} have types that cannot be compared",
                "a policy protects one kind of unit",
            )


def _comparison_class(unit: Type | None) -> tuple[Kind, int] | None:
    """Owners are compared as they are, so their types must be the same; integers are widened to one."""
    if unit is None:
        return None
    return (unit.kind, 0) if unit.kind is Kind.INTEGER else (unit.kind, unit.precision * 100 + unit.scale)
