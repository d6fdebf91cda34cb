"""Relations: from sqlglot's tree to a plan of our own nodes, with every name resolved.

A query block becomes, bottom up: sources and joins, WHERE, GROUP BY and aggregates, HAVING, windows, the select
list, DISTINCT, ORDER BY and LIMIT. Whether it may be answered is not decided here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from sqlglot import exp

from dpsql.errors import (
    DuplicateName,
    Error,
    InvalidReference,
    MissingFrom,
    NotSupported,
    ReadOnly,
    SqlSyntaxError,
    WindowingError,
)
from dpsql.plan.constants import NotConstant, evaluate
from dpsql.plan.nodes import Distinct, Filter, Plan, Project, SetKind, SetOperation, Sort, Window
from dpsql.plan.scalars import Call, Const, Field, Link, Op, Ref, Scalar, SortKey, Windowed, walk
from dpsql.policy.model import Catalog
from dpsql.sql.allowed import check_arguments, refuse_aggregates, refuse_array
from dpsql.sql.clock import Clock
from dpsql.sql.from_clause import Common, Context
from dpsql.sql.functions.windows import window_of
from dpsql.sql.grouping import Grouping, aggregates
from dpsql.sql.judge import misreading
from dpsql.sql.parse import Statement
from dpsql.sql.scope import Scope, folded, position
from dpsql.sql.types import unify
from dpsql.types import BIGINT, BOOLEAN, UNKNOWN, Type, Value

_WRITES = (exp.Insert, exp.Update, exp.Delete, exp.Merge, exp.Create, exp.Drop, exp.Copy, exp.Command)


def resolve(
    statement: Statement, catalog: Catalog, parameters: Sequence[Value] = (), clock: Clock | None = None
) -> Plan:
    """The plan of a query. Reads the catalog, and the clock if there is one; never data."""
    # Checked first, since resolving changes the tree; raised last, since other refusals say more.
    misread = misreading(statement)
    try:
        plan = Resolver(statement.text, catalog, parameters, clock=clock).query(statement.tree, Context())
    except Error:
        raise
    except Exception:
        # The tree of invalid SQL may have any shape.
        if misread is None:
            raise
    if misread is not None:
        raise misread
    return plan


class Resolver(Grouping):
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
            # A CTE can use those before it, not itself. An unused one is still resolved, so that it cannot hide errors.
            own = Context(dict(ctes), context.outer, context.empty)
            ctes[name] = Common(cte, own, [self.query(cte.this, own)])
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
        # Where no row can pass, the subqueries of WHERE do not matter, nor those of the select list unless an aggregate
        # returns a row for empty input.
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
        if keys or sets != ((),) or node.args.get("group") or condition is not None or any(map(aggregates, asked)):
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
        """The expressions in a WINDOW clause; a name refers to an earlier window.

        An unused window is resolved as well, as in PostgreSQL, so that its errors are reported.
        """
        named: dict[str, exp.Window] = {}
        values: list[Scalar] = []
        self._expressions.name_windows(named)
        for window in node.args.get("windows") or []:
            name = folded(window.this)
            if name in named:
                raise WindowingError(f'window "{name}" is already defined', position=position(window))
            partition, order, _ = window_of(self._expressions, window, scope)
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
        """DISTINCT ON: the first of the rows with the same values, in the order of the query."""
        if any(key.value not in chosen for key in order[: len(set(chosen))]):
            raise InvalidReference("SELECT DISTINCT ON expressions must match initial ORDER BY expressions")
        number = Field(next(self._ids), "row_number", BIGINT)
        call = Windowed("row_number", (), BIGINT, tuple(chosen), tuple(order))
        first = Call(Op.EQ, (Ref(number), Const(1, BIGINT)), BOOLEAN)
        return Filter(Window(plan, ((number, call),)), first)

    def _is_never(self, node: exp.Expression) -> bool:
        """Whether a condition is never true, whatever the data: one of its conjuncts is a constant other than true."""
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
        """A column's references that hold on both sides; parts of one key stay together if they were on both."""
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
            changed = self._expressions.coerce(value if field.type.kind is not type_.kind else Ref(field), type_)
            items.append((self._output(field.name, changed), changed))
        return Project(plan, tuple(items))


