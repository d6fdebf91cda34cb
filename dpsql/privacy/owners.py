"""Which columns identify the owner of a row: the unit's own column, or a key of a row of the same unit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dpsql.errors import NotSupported
from dpsql.plan.nodes import Plan, Scan, nodes
from dpsql.plan.scalars import Call, Field, Link, Op, Ref, Scalar


def is_unit(value: Scalar) -> bool:
    """Whether an expression is the unit itself, for every row: an outer join may have left NULL in its place."""
    return isinstance(value, Ref) and value.field.unit and not value.field.optional


def names_owner(values: Iterable[Scalar]) -> bool:
    """Whether rows that agree in these values belong to one unit.

    Claim: if true, no two units share a row's values.
    Because: they hold the unit, or all parts of a key that identifies one row of a table, and so that row's one owner.
    Needs: parts of one key that come from one row, and no NULL among them.
    """
    parts: dict[tuple[str, tuple[str, ...], int], set[int]] = {}
    for value in values:
        if not isinstance(value, Ref) or value.field.optional:
            continue
        if value.field.unit:
            return True
        for link in value.field.links:
            if link.exact:
                parts.setdefault((link.table, link.key, link.row), set()).add(link.part)
    return any(len(found) == len(key) for (_, key, _), found in parts.items())


def equal_owners(conditions: Iterable[Scalar], left: Sequence[Field], right: Sequence[Field]) -> bool:
    """Whether the analyst's own conditions make the owners of two rows equal.

    Claim: if true, the generated SQL may compare owners as well, which changes no answer.
    Because: a condition compares the units themselves, or all parts of a key that identifies one row of one table: that
    row has one owner, and both rows belong to it. Where bounds are declared for such a column, the scan clamps it, and
    values beyond the bounds look equal. The owners are computed from the stored columns, so comparing them separates
    such rows.
    Needs: plain equality, which NULL never passes; and SQL that compares owners wherever this is what it relies on.
    """
    return any(True for _ in evidence(conditions, left, right, clamped=True))


def evidence(
    conditions: Iterable[Scalar], left: Sequence[Field], right: Sequence[Field], *, clamped: bool = False
) -> Iterable[tuple[Link, ...]]:
    """Why owners are equal: () for the units themselves, or the links of the right side that were compared.

    With `clamped`, columns count whose different keys look equal after clamping: alone they do not identify the owner.
    """
    mine, theirs = {field.id for field in left}, {field.id for field in right}
    compared: dict[tuple[str, tuple[str, ...], int, int], dict[int, tuple[Link, Link]]] = {}
    for a, b in (pair for condition in conditions if (pair := compared_fields(condition)) is not None):
        if a.id in theirs and b.id in mine:
            a, b = b, a
        if a.id not in mine or b.id not in theirs:
            continue
        if a.unit and b.unit:
            yield ()
        for link in a.links:
            for other in b.links:
                if (link.table, link.key, link.part) == (other.table, other.key, other.part):
                    found = compared.setdefault((link.table, link.key, link.row, other.row), {})
                    found[link.part] = (link, other)
    for (_, key, _, _), parts in compared.items():
        if len(parts) == len(key) and (clamped or all(a.exact and b.exact for a, b in parts.values())):
            yield tuple(other for _, (_, other) in sorted(parts.items()))


def compared_fields(condition: Scalar) -> tuple[Field, Field] | None:
    """The two columns of an equality."""
    if not isinstance(condition, Call) or condition.op is not Op.EQ:
        return None
    a, b = condition.args
    return (a.field, b.field) if isinstance(a, Ref) and isinstance(b, Ref) else None


def refuse_join(left: Plan, right: Plan) -> NotSupported:
    """Why two private relations cannot be joined, and a condition that would allow it."""
    one, other = _tables(left), _tables(right)
    names = f'"{one[-1].table.name}" and "{other[0].table.name}"' if one and other else "private tables"
    pair = next((found for a in one for b in other if (found := _condition(a, b)) is not None), None)
    hint = "Join them on the columns that name the unit."
    if pair is not None:
        hint = f"Add the condition {pair}."
    elif one and other:
        units = " and ".join(f"{table.name} ({table.unit_text})" for table in (one[-1].table, other[0].table))
        hint = f"Join them, and what is between, on the columns that name the unit: {units}."
    return NotSupported(f"the join of {names} would combine rows of different units", hint=hint)


def _tables(plan: Plan) -> list[Scan]:
    return [node for node in nodes(plan) if isinstance(node, Scan) and node.table.is_private]


def _condition(left: Scan, right: Scan) -> str | None:
    """An equality that ties two tables: by reference, or of their units."""
    for one, other in ((left.table, right.table), (right.table, left.table)):
        if one.path and one.path[0].table == other.name:
            pairs = zip(one.path[0].via, one.path[0].key, strict=True)
            return " AND ".join(f"{one.name}.{via} = {other.name}.{key}" for via, key in pairs)
    if left.table.path or right.table.path:
        return None
    if left.table is right.table:
        return f"that {left.table.owner} is the same on both sides"
    return f"{left.table.name}.{left.table.owner} = {right.table.name}.{right.table.owner}"
