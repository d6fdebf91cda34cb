"""Expressions with each part once, however often it is said, and the columns that parts can become."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator

from dpsql.plan.inspect import free_refs
from dpsql.plan.scalars import Call, Case, Const, Field, Ref, Scalar, Subquery, children, rebuild

Items = tuple[tuple[Field, Scalar], ...]


class Graph:
    """Parts of expressions under numbers; what a part is made of comes before it.

    Operations are the same where they say the same. Whatever is neither an operation, a column nor a constant is the
    same as nothing else, and so is what contains it: each subquery is a question of its own.
    """

    def __init__(self, values: Iterable[Scalar]) -> None:
        self.values: list[Scalar] = []
        self.below: list[tuple[int, ...]] = []
        self.is_plain: list[bool] = []
        self._numbers: dict[int, int] = {}  # by identity
        self._same: dict[object, int] = {}  # by what it says
        self.roots = [self._number(value) for value in values]

    def _number(self, value: Scalar) -> int:
        if id(value) in self._numbers:
            return self._numbers[id(value)]
        below = tuple(map(self._number, children(value)))
        said: object
        match value:
            case Ref(field=field):
                said = field.id
            case Call(op=op, type=type_, option=option):
                said = (op, type_, option, below)
            case Case(type=type_):
                said = (type_, below)
            case Const(value=constant, type=type_):
                said = (type(constant), repr(constant), type_)  # zeros have signs
            case _:
                said = (Subquery, id(value))
        number = self._same.setdefault(said, len(self.values))
        if number == len(self.values):
            self.values.append(value)
            self.below.append(below)
            known = isinstance(value, Ref | Call | Case | Const)
            self.is_plain.append(known and all(self.is_plain[part] for part in below))
        self._numbers[id(value)] = number
        return number

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
        names = {number: Field(next(ids), "part", self.values[number].type) for number in sorted(chosen)}
        depths: list[int] = []
        for below in self.below:
            depths.append(max((depths[part] + (part in chosen) for part in below), default=0))

        def named(number: int) -> Scalar:
            return Ref(names[number]) if number in chosen else written(number)

        def written(number: int) -> Scalar:
            below = iter(self.below[number])
            return rebuild(self.values[number], lambda _: named(next(below)))

        layers: list[Items] = [tuple((field, named(root)) for field, root in zip(fields, self.roots, strict=True))]
        by_depth: dict[int, list[int]] = {}
        for number in names:
            by_depth.setdefault(depths[number], []).append(number)
        for depth in sorted(by_depth, reverse=True):
            made = {names[number]: written(number) for number in by_depth[depth]}
            along = {field: Ref(field) for field in fields_read(value for _, value in layers[0]) if field not in made}
            layers.insert(0, (*along.items(), *made.items()))
        return layers


def fields_read(values: Iterable[Scalar]) -> dict[Field, None]:
    """The fields that expressions read; subqueries read what they take from the row around them."""
    found: dict[Field, None] = {}
    for part in every_part(values):
        if isinstance(part, Ref):
            found[part.field] = None
        elif isinstance(part, Subquery):
            found |= {ref.field: None for ref in free_refs(part.plan)}
    return found


def every_part(values: Iterable[Scalar]) -> Iterator[Scalar]:
    """Each part once, by its identity: expressions share parts, and there may be very many ways to one."""
    seen: set[int] = set()
    waiting = list(values)[::-1]
    while waiting:
        part = waiting.pop()
        if id(part) not in seen:
            seen.add(id(part))
            yield part
            waiting += children(part)[::-1]
