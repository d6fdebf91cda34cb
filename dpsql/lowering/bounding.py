"""The SQL of a measurement: values, added up per owner, limited, weighed, clipped, then summed. Integers throughout.

    row_values  keys and grid values of each row
    per_owner   GROUP BY owner, keys: integer sums of clamped values
    limited     at most L0 keys per owner, by a keyed hash over the owner's own keys
    weighed     what selects unknown keys: the more keys an owner has, the less it weighs in each
    clipped     each owner's vector scaled down to its norm, toward zero
    outer       GROUP BY keys: integer sums

A query for the engine has these steps, under these names (`steps`), and what leads to them. The value at a rank is
chosen from a histogram: the same steps, with the value on its grid as one more key (`histograms`).

Where the engine guarantees one row per owner, per_owner, limited and clipped would do nothing and are left out. They do
nothing either for an owner with no more rows than declared, or whose rows add up to no more than the clip: only the
others, who are few, go through all of them (`bounded_sums`).

A prepared copy has beside each row how many its owner has, so that the two kinds of owners are told apart by a filter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from dpsql.lowering import histograms
from dpsql.lowering.bounded_sums import Written, bounded_sums
from dpsql.lowering.clip import Clip
from dpsql.lowering.dialect import Dialect
from dpsql.lowering.fast_paths import Key
from dpsql.lowering.query import EngineQuery
from dpsql.lowering.row_values import Rows
from dpsql.lowering.select import rendered
from dpsql.plan.nodes import Plan, Scan, nodes
from dpsql.plan.scalars import Correlated, walk
from dpsql.policy.model import Table
from dpsql.privacy.rules.aggregates import CHOSEN, Cells, Statistic, StatisticKind

# What one query adds up for each owner and key.
_PLAIN = (StatisticKind.ROWS, StatisticKind.UNITS, StatisticKind.WEIGHTS)


@dataclass(frozen=True, slots=True)
class Branch:
    """One engine query and the statistics its sums belong to; a histogram is one sum, for all of its statistics."""

    query: EngineQuery
    statistics: tuple[int, ...]
    way: str = ""  # how prepared copies are used, where there are any, for EXPLAIN


def bounded_queries(
    plan: Plan,
    keys: Sequence[Key],
    statistics: Sequence[Statistic],
    groups: Sequence[Sequence[int]],
    cells: Cells,
    *,
    rows: int,
    single: bool,
    norm: Literal["l1", "l2"],
    dialect: Dialect,
    within: Table | None = None,
    chosen: Cells | None = None,
) -> tuple[Branch, ...]:
    """The engine's queries of one measurement: one for all sums over rows, one for each DISTINCT and each histogram.

    `within` is a table of which every owner has at least as many rows as in the plan. `chosen` are the cells of counts
    of units, where keys are chosen by one of them: these are not clipped, and so they are apart from other sums.
    """
    branches = []
    tables = _tables(plan, keys, statistics)
    copied = any(table.copy is not None for table in tables)

    def of_query() -> Rows:
        """What each query reads; each has names and parameters of its own."""
        return Rows.of(plan, keys, dialect, within)

    def branch(of: Rows, written: Written, width: int, answers: Sequence[int]) -> Branch:
        way = written.way or "every unit is bounded as the query runs"
        return Branch(_query(of, written, width, tables), tuple(answers), way if copied else "")

    plain = [i for i, statistic in enumerate(statistics) if statistic.kind in _PLAIN]
    units = [i for i in plain if chosen is not None and statistics[i].kind is StatisticKind.UNITS]
    for some, limit in ((units, chosen or cells), ([i for i in plain if i not in units], cells)):
        if some:
            together = [[some.index(i) for i in group] for group in groups if group[0] in some]
            most = limit.groups if limit.limited else _declared_cells(keys)
            clip = Clip([statistics[i] for i in some], together, norm, cells=most, exclusive=rows == 1)
            of = of_query()
            written = bounded_sums(of, clip, limit, declared_rows=rows, single=single)
            branches.append(branch(of, written, len(keys), some))
    bars: dict[Statistic, list[int]] = {}
    for i, statistic in enumerate(statistics):
        of = of_query()
        if statistic.kind in CHOSEN:
            bars.setdefault(replace(statistic, rank=None), []).append(i)  # several ranks, one histogram
        elif statistic.kind is StatisticKind.CLIP:
            known = all(key.keys is not None for key in keys)
            most_cells = _declared_cells(keys) if known else None
            branches.append(branch(of, histograms.contributions(of, statistic, rows, norm, most_cells), 1, [i]))
        elif statistic.kind is StatisticKind.CENTRE:
            branches.append(branch(of, histograms.means(of, statistic), 1, [i]))
        elif i not in plain:
            branches.append(branch(of, histograms.distinct(of, statistic, rows, single=single), len(keys), [i]))
    for statistic, ranks in bars.items():
        of = of_query()
        branches.append(branch(of, histograms.histogram(of, statistic, rows, single=single), len(keys) + 1, ranks))
    return tuple(branches)


def _query(of: Rows, written: Written, width: int, tables: Sequence[Table]) -> EngineQuery:
    steps = written.pipeline.steps
    text = rendered(steps, of.dialect)
    return EngineQuery(text, width, sources=_sources(tables), names=of.writer.parameters, steps=steps)


def _tables(plan: Plan, keys: Sequence[Key], statistics: Sequence[Statistic]) -> list[Table]:
    """Every table that is named: also those of subqueries in expressions."""
    values = [key.value for key in keys]
    for statistic in statistics:
        values += [part for part in (statistic.value, statistic.where) if part is not None]
    plans = [plan, *(part.plan for value in values for part in walk(value) if isinstance(part, Correlated))]
    return [node.table for each in plans for node in nodes(each) if isinstance(node, Scan)]


def _sources(tables: Sequence[Table]) -> tuple[tuple[str, ...], ...]:
    """Every table of the database that the queries read: copies, else also those on the way to an owner."""
    found = {table.read_from for table in tables}
    found |= {step.source for table in tables if table.copy is None for step in table.path}
    return tuple(sorted(found))


def _declared_cells(keys: Sequence[Key]) -> int:
    """How many cells there are, where all keys are declared."""
    return math.prod(max(len(key.keys or ()) + key.remainder, 1) for key in keys)
