"""The last steps before the aggregate: one row per owner and key, limited, clipped, then summed. Integers throughout.

    values  keys and grid values of each row
    per     GROUP BY owner, keys: integer sums of clamped values
    limit   at most L0 keys per owner, by a keyed hash over the owner's own keys
    weigh   what selects unknown keys: the more keys an owner has, the less it weighs in each
    clip    each owner's vector scaled down to its norm, toward zero
    outer   GROUP BY keys: integer sums

The value at a rank is chosen from a histogram: the same steps, with the value on its grid as one more key.

Where the engine guarantees one row per owner, per, limit and clip would do nothing and are left out. They do nothing
either for an owner with no more rows than declared, or whose rows add up to no more than the clip: only the others, who
are few, go through all of them.

A prepared copy has beside each row how many its owner has, so that the two kinds of owners are told apart by a filter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from operator import methodcaller
from typing import Literal

from dpsql.lowering.clip import MOST_ROOM, Clip, Scale, finest
from dpsql.lowering.dialect import Dialect
from dpsql.lowering.fast_paths import Key, Steps, is_one_table, is_repeatable, one_table_within
from dpsql.lowering.query import EngineQuery
from dpsql.lowering.relations import OWNER
from dpsql.lowering.sums import AddedUp, counts_rows
from dpsql.plan.nodes import Plan, Scan, nodes
from dpsql.plan.scalars import Array, Correlated, Scalar, refs, walk
from dpsql.policy.model import Table
from dpsql.privacy.estimators.basis import Shape
from dpsql.privacy.rules.aggregates import CHOSEN, WHOLE_WEIGHT, Cells, Statistic, StatisticKind, centres, clips
from dpsql.types import Kind

# Sums are cut to this before noise. Cutting moves two sums no further apart, and leaves room for 64-bit noise.
LARGEST_SUM = 2**61
# More rows than any engine holds, and so more cells than an owner is in where keys are unknown.
_MOST_CELLS = 2**40
# What one query adds up for each owner and key.
_PLAIN = (StatisticKind.ROWS, StatisticKind.UNITS, StatisticKind.WEIGHTS)
_OF_UNITS = (StatisticKind.UNITS, StatisticKind.WEIGHTS)


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

    def branch(write: Callable[[_Bounding], str], width: int, answers: Sequence[int]) -> Branch:
        bounding = _Bounding(plan, keys, dialect, within)
        query = EngineQuery(write(bounding), width, sources=_sources(tables), names=bounding.parameters)
        way = bounding.way or "every unit is bounded as the query runs"
        return Branch(query, tuple(answers), way if copied else "")

    plain = [i for i, statistic in enumerate(statistics) if statistic.kind in _PLAIN]
    units = [i for i in plain if chosen is not None and statistics[i].kind is StatisticKind.UNITS]
    for some, limit in ((units, chosen or cells), ([i for i in plain if i not in units], cells)):
        if some:
            together = [[some.index(i) for i in group] for group in groups if group[0] in some]
            most = limit.groups if limit.limited else _declared_cells(keys)
            clip = Clip([statistics[i] for i in some], together, norm, cells=most, exclusive=rows == 1)
            branches.append(branch(methodcaller("sums", clip, limit, rows=rows, single=single), len(keys), some))
    bars: dict[Statistic, list[int]] = {}
    for i, statistic in enumerate(statistics):
        if statistic.kind in CHOSEN:
            bars.setdefault(replace(statistic, rank=None), []).append(i)  # several ranks, one histogram
        elif statistic.kind is StatisticKind.CLIP:
            branches.append(branch(methodcaller("contributions", statistic, rows, norm), 1, [i]))
        elif statistic.kind is StatisticKind.CENTRE:
            branches.append(branch(methodcaller("means", statistic), 1, [i]))
        elif i not in plain:
            branches.append(branch(methodcaller("distinct", statistic, rows, single=single), len(keys), [i]))
    for statistic, ranks in bars.items():
        branches.append(branch(methodcaller("histogram", statistic, rows, single=single), len(keys) + 1, ranks))
    return tuple(branches)


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


class _Bounding(AddedUp):
    # --- sums ---

    def sums(self, clip: Clip, cells: Cells, *, rows: int, single: bool) -> str:
        statistics = clip.statistics
        if single:
            if not self._reads_stored(statistics):
                totals = [self._of_single_rows(i, statistic) for i, statistic in enumerate(statistics)]
                return self._outer(totals, self._values(statistics))
            return self._outer([self._total(f"s{i}", 1) for i in range(len(statistics))], self._added_up(statistics))
        stepped = not cells.keyed or any(statistic.cut for statistic in statistics)
        steps = _steps(clip, cells)
        if cells.among:
            # One in each cell is all that a unit adds, and cells are chosen later: nothing is left out or scaled.
            columns = ", ".join([*self._names, *(f"s{i}" for i in range(len(statistics)))])
            text = f"SELECT {columns} FROM ({self._pairs(clip)}) AS p"
        elif self._counted is not None and (stepped or steps.spare(rows)) and steps.most_spared:
            text = self._in_two_parts(clip, cells, steps.most_spared)
        elif not cells.keyed and len(statistics) == 1 and statistics[0].kind is StatisticKind.UNITS:
            return self._owners(statistics[0])
        elif self._is_spared(clip, cells, rows) and (counted := self._quick_to_count()) is not None:
            text = self._in_two_passes(clip, cells, self._with_many_rows(counted, rows))
        elif self._is_clipped_alone(clip, cells):
            text = self._in_two_passes(clip, cells, self._with_large_sums(clip))
        elif stepped:
            text = self._stepped(self._pairs(clip), clip, cells, everybody=True)
        elif self._is_spared(clip, cells, rows) and not cells.selected and self._dialect.grouping_sets:
            text = self._in_one_pass(clip, cells, rows)
        else:
            text = self._by_pairs(clip, cells)
        return self._outer([self._total(f"s{i}", 1) for i in range(len(statistics))], text)

    def _owners(self, statistic: Statistic) -> str:
        """How many owners have a row that counts.

        Claim: what per leaves of all owners: of each a one, or nothing.
        Because: all is one cell, where an owner with a row that counts has one, however many these are.
        Needs: nothing more: there is no other sum to be clipped with.
        """
        counted = f"COUNT(DISTINCT CASE WHEN v0 > 0 THEN {OWNER} END)"
        if statistic.where is None:
            counted = f"COUNT(DISTINCT {OWNER})"
        factor = f" * {statistic.factor}" if statistic.factor > 1 else ""
        return self._outer([f"{counted}{factor}"], self._values([statistic]))

    def _is_spared(self, clip: Clip, cells: Cells, rows: int) -> bool:
        """Whether the rows of owners with so many are added up as they are; one sum in one cell is as quick without."""
        if any(statistic.cut for statistic in clip.statistics) or (not cells.keyed and len(clip.statistics) == 1):
            return False
        return _steps(clip, cells).spare(rows) and self._is_the_same_twice(clip)

    def _is_the_same_twice(self, clip: Clip) -> bool:
        parts = [part for s in clip.statistics for part in (s.value, s.where) if part is not None]
        return is_repeatable(self._plan, [*(key.value for key in self._keys), *parts])

    def _in_two_parts(self, clip: Clip, cells: Cells, rows: int) -> str:
        """The rows of owners who have at most so many in a prepared copy, as they are; those of others by the steps.

        Claim: what per, limit and clip leave of all owners.
        Because: they change nothing of an owner with at most `rows` rows (`Steps.most_spared`), and no owner has more
        rows here than in the table. Each owner is in one of the parts, with all rows (`RelationWriter.part`).
        Needs: nothing more: no row is read twice.
        """
        assert self._counted is not None
        with self._few(rows):
            few = self._added_up(clip.statistics)
        if is_one_table(self._plan):
            with self._many(rows):
                return f"{few} UNION ALL {self._side(self._stepped(self._pairs(clip), clip, cells))}"
        # Of the other tables, too, only rows of these owners are read.
        with self._many(rows):
            pairs = self._pairs(clip, among="h")
        owners = self._writer.owners_with(self._counted, f"> {rows}")
        steps = f"WITH h {self._once} ({owners}) {self._stepped(pairs, clip, cells)}"
        return f"{few} UNION ALL {self._side(steps)}"

    def _few(self, rows: int) -> AbstractContextManager[None]:
        """What is written meanwhile reads only owners who have at most so many rows in the prepared copy."""
        assert self._counted is not None
        few = "1 row" if rows == 1 else f"{rows:,} rows"
        self.way = f"units with at most {few} in {self._counted.name} are added up as they are"
        return self._writer.part(self._counted, f"<= {rows}")

    def _many(self, rows: int) -> AbstractContextManager[None]:
        assert self._counted is not None
        return self._writer.part(self._counted, f"> {rows}")

    def _by_pairs(self, clip: Clip, cells: Cells) -> str:
        """One row for each owner and key, which the steps change for large owners only.

        Claim: what per, limit, weigh and clip leave of all owners.
        Because: but for weights, they change nothing of an owner that has not too many rows or keys (`Steps`). Whoever
        is not among those with several keys, or too many rows, has one key, and the weight of one.
        Needs: nothing more.
        """
        statistics, steps = clip.statistics, _steps(clip, cells)
        beyond = [] if steps.most_rows is None else [f"SUM(n) > {steps.most_rows}"]
        beyond += [] if steps.most_cells is None else [f"COUNT(*) > {steps.most_cells}"]
        pairs, large = self._pairs(clip, ["COUNT(*) AS n"]), f"SELECT * FROM p WHERE {OWNER} IN (SELECT {OWNER} FROM h)"
        if any(statistic.kind is StatisticKind.WEIGHTS for statistic in statistics):
            # Everybody's keys are counted, once: a window over all pairs would sort them.
            counted = f"COUNT(*) AS keys, ({' OR '.join(beyond) or 'FALSE'}) AS beyond"
            several = " OR ".join(["COUNT(*) > 1", *beyond])
            found = (
                f"o {self._once} (SELECT {OWNER} AS who, {counted} FROM p GROUP BY {OWNER} HAVING {several}),"
                f" h {self._once} (SELECT who AS {OWNER} FROM o WHERE beyond)"
            )
            weight = self._weight("COALESCE(keys, 1)", clip.norm)
            sums = [
                f"{weight} AS s{i}" if s.kind is StatisticKind.WEIGHTS else f"s{i}" for i, s in enumerate(statistics)
            ]
            joined = f"p LEFT JOIN o ON {OWNER} = who WHERE NOT COALESCE(beyond, FALSE)"
            others = f"SELECT {', '.join([*self._names, *sums])} FROM {joined}"
        else:
            found = f"h {self._once} (SELECT {OWNER} FROM p GROUP BY {OWNER} HAVING {' OR '.join(beyond)})"
            others = self._all_but("h", "p", [*self._names, *(f"s{i}" for i in range(len(statistics)))])
        stepped = self._side(self._stepped(large, clip, cells))
        return f"WITH p {self._once} ({pairs}), {found} {others} UNION ALL {stepped}"

    def _quick_to_count(self) -> Plan | None:
        """One table of which every owner has at least as many rows as in the plan; None where there is none."""
        if is_one_table(self._plan):
            return self._plan
        if self._within is None or not self._dialect.counts_apart:
            return None
        found = one_table_within(self._plan, self._within)
        return found if found is not None and is_one_table(found) else None

    def _in_two_passes(self, clip: Clip, cells: Cells, large: str) -> str:
        """Large owners are found first; then the rows of all others are added up as they are.

        Claim: what per, limit and clip leave of all owners.
        Because: they change nothing of an owner that is not among the large ones. Each owner is in one of the parts,
        with all rows.
        Needs: rows that come out the same twice (`is_repeatable`).
        """
        return (
            f"WITH h {self._once} ({large})"
            f" {self._added_up(clip.statistics, self._without('h'))}"
            f" UNION ALL {self._side(self._stepped(self._pairs(clip, among='h'), clip, cells))}"
        )

    def _with_many_rows(self, counted: Plan, rows: int) -> str:
        """Owners with more rows than declared.

        Claim: the steps change nothing of the others.
        Because: they have at most `rows` rows (`Steps.spare`), whatever keys these have; for an owner has no more rows
        in the plan than in what is counted.
        Needs: nothing more.
        """
        everyone = f"SELECT {OWNER} FROM ({self._writer.relation(counted, ())}) AS t"
        return f"{everyone} GROUP BY {OWNER} HAVING COUNT(*) > {rows}"

    def _is_clipped_alone(self, clip: Clip, cells: Cells) -> bool:
        """Whether nothing but the clip bounds sums over rows of one table, which is cheap to read twice."""
        if not cells.keyed or cells.limited or any(s.kind is not StatisticKind.ROWS for s in clip.statistics):
            return False
        return is_one_table(self._plan) and self._is_the_same_twice(clip)

    def _with_large_sums(self, clip: Clip) -> str:
        """Owners the magnitudes of whose rows add up to more than a clip.

        Claim: per and clip change nothing of the others.
        Because: no norm of sums over cells, L1 or L2, is more than the sum of all magnitudes; and where the norm of a
        group is within its clip, so is each of its sums.
        Needs: sums that are cut before they are weighed, so that 128 bits hold them, and just above the clip, so that
        one that is beyond it stays beyond.
        """
        totals = [
            "COUNT(*)" if counts_rows(statistic) else f"COALESCE({self._dialect.sum_of(f'ABS(v{i})')}, 0)"
            for i, statistic in enumerate(clip.statistics)
        ]
        conditions = []
        for group in clip.groups:
            scale = clip.scale(group)
            times = [w * clip.statistics[i].factor for i, w in zip(group, scale.weights, strict=True)]
            if len(group) == 1:
                conditions.append(f"{totals[group[0]]} > {scale.whole // times[0]}")
                continue
            cut = [f"LEAST(CAST({totals[i]} AS {self._dialect.wide}), {scale.whole + 1})" for i in group]
            weighed = [f"{total} * {weight}" for total, weight in zip(cut, times, strict=True)]
            conditions.append(f"{' + '.join(weighed)} > {scale.whole}")
        values = self._values(clip.statistics)
        return f"SELECT {OWNER} FROM ({values}) AS v GROUP BY {OWNER} HAVING {' OR '.join(conditions)}"

    def _in_one_pass(self, clip: Clip, cells: Cells, rows: int) -> str:
        """All rows are added up as they are; the sums of large owners are taken off, and what the steps leave is added.

        Claim: what per, limit and clip leave of all owners; a declared key may come with zeros instead of not at all.
        Because: as for two passes. What is taken off is what was added: exact integers of the same rows.
        Needs: rows that come out the same twice (`is_repeatable`); cells that are all declared, for a cell that comes
        with zeros must not tell. That each key has its values is not enough: all together they may be too many, and
        a threshold selects among the cells that come.
        """
        statistics = clip.statistics
        sums = [f"{self._sum(i, statistic)} AS s{i}" for i, statistic in enumerate(statistics)]
        raw = [f"{self._sum(i, statistic)} AS r{i}" for i, statistic in enumerate(statistics)]
        added = ", ".join([*self._names, *(f"s{i}" for i in range(len(sums)))])
        taken = ", ".join([*self._names, *(f"-r{i}" for i in range(len(sums)))])
        columns = ", ".join([self._pair, f"GROUPING({OWNER}) AS whole", "COUNT(*) AS n", *sums])
        sets = f"GROUPING SETS (({OWNER}), ({', '.join(self._names)}))"
        return (
            f"WITH g {self._once} (SELECT {columns} FROM ({self._values(statistics)}) AS v GROUP BY {sets}),"
            f" h {self._once} (SELECT {OWNER} FROM g WHERE whole = 0 AND n > {rows}),"
            f" p {self._once} ({self._pairs(clip, raw, among='h')})"
            f" SELECT {added} FROM g WHERE whole = 1 UNION ALL SELECT {taken} FROM p"
            f" UNION ALL {self._side(self._stepped('SELECT * FROM p', clip, cells))}"
        )

    def _pairs(self, clip: Clip, more: Sequence[str] = (), *, among: str = "") -> str:
        """One row for each owner, of all or of those in `among`, and key."""
        per = [self._per(i, statistic) for i, statistic in enumerate(clip.before)]
        self._writer.among = among
        values = self._values(clip.statistics)
        self._writer.among = ""
        return f"SELECT {', '.join([self._pair, *more, *per])} FROM ({values}) AS v GROUP BY {self._pair}"

    def _all_but(self, large: str, source: str, columns: Sequence[str]) -> str:
        return f"SELECT {', '.join(columns)} FROM {source} AS t{self._without(large)}"

    def _without(self, large: str) -> str:
        """Leaves the rows of `t` whose owner is not among these."""
        return f" WHERE {self._dialect.not_owned_by.format(f'SELECT {OWNER} FROM {large}')}"

    def _stepped(self, pairs: str, clip: Clip, cells: Cells, *, everybody: bool = False) -> str:
        """Keys and sums that limit, weigh and clip leave of each owner and key, of large owners or of all."""
        columns = [f"s{i}" for i in range(len(clip.statistics))]
        text = pairs
        if cells.keyed and cells.limited:
            limited = self._limited_if_many if everybody else self._limited
            text = limited(text, columns, cells.groups)
            text = self._weighted(text, clip.statistics, clip.norm)
        if cells.keyed and not (cells.limited and cells.groups == 1):
            text = self._clipped(text, clip, cells)
        elif clip.is_joint:
            text = self._clipped_in_one_cell(text, clip)
        return f"SELECT {', '.join([*self._names, *columns])} FROM ({text}) AS b"

    def _per(self, i: int, statistic: Statistic) -> str:
        """One owner's sum in one cell: never beyond what it is cut to, whatever the number of rows."""
        if statistic.kind is StatisticKind.WEIGHTS:
            return f"0 AS s{i}"  # not before the keys are limited
        if statistic.kind is StatisticKind.UNITS:
            total = f"COALESCE(MAX(v{i}), 0)"
        elif counts_rows(statistic):
            total = f"LEAST(COUNT(*), {statistic.clip // statistic.factor})"
        else:
            most = statistic.clip // statistic.factor
            total = f"COALESCE({self._dialect.sum_of(f'v{i}')}, 0)"
            total = f"CASE WHEN {total} > {most} THEN {most} WHEN {total} < -{most} THEN -{most} ELSE {total} END"
        factor = f" * {statistic.factor}" if statistic.factor > 1 else ""
        return f"CAST({total} AS {self._int64}){factor} AS s{i}"

    def _limited(self, inner: str, columns: Sequence[str], groups: int) -> str:
        """At most `groups` keys per owner.

        Claim: exactly min(groups, number of its keys) rows per owner, chosen by that owner's keys and the salt alone.
        Because: row_number over a total order never lets ties pass; the order is a hash keyed with a fresh secret
        salt, then the keys themselves.
        Needs: one row per owner and key in `inner`.
        """
        order = ", ".join([self._hash(self._names), *self._names])
        numbered = f"SELECT *, row_number() OVER (PARTITION BY {OWNER} ORDER BY {order}) AS place FROM ({inner}) AS p"
        return f"SELECT {', '.join([OWNER, *self._names, *columns])} FROM ({numbered}) AS n WHERE place <= {groups}"

    def _limited_if_many(self, inner: str, columns: Sequence[str], groups: int) -> str:
        """The same, where most owners have no more keys than that: these are spared the hash and the order.

        Claim: what `_limited` leaves.
        Because: it leaves an owner who has no more than `groups` keys all of them. Each owner is in one of the parts.
        Needs: one row per owner and key in `inner`.
        """
        few = self._all_but("x", "q", [OWNER, *self._names, *columns])
        many = self._limited(f"SELECT * FROM q WHERE {OWNER} IN (SELECT {OWNER} FROM x)", columns, groups)
        return (
            f"WITH q {self._once} ({inner}),"
            f" x {self._once} (SELECT {OWNER} FROM q GROUP BY {OWNER} HAVING COUNT(*) > {groups})"
            f" {few} UNION ALL {many}"
        )

    def _hash(self, names: Sequence[str]) -> str:
        text = self._dialect.types[Kind.TEXT]
        parts = [f"COALESCE('v' || CAST({name} AS {text}), 'n')" for name in names]
        salt = self._dialect.salt.format(self._writer.scalars.parameter("salt"))
        salted = f" || {self._dialect.separator} || ".join([salt, f"CAST({OWNER} AS {text})", *parts])
        return self._dialect.chosen_by.format(salted)

    def _weighted(self, inner: str, statistics: Sequence[Statistic], norm: Literal["l1", "l2"]) -> str:
        """Weights of the keys that are left to each owner.

        Claim: positive, and at most `key_weight(d)` in each of the owner's d keys.
        Because: d is counted over the owner's rows, one for each key. The square root is rounded up beyond its error.
        Needs: at most so many keys that 1 / d does not vanish in fixed point; else such an owner selects none.
        """
        if all(statistic.kind is not StatisticKind.WEIGHTS for statistic in statistics):
            return inner
        weight = self._weight(f"COUNT(*) OVER (PARTITION BY {OWNER})", norm)
        columns = [
            f"{weight} AS s{i}" if statistic.kind is StatisticKind.WEIGHTS else f"s{i}"
            for i, statistic in enumerate(statistics)
        ]
        return f"SELECT {', '.join([OWNER, *self._names, *columns])} FROM ({inner}) AS l"

    def _weight(self, keys: str, norm: Literal["l1", "l2"]) -> str:
        """What one of so many keys weighs; the number is not zero."""
        if norm == "l1":
            return self._dialect.whole_quotient.format(WHOLE_WEIGHT, keys)
        root = f"sqrt(CAST({keys} AS {self._dialect.types[Kind.DOUBLE]})) * 1.000000001"
        return f"CAST(floor({WHOLE_WEIGHT} / ({root})) AS {self._int64})"

    def _clipped(self, inner: str, clip: Clip, cells: Cells) -> str:
        """Each owner's vector scaled down to its norm: all cells of all statistics of a group.

        Claim: the norm of each owner's integers, each divided by its own clip, is at most 1 in every group; vectors
        within that are unchanged.
        Because: with whole weights w >= M / clip, sign(s) * floor(|s| * M / N) with N >= the norm of the w * s shrinks
        every entry by at least M / N, toward zero, which brings the norm of the w * s to at most M.
        What follows a count (`Clip.leaders`) shrinks by the smaller of both factors, so that its norm is no larger.
        Needs: |s| * M below 2**108 and the sum of squares below 2**127 (`Clip.before`).
        """
        norms, columns, beyond = [], dict[int, str](), []
        for g, group in enumerate(clip.groups):
            if cells.limited and len(group) == 1 and clip.statistics[group[0]].kind in _OF_UNITS:
                columns[group[0]] = f"s{group[0]}"  # at most `groups` of them are left, ones or weights
                continue
            scale = clip.scale(group)
            norm = f"SUM({self._norm(scale, group, clip)})"
            norms.append(f"{norm} AS n{g}")
            beyond.append(f"{norm} > {scale.bound}")
            for i in group:
                columns[i] = f"{self._scaled(i, clip)} AS s{i}"
        if not norms:
            return inner
        # Few owners are beyond their clip; the others meet none of these and stay as they are.
        found = f"SELECT {OWNER} AS large, {', '.join(norms)} FROM m GROUP BY {OWNER} HAVING {' OR '.join(beyond)}"
        shown = [columns[i] for i in range(len(clip.statistics))]
        return (
            f"WITH m {self._once} ({inner}), c AS ({found})"
            f" SELECT {', '.join([*self._names, *shown])} FROM m LEFT JOIN c ON {OWNER} = large"
        )

    def _clipped_in_one_cell(self, inner: str, clip: Clip) -> str:
        """The same where an owner has one cell: its vector are the statistics of a group, side by side."""
        if clip.exclusive:
            inner = self._exclusive(inner, clip)
        norms, columns = [], [f"s{i}" for i in range(len(clip.statistics))]
        for g, group in enumerate(clip.groups):
            if len(group) == 1 and group[0] not in clip.with_room:
                continue  # cut to its clip already
            norms.append(f"{self._norm(clip.scale(group), group, clip)} AS n{g}")
            for i in group:
                columns[i] = f"{self._scaled(i, clip)} AS s{i}"
        with_norms = f"SELECT *, {', '.join(norms)} FROM ({inner}) AS p"
        return f"SELECT {', '.join([*self._names, *columns])} FROM ({with_norms}) AS n"

    def _exclusive(self, inner: str, clip: Clip) -> str:
        """Of a group's conditions the first that an owner adds to: one with more rows than declared counts once."""
        columns = []
        for i, statistic in enumerate(clip.statistics):
            group = next(group for group in clip.groups if i in group)
            before = [f"s{j} <> 0" for j in group[: group.index(i)] if clip.statistics[j].where != statistic.where]
            columns.append(f"CASE WHEN {' OR '.join(before)} THEN 0 ELSE s{i} END AS s{i}" if before else f"s{i}")
        if all(column == f"s{i}" for i, column in enumerate(columns)):
            return inner
        return f"SELECT {', '.join([OWNER, *self._names, *columns])} FROM ({inner}) AS x"

    def _norm(self, scale: Scale, group: Sequence[int], clip: Clip) -> str:
        """What one cell adds to the norm: magnitudes, or squares."""
        parts = []
        for i, weight in zip(group, scale.weights, strict=True):
            entry = f"CAST(s{i} AS {self._dialect.wide})"
            size = f"ABS({entry})" if clip.norm == "l1" else f"{entry} * {entry}"
            times = weight if clip.norm == "l1" else weight**2
            parts.append(size if times == 1 else f"{size} * {times}")
        return " + ".join(parts)

    def _scaled(self, i: int, clip: Clip) -> str:
        """The sum as far down as its norm demands, and that of a count it follows: by the smaller of their factors."""
        wide = self._dialect.wide
        size, sizes, beyond = f"ABS(CAST(s{i} AS {wide}))", [], []
        for g in clip.norms_of(i):
            scale, norm = clip.scale(clip.groups[g]), f"n{g}"
            length = norm
            if clip.norm == "l2":
                # Rounded up beyond the error of the square root.
                root = f"sqrt(CAST({norm} AS {self._dialect.types[Kind.DOUBLE]}))"
                length = f"CAST(ceil({root} * 1.000000001) AS {wide})"
            beyond.append(f"{norm} > {scale.bound}")
            sizes.append(self._dialect.wide_quotient.format(f"({size} * {scale.whole})", length))
        if len(sizes) > 1:
            sizes = [f"CASE WHEN {b} THEN {s} ELSE {size} END" for b, s in zip(beyond, sizes, strict=True)]
            sizes = [f"LEAST({', '.join(sizes)})"]
        # An engine's sign of a 64-bit integer may be a double, and so would be all that is added up with it.
        return f"CASE WHEN {' OR '.join(beyond)} THEN SIGN(CAST(s{i} AS {wide})) * {sizes[0]} ELSE s{i} END"

    def _of_single_rows(self, i: int, statistic: Statistic) -> str:
        if statistic.value is None and statistic.where is None:
            return f"COUNT(*) * {statistic.factor}" if statistic.factor > 1 else "COUNT(*)"
        return self._total(f"v{i}", statistic.factor)

    def _total(self, column: str, factor: int) -> str:
        scale = f" * {factor}" if factor > 1 else ""
        total = f"COALESCE({self._dialect.sum_of(column)}, 0){scale}"
        # Slower than CASE, value by value, but less text to read; there is one for each group.
        return f"CAST(LEAST(GREATEST({total}, -{LARGEST_SUM}), {LARGEST_SUM}) AS {self._int64})"

    def _outer(self, totals: Sequence[str], inner: str) -> str:
        return f"SELECT {self._key_list}{', '.join(totals)} FROM ({inner}) AS o{self._group}"

    def _side(self, text: str) -> str:
        """A query as a part of a UNION, whatever it begins with."""
        return self._dialect.side.format(text)

    # --- histograms ---

    def histogram(self, statistic: Statistic, rows: int, *, single: bool) -> str:
        """How many rows have each value on the grid, in each cell.

        Claim: one owner adds at most the clip, over all keys and values together.
        Because: the value is a key as the others are, and the steps are those of a count of rows; L1 in any accounting.
        Needs: nothing more.
        """
        groups = f"{self._key_list}g"
        if single:
            text = self._grid_rows(statistic)
            return f"SELECT {groups}, {self._total('1', statistic.factor)} FROM ({text}) AS o GROUP BY {groups}"
        if self._counted is None:
            text = self._bars(statistic, rows)
        else:
            # No more rows than count in full, and so in no more cells.
            least = min(rows, statistic.clip // statistic.factor)
            with self._few(least):
                few = f"SELECT {groups}, {statistic.factor} AS s0 FROM ({self._grid_rows(statistic)}) AS v"
            with self._many(least):
                bars = self._side(f"SELECT {groups}, s0 FROM ({self._bars(statistic, rows)}) AS b")
                text = f"{few} UNION ALL {bars}"
        return f"SELECT {groups}, {self._total('s0', 1)} FROM ({text}) AS o GROUP BY {groups}"

    def _grid_rows(self, statistic: Statistic) -> str:
        """Keys and the value on its grid of each row; rows without one are gone before any is chosen."""
        assert statistic.value is not None
        raw = [OWNER, *self._keys_as(), f"{self._writer.scalar(statistic.value)} AS e0", *self._where_as(statistic)]
        used = [*(key.value for key in self._keys), statistic.value, *([statistic.where] if statistic.where else [])]
        needed = [ref.field for part in used for ref in refs(part)]
        inner = self._computed(raw, self._writer.relation(self._plan, needed), needed, used)
        grid = self._on_grid(0, replace(statistic, where=None))
        shown = ", ".join([OWNER, *self._names, f"CAST({grid} AS {self._int64}) AS g"])
        conditions = [c for key, name in zip(self._keys, self._names, strict=True) if (c := self._declared(key, name))]
        conditions += [] if statistic.where is None else ["w0"]
        text = f"SELECT {shown} FROM ({inner}) AS e" + (f" WHERE {' AND '.join(conditions)}" if conditions else "")
        return f"SELECT * FROM ({text}) AS v WHERE g IS NOT NULL"

    def _bars(self, statistic: Statistic, rows: int) -> str:
        """What the steps leave of each owner's rows: with the value as one more key, a clipped count."""
        groups = f"{self._key_list}g"
        text = self._grid_rows(statistic)
        most = statistic.clip // statistic.factor
        factor = f" * {statistic.factor}" if statistic.factor > 1 else ""
        counted = f"CAST(CASE WHEN COUNT(*) > {most} THEN {most} ELSE COUNT(*) END AS {self._int64}){factor} AS s0"
        text = f"SELECT {OWNER}, {groups}, {counted} FROM ({text}) AS v GROUP BY {OWNER}, {groups}"
        cells = Cells(True, rows, rows == 1)
        clip = Clip([statistic], [[0]], "l1")
        self._names.append("g")
        text = self._limited_if_many(text, ["s0"], 1) if cells.limited else self._clipped(text, clip, cells)
        self._names.pop()
        return text

    # --- clips ---

    def contributions(self, statistic: Statistic, rows: int, norm: Literal["l1", "l2"]) -> str:
        """How many owners contribute no more than each clip, and more than the one before it.

        Claim: each owner is counted once.
        Because: its rows are added up to one number, the norm of its sums in all cells, which one branch of the CASE
        takes. Differences of who has more rows than count weigh less, as they will in their sum (`Clip.leaders`).
        Needs: values within 64 bits, as `_on_grid` makes them; sums that are cut, so that squares can be added up.
        """
        wide, found = self._dialect.wide, clips(statistic)
        known = all(key.keys is not None for key in self._keys)
        most = min(finest(_declared_cells(self._keys) if known else _MOST_CELLS), MOST_ROOM * found[-1])
        total = f"COALESCE({self._dialect.sum_of('v0')}, 0)"
        cut = f"CASE WHEN {total} > {most} THEN {most} WHEN {total} < -{most} THEN -{most} ELSE {total} END"
        per = f"SELECT {self._pair}, CAST({cut} AS {wide}) AS s, COUNT(v0) AS n FROM ({self._values([statistic])}) AS v"
        length = "SUM(ABS(s))"
        if norm == "l2":
            root = f"sqrt(CAST(SUM(s * s) AS {self._dialect.types[Kind.DOUBLE]}))"
            length = f"CAST(ceil({root}) AS {wide})"
        counted, limits = "1", [str(clip) for clip in found[:-1]]
        if statistic.shape is Shape.RESIDUAL:
            counted = f"CAST(CASE WHEN SUM(n) > {rows} THEN SUM(n) ELSE {rows} END AS {wide})"
            limits = [self._dialect.wide_quotient.format(f"(c * {limit})", rows) for limit in limits]
        of_owner = f"SELECT {length} AS l, {counted} AS c FROM ({per} GROUP BY {self._pair}) AS p GROUP BY {OWNER}"
        steps = " ".join(f"WHEN l <= {limit} THEN {place}" for place, limit in enumerate(limits))
        place = f"CASE {steps} ELSE {len(limits)} END" if limits else "0"
        bars = f"SELECT CAST({place} AS {self._int64}) AS g FROM ({of_owner}) AS b"
        return f"SELECT g, {self._total('1', 1)} FROM ({bars}) AS o GROUP BY g"

    def means(self, statistic: Statistic) -> str:
        """How many owners have their mean in each place between the bounds.

        Claim: each owner is counted at most once.
        Because: its values are added up to one mean, which lies in one place; without values it has none.
        Needs: values from low to high, as `_on_grid` makes them: above low they add up to at most (high - low) each,
        so that no place is beyond the last.
        """
        wide = self._dialect.wide
        above = f"(SUM(CAST(v0 AS {wide})) - COUNT(v0) * CAST({statistic.low} AS {wide})) * {centres(statistic)}"
        place = self._dialect.wide_quotient.format(above, f"(COUNT(v0) * CAST({statistic.width + 1} AS {wide}))")
        mean = f"CAST({place} AS {self._int64}) AS g"
        per = f"SELECT {OWNER}, {mean} FROM ({self._values([statistic])}) AS v GROUP BY {OWNER}"
        return f"SELECT g, {self._total('1', 1)} FROM ({per}) AS o WHERE g IS NOT NULL GROUP BY g"

    # --- DISTINCT ---

    def distinct(self, statistic: Statistic, rows: int, *, single: bool) -> str:
        """COUNT(DISTINCT x) or SUM(DISTINCT x): at most `rows` pairs of key and value per owner."""
        if single:
            text = self._values_by_owner(statistic)
        elif self._counted is None:
            text = self._few_values(statistic, rows)
        else:
            # No more rows than pairs are allowed.
            with self._few(rows):
                few = self._values_by_owner(statistic)
            with self._many(rows):
                text = f"{few} UNION ALL {self._side(self._few_values(statistic, rows))}"
        if statistic.kind is StatisticKind.DISTINCT_SUM or not self._dialect.count_distinct:
            text = f"SELECT DISTINCT {self._key_list}d FROM ({text}) AS q"
        counted = "COUNT(DISTINCT d)" if self._dialect.count_distinct else "COUNT(d)"
        return self._outer([counted if statistic.kind is StatisticKind.DISTINCT else self._total("d", 1)], text)

    def _values_by_owner(self, statistic: Statistic) -> str:
        """Owner, keys and value of each row that has one."""
        assert statistic.value is not None
        if statistic.kind is StatisticKind.DISTINCT:
            shown = f"{self._different(statistic.value)} AS d"
        else:
            shown = f"{self._writer.scalar(statistic.value)} AS e0"
        raw = [OWNER, *self._keys_as(), shown, *self._where_as(statistic)]
        used = [*(key.value for key in self._keys), statistic.value, *([statistic.where] if statistic.where else [])]
        needed = [ref.field for part in used for ref in refs(part)]
        inner = self._computed(raw, self._writer.relation(self._plan, needed), needed, used)
        if statistic.kind is StatisticKind.DISTINCT_SUM:
            grid = self._on_grid(0, statistic)
            inner = f"SELECT {', '.join([OWNER, *self._names, f'{grid} AS d'])} FROM ({inner}) AS e"
        conditions = [c for key, name in zip(self._keys, self._names, strict=True) if (c := self._declared(key, name))]
        if statistic.where is not None and statistic.kind is StatisticKind.DISTINCT:
            conditions.append("w0")
        conditions.append("d IS NOT NULL")
        pairs = ", ".join([OWNER, *self._names, "d"])
        return f"SELECT {pairs} FROM ({inner}) AS e WHERE {' AND '.join(conditions)}"

    def _different(self, value: Scalar) -> str:
        """What is counted once, however often it comes; of several values a text that no others have.

        Each is written with its length before it, so that it is known where it ends; and NULL as a letter.
        """
        if not isinstance(value, Array):
            return self._key(value)
        text = self._dialect.types[Kind.TEXT]
        # Equal decimals may be stored with different numbers of digits.
        keys = [
            f"round({self._key(item)}, {item.type.scale})" if item.type.kind is Kind.DECIMAL else self._key(item)
            for item in value.items
        ]
        parts = [f"CAST({key} AS {text})" for key in keys]
        return " || ".join(f"COALESCE(CAST(length({part}) AS {text}) || ':' || {part}, 'n')" for part in parts)

    def _few_values(self, statistic: Statistic, rows: int) -> str:
        """Of each owner at most `rows` different pairs of key and value."""
        pairs = ", ".join([OWNER, *self._names, "d"])
        different = f"SELECT DISTINCT {pairs} FROM ({self._values_by_owner(statistic)}) AS u"
        self._names.append("d")
        text = self._limited_if_many(different, [], rows)
        self._names.pop()
        return text


def _declared_cells(keys: Sequence[Key]) -> int:
    """How many cells there are, where all keys are declared."""
    return math.prod(max(len(key.keys or ()) + key.remainder, 1) for key in keys)


def _steps(clip: Clip, cells: Cells) -> Steps:
    return Steps(clip.statistics, clip.groups, cells, clip.norm)
