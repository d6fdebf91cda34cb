"""What a policy draft needs from PostgreSQL: keys, references, enums, checks, comments; on request, extremes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import date
from fractions import Fraction
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psycopg

from dpsql.engines.base import Surveyed, Tell
from dpsql.engines.postgres.connections import Connection, opened, without_password
from dpsql.engines.postgres.engine import PostgresEngine
from dpsql.engines.runtime import engine_failed
from dpsql.errors import Error
from dpsql.lowering.dialect import qualified, quoted
from dpsql.policy.draft import Suggestions, collect, round_outward
from dpsql.policy.model import Bound, Limits
from dpsql.policy.propose import Proposal, Reference, SchemaDetails, Source
from dpsql.types import Kind

_MOST_UNITS = 0.99  # the fraction of units whose rows count in full
_SECONDS = 3600.0

_NAMES = """
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace AND n.nspname !~ '^pg_|^information_schema$'
"""
_KEYS = f"""
SELECT n.nspname, c.relname, k.contype::text, k.names, tn.nspname, t.relname, k.targets
{_NAMES} JOIN LATERAL (
    SELECT contype, confrelid,
           (SELECT array_agg(a.attname::text ORDER BY o) FROM unnest(conkey) WITH ORDINALITY AS u(number, o)
            JOIN pg_attribute AS a ON a.attrelid = conrelid AND a.attnum = u.number) AS names,
           (SELECT array_agg(a.attname::text ORDER BY o) FROM unnest(confkey) WITH ORDINALITY AS u(number, o)
            JOIN pg_attribute AS a ON a.attrelid = confrelid AND a.attnum = u.number) AS targets
    FROM pg_constraint WHERE conrelid = c.oid AND contype IN ('p', 'f')
) AS k ON true
LEFT JOIN pg_class AS t ON t.oid = k.confrelid LEFT JOIN pg_namespace AS tn ON tn.oid = t.relnamespace
ORDER BY 1, 2, 4
"""
_ENUMS = f"""
SELECT n.nspname, c.relname, a.attname, (SELECT array_agg(e.enumlabel::text ORDER BY e.enumsortorder)
                                         FROM pg_enum AS e WHERE e.enumtypid = a.atttypid)
{_NAMES} JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
JOIN pg_type AS t ON t.oid = a.atttypid AND t.typtype = 'e'
"""
_CHECKS = f"""
SELECT n.nspname, c.relname, a.attname, pg_get_expr(k.conbin, k.conrelid)
{_NAMES} JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
JOIN pg_constraint AS k ON k.contype = 'c'
 AND (k.contypid = a.atttypid OR k.conrelid = c.oid AND k.conkey = ARRAY[a.attnum])
