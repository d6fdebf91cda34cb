"""The steps between what each row adds and the sums: one row per owner and cell, limited, weighed and clipped.

Each step is a function that adds its SELECT to those before it. The columns are the owner, the cell (k0, k1 …) and the
sums (s0, s1 …); a step may leave the owner out once nothing depends on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from dpsql.lowering.clip import Clip, Scale
from dpsql.lowering.relations import OWNER
from dpsql.lowering.row_values import Rows
from dpsql.lowering.select import Pipeline, Select, UnionAll
from dpsql.lowering.sums import counts_rows, sum_columns
from dpsql.privacy.rules.aggregates import WHOLE_WEIGHT, Cells, Statistic, StatisticKind
from dpsql.types import Kind

_OF_UNITS = (StatisticKind.UNITS, StatisticKind.WEIGHTS)


def owned_by(owners: str) -> str:
    """A test that the owner of a row is among those of a step."""
    return f"{OWNER} IN (SELECT {OWNER} FROM {owners})"


def not_owned_by(rows: Rows, owners: str) -> str:
    """A test that the owner of a row `t` is not among those of a step."""
    return rows.dialect.not_owned_by.format(f"SELECT {OWNER} FROM {owners}")


# --- per owner ---


def per_owner(rows: Rows, pipeline: Pipeline, clip: Clip, more: Sequence[str] = ()) -> Pipeline:
    """One row for each owner and cell: the sums of its rows, each cut."""
    sums = [sum_of_owner(rows, i, statistic) for i, statistic in enumerate(clip.before)]
    return pipeline.then("per_owner", Select((*rows.pair, *more, *sums), pipeline.last, group_by=rows.pair))


def sum_of_owner(rows: Rows, i: int, statistic: Statistic) -> str:
    """One owner's sum in one cell: never beyond what it is cut to, whatever the number of rows."""
    if statistic.kind is StatisticKind.WEIGHTS:
        return f"0 AS s{i}"  # not before the keys are limited
    if statistic.kind is StatisticKind.UNITS:
        total = f"COALESCE(MAX(v{i}), 0)"
    elif counts_rows(statistic):
        total = f"LEAST(COUNT(*), {statistic.clip // statistic.factor})"
    else:
        most = statistic.clip // statistic.factor
        total = f"COALESCE({rows.dialect.sum_of(f'v{i}')}, 0)"
        total = f"CASE WHEN {total} > {most} THEN {most} WHEN {total} < -{most} THEN -{most} ELSE {total} END"
    factor = f" * {statistic.factor}" if statistic.factor > 1 else ""
    return f"CAST({total} AS {rows.dialect.int64}){factor} AS s{i}"


# --- limit ---


def limited(rows: Rows, pipeline: Pipeline, columns: Sequence[str], cells: int) -> Pipeline:
    """At most so many cells per owner.

    Claim: exactly min(cells, number of its cells) rows per owner, chosen by that owner's cells and the salt alone.
    Because: row_number over a total order never lets ties pass; the order is a hash keyed with a fresh secret
    salt, then the keys themselves.
    Needs: one row per owner and cell in the step before.
    """
    order = ", ".join([_hash(rows), *rows.names])
    place = f"row_number() OVER (PARTITION BY {OWNER} ORDER BY {order}) AS place"
    pipeline = pipeline.then("numbered", Select(("*", place), pipeline.last))
    return pipeline.then("limited", Select((*rows.pair, *columns), pipeline.last, (f"place <= {cells}",)))


def limited_if_many(rows: Rows, pipeline: Pipeline, columns: Sequence[str], cells: int) -> Pipeline:
    """The same, where most owners have no more cells than that: these are spared the hash and the order.

    Claim: what `limited` leaves.
    Because: it leaves an owner who has no more than `cells` cells all of them. Each owner is in one of the parts.
    Needs: one row per owner and cell in the step before.
    """
    pipeline = pipeline.computed_once()
    each = pipeline.last
    beyond = Select((OWNER,), each, group_by=(OWNER,), having=(f"COUNT(*) > {cells}",))
    pipeline = pipeline.then("with_many_cells", beyond, once=True)
    owners = pipeline.last
    pipeline = pipeline.then("many_cells", Select(("*",), each, (owned_by(owners),)))
    pipeline = limited(rows, pipeline, columns, cells)
    shown = (*rows.pair, *columns)
    few = Select(shown, f"{each} AS t", (not_owned_by(rows, owners),))
    return pipeline.then("all_limited", UnionAll((few, Select(shown, pipeline.last))))


