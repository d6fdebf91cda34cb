"""Aggregates, including quantiles, with FILTER and GROUPING."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal

from sqlglot import exp

from dpsql.errors import NotSupported, OutOfRange, SqlSyntaxError, UnknownFunction
from dpsql.plan.constants import NotConstant, evaluate
from dpsql.plan.scalars import Agg, Aggregated, Array, Call, Case, Const, Op, Ref, Scalar, both, rebuild, walk
from dpsql.sql.allowed import check_arguments, refuse_aggregates
from dpsql.sql.functions.core import Expressions, Rule
from dpsql.sql.functions.table import BINARY, UNARY, Function
from dpsql.sql.scope import Scope, position
from dpsql.sql.types import constant, sum_type
from dpsql.types import BIGINT, BOOLEAN, DOUBLE, NUMERIC, Kind, Type, array_of
from dpsql.types import integer as integer_type

_TWO_ARGUMENTS = frozenset({Agg.COVAR_POP, Agg.COVAR_SAMP, Agg.CORR, Agg.REGR_SLOPE, Agg.REGR_INTERCEPT})


def _aggregated(read: Expressions, function: Agg, node: exp.Expression, scope: Scope) -> Aggregated:
    at = position(node)
    argument = node.this
    if argument is None:
        raise SqlSyntaxError(f"{function.value} needs an argument", hint="Write COUNT(*).", position=at)
    distinct = isinstance(argument, exp.Distinct)
    if distinct:
        check_arguments(argument, {"expressions"})
        if len(argument.expressions) != 1:
            raise NotSupported("DISTINCT of several columns is not supported in an aggregate", position=at)
        argument = argument.expressions[0]
    if function is Agg.COUNT and isinstance(argument, exp.Star):
        check_arguments(argument, set())
        if distinct or node.expressions:
            raise SqlSyntaxError("* must be the only argument, as in COUNT(*)", position=at)
        return Aggregated(function, (), BIGINT, position=at)
    if node.args.get("expressions"):
        raise NotSupported(f"{function.value} takes one argument", position=at)
    args = [read.typed(argument, scope)]
    if function in _TWO_ARGUMENTS:
        args.append(read.typed(node.expression, scope))
    for arg in args:
        refuse_aggregates(arg, f"the argument of {function.value}")
    where = None
    if distinct and function is Agg.COUNT:
        args[0], where = _unit_where(args[0])
    return Aggregated(function, arguments(read, function, args, node), result_type(function, args), distinct, where, at)


def _unit_where(value: Scalar) -> tuple[Scalar, Scalar | None]:
    """COUNT(DISTINCT CASE WHEN x THEN unit END), as tools write it, is COUNT(DISTINCT unit) FILTER (WHERE x)."""
    match value:
        case Case(branches=((when, Ref() as then),), default=Const(value=None)) if then.field.unit:
            return then, when
        case _:
            return value, None


def arguments(read: Expressions, function: Agg, args: list[Scalar], node: exp.Expression) -> tuple[Scalar, ...]:
    if function is Agg.COUNT:
        return tuple(args)
    if function in (Agg.MIN, Agg.MAX):
        wanted = all(arg.type.kind is not Kind.BOOLEAN for arg in args)
    elif function in (Agg.BOOL_AND, Agg.BOOL_OR):
        wanted = all(arg.type.kind is Kind.BOOLEAN for arg in args)
    else:
        wanted = all(arg.type.is_numeric for arg in args)
    if not wanted:
        name = read.function_name(node) if isinstance(node, exp.Func) else function.value
        given = ", ".join(arg.type.kind.value for arg in args)
        raise UnknownFunction(f"{name}({given})", position=position(node))
    return tuple(args)


def _grouping(read: Expressions, node: exp.Grouping, scope: Scope) -> Scalar:
    args = tuple(read.typed(part, scope) for part in node.expressions)
    if not 1 <= len(args) <= 30:
        raise SqlSyntaxError("GROUPING needs between 1 and 30 arguments", position=position(node))
    return Aggregated(Agg.GROUPING, args, integer_type(10), position=position(node))


def _median(read: Expressions, node: exp.Median, scope: Scope) -> Scalar:
    """MEDIAN(x), which PostgreSQL spells PERCENTILE_CONT(0.5)."""
    if isinstance(node.this, exp.Distinct):
        raise NotSupported("DISTINCT in median is not supported", position=position(node))
    return _at_rank(read, Agg.PERCENTILE_CONT, node, node.this, constant(Decimal("0.5")), scope)


def _within_group(read: Expressions, node: exp.WithinGroup, scope: Scope) -> Scalar:
    call = node.this
    if isinstance(call, exp.Mode):
        return _mode(read, call, node.expression.expressions, scope)
    if not isinstance(call, exp.PercentileCont | exp.PercentileDisc):
        raise NotSupported("WITHIN GROUP is only allowed after percentile_cont, percentile_disc and mode")
    check_arguments(call, {"this"})
    read.check_name(call)
    at = position(call)
    keys = node.expression.expressions
    if len(keys) != 1 or keys[0].args.get("desc"):
        raise NotSupported(
            "a percentile takes one expression, in ascending order",
            hint="Write PERCENTILE_CONT(1 - fraction) WITHIN GROUP (ORDER BY x) to count from the top.",
            position=at,
        )
    function = Agg.PERCENTILE_CONT if isinstance(call, exp.PercentileCont) else Agg.PERCENTILE_DISC
    shares = call.this.unnest()
    if isinstance(shares, exp.Array):
        check_arguments(shares, {"expressions"})
        given = [_share(read, part, at, scope) for part in shares.expressions]
        return _at_ranks(read, function, call, keys[0].this, given, scope)
    share = _share(read, call.this, at, scope)
    if share is None:
        raise NotSupported(_NO_SHARE, position=at)
    return _at_rank(read, function, call, keys[0].this, share, scope)


_NO_SHARE = "the fraction of a percentile must be a number"


def _share(read: Expressions, node: exp.Expression, at: int | None, scope: Scope) -> Const | None:
    """The fraction of a percentile, from 0 to 1; None for NULL."""
    share = read.scalar(node, scope)
    if share.type.kind not in (Kind.INTEGER, Kind.DECIMAL, Kind.DOUBLE, Kind.UNKNOWN):
        raise NotSupported(_NO_SHARE, position=at)
    try:
        share = constant(evaluate(share))
    except NotConstant:
        raise NotSupported("the fraction of a percentile must be a constant", position=at) from None
    if share.value is None:
        return None
    if not isinstance(share.value, int | float | Decimal):
        raise NotSupported(_NO_SHARE, position=at)
    if not 0 <= share.value <= 1:
        raise OutOfRange(f"percentile value {share.value} is not between 0 and 1", position=at)
    return share


def _at_ranks(
    read: Expressions,
    function: Agg,
    call: exp.Expression,
    node: exp.Expression,
    shares: Sequence[Const | None],
    scope: Scope,
) -> Scalar:
    """Percentiles at several fractions, as an array: NULL over no rows; an item is NULL where its fraction is."""
    values = [None if share is None else _at_rank(read, function, call, node, share, scope) for share in shares]
    known = [value for value in values if value is not None]
    if not known:
        raise NotSupported("a percentile needs a fraction", position=position(call))
    element = known[0].type
    items = tuple(Const(None, element) if value is None else value for value in values)
    is_nothing = Call(Op.IS_NULL, (known[0],), BOOLEAN)
    array = array_of(element)
    return Case(((is_nothing, Const(None, array)),), Array(items, array), array)


def _mode(read: Expressions, call: exp.Mode, keys: list[exp.Expression], scope: Scope) -> Scalar:
    """MODE() WITHIN GROUP (ORDER BY x): the order only decides among equally common values."""
    check_arguments(call, set())
    read.check_name(call)
    if len(keys) != 1 or keys[0].args.get("desc"):
        raise NotSupported("mode takes one expression, in ascending order", position=position(call))
    value = read.typed(keys[0].this, scope)
    refuse_aggregates(value, "the argument of mode")
    return Aggregated(Agg.MODE, (value,), value.type, position=position(call))


def _approx_count_distinct(read: Expressions, node: exp.ApproxDistinct, scope: Scope) -> Scalar:
    """Other databases' approximate COUNT(DISTINCT x), answered as COUNT(DISTINCT x)."""
    value = read.typed(node.this, scope)
    refuse_aggregates(value, "the argument of approx_count_distinct")
    return Aggregated(Agg.COUNT, (value,), BIGINT, True, None, position(node))


