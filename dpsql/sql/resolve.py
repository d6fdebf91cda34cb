"""Relations: from sqlglot's tree to a plan of our own nodes, with every name resolved.

A query block becomes, bottom up: sources and joins, WHERE, GROUP BY and aggregates, HAVING, windows, the select
list, DISTINCT, ORDER BY and LIMIT. Whether it may be answered is not decided here.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from dpsql.errors import (
    BadSetting,
    DuplicateName,
    Error,
    GroupingError,
    InvalidReference,
    MissingFrom,
    NotSupported,
    ReadOnly,
    SqlSyntaxError,
    UnknownColumn,
    UnknownTable,
    WindowingError,
)
from dpsql.plan.evaluate import NotConstant, evaluate
from dpsql.plan.inspect import without_places
from dpsql.plan.nodes import (
    Aggregate,
    Distinct,
    Empty,
    Filter,
    Join,
    JoinKind,
    OneRow,
    Plan,
    Project,
    Scan,
    SetKind,
    SetOperation,
    Sort,
    Window,
    map_scalars,
)
from dpsql.plan.scalars import (
    Agg,
    Aggregated,
    Call,
    Const,
    Field,
    Link,
    Op,
    Ref,
    Scalar,
    SortKey,
    Subquery,
    Windowed,
    both,
    rebuild,
    refs,
    walk,
)
from dpsql.plan.text import scalar_text
from dpsql.policy.model import Catalog, Table
from dpsql.sql.allowed import check_arguments, refuse_aggregates, refuse_array
from dpsql.sql.clock import Clock
from dpsql.sql.expressions import expressions
from dpsql.sql.expressions.windows import window_of
from dpsql.sql.labels import column_name, note_output
from dpsql.sql.meter import Meter
from dpsql.sql.names import Scope, Source, folded, position
from dpsql.sql.parse import Statement, parse
from dpsql.sql.reading import misreading
from dpsql.sql.series import series
from dpsql.sql.typing import coerce, unify
from dpsql.types import BIGINT, BOOLEAN, UNKNOWN, Type, Value

MAX_SETS = 64
MAX_KEYS = 64
MAX_VALUES = 200

_Change = Callable[[Scalar], Scalar]
_Index = Callable[[exp.Expression], int]

_WRITES = (exp.Insert, exp.Update, exp.Delete, exp.Merge, exp.Create, exp.Drop, exp.Copy, exp.Command)


def resolve(
    statement: Statement, catalog: Catalog, parameters: Sequence[Value] = (), clock: Clock | None = None
) -> Plan:
    """The plan of a query. Reads the catalogue, and the clock if it is given one; never data."""
    # Looked for before, for the tree changes on the way; told last, for other refusals say more.
    misread = misreading(statement)
    try:
        plan = Resolver(statement.text, catalog, parameters, clock=clock).query(statement.tree, Context())
    except Error:
        raise
    except Exception:
        # The tree of what is no SQL may have any shape.
        if misread is None:
            raise
    if misread is not None:
        raise misread
    return plan


@dataclass(frozen=True, slots=True)
class Context:
    """What a query block inherits: common table expressions, the enclosing scope, and whether it is known empty."""

    ctes: Mapping[str, tuple[exp.CTE, Context]] | None = None
    outer: Scope | None = None
    empty: bool = False


class Resolver:
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
        self._views = views  # those that are being read
        self._meter = meter or Meter(catalog.limits)
        self._clock = clock
        self._contexts: list[Context] = []
        self._expressions = expressions(text, parameters, self._nested, self._meter, clock)

    # --- queries ---

    def query(self, node: exp.Expression, context: Context) -> Plan:
        self._meter.node()
        match node:
            case exp.Select():
                return self._select(node, self._with(node, context))
            case exp.SetOperation():
                return self._set_operation(node, self._with(node, context))
            case exp.Subquery():
                return self._parenthesised(node, context)
            case exp.Values():
                check_arguments(node, {"expressions"})
                return self._values(node, context)
            case _ if isinstance(node, _WRITES):
                word = type(node).__name__.upper()
                raise ReadOnly(
                    f"cannot execute {word} in a read-only transaction",
                    hint="dpsql answers SELECT; it never changes data.",
                    position=position(node),
                )
            case _:
                raise NotSupported("only SELECT can be answered", position=position(node))

    def _nested(self, node: exp.Expression, scope: Scope) -> Plan:
        """A subquery inside an expression; it sees the scope around it."""
        around = self._contexts[-1] if self._contexts else Context()
        windows = self._expressions.name_windows({})
        try:
            plan = self.query(node, replace(around, outer=scope))
            note_output(node, plan.fields[0].name)
            return plan
        finally:
            self._expressions.name_windows(windows)

    def _parenthesised(self, node: exp.Subquery, context: Context) -> Plan:
        check_arguments(node, {"this", "with_", "order", "limit", "offset"})
        context = self._with(node, context)
        limit, offset = self._limit(node)
        plan = self.query(node.this, replace(context, empty=context.empty or limit == 0))
        return self._sorted_output(node, plan, limit, offset)

    def _with(self, node: exp.Expression, context: Context) -> Context:
        clause = node.args.get("with_")
        if clause is None:
            return context
        check_arguments(clause, {"expressions"})
        ctes = dict(context.ctes or {})
        seen: set[str] = set()
        for cte in clause.expressions:
            check_arguments(cte, {"this", "alias", "materialized"})
            name = folded(cte.args["alias"].this)
            if name in seen:
                raise DuplicateName(f'WITH query name "{name}" specified more than once', position=position(cte))
            seen.add(name)
            # A CTE sees those before it, not itself. An unused one is still read, so that it cannot hide anything.
            own = Context(dict(ctes), context.outer, context.empty)
            self.query(cte.this, own)
            ctes[name] = (cte, own)
        return replace(context, ctes=ctes)

    # --- SELECT ---

    def _select(self, node: exp.Select, context: Context) -> Plan:
        if node.args.get("into"):
            raise ReadOnly("cannot execute SELECT INTO in a read-only transaction", position=position(node))
        check_arguments(node, _SELECT_PARTS)
        limit, offset = self._limit(node)
        if limit == 0:
            context = replace(context, empty=True)
        self._contexts.append(context)
        try:
            return self._block(node, context, limit, offset)
        finally:
            self._contexts.pop()

    def _block(self, node: exp.Select, context: Context, limit: int | None, offset: int) -> Plan:
        where = node.args.get("where")
        empty = context.empty or (where is not None and self._is_never(where.this))
        scope = Scope(parent=context.outer)
        plan = self._from(node, scope, replace(context, empty=empty))
        # Where no row can pass, what the subqueries of WHERE say does not matter, nor what those of the select list say
        # unless an aggregate makes a row of none.
        self._contexts[-1] = replace(context, empty=empty)
        if where is not None:
            plan = Filter(plan, self._expressions.condition(where.this, scope, "WHERE"))
        if _makes_a_row_of_none(node):
            self._contexts[-1] = context
        windows = self._named_windows(node, scope)
        items = self._select_list(node, scope)
        if not items:
            raise SqlSyntaxError("SELECT needs at least one column", position=position(node))
        keys, sets = self._group_by(node, items, scope)
        having = node.args.get("having")
        condition = None if having is None else self._expressions.boolean(having.this, scope)
        order, hidden = self._order_by(node, items, scope)
        chosen = self._distinct_on(node, items, scope)

        values = [*(value for _, value in items), *hidden, *chosen]
        asked = [*values, *([condition] if condition is not None else []), *windows]
        if keys or sets != ((),) or node.args.get("group") or condition is not None or any(map(_aggregates, asked)):
            plan, change = self._aggregate(plan, keys, sets, asked, items)
            values = [change(value) for value in values]
            for value in windows:
                change(value)
            if condition is not None:
                plan = Filter(plan, _no_windows(change(condition), "HAVING"))
        plan, values = self._windows(plan, values)
        if chosen:
            shown = len(items) + len(hidden)
            keys_of_order = [SortKey(values[i], key.descending, key.nulls_first) for i, key in order]
            plan = self._first_of_each(plan, values[shown:], keys_of_order)
            values = values[:shown]

        names = [name for name, _ in items] + ["?sort?"] * len(hidden)
        projected = tuple((self._output(name, value), value) for name, value in zip(names, values, strict=True))
        plan = Project(plan, projected)
        visible = tuple(field for field, _ in projected[: len(items)])
        if node.args.get("distinct") and not chosen:
            check_arguments(node.args["distinct"], set())
            if hidden:
                raise InvalidReference("for SELECT DISTINCT, ORDER BY expressions must appear in select list")
            for field in visible:
                refuse_array(Ref(field), position(node))
            plan = Distinct(plan)
        sort_keys = tuple(SortKey(Ref(projected[i][0]), key.descending, key.nulls_first) for i, key in order)
        if sort_keys or limit is not None or offset:
            plan = Sort(plan, sort_keys, limit, offset, visible)
        return plan

    def _named_windows(self, node: exp.Select, scope: Scope) -> list[Scalar]:
        """What the windows of a WINDOW clause are made of; a name means a window before it.

        One that nothing uses is read as well, as in PostgreSQL: what is wrong in it must be refused.
        """
        named: dict[str, exp.Window] = {}
        values: list[Scalar] = []
        self._expressions.name_windows(named)
        for window in node.args.get("windows") or []:
            name, copied = folded(window.this), window.args.get("alias")
            if name in named:
                raise WindowingError(f'window "{name}" is already defined', position=position(window))
            partition, order, _ = window_of(self._expressions, window, scope)
            if copied is not None and named[folded(copied)].args.get("spec") is not None:
                message = f'cannot copy window "{folded(copied)}" because it has a frame clause'
                raise WindowingError(message, position=position(window))
            values += [*partition, *(key.value for key in order)]
            named[name] = window
        if any(isinstance(part, Windowed) for value in values for part in walk(value)):
            raise WindowingError("window functions are not allowed in window definitions", position=position(node))
        return values

    def _distinct_on(self, node: exp.Select, items: list[tuple[str, Scalar]], scope: Scope) -> list[Scalar]:
        """The expressions of DISTINCT ON; none for any other SELECT."""
        distinct = node.args.get("distinct")
        if distinct is None or distinct.args.get("on") is None:
            return []
        check_arguments(distinct, {"on"})
        chosen = [self._group_key(part, items, scope) for part in distinct.args["on"].expressions]
        for value in chosen:
            refuse_array(value, position(distinct))
        return chosen

    def _first_of_each(self, plan: Plan, chosen: list[Scalar], order: list[SortKey]) -> Plan:
        """DISTINCT ON: of the rows that agree in some values, the first in the order of the query."""
        if any(key.value not in chosen for key in order[: len(set(chosen))]):
            raise InvalidReference("SELECT DISTINCT ON expressions must match initial ORDER BY expressions")
        number = Field(next(self._ids), "row_number", BIGINT)
        call = Windowed("row_number", (), BIGINT, tuple(chosen), tuple(order))
        first = Call(Op.EQ, (Ref(number), Const(1, BIGINT)), BOOLEAN)
        return Filter(Window(plan, ((number, call),)), first)

    def _output(self, name: str, value: Scalar) -> Field:
        """An output column; a unit that passes through unchanged stays one."""
        if isinstance(value, Ref):
            return replace(value.field, id=next(self._ids), name=name)
        return Field(next(self._ids), name, value.type)

    def _is_never(self, node: exp.Expression) -> bool:
        """Whether a condition is false or NULL whatever the data: one of its conjuncts is constant and not true."""
        while isinstance(node, exp.Paren):
            node = node.this
        if isinstance(node, exp.And):
            return self._is_never(node.this) or self._is_never(node.expression)
        if node.find(exp.Column, exp.Query, exp.AggFunc, exp.Window) is not None:
            return False
        try:
            return evaluate(self._expressions.boolean(node, Scope())) is not True
        except NotConstant:
            return False

    def _select_list(self, node: exp.Select, scope: Scope) -> list[tuple[str, Scalar]]:
        items: list[tuple[str, Scalar]] = []
        for item in node.expressions:
            if isinstance(item, exp.Star):
                check_arguments(item, set())
                if not scope.sources:
                    raise SqlSyntaxError("SELECT * with no tables specified is not valid", position=position(item))
                items += [(field.name, Ref(field, position(item))) for field in self._star(scope)]
            elif isinstance(item, exp.Column) and isinstance(item.this, exp.Star):
                check_arguments(item, {"this", "table"})
                check_arguments(item.this, set())
                alias = folded(item.args["table"])
                sources = [source for source in scope.sources if source.alias == alias]
                if not sources:
                    raise MissingFrom(alias, position=position(item))
                items += [(field.name, Ref(field, position(item))) for field in sources[0].fields]
            elif isinstance(item, exp.Alias):
                check_arguments(item, {"this", "alias"})
                items.append((folded(item.args["alias"]), self._expressions.output(item.this, scope)))
            else:
                value = self._expressions.output(item, scope)  # before its name: a subquery may be SELECT *
                items.append((column_name(item, self._text), value))
        return items

    def _star(self, scope: Scope) -> Iterator[Field]:
        yield from scope.merged.values()
        for source in scope.sources:
            yield from (field for field in source.fields if field.name not in scope.merged)

    # --- FROM ---

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
                    raise SqlSyntaxError("a string stands where a table name is needed", position=start + 1)
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
            cte, own = context.ctes[name]
            plan = self.query(cte.this, replace(own, empty=own.empty or context.empty))
            return self._renamed(plan, cte), name
        full = name if schema is None else f"{folded(schema)}.{name}"
        # A dot inside a quoted name is part of the name, and no declared name has one.
        dotted = "." in name or (schema is not None and "." in folded(schema))
        table = None if dotted else self._catalog.tables.get(full)
        if table is None and not dotted and full in self._catalog.views:
            return self._view(full, context, position(node)), name
        if table is None:
            raise UnknownTable(full, position=position(node))
        return self._scan(table, context.empty), name

    def _view(self, name: str, context: Context, at: int | None) -> Plan:
        """A view as if its text stood here in parentheses. It sees nothing of the query around it."""
        if name in self._views:
            raise NotSupported(f'view "{name}" refers back to itself', position=at)
        statement = parse(self._catalog.views[name])
        views = (*self._views, name)
        inner = Resolver(
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
        """A declared table. Columns that only say whose a row is can be compared and nothing else."""
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
                (Field(next(self._ids), f"column{i}", type_), coerce(value, type_))
                for i, (value, type_) in enumerate(zip(row, types, strict=True), 1)
            )
            plans.append(Project(OneRow(), items))
        plan = plans[0]
        for other in plans[1:]:
            plan = self._both_rows(plan, other)
        return plan

    def _series(self, node: exp.ExplodingGenerateSeries, context: Context, alias: exp.TableAlias | None) -> Plan:
        """generate_series of constants: a list of values, each in a row. Its column is called like the table."""
        check_arguments(node, {"start", "end", "step"})
        name = "generate_series" if alias is None else folded(alias.this)
        plans: list[Plan] = []
        type_, values = series(self._expressions, node, Scope(parent=context.outer))
        for value in values:
            self._meter.node()
            plans.append(Project(OneRow(), ((Field(next(self._ids), name, type_), value),)))
        if not plans:
            return Empty((Field(next(self._ids), name, type_),))
        while len(plans) > 1:  # a balanced tree, for a thousand rows must not nest a thousand deep
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
        """The columns of USING: the preserved side's, or whichever is known for FULL."""
        both_sides: list[tuple[Field, Scalar]] = []
        for name, mine, theirs in columns:
            if join.kind is JoinKind.FULL:
                common = unify((Ref(mine), Ref(theirs)), "joined")
                value = Call(Op.COALESCE, (coerce(Ref(mine), common), coerce(Ref(theirs), common)), common)
                # Of two units that are compared, the one that is there is the owner.
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

    # --- GROUP BY ---

    def _group_by(
        self, node: exp.Select, items: list[tuple[str, Scalar]], scope: Scope
    ) -> tuple[list[Scalar], tuple[tuple[int, ...], ...]]:
        clause = node.args.get("group")
        if clause is None:
            return [], ((),)
        if clause.args.get("all") is False:
            raise NotSupported("GROUP BY DISTINCT is not supported", position=position(clause))
        check_arguments(clause, {"expressions"})
        if not clause.expressions:
            raise SqlSyntaxError("GROUP BY needs an expression", position=position(node))
        keys: list[Scalar] = []

        def index(part: exp.Expression) -> int:
            value = self._group_key(part, items, scope)
            refuse_aggregates(value, "GROUP BY")
            refuse_array(value, position(part))
            if value not in keys:
                keys.append(value)
            return keys.index(value)

        choices = [_grouping_choices(part, index) for part in clause.expressions]
        sets = [tuple(sorted({i for part in combination for i in part})) for combination in itertools.product(*choices)]
        if len(keys) > MAX_KEYS:
            raise NotSupported(f"more than {MAX_KEYS} keys are not supported", position=position(clause))
        if len(sets) > MAX_SETS:
            raise NotSupported(f"more than {MAX_SETS} grouping sets are not supported", position=position(clause))
        return keys, tuple(sets)

    def _group_key(self, node: exp.Expression, items: list[tuple[str, Scalar]], scope: Scope) -> Scalar:
        while isinstance(node, exp.Paren):
            node = node.this
        if (constant := _constant(node)) is not None:
            return items[_list_position(constant, node, len(items), "GROUP BY")][1]
        if isinstance(node, exp.Column) and not node.args.get("table"):
            # An input column comes before an output name, as in PostgreSQL.
            try:
                return self._expressions.typed(node, scope)
            except UnknownColumn:
                named = [value for name, value in items if name == folded(node.this)]
                if not named:
                    raise
                return named[0]
        return self._expressions.typed(node, scope)

    def _aggregate(
        self,
        plan: Plan,
        keys: list[Scalar],
        sets: tuple[tuple[int, ...], ...],
        asked: list[Scalar],
        items: list[tuple[str, Scalar]],
    ) -> tuple[Plan, _Change]:
        key_fields = []
        for key in keys:
            shown = [name for name, value in items if value == key]
            name = key.field.name if isinstance(key, Ref) else shown[0] if shown else scalar_text(key)
            key_fields.append((self._output(name, key), key))
        calls: dict[Aggregated, Field] = {}
        for value in asked:
            for part in _aggregates(value):
                if part not in calls:
                    self._check_grouping(part, keys)
                    self._check_own(part, plan)
                    calls[part] = Field(next(self._ids), part.function.value, part.type)
        aggregate = Aggregate(plan, tuple(key_fields), tuple((field, call) for call, field in calls.items()), sets)
        by_key = {key: field for field, key in key_fields}

        def change(value: Scalar) -> Scalar:
            if value in by_key:
                return Ref(by_key[value])
            if isinstance(value, Aggregated):
                return Ref(calls[value])
            if isinstance(value, Subquery):
                arg = None if value.arg is None else change(value.arg)
                return replace(value, plan=map_scalars(value.plan, correlated), arg=arg)
            if isinstance(value, Ref):
                raise GroupingError(
                    f'column "{value.field.name}" must appear in the GROUP BY clause'
                    " or be used in an aggregate function",
                    position=value.position,
                )
            return rebuild(value, change)

        outer = {field.id for field in plan.fields}

        def correlated(value: Scalar) -> Scalar:
            """An expression of a subquery: what it takes from this block must be grouped, the rest is its own."""
            if isinstance(value, Ref):
                return change(value) if value.field.id in outer else value
            if isinstance(value, Subquery):
                arg = None if value.arg is None else correlated(value.arg)
                return replace(value, plan=map_scalars(value.plan, correlated), arg=arg)
            return rebuild(value, correlated)

        return aggregate, change

    def _check_grouping(self, call: Aggregated, keys: list[Scalar]) -> None:
        if call.function is Agg.GROUPING and any(arg not in keys for arg in call.args):
            raise GroupingError("arguments to GROUPING must be grouping expressions", position=call.position)

    def _check_own(self, call: Aggregated, plan: Plan) -> None:
        """SQL counts an aggregate of columns of the query around alone to that query, where it has no place."""
        own = {field.id for field in plan.fields}
        read = [ref.field.id for part in call.args for ref in refs(part)]
        if read and not own & set(read):
            raise GroupingError(
                "an aggregate of columns of the query around it is not supported",
                hint="Use a column of the subquery in it.",
                position=call.position,
            )

    def _windows(self, plan: Plan, values: list[Scalar]) -> tuple[Plan, list[Scalar]]:
        found: dict[Windowed, Field] = {}

        def change(value: Scalar) -> Scalar:
            if isinstance(value, Windowed):
                for part in walk(value):
                    if part is not value and isinstance(part, Windowed):
                        raise GroupingError("window function calls cannot be nested")
                if value not in found:
                    found[value] = Field(next(self._ids), value.function, value.type)
                return Ref(found[value])
            return rebuild(value, change)

        changed = [change(value) for value in values]
        if not found:
            return plan, values
        return Window(plan, tuple((field, call) for call, field in found.items())), changed

    # --- ORDER BY, LIMIT ---

    def _order_by(
        self, node: exp.Select, items: list[tuple[str, Scalar]], scope: Scope
    ) -> tuple[list[tuple[int, SortKey]], list[Scalar]]:
        """For each sort key the index of its value among the output columns and the hidden ones behind them."""
        clause = node.args.get("order")
        order: list[tuple[int, SortKey]] = []
        hidden: list[Scalar] = []
        if clause is None:
            return order, hidden
        check_arguments(clause, {"expressions"})
        for part in clause.expressions:
            target = part.this
            index = _output_index(target, [name for name, _ in items])
            if index is None:
                key = self._expressions.sort_key(part, scope)
                same = [i for i, (_, value) in enumerate(items) if value == key.value]
                if same:
                    index = same[0]
                else:
                    hidden.append(key.value)
                    index = len(items) + len(hidden) - 1
            else:
                key = self._expressions.sort_key(part, scope, items[index][1])
            order.append((index, key))
        return order, hidden

    def _limit(self, node: exp.Expression) -> tuple[int | None, int]:
        limit, offset = node.args.get("limit"), node.args.get("offset")
        count: exp.Expression | None = None
        if isinstance(limit, exp.Fetch):
            check_arguments(limit, {"direction", "count", "limit_options"})
            options = limit.args.get("limit_options")
            if options is not None and (options.args.get("with_ties") or options.args.get("percent")):
                raise NotSupported("FETCH … WITH TIES is not supported", hint="Use ONLY.", position=position(limit))
            count = limit.args.get("count") or exp.Literal.number(1)
        elif limit is not None:
            check_arguments(limit, {"expression"})
            count = limit.expression
            if (isinstance(count, exp.Var) and str(count.this).upper() == "ALL") or isinstance(count, exp.Null):
                count = None
        skip = 0
        if offset is not None:
            check_arguments(offset, {"expression"})
            skip = self._row_count(offset.expression, "OFFSET") or 0
        return None if count is None else self._row_count(count, "LIMIT"), skip

    def _row_count(self, node: exp.Expression, clause: str) -> int | None:
        value = self._expressions.scalar(node, Scope())
        try:
            number = evaluate(value)
        except NotConstant:
            raise NotSupported(f"{clause} must be a constant", position=position(node)) from None
        if number is None and not isinstance(value, Const):
            raise BadSetting(f"{clause} has no value", position=position(node))
        if number is None:
            return None
        if not isinstance(number, int) or isinstance(number, bool):
            raise BadSetting(f"{clause} must be a whole number", position=position(node))
        if not 0 <= number < 2**63:
            raise BadSetting(f"{clause} must not be negative", position=position(node))
        return number

    def _sorted_output(self, node: exp.Expression, plan: Plan, limit: int | None, offset: int) -> Plan:
        """ORDER BY and LIMIT behind a set operation or a parenthesis: only output columns can be named."""
        clause = node.args.get("order")
        keys = []
        if clause is not None:
            check_arguments(clause, {"expressions"})
            for part in clause.expressions:
                index = _output_index(part.this, [field.name for field in plan.fields])
                if index is None:
                    raise NotSupported("ORDER BY here takes output columns or positions", position=position(part))
                keys.append(self._expressions.sort_key(part, Scope(), Ref(plan.fields[index])))
        if not keys and limit is None and not offset:
            return plan
        return Sort(plan, tuple(keys), limit, offset, plan.fields)

    # --- set operations ---

    def _set_operation(self, node: exp.SetOperation, context: Context) -> Plan:
        check_arguments(node, {"this", "expression", "distinct", "with_", "order", "limit", "offset"})
        limit, offset = self._limit(node)
        if any(node.this.args.get(part) for part in ("order", "limit", "offset")) and not isinstance(
            node.this, exp.Subquery
        ):
            raise SqlSyntaxError("ORDER BY and LIMIT before a set operation need parentheses", position=position(node))
        inner = replace(context, empty=context.empty or limit == 0)
        left, right = self.query(node.this, inner), self.query(node.expression, inner)
        name = type(node).__name__.upper() + ("" if node.args.get("distinct") else "_ALL")
        if len(left.fields) != len(right.fields):
            raise SqlSyntaxError(
                f"each {type(node).__name__.upper()} query must have the same number of columns",
                position=position(node),
            )
        fields = []
        rows: dict[tuple[int, int], int] = {}
        ours, theirs = _columns(node.this, left), _columns(node.expression, right)
        for mine, other, *values in zip(left.fields, right.fields, ours, theirs, strict=True):
            common = unify(values, name.replace("_", " "))
            unit = mine.unit and other.unit
            readable = mine.readable and other.readable
            optional = mine.optional or other.optional
            links = self._common_links(mine, other, rows)
            fields.append(Field(next(self._ids), mine.name, common, unit, readable, optional, links))
        kinds = [field.type for field in fields]
        sides = self._cast_all(left, ours, kinds), self._cast_all(right, theirs, kinds)
        plan = SetOperation(SetKind[name], *sides, tuple(fields))
        return self._sorted_output(node, plan, limit, offset)

    def _common_links(self, mine: Field, other: Field, rows: dict[tuple[int, int], int]) -> tuple[Link, ...]:
        """What a column refers to whichever side its row comes from; parts stay together that were so on both."""
        return tuple(
            replace(link, row=rows.setdefault((link.row, twin.row), next(self._ids)), exact=link.exact and twin.exact)
            for link in mine.links
            for twin in other.links
            if (link.table, link.key, link.part) == (twin.table, twin.key, twin.part)
        )

    def _cast_all(self, plan: Plan, values: list[Scalar], types: list[Type]) -> Plan:
        if all(field.type.kind is type_.kind for field, type_ in zip(plan.fields, types, strict=True)):
            return plan
        items = []
        for field, value, type_ in zip(plan.fields, values, types, strict=True):
            changed = coerce(value if field.type.kind is not type_.kind else Ref(field), type_)
            items.append((self._output(field.name, changed), changed))
        return Project(plan, tuple(items))


