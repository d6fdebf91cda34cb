"""Aggregations over private rows become measurements: bounded SQL and the sums that answer what was asked."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import assert_never

from dpsql.errors import MissingDeclaration, NotSupported
from dpsql.lowering.bounding import bounded_queries
from dpsql.lowering.fast_paths import Key
from dpsql.plan.nodes import Aggregate, Plan, Project, Released, SetKind, SetOperation
from dpsql.plan.patterns import Running, added_up, over
from dpsql.plan.scalars import Agg, Aggregated, Const, Field, Ref, Scalar, refs
from dpsql.plan.visit import free_fields, stages_of
from dpsql.privacy.bounds import NOTHING, Facts, without_known
from dpsql.privacy.derive import check_scalar, unknown_fan_outs
from dpsql.privacy.estimators.assembly import Estimators, counts_units
from dpsql.privacy.keys.domains import domain
from dpsql.privacy.keys.joint import JointKeys
from dpsql.privacy.mechanisms.bound_search import BoundSearch
from dpsql.privacy.mechanisms.grouping_sets import GroupingSets, lattice
from dpsql.privacy.mechanisms.partition_selection import UnpricedSelection
from dpsql.privacy.mechanisms.running_totals import Along, Chains, RunningTotals, chains_of, worthwhile
from dpsql.privacy.mechanisms.sums import Sums
from dpsql.privacy.mechanisms.top_keys import UnpricedTopKeys, chosen_cells
from dpsql.privacy.mechanisms.top_keys import worthwhile as worthwhile_top
from dpsql.privacy.mechanisms.union import Unpriced
from dpsql.privacy.normalize.outer_joins import without_unowned_rows
from dpsql.privacy.normalize.plan import Normalizer
from dpsql.privacy.owners import names_owner
from dpsql.privacy.rules import aggregates as rules
from dpsql.privacy.rules.aggregates import Cells, Statistic, StatisticKind
from dpsql.privacy.stability import Derivation, Stability
from dpsql.release.bound_search import BoundSearches
from dpsql.release.drafts import Compilation, Draft
from dpsql.release.identity import Question, asked_of_rows
from dpsql.release.limits import limits
from dpsql.release.outputs import Outputs
from dpsql.release.rows import refuse_rows
from dpsql.types import DOUBLE, Value

_COUNTS = (StatisticKind.ROWS, StatisticKind.UNITS)
Domains = tuple[tuple[Value, ...] | None, ...]  # all values of each key, where they are known


class Measuring:
    def __init__(
        self,
        compilation: Compilation,
        preparation: Normalizer,
        outputs: Outputs,
        running: Mapping[int, Running],
        top: Mapping[int, int],
    ) -> None:
        self._compilation = compilation
        self._preparation = preparation
        self._outputs = outputs
        self._running = running
        self._top = top

    def release(self, plan: Aggregate) -> Plan:
        """One measurement for each grouping set; together they share the price, as any parts of a query do."""
        plan, child, derivation, keys = self._proved(plan)
        calls = []
        for field, call in plan.aggregates:
            if call.function is Agg.GROUPING:
                calls.append((field, call))
                continue
            changed = self._preparation.scalar(call, child.fields)
            assert isinstance(changed, Aggregated)
            where = without_known(changed.where, derivation.conclusion.facts)
            calls.append((field, replace(changed, where=where)))
        joint = self._joint(child, derivation)
        parts = self._agreeing_sets(keys, calls, plan, child, derivation, joint) or [
            self._grouping_set(chosen, keys, calls, plan, child, derivation, joint) for chosen in plan.sets
        ]
        result = parts[0]
        if len(parts) == 1:
            return Project(result, tuple((old, Ref(new)) for old, new in zip(plan.fields, result.fields, strict=True)))
        for i, part in enumerate(parts[1:], 2):
            last = i == len(parts)
            fields = plan.fields if last else tuple(replace(f, id=next(self._compilation.ids)) for f in plan.fields)
            for old, mine, other in zip(fields, result.fields, part.fields, strict=True):
                self._outputs.unite(old, mine, other)
            result = SetOperation(SetKind.UNION_ALL, result, part, fields)
        return result

    def has_unknown_keys(self, plan: Aggregate) -> bool:
        """Whether a threshold will choose among the keys of an aggregation."""
        _, child, derivation, keys = self._proved(plan)
        joint = self._joint(child, derivation)
        return any(self._cells_of(keys, chosen, joint)[1] is None for chosen in plan.sets)

    def _proved(self, plan: Aggregate) -> tuple[Aggregate, Plan, Derivation, list[tuple[Field, Scalar]]]:
        """The aggregation, its rows made explicit, the proof of how much of them is one unit's, and the keys."""
        plan = without_unowned_rows(plan)
        child = self._preparation.relation(plan.child)
        if free_fields(plan):
            raise NotSupported(
                "a correlated subquery would release one value per outer row",
                hint="Aggregate it once, with GROUP BY, and join the result.",
            )
        if names_owner(value for _, value in plan.keys):
            refuse_rows(plan)
        derivation = self._compilation.derived(child)
        keys = [(field, self._preparation.scalar(value, child.fields)) for field, value in plan.keys]
        for _, value in keys:
            check_scalar(value)
        return plan, child, derivation, keys

    def _joint(self, child: Plan, derivation: Derivation) -> JointKeys:
        return JointKeys(child, derivation.conclusion.facts, self._compilation.catalog.max_cells)

    def _cells_of(
        self, keys: list[tuple[Field, Scalar]], chosen: tuple[int, ...], joint: JointKeys
    ) -> tuple[Domains, tuple[tuple[Value, ...], ...] | None]:
        """Of some of the keys, the values of each and all possible combinations; None where they are not known."""
        values = [keys[i][1] for i in chosen]
        found = joint.combinations(values)
        if found is None:
            return tuple(domain(value, joint.facts, joint.limit) for value in values), None
        return found.domains, found.cells

    def _agreeing_sets(
        self,
        keys: list[tuple[Field, Scalar]],
        calls: list[tuple[Field, Aggregated]],
        plan: Aggregate,
        child: Plan,
        derivation: Derivation,
        joint: JointKeys,
    ) -> list[Plan] | None:
        """Grouping sets that are measured together and made of the same cells, so that parts add up to totals.

        None where each is measured by itself: keys are unknown, or not possible in all combinations, a unit is in
        several cells, or no set has all keys.
        """
        stability = derivation.conclusion
        finest = tuple(sorted(set(itertools.chain(*plan.sets))))
        sets = [tuple(sorted(chosen)) for chosen in plan.sets]
        if len(sets) == 1 or len(set(sets)) < len(sets) or finest not in sets:
            return None
        grouped = [keys[i] for i in finest]
        domains, cells = self._cells_of(keys, finest, joint)
        if not cells or len(cells) < math.prod(len(found or ()) for found in domains):
            return None
        bound = rules.cells(stability, True, len(cells))
        estimators = Estimators(stability, bound, self._compilation.new_field, self._compilation.degree)
        _ask(estimators, calls)
        estimators.settle(None)
        values = {
            field.id: estimators.output(field, call) for field, call in calls if call.function is not Agg.GROUPING
        }
        if not _is_additive(stability, tuple(estimators.statistics)):
            return None
        sizes = tuple(len(found or ()) for found in domains)
        ordered = sorted(sets, key=lambda chosen: -len(chosen))  # the finest first
        found = lattice(sizes, tuple(tuple(map(finest.index, chosen)) for chosen in ordered), self._compilation.law)
        index = self._draft(grouped, domains, cells, bound, estimators, child, derivation, found)
        places = _places(estimators)
        limited = self._say_limits(
            index, stability, bound, [(call, _used(values.get(field.id), places)) for field, call in calls]
        )
        parts: list[Plan] = []
        for kept in plan.sets:
            key_fields = {
                i: self._compilation.new_field(field.name, field.type)
                for i, (field, _) in zip(finest, grouped, strict=True)
            }
            sums = {old.id: self._compilation.new_field(old.name, old.type) for old in estimators.statistics.values()}
            part: Plan = Released(index, (*key_fields.values(), *sums.values()))
            if len(kept) < len(finest):
                part, key_fields, sums = added_up(part, kept, key_fields, sums, self._compilation.new_field)
            items: list[tuple[Field, Scalar]] = []
            for i, (field, _) in enumerate(plan.keys):
                key = Ref(key_fields[i]) if i in kept else Const(None, field.type)
                items.append((replace(field, id=next(self._compilation.ids), unit=False), key))
            for (field, call), is_limited in zip(calls, limited, strict=True):
                target = replace(field, id=next(self._compilation.ids))
                self._outputs.show(target, field, call, estimators)
                if is_limited:
                    self._outputs.limit(target)
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
        joint: JointKeys,
    ) -> Plan:
        stability = derivation.conclusion
        grouped = [keys[i] for i in chosen]
        domains, cells = self._cells_of(keys, chosen, joint)
        if cells is None:
            self._require_delta(grouped, domains, stability.facts)
        values_of_keys = [value for _, value in grouped]
        in_one = joint.in_one_cell(values_of_keys, stability.rows) if self._compilation.norm == "l2" else None
        bound = rules.cells(stability, bool(grouped), None if cells is None else len(cells), in_one)
        first = None if cells is None else self._chosen_first(calls, bound, len(cells))
        counter = rules.count_units(None, bound) if cells is None and bound.groups == 1 else None

        def assembled(searches: BoundSearches | None) -> tuple[Estimators, list[Scalar]]:
            estimators = Estimators(stability, bound, self._compilation.new_field, self._compilation.degree, searches)
            if first is not None:
                estimators.chosen = chosen_cells(first[1])
            _ask(estimators, calls)
            estimators.settle(counter)
            values: list[Scalar] = []
            for field, call in calls:
                if call.function is Agg.GROUPING:
                    values.append(_grouping_value(call, [plan.keys[i][1] for i in chosen]))
                else:
                    values.append(estimators.output(field, call))
            return estimators, values

        # Running totals keep declared bounds: what is made around a centre must name it, and clip what is left.
        estimators, values = assembled(None)
        running: RunningTotals | None = None
        if cells is not None and not estimators.groups:
            running = self._running_totals(chosen, calls, values, estimators, cells)
        if running is not None and bound.in_one is not None:
            bound = replace(bound, in_one=None)  # the clip is in L1
            estimators, values = assembled(None)
        if running is None and self._compilation.clips != "declared":
            estimators, values = assembled(
                BoundSearches(self._compilation, child, tuple(value for _, value in grouped))
            )
        mechanism: Unpriced = running or Sums()
        if cells is None:
            selector = rules.key_selector(bound, estimators.statistics, self._compilation.norm)
            if selector != counter:
                estimators.statistic(selector)
            mechanism = UnpricedSelection(estimators.index_of(selector))
        if first is not None:
            mechanism = UnpricedTopKeys(first[1], estimators.index_of(estimators.count_distinct(first[0])))
        index = self._draft(grouped, domains, cells, bound, estimators, child, derivation, mechanism)
        places = _places(estimators)
        asked = [(call, _used(value, places)) for (_, call), value in zip(calls, values, strict=True)]
        limited = self._say_limits(index, stability, estimators.chosen or bound, asked)
        key_fields = [self._compilation.new_field(field.name, field.type) for field, _ in grouped]
        sums: tuple[Field, ...] = tuple(estimators.statistics.values())
        if estimators.margins:
            sums += tuple(
                estimators.margins.get(statistic) or self._compilation.new_field("margin", DOUBLE)
                for statistic in estimators.statistics
            )
        released = Released(index, (*key_fields, *sums))
        by_index = dict(zip(chosen, key_fields, strict=True))
        items: list[tuple[Field, Scalar]] = []
        for i, (field, _) in enumerate(plan.keys):
            key = Ref(by_index[i]) if i in by_index else Const(None, field.type)
            items.append((replace(field, id=next(self._compilation.ids), unit=False), key))
        for (field, call), value, is_limited in zip(calls, values, limited, strict=True):
            target = replace(field, id=next(self._compilation.ids))
            self._outputs.show(target, field, call, estimators)
            if is_limited:
                self._outputs.limit(target)
            self._outputs.show_sums(target, field, estimators, index)
            if call.function is not Agg.GROUPING and next(unknown_fan_outs(derivation), None) is not None:
                self._outputs.mark(target, "rows of a public table may be cut off")
            items.append((target, value))
        return Project(released, tuple(items))

    def _say_limits(
        self, index: int, stability: Stability, bound: Cells, asked: list[tuple[Aggregated, set[int]]]
    ) -> list[bool]:
        """What limits may cut off from each aggregate, given with the sums that it is made of; and whether any may."""
        draft = self._compilation.drafts[index]
        keys = None if draft.cells is None else len(draft.cells)
        limited = []
        for call, used in asked:
            found = limits(
                stability,
                bound,
                keys,
                [draft.statistics[place] for place in sorted(used)],
                of_rows=not counts_units(call),
                searched=any(place in used for place, _ in draft.clips),
            )
            reasons = [] if call.function is Agg.GROUPING else list(found)
            self._compilation.limits |= dict.fromkeys(reasons)
            limited.append(bool(reasons))
        if not asked:  # keys alone
            alone = limits(stability, bound, keys, (), of_rows=False, searched=False)
            self._compilation.limits |= dict.fromkeys(alone)
        return limited

    def _chosen_first(
        self, calls: list[tuple[Field, Aggregated]], bound: Cells, cells: int
    ) -> tuple[Aggregated, int] | None:
        """A count of units, and how many keys are chosen by it, where only those with most units are looked at."""
        for field, call in calls:
            keys = self._top.get(field.id)
            if keys is not None and counts_units(call) and worthwhile_top(keys, bound, cells):
                return call, keys
        return None

    def _running_totals(
        self,
        chosen: tuple[int, ...],
        calls: list[tuple[Field, Aggregated]],
        values: list[Scalar],
        estimators: Estimators,
        cells: tuple[tuple[Value, ...], ...],
    ) -> RunningTotals | None:
        """The statistics whose running totals are asked for, in one order, where noise on their root is better."""
        plain = all(statistic.kind in _COUNTS for statistic in estimators.statistics)
        if not plain:
            return None
        places = _places(estimators)
        used = [_used(value, places) for value in values]
        found: Chains | None = None
        chained: set[int] = set()
        for i, ((field, call), own) in enumerate(zip(calls, used, strict=True)):
            running = self._running.get(field.id)
            if running is None or call.function not in (Agg.COUNT, Agg.SUM) or call.distinct:
                continue
            along = tuple(Along(chosen.index(at), key.descending, key.nulls_first) for at, key in running.along)
            chains = chains_of(along, cells)
            if chains is None:
                continue
            singly = running.singly or any(own & other for j, other in enumerate(used) if j != i)
            if found in (None, chains) and worthwhile(chains.length, self._compilation.law, singly=singly):
                found = chains
                chained |= own
        return None if found is None else RunningTotals(found, tuple(sorted(chained)))

    def _require_delta(self, grouped: list[tuple[Field, Scalar]], domains: Domains, facts: Facts) -> None:
        is_pure = self._compilation.settings.pure
        if self._compilation.accountant.total.delta > 0 and not is_pure:
            return
        why, off = ("a pure answer has no delta" if is_pure else "delta is 0"), "SET dpsql.pure = off"
        for (field, value), found in zip(grouped, domains, strict=True):
            if found is None:
                fact = facts.get(value.field.id, NOTHING) if isinstance(value, Ref) else NOTHING
                where = f"values for {fact.origin[0]}.{fact.origin[1]}" if fact.origin else "the columns it reads"
                hint = f"Declare {where} in the policy, or {off if is_pure else 'a delta for unknown keys'}."
                if value.type.is_numeric or value.type.is_temporal:
                    grid = "Group by FLOOR, width_bucket or date_trunc of a column with bounds"
                    hint = f"{grid}, or {off if is_pure else 'declare a delta'}."
                raise MissingDeclaration(
                    f'the keys of "{field.name}" are not declared, and {why}',
                    hint=hint,
                    position=next((ref.position for ref in refs(value)), None),
                )
        raise MissingDeclaration(
            f"the keys have more than {self._compilation.catalog.max_cells:,} combinations, and {why}",
            hint=f"Group by fewer keys, or {off if is_pure else 'declare a delta for unknown keys'}.",
        )

    def _draft(
        self,
        grouped: list[tuple[Field, Scalar]],
        domains: Domains,
        cells: tuple[tuple[Value, ...], ...] | None,
        bound: Cells,
        estimators: Estimators,
        child: Plan,
        derivation: Derivation,
        mechanism: Unpriced,
    ) -> int:
        keys = tuple(Key(value, found) for (_, value), found in zip(grouped, domains, strict=True))
        statistics = tuple(estimators.statistics)
        grouped_statistics = estimators.grouped()
        groups = tuple(tuple(map(estimators.index_of, group)) for group in grouped_statistics)
        weights = tuple(map(estimators.weight, grouped_statistics))
        stability = derivation.conclusion
        clips: tuple[tuple[int, int], ...] = ()
        anew: tuple[Mapping[int, Fraction], ...] = ()
        if self._compilation.clips != "declared" and _may_search(mechanism):
            searches = BoundSearches(self._compilation, child, tuple(value for _, value in grouped))
            clips = searches.clips(statistics)
            statistics = searches.settled(statistics, clips)
            settled = dict(zip(estimators.statistics, statistics, strict=True))
            alone = {group[0]: place for place, group in enumerate(groups) if len(group) == 1}
            anew = tuple(
                {alone[estimators.index_of(statistic)]: weight for statistic, weight in found.items()}
                for found in estimators.weights_once_chosen(settled)
                if all(estimators.index_of(statistic) in alone for statistic in found)
            )
        wider: tuple[Key, ...] | None = None  # where other questions may be answered by this one
        # What was cut at different clips does not add up.
        if cells is not None and _is_additive(stability, statistics) and not clips:
            match mechanism:
                case Sums():
                    keys, remainder = self._with_remainder(keys, cells)
                    wider, mechanism = keys, Sums(remainder)
                case RunningTotals():
                    wider, _ = self._with_remainder(keys, cells)
                case UnpricedSelection() | UnpricedTopKeys() | GroupingSets() | BoundSearch():
                    pass
                case _:
                    assert_never(mechanism)
        # In L1 for the root (`running_totals.widened`).
        norm = "l1" if isinstance(mechanism, RunningTotals) else self._compilation.norm
        branches = bounded_queries(
            child,
            keys,
            statistics,
            groups,
            bound,
            rows=stability.rows,
            single=stability.single,
            within=stability.within,
            norm=norm,
            dialect=self._compilation.dialect,
            chosen=estimators.chosen,
        )
        values = [key.value for key in keys]
        for statistic in statistics:
            values += [part for part in (statistic.value, statistic.where) if part is not None]
        stages = tuple(sorted(set(stages_of(child, values))))
        asked = asked_of_rows(
            child,
            keys,
            statistics,
            groups,
            bound,
            most=stability.rows,
            norm=norm,
            dialect=self._compilation.dialect.name,
            chosen=estimators.chosen,
            stages=stages,
        )
        draft = Draft(
            keys=keys,
            cells=cells,
            bound=bound,
            statistics=statistics,
            groups=groups,
            weights=weights,
            counts=tuple(dict.fromkeys(estimators.counts)),
            mechanism=mechanism,
            branches=branches,
            stages=stages,
            derivation=derivation,
            asked=asked,
            question=None if wider is None else Question(child, wider, self._compilation.dialect.name, stages),
            clips=clips,
            anew=anew,
        )
        index, is_new = self._compilation.add(draft)
        if not is_new:
            return index  # also where only one of them is asked for running totals: the first decides
        self._describe(grouped, domains, cells)
        for table in unknown_fan_outs(derivation):
            rows = "1 row" if stability.rows == 1 else f"{stability.rows:,} rows"
            self._compilation.caution(
                f"one row may meet several rows of the public table {table}, and the policy does not say how many"
                f" (max_rows_per_value): of one unit at most {rows} count in full, so that numbers may be too low"
            )
        return index

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
        if math.prod(map(len, domains)) > self._compilation.catalog.max_cells:
            return keys, ()
        shown = set(cells)
        return wider, tuple(cell for cell in itertools.product(*domains) if cell not in shown)

    def _describe(
        self,
        grouped: list[tuple[Field, Scalar]],
        domains: Domains,
        cells: tuple[tuple[Value, ...], ...] | None,
    ) -> None:
        if cells is None:
            self._compilation.note("keys whose noisy count of units stays below the threshold are not returned")
        for (field, _), found in zip(grouped, domains, strict=True):
            if found is not None and None not in found:
                self._compilation.note(f'rows whose "{field.name}" is NULL or not declared are not counted')


