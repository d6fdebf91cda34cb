"""Loose clips: the measurements that choose closer ones, and what was asked with those that were chosen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from dpsql.errors import Error
from dpsql.plan.inspect import stages_of
from dpsql.plan.nodes import Join, Plan, nodes
from dpsql.plan.scalars import Scalar
from dpsql.privacy.derive import derive
from dpsql.privacy.rules import aggregates as rules
from dpsql.privacy.rules.aggregates import Cells, Statistic
from dpsql.privacy.unfiltered import unfiltered
from dpsql.release.drafts import Compilation, Draft, writer_of


def searched(
    compilation: Compilation, child: Plan, statistics: tuple[Statistic, ...], groups: tuple[tuple[int, ...], ...]
) -> tuple[tuple[int, int], ...]:
    """For each sum with a loose clip, the measurement that chooses one: on the column and path, without WHERE."""
    found = []
    for place, statistic in enumerate(statistics):
        if not statistic.loose or (place,) not in groups:
            continue
        if (search := _search(compilation, unfiltered(child), statistic.value)) is not None:
            found.append((place, search))
    return tuple(found)


def _search(compilation: Compilation, child: Plan, value: Scalar | None) -> int | None:
    if list(stages_of(child, [] if value is None else [value])):
        return None  # another question at each value of the stage
    if any(isinstance(node, Join) and node.condition is None for node in nodes(child)):
        return None  # without its conditions, every row would meet every other
    try:
        derivation = derive(child, compilation.catalog.max_cells)
        statistics = (rules.clip_search(derivation.conclusion, value),)
    except Error:
        return None  # some conditions carry what makes a relation one of units, or its bounds
    bound, groups = Cells(False, 1, False), ((0,),)
    write = writer_of(child, (), groups, bound, derivation.conclusion, compilation.norm, compilation.dialect)
    branches = write(statistics)
    draft = Draft(
        (),
        ((),),
        bound,
        statistics,
        groups,
        (),
        (),
        None,
        branches,
        (),
        derivation,
        None,
        (),
        (),
        None,
        None,
        write,
    )
    index, is_new = compilation.place(draft)
    if is_new:
        compilation.note("what a unit adds beyond a chosen clip is cut off; margins are of the noise alone")
    return index


def settled(compilation: Compilation, draft: Draft, chosen: Mapping[int, int]) -> Draft:
    """The draft with the clips that were chosen by now."""
    known = [(place, search) for place, search in draft.clips if search in chosen]
    if not known:
        return draft
    statistics = list(draft.statistics)
    for place, search in known:
        (asked,) = compilation.drafts[search].statistics
        most = rules.clips(asked)[chosen[search]] * asked.step
        statistics[place] = rules.clipped_at(statistics[place], most)
    return replace(draft, statistics=tuple(statistics), branches=draft.write(statistics))
