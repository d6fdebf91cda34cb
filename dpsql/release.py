"""A query becomes a Release without touching data.

`compile_release` cuts a plan at its release boundaries: an aggregation over private rows that does not group by the
unit becomes a Measurement (bounded SQL, noise, price); everything above it stays a plan over noisy tables.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Literal, assert_never

from dpsql.errors import BadSetting, Error, MissingDeclaration, NotSupported, PrivateRows
from dpsql.generate.bounding import Branch, Key, bounded_queries
from dpsql.generate.dialect import Dialect
from dpsql.generate.duckdb_dialect import DUCKDB
from dpsql.generate.noisy_tables import from_lists, from_table
from dpsql.generate.relations import RelationWriter
from dpsql.margins.trace import with_margins
from dpsql.plan.adding import added_up, over
from dpsql.plan.inspect import free_fields, reads_private, source_of, stages_of
from dpsql.plan.nodes import (
    Aggregate,
    Distinct,
    Empty,
    Filter,
    Join,
    OfUnit,
    OneRow,
    Plan,
    Project,
    Released,
    Scan,
    SemiJoin,
    SetKind,
    SetOperation,
    Sort,
    Window,
    inputs,
    nodes,
    scalars,
)
from dpsql.plan.running import Running, running_totals
from dpsql.plan.scalars import (
    Agg,
    Aggregated,
    Const,
    Field,
    InStage,
    Ref,
    Scalar,
    SortKey,
    StageValue,
    Subquery,
    Windowed,
    rebuild,
    refs,
)
from dpsql.plan.text import scalar_text
from dpsql.policy.model import Catalog, Table
from dpsql.privacy.accounting import DELTA_UNIT, Accountant, Price
from dpsql.privacy.allocate import Degree, shares
from dpsql.privacy.assemble import Assembly, Linear
from dpsql.privacy.derive import FAN_OUT, check_scalar, derive, is_private
from dpsql.privacy.domains import domain
from dpsql.privacy.facts import NOTHING, Facts
from dpsql.privacy.intervals import without_known
from dpsql.privacy.lattice import Lattice, lattice
from dpsql.privacy.mechanisms import (
    Noise,
    chosen,
    clip_chosen,
    epsilon_of_choice,
    gaussian,
    laplace,
    margin,
    most_common,
    rank_margin,
    selecting,
)
from dpsql.privacy.owners import is_unit, names_owner
from dpsql.privacy.prepare import Preparation
from dpsql.privacy.preserved import without_unowned_rows
from dpsql.privacy.public import check_total
from dpsql.privacy.rules import aggregates as rules
from dpsql.privacy.rules.aggregates import CHOSEN, Cells, Counted, Statistic
from dpsql.privacy.running import Along, Chains, cell_margin, running_margins, widened, worthwhile
from dpsql.privacy.stability import Derivation, Stability
from dpsql.privacy.unfiltered import unfiltered
from dpsql.types import BIGINT, BOOLEAN, Kind, Type, Value

_COUNTS = (Counted.ROWS, Counted.UNITS)
# One part of so many of a sum's price goes to the search of its clip.
_SEARCH = 5

# The text of a question with some of the keys, by their places, and one sum, or none: equal texts ask for the same.
Question = Callable[[tuple[int, ...], Statistic | None], str]


@dataclass(frozen=True, slots=True)
class Settings:
    """What an analyst may set for a query; None takes the policy's default."""

    epsilon: Fraction | None = None
    delta: Fraction | None = None
    margin: Fraction | None = None  # the 95 % error wanted for counts: the least price that keeps it is paid


@dataclass(frozen=True, slots=True)
class Measurement:
    """One release of noisy sums: what the engine runs, which noise is added, what it costs."""

    keys: tuple[Key, ...]
    cells: tuple[tuple[Value, ...], ...] | None  # every key that is returned; None: a threshold chooses
    bound: Cells
    statistics: tuple[Statistic, ...]
    groups: tuple[tuple[int, ...], ...]  # statistics that are clipped, and paid for, together; each is in one
    noises: tuple[Noise, ...]
    selection: int | None  # the statistic that counts or weighs units, where a threshold chooses
    threshold: int | None  # the least noisy value of it with which a key is returned, in its own fixed point
    branches: tuple[Branch, ...]
    stages: tuple[int, ...]  # earlier values that its SQL refers to
    derivation: Derivation
    price: Price
    chains: Chains | None = None  # the order in which running totals are asked for
    chained: tuple[int, ...] = ()  # of which statistics
    rooted: bool = False  # whether their noise is that of running totals
    # Cells of rows whose keys are not declared, which stand there as NULL: measured with the others, and never shown.
    remainder: tuple[tuple[Value, ...], ...] = ()
    # Where it may be made of other answers.
    question: Question | None = dataclasses.field(default=None, compare=False, repr=False)
    lattice: Lattice | None = None  # the grouping sets that are measured, and made of the same cells afterwards
    told: tuple[int, ...] | None = None  # margins in steps, where the answer was not bought with this noise
    derived: bool = False  # the answer is made of earlier ones
    clips: tuple[tuple[int, int], ...] = ()  # statistics whose clip an earlier measurement chooses, and which one

    @property
    def is_search(self) -> bool:
        """Whether it chooses the clip of later sums."""
        return any(statistic.kind is Counted.CLIP for statistic in self.statistics)

    @property
    def order_of_keys(self) -> tuple[int, ...]:
        """The places of the keys in an order of their own, whichever the query wrote first."""
        return tuple(sorted(range(len(self.keys)), key=lambda i: scalar_text(self.keys[i].value)))

    @property
    def every_cell(self) -> tuple[tuple[Value, ...], ...]:
        """Those that are shown, and the remainder."""
        assert self.cells is not None
        return self.cells + self.remainder

    def margin(self, statistic: int) -> Fraction:
        """The 95 % margin of a noisy sum, in the units of the column."""
        return self.steps(statistic) * self.statistics[statistic].unit

    def margin_of(self, number: Linear) -> Fraction:
        """The 95 % margin of a number made of noisy sums; of several, a little wide for Laplace noise."""
        return margin_of(number, [self.steps(i) if self.is_sum(i) else 0 for i in range(len(self.statistics))])

    def average_margin(self, total: Linear, rows: int = 1_000) -> float:
        """The 95 % margin of an average of so many rows, where the mean is as bad as it can be."""
        return float(self.margin_of(total)) / rows

    def units_to_pass(self) -> tuple[int, int]:
        """Of about how many units an unknown key is returned: of those with one key, and of those with the most."""
        assert self.selection is not None and self.threshold is not None
        law = self.noises[self.selection].law
        weight = rules.weight_in_keys(self.statistics[self.selection], "l2" if law == "gaussian" else "l1")
        few, many = (math.ceil(self.threshold / max(weight(keys), 1)) for keys in (1, self.bound.groups))
        return few, many

    def rank_margin(self, statistic: int) -> int:
        """How many rows a value at a rank may be away from it, in 95 of 100 cases."""
        wanted = self.statistics[statistic]
        return math.ceil(Fraction(rank_margin(self.noises[statistic], wanted.candidates), wanted.factor))

    def is_sum(self, statistic: int) -> bool:
        """Whether it is an exact sum with noise, whose margin is known, or a value that was chosen."""
        return self.statistics[statistic].kind not in (*CHOSEN, Counted.CLIP)

    def steps(self, statistic: int) -> int:
        """The 95 % margin of a noisy sum, in steps, as the sum itself is counted."""
        if self.told is not None:
            return self.told[statistic]
        if self.is_rooted(statistic):
            assert self.chains is not None
            return cell_margin(self.noises[statistic], self.chains.length, self.statistics[statistic].factor)
        if self.lattice is not None:
            return self.steps_in_set(statistic, self.lattice.sets[0])
        return _in_steps(self.statistics[statistic], self.noises[statistic])

    def steps_in_set(self, statistic: int, kept: tuple[int, ...]) -> int:
        """The same of a cell of a grouping set, whose keys are those at these places."""
        assert self.lattice is not None
        return self.lattice.margin(self.noises[statistic], kept, self.statistics[statistic].factor)

    def in_whole_steps(self, statistic: int) -> bool:
        """Whether the noise step itself rounds: what is made of several noisy numbers cannot be rounded later."""
        return self.is_rooted(statistic) or self.lattice is not None or not self.is_sum(statistic)

    def is_rooted(self, statistic: int) -> bool:
        """Whether its noise is on the root of its running totals, not on the sums themselves."""
        return self.rooted and statistic in self.chained

    def running_steps(self, statistic: int) -> list[int]:
        """The 95 % margins of the running totals of a noisy sum along a chain, in steps."""
        assert self.chains is not None and statistic in self.chained
        noise, factor = self.noises[statistic], self.statistics[statistic].factor
        if self.rooted:
            return running_margins(noise, self.chains.length, factor)
        return [math.ceil(self.steps(statistic) * math.sqrt(k + 1)) for k in range(self.chains.length)]

    def error_columns(self, rows: int) -> list[list[int | float | None]]:
        """For each of so many rows: the margin of each sum, in steps; then of each chained sum how many times as wide
        those of its running total and of its whole chain are."""
        columns: list[list[int | float | None]] = [
            [self.steps(i) if self.is_sum(i) else None] * rows for i in range(len(self.statistics))
        ]
        for i in self.chained:
            assert self.chains is not None and self.cells is not None
            cell, running = self.steps(i), self.running_steps(i)
            ratios: list[int | float | None] = [None] * rows
            for k, place in enumerate(self.chains.places(self.cells)):
                ratios[place] = running[k % self.chains.length] / cell
            columns += [ratios, [running[-1] / cell] * rows]
        return columns


