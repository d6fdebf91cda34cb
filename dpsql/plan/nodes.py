"""Relational plans: the query, before anything decides whether it may be answered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from dpsql.effort import spend
from dpsql.plan.scalars import Aggregated, Correlated, Field, Scalar, SortKey, Subquery, Windowed, has_subquery, walk
from dpsql.policy.model import Table


class _Fields:
    """A node that caches its fields, which are read often and may be many."""

    __slots__ = ("_fields",)
    _fields: tuple[Field, ...]

    @property
    def fields(self) -> tuple[Field, ...]:
        try:
            return self._fields
        except AttributeError:
            object.__setattr__(self, "_fields", self._made())
            return self._fields

    def _made(self) -> tuple[Field, ...]:
        raise NotImplementedError


class _Proved(_Fields):
    """A node that caches its proof, which is part of the proof of every node above it."""

    __slots__ = ("_proof",)
    _proof: tuple[int, object]

    def proof(self, limit: int) -> object | None:
        try:
            found, proof = self._proof
        except AttributeError:
            return None
        return proof if found == limit else None

    def remember(self, limit: int, proof: object) -> None:
        object.__setattr__(self, "_proof", (limit, proof))


@dataclass(frozen=True, slots=True)
class Scan:
    """A declared table. `columns` names the table's column of each field."""

    table: Table
    fields: tuple[Field, ...]
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Empty:
    """A relation without rows, whatever the data: tools query it to learn the columns."""

    fields: tuple[Field, ...]


@dataclass(frozen=True, slots=True)
class OneRow:
    """One row without columns: the input of a SELECT without FROM."""

    fields: tuple[Field, ...] = ()


@dataclass(frozen=True, slots=True)
class Released:
    """A noisy table: the keys and the sums of one measurement."""

    measurement: int
    fields: tuple[Field, ...]


@dataclass(frozen=True, slots=True)
class Filter:
    child: Plan
    predicate: Scalar

    @property
    def fields(self) -> tuple[Field, ...]:
        return self.child.fields


@dataclass(frozen=True, slots=True)
class SemiJoin:
    """Rows whose owner is (or is not) an owner of a row of `source`: IN (SELECT unit FROM …)."""

    child: Plan
    source: Plan
    negated: bool

    @property
    def fields(self) -> tuple[Field, ...]:
        return self.child.fields


@dataclass(frozen=True, slots=True)
class OfUnit:
    """Inside a correlated subquery: the rows of the outer row's unit, whose owner is `owner`."""

    child: Plan
    owner: Field

    @property
    def fields(self) -> tuple[Field, ...]:
        return self.child.fields


@dataclass(frozen=True, slots=True)
class Project(_Proved):
    child: Plan
    items: tuple[tuple[Field, Scalar], ...]

    def _made(self) -> tuple[Field, ...]:
        return tuple(field for field, _ in self.items)


@dataclass(frozen=True, slots=True)
class Aggregate:
    """GROUP BY. `sets` lists grouping sets as indexes into `keys`; plain GROUP BY is one set of all."""

    child: Plan
    keys: tuple[tuple[Field, Scalar], ...]
    aggregates: tuple[tuple[Field, Aggregated], ...]
    sets: tuple[tuple[int, ...], ...]

    @property
    def fields(self) -> tuple[Field, ...]:
        return tuple(field for field, _ in (*self.keys, *self.aggregates))


@dataclass(frozen=True, slots=True)
class Window:
    """Adds window function columns to its input."""

    child: Plan
    items: tuple[tuple[Field, Windowed], ...]

    @property
    def fields(self) -> tuple[Field, ...]:
        return (*self.child.fields, *(field for field, _ in self.items))


class JoinKind(Enum):
    INNER = "INNER"
    LEFT = "LEFT"
    RIGHT = "RIGHT"
    FULL = "FULL"
    CROSS = "CROSS"


@dataclass(frozen=True, slots=True)
class Join(_Fields):
    kind: JoinKind
    left: Plan
    right: Plan
    condition: Scalar | None

    def _made(self) -> tuple[Field, ...]:
        return (*self.left.fields, *self.right.fields)


class SetKind(Enum):
    UNION_ALL = "UNION ALL"
    UNION = "UNION"
    INTERSECT = "INTERSECT"
    INTERSECT_ALL = "INTERSECT ALL"
    EXCEPT = "EXCEPT"
    EXCEPT_ALL = "EXCEPT ALL"


