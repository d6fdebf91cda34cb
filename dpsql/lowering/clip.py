"""How far an owner's sums are scaled down: norms in whole numbers, of one statistic or of several together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from dpsql.plan.scalars import both
from dpsql.privacy.estimators.basis import Shape
from dpsql.privacy.rules.aggregates import Statistic, StatisticKind, not_null

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
        """Whether an owner's sums in one cell are not only cut one by one."""
        return any(len(group) > 1 for group in self.groups) or bool(self.leaders)

    @property
    def leaders(self) -> dict[int, int]:
        """Differences from a centre, and the count of the same rows: these are scaled down at least as far as it is.

        An owner with more rows than count has them all counted for less. So must be what is added up of them, or means
        that are made of both would lean toward such owners, or away from them.
        """
        alone = {group[0]: self.statistics[group[0]] for group in self.groups if len(group) == 1}
        counts = {s.where: i for i, s in alone.items() if s.kind is StatisticKind.ROWS and s.value is None}
        found: dict[int, int] = {}
        for i, statistic in alone.items():
            if statistic.shape is Shape.RESIDUAL and statistic.value is not None:
                known = both(statistic.where, not_null(statistic.value))
                leader = counts.get(statistic.where, counts.get(known))
                if leader is not None:
                    found[i] = leader
        return found

    @property
    def with_room(self) -> set[int]:
        """Sums that are not cut to their clips before they are scaled down to them."""
        leaders = self.leaders
        return {*leaders, *leaders.values(), *(i for group in self.groups if len(group) > 1 for i in group)}

    def norms_of(self, i: int) -> list[int]:
        """The groups whose norms say how far a sum is scaled down: its own, and that of the count it follows."""
        followed = [i] if (leader := self.leaders.get(i)) is None else [i, leader]
        return [next(g for g, group in enumerate(self.groups) if each in group) for each in followed]

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
        return finest(self.cells * len(group))

    @property
    def before(self) -> list[Statistic]:
        """The statistics with the clips that an owner's sums in one cell are cut to, before its vector is clipped.

        Claim: no sensitivity is larger for it, and no number grows beyond what `steps.clipped` needs.
        Because: sums of one group are scaled down together whatever they are, and that alone bounds them. Cut one by
        one before, those of an owner with too many rows would lose unlike parts, and what is made of them be biased.
        The room is such that weights times entries stay below the finest norm, as without room. Sums that are scaled
        down with a count of their rows have room for the same reason, and are clipped whatever they are.
        Needs: every group of several statistics is clipped in its norm, and all that lead or follow.
        """
        found = list(self.statistics)
        for i in self.with_room:
            group = self.groups[self.norms_of(i)[0]]
            room = max(min(self._finest(group) // self.scale(group).whole, MOST_ROOM), 1)
            found[i] = replace(found[i], clip=room * found[i].clip)
        return found


def finest(numbers: int) -> int:
    """So large may each of so many numbers be that their squares can be added up."""
    return min(FINEST_NORM, math.isqrt(LARGEST_NORM // numbers))
