"""Window functions."""

from __future__ import annotations

from sqlglot import exp

from dpsql.errors import BadSetting, NotSupported, UnknownWindow, WindowingError
from dpsql.plan.scalars import Agg, Scalar, SortKey, Windowed
from dpsql.sql.allowed import check_arguments
from dpsql.sql.functions.aggregates import arguments, result_type
from dpsql.sql.functions.core import Expressions
from dpsql.sql.functions.table import Function
from dpsql.sql.scope import Scope, folded, position
from dpsql.sql.types import constant, unify
from dpsql.types import BIGINT, DOUBLE, Type

_RANKINGS: dict[type[exp.Expression], str] = {
    exp.RowNumber: "row_number",
    exp.Rank: "rank",
    exp.DenseRank: "dense_rank",
    exp.PercentRank: "percent_rank",
    exp.CumeDist: "cume_dist",
}

_WINDOW_AGGREGATES: dict[type[exp.Expression], Agg] = {
    exp.Count: Agg.COUNT,
    exp.Sum: Agg.SUM,
    exp.Avg: Agg.AVG,
    exp.Min: Agg.MIN,
    exp.Max: Agg.MAX,
}


def _window(read: Expressions, node: exp.Window, scope: Scope) -> Scalar:
    inner = node.this
    where = None
    if isinstance(inner, exp.Filter):
        where = read.condition(inner.expression.this, scope, "FILTER")
        inner = inner.this
        if type(inner) not in _WINDOW_AGGREGATES:
            raise NotSupported("FILTER is only allowed after an aggregate function", position=position(node))
    function, args, result = _window_function(read, inner, scope)
    return Windowed(function, args, result, *window_of(read, node, scope), where)


def window_of(read: Expressions, node: exp.Window, scope: Scope) -> tuple[tuple[Scalar, ...], tuple[SortKey, ...], str]:
    """PARTITION BY, ORDER BY and the frame of a window."""
    partition, order, spec = _window_parts(read, node)
    partitions = tuple(read.typed(part, scope) for part in partition)
    return partitions, tuple(read.sort_key(part, scope) for part in order), frame(spec)


def _window_parts(
    read: Expressions, node: exp.Window
) -> tuple[list[exp.Expression], list[exp.Expression], exp.Expression | None]:
    name = node.args.get("alias")
    if name is None:
        order = node.args.get("order")
        return node.args.get("partition_by") or [], order.expressions if order else [], node.args.get("spec")
    if any(node.args.get(part) for part in ("partition_by", "order", "spec")):
        raise NotSupported("a window that extends a named window is not supported", position=position(node))
    named = read.windows.get(folded(name))
    if named is None:
        raise UnknownWindow(folded(name), position=position(node))
    # OVER v is that window; OVER (v) copies it, and only there sqlglot has a PARTITION BY, if an empty one.
    if "partition_by" in node.args and named.args.get("spec") is not None:
        message = f'cannot copy window "{folded(name)}" because it has a frame clause'
        raise WindowingError(message, position=position(node))
    check_arguments(named, {"this", "partition_by", "order", "spec", "alias"})
    return _window_parts(read, exp.Window(**{k: v for k, v in named.args.items() if k != "this"}))


def _window_function(read: Expressions, node: exp.Expression, scope: Scope) -> tuple[str, tuple[Scalar, ...], Type]:
    for class_, name in _RANKINGS.items():
        if type(node) is class_:
            check_arguments(node, set())
            return name, (), BIGINT if name in ("row_number", "rank", "dense_rank") else DOUBLE
    match node:
        case exp.Ntile():
            check_arguments(node, {"this"})
            tiles = read.small_integer(node.this, scope, "the number of tiles")
            if tiles < 1:
                raise BadSetting("the number of tiles must be positive", position=position(node))
            return "ntile", (constant(tiles),), BIGINT
        case exp.Lag() | exp.Lead():
            check_arguments(node, {"this", "offset", "default"})
            value = (read.typed if node.args.get("default") is not None else read.settled)(node.this, scope)
            offset = node.args.get("offset")
            steps = 1 if offset is None else read.small_integer(offset, scope, "the offset")
            args: tuple[Scalar, ...] = (value, constant(steps))
            common = value.type
            if node.args.get("default") is not None:
                default = read.scalar(node.args["default"], scope)
                common = unify((value, default), "lag and default")
                args = (read.coerce(value, common), constant(steps), read.coerce(default, common))
            return "lag" if isinstance(node, exp.Lag) else "lead", args, common
        case exp.FirstValue() | exp.LastValue():
            check_arguments(node, {"this"})
            value = read.settled(node.this, scope)
            return "first_value" if isinstance(node, exp.FirstValue) else "last_value", (value,), value.type
        case exp.NthValue():
            check_arguments(node, {"this", "offset"})
            value = read.settled(node.this, scope)
            nth = read.small_integer(node.args["offset"], scope, "the offset")
            if nth < 1:
                raise BadSetting("the offset of nth_value must be positive", position=position(node))
            return "nth_value", (value, constant(nth)), value.type
    for class_, function in _WINDOW_AGGREGATES.items():
        if type(node) is class_:
            check_arguments(node, {"this", "expressions", "big_int"})
            if isinstance(node.this, exp.Distinct):
                raise NotSupported("DISTINCT in a window function is not supported", position=position(node))
            if function is Agg.COUNT and isinstance(node.this, exp.Star):
                return "count", (), BIGINT
            # The argument may itself be an aggregate: SUM(COUNT(*)) OVER ().
            value = read.typed(node.this, scope)
            return function.value, arguments(read, function, [value], node), result_type(function, [value])
    raise NotSupported("this window function is not supported", position=position(node))


