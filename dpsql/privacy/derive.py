"""Proves that a private plan is safe: one rule per node, bottom up. A node without a rule is refused."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import assert_never

from dpsql.effort import spend
from dpsql.errors import NotSupported
from dpsql.plan.nodes import (
    Aggregate,
    Distinct,
    Empty,
    Filter,
    Join,
    JoinKind,
    OfUnit,
    OneRow,
    Plan,
    Project,
    Released,
    Scan,
    SemiJoin,
    SetKind,
    SetOperation,
    Sort,
    Window,
    nodes,
)
from dpsql.plan.scalars import (
    Agg,
    Aggregated,
    Call,
    Correlated,
    IntervalEnd,
    Op,
    Ref,
    Scalar,
    Subquery,
    Windowed,
    children,
    walk,
)
from dpsql.plan.visit import reads_private
from dpsql.privacy.owners import equal_owners, names_owner, refuse_join
from dpsql.privacy.refine import conjuncts
from dpsql.privacy.rules import joins, relations, windows
from dpsql.privacy.stability import Derivation

INTERVAL_HINT = "Write it around an aggregate of a private table, as in dp_low(AVG(age))."
UNIT_HINT = "The unit may be used in COUNT(DISTINCT …) [FILTER (WHERE …)], in an inner GROUP BY and in IN (SELECT …)."

REFERENCE_HINT = "It may be compared with the key it refers to, be counted, and be used in an inner GROUP BY."


def is_private(plan: Plan) -> bool:
    """Whether the rows of a relation belong to units, so that they may not be shown."""
    match plan:
        case Scan(table=table):
            return table.is_private
        case Empty() | OneRow() | Released():
            return False
        case Filter() | Project() | Window() | Sort() | SemiJoin() | OfUnit():
            return is_private(plan.child)
        case Aggregate(child=child, keys=keys):
            return is_private(child) and names_owner(value for _, value in keys)
        case Distinct(child=child):
            return is_private(child) and names_owner(map(Ref, child.fields))
        case Join(left=left, right=right) | SetOperation(left=left, right=right):
            return is_private(left) or is_private(right)
        case _:
            assert_never(plan)


def derive(plan: Plan, limit: int) -> Derivation:
    """The stability of a private relation, with the rules that prove it. `limit` caps lists of keys."""
    if not isinstance(plan, Project):
        return _derived(plan, limit)
    found = plan.proof(limit)
    if found is None:
        found = _derived(plan, limit)
        plan.remember(limit, found)
    assert isinstance(found, Derivation)
    return found


def _derived(plan: Plan, limit: int) -> Derivation:
    spend()
    match plan:
        case Scan(table=table, fields=fields, columns=columns):
            if not table.is_private:
                raise NotSupported("a public table cannot be used here", hint="Join it to the result instead.")
            stability = relations.scan(table, fields, columns)
            return Derivation("scan", stability, note=table.name, unowned=table.unowned_text)
        case Filter(child=child, predicate=predicate):
            premise = derive(child, limit)
            check_scalar(predicate)
            conclusion = relations.filter_rows(premise.conclusion, predicate)
            return Derivation("filter_rows", conclusion, (premise, *_inside([predicate], limit)))
        case SemiJoin(child=child, source=source, negated=negated):
            premise, other = derive(child, limit), derive(source, limit)
            conclusion = relations.semi_join(premise.conclusion, other.conclusion)
            return Derivation("semi_join", conclusion, (premise, other), "NOT IN" if negated else "IN")
        case Project(child=child, items=items):
            premise = derive(child, limit)
            for field, value in items:
                # A unit column that passes through, or is merged from both sides of a join, is still the unit.
                if not isinstance(value, Ref) and not field.unit:
                    check_scalar(value)
            within = _inside([value for _, value in items], limit)
            return Derivation("project", relations.project(premise.conclusion, items, limit), (premise, *within))
        case OfUnit(child=child):
            premise = derive(child, limit)
            return Derivation("of_unit", relations.of_unit(premise.conclusion), (premise,))
        case SetOperation(kind=SetKind.UNION_ALL, left=left, right=right, fields=fields):
            premise, other = derive(left, limit), derive(right, limit)
            sides = (left.fields, right.fields)
            conclusion = relations.union_all(premise.conclusion, other.conclusion, fields, sides)
            return Derivation("union_all", conclusion, (premise, other))
        case SetOperation(kind=kind, left=left, right=right, fields=fields):
            if not names_owner(map(Ref, fields)):
                raise NotSupported(
                    f"{kind.value} below an aggregate would compare rows of different units",
                    hint="Select the unit on both sides, use UNION ALL, or aggregate each side first.",
                )
            premise, other = derive(left, limit), derive(right, limit)
            sides = (left.fields, right.fields)
            conclusion = relations.set_operation(kind, premise.conclusion, other.conclusion, fields, sides)
            return Derivation("set_operation", conclusion, (premise, other), kind.value)
        case Aggregate(child=child, keys=keys, aggregates=aggregates, sets=sets):
            premise = derive(child, limit)
            if len(sets) != 1:
                raise NotSupported("grouping sets over the unit are not supported")
            for _, value in keys:
                if not isinstance(value, Ref):
                    check_scalar(value)
            for _, call in aggregates:
                check_aggregate(call)
            conclusion = relations.aggregate_by_unit(premise.conclusion, keys, aggregates, limit)
            return Derivation("aggregate_by_unit", conclusion, (premise,))
        case Join():
            return _join(plan, limit)
        case Window(child=child, items=windowed):
            premise = derive(child, limit)
            for _, window in windowed:
                check_window(window)
            return Derivation("window_in_unit", windows.window_in_unit(premise.conclusion, windowed), (premise,))
        case Sort():
            raise NotSupported(
                "LIMIT and OFFSET below an aggregate would choose rows depending on other units' rows",
                hint="Aggregate first, then limit the result.",
            )
        case Distinct() | Empty() | OneRow() | Released():
            raise NotSupported("this combination of private and public rows is not supported")
        case _:
            assert_never(plan)


def _join(plan: Join, limit: int) -> Derivation:
    conditions = [] if plan.condition is None else list(conjuncts(plan.condition))
    left, right = plan.left, plan.right
    sides = (left.fields, right.fields)
    if is_private(left) and is_private(right) and not equal_owners(conditions, *sides):
        raise refuse_join(left, right)
    for condition in conditions:
        check_scalar(condition)
        if any(isinstance(part, Correlated) for part in walk(condition)):
            raise NotSupported(
                "a subquery in the condition of an outer join is not supported", hint="Move it to WHERE."
            )
    if is_private(left) and is_private(right):
        premise, other = derive(left, limit), derive(right, limit)
        conclusion = joins.join_units(plan.kind, premise.conclusion, other.conclusion, conditions, sides, limit)
        return Derivation("join_units", conclusion, (premise, other), plan.kind.value)
    private_left = is_private(left)
    private, public = (left, right) if private_left else (right, left)
    alone = {JoinKind.LEFT, JoinKind.FULL} if not private_left else {JoinKind.RIGHT, JoinKind.FULL}
    if plan.kind in alone:
        raise NotSupported(
            "unmatched rows of a public table belong to no unit",
            hint="Join the private table first, or group by columns of the public table and aggregate private ones.",
        )
    if not joins.has_equality(conditions, public.fields) and not joins.is_small(public):
        raise NotSupported(
            "a large public table is joined without an equality condition",
            hint="Compare one of its columns with a column of the private table by =.",
        )
    premise = derive(private, limit)
    met = joins.public_met(public, conditions)
    conclusion = joins.join_public(
        plan.kind,
        premise.conclusion,
        joins.public_facts(public, limit),
        met,
        conditions,
        sides,
        private_left=private_left,
        limit=limit,
    )
    name = next((f" {node.table.name}" for node in nodes(public) if isinstance(node, Scan)), "")
    several = "fan-out clipped" if met.most is None else f"fan-out {met.most:,}" if met.most > 1 else ""
    note = f"{plan.kind.value}{name}" + (f", {several}" if several else "")
    cut = (name.strip() or "in the query") if met.most is None else None
    return Derivation("join_public", conclusion, (premise,), note, cut)


def unknown_fan_outs(derivation: Derivation) -> Iterator[str]:
    """The public tables for which the number of rows that one private row joins is unknown."""
    if derivation.cut is not None:
        yield derivation.cut
    for premise in derivation.premises:
        yield from unknown_fan_outs(premise)


def _inside(values: Iterable[Scalar], limit: int) -> tuple[Derivation, ...]:
    """The proofs that correlated subqueries in expressions read only the rows of their own unit."""
    parts = (part for value in values for part in walk(value))
    return tuple(derive(p.plan, limit) for p in parts if isinstance(p, Correlated) and reads_private(p.plan))


def check_window(call: Windowed) -> None:
    if not names_owner(call.partition):
        raise NotSupported(
            "window functions over rows of a private table must stay within one unit",
            hint="Add the unit to PARTITION BY, or aggregate first: window functions over aggregates are free.",
        )
    for value in (*call.args, *([] if call.where is None else [call.where])):
        check_scalar(value)
    for value in (*call.partition, *(key.value for key in call.order)):
        if not isinstance(value, Ref):  # distinguishing a unit's rows shows nothing of the values that distinguish them
            check_scalar(value)


def check_aggregate(call: Aggregated) -> None:
    """Refuse aggregates of the unit or of a reference, except counts: these show nothing of the value."""
    for value in (*call.args, call.where):
        if value is not None and not (call.function is Agg.COUNT and isinstance(value, Ref)):
            check_scalar(value)


def check_scalar(value: Scalar) -> None:
    """Refuse what a private expression may not contain: the unit's own value, noise, and unresolved subqueries.

    The unit, and references that are not declared columns, may be tested for NULL and compared with columns of the same
    meaning: that shows only which rows of a unit belong together.
    """
    if _compares_owners(value) or (isinstance(value, Call) and value.op is Op.IS_NULL and _is_hidden(value.args[0])):
        return
    if isinstance(value, Subquery):
        raise NotSupported(
            "the subquery would compare rows of different units",
            hint="Aggregate inside the subquery, or compare the columns that name the unit in it.",
            position=value.position,
        )
    if isinstance(value, IntervalEnd):
        raise NotSupported(f"{value.name} needs a noisy number", hint=INTERVAL_HINT, position=value.position)
    if isinstance(value, Ref) and _is_hidden(value):
        what, hint = ("unit", UNIT_HINT) if value.field.unit else ("reference", REFERENCE_HINT)
        raise NotSupported(f'the {what} "{value.field.name}" cannot be used here', hint=hint, position=value.position)
    if isinstance(value, Correlated):
        # Outer columns that its plan reads are checked where the plan uses them.
        if value.arg is not None and not _is_hidden(value.arg):
            check_scalar(value.arg)
        return
    for part in children(value):
        check_scalar(part)


def _compares_owners(value: Scalar) -> bool:
    if not isinstance(value, Call) or value.op not in (Op.EQ, Op.NE):
        return False
    a, b = value.args
    if not isinstance(a, Ref) or not isinstance(b, Ref):
        return False
    mine, theirs = ({(link.table, link.key, link.part) for link in ref.field.links} for ref in (a, b))
    return (a.field.unit and b.field.unit) or bool(mine & theirs)


def _is_hidden(value: Scalar) -> bool:
    return isinstance(value, Ref) and not value.field.readable