_SELECT_PARTS = {
    "expressions", "from_", "joins", "where", "group", "having", "order", "limit", "offset", "distinct", "with_",
    "windows",
}  # fmt: skip


def _aggregates(value: Scalar) -> list[Aggregated]:
    """The aggregate calls in a value; those in the arguments of a window function count, as in SQL."""
    return [part for part in walk(value) if isinstance(part, Aggregated)]


def _columns(node: exp.Expression, plan: Plan) -> list[Scalar]:
    """The columns of one side of a set operation; a bare NULL or string takes the type of the other side."""
    found: list[Scalar] = [Ref(field) for field in plan.fields]
    if isinstance(node, exp.Select) and not any(item.is_star for item in node.expressions):
        for place, item in enumerate(node.expressions):
            bare = item.this if isinstance(item, exp.Alias) else item
            if isinstance(bare, exp.Null):
                found[place] = Const(None, UNKNOWN)
            elif isinstance(bare, exp.Literal) and bare.is_string:
                found[place] = Const(str(bare.this), UNKNOWN)
    return found


def _makes_a_row_of_none(node: exp.Select) -> bool:
    """Whether a block may return a row though its sources have none: an aggregate over everything does."""
    group = node.args.get("group")
    if group is not None:
        sets = (exp.Rollup, exp.Cube, exp.GroupingSets)
        return any(isinstance(part, sets) or part == exp.Tuple() for part in group.expressions)
    parts = [*node.expressions, *([node.args["order"]] if node.args.get("order") else [])]
    # What a subquery aggregates is its own.
    own = (inner for part in parts for inner in part.walk(prune=lambda inner: isinstance(inner, exp.Query)))
    return node.args.get("having") is not None or any(isinstance(inner, exp.AggFunc) for inner in own)


