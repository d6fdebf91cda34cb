"""What each row adds, and rows that are added up as they are.

What each row adds: its owner, its keys in one form, and its values as integers within their bounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import date
from fractions import Fraction

from dpsql.lowering.dialect import Dialect, Grid
from dpsql.lowering.fast_paths import (
    SUMMED_DIGITS,
    Key,
    LateKey,
    StoredSum,
    is_one_table,
    late_keys,
    read_fields,
    stored_columns,
    stored_sums,
)
from dpsql.lowering.relations import OWNER, RelationWriter
from dpsql.lowering.scalars import number
from dpsql.plan.nodes import Plan
from dpsql.plan.scalars import Field, Ref, Scalar, refs
from dpsql.policy.model import Table
from dpsql.privacy.estimators.basis import Polynomial, Shape, polynomial
from dpsql.privacy.rules.aggregates import Statistic
from dpsql.types import Kind, Type, Value

# An expression with more text than this is not copied to each place that uses it.
LONG = 400


class RowValues:
    def __init__(self, plan: Plan, keys: Sequence[Key], dialect: Dialect, within: Table | None) -> None:
        self._plan = plan
        self._keys = keys
        self._dialect = dialect
        self._once, self._int64 = dialect.materialized, dialect.int64
        self._within = within  # a table of which every owner has at least as many rows as in the plan
        self._counted = within if within is not None and within.copy is not None else None
        self.way = ""
        self._writer = RelationWriter(dialect, private=True)
        self._names = [f"k{i}" for i in range(len(keys))]
        self._key_list = "".join(f"{name}, " for name in self._names)
        self._pair = ", ".join([OWNER, *self._names])
        self._group = f" GROUP BY {', '.join(self._names)}" if keys else ""
        self._stored = stored_columns(plan)
        self._late: dict[str, LateKey] = {}  # keys that are made of groups of rows, by name
        self._stored_sums: Mapping[int, StoredSum] = {}  # sums of columns that are read as they are stored, by place
        self._above: Mapping[int, int] = {}  # sums that are made of how far the values of another are above the lowest

    @property
    def parameters(self) -> frozenset[str]:
        """Of what was written."""
        return frozenset(self._writer.scalars.parameters)

    def _values(self, statistics: Sequence[Statistic]) -> str:
        """Keys and grid values of each row; rows whose key is not among the declared ones are dropped."""
        exprs = [s.value for s in statistics if s.value is not None] + [
            s.where for s in statistics if s.where is not None
        ]
        needed = [ref.field for value in [*(key.value for key in self._keys), *exprs] for ref in refs(value)]
        child = self._writer.relation(self._plan, needed)
        named = list(zip(self._keys, self._names, strict=True))
        early = [(key, name) for key, name in named if name not in self._late]
        raw = {name: self._key(key.value) for key, name in early}
        shown_as = {self._raw_name(late.stored.field): late.shown for late in self._late.values()}
        raw |= {name: self._writer.name(field) for name, field in shown_as.items()}
        names: dict[Scalar, str] = {}  # of values; several sums may be of the same
        read = {i: s for i, s in enumerate(statistics) if self._above.get(i, i) == i}
        for i, statistic in read.items():
            if statistic.value is not None and statistic.value not in names:
                names[statistic.value] = f"e{i}"
                raw[f"e{i}"] = self._writer.scalar(statistic.value)
            if statistic.where is not None:
                raw[f"w{i}"] = self._writer.scalar(statistic.where)
        if all(name[0] != "w" and text.isidentifier() for name, text in raw.items()):
            inner, of = f"({child}) AS t", raw
        else:
            columns = [OWNER, *(f"{text} AS {name}" for name, text in raw.items())]
            values = [*(key.value for key in self._keys), *exprs]
            inner, of = f"({self._computed(columns, child, needed, values)}) AS e", {name: name for name in raw}
        grid = []
        for i, statistic in read.items():
            name = "" if statistic.value is None else of[names[statistic.value]]
            shaped = replace(statistic, shape=Shape.ABOVE) if i in self._above else statistic
            value = self._as_stored(i, name) if i in self._stored_sums else self._on_grid(i, shaped, name)
            grid.append(f"{value} AS v{i}")
        shown = [_as(of[name], name) for name in shown_as]
        shown += [self._shown(key, name, of[name]) for key, name in early]
        text = f"SELECT {', '.join([OWNER, *shown, *grid])} FROM {inner}"
        return text + self._among_declared([(key, of[name]) for key, name in early])

    @property
    def _groups(self) -> list[str]:
        """What rows are grouped by: keys, and stored columns that keys are made of afterwards."""
        raw = dict.fromkeys(self._raw_name(late.stored.field) for late in self._late.values())
        return [*raw, *(name for name in self._names if name not in self._late)]

    def _raw_name(self, field: int) -> str:
        fields = list(dict.fromkeys(late.stored.field for late in self._late.values()))
        return f"r{fields.index(field)}"

    def _as_stored(self, i: int, name: str) -> str:
        """A stored number in a type whose sums cannot overflow; NULL for one with more digits, beyond all bounds."""
        type_ = self._stored_sums[i].stored.column.type
        if type_.kind is Kind.INTEGER:
            return name
        return self._dialect.fit(name, Type(Kind.DECIMAL, SUMMED_DIGITS, type_.scale))

    def _among_declared(self, named: Sequence[tuple[Key, str]]) -> str:
        found = [declared for key, name in named if not key.remainder and (declared := self._declared(key, name))]
        if self._counted is not None:
            found = [self._dialect.after_scan.format(declared) for declared in found]
        return f" WHERE {' AND '.join(found)}" if found else ""

    def _computed(self, columns: Sequence[str], child: str, needed: Sequence[Field], values: Sequence[Scalar]) -> str:
        """The columns over the plan. Long ones, which later steps name several times, are computed once per row."""
        if self._dialect.fence and max(map(len, columns)) > LONG:
            self._writer.fence = self._dialect.fence
            child = self._writer.relation(self._plan, needed)
        return f"SELECT {', '.join(columns)} FROM {self._writer.nest(child, values)}{self._writer.fence}"

    def _key(self, value: Scalar) -> str:
        """A key in one form: no NaN, no infinity, no negative zero, no date outside the calendar."""
        text = self._writer.scalar(value)
        match value.type.kind:
            case Kind.DOUBLE:
                largest = self._dialect.largest_double
                return f"(CASE WHEN {text} >= -{largest} AND {text} <= {largest} THEN {text} + 0 END)"
            case Kind.DATE | Kind.TIMESTAMP | Kind.TIMESTAMPTZ:
                guarded = f"(CASE WHEN {self._dialect.in_calendar('{0}', value.type)} THEN {{0}} END)"
                return self._writer.scalars.filled(guarded, [text])
            case _:
                return text

    def _shown(self, key: Key, name: str, source: str) -> str:
        if not key.remainder:
            return _as(source, name)
        return f"CASE WHEN {self._declared(key, source)} THEN {source} END AS {name}"

    def _declared(self, key: Key, name: str) -> str:
        if key.keys is None:
            return ""
        known = [value for value in key.keys if value is not None]
        type_ = key.value.type
        if type_.kind is Kind.BOOLEAN and len(known) == 2:
            test = f"{name} IS NOT NULL"
        elif type_.kind is Kind.INTEGER and _is_range(known):
            test = f"{name} BETWEEN {known[0]} AND {known[-1]}"
        elif type_.kind is Kind.DATE and _are_all_days(known):
            test = f"{name} BETWEEN {self._constant(known[0], type_)} AND {self._constant(known[-1], type_)}"
        elif known:
            test = f"{name} IN ({', '.join(self._constant(value, type_) for value in known)})"
        else:
            test = "FALSE"
        return f"({test} OR {name} IS NULL)" if None in key.keys else test

    def _constant(self, value: Value, type_: Type) -> str:
        return self._writer.scalars.constant(value, type_)

    def _on_grid(self, i: int, statistic: Statistic, name: str = "e0") -> str:
        """The value of a row, under this name, as an integer within its bounds, or NULL where it does not count.

        Claim: NULL or an integer in [low, high].
        Because: values at or beyond the bounds become the grid's bounds; those between are rounded, which cannot leave
        the outward rounded bounds; NaN and infinity match no branch. An integer column that the scan has clamped to the
        same bounds is within them already.
        Needs: magnitudes on the grid below 2**48 (checked when the statistic was made), so doubles hold them exactly.
        """
        if statistic.value is None:
            text = "1"
        elif statistic.value.type.kind is Kind.INTEGER and statistic.step == 1:
            low, high = statistic.low, statistic.high
            text = name
            if not self._is_clamped_to(statistic.value, low, high):
                text = f"CASE WHEN {name} < {low} THEN {low} WHEN {name} > {high} THEN {high} ELSE {name} END"
        elif _is_whole_in_steps(statistic):
            # Decimals on their own grid stay exact, and narrow enough for 64 bits.
            type_, bounds = statistic.value.type, statistic.bounds
            assert bounds.low is not None and bounds.high is not None
            below, above = (number(bound, type_, self._writer.scalars) for bound in (bounds.low, bounds.high))
            ten = f"CAST({10**type_.scale} AS {self._writer.scalars.type(Type(Kind.DECIMAL, type_.scale + 1))})"
            text = (
                f"CASE WHEN {name} < {below} THEN {statistic.low} WHEN {name} > {above} THEN {statistic.high}"
                f" ELSE CAST({name} * {ten} AS {self._int64}) END"
            )
        else:
            bounds = statistic.bounds
            assert bounds.low is not None and bounds.high is not None
            grid = Grid(bounds.low, bounds.high, statistic.low, statistic.high, statistic.step)
            text = self._dialect.on_grid(f"{name}", statistic.value.type, grid)
        text = _shaped(text, statistic, self._int64)
        if statistic.where is not None:
            text = f"CASE WHEN w{i} THEN {text} END" if text == "1" else f"CASE WHEN w{i} THEN ({text}) END"
        if statistic.value is None and statistic.where is not None:
            return f"CASE WHEN w{i} THEN 1 ELSE 0 END"
        return f"({text})"

    def _is_clamped_to(self, value: Scalar, low: int, high: int) -> bool:
        stored = self._stored.get(value.field.id) if isinstance(value, Ref) else None
        return stored is not None and (stored.column.lower, stored.column.upper) == (Fraction(low), Fraction(high))

    def _keys_as(self) -> list[str]:
        return [f"{self._key(key.value)} AS {name}" for key, name in zip(self._keys, self._names, strict=True)]

    def _where_as(self, statistic: Statistic) -> list[str]:
        return [] if statistic.where is None else [f"{self._writer.scalar(statistic.where)} AS w0"]


def _as(text: str, name: str) -> str:
    return name if text == name else f"{text} AS {name}"


def _shaped(text: str, statistic: Statistic, int64: str) -> str:
    """What a row adds, made of its value on the grid (see `privacy.shapes`)."""
    if statistic.shape is Shape.ITSELF:
        return text
    value = f"CAST({text} AS {int64})"
    above, below = f"({value} - ({statistic.low}))", f"({statistic.high} - {value})"
    match statistic.shape:
        case Shape.CENTRED:
            return f"2 * {value} - ({statistic.low + statistic.high})"
        case Shape.RESIDUAL:
            return f"{value} - ({statistic.centre})"
        case Shape.ABOVE:
            return above
        case Shape.BELOW:
            return below
        case Shape.TWICE_BELOW:
            return f"{below} * {below}"
        case Shape.BETWEEN:
            return f"2 * {above} * {below}"
        case Shape.TWICE_ABOVE:
            return f"{above} * {above}"


def _is_whole_in_steps(statistic: Statistic) -> bool:
    """Whether the step of a sum is the last digit of a decimal, and its bounds are decimals too."""
    if statistic.value is None or statistic.value.type.kind is not Kind.DECIMAL:
        return False
    type_, bounds = statistic.value.type, statistic.bounds
    if statistic.step != Fraction(1, 10**type_.scale) or type_.precision + type_.scale > 17:
        return False
    ends = [bound * 10**type_.scale for bound in (bounds.low, bounds.high) if bound is not None]
    return all(end.denominator == 1 and abs(end) < 10**type_.precision for end in ends)


def _is_range(values: Sequence[Value]) -> bool:
    return bool(values) and list(values) == list(range(int(values[0]), int(values[0]) + len(values)))  # type: ignore[arg-type]


def _are_all_days(values: Sequence[Value]) -> bool:
    days = [value.toordinal() for value in values if isinstance(value, date)]
    return _is_range(days)


# ------------------------------------------------------------
# Sums that are made of others: shapes are polynomials, so their sums are made of those of values and squares.


@dataclass(frozen=True, slots=True)
class MadeSum:
    """A statistic that is made of what is added up of the values of one of them: t, their sum, and q, of squares."""

    place: int  # of that one
    by: Polynomial
    rows: str  # how many values there are
    scale: int = 0  # of the values: so many decimal places

    def text(self, wide: str) -> str:
        """The sum, in an integer type of 128 bits."""
        parts = [(self.by.squares, self._whole(f"q{self.place}", 2 * self.scale, wide))]
        parts += [(self.by.times, self._whole(f"t{self.place}", self.scale, wide))]
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
            found |= {i: MadeSum(places[0], each.above(statistics[i].low), f"m{places[0]}") for i, each in made.items()}
    return found


# ------------------------------------------------------------
# Rows that nothing has to bound, added up as they are: by stored columns, of which keys and sums are made later.


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
        self._late = late_keys(self._plan, self._keys, statistics)
        raw = {late.stored.field for late in self._late.values() if late.is_raw}
        self._writer.raw = raw
        try:
            yield self._sums_of_stored(statistics, raw) if self._dialect.skips_blocks else {}
        finally:
            self._late, self._stored_sums = {}, {}
            self._writer.raw, self._writer.bounds, self._writer.beyond = frozenset(), {}, False

    def _sums_of_stored(self, statistics: Sequence[Statistic], raw: set[int]) -> dict[int, StoredSum]:
        if not is_one_table(self._plan):
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
        counted |= {f"t{i}": self._dialect.sum_of(f"v{i}") for i in sorted(summed)}
        squared = {each.place for each in made.values() if each.by.squares}
        counted |= {f"q{i}": self._dialect.sum_of(self._square(i)) for i in sorted(squared)}
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
        total = "COUNT(*)" if counts_rows(statistic) else self._dialect.sum_of(f"v{i}")
        return f"{total} * {statistic.factor}" if statistic.factor > 1 else total


def counts_rows(statistic: Statistic) -> bool:
    return statistic.value is None and statistic.where is None
