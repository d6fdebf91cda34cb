"""ORDER BY, LIMIT and OFFSET."""

from __future__ import annotations

from sqlglot import exp

from dpsql.errors import BadSetting, InvalidReference, NotSupported, SqlSyntaxError
from dpsql.plan.constants import NotConstant, evaluate
from dpsql.plan.nodes import Plan, Sort
from dpsql.plan.scalars import Const, Ref, Scalar, SortKey
from dpsql.sql.allowed import check_arguments
from dpsql.sql.from_clause import Sources
from dpsql.sql.scope import Scope, folded, position


class Ordering(Sources):
    def _order_by(
        self, node: exp.Select, items: list[tuple[str, Scalar]], scope: Scope
    ) -> tuple[list[tuple[int, SortKey]], list[Scalar]]:
        """For each sort key the index of its value among the output columns and the hidden ones behind them."""
        clause = node.args.get("order")
        order: list[tuple[int, SortKey]] = []
        hidden: list[Scalar] = []
        if clause is None:
            return order, hidden
        check_arguments(clause, {"expressions"})
        for part in clause.expressions:
            target = part.this
            index = _output_index(target, [name for name, _ in items])
            if index is None:
                key = self._expressions.sort_key(part, scope)
                same = [i for i, (_, value) in enumerate(items) if value == key.value]
                if same:
                    index = same[0]
                else:
                    hidden.append(key.value)
                    index = len(items) + len(hidden) - 1
            else:
                key = self._expressions.sort_key(part, scope, items[index][1])
            order.append((index, key))
        return order, hidden

    def _limit(self, node: exp.Expression) -> tuple[int | None, int]:
        limit, offset = node.args.get("limit"), node.args.get("offset")
        count: exp.Expression | None = None
        if isinstance(limit, exp.Fetch):
            check_arguments(limit, {"direction", "count", "limit_options"})
            options = limit.args.get("limit_options")
            if options is not None and (options.args.get("with_ties") or options.args.get("percent")):
                raise NotSupported("FETCH … WITH TIES is not supported", hint="Use ONLY.", position=position(limit))
            count = limit.args.get("count") or exp.Literal.number(1)
        elif limit is not None:
            check_arguments(limit, {"expression"})
            count = limit.expression
            if (isinstance(count, exp.Var) and str(count.this).upper() == "ALL") or isinstance(count, exp.Null):
                count = None
        skip = 0
        if offset is not None:
            check_arguments(offset, {"expression"})
            skip = self._row_count(offset.expression, "OFFSET") or 0
        return None if count is None else self._row_count(count, "LIMIT"), skip

    def _row_count(self, node: exp.Expression, clause: str) -> int | None:
        value = self._expressions.scalar(node, Scope())
        try:
            number = evaluate(value)
        except NotConstant:
            raise NotSupported(f"{clause} must be a constant", position=position(node)) from None
        if number is None and not isinstance(value, Const):
            raise BadSetting(f"{clause} has no value", position=position(node))
        if number is None:
            return None
        if not isinstance(number, int) or isinstance(number, bool):
            raise BadSetting(f"{clause} must be an integer", position=position(node))
        if not 0 <= number < 2**63:
            raise BadSetting(f"{clause} must not be negative", position=position(node))
        return number

    def _sorted_output(self, node: exp.Expression, plan: Plan, limit: int | None, offset: int) -> Plan:
        """ORDER BY and LIMIT after a set operation or parentheses: only output columns can be named."""
        clause = node.args.get("order")
        keys = []
        if clause is not None:
            check_arguments(clause, {"expressions"})
            for part in clause.expressions:
                index = _output_index(part.this, [field.name for field in plan.fields])
                if index is None:
                    raise NotSupported(
                        "ORDER BY after a query in parentheses or a set operation takes only output columns",
                        position=position(part),
                    )
                keys.append(self._expressions.sort_key(part, Scope(), Ref(plan.fields[index])))
        if not keys and limit is None and not offset:
            return plan
        return Sort(plan, tuple(keys), limit, offset, plan.fields)


def constant_of(node: exp.Expression) -> str | None:
    """The constant that PostgreSQL sees in an item of GROUP BY or ORDER BY: a number, or empty for any other one.

    Its parser folds a sign into a number, through any parentheses: -(-(1)) is 1.
    """
    signs = 0
    while isinstance(node, exp.Paren | exp.Neg):
        signs += isinstance(node, exp.Neg)
        node = node.this
    if isinstance(node, exp.Literal) and not node.is_string:
        return "-" * (signs % 2) + str(node.this)
    return "" if not signs and isinstance(node, exp.Literal | exp.Null | exp.Boolean) else None


def list_position(constant: str, node: exp.Expression, count: int, clause: str) -> int:
    """A constant in GROUP BY or ORDER BY is the position of an output column, and must be one."""
    if not constant.removeprefix("-").isdigit():
        raise SqlSyntaxError(f"non-integer constant in {clause}", position=position(node))
    if not 1 <= int(constant) <= count:
        raise InvalidReference(f"{clause} position {constant} is not in select list", position=position(node))
    return int(constant) - 1


def _output_index(node: exp.Expression, names: list[str]) -> int | None:
    """The output column that an ORDER BY item names by position or by name, if it does."""
    while isinstance(node, exp.Paren):
        node = node.this
    if (constant := constant_of(node)) is not None:
        return list_position(constant, node, len(names), "ORDER BY")
    if isinstance(node, exp.Column) and not node.args.get("table"):
        name = folded(node.this)
        if names.count(name) > 1:
            return names.index(name)
        return names.index(name) if name in names else None
    return None