def _no_windows(value: Scalar, clause: str) -> Scalar:
    refuse_aggregates(value, clause)
    return value


def _constant(node: exp.Expression) -> str | None:
    """The constant that PostgreSQL sees in an item of GROUP BY or ORDER BY: a number, or empty for any other one.

    Its parser takes a sign before a number into it, however many parentheses are between them: -(-(1)) is 1.
    """
    signs = 0
    while isinstance(node, exp.Paren | exp.Neg):
        signs += isinstance(node, exp.Neg)
        node = node.this
    if isinstance(node, exp.Literal) and not node.is_string:
        return "-" * (signs % 2) + str(node.this)
    return "" if not signs and isinstance(node, exp.Literal | exp.Null | exp.Boolean) else None


def _list_position(constant: str, node: exp.Expression, count: int, clause: str) -> int:
    """A constant in GROUP BY or ORDER BY is the position of an output column, and must be one."""
    if not constant.removeprefix("-").isdigit():
        raise SqlSyntaxError(f"non-integer constant in {clause}", position=position(node))
    if not 1 <= int(constant) <= count:
        raise InvalidReference(f"{clause} position {constant} is not in select list", position=position(node))
    return int(constant) - 1


def _output_index(node: exp.Expression, names: list[str]) -> int | None:
    """The output column that an ORDER BY item names by position or by name, if it does."""
    while isinstance(node, exp.Paren):
        node = node.this
    if (constant := _constant(node)) is not None:
        return _list_position(constant, node, len(names), "ORDER BY")
    if isinstance(node, exp.Column) and not node.args.get("table"):
        name = folded(node.this)
        if names.count(name) > 1:
            return names.index(name)
        return names.index(name) if name in names else None
    return None


