"""Rows that nothing has to bound, added up as they are: by stored columns, of which keys and sums are made later."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from fractions import Fraction

from dpsql.generate.large_owners import is_one_table
from dpsql.generate.late_keys import late_keys, read_fields
from dpsql.generate.made_sums import MadeSum, shapes_of_one_value
from dpsql.generate.row_values import RowValues
from dpsql.generate.stored_sums import StoredSum, stored_sums
from dpsql.privacy.rules.aggregates import Statistic


class AddedUp(RowValues):
    def _added_up(self, statistics: Sequence[Statistic], others: str = "") -> str:
        """Keys and sums s0, s1 … of rows as they are; a key may come several times. `others` may leave out rows.

        Claim: the sums by keys, of values on their grid, of each row.
        Because: a key is a function of one column, so that all rows of a group have it. Rows in which all summed
        columns are within their bounds, and rows in which one is not, are all rows, each once
        (`RelationWriter._in_bounds`).
        Needs: columns that nothing else reads before (`late_keys`, `stored_sums`), of types in which equal values are
        the same. Only the sums rely on the test of bounds, and they are defined beyond them, too.
        """
        with self._by_stored_columns(statistics) as sums:
            if not self._late and not sums and not shapes_of_one_value(statistics):
                added = [f"{self._sum(i, statistic)} AS s{i}" for i, statistic in enumerate(statistics)]
                values = f"SELECT {', '.join([*self._names, *added])} FROM ({self._values(statistics)})"
                return f"{values} AS {'t' if others else 'v'}{others}{self._group}"
            if not sums:
                return self._with_keys(self._in_groups(statistics, others), statistics)
            bounds: dict[int, tuple[Fraction, Fraction]] = {}
            for each in sums.values():
                low, high = bounds.get(each.stored.field, (each.low, each.high))
                bounds[each.stored.field] = max(low, each.low), min(high, each.high)
            self._writer.bounds = bounds
            late = self._writer.raw
            self._writer.raw = {*late, *bounds}
            self._stored_sums = sums
            within = self._in_groups(statistics, others)
            self._writer.raw, self._writer.beyond, self._stored_sums = late, True, {}
            beyond = self._in_groups(statistics, others)
            return self._with_keys(f"{within} UNION ALL {beyond}", statistics)

    def _reads_stored(self, statistics: Sequence[Statistic]) -> bool:
        """Whether any key or sum can be made of what is stored, or several sums of fewer."""
        with self._by_stored_columns(statistics) as sums:
            return bool(self._late or sums or shapes_of_one_value(statistics))

    @contextmanager
    def _by_stored_columns(self, statistics: Sequence[Statistic]) -> Iterator[Mapping[int, StoredSum]]:
        """Rows are grouped by stored columns meanwhile, and those that sums could be made of are yielded."""
        self._late = late_keys(self._plan, self._keys, statistics, copies=self._copies)
        raw = {late.stored.field for late in self._late.values() if late.is_raw}
        self._writer.raw = raw
        try:
            yield self._sums_of_stored(statistics, raw) if self._dialect.skips_blocks else {}
        finally:
            self._late, self._stored_sums = {}, {}
            self._writer.raw, self._writer.bounds, self._writer.beyond = frozenset(), {}, False

    def _sums_of_stored(self, statistics: Sequence[Statistic], raw: set[int]) -> dict[int, StoredSum]:
        if not is_one_table(self._plan, copies=self._copies):
            return {}
        found = stored_sums(statistics, self._stored)
        values = [key.value for key, name in zip(self._keys, self._names, strict=True) if name not in self._late]
        rest = [statistic for i, statistic in enumerate(statistics) if i not in found]
        values += [part for s in rest for part in (s.value, s.where) if part is not None]
        read = raw | read_fields(self._plan, values)
        return {i: each for i, each in found.items() if each.stored.field not in read}

    def _in_groups(self, statistics: Sequence[Statistic], others: str) -> str:
        """What groups are made by, how many rows each has (n), and their sums."""
        groups, made = self._groups, self._made(statistics)
        counted = {"n": "COUNT(*)"}
        places = {each.place for each in made.values()}
        summed = {i for i, s in enumerate(statistics) if not counts_rows(s) and i not in made} | places
        counted |= {f"t{i}": f"SUM(v{i})" for i in sorted(summed)}
        squared = {each.place for each in made.values() if each.by.squares}
        counted |= {f"q{i}": f"SUM({self._square(i)})" for i in sorted(squared)}
        self._above = {i: each.place for i, each in made.items() if i not in self._stored_sums}
        counted |= {f"m{i}": f"COUNT(v{i})" for i in sorted(set(self._above.values()))}
        values = self._values(statistics)
        self._above = {}
        grouped = f" GROUP BY {', '.join(groups)}" if groups else ""
        source = f"FROM ({values}) AS t{others}{grouped}"
        sums = [self._of_group(i, s, made) for i, s in enumerate(statistics)]
        if counted.keys() >= set(sums):
            shown = [f"{counted[text]} AS s{i}" for i, text in enumerate(sums)]
            return f"SELECT {', '.join([*groups, 'COUNT(*) AS n', *shown])} {source}"
        added = [f"{text} AS {name}" for name, text in counted.items()]
        shown = [f"{text} AS s{i}" for i, text in enumerate(sums)]
        return f"SELECT {', '.join([*groups, 'n', *shown])} FROM (SELECT {', '.join([*groups, *added])} {source}) AS r"

    def _made(self, statistics: Sequence[Statistic]) -> dict[int, MadeSum]:
        """The sums that are made of others: of stored columns, or of shapes of one value."""
        stored = {each.stored.field: i for i, each in self._stored_sums.items()}
        found = {
            i: MadeSum(stored[each.stored.field], each.made, "n", each.stored.column.type.scale)
            for i, each in self._stored_sums.items()
        }
        return found | {i: each for i, each in shapes_of_one_value(statistics).items() if i not in found}

    def _square(self, i: int) -> str:
        each = self._stored_sums.get(i)
        if each is None:
            return f"v{i} * v{i}"
        assert self._dialect.square is not None
        return self._dialect.square(f"v{i}", each.stored.column.type)

    def _of_group(self, i: int, statistic: Statistic, made: Mapping[int, MadeSum]) -> str:
        """A sum, of what was added up for its group."""
        text = f"t{i}"
        if counts_rows(statistic):
            text = "n"
        elif (each := made.get(i)) is not None:
            text = each.text(self._dialect.wide)
        return f"{text} * {statistic.factor}" if statistic.factor > 1 else text

    def _with_keys(self, groups: str, statistics: Sequence[Statistic]) -> str:
        """Keys made of stored columns; groups without a declared one are left out."""
        sums = [f"s{i}" for i in range(len(statistics))]
        if not self._late:
            return f"SELECT {', '.join([*self._names, *sums])} FROM ({groups}) AS r"
        others = [name for name in self._names if name not in self._late]
        columns: dict[str, str] = {}
        for late in self._late.values():
            name = self._raw_name(late.stored.field)
            columns[self._writer.name(late.shown)] = (
                self._writer.normalised(late.stored.column, name) if late.is_raw else name
            )
        made = [f"{text} AS {name}" for name, text in columns.items()]
        text = f"SELECT {', '.join([*made, *others, 'n', *sums])} FROM ({groups}) AS r"
        named = list(zip(self._keys, self._names, strict=True))
        of = {name: self._key(key.value) if name in self._late else name for key, name in named}
        if not all(map(str.isidentifier, of.values())):
            keys = [f"{of[name]} AS {name}" if name in self._late else name for name in self._names]
            text, of = f"SELECT {', '.join([*keys, 'n', *sums])} FROM ({text}) AS m", {name: name for name in of}
        shown = [self._shown(key, name, of[name]) if name in self._late else name for key, name in named]
        text = f"SELECT {', '.join([*shown, *sums])} FROM ({text}) AS e"
        late_ones = [(key, of[name]) for key, name in named if name in self._late]
        tests = [t for key, name in late_ones if not key.remainder and (t := self._declared(key, name))]
        # The number of rows keeps an engine from testing each row instead of each group.
        return f"{text} WHERE CASE WHEN {' AND '.join(tests)} THEN n > 0 ELSE FALSE END" if tests else text

    def _sum(self, i: int, statistic: Statistic) -> str:
        """Of the rows as they are."""
        total = "COUNT(*)" if counts_rows(statistic) else f"SUM(v{i})"
        return f"{total} * {statistic.factor}" if statistic.factor > 1 else total


def counts_rows(statistic: Statistic) -> bool:
    return statistic.value is None and statistic.where is None
