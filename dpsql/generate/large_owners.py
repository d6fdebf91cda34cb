"""Which owners the steps of bounding can change at all. They are few; the rows of others are spared the steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from dpsql.plan.nodes import Filter, Join, OfUnit, Plan, Project, Scan, SemiJoin, SetKind, SetOperation, nodes
from dpsql.plan.scalars import Correlated, Scalar, has_subquery, refs, walk
from dpsql.policy.model import Table
from dpsql.privacy.refine import conjuncts
from dpsql.privacy.rules.aggregates import Cells, Counted, Statistic
from dpsql.privacy.shapes import BERNSTEIN, PAIR, Shape, weighed


@dataclass(frozen=True, slots=True)
class Steps:
    """The statistics of one query, those that are clipped together in groups, and what bounds them."""

    statistics: Sequence[Statistic]
    groups: Sequence[Sequence[int]]
    cells: Cells
    norm: Literal["l1", "l2"]

    @property
    def most_rows(self) -> int | None:
        """So many rows of an owner may lie in any cells: no sum over rows is cut or clipped. None: any number.

        Claim: the sums of such an owner are within what per and clip enforce, which would leave them as they are (but
        for what the weights of a group are rounded up).
        Because: a row adds at most the size of its shape, so that neither a cell nor L1 nor L2, which is at most L1, is
        beyond the clip. Of the shapes of one value, what a row adds to all of them, each divided by its size, is at
        most one (`weighed`), and norms of sums are no more than sums of norms. Nothing is known of other groups: each
        of their sums is allowed an equal part.
        Needs: values on their grid.
        """
        return min((self._length(s) // (self._size(s) * s.factor * p) for s, p in self._of(Counted.ROWS)), default=None)

    @property
    def most_cells(self) -> int | None:
        """In so many cells an owner may lie: none is left out, and no count of units is clipped. None: in any number.

        Claim: limit and clip leave such an owner's ones as they are.
        Because: it has at most so many keys, and a one in each of them.
        Needs: nothing more.
        """
        found = [self.cells.groups] if self.cells.limited else []
        for statistic, parts in self._of(Counted.UNITS):
            squares = int(statistic.sensitivity.l2_squared) // (statistic.factor * parts) ** 2
            found.append(statistic.clip // (statistic.factor * parts) if self.norm == "l1" else squares)
        return min(found, default=None)

    @property
    def most_spared(self) -> int:
        """The most rows of an owner that may be added up without looking whose they are; 0: none."""
        if len(self._of(Counted.ROWS)) < len(self.statistics):
            return 1 if self.spare(1) else 0
        return min(most for most in (self.most_rows, self.most_cells) if most is not None)

    def spare(self, rows: int) -> bool:
        """Whether the rows of an owner who has at most so many may be added up without looking whose they are.

        Claim: the sums are those that the steps would leave.
        Because: no step changes them, and a count of units is a count of rows where each has but one.
        Needs: nothing more; `rows` rows lie in at most so many cells.
        """
        fit = [most is None or rows <= most for most in (self.most_rows, self.most_cells)]
        single = rows == 1 and not self._of(Counted.WEIGHTS)
        return all(fit) and (single or len(self._of(Counted.ROWS)) == len(self.statistics))

    def _length(self, statistic: Statistic) -> int:
        if self.norm == "l1":
            return statistic.clip
        return min(statistic.clip, math.isqrt(int(statistic.sensitivity.l2_squared)))

    def _size(self, statistic: Statistic) -> int:
        """What a row adds at most; around a centre, no further than the end that is further from it."""
        ends = (statistic.low, statistic.high)
        if statistic.shape is Shape.RESIDUAL:
            return max(*(abs(end - statistic.centre) for end in ends), 1)
        return max(weighed(statistic.shape, *ends, squares=self.norm == "l2"), 1)

    def _of(self, kind: Counted) -> list[tuple[Statistic, int]]:
        """The statistics of a kind, each with the number of equal parts that its group is shared out in."""
        found = []
        for group in self.groups:
            among = [self.statistics[i] for i in group]
            parts = 1 if _are_shapes_of_one_value(among) else len(among)
            found += [(statistic, parts) for statistic in among if statistic.kind is kind]
        return found


def _are_shapes_of_one_value(statistics: Sequence[Statistic]) -> bool:
    of = {(s.kind, s.value, s.where, s.low, s.high, s.factor) for s in statistics}
    shapes = [s.shape for s in statistics]
    return len(of) == 1 and len(set(shapes)) == len(shapes) and any(set(shapes) <= set(g) for g in (PAIR, BERNSTEIN))


def is_repeatable(plan: Plan, values: Sequence[Scalar]) -> bool:
    """Whether computing the relation and the values twice, in one statement, gives the same rows twice.

    Claim: the same rows, of the same owners, with the same values.
    Because: one statement sees one snapshot, and each row is computed from a few rows by itself. A sum of doubles
    depends on the order in which an engine happens to add them, so aggregates and windows are not among these.
    Needs: nothing volatile in a plan; there is no such scalar.
    """
    inner = [part.plan for value in values for part in walk(value) if isinstance(part, Correlated)]
    return all(_is_by_row(node) for each in (plan, *inner) for node in nodes(each))


def _is_by_row(node: Plan) -> bool:
    if isinstance(node, SetOperation):
        return node.kind is SetKind.UNION_ALL
    return isinstance(node, Scan | Filter | Project | Join | SemiJoin | OfUnit)


def is_one_table(plan: Plan, *, copies: bool) -> bool:
    """Whether a relation is one table, read without others: cheap to read twice."""
    return all(isinstance(node, Filter | Project) or _is_plain_scan(node, copies=copies) for node in nodes(plan))


def _is_plain_scan(node: Plan, *, copies: bool) -> bool:
    return isinstance(node, Scan) and (not node.table.path or (copies and node.table.copy is not None))


def one_table_within(plan: Plan, table: Table) -> Plan | None:
    """The table, of which every owner has at least as many rows as in the plan, under what conditions are on it alone.

    Claim: every owner still has at least as many rows.
    Because: each row of the plan is made of a row of the table of its own (`Stability.within`), and meets the
    conditions that stand above it. No join on the way leaves the table's columns empty where it has no row.
    Needs: a table that the plan reads once, outside of subqueries; conditions without subqueries.
    """
    conditions: list[Scalar] = []
    below = plan
    while not isinstance(below, Scan):
        match below:
            case Filter(child=child, predicate=predicate):
                conditions += conjuncts(predicate)
                below = child
            case Project(child=child) | SemiJoin(child=child):
                below = child
            case Join(left=left, right=right):
                sides = [side for side in (left, right) if _reads(side, table)]
                if len(sides) != 1:
                    return None
                (below,) = sides
            case _:
                return None
    if below.table is not table:
        return None
    here = {field.id for field in below.fields}
    alone = [c for c in conditions if not has_subquery(c) and {ref.field.id for ref in refs(c)} <= here]
    found: Plan = below
    for condition in reversed(alone):
        found = Filter(found, condition)
    return found


def _reads(plan: Plan, table: Table) -> bool:
    return any(isinstance(node, Scan) and node.table is table for node in nodes(plan))
