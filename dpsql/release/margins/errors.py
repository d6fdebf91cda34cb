"""How far off an expression of noisy numbers is, to first order: what each error of its parts does to it.

Every error is written as a 95 % margin. Margins of independent errors add up as the sides of right angles do, which is
exact for Gaussian noise and a little wide for Laplace noise. What cannot be told is left out: no margin is better
than a wrong one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial, reduce
from itertools import combinations
from typing import Literal

from dpsql.plan.nodes import Aggregate, Join, JoinKind, Plan, Project, Released, nodes
from dpsql.plan.scalars import (
    SUBQUERY,
    Call,
    Case,
    Const,
    Field,
    Op,
    Ref,
    Scalar,
    Subquery,
    children,
    has_subquery,
    is_constant,
    parts_in,
    rebuild,
)
from dpsql.plan.visit import Graph, Items, every_part, free_fields
from dpsql.privacy.bounds import Interval
from dpsql.types import BOOLEAN, DOUBLE, Kind

_SEVERAL = ("several",)


@dataclass(frozen=True, slots=True)
class Atom:
    """An error of one row that is independent of its other errors, so long as they are `compatible`.

    `origin` names the noisy sum (or the operation) it comes from, `relation` the table of cells, and `part` which
    cells: () is the row's own; ("rest", …) all others of a window; ("shift", …) that of another row; ("chain", …) that
    of a cell or of a total of cells whose noises depend on each other; ("several",) many errors taken as one.
    """

    origin: Hashable
    relation: int
    part: tuple[Hashable, ...] = ()

    @property
    def is_several(self) -> bool:
        """Whether it stands for several errors, some of which may be those of other values too."""
        return self.part == _SEVERAL

    @property
    def is_own(self) -> bool:
        """Whether rows that share no cell have it independently of each other."""
        return not self.part or self.part[0] == "sum"


@dataclass(frozen=True, slots=True)
class Totals:
    """How many times as far off as a cell the sums along its chain are: up to the cell, and over the whole chain.

    The chain runs `along` some keys, by their columns in the noisy table, and is there for each value of those `apart`.
    Or how many times as far off sums by some of the keys are, by their columns.
    """

    along: tuple[tuple[int, bool, bool], ...] = ()  # the column, descending, NULLs first
    apart: frozenset[int] = frozenset()
    running: Ref | None = None
    whole: Ref | None = None
    sets: tuple[tuple[frozenset[int], float], ...] = ()

    @property
    def columns(self) -> tuple[Ref, ...]:
        return tuple(ref for ref in (self.running, self.whole) if ref is not None)


@dataclass(frozen=True, slots=True)
class Term:
    """What an error does to a value: the value moves by this much when the error reaches its margin."""

    value: Scalar
    uniform: bool  # the same multiple of the error in all rows, so that sums over the same rows move together
    totals: Totals | None = None  # of a cell in a chain


Errors = Mapping[Atom, Term]  # empty: exact
Known = Mapping[int, Errors | None]  # by field; None: noisy, and nobody knows how much; fields left out are exact

_NEAREST = 2.0  # margins from zero
_COMPARISONS = (Op.LT, Op.LE, Op.GT, Op.GE)


class _Untold(Exception):
    """The error of this expression cannot be told."""


def is_noisy(value: Scalar, known: Known) -> bool:
    """Whether noise has any say in the value."""
    return Row(known).is_noisy(value)


def _is_noisy_query(query: Subquery, known: Known) -> bool:
    return bool(free_fields(query.plan) & known.keys()) or any(isinstance(node, Released) for node in nodes(query.plan))


def errors_of(value: Scalar, known: Known, nearest: float = _NEAREST) -> Errors | None:
    """The errors of an expression over one row, as `Row.errors_of`."""
    return Row(known).errors_of(value, nearest)


def within(size: Scalar, value: Scalar, truth: Interval) -> Scalar:
    """The margin of a value whose truth is known to lie in an interval: no end of it is further away."""
    if truth.low is None or truth.high is None:
        return size
    below = _call(Op.SUB, value, Const(float(truth.low), DOUBLE))
    above = _call(Op.SUB, Const(float(truth.high), DOUBLE), value)
    reach = Case(((Call(Op.GT, (below, above), BOOLEAN), below),), above, DOUBLE)
    return Case(((Call(Op.LT, (size, reach), BOOLEAN), size),), reach, DOUBLE)


def end(size: Scalar, value: Scalar, truth: Interval, *, high: bool) -> Scalar:
    """The end of the interval around a value, none beyond what its truth is known to be."""
    found = _call(Op.ADD if high else Op.SUB, value, size)
    for bound, beyond in ((truth.low, Op.LT), (truth.high, Op.GT)):
        if bound is not None:
            limit = Const(float(bound), DOUBLE)
            found = Case(((Call(beyond, (found, limit), BOOLEAN), limit),), found, DOUBLE)
    return found


MOST_ERRORS = 16  # of a value that becomes a column: each takes a column of its own, in every level of a query


def as_one(errors: Errors, id_: int) -> Errors:
    """One error in the place of many, as large as the margin of all of them.

    What other values have to do with it is forgotten. So it only adds up with their errors (`margin`), and goes into no
    sum over rows.
    """
    return {Atom(("several", id_), 0, _SEVERAL): Term(margin(errors), False)} if errors else {}


def compatible(atoms: Iterable[Atom]) -> bool:
    """Whether errors are independent of each other, or known to depend on each other.

    Those of one noisy sum must be of different cells for certain, or of one chain.
    """
    by_origin: dict[Hashable, list[Atom]] = {}
    for atom in atoms:
        by_origin.setdefault(atom.origin, []).append(atom)
    return all(
        one.relation == other.relation and _apart(one.part, other.part)
        for alike in by_origin.values()
        if len(alike) > 1
        for one, other in combinations(alike, 2)
    )


def _apart(one: tuple[Hashable, ...], other: tuple[Hashable, ...]) -> bool:
    match one, other:
        case ("chain", *_), ("chain", *_):
            return True
        case (("rest", _, own, _), mine) | (mine, ("rest", _, own, _)):
            return mine == own
        case ("shift", window, _, own), ("shift", same, _, mine):
            return window == same and own == mine
        case (("shift", _, _, own), mine) | (mine, ("shift", _, _, own)):
            return mine == own
        case _:
            return False


def margin(errors: Errors) -> Scalar:
    """The 95 % margin of a value with these errors; NULL where one of them cannot be told, 0 where they cancel out."""
    dependent: dict[Hashable, list[Scalar]] = {}
    several = any(atom.is_several for atom in errors)
    for atom, term in errors.items():
        alike: Hashable = None if several else atom.origin if atom.part[:1] == ("chain",) else atom
        dependent.setdefault(alike, []).append(term.value)
    # Whatever they have to do with each other, together they are no further off than their sum.
    sizes = [
        parts[0] if len(parts) == 1 else reduce(partial(_call, Op.ADD), [_call(Op.ABS, part) for part in parts])
        for parts in dependent.values()
    ]
    if len(sizes) == 1:
        return _call(Op.ABS, sizes[0])
    squares = [_call(Op.MUL, size, size) for size in sizes]
    return _call(Op.SQRT, reduce(lambda left, right: _call(Op.ADD, left, right), squares))


# --- what errors do to the parts of an expression ---


class _Missing(Enum):
    """In the place of an error: all that are not named."""

    OTHERS = "others"


_OTHERS = _Missing.OTHERS
_Key = Atom | Literal[_Missing.OTHERS]


@dataclass(frozen=True, slots=True)
class _Moved:
    """An expression, in doubles and unrounded, with one error added to it and taken from it, for each error by itself.

    What comes out at both ends is told by their middle and by half the way between them: of sums, products and
    quotients these are made of those of their parts, in less than the ends themselves would take. Errors that have no
    say in the expression have no half.
    """

    plain: Scalar  # without any error
    halves: Mapping[_Key, Scalar]
    moved_middle: Callable[[_Key], Scalar] | None = None  # None: the errors leave the middle where it is

    def half(self, key: _Key) -> Scalar | None:
        found = self.halves.get(key)
        return self.halves.get(_OTHERS) if found is None else found

    def middle(self, key: _Key) -> Scalar:
        return self.plain if self.moved_middle is None or self.half(key) is None else self.moved_middle(key)


class Row:
    """The expressions of one row: what is found out of a part is found out once."""

    def __init__(self, known: Known) -> None:
        self._known = known
        self._parts: list[Scalar] = []  # so that no other gets the identity of one of them
        self._noisy: dict[int, bool] = {}  # by identity
        self._errors: dict[int, Errors | None] = {}
        self._margins: dict[int, Scalar] = {}
        self._moves: dict[int, _Moved] = {}

    def is_noisy(self, value: Scalar) -> bool:
        """Whether noise has any say in the value."""
        found = self._noisy.get(id(value))
        if found is None:
            match value:
                case Const():
                    return False
                case Ref(field=field):
                    return field.id in self._known
                case Subquery():
                    found = _is_noisy_query(value, self._known) or any(map(self.is_noisy, children(value)))
                case _:
                    found = any(map(self.is_noisy, children(value)))
            self._parts.append(value)
            self._noisy[id(value)] = found
        return found

    def errors_of(self, value: Scalar, nearest: float = _NEAREST) -> Errors | None:
        """The errors of an expression; not told where a divisor is nearer to zero than so many margins."""
        if not self.is_noisy(value):
            return {}
        if isinstance(value, Ref):
            return self._known[value.field.id]
        if not value.type.is_numeric:
            return None
        parts = every_part([value])
        shown = {part.field.id: None for part in parts if isinstance(part, Ref)}
        atoms = {atom: None for field in shown for atom in self._known.get(field) or {}}
        if not atoms or not compatible(atoms):
            return None
        uniform = self._is_linear(value)
        own = [node for node in parts if self._has_own(node)]
        if any(has_subquery(node) for node in own):
            return None  # subqueries are compared nowhere
        atoms |= dict.fromkeys(map(_own_atom, own))
        totals = {atom: term.totals for field in shown for atom, term in (self._known.get(field) or {}).items()}
        try:
            moved = self._moved(value)
            wider = self._wider(parts, atoms, nearest)
            return {
                atom: Term(wider(atom, _or_nothing(moved.half(atom))), uniform, totals.get(atom) if uniform else None)
                for atom in atoms
            }
        except _Untold:
            return None

    def _inner_errors(self, value: Scalar) -> Errors:
        """Of a part that is noisy; raises where they cannot be told."""
        if id(value) not in self._errors:
            self._errors[id(value)] = self.errors_of(value, _NEAREST)
        found = self._errors[id(value)]
        if not found:
            raise _Untold
        return found

    def _margin(self, value: Scalar) -> Scalar:
        if id(value) not in self._margins:
            self._margins[id(value)] = margin(self._inner_errors(value))
        return self._margins[id(value)]

    def _wider(
        self, parts: Iterable[Scalar], atoms: Iterable[Atom], nearest: float
    ) -> Callable[[Atom, Scalar], Scalar]:
        """How much further an error moves a value whose divisors are noisy than it does to first order (Fieller 1954).

        Claim: x / y of independent Gaussian numbers is within the margin with the confidence of the margins of x and y,
        also given that it is only shown where y is at least twice its own margin.
        Because: with margins a and b, all m with (x - m y)² <= a² + m² b² make an interval that holds the true quotient
        with that confidence. Seen from x / y its further end is x b² / (y² - b²) / y beyond the half width, which is
        made of a / sqrt(y² - b²) and x b / (y² - b²); to the latter it is added. Where y is at least 1.5 b, the root is
        more than y / (1 + b² / y²). Near 2 b all of it is so much wider than to first order that most divisors which
        noise has made large are covered as well: tests/statistical counts it by the size of groups.
        Needs: a divisor whose errors are known. Nothing is told of one below `nearest` of its margins, which may only
        be less than two where a margin is shown whatever the divisor is, for then noise does not choose what is shown.
        """
        divisors: dict[Scalar, Errors] = {}
        for node in parts:
            if isinstance(node, Call) and node.op is Op.DIV and self.is_noisy(node.args[1]):
                divisors[node.args[1]] = self._inner_errors(node.args[1])

        several = any(atom.is_several for errors in (*divisors.values(), atoms) for atom in errors)

        def wider(atom: Atom, half: Scalar) -> Scalar:
            for divisor, errors in divisors.items():
                size, own = _call(Op.ABS, divisor), self._margin(divisor)
                share = _call(Op.DIV, own, size)
                if atom not in errors and not several:
                    times = _call(Op.ADD, Const(1.0, DOUBLE), _call(Op.MUL, share, share))
                elif len(errors) == 1 and not atom.is_several:
                    times = _call(Op.ADD, Const(1.0, DOUBLE), share)
                else:
                    times = _call(Op.DIV, size, _call(Op.SUB, size, own))
                is_far = Call(Op.GE, (size, _call(Op.MUL, Const(nearest, DOUBLE), own)), BOOLEAN)
                half = Case(((is_far, _call(Op.MUL, half, times)),), Const(None, DOUBLE), DOUBLE)
            return half

        return wider

    def _is_linear(self, node: Scalar) -> bool:
        """Whether every error moves the value by a multiple of itself that is the same in all rows."""
        match node:
            case Ref(field=field):
                return all(term.uniform for term in (self._known.get(field.id) or {}).values())
            case Call(op=Op.ADD | Op.SUB | Op.NEG | Op.CAST | Op.ROUND, args=args):
                return all(map(self._is_linear, args))
            case Call(op=Op.MUL, args=args):
                varying = [arg for arg in args if not is_constant(arg)]
                return len(varying) <= 1 and all(map(self._is_linear, varying))
            case Call(op=Op.DIV, args=(left, right)):
                return is_constant(right) and self._is_linear(left)
            case _:
                return isinstance(node, Const)

    # --- one part ---

    def _moved(self, node: Scalar) -> _Moved:
        """What errors do to a part. Which branch of a CASE and which argument of LEAST or COALESCE is taken, is decided
        by the values as they are."""
        found = self._moves.get(id(node))
        if found is None:
            self._parts.append(node)
            found = self._moves[id(node)] = self._found(node) if self.is_noisy(node) else _Moved(double(node), {})
        return found

    def _found(self, node: Scalar) -> _Moved:
        moved = self._moved
        match node:
            case Ref(field=field):
                errors = self._known[field.id]
                if errors is None:
                    raise _Untold
                return _Moved(double(node), {atom: double(term.value) for atom, term in errors.items()})
            case Call(op=Op.ADD | Op.SUB as op, args=(left, right)):
                return self._with_own(node, _sum(op, moved(left), moved(right)))
            case Call(op=Op.MUL, args=(left, right)):
                return self._with_own(node, _each(_product, moved(left), moved(right)))
            case Call(op=Op.DIV, args=(left, right)):
                return self._with_own(node, _each(_quotient, moved(left), moved(right)))
            case Call(op=Op.NEG, args=(arg,)):
                return _negated(moved(arg))
            case Call(op=Op.SQRT | Op.LN | Op.LOG10 as op, args=(arg,)):
                return _each(partial(_curved, op), moved(arg))
            case Call(op=Op.ABS, args=(arg,)):
                positive = Call(Op.GE, (double(arg), Const(0.0, DOUBLE)), BOOLEAN)
                return _chosen([(positive, moved(arg))], _negated(moved(arg)))
            case Call(op=Op.ROUND | Op.TRUNC | Op.FLOOR | Op.CEIL | Op.CAST, args=(arg, *_)) if arg.type.is_numeric:
                return self._with_own(node, moved(arg))
            case Call(op=Op.LEAST | Op.GREATEST, args=args):
                # An exact bound is left out: what it cuts off may be where the truth is.
                *others, last = [arg for arg in args if self.is_noisy(arg)]
                return _chosen([(Call(Op.EQ, (arg, node), BOOLEAN), moved(arg)) for arg in others], moved(last))
            case Call(op=Op.COALESCE, args=args):
                *others, last = args
                return _chosen([(_not(_is_null(arg)), moved(arg)) for arg in others], moved(last))
            case Call(op=Op.NULLIF, args=(arg, _)):
                return _chosen([(_is_null(node), _UNKNOWN)], moved(arg))
            case Case(branches=branches, default=default):
                if self._is_clamp(node):
                    return moved(default)
                chosen_by_noise = any(self.is_noisy(when) for when, _ in branches)

                def branch(value: Scalar) -> _Moved:
                    # A constant that noise has chosen may be the wrong one, by how much nobody knows.
                    return _UNKNOWN if chosen_by_noise and not self.is_noisy(value) else moved(value)

                return _chosen([(when, branch(then)) for when, then in branches], branch(default))
            case _:
                raise _Untold

    def _is_clamp(self, node: Case) -> bool:
        """A noisy value cut at exact bounds: CASE WHEN x < bound THEN bound ELSE x END."""
        return all(
            isinstance(when, Call)
            and when.op in _COMPARISONS
            and when.args == (node.default, then)
            and not self.is_noisy(then)
            for when, then in node.branches
        )

    # --- operations with errors of their own ---

    def _with_own(self, node: Call, moved: _Moved) -> _Moved:
        if not self._has_own(node):
            return moved
        # What is new here is in none of its arguments; but there may be no telling how far one of these is off.
        own, atom = self._own_error(node), _own_atom(node)
        half = moved.half(atom)
        halves = {**moved.halves, atom: own if half is None else _call(Op.ADD, own, half)}
        return replace(moved, halves=halves)

    def _has_own(self, node: Scalar) -> bool:
        """Whether an operation adds an error to those of its arguments: it rounds, or multiplies them."""
        return isinstance(node, Call) and self.is_noisy(node) and (self._is_product(node) or _grain(node) is not None)

    def _is_product(self, node: Call) -> bool:
        return node.op is Op.MUL and all(map(self.is_noisy, node.args))

    def _own_error(self, node: Call) -> Scalar:
        if not self._is_product(node):
            return Const(_grain(node), DOUBLE)
        # What each error alone does to a product says nothing where both factors are near zero.
        return _call(Op.MUL, *map(self._margin, node.args))


_One = tuple[Scalar, Scalar | None]  # a middle, and half the way to the ends; None: the error has no say in it


def _each(apply: Callable[..., _One], *parts: _Moved) -> _Moved:
    """An operation, with each of the errors of its arguments."""
    plain, _ = apply(*((part.plain, None) for part in parts))
    keys: dict[_Key, None] = {key: None for part in parts for key in part.halves}
    middles: dict[_Key, Scalar] = {}
    halves: dict[_Key, Scalar] = {}
    for key in keys:
        middles[key], half = apply(*((part.middle(key), part.half(key)) for part in parts))
        assert half is not None
        halves[key] = half
    return _Moved(plain, halves, lambda key: middles.get(key, middles.get(_OTHERS, plain)))


def _sum(op: Op, left: _Moved, right: _Moved) -> _Moved:
    """What only one side has is taken as it is: sums may be long."""
    subtracted = right if op is Op.ADD else _negated(right)
    halves: dict[_Key, Scalar] = {**left.halves, **subtracted.halves}
    has_others = _OTHERS in halves
    for key in list(halves) if has_others else left.halves.keys() & right.halves.keys():
        mine, its = left.half(key), right.half(key)
        if mine is not None and its is not None:
            halves[key] = _call(op, mine, its)

    def middle(key: _Key) -> Scalar:
        return _call(op, left.middle(key), right.middle(key))

    stays = left.moved_middle is None and right.moved_middle is None
    return _Moved(_call(op, left.plain, right.plain), halves, None if stays else middle)


def _negated(arg: _Moved) -> _Moved:
    halves = {key: _call(Op.NEG, half) for key, half in arg.halves.items()}
    stays = arg.moved_middle is None
    return _Moved(_call(Op.NEG, arg.plain), halves, None if stays else lambda key: _call(Op.NEG, arg.middle(key)))


def _product(left: _One, right: _One) -> _One:
    """(x ± a)(y ± b) is (xy + ab) ± (xb + ya)."""
    (x, a), (y, b) = left, right
    middle = _call(Op.MUL, x, y)
    if a is None or b is None:
        return middle, _call(Op.MUL, x, b) if b is not None else a and _call(Op.MUL, y, a)
    crossed = _call(Op.MUL, x, b), _call(Op.MUL, y, a)
    return _call(Op.ADD, middle, _call(Op.MUL, a, b)), _call(Op.ADD, *crossed)


def _quotient(left: _One, right: _One) -> _One:
    """(x ± a) / (y ± b) is ((xy - ab) ± (ya - xb)) / (y² - b²); NULL where the error carries y across zero."""
    (x, a), (y, b) = left, right
    if b is None:
        return _call(Op.DIV, x, y), a and _call(Op.DIV, a, y)
    difference = _call(Op.SUB, *(_call(Op.MUL, part, part) for part in (y, b)))
    same_side = Call(Op.GT, (difference, Const(0.0, DOUBLE)), BOOLEAN)
    divisor = Case(((same_side, difference),), Const(None, DOUBLE), DOUBLE)
    middle, half = _call(Op.MUL, x, y), _call(Op.MUL, x, b)
    if a is None:
        return _call(Op.DIV, middle, divisor), _call(Op.DIV, _call(Op.NEG, half), divisor)
    middle = _call(Op.SUB, middle, _call(Op.MUL, a, b))
    half = _call(Op.SUB, _call(Op.MUL, y, a), half)
    return _call(Op.DIV, middle, divisor), _call(Op.DIV, half, divisor)


def _curved(op: Op, arg: _One) -> _One:
    """A function that grows with its argument: what it gives at both ends."""
    middle, half = arg
    if half is None:
        return _call(op, middle), None
    up, down = _call(op, _call(Op.ADD, middle, half)), _call(op, _call(Op.SUB, middle, half))
    return _call(Op.MUL, _call(Op.ADD, up, down), _HALF), _call(Op.MUL, _call(Op.SUB, up, down), _HALF)


def _chosen(branches: list[tuple[Scalar, _Moved]], default: _Moved) -> _Moved:
    """The first whose condition holds."""
    if not branches:
        return default

    def chosen(part: Callable[[_Moved], Scalar]) -> Scalar:
        return Case(tuple((when, part(moved)) for when, moved in branches), part(default), DOUBLE)

    keys: dict[_Key, None] = {key: None for _, moved in (*branches, (None, default)) for key in moved.halves}
    halves = {key: chosen(lambda moved, key=key: _or_nothing(moved.half(key))) for key in keys}  # type: ignore[misc]
    return _Moved(chosen(lambda moved: moved.plain), halves, lambda key: chosen(lambda moved: moved.middle(key)))


def _or_nothing(half: Scalar | None) -> Scalar:
    return Const(0.0, DOUBLE) if half is None else half


_HALF = Const(0.5, DOUBLE)
_UNKNOWN = _Moved(Const(None, DOUBLE), {_OTHERS: Const(None, DOUBLE)})


def _own_atom(node: Scalar) -> Atom:
    """The same for the same operation on the same columns, wherever it stands."""
    return Atom(("operation", node), 0)


def _grain(node: Scalar) -> float | None:
    """How far an operation that rounds may move its argument."""
    match node:
        case Call(op=Op.ROUND | Op.TRUNC, args=args):
            digits = args[1].value if len(args) > 1 and isinstance(args[1], Const) else 0
            assert isinstance(digits, int)
            places, share = digits, 0.5 if node.op is Op.ROUND else 1.0
        case Call(op=Op.FLOOR | Op.CEIL, args=args):
            places, share = 0, 1.0
        case Call(op=Op.CAST, args=args, type=type_) if type_.kind in (Kind.INTEGER, Kind.DECIMAL):
            places, share = type_.scale, 0.5
        case Call(op=Op.DIV, type=type_) if type_.kind is Kind.INTEGER:
            return 1.0
        case _:
            return None
    is_on_grid = args[0].type.kind in (Kind.INTEGER, Kind.DECIMAL) and args[0].type.scale <= places
    return None if is_on_grid else share * 10.0**-places


# --- pieces ---


def double(value: Scalar) -> Scalar:
    return value if value.type == DOUBLE else Call(Op.CAST, (value,), DOUBLE)


def _call(op: Op, *args: Scalar) -> Scalar:
    return Call(op, tuple(map(double, args)), DOUBLE)


def _is_null(value: Scalar) -> Scalar:
    return Call(Op.IS_NULL, (value,), BOOLEAN)


def _not(value: Scalar) -> Scalar:
    return Call(Op.NOT, (value,), BOOLEAN)


# ------------------------------------------------------------
# Plans whose expressions do not say the same twice.
#
# The text of an error repeats the expression it belongs to, so parts that stand in it several times would multiply.
# Here they become columns below; and single values from subqueries become columns too, beside the rows.


def without_repetition(plan: Project, ids: itertools.count[int]) -> list[Items]:
    """The same columns, made by projections one above the other: what stands in several places is made further down."""
    graph = Graph(plan.items)
    several = [n for n, often in enumerate(graph.occurrences()) if often > 1 and graph.is_operation(n)]
    return graph.layers([field for field, _ in plan.items], several, ids)


def with_subqueries_beside(plan: Project, keys: Mapping[int, int]) -> Project:
    """The same columns, with released values from subqueries of one row joined to every row."""
    child = plan.child
    beside: list[tuple[Subquery, Field]] = []

    def replaced(value: Scalar) -> Scalar:
        nonlocal child
        if not parts_in(value) & SUBQUERY:
            return value
        if not isinstance(value, Subquery) or value.kind != "scalar":
            return rebuild(value, replaced)
        if free_fields(value.plan) or not _has_one_row(value.plan, keys):
            return value
        for known, field in beside:
            if known == value:
                return Ref(field)
        if not any(isinstance(node, Released) for node in nodes(value.plan)):
            return value
        child = Join(JoinKind.CROSS, child, value.plan, None)
        beside.append((value, value.plan.fields[0]))
        return Ref(value.plan.fields[0])

    items = tuple((field, replaced(value)) for field, value in plan.items)
    return Project(child, items)


def _has_one_row(plan: Plan, keys: Mapping[int, int]) -> bool:
    match plan:
        case Project(child=child):
            return _has_one_row(child, keys)
        case Released(measurement=measurement):
            return keys[measurement] == 0
        case Aggregate(keys=grouped, sets=sets):
            return not grouped and len(sets) <= 1
        case _:
            return False
