"""Conditions and conditional expressions: comparisons, LIKE, CASE, COALESCE."""

from __future__ import annotations

import contextlib

from sqlglot import exp

from dpsql.errors import InvalidEscape, NotSupported, SqlSyntaxError, TypeMismatch, UnknownOperator
from dpsql.plan.constants import NotConstant, evaluate
from dpsql.plan.scalars import Call, Case, Const, Op, Ref, Scalar, Subquery, refs
from dpsql.sql.allowed import check_arguments
from dpsql.sql.arrays import array_items
from dpsql.sql.functions.casts import array_type
from dpsql.sql.functions.core import Expressions, Rule
from dpsql.sql.functions.table import BINARY, UNARY, Function
from dpsql.sql.scope import Scope, position
from dpsql.sql.types import constant, unify
from dpsql.types import BOOLEAN, TEXT, Kind, Type


def _not(read: Expressions, node: exp.Not, scope: Scope) -> Scalar:
    return Call(Op.NOT, (read.boolean(node.this, scope),), BOOLEAN)


def _between(read: Expressions, node: exp.Between, scope: Scope) -> Scalar:
    value = read.scalar(node.this, scope)
    low, high = read.scalar(node.args["low"], scope), read.scalar(node.args["high"], scope)

    def inside(first: Scalar, last: Scalar) -> Scalar:
        above, below = read.compare(Op.GE, value, first, node), read.compare(Op.LE, value, last, node)
        return Call(Op.AND, (above, below), BOOLEAN)

    symmetric = node.args.get("symmetric")
    return Call(Op.OR, (inside(low, high), inside(high, low)), BOOLEAN) if symmetric else inside(low, high)


def _in(read: Expressions, node: exp.In, scope: Scope) -> Scalar:
    value = read.scalar(node.this, scope)
    query = node.args.get("query")
    if query is not None:
        plan = read.subquery(query, scope)
        if len(plan.fields) != 1:
            raise SqlSyntaxError("a subquery of IN must return one column", position=position(node))
        common = unify((value, Ref(plan.fields[0])), "compared")
        return Subquery("in", plan, BOOLEAN, read.coerce(value, common), position(node))
    read.meter.listed(len(node.expressions), position(node))
    items = [read.scalar(item, scope) for item in node.expressions]
    if not items:
        raise SqlSyntaxError("IN needs at least one value", position=position(node))
    common = unify((value, *items), "compared")
    return Call(Op.IN, tuple(read.coerce(part, common) for part in (value, *items)), BOOLEAN)


def quantified(read: Expressions, op: Op, node: exp.Expression, scope: Scope) -> Scalar:
    """x > ANY (SELECT …), x <> ALL (SELECT …); = ANY and <> ALL are IN and NOT IN, and also accept arrays."""
    word = "any" if isinstance(node.expression, exp.Any) else "all"
    check_arguments(node.expression, {"this"})
    query: exp.Expression = node.expression.this
    while isinstance(query, exp.Paren):
        query = query.this
    is_in = (op, word) in ((Op.EQ, "any"), (Op.NE, "all"))
    if not isinstance(query, exp.Select | exp.SetOperation | exp.Subquery):
        if not is_in:
            raise NotSupported(
                f"{word.upper()} of an array is only supported in = ANY and <> ALL",
                hint="Use a subquery, or compare with each value.",
                position=position(node),
            )
        listed = _in_array(read, read.scalar(node.this, scope), query, scope)
        return listed if op is Op.EQ else Call(Op.NOT, (listed,), BOOLEAN)
    value, plan = read.scalar(node.this, scope), read.subquery(query, scope)
    if len(plan.fields) != 1:
        raise SqlSyntaxError(f"a subquery of {word.upper()} must return one column", position=position(node))
    arg = read.compare(op, value, Ref(plan.fields[0]), node)
    assert isinstance(arg, Call)
    if isinstance(arg.args[1], Call):
        raise UnknownOperator("the sides of this comparison are of different types", hint="Cast one side.")
    if is_in:
        inside = Subquery("in", plan, BOOLEAN, arg.args[0], position(node))
        return inside if op is Op.EQ else Call(Op.NOT, (inside,), BOOLEAN)
    return Subquery(f"{op.value} {word}", plan, BOOLEAN, arg.args[0], position(node))