def _is_additive(stability: Stability, statistics: tuple[Statistic, ...]) -> bool:
    """Whether cells may be added up: sums, of units with one row, which are in one cell."""
    return stability.rows == 1 and bool(statistics) and all(s.kind in _COUNTS for s in statistics)


def _may_search(mechanism: Unpriced) -> bool:
    """Whether clips may be lower than declared: what is made of several cells needs the same clip in all."""
    match mechanism:
        case Sums() | UnpricedSelection() | UnpricedTopKeys():
            return True
        case RunningTotals() | GroupingSets() | BoundSearch():
            return False
        case _:
            assert_never(mechanism)


def _ask(estimators: Estimators, calls: list[tuple[Field, Aggregated]]) -> None:
    for _, call in calls:
        if call.function is not Agg.GROUPING:
            estimators.ask(call)


def _places(estimators: Estimators) -> dict[int, int]:
    """The place of each sum, by its field."""
    return {field.id: place for place, field in enumerate(estimators.statistics.values())}


def _used(value: Scalar | None, places: Mapping[int, int]) -> set[int]:
    """The places of the sums that a number is made of."""
    return set() if value is None else {places[ref.field.id] for ref in refs(value) if ref.field.id in places}


def _grouping_value(call: Aggregated, grouped: list[Scalar]) -> Scalar:
    bits = 0
    for arg in call.args:
        bits = bits * 2 + (arg not in grouped)
    return Const(bits, call.type)
