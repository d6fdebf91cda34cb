"""What each row adds: its owner, its keys in one form (k0 …), and its values as integers within their bounds (v0 …).

The first step of a measurement. Rows whose key is not among the declared ones are dropped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from fractions import Fraction

from dpsql.lowering.dialect import Dialect, Grid
from dpsql.lowering.fast_paths import SUMMED_DIGITS, Key, LateKey, StoredColumn, StoredSum, stored_columns
from dpsql.lowering.relations import OWNER, Reading, RelationWriter
from dpsql.lowering.scalars import number
from dpsql.lowering.select import Pipeline, Select
from dpsql.plan.nodes import Plan
from dpsql.plan.scalars import Ref, Scalar, refs
from dpsql.policy.model import Table
from dpsql.privacy.estimators.basis import Shape
from dpsql.privacy.rules.aggregates import Statistic
from dpsql.types import Kind, Type, Value

# An expression with more text than this is not copied to each place that uses it.
LONG = 400


@dataclass(frozen=True, slots=True)
class Rows:
    """The private rows of one query, their keys, and how they are read."""

    plan: Plan
    keys: tuple[Key, ...]
    dialect: Dialect
    writer: RelationWriter
    within: Table | None  # a table of which every owner has at least as many rows as in the plan
    names: tuple[str, ...]  # of the keys, and of what else cells are told apart by
    stored: Mapping[int, StoredColumn]  # fields that show a declared column
    reading: Reading = field(default_factory=Reading)

    @classmethod
    def of(cls, plan: Plan, keys: Sequence[Key], dialect: Dialect, within: Table | None) -> Rows:
        names = tuple(f"k{i}" for i in range(len(keys)))
        return cls(
            plan, tuple(keys), dialect, RelationWriter(dialect, private=True), within, names, stored_columns(plan)
        )

    @property
    def counted(self) -> Table | None:
        """The prepared copy that says how many rows each owner has, where there is one."""
        return self.within if self.within is not None and self.within.copy is not None else None

    @property
    def pair(self) -> tuple[str, ...]:
        """What there is one row of: an owner and a cell."""
        return (OWNER, *self.names)

    @property
    def named_keys(self) -> list[tuple[Key, str]]:
        return list(zip(self.keys, self.names, strict=False))

    def read(self, reading: Reading) -> Rows:
        return replace(self, reading=reading, writer=self.writer.reading(reading))

    def among(self, owners: str) -> Rows:
        """Only the rows of the owners of this step."""
        return self.read(replace(self.reading, among=owners))

    def with_at_most(self, count: int) -> Rows:
        """Only the rows of owners who have at most so many in the prepared copy."""
        assert self.counted is not None
        return self.read(replace(self.reading, part=(self.counted, f"<= {count}")))

    def with_more_than(self, count: int) -> Rows:
        assert self.counted is not None
        return self.read(replace(self.reading, part=(self.counted, f"> {count}")))

    def with_cells_by(self, name: str) -> Rows:
        """Where one column more tells cells apart."""
        return replace(self, names=(*self.names, name))


@dataclass(frozen=True, slots=True)
class Grouped:
    """What is made of groups of rows instead of row by row."""

    late: Mapping[str, LateKey] = field(default_factory=dict)  # keys that are made of groups, by name
    sums: Mapping[int, StoredSum] = field(default_factory=dict)  # of columns that are read as they are stored, by place
    above: Mapping[int, int] = field(default_factory=dict)  # sums made of how far values of another are above the least

    @property
    def columns(self) -> dict[int, str]:
        """The stored columns that keys are made of, by field, and the names under which rows are grouped by them."""
        fields = dict.fromkeys(late.stored.field for late in self.late.values())
        return {stored: f"stored{i}" for i, stored in enumerate(fields)}


ROW_BY_ROW = Grouped()


def row_values(
    rows: Rows, pipeline: Pipeline, statistics: Sequence[Statistic], grouped: Grouped = ROW_BY_ROW
) -> Pipeline:
    """Keys and grid values of each row; rows whose key is not among the declared ones are dropped."""
    writer = rows.writer
    exprs = [s.value for s in statistics if s.value is not None] + [s.where for s in statistics if s.where is not None]
    used = [*(key.value for key in rows.keys), *exprs]
    child = relation(rows, used)  # before the expressions over it, which depend on the bounds of its columns
    early = [(key, name) for key, name in rows.named_keys if name not in grouped.late]
    columns = {name: normal_key(rows, key.value) for key, name in early}
    stored = {grouped.columns[late.stored.field]: late.shown for late in grouped.late.values()}
    columns |= {name: writer.name(shown) for name, shown in stored.items()}
    names: dict[Scalar, str] = {}  # of values; several sums may be of the same
    read = {i: s for i, s in enumerate(statistics) if grouped.above.get(i, i) == i}
    for i, statistic in read.items():
        if statistic.value is not None and statistic.value not in names:
            names[statistic.value] = f"e{i}"
            columns[f"e{i}"] = writer.scalar(statistic.value)
        if statistic.where is not None:
            columns[f"w{i}"] = writer.scalar(statistic.where)
    if all(name[0] != "w" and text.isidentifier() for name, text in columns.items()):
        source, of = f"({child}) AS t", columns
    else:
        pipeline = computed(rows, pipeline, columns, child, used)
        source, of = pipeline.last, {name: name for name in columns}
    grid = []
    for i, statistic in read.items():
        name = "" if statistic.value is None else of[names[statistic.value]]
        shaped = replace(statistic, shape=Shape.ABOVE) if i in grouped.above else statistic
        value = _as_stored(rows, grouped.sums[i], name) if i in grouped.sums else on_grid(rows, i, shaped, name)
        grid.append(f"{value} AS v{i}")
    shown = [aliased(of[name], name) for name in stored]
    shown += [shown_key(rows, key, name, of[name]) for key, name in early]
    where = _among_declared(rows, [(key, of[name]) for key, name in early])
    return pipeline.then("row_values", Select((OWNER, *shown, *grid), source, where))


def relation(rows: Rows, values: Sequence[Scalar]) -> str:
    """The rows, with the columns that these values read."""
    return rows.writer.relation(rows.plan, [ref.field for value in values for ref in refs(value)])


def computed(
    rows: Rows, pipeline: Pipeline, columns: Mapping[str, str], child: str, values: Sequence[Scalar]
) -> Pipeline:
    """The owner and these columns of each row. Long ones, which later steps name several times, are computed once."""
    texts = [f"{text} AS {name}" for name, text in columns.items()]
    if rows.dialect.fence and max(map(len, texts)) > LONG:
        rows = rows.read(replace(rows.reading, fence=rows.dialect.fence))
        child = relation(rows, values)
    source = rows.writer.nest(child, values)
    return pipeline.then("computed", Select((OWNER, *texts), source, fence=rows.reading.fence))


def values_of_one(statistic: Statistic) -> list[Scalar]:
    """What the value and the condition of a statistic compute."""
    return [part for part in (statistic.value, statistic.where) if part is not None]


def condition_column(rows: Rows, statistic: Statistic) -> dict[str, str]:
    return {} if statistic.where is None else {"w0": rows.writer.scalar(statistic.where)}


def _as_stored(rows: Rows, stored: StoredSum, name: str) -> str:
    """A stored number in a type whose sums cannot overflow; NULL for one with more digits, beyond all bounds."""
    type_ = stored.stored.column.type
    if type_.kind is Kind.INTEGER:
        return name
    return rows.dialect.fit(name, Type(Kind.DECIMAL, SUMMED_DIGITS, type_.scale))


def _among_declared(rows: Rows, named: Sequence[tuple[Key, str]]) -> tuple[str, ...]:
    found = [test for key, name in named if not key.remainder and (test := declared(rows, key, name))]
    if rows.counted is not None:
        found = [rows.dialect.after_scan.format(test) for test in found]
    return tuple(found)


# ------------------------------------------------------------
# Keys


def key_columns(rows: Rows) -> dict[str, str]:
    return {name: normal_key(rows, key.value) for key, name in rows.named_keys}


def normal_key(rows: Rows, value: Scalar) -> str:
    """A key in one form: no NaN, no infinity, no negative zero, no date outside the calendar."""
    text = rows.writer.scalar(value)
    match value.type.kind:
        case Kind.DOUBLE:
            largest = rows.dialect.largest_double
            return f"(CASE WHEN {text} >= -{largest} AND {text} <= {largest} THEN {text} + 0 END)"
        case Kind.DATE | Kind.TIMESTAMP | Kind.TIMESTAMPTZ:
            guarded = f"(CASE WHEN {rows.dialect.in_calendar('{0}', value.type)} THEN {{0}} END)"
            return rows.writer.scalars.filled(guarded, [text])
        case _:
            return text


def shown_key(rows: Rows, key: Key, name: str, source: str) -> str:
    if not key.remainder:
        return aliased(source, name)
    return f"CASE WHEN {declared(rows, key, source)} THEN {source} END AS {name}"


def declared_keys(rows: Rows) -> list[str]:
    """Tests that every key is one of the declared ones."""
    return [test for key, name in rows.named_keys if (test := declared(rows, key, name))]


def declared(rows: Rows, key: Key, name: str) -> str:
    """A test that a key is one of the declared ones; empty where they are unknown."""
    if key.keys is None:
        return ""
    known = [value for value in key.keys if value is not None]
    type_, constant = key.value.type, rows.writer.scalars.constant
    if type_.kind is Kind.BOOLEAN and len(known) == 2:
        test = f"{name} IS NOT NULL"
    elif type_.kind is Kind.INTEGER and _is_range(known):
        test = f"{name} BETWEEN {known[0]} AND {known[-1]}"
    elif type_.kind is Kind.DATE and _are_all_days(known):
        test = f"{name} BETWEEN {constant(known[0], type_)} AND {constant(known[-1], type_)}"
    elif known:
        test = f"{name} IN ({', '.join(constant(value, type_) for value in known)})"
    else:
        test = "FALSE"
    return f"({test} OR {name} IS NULL)" if None in key.keys else test


def aliased(text: str, name: str) -> str:
    return name if text == name else f"{text} AS {name}"


def _is_range(values: Sequence[Value]) -> bool:
    return bool(values) and list(values) == list(range(int(values[0]), int(values[0]) + len(values)))  # type: ignore[arg-type]


def _are_all_days(values: Sequence[Value]) -> bool:
    days = [value.toordinal() for value in values if isinstance(value, date)]
    return _is_range(days)


# ------------------------------------------------------------
# Values


def on_grid(rows: Rows, i: int, statistic: Statistic, name: str = "e0") -> str:
    """The value of a row, under this name, as an integer within its bounds, or NULL where it does not count.

    Claim: NULL or an integer in [low, high].
    Because: values at or beyond the bounds become the grid's bounds; those between are rounded, which cannot leave
    the outward rounded bounds; NaN and infinity match no branch. An integer column that the scan has clamped to the
    same bounds is within them already.
    Needs: magnitudes on the grid below 2**48 (checked when the statistic was made), so doubles hold them exactly.
    """
    dialect, scalars = rows.dialect, rows.writer.scalars
    if statistic.value is None:
        text = "1"
    elif statistic.value.type.kind is Kind.INTEGER and statistic.step == 1:
        low, high = statistic.low, statistic.high
        text = name
        if not _is_clamped_to(rows.stored, statistic.value, low, high):
            text = f"CASE WHEN {name} < {low} THEN {low} WHEN {name} > {high} THEN {high} ELSE {name} END"
    elif _is_whole_in_steps(statistic):
        # Decimals on their own grid stay exact, and narrow enough for 64 bits.
        type_, bounds = statistic.value.type, statistic.bounds
        assert bounds.low is not None and bounds.high is not None
        below, above = (number(bound, type_, scalars) for bound in (bounds.low, bounds.high))
        ten = f"CAST({10**type_.scale} AS {scalars.type(Type(Kind.DECIMAL, type_.scale + 1))})"
        text = (
            f"CASE WHEN {name} < {below} THEN {statistic.low} WHEN {name} > {above} THEN {statistic.high}"
            f" ELSE CAST({name} * {ten} AS {dialect.int64}) END"
        )
    else:
        bounds = statistic.bounds
        assert bounds.low is not None and bounds.high is not None
        grid = Grid(bounds.low, bounds.high, statistic.low, statistic.high, statistic.step)
        text = dialect.on_grid(f"{name}", statistic.value.type, grid)
    text = _shaped(text, statistic, dialect.int64)
    if statistic.where is not None:
        text = f"CASE WHEN w{i} THEN {text} END" if text == "1" else f"CASE WHEN w{i} THEN ({text}) END"
    if statistic.value is None and statistic.where is not None:
        return f"CASE WHEN w{i} THEN 1 ELSE 0 END"
    return f"({text})"


def _is_clamped_to(columns: Mapping[int, StoredColumn], value: Scalar, low: int, high: int) -> bool:
    stored = columns.get(value.field.id) if isinstance(value, Ref) else None
    return stored is not None and (stored.column.lower, stored.column.upper) == (Fraction(low), Fraction(high))


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