def _in_array(read: Expressions, value: Scalar, array: exp.Expression, scope: Scope) -> Scalar:
    """Whether a value is an item of an array of constants."""
    of_type: Type | None = None
    if isinstance(array, exp.Cast):
        check_arguments(array, {"this", "to", "_type"})
        of_type = array_type(array.args["to"])
        array = array.this
    if isinstance(array, exp.Array):
        check_arguments(array, {"expressions"})
        items = [read.scalar(item, scope) for item in array.expressions]
        of_type = of_type or unify(items, "ARRAY")
    else:
        text = read.scalar(array, scope)
        if not isinstance(text, Const) or text.type.kind is not Kind.UNKNOWN:
            raise NotSupported(
                "an array must be a constant",
                hint="Write ARRAY[…] or pass it as a parameter.",
                position=position(array),
            )
        if text.value is None:
            return Const(None, BOOLEAN)
        items = [constant(item) for item in array_items(str(text.value))]
    read.meter.listed(len(items), position(array))
    if not items:
        return Const(False, BOOLEAN)
    if of_type is not None:
        items = [read.coerce(item, of_type) for item in items]
    try:
        common = unify((value, *items), "compared")
    except TypeMismatch:
        raise UnknownOperator(
            f"operator does not exist: {value.type.kind.value} = {items[0].type.kind.value}",
            hint="Cast one side.",
            position=position(array),
        ) from None
    return Call(Op.IN, tuple(read.coerce(part, common) for part in (value, *items)), BOOLEAN)


def _is(read: Expressions, node: exp.Is, scope: Scope) -> Scalar:
    right = node.expression
    match right:
        case exp.Null():
            result: Scalar = Call(Op.IS_NULL, (read.typed(node.this, scope),), BOOLEAN)
        case exp.Boolean():
            op = Op.IS_TRUE if right.this else Op.IS_FALSE
            result = Call(op, (read.boolean(node.this, scope),), BOOLEAN)
        case _:
            raise NotSupported("this IS test is not supported", position=position(node))
    return Call(Op.NOT, (result,), BOOLEAN) if node.args.get("negate") else result


def _distinct_from(read: Expressions, node: exp.Expression, scope: Scope) -> Scalar:
    left, right = read.scalar(node.this, scope), read.scalar(node.expression, scope)
    result = read.compare(Op.DISTINCT_FROM, left, right, node)
    return Call(Op.NOT, (result,), BOOLEAN) if isinstance(node, exp.NullSafeEQ) else result


def _like(read: Expressions, node: exp.Expression, scope: Scope, escape: str = "\\") -> Scalar:
    value, pattern = read.text(node.this, scope), read.text(node.expression, scope)
    if not any(True for _ in refs(pattern)):
        with contextlib.suppress(NotConstant):
            pattern = Const(evaluate(pattern), TEXT)
    if not isinstance(pattern, Const) or not isinstance(pattern.value, str):
        raise NotSupported(
            "LIKE needs a constant pattern", hint="Write the pattern as a literal.", position=position(node)
        )
    if (len(pattern.value) - len(pattern.value.rstrip(escape))) % 2:
        raise InvalidEscape("LIKE pattern must not end with escape character", position=position(node))
    op = Op.ILIKE if isinstance(node, exp.ILike) else Op.LIKE
    result = Call(op, (value, pattern), BOOLEAN, escape)
    return Call(Op.NOT, (result,), BOOLEAN) if node.args.get("negate") else result


