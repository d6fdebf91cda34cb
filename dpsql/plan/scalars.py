"""Scalar expressions: closed, typed, with PostgreSQL's meaning.

Everything an analyst writes inside a query becomes one of these nodes or is refused. They hold no text of the analyst
except constants, and compare by structure.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from typing import TYPE_CHECKING

from dpsql.effort import spend
from dpsql.plan.hashing import CachedHash
from dpsql.types import BOOLEAN, Type, Value

if TYPE_CHECKING:
    from dpsql.plan.nodes import Plan


class Op(Enum):
    """Every operation; each has a typing rule, an interval rule and a total SQL form."""

    # logic and comparison
    AND = "and"
    OR = "or"
    NOT = "not"
    EQ = "="
    NE = "<>"
    LT = "<"
    LE = "<="
    GT = ">"
    GE = ">="
    IS_NULL = "is null"
    IS_TRUE = "is true"
    IS_FALSE = "is false"
    DISTINCT_FROM = "is distinct from"
    LIKE = "like"
    ILIKE = "ilike"
    IN = "in"
    # arithmetic
    ADD = "+"
    SUB = "-"
    MUL = "*"
    DIV = "/"
    MOD = "%"
    NEG = "negate"
    ABS = "abs"
    SIGN = "sign"
    ROUND = "round"
    FLOOR = "floor"
    CEIL = "ceil"
    TRUNC = "trunc"
    SQRT = "sqrt"
    LN = "ln"
    LOG10 = "log10"
    EXP = "exp"
    POWER = "power"
    CBRT = "cbrt"
    SIN = "sin"
    COS = "cos"
    TAN = "tan"
    ASIN = "asin"
    ACOS = "acos"
    ATAN = "atan"
    ATAN2 = "atan2"
    LEAST = "least"
    GREATEST = "greatest"
    COALESCE = "coalesce"
    NULLIF = "nullif"
    WIDTH_BUCKET = "width_bucket"
    CAST = "cast"
    # text
    LENGTH = "length"
    LOWER = "lower"
    UPPER = "upper"
    TRIM = "trim"
    LTRIM = "ltrim"
    RTRIM = "rtrim"
    CONCAT = "||"
    LEFT = "left"
    RIGHT = "right"
    SUBSTRING = "substring"
    POSITION = "position"
    STARTS_WITH = "starts_with"
    REPLACE = "replace"
    SPLIT_PART = "split_part"
    # time
    EXTRACT = "extract"
    DATE_TRUNC = "date_trunc"
    DATE_BIN = "date_bin"
    TO_ZONE = "at time zone"  # the local time of an instant in a zone
    FROM_ZONE = "from time zone"  # the instant of a local time in a zone
    ZONED_TRUNC = "date_trunc in a zone"  # of an instant, to an hour or less: the offset is kept
    MAKE_DATE = "make_date"
    TO_CHAR = "to_char"
    ADD_DAYS = "date + days"
    ADD_MONTHS = "timestamp + months"
    ADD_SECONDS = "timestamp + seconds"
    DAYS_BETWEEN = "date - date"
    MONTHS_BETWEEN = "months between"
    SECONDS_BETWEEN = "timestamp - timestamp"

    __hash__ = object.__hash__  # members are compared by identity; Enum would hash their names


@dataclass(frozen=True, slots=True)
class Link:
    """A reference: the column, with the other parts of the key, identifies a row of `table` of the same unit."""

    table: str
    key: tuple[str, ...]
    part: int  # which column of the key
    row: int  # the scan that the row comes from: parts belong to one key only if they come from one row
    exact: bool = True  # False where the column is clamped, so that equal values may stand for different keys


@dataclass(frozen=True, slots=True)
class Field:
    """A column of a relation inside a plan. The id is unique within a query, so names never collide."""

    id: int
    name: str
    type: Type
    unit: bool = False  # identifies the privacy unit
    readable: bool = True  # False for a unit or a reference that is not declared as a column
    optional: bool = False  # may be NULL by an outer join: there even a unit column is no owner
    links: tuple[Link, ...] = ()

    def __hash__(self) -> int:
        return self.id


@dataclass(frozen=True, slots=True)
class Ref:
    field: Field
    position: int | None = dataclasses.field(default=None, compare=False, repr=False)

    @property
    def type(self) -> Type:
        return self.field.type


@dataclass(frozen=True, slots=True)
class Const:
    value: Value
    type: Type


@dataclass(frozen=True, slots=True)
class Call(CachedHash):
    op: Op
    args: tuple[Scalar, ...]
    type: Type
    option: str = ""  # the field of EXTRACT, the unit of DATE_TRUNC, the format of TO_CHAR, the escape of LIKE, a zone

    __hash__ = CachedHash.__hash__


@dataclass(frozen=True, slots=True)
class Case(CachedHash):
    branches: tuple[tuple[Scalar, Scalar], ...]
    default: Scalar
    type: Type

    __hash__ = CachedHash.__hash__


@dataclass(frozen=True, slots=True)
class Array:
    """An array of released values; over private rows, only in COUNT(DISTINCT) of combinations."""

    items: tuple[Scalar, ...]
    type: Type


@dataclass(frozen=True, slots=True)
class Subscript:
    """One value of an array, counted from one; NULL beyond its ends."""

    array: Scalar
    index: int
    type: Type


@dataclass(frozen=True, slots=True)
class Subquery:
    """A scalar subquery, EXISTS or IN (subquery), before it is classified as public, released or private."""

    kind: str  # "scalar", "exists", "in", or a comparison with any or all: "> any", "<> all"
    plan: Plan
    type: Type
    arg: Scalar | None = None  # the left side of IN
    position: int | None = dataclasses.field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class StageValue:
    """The noisy or public value of an earlier stage: a constant by the time the engine sees it."""

    stage: int
    type: Type


@dataclass(frozen=True, slots=True)
class InStage:
    """Membership in the noisy or public list of an earlier stage."""

    arg: Scalar
    stage: int
    item: Type
    type: Type = BOOLEAN


@dataclass(frozen=True, slots=True)
class Correlated:
    """A subquery that is computed for each private row from the rows of its own unit and from public tables."""

    kind: str  # as that of a Subquery
    plan: Plan
    type: Type
    arg: Scalar | None
    outer: tuple[Ref, ...]  # what it reads from the outer row
    owner: Field | None  # the owner of the outer row, inside the subquery; None if it reads only public tables
    low: Fraction | None = None  # bounds of a scalar one
    high: Fraction | None = None


class Agg(Enum):
    COUNT = "count"
    SUM = "sum"
    AVG = "avg"
    MIN = "min"
    MAX = "max"
    VAR_POP = "var_pop"
    VAR_SAMP = "var_samp"
    STDDEV_POP = "stddev_pop"
    STDDEV_SAMP = "stddev_samp"
    COVAR_POP = "covar_pop"
    COVAR_SAMP = "covar_samp"
    CORR = "corr"
    REGR_SLOPE = "regr_slope"
    REGR_INTERCEPT = "regr_intercept"
    PERCENTILE_CONT = "percentile_cont"  # of a value and a constant fraction between 0 and 1
    PERCENTILE_DISC = "percentile_disc"
    MODE = "mode"
    BOOL_AND = "bool_and"
    BOOL_OR = "bool_or"
    GROUPING = "grouping"


@dataclass(frozen=True, slots=True)
class Aggregated(CachedHash):
    """An aggregate call. COUNT(*) has no argument."""

    function: Agg
    args: tuple[Scalar, ...]
    type: Type
    distinct: bool = False
    where: Scalar | None = None
    position: int | None = dataclasses.field(default=None, compare=False, repr=False)

    __hash__ = CachedHash.__hash__


@dataclass(frozen=True, slots=True)
class SortKey:
    value: Scalar
    descending: bool = False
    nulls_first: bool = False


@dataclass(frozen=True, slots=True)
class Windowed:
    """A window function; its name is one of a closed list, checked when it is resolved."""

    function: str
    args: tuple[Scalar, ...]
    type: Type
    partition: tuple[Scalar, ...] = ()
    order: tuple[SortKey, ...] = ()
    frame: str = ""  # generated from a closed grammar, never the analyst's text
    where: Scalar | None = None


@dataclass(frozen=True, slots=True)
class IntervalEnd:
    """dp_low and dp_high: an end of the 95 % interval around a noisy number, an expression once margins are known."""

    arg: Scalar
    high: bool
    type: Type
    position: int | None = dataclasses.field(default=None, compare=False, repr=False)

    @property
    def name(self) -> str:
        return "dp_high" if self.high else "dp_low"


Scalar = (
    Ref | Const | Call | Case | Array | Subscript | Subquery | StageValue | InStage | Correlated
    | Aggregated | Windowed | IntervalEnd
)  # fmt: skip


def children(node: Scalar) -> tuple[Scalar, ...]:
    """The direct sub-expressions; a subquery's own plan is not one of them."""
    if type(node) is Call:  # most are one of these three, and this is asked of each part of each expression
        return node.args
    if type(node) is Ref or type(node) is Const:
        return ()
    match node:
        case Ref() | Const() | StageValue():
            return ()
        case Call(args=args):
            return args
        case Case(branches=branches, default=default):
            return (*(part for branch in branches for part in branch), default)
        case Array(items=items):
            return items
        case Subscript(array=array):
            return (array,)
        case Subquery(arg=arg):
            return () if arg is None else (arg,)
        case Correlated(arg=arg, outer=outer):
            return outer if arg is None else (arg, *outer)
        case InStage(arg=arg) | IntervalEnd(arg=arg):
            return (arg,)
        case Aggregated(args=args, where=where):
            return args if where is None else (*args, where)
        case Windowed(args=args, partition=partition, order=order, where=where):
            return (*args, *partition, *(key.value for key in order), *(() if where is None else (where,)))


