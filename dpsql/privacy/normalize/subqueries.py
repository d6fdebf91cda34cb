"""Subqueries inside private expressions, by kind.

A subquery over public tables alone may read any of their rows. One over private tables may read only the rows of its
own unit, where the analyst's condition says so. A released one is a constant. Anything else would compare rows of
different units.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dpsql.errors import NotSupported
from dpsql.plan.nodes import (
    Aggregate,
    Distinct,
    Filter,
    OfUnit,
    Plan,
    Project,
    Scan,
    SetOperation,
    Sort,
    nodes,
)
from dpsql.plan.scalars import Aggregated, Call, Correlated, Field, Op, Ref, Scalar, Subquery
from dpsql.plan.visit import free_refs, is_empty, reads_private
from dpsql.privacy.bounds import NOTHING, UNBOUNDED, Interval
from dpsql.privacy.derive import check_scalar, derive, is_private
from dpsql.privacy.normalize.joins import flatten
from dpsql.privacy.owners import equal_owners, is_unit
from dpsql.privacy.rules.joins import fixed_fields, public_facts, public_unique
from dpsql.types import BOOLEAN

if TYPE_CHECKING:
    from dpsql.privacy.normalize.plan import Normalizer


@dataclass(frozen=True, slots=True)
class _Around:
    """The private row outside a subquery: its columns, and the name of its owner inside the subquery."""

    fields: tuple[Field, ...]
    owner: Field


class Correlation:
    def __init__(self, preparation: Normalizer, stage: Callable[[Subquery, tuple[Field, ...]], Scalar]) -> None:
        self._preparation = preparation
        self._stage = stage
        self._around: list[_Around] = []

    def subquery(self, node: Subquery, fields: tuple[Field, ...]) -> Scalar:
        """The expression that replaces a subquery, for an outer private row with these fields."""
        plan = node.plan
        outer = free_refs(plan)
        if not outer and not self._compares_units(node):
            return self._stage(node, fields)
        arg = None if node.arg is None else self._preparation.scalar(node.arg, fields)
        if not reads_private(plan):
            return self._public(node, arg, outer)
        around = _Around(fields, self._preparation.new_field("owner", plan.fields[0].type))
        self._around.append(around)
        try:
            inner = self._of_unit(plan, node)
        finally:
            self._around.pop()
        bounds = UNBOUNDED
        derivation = derive(inner, self._preparation.limit)
        if node.kind == "scalar":
            if not (_is_one_row(inner) or derivation.conclusion.single):
                raise _several_rows(node)
            bounds = derivation.conclusion.facts.get(inner.fields[0].id, NOTHING).interval
        # Inside another subquery the unit may be that of a row further out, which already has its owner column.
        shown = any(isinstance(part, OfUnit) and part.owner == around.owner for part in nodes(inner))
        return _correlated(node, inner, arg, outer, around.owner if shown else None, bounds)

    def _compares_units(self, node: Subquery) -> bool:
        """x IN (SELECT y …) where both identify the unit, or a row of it, in the same way: equal values, one owner."""
        if node.kind != "in" or not isinstance(node.arg, Ref) or not is_private(node.plan):
            return False
        shown = node.plan.fields[0]
        same = Call(Op.EQ, (node.arg, Ref(shown)), BOOLEAN)
        if not equal_owners([same], [node.arg.field], [shown]):
            return False
        if shown.optional:
            # A NULL in the list decides NOT IN for all units.
            raise NotSupported(
                f'"{shown.name}" may be NULL in this list, which would change the result for all units',
                hint="Join inside the subquery with INNER JOIN.",
                position=node.position,
            )
        return True

    # --- public ---

    def _public(self, node: Subquery, arg: Scalar | None, outer: list[Ref]) -> Scalar:
        """A subquery over public tables, computed for each private row.

        Claim: its value is a function of that row and of public tables.
        Because: it reads nothing else. It never fails: a scalar one has at most one row whatever the private row holds.
        Needs: an aggregate, or an equality with a key that the engine holds unique (checked here).
        """
        plan, bounds = self._preparation.public(node.plan), UNBOUNDED
        for ref in outer:
            check_scalar(ref)
        if node.kind == "scalar":
            if not (_is_one_row(plan) or _is_unique(plan)):
                raise _several_rows(node)
            bounds = public_facts(plan, self._preparation.limit).get(plan.fields[0].id, NOTHING).interval
        return _correlated(node, plan, arg, outer, None, bounds)

    # --- private ---

    def _of_unit(self, plan: Plan, node: Subquery) -> Plan:
        """The subquery with every private relation in it restricted to the unit of the outer row."""
        if not reads_private(plan):
            return self._preparation.public(plan)
        match plan:
            case _ if is_private(plan) and (owner := self._owner(plan, node)) is not None:
                return OfUnit(self._preparation.relation(plan), owner)
            case Project(child=child, items=items):
                return Project(self._of_unit(child, node), tuple((field, self._above(v)) for field, v in items))
            case Filter(child=child, predicate=predicate):
                return Filter(self._of_unit(child, node), self._above(predicate))
            case Sort(child=child, limit=None, offset=0, fields=fields):
                return Project(self._of_unit(child, node), tuple((field, Ref(field)) for field in fields))
            case Distinct(child=child):
                keys = tuple((field, Ref(field)) for field in child.fields)
                return Aggregate(self._of_unit(child, node), keys, (), (tuple(range(len(keys))),))
            case SetOperation(kind=kind, left=left, right=right, fields=fields):
                return SetOperation(kind, self._of_unit(left, node), self._of_unit(right, node), fields)
            case Aggregate(child=child, keys=keys, aggregates=aggregates, sets=sets) if len(sets) == 1:
                resolved = tuple((field, self._above(value)) for field, value in keys)
                calls = []
                for field, call in aggregates:
                    changed = self._above(call)
                    assert isinstance(changed, Aggregated)
                    calls.append((field, changed))
                inner = Aggregate(self._of_unit(child, node), resolved, tuple(calls), sets)
                return self._preparation.per_unit(inner)
            case Sort():
                raise NotSupported(
                    "LIMIT and OFFSET in a subquery over private rows would choose among tied rows",
                    hint="Use MIN or MAX, or number the rows with row_number() in a total order.",
                    position=node.position,
                )
            case _:
                raise self._refusal(plan, node)

    def _above(self, value: Scalar) -> Scalar:
        """An expression over rows that already belong to the unit: subqueries in it may read rows further out."""
        return self._preparation.scalar(value, ())

    def _owner(self, plan: Plan, node: Subquery) -> Field | None:
        """The owner of the outer row, where a condition of the subquery says that this relation's rows belong to it."""
        relations, conditions = flatten(plan)
        fields = [field for relation in relations if is_private(relation) for field in relation.fields]
        for around in reversed(self._around):
            if equal_owners(conditions, around.fields, fields):
                return around.owner
        whole = plan is node.plan or (isinstance(node.plan, Project | Distinct) and plan is node.plan.child)
        if whole and self._around[-1].fields and self._compares_units(node):
            return self._around[-1].owner
        return None

    def _refusal(self, plan: Plan, node: Subquery) -> NotSupported:
        table = next((n.table for n in nodes(plan) if isinstance(n, Scan) and n.table.is_private), None)
        unit = next((field.name for field in self._around[-1].fields if is_unit(Ref(field))), None)
        hint = "Compare the columns that name the unit inside the subquery, or aggregate it in a query of its own."
        if table is not None and table.owner is not None and not table.path and unit is not None:
            condition = f"{table.name}.{table.owner} = {unit}"
            hint = f"Add {condition} to the subquery, or aggregate it in a query of its own."
        whose = "" if table is None else f" over {table.name}"
        return NotSupported(
            f"the subquery{whose} would compare rows of different units", hint=hint, position=node.position
        )


def _correlated(
    node: Subquery, plan: Plan, arg: Scalar | None, outer: list[Ref], owner: Field | None, bounds: Interval
) -> Correlated:
    return Correlated(node.kind, plan, node.type, arg, tuple(outer), owner, bounds.low, bounds.high)


def _is_one_row(plan: Plan) -> bool:
    """An aggregate without keys has one row for any input; HAVING may leave none."""
    match plan:
        case Project(child=child) | Filter(child=child):
            return _is_one_row(child)
        case Aggregate(keys=(), sets=((),)):
            return True
        case _:
            return is_empty(plan)


def _is_unique(plan: Plan) -> bool:
    """Whether conditions fix the key of a public table to one value."""
    match plan:
        case Project(child=child):
            return _is_unique(child)
        case Filter():
            relations, conditions = flatten(plan)
            if len(relations) != 1:
                return False
            fixed = fixed_fields(conditions, {field.id for field in plan.fields})
            return any(names <= fixed for names in public_unique(relations[0]))
        case _:
            return False


def _several_rows(node: Subquery) -> NotSupported:
    return NotSupported(
        "the subquery could return more than one row for some values",
        hint="Use MAX or another aggregate in it, or compare a column that the database declares unique.",
        position=node.position,
    )
