"""Rows of one unit in different cells, where the keys are columns of the public rows that a row joins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction

from dpsql.plan.nodes import Filter, Join, JoinKind, Plan, Project, SemiJoin
from dpsql.plan.scalars import Scalar, refs
from dpsql.privacy.derive import is_private
from dpsql.privacy.refine import conjuncts
from dpsql.privacy.rules.joins import public_met

Keys = Callable[[], Sequence[Scalar]]  # as `Origins` expands them, which is not always needed


def rows_in_one_cell(plan: Plan, keys: Keys, rows: int) -> int | None:
    """How many of a unit's `rows` rows may have the same keys; None: all of them.

    Claim: a unit within the declared limits has no more of its rows in one cell.
    Because: of the public rows that a private row joins, those with the same keys are counted; the others are in other
    cells. Through several joins the counts multiply, as the rows do.
    Needs: nothing for privacy: it only chooses the clip, and sensitivities follow from the clip.
    """
    share = _share(plan, keys)
    return None if share == 1 else max(int(rows * share), 1)


def _share(plan: Plan, keys: Keys) -> Fraction:
    match plan:
        case Filter(child=child) | Project(child=child) | SemiJoin(child=child):
            return _share(child, keys)
        case Join(left=left, right=right, kind=kind) if is_private(left) and is_private(right):
            return _share(left, keys) * _share(right, keys) if kind is JoinKind.INNER else Fraction(1)
        case Join(left=left, right=right, condition=condition):
            private, public = (left, right) if is_private(left) else (right, left)
            conditions = [] if condition is None else list(conjuncts(condition))
            whole = public_met(public, conditions).most
            if whole is None or whole == 1:
                return _share(private, keys)
            here = {field.id for field in public.fields}
            apart = [key for key in keys() if (read := {ref.field.id for ref in refs(key)}) and read <= here]
            part = public_met(public, conditions, apart).most or whole
            return Fraction(part, whole) * _share(private, keys)
        case _:
            return Fraction(1)
