"""Counts by what a value is: on its grid, of each row or of each owner, and of different values.

The value is one more column that tells cells apart, and the steps are those of sums.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from dpsql.lowering import steps
from dpsql.lowering.bounded_sums import NOTHING, Written, way_of_few
from dpsql.lowering.clip import MOST_ROOM, Clip, finest
from dpsql.lowering.relations import OWNER
from dpsql.lowering.row_values import (
    Rows,
    computed,
    condition_column,
    declared_keys,
    key_columns,
    normal_key,
    on_grid,
    relation,
    row_values,
    values_of_one,
)
from dpsql.lowering.select import Pipeline, Select, UnionAll
from dpsql.plan.scalars import Array, Scalar
from dpsql.privacy.estimators.basis import Shape
from dpsql.privacy.rules.aggregates import Cells, Statistic, StatisticKind, centres, clips
from dpsql.types import Kind

# More rows than any engine holds, and so more cells than an owner is in where keys are unknown.
_MOST_CELLS = 2**40
# Rows that have a value.
_ON_GRID = ("grid IS NOT NULL",)


# --- histograms of rows ---


def histogram(rows: Rows, statistic: Statistic, declared_rows: int, *, single: bool) -> Written:
    """How many rows have each value on the grid, in each cell.

    Claim: one owner adds at most the clip, over all keys and values together.
    Because: the value is a key as the others are, and the steps are those of a count of rows; L1 in any accounting.
    Needs: nothing more.
    """
    bars = rows.with_cells_by("grid")
    if single:
        pipeline = grid_rows(rows, NOTHING, statistic)
        return Written(steps.outer(bars, pipeline, [steps.total(rows, "1", statistic.factor)], _ON_GRID))
    if rows.counted is None:
        pipeline, way = bounded_bars(rows, NOTHING, statistic, declared_rows), ""
    else:
        # No more rows than count in full, and so in no more cells.
        least = min(declared_rows, statistic.clip // statistic.factor)
        pipeline = grid_rows(rows.with_at_most(least), NOTHING, statistic)
        few = Select((*bars.names, f"{statistic.factor} AS s0"), pipeline.last, _ON_GRID)
        pipeline = bounded_bars(rows.with_more_than(least), pipeline, statistic, declared_rows)
        many = Select((*bars.names, "s0"), pipeline.last)
        pipeline, way = pipeline.then("together", UnionAll((few, many))), way_of_few(rows, least)
    return Written(steps.outer(bars, pipeline, [steps.total(rows, "s0")]), way)


def grid_rows(rows: Rows, pipeline: Pipeline, statistic: Statistic) -> Pipeline:
    """Keys and the value on its grid of each row, of which those without one must be left out before any is chosen."""
    assert statistic.value is not None
    used = [*(key.value for key in rows.keys), *values_of_one(statistic)]
    child = relation(rows, used)
    columns = {**key_columns(rows), "e0": rows.writer.scalar(statistic.value), **condition_column(rows, statistic)}
    pipeline = computed(rows, pipeline, columns, child, used)
    value = f"CAST({on_grid(rows, 0, replace(statistic, where=None))} AS {rows.dialect.int64}) AS grid"
    conditions = (*declared_keys(rows), *([] if statistic.where is None else ["w0"]))
    return pipeline.then("grid_values", Select((*rows.pair, value), pipeline.last, conditions))


def bounded_bars(rows: Rows, pipeline: Pipeline, statistic: Statistic, declared_rows: int) -> Pipeline:
    """What the steps leave of each owner's rows: with the value as one more key, a clipped count."""
    pipeline = grid_rows(rows, pipeline, statistic)
    bars, most = rows.with_cells_by("grid"), statistic.clip // statistic.factor
    factor = f" * {statistic.factor}" if statistic.factor > 1 else ""
    count = f"CAST(CASE WHEN COUNT(*) > {most} THEN {most} ELSE COUNT(*) END AS {rows.dialect.int64}){factor} AS s0"
    pipeline = pipeline.then("per_owner", Select((*bars.pair, count), pipeline.last, _ON_GRID, bars.pair))
    if declared_rows == 1:
        return steps.limited_if_many(bars, pipeline, ["s0"], 1)
    return steps.clipped(bars, pipeline, Clip([statistic], [[0]], "l1"), Cells(True, declared_rows, False))


