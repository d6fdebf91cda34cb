"""Rows of a private table never leave."""

from __future__ import annotations

from dpsql.errors import PrivateRows
from dpsql.plan.nodes import Aggregate, Plan, Project, Scan, nodes, scalars
from dpsql.plan.scalars import Ref, refs
from dpsql.privacy.derive import is_private
from dpsql.privacy.owners import is_unit, names_owner


def refuse_rows(plan: Plan) -> None:
    if not is_private(plan):
        return
    table = next(node.table.name for node in nodes(plan) if isinstance(node, Scan) and node.table.is_private)
    for node in nodes(plan):
        for value in scalars(node) if isinstance(node, Aggregate) else ():
            if isinstance(value, Ref) and (is_unit(value) or names_owner([value])):
                unit = "the unit" if is_unit(value) else "a key that belongs to one unit,"
                raise PrivateRows(
                    f'grouping by {unit} "{value.field.name}" would return rows of private table "{table}"',
                    hint="Aggregate once more over the groups, as in SELECT AVG(n) FROM (… GROUP BY unit).",
                    position=value.position,
                )
        for value in scalars(node):
            for ref in refs(value):
                if ref.position is not None and isinstance(node, Project):
                    raise PrivateRows(
                        f'column "{ref.field.name}" would return rows of private table "{table}"',
                        hint="Aggregate it, or group by a column with declared keys.",
                        position=ref.position,
                    )
    raise PrivateRows(
        f'the query would return rows of private table "{table}"',
        hint="Aggregate them, or group by a column with declared keys.",
    )
