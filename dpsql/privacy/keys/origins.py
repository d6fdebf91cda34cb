"""What the rows of a private relation derive from: columns of tables, rows of public relations, and conditions on them.

Claim: every row of the relation has a value for each column listed here and a row of each public relation, for which
all conditions are true; its own columns are computed from these by the expressions that `expanded` gives.
Because: each node keeps rows, combines rows, or drops rows.
Needs: nothing of the data. Where this stops, a column is known by its facts alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from dpsql.plan.nodes import (
    Aggregate,
    Filter,
    Join,
    JoinKind,
    Plan,
    Project,
    Scan,
    SemiJoin,
    Window,
)
from dpsql.plan.scalars import Call, Field, Op, Ref, Scalar, rebuild, walk
from dpsql.privacy.bounds import NOTHING, Fact, Facts
from dpsql.privacy.derive import derive, is_private
from dpsql.privacy.keys.public_rows import Rows, public_rows
from dpsql.privacy.refine import conjuncts, refine
from dpsql.privacy.rules.joins import public_facts
from dpsql.privacy.rules.relations import scan
from dpsql.types import BOOLEAN

# An expression with more parts than this is not substituted for a column.
MOST_PARTS = 1_000

_INNER = (JoinKind.INNER, JoinKind.CROSS)


@dataclass(slots=True)
class Origins:
    limit: int
    facts: Facts = field(default_factory=dict)
    conditions: list[Scalar] = field(default_factory=list)
    public: list[Rows] = field(default_factory=list)
    _made: dict[int, Scalar] = field(default_factory=dict)
    _sizes: dict[int, int] = field(default_factory=dict)
    _markers: Iterator[int] = field(default_factory=lambda: iter(range(-1, -(10**9), -1)))

    def expanded(self, value: Scalar) -> Scalar:
        """The same expression over the original columns; unchanged where that would be long."""
        return self._expanded(value) if self._size(value) <= MOST_PARTS else value

    def _expanded(self, value: Scalar) -> Scalar:
        if isinstance(value, Ref):
            return self._made.get(value.field.id, value)
        return rebuild(value, self._expanded)

    def _size(self, value: Scalar) -> int:
        return sum(self._sizes.get(part.field.id, 1) if isinstance(part, Ref) else 1 for part in walk(value))

    # --- descending the plan ---

    def follow(self, plan: Plan) -> None:
        match plan:
            case Scan(table=table, fields=fields, columns=columns) if table.is_private:
                self._know(scan(table, fields, columns).facts, fields)
            case Filter(child=child, predicate=predicate):
                self.follow(child)
                self._meet(predicate)
            case SemiJoin(child=child):
                self.follow(child)
            case Project(child=child, items=items):
                self.follow(child)
                self._make(items)
            case Aggregate(child=child, keys=keys, aggregates=aggregates, sets=((*_,),)):
                self._stop(plan, [f for f, _ in aggregates])
                self.follow(child)
                self._make(keys)
            case Window(child=child, items=items):
                self._stop(plan, [f for f, _ in items])
                self.follow(child)
            case Join(kind=kind, left=left, right=right) if is_private(left) and is_private(right):
                if kind in _INNER:
                    self.follow(left)
                    self.follow(right)
                    self._meet(plan.condition)
                elif kind in (JoinKind.LEFT, JoinKind.RIGHT):
                    kept, other = (left, right) if kind is JoinKind.LEFT else (right, left)
                    self.follow(kept)
                    self._stop(plan, other.fields)
                else:
                    self._stop(plan, plan.fields)
            case Join():
                self._follow_public(plan)
            case _:
                self._stop(plan, plan.fields)

    def _follow_public(self, plan: Join) -> None:
        private, public = (plan.left, plan.right) if is_private(plan.left) else (plan.right, plan.left)
        self.follow(private)
        found = public_rows(public, counted=False)
        if plan.kind in _INNER:
            self._know(public_facts(public, self.limit), public.fields)
            if found is not None:
                self.public.append(found)
            self._meet(plan.condition)
            return
        self._stop(plan, public.fields)
        if found is None:
            return
        # Every row has a public row that meets the condition, or NULLs instead.
        marker = Field(next(self._markers), "", BOOLEAN)
        rows = [{**row, marker.id: True} for row in found.rows]
        alone = {**dict.fromkeys(found.fields), marker.id: None}
        self.public.append(Rows(found.fields | {marker.id}, [*rows, alone]))
        if plan.condition is not None:
            missing = Call(Op.IS_NULL, (Ref(marker),), BOOLEAN)
            for part in conjuncts(plan.condition):
                self._meet(Call(Op.OR, (missing, part), BOOLEAN))

    def _meet(self, condition: Scalar | None) -> None:
        if condition is None:
            return
        for part in conjuncts(condition):
            expanded = self.expanded(part)
            self.conditions.append(expanded)
            self.facts = refine(self.facts, expanded)

    def _make(self, items: Sequence[tuple[Field, Scalar]]) -> None:
        for target, value in items:
            if isinstance(value, Ref) and value.field.id == target.id:
                continue
            size = self._size(value)
            if size <= MOST_PARTS:
                self._sizes[target.id] = size
                self._made[target.id] = self._expanded(value)

    def _know(self, facts: Facts, fields: Sequence[Field]) -> None:
        self.facts = {**self.facts, **{f.id: facts.get(f.id, NOTHING) for f in fields}}

    def _stop(self, plan: Plan, fields: Sequence[Field]) -> None:
        self._know(derive(plan, self.limit).conclusion.facts, fields)


def origins(plan: Plan, facts: Facts, limit: int) -> Origins:
    """The origins of a private relation with these facts."""
    found = Origins(limit)
    found.follow(plan)
    known: dict[object, Fact] = {**facts, **found.facts}
    found.facts = known
    return found