# --- histograms of owners ---


def contributions(
    rows: Rows, statistic: Statistic, declared_rows: int, norm: Literal["l1", "l2"], cells: int | None
) -> Written:
    """How many owners contribute no more than each clip, and more than the one before it.

    Claim: each owner is counted once.
    Because: its rows are added up to one number, the norm of its sums in all cells, which one branch of the CASE
    takes. Differences of who has more rows than count weigh less, as they will in their sum (`Clip.leaders`).
    Needs: values within 64 bits, as `on_grid` makes them; sums that are cut, so that squares can be added up.
    """
    wide, found = rows.dialect.wide, clips(statistic)
    most = min(finest(_MOST_CELLS if cells is None else cells), MOST_ROOM * found[-1])
    total = f"COALESCE({rows.dialect.sum_of('v0')}, 0)"
    cut = f"CASE WHEN {total} > {most} THEN {most} WHEN {total} < -{most} THEN -{most} ELSE {total} END"
    pipeline = row_values(rows, NOTHING, [statistic])
    columns = (*rows.pair, f"CAST({cut} AS {wide}) AS s0", "COUNT(v0) AS row_count")
    pipeline = pipeline.then("per_owner", Select(columns, pipeline.last, group_by=rows.pair))
    length = "SUM(ABS(s0))"
    if norm == "l2":
        root = f"sqrt(CAST(SUM(s0 * s0) AS {rows.dialect.types[Kind.DOUBLE]}))"
        length = f"CAST(ceil({root}) AS {wide})"
    counted, limits = "1", [str(clip) for clip in found[:-1]]
    if statistic.shape is Shape.RESIDUAL:
        sum_of_rows = "SUM(row_count)"
        counted = (
            f"CAST(CASE WHEN {sum_of_rows} > {declared_rows} THEN {sum_of_rows} ELSE {declared_rows} END AS {wide})"
        )
        limits = [rows.dialect.wide_quotient.format(f"(row_total * {limit})", declared_rows) for limit in limits]
    norms = Select((f"{length} AS norm0", f"{counted} AS row_total"), pipeline.last, group_by=(OWNER,))
    pipeline = pipeline.then("norms", norms)
    branches = " ".join(f"WHEN norm0 <= {limit} THEN {place}" for place, limit in enumerate(limits))
    place = f"CASE {branches} ELSE {len(limits)} END" if limits else "0"
    column = f"CAST({place} AS {rows.dialect.int64}) AS place"
    pipeline = pipeline.then("places", Select((column,), pipeline.last))
    return Written(steps.outer(replace(rows, names=("place",)), pipeline, [steps.total(rows, "1")]))


def means(rows: Rows, statistic: Statistic) -> Written:
    """How many owners have their mean in each place between the bounds.

    Claim: each owner is counted at most once.
    Because: its values are added up to one mean, which lies in one place; without values it has none.
    Needs: values from low to high, as `on_grid` makes them: above low they add up to at most (high - low) each,
    so that no place is beyond the last.
    """
    wide = rows.dialect.wide
    above = f"(SUM(CAST(v0 AS {wide})) - COUNT(v0) * CAST({statistic.low} AS {wide})) * {centres(statistic)}"
    place = rows.dialect.wide_quotient.format(above, f"(COUNT(v0) * CAST({statistic.width + 1} AS {wide}))")
    mean = f"CAST({place} AS {rows.dialect.int64}) AS place"
    pipeline = row_values(rows, NOTHING, [statistic])
    pipeline = pipeline.then("per_owner", Select((OWNER, mean), pipeline.last, group_by=(OWNER,)))
    places = replace(rows, names=("place",))
    return Written(steps.outer(places, pipeline, [steps.total(rows, "1")], ("place IS NOT NULL",)))


