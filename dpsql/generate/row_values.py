"""What each row adds: its owner, its keys in one form, and its values as integers within their bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date
from fractions import Fraction

from dpsql.generate.dialect import Dialect, Grid, in_calendar
from dpsql.generate.late_keys import Key, LateKey, stored_columns
from dpsql.generate.relations import OWNER, RelationWriter
from dpsql.generate.scalars import number
from dpsql.generate.stored_sums import SUMMED_DIGITS, StoredSum
from dpsql.plan.nodes import Plan
from dpsql.plan.scalars import Field, Ref, Scalar, refs
from dpsql.policy.model import Table
from dpsql.privacy.rules.aggregates import Statistic
from dpsql.privacy.shapes import Shape
from dpsql.types import Kind, Type, Value

# An expression with more text than this is not copied to each place that uses it.
LONG = 400


class RowValues:
    def __init__(
        self, plan: Plan, keys: Sequence[Key], dialect: Dialect, within: Table | None, *, copies: bool = True
    ) -> None:
        self._plan = plan
        self._keys = keys
        self._dialect = dialect
        self._within = within  # a table of which every owner has at least as many rows as in the plan
        self._counted = within if copies and within is not None and within.copy is not None else None
        self.way = ""
        self._writer = RelationWriter(dialect, private=True, copies=copies)
        self._names = [f"k{i}" for i in range(len(keys))]
        self._key_list = "".join(f"{name}, " for name in self._names)
        self._pair = ", ".join([OWNER, *self._names])
        self._group = f" GROUP BY {', '.join(self._names)}" if keys else ""
        self._stored = stored_columns(plan)
        self._copies = copies
        self._late: dict[str, LateKey] = {}  # keys that are made of groups of rows, by name
        self._stored_sums: Mapping[int, StoredSum] = {}  # sums of columns that are read as they are stored, by place
        self._above: Mapping[int, int] = {}  # sums that are made of how far the values of another are above the lowest

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
                guarded = f"(CASE WHEN {in_calendar('{0}', value.type)} THEN {{0}} END)"
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
                f" ELSE CAST({name} * {ten} AS BIGINT) END"
            )
        else:
            bounds = statistic.bounds
            assert bounds.low is not None and bounds.high is not None
            grid = Grid(bounds.low, bounds.high, statistic.low, statistic.high, statistic.step)
            text = self._dialect.on_grid(f"{name}", statistic.value.type, grid)
        text = _shaped(text, statistic)
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


def _shaped(text: str, statistic: Statistic) -> str:
    """What a row adds, made of its value on the grid (see `privacy.shapes`)."""
    if statistic.shape is Shape.ITSELF:
        return text
    value = f"CAST({text} AS BIGINT)"
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