@dataclass(frozen=True, slots=True)
class SetOperation:
    """Column i of the result comes from column i of each side."""

    kind: SetKind
    left: Plan
    right: Plan
    fields: tuple[Field, ...]


@dataclass(frozen=True, slots=True)
class Distinct:
    child: Plan

    @property
    def fields(self) -> tuple[Field, ...]:
        return self.child.fields


@dataclass(frozen=True, slots=True)
class Sort:
    """ORDER BY, LIMIT and OFFSET, then a selection of columns."""

    child: Plan
    keys: tuple[SortKey, ...]
    limit: int | None
    offset: int
    fields: tuple[Field, ...]


Plan = (
    Scan
    | Empty
    | OneRow
    | Released
    | Filter
    | SemiJoin
    | OfUnit
    | Project
    | Aggregate
    | Window
    | Join
    | SetOperation
    | Distinct
    | Sort
)


def inputs(plan: Plan) -> tuple[Plan, ...]:
    match plan:
        case Scan() | Empty() | OneRow() | Released():
            return ()
        case SemiJoin(child=child, source=source):
            return (child, source)
        case Join(left=left, right=right) | SetOperation(left=left, right=right):
            return (left, right)
        case Filter() | OfUnit() | Project() | Aggregate() | Window() | Distinct() | Sort():
            return (plan.child,)


def scalars(plan: Plan) -> tuple[Scalar, ...]:
    """The expressions a node itself holds."""
    match plan:
        case Filter(predicate=predicate):
            return (predicate,)
        case Project(items=items):
            return tuple(value for _, value in items)
        case Aggregate(keys=keys, aggregates=aggregates):
            return (*(value for _, value in keys), *(call for _, call in aggregates))
        case Window(items=items):
            return tuple(call for _, call in items)
        case Join(condition=condition):
            return () if condition is None else (condition,)
        case Sort(keys=sort_keys):
            return tuple(key.value for key in sort_keys)
        case Scan() | Empty() | OneRow() | Released() | SemiJoin() | OfUnit() | SetOperation() | Distinct():
            return ()


def map_scalars(plan: Plan, change: Callable[[Scalar], Scalar]) -> Plan:
    """The same plan with every expression in it replaced by `change` of it; subqueries are left to `change`."""
    match plan:
        case Scan() | Empty() | OneRow() | Released():
            return plan
        case Filter(child=child, predicate=predicate):
            return Filter(map_scalars(child, change), change(predicate))
        case SemiJoin(child=child, source=source, negated=negated):
            return SemiJoin(map_scalars(child, change), map_scalars(source, change), negated)
        case OfUnit(child=child, owner=owner):
            return OfUnit(map_scalars(child, change), owner)
        case Project(child=child, items=items):
            return Project(map_scalars(child, change), tuple((field, change(value)) for field, value in items))
        case Aggregate(child=child, keys=keys, aggregates=aggregates, sets=sets):
            calls = tuple((field, _same_kind(call, change(call))) for field, call in aggregates)
            return Aggregate(map_scalars(child, change), tuple((f, change(v)) for f, v in keys), calls, sets)
        case Window(child=child, items=windows):
            changed = tuple((field, _same_kind(call, change(call))) for field, call in windows)
            return Window(map_scalars(child, change), changed)
        case Join(kind=kind, left=left, right=right, condition=condition):
            on = None if condition is None else change(condition)
            return Join(kind, map_scalars(left, change), map_scalars(right, change), on)
        case SetOperation(kind=set_kind, left=left, right=right, fields=fields):
            return SetOperation(set_kind, map_scalars(left, change), map_scalars(right, change), fields)
        case Distinct(child=child):
            return Distinct(map_scalars(child, change))
        case Sort(child=child, keys=sort_keys, limit=limit, offset=offset, fields=fields):
            ordered = tuple(SortKey(change(key.value), key.descending, key.nulls_first) for key in sort_keys)
            return Sort(map_scalars(child, change), ordered, limit, offset, fields)


_Call = TypeVar("_Call", Aggregated, Windowed)


def _same_kind(before: _Call, after: Scalar) -> _Call:
    assert type(after) is type(before)
    return after


def nodes(plan: Plan) -> Iterator[Plan]:
    """Every node, subqueries inside expressions included."""
    waiting = [plan]
    while waiting:
        spend()
        node = waiting.pop()
        yield node
        below = list(inputs(node))
        for scalar in scalars(node):
            if has_subquery(scalar):
                below += [part.plan for part in walk(scalar) if isinstance(part, Subquery | Correlated)]
        waiting += below[::-1]
