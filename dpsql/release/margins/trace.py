"""A plan over noisy tables with the errors of its columns beside them, in columns of their own.

Errors go along with the rows they belong to: row-wise expressions combine them, sums over separate cells add up their
squares. Where that would not be exact (products of joins, rows chosen by noise, sets without duplicates) they end.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from fractions import Fraction

from dpsql.effort import spend
from dpsql.errors import NotSupported
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
    nodes,
    scalars,
)
from dpsql.plan.patterns import RUNNING
from dpsql.plan.scalars import (
    INTERVAL_END,
    QUOTIENT,
    Agg,
    Aggregated,
    Call,
    Case,
    Const,
    Field,
    IntervalEnd,
    Op,
    Ref,
    Scalar,
    Windowed,
    both,
    parts_in,
    rebuild,
    walk,
)
from dpsql.privacy.bounds import UNBOUNDED, Fact, Interval, as_number, interval
from dpsql.privacy.derive import INTERVAL_HINT
from dpsql.privacy.mechanisms.running_totals import Chains
from dpsql.release.margins.errors import (
    MOST_ERRORS,
    Atom,
    Errors,
    Known,
    Row,
    Term,
    Totals,
    as_one,
    double,
    end,
    errors_of,
    is_noisy,
    margin,
    with_subqueries_beside,
    within,
    without_repetition,
)
from dpsql.types import BIGINT, BOOLEAN, DOUBLE, Type

Items = list[tuple[Field, Scalar]]
# Of a measurement, for each sum: how many times as far off as the finest cells those by some of the keys are.
InSets = Mapping[int, Sequence[Mapping[tuple[int, ...], float]]]
Chained = Mapping[int, tuple[Chains, tuple[int, ...]]]  # of a measurement: the order of its cells, and of which sums

# Of a measurement and a sum: between which numbers it would lie without noise, in steps.
Truths = Mapping[tuple[int, int], Interval]
# Of a measurement and two of its sums: between which numbers their quotient would lie, in steps; None: not known.
Shares = Callable[[int, int, int], tuple[Fraction, Fraction] | None]

_NOTHING = Const(0.0, DOUBLE)
_NEAREST = 1.5
_LARGEST_TRUTH = 10**15  # what is not known to be less is as good as unbounded
_END_HINT = "It can stand in the select list, in HAVING, WHERE and ORDER BY, around released numbers."


@dataclass(frozen=True, slots=True)
class Traced:
    """A plan with columns for errors behind its own. `separate`: rows share no cell, and noise did not choose them."""

    plan: Plan
    known: Known
    separate: bool


def with_margins(
    plan: Plan,
    wanted: tuple[Field, ...],
    keys: Mapping[int, int],
    sums: Mapping[int, int],
    choices: Set[tuple[int, int]],
    chains: Chained,
    sets: InSets,
    truths: Truths,
    shares: Shares,
    ids: itertools.count[int],
) -> tuple[Plan, dict[int, int], frozenset[int]]:
    """The plan with a column behind its own for the margin of each wanted field that has one, and their places.

    Third, the fields that noise has a say in, but for ends of intervals, which say themselves how far off they are.

    `keys` is how many key columns the table of each measurement has. Its noisy sums (`sums` of them) come next, and
    behind them, for this plan, the margin of each sum, and for each sum in `chains` what `Totals` holds of it. `sets`
    are those whose cells were made to agree with their sums by some of the keys. `choices` are measurements and sums
    that are values chosen by a mechanism: their distance from the truth depends on the data, and is not known.
    """
    tracer = _Tracer(keys, sums, choices, chains, sets, truths, shares, ids)
    traced = tracer.trace(plan)
    noisy = frozenset(field.id for field in plan.fields if field.id in traced.known and not tracer.is_end(field))
    shown = {field.id: errors for field in wanted if (errors := traced.known.get(field.id))}
    if not shown and not any(_ends(plan)):
        return plan, {}, noisy
    for left in _ends(traced.plan):
        raise NotSupported(f"{left.name} is not supported here", hint=_END_HINT, position=left.position)
    columns = {id_: Field(next(ids), "margin", DOUBLE) for id_ in shown}
    items: Items = [
        (columns[field.id], within(margin(shown[field.id]), Ref(field), tracer.truth(Ref(field))))
        for field in wanted
        if field.id in shown
    ]
    fields = (*plan.fields, *columns.values())
    places = {id_: fields.index(column) for id_, column in columns.items()}
    match traced.plan:
        case Sort(child=child, keys=sort_keys, limit=limit, offset=offset):
            # Below the sort, which stays on top: it is what gives the rows their order.
            return Sort(_widened(child, child.fields, items), sort_keys, limit, offset, fields), places, noisy
        case other:
            return _widened(other, plan.fields, items), places, noisy


def _ends(plan: Plan) -> Iterator[IntervalEnd]:
    values = (value for node in nodes(plan) for value in scalars(node) if _has_end(value))
    return (part for value in values for part in walk(value) if isinstance(part, IntervalEnd))


def _has_end(value: Scalar) -> bool:
    return bool(parts_in(value) & INTERVAL_END)


def _with_ends(value: Scalar, known: Known, truth: Callable[[Scalar], Interval]) -> Scalar:
    """The expression with intervals written out: the number less its margin, or more."""
    if not _has_end(value):
        return value
    if not isinstance(value, IntervalEnd):
        return rebuild(value, lambda part: _with_ends(part, known, truth))
    errors = errors_of(value.arg, known)
    if not is_noisy(value.arg, known):
        raise NotSupported(f"{value.name} needs a noisy number", hint=INTERVAL_HINT, position=value.position)
    if not errors:
        raise NotSupported(
            f"the margin of the argument of {value.name} cannot be told",
            hint="Counts, sums, averages and arithmetic on those of one row have margins.",
            position=value.position,
        )
    size = within(margin(errors), value.arg, truth(value.arg))
    return end(size, value.arg, truth(value.arg), high=value.high)


def _widened(plan: Plan, kept: tuple[Field, ...], items: Items) -> Project:
    return Project(plan, (*((field, Ref(field)) for field in kept), *items))


def _origins(known: Known) -> set[object]:
    return {atom.origin for errors in known.values() for atom in errors or ()}


def _hidden(known: Known, fields: tuple[Field, ...]) -> tuple[Field, ...]:
    """The columns that hold the errors of these fields."""
    errors = [known.get(field.id) or {} for field in fields]
    terms = [term for each in errors for term in each.values()]
    columns = [term.value.field for term in terms if isinstance(term.value, Ref)]
    columns += [ref.field for term in terms if term.totals for ref in term.totals.columns]
    return tuple(dict.fromkeys(columns))


def _without_totals(known: Known) -> Known:
    """The same errors where rows may be missing, so that sums are no longer those along whole chains."""
    return {
        field: errors and {atom: replace(term, totals=None) for atom, term in errors.items()}
        for field, errors in known.items()
    }


class _Tracer:
    def __init__(
        self,
        keys: Mapping[int, int],
        sums: Mapping[int, int],
        choices: Set[tuple[int, int]],
        chains: Chained,
        sets: InSets,
        truths: Truths,
        shares: Shares,
        ids: itertools.count[int],
    ) -> None:
        self._keys = keys
        self._sums = sums
        self._choices = choices
        self._chains = chains
        self._sets = sets
        self._truths = truths
        self._shares = shares
        self._sum_of: dict[
            int | None, tuple[int, int]
        ] = {}  # columns that are noisy sums: of which measurement, and which
        self._known_truths: dict[int, tuple[Scalar, Interval]] = {}  # by the identity of an expression
        self._facts: dict[object, Fact] = {}  # what is known of the truth behind noisy columns
        self._ids = ids
        self._windows: list[object] = []
        self._shown: dict[int, int] = {}  # columns that show another as it is
        self._interval_ends: set[int] = set()

    def is_end(self, field: Field) -> bool:
        """Whether a column shows the end of an interval."""
        return self._source(Ref(field)) in self._interval_ends

    def truth(self, value: Scalar) -> Interval:
        """Between which numbers the truth lies that a noisy expression is off from."""
        if not value.type.is_numeric:
            return UNBOUNDED
        if isinstance(value, Ref):
            return self._truth(value)
        known = self._known_truths.get(id(value))
        if known is None:
            known = self._known_truths[id(value)] = value, self._truth(value)
        return known[1]

    def _truth(self, value: Scalar) -> Interval:
        found = interval(self._with_shares(value), self._facts)
        # What a type can hold says nothing.
        low, high = (None if b is None or abs(b) >= _LARGEST_TRUTH else b for b in (found.low, found.high))
        if low is not None and isinstance(value, Call) and value.op is Op.MUL and value.args[0] == value.args[1]:
            low = max(low, Fraction(0))  # a square
        return Interval(low, high)

    def _nearest(self, plan: Project, known: Known) -> float:
        """How many margins away from zero divisors must be: where the truth has bounds, they are shown instead."""
        row = Row(known)
        noisy = (value for _, value in plan.items if row.is_noisy(value))
        divided = (value for value in noisy if parts_in(value) & QUOTIENT)
        return _NEAREST if all(self.truth(value).bounded for value in divided) else 2.0

    def _with_shares(self, value: Scalar) -> Scalar:
        """The expression with columns of their own in the place of quotients whose truth is known: shares and means."""
        if not parts_in(value) & QUOTIENT:
            return value
        if isinstance(value, Call) and value.op is Op.DIV:
            times, over = _factor(value.args[0]), _factor(value.args[1])
            sums = [self._sum_of.get(self._source(part)) for part in (times[1], over[1])]
            if sums[0] is not None and sums[1] is not None and sums[0][0] == sums[1][0] and over[0] == 1:
                found = self._shares(sums[0][0], sums[0][1], sums[1][1])
                if found is not None:
                    ends = sorted(end * times[0] for end in found)
                    share = self._field()
                    self._facts[share.id] = Fact(Interval(ends[0], ends[1]))
                    return Ref(share)
        return rebuild(value, self._with_shares)

    def trace(self, plan: Plan) -> Traced:
        spend()
        """The same relation with its errors. Every term above a leaf is a column of the plan."""
        match plan:
            case Scan() | Empty() | OneRow() | SemiJoin() | OfUnit():
                return Traced(plan, {}, True)
            case Released():
                return self._released(plan)
            case Filter(child=child, predicate=predicate):
                inner = self.trace(child)
                chosen = is_noisy(predicate, inner.known)
                kept = Filter(inner.plan, _with_ends(predicate, inner.known, self.truth))
                return Traced(kept, _without_totals(inner.known), inner.separate and not chosen)
            case Project():
                beside = with_subqueries_beside(plan, self._keys)
                traced = self.trace(beside.child)
                shown = {field.id: value.field.id for field, value in beside.items if isinstance(value, Ref)}
                self._shown |= {column: of for column, of in shown.items() if column != of}
                ends = {field.id for field, value in beside.items if _has_end(value)}
                self._interval_ends |= ends
                written = Project(
                    beside.child, tuple((f, _with_ends(v, traced.known, self.truth)) for f, v in beside.items)
                )
                nearest = self._nearest(written, traced.known)
                for items in without_repetition(written, self._ids):
                    # The end of an interval has no interval of its own.
                    row = Row(traced.known)
                    self._facts |= {f.id: Fact(self.truth(v)) for f, v in items if row.is_noisy(v)}
                    known = {f.id: None if f.id in ends else row.errors_of(v, nearest) for f, v in items}
                    traced = self._columns(traced.plan, items, known, traced.separate)
                return traced
            case Aggregate():
                return self._aggregate(plan)
            case Window():
                return self._window(plan)
            case Join(kind=kind, left=left, right=right, condition=condition):
                one, other = self.trace(left), self.trace(right)
                return Traced(Join(kind, one.plan, other.plan, condition), {**one.known, **other.known}, False)
            case SetOperation(kind=SetKind.UNION_ALL):
                return self._union(plan)
            case SetOperation(left=left, right=right, fields=fields):
                # These compare whole rows, so no column may be added below them.
                sides = [[self.trace(side).known.get(field.id, {}) for field in side.fields] for side in (left, right)]
                noisy = [field.id for field, *errors in zip(fields, *sides, strict=True) if errors != [{}, {}]]
                return Traced(plan, dict.fromkeys(noisy), False)
            case Distinct(child=child):
                return Traced(plan, dict.fromkeys(self.trace(child).known), False)
            case Sort(child=child, keys=keys, limit=limit, offset=offset, fields=fields):
                inner = self.trace(child)
                cut = limit is not None or offset > 0
                chosen = cut and any(is_noisy(key.value, inner.known) for key in keys)
                wide = tuple(dict.fromkeys((*fields, *_hidden(inner.known, fields))))
                written_keys = tuple(replace(key, value=_with_ends(key.value, inner.known, self.truth)) for key in keys)
                ordered = Sort(inner.plan, written_keys, limit, offset, wide)
                remaining = _without_totals(inner.known) if cut else inner.known
                return Traced(ordered, remaining, inner.separate and not chosen)

    def _released(self, plan: Released) -> Traced:
        keyed, width = self._keys[plan.measurement], self._sums[plan.measurement]
        sums = plan.fields[keyed : keyed + width]
        usual: tuple[Field, ...] = ()
        if any((plan.measurement, i) in self._choices for i in range(width)):
            # Where margins decide what is shown, those of the usual confidence stand in front.
            usual = plan.fields[keyed + width :] or tuple(self._field() for _ in sums)
        margins = tuple(self._field() for _ in sums)
        cells = next(self._ids)
        known: dict[int, Errors | None] = {}
        for i, (field, column) in enumerate(zip(sums, margins, strict=True)):
            is_chosen = (plan.measurement, i) in self._choices
            self._sum_of[field.id] = plan.measurement, i
            self._facts[field.id] = Fact(self._truths.get((plan.measurement, i), UNBOUNDED))
            known[field.id] = None if is_chosen else {Atom((plan.measurement, i), cells): Term(Ref(column), True)}
        wide = (*plan.fields[:keyed], *sums, *usual, *margins)
        if plan.measurement in self._chains:
            order, chained = self._chains[plan.measurement]
            keys = [field.id for field in plan.fields[:keyed]]
            along = tuple((keys[step.key], step.descending, step.nulls_first) for step in order.along)
            apart = frozenset(keys) - {key for key, _, _ in along}
            for i in chained:
                running, whole = self._field(), self._field()
                term = Term(Ref(margins[i]), True, Totals(along, apart, Ref(running), Ref(whole)))
                known[sums[i].id] = {Atom((plan.measurement, i), cells, ("chain", "cell")): term}
                wide = (*wide, running, whole)
        for i, ratios in enumerate(self._sets.get(plan.measurement, ())):
            sets = tuple((frozenset(plan.fields[key].id for key in kept), ratio) for kept, ratio in ratios.items())
            term = Term(Ref(margins[i]), True, Totals(sets=sets))
            known[sums[i].id] = {Atom((plan.measurement, i), cells, ("chain", "cell")): term}
        return Traced(Released(plan.measurement, wide), known, True)

    def _columns(self, plan: Plan, items: tuple[tuple[Field, Scalar], ...], known: Known, separate: bool) -> Traced:
        """A projection that holds every term in a column."""
        added: dict[Field, Scalar] = {}
        named: dict[int, Errors | None] = {}
        for field, _ in items:
            errors = known.get(field.id, {})
            if errors is None:
                named[field.id] = None
            elif errors:
                if len(errors) > MOST_ERRORS:
                    errors = as_one(errors, next(self._ids))
                for totals in (term.totals for term in errors.values() if term.totals):
                    added |= {ref.field: ref for ref in totals.columns}
                named[field.id] = {
                    atom: Term(self._column(term.value, added), term.uniform, term.totals)
                    for atom, term in errors.items()
                }
        return Traced(Project(plan, (*items, *added.items())), named, separate)

    def _column(self, value: Scalar, added: dict[Field, Scalar]) -> Ref:
        field = value.field if isinstance(value, Ref) else self._field()
        added[field] = value
        return Ref(field)

    def _field(self, type_: Type = DOUBLE) -> Field:
        return Field(next(self._ids), "error", type_)

    def _number(self, window: object) -> int:
        """The same number for the same window."""
        if window not in self._windows:
            self._windows.append(window)
        return self._windows.index(window)

    def _union(self, plan: SetOperation) -> Traced:
        """Each error of either side gets a column; rows of the other side do not have it."""
        left, right = self.trace(plan.left), self.trace(plan.right)
        one: Items = [(field, Ref(field)) for field in plan.left.fields]
        other: Items = [(field, Ref(field)) for field in plan.right.fields]
        known: dict[int, Errors | None] = {}
        columns: list[Field] = []
        for field, mine, its in zip(plan.fields, plan.left.fields, plan.right.fields, strict=True):
            ours, theirs = left.known.get(mine.id, {}), right.known.get(its.id, {})
            if ours is None or theirs is None:
                known[field.id] = None
                continue
            if len({*ours, *theirs}) > MOST_ERRORS:
                alike = next(self._ids)
                ours, theirs = as_one(ours, alike), as_one(theirs, alike)
            terms: dict[Atom, Term] = {}
            for atom in dict.fromkeys((*ours, *theirs)):
                one.append((self._field(), ours[atom].value if atom in ours else _NOTHING))
                other.append((self._field(), theirs[atom].value if atom in theirs else _NOTHING))
                columns.append(self._field())
                terms[atom] = Term(Ref(columns[-1]), False)
            if terms:
                known[field.id] = terms
                self._facts[field.id] = Fact(self.truth(Ref(mine)).union(self.truth(Ref(its))))
        separate = left.separate and right.separate and not _origins(left.known) & _origins(right.known)
        sides = Project(left.plan, tuple(one)), Project(right.plan, tuple(other))
        return Traced(SetOperation(plan.kind, *sides, (*plan.fields, *columns)), known, separate)

    # --- sums over cells ---

    def _aggregate(self, plan: Aggregate) -> Traced:
        inner = self.trace(plan.child)
        fixed = not any(is_noisy(value, inner.known) for _, value in plan.keys)
        exact = inner.separate and fixed
        cells = next(self._ids)
        known: dict[int, Errors | None] = {}
        added: list[tuple[Field, Aggregated]] = []

        def column(function: Agg, *args: Scalar, type_: Type = DOUBLE, where: Scalar | None = None) -> Ref:
            added.append((self._field(type_), Aggregated(function, args, type_, False, where)))
            return Ref(added[-1][0])

        for field, value in plan.keys:
            if is_noisy(value, inner.known):
                known[field.id] = None
        for field, call in plan.aggregates:
            if not exact or (call.where is not None and is_noisy(call.where, inner.known)):
                known[field.id] = None
                continue
            if not any(is_noisy(arg, inner.known) for arg in call.args):
                continue
            if call.function is Agg.COUNT and not call.distinct:
                continue
            known[field.id] = None
            errors = errors_of(call.args[0], inner.known)
            if errors and all(term.totals for term in errors.values()):
                known[field.id] = self._in_set(plan, call, errors, cells, column)
                continue
            if not errors or call.function not in (Agg.SUM, Agg.AVG) or call.distinct or len(plan.sets) > 1:
                continue
            if not all(atom.is_own for atom in errors):
                continue
            (arg,) = call.args
            terms: dict[Atom, Term] = {}
            for atom, term in errors.items():
                untold = column(Agg.COUNT, type_=BIGINT, where=both(_untold(arg, term.value), call.where))
                squares = column(Agg.SUM, _times(term.value, term.value), where=call.where)
                # Errors that move together keep their sign, so that differences of such sums come out right.
                sign = Call(Op.SIGN, (column(Agg.SUM, term.value, where=call.where),), DOUBLE)
                value = _times(sign, Call(Op.SQRT, (squares,), DOUBLE))
                if call.function is Agg.AVG:
                    value = _over(value, column(Agg.COUNT, arg, type_=BIGINT, where=call.where))
                together = term.uniform and call.where is None and call.function is Agg.SUM
                part = ("sum", 0 if together else next(self._ids), atom)
                terms[Atom(atom.origin, cells, part)] = Term(_if_none(untold, value), together)
            known[field.id] = terms
        wide = Aggregate(inner.plan, plan.keys, (*plan.aggregates, *added), plan.sets)
        return self._columns(wide, tuple((field, Ref(field)) for field in plan.fields), known, exact)

    def _in_set(
        self, plan: Aggregate, call: Aggregated, errors: Errors, cells: int, column: Callable[..., Ref]
    ) -> Errors | None:
        """The errors of sums by some of the keys, over all cells that were made to agree with them."""
        if call.function is not Agg.SUM or call.distinct or call.where is not None or len(plan.sets) > 1:
            return None
        kept = frozenset(self._source(value) for _, value in plan.keys)
        terms: dict[Atom, Term] = {}
        for atom, term in errors.items():
            ratio = next((times for keys, times in term.totals.sets if keys == kept), None) if term.totals else None
            if ratio is None:
                return None
            value = _times(column(Agg.MAX, term.value), Const(ratio, DOUBLE))
            terms[Atom(atom.origin, cells, ("chain", "sum"))] = Term(value, False)
        return terms

    def _window(self, plan: Window) -> Traced:
        inner = self.trace(plan.child)
        known: dict[int, Errors | None] = dict(inner.known)
        added: list[tuple[Field, Windowed]] = []
        for field, call in plan.items:
            places = [
                *call.partition,
                *(key.value for key in call.order),
                *(() if call.where is None else (call.where,)),
            ]
            if not inner.separate or any(is_noisy(place, inner.known) for place in places):
                known[field.id] = None
            elif any(is_noisy(arg, inner.known) for arg in call.args) and call.function != "count":
                known[field.id] = self._windowed(call, inner.known, added)
        wide = Window(inner.plan, (*plan.items, *added))
        return self._columns(wide, tuple((field, Ref(field)) for field in plan.fields), known, inner.separate)

    def _windowed(self, call: Windowed, known: Known, added: list[tuple[Field, Windowed]]) -> Errors | None:
        """The errors of a window function whose window does not depend on noise."""
        arg, *rest = call.args
        errors = errors_of(arg, known)
        if errors and all(term.totals for term in errors.values()):
            return self._along_chain(call, errors)
        if not errors or not all(atom.is_own for atom in errors) or any(is_noisy(part, known) for part in rest):
            return None
        over = (call.partition, call.order, call.frame)

        def column(function: str, *args: Scalar, type_: Type = DOUBLE, where: Scalar | None = call.where) -> Ref:
            added.append((self._field(type_), Windowed(function, args, type_, *over, where)))
            return Ref(added[-1][0])

        terms: dict[Atom, Term] = {}
        part: tuple[Hashable, ...]
        for atom, term in errors.items():
            match call.function:
                case "sum" | "avg":
                    untold = column("count", type_=BIGINT, where=both(_untold(arg, term.value), call.where))
                    squares: Scalar = column("sum", _times(term.value, term.value))
                    own: Scalar = term.value
                    whole = not call.order and not call.frame and call.where is None
                    if whole:
                        less = Call(Op.SUB, (squares, _times(own, own)), DOUBLE)
                        squares = Call(Op.GREATEST, (less, _NOTHING), DOUBLE)
                    others = _times(Call(Op.SIGN, (own,), DOUBLE), Call(Op.SQRT, (squares,), DOUBLE))
                    if call.function == "avg":
                        count = column("count", arg, type_=BIGINT)
                        own, others = _over(own, count), _over(others, count)
                    together = term.uniform and whole
                    if whole:
                        terms[atom] = Term(own, term.uniform and call.function == "sum")
                    window = self._number(call.partition) if whole else next(self._ids)
                    alike = 0 if together else next(self._ids)
                    # Of a frame nobody knows whether the row's own cell is in it: it goes with no other error.
                    part = ("rest", window, atom.part if whole else ("frame",), alike)
                    terms[Atom(atom.origin, atom.relation, part)] = Term(_if_none(untold, others), False)
                case "lag" | "lead" if isinstance(rest[0], Const) and isinstance(rest[0].value, int) and rest[0].value:
                    steps = rest[0].value if call.function == "lag" else -rest[0].value
                    value = column(call.function, term.value, rest[0], _NOTHING)
                    part = ("shift", self._number((call.partition, call.order)), steps, atom.part)
                    terms[Atom(atom.origin, atom.relation, part)] = Term(value, False)
                case _:
                    return None
        return terms

    def _along_chain(self, call: Windowed, errors: Errors) -> Errors | None:
        """The errors of a sum along whole chains, or up to each of their cells."""
        if call.function != "sum" or call.where is not None:
            return None
        apart = {self._source(value) for value in call.partition}
        along = tuple((self._source(key.value), key.descending, key.nulls_first) for key in call.order)
        terms: dict[Atom, Term] = {}
        for atom, term in errors.items():
            assert term.totals is not None
            if term.totals.running is None or term.totals.whole is None or apart != term.totals.apart:
                return None
            if along == term.totals.along and call.frame in RUNNING:
                part, times = "running", term.totals.running
            elif not along and not call.frame:
                part, times = "whole", term.totals.whole
            else:
                return None
            terms[replace(atom, part=("chain", part))] = Term(_times(term.value, times), False)
        return terms

    def _source(self, value: Scalar) -> int | None:
        """The column of a noisy table that a key shows."""
        found = value.field.id if isinstance(value, Ref) else None
        while found in self._shown:
            found = self._shown[found]
        return found


def _factor(value: Scalar) -> tuple[Fraction, Scalar]:
    """A number as a constant times something else."""
    match value:
        case Call(op=Op.CAST | Op.NULLIF, args=(arg, *_)) if arg.type.is_numeric:
            return _factor(arg)
        case Call(op=Op.MUL, args=(Const(value=constant), arg)) | Call(op=Op.MUL, args=(arg, Const(value=constant))):
            if (number := as_number(constant)) is not None:
                times, other = _factor(arg)
                return number * times, other
    return Fraction(1), value


def _untold(value: Scalar, term: Scalar) -> Scalar:
    """A row whose value counts though its error is not known."""
    present = Call(Op.NOT, (Call(Op.IS_NULL, (value,), BOOLEAN),), BOOLEAN)
    return Call(Op.AND, (present, Call(Op.IS_NULL, (term,), BOOLEAN)), BOOLEAN)


def _if_none(count: Scalar, value: Scalar) -> Scalar:
    return Case(((Call(Op.EQ, (count, Const(0, BIGINT)), BOOLEAN), value),), Const(None, DOUBLE), DOUBLE)


def _times(left: Scalar, right: Scalar) -> Scalar:
    return Call(Op.MUL, (left, right), DOUBLE)


def _over(left: Scalar, count: Scalar) -> Scalar:
    return Call(Op.DIV, (left, double(count)), DOUBLE)