_SELECT_PARTS = {
    "expressions", "from_", "joins", "where", "group", "having", "order", "limit", "offset", "distinct", "with_",
    "windows",
}  # fmt: skip


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
    """Whether a block may return a row for empty input: an aggregate without keys does."""
    group = node.args.get("group")
    if group is not None:
        sets = (exp.Rollup, exp.Cube, exp.GroupingSets)
        return any(isinstance(part, sets) or part == exp.Tuple() for part in group.expressions)
    parts = [*node.expressions, *([node.args["order"]] if node.args.get("order") else [])]
    # Aggregates of a subquery do not count.
    own = (inner for part in parts for inner in part.walk(prune=lambda inner: isinstance(inner, exp.Query)))
    return node.args.get("having") is not None or any(isinstance(inner, exp.AggFunc) for inner in own)


def _no_windows(value: Scalar, clause: str) -> Scalar:
    refuse_aggregates(value, clause)
    return value


# ------------------------------------------------------------
# The name PostgreSQL gives an output column without an alias.

NAMELESS = "?column?"


_OUTPUT = "output"  # the key under which a subquery's node stores the name of its first column


def note_output(subquery: exp.Expression, name: str) -> None:
    """Record the name of a subquery's column, which is known once it is resolved: it may be SELECT *."""
    subquery.meta[_OUTPUT] = name


def column_name(node: exp.Expression, text: str) -> str:
    """The name of a column, a function as it was written, or a type; `text` is what the analyst wrote.

    Needs: subqueries within the expression are resolved.
    """
    return _figured(node, text)[0]


def _figured(node: exp.Expression, text: str) -> tuple[str, bool]:
    """A name, and whether a surrounding cast or CASE takes it over."""
    match node:
        case exp.Paren() | exp.Filter() | exp.Window() | exp.WithinGroup() | exp.Bracket():
            return _figured(node.this, text)
        case exp.Column():
            return folded(node.this), True
        case exp.Interval():
            return "interval", False
        case exp.AtTimeZone():
            return "timezone", True
        case exp.Cast() if (written := _written(node, text)) is not None:
            return written, True  # a function that sqlglot reads as a cast
        case exp.Cast():
            name, good = _figured(node.this, text)
            return (name, True) if good else (_TYPES.get(node.to.this.name, NAMELESS), False)
        case exp.Subquery():
            return str(node.meta.get(_OUTPUT, NAMELESS)), True
        case exp.Case():
            default = node.args.get("default")
            name, good = (NAMELESS, False) if default is None else _figured(default, text)
            return (name, True) if good else ("case", False)
        case exp.Exists() | exp.Coalesce() | exp.Nullif() | exp.Least() | exp.Greatest():
            return type(node).__name__.lower(), True
        case exp.Func() | exp.Binary():
            found = _written(node, text) or _unplaced(node, text)
            return (NAMELESS, False) if found is None else (found, True)
        case _:
            return NAMELESS, False


def _written(node: exp.Expression, text: str) -> str | None:
    """The word a call begins with, where sqlglot records its position."""
    start, end = node.meta.get("start"), node.meta.get("end")
    word = text[start : end + 1].lower() if isinstance(start, int) and isinstance(end, int) else ""
    return word if word.isidentifier() else None


def _unplaced(node: exp.Expression, text: str) -> str | None:
    """The name of a call for which sqlglot has a special form."""
    match node:
        case exp.Trim():
            return {"LEADING": "ltrim", "TRAILING": "rtrim"}.get(str(node.args.get("position")), "btrim")
        case exp.CurrentDate() | exp.CurrentTimestamp() | exp.Localtimestamp():
            return node.sql_name().lower()
        case exp.Extract():
            return "extract"
        case exp.Substring():
            return "substring"
        case exp.StrPosition():
            return "position"
        case exp.Floor():
            return "floor"
        case exp.Ceil():
            before = re.findall(r"\bceil(?:ing)?\b", text[: position(node)].lower())
            return before[-1] if before else "ceil"
        case _:
            return None


_TYPES = {
    "INT": "int4", "BIGINT": "int8", "SMALLINT": "int2", "DECIMAL": "numeric", "DOUBLE": "float8", "FLOAT": "float4",
    "TEXT": "text", "VARCHAR": "varchar", "BOOLEAN": "bool", "DATE": "date", "TIMESTAMP": "timestamp",
    "TIMESTAMPTZ": "timestamptz",
    "INTERVAL": "interval",
}  # fmt: skip
