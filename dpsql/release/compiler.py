"""A query becomes a Release without touching data.

`compile_release` cuts a plan at its release boundaries: an aggregation over private rows that does not group by the
unit becomes a Measurement (bounded SQL, noise, price); everything above it stays a plan over noisy tables.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import lru_cache
from typing import assert_never

from dpsql.errors import InternalError, NotSupported, PrivateRows, TooMuchNoise
from dpsql.lowering.dialect import Dialect
from dpsql.lowering.duckdb_dialect import DUCKDB
from dpsql.lowering.in_python import in_python
from dpsql.lowering.noisy_tables import from_lists, from_table
from dpsql.lowering.prune_and_merge import slim
from dpsql.lowering.relations import RelationWriter
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
    SetOperation,
    Sort,
    Window,
    inputs,
    nodes,
)
from dpsql.plan.patterns import rising_outputs, running_totals, top_keys
from dpsql.plan.scalars import (
    Aggregated,
    Field,
    InStage,
    Ref,
    Scalar,
    SortKey,
    StageValue,
    Subquery,
    Windowed,
    rebuild,
)
from dpsql.plan.visit import reads_private
from dpsql.policy.model import Catalog, Table
from dpsql.privacy.accounting import Accountant, Price
from dpsql.privacy.derive import derive, is_private
from dpsql.privacy.normalize.plan import Normalizer
from dpsql.privacy.normalize.public import check_total, in_fixed_order
from dpsql.privacy.owners import is_unit
from dpsql.release.drafts import Compilation
from dpsql.release.group_totals import Coarser
from dpsql.release.identity import asked_of_answers
from dpsql.release.limits import noise_alone
from dpsql.release.measurements import Measuring
from dpsql.release.model import BoundMode, Measurement, QuerySettings, Release, Rest, Stage
from dpsql.release.outputs import Outputs, is_measured
from dpsql.release.partial import MARK, Partial, caution
from dpsql.release.pricing import Pricing
from dpsql.release.rows import refuse_rows
from dpsql.release.text_casts import NULL_DATES, reads_dates_of_rows
from dpsql.types import BIGINT, BOOLEAN, Kind


def compile_release(
    plan: Plan,
    catalog: Catalog,
    accountant: Accountant,
    settings: QuerySettings,
    dialect: Dialect,
    clips: BoundMode = "declared",
) -> Release:
    # A margin is kept by a price that is known before anything is chosen.
    clips = "declared" if settings.margin is not None else clips
    for coarser in _COARSER:
        compilation = Compilation(catalog, accountant, settings, dialect, clips, coarser=coarser)
        try:
            return _Compiler(compilation, plan).compile()
        except TooMuchNoise:
            if coarser == _COARSER[-1]:
                raise
    raise AssertionError


# Bits by which the grids of sums are made coarser, in turn, until the noise that the price buys fits into 64 bits.
_COARSER = (0, 8, 16)


class _Compiler:
    def __init__(self, compilation: Compilation, plan: Plan) -> None:
        self._compilation = compilation
        self._plan = plan
        self._stages: list[Stage] = []
        self._public: dict[str, str] = {}
        self._tables: dict[str, Table] = {}
        self._outputs = Outputs(compilation)
        self._pricing = Pricing(compilation)
        self._preparation = Normalizer(compilation.catalog.max_cells, compilation.ids, self._stage, self._public_side)
        self._measuring = Measuring(compilation, self._preparation, self._outputs, running_totals(plan), top_keys(plan))
        self._hidden_stages: set[int] = set()  # those that see only the keys that are returned
        drafts = compilation.drafts
        self._partial = Partial(
            lambda index: len(drafts[index].keys),
            lambda index: drafts[index].cells is None,
            lambda index: not self._hidden_stages.isdisjoint(drafts[index].stages),
        )
        self._coarser = Coarser(compilation.new_field, self._measuring.has_unknown_keys)

    def compile(self) -> Release:
        refuse_rows(self._plan)
        rest = self._cut(self._plan)
        measure = self._pricing.priced()
        measurements = tuple(map(measure, self._compilation.drafts, itertools.count()))
        self._outputs.priced(measurements)
        outputs = tuple(self._outputs.output(field, rest, measurements) for field in rest.fields)
        pairs = zip(rest.fields, outputs, strict=True)
        wanted = tuple(
            field
            for field, output in pairs
            if field.type.is_numeric
            and (output.margin is None or any(measurements[i].selects(number) for i, number in output.shown))
        )
        wide, places, noisy = self._outputs.with_margins(rest, wanted)
        rising = rising_outputs(self._plan)
        blurred = self._warn_of_missing_keys(rest)
        limited = self._outputs.limited(rest)
        outputs = tuple(
            replace(
                output,
                margin_at=places.get(field.id),
                rising=rising.get(place),
                noisy=field.id in noisy and is_measured(field.type),
                limited=field.id in limited and field.id in noisy,
                mark=MARK if field.id in blurred and is_measured(field.type) else output.mark,
            )
            for place, (field, output) in enumerate(zip(rest.fields, outputs, strict=True))
        )
        rest_of_query = self._write(wide)
        measurements = self._with_reads(measurements)
        price = sum((m.price for m in measurements), Price())
        notes = tuple(self._compilation.notes)
        if reads_dates_of_rows(self._plan):
            self._compilation.caution(NULL_DATES)
        if self._compilation.limits:
            marked = any(output.noise_only for output in outputs)
            self._compilation.caution(noise_alone(tuple(self._compilation.limits), marked=marked))
        release = Release(
            measurements,
            tuple(self._stages),
            rest_of_query,
            outputs,
            self._tables,
            price,
            notes,
            tuple(self._compilation.cautions),
            self._compilation.settings,
        )
        if not release.searches or self._compilation.chosen:
            return release

        @lru_cache(maxsize=4)
        def settled_at(places: tuple[tuple[int, int], ...]) -> Release:
            # Compiled once more: what is chosen stands in the engine's queries, and in the rest of the query too.
            settled = _Compiler(self._compilation.again(dict(places)), self._plan).compile()
            # What runs is what was paid for, part by part.
            if [m.price for m in settled.measurements] != [m.price for m in release.measurements]:
                raise InternalError("a chosen clip would change what the query costs")
            chosen = frozenset(search for search, _ in places)
            return replace(settled, unsettled=loose, chosen=chosen)

        loose = replace(release, settle=lambda chosen: settled_at(tuple(sorted(chosen.items()))))
        return loose

    def _warn_of_missing_keys(self, rest: Plan) -> frozenset[int]:
        """The columns that are made of the keys that are returned."""
        blurred = self._partial.of(rest).blurred
        names = [field.name for field in rest.fields if field.id in blurred]
        if (sentence := caution(names, chooses=self._partial.chooses)) is not None:
            self._compilation.caution(sentence)
        return blurred

    # --- the part above the releases ---

    def _cut(self, plan: Plan) -> Plan:
        """The same plan with each release replaced by its noisy table."""
        match plan:
            case Aggregate(child=child) if is_private(child):
                return self._measuring.release(plan)
            case Distinct(child=child) if is_private(child):
                copies = [(replace(field, id=next(self._compilation.ids)), Ref(field)) for field in child.fields]
                keys: tuple[tuple[Field, Scalar], ...] = tuple(copies)
                grouped = Aggregate(child, keys, (), (tuple(range(len(keys))),))
                released = self._measuring.release(grouped)
                return Project(
                    released, tuple((old, Ref(new)) for old, (new, _) in zip(child.fields, keys, strict=True))
                )
            case _:
                pass
        for child in inputs(plan):
            if is_private(child):
                self._refuse_mixture(plan)
        if (coarser := self._coarser.rewritten(plan)) is not None:
            return self._cut(coarser)
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
            derive(plan, self._compilation.catalog.max_cells)  # says why joins are refused
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
            names = sorted({other.name for other in self._compilation.catalog.tables.values()})
            self._public[table.name] = f"p{names.index(table.name)}"
            self._tables[self._public[table.name]] = table
        return self._public[table.name]

    def _with_reads(self, measurements: tuple[Measurement, ...]) -> tuple[Measurement, ...]:
        """Each with all declarations that decide its answers, also by way of those that it is made of."""
        found: list[Measurement] = []
        for measurement, draft in zip(measurements, self._compilation.drafts, strict=True):
            reads = dict.fromkeys(draft.asked.reads)
            stages = [self._stages[stage] for stage in measurement.stages]
            for earlier in (*(i for stage in stages for i in stage.measurements), *(i for _, i in measurement.clips)):
                reads |= dict.fromkeys(found[earlier].reads)
            for stage in stages:
                reads |= dict.fromkeys(stage.asked.reads)
            found.append(replace(measurement, reads=tuple(sorted(reads))))
        return tuple(found)

    def _write(self, plan: Plan) -> Rest:
        """SQL for the post-processing engine: noisy tables arrive as lists, in the order of their fields."""
        released = [node for node in nodes(plan) if isinstance(node, Released)]
        # Some read the margins of the sums as well, in columns behind the others.
        used = {node.measurement: node for node in sorted(released, key=lambda node: len(node.fields))}
        writer = RelationWriter(DUCKDB, private=False, public=self._public)
        plan = slim(plan, DUCKDB, self._compilation.ids)
        body = writer.relation(plan)
        if not used:
            return Rest(body, None, {}, None)
        types = {index: [writer.scalars.type(field.type) for field in node.fields] for index, node in used.items()}
        heads = [[head(index, types[index]) for index in sorted(types)] for head in (from_lists, from_table)]
        of_lists, of_tables = (f"WITH {', '.join(each)} {body}" for each in heads)
        columns = {index: len(node.fields) for index, node in used.items()}
        return Rest(of_lists, of_tables, columns, in_python(plan))

    # --- stages ---

    def _stage(self, node: Subquery, fields: tuple[Field, ...]) -> Scalar:
        """A subquery in a private expression: released or public, so a constant by the time it is needed."""
        if node.kind == "in" and node.arg is not None and is_unit(node.arg) and is_private(node.plan):
            raise NotSupported(
                "unit IN (SELECT …) is only supported in WHERE, combined with other conditions by AND",
                hint="Select the unit itself in the subquery, and move the condition to the top of WHERE.",
                position=node.position,
            )
        if is_private(node.plan):
            raise NotSupported(
                "the subquery would compare rows of different units",
                hint="Aggregate inside the subquery, or compare the columns that name the unit in it.",
                position=node.position,
            )
        if node.kind not in ("scalar", "exists", "in"):
            raise NotSupported(
                "ANY and ALL over released or public values are not supported here",
                hint="Compare with (SELECT MAX(…) …) or (SELECT MIN(…) …).",
                position=node.position,
            )
        rest = self._cut(node.plan)
        hides_rows = self._partial.hides_rows(node.kind, rest)
        rest, _, _ = self._outputs.with_margins(rest, ())
        field = rest.fields[0]
        measurements = tuple(sorted({n.measurement for n in nodes(rest) if isinstance(n, Released)}))
        written = self._write(rest)
        if node.kind == "exists":
            of_tables = None if written.of_tables is None else f"SELECT EXISTS ({written.of_tables})"
            written = Rest(f"SELECT EXISTS ({written.sql})", of_tables, written.columns, None)
        type_ = BOOLEAN if node.kind == "exists" else field.type
        if type_.kind is Kind.INTEGER:
            type_ = replace(type_, precision=BIGINT.precision)  # all that the engine is told of the value
        # The same question inside one query has one answer.
        asked = Stage(node.kind, type_, written, asked_of_answers(rest, node.kind, measurements), measurements)
        if asked not in self._stages:
            self._stages.append(asked)
        stage = self._stages.index(asked)
        if hides_rows:
            self._hidden_stages.add(stage)
        if node.kind == "in":
            assert node.arg is not None
            return InStage(self._preparation.scalar(node.arg, fields), stage, type_)
        return StageValue(stage, type_)

    def _public_side(self, plan: Plan) -> Plan:
        """A relation without private rows that is joined to private ones: the engine reads public tables itself."""
        if reads_private(plan):
            raise NotSupported(
                "private rows and released values cannot be joined",
                hint="Aggregate the private rows first, then join the results; or keep some rows: x IN (SELECT …).",
            )
        check_total(plan)
        return in_fixed_order(plan)
