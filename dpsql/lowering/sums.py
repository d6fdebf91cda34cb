"""Rows that nothing has to bound, added up as they are: by stored columns, of which keys and sums are made afterwards.

Several shapes of one value are made of its sum and that of its squares.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from dpsql.lowering.fast_paths import LateKey, StoredSum, is_one_table, late_keys, read_fields, stored_sums
from dpsql.lowering.row_values import (
    Grouped,
    Rows,
    declared,
    normal_key,
    row_values,
    shown_key,
)
from dpsql.lowering.select import Pipeline, Select, UnionAll
from dpsql.privacy.estimators.basis import Polynomial, polynomial
from dpsql.privacy.rules.aggregates import Statistic


def counts_rows(statistic: Statistic) -> bool:
    return statistic.value is None and statistic.where is None


def sum_columns(statistics: Sequence[Statistic]) -> tuple[str, ...]:
    return tuple(f"s{i}" for i in range(len(statistics)))


def total_of_rows(rows: Rows, i: int, statistic: Statistic) -> str:
    """Of the rows as they are."""
    total = "COUNT(*)" if counts_rows(statistic) else rows.dialect.sum_of(f"v{i}")
    return f"{total} * {statistic.factor}" if statistic.factor > 1 else total


def grouped_by_stored(rows: Rows, statistics: Sequence[Statistic]) -> Grouped:
    """What keys and sums can be made of groups of rows."""
    late = late_keys(rows.plan, rows.keys, statistics)
    if not rows.dialect.skips_blocks or not is_one_table(rows.plan):
        return Grouped(late)
    found = stored_sums(statistics, rows.stored)
    values = [key.value for key, name in rows.named_keys if name not in late]
    rest = [statistic for i, statistic in enumerate(statistics) if i not in found]
    values += [part for s in rest for part in (s.value, s.where) if part is not None]
    read = _raw_keys(late) | read_fields(rows.plan, values)
    return Grouped(late, {i: each for i, each in found.items() if each.stored.field not in read})


def reads_stored(rows: Rows, statistics: Sequence[Statistic]) -> bool:
    """Whether any key or sum can be made of what is stored, or several sums of fewer."""
    grouped = grouped_by_stored(rows, statistics)
    return bool(grouped.late or grouped.sums or shapes_of_one_value(statistics))


def added_up(rows: Rows, pipeline: Pipeline, statistics: Sequence[Statistic], others: str = "") -> Pipeline:
    """Keys and sums s0, s1 … of rows as they are; a key may come several times. `others` may leave out rows of `t`.

    Claim: the sums by keys, of values on their grid, of each row.
    Because: a key is a function of one column, so that all rows of a group have it. Rows in which all summed
    columns are within their bounds, and rows in which one is not, are all rows, each once
    (`RelationWriter._in_bounds`).
    Needs: columns that nothing else reads before (`late_keys`, `stored_sums`), of types in which equal values are
    the same. Only the sums rely on the test of bounds, and they are defined beyond them, too.
    """
    grouped = grouped_by_stored(rows, statistics)
    where = (others,) if others else ()
    if not grouped.late and not grouped.sums and not shapes_of_one_value(statistics):
        pipeline = row_values(rows, pipeline, statistics)
        sums = [f"{total_of_rows(rows, i, statistic)} AS s{i}" for i, statistic in enumerate(statistics)]
        added = Select((*rows.names, *sums), f"{pipeline.last} AS t", where, rows.names)
        return pipeline.then("added_up", added)
    raw = _raw_keys(grouped.late)
    if not grouped.sums:
        late = rows.read(replace(rows.reading, raw=raw))
        return _with_keys(late, _in_groups(late, pipeline, statistics, grouped, where), statistics, grouped)
    bounds: dict[int, tuple[Fraction, Fraction]] = {}
    for each in grouped.sums.values():
        low, high = bounds.get(each.stored.field, (each.low, each.high))
        bounds[each.stored.field] = max(low, each.low), min(high, each.high)
    within = rows.read(replace(rows.reading, raw=raw | bounds.keys(), bounds=bounds))
    beyond = rows.read(replace(rows.reading, raw=raw, bounds=bounds, beyond=True))
    pipeline = _in_groups(within, pipeline, statistics, grouped, where)
    first = Select(("*",), pipeline.last)
    pipeline = _in_groups(beyond, pipeline, statistics, Grouped(grouped.late), where)
    pipeline = pipeline.then("all_grouped", UnionAll((first, Select(("*",), pipeline.last))))
    return _with_keys(beyond, pipeline, statistics, grouped)


def _raw_keys(late: Mapping[str, LateKey]) -> frozenset[int]:
    return frozenset(each.stored.field for each in late.values() if each.is_raw)


def _in_groups(
    rows: Rows, pipeline: Pipeline, statistics: Sequence[Statistic], grouped: Grouped, where: tuple[str, ...]
) -> Pipeline:
    """What groups are made by, how many rows each has, and their sums."""
    groups = (*grouped.columns.values(), *(name for name in rows.names if name not in grouped.late))
    made = _made_sums(statistics, grouped)
    parts = {"row_count": "COUNT(*)"}
    places = {each.place for each in made.values()}
    summed = {i for i, s in enumerate(statistics) if not counts_rows(s) and i not in made} | places
    parts |= {f"total{i}": rows.dialect.sum_of(f"v{i}") for i in sorted(summed)}
    squared = {each.place for each in made.values() if each.by.squares}
    parts |= {f"squares{i}": rows.dialect.sum_of(_square(rows, i, grouped.sums.get(i))) for i in sorted(squared)}
    above = {i: each.place for i, each in made.items() if i not in grouped.sums}
    parts |= {f"values{i}": f"COUNT(v{i})" for i in sorted(set(above.values()))}
    pipeline = row_values(rows, pipeline, statistics, replace(grouped, above=above))
    source = f"{pipeline.last} AS t"
    sums = [_of_group(rows, i, s, made) for i, s in enumerate(statistics)]
    if parts.keys() >= set(sums):
        shown = [f"{parts[text]} AS s{i}" for i, text in enumerate(sums)]
        columns = (*groups, "COUNT(*) AS row_count", *shown)
        return pipeline.then("grouped", Select(columns, source, where, groups))
    added = [f"{text} AS {name}" for name, text in parts.items()]
    pipeline = pipeline.then("totals", Select((*groups, *added), source, where, groups))
    shown = [f"{text} AS s{i}" for i, text in enumerate(sums)]
    return pipeline.then("grouped", Select((*groups, "row_count", *shown), pipeline.last))


def _made_sums(statistics: Sequence[Statistic], grouped: Grouped) -> dict[int, MadeSum]:
    """The sums that are made of others: of stored columns, or of shapes of one value."""
    stored = {each.stored.field: i for i, each in grouped.sums.items()}
    found = {
        i: MadeSum(stored[each.stored.field], each.made, "row_count", each.stored.column.type.scale)
        for i, each in grouped.sums.items()
    }
    return found | {i: each for i, each in shapes_of_one_value(statistics).items() if i not in found}


def _square(rows: Rows, i: int, stored: StoredSum | None) -> str:
    if stored is None:
        return f"v{i} * v{i}"
    assert rows.dialect.square is not None
    return rows.dialect.square(f"v{i}", stored.stored.column.type)


def _of_group(rows: Rows, i: int, statistic: Statistic, made: Mapping[int, MadeSum]) -> str:
    """A sum, of what was added up for its group."""
    text = f"total{i}"
    if counts_rows(statistic):
        text = "row_count"
    elif (each := made.get(i)) is not None:
        text = each.text(rows.dialect.wide)
    return f"{text} * {statistic.factor}" if statistic.factor > 1 else text


def _with_keys(rows: Rows, pipeline: Pipeline, statistics: Sequence[Statistic], grouped: Grouped) -> Pipeline:
    """Keys made of stored columns; groups without a declared one are left out."""
    sums, late = sum_columns(statistics), grouped.late
    if not late:
        return pipeline
    others = [name for name in rows.names if name not in late]
    columns: dict[str, str] = {}
    for each in late.values():
        stored = grouped.columns[each.stored.field]
        normal = rows.writer.normalised(each.stored.column, stored) if each.is_raw else stored
        columns[rows.writer.name(each.shown)] = normal
    made = [f"{text} AS {name}" for name, text in columns.items()]
    pipeline = pipeline.then("clamped_keys", Select((*made, *others, "row_count", *sums), pipeline.last))
    of = {name: normal_key(rows, key.value) if name in late else name for key, name in rows.named_keys}
    if not all(map(str.isidentifier, of.values())):
        keys = [f"{of[name]} AS {name}" if name in late else name for name in rows.names]
        pipeline = pipeline.then("computed_keys", Select((*keys, "row_count", *sums), pipeline.last))
        of = {name: name for name in of}
    shown = [shown_key(rows, key, name, of[name]) if name in late else name for key, name in rows.named_keys]
    late_ones = [(key, of[name]) for key, name in rows.named_keys if name in late]
    tests = [test for key, name in late_ones if not key.remainder and (test := declared(rows, key, name))]
    # The number of rows keeps an engine from testing each row instead of each group.
    where = (f"CASE WHEN {' AND '.join(tests)} THEN row_count > 0 ELSE FALSE END",) if tests else ()
    return pipeline.then("added_up", Select((*shown, *sums), pipeline.last, where))


# ------------------------------------------------------------
# Sums that are made of others: shapes are polynomials, so their sums are made of those of values and squares.


@dataclass(frozen=True, slots=True)
class MadeSum:
    """A statistic that is made of what is added up of the values of one: their total, and that of their squares."""

    place: int  # of that one
    by: Polynomial
    rows: str  # how many values there are
    scale: int = 0  # of the values: so many decimal places

    def text(self, wide: str) -> str:
        """The sum, in an integer type of 128 bits."""
        parts = [(self.by.squares, self._whole(f"squares{self.place}", 2 * self.scale, wide))]
        parts += [(self.by.times, self._whole(f"total{self.place}", self.scale, wide))]
        parts += [(self.by.plus, f"CAST({self.rows} AS {wide})")]
        (first, *others) = [part for part in parts if part[0]]
        texts = [first[1] if first[0] == 1 else f"{first[0]} * {first[1]}"]
        texts += [f"({times}) * {text}" for times, text in others]
        return texts[0] if len(texts) == 1 else f"({' + '.join(texts)})"

    def _whole(self, text: str, scale: int, wide: str) -> str:
        return f"CAST({text} * {10**scale} AS {wide})" if scale else text


def shapes_of_one_value(statistics: Sequence[Statistic]) -> dict[int, MadeSum]:
    """The statistics, by their place, that are shapes of the same values as others, with squares among them.

    Claim: what is made of the sums of how far values are above the lower end of their grid is what each shape adds up
    to; zero, or NULL, where there are no values.
    Because: every shape is a polynomial of the value, in whole numbers.
    Needs: squares of the width of the grid below 2**48 (checked when the statistic was made).
    """
    alike: dict[object, list[int]] = {}
    for i, s in enumerate(statistics):
        if s.value is not None:
            alike.setdefault((s.value, s.where, s.bounds, s.low, s.high, s.step), []).append(i)
    found: dict[int, MadeSum] = {}
    for places in alike.values():
        made = {i: polynomial(s.shape, s.low, s.high, s.centre) for i in places for s in [statistics[i]]}
        if len(places) > 1 and any(each.squares for each in made.values()):
            found |= {
                i: MadeSum(places[0], each.above(statistics[i].low), f"values{places[0]}") for i, each in made.items()
            }
    return found