"""
_COMMENTS = f"""
SELECT n.nspname, c.relname, a.attname, d.description
{_NAMES} JOIN pg_description AS d ON d.objoid = c.oid AND d.classoid = 'pg_class'::regclass
LEFT JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum = d.objsubid AND d.objsubid > 0
WHERE d.objsubid = 0 OR NOT a.attisdropped
"""


# Indexes of partitions are partitions of an index: they hold no rows of their own.
_PARTS = f"SELECT n.nspname, c.relname {_NAMES} WHERE c.relispartition AND c.relkind IN ('r', 'p', 'f')"


def survey(database: str, folder: Path, tell: Tell) -> Surveyed:
    """The database at an address; its password is not stored."""
    del folder
    url, name = without_password(database)
    limits = Limits()
    with closing(PostgresEngine(database, memory=limits.memory, threads=limits.threads)) as engine:
        schema = engine.schema()
    if len(url) < len(database):
        tell("the password is not written into the policy: give it in PGPASSWORD or in a password file")
    return Surveyed(
        name,
        url,
        f"{name}.ledger",
        schema,
        read_details(database),
        lambda proposals: suggest_bounds(database, proposals),
    )


def read_details(url: str) -> SchemaDetails:
    """Keys, references of one column, enums, checks of one column and comments, from the catalog. No row is read."""
    with _reading(url) as connection:
        keys = connection.execute(_KEYS).fetchall()
        enums = connection.execute(_ENUMS).fetchall()
        checks = connection.execute(_CHECKS).fetchall()
        comments = connection.execute(_COMMENTS).fetchall()
        parts = connection.execute(_PARTS).fetchall()
    primary_keys: dict[Source, tuple[str, ...]] = {}
    references = []
    for schema, table, sort, names, target_schema, target, targets in keys:
        if sort == "p":
            primary_keys[schema, table] = tuple(names)
        elif len(names) == 1:
            references.append(Reference((schema, table), names[0], (target_schema, target), targets[0]))
    values: dict[tuple[Source, str], tuple[str, ...]] = {
        ((schema, table), column): tuple(found) for schema, table, column, found in enums
    }
    bounds: dict[tuple[Source, str], tuple[Bound, Bound]] = {}
    listed: dict[tuple[Source, str], tuple[str, ...]] = {}
    for column, texts in _by_column(checks).items():
        if (several := allowed_values(texts)) is not None:
            listed[column] = several
        elif (ends := allowed_range(texts)) is not None:
            bounds[column] = ends
    return SchemaDetails(
        MappingProxyType(primary_keys),
        tuple(references),
        MappingProxyType(values),
        MappingProxyType(listed),
        MappingProxyType(bounds),
        MappingProxyType({((schema, table), column): text for schema, table, column, text in comments}),
        frozenset((schema, table) for schema, table in parts),
    )


def _by_column(checks: Sequence[tuple[Any, ...]]) -> Mapping[tuple[Source, str], list[str]]:
    found: dict[tuple[Source, str], list[str]] = {}
    for schema, table, column, text in checks:
        found.setdefault(((schema, table), column), []).append(text)
    return found


# --- checks: a few forms are recognised, others are ignored ---

_CAST = re.compile(r"::[a-z]+(?: [a-z]+)*(?:\([\d,]+\))?(?:\[\])?")
_NAME = r'(?:[a-z_]\w*|"(?:[^"]|"")+"|VALUE)'
_CONSTANT = r"(?:-?\d+(?:\.\d+)?|'[^']*')"
_COMPARISON = re.compile(rf"{_NAME} (>=|>|<=|<|=) ({_CONSTANT})")
_LIST = re.compile(rf"{_NAME} = ANY ARRAY\[((?:'(?:[^']|'')*'(?:, )?)+)\]")


def _plain(text: str) -> str:
    """Without casts and parentheses, which do not matter without OR and calls."""
    return _CAST.sub("", text).replace("(", "").replace(")", "").strip()


def allowed_values(checks: Sequence[str]) -> tuple[str, ...] | None:
    """The texts of `column IN ('a', 'b')`."""
    for check in checks:
        if match := _LIST.fullmatch(_plain(check)):
            return tuple(part.replace("''", "'") for part in re.findall(r"'((?:[^']|'')*)'", match[1]))
    return None


def allowed_range(checks: Sequence[str]) -> tuple[Bound, Bound] | None:
    """The ends of `column BETWEEN a AND b`, or of two comparisons, if there are both."""
    low: list[Any] = []
    high: list[Any] = []
    for check in checks:
        comparisons = [_COMPARISON.fullmatch(part) for part in _plain(check).split(" AND ")]
        for match in comparisons if all(comparisons) else ():
            assert match is not None
            value = _bound(match[2])
            if value is not None and match[1] in (">", ">="):
                low.append(value)
            elif value is not None and match[1] in ("<", "<="):
                high.append(value)
    if len({type(value) for value in (*low, *high)}) != 1 or not low or not high or not max(low) < min(high):
        return None
    return max(low), min(high)


def _bound(text: str) -> Bound | None:
    if not text.startswith("'"):
        return Fraction(text)
    try:
        return (
            Fraction(text.strip("'")) if re.fullmatch(r"'-?\d+(\.\d+)?'", text) else date.fromisoformat(text.strip("'"))
        )
    except ValueError:
        return None


# --- extremes of the data, on request ---


def suggest_bounds(url: str, proposals: Sequence[Proposal]) -> Suggestions:
    """Bounds from the data, for the columns and units that a draft proposes.

    These come from private rows, without noise: the owner requested it and is warned about what it reveals. Exact
    extremes do not leave this function.
    """
    with _reading(url) as connection:
        return collect(proposals, partial(_extremes, connection), partial(_rows_of_most_units, connection))


def _extremes(connection: Connection, proposal: Proposal, column: str) -> tuple[Bound, Bound] | None:
    type_ = proposal.table.columns[column].type
    assert type_ is not None
    name = quoted(column)
    # NaN and infinity are not extremes. A day is precise enough for a timestamp.
    is_number = f"CAST({name} AS text) NOT IN ('NaN', 'Infinity', '-Infinity')"
    finite = f"isfinite({name})" if type_.is_temporal else is_number
    value = f"CAST({name} AS date)" if type_.is_temporal else name
    where = f" WHERE {finite}" if type_.kind is not Kind.INTEGER else ""
    try:
        table = qualified(proposal.table.source)
        row = connection.execute(f"SELECT MIN({value}), MAX({value}) FROM {table}{where}").fetchone()
    except psycopg.DataError:
        return None  # a year beyond Python's range
    if row is None or row[0] is None:
        return None
    return round_outward(row[0], row[1])


def _rows_of_most_units(connection: Connection, source: Source, unit: str) -> int | None:
    name = quoted(unit)
    row = connection.execute(
        f"SELECT percentile_disc({_MOST_UNITS}) WITHIN GROUP (ORDER BY n) FROM"
        f" (SELECT COUNT(*) AS n FROM {qualified(source)} WHERE {name} IS NOT NULL GROUP BY {name}) AS t"
    ).fetchone()
    return None if row is None or row[0] is None else int(row[0])


@contextmanager
def _reading(url: str) -> Iterator[Connection]:
    """A transaction that only reads; the engine's errors become a fixed sentence."""
    failure: Error
    connections = opened(url)
    try:
        with connections.transaction(seconds=_SECONDS) as connection:
            yield connection
        return
    except psycopg.Error as error:
        failure = engine_failed(error)
    finally:
        connections.close()
    raise failure
