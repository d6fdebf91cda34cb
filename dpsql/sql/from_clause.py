"""FROM: declared tables, views, subqueries and lists of values, and how they are joined."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from sqlglot import exp

from dpsql.errors import (
    BadSetting,
    DuplicateName,
    Error,
    InvalidReference,
    NotSupported,
    SqlSyntaxError,
    TooComplex,
    UnknownColumn,
    UnknownTable,
)
from dpsql.plan.constants import NotConstant, evaluate
from dpsql.plan.nodes import Empty, Join, JoinKind, OneRow, Plan, Project, Scan, SetKind, SetOperation
from dpsql.plan.scalars import Call, Const, Field, Link, Op, Ref, Scalar, both
from dpsql.plan.visit import without_places
from dpsql.policy.model import Catalog, Table
from dpsql.sql.allowed import check_arguments, refuse_aggregates
from dpsql.sql.checks import Meter
from dpsql.sql.clock import Clock
from dpsql.sql.functions import expressions
from dpsql.sql.functions.core import Expressions
from dpsql.sql.functions.time import shift
from dpsql.sql.intervals import Span, as_span
from dpsql.sql.judge import misreading
from dpsql.sql.parse import parse
from dpsql.sql.scope import Scope, Source, folded, position
from dpsql.sql.types import unify
from dpsql.types import BIGINT, TIMESTAMP, TIMESTAMPTZ, Kind, Type, Value

MAX_VALUES = 200


@dataclass(frozen=True, slots=True)
class Context:
    """What a query block inherits: common table expressions, the enclosing scope, and whether it is known empty."""

    ctes: Mapping[str, Common] | None = None
    outer: Scope | None = None
    empty: bool = False


@dataclass(frozen=True, slots=True)
class Common:
    """A common table expression, what its own query inherits, and its plan until the first use takes it."""

    cte: exp.CTE
    context: Context
    unused: list[Plan]


class Sources(ABC):
    def __init__(
        self,
        text: str,
        catalog: Catalog,
        parameters: Sequence[Value],
        *,
        ids: Iterator[int] | None = None,
        views: tuple[str, ...] = (),
        meter: Meter | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._text = text
        self._catalog = catalog
        self._ids = itertools.count(1) if ids is None else ids
        self._views = views  # views being read
        self._meter = meter or Meter(catalog.limits)
        self._clock = clock
        self._contexts: list[Context] = []
        self._expressions = expressions(text, parameters, self._nested, self._meter, clock)

    @abstractmethod
    def query(self, node: exp.Expression, context: Context) -> Plan: ...

    @abstractmethod
    def _nested(self, node: exp.Expression, scope: Scope) -> Plan:
        """A subquery inside an expression, which can read the outer scope."""

    def _from(self, node: exp.Select, scope: Scope, context: Context) -> Plan:
        clause = node.args.get("from_")
        if clause is None:
            if node.args.get("joins"):
                raise SqlSyntaxError("JOIN without FROM", position=position(node))
            return OneRow()
        check_arguments(clause, {"this"})
        plan = self._source(clause.this, scope, context)
        for join in node.args.get("joins") or []:
            plan = self._join(plan, join, scope, context)
        return plan

    def _source(self, node: exp.Expression, scope: Scope, context: Context) -> Plan:
        alias: str
        schema: str | None = None
        given = node.args.get("alias")
        match node:
            case exp.Table():
                check_arguments(node, {"this", "db", "alias", "joins"})
                start = node.this.meta.get("start")
                if isinstance(start, int) and self._text[start] == "'":
                    raise SqlSyntaxError("expected a table name, found a string", position=start + 1)
                if isinstance(node.this, exp.ExplodingGenerateSeries):
                    plan, alias = self._series(node.this, context, given), "generate_series"
                elif not isinstance(node.this, exp.Identifier):
                    raise NotSupported("functions in FROM are not supported", position=position(node))
                else:
                    plan, alias = self._table(node, context)
                schema = folded(node.args["db"]) if node.args.get("db") else ""
            case exp.Subquery() if isinstance(node.this, exp.Table | exp.Subquery) and not node.args.get("alias"):
                # A join in parentheses; its tables keep their names.
                check_arguments(node, {"this", "joins"})
                plan = self._source(node.this, scope, context)
                for join in node.args.get("joins") or []:
                    plan = self._join(plan, join, scope, context)
                return plan
            case exp.Subquery():
                check_arguments(node, {"this", "alias", "with_", "order", "limit", "offset", "joins"})
                inner = node.copy()
                inner.set("alias", None)
                inner.set("joins", None)
                plan, alias = self.query(inner, replace(context, outer=None)), ""
            case exp.Values():
                check_arguments(node, {"expressions", "alias"})
                plan, alias = self._values(node, context), ""
            case _:
                raise NotSupported("this item in FROM is not supported", position=position(node))
        fields = plan.fields
        if given is not None:
            check_arguments(given, {"this", "columns"})
            alias, schema = folded(given.this), None
            names = [folded(column) for column in given.args.get("columns") or []]
            if len(names) > len(fields):
                raise InvalidReference(f'table "{alias}" has {len(fields)} columns', position=position(given))
            # Renaming must not touch the plan: the fields keep their ids.
            fields = (
                tuple(
                    replace(field, name=name)
                    for field, name in itertools.zip_longest(fields, names)
                    if name is not None
                )
                + fields[len(names) :]
            )
        if alias and any(source.alias == alias for source in scope.sources):
            raise DuplicateName(f'table name "{alias}" specified more than once', position=position(node))
        scope.sources.append(Source(alias, fields, schema))
        for join in node.args.get("joins") or []:
            plan = self._join(plan, join, scope, context)
        return plan

    def _table(self, node: exp.Table, context: Context) -> tuple[Plan, str]:
        name = folded(node.this)
        schema = node.args.get("db")
        if schema is None and context.ctes and name in context.ctes:
            return self._common(context.ctes[name], context), name
        full = name if schema is None else f"{folded(schema)}.{name}"
        # A dot inside a quoted name is part of the name, and no declared name has one.
        dotted = "." in name or (schema is not None and "." in folded(schema))
        table = None if dotted else self._catalog.tables.get(full)
        if table is None and not dotted and full in self._catalog.views:
            return self._view(full, context, position(node)), name
        if table is None:
            raise UnknownTable(full, position=position(node))
        return self._scan(table, context.empty), name

    def _common(self, defined: Common, context: Context) -> Plan:
        """A use of a common table expression. Each has columns of its own, so later uses are resolved again."""
        own = defined.context
        empty = own.empty or context.empty
        if defined.unused and own.empty == empty:
            plan = defined.unused.pop()
        else:
            plan = self.query(defined.cte.this, replace(own, empty=empty))
        return self._renamed(plan, defined.cte)

    def _view(self, name: str, context: Context, at: int | None) -> Plan:
        """A view, as if its text replaced its name in parentheses. It cannot read the outer query."""
        if name in self._views:
            raise NotSupported(f'view "{name}" refers back to itself', position=at)
        statement = parse(self._catalog.views[name])
        views = (*self._views, name)
        inner = type(self)(
            statement.text, self._catalog, (), ids=self._ids, views=views, meter=self._meter, clock=self._clock
        )
        misread = misreading(statement)
        try:
            plan = inner.query(statement.tree, Context(empty=context.empty))
            if misread is not None:
                raise misread
        except Error as error:
            error.position = at
            raise
        return without_places(plan)

    def _renamed(self, plan: Plan, cte: exp.CTE) -> Plan:
        columns = cte.args["alias"].args.get("columns") or []
        if len(columns) > len(plan.fields):
            raise InvalidReference("WITH query has fewer columns than its list names", position=position(cte))
        names = [folded(column) for column in columns]
        if not names:
            return plan
        items = []
        for field, name in itertools.zip_longest(plan.fields, names):
            items.append((replace(field, id=next(self._ids), name=name or field.name), Ref(field)))
        return Project(plan, tuple(items))

    def _scan(self, table: Table, empty: bool) -> Plan:
        """A declared table. Columns that only identify the owner of a row can only be compared."""
        row = next(self._ids)
        links: dict[str, list[Link]] = {}
        named = [(table.name, key, key) for key in table.keys]
        named += [(step.table, step.key, step.via) for step in table.path[:1]]
        for target, key, here in named:
            for part, name in enumerate(here):
                exact = name not in table.columns or not table.columns[name].is_clamped
                links.setdefault(name, []).append(Link(target, key, part, row, exact))
        types_of = {**table.hidden, **{name: column.type for name, column in table.columns.items()}}
        fields = tuple(
            Field(
                next(self._ids),
                name,
                type_,
                unit=name == table.owner and not table.path,
                readable=name in table.columns,
                links=tuple(links.get(name, ())),
            )
            for name, type_ in types_of.items()
        )
        return Empty(fields) if empty else Scan(table, fields, tuple(types_of))

    def _values(self, node: exp.Values, context: Context) -> Plan:
        scope = Scope(parent=context.outer)
        rows = []
        for row in node.expressions:
            parts = row.expressions if isinstance(row, exp.Tuple) else [row]
            rows.append([self._expressions.scalar(part, scope) for part in parts])
            for value in rows[-1]:
                refuse_aggregates(value, "VALUES")
        if len(rows) > MAX_VALUES:
            raise NotSupported(f"VALUES of more than {MAX_VALUES} rows is not supported", position=position(node))
        if len({len(row) for row in rows}) != 1:
            raise SqlSyntaxError("VALUES lists must all be the same length", position=position(node))
        types = [unify(column, "VALUES") for column in zip(*rows, strict=True)]
        plans: list[Plan] = []
        for row in rows:
            items = tuple(
                (Field(next(self._ids), f"column{i}", type_), self._expressions.coerce(value, type_))
                for i, (value, type_) in enumerate(zip(row, types, strict=True), 1)
            )
            plans.append(Project(OneRow(), items))
        plan = plans[0]
        for other in plans[1:]:
            plan = self._both_rows(plan, other)
        return plan

    def _series(self, node: exp.ExplodingGenerateSeries, context: Context, alias: exp.TableAlias | None) -> Plan:
        """generate_series of constants: a list of values, one per row. Its column has the table's name."""
        check_arguments(node, {"start", "end", "step"})
        name = "generate_series" if alias is None else folded(alias.this)
        plans: list[Plan] = []
        type_, values = series(self._expressions, node, Scope(parent=context.outer))
        for value in values:
            self._meter.node()
            plans.append(Project(OneRow(), ((Field(next(self._ids), name, type_), value),)))
        if not plans:
            return Empty((Field(next(self._ids), name, type_),))
        while len(plans) > 1:  # a balanced tree, so that a thousand rows do not nest a thousand deep
            pairs = [self._both_rows(*pair) for pair in zip(plans[::2], plans[1::2], strict=False)]
            plans = [*pairs, *(plans[-1:] if len(plans) % 2 else [])]
        return plans[0]

    def _both_rows(self, left: Plan, right: Plan) -> Plan:
        fields = tuple(replace(field, id=next(self._ids)) for field in left.fields)
        return SetOperation(SetKind.UNION_ALL, left, right, fields)

    def _join(self, left: Plan, node: exp.Join, scope: Scope, context: Context) -> Plan:
        check_arguments(node, {"this", "side", "kind", "on", "using", "method"})
        side, kind = str(node.args.get("side") or "").upper(), str(node.args.get("kind") or "").upper()
        method = str(node.args.get("method") or "").upper()
        if kind not in ("", "INNER", "OUTER", "CROSS") or side not in ("", "LEFT", "RIGHT", "FULL"):
            raise NotSupported(f"{kind or side} JOIN is not supported", position=position(node))
        if method not in ("", "NATURAL"):
            raise NotSupported(f"{method} JOIN is not supported", position=position(node))
        self._meter.join(position(node))
        before = [(source.alias, field) for source in scope.sources for field in source.fields]
        right = self._source(node.this, scope, context)
        names = [folded(column) for column in node.args.get("using") or []]
        if method == "NATURAL":
            others = {field.name for field in scope.sources[-1].fields}
            names = list(dict.fromkeys(field.name for _, field in before if field.name in others))
        on = node.args.get("on")
        condition = None if on is None else self._expressions.condition(on, scope, "JOIN")
        join_kind = JoinKind[side] if side else JoinKind.INNER
        merged: list[tuple[str, Field, Field]] = []
        for name in names:
            mine = [scope.merged[name]] if name in scope.merged else [f for _, f in before if f.name == name]
            theirs = [field for field in scope.sources[-1].fields if field.name == name]
            if len(mine) != 1 or len(theirs) != 1:
                raise UnknownColumn(name, position=position(node))
            merged.append((name, mine[0], theirs[0]))
            equal = self._expressions.compare(Op.EQ, Ref(mine[0]), Ref(theirs[0]), node)
            condition = both(condition, equal)
        if condition is None and join_kind is JoinKind.INNER:
            join_kind = JoinKind.CROSS
        if condition is None and join_kind is not JoinKind.CROSS:
            raise SqlSyntaxError("JOIN needs ON or USING", position=position(node))
        plan = self._merged(Join(join_kind, left, right, condition), merged, scope)
        if join_kind in (JoinKind.RIGHT, JoinKind.FULL):
            scope.make_optional({field.id for field in left.fields})
        if join_kind in (JoinKind.LEFT, JoinKind.FULL):
            scope.make_optional({field.id for field in right.fields})
        return plan

    def _merged(self, join: Join, columns: list[tuple[str, Field, Field]], scope: Scope) -> Plan:
        """The columns of USING: the preserved side's, or for FULL whichever is not NULL."""
        both_sides: list[tuple[Field, Scalar]] = []
        for name, mine, theirs in columns:
            if join.kind is JoinKind.FULL:
                common = unify((Ref(mine), Ref(theirs)), "joined")
                value = Call(
                    Op.COALESCE,
                    (self._expressions.coerce(Ref(mine), common), self._expressions.coerce(Ref(theirs), common)),
                    common,
                )
                # Of two units that are compared, the one that is not NULL is the owner.
                unit = mine.unit and theirs.unit
                readable = mine.readable and theirs.readable
                field = Field(next(self._ids), name, common, unit, readable, mine.optional or theirs.optional)
                both_sides.append((field, value))
            else:
                field = theirs if join.kind is JoinKind.RIGHT else mine
            scope.merged[name] = field
        if not both_sides:
            return join
        kept: list[tuple[Field, Scalar]] = [(field, Ref(field)) for field in join.fields]
        return Project(join, tuple(kept + both_sides))