FUNCTIONS = (
    Function("call OVER (PARTITION BY … ORDER BY … frame)", "as its function",
             "A value computed from related rows; also count, sum, avg, min and max.", exp.Window, _window,
             frozenset({"this", "partition_by", "order", "spec", "over", "alias"})),
    Function("row_number() OVER (…)", "bigint", "The number of the row, from 1."),
    Function("rank() OVER (…)", "bigint", "The rank of the row, with gaps after ties."),
    Function("dense_rank() OVER (…)", "bigint", "The rank of the row, without gaps."),
    Function("percent_rank() OVER (…)", "double precision", "The rank from 0 to 1."),
    Function("cume_dist() OVER (…)", "double precision", "The fraction of rows up to this one."),
    Function("ntile(count) OVER (…)", "bigint", "Which of a constant number of parts the row is in."),
    Function("lag(value [, offset [, default]]) OVER (…)", "as its argument", "The value some rows before."),
    Function("lead(value [, offset [, default]]) OVER (…)", "as its argument", "The value some rows after."),
    Function("first_value(value) OVER (…)", "as its argument", "The value in the first row of the frame."),
    Function("last_value(value) OVER (…)", "as its argument", "The value in the last row of the frame."),
    Function("nth_value(value, place) OVER (…)", "as its argument", "The value in one row of the frame."),
)  # fmt: skip


# ------------------------------------------------------------
# Window frames, generated from a closed grammar.


def frame(spec: exp.Expression | None) -> str:
    if spec is None:
        return ""
    check_arguments(spec, {"kind", "start", "start_side", "end", "end_side"})
    kind = str(spec.args.get("kind") or "ROWS").upper()
    if kind not in ("ROWS", "RANGE", "GROUPS"):
        raise NotSupported("this window frame is not supported")
    start = _frame_end(spec.args.get("start"), spec.args.get("start_side"), kind)
    end = _frame_end(spec.args.get("end") or "CURRENT ROW", spec.args.get("end_side"), kind)
    if _FRAME_ORDER.index(_frame_kind(start)) > _FRAME_ORDER.index(_frame_kind(end)) or (
        start == "UNBOUNDED FOLLOWING" or end == "UNBOUNDED PRECEDING"
    ):
        raise WindowingError("a window frame must not end before it starts")
    return f"{kind} BETWEEN {start} AND {end}"


_FRAME_ORDER = ("UNBOUNDED PRECEDING", "PRECEDING", "CURRENT ROW", "FOLLOWING", "UNBOUNDED FOLLOWING")


def _frame_kind(bound: str) -> str:
    return bound if bound in _FRAME_ORDER else bound.split()[-1]


def _frame_end(bound: object, side: object, kind: str) -> str:
    if isinstance(bound, exp.Literal) and not bound.is_string and str(bound.this).isdigit() and kind != "RANGE":
        if len(str(bound.this)) > 9:
            raise NotSupported("a window frame of a billion or more rows is not supported")
        text = str(int(str(bound.this)))
    elif str(bound).upper() in ("UNBOUNDED", "CURRENT ROW"):
        text = str(bound).upper()
    else:
        raise NotSupported("this window frame is not supported")
    direction = str(side or "").upper()
    if direction not in ("", "PRECEDING", "FOLLOWING") or (text == "CURRENT ROW") != (direction == ""):
        raise NotSupported("this window frame is not supported")
    return f"{text} {direction}".strip()
