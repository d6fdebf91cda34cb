"""Joint keys: the combinations of GROUP BY values that a row can have, from policy, query and public tables alone.

Claim: the list depends on nothing else, so returning every combination of it, zeros included, tells nothing. Every row
within the declared values that meets the query's conditions has one of these combinations, as long as public tables
have not changed since they were read.
Because: keys are evaluated over all rows of public relations, all declared values of a column, or values that stand for
all of them (`representatives`), and over combinations of these only where no condition of the query excludes it. What
cannot be evaluated is taken for possible. Other rows are dropped before noise, as those with undeclared keys are.
Needs: at most `limit` combinations, and few steps to find them; else each key is listed by itself (`domains`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from dpsql.effort import spend
from dpsql.plan.constants import EVALUATED, NotConstant, evaluate_rows
from dpsql.plan.nodes import Plan
from dpsql.plan.scalars import Call, Case, Const, Field, Op, Ref, Scalar, rebuild, refs, walk
from dpsql.privacy.bounds import NOTHING, Facts, interval, never_null
from dpsql.privacy.keys.domains import Domain, domain, in_order
from dpsql.privacy.keys.origins import Origins, origins
from dpsql.privacy.keys.representatives import Usage, compared, representatives, usage
from dpsql.privacy.keys.spread import rows_in_one_cell
from dpsql.types import Kind, Value

# At most this many values of one column are tried one by one.
MOST_VALUES = 10_000
# At most this many combinations are tried, and steps taken, for the keys of one relation.
MOST_TRIED = 50_000
MOST_STEPS = 200_000
MOST_CONDITIONS = 50

Cell = tuple[Value, ...]
_Row = Mapping[int, Value]
_Part = tuple[tuple[int, ...], list[Cell]]  # the positions of some keys, and their combinations
_COMPARISONS = frozenset({Op.EQ, Op.NE, Op.LT, Op.LE, Op.GT, Op.GE, Op.IN, Op.DISTINCT_FROM})
# Comparisons whose constants bound the other side.
_BOUNDING = frozenset({Op.EQ, Op.LT, Op.LE, Op.GT, Op.GE})


@dataclass(frozen=True, slots=True)
class Combinations:
    """The values of each key, in order, and all combinations of them that are possible."""

    domains: tuple[Domain, ...]
    cells: tuple[Cell, ...]


class _NotListed(Exception):
    """The values of an expression cannot be listed."""


class _TooManySteps(Exception):
    """It would take more steps than are left."""


@dataclass(slots=True)
class _Steps:
    left: int = MOST_STEPS

    def values(self, value: Scalar, rows: Sequence[_Row]) -> list[Value]:
        """The value of an expression for each row."""
        self.left -= len(rows) * sum(1 for _ in walk(value))
        if self.left < 0:
            raise _TooManySteps
        return evaluate_rows(value, rows)


@dataclass(slots=True)
class _Source:
    """A source of values: every row of the relation has one of its rows."""

    fields: frozenset[int]
    rows: Sequence[_Row]


@dataclass(slots=True)
class JointKeys:
    """The keys of one private relation."""

    plan: Plan
    facts: Facts
    limit: int
    _origins: Origins | None = None
    _steps: _Steps = field(default_factory=_Steps)

    def combinations(self, keys: Sequence[Scalar]) -> Combinations | None:
        """All combinations of these keys, or None if they are unknown, or more than the limit."""
        if not keys:
            return Combinations((), ((),))
        apart = [domain(key, self.facts, self.limit) for key in keys]
        parts = list(_Search(self._found(), self.limit, self._steps).parts(keys, apart))
        known = [part for part in parts if part is not None]
        count = math.prod(len(cells) for _, cells in known)
        if len(known) < len(parts) or count > self.limit:
            return None
        spend(count)  # a short text may have very many, and each is sorted, hashed and sent
        return _together(known)

    def in_one_cell(self, keys: Sequence[Scalar], rows: int) -> int | None:
        """How many of the rows of a unit may have the same keys, where it has `rows`; None: all of them may."""
        return rows_in_one_cell(self.plan, lambda: [self._found().expanded(key) for key in keys], rows)

    def _found(self) -> Origins:
        if self._origins is None:
            self._origins = origins(self.plan, self.facts, self.limit)
        return self._origins


def _together(parts: Sequence[_Part]) -> Combinations:
    """Every combination of each part with every one of the other parts, in the order of the keys."""
    places = [place for part, _ in parts for place in part]
    order = [places.index(i) for i in range(len(places))]
    columns = [column for _, cells in parts for column in zip(*cells, strict=True)] if all(c for _, c in parts) else []
    domains = tuple(in_order(columns[i]) if columns else () for i in order)
    if all(len(part) == 1 for part, _ in parts):
        return Combinations(domains, tuple(itertools.product(*domains)))
    ranks = [{value: rank for rank, value in enumerate(found)} for found in domains]
    cells: list[Cell] = []
    for combination in itertools.product(*(found for _, found in parts)):
        flat = [value for part in combination for value in part]
        cells.append(tuple(flat[i] for i in order))
    cells.sort(key=lambda cell: [rank[value] for rank, value in zip(ranks, cell, strict=True)])
    return Combinations(domains, tuple(cells))


@dataclass(slots=True)
class _Search:
    origins: Origins
    limit: int
    steps: _Steps
    sources: dict[int, _Source] = field(default_factory=dict)  # by each of their fields
    conditions: list[Scalar] = field(default_factory=list)
    undeclared: dict[int, set[Value]] = field(default_factory=dict)  # undeclared values of columns
    _shown: set[int] = field(default_factory=set)  # columns that are keys themselves
    _usages: dict[int, Usage] = field(default_factory=dict)
    _atoms: dict[tuple[Scalar, bool], Field] = field(default_factory=dict)
    _found: dict[tuple[int, Usage], list[Value] | None] = field(default_factory=dict)  # by column and usage

    def parts(self, keys: Sequence[Scalar], apart: Sequence[Domain | None]) -> Iterator[_Part | None]:
        """Keys in independent groups, each with its combinations; None for unknown keys."""
        expanded = [self.origins.expanded(key) for key in keys]
        for public in self.origins.public:
            for known in public.fields:
                self.sources[known] = _Source(public.fields, public.rows)
        self._shown = {key.field.id for key in expanded if isinstance(key, Ref)}
        for key in expanded:
            self._read(key)
        listed: dict[int, Scalar] = {}
        for i, key in enumerate(expanded):
            try:
                listed[i] = self._listed(key)
            except _NotListed:
                continue
        self._list_columns(listed.values())
        self._tie(listed.values())
        waiting = list(listed)
        for i in range(len(keys)):
            if i not in listed:
                found = apart[i]
                yield None if found is None else ((i,), [(value,) for value in found])
        while waiting:
            here = self._tied(listed[waiting[0]])
            group = [i for i in waiting if self._reads(listed[i]) & here or i == waiting[0]]
            waiting = [i for i in waiting if i not in group]
            conditions = [c for c in self.conditions if self._reads(c) <= here]
            yield from self._combined(group, [listed[i] for i in group], [apart[i] for i in group], here, conditions)

    def _combined(
        self,
        group: Sequence[int],
        keys: Sequence[Scalar],
        apart: Sequence[Domain | None],
        here: set[int],
        conditions: Sequence[Scalar],
    ) -> Iterator[_Part | None]:
        """The combinations of keys that share columns or conditions; each key by itself where they cannot be found."""
        alone = len(group) == 1 and not conditions and apart[0] is not None
        found = None if alone else self._evaluated(keys, apart, here, conditions)
        if found is not None and len(found) <= self.limit:
            yield tuple(group), found
            return
        for place, values in zip(group, apart, strict=True):
            yield None if values is None else ((place,), [(value,) for value in values])

    # --- listing columns ---

    def _read(self, value: Scalar) -> None:
        for column in {ref.field.id: ref.field for ref in refs(value)}.values():
            if column.id not in self.sources:
                found = usage(value, Ref(column))
                self._usages[column.id] = self._usages.get(column.id, Usage()) | found

    def _listed(self, value: Scalar) -> Scalar:
        """The expression over parts that can be listed: columns, or subexpressions with few values of their own."""
        match value:
            case Const():
                return value
            case Ref(field=column) if column.id in self.sources or self._values(value) is not None:
                return value
            case Call(op=op) if op in EVALUATED:
                if op in _COMPARISONS and (of := _compared(value)) is not None and not self._is_listed(of):
                    return rebuild(value, lambda part: self._atom(part, value) if part == of else part)
                try:
                    return rebuild(value, self._listed)
                except _NotListed:
                    return self._atom(value)
            case Case(branches=branches, default=default):
                try:
                    chosen = tuple((self._condition(when), self._listed(then)) for when, then in branches)
                    return Case(chosen, self._listed(default), value.type)
                except _NotListed:
                    return self._atom(value)
            case _:
                return self._atom(value)

    def _condition(self, value: Scalar) -> Scalar:
        """A condition of CASE. Rows with undeclared values may meet it, too, and get their keys from it."""
        read = {ref.field.id: Ref(ref.field) for ref in refs(value)}.values()
        if all(self._is_bound(ref) or not usage(value, ref).whole for ref in read):
            return self._listed(value)
        match value:
            case Call(op=Op.AND | Op.OR | Op.NOT):
                return rebuild(value, self._condition)
            case Call(op=op) if op in _COMPARISONS and (of := _compared(value)) is not None:
                return rebuild(value, lambda part: self._atom(part, value) if part == of else part)
            case _:
                return self._atom(value)

    def _is_bound(self, ref: Ref) -> bool:
        """Whether every row that counts has one of the known values of a column.

        The scan clamps to bounds. Declared values are not enforced: a row with another value is only dropped where the
        column is a key itself.
        """
        column = ref.field.id
        if any(column in public.fields for public in self.origins.public):
            return True
        if column in self._shown or ref.type.kind is Kind.BOOLEAN:
            return True
        return self.origins.facts.get(column, NOTHING).domain is None

    def _is_listed(self, value: Scalar) -> bool:
        try:
            return self._listed(value) == value
        except _NotListed:
            return False

    def _atom(self, value: Scalar, comparison: Call | None = None) -> Ref:
        """A column of our own that replaces an expression; it is treated as independent of all others."""
        facts = self.origins.facts
        named = value, comparison is not None
        column = self._atoms.setdefault(named, Field(-(10**9) - len(self._atoms) - 1, "", value.type))
        if comparison is not None:
            read = self._usages.get(column.id, Usage()) | usage(comparison, value)
            self._usages[column.id] = read
            values = representatives(value.type, interval(value, facts), read, MOST_VALUES)
        elif value.type.kind is Kind.BOOLEAN:
            values = [False, True]
        else:
            found = domain(value, facts, min(self.limit, MOST_VALUES))
            values = None if found is None else list(found)
        if values is None:
            raise _NotListed
        self._list(column.id, values, nullable=not never_null(value, facts))
        return Ref(column)

    def _list_columns(self, keys: Iterable[Scalar]) -> None:
        for key in keys:
            for ref in refs(key):
                if ref.field.id not in self.sources:
                    self._list_column(ref, self._usages.get(ref.field.id, Usage()))

    def _list_column(self, ref: Ref, read: Usage) -> None:
        values = self._values(ref, read)
        assert values is not None
        fact = self.origins.facts.get(ref.field.id, NOTHING)
        self.undeclared[ref.field.id] = set() if fact.domain is None else set(values) - set(fact.domain)
        self._list(ref.field.id, values, nullable=fact.nullable)

    def _values(self, ref: Ref, read: Usage | None = None) -> list[Value] | None:
        """Values of a column that stand for all of them."""
        read = self._usages.get(ref.field.id, Usage()) if read is None else read
        asked = ref.field.id, read  # asked for again by each branch of a CASE
        if asked not in self._found:
            self._found[asked] = self._values_read(ref, read)
        return self._found[asked]

    def _values_read(self, ref: Ref, read: Usage) -> list[Value] | None:
        facts = self.origins.facts
        fact = facts.get(ref.field.id, NOTHING)
        if fact.domain is not None:
            if self._is_bound(ref):
                others: list[Value] | None = []
            else:
                others = representatives(ref.type, fact.interval, replace(read, whole=False), MOST_VALUES)
            return None if others is None else _few([*fact.domain, *others])
        if not read.whole and (found := representatives(ref.type, fact.interval, read, MOST_VALUES)) is not None:
            return found
        listed = domain(ref, facts, MOST_VALUES)
        return None if listed is None else list(listed)

    def _list(self, column: int, values: Sequence[Value], *, nullable: bool) -> None:
        if nullable and None not in values:
            values = [*values, None]
            self.undeclared.setdefault(column, set()).add(None)
        self.sources[column] = _Source(frozenset({column}), [{column: value} for value in values])

    # --- conditions ---

    def _tie(self, keys: Iterable[Scalar]) -> None:
        """Add the conditions that exclude combinations: on what the keys read, and on what conditions tie to it."""
        here = {found for key in keys for found in self._reads(key)}
        waiting = [c for c in self.origins.conditions if _is_evaluated(c)][:MOST_CONDITIONS]
        changed = True
        while changed:
            changed = False
            for condition in list(waiting):
                if not self._reads(condition) & here:
                    continue
                waiting.remove(condition)
                if self._is_known(condition) or not self._add(condition):
                    continue
                self.conditions.append(condition)
                here |= self._reads(condition)
                changed = True

    def _is_known(self, condition: Scalar) -> bool:
        """Whether the listed values already exclude what the condition excludes (`refine`)."""
        read = {ref.field.id: ref for ref in refs(condition)}
        if len(read) != 1:
            return False
        (ref,) = read.values()
        if any(ref.field.id in public.fields for public in self.origins.public):
            return False
        if self.origins.facts.get(ref.field.id, NOTHING).domain is not None:
            return ref.field.id in self._shown
        whole = ref.type.kind in (Kind.INTEGER, Kind.DATE) and self._usages[ref.field.id].whole
        return whole and isinstance(condition, Call) and condition.op in _BOUNDING and _compared(condition) == ref

    def _add(self, condition: Scalar) -> bool:
        """Whether everything a condition reads can be listed, so that it can be evaluated."""
        fresh: dict[Ref, Usage] = {}
        for ref in {ref.field.id: ref for ref in refs(condition)}.values():
            column = ref.field.id
            if any(column in public.fields for public in self.origins.public):
                continue
            mine = usage(condition, Ref(ref.field))
            read = self._usages.get(column, Usage()) | mine
            if mine.whole and not self._is_bound(ref):
                return False
            if column in self.sources and read == self._usages.get(column):
                continue
            if self._values(ref, read) is None:
                return False
            fresh[ref] = read
        for ref, read in fresh.items():
            self._usages[ref.field.id] = read
            self._list_column(ref, read)
        return True

    def _reads(self, value: Scalar) -> set[int]:
        """The columns that an expression reads, with all columns of their sources."""
        found: set[int] = set()
        for ref in refs(value):
            source = self.sources.get(ref.field.id)
            found |= {ref.field.id} if source is None else source.fields
        return found

    def _tied(self, key: Scalar) -> set[int]:
        here = self._reads(key)
        while True:
            more = set().union(*(self._reads(c) for c in self.conditions if self._reads(c) & here)) - here
            if not more:
                return here
            here |= more

    # --- combinations ---

    def _evaluated(
        self, keys: Sequence[Scalar], apart: Sequence[Domain | None], here: set[int], conditions: Sequence[Scalar]
    ) -> list[Cell] | None:
        wanted = {ref.field.id for key in keys for ref in refs(key)}
        sources = list({id_of: self.sources[id_of] for id_of in here if id_of in self.sources}.values())
        distinct: list[_Source] = []
        for source in sources:
            if all(source.fields != other.fields for other in distinct):
                distinct.append(source)
        try:
            rows = _joined(distinct, conditions, wanted, self.steps)
            if rows is None:
                return None
            columns = [self.steps.values(key, rows) for key in keys]
        except (NotConstant, _TooManySteps):
            return None
        allowed = [None if found is None else {value: value for value in found} for found in apart]
        cells: dict[Cell, None] = {}
        for row, cell in zip(rows, zip(*columns, strict=True), strict=True):
            if all(
                self._may_show(value, key, row) if among is None else value in among
                for value, key, among in zip(cell, keys, allowed, strict=True)
            ):
                cells[cell] = None
        return [
            tuple(value if among is None else among[value] for value, among in zip(cell, allowed, strict=True))
            for cell in cells
        ]

    def _may_show(self, value: Value, key: Scalar, row: _Row) -> bool:
        """Whether a computed value is a key: not if it comes from undeclared values, or only they make it NULL."""
        if value is not None and key.type.kind is Kind.DOUBLE:
            return False
        shown = ((row[ref.field.id], self.undeclared.get(ref.field.id, set())) for ref in refs(key))
        return not any(part in undeclared and (part is not None or value is None) for part, undeclared in shown)


def _few(values: Iterable[Value]) -> list[Value] | None:
    found = list(dict.fromkeys(values))
    return found if len(found) <= MOST_VALUES else None


def _compared(value: Call) -> Scalar | None:
    """The expression that is compared with constants."""
    of = next((arg for arg in value.args if not isinstance(arg, Const)), None)
    return of if of is not None and compared(value, of) is not None else None


def _is_evaluated(condition: Scalar) -> bool:
    return all(
        isinstance(part, Ref | Const | Case) or (isinstance(part, Call) and part.op in EVALUATED)
        for part in walk(condition)
    )


def _joined(
    sources: Sequence[_Source], conditions: Sequence[Scalar], wanted: set[int], steps: _Steps
) -> list[_Row] | None:
    """The combinations of rows that meet all conditions, as far as the keys differ; None if there are too many."""
    waiting, left = list(sources), list(conditions)
    rows: list[_Row] = [{}]
    bound: set[int] = set()
    tried = 0
    while waiting:
        source = min(waiting, key=lambda each: (not _equalities(left, bound, each.fields), len(each.rows)))
        waiting.remove(source)
        equal = _equalities(left, bound, source.fields)
        needed = wanted | {ref.field.id for c in left for ref in refs(c)}
        mine = _different(source.rows, needed & source.fields)
        pairs = _pairs(rows, mine, equal, MOST_TRIED - tried, steps)
        if pairs is None:
            return None
        tried += len(pairs)
        bound |= source.fields
        for condition in [c for c in left if {ref.field.id for ref in refs(c)} <= bound]:
            left.remove(condition)
            try:
                passed = steps.values(condition, pairs)
            except NotConstant:
                continue  # what cannot be evaluated excludes nothing
            pairs = [row for row, value in zip(pairs, passed, strict=True) if value is True]
        needed = wanted | {ref.field.id for c in left for ref in refs(c)}
        rows = _different(pairs, needed & bound)
    return rows


def _different(rows: Iterable[_Row], fields: set[int] | frozenset[int]) -> list[_Row]:
    names = sorted(fields)
    return [dict(zip(names, key, strict=True)) for key in dict.fromkeys(tuple(row[f] for f in names) for row in rows)]


_Equal = list[tuple[Scalar, Scalar]]


def _equalities(conditions: Iterable[Scalar], bound: set[int], fields: frozenset[int]) -> _Equal:
    """Pairs of a value that is bound already and a source's value, which conditions require to be equal."""
    found: _Equal = []
    for condition in conditions:
        if isinstance(condition, Call) and condition.op is Op.EQ:
            for mine, other in (condition.args, condition.args[::-1]):
                here, there = ({ref.field.id for ref in refs(side)} for side in (mine, other))
                if here and there and here <= bound and there <= fields:
                    found.append((mine, other))
    return found


def _pairs(rows: list[_Row], mine: list[_Row], equal: _Equal, most: int, steps: _Steps) -> list[_Row] | None:
    if not equal:
        return None if len(rows) * len(mine) > most else [{**a, **b} for a in rows for b in mine]
    places: dict[Cell, list[_Row]] = {}
    for row, key in zip(mine, _columns([other for _, other in equal], mine, steps), strict=True):
        if None not in key:
            places.setdefault(key, []).append(row)
    found: list[_Row] = []
    for row, key in zip(rows, _columns([one for one, _ in equal], rows, steps), strict=True):
        found += [{**row, **other} for other in places.get(key, ())]
        if len(found) > most:
            return None
    return found


def _columns(values: Sequence[Scalar], rows: Sequence[_Row], steps: _Steps) -> list[Cell]:
    return list(zip(*(steps.values(value, rows) for value in values), strict=True))