def _regression(build: Callable[[_Pairs], Scalar]) -> Rule:
    """A REGR_* function computed from other aggregates, over the rows in which neither argument is NULL."""

    def rule(read: Expressions, node: exp.Expression, scope: Scope) -> Scalar:
        y, x = (read.typed(part, scope) for part in (node.this, node.expression))
        for arg in (y, x):
            refuse_aggregates(arg, f"the argument of {read.function_name(node)}")  # type: ignore[arg-type]
        arguments(read, Agg.CORR, [y, x], node)
        return build(_Pairs(y, x, position(node)))

    return rule


@dataclass(frozen=True, slots=True)
class _Pairs:
    y: Scalar
    x: Scalar
    position: int | None

    def count(self) -> Scalar:
        return self._of(Agg.COUNT, self.x)

    def mean(self, of: Scalar) -> Scalar:
        return Call(Op.CAST, (self._of(Agg.AVG, of),), DOUBLE)

    def squares(self, of: Scalar) -> Scalar:
        return self._times_count(Call(Op.CAST, (self._of(Agg.VAR_POP, of),), DOUBLE))

    def products(self) -> Scalar:
        return self._times_count(Aggregated(Agg.COVAR_POP, (self.y, self.x), DOUBLE, position=self.position))

    def determination(self) -> Scalar:
        correlation = Aggregated(Agg.CORR, (self.y, self.x), DOUBLE, position=self.position)
        return Call(Op.MUL, (correlation, correlation), DOUBLE)

    def _of(self, function: Agg, arg: Scalar) -> Scalar:
        where = both(_known(self.y), _known(self.x))
        return Aggregated(function, (arg,), result_type(function, (arg,)), False, where, self.position)

    def _times_count(self, value: Scalar) -> Scalar:
        return Call(Op.MUL, (value, Call(Op.CAST, (self.count(),), DOUBLE)), DOUBLE)


