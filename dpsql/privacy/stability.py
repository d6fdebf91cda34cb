"""How far one privacy unit can move a relation or an answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

from dpsql.policy.model import Table
from dpsql.privacy.bounds import Facts


@dataclass(frozen=True, slots=True)
class Stability:
    """A relation in which every row belongs to exactly one unit and depends on that unit's rows alone.

    `rows` is the number of rows of one unit that count; the clip enforces it. `single` means that the engine itself, or
    the plan, guarantees at most one row per unit, so that a clip would have no effect and may be left out.
    """

    rows: int
    single: bool
    facts: Facts = field(repr=False, hash=False, compare=False)
    groups: int | None = None  # declared max_groups_per_unit
    # Sets of columns that are unique among the rows of one unit, except for NULL: by the engine or by the plan.
    unique: frozenset[frozenset[int]] = frozenset()
    fixed: frozenset[int] = frozenset()  # columns with the same value in all rows of a unit
    numbered: frozenset[int] = frozenset()  # columns that number the rows of each unit: 1, 2, 3 …
    tight: bool | None = None  # whether units come near `rows`, as far as the policy says
    # A table in which every unit has at least as many rows as here.
    within: Table | None = None
    # The number of bits by which the grids of sums without a declared step are coarser, for the wide noise of low
    # prices.
    coarser: int = 0


def both_tight(left: bool | None, right: bool | None) -> bool | None:
    """For a relation of two sides: tight where both are, loose where one is."""
    return left if left == right else (False if False in (left, right) else None)


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """How far adding or removing one unit moves a vector of integers: cells touched, and norms of the change.

    l1 holds where the vector is clipped in L1 (Laplace), l2 where it is clipped in L2 (Gaussian); both hold where one
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
    cut: str | None = None  # a public table of which a private row may join more rows than count
    unowned: str | None = None  # of a scan: the rows without an owner
