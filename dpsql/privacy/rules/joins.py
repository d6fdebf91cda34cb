"""Rules for joins: every result row has one owner, and depends only on that owner's rows and public rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, replace

from dpsql.plan.nodes import Aggregate, Filter, Join, JoinKind, Plan, Project, Scan, SetKind, SetOperation, Sort, nodes
from dpsql.plan.scalars import Call, Field, Op, Ref, Scalar, refs
from dpsql.policy.model import Table
from dpsql.privacy.bounds import NOTHING, Fact, Facts, Interval, as_number, interval, never_null
from dpsql.privacy.keys.domains import domain
from dpsql.privacy.keys.fan_out import fan_out
from dpsql.privacy.keys.public_rows import public_rows
from dpsql.privacy.refine import conjuncts, refine
from dpsql.privacy.rules.relations import column_fact, unique_columns
from dpsql.privacy.stability import Stability, both_tight
from dpsql.types import Kind


def join_units(
    kind: JoinKind,
    left: Stability,
    right: Stability,
    conditions: Sequence[Scalar],
    sides: tuple[Sequence[Field], Sequence[Field]],
    limit: int,
) -> Stability:
    """private ⋈ private on the same unit.

    Claim: every row has one owner (that of the left row, of the right row, or of whichever exists); a unit has at most
    as many result rows as pairs of its rows, or fewer where a unique key is compared.
    Because: the generated join compares owners, too, so rows of different units never match; whether a row stays
    unmatched in an outer join depends on its own unit's rows.
    Needs: conditions of the analyst that make the owners equal (checked by the caller), so that comparing owners
    changes no result.
    """
    few_right = _at_most_one(right.unique, conditions, sides[1])
    few_left = _at_most_one(left.unique, conditions, sides[0])
    pairs = left.rows * right.rows
    if few_right:
        pairs = min(pairs, left.rows)
    if few_left:
        pairs = min(pairs, right.rows)
    one_right, one_left = few_right or right.single, few_left or left.single
    match kind:
        case JoinKind.INNER | JoinKind.CROSS:
            rows, single = pairs, (left.single and one_right) or (right.single and one_left)
        case JoinKind.LEFT:
            alone = left.rows if few_right else min(left.rows + pairs, left.rows * right.rows)
            rows, single = max(pairs, alone), left.single and one_right
        case JoinKind.RIGHT:
            alone = right.rows if few_left else min(right.rows + pairs, left.rows * right.rows)
            rows, single = max(pairs, alone), right.single and one_left
        case JoinKind.FULL:
            rows, single = max(pairs, left.rows + right.rows), False
    facts = _joined_facts(kind, left.facts, right.facts, conditions, sides, limit)
    groups = [found for found in (left.groups, right.groups) if found is not None]
    # A side keeps its unique columns where each of its rows appears at most once, and no row of NULLs replaces it.
    unique: frozenset[frozenset[int]] = frozenset()
    if one_right and kind in (JoinKind.INNER, JoinKind.CROSS, JoinKind.LEFT):
        unique |= left.unique
    if one_left and kind in (JoinKind.INNER, JoinKind.CROSS, JoinKind.RIGHT):
        unique |= right.unique
    # Columns with one value per unit stay so, unless an outer join puts NULL into some rows.
    fixed: frozenset[int] = frozenset()
    if kind in (JoinKind.INNER, JoinKind.CROSS, JoinKind.LEFT):
        fixed |= left.fixed
    if kind in (JoinKind.INNER, JoinKind.CROSS, JoinKind.RIGHT):
        fixed |= right.fixed
    tight = both_tight(left.tight, right.tight)
    # A side whose rows appear at most once each, and that every result row has a row of.
    within = None
    if one_left and kind in (JoinKind.INNER, JoinKind.CROSS, JoinKind.RIGHT):
        within = right.within
    if one_right and kind in (JoinKind.INNER, JoinKind.CROSS, JoinKind.LEFT):
        within = left.within
    return Stability(rows, single, facts, min(groups, default=None), unique, fixed, tight=tight, within=within)


def join_public(
    kind: JoinKind,
    child: Stability,
    public: Facts,
    met: Met,
    conditions: Sequence[Scalar],
    sides: tuple[Sequence[Field], Sequence[Field]],
    *,
    private_left: bool,
    limit: int,
) -> Stability:
    """private ⋈ public, where every row of the result has a private row.

    Claim: every row belongs to the owner of its private row; the number of a unit's rows that count is multiplied by
    the most public rows that one of them joins.
    Because: each row of the result is one private row with a public row, or unmatched. The clip bounds what a unit
    adds, whatever the public table holds later; the multiplier is known where the table was read (`fan_out`). Where it
    was not, as many rows count as before.
    Needs: no result row without a private row.
    """
    mine = child.facts
    facts = _joined_facts(
        kind, mine if private_left else public, public if private_left else mine, conditions, sides, limit
    )
    most = met.most or 1
    return replace(
        child,
        rows=child.rows * most,
        groups=None if child.groups is None else child.groups * most,
        facts=facts,
        single=child.single and met.is_unique,
        unique=child.unique if met.is_unique else frozenset(),
        numbered=frozenset(),
        within=child.within if met.is_unique else None,
    )


@dataclass(frozen=True, slots=True)
class Met:
    """How many public rows one private row joins."""

    is_unique: bool  # at most one, whatever the public table will hold: enforced by the engine
    most: int | None  # the most, when the public table was read; None: unknown


def public_met(public: Plan, conditions: Sequence[Scalar], apart: Sequence[Scalar] = ()) -> Met:
    """How many rows of a public relation one private row joins, among rows with the same values of `apart`."""
    if _at_most_one(public_unique(public), conditions, public.fields):
        return Met(True, 1)
    found = public_rows(public)
    if found is None:
        return Met(False, _declared_most(public, conditions))
    return Met(False, max(fan_out(found, conditions, public.fields, apart), 1))


def _declared_most(public: Plan, conditions: Sequence[Scalar]) -> int | None:
    """The declared number of rows per value, for the columns that equalities fix."""
    fixed = fixed_fields(conditions, {field.id for field in public.fields})
    return min((most for field, most in _rows_per_value(public).items() if field in fixed), default=None)


def _rows_per_value(plan: Plan) -> dict[int, int]:
    """For the columns of a public relation that is one table: the most rows with the same value."""
    match plan:
        case Scan(table=table, fields=fields, columns=columns):
            declared = ((field.id, table.columns[name]) for field, name in zip(fields, columns, strict=True))
            return {
                field: column.max_rows_per_value
                for field, column in declared
                if column.max_rows_per_value is not None and not column.is_clamped
            }
        case Filter(child=child) | Sort(child=child):
            return _rows_per_value(child)
        case Project(child=child, items=items):
            known = _rows_per_value(child)
            return {f.id: known[v.field.id] for f, v in items if isinstance(v, Ref) and v.field.id in known}
        case _:
            return {}


def _at_most_one(unique: frozenset[frozenset[int]], conditions: Sequence[Scalar], fields: Sequence[Field]) -> bool:
    """Whether equalities with the other side cover a set of columns that is unique on this one."""
    fixed = fixed_fields(conditions, {field.id for field in fields})
    return any(names <= fixed for names in unique)


def fixed_fields(conditions: Iterable[Scalar], here: Set[int]) -> set[int]:
    """The columns of a relation that equalities fix to one value, given everything outside it."""
    found: set[int] = set()
    for condition in conditions:
        if isinstance(condition, Call) and condition.op is Op.EQ:
            for mine, other in (condition.args, condition.args[::-1]):
                mine = _uncast(mine)
                if isinstance(mine, Ref) and mine.field.id in here and not here & {r.field.id for r in refs(other)}:
                    found.add(mine.field.id)
    return found


def _uncast(value: Scalar) -> Scalar:
    """An integer column without a cast to decimal, which keeps different values different."""
    if isinstance(value, Call) and value.op is Op.CAST and value.type.kind is Kind.DECIMAL:
        inner = value.args[0]
        return inner if inner.type.kind is Kind.INTEGER and inner.type.precision <= value.type.precision else value
    return value


def _joined_facts(
    kind: JoinKind,
    left: Facts,
    right: Facts,
    conditions: Sequence[Scalar],
    sides: tuple[Sequence[Field], Sequence[Field]],
    limit: int,
) -> Facts:
    if kind in (JoinKind.RIGHT, JoinKind.FULL):
        left = _or_null(left, sides[0], limit)
    if kind in (JoinKind.LEFT, JoinKind.FULL):
        right = _or_null(right, sides[1], limit)
    facts: Facts = {**left, **right}
    if kind in (JoinKind.INNER, JoinKind.CROSS):
        for condition in conditions:
            facts = refine(facts, condition)
    return facts


def _or_null(facts: Facts, fields: Sequence[Field], limit: int) -> Facts:
    """The facts of the side that may be missing: the query itself adds NULL to its keys."""
    found: dict[object, Fact] = {}
    for field in fields:
        keys = domain(Ref(field), facts, limit)
        keys = keys if keys is None or None in keys else (*keys, None)
        found[field.id] = replace(facts.get(field.id, NOTHING), domain=keys, nullable=True)
    return found


# --- public relations ---


def public_facts(plan: Plan, limit: int) -> Facts:
    """The known facts about the columns of a public relation."""
    match plan:
        case Scan(table=table, fields=fields, columns=columns):
            return {f.id: public_fact(table, name) for f, name in zip(fields, columns, strict=True)}
        case Filter(child=child, predicate=predicate):
            return refine(public_facts(child, limit), predicate)
        case Sort(child=child):
            return public_facts(child, limit)
        case SetOperation(kind=SetKind.UNION_ALL, left=left, right=right, fields=fields):
            mine, theirs = public_facts(left, limit), public_facts(right, limit)
            return {
                field.id: _either(mine.get(a.id, NOTHING), theirs.get(b.id, NOTHING))
                for field, a, b in zip(fields, left.fields, right.fields, strict=True)
            }
        case Project(child=child, items=items):
            facts = public_facts(child, limit)
            return {
                field.id: facts.get(value.field.id, NOTHING)
                if isinstance(value, Ref)
                else Fact(interval(value, facts), domain(value, facts, limit), nullable=not never_null(value, facts))
                for field, value in items
            }
        case Join(kind=kind, left=left, right=right, condition=condition):
            conditions = [] if condition is None else list(conjuncts(condition))
            return _joined_facts(
                kind,
                public_facts(left, limit),
                public_facts(right, limit),
                conditions,
                (left.fields, right.fields),
                limit,
            )
        case _:
            return {}


def _either(left: Fact, right: Fact) -> Fact:
    keys = None if left.domain is None or right.domain is None else (*left.domain, *right.domain)
    return Fact(left.interval.union(right.interval), keys, nullable=left.nullable or right.nullable)


def public_fact(table: Table, name: str) -> Fact:
    """A column of a public table: as declared, else as read from a small table."""
    fact = column_fact(table, table.columns[name])
    values = None if table.contents is None else table.contents[name]
    if values is None:
        return fact
    numbers = [number for number in map(as_number, values) if number is not None]
    bounds = Interval(min(numbers), max(numbers)) if numbers and not fact.interval.bounded else fact.interval
    keys = fact.domain if fact.domain is not None or table.columns[name].type.kind is Kind.DOUBLE else values
    return replace(fact, interval=bounds, domain=keys, nullable=fact.nullable or None in values)


def is_small(plan: Plan) -> bool:
    """Whether a public relation has few rows: constants, or one table that was small when it was read."""
    scans = [node for node in nodes(plan) if isinstance(node, Scan)]
    return len(scans) <= 1 and all(scan.table.contents is not None for scan in scans)


def public_unique(plan: Plan) -> frozenset[frozenset[int]]:
    """Sets of columns that are unique in a public relation."""
    match plan:
        case Scan(table=table, fields=fields, columns=columns):
            return unique_columns(table, fields, columns)
        case Filter(child=child) | Sort(child=child):
            return public_unique(child)
        case Project(child=child, items=items):
            renamed = {value.field.id: field.id for field, value in items if isinstance(value, Ref)}
            return frozenset(
                frozenset(renamed[i] for i in names) for names in public_unique(child) if names <= renamed.keys()
            )
        case Aggregate(keys=keys, sets=sets) if len(sets) == 1:
            return frozenset({frozenset(field.id for field, _ in keys)})
        case _:
            return frozenset()


def has_equality(conditions: Iterable[Scalar], fields: Sequence[Field]) -> bool:
    """Whether an equality joins a relation to the rest: its two sides read one each."""
    here = {field.id for field in fields}
    for condition in conditions:
        if not isinstance(condition, Call) or condition.op is not Op.EQ:
            continue
        mine = [{ref.field.id for ref in refs(arg)} for arg in condition.args]
        inside = [bool(used) and used <= here for used in mine]
        outside = [bool(used) and not used & here for used in mine]
        if (inside[0] and outside[1]) or (inside[1] and outside[0]):
            return True
    return False
