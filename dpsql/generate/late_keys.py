"""Keys that can be made after rows are added up: of groups of rows, which are fewer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from dpsql.generate.large_owners import is_one_table
from dpsql.plan.nodes import Filter, Plan, Project, Scan, nodes
from dpsql.plan.scalars import Ref, Scalar, refs
from dpsql.policy.model import Column
from dpsql.privacy.rules.aggregates import Statistic
from dpsql.types import Kind, Value

# Whose equal values are the same in every respect; texts may have collations, and numbers of other types several zeros.
_KINDS = (Kind.INTEGER, Kind.BOOLEAN)


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


def late_keys(plan: Plan, keys: Sequence[Key], statistics: Sequence[Statistic]) -> dict[str, StoredColumn]:
    """The keys, by their names k0, k1 …, that are declared columns of one table which nothing else reads.

    Claim: whether rows are kept, and what they add to a sum, does not depend on these columns.
    Because: no condition, no other column and no sum refers to them; above the scan they are only handed on.
    Needs: a plan of one table.
    """
    if not is_one_table(plan):
        return {}
    columns = stored_columns(plan)
    values = [part for s in statistics for part in (s.value, s.where) if part is not None]
    values += [key.value for key in keys if not isinstance(key.value, Ref)]
    read = {columns[ref.field.id].field for ref in _every_ref([*values, *_computed(plan)]) if ref.field.id in columns}
    found: dict[str, StoredColumn] = {}
    for number, key in enumerate(keys):
        if not isinstance(key.value, Ref) or key.keys is None or key.value.type.kind not in _KINDS:
            continue
        stored = columns.get(key.value.field.id)
        if stored is not None and stored.field not in read and stored.column.type == key.value.type:
            found[f"k{number}"] = stored
            read.add(stored.field)
    return found


def stored_columns(plan: Plan) -> dict[int, StoredColumn]:
    """The fields of a relation, and of those it is made of, that show a declared column as a scan makes it, or NULL."""
    found: dict[int, StoredColumn] = {}
    shown: dict[int, int] = {}
    for node in nodes(plan):
        if isinstance(node, Scan):
            named = zip(node.fields, node.columns, strict=True)
            found |= {f.id: StoredColumn(f.id, c) for f, name in named if (c := node.table.columns.get(name))}
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
    """Conditions, and columns that do not show another as it is."""
    for node in nodes(plan):
        if isinstance(node, Filter):
            yield node.predicate
        elif isinstance(node, Project):
            yield from (value for _, value in node.items if not isinstance(value, Ref))


def _every_ref(values: Iterable[Scalar]) -> Iterator[Ref]:
    for value in values:
        yield from refs(value)
