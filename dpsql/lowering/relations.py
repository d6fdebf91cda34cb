"""Plans to SQL. Names in the generated text are our own: an analyst's names never reach an engine.

Private relations carry the hidden column `owner`; every field is named by its place in the text (c1, c2 …), so that
equal plans give equal text.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from datetime import date, datetime
from fractions import Fraction
from typing import assert_never

from dpsql.effort import spend
from dpsql.errors import InternalError, NotSupported
from dpsql.lowering.dialect import Dialect
from dpsql.lowering.fast_paths import StoredTest, scan_columns, stored_test
from dpsql.lowering.scalars import ScalarWriter, number
from dpsql.plan.nodes import (
    Aggregate,
    Distinct,
    Empty,
    Filter,
    Join,
    JoinKind,
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
)
from dpsql.plan.scalars import (
    CORRELATED,
    Agg,
    Aggregated,
    Correlated,
    Field,
    Ref,
    Scalar,
    SortKey,
    Subquery,
    Windowed,
    has_subquery,
    parts_in,
    refs,
    walk,
)
from dpsql.policy.model import Bound, Column, Table
from dpsql.policy.prepared import COPIED_OWNER, COPIED_ROWS
from dpsql.privacy.bounds import Fact, Interval, as_datetime, as_number, interval
from dpsql.privacy.derive import is_private
from dpsql.privacy.owners import compared_fields, evidence, is_unit
from dpsql.privacy.refine import conjuncts
from dpsql.types import DOUBLE, Kind, Type

OWNER = "owner"


@dataclass(frozen=True, slots=True)
class Reading:
    """Which rows of private tables are read, and how."""

    raw: frozenset[int] = frozenset()  # fields of scans that are read as they are stored
    # Of fields of a scan: only rows within all of them.
    bounds: Mapping[int, tuple[Fraction, Fraction]] = dataclasses.field(default_factory=dict)
    beyond: bool = False  # or only the others
    fence: str = ""  # ends the subqueries that compute columns
    among: str = ""  # where only some owners' rows are wanted: a relation of these owners
    part: tuple[Table, str] | None = None  # or a copy, and a test of how many rows of it an owner has


@dataclass(frozen=True, slots=True)
class Naming:
    """What one query has named so far, in the order in which it was written; all that a writer remembers."""

    fields: dict[int, str] = dataclasses.field(default_factory=dict)
    parameters: set[str] = dataclasses.field(default_factory=set)
    # The bounds of dates and timestamps, by field.
    ends: dict[int, tuple[date, date]] = dataclasses.field(default_factory=dict)


class RelationWriter:
    """Writes one query: over the database, or, above the releases, over the loaded copies that `public` names."""

    def __init__(
        self, dialect: Dialect, *, private: bool, public: Mapping[str, str] | None = None, copies: bool = True
    ) -> None:
        self._dialect = dialect
        self._copies = copies  # whether prepared copies are read, where there are any
        self._public = None if private else public or {}
        self._owned = private  # whether the rows that are written carry their owner
        self._referring = False  # whether a private table may be read without it
        self._reading = Reading()
        self._naming = Naming()
        self.scalars = self._scalars()

    def _scalars(self) -> ScalarWriter:
        short = self._public is not None
        return ScalarWriter(
            self._dialect, self.name, self._subquery, self._bounds_of, self._naming.parameters, short=short
        )

    def reading(self, reading: Reading) -> RelationWriter:
        """A writer of the same query that reads private tables in this way."""
        other = copy(self)
        other._reading = reading
        other.scalars = other._scalars()
        return other

    def _rows(self, *, owned: bool, referring: bool = False) -> RelationWriter:
        """A writer of the same query whose rows carry their owner, or do not."""
        other = copy(self)
        other._owned, other._referring = owned, referring
        other.scalars = other._scalars()
        return other

    @property
    def parameters(self) -> frozenset[str]:
        """Those that were written so far."""
        return frozenset(self._naming.parameters)

    def _bounds_of(self, moment: Scalar) -> tuple[datetime, datetime]:
        """The moments between which an expression lies, as far as the columns of scans that are written tell it."""
        facts: dict[object, Fact] = {
            field: Fact(Interval(as_number(low), as_number(high))) for field, (low, high) in self._naming.ends.items()
        }
        found = interval(moment, facts)
        if found.low is None or found.high is None:
            return datetime.min, datetime.max
        return as_datetime(found.low), as_datetime(found.high)

    def name(self, field: Field) -> str:
        return self._naming.fields.setdefault(field.id, f"c{len(self._naming.fields) + 1}")

    def scalar(self, node: Scalar) -> str:
        return self.scalars.scalar(node)

    def relation(self, plan: Plan, needed: Iterable[Field] | None = None) -> str:
        """SQL for `plan` that yields the needed fields, and the owner where rows are private."""
        spend()
        wanted = {field.id for field in (plan.fields if needed is None else needed)}
        fields = [field for field in plan.fields if field.id in wanted]
        match plan:
            case Scan():
                return self._scan(plan, fields)
            case Empty():
                return self._select(
                    [f"CAST(NULL AS {self.scalars.type(f.type)}) AS {self.name(f)}" for f in fields], "", "FALSE"
                )
            case OneRow():
                return "SELECT 0 AS one"
            case Released(measurement=measurement):
                columns = [f"x{i} AS {self.name(field)}" for i, field in enumerate(plan.fields) if field.id in wanted]
                return self._select(columns, f"r{measurement}")
            case Filter(child=child, predicate=predicate):
                if (tested := self._tested_scan(plan, fields)) is not None:
                    return tested
                inner = self.relation(child, self._needed(fields, [predicate]))
                return self._select(self._columns(fields), self.nest(inner, [predicate]), self.scalar(predicate))
            case OfUnit(child=child, owner=owner):
                inner = self._rows(owned=True).relation(child, fields)
                return self._select(self._columns(fields), self._nest(inner), f"{OWNER} = {self.name(owner)}")
            case SemiJoin(child=child, source=source, negated=negated):
                inner, other = self.relation(child, fields), self.relation(source, ())
                owned = "owner IN (SELECT owner FROM ({0}) AS s)"
                condition = (self._dialect.not_owned_by if negated else owned).format(other)
                return self._select(self._columns(fields), self._nest(inner), condition)
            case Project(child=child, items=items):
                kept = [(field, value) for field, value in items if field.id in wanted]
                values = [value for _, value in kept]
                inner = self.relation(child, self._needed((), values))
                columns = [
                    self.name(field) if value == Ref(field) else f"{self.scalar(value)} AS {self.name(field)}"
                    for field, value in kept
                ]
                return self._select(self._with_owner(columns), self.nest(inner, values)) + self._reading.fence
            case Aggregate():
                return self._aggregate(plan)
            case Window(child=child, items=items):
                inner = self.relation(child)
                calls = [f"{self._window(call)} AS {self.name(field)}" for field, call in items]
                return self._select([*self._columns(child.fields), *calls], self.nest(inner, [c for _, c in items]))
            case Join():
                return self._join(plan, fields)
            case SetOperation(kind=set_kind, left=left, right=right):
                # Set operations other than UNION ALL look at whole rows: nothing may be left out.
                indexes = [i for i, f in enumerate(plan.fields) if f.id in wanted or set_kind.value != "UNION ALL"]
                parts = []
                for side in (left, right):
                    mine = [side.fields[i] for i in indexes]
                    names = [
                        f"{self.name(f)} AS {self.name(plan.fields[i])}" for f, i in zip(mine, indexes, strict=True)
                    ]
                    parts.append(self._select(self._with_owner(names), self._nest(self.relation(side, mine))))
                left_side, right_side = map(self._dialect.side.format, parts)
                return f"{left_side} {set_kind.value} {right_side}"
            case Distinct(child=child):
                return (
                    f"SELECT DISTINCT {', '.join(self._columns(child.fields))} FROM {self._nest(self.relation(child))}"
                )
            case Sort(child=child, keys=keys, limit=limit, offset=offset):
                text = self._select(self._columns(plan.fields), self._nest(self.relation(child)))
                text += f" ORDER BY {', '.join(map(self._sort_key, keys))}" if keys else ""
                text += f" LIMIT {limit}" if limit is not None else ""
                return text + (f" OFFSET {offset}" if offset else "")
            case _:
                assert_never(plan)

    # --- pieces ---

    def _select(self, columns: list[str], source: str, where: str = "") -> str:
        text = f"SELECT {', '.join(columns) or '0 AS one'}"
        text += f" FROM {source}" if source else ""
        return text + (f" WHERE {where}" if where else "")

    def _nest(self, inner: str) -> str:
        return f"({inner}) AS t"

    def nest(self, inner: str, values: Iterable[Scalar]) -> str:
        """A relation to select these expressions from; subqueries in them see the owner under a name of its own."""
        parts = (part for value in values if parts_in(value) & CORRELATED for part in walk(value))
        owners = [part.owner for part in parts if isinstance(part, Correlated) and part.owner is not None]
        if owners:
            named = ", ".join(dict.fromkeys(f"{OWNER} AS {self.name(owner)}" for owner in owners))
            inner = f"SELECT *, {named} FROM ({inner}) AS u"
        return self._nest(inner)

    def _with_owner(self, columns: list[str]) -> list[str]:
        return [OWNER, *columns] if self._owned else columns

    def _columns(self, fields: Iterable[Field]) -> list[str]:
        return self._with_owner([self.name(field) for field in fields])

    def _needed(self, fields: Iterable[Field], values: Iterable[Scalar]) -> list[Field] | None:
        """What an input must yield. Above a release all columns go along: a subquery may refer to any."""
        if self._public is not None:
            return None
        return [*fields, *(ref.field for value in values for ref in refs(value))]

    def _subquery(self, node: Subquery | Correlated) -> str:
        without_owner = self._rows(owned=False)
        if node.kind == "exists":
            return f"EXISTS ({without_owner._some_row(node.plan)})"
        inner = without_owner.relation(node.plan)
        if node.kind == "scalar":
            return f"({inner})"
        assert node.arg is not None
        if node.kind != "in" and not self._dialect.quantified:
            raise NotSupported(
                f"{node.kind.upper()} over a subquery is not supported on {self._dialect.name}",
                hint="Compare with MIN or MAX of the subquery, or write IN or NOT IN.",
            )
        return f"({self.scalar(node.arg)} {node.kind.upper()} ({inner}))"

    def _some_row(self, plan: Plan) -> str:
        """A query that has a row where the relation has one.

        Conditions stand at its top, whichever they are below: PostgreSQL makes a join of EXISTS only where nothing
        further down refers to the row around it.
        """
        below, conditions, owner = plan, list[Scalar](), ""
        while True:
            match below:
                case Project(child=child, items=items) if not _makes(items, conditions):
                    below = child
                case Filter(child=child, predicate=predicate) if not has_subquery(predicate):
                    conditions.append(predicate)
                    below = child
                case OfUnit(child=child, owner=field) if not owner:
                    owner = f"{OWNER} = {self.name(field)}"
                    below = child
                case _:
                    break
        if not conditions and not owner:
            return self.relation(plan)
        inner = self._rows(owned=bool(owner)).relation(below, self._needed((), conditions))
        tests = [*map(self.scalar, conditions), *([owner] if owner else [])]
        return self._select([], self._nest(inner), " AND ".join(tests))

    # --- joins ---

    def _join(self, plan: Join, fields: list[Field]) -> str:
        """Joins; between private relations owners are always compared.

        Claim: rows of different units never meet, and every row has the owner of the side that is there.
        Because: the owner stands in the condition. A table that refers to the other side is joined to the very row that
        says whose it is, and needs no owner of its own.
        Needs: each side's own owner to be right; a public side has none.
        """
        conditions = [] if plan.condition is None else list(conjuncts(plan.condition))
        needed = self._needed(fields, conditions)
        if not self._owned:
            on = "" if plan.condition is None else f" ON {self.scalar(plan.condition)}"
            left, right = self.relation(plan.left, needed), self.relation(plan.right, needed)
            return self._select(self._columns(fields), f"({left}) AS l {plan.kind.value} JOIN ({right}) AS r{on}")
        referring = self._refers(plan, conditions)
        owned = [is_private(side) and side is not referring for side in (plan.left, plan.right)]
        sides = []
        for side, has_owner in zip((plan.left, plan.right), owned, strict=True):
            sides.append(self._rows(owned=has_owner, referring=side is referring).relation(side, needed))
        if all(owned):
            tests = [f"l.{OWNER} = r.{OWNER}", *(self.scalar(c) for c in conditions if not _compares_units(c))]
        else:
            tests = [self.scalar(condition) for condition in conditions]
        owner = {JoinKind.RIGHT: f"r.{OWNER}", JoinKind.FULL: f"COALESCE(l.{OWNER}, r.{OWNER})"}.get(plan.kind)
        if not all(owned):
            owner = f"l.{OWNER}" if owned[0] else f"r.{OWNER}"
        word = JoinKind.INNER.value if plan.kind is JoinKind.CROSS and tests else plan.kind.value
        columns = [f"{owner or f'l.{OWNER}'} AS {OWNER}", *(self.name(field) for field in fields)]
        on = f" ON {' AND '.join(tests)}" if tests else ""
        return self._select(columns, f"({sides[0]}) AS l {word} JOIN ({sides[1]}) AS r{on}")

    def _refers(self, plan: Join, conditions: list[Scalar]) -> Plan | None:
        """A side that refers to rows of the other, and is joined by that reference: its owner is the other's."""
        if plan.kind is not JoinKind.INNER or not (is_private(plan.left) and is_private(plan.right)):
            return None
        for side, other in ((plan.right, plan.left), (plan.left, plan.right)):
            scan = _only_table(side)
            if scan is None or not scan.table.path:
                continue
            step = scan.table.path[0]
            for links in evidence(conditions, other.fields, side.fields):
                via = [name for f, name in zip(scan.fields, scan.columns, strict=True) if set(f.links) & set(links)]
                if links and (links[0].table, links[0].key) == (step.table, step.key) and set(via) == set(step.via):
                    return side
        return None

    def _sort_key(self, key: SortKey) -> str:
        direction = "DESC" if key.descending else "ASC"
        return f"{self.scalar(key.value)} {direction} NULLS {'FIRST' if key.nulls_first else 'LAST'}"

    # --- scans ---

    def _tested_scan(self, plan: Filter, fields: list[Field]) -> str | None:
        """A private table under conditions of which some are tested on stored columns; None where none is."""
        below, conditions = plan.child, list(conjuncts(plan.predicate))
        while isinstance(below, Filter):
            conditions = [*conjuncts(below.predicate), *conditions]
            below = below.child
        if not isinstance(below, Scan) or not below.table.is_private or self._public is not None:
            return None
        columns = scan_columns(below)
        tests = [(condition, stored_test(condition, columns)) for condition in conditions]
        found = [self._stored(test) for _, test in tests if test is not None]
        if not found:
            return None
        others = [condition for condition, test in tests if test is None]
        needed = {field.id for field in fields} | {ref.field.id for each in others for ref in refs(each)}
        inner = self._scan(below, [field for field in below.fields if field.id in needed], found)
        if not others:
            return inner
        where = " AND ".join(map(self.scalar, others))
        return self._select(self._columns(fields), self.nest(inner, others), where)

    def _stored(self, test: StoredTest) -> str:
        column, type_ = test.column, test.column.type
        value = self._bound(test.value, type_)
        if not type_.is_temporal:
            return f"{self._dialect.column(self._dialect.quote(column.name), type_)} {test.sign} {value}"
        moment = self._dialect.moment.format(self._dialect.quote(column.name), type=self.scalars.type(type_))
        first, last = self._dialect.calendar(type_)
        ends = {"<": f"{moment} >= {first} AND ", ">": f"{moment} <= {last} AND "}.get(test.sign[0], "")
        return f"{ends}{moment} {test.sign} {value}"

    def _scan(self, plan: Scan, fields: list[Field], tests: Sequence[str] = ()) -> str:
        column_of = dict(zip((field.id for field in plan.fields), plan.columns, strict=True))
        table = plan.table
        for field, name in zip(plan.fields, plan.columns, strict=True):
            column = table.columns.get(name)
            if column is None or self._public is not None:
                continue  # loaded copies are not clamped
            if isinstance(column.lower, date) and isinstance(column.upper, date):
                self._naming.ends[field.id] = column.lower, column.upper
        if not table.is_private:
            if self._public is not None:
                columns = [f"{self._dialect.quote(column_of[field.id])} AS {self.name(field)}" for field in fields]
                return self._select(columns, self._public[table.name])
            # In the database itself its values meet private ones, so they are normalised as those are.
            columns = [f"{self.normalised(table.columns[column_of[f.id]])} AS {self.name(f)}" for f in fields]
            return self._select(columns, self._dialect.qualified(table.source))
        if self._public is not None:
            raise InternalError("a private table was left in post-processing")
        columns = []
        for field in fields:
            name = column_of[field.id]
            column = table.columns.get(name)
            value = self._plain(name, field.type) if column is None else self.normalised(column)
            columns.append(
                f"{self._dialect.quote(name) if field.id in self._reading.raw else value} AS {self.name(field)}"
            )
        if not self._owned:
            if not self._referring:
                raise InternalError("a private table would be read without its owner")
            return (
                self._select(columns, self._source(table), _all_of([self._in_part(table), *tests]))
                + self._reading.fence
            )
        names = [self.name(field) for field in fields]
        parts = [self._with_owners(table, [*columns], names, [*tests, *bounds]) for bounds in self._in_bounds(plan)]
        return " UNION ALL ".join(parts)

    def _in_bounds(self, plan: Scan) -> list[list[str]]:
        """Tests that all of these columns are within their bounds, or that one is not: of each the first that is not.

        Claim: of these, for all within and for each that is not, one is true for every row.
        Because: each is of a type whose values are below, above or between two others of it, or NULL.
        Needs: whole numbers and decimals.
        """
        found = []
        for field, column in scan_columns(plan).items():
            if field in self._reading.bounds:
                value = self._dialect.column(self._dialect.quote(column.name), column.type)
                found.append(
                    (value, *(number(bound, column.type, self.scalars) for bound in self._reading.bounds[field]))
                )
        within = [f"{v} >= {low} AND {v} <= {high}" for v, low, high in found]
        if not self._reading.beyond or not found:
            return [within]
        # An engine that skips blocks sees what a test of one column leaves out, but not what one of several does.
        beyond = [f"({v} < {low} OR {v} > {high} OR {v} IS NULL)" for v, low, high in found]
        return [[*within[:i], test] for i, test in enumerate(beyond)]

    def rows_with_owners(self, table: Table, columns: Sequence[str]) -> str:
        """All rows of a private table that have an owner, with the columns as they are: c0, c1 … and `owner`."""
        names = [f"c{i}" for i in range(len(columns))]
        return self._with_owners(
            table, [f"{self._dialect.quote(c)} AS {n}" for c, n in zip(columns, names, strict=True)], names
        )

    def _with_owners(self, table: Table, columns: list[str], names: list[str], tests: Sequence[str] = ()) -> str:
        owner = self._owner_column(table)
        if owner is not None:
            assert table.owner_type is not None
            columns.insert(0, f"{self._plain(owner, table.owner_type)} AS {OWNER}")
            where = _all_of([self._is_wanted(owner, table), self._in_part(table), *tests])
            return self._select(columns, self._source(table), where) + self._reading.fence
        columns += self._parts(table.path[0].via, table.path[0].types, "v")
        here = self._select(columns, self._dialect.qualified(table.source), _all_of(tests)) + self._reading.fence
        return self._select([f"n.{OWNER}", *names], self._joined(here, table, 0))

    def _owner_column(self, table: Table) -> str | None:
        """The column that says whose a row is; None where that is found in other tables."""
        if self._copies and table.copy is not None:
            return COPIED_OWNER
        return None if table.path else table.owner

    def _source(self, table: Table) -> str:
        return self._dialect.qualified(table.read_from if self._copies else table.source)

    def _in_part(self, table: Table) -> str:
        """Of a table that has a copy, only the rows of owners who have so many of them as the test says.

        Claim: a relation within the table (`Stability.within`) has the rows that these owners have in it without the
        test, and no others.
        Because: an owner passes with all rows or with none; who has none in the table has none in the relation; and a
        row of a private relation depends on its owner's rows and on public tables alone.
        Needs: the rules of `privacy.rules`, which prove that; copies as `lowering.copies` writes them.
        """
        part = self._reading.part
        return "" if part is None or part[0] is not table else f"{self._dialect.quote(COPIED_ROWS)} {part[1]}"

    def owners_with(self, table: Table, test: str) -> str:
        """The owners who have so many rows of a prepared copy as the test says."""
        assert table.owner_type is not None
        owner = f"{self._plain(COPIED_OWNER, table.owner_type)} AS {OWNER}"
        return f"SELECT DISTINCT {owner} FROM {self._source(table)} WHERE {self._dialect.quote(COPIED_ROWS)} {test}"

    def _joined(self, here: str, table: Table, step: int) -> str:
        """Rows with the parts of a reference (v0, v1 …), joined to the owners that the rest of the path leads to.

        Claim: every row comes with the one owner it has; rows without one are not there.
        Because: keys are unique and compared in one type, value by value; a path that ends in NULL joins nothing.
        Needs: the checks of the policy against the schema (`policy.references`).
        """
        reference = table.path[step]
        columns = self._parts(reference.key, reference.types, "k")
        source = self._dialect.qualified(reference.source)
        if step + 1 < len(table.path):
            following = table.path[step + 1]
            columns += self._parts(following.via, following.types, "v")
            keys = [f"h.k{i}" for i in range(len(reference.key))]
            there = self._select([f"n.{OWNER}", *keys], self._joined(self._select(columns, source), table, step + 1))
        else:
            assert table.owner is not None and table.owner_type is not None
            columns.insert(0, f"{self._plain(table.owner, table.owner_type)} AS {OWNER}")
            there = self._select(columns, source, self._is_wanted(table.owner, table))
        same = " AND ".join(f"h.v{i} = n.k{i}" for i in range(len(reference.key)))
        return f"({here}) AS h JOIN ({there}) AS n ON {same}"

    def _is_wanted(self, column: str, table: Table) -> str:
        """Rows without an owner do not exist; where `among` names owners, those of others are not read either.

        Claim: with `among`, a relation has the rows that these owners have in it without, and no others.
        Because: a row of a private relation depends on its owner's rows and on public tables alone.
        Needs: the rules of `privacy.rules`, which prove that.
        """
        assert table.owner_type is not None
        # In a copy the engine holds that owners are known.
        known = "" if column == COPIED_OWNER else f"{self._dialect.quote(column)} IS NOT NULL"
        owner, among = self._plain(column, table.owner_type), self._reading.among
        return _all_of([known, f"{owner} IN (SELECT {OWNER} FROM {among})" if among else ""])

    def _parts(self, names: tuple[str, ...], types: tuple[Type, ...], letter: str) -> list[str]:
        return [f"{self._plain(n, t)} AS {letter}{i}" for i, (n, t) in enumerate(zip(names, types, strict=True))]

    def _plain(self, name: str, type_: Type) -> str:
        """A unit or reference in the one form all tables share: compared without conversion, byte by byte."""
        value = f"CAST({self._dialect.quote(name)} AS {self.scalars.type(type_)})"
        return self._dialect.binary.format(value) if type_.kind is Kind.TEXT else value

    def normalised(self, column: Column, stored: str = "") -> str:
        """A column as every expression above sees it: NULL if NaN or infinite, clamped to its bounds, widened.

        `stored` is the name under which its stored value is found, if not its own.

        Claim: the value is NULL or within the declared bounds (or the safe range of its type).
        Because: each branch of the CASE tests both ends; NaN and infinities match none of them.
        Needs: nothing of the data; the engine never raises on any value of the column's type.
        """
        low, high = column.lower, column.upper
        numbers = [Fraction(v) for v in column.values or () if isinstance(v, int | float) and not isinstance(v, bool)]
        if low is None and numbers and column.type.kind in (Kind.INTEGER, Kind.DOUBLE):
            low, high = min(numbers), max(numbers)
        name, type_ = stored or self._dialect.quote(column.name), column.type
        native = self.scalars.type(type_)
        match type_.kind:
            case Kind.TEXT:
                return self._dialect.binary.format(f"CAST({name} AS {native})")
            case Kind.BOOLEAN:
                return f"CAST({name} AS {native})"
            case Kind.INTEGER | Kind.DECIMAL:
                name = self._dialect.column(name, type_)
                if low is None or high is None:
                    return f"CAST({name} AS {native})"
                below, above = self._bound(low, type_), self._bound(high, type_)
                clamped = f"CASE WHEN {name} < {below} THEN {below} WHEN {name} > {above} THEN {above} ELSE {name} END"
                return f"CAST({clamped} AS {native})"
            case Kind.DOUBLE:
                largest = f"CAST({self._dialect.largest_double} AS {native})"
                value = f"CAST({self._dialect.column(name, type_)} AS {native})"
                return self._finite(value, low, high, f"-{largest}", largest, type_)
            case Kind.DATE | Kind.TIMESTAMP | Kind.TIMESTAMPTZ:
                first, last = self._dialect.calendar(type_)
                moment = self._dialect.moment.format(name, type=native)
                return self._finite(moment, low, high, first, last, type_)
            case _:
                raise InternalError(f"a column of type {type_.kind.value} was declared")

    def _finite(self, name: str, low: Bound | None, high: Bound | None, first: str, last: str, type_: Type) -> str:
        if low is None or high is None:
            return f"(CASE WHEN {name} >= {first} AND {name} <= {last} THEN {name} END)"
        below, above = self._bound(low, type_), self._bound(high, type_)
        return (
            f"(CASE WHEN {name} >= {below} AND {name} <= {above} THEN {name}"
            f" WHEN {name} > {above} AND {name} <= {last} THEN {above}"
            f" WHEN {name} < {below} AND {name} >= {first} THEN {below} END)"
        )

    def _bound(self, value: Bound, type_: Type) -> str:
        if isinstance(value, Fraction):
            return number(value, type_, self.scalars)
        return self.scalars.constant(value, type_)

    # --- aggregates and windows ---

    def _aggregate(self, plan: Aggregate) -> str:
        values = [value for _, value in plan.keys] + [call for _, call in plan.aggregates]
        inner = self.relation(plan.child, self._needed((), values))
        if self._owned:
            # One row per owner and further keys. The unit adds no groups, whatever its column shows: an undeclared one
            # is the owner itself; a declared one is a column like others, clamped as its type says.
            further = [(field, value) for field, value in plan.keys if not is_unit(value)]
            units = [(field, value) for field, value in plan.keys if is_unit(value)]
            columns = [OWNER, *(f"{self._unit(value)} AS {self.name(field)}" for field, value in units)]
        else:
            further, columns = list(plan.keys), []
        columns += [f"{self.scalar(value)} AS {self.name(field)}" for field, value in further]
        columns += [f"{self._aggregated(call)} AS {self.name(field)}" for field, call in plan.aggregates]
        # Without keys and aggregates an aggregation still makes one row of all.
        text = self._select(columns or ["COUNT(*) AS one"], self.nest(inner, values))
        keys = ([OWNER] if self._owned else []) + [self.scalar(value) for _, value in further]
        if len(plan.sets) > 1 or (plan.sets and len(plan.sets[0]) < len(plan.keys)):
            if not self._dialect.grouping_sets:
                raise NotSupported(
                    f"GROUPING SETS, ROLLUP and CUBE in a subquery are not supported on {self._dialect.name}",
                    hint="Write a query for each set of keys, and put them together with UNION ALL.",
                )
            sets = ", ".join(f"({', '.join(self.scalar(plan.keys[i][1]) for i in chosen)})" for chosen in plan.sets)
            return f"{text} GROUP BY GROUPING SETS ({sets})"
        return f"{text} GROUP BY {', '.join(keys)}" if keys else text

    def _unit(self, value: Scalar) -> str:
        assert isinstance(value, Ref)
        return f"MIN({self.scalar(value)})" if value.field.readable else OWNER

    def _aggregated(self, call: Aggregated) -> str:
        if call.function is Agg.GROUPING:
            return f"GROUPING({', '.join(map(self.scalar, call.args))})"
        if call.function is Agg.MODE:
            raise NotSupported(
                "mode is supported over private tables only",
                hint="GROUP BY the value and take the first one of ORDER BY COUNT(*) DESC.",
                position=call.position,
            )
        args = [self.scalar(arg) for arg in call.args]
        if call.function in (Agg.PERCENTILE_CONT, Agg.PERCENTILE_DISC):
            value, share = args
            text = f"{call.function.value}({share}) WITHIN GROUP (ORDER BY {value})"
            return text if call.where is None else f"{text} FILTER (WHERE {self.scalar(call.where)})"
        if call.function is Agg.AVG and self._public is None:
            return self._exact_average(call)
        if call.type.kind is Kind.DOUBLE and call.function not in (Agg.SUM, Agg.MIN, Agg.MAX):
            args = [f"CAST({arg} AS {self.scalars.type(call.type)})" for arg in args]
        if call.function is Agg.SUM:
            text = self._dialect.sum_of(args[0], call.args[0].type, distinct=call.distinct)
        else:
            text = f"{call.function.value}({'DISTINCT ' if call.distinct else ''}{', '.join(args) or '*'})"
        if call.where is not None:
            text += f" FILTER (WHERE {self.scalar(call.where)})"
        # Sums come back wider than their type; what PostgreSQL would refuse as out of range is NULL.
        return self._dialect.fit(text, call.type) if call.function is Agg.SUM else text

    def _exact_average(self, call: Aggregated) -> str:
        """An average of public values beside private rows: an exact sum, divided by a count.

        Claim: it depends on the values alone, not on the order in which the engine happens to add them up.
        Because: integers and decimals are added exactly, and the quotient of two numbers is one number.
        Needs: no doubles among them (`privacy.public.check_total`); averages per unit are sums and counts already.
        """
        (arg,) = call.args
        value = self.scalar(arg)
        each = f"{'DISTINCT ' if call.distinct else ''}{value}"
        only = "" if call.where is None else f" FILTER (WHERE {self.scalar(call.where)})"
        total = self._dialect.sum_of(value, arg.type, distinct=call.distinct)
        total = f"CAST({total}{only} AS {self.scalars.type(DOUBLE)})"
        return f"({total} / NULLIF(COUNT({each}){only}, 0))"

    def _window(self, call: Windowed) -> str:
        written = self._dialect.window_arguments(call, [self.scalar(arg) for arg in call.args])
        args = ", ".join(written) or ("*" if call.function == "count" else "")
        parts = []
        partition = [OWNER] if self._owned else []
        partition += [self.scalar(value) for value in call.partition if not (self._owned and is_unit(value))]
        if partition:
            parts.append(f"PARTITION BY {', '.join(partition)}")
        if call.order:
            parts.append(f"ORDER BY {', '.join(map(self._sort_key, call.order))}")
        if call.frame:
            parts.append(call.frame)
        text = f"{call.function}({args})"
        if call.where is not None:
            text += f" FILTER (WHERE {self.scalar(call.where)})"
        text += f" OVER ({' '.join(parts)})"
        return self._dialect.window_result(call, text)


def _all_of(tests: Iterable[str]) -> str:
    return " AND ".join(test for test in tests if test)


def _compares_units(condition: Scalar) -> bool:
    """Whether a condition says no more than that owners are equal. A unit that may be NULL says more."""
    pair = compared_fields(condition)
    return pair is not None and all(field.unit and not field.optional for field in pair)


def _only_table(plan: Plan) -> Scan | None:
    """The table a relation is, with some rows or columns of it left out; its references are those of the table."""
    match plan:
        case Scan():
            return plan
        case Filter(child=child, predicate=predicate) if not has_subquery(predicate):
            return _only_table(child)
        case Project(child=child, items=items) if not any(has_subquery(value) for _, value in items):
            return _only_table(child)
        case _:
            return None


def _makes(items: Iterable[tuple[Field, Scalar]], conditions: Iterable[Scalar]) -> bool:
    """Whether one of the conditions reads a column that a projection makes."""
    made = {field.id for field, value in items if value != Ref(field)}
    return any(ref.field.id in made for condition in conditions for ref in refs(condition))
