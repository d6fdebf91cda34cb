"""Plans to SQL. Names in the generated text are our own: an analyst's names never reach an engine.

Private relations carry the hidden column `owner`; every field is named by its place in the text (c1, c2 …), so that
equal plans give equal text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import assert_never

from dpsql.errors import InternalError
from dpsql.generate.dialect import FIRST_DAY, LAST_DAY, Dialect, quoted
from dpsql.generate.scalars import ScalarWriter, number
from dpsql.plan.nodes import (
    Aggregate,
    Distinct,
    Empty,
    Filter,
    Join,
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
from dpsql.plan.scalars import Agg, Aggregated, Field, Ref, Scalar, SortKey, Subquery, Windowed, refs
from dpsql.policy.model import Bound, Column, Table
from dpsql.types import Kind, Type

OWNER = "owner"


class RelationWriter:
    """Writes one query. `public` names the loaded copy of each public table; private queries have none."""

    def __init__(self, dialect: Dialect, *, private: bool, public: Mapping[str, str] | None = None) -> None:
        self._dialect = dialect
        self._private = private
        self._public = public or {}
        self._names: dict[int, str] = {}
        self.fence = ""  # ends the subqueries that compute columns
        self.scalars = ScalarWriter(dialect, self.name, None if private else self._subquery)

    def name(self, field: Field) -> str:
        return self._names.setdefault(field.id, f"c{len(self._names) + 1}")

    def scalar(self, node: Scalar) -> str:
        return self.scalars.scalar(node)

    def relation(self, plan: Plan, needed: Iterable[Field] | None = None) -> str:
        """SQL for `plan` that yields the needed fields, and the owner where rows are private."""
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
                inner = self.relation(child, self._needed(fields, [predicate]))
                return self._select(self._columns(fields), self._nest(inner), self.scalar(predicate))
            case SemiJoin(child=child, source=source, negated=negated):
                inner, other = self.relation(child, fields), self.relation(source, ())
                owned = "owner IN (SELECT owner FROM ({0}) AS s)"
                condition = (self._dialect.not_owned_by if negated else owned).format(other)
                return self._select(self._columns(fields), self._nest(inner), condition)
            case Project(child=child, items=items):
                kept = [(field, value) for field, value in items if field.id in wanted]
                inner = self.relation(child, self._needed((), [value for _, value in kept]))
                columns = [f"{self.scalar(value)} AS {self.name(field)}" for field, value in kept]
                return self._select(self._owned(columns), self._nest(inner)) + self.fence
            case Aggregate():
                return self._aggregate(plan)
            case Window(child=child, items=items):
                inner = self.relation(child)
                calls = [f"{self._window(call)} AS {self.name(field)}" for field, call in items]
                return self._select([*self._columns(child.fields), *calls], self._nest(inner))
            case Join(kind=kind, left=left, right=right, condition=condition):
                sides = f"({self.relation(left)}) AS l {kind.value} JOIN ({self.relation(right)}) AS r"
                on = "" if condition is None else f" ON {self.scalar(condition)}"
                return self._select(self._columns(fields), sides + on)
            case SetOperation(kind=set_kind, left=left, right=right):
                # Set operations other than UNION ALL look at whole rows: nothing may be left out.
                indexes = [i for i, f in enumerate(plan.fields) if f.id in wanted or set_kind.value != "UNION ALL"]
                parts = []
                for side in (left, right):
                    mine = [side.fields[i] for i in indexes]
                    names = [
                        f"{self.name(f)} AS {self.name(plan.fields[i])}" for f, i in zip(mine, indexes, strict=True)
                    ]
                    parts.append(self._select(self._owned(names), self._nest(self.relation(side, mine))))
                return f"({parts[0]}) {set_kind.value} ({parts[1]})"
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

    def _owned(self, columns: list[str]) -> list[str]:
        return [OWNER, *columns] if self._private else columns

    def _columns(self, fields: Iterable[Field]) -> list[str]:
        return self._owned([self.name(field) for field in fields])

    def _needed(self, fields: Iterable[Field], values: Iterable[Scalar]) -> list[Field] | None:
        """What a private input must yield. Above a release all columns go along: a subquery may refer to any."""
        if not self._private:
            return None
        return [*fields, *(ref.field for value in values for ref in refs(value))]

    def _subquery(self, node: Subquery) -> str:
        inner = self.relation(node.plan)
        if node.kind == "exists":
            return f"EXISTS ({inner})"
        if node.kind == "in":
            assert node.arg is not None
            return f"({self.scalar(node.arg)} IN ({inner}))"
        return f"({inner})"

    def _sort_key(self, key: SortKey) -> str:
        direction = "DESC" if key.descending else "ASC"
        return f"{self.scalar(key.value)} {direction} NULLS {'FIRST' if key.nulls_first else 'LAST'}"

    # --- scans ---

    def _scan(self, plan: Scan, fields: list[Field]) -> str:
        column_of = dict(zip((field.id for field in plan.fields), plan.columns, strict=True))
        table = plan.table
        if not table.is_private:
            if self._private:
                raise InternalError("a public table was left in a private query")
            columns = [f"{quoted(column_of[field.id])} AS {self.name(field)}" for field in fields]
            return self._select(columns, self._public[table.name])
        if not self._private:
            raise InternalError("a private table was left in post-processing")
        assert table.owner is not None
        owner = self._owner(table)
        columns = [f"{owner} AS {OWNER}"]
        for field in fields:
            name = column_of[field.id]
            column = table.columns.get(name)
            value = owner if column is None else self._normalised(column)
            columns.append(f"{value} AS {self.name(field)}")
        source = ".".join(map(quoted, table.source))
        return self._select(columns, source, f"{quoted(table.owner)} IS NOT NULL") + self.fence

    def _owner(self, table: Table) -> str:
        """The unit in the one form that all tables share, so that owners compare without conversion, byte by byte."""
        assert table.owner is not None
        assert table.owner_type is not None
        value = f"CAST({quoted(table.owner)} AS {self.scalars.type(table.owner_type)})"
        return self._dialect.binary.format(value) if table.owner_type.kind is Kind.TEXT else value

    def _normalised(self, column: Column) -> str:
        """A column as every expression above sees it: NULL if NaN or infinite, clamped to its bounds, widened.

        Claim: the value is NULL or within the declared bounds (or the safe range of its type).
        Because: each branch of the CASE tests both ends; NaN and infinities match none of them.
        Needs: nothing of the data; the engine never raises on any value of the column's type.
        """
        low, high = column.lower, column.upper
        numbers = [Fraction(v) for v in column.values or () if isinstance(v, int | float) and not isinstance(v, bool)]
        if low is None and numbers and column.type.kind in (Kind.INTEGER, Kind.DOUBLE):
            low, high = min(numbers), max(numbers)
        name, type_ = quoted(column.name), column.type
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
            case Kind.DATE | Kind.TIMESTAMP:
                word = "DATE" if type_.kind is Kind.DATE else "TIMESTAMP"
                end = "" if type_.kind is Kind.DATE else " 23:59:59.999999"
                first, last = f"{word} '{FIRST_DAY}'", f"{word} '{LAST_DAY}{end}'"
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
        if self._private:
            # One row per owner and further keys. The unit adds no groups, whatever its column shows: an undeclared one
            # is the owner itself; a declared one is a column like others, clamped as its type says.
            further = [(field, value) for field, value in plan.keys if not _is_unit(value)]
            units = [(field, value) for field, value in plan.keys if _is_unit(value)]
            columns = [OWNER, *(f"{self._unit(value)} AS {self.name(field)}" for field, value in units)]
        else:
            further, columns = list(plan.keys), []
        columns += [f"{self.scalar(value)} AS {self.name(field)}" for field, value in further]
        columns += [f"{self._aggregated(call)} AS {self.name(field)}" for field, call in plan.aggregates]
        # Without keys and aggregates an aggregation still makes one row of all.
        text = self._select(columns or ["COUNT(*) AS one"], self._nest(inner))
        keys = ([OWNER] if self._private else []) + [self.scalar(value) for _, value in further]
        if len(plan.sets) > 1 or (plan.sets and len(plan.sets[0]) < len(plan.keys)):
            sets = ", ".join(f"({', '.join(self.scalar(plan.keys[i][1]) for i in chosen)})" for chosen in plan.sets)
            return f"{text} GROUP BY GROUPING SETS ({sets})"
        return f"{text} GROUP BY {', '.join(keys)}" if keys else text

    def _unit(self, value: Scalar) -> str:
        assert isinstance(value, Ref)
        return f"MIN({self.scalar(value)})" if value.field.readable else OWNER

    def _aggregated(self, call: Aggregated) -> str:
        if call.function is Agg.GROUPING:
            return f"GROUPING({', '.join(map(self.scalar, call.args))})"
        args = [self.scalar(arg) for arg in call.args]
        if call.type.kind is Kind.DOUBLE and call.function not in (Agg.SUM, Agg.MIN, Agg.MAX):
            args = [f"CAST({arg} AS {self.scalars.type(call.type)})" for arg in args]
        distinct = "DISTINCT " if call.distinct else ""
        text = f"{call.function.value}({distinct}{', '.join(args) or '*'})"
        if call.where is not None:
            text += f" FILTER (WHERE {self.scalar(call.where)})"
        # Sums come back wider than their type; what PostgreSQL would refuse as out of range is NULL.
        return self._dialect.fit(text, call.type) if call.function is Agg.SUM else text

    def _window(self, call: Windowed) -> str:
        written = self._dialect.window_arguments(call, [self.scalar(arg) for arg in call.args])
        args = ", ".join(written) or ("*" if call.function == "count" else "")
        parts = []
        if call.partition:
            parts.append(f"PARTITION BY {', '.join(map(self.scalar, call.partition))}")
        if call.order:
            parts.append(f"ORDER BY {', '.join(map(self._sort_key, call.order))}")
        if call.frame:
            parts.append(call.frame)
        text = f"{call.function}({args})"
        if call.where is not None:
            text += f" FILTER (WHERE {self.scalar(call.where)})"
        text += f" OVER ({' '.join(parts)})"
        return self._dialect.window_result(call, text)


def _is_unit(value: Scalar) -> bool:
    return isinstance(value, Ref) and value.field.unit