def _hash(rows: Rows) -> str:
    text = rows.dialect.types[Kind.TEXT]
    parts = [f"COALESCE('v' || CAST({name} AS {text}), 'n')" for name in rows.names]
    salt = rows.dialect.salt.format(rows.writer.scalars.parameter("salt"))
    salted = f" || {rows.dialect.separator} || ".join([salt, f"CAST({OWNER} AS {text})", *parts])
    return rows.dialect.chosen_by.format(salted)


# --- weigh ---


def weighed(rows: Rows, pipeline: Pipeline, clip: Clip) -> Pipeline:
    """Weights of the keys that are left to each owner.

    Claim: positive, and at most `key_weight(d)` in each of the owner's d keys.
    Because: d is counted over the owner's rows, one for each key. The square root is rounded up beyond its error.
    Needs: at most so many keys that 1 / d does not vanish in fixed point; else such an owner selects none.
    """
    if all(statistic.kind is not StatisticKind.WEIGHTS for statistic in clip.statistics):
        return pipeline
    weight = weight_of_key(rows, f"COUNT(*) OVER (PARTITION BY {OWNER})", clip.norm)
    return pipeline.then("weighed", Select((*rows.pair, *with_weights(clip, weight)), pipeline.last))


def with_weights(clip: Clip, weight: str) -> list[str]:
    """The sums, with this for those that are weights."""
    kinds = enumerate(statistic.kind for statistic in clip.statistics)
    return [f"{weight} AS s{i}" if kind is StatisticKind.WEIGHTS else f"s{i}" for i, kind in kinds]


def weight_of_key(rows: Rows, keys: str, norm: Literal["l1", "l2"]) -> str:
    """What one of so many keys weighs; the number is not zero."""
    if norm == "l1":
        return rows.dialect.whole_quotient.format(WHOLE_WEIGHT, keys)
    root = f"sqrt(CAST({keys} AS {rows.dialect.types[Kind.DOUBLE]})) * 1.000000001"
    return f"CAST(floor({WHOLE_WEIGHT} / ({root})) AS {rows.dialect.int64})"


# --- clip ---


def clipped(rows: Rows, pipeline: Pipeline, clip: Clip, cells: Cells) -> Pipeline:
    """Each owner's vector scaled down to its norm: all cells of all statistics of a group.

    Claim: the norm of each owner's integers, each divided by its own clip, is at most 1 in every group; vectors
    within that are unchanged.
    Because: with whole weights w >= M / clip, sign(s) * floor(|s| * M / N) with N >= the norm of the w * s shrinks
    every entry by at least M / N, toward zero, which brings the norm of the w * s to at most M.
    What follows a count (`Clip.leaders`) shrinks by the smaller of both factors, so that its norm is no larger.
    Needs: |s| * M below 2**108 and the sum of squares below 2**127 (`Clip.before`).
    """
    norms, columns, beyond = [], dict[int, str](), list[str]()
    for g, group in enumerate(clip.groups):
        if cells.limited and len(group) == 1 and clip.statistics[group[0]].kind in _OF_UNITS:
            columns[group[0]] = f"s{group[0]}"  # at most `groups` of them are left, ones or weights
            continue
        scale = clip.scale(group)
        norm = f"SUM({_norm_of_cell(rows, scale, group, clip)})"
        norms.append(f"{norm} AS norm{g}")
        beyond.append(f"{norm} > {scale.bound}")
        for i in group:
            columns[i] = f"{_scaled(rows, i, clip)} AS s{i}"
    if not norms:
        return pipeline
    # Few owners are beyond their clip; the others meet none of these and stay as they are.
    pipeline = pipeline.computed_once()
    each = pipeline.last
    found = Select((f"{OWNER} AS large", *norms), each, group_by=(OWNER,), having=tuple(beyond))
    pipeline = pipeline.then("beyond_clip", found)
    shown = [columns[i] for i in range(len(clip.statistics))]
    source = f"{each} LEFT JOIN {pipeline.last} ON {OWNER} = large"
    return pipeline.then("clipped", Select((*rows.names, *shown), source))


