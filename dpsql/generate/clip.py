"""How far an owner's sums are scaled down: norms in whole numbers, of one statistic or of several together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from dpsql.privacy.rules.aggregates import Statistic

# Norms of several statistics are counted in no finer parts.
FINEST_NORM = 2**54
# So many times its clip an owner's sum in one cell may be, where a norm of several sums bounds it.
MOST_ROOM = 64
# Nor in so fine ones that the squares of all cells would add up to this, rounding aside: 128 bits hold twice as much.
LARGEST_NORM = 2**126


@dataclass(frozen=True, slots=True)
class Scale:
    """A norm in whole numbers: entries times their weights are measured against `whole`, their norm against `bound`."""

    whole: int
    bound: int  # `whole`, or its square where squares are added
    weights: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Clip:
    """What is clipped: statistics in groups, each group in one norm."""

    statistics: Sequence[Statistic]
    groups: Sequence[Sequence[int]]
    norm: Literal["l1", "l2"]
    cells: int = 1  # in which an owner may lie, however many rows it has; it matters for groups of several
    exclusive: bool = False  # an owner has one row, so what it adds to is one condition of a group

    @property
    def is_joint(self) -> bool:
        return any(len(group) > 1 for group in self.groups)

    def scale(self, group: Sequence[int]) -> Scale:
        """Weights that make the clips of a group one: exact where a common multiple is small, else rounded up."""
        if len(group) == 1:
            (only,) = (self.statistics[i] for i in group)
            bound = only.clip if self.norm == "l1" else int(only.sensitivity.l2_squared)
            return Scale(bound if self.norm == "l1" else math.isqrt(bound), bound, (1,))
        clips = [self.statistics[i].clip for i in group]
        whole = min(math.lcm(*clips), self._finest(group))
        return Scale(whole, whole if self.norm == "l1" else whole**2, tuple(-(-whole // clip) for clip in clips))

    def _finest(self, group: Sequence[int]) -> int:
        """Of how many parts a norm of several statistics may be, so that the squares of all cells can be added up."""
        return min(FINEST_NORM, math.isqrt(LARGEST_NORM // (self.cells * len(group))))

    @property
    def before(self) -> list[Statistic]:
        """The statistics with the clips that an owner's sums in one cell are cut to, before its vector is clipped.

        Claim: no sensitivity is larger for it, and no number grows beyond what `bounding._clipped` needs.
        Because: sums of one group are scaled down together whatever they are, and that alone bounds them. Cut one by
        one before, those of an owner with too many rows would lose unlike parts, and what is made of them be biased.
        The room is such that weights times entries stay below the finest norm, as without room.
        Needs: every group of several statistics is clipped in its norm.
        """
        found = list(self.statistics)
        for group in self.groups:
            if len(group) > 1:
                room = max(min(self._finest(group) // self.scale(group).whole, MOST_ROOM), 1)
                for i in group:
                    found[i] = replace(found[i], clip=room * found[i].clip)
        return found
