"""The rest of a query in as little text as it needs: DuckDB takes a millisecond to read and bind each kilobyte.

Columns that nobody reads are left out. Projections one above the other become one, and what stands in it several
times becomes a column below it: margins repeat the expressions they belong to, so that written out they would multiply.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Set
from typing import assert_never

from dpsql.lowering.dialect import Dialect
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
    SetOperation,
    Sort,
    Window,
)
from dpsql.plan.prune import pruned
from dpsql.plan.scalars import OTHER, Call, Field, Ref, Scalar, parts_in
from dpsql.plan.visit import Graph, Items, fields_read

# Characters of text, about: a name or constant, an operation, and what a part must save to become a column.
_NAME, _OPERATION, _WORTHWHILE = 6, 8, 30


def slim(plan: Plan, dialect: Dialect, ids: itertools.count[int]) -> Plan:
    """The same relation above the releases.

    Claim: every value is the one that the plan as it was would give.
    Because: a column is replaced by its own expression, or an expression by a column that holds it; no expression above
    the releases knows the time or draws a random number, and all are total, so it does not matter how often, or for
    which rows, one is computed.
    Needs: field ids that are unique within the query.
    """
    return _Layers(dialect, ids).of(pruned(plan, {field.id for field in plan.fields}))


# --- projections ---


class _Layers:
    def __init__(self, dialect: Dialect, ids: itertools.count[int]) -> None:
        self._dialect = dialect
        self._ids = ids

    def of(self, plan: Plan) -> Plan:
        """The same plan, with each run of projections written anew."""
        match plan:
            case Project(child=child, items=items):
                run = [items]
                typed = _typed(items, set())
                while isinstance(child, Project) and _may_stand_in(run[-1], child.items, typed):
                    run.append(child.items)
                    typed = _typed(child.items, typed)
                    child = child.child
                below = self.of(child)
                for layer in self._split(run):
                    below = Project(below, layer)
                return below
            case Filter(child=child, predicate=predicate):
                return Filter(self.of(child), predicate)
            case Sort(child=child, keys=keys, limit=limit, offset=offset, fields=fields):
                return Sort(self.of(child), keys, limit, offset, fields)
            case Window(child=child, items=windows):
                return Window(self.of(child), windows)
            case Aggregate(child=child, keys=grouped, aggregates=aggregates, sets=sets):
                return Aggregate(self.of(child), grouped, aggregates, sets)
            case Join(kind=kind, left=left, right=right, condition=condition):
                return Join(kind, self.of(left), self.of(right), condition)
            case Distinct(child=child):
                return Distinct(self.of(child))
            case SetOperation(kind=set_kind, left=left, right=right, fields=fields):
                return SetOperation(set_kind, self.of(left), self.of(right), fields)
            case Scan() | Empty() | OneRow() | Released() | SemiJoin() | OfUnit():
                return plan
            case _:
                assert_never(plan)

    def _split(self, run: list[Items]) -> list[Items]:
        """The projections that make the columns of those one above the other, the highest of them first."""
        if len(run) == 1 and not _is_plain(run[0]):
            return run
        graph = Graph(*reversed(run))
        return graph.layers([field for field, _ in run[0]], self._worthwhile(graph), self._ids)

    def _worthwhile(self, graph: Graph) -> set[int]:
        """The parts that save more text as columns than these take."""
        times = [self._repeated(value, len(below)) for value, below in zip(graph.values, graph.below, strict=True)]
        uses = Counter(graph.roots)
        for below, repeated in zip(graph.below, times, strict=True):
            for part, often in zip(below, repeated, strict=True):
                uses[part] += often
        found: set[int] = set()
        lengths: list[int] = []
        for number, below in enumerate(graph.below):
            sizes = [_NAME if part in found else lengths[part] for part in below]
            inside = sum(size * often for size, often in zip(sizes, times[number], strict=True))
            lengths.append(_OPERATION + inside if below else _NAME)
            if below and (uses[number] - 1) * (lengths[number] - _NAME) > _WORTHWHILE:
                found.add(number)
        return found

    def _repeated(self, value: Scalar, width: int) -> list[int]:
        """How often each argument stands in the text of an operation: guards repeat what they guard."""
        template = self._dialect.templates.get(value.op, "") if isinstance(value, Call) else ""
        return [max(template.count(f"{{{i}}}"), 1) for i in range(width)]


def _is_plain(items: Items) -> bool:
    """Whether expressions are made of columns, constants and operations alone, which can be told to be equal."""
    return not any(parts_in(value) & OTHER for _, value in items)


def _may_stand_in(items: Items, below: Items, typed: Set[Field]) -> bool:
    """Whether expressions may stand in the place of the columns that hold them.

    A column may be of another type than its expression, as numeric is of double precision. How an operation on it is
    written depends on that; how it is shown does not.
    """
    plain = _is_plain(items) and _is_plain(below)
    return plain and not any(field in typed and field.type != value.type for field, value in below)


def _typed(items: Items, above: Set[Field]) -> set[Field]:
    """The fields that operations read here, or through these columns further up."""
    shown = {value.field for field, value in items if isinstance(value, Ref) and field in above}
    return shown | fields_read(value for _, value in items if not isinstance(value, Ref)).keys()