def clipped_in_one_cell(rows: Rows, pipeline: Pipeline, clip: Clip) -> Pipeline:
    """The same where an owner has one cell: its vector are the statistics of a group, side by side."""
    if clip.exclusive:
        pipeline = _exclusive(rows, pipeline, clip)
    norms, columns = [], list(sum_columns(clip.statistics))
    for g, group in enumerate(clip.groups):
        if len(group) == 1 and group[0] not in clip.with_room:
            continue  # cut to its clip already
        norms.append(f"{_norm_of_cell(rows, clip.scale(group), group, clip)} AS norm{g}")
        for i in group:
            columns[i] = f"{_scaled(rows, i, clip)} AS s{i}"
    pipeline = pipeline.then("norms", Select(("*", *norms), pipeline.last))
    return pipeline.then("clipped", Select((*rows.names, *columns), pipeline.last))


def _exclusive(rows: Rows, pipeline: Pipeline, clip: Clip) -> Pipeline:
    """Of a group's conditions the first that an owner adds to: one with more rows than declared counts once."""
    columns = []
    for i, statistic in enumerate(clip.statistics):
        group = next(group for group in clip.groups if i in group)
        before = [f"s{j} <> 0" for j in group[: group.index(i)] if clip.statistics[j].where != statistic.where]
        columns.append(f"CASE WHEN {' OR '.join(before)} THEN 0 ELSE s{i} END AS s{i}" if before else f"s{i}")
    if tuple(columns) == sum_columns(clip.statistics):
        return pipeline
    return pipeline.then("exclusive", Select((*rows.pair, *columns), pipeline.last))


def _norm_of_cell(rows: Rows, scale: Scale, group: Sequence[int], clip: Clip) -> str:
    """What one cell adds to the norm: magnitudes, or squares."""
    parts = []
    for i, weight in zip(group, scale.weights, strict=True):
        entry = f"CAST(s{i} AS {rows.dialect.wide})"
        size = f"ABS({entry})" if clip.norm == "l1" else f"{entry} * {entry}"
        times = weight if clip.norm == "l1" else weight**2
        parts.append(size if times == 1 else f"{size} * {times}")
    return " + ".join(parts)


def _scaled(rows: Rows, i: int, clip: Clip) -> str:
    """The sum as far down as its norm demands, and that of a count it follows: by the smaller of their factors."""
    wide = rows.dialect.wide
    size, sizes, beyond = f"ABS(CAST(s{i} AS {wide}))", [], []
    for g in clip.norms_of(i):
        scale, norm = clip.scale(clip.groups[g]), f"norm{g}"
        length = norm
        if clip.norm == "l2":
            # Rounded up beyond the error of the square root.
            root = f"sqrt(CAST({norm} AS {rows.dialect.types[Kind.DOUBLE]}))"
            length = f"CAST(ceil({root} * 1.000000001) AS {wide})"
        beyond.append(f"{norm} > {scale.bound}")
        sizes.append(rows.dialect.wide_quotient.format(f"({size} * {scale.whole})", length))
    if len(sizes) > 1:
        sizes = [f"CASE WHEN {b} THEN {s} ELSE {size} END" for b, s in zip(beyond, sizes, strict=True)]
        sizes = [f"LEAST({', '.join(sizes)})"]
    # An engine's sign of a 64-bit integer may be a double, and so would be all that is added up with it.
    return f"CASE WHEN {' OR '.join(beyond)} THEN SIGN(CAST(s{i} AS {wide})) * {sizes[0]} ELSE s{i} END"


# --- outer ---

# Sums are cut to this before noise. Cutting moves two sums no further apart, and leaves room for 64-bit noise.
LARGEST_SUM = 2**61


def outer(rows: Rows, pipeline: Pipeline, totals: Sequence[str], where: tuple[str, ...] = ()) -> Pipeline:
    """GROUP BY cells: integer sums, which the engine returns."""
    return pipeline.then("outer", Select((*rows.names, *totals), pipeline.last, where, rows.names))


def total(rows: Rows, column: str, factor: int = 1) -> str:
    scale = f" * {factor}" if factor > 1 else ""
    total = f"COALESCE({rows.dialect.sum_of(column)}, 0){scale}"
    # Slower than CASE, value by value, but less text to read; there is one for each group.
    return f"CAST(LEAST(GREATEST({total}, -{LARGEST_SUM}), {LARGEST_SUM}) AS {rows.dialect.int64})"