@dataclass(frozen=True, slots=True)
class Stage:
    """A released or public value that a later measurement uses as a constant."""

    kind: str  # "scalar", "exists" or "in"
    type: Type
    sql: str
    measurements: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Output:
    name: str
    type: Type
    margin: Fraction | None  # 95 %, for counts and sums shown as they are
    ratio: bool  # made of several noisy sums
    at_thousand: float | None  # of an average of a thousand rows, the widest margin that the bounds allow
    shown: tuple[tuple[int, Linear], ...] = ()  # the measurements and sums whose margin it has
    averaged: tuple[tuple[int, Linear], ...] = ()  # those of which it is an average, times the rows
    margin_at: int | None = None  # for other noisy numbers, the column behind the outputs that holds each row's margin
    count: bool = False  # a noisy count, shown as it is


@dataclass(frozen=True, slots=True)
class Release:
    """All that a query will do, known before anything is paid or read."""

    measurements: tuple[Measurement, ...]  # in the order in which they can run
    stages: tuple[Stage, ...]
    sql: str  # the rest of the query, over noisy and public tables; behind the outputs, margins that differ by row
    outputs: tuple[Output, ...]
    public: Mapping[str, Table]  # the name of the loaded copy of each public table
    price: Price
    notes: tuple[str, ...]
    with_tables: Mapping[str, str]  # each text over noisy tables that come as lists: the same over tables of arrays
    asked: Settings = Settings()
    # Where clips are searched for: the same release with those that were chosen, by measurement and place.
    settle: Callable[[Mapping[int, int]], Release] | None = dataclasses.field(default=None, repr=False, compare=False)
    # Of a settled one: what is paid, and the measurements whose clip is known.
    unsettled: Release | None = dataclasses.field(default=None, repr=False, compare=False)
    chosen: frozenset[int] = frozenset()

    @property
    def searches(self) -> tuple[int, ...]:
        """The measurements that choose clips."""
        return tuple(index for index, measurement in enumerate(self.measurements) if measurement.is_search)


# How a query treats loose clips: as declared; searched for and paid with a part of its price; or found before.
Clips = Literal["declared", "searched", "found"]


def compile_release(
    plan: Plan,
    catalog: Catalog,
    accountant: Accountant,
    settings: Settings,
    dialect: Dialect,
    clips: Clips = "declared",
) -> Release:
    return _Compiler(catalog, accountant, settings, dialect, clips).compile(plan)


@dataclass(frozen=True, slots=True)
class _Draft:
    """A measurement before the price is shared out."""

    keys: tuple[Key, ...]
    cells: tuple[tuple[Value, ...], ...] | None
    bound: Cells
    statistics: tuple[Statistic, ...]
    groups: tuple[tuple[int, ...], ...]
    weights: tuple[Fraction, ...]  # of each group: how much its variance counts
    counts: tuple[Linear, ...]
    selection: int | None
    branches: tuple[Branch, ...]
    stages: tuple[int, ...]
    derivation: Derivation
    chains: Chains | None
    chained: tuple[int, ...]
    remainder: tuple[tuple[Value, ...], ...]
    question: Question | None
    lattice: Lattice | None
    write: Callable[[Sequence[Statistic]], tuple[Branch, ...]]
    clips: tuple[tuple[int, int], ...] = ()

    @property
    def is_search(self) -> bool:
        return any(statistic.kind is Counted.CLIP for statistic in self.statistics)


