"""How far one privacy unit can move a relation or an answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

from dpsql.policy.model import Table
from dpsql.privacy.bounds import Facts


@dataclass(frozen=True, slots=True)
class Stability:
    """A relation in which every row belongs to exactly one unit and depends on that unit's rows alone.

    `rows` is how many rows of one unit count; the clip enforces it. `single` says that the engine itself, or the
    plan, guarantees at most one row per unit, so that a clip would do nothing and may be left out.
    """

    rows: int
    single: bool
    facts: Facts = field(repr=False, hash=False, compare=False)
    groups: int | None = None  # declared max_groups_per_unit
    # Sets of columns in which no two rows of one unit agree, NULL aside: the engine enforces it, or the plan does.
    unique: frozenset[frozenset[int]] = frozenset()
    fixed: frozenset[int] = frozenset()  # columns that show the same in all rows of a unit
    numbered: frozenset[int] = frozenset()  # columns that number the rows of each unit: 1, 2, 3 …
    tight: bool | None = None  # whether units come near `rows`, as far as the policy says
    # A table of which every unit has at least as many rows as here.
    within: Table | None = None
    # By so many bits the grids of sums without a declared step are coarser, for the wide noise of low prices.
    coarser: int = 0


def both_tight(left: bool | None, right: bool | None) -> bool | None:
    """Of rows of two sides: tight where both are, loose where one is."""
    return left if left == right else (False if False in (left, right) else None)


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """How far adding or removing one unit moves a vector of integers: cells touched, and norms of the change.

    l1 holds where the vector is clipped in that norm (Laplace) and l2 where in that one (Gaussian); both hold where one
    cell is touched. `l0` is None where nothing but the clip bounds the vector.
    """

    l0: int | None
    linf: Fraction
    l1: Fraction
    l2_squared: Fraction


@dataclass(frozen=True, slots=True)
class Derivation:
    """Which rule was applied to which premises, and what it concluded. Printed by EXPLAIN."""

    rule: str
    conclusion: Stability
    premises: tuple[Derivation, ...] = ()
    note: str = ""
    cut: str | None = None  # a public table whose rows may be cut off, for nobody knows how many a private row meets
    unowned: str | None = None  # of a scan: which rows belong to nobody
