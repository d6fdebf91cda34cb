"""Which columns of an answer are made of the keys that were returned, where others may be missing.

Where keys are not declared, a threshold decides which are returned. What is computed of all returned groups together (a
rank, a deviation, what HAVING leaves, a difference of sets) does not see the others. What of it can be measured of the
rows is (`coarser`); the rest is marked. All of this follows from the text of the query and the policy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from dpsql.plan.nodes import (
    Aggregate,
    Distinct,
    Empty,
    Filter,
    Join,
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
)
from dpsql.plan.scalars import Agg, Field, Ref, Scalar, Subquery, has_subquery, walk

MARK = "of the returned keys only"


@dataclass(frozen=True, slots=True)
class Seen:
    """A relation over released tables: whether rows may be missing, what tells its rows apart, and which columns see
    less than all of the data."""

    partial: bool = False
    # For each key that tells rows apart, the columns that show it as it is; None where that is not known.
    keys: tuple[frozenset[int], ...] | None = None
    blurred: frozenset[int] = frozenset()

    def single(self, values: Iterable[Scalar]) -> bool:
        """Whether rows that agree in these values are one row."""
        named = {value.field.id for value in values if isinstance(value, Ref)}
        return self.keys is not None and all(key & named for key in self.keys)


class Partial:
    """Follows missing keys through the rest of a query.

    `keys` is how many key columns the table of a measurement has; `hides` says whether a threshold chooses them, and
    `blurs` whether rows were counted by what such a table shows.
    """

    def __init__(self, keys: Callable[[int], int], hides: Callable[[int], bool], blurs: Callable[[int], bool]) -> None:
        self._keys = keys
        self._hides = hides
        self._blurs = blurs
        self.chooses = False  # whether such columns, or rows that may be missing, decide which rows are returned

    def of(self, plan: Plan) -> Seen:
        match plan:
            case Scan() | Empty() | SemiJoin() | OfUnit():
                return Seen()
            case OneRow():
                return Seen(keys=())
            case Released(measurement=measurement, fields=fields):
                keys = self._keys(measurement)
                sums = frozenset(field.id for field in fields[keys:]) if self._blurs(measurement) else frozenset()
                return Seen(self._hides(measurement), tuple(frozenset({field.id}) for field in fields[:keys]), sums)
            case Filter(child=child, predicate=predicate):
                inner = self.of(child)
                self.chooses |= self._is_blurred(predicate, inner)
                return inner
            case Project(child=child, items=items):
                return self._project(self.of(child), items)
            case Aggregate(child=child, keys=grouped, aggregates=aggregates, sets=sets):
                inner = self.of(child)
                whole = not inner.partial or (len(sets) == 1 and inner.single(grouped[i][1] for i in sets[0]))
                blurred = {
                    field.id
                    for field, call in aggregates
                    if call.function is not Agg.GROUPING and (not whole or self._is_blurred(call, inner))
                }
                blurred |= {field.id for field, value in grouped if self._is_blurred(value, inner)}
                own = tuple(frozenset({field.id}) for field, _ in grouped) if len(sets) == 1 else None
                return Seen(inner.partial and bool(grouped), own, frozenset(blurred))
            case Window(child=child, items=windows):
                inner = self.of(child)
                blurred = {
                    field.id
                    for field, call in windows
                    if (inner.partial and not inner.single(call.partition)) or self._is_blurred(call, inner)
                }
                return Seen(inner.partial, inner.keys, inner.blurred | blurred)
            case Join(left=left, right=right, condition=condition):
                one, other = self.of(left), self.of(right)
                both = None if one.keys is None or other.keys is None else one.keys + other.keys
                seen = Seen(one.partial or other.partial, both, one.blurred | other.blurred)
                self.chooses |= condition is not None and self._is_blurred(condition, seen)
                return seen
            case SetOperation(kind=kind, left=left, right=right, fields=fields):
                one, other = self.of(left), self.of(right)
                self.chooses |= other.partial and kind not in (SetKind.UNION_ALL, SetKind.UNION)
                pairs = zip(fields, left.fields, right.fields, strict=True)
                blurred = {f.id for f, mine, its in pairs if mine.id in one.blurred or its.id in other.blurred}
                return Seen(one.partial or other.partial, None, frozenset(blurred))
            case Distinct(child=child):
                inner = self.of(child)
                return Seen(inner.partial, tuple(frozenset({field.id}) for field in child.fields), inner.blurred)
            case Sort(child=child, keys=order, limit=limit, offset=offset):
                inner = self.of(child)
                if limit is not None or offset:
                    self.chooses |= any(self._is_blurred(key.value, inner) for key in order)
                return inner

    def _project(self, inner: Seen, items: Sequence[tuple[Field, Scalar]]) -> Seen:
        shown: dict[int, set[int]] = {}
        for field, value in items:
            if isinstance(value, Ref):
                shown.setdefault(value.field.id, set()).add(field.id)
        keys = None
        if inner.keys is not None:
            keys = tuple(frozenset().union(*(shown.get(field, ()) for field in key)) for key in inner.keys)
        blurred = {field.id for field, value in items if self._is_blurred(value, inner)}
        return Seen(inner.partial, keys, frozenset(blurred))

    def _is_blurred(self, value: Scalar, seen: Seen) -> bool:
        found = False
        for part in walk(value) if seen.blurred or has_subquery(value) else ():
            if isinstance(part, Ref):
                found |= part.field.id in seen.blurred
            elif isinstance(part, Subquery):
                found |= self.hides_rows(part.kind, part.plan)
        return found

    def hides_rows(self, kind: str, plan: Plan) -> bool:
        """Whether a subquery sees less than all of the data."""
        seen = self.of(plan)
        return plan.fields[0].id in seen.blurred if kind == "scalar" else seen.partial


def caution(names: Sequence[str], *, chooses: bool) -> str | None:
    """What a reader should know of columns, or of rows, that are made of the keys that were returned."""
    quoted = [f'"{name}"' for name in dict.fromkeys(names)]
    if not quoted and not chooses:
        return None
    subject = f"{', '.join(quoted[:-1])} and {quoted[-1]} are" if len(quoted) > 1 else f"{''.join(quoted)} is"
    made = f"{subject} computed from" if quoted else "rows are chosen among"
    return f"{made} the returned keys only: keys that too few units have are missing"