def _escape(read: Expressions, node: exp.Escape, scope: Scope) -> Scalar:
    character = node.expression
    if not isinstance(node.this, exp.Like | exp.ILike) or not (
        isinstance(character, exp.Literal) and character.is_string and len(str(character.this)) == 1
    ):
        raise NotSupported("ESCAPE needs a LIKE and one constant character", position=position(node))
    check_arguments(node.this, {"this", "expression", "negate"})
    return _like(read, node.this, scope, str(character.this))


def _case(read: Expressions, node: exp.Case, scope: Scope) -> Scalar:
    subject = None if node.this is None else read.typed(node.this, scope)
    branches = []
    for branch in node.args["ifs"]:
        check_arguments(branch, {"this", "true"})
        if subject is None:
            when = read.boolean(branch.this, scope)
        else:
            when = read.compare(Op.EQ, subject, read.scalar(branch.this, scope), branch)
        branches.append((when, read.scalar(branch.args["true"], scope)))
    default = node.args.get("default")
    otherwise = constant(None) if default is None else read.scalar(default, scope)
    common = unify([*(then for _, then in branches), otherwise], "CASE")
    return Case(
        tuple((when, read.coerce(then, common)) for when, then in branches), read.coerce(otherwise, common), common
    )


def _coalesce(read: Expressions, node: exp.Coalesce, scope: Scope) -> Scalar:
    return _same_type(read, Op.COALESCE, [node.this, *node.expressions], scope)


def _nullif(read: Expressions, node: exp.Nullif, scope: Scope) -> Scalar:
    left, right = read.scalar(node.this, scope), read.scalar(node.expression, scope)
    common = unify((left, right), "compared")
    left = read.coerce(left, common)
    return Call(Op.NULLIF, (left, read.coerce(right, common)), left.type)


def _connective(op: Op) -> Rule:
    def rule(read: Expressions, node: exp.Expression, scope: Scope) -> Scalar:
        # Long chains nest to the left; flatten them without recursion.
        parts: list[exp.Expression] = []
        current = node
        while type(current) is type(node):
            check_arguments(current, {"this", "expression"})
            parts.append(current.expression)
            current = current.this
        parts.append(current)
        values = [read.boolean(part, scope) for part in reversed(parts)]
        # A balanced tree, so that thousands of conditions do not nest thousands deep.
        while len(values) > 1:
            paired = [Call(op, (a, b), BOOLEAN) for a, b in zip(values[::2], values[1::2], strict=False)]
            values = [*paired, *([values[-1]] if len(values) % 2 else [])]
        return values[0]

    return rule


def _comparison(op: Op) -> Rule:
    def rule(read: Expressions, node: exp.Expression, scope: Scope) -> Scalar:
        right = node.expression
        if isinstance(right, exp.Anonymous) and str(right.this).lower() == "all":  # of an array
            node.set("expression", exp.All(this=right.expressions[0]))
        if isinstance(node.expression, exp.Any | exp.All):
            return quantified(read, op, node, scope)
        left, right = read.scalar(node.this, scope), read.scalar(node.expression, scope)
        return read.compare(op, left, right, node)

    return rule


def _extremum(op: Op) -> Rule:
    def rule(read: Expressions, node: exp.Expression, scope: Scope) -> Scalar:
        return _same_type(read, op, [node.this, *node.expressions], scope)

    return rule


def _same_type(read: Expressions, op: Op, nodes: list[exp.Expression], scope: Scope) -> Scalar:
    parts = [read.scalar(node, scope) for node in nodes]
    common = unify(parts, op.value)
    return Call(op, tuple(read.coerce(part, common) for part in parts), common)


