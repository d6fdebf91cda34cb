"""Text of rows that is read as a date or a time: what is none becomes NULL, and an answer says so.

PostgreSQL would refuse the whole query for one such row; here no row may decide that (rule Total). The sentence follows
from the query alone.
"""

from __future__ import annotations

from dpsql.plan.nodes import Plan, nodes, scalars
from dpsql.plan.scalars import Call, Const, Op, walk
from dpsql.types import Kind

NULL_DATES = (
    "text that PostgreSQL does not read as a date is NULL; so are now, today, infinity, years before 1 or after 9999,"
    " and text with the name of a time zone"
)


def reads_dates_of_rows(plan: Plan) -> bool:
    """Whether an expression makes dates or times of text that is no constant."""
    return any(
        isinstance(part, Call)
        and part.op is Op.CAST
        and part.type.is_temporal
        and part.args[0].type.kind is Kind.TEXT
        and not isinstance(part.args[0], Const)
        for node in nodes(plan)
        for scalar in scalars(node)
        for part in walk(scalar)
    )