def walk(node: Scalar) -> Iterator[Scalar]:
    """The expression and all its parts, in pre-order."""
    waiting = [node]
    while waiting:
        spend()
        part = waiting.pop()
        yield part
        waiting += children(part)[::-1]


def as_moment(node: Scalar) -> Scalar:
    """A moment without surrounding casts between kinds of moments, which change its type, never its value."""
    while isinstance(node, Call) and node.op is Op.CAST and node.type.is_moment and node.args[0].type.is_moment:
        (node,) = node.args
    return node


# Kinds of parts that are often tested for, as bits: most expressions have none of them.
COLUMN, CHOICE, QUOTIENT, SUBQUERY, CORRELATED, STAGE, INTERVAL_END, OTHER = (1 << place for place in range(8))
_BITS: dict[type, int] = {
    Case: CHOICE,
    Subquery: SUBQUERY | OTHER,
    Correlated: CORRELATED | OTHER,
    StageValue: STAGE | OTHER,
    InStage: STAGE | OTHER,
    IntervalEnd: INTERVAL_END | OTHER,
    Array: OTHER,
    Subscript: OTHER,
    Aggregated: OTHER,
    Windowed: OTHER,
}


def parts_in(node: Scalar) -> int:
    """The kinds of parts that an expression has, itself included, as bits; cached where there may be many parts.

    OTHER is any part that is not a column, constant, operation or CASE.
    """
    kind = type(node)
    if kind is Ref or kind is Const:
        return COLUMN if kind is Ref else 0
    if isinstance(node, CachedHash):
        try:
            return node._parts
        except AttributeError:
            pass
    found = QUOTIENT if isinstance(node, Call) and node.op is Op.DIV else _BITS.get(kind, 0)
    for part in children(node):
        found |= parts_in(part)
    if isinstance(node, CachedHash):
        object.__setattr__(node, "_parts", found)
    return found


