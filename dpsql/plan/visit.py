"""Traversals of plans, and expressions with shared parts.

Answers whether a plan is empty, what it reads from outside, and where a column comes from.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Set
from dataclasses import replace

from dpsql.plan.nodes import (
    Distinct,
    Empty,
    Filter,
    Join,
    Plan,
    Project,
    Scan,
    SetKind,
    SetOperation,
    Sort,
    Window,
    map_scalars,
    nodes,
    scalars,
)
from dpsql.plan.scalars import (
    CORRELATED,
    STAGE,
    Aggregated,
    Call,
    Case,
    Const,
    Correlated,
    Field,
    InStage,
    Ref,
    Scalar,
    StageValue,
    Subquery,
    children,
    parts_in,
    rebuild,
    refs,
    walk,
)


def is_empty(plan: Plan) -> bool:
    """Whether a relation is known to have no rows."""
    match plan:
        case Empty():
            return True
        case Filter() | Project() | Sort() | Distinct() | Window():
            return is_empty(plan.child)
        case SetOperation(kind=SetKind.UNION_ALL | SetKind.UNION, left=left, right=right):
            return is_empty(left) and is_empty(right)
        case _:
            return False


def free_fields(plan: Plan) -> set[int]:
    """Fields that a plan reads but does not define: its correlation with the outer query."""
    return {ref.field.id for ref in free_refs(plan)}


def free_refs(plan: Plan) -> list[Ref]:
    made: set[int] = set()
    used: dict[int, Ref] = {}
    for node in nodes(plan):
        made |= {field.id for field in node.fields}
        if isinstance(node, Window):
            made |= {field.id for field, _ in node.items}
        for value in scalars(node):
            used |= {ref.field.id: ref for ref in refs(value)}
    return [ref for field, ref in used.items() if field not in made]


def reads_private(plan: Plan) -> bool:
    """Whether a plan reads a private table anywhere, above or below a release."""
    return any(isinstance(node, Scan) and node.table.is_private for node in nodes(plan))


def without_places(plan: Plan) -> Plan:
    """The same plan without positions in a text: the text of a view is not the analyst's."""

    def change(value: Scalar) -> Scalar:
        changed = rebuild(value, change)
        match changed:
            case Ref():
                return replace(changed, position=None)
            case Aggregated():
                return replace(changed, position=None)
            case Subquery(plan=inner):
                return replace(changed, plan=map_scalars(inner, change), position=None)
            case _:
                return changed

    return map_scalars(plan, change)


def stages_of(plan: Plan, values: list[Scalar]) -> Iterator[int]:
    every = [value for node in nodes(plan) for value in scalars(node)] + values
    for value in every:
        for part in walk(value) if parts_in(value) & (STAGE | CORRELATED) else ():
            if isinstance(part, StageValue | InStage):
                yield part.stage
            elif isinstance(part, Correlated):
                yield from stages_of(part.plan, [])


def source_of(field: Field, plan: Plan, known: Set[int]) -> int:
    """The field further down that an output column shows unchanged; stops at a field in `known`."""
    if field.id in known:
        return field.id
    match plan:
        case Project(child=child, items=items):
            for mine, value in items:
                if mine.id == field.id and isinstance(value, Ref):
                    return source_of(value.field, child, known)
            return field.id
        case Filter(child=child) | Sort(child=child) | Window(child=child) | Distinct(child=child):
            return source_of(field, child, known)
        case Join(left=left, right=right):
            side = left if any(mine.id == field.id for mine in left.fields) else right
            return source_of(field, side, known)
        case _:
            return field.id


# ------------------------------------------------------------
# Expressions as graphs with each distinct part once, and projections that compute shared parts as columns.

Items = tuple[tuple[Field, Scalar], ...]


