"""GROUP BY, aggregates and windows of a query block."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

from sqlglot import exp

from dpsql.errors import GroupingError, NotSupported, SqlSyntaxError, UnknownColumn
from dpsql.plan.nodes import Aggregate, Plan, Window, map_scalars
from dpsql.plan.scalars import Agg, Aggregated, Field, Ref, Scalar, Subquery, Windowed, rebuild, refs, walk
from dpsql.plan.text import scalar_text
from dpsql.sql.allowed import check_arguments, refuse_aggregates, refuse_array
from dpsql.sql.ordering import Ordering, constant_of, list_position
from dpsql.sql.scope import Scope, folded, position

MAX_SETS = 64
MAX_KEYS = 64

_Change = Callable[[Scalar], Scalar]
_Index = Callable[[exp.Expression], int]


class Grouping(Ordering):
    def _group_by(
        self, node: exp.Select, items: list[tuple[str, Scalar]], scope: Scope
    ) -> tuple[list[Scalar], tuple[tuple[int, ...], ...]]:
        clause = node.args.get("group")
        if clause is None:
            return [], ((),)
        if clause.args.get("all") is False:
            raise NotSupported("GROUP BY DISTINCT is not supported", position=position(clause))
        check_arguments(clause, {"expressions"})
        if not clause.expressions:
            raise SqlSyntaxError("GROUP BY needs an expression", position=position(node))
        keys: list[Scalar] = []

        def index(part: exp.Expression) -> int:
            value = self._group_key(part, items, scope)
            refuse_aggregates(value, "GROUP BY")
            refuse_array(value, position(part))
            if value not in keys:
                keys.append(value)
            return keys.index(value)

        choices = [_grouping_choices(part, index) for part in clause.expressions]
        sets = [tuple(sorted({i for part in combination for i in part})) for combination in itertools.product(*choices)]
        if len(keys) > MAX_KEYS:
            raise NotSupported(f"more than {MAX_KEYS} keys are not supported", position=position(clause))
        if len(sets) > MAX_SETS:
            raise NotSupported(f"more than {MAX_SETS} grouping sets are not supported", position=position(clause))
        return keys, tuple(sets)

    def _group_key(self, node: exp.Expression, items: list[tuple[str, Scalar]], scope: Scope) -> Scalar:
        while isinstance(node, exp.Paren):
            node = node.this
        if (constant := constant_of(node)) is not None:
            return items[list_position(constant, node, len(items), "GROUP BY")][1]
        if isinstance(node, exp.Column) and not node.args.get("table"):
            # An input column takes precedence over an output name, as in PostgreSQL.
            try:
                return self._expressions.typed(node, scope)
            except UnknownColumn:
                named = [value for name, value in items if name == folded(node.this)]
                if not named:
                    raise
                return named[0]
        return self._expressions.typed(node, scope)

    def _aggregate(
        self,
        plan: Plan,
        keys: list[Scalar],
        sets: tuple[tuple[int, ...], ...],
        asked: list[Scalar],
        items: list[tuple[str, Scalar]],
    ) -> tuple[Plan, _Change]:
        key_fields = []
        for key in keys:
            shown = [name for name, value in items if value == key]
            name = key.field.name if isinstance(key, Ref) else shown[0] if shown else scalar_text(key)
            key_fields.append((self._output(name, key), key))
        calls: dict[Aggregated, Field] = {}
        for value in asked:
            for part in aggregates(value):
                if part not in calls:
                    self._check_grouping(part, keys)
                    self._check_own(part, plan)
                    calls[part] = Field(next(self._ids), part.function.value, part.type)
        aggregate = Aggregate(plan, tuple(key_fields), tuple((field, call) for call, field in calls.items()), sets)
        by_key = {key: field for field, key in key_fields}

        def change(value: Scalar) -> Scalar:
            if value in by_key:
                return Ref(by_key[value])
            if isinstance(value, Aggregated):
                return Ref(calls[value])
            if isinstance(value, Subquery):
                arg = None if value.arg is None else change(value.arg)
                return replace(value, plan=map_scalars(value.plan, correlated), arg=arg)
            if isinstance(value, Ref):
                raise GroupingError(
                    f'column "{value.field.name}" must appear in the GROUP BY clause'
                    " or be used in an aggregate function",
                    position=value.position,
                )
            return rebuild(value, change)

        outer = {field.id for field in plan.fields}

        def correlated(value: Scalar) -> Scalar:
            """An expression of a subquery: columns of this block must be grouped, others are its own."""
            if isinstance(value, Ref):
                return change(value) if value.field.id in outer else value
            if isinstance(value, Subquery):
                arg = None if value.arg is None else correlated(value.arg)
                return replace(value, plan=map_scalars(value.plan, correlated), arg=arg)
            return rebuild(value, correlated)

        return aggregate, change

    def _check_grouping(self, call: Aggregated, keys: list[Scalar]) -> None:
        if call.function is Agg.GROUPING and any(arg not in keys for arg in call.args):
            raise GroupingError("arguments to GROUPING must be grouping expressions", position=call.position)

    def _check_own(self, call: Aggregated, plan: Plan) -> None:
        """In SQL an aggregate of outer columns only belongs to the outer query, where it is not allowed."""
        own = {field.id for field in plan.fields}
        read = [ref.field.id for part in call.args for ref in refs(part)]
        if read and not own & set(read):
            raise GroupingError(
                "an aggregate of outer columns only is not supported in a subquery",
                hint="Use a column of the subquery in its argument.",
                position=call.position,
            )

    def _windows(self, plan: Plan, values: list[Scalar]) -> tuple[Plan, list[Scalar]]:
        found: dict[Windowed, Field] = {}

        def change(value: Scalar) -> Scalar:
            if isinstance(value, Windowed):
                for part in walk(value):
                    if part is not value and isinstance(part, Windowed):
                        raise GroupingError("window function calls cannot be nested")
                if value not in found:
                    found[value] = Field(next(self._ids), value.function, value.type)
                return Ref(found[value])
            return rebuild(value, change)

        changed = [change(value) for value in values]
        if not found:
            return plan, values
        return Window(plan, tuple((field, call) for call, field in found.items())), changed

    def _output(self, name: str, value: Scalar) -> Field:
        """An output column; an unchanged unit column stays the unit."""
        if isinstance(value, Ref):
            return replace(value.field, id=next(self._ids), name=name)
        return Field(next(self._ids), name, value.type)


def aggregates(value: Scalar) -> list[Aggregated]:
    """The aggregate calls in a value; those in the arguments of a window function count, as in SQL."""
    return [part for part in walk(value) if isinstance(part, Aggregated)]


def _grouping_choices(part: exp.Expression, index: _Index) -> list[tuple[int, ...]]:
    """One item of GROUP BY as a list of alternative sets of keys."""
    match part:
        case exp.Rollup():
            check_arguments(part, {"expressions"})
            groups = [_grouping_unit(item, index) for item in part.expressions]
            return [tuple(itertools.chain(*groups[:n])) for n in range(len(groups), -1, -1)]
        case exp.Cube():
            check_arguments(part, {"expressions"})
            groups = [_grouping_unit(item, index) for item in part.expressions]
            if len(groups) > 6:
                raise NotSupported("CUBE of more than 6 keys is not supported", position=position(part))
            return [
                tuple(itertools.chain(*chosen))
                for n in range(len(groups), -1, -1)
                for chosen in itertools.combinations(groups, n)
            ]
        case exp.GroupingSets():
            check_arguments(part, {"expressions"})
            return [
                choice
                for item in part.expressions
                for choice in (
                    _grouping_choices(item, index)
                    if isinstance(item, exp.Rollup | exp.Cube | exp.GroupingSets)
                    else [_grouping_unit(item, index)]
                )
            ]
        case _:
            return [_grouping_unit(part, index)]


def _grouping_unit(item: exp.Expression, index: _Index) -> tuple[int, ...]:
    if isinstance(item, exp.Tuple):
        return tuple(index(part) for part in item.expressions)
    return (index(item),)
