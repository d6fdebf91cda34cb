"""The allow-list for expressions: the arguments that a node may carry, and refusals with a reason.

sqlglot keeps parts of a statement in arguments that a handler may not know, and knows functions of many databases.
Nothing an analyst wrote is ever silently dropped.
"""

from __future__ import annotations

import re
from collections.abc import Set as AbstractSet

from sqlglot import exp

from dpsql.errors import GroupingError, NotSupported
from dpsql.plan.scalars import Aggregated, Scalar, Windowed, walk
from dpsql.sql.scope import position
from dpsql.types import Kind


def check_arguments(node: exp.Expression, allowed: AbstractSet[str]) -> None:
    """Refuse a node that carries more than its handler reads."""
    for name, value in node.args.items():
        if name not in allowed and value not in (None, False, [], ""):
            plain = f"{readable(node)} with {name.rstrip('_').replace('_', ' ')}"
            what = _CLAUSES.get((type(node).__name__, name), plain)
            raise NotSupported(f"{what} is not supported", position=position(node))


def refuse_aggregates(value: Scalar, clause: str) -> None:
    for part in walk(value):
        if isinstance(part, Aggregated):
            raise GroupingError(f"aggregate functions are not allowed in {clause}", position=part.position)
        if isinstance(part, Windowed):
            raise GroupingError(f"window functions are not allowed in {clause}")


def refuse_array(value: Scalar, at: int | None) -> None:
    if value.type.kind is Kind.ARRAY:
        raise NotSupported(
            "an array cannot be used here", hint="It can only be returned; (…)[1] takes one of its values.", position=at
        )


def readable(node: exp.Expression) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(node).__name__).upper()


# The SQL clauses that sqlglot keeps in arguments.
_CLAUSES = {
    ("With", "recursive"): "WITH RECURSIVE",
    ("Table", "sample"): "TABLESAMPLE",
    ("Table", "only"): "ONLY",
    ("Table", "catalog"): "a name with a database",
    ("Table", "ordinality"): "WITH ORDINALITY",
    ("Select", "locks"): "FOR UPDATE or FOR SHARE",
    ("Distinct", "on"): "DISTINCT ON",
    ("Column", "catalog"): "a name with a database",
}

_TIMES = "Use LOCALTIMESTAMP, or EXTRACT(HOUR FROM …)."
REFUSED: dict[type[exp.Expression], tuple[str, str | None]] = {
    exp.CurrentTime: ("a time without a date", _TIMES),
    exp.Localtime: ("a time without a date", _TIMES),
    exp.RegexpLike: ("a regular expression", "Use LIKE with a constant pattern."),
    exp.RegexpILike: ("a regular expression", "Use ILIKE with a constant pattern."),
    exp.SimilarTo: ("a regular expression", "Use LIKE with a constant pattern."),
    exp.GroupConcat: ("string_agg", "It would return values of single rows."),
    exp.ArrayAgg: ("array_agg", "It would return values of single rows."),
    exp.AnyValue: ("any_value", "It would return values of single rows."),
    exp.ExplodingGenerateSeries: ("generate_series in an expression", "Write FROM generate_series(1, 10) AS g(n)."),
    exp.Any: ("ANY", "Use IN with a list or a subquery."),
    exp.All: ("ALL", "Use NOT IN, or compare with an aggregate."),
    exp.Array: ("an array here", "ARRAY[…] lists the shares of a percentile, or what = ANY compares with."),
    exp.Placeholder: (
        "a placeholder without a value",
        "Pass a value for it: --param NAME=VALUE, or parameters in Python.",
    ),
    exp.Collate: ("COLLATE", None),
    exp.Tuple: ("a row of several values", "Compare the columns one by one."),
}
