"""Loose clips: the measurements that choose closer ones, and the centres that sums are counted from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial

from dpsql.errors import Error
from dpsql.lowering.bounding import bounded_queries
from dpsql.lowering.fast_paths import Key
from dpsql.plan.nodes import Join, Plan, nodes
from dpsql.plan.scalars import Scalar
from dpsql.plan.visit import stages_of
from dpsql.privacy.estimators.basis import Shape
from dpsql.privacy.keys.domains import domain
from dpsql.privacy.mechanisms.bound_search import BoundSearch
from dpsql.privacy.normalize.joins import unfiltered
from dpsql.privacy.rules import aggregates as rules
from dpsql.privacy.rules.aggregates import Cells, Statistic
from dpsql.privacy.stability import Stability
from dpsql.release.drafts import Compilation, Draft
from dpsql.release.identity import asked_of_rows

_CLIP, _CENTRE = BoundSearch("clip"), BoundSearch("centre")
_NOTE = "what a unit adds beyond a chosen clip is cut off; margins are of the noise alone"


@dataclass(frozen=True, slots=True)
class BoundSearches:
    """The searches of one relation: each on column, path and keys, without WHERE, so that later queries share it."""

    compilation: Compilation
    child: Plan
    keys: tuple[Scalar, ...]  # of the cells that sums are made of

    # --- centres, for the assembly ---

    def may(self, value: Scalar) -> bool:
        return self._centre(value) is not None and self._residuals(value, 0, None) is not None

    def of(self, value: Scalar) -> Fraction | None:
        return self._centre_of(value)[1]

    def _centre_of(self, value: Scalar) -> tuple[int, Fraction | None]:
        """The measurement that chooses the centre of a value, and what it chose."""
        draft = self._centre(value)
        assert draft is not None
        index = self._placed(draft)
        place = self.compilation.chosen.get(index)
        return index, None if place is None else rules.centre_at(draft.statistics[0], place)

    def _centre(self, value: Scalar) -> Draft | None:
        return self._draft(value, lambda child: rules.centre_search(child, value), _CENTRE)

    # --- clips ---

    def clips(self, statistics: tuple[Statistic, ...]) -> tuple[tuple[int, int], ...]:
        """For each sum with a loose clip, the measurements that choose how it is measured."""
        found = []
        for place, statistic in enumerate(statistics):
            if statistic.loose:
                found += [(place, search) for search in self._of(statistic)]
        return tuple(found)

    def _of(self, statistic: Statistic) -> list[int]:
        value = statistic.value
        if statistic.shape is Shape.RESIDUAL:
            assert value is not None
            index, centre = self._centre_of(value)
            draft = self._residuals(value, index, centre)
            assert draft is not None
            return [index, self._placed(draft)]
        whole = self._draft(value, lambda child: rules.clip_search(child, value), _CLIP, self._keys_of(statistic))
        return [] if whole is None else [self._placed(whole)]

    def _keys_of(self, statistic: Statistic) -> tuple[Scalar, ...]:
        """The keys where they matter: magnitudes of one sign add up to the same, in whatever cells they are."""
        adds_up = self.compilation.norm == "l1" and (statistic.low >= 0 or statistic.high <= 0)
        return () if adds_up else self.keys

    def _residuals(self, value: Scalar, index: int, centre: Fraction | None) -> Draft | None:
        """The search of the clip of differences from a centre, which is chosen before."""
        squares = self.compilation.norm == "l2"
        search = partial(rules.residual_search, value=value, centre=centre, squares=squares)
        draft = self._draft(value, search, _CLIP, self.keys)
        return None if draft is None else replace(draft, clips=((0, index),))

    def settled(self, statistics: tuple[Statistic, ...], clips: tuple[tuple[int, int], ...]) -> tuple[Statistic, ...]:
        """The sums with the clips that were chosen by now."""
        found = list(statistics)
        for place, search in clips:
            draft = self.compilation.drafts[search]
            (asked,) = draft.statistics
            if draft.mechanism == _CLIP and search in self.compilation.chosen:
                most = rules.clips(asked)[self.compilation.chosen[search]] * asked.step
                found[place] = rules.clipped_at(found[place], most)
        return tuple(found)

    def _placed(self, draft: Draft) -> int:
        index, _ = self.compilation.add(draft)
        self.compilation.note(_NOTE)
        return index

    def _draft(
        self,
        value: Scalar | None,
        search: Callable[[Stability], Statistic | None],
        mechanism: BoundSearch,
        keys: tuple[Scalar, ...] = (),
    ) -> Draft | None:
        child = unfiltered(self.child)
        if list(stages_of(child, [*keys, *([] if value is None else [value])])):
            return None  # another question at each value of the stage
        if any(isinstance(node, Join) and node.condition is None for node in nodes(child)):
            return None  # without its conditions, every row would meet every other
        try:
            derivation = self.compilation.derived(child)
            statistic = search(derivation.conclusion)
        except Error:
            return None  # some conditions carry what makes a relation one of units, or its bounds
        if statistic is None:
            return None
        bound, groups = Cells(False, 1, False), ((0,),)
        facts, most = derivation.conclusion.facts, self.compilation.catalog.max_cells
        known = [Key(key, domain(key, facts, most)) for key in keys]
        branches = bounded_queries(
            child,
            known,
            (statistic,),
            groups,
            bound,
            rows=derivation.conclusion.rows,
            single=derivation.conclusion.single,
            norm=self.compilation.norm,
            dialect=self.compilation.dialect,
        )
        asked = asked_of_rows(
            child,
            known,
            (statistic,),
            groups,
            bound,
            most=derivation.conclusion.rows,
            norm=self.compilation.norm,
            dialect=self.compilation.dialect.name,
            chosen=None,
            stages=(),
        )
        return Draft(
            keys=(),
            cells=((),),
            bound=bound,
            statistics=(statistic,),
            groups=groups,
            weights=(),
            counts=(),
            mechanism=mechanism,
            branches=branches,
            stages=(),
            derivation=derivation,
            asked=asked,
        )
