"""What is allowed inside an expression: which arguments a node may carry, and under which names functions are known.

sqlglot keeps parts of a statement in arguments that a handler may not know, and knows functions of many databases.
Nothing an analyst wrote is ever dropped in silence.
"""

from __future__ import annotations

import re

from sqlglot import exp

from dpsql.errors import GroupingError, NotSupported
from dpsql.plan.scalars import Aggregated, Scalar, Windowed, walk
from dpsql.sql.scope import position
from dpsql.types import Kind


def check_arguments(node: exp.Expression, allowed: set[str]) -> None:
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
            "an array cannot be used here", hint="It can be shown; (…)[1] takes one of its values.", position=at
        )


def readable(node: exp.Expression) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(node).__name__).upper()


# What sqlglot keeps in arguments, as an analyst knows it.
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

# The names PostgreSQL has for functions that sqlglot knows under others as well.
NAMES: dict[type, frozenset[str]] = {
    class_: frozenset(names.split())
    for class_, names in {
        exp.Coalesce: "coalesce",
        exp.Abs: "abs",
        exp.Sign: "sign",
        exp.Floor: "floor",
        exp.Ceil: "ceil ceiling",
        exp.Round: "round",
        exp.Trunc: "trunc",
        exp.Sqrt: "sqrt",
        exp.Ln: "ln",
        exp.Log: "log log10",
        exp.Exp: "exp",
        exp.Pow: "power pow",
        exp.Cbrt: "cbrt",
        exp.Sin: "sin",
        exp.Cos: "cos",
        exp.Tan: "tan",
        exp.Asin: "asin",
        exp.Acos: "acos",
        exp.Atan: "atan",
        exp.Atan2: "atan2",
        exp.Degrees: "degrees",
        exp.Radians: "radians",
        exp.Pi: "pi",
        exp.IntDiv: "div",
        exp.Mod: "mod",
        exp.Least: "least",
        exp.Greatest: "greatest",
        exp.Nullif: "nullif",
        exp.WidthBucket: "width_bucket",
        exp.Length: "length char_length character_length",
        exp.Lower: "lower",
        exp.Upper: "upper",
        exp.Trim: "trim btrim ltrim rtrim",
        exp.Concat: "concat",
        exp.ConcatWs: "concat_ws",
        exp.StrPosition: "position strpos",
        exp.StartsWith: "starts_with",
        exp.Replace: "replace",
        exp.SplitPart: "split_part",
        exp.Left: "left",
        exp.Right: "right",
        exp.Substring: "substring substr",
        exp.Extract: "extract date_part",
        exp.TimestampTrunc: "date_trunc",
        exp.DateBin: "date_bin",
        exp.TimeToStr: "to_char",
        exp.Date: "date",
        exp.CurrentTimestamp: "now",
        exp.StrToDate: "to_date",
        exp.StrToTime: "to_timestamp",
        exp.UnixToTime: "to_timestamp",
        exp.Count: "count",
        exp.Sum: "sum",
        exp.Avg: "avg",
        exp.Min: "min",
        exp.Max: "max",
        exp.Stddev: "stddev",
        exp.StddevSamp: "stddev_samp",
        exp.StddevPop: "stddev_pop",
        exp.Variance: "variance var_samp",
        exp.VariancePop: "var_pop",
        exp.CovarPop: "covar_pop",
        exp.CovarSamp: "covar_samp",
        exp.Corr: "corr",
        exp.RegrSlope: "regr_slope",
        exp.RegrIntercept: "regr_intercept",
        exp.RegrCount: "regr_count",
        exp.RegrAvgx: "regr_avgx",
        exp.RegrAvgy: "regr_avgy",
        exp.RegrSxx: "regr_sxx",
        exp.RegrSyy: "regr_syy",
        exp.RegrSxy: "regr_sxy",
        exp.RegrR2: "regr_r2",
        exp.ApproxDistinct: "approx_count_distinct",
        exp.Mode: "mode",
        exp.Median: "median",
        exp.PercentileCont: "percentile_cont",
        exp.PercentileDisc: "percentile_disc",
        exp.LogicalAnd: "bool_and every",
        exp.LogicalOr: "bool_or",
    }.items()
}