def _grouping_choices(part: exp.Expression, index: _Index) -> list[tuple[int, ...]]:
    """One item of GROUP BY as a list of alternative sets of keys."""
    match part:
        case exp.Rollup():
            check_arguments(part, {"expressions"})
            groups = [_grouping_unit(item, index) for item in part.expressions]
            return [tuple(itertools.chain(*groups[:n])) for n in range(len(groups), -1, -1)]
        case exp.Cube():
            check_arguments(part, {"expressions"})
            groups = [_grouping_unit(item, index) for item in part.expressions]
            if len(groups) > 6:
                raise NotSupported("CUBE of more than 6 keys is not supported", position=position(part))
            return [
                tuple(itertools.chain(*chosen))
                for n in range(len(groups), -1, -1)
                for chosen in itertools.combinations(groups, n)
            ]
        case exp.GroupingSets():
            check_arguments(part, {"expressions"})
            return [
                choice
                for item in part.expressions
                for choice in (
                    _grouping_choices(item, index)
                    if isinstance(item, exp.Rollup | exp.Cube | exp.GroupingSets)
                    else [_grouping_unit(item, index)]
                )
            ]
        case _:
            return [_grouping_unit(part, index)]


def _grouping_unit(item: exp.Expression, index: _Index) -> tuple[int, ...]:
    if isinstance(item, exp.Tuple):
        return tuple(index(part) for part in item.expressions)
    return (index(item),)