def _known(value: Scalar) -> Scalar:
    return Call(Op.NOT, (Call(Op.IS_NULL, (value,), BOOLEAN),), BOOLEAN)


def _at_rank(
    read: Expressions, function: Agg, call: exp.Expression, node: exp.Expression, share: Const, scope: Scope
) -> Aggregated:
    value = read.typed(node, scope)
    refuse_aggregates(value, f"the argument of {function.value}")
    if function is Agg.PERCENTILE_CONT:
        (value,) = arguments(read, function, [value], call)
        return Aggregated(function, (value, share), DOUBLE, position=position(call))
    return Aggregated(function, (value, share), value.type, position=position(call))


def _filter(read: Expressions, node: exp.Filter, scope: Scope) -> Scalar:
    call = read.value_or_array(node.this, scope)
    parts = [part for part in walk(call) if isinstance(part, Aggregated)]
    if not parts or any(part.function is Agg.GROUPING for part in parts):
        raise SqlSyntaxError("FILTER is only allowed after an aggregate function", position=position(node))
    return _filtered(call, read.condition(node.expression.this, scope, "FILTER"))


def _filtered(value: Scalar, where: Scalar) -> Scalar:
    """Add the condition to every aggregate in an expression."""
    if isinstance(value, Aggregated):
        return replace(value, where=both(where, value.where))
    return rebuild(value, lambda part: _filtered(part, where))