# ------------------------------------------------------------
# generate_series in FROM: the values between two constants, known before anything is read.

MOST = 1_000


def series(read: Expressions, node: exp.ExplodingGenerateSeries, scope: Scope) -> tuple[Type, list[Const]]:
    """The values of generate_series(first, last, step): integers, or timestamps with an interval between them."""
    first, last = (read.scalar(node.args[part], scope) for part in ("start", "end"))
    step = node.args.get("step")
    span = None if step is None else as_span(step)
    if span is None:
        whole = [_number(each, node) for each in (first, last)]
        by = 1 if step is None else _number(read.scalar(step, scope), node)
        if by == 0:
            raise BadSetting("step size cannot equal zero", position=position(node))
        _check_length((whole[1] - whole[0]) // by + 1, node)
        return BIGINT, [Const(value, BIGINT) for value in range(whole[0], whole[1] + (1 if by > 0 else -1), by)]
    # Dates become timestamps with time zone, as in PostgreSQL.
    type_ = TIMESTAMP if Kind.TIMESTAMP in (first.type.kind, last.type.kind) else TIMESTAMPTZ
    start, end = (_moment(read, each, type_, node) for each in (first, last))
    return type_, _moments(read, start, end, span, type_, node)


def _moments(
    read: Expressions, first: datetime, last: datetime, span: Span, type_: Type, node: exp.Expression
) -> list[Const]:
    least = span.months * 28 * 86400 + span.days * 86400 + span.seconds
    if least == 0:
        raise BadSetting("step size cannot equal zero", position=position(node))
    if span.months < 0 or span.days < 0 or span.seconds < 0:
        raise NotSupported(
            "generate_series of timestamps with a negative step is not supported",
            hint="Swap the ends, and sort with ORDER BY … DESC.",
            position=position(node),
        )
    found: list[Const] = []
    at: Scalar = Const(first, type_)
    while isinstance(at, Const) and isinstance(at.value, datetime) and at.value <= last:
        found.append(at)
        _check_length(len(found), node)
        at = Const(evaluate(shift(read, at, span, 1)), type_)
    return found


def _check_length(rows: int, node: exp.Expression) -> None:
    if rows > MOST:
        raise TooComplex(
            f"generate_series of more than {MOST:,} rows is not supported",
            hint="Use a longer step, or split the query.",
            position=position(node),
        )


def _number(value: Scalar, node: exp.Expression) -> int:
    try:
        found = evaluate(value)
    except NotConstant:
        found = None
    if value.type.kind is not Kind.INTEGER or not isinstance(found, int):
        raise _not_constant(node)
    return found


def _moment(read: Expressions, value: Scalar, type_: Type, node: exp.Expression) -> datetime:
    if not (value.type.is_temporal or value.type.kind is Kind.UNKNOWN):
        raise _not_constant(node)
    try:
        found = evaluate(read.coerce(value, type_))
    except NotConstant:
        found = None
    if not isinstance(found, datetime):
        raise _not_constant(node)
    return found


def _not_constant(node: exp.Expression) -> NotSupported:
    return NotSupported(
        "generate_series needs constants: integers, or dates with an interval",
        hint="Write generate_series(1, 10), or generate_series(DATE '2024-01-01', CURRENT_DATE, INTERVAL '1 day').",
        position=position(node),
    )