class Graph:
    """Parts of expressions under numbers; what a part is made of comes before it.

    Operations are the same where they say the same. Whatever is neither an operation, a column nor a constant is the
    same as nothing else, and so is what contains it: each subquery is a question of its own.
    """

    def __init__(self, *projections: Items) -> None:
        """Of projections one above the other, the lowest first: columns of the highest, made of what is below all."""
        self.values: list[Scalar] = []
        self.below: list[tuple[int, ...]] = []
        self.is_plain: list[bool] = []
        self._as_it_is: list[
            bool
        ] = []  # what a part says is also what it is made of: no column stands for another part
        self._same: dict[object, int] = {}  # by what it says
        self._columns: dict[int, int] = {}  # of the projection below, by field
        for items in projections:
            self._numbers: dict[int, int] = {}  # by identity: below other columns the same part may be another one
            self.roots = [self._number(value) for _, value in items]
            self._columns = {field.id: root for (field, _), root in zip(items, self.roots, strict=True)}

    def _number(self, value: Scalar) -> int:
        if type(value) is Ref and value.field.id in self._columns:
            return self._columns[value.field.id]
        found = self._numbers.get(id(value))
        if found is not None:
            return found
        parts = children(value)
        below = tuple(map(self._number, parts))
        said: object
        match value:
            case Call():
                said = (value.op, value.type, value.option, below)
            case Ref():
                said = value.field.id
            case Case():
                said = (value.type, below)
            case Const():
                said = (type(value.value), repr(value.value), value.type)  # zeros have signs
            case _:
                said = (Subquery, id(value))
        number = self._same.setdefault(said, len(self.values))
        if number == len(self.values):
            self.values.append(value)
            self.below.append(below)
            known = isinstance(value, Call | Ref | Case | Const)
            self.is_plain.append(known and all(self.is_plain[part] for part in below))
            pairs = zip(below, parts, strict=True)
            self._as_it_is.append(all(self._as_it_is[n] and self._is_said(n, part) for n, part in pairs))
        self._numbers[id(value)] = number
        return number

    def _is_said(self, number: int, value: Scalar) -> bool:
        """Whether a part is what an expression says, and not what the column that it says is made of."""
        if type(value) is not Ref:
            return True
        part = self.values[number]
        return type(part) is Ref and part.field.id == value.field.id

    def is_operation(self, number: int) -> bool:
        return bool(self.below[number]) and self.is_plain[number]

    def occurrences(self) -> list[int]:
        """How often each part stands in the expressions, written out."""
        found = [0] * len(self.values)
        for root in self.roots:
            found[root] += 1
        for number in range(len(self.values) - 1, -1, -1):
            for part in self.below[number]:
                found[part] += found[number]
        return found

    def layers(self, fields: Iterable[Field], parts: Collection[int], ids: itertools.count[int]) -> list[Items]:
        """Projections that make the expressions as columns, one above the other, the lowest first.

        `parts` become columns further down, each in the first projection in which all that it is made of is there.
        """
        chosen = set(parts)
        names = {number: Ref(Field(next(ids), "part", self.values[number].type)) for number in sorted(chosen)}
        depths: list[int] = []
        for below in self.below:
            depths.append(max([depths[part] + (part in chosen) for part in below], default=0))
        written: dict[int, Scalar] = {}

        def named(number: int) -> Scalar:
            return names[number] if number in chosen else write(number)

        def write(number: int) -> Scalar:
            if depths[number] == 0 and self._as_it_is[number]:
                return self.values[number]
            if number not in written:
                below = iter(self.below[number])
                written[number] = rebuild(self.values[number], lambda _: named(next(below)))
            return written[number]

        layers: list[Items] = [tuple((field, named(root)) for field, root in zip(fields, self.roots, strict=True))]
        by_depth: dict[int, list[int]] = {}
        for number in names:
            by_depth.setdefault(depths[number], []).append(number)
        for depth in sorted(by_depth, reverse=True):
            made = {names[number].field: write(number) for number in by_depth[depth]}
            along = {field: Ref(field) for field in fields_read(value for _, value in layers[0]) if field not in made}
            layers.insert(0, (*along.items(), *made.items()))
        return layers


def fields_read(values: Iterable[Scalar]) -> dict[Field, None]:
    """The fields that expressions read; subqueries read what they take from the row around them."""
    found: dict[Field, None] = {}
    for part in every_part(values):
        if type(part) is Ref:
            found[part.field] = None
        elif type(part) is Subquery:
            found |= {ref.field: None for ref in free_refs(part.plan)}
    return found


def every_part(values: Iterable[Scalar]) -> list[Scalar]:
    """Each part once, by its identity: expressions share parts, and there may be very many ways to one."""
    found: dict[int, Scalar] = {}
    waiting = list(values)[::-1]
    while waiting:
        part = waiting.pop()
        if id(part) not in found:
            found[id(part)] = part
            if type(part) is Call:
                waiting += part.args[::-1]
            elif type(part) is not Ref and type(part) is not Const:
                waiting += children(part)[::-1]
    return list(found.values())