def is_constant(node: Scalar) -> bool:
    """Whether a value is computed from constants by operations alone."""
    return not parts_in(node) & ~QUOTIENT


def has_subquery(node: Scalar) -> bool:
    return bool(parts_in(node) & (CORRELATED | SUBQUERY))


def rebuild(node: Scalar, change: Callable[[Scalar], Scalar]) -> Scalar:
    """The same node with each direct sub-expression replaced by `change` of it."""
    spend()
    if type(node) is Call:
        return Call(node.op, tuple(map(change, node.args)), node.type, node.option)
    if type(node) is Ref or type(node) is Const:
        return node
    match node:
        case Ref() | Const() | StageValue():
            return node
        case Call():
            return Call(node.op, tuple(map(change, node.args)), node.type, node.option)
        case Case(branches, default, type_):
            return Case(tuple([(change(when), change(then)) for when, then in branches]), change(default), type_)
        case Array(items, type_):
            return Array(tuple(map(change, items)), type_)
        case Subscript(array, index, type_):
            return Subscript(change(array), index, type_)
        case Subquery(kind, plan, type_, arg, position):
            return Subquery(kind, plan, type_, None if arg is None else change(arg), position)
        case Correlated(arg=arg):
            return dataclasses.replace(node, arg=None if arg is None else change(arg))
        case InStage(arg, stage, item, type_):
            return InStage(change(arg), stage, item, type_)
        case IntervalEnd(arg, high, type_, position):
            return IntervalEnd(change(arg), high, type_, position)
        case Aggregated(function, args, type_, distinct, where, position):
            return Aggregated(
                function,
                tuple(map(change, args)),
                type_,
                distinct,
                None if where is None else change(where),
                position,
            )
        case Windowed(function, args, type_, partition, order, frame, where):
            return Windowed(
                function,
                tuple(map(change, args)),
                type_,
                tuple(map(change, partition)),
                tuple(SortKey(change(key.value), key.descending, key.nulls_first) for key in order),
                frame,
                None if where is None else change(where),
            )


def refs(node: Scalar) -> Iterator[Ref]:
    return (part for part in walk(node) if isinstance(part, Ref))


FALSE = Const(False, BOOLEAN)


def both(left: Scalar | None, right: Scalar | None) -> Scalar | None:
    """The conjunction of two optional predicates, without duplicates."""
    if left is None or right is None:
        return right if left is None else left
    return left if right in _conjuncts(left) else Call(Op.AND, (left, right), BOOLEAN)


def _conjuncts(node: Scalar) -> Iterator[Scalar]:
    yield node
    if isinstance(node, Call) and node.op is Op.AND:
        for part in node.args:
            yield from _conjuncts(part)