# --- DISTINCT ---


def distinct(rows: Rows, statistic: Statistic, declared_rows: int, *, single: bool) -> Written:
    """COUNT(DISTINCT x) or SUM(DISTINCT x): at most so many pairs of key and value per owner."""
    way = ""
    if single:
        pipeline = values_by_owner(rows, NOTHING, statistic)
    elif rows.counted is None:
        pipeline = few_values(rows, NOTHING, statistic, declared_rows)
    else:
        # No more rows than pairs are allowed.
        shown = (*rows.names, "different")
        pipeline = values_by_owner(rows.with_at_most(declared_rows), NOTHING, statistic)
        few = Select(shown, pipeline.last)
        pipeline = few_values(rows.with_more_than(declared_rows), pipeline, statistic, declared_rows)
        pipeline = pipeline.then("together", UnionAll((few, Select(shown, pipeline.last))))
        way = way_of_few(rows, declared_rows)
    if statistic.kind is StatisticKind.DISTINCT_SUM or not rows.dialect.count_distinct:
        once = Select((*rows.names, "different"), pipeline.last, distinct=True)
        pipeline = pipeline.then("distinct_values", once)
    counted = "COUNT(DISTINCT different)" if rows.dialect.count_distinct else "COUNT(different)"
    total = counted if statistic.kind is StatisticKind.DISTINCT else steps.total(rows, "different")
    return Written(steps.outer(rows, pipeline, [total]), way)


def values_by_owner(rows: Rows, pipeline: Pipeline, statistic: Statistic) -> Pipeline:
    """Owner, keys and value of each row that has one."""
    assert statistic.value is not None
    used = [*(key.value for key in rows.keys), *values_of_one(statistic)]
    child = relation(rows, used)
    columns = key_columns(rows)
    is_count = statistic.kind is StatisticKind.DISTINCT
    if is_count:
        columns["different"] = _different(rows, statistic.value)
    else:
        columns["e0"] = rows.writer.scalar(statistic.value)
    columns |= condition_column(rows, statistic)
    pipeline = computed(rows, pipeline, columns, child, used)
    if not is_count:
        value = f"{on_grid(rows, 0, statistic)} AS different"
        pipeline = pipeline.then("grid_values", Select((*rows.pair, value), pipeline.last))
    conditions = [*declared_keys(rows), *(["w0"] if is_count and statistic.where is not None else [])]
    shown = (*rows.pair, "different")
    return pipeline.then("row_values", Select(shown, pipeline.last, (*conditions, "different IS NOT NULL")))


def _different(rows: Rows, value: Scalar) -> str:
    """What is counted once, however often it comes; of several values a text that no others have.

    Each is written with its length before it, so that it is known where it ends; and NULL as a letter.
    """
    if not isinstance(value, Array):
        return normal_key(rows, value)
    text = rows.dialect.types[Kind.TEXT]
    # Equal decimals may be stored with different numbers of digits.
    keys = [
        f"round({normal_key(rows, item)}, {item.type.scale})"
        if item.type.kind is Kind.DECIMAL
        else normal_key(rows, item)
        for item in value.items
    ]
    parts = [f"CAST({key} AS {text})" for key in keys]
    return " || ".join(f"COALESCE(CAST(length({part}) AS {text}) || ':' || {part}, 'n')" for part in parts)


def few_values(rows: Rows, pipeline: Pipeline, statistic: Statistic, most: int) -> Pipeline:
    """Of each owner at most so many different pairs of key and value."""
    pipeline = values_by_owner(rows, pipeline, statistic)
    pairs = rows.with_cells_by("different")
    pipeline = pipeline.then("per_owner", Select(pairs.pair, pipeline.last, distinct=True))
    return steps.limited_if_many(pairs, pipeline, [], most)
