"""Sums over rows and counts of units: which of the steps each owner's rows must go through.

The steps change nothing of an owner with no more rows than declared, or whose rows add up to no more than the clip. So
wherever such owners can be told from others at little cost, their rows are added up as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dpsql.lowering import steps
from dpsql.lowering.clip import Clip
from dpsql.lowering.fast_paths import Steps, is_one_table, is_repeatable, one_table_within
from dpsql.lowering.relations import OWNER
from dpsql.lowering.row_values import Rows, row_values
from dpsql.lowering.select import Pipeline, Select, UnionAll
from dpsql.lowering.sums import added_up, counts_rows, reads_stored, sum_columns, total_of_rows
from dpsql.plan.nodes import Plan
from dpsql.privacy.rules.aggregates import Cells, Statistic, StatisticKind

NOTHING = Pipeline()


@dataclass(frozen=True, slots=True)
class Written:
    """All steps of an engine query, and how a prepared copy is used, where it is."""

    pipeline: Pipeline
    way: str = ""


def way_of_few(rows: Rows, count: int) -> str:
    assert rows.counted is not None
    few = "1 row" if count == 1 else f"{count:,} rows"
    return f"units with at most {few} in {rows.counted.name} are added up as they are"


def bounded_sums(rows: Rows, clip: Clip, cells: Cells, *, declared_rows: int, single: bool) -> Written:
    """The sums of one query, in the way that reads and sorts least."""
    statistics, effect, way = clip.statistics, _effect(clip, cells), ""
    stepped = not cells.keyed or any(statistic.cut for statistic in statistics)
    if single:
        return Written(_sums_of_single_rows(rows, statistics))
    if cells.among:
        # One in each cell is all that a unit adds, and cells are chosen later: nothing is left out or scaled.
        pipeline = steps.per_owner(rows, row_values(rows, NOTHING, statistics), clip)
    elif rows.counted is not None and (stepped or effect.spare(declared_rows)) and effect.most_spared:
        pipeline, way = in_two_parts(rows, clip, cells, effect.most_spared), way_of_few(rows, effect.most_spared)
    elif not cells.keyed and len(statistics) == 1 and statistics[0].kind is StatisticKind.UNITS:
        return Written(_count_of_owners(rows, statistics[0]))
    elif _is_spared(rows, clip, cells, declared_rows) and (counted := _quick_to_count(rows)) is not None:
        pipeline = in_two_passes(rows, with_many_rows(rows, counted, declared_rows), clip, cells)
    elif _is_clipped_alone(rows, clip, cells):
        pipeline = in_two_passes(rows, with_large_sums(rows, clip), clip, cells)
    elif stepped:
        pipeline = row_values(rows, NOTHING, statistics)
        pipeline = bounded(rows, steps.per_owner(rows, pipeline, clip), clip, cells, everybody=True)
    elif _is_spared(rows, clip, cells, declared_rows) and not cells.selected and rows.dialect.grouping_sets:
        pipeline = in_one_pass(rows, clip, cells, declared_rows)
    else:
        pipeline = by_pairs(rows, clip, cells)
    return Written(_outer_sums(rows, pipeline, statistics), way)


def _outer_sums(rows: Rows, pipeline: Pipeline, statistics: Sequence[Statistic]) -> Pipeline:
    return steps.outer(rows, pipeline, [steps.total(rows, column) for column in sum_columns(statistics)])


def _sums_of_single_rows(rows: Rows, statistics: Sequence[Statistic]) -> Pipeline:
    """Where the engine guarantees one row per owner there is nothing to bound."""
    if reads_stored(rows, statistics):
        return _outer_sums(rows, added_up(rows, NOTHING, statistics), statistics)
    totals = []
    for i, statistic in enumerate(statistics):
        counted = "COUNT(*)" if statistic.factor == 1 else f"COUNT(*) * {statistic.factor}"
        totals.append(counted if counts_rows(statistic) else steps.total(rows, f"v{i}", statistic.factor))
    return steps.outer(rows, row_values(rows, NOTHING, statistics), totals)


def _count_of_owners(rows: Rows, statistic: Statistic) -> Pipeline:
    """How many owners have a row that counts.

    Claim: what per_owner leaves of all owners: of each a one, or nothing.
    Because: all is one cell, where an owner with a row that counts has one, however many these are.
    Needs: nothing more: there is no other sum to be clipped with.
    """
    counted = f"COUNT(DISTINCT CASE WHEN v0 > 0 THEN {OWNER} END)"
    if statistic.where is None:
        counted = f"COUNT(DISTINCT {OWNER})"
    factor = f" * {statistic.factor}" if statistic.factor > 1 else ""
    return steps.outer(rows, row_values(rows, NOTHING, [statistic]), [f"{counted}{factor}"])


def bounded(rows: Rows, pipeline: Pipeline, clip: Clip, cells: Cells, *, everybody: bool = False) -> Pipeline:
    """What limit, weigh and clip leave of each owner and cell of the step before, of large owners or of all."""
    if cells.keyed and cells.limited:
        limited = steps.limited_if_many if everybody else steps.limited
        pipeline = limited(rows, pipeline, sum_columns(clip.statistics), cells.groups)
        pipeline = steps.weighed(rows, pipeline, clip)
    if cells.keyed and not (cells.limited and cells.groups == 1):
        return steps.clipped(rows, pipeline, clip, cells)
    return steps.clipped_in_one_cell(rows, pipeline, clip) if clip.is_joint else pipeline


# ------------------------------------------------------------
# Ways to leave out the steps for owners of whom they change nothing.


def in_two_parts(rows: Rows, clip: Clip, cells: Cells, most: int) -> Pipeline:
    """The rows of owners who have at most so many in a prepared copy, as they are; those of others by the steps.

    Claim: what per_owner, limit and clip leave of all owners.
    Because: they change nothing of an owner with at most `most` rows (`Steps.most_spared`), and no owner has more
    rows here than in the table. Each owner is in one of the parts, with all rows (`RelationWriter._in_part`).
    Needs: nothing more: no row is read twice.
    """
    assert rows.counted is not None
    pipeline = added_up(rows.with_at_most(most), NOTHING, clip.statistics)
    few, many = pipeline.last, rows.with_more_than(most)
    if not is_one_table(rows.plan):
        # Of the other tables, too, only rows of these owners are read.
        owners = rows.writer.owners_with(rows.counted, f"> {most}")
        pipeline = pipeline.then("large_owners", Select((OWNER,), f"({owners}) AS t"), once=True)
        many = many.among(pipeline.last)
    pipeline = steps.per_owner(many, row_values(many, pipeline, clip.statistics), clip)
    return _together(rows, few, bounded(many, pipeline, clip, cells), clip)


def in_two_passes(rows: Rows, large: Pipeline, clip: Clip, cells: Cells) -> Pipeline:
    """Large owners are found first; then the rows of all others are added up as they are.

    Claim: what per_owner, limit and clip leave of all owners.
    Because: they change nothing of an owner that is not among the large ones. Each owner is in one of the parts,
    with all rows.
    Needs: rows that come out the same twice (`is_repeatable`).
    """
    owners = large.last
    pipeline = added_up(rows, large.computed_once(), clip.statistics, steps.not_owned_by(rows, owners))
    others, of_large = pipeline.last, rows.among(owners)
    pipeline = steps.per_owner(of_large, row_values(of_large, pipeline, clip.statistics), clip)
    return _together(rows, others, bounded(of_large, pipeline, clip, cells), clip)


def with_many_rows(rows: Rows, counted: Plan, most: int) -> Pipeline:
    """Owners with more rows than declared.

    Claim: the steps change nothing of the others.
    Because: they have at most `most` rows (`Steps.spare`), whatever keys these have; for an owner has no more rows
    in the plan than in what is counted.
    Needs: nothing more.
    """
    everyone = f"({rows.writer.relation(counted, ())}) AS t"
    return NOTHING.then("large_owners", Select((OWNER,), everyone, group_by=(OWNER,), having=(f"COUNT(*) > {most}",)))


def with_large_sums(rows: Rows, clip: Clip) -> Pipeline:
    """Owners the magnitudes of whose rows add up to more than a clip.

    Claim: per_owner and clip change nothing of the others.
    Because: no norm of sums over cells, L1 or L2, is more than the sum of all magnitudes; and where the norm of a
    group is within its clip, so is each of its sums.
    Needs: sums that are cut before they are weighed, so that 128 bits hold them, and just above the clip, so that
    one that is beyond it stays beyond.
    """
    totals = [
        "COUNT(*)" if counts_rows(statistic) else f"COALESCE({rows.dialect.sum_of(f'ABS(v{i})')}, 0)"
        for i, statistic in enumerate(clip.statistics)
    ]
    conditions = []
    for group in clip.groups:
        scale = clip.scale(group)
        times = [w * clip.statistics[i].factor for i, w in zip(group, scale.weights, strict=True)]
        if len(group) == 1:
            conditions.append(f"{totals[group[0]]} > {scale.whole // times[0]}")
            continue
        cut = [f"LEAST(CAST({totals[i]} AS {rows.dialect.wide}), {scale.whole + 1})" for i in group]
        weighed = [f"{total} * {weight}" for total, weight in zip(cut, times, strict=True)]
        conditions.append(f"{' + '.join(weighed)} > {scale.whole}")
    pipeline = row_values(rows, NOTHING, clip.statistics)
    found = Select((OWNER,), pipeline.last, group_by=(OWNER,), having=tuple(conditions))
    return pipeline.then("large_owners", found)


def in_one_pass(rows: Rows, clip: Clip, cells: Cells, most: int) -> Pipeline:
    """All rows are added up as they are; the sums of large owners are taken off, and what the steps leave is added.

    Claim: what per_owner, limit and clip leave of all owners; a declared key may come with zeros instead of not at
    all.
    Because: as for two passes. What is taken off is what was added: exact integers of the same rows.
    Needs: rows that come out the same twice (`is_repeatable`); cells that are all declared, for a cell that comes
    with zeros must not tell. That each key has its values is not enough: all together they may be too many, and
    a threshold selects among the cells that come.
    """
    statistics = clip.statistics
    raw = [total_of_rows(rows, i, statistic) for i, statistic in enumerate(statistics)]
    pipeline = row_values(rows, NOTHING, statistics)
    columns = (*rows.pair, f"GROUPING({OWNER}) AS of_all", "COUNT(*) AS row_count")
    columns += tuple(f"{text} AS s{i}" for i, text in enumerate(raw))
    sets = f"GROUPING SETS (({OWNER}), ({', '.join(rows.names)}))"
    pipeline = pipeline.then("by_owner_and_by_key", Select(columns, pipeline.last, group_by=(sets,)), once=True)
    summed = pipeline.last
    large = Select((OWNER,), summed, ("of_all = 0", f"row_count > {most}"))
    pipeline = pipeline.then("large_owners", large, once=True)
    of_large = rows.among(pipeline.last)
    pipeline = row_values(of_large, pipeline, statistics)
    raw_sums = [f"{text} AS raw{i}" for i, text in enumerate(raw)]
    pipeline = steps.per_owner(of_large, pipeline, clip, raw_sums).computed_once()
    taken = [f"-raw{i}" for i in range(len(statistics))]
    added = Select((*rows.names, *sum_columns(statistics)), summed, ("of_all = 1",))
    less = Select((*rows.names, *taken), pipeline.last)
    pipeline = bounded(of_large, pipeline, clip, cells)
    rest = Select((*rows.names, *sum_columns(statistics)), pipeline.last)
    return pipeline.then("together", UnionAll((added, less, rest)))


def by_pairs(rows: Rows, clip: Clip, cells: Cells) -> Pipeline:
    """One row for each owner and key, which the steps change for large owners only.

    Claim: what per_owner, limit, weigh and clip leave of all owners.
    Because: but for weights, they change nothing of an owner that has not too many rows or keys (`Steps`). Whoever
    is not among those with several keys, or too many rows, has one key, and the weight of one.
    Needs: nothing more.
    """
    effect = _effect(clip, cells)
    beyond = [] if effect.most_rows is None else [f"SUM(row_count) > {effect.most_rows}"]
    beyond += [] if effect.most_cells is None else [f"COUNT(*) > {effect.most_cells}"]
    pipeline = row_values(rows, NOTHING, clip.statistics)
    pipeline = steps.per_owner(rows, pipeline, clip, ["COUNT(*) AS row_count"]).computed_once()
    pairs = pipeline.last
    if any(statistic.kind is StatisticKind.WEIGHTS for statistic in clip.statistics):
        # Everybody's keys are counted, once: a window over all pairs would sort them.
        counted = (
            f"{OWNER} AS counted_owner",
            "COUNT(*) AS key_count",
            f"({' OR '.join(beyond) or 'FALSE'}) AS beyond",
        )
        several = ("COUNT(*) > 1", *beyond)
        keys = Select(counted, pairs, group_by=(OWNER,), having=several)
        pipeline = pipeline.then("several_keys", keys, once=True)
        weight = steps.weight_of_key(rows, "COALESCE(key_count, 1)", clip.norm)
        joined = f"{pairs} LEFT JOIN {pipeline.last} ON {OWNER} = counted_owner"
        sums = steps.with_weights(clip, weight)
        others = Select((*rows.names, *sums), joined, ("NOT COALESCE(beyond, FALSE)",))
        large = Select((f"counted_owner AS {OWNER}",), pipeline.last, ("beyond",))
        pipeline = pipeline.then("large_owners", large, once=True)
    else:
        large = Select((OWNER,), pairs, group_by=(OWNER,), having=tuple(beyond))
        pipeline = pipeline.then("large_owners", large, once=True)
        kept = (steps.not_owned_by(rows, pipeline.last),)
        others = Select((*rows.names, *sum_columns(clip.statistics)), f"{pairs} AS t", kept)
    pipeline = pipeline.then("of_large", Select(("*",), pairs, (steps.owned_by(pipeline.last),)))
    pipeline = bounded(rows, pipeline, clip, cells)
    rest = Select((*rows.names, *sum_columns(clip.statistics)), pipeline.last)
    return pipeline.then("together", UnionAll((others, rest)))


def _together(rows: Rows, few: str, pipeline: Pipeline, clip: Clip) -> Pipeline:
    """Cells and sums of an earlier step and of the last one."""
    columns = (*rows.names, *sum_columns(clip.statistics))
    return pipeline.then("together", UnionAll((Select(columns, few), Select(columns, pipeline.last))))


# ------------------------------------------------------------
# Which way


def _effect(clip: Clip, cells: Cells) -> Steps:
    return Steps(clip.statistics, clip.groups, cells, clip.norm)


def _is_spared(rows: Rows, clip: Clip, cells: Cells, most: int) -> bool:
    """Whether the rows of owners with so many are added up as they are; one sum in one cell is as quick without."""
    if any(statistic.cut for statistic in clip.statistics) or (not cells.keyed and len(clip.statistics) == 1):
        return False
    return _effect(clip, cells).spare(most) and _is_the_same_twice(rows, clip)


def _is_the_same_twice(rows: Rows, clip: Clip) -> bool:
    parts = [part for s in clip.statistics for part in (s.value, s.where) if part is not None]
    return is_repeatable(rows.plan, [*(key.value for key in rows.keys), *parts])


def _quick_to_count(rows: Rows) -> Plan | None:
    """One table of which every owner has at least as many rows as in the plan; None where there is none."""
    if is_one_table(rows.plan):
        return rows.plan
    if rows.within is None or not rows.dialect.counts_apart:
        return None
    found = one_table_within(rows.plan, rows.within)
    return found if found is not None and is_one_table(found) else None


def _is_clipped_alone(rows: Rows, clip: Clip, cells: Cells) -> bool:
    """Whether nothing but the clip bounds sums over rows of one table, which is cheap to read twice."""
    if not cells.keyed or cells.limited or any(s.kind is not StatisticKind.ROWS for s in clip.statistics):
        return False
    return is_one_table(rows.plan) and _is_the_same_twice(rows, clip)