class _Compiler:
    def __init__(
        self, catalog: Catalog, accountant: Accountant, settings: Settings, dialect: Dialect, clips: Clips
    ) -> None:
        self._catalog = catalog
        self._accountant = accountant
        self._settings = settings
        self._dialect = dialect
        self._ids = itertools.count(1_000_000)
        self._drafts: list[_Draft] = []
        self._stages: list[Stage] = []
        self._public: dict[str, str] = {}
        self._tables: dict[str, Table] = {}
        self._with_tables: dict[str, str] = {}
        self._shown: dict[int, tuple[tuple[int, Linear], ...]] = {}  # field -> measurements and noisy sums it shows
        self._ratios: set[int] = set()
        self._counted: set[int] = set()  # fields that show counts
        self._averages: dict[int, tuple[tuple[int, Linear], ...]] = {}  # the same, of averages
        self._notes: dict[str, None] = {}
        self._running: Mapping[int, Running] = {}
        self._priced_already: tuple[Measurement, ...] = ()
        # A margin is kept by a price that is known before anything is chosen.
        self._clips: Clips = "declared" if settings.margin is not None else clips
        self._norm: Literal["l1", "l2"] = "l1" if accountant.policy.accounting == "basic" else "l2"
        self._preparation = Preparation(catalog.max_cells, self._ids, self._stage, self._public_side)

    def compile(self, plan: Plan) -> Release:
        self._refuse_rows(plan)
        self._running = running_totals(plan)
        rest = self._cut(plan)
        measure = self._priced()
        measurements = self._priced_already = tuple(map(measure, self._drafts, itertools.count()))
        outputs = tuple(self._output(field, rest, measurements) for field in rest.fields)
        pairs = zip(rest.fields, outputs, strict=True)
        wanted = tuple(field for field, output in pairs if output.margin is None and field.type.is_numeric)
        wide, places = self._with_margins(rest, wanted)
        outputs = tuple(
            replace(output, margin_at=places.get(field.id)) for field, output in zip(rest.fields, outputs, strict=True)
        )
        sql = self._write(wide)
        price = sum((m.price for m in measurements), Price())
        notes = tuple(self._notes)
        release = Release(
            measurements,
            tuple(self._stages),
            sql,
            outputs,
            self._tables,
            price,
            notes,
            self._with_tables,
            self._settings,
        )
        if not release.searches:
            return release

        @lru_cache(maxsize=4)
        def settled_at(places: tuple[tuple[int, int], ...]) -> Release:
            drafts = [self._settled(draft, dict(places)) for draft in self._drafts]
            settled = tuple(map(measure, drafts, itertools.count()))
            shown = tuple(
                replace(self._output(field, rest, settled), margin_at=output.margin_at)
                for field, output in zip(rest.fields, outputs, strict=True)
            )
            chosen = frozenset(search for search, _ in places)
            return replace(release, measurements=settled, outputs=shown, unsettled=loose, chosen=chosen)

        loose = replace(release, settle=lambda chosen: settled_at(tuple(sorted(chosen.items()))))
        return loose

    # --- rows never leave ---

    def _refuse_rows(self, plan: Plan) -> None:
        if not is_private(plan):
            return
        table = next(node.table.name for node in nodes(plan) if isinstance(node, Scan) and node.table.is_private)
        for node in nodes(plan):
            for value in scalars(node) if isinstance(node, Aggregate) else ():
                if isinstance(value, Ref) and (is_unit(value) or names_owner([value])):
                    unit = "the unit" if is_unit(value) else "a key that belongs to one unit,"
                    raise PrivateRows(
                        f'grouping by {unit} "{value.field.name}" would return rows of private table "{table}"',
                        hint="Aggregate once more over the groups, as in SELECT AVG(n) FROM (… GROUP BY unit).",
                        position=value.position,
                    )
            for value in scalars(node):
                for ref in refs(value):
                    if ref.position is not None and isinstance(node, Project):
                        raise PrivateRows(
                            f'column "{ref.field.name}" would return rows of private table "{table}"',
                            hint="Aggregate it, or group by a column with declared keys.",
                            position=ref.position,
                        )
        raise PrivateRows(
            f'the query would return rows of private table "{table}"',
            hint="Aggregate them, or group by a column with declared keys.",
        )

    # --- the part above the releases ---

    def _cut(self, plan: Plan) -> Plan:
        """The same plan with each release replaced by its noisy table."""
        match plan:
            case Aggregate(child=child) if is_private(child):
                return self._release(plan)
            case Distinct(child=child) if is_private(child):
                copies = [(replace(field, id=next(self._ids)), Ref(field)) for field in child.fields]
                keys: tuple[tuple[Field, Scalar], ...] = tuple(copies)
                grouped = Aggregate(child, keys, (), (tuple(range(len(keys))),))
                released = self._release(grouped)
                return Project(
                    released, tuple((old, Ref(new)) for old, (new, _) in zip(child.fields, keys, strict=True))
                )
            case _:
                pass
        for child in inputs(plan):
            if is_private(child):
                self._refuse_mixture(plan)
        match plan:
            case Scan(table=table):
                self._public_name(table)
                return plan
            case Empty() | OneRow() | Released():
                return plan
            case Filter(child=child, predicate=predicate):
                return Filter(self._cut(child), self._post(predicate))
            case SemiJoin() | OfUnit():
                raise NotSupported("this combination of private and public rows is not supported")
            case Project(child=child, items=items):
                return Project(self._cut(child), tuple((field, self._post(value)) for field, value in items))
            case Aggregate(child=child, keys=keys, aggregates=aggregates, sets=sets):
                calls = tuple((field, self._post_aggregate(call)) for field, call in aggregates)
                return Aggregate(self._cut(child), tuple((f, self._post(v)) for f, v in keys), calls, sets)
            case Window(child=child, items=items):
                return Window(self._cut(child), tuple((field, self._post_window(call)) for field, call in items))
            case Join(kind=kind, left=left, right=right, condition=condition):
                on = None if condition is None else self._post(condition)
                return Join(kind, self._cut(left), self._cut(right), on)
            case SetOperation(kind=set_kind, left=left, right=right, fields=fields):
                return SetOperation(set_kind, self._cut(left), self._cut(right), fields)
            case Distinct(child=child):
                return Distinct(self._cut(child))
            case Sort(child=child, keys=sort_keys, limit=limit, offset=offset, fields=fields):
                ordered = tuple(SortKey(self._post(k.value), k.descending, k.nulls_first) for k in sort_keys)
                return Sort(self._cut(child), ordered, limit, offset, fields)
            case _:
                assert_never(plan)

    def _refuse_mixture(self, plan: Plan) -> None:
        """A node that is not private itself but has private rows below it."""
        if isinstance(plan, Join):
            derive(plan, self._catalog.max_cells)  # says why joins are refused
        raise NotSupported(
            "private rows and released values cannot be mixed here",
            hint="Aggregate the private rows first.",
        )

    def _post(self, value: Scalar) -> Scalar:
        if isinstance(value, Subquery):
            self._refuse_private_subquery(value)
            arg = None if value.arg is None else self._post(value.arg)
            return Subquery(value.kind, self._cut(value.plan), value.type, arg, value.position)
        return rebuild(value, self._post)

    def _post_aggregate(self, call: Aggregated) -> Aggregated:
        changed = rebuild(call, self._post)
        assert isinstance(changed, Aggregated)
        return changed

    def _post_window(self, call: Windowed) -> Windowed:
        changed = rebuild(call, self._post)
        assert isinstance(changed, Windowed)
        return changed

    def _refuse_private_subquery(self, node: Subquery) -> None:
        if is_private(node.plan):
            raise PrivateRows(
                "a subquery would return rows of a private table",
                hint="Aggregate inside the subquery.",
                position=node.position,
            )

    def _public_name(self, table: Table) -> str:
        # The same name in every query, so that a table is loaded once.
        if table.name not in self._public:
            names = sorted({other.name for other in self._catalog.tables.values()})
            self._public[table.name] = f"p{names.index(table.name)}"
            self._tables[self._public[table.name]] = table
        return self._public[table.name]

    def _write(self, plan: Plan) -> str:
        """SQL for the post-processing engine: noisy tables arrive as lists, in the order of their fields."""
        released = [node for node in nodes(plan) if isinstance(node, Released)]
        # Some read the margins of the sums as well, in columns behind the others.
        used = {node.measurement: node for node in sorted(released, key=lambda node: len(node.fields))}
        writer = RelationWriter(DUCKDB, private=False, public=self._public)
        body = writer.relation(plan)
        if not used:
            return body
        types = {index: [writer.scalars.type(field.type) for field in node.fields] for index, node in used.items()}
        heads = [[head(index, types[index]) for index in sorted(types)] for head in (from_lists, from_table)]
        sql, with_tables = (f"WITH {', '.join(each)} {body}" for each in heads)
        self._with_tables[sql] = with_tables
        return sql

    # --- stages ---

    def _stage(self, node: Subquery, fields: tuple[Field, ...]) -> Scalar:
        """A subquery in a private expression: released or public, so a constant by the time it is needed."""
        if node.kind == "in" and node.arg is not None and is_unit(node.arg) and is_private(node.plan):
            raise NotSupported(
                "unit IN (SELECT …) can only stand in WHERE, joined to other conditions by AND",
                hint="Select the unit itself in the subquery, and move the condition to the top of WHERE.",
                position=node.position,
            )
        if is_private(node.plan):
            raise NotSupported(
                "this subquery would compare rows of different units",
                hint="Aggregate inside the subquery, or write unit IN (SELECT unit …).",
                position=node.position,
            )
        if node.kind not in ("scalar", "exists", "in"):
            raise NotSupported(
                "ANY and ALL over released or public values are not supported here",
                hint="Compare with (SELECT MAX(…) …) or (SELECT MIN(…) …).",
                position=node.position,
            )
        rest, _ = self._with_margins(self._cut(node.plan), ())
        field = rest.fields[0]
        measurements = tuple(sorted({n.measurement for n in nodes(rest) if isinstance(n, Released)}))
        sql = self._write(rest)
        if node.kind == "exists":
            sql = f"SELECT EXISTS ({sql})"
        type_ = BOOLEAN if node.kind == "exists" else field.type
        if type_.kind is Kind.INTEGER:
            type_ = replace(type_, precision=BIGINT.precision)  # all that the engine is told of the value
        # The same question inside one query has one answer.
        asked = Stage(node.kind, type_, sql, measurements)
        if asked not in self._stages:
            self._stages.append(asked)
        stage = self._stages.index(asked)
        if node.kind == "in":
            assert node.arg is not None
            return InStage(self._preparation.scalar(node.arg, fields), stage, type_)
        return StageValue(stage, type_)

    def _public_side(self, plan: Plan) -> Plan:
        """A relation without private rows that is joined to private ones: the engine reads public tables itself."""
        if reads_private(plan):
            raise NotSupported(
                "private rows and released values cannot be joined",
                hint="Aggregate the private rows first, then join the results.",
            )
        check_total(plan)
        return plan

    # --- releases ---

    def _release(self, plan: Aggregate) -> Plan:
        """One measurement for each grouping set; together they share the price, as any parts of a query do."""
        plan = without_unowned_rows(plan)
        child = self._preparation.relation(plan.child)
        if free_fields(plan):
            raise NotSupported(
                "this subquery would release a value for each row around it",
                hint="Aggregate it once, with GROUP BY, and join the result.",
            )
        if names_owner(value for _, value in plan.keys):
            self._refuse_rows(plan)
        derivation = derive(child, self._catalog.max_cells)
        keys = [(field, self._preparation.scalar(value, child.fields)) for field, value in plan.keys]
        for _, value in keys:
            check_scalar(value)
        calls = []
        for field, call in plan.aggregates:
            if call.function is Agg.GROUPING:
                calls.append((field, call))
                continue
            changed = self._preparation.scalar(call, child.fields)
            assert isinstance(changed, Aggregated)
            where = without_known(changed.where, derivation.conclusion.facts)
            calls.append((field, replace(changed, where=where)))
        parts = self._agreeing_sets(keys, calls, plan, child, derivation) or [
            self._grouping_set(chosen, keys, calls, plan, child, derivation) for chosen in plan.sets
        ]
        result = parts[0]
        if len(parts) == 1:
            return Project(result, tuple((old, Ref(new)) for old, new in zip(plan.fields, result.fields, strict=True)))
        for i, part in enumerate(parts[1:], 2):
            last = i == len(parts)
            fields = plan.fields if last else tuple(replace(f, id=next(self._ids)) for f in plan.fields)
            for old, mine, other in zip(fields, result.fields, part.fields, strict=True):
                if mine.id in self._shown and other.id in self._shown:
                    self._shown[old.id] = self._shown[mine.id] + self._shown[other.id]
                if mine.id in self._averages and other.id in self._averages:
                    self._averages[old.id] = self._averages[mine.id] + self._averages[other.id]
                if mine.id in self._ratios:
                    self._ratios.add(old.id)
                if mine.id in self._counted:
                    self._counted.add(old.id)
            result = SetOperation(SetKind.UNION_ALL, result, part, fields)
        return result

    def _agreeing_sets(
        self,
        keys: list[tuple[Field, Scalar]],
        calls: list[tuple[Field, Aggregated]],
        plan: Aggregate,
        child: Plan,
        derivation: Derivation,
    ) -> list[Plan] | None:
        """Grouping sets that are measured together and made of the same cells, so that parts add up to totals.

        None where each is measured by itself: keys are unknown, a unit is in several cells, or no set has all keys.
        """
        stability = derivation.conclusion
        finest = tuple(sorted(set(itertools.chain(*plan.sets))))
        sets = [tuple(sorted(chosen)) for chosen in plan.sets]
        if len(sets) == 1 or len(set(sets)) < len(sets) or finest not in sets:
            return None
        grouped = [keys[i] for i in finest]
        domains = [domain(value, stability.facts, self._catalog.max_cells) for _, value in grouped]
        cells = self._all_cells(grouped, domains)
        if not cells:
            return None
        bound = rules.cells(stability, True, len(cells))

        def new_field(name: str, type_: Type) -> Field:
            return Field(next(self._ids), name, type_)

        assembly = Assembly(stability, bound, new_field, self._degree)
        _ask(assembly, calls)
        assembly.settle(None)
        values = {field.id: assembly.output(field, call) for field, call in calls if call.function is not Agg.GROUPING}
        if not _is_additive(stability, tuple(assembly.statistics)):
            return None
        sizes = tuple(len(found or ()) for found in domains)
        ordered = sorted(sets, key=lambda chosen: -len(chosen))  # the finest first
        found = lattice(sizes, tuple(tuple(map(finest.index, chosen)) for chosen in ordered), self._law)
        index = self._draft(grouped, domains, cells, bound, assembly, None, child, derivation, None, (), found)
        parts: list[Plan] = []
        for kept in plan.sets:
            key_fields = {i: new_field(field.name, field.type) for i, (field, _) in zip(finest, grouped, strict=True)}
            sums = {old.id: new_field(old.name, old.type) for old in assembly.statistics.values()}
            part: Plan = Released(index, (*key_fields.values(), *sums.values()))
            if len(kept) < len(finest):
                part, key_fields, sums = added_up(part, kept, key_fields, sums, new_field)
            items: list[tuple[Field, Scalar]] = []
            for i, (field, _) in enumerate(plan.keys):
                key = Ref(key_fields[i]) if i in kept else Const(None, field.type)
                items.append((replace(field, id=next(self._ids), unit=False), key))
            for field, call in calls:
                target = replace(field, id=next(self._ids))
                if call.function is Agg.COUNT:
                    self._counted.add(target.id)
                if field.id in assembly.ratios:
                    self._ratios.add(target.id)
                if call.function is Agg.GROUPING:
                    items.append((target, _grouping_value(call, [plan.keys[i][1] for i in kept])))
                else:
                    items.append((target, over(values[field.id], sums)))
            parts.append(Project(part, tuple(items)))
        return parts

    def _grouping_set(
        self,
        chosen: tuple[int, ...],
        keys: list[tuple[Field, Scalar]],
        calls: list[tuple[Field, Aggregated]],
        plan: Aggregate,
        child: Plan,
        derivation: Derivation,
    ) -> Plan:
        stability = derivation.conclusion
        grouped = [keys[i] for i in chosen]
        domains = [domain(value, stability.facts, self._catalog.max_cells) for _, value in grouped]
        cells = self._all_cells(grouped, domains)
        if cells is None:
            self._require_delta(grouped, domains, stability.facts)
        bound = rules.cells(stability, bool(grouped), None if cells is None else len(cells))

        def new_field(name: str, type_: Type) -> Field:
            return Field(next(self._ids), name, type_)

        assembly = Assembly(stability, bound, new_field, self._degree)
        _ask(assembly, calls)
        counter = rules.count_units(None, bound) if cells is None and bound.groups == 1 else None
        assembly.settle(counter)
        values: list[Scalar] = []
        for field, call in calls:
            if call.function is Agg.GROUPING:
                values.append(_grouping_value(call, [plan.keys[i][1] for i in chosen]))
            else:
                values.append(assembly.output(field, call))
        selection = None
        if cells is None:
            selector = rules.key_selector(bound, assembly.statistics, self._norm)
            if selector != counter:
                assembly.statistic(selector)
            selection = assembly.place(selector)
        chains: Chains | None = None
        chained: tuple[int, ...] = ()
        if cells is not None and not assembly.groups:
            chains, chained = self._chained(chosen, calls, values, assembly, domains)
        index = self._draft(grouped, domains, cells, bound, assembly, selection, child, derivation, chains, chained)

        key_fields = [new_field(field.name, field.type) for field, _ in grouped]
        released = Released(index, (*key_fields, *assembly.statistics.values()))
        by_index = dict(zip(chosen, key_fields, strict=True))
        items: list[tuple[Field, Scalar]] = []
        for i, (field, _) in enumerate(plan.keys):
            key = Ref(by_index[i]) if i in by_index else Const(None, field.type)
            items.append((replace(field, id=next(self._ids), unit=False), key))
        for (field, call), value in zip(calls, values, strict=True):
            target = replace(field, id=next(self._ids))
            if call.function is Agg.COUNT:
                self._counted.add(target.id)
            if field.id in assembly.directly:
                self._shown[target.id] = ((index, assembly.directly[field.id]),)
            if field.id in assembly.averages:
                self._averages[target.id] = ((index, assembly.averages[field.id]),)
            if field.id in assembly.ratios:
                self._ratios.add(target.id)
            items.append((target, value))
        return Project(released, tuple(items))

    def _chained(
        self,
        chosen: tuple[int, ...],
        calls: list[tuple[Field, Aggregated]],
        values: list[Scalar],
        assembly: Assembly,
        domains: list[tuple[Value, ...] | None],
    ) -> tuple[Chains | None, tuple[int, ...]]:
        """The statistics whose running totals are asked for, in one order, where noise on their root is better."""
        plain = all(statistic.kind in _COUNTS for statistic in assembly.statistics)
        if self._accountant.policy.accounting == "basic" or not plain:
            return None, ()
        places = {field.id: i for i, field in enumerate(assembly.statistics.values())}
        used = [{places[ref.field.id] for ref in refs(value) if ref.field.id in places} for value in values]
        found: Chains | None = None
        chained: set[int] = set()
        for i, ((field, call), own) in enumerate(zip(calls, used, strict=True)):
            running = self._running.get(field.id)
            if running is None or call.function not in (Agg.COUNT, Agg.SUM) or call.distinct:
                continue
            along = tuple(Along(chosen.index(at), key.descending, key.nulls_first) for at, key in running.along)
            chains = Chains(along, math.prod(len(domains[step.key] or ()) for step in along))
            singly = running.singly or any(own & other for j, other in enumerate(used) if j != i)
            if found in (None, chains) and worthwhile(chains.length, singly=singly):
                found = chains
                chained |= own
        return found, tuple(sorted(chained))

    def _all_cells(
        self, grouped: list[tuple[Field, Scalar]], domains: list[tuple[Value, ...] | None]
    ) -> tuple[tuple[Value, ...], ...] | None:
        known = [found for found in domains if found is not None]
        if len(known) < len(grouped) or math.prod(map(len, known)) > self._catalog.max_cells:
            return None
        return tuple(itertools.product(*known))

    def _require_delta(
        self, grouped: list[tuple[Field, Scalar]], domains: list[tuple[Value, ...] | None], facts: Facts
    ) -> None:
        if self._accountant.total.delta > 0:
            return
        for (field, value), found in zip(grouped, domains, strict=True):
            if found is None:
                fact = facts.get(value.field.id, NOTHING) if isinstance(value, Ref) else NOTHING
                where = f"values for {fact.origin[0]}.{fact.origin[1]}" if fact.origin else "the columns it reads"
                hint = f"Declare {where} in the policy, or a delta for unknown keys."
                if value.type.is_numeric or value.type.is_temporal:
                    hint = "Group by FLOOR, width_bucket or date_trunc of a column with bounds, or declare a delta."
                raise MissingDeclaration(
                    f'the keys of "{field.name}" are not declared, and delta is 0',
                    hint=hint,
                    position=next((ref.position for ref in refs(value)), None),
                )
        raise MissingDeclaration(
            f"the keys have more than {self._catalog.max_cells:,} combinations, and delta is 0",
            hint="Group by fewer keys, or declare a delta for unknown keys.",
        )

    def _draft(
        self,
        grouped: list[tuple[Field, Scalar]],
        domains: list[tuple[Value, ...] | None],
        cells: tuple[tuple[Value, ...], ...] | None,
        bound: Cells,
        assembly: Assembly,
        selection: int | None,
        child: Plan,
        derivation: Derivation,
        chains: Chains | None,
        chained: tuple[int, ...],
        sets: Lattice | None = None,
    ) -> int:
        keys = tuple(Key(value, found) for (_, value), found in zip(grouped, domains, strict=True))
        statistics = tuple(assembly.statistics)
        groups = tuple(tuple(map(assembly.place, group)) for group in assembly.grouped())
        weights = tuple(sum(assembly.weights[statistics[i]] for i in group) or Fraction(1) for group in groups)
        stability = derivation.conclusion
        clips: tuple[tuple[int, int], ...] = ()
        if self._clips != "declared" and chains is None and sets is None:
            clips = self._searched(child, statistics, groups)
        question: Question | None = None
        remainder: tuple[tuple[Value, ...], ...] = ()
        # What was cut at different clips does not add up.
        if cells is not None and sets is None and _is_additive(stability, statistics) and not clips:
            wider, every = self._with_remainder(keys, cells)
            question = self._question(child, wider, bound, stability)
            if chains is None:
                keys, remainder = wider, every
        norm = self._norm if chains is None else "l1"  # for the root (`running.widened`)
        write = self._writer_of(child, keys, groups, bound, stability, norm)
        values = [key.value for key in keys]
        for statistic in statistics:
            values += [part for part in (statistic.value, statistic.where) if part is not None]
        stages = tuple(sorted(set(stages_of(child, values))))
        counts = tuple(dict.fromkeys(assembly.counts))
        draft = _Draft(
            keys,
            cells,
            bound,
            statistics,
            groups,
            weights,
            counts,
            selection,
            write(statistics),
            stages,
            derivation,
            chains,
            chained,
            remainder,
            question,
            sets,
            write,
            clips,
        )
        for i, other in enumerate(self._drafts):
            if _same(draft, other):
                return i  # also where only one of them is asked for running totals: the first decides
        self._drafts.append(draft)
        self._describe(grouped, domains, cells)
        if any(FAN_OUT in part.note for part in _steps(derivation)):
            rows = "1 row" if stability.rows == 1 else f"{stability.rows:,} rows"
            self._notes[f"where a row meets several public ones, at most {rows} of a unit count in full"] = None
        return len(self._drafts) - 1

    def _writer_of(
        self,
        child: Plan,
        keys: tuple[Key, ...],
        groups: tuple[tuple[int, ...], ...],
        bound: Cells,
        stability: Stability,
        norm: Literal["l1", "l2"],
    ) -> Callable[[Sequence[Statistic]], tuple[Branch, ...]]:
        """What writes the engine's queries, for these sums or for the same with other clips."""

        def write(statistics: Sequence[Statistic]) -> tuple[Branch, ...]:
            return bounded_queries(
                child,
                keys,
                statistics,
                groups,
                bound,
                rows=stability.rows,
                single=stability.single,
                norm=norm,
                dialect=self._dialect,
            )

        return write

    # --- clips ---

    def _searched(
        self, child: Plan, statistics: tuple[Statistic, ...], groups: tuple[tuple[int, ...], ...]
    ) -> tuple[tuple[int, int], ...]:
        """For each sum with a loose clip, the measurement that chooses one: on the column and path, without WHERE."""
        found = []
        for place, statistic in enumerate(statistics):
            if not statistic.loose or (place,) not in groups:
                continue
            if (search := self._search(unfiltered(child), statistic.value)) is not None:
                found.append((place, search))
        return tuple(found)

    def _search(self, child: Plan, value: Scalar | None) -> int | None:
        if list(stages_of(child, [] if value is None else [value])):
            return None  # another question at each value of the stage
        if any(isinstance(node, Join) and node.condition is None for node in nodes(child)):
            return None  # without its conditions, every row would meet every other
        try:
            derivation = derive(child, self._catalog.max_cells)
            statistics = (rules.clip_search(derivation.conclusion, value),)
        except Error:
            return None  # some conditions carry what makes a relation one of units, or its bounds
        bound, groups = Cells(False, 1, False), ((0,),)
        write = self._writer_of(child, (), groups, bound, derivation.conclusion, self._norm)
        branches = write(statistics)
        draft = _Draft(
            (),
            ((),),
            bound,
            statistics,
            groups,
            (),
            (),
            None,
            branches,
            (),
            derivation,
            None,
            (),
            (),
            None,
            None,
            write,
        )
        for i, other in enumerate(self._drafts):
            if _same(draft, other):
                return i
        self._drafts.append(draft)
        self._notes["what a unit adds beyond a chosen clip is cut off; margins are of the noise alone"] = None
        return len(self._drafts) - 1

    def _settled(self, draft: _Draft, chosen: Mapping[int, int]) -> _Draft:
        """The draft with the clips that were chosen by now."""
        known = [(place, search) for place, search in draft.clips if search in chosen]
        if not known:
            return draft
        statistics = list(draft.statistics)
        for place, search in known:
            (asked,) = self._drafts[search].statistics
            most = rules.clips(asked)[chosen[search]] * asked.step
            statistics[place] = rules.clipped_at(statistics[place], most)
        return replace(draft, statistics=tuple(statistics), branches=draft.write(statistics))

    def _question(self, child: Plan, keys: tuple[Key, ...], bound: Cells, stability: Stability) -> Question:
        def question(kept: tuple[int, ...], statistic: Statistic | None) -> str:
            cells = bound if kept else Cells(False, 1, False)
            branches = bounded_queries(
                child,
                [keys[i] for i in kept],
                [statistic or rules.count_units(None, cells)],
                [[0]],
                cells,
                rows=stability.rows,
                single=stability.single,
                norm=self._norm,
                dialect=self._dialect,
            )
            return "; ".join(branch.query.sql for branch in branches)

        return question

    def _with_remainder(
        self, keys: tuple[Key, ...], cells: tuple[tuple[Value, ...], ...]
    ) -> tuple[tuple[Key, ...], tuple[tuple[Value, ...], ...]]:
        """The keys, with rows that have others kept in cells of their own, so that totals can be made of parts later.

        Claim: the release costs what it costs without them.
        Because: a unit is in one cell, whichever it is; the cells that there may be follow from query and policy.
        Needs: one row per unit, so that the limit leaves it in one cell.
        """
        wider = tuple(replace(key, remainder=None not in (key.keys or ()) and key.keys != ()) for key in keys)
        domains = [(*(key.keys or ()), *((None,) if key.remainder else ())) for key in wider]
        if math.prod(map(len, domains)) > self._catalog.max_cells:
            return keys, ()
        shown = set(cells)
        return wider, tuple(cell for cell in itertools.product(*domains) if cell not in shown)

    def _describe(
        self,
        grouped: list[tuple[Field, Scalar]],
        domains: list[tuple[Value, ...] | None],
        cells: tuple[tuple[Value, ...], ...] | None,
    ) -> None:
        if cells is None:
            self._notes["keys whose noisy count of units stays below the threshold are not returned"] = None
        for (field, _), found in zip(grouped, domains, strict=True):
            if found is not None and None not in found:
                self._notes[f'rows whose "{field.name}" is NULL or not declared are not counted'] = None

    # --- price ---

    def _priced(self) -> Callable[[_Draft, int], Measurement]:
        """The price is shared for the least error of what was asked; delta equally among all thresholds.

        A sum whose clip is searched for leaves a fifth of its share to the search.
        """
        chosen = sum(draft.selection is not None for draft in self._drafts)
        if not any(draft.statistics for draft in self._drafts):
            return lambda draft, _: self._measure(draft, [], 0)
        policy = self._accountant.policy
        epsilon = self._settings.epsilon if self._settings.epsilon is not None else policy.query_epsilon
        if epsilon > policy.max_query_epsilon:
            raise BadSetting(
                f"epsilon must not exceed {float(policy.max_query_epsilon):g}",
                hint="The policy limits what one query may cost.",
            )
        loss = self._accountant.price_of(epsilon)
        if self._settings.margin is not None:
            loss = self._least_loss(self._settings.margin)
        delta = 0
        if chosen:
            asked = self._settings.delta
            delta = self._accountant.default_delta(loss) if asked is None else math.floor(asked / DELTA_UNIT)
            if delta > self._accountant.total.delta:
                raise BadSetting(
                    "delta must not exceed what the policy keeps for unknown keys",
                    hint=f"That is {float(self._accountant.total.delta_value):g}.",
                )
            delta //= chosen
            if delta <= 0 and asked is not None:
                raise BadSetting("delta is too small to be counted", hint="Choose a larger delta.")
            if delta <= 0:
                raise MissingDeclaration(
                    "there is no delta for releasing unknown keys",
                    hint="Set dpsql.delta, or declare the keys in the policy.",
                )
        shared = self._shares(loss)
        given: Counter[int] = Counter()  # to each search
        for draft, parts in zip(self._drafts, shared, strict=True):
            for place, search in draft.clips:
                group = draft.groups.index((place,))
                given[search] += (part := parts[group] // _SEARCH)
                parts[group] -= part if self._clips == "searched" else 0
        shared = [[given[i]] if draft.is_search else shared[i] for i, draft in enumerate(self._drafts)]
        if not all(map(all, shared)):
            raise BadSetting("epsilon is too small for so many aggregates", hint="Ask for fewer, or pay more.")
        return lambda draft, index: self._measure(draft, shared[index], delta)

    @property
    def _degree(self) -> Degree:
        return 3 if self._accountant.policy.accounting == "basic" else 2

    def _shares(self, loss: int) -> list[list[int]]:
        """What each group of statistics may cost, by measurement."""
        parts = iter(shares(loss, [weight for draft in self._drafts for weight in draft.weights], self._degree))
        return [[next(parts) for _ in draft.weights] for draft in self._drafts]

    def _least_loss(self, wanted: Fraction) -> int:
        """The least price of the whole query at which every count is within the margin, in 95 of 100 cases.

        It depends on the query and the policy alone. Where a price is stated as well, it is the most that is paid.
        """
        if not any(draft.counts for draft in self._drafts):
            raise BadSetting(
                "dpsql.margin is the error of counts, and the query has none",
                hint="Add COUNT(*), or RESET dpsql.margin and pay a price.",
            )
        policy = self._accountant.policy
        most = self._accountant.price_of(self._settings.epsilon or policy.max_query_epsilon)

        def suffices(loss: int) -> bool:
            try:
                for draft, parts in zip(self._drafts, self._shares(loss), strict=True):
                    widest = [_widest(draft, i, noise) for i, noise in enumerate(self._noises(draft, parts))]
                    if any(margin_of(count, widest) > wanted for count in draft.counts):
                        return False
                return True
            except (NotSupported, ValueError):  # more noise than 64 bits hold, or no price at all
                return False

        if not suffices(most):
            raise BadSetting(
                f"a margin of ±{float(wanted):g} costs more than one query may",
                hint="Allow a wider margin, ask for fewer aggregates at once, or raise dpsql.epsilon if it is set.",
            )
        self._notes[f"the price is the least that keeps counts within ±{float(wanted):g} (95 %)"] = None
        return least(suffices, most)

    def _measure(self, draft: _Draft, parts: list[int], delta: int) -> Measurement:
        price = Price(sum(parts), delta if draft.selection is not None else 0)
        if draft.is_search and self._clips == "found":
            price = Price()
        noises = self._noises(draft, parts)
        noises, rooted = _rooted(noises, draft)
        if (sets := draft.lattice) is not None:
            for number, noise in itertools.product(range(len(sets.sets)), noises):
                sets.noise(noise, number)  # or a refusal: more than 64 bits hold
        lowest = None
        if (at := draft.selection) is not None:
            weight = rules.weight_in_keys(draft.statistics[at], self._norm)
            noise, lowest = selecting(noises[at], draft.bound.groups, Price(0, delta).delta_value, weight)
            noises = (*noises[:at], noise, *noises[at + 1 :])
        return Measurement(
            draft.keys,
            draft.cells,
            draft.bound,
            draft.statistics,
            draft.groups,
            noises,
            draft.selection,
            lowest,
            draft.branches,
            draft.stages,
            draft.derivation,
            price,
            draft.chains,
            draft.chained,
            rooted,
            draft.remainder,
            draft.question,
            draft.lattice,
            clips=draft.clips,
        )

    def _noises(self, draft: _Draft, parts: list[int]) -> tuple[Noise, ...]:
        """Noise for each statistic.

        Claim: all statistics of a group together cost what the group pays.
        Because: each gets the noise that it would need if it alone cost that, so with the scale b = l1 / epsilon or the
        variance v = l2² / (2 rho). A unit that moves them by m costs the sum of m / b, or of m² / (2 v): of the price
        as large a part as the sum of m / l1, or of m² / l2², is of 1, and that is no more than all of it.
        Needs: the claims of a group's statistics hold together (`rules.sum_shapes`).
        """
        losses = {i: Price(part).loss_value for group, part in zip(draft.groups, parts, strict=True) for i in group}
        return tuple(self._noise(statistic, losses[i]) for i, statistic in enumerate(draft.statistics))

    def _noise(self, statistic: Statistic, loss: Fraction) -> Noise:
        is_basic = self._accountant.policy.accounting == "basic"
        if statistic.kind is Counted.COMMONEST:
            return most_common(statistic.sensitivity.l1, loss if is_basic else epsilon_of_choice(loss))
        if statistic.kind is Counted.CLIP:
            return clip_chosen(loss if is_basic else epsilon_of_choice(loss))
        if statistic.rank is not None:
            return chosen(statistic.sensitivity.l1, statistic.rank, loss if is_basic else epsilon_of_choice(loss))
        if is_basic:
            return laplace(statistic.sensitivity.l1, loss)
        return gaussian(statistic.sensitivity.l2_squared, loss)

    # --- outputs ---

    def _with_margins(self, rest: Plan, wanted: tuple[Field, ...]) -> tuple[Plan, dict[int, int]]:
        widths = {index: len(draft.keys) for index, draft in enumerate(self._drafts)}
        choices = {
            (index, i)
            for index, draft in enumerate(self._drafts)
            for i, statistic in enumerate(draft.statistics)
            if statistic.kind in CHOSEN
        }
        chains = {
            index: (draft.chains, draft.chained) for index, draft in enumerate(self._drafts) if draft.chains is not None
        }
        sets = {
            index: [self._in_sets(index, i) for i in range(len(draft.statistics))]
            for index, draft in enumerate(self._drafts)
            if draft.lattice is not None
        }
        return with_margins(rest, wanted, widths, choices, chains, sets, self._ids)

    def _in_sets(self, index: int, statistic: int) -> dict[tuple[int, ...], float]:
        """How many times as far off as the finest cells those of each set are; before the price is known, about."""
        draft = self._drafts[index]
        assert draft.lattice is not None
        if index < len(self._priced_already):
            measurement = self._priced_already[index]
            finest = measurement.steps(statistic)
            return {kept: measurement.steps_in_set(statistic, kept) / finest for kept in draft.lattice.sets}
        coarse = Noise(self._law, Fraction(2**40))
        finest = draft.lattice.margin(coarse, draft.lattice.sets[0], 1)
        return {kept: draft.lattice.margin(coarse, kept, 1) / finest for kept in draft.lattice.sets}

    @property
    def _law(self) -> Literal["laplace", "gaussian"]:
        return "laplace" if self._accountant.policy.accounting == "basic" else "gaussian"

    def _output(self, field: Field, plan: Plan, measurements: tuple[Measurement, ...]) -> Output:
        source = source_of(field, plan, self._shown.keys() | self._ratios | self._counted)
        # Of several grouping sets, the largest margin is true of all.
        shown = self._shown.get(source, ())
        found = _widest_of(shown, field.type, measurements)
        averaged = self._averages.get(source, ())
        mean = _widest_mean(averaged, measurements)
        is_count = source in self._counted
        return Output(field.name, field.type, found, source in self._ratios, mean, shown, averaged, count=is_count)


def _widest_of(
    shown: Sequence[tuple[int, Linear]], type_: Type, measurements: Sequence[Measurement]
) -> Fraction | None:
    found = max((measurements[index].margin_of(number) for index, number in shown), default=None)
    return Fraction(math.ceil(found)) if found is not None and type_.kind is Kind.INTEGER else found


def _widest_mean(averaged: Sequence[tuple[int, Linear]], measurements: Sequence[Measurement]) -> float | None:
    return max((measurements[index].average_margin(number) for index, number in averaged), default=None)


def as_told(release: Release, told: Mapping[int, tuple[int, ...]], derived: Set[int]) -> Release:
    """The release with the margins of answers that were not bought with its own noise; those derived cost nothing."""
    if not told:
        return release
    measurements = tuple(
        m
        if i not in told
        else replace(m, told=told[i], rooted=False, derived=i in derived, price=Price() if i in derived else m.price)
        for i, m in enumerate(release.measurements)
    )
    outputs = tuple(
        replace(
            output,
            margin=_widest_of(output.shown, output.type, measurements),
            at_thousand=_widest_mean(output.averaged, measurements),
        )
        for output in release.outputs
    )
    price = sum((m.price for m in measurements), Price())
    return replace(release, measurements=measurements, outputs=outputs, price=price)


def _in_steps(statistic: Statistic, noise: Noise) -> int:
    """The 95 % margin of a noisy sum, in whole steps."""
    return math.ceil(Fraction(margin(noise), statistic.factor))


def margin_of(number: Linear, steps: Sequence[int]) -> Fraction:
    """The 95 % margin of a number made of noisy sums, in its own unit, from those of the sums."""
    parts = [abs(size) * steps[i] for i, size in number]
    if len(parts) == 1:
        return parts[0]
    squares = sum(part * part for part in parts)
    grain = min(abs(size) for _, size in number)  # rounded up, to no finer than what it is made of
    return (math.isqrt(math.floor(squares / grain**2)) + 1) * grain


def least(suffices: Callable[[int], bool], most: int) -> int:
    """The least number that suffices, or one that is at most a millionth larger, where `most` does."""
    low, high = 0, most
    while high - low > 1 + (high >> 20):
        middle = (low + high) // 2
        low, high = (low, middle) if suffices(middle) else (middle, high)
    return high


def _rooted(noises: tuple[Noise, ...], draft: _Draft) -> tuple[tuple[Noise, ...], bool]:
    """The noises, where running totals are asked for those of their root; unless 64 bits do not hold these."""
    if draft.chains is None:
        return noises, False
    length = draft.chains.length
    try:
        return tuple(
            widened(noise, length, draft.statistics[i].sensitivity) if i in draft.chained else noise
            for i, noise in enumerate(noises)
        ), True
    except NotSupported:
        return noises, False


def _widest(draft: _Draft, place: int, noise: Noise) -> int:
    """The widest margin of a sum, in steps, and of its running totals where they are asked for."""
    statistic = draft.statistics[place]
    if statistic.kind in CHOSEN:
        return 0
    if draft.lattice is not None:
        return max(draft.lattice.margin(noise, kept, statistic.factor) for kept in draft.lattice.sets)
    if draft.chains is None or place not in draft.chained:
        return _in_steps(statistic, noise)
    length = draft.chains.length
    root = widened(noise, length, statistic.sensitivity)
    return max(cell_margin(root, length, statistic.factor), running_margins(root, length, statistic.factor)[-1])


def _is_additive(stability: Stability, statistics: tuple[Statistic, ...]) -> bool:
    """Whether cells may be added up: sums, of units with one row, which are in one cell."""
    return stability.rows == 1 and bool(statistics) and all(s.kind in _COUNTS for s in statistics)


def _ask(assembly: Assembly, calls: list[tuple[Field, Aggregated]]) -> None:
    for _, call in calls:
        if call.function is not Agg.GROUPING:
            assembly.ask(call)


def _same(left: _Draft, right: _Draft) -> bool:
    """Whether two measurements ask for the same: the generated text names no field, so equal text is equal meaning."""
    return (
        [(branch.query.sql, branch.statistics) for branch in left.branches]
        == [(branch.query.sql, branch.statistics) for branch in right.branches]
        and left.cells == right.cells
        and left.selection == right.selection
        and left.lattice == right.lattice
        and left.groups == right.groups
        and len(left.keys) == len(right.keys)
        and left.clips == right.clips
        and [s.sensitivity for s in left.statistics] == [s.sensitivity for s in right.statistics]
        and [(s.kind, s.step, s.factor, s.rank, s.shape) for s in left.statistics]
        == [(s.kind, s.step, s.factor, s.rank, s.shape) for s in right.statistics]
    )


def _steps(derivation: Derivation) -> Iterator[Derivation]:
    yield derivation
    for premise in derivation.premises:
        yield from _steps(premise)


def _grouping_value(call: Aggregated, grouped: list[Scalar]) -> Scalar:
    bits = 0
    for arg in call.args:
        bits = bits * 2 + (arg not in grouped)
    return Const(bits, call.type)
