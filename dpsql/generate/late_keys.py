"""Keys that can be made after rows are added up: of groups of rows, which are fewer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from fractions import Fraction

from dpsql.generate.large_owners import is_one_table
from dpsql.generate.stored_tests import stored_test
from dpsql.plan.nodes import Filter, Plan, Project, Scan, nodes
from dpsql.plan.scalars import Field, Ref, Scalar, has_subquery, refs
from dpsql.policy.model import Column
from dpsql.privacy.refine import conjuncts
from dpsql.privacy.rules.aggregates import Statistic
from dpsql.types import Kind, Value

# Whose equal values are the same in every respect; numbers of other types may have several zeros. Texts may have
# collations: they are compared byte by byte before.
_KINDS = (Kind.INTEGER, Kind.BOOLEAN, Kind.DATE, Kind.TEXT)
# Of a column with more values than this, between its bounds, keys are computed row by row: groups might be as many.
_MOST_VALUES = 10_000


@dataclass(frozen=True, slots=True)
class Key:
    """A GROUP BY expression; `keys` are all it may show, or None if they are unknown.

    Rows with another value are dropped; or, with `remainder`, kept together under NULL, which then is none of the keys.
    """

    value: Scalar
    keys: tuple[Value, ...] | None
    remainder: bool = False


@dataclass(frozen=True, slots=True)
class StoredColumn:
    """A declared column of a table."""

    field: int  # that of the scan
    column: Column


@dataclass(frozen=True, slots=True)
class LateKey:
    """A key that is made of one stored column, and the field that shows it to the key's expression."""

    stored: StoredColumn
    shown: Field

    @property
    def is_raw(self) -> bool:
        """Whether the column is grouped as it is stored; a text is, byte by byte."""
        return self.stored.column.type.kind is not Kind.TEXT


def late_keys(plan: Plan, keys: Sequence[Key], statistics: Sequence[Statistic], *, copies: bool) -> dict[str, LateKey]:
    """The keys, by their names k0, k1 …, that are made of a declared column of one table which nothing else reads.

    Claim: whether rows are kept, and what they add to a sum, does not depend on these columns, once conditions that are
    tested on what is stored are met.
    Because: no other condition, no other column and no sum refers to them; above the scan they are only handed on.
    Needs: a plan of one table.
    """
    if not is_one_table(plan, copies=copies):
        return {}
    columns = stored_columns(plan)
    found = {f"k{i}": late for i, key in enumerate(keys) if (late := _late(key, columns)) is not None}
    values = [part for s in statistics for part in (s.value, s.where) if part is not None]
    values += [key.value for i, key in enumerate(keys) if f"k{i}" not in found]
    read = read_fields(plan, values)
    return {name: late for name, late in found.items() if not late.is_raw or late.stored.field not in read}


def read_fields(plan: Plan, values: Iterable[Scalar]) -> set[int]:
    """The fields of scans that these values, or what a plan computes, read as the scan makes them."""
    columns = stored_columns(plan)
    every = _every_ref([*values, *_computed(plan)])
    return {columns[ref.field.id].field for ref in every if ref.field.id in columns}


def _late(key: Key, columns: Mapping[int, StoredColumn]) -> LateKey | None:
    read = {ref.field.id: ref.field for ref in refs(key.value)}
    if key.keys is None or len(read) != 1 or has_subquery(key.value):
        return None
    (field,) = read.values()
    stored = columns.get(field.id)
    if stored is None or stored.column.type != field.type or field.type.kind not in _KINDS:
        return None
    few = isinstance(key.value, Ref) or _has_few_values(stored.column)
    return LateKey(stored, field) if few else None


def _has_few_values(column: Column) -> bool:
    if column.type.kind is Kind.BOOLEAN:
        return True
    low, high = column.lower, column.upper
    if isinstance(low, Fraction) and isinstance(high, Fraction):
        return column.type.kind is Kind.INTEGER and high - low <= _MOST_VALUES
    if isinstance(low, date) and isinstance(high, date):
        return column.type.kind is Kind.DATE and (high - low).days <= _MOST_VALUES
    return False


def stored_columns(plan: Plan) -> dict[int, StoredColumn]:
    """The fields of a relation, and of those it is made of, that show a declared column as a scan makes it, or NULL."""
    found: dict[int, StoredColumn] = {}
    shown: dict[int, int] = {}
    for node in nodes(plan):
        if isinstance(node, Scan):
            found |= {field: StoredColumn(field, column) for field, column in scan_columns(node).items()}
        elif isinstance(node, Project):
            pairs = [(f.id, value.field.id) for f, value in node.items if isinstance(value, Ref)]
            shown |= {field: source for field, source in pairs if field != source}
    for field in shown:
        source = field
        while source in shown:
            source = shown[source]
        if source in found:
            found[field] = found[source]
    return found


def _computed(plan: Plan) -> Iterator[Scalar]:
    """Conditions that are not tested on what is stored, and columns that do not show another as it is."""
    for node in nodes(plan):
        if isinstance(node, Filter):
            columns = _tested_columns(node)
            yield from (part for part in conjuncts(node.predicate) if stored_test(part, columns) is None)
        elif isinstance(node, Project):
            yield from (value for _, value in node.items if not isinstance(value, Ref))


def _tested_columns(plan: Filter) -> dict[int, Column]:
    below: Plan = plan
    while isinstance(below, Filter):
        below = below.child
    return scan_columns(below) if isinstance(below, Scan) else {}


def scan_columns(scan: Scan) -> dict[int, Column]:
    """The declared columns that the fields of a scan show."""
    named = zip(scan.fields, scan.columns, strict=True)
    return {field.id: column for field, name in named if (column := scan.table.columns.get(name)) is not None}


def _every_ref(values: Iterable[Scalar]) -> Iterator[Ref]:
    for value in values:
        yield from refs(value)