def _aggregate(function: Agg) -> Rule:
    def rule(read: Expressions, node: exp.Expression, scope: Scope) -> Scalar:
        return _aggregated(read, function, node, scope)

    return rule


def result_type(function: Agg, args: Sequence[Scalar]) -> Type:
    match function:
        case Agg.COUNT:
            return BIGINT
        case Agg.SUM:
            return sum_type(args[0].type)
        case Agg.MIN | Agg.MAX:
            return args[0].type
        case Agg.BOOL_AND | Agg.BOOL_OR:
            return BOOLEAN
        case Agg.AVG | Agg.VAR_POP | Agg.VAR_SAMP | Agg.STDDEV_POP | Agg.STDDEV_SAMP if args[0].type.is_exact:
            return NUMERIC
        case _:
            return DOUBLE


FUNCTIONS = (
    Function("count(value)", "bigint", "The number of values that are not NULL; count(*) of rows, DISTINCT of values.",
             exp.Count, _aggregate(Agg.COUNT), frozenset({"this", "expressions", "big_int"}), (Agg.COUNT,)),
    Function("sum(number)", "as PostgreSQL's", "The sum.", exp.Sum, _aggregate(Agg.SUM), UNARY, (Agg.SUM,)),
    Function("avg(number)", "numeric or double precision", "The mean.",
             exp.Avg, _aggregate(Agg.AVG), UNARY, (Agg.AVG,)),
    Function("min(value)", "as its argument", "The smallest value.",
             exp.Min, _aggregate(Agg.MIN), frozenset({"this", "expressions"}), (Agg.MIN,)),
    Function("max(value)", "as its argument", "The largest value.",
             exp.Max, _aggregate(Agg.MAX), frozenset({"this", "expressions"}), (Agg.MAX,)),
    Function("stddev(number)", "numeric or double precision", "Standard deviation of a sample.",
             exp.Stddev, _aggregate(Agg.STDDEV_SAMP), UNARY, (Agg.STDDEV_SAMP,)),
    Function("stddev_samp(number)", "numeric or double precision", "Standard deviation of a sample.",
             exp.StddevSamp, _aggregate(Agg.STDDEV_SAMP), UNARY, (Agg.STDDEV_SAMP,)),
    Function("stddev_pop(number)", "numeric or double precision", "Standard deviation of all.",
             exp.StddevPop, _aggregate(Agg.STDDEV_POP), UNARY, (Agg.STDDEV_POP,)),
    Function("variance(number)", "numeric or double precision", "Variance of a sample.",
             exp.Variance, _aggregate(Agg.VAR_SAMP), UNARY, (Agg.VAR_SAMP,)),
    Function("var_samp(number)", "numeric or double precision", "Variance of a sample.",
             exp.Variance, _aggregate(Agg.VAR_SAMP), UNARY, (Agg.VAR_SAMP,)),
    Function("var_pop(number)", "numeric or double precision", "Variance of all.",
             exp.VariancePop, _aggregate(Agg.VAR_POP), UNARY, (Agg.VAR_POP,)),
    Function("covar_pop(y, x)", "double precision", "Covariance of all.",
             exp.CovarPop, _aggregate(Agg.COVAR_POP), BINARY, (Agg.COVAR_POP,)),
    Function("covar_samp(y, x)", "double precision", "Covariance of a sample.",
             exp.CovarSamp, _aggregate(Agg.COVAR_SAMP), BINARY, (Agg.COVAR_SAMP,)),
    Function("corr(y, x)", "double precision", "Correlation.",
             exp.Corr, _aggregate(Agg.CORR), BINARY, (Agg.CORR,)),
    Function("regr_slope(y, x)", "double precision", "Slope of the regression line.",
             exp.RegrSlope, _aggregate(Agg.REGR_SLOPE), BINARY, (Agg.REGR_SLOPE,)),
    Function("regr_intercept(y, x)", "double precision", "Intercept of the regression line.",
             exp.RegrIntercept, _aggregate(Agg.REGR_INTERCEPT), BINARY, (Agg.REGR_INTERCEPT,)),
    Function("regr_count(y, x)", "bigint", "The number of rows in which both are known.",
             exp.RegrCount, _regression(_Pairs.count), BINARY, (Agg.COUNT,)),
    Function("regr_avgx(y, x)", "double precision", "Mean of x where both are known.",
             exp.RegrAvgx, _regression(lambda pairs: pairs.mean(pairs.x)), BINARY, (Agg.AVG,)),
    Function("regr_avgy(y, x)", "double precision", "Mean of y where both are known.",
             exp.RegrAvgy, _regression(lambda pairs: pairs.mean(pairs.y)), BINARY, (Agg.AVG,)),
    Function("regr_sxx(y, x)", "double precision", "Sum of squared deviations of x from its mean.",
             exp.RegrSxx, _regression(lambda pairs: pairs.squares(pairs.x)), BINARY, (Agg.VAR_POP, Agg.COUNT)),
    Function("regr_syy(y, x)", "double precision", "Sum of squared deviations of y from its mean.",
             exp.RegrSyy, _regression(lambda pairs: pairs.squares(pairs.y)), BINARY, (Agg.VAR_POP, Agg.COUNT)),
    Function("regr_sxy(y, x)", "double precision", "Sum of products of the deviations from both means.",
             exp.RegrSxy, _regression(_Pairs.products), BINARY, (Agg.COVAR_POP, Agg.COUNT)),
    Function("regr_r2(y, x)", "double precision", "Squared correlation.",
             exp.RegrR2, _regression(_Pairs.determination), BINARY, (Agg.CORR,)),
    Function("approx_count_distinct(value)", "bigint", "As count(DISTINCT value).",
             exp.ApproxDistinct, _approx_count_distinct, UNARY, (Agg.COUNT,)),
    Function("median(number)", "double precision", "As percentile_cont(0.5).",
             exp.Median, _median, UNARY, (Agg.PERCENTILE_CONT,)),
    Function("aggregate WITHIN GROUP (ORDER BY value)", "as its function", "For percentiles and mode.",
             exp.WithinGroup, _within_group, BINARY),
    Function("percentile_cont(fraction) WITHIN GROUP (ORDER BY number)", "double precision",
             "The value at a constant fraction, or an array of values at several.",
             exp.PercentileCont, computes=(Agg.PERCENTILE_CONT,)),
    Function("percentile_disc(fraction) WITHIN GROUP (ORDER BY value)", "as the value",
             "The value at a constant fraction, or an array of values at several.",
             exp.PercentileDisc, computes=(Agg.PERCENTILE_DISC,)),
    Function("mode() WITHIN GROUP (ORDER BY value)", "as the value", "The most frequent of declared values.",
             exp.Mode, computes=(Agg.MODE,)),
    Function("bool_and(condition)", "boolean", "Whether it is true in all rows.",
             exp.LogicalAnd, _aggregate(Agg.BOOL_AND), UNARY, (Agg.BOOL_AND,)),
    Function("every(condition)", "boolean", "As bool_and.",
             exp.LogicalAnd, _aggregate(Agg.BOOL_AND), UNARY, (Agg.BOOL_AND,)),
    Function("bool_or(condition)", "boolean", "Whether it is true in any row.",
             exp.LogicalOr, _aggregate(Agg.BOOL_OR), UNARY, (Agg.BOOL_OR,)),
    Function("grouping(key, …)", "integer", "A bit mask of the keys over which a row is aggregated.",
             exp.Grouping, _grouping, frozenset({"expressions"}), (Agg.GROUPING,)),
    Function("aggregate FILTER (WHERE condition)", "as its function", "Only over rows that meet the condition.",
             exp.Filter, _filter, BINARY),
)  # fmt: skip