FUNCTIONS = (
    Function("a AND b", "boolean", "Whether both hold.", exp.And, _connective(Op.AND), BINARY, (Op.AND,)),
    Function("a OR b", "boolean", "Whether one holds.", exp.Or, _connective(Op.OR), BINARY, (Op.OR,)),
    Function("NOT condition", "boolean", "Whether it does not hold.", exp.Not, _not, UNARY, (Op.NOT,)),
    Function("a = b", "boolean", "Equal; also with ANY and ALL of an array or a subquery.",
             exp.EQ, _comparison(Op.EQ), BINARY, (Op.EQ,)),
    Function("a <> b", "boolean", "Different; also with ANY and ALL of an array or a subquery.",
             exp.NEQ, _comparison(Op.NE), BINARY, (Op.NE,)),
    Function("a < b", "boolean", "Less; also with ANY and ALL of an array or a subquery.",
             exp.LT, _comparison(Op.LT), BINARY, (Op.LT,)),
    Function("a <= b", "boolean", "Less or equal; also with ANY and ALL of an array or a subquery.",
             exp.LTE, _comparison(Op.LE), BINARY, (Op.LE,)),
    Function("a > b", "boolean", "Greater; also with ANY and ALL of an array or a subquery.",
             exp.GT, _comparison(Op.GT), BINARY, (Op.GT,)),
    Function("a >= b", "boolean", "Greater or equal; also with ANY and ALL of an array or a subquery.",
             exp.GTE, _comparison(Op.GE), BINARY, (Op.GE,)),
    Function("value BETWEEN low AND high", "boolean", "Between two values, both included; also SYMMETRIC and NOT.",
             exp.Between, _between, frozenset({"this", "low", "high", "symmetric"}), (Op.GE, Op.LE)),
    Function("value IN (value, …)", "boolean", "One of a list, or of the rows of a subquery; also NOT IN.",
             exp.In, _in, frozenset({"this", "expressions", "query"}), (Op.IN,)),
    Function("value IS NULL", "boolean", "Unknown; also IS [NOT] TRUE, FALSE and UNKNOWN.",
             exp.Is, _is, frozenset({"this", "expression", "negate"}), (Op.IS_NULL, Op.IS_TRUE, Op.IS_FALSE)),
    Function("a IS NOT DISTINCT FROM b", "boolean", "Equal, or both NULL.",
             exp.NullSafeEQ, _distinct_from, BINARY, (Op.DISTINCT_FROM,)),
    Function("a IS DISTINCT FROM b", "boolean", "Different, with NULL as a value.",
             exp.NullSafeNEQ, _distinct_from, BINARY, (Op.DISTINCT_FROM,)),
    Function("text LIKE pattern", "boolean", "Matches a constant pattern of % and _; also NOT LIKE.",
             exp.Like, _like, frozenset({"this", "expression", "negate"}), (Op.LIKE,)),
    Function("text ILIKE pattern", "boolean", "As LIKE, without regard to case.",
             exp.ILike, _like, frozenset({"this", "expression", "negate"}), (Op.ILIKE,)),
    Function("text LIKE pattern ESCAPE character", "boolean", "As LIKE, with an escape character other than backslash.",
             exp.Escape, _escape, BINARY, (Op.LIKE, Op.ILIKE)),
    Function("least(value, …)", "the common type", "The smallest value that is not NULL.", exp.Least,
             _extremum(Op.LEAST), frozenset({"this", "expressions", "ignore_nulls"}), (Op.LEAST,)),
    Function("greatest(value, …)", "the common type", "The largest value that is not NULL.", exp.Greatest,
             _extremum(Op.GREATEST), frozenset({"this", "expressions", "ignore_nulls"}), (Op.GREATEST,)),
    Function("coalesce(value, …)", "the common type", "The first value that is not NULL.",
             exp.Coalesce, _coalesce, frozenset({"this", "expressions"}), (Op.COALESCE,)),
    Function("nullif(a, b)", "as the first", "NULL where both are equal, else the first.",
             exp.Nullif, _nullif, BINARY, (Op.NULLIF,)),
    Function("CASE WHEN condition THEN value … ELSE value END", "the common type",
             "The value of the first condition that holds; also CASE operand WHEN value THEN ….",
             exp.Case, _case, frozenset({"this", "ifs", "default"})),
)  # fmt: skip
