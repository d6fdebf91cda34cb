"""Reads tables from PostgreSQL's catalog: columns, enforced uniqueness, obstacles, and changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpsql.engines.postgres.connections import Connection
from dpsql.policy.model import ColumnSchema, TableSchema
from dpsql.types import BOOLEAN, DATE, DOUBLE, NUMERIC, TEXT, TIMESTAMP, TIMESTAMPTZ, Type, decimal, integer

Source = tuple[str, str]

_TYPES = {
    "bool": BOOLEAN,
    "int2": integer(5),
    "int4": integer(10),
    "int8": integer(19),
    "float4": DOUBLE,
    "float8": DOUBLE,
    "text": TEXT,
    "varchar": TEXT,
    "bpchar": TEXT,
    "uuid": TEXT,
    "date": DATE,
    "timestamp": TIMESTAMP,
    # Read in UTC, which every transaction sets.
    "timestamptz": TIMESTAMPTZ,
}

_VIEWS = ("v", "m")

# One row per table. A domain counts as its base type; user-defined types are unknown.
_TABLES = """
SELECT n.nspname, c.relname, c.oid::bigint, c.relkind::text, c.relrowsecurity AND row_security_active(c.oid),
       EXISTS (WITH RECURSIVE parts AS (SELECT c.oid UNION
                   SELECT h.inhrelid FROM pg_inherits AS h JOIN parts ON h.inhparent = parts.oid)
               SELECT FROM parts JOIN pg_class AS p ON p.oid = parts.oid WHERE p.relkind = 'f'),
       c.relkind <> 'p' AND EXISTS (SELECT FROM pg_inherits AS h WHERE h.inhparent = c.oid),
       (SELECT coalesce(json_agg(json_build_array(a.attname, a.attnum, a.atttypid::bigint, a.atttypmod, a.attnotnull,
                   format_type(a.atttypid, a.atttypmod),
                   CASE WHEN b.typnamespace = 'pg_catalog'::regnamespace THEN b.typname END, b.typtype,
                   a.attgenerated = 'v',
                   CASE WHEN t.typtype = 'd' THEN t.typtypmod ELSE a.atttypmod END) ORDER BY a.attnum), '[]')
        FROM pg_attribute AS a JOIN pg_type AS t ON t.oid = a.atttypid
        JOIN pg_type AS b ON b.oid = CASE WHEN t.typtype = 'd' THEN t.typbasetype ELSE t.oid END
        WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
       (SELECT coalesce(json_agg(json_build_array(
                   (SELECT json_agg(a.attname) FROM pg_attribute AS a
                    WHERE a.attrelid = c.oid AND a.attnum = ANY ((i.indkey::int2[])[0 : i.indnkeyatts - 1])),
                   coalesce((to_jsonb(i) ->> 'indnullsnotdistinct')::boolean, false))), '[]')
        FROM pg_index AS i JOIN pg_class AS x ON x.oid = i.indexrelid JOIN pg_am AS m ON m.oid = x.relam
        WHERE i.indrelid = c.oid AND m.amname = 'btree'
          AND i.indisunique AND i.indisvalid AND i.indisready AND i.indislive AND i.indimmediate
          AND NOT i.indisexclusion
          AND i.indpred IS NULL AND i.indexprs IS NULL
          AND NOT EXISTS (SELECT FROM pg_opclass AS o WHERE o.oid = ANY (i.indclass::oid[]) AND NOT o.opcdefault))
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
"""
_ALL = """WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND c.relpersistence <> 't'
  AND n.nspname <> 'information_schema' AND n.nspname !~ '^pg_'
ORDER BY n.nspname, c.relname"""
_NAMED = "WHERE (n.nspname, c.relname) IN (SELECT * FROM unnest($1::name[], $2::name[]))"


@dataclass(frozen=True, slots=True)
class Identity:
    """What must not change for a table to be the one that was checked."""

    oid: int
    kind: str
    columns: Mapping[str, tuple[int, int, int]]  # name: place, type and its digits
    unique: frozenset[frozenset[str]]
    obstacle: str | None

    def holds_in(self, now: Identity) -> bool:
        """Whether no column or unique key was changed or removed; new ones are allowed."""
        return (
            (self.oid, self.kind, self.obstacle) == (now.oid, now.kind, now.obstacle)
            and self.columns.items() <= now.columns.items()
            and self.unique <= now.unique
        )


def read_tables(
    connection: Connection, sources: Sequence[Sequence[str]] | None = None
) -> tuple[dict[Source, TableSchema], dict[tuple[str, ...], Identity]]:
    """All tables, or the named ones, with their identities."""
    tables: dict[Source, TableSchema] = {}
    identities: dict[tuple[str, ...], Identity] = {}
    for schema, name, oid, kind, guarded, is_foreign, has_children, columns, indexes in _rows(connection, sources):
        source = (schema, name)
        fields = {column[0]: _column(column) for column in columns}
        # A unique index of a table holds for its own rows, not for those of the tables that inherit from it.
        unique = frozenset() if has_children else _unique(indexes, fields)
        obstacle = _obstacle(is_foreign, guarded)
        tables[source] = TableSchema(source, fields, unique, kind in _VIEWS, obstacle, case_matters=True)
        places = {column[0]: (column[1], column[2], column[3]) for column in columns}
        identities[source] = Identity(oid, kind, places, unique, obstacle)
    return tables, identities


def current_identities(connection: Connection, sources: Sequence[Sequence[str]]) -> dict[tuple[str, ...], Identity]:
    return read_tables(connection, sources)[1]


def _rows(connection: Connection, sources: Sequence[Sequence[str]] | None) -> list[tuple[Any, ...]]:
    if sources is None:
        return connection.execute(_TABLES + _ALL).fetchall()
    return connection.execute(_TABLES + _NAMED, _lists(sources)).fetchall()


def _lists(sources: Sequence[Sequence[str]]) -> list[list[str]]:
    """Schemas and names. (to_regclass would look them up as well, but fails where the role may not enter a schema.)"""
    return [[source[part] for source in sources] for part in range(2)]


def _obstacle(is_foreign: bool, guarded: bool) -> str | None:
    if is_foreign:
        return "is, or has a part that is, a foreign table: what runs on the other server is not in our hands"
    if guarded:
        return "has row-level security that hides rows from this role, so that answers would depend on who asks"
    return None


def _column(column: Sequence[Any]) -> ColumnSchema:
    name, _, _, _, not_null, native, base, sort, computed, modifier = column
    if computed:
        # Its expression is evaluated when it is read, and may fail for some rows.
        return ColumnSchema(name, None, f"{native}, generated when read", not not_null)
    type_ = TEXT if sort == "e" else _type(base, modifier)
    return ColumnSchema(name, type_, native, not not_null)


def _type(base: str | None, modifier: int) -> Type | None:
    if base != "numeric":
        return None if base is None else _TYPES.get(base)
    if modifier < 0:
        return NUMERIC
    precision, scale = (modifier - 4) >> 16, (modifier - 4) & 0x7FF
    # From version 15 on a scale may be negative or beyond the precision.
    return decimal(precision, scale) if scale <= precision else NUMERIC


def _unique(
    indexes: Sequence[tuple[list[str], bool]], columns: Mapping[str, ColumnSchema]
) -> frozenset[frozenset[str]]:
    """Sets of columns that are unique among the rows that matter.

    With several columns, a NULL in one allows repetition of the others, unless the index has NULLS NOT DISTINCT. With
    one column it does not matter: rows with a NULL unit are dropped.
    """
    return frozenset(
        frozenset(names)
        for names, nulls_equal in indexes
        if len(names) == 1 or nulls_equal or not any(columns[name].nullable for name in names)
    )


# --- warnings for the owner ---

_ROLE = """
SELECT current_user, rolsuper, rolbypassrls FROM pg_roles WHERE rolname = current_user
"""
_RIGHTS = """
SELECT n.nspname || '.' || c.relname, has_table_privilege(c.oid, 'SELECT'),
       has_table_privilege(c.oid, 'INSERT') OR has_table_privilege(c.oid, 'UPDATE')
       OR has_table_privilege(c.oid, 'DELETE') OR has_table_privilege(c.oid, 'TRUNCATE'),
       has_schema_privilege(n.oid, 'USAGE'), c.relrowsecurity, c.relispartition,
       EXISTS (SELECT FROM pg_inherits AS h WHERE h.inhparent = c.oid) AND c.relkind <> 'p', quote_ident(n.nspname),
       quote_ident(n.nspname) || '.' || quote_ident(c.relname)
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE (n.nspname, c.relname) IN (SELECT * FROM unnest($1::name[], $2::name[])) ORDER BY 1
"""


def read_warnings(connection: Connection, sources: Sequence[Sequence[str]]) -> list[str]:
    """Settings that may be intended, but rarely are."""
    found = []
    role, is_super, _ = connection.execute(_ROLE).fetchone() or ("", False, False)
    if is_super:
        found.append(f'role "{role}" is a superuser: give dpsql a role that may only read the declared tables')
    for table, reads, writes, enters, guarded, partition, parent, schema, name in connection.execute(
        _RIGHTS, _lists(sources)
    ).fetchall():
        if not enters:
            found.append(f'role "{role}" may not use the schema of "{table}": GRANT USAGE ON SCHEMA {schema} TO {role}')
        if not reads:
            found.append(f'role "{role}" may not read "{table}": GRANT SELECT ON {name} TO {role}')
        if writes and not is_super:
            found.append(f'role "{role}" may change "{table}": dpsql never does, so let it only read')
        if guarded:
            found.append(f'"{table}" has row-level security, which does not apply to role "{role}": all rows count')
        if partition:
            found.append(f'"{table}" is a part of another table: its rows are among those of that table, too')
        if parent:
            found.append(f'"{table}" has tables that inherit from it: their rows count as its own')
    return found
