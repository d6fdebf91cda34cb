"""Joins the policy with the schema: tables, units by reference, values of public tables.

The result, a `Catalog`, is all that accepting and rewriting a query reads.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from dpsql.errors import PolicyError
from dpsql.policy.columns import bind_column, known_type
from dpsql.policy.fingerprint import fingerprint_of
from dpsql.policy.model import (
    Catalog,
    Column,
    ColumnSchema,
    DatabaseSchema,
    Policy,
    Step,
    Table,
    TablePolicy,
    TableSchema,
    UnitReference,
)
from dpsql.policy.prepared import AGAIN, unit_facts
from dpsql.policy.problems import Report, nearest, quoted
from dpsql.policy.protection import protection_of
from dpsql.policy.sections import header
from dpsql.types import Kind, Type, Value

# The default schema's name for tools made for PostgreSQL.
_POSTGRESQL_DEFAULT_SCHEMA = "public"


def bind(
    policy: Policy,
    schema: DatabaseSchema,
    is_unique: IsUnique = lambda *_: False,
    read_public: ReadPublic | None = None,
) -> Catalog:
    """Join the policy with the schema, or raise PolicyProblems with every mismatch.

    `Catalog.tables` finds a table under its declared name, as an analyst writes it after folding to lower case.
    A table of the default schema is also found without its schema, with it, and as "public.NAME", unless that
    name belongs to another table. One table can thus have several keys; `Table.name` is its declared name.

    Names in the policy match the database exactly or, if only one name fits, without regard to case. Tables and columns
    then keep the spelling of the policy, since that is what analysts write.

    `is_unique` is called for keys of references that the engine does not enforce; `read_public` reads small public
    tables, whose values are known keys.
    """
    report = Report(policy.path)
    found: dict[str, Bound] = {}
    for declared in policy.tables.values():
        table = _find_table(declared, schema, report)
        if table is not None and not _is_view(declared, table, report):
            found[declared.name] = Bound(table, _bind_columns(declared, table, report))
    tables = _bind_tables(policy, found, is_unique, report)
    if read_public is not None:
        tables = {name: with_contents(table, read_public) for name, table in tables.items()}
    _check_declared_once(policy, tables, report)
    _check_one_kind_of_unit(policy, tables, report)
    if policy.prepared is not None:
        _check_copies(policy, tables, report)
    report.raise_if_any()
    return Catalog(
        tables=MappingProxyType(_aliases(tables, schema) | tables),
        max_cells=policy.limits.max_cells,
        fingerprint=fingerprint_of(policy, tables),
        default_schema=schema.default_schema,
        views=_views(policy, schema),
        limits=policy.limits.statement,
        protection=protection_of(tables, {name: found[name].schema for name in tables}),
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
    # If the database has a schema "public", the name means that schema.
    if all(name.casefold() != _POSTGRESQL_DEFAULT_SCHEMA for name, _ in schema.tables):
        schemas.add(_POSTGRESQL_DEFAULT_SCHEMA)
    aliases: dict[str, Table] = {}
    for table in tables.values():
        if table.source[0] == default:
            name = table.name.rpartition(".")[2]
            for alias in (name, *(f"{prefix}.{name}" for prefix in schemas)):
                aliases[alias] = table
    return aliases


def _views(policy: Policy, schema: DatabaseSchema) -> Mapping[str, str]:
    """The text of each view, under its name and, if it has no schema, with that of PostgreSQL or of the database."""
    views: dict[str, str] = {}
    for name, view in policy.views.items():
        if "." not in name:
            views[f"{schema.default_schema}.{name}"] = views[f"{_POSTGRESQL_DEFAULT_SCHEMA}.{name}"] = view.sql
    return MappingProxyType(views | {name: view.sql for name, view in policy.views.items()})


# --- tables ---


def _is_view(declared: TablePolicy, found: TableSchema, report: Report) -> bool:
    if found.is_view:
        # Also if it is declared public: a view may read private tables.
        report.add(
            declared.line,
            f"{quoted(declared.name)} is a view",
            "declare the tables it reads, and the view itself as [views.NAME] with its sql",
        )
    if found.obstacle is not None:
        report.add(declared.line, f"{quoted(declared.name)} {found.obstacle}", "remove the table")
    return found.is_view or found.obstacle is not None


def _bind_tables(policy: Policy, found: Mapping[str, Bound], is_unique: IsUnique, report: Report) -> dict[str, Table]:
    """Tables in the order of the policy; one that refers to another is bound after it."""
    tables: dict[str, Table | None] = {}

    def bound(name: str) -> Table | None:
        if name not in tables:
            tables[name] = None  # a circular reference was reported when the file was read
            declared = policy.tables[name]
            if declared.public:
                tables[name] = _public_table(declared, found[name], report)
            elif isinstance(declared.unit, UnitReference):
                target = bound(declared.unit.table) if declared.unit.table in found else None
                tables[name] = None if target is None else referring(declared, declared.unit, target)
            else:
                tables[name] = _owning_table(declared, found[name], report)
        return tables[name]

    def referring(declared: TablePolicy, unit: UnitReference, target: Table) -> Table | None:
        step = bind_step(declared, found[declared.name], found[unit.table], is_unique, report)
        return None if step is None else _referring_table(declared, found[declared.name], step, target)

    complete = {name: table for name in policy.tables if name in found and (table := bound(name)) is not None}
    return _with_keys(complete)


def _with_keys(tables: Mapping[str, Table]) -> dict[str, Table]:
    """Each table with those of its keys that others refer to; they are known to be unique."""
    keys: dict[str, dict[tuple[str, ...], tuple[Type, ...]]] = {name: {} for name in tables}
    for table in tables.values():
        if table.path:
            keys[table.path[0].table][table.path[0].key] = table.path[0].types
    return {
        name: replace(
            table,
            keys=MappingProxyType(keys[name]),
            unique=table.unique | frozenset(frozenset(key) for key in keys[name]),
        )
        for name, table in tables.items()
    }


def _owning_table(declared: TablePolicy, found: Bound, report: Report) -> Table | None:
    unit = _find_unit(declared, found.schema, report)
    if unit is None:
        return None
    columns = found.columns
    # The unit is recognised by its name, so it needs one spelling: that of the column if it is also declared as one.
    owner = columns[unit.name].name if unit.name in columns else str(declared.unit)
    return Table(
        name=declared.name,
        source=found.schema.source,
        columns=_by_name(columns),
        owner=owner,
        owner_type=unit.type,
        owner_unique=frozenset({unit.name}) in found.schema.unique,
        max_rows_per_unit=declared.max_rows_per_unit,
        max_groups_per_unit=declared.max_groups_per_unit,
        tight=declared.tight,
        unique=found.unique,
        copy=found.schema.copy,
        optional_owner=((declared.name, owner),) if unit.nullable else (),
    )


def _referring_table(declared: TablePolicy, found: Bound, step: Step, target: Table) -> Table:
    """A table whose rows belong to the owners of the rows they refer to."""
    return Table(
        name=declared.name,
        source=found.schema.source,
        columns=_by_name(found.columns),
        owner=target.owner,
        owner_type=target.owner_type,
        # At most one row per row of the other table, which has at most one row per unit.
        owner_unique=target.owner_unique and any(unique <= frozenset(step.via) for unique in found.unique),
        max_rows_per_unit=declared.max_rows_per_unit,
        max_groups_per_unit=declared.max_groups_per_unit,
        tight=declared.tight,
        path=(step, *target.path),
        unique=found.unique,
        copy=found.schema.copy,
        optional_owner=(
            *((declared.name, name) for name in step.via if _is_nullable(found.schema, name)),
            *target.optional_owner,
        ),
    )


def _is_nullable(schema: TableSchema, name: str) -> bool:
    return any(column.nullable for column in schema.columns.values() if column.name.casefold() == name.casefold())


def _public_table(declared: TablePolicy, found: Bound, report: Report) -> Table | None:
    """A public table shows all its columns, except those of a type that dpsql does not know."""
    schema = found.schema
    columns = {
        name: found.columns.get(name) or Column(name, type_, nullable=column.nullable)
        for name, column in schema.columns.items()
        if (type_ := known_type(column)) is not None
    }
    if not columns:
        report.add(declared.line, f"table {quoted(declared.name)} has no column of a type that dpsql knows")
        return None
    return Table(name=declared.name, source=schema.source, columns=_by_name(columns), unique=found.unique)


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
    Needs: the declared column identifies the person.
    """
    if declared.unit is None or isinstance(declared.unit, UnitReference):
        report.add(declared.line, f"table {quoted(declared.name)} has no unit", 'write: unit = "COLUMN"')
        return None
    unit = _find_column(declared.unit, "unit", found, report, declared.line)
    if unit is None:
        return None
    if unit.type is None or unit.type.kind not in UNIT_KINDS:
        report.add(
            declared.line,
            f"unit {quoted(declared.unit)} of table {quoted(declared.name)} is of type {unit.native}",
            "a unit is an integer, a decimal, a text or a date",
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
    """A dataset protects one kind of unit. Units whose types cannot be compared are of different kinds."""
    private = [table for table in tables.values() if table.owner_type is not None]
    for table in private[1:]:
        if comparison_class(table.owner_type) != comparison_class(private[0].owner_type):
            report.add(
                policy.tables[table.name].line,
                f"the units of {quoted(table.name)} and {quoted(private[0].name)} have types that cannot be compared",
                "a policy protects one kind of unit",
            )


def _check_copies(policy: Policy, tables: Mapping[str, Table], report: Report) -> None:
    """The copy of a private table has the owners that the policy defines now.

    Claim: the owner in a copy is the owner that the policy says, and the number beside it is that of this owner's rows.
    Because: the copy records the path of references to the owner, which must be the policy's.
    Needs: copies that are as `dpsql prepare` wrote them; the identity in the policy distinguishes them from others.
    """
    for table in tables.values():
        if not table.is_private:
            continue
        line = policy.tables[table.name].line
        if table.copy is None:
            report.add(line, f"table {quoted(table.name)} is not in the prepared copy", AGAIN)
        elif table.copy.unit != unit_facts(table):
            report.add(line, f"table {quoted(table.name)} had a different unit when the copy was prepared", AGAIN)


# ------------------------------------------------------------
# Units by reference: the path from a row to its owner, checked against the schema of the database.

# Whether these columns are unique in a table, checked on data that cannot change while the database is open.
IsUnique = Callable[[tuple[str, ...], tuple[str, ...]], bool]

# Types whose equal values are identical. Not doubles: they have NaN, -0 and rounding.
UNIT_KINDS = (Kind.INTEGER, Kind.DECIMAL, Kind.TEXT, Kind.DATE)


@dataclass(frozen=True, slots=True)
class Bound:
    """A table of the database with its declared columns, by their names in the database."""

    schema: TableSchema
    columns: Mapping[str, Column]

    def spelled(self, column: ColumnSchema | None, written: str) -> str:
        """A column as analysts write it: as declared, else as the reference spells it."""
        known = None if column is None else self.columns.get(column.name)
        return written if known is None else known.name

    @property
    def unique(self) -> frozenset[frozenset[str]]:
        """The sets of columns that the engine keeps unique, as analysts write them."""
        return frozenset(
            frozenset(self.columns[name].name if name in self.columns else name for name in names)
            for names in self.schema.unique
        )


def bind_step(declared: TablePolicy, found: Bound, target: Bound, is_unique: IsUnique, report: Report) -> Step | None:
    """One step of a reference.

    Claim: every row has at most one row it belongs to, and so at most one owner.
    Because: the key is unique in its table, and both sides are compared as one type, value by value.
    Needs: uniqueness that the engine enforces, or data that cannot change while dpsql reads it.
    """
    reference = declared.unit
    assert isinstance(reference, UnitReference)
    line = declared.line
    vias = [_column(name, found.schema, report, line) for name in reference.via]
    keys = [_column(name, target.schema, report, line) for name in reference.key]
    types: list[Type] = []
    for via, key in zip(vias, keys, strict=True):
        if via is None or key is None:
            continue
        if key.type is None or key.type.kind not in UNIT_KINDS:
            report.add(
                line, f"key {quoted(key.name)} of table {quoted(reference.table)} is of type {key.native}", _KINDS
            )
        elif via.type is None or comparison_class(via.type) != comparison_class(key.type):
            report.add(
                line,
                f"{quoted(via.name)} and {quoted(key.name)} have types that cannot be compared:"
                f" {via.native} and {key.native}",
                "a reference and its key must have the same type",
            )
        else:
            types.append(key.type)
    if len(types) < len(reference.via):
        return None
    names = tuple(key.name for key in keys if key is not None)
    enforced = any(unique <= frozenset(names) for unique in target.schema.unique)
    if not enforced and not is_unique(target.schema.source, names):
        listed = ", ".join(names)
        report.add(
            line,
            f"{listed} is not unique in table {quoted(reference.table)}: a row could have two owners",
            f"make it a PRIMARY KEY or UNIQUE: ({listed})",
        )
        return None
    return Step(
        tuple(found.spelled(via, name) for via, name in zip(vias, reference.via, strict=True)),
        reference.table,
        target.schema.source,
        tuple(target.spelled(key, name) for key, name in zip(keys, reference.key, strict=True)),
        tuple(types),
    )


_KINDS = "a reference consists of integers, decimals, texts or dates"


def comparison_class(unit: Type | None) -> tuple[Kind, int] | None:
    """Owners are compared without conversion, so their types must be the same; integers are widened."""
    if unit is None:
        return None
    return (unit.kind, 0) if unit.kind is Kind.INTEGER else (unit.kind, unit.precision * 100 + unit.scale)


def _column(name: str, table: TableSchema, report: Report, line: int | None) -> ColumnSchema | None:
    fitting = [name] if name in table.columns else [c for c in table.columns if c.casefold() == name.casefold()]
    if len(fitting) == 1:
        return table.columns[fitting[0]]
    meant = nearest(name, table.columns)
    report.add(
        line,
        f"column {quoted(name)} of the reference does not exist in table {quoted(table.source[-1])}",
        None if meant is None else f"write: {quoted(meant)}",
    )
    return None


# ------------------------------------------------------------
# The contents of small public tables: their values are keys that need no declaration.

# Reads columns of a public table, column by column, up to one row more than a limit.
ReadPublic = Callable[[tuple[str, ...], Sequence[str], int], list[list[Value]]]

SMALL = 1_000  # rows
LARGE = 100_000  # rows; of larger tables than SMALL only columns with declared values or bounds are read
MOST_COMBINATIONS = 10_000


def with_contents(table: Table, read: ReadPublic) -> Table:
    """A small public table with its rows and the distinct values of each column, read when the database is opened.

    Claim: keys and row counts taken from here reveal nothing about private rows.
    Because: only public tables are read. A row whose value was added later is not counted, as with declared values.
    Needs: a table that the owner declared public.
    """
    if table.is_private:
        return table
    try:
        columns = read(table.source, list(table.columns), SMALL)
    except PolicyError:
        return table  # it holds values that Python cannot represent; queries that need them are refused
    if any(len(values) > SMALL for values in columns):
        return _with_combinations(table, read)
    contents = {
        name: tuple(dict.fromkeys(value for value in values if value == value))  # NaN is no key
        for name, values in zip(table.columns, columns, strict=True)
    }
    # NaN equals itself in an engine and not in Python, so nothing is concluded from rows that hold it.
    holds_nan = any(value != value for values in columns for value in values)
    rows = None if holds_nan or not columns else tuple(zip(*columns, strict=True))
    return replace(table, contents=MappingProxyType(contents), rows=rows)


def _with_combinations(table: Table, read: ReadPublic) -> Table:
    """A larger table with the combinations of values in its declared columns."""
    declared = [c.name for c in table.columns.values() if c.lower is not None or c.values is not None]
    if not declared:
        return table
    try:
        columns = read(table.source, declared, LARGE)
    except PolicyError:
        return table
    found = dict.fromkeys(zip(*columns, strict=True))
    if len(columns[0]) > LARGE or len(found) > MOST_COMBINATIONS or any(v != v for row in found for v in row):
        return table
    return replace(table, combinations=(tuple(declared), tuple(found)))
