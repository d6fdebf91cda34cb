"""How far off an expression of noisy numbers is, to first order: what each error of its parts does to it.

Every error is written as a 95 % margin. Margins of independent errors add up as the sides of right angles do, which is
exact for Gaussian noise and a little wide for Laplace noise. What cannot be told is left out: no margin is better
than a wrong one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial, reduce
from itertools import combinations

from dpsql.plan.nodes import Aggregate, Join, JoinKind, Plan, Project, Released, nodes
from dpsql.plan.scalars import Call, Case, Const, Field, Op, Ref, Scalar, Subquery, children, rebuild, refs, walk
from dpsql.plan.visit import Graph, Items, free_fields
from dpsql.privacy.bounds import Interval
from dpsql.types import BOOLEAN, DOUBLE, Kind


@dataclass(frozen=True, slots=True)
class Atom:
    """An error of one row that is independent of its other errors, so long as they are `compatible`.

    `origin` names the noisy sum (or the operation) it comes from, `relation` the table of cells, and `part` which
    cells: () is the row's own; ("rest", …) all others of a window; ("shift", …) that of another row; ("chain", …) that
    of a cell or of a total of cells whose noises depend on each other.
    """

    origin: Hashable
    relation: int
    part: tuple[Hashable, ...] = ()

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

_COMPARISONS = (Op.LT, Op.LE, Op.GT, Op.GE)


class _Untold(Exception):
    """The error of this expression cannot be told."""


def is_noisy(value: Scalar, known: Known) -> bool:
    """Whether noise has any say in the value."""
    return any(
        part.field.id in known if isinstance(part, Ref) else isinstance(part, Subquery) and _is_noisy_query(part, known)
        for part in walk(value)
    )


def _is_noisy_query(query: Subquery, known: Known) -> bool:
    return bool(free_fields(query.plan) & known.keys()) or any(isinstance(node, Released) for node in nodes(query.plan))


def errors_of(value: Scalar, known: Known, nearest: float = 2.0) -> Errors | None:
    """The errors of an expression over one row; not told where a divisor is nearer to zero than so many margins."""
    if not is_noisy(value, known):
        return {}
    if isinstance(value, Ref):
        return known[value.field.id]
    if not value.type.is_numeric:
        return None
    atoms = {atom: None for ref in refs(value) for atom in known.get(ref.field.id) or {}}
    if not atoms or not compatible(atoms):
        return None
    uniform = _is_linear(value, known)
    own = [node for node in walk(value) if _has_own(node, known)]
    if any(isinstance(part, Subquery) for node in own for part in walk(node)):
        return None  # subqueries are compared nowhere
    atoms |= dict.fromkeys(map(_own_atom, own))
    try:
        wider = _wider(value, known, nearest)
        return {
            atom: Term(
                wider(atom, _half_way(value, atom, known)), uniform, _totals(value, atom, known) if uniform else None
            )
            for atom in atoms
        }
    except _Untold:
        return None


def _wider(value: Scalar, known: Known, nearest: float) -> Callable[[Atom, Scalar], Scalar]:
    """How much further an error moves a value whose divisors are noisy than it does to first order (Fieller 1954).

    Claim: x / y of independent Gaussian numbers is within the margin with the confidence of the margins of x and y,
    also given that it is only shown where y is at least twice its own margin.
    Because: with margins a and b, all m with (x - m y)² <= a² + m² b² make an interval that holds the true quotient
    with that confidence. Seen from x / y its further end is x b² / (y² - b²) / y beyond the half width, which is made
    of a / sqrt(y² - b²) and x b / (y² - b²); to the latter it is added. Where y is at least 1.5 b, the root is more
    than y / (1 + b² / y²). Near 2 b all of it is so much wider than to first order that most divisors which noise
    has made large are covered as well: tests/statistical counts it by the size of groups.
    Needs: a divisor whose errors are known. Nothing is told of one below `nearest` of its margins, which may only be
    less than two where a margin is shown whatever the divisor is, for then noise does not choose what is shown.
    """
    divisors: dict[Scalar, Errors] = {}
    for node in walk(value):
        if isinstance(node, Call) and node.op is Op.DIV and is_noisy(node.args[1], known):
            errors = errors_of(node.args[1], known)
            if not errors:
                raise _Untold
            divisors[node.args[1]] = errors

    def wider(atom: Atom, half: Scalar) -> Scalar:
        for divisor, errors in divisors.items():
            size, own = _call(Op.ABS, divisor), margin(errors)
            share = _call(Op.DIV, own, size)
            if atom not in errors:
                times = _call(Op.ADD, Const(1.0, DOUBLE), _call(Op.MUL, share, share))
            elif len(errors) == 1:
                times = _call(Op.ADD, Const(1.0, DOUBLE), share)
            else:
                times = _call(Op.DIV, size, _call(Op.SUB, size, own))
            is_far = Call(Op.GE, (size, _call(Op.MUL, Const(nearest, DOUBLE), own)), BOOLEAN)
            half = Case(((is_far, _call(Op.MUL, half, times)),), Const(None, DOUBLE), DOUBLE)
        return half

    return wider


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


def _totals(value: Scalar, atom: Atom, known: Known) -> Totals | None:
    """Multiples of an error have the same multiples along the chain."""
    terms = [known.get(ref.field.id) or {} for ref in refs(value)]
    return next((each[atom].totals for each in terms if atom in each), None)


def compatible(atoms: Iterable[Atom]) -> bool:
    """Whether errors are independent of each other, or known to depend on each other.

    Those of one noisy sum must be of different cells for certain, or of one chain.
    """
    return all(
        one.relation == other.relation and _apart(one.part, other.part)
        for one, other in combinations(atoms, 2)
        if one.origin == other.origin
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
    for atom, term in errors.items():
        dependent.setdefault(atom.origin if atom.part[:1] == ("chain",) else atom, []).append(term.value)
    # Whatever they have to do with each other, together they are no further off than their sum.
    sizes = [
        parts[0] if len(parts) == 1 else reduce(partial(_call, Op.ADD), [_call(Op.ABS, part) for part in parts])
        for parts in dependent.values()
    ]
    if len(sizes) == 1:
        return _call(Op.ABS, sizes[0])
    squares = [_call(Op.MUL, size, size) for size in sizes]
    return _call(Op.SQRT, reduce(lambda left, right: _call(Op.ADD, left, right), squares))


# --- one error at a time ---


@dataclass(frozen=True, slots=True)
class _Moved:
    """An expression, in doubles and unrounded, with one error added to it and taken from it.

    What comes out at both ends is told by their middle and by half the way between them: of sums, products and
    quotients these are made of those of their parts, in less than the ends themselves would take.
    """

    middle: Scalar
    half: Scalar | None  # None: the error has no say in it

    @property
    def ends(self) -> tuple[Scalar, Scalar]:
        assert self.half is not None
        return _call(Op.ADD, self.middle, self.half), _call(Op.SUB, self.middle, self.half)


def _half_way(value: Scalar, atom: Atom, known: Known) -> Scalar:
    """Half the way between the values that the error makes at both ends of its margin."""
    return _or_nothing(_moved(value, atom, known).half)


def _moved(node: Scalar, atom: Atom, known: Known) -> _Moved:
    """Which branch of a CASE and which argument of LEAST or COALESCE is taken, is decided by the values as they are."""

    def moved(part: Scalar) -> _Moved:
        return _moved(part, atom, known)

    if not is_noisy(node, known):
        return _Moved(double(node), None)
    match node:
        case Ref(field=field):
            errors = known[field.id]
            if errors is None:
                raise _Untold
            return _Moved(double(node), double(errors[atom].value) if atom in errors else None)
        case Call(op=Op.ADD | Op.SUB as op, args=(left, right)):
            return _with_own(node, _sum(op, moved(left), moved(right)), atom, known)
        case Call(op=Op.MUL, args=(left, right)):
            return _with_own(node, _product(moved(left), moved(right)), atom, known)
        case Call(op=Op.DIV, args=(left, right)):
            return _with_own(node, _quotient(moved(left), moved(right)), atom, known)
        case Call(op=Op.NEG, args=(arg,)):
            inner = moved(arg)
            return _Moved(_call(Op.NEG, inner.middle), None if inner.half is None else _call(Op.NEG, inner.half))
        case Call(op=Op.SQRT | Op.LN | Op.LOG10 as op, args=(arg,)):
            inner = moved(arg)
            if inner.half is None:
                return _Moved(_call(op, inner.middle), None)
            up, down = (_call(op, end) for end in inner.ends)
            return _Moved(_call(Op.MUL, _call(Op.ADD, up, down), _HALF), _call(Op.MUL, _call(Op.SUB, up, down), _HALF))
        case Call(op=Op.ABS, args=(arg,)):
            positive = Call(Op.GE, (double(arg), Const(0.0, DOUBLE)), BOOLEAN)
            inner = moved(arg)
            negated = _Moved(_call(Op.NEG, inner.middle), inner.half and _call(Op.NEG, inner.half))
            return _chosen([(positive, inner)], negated)
        case Call(op=Op.ROUND | Op.TRUNC | Op.FLOOR | Op.CEIL | Op.CAST, args=(arg, *_)) if arg.type.is_numeric:
            return _with_own(node, moved(arg), atom, known)
        case Call(op=Op.LEAST | Op.GREATEST, args=args):
            # An exact bound is left out: what it cuts off may be where the truth is.
            *others, last = [arg for arg in args if is_noisy(arg, known)]
            return _chosen([(Call(Op.EQ, (arg, node), BOOLEAN), moved(arg)) for arg in others], moved(last))
        case Call(op=Op.COALESCE, args=args):
            *others, last = args
            return _chosen([(_not(_is_null(arg)), moved(arg)) for arg in others], moved(last))
        case Call(op=Op.NULLIF, args=(arg, _)):
            return _chosen([(_is_null(node), _UNKNOWN)], moved(arg))
        case Case(branches=branches, default=default):
            if _is_clamp(node, known):
                return moved(default)
            chosen_by_noise = any(is_noisy(when, known) for when, _ in branches)

            def branch(value: Scalar) -> _Moved:
                # A constant that noise has chosen may be the wrong one, by how much nobody knows.
                return _UNKNOWN if chosen_by_noise and not is_noisy(value, known) else moved(value)

            return _chosen([(when, branch(then)) for when, then in branches], branch(default))
        case _:
            raise _Untold


def _sum(op: Op, left: _Moved, right: _Moved) -> _Moved:
    middle = _call(op, left.middle, right.middle)
    if left.half is None or right.half is None:
        only = right.half and _call(Op.NEG, right.half) if op is Op.SUB else right.half
        return _Moved(middle, left.half or only)
    return _Moved(middle, _call(op, left.half, right.half))


def _product(left: _Moved, right: _Moved) -> _Moved:
    """(x ± a)(y ± b) is (xy + ab) ± (xb + ya)."""
    middle = _call(Op.MUL, left.middle, right.middle)
    if left.half is None and right.half is None:
        return _Moved(middle, None)
    if left.half is None or right.half is None:
        factor, half = (left.middle, right.half) if left.half is None else (right.middle, left.half)
        assert half is not None
        return _Moved(middle, _call(Op.MUL, factor, half))
    both = _call(Op.MUL, left.half, right.half)
    crossed = _call(Op.MUL, left.middle, right.half), _call(Op.MUL, right.middle, left.half)
    return _Moved(_call(Op.ADD, middle, both), _call(Op.ADD, *crossed))


def _quotient(left: _Moved, right: _Moved) -> _Moved:
    """(x ± a) / (y ± b) is ((xy - ab) ± (ya - xb)) / (y² - b²); NULL where the error carries y across zero."""
    if right.half is None:
        half = left.half and _call(Op.DIV, left.half, right.middle)
        return _Moved(_call(Op.DIV, left.middle, right.middle), half)
    squares = [_call(Op.MUL, part, part) for part in (right.middle, right.half)]
    difference = _call(Op.SUB, *squares)
    same_side = Call(Op.GT, (difference, Const(0.0, DOUBLE)), BOOLEAN)
    divisor = Case(((same_side, difference),), Const(None, DOUBLE), DOUBLE)
    middle, half = _call(Op.MUL, left.middle, right.middle), _call(Op.MUL, left.middle, right.half)
    if left.half is None:
        return _Moved(_call(Op.DIV, middle, divisor), _call(Op.DIV, _call(Op.NEG, half), divisor))
    middle = _call(Op.SUB, middle, _call(Op.MUL, left.half, right.half))
    half = _call(Op.SUB, _call(Op.MUL, right.middle, left.half), half)
    return _Moved(_call(Op.DIV, middle, divisor), _call(Op.DIV, half, divisor))


def _chosen(branches: list[tuple[Scalar, _Moved]], default: _Moved) -> _Moved:
    """The first whose condition holds."""
    if not branches:
        return default
    every = [*(moved for _, moved in branches), default]
    middle = Case(tuple((when, moved.middle) for when, moved in branches), default.middle, DOUBLE)
    if all(moved.half is None for moved in every):
        return _Moved(middle, None)
    halves = tuple((when, _or_nothing(moved.half)) for when, moved in branches)
    return _Moved(middle, Case(halves, _or_nothing(default.half), DOUBLE))


def _or_nothing(half: Scalar | None) -> Scalar:
    return Const(0.0, DOUBLE) if half is None else half


_HALF = Const(0.5, DOUBLE)
_UNKNOWN = _Moved(Const(None, DOUBLE), Const(None, DOUBLE))


def _is_clamp(node: Case, known: Known) -> bool:
    """A noisy value cut at exact bounds: CASE WHEN x < bound THEN bound ELSE x END."""
    return all(
        isinstance(when, Call)
        and when.op in _COMPARISONS
        and when.args == (node.default, then)
        and not is_noisy(then, known)
        for when, then in node.branches
    )


# --- operations with errors of their own ---


def _own_atom(node: Scalar) -> Atom:
    """The same for the same operation on the same columns, wherever it stands."""
    return Atom(("operation", node), 0)


def _with_own(node: Call, moved: _Moved, atom: Atom, known: Known) -> _Moved:
    if not _has_own(node, known) or atom != _own_atom(node):
        return moved
    # What is new here is in none of its arguments; but there may be no telling how far one of these is off.
    own = _own_error(node, known)
    return _Moved(moved.middle, own if moved.half is None else _call(Op.ADD, own, moved.half))


def _has_own(node: Scalar, known: Known) -> bool:
    """Whether an operation adds an error to those of its arguments: it rounds, or multiplies errors with each other."""
    return is_noisy(node, known) and (_is_product(node, known) or _grain(node) is not None)


def _is_product(node: Scalar, known: Known) -> bool:
    return isinstance(node, Call) and node.op is Op.MUL and all(is_noisy(arg, known) for arg in node.args)


def _own_error(node: Call, known: Known) -> Scalar:
    if not _is_product(node, known):
        return Const(_grain(node), DOUBLE)
    # What each error alone does to a product says nothing where both factors are near zero.
    sizes = []
    for arg in node.args:
        errors = errors_of(arg, known)
        if not errors:
            raise _Untold
        sizes.append(margin(errors))
    return _call(Op.MUL, *sizes)


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


def _is_linear(node: Scalar, known: Known) -> bool:
    """Whether every error moves the value by a multiple of itself that is the same in all rows."""
    match node:
        case Ref(field=field):
            return all(term.uniform for term in (known.get(field.id) or {}).values())
        case Call(op=Op.ADD | Op.SUB | Op.NEG | Op.CAST | Op.ROUND, args=args):
            return all(_is_linear(arg, known) for arg in args)
        case Call(op=Op.MUL, args=args):
            varying = [arg for arg in args if not _is_constant(arg)]
            return len(varying) <= 1 and all(_is_linear(arg, known) for arg in varying)
        case Call(op=Op.DIV, args=(left, right)):
            return _is_constant(right) and _is_linear(left, known)
        case _:
            return isinstance(node, Const)


def _is_constant(node: Scalar) -> bool:
    return isinstance(node, Const) or (isinstance(node, Call) and all(map(_is_constant, children(node))))


# ------------------------------------------------------------
# Plans whose expressions do not say the same twice.
#
# The text of an error repeats the expression it belongs to, so parts that stand in it several times would multiply.
# Here they become columns below; and single values from subqueries become columns too, beside the rows.


def without_repetition(plan: Project, ids: itertools.count[int]) -> list[Items]:
    """The same columns, made by projections one above the other: what stands in several places is made further down."""
    graph = Graph(value for _, value in plan.items)
    several = [n for n, often in enumerate(graph.occurrences()) if often > 1 and graph.is_operation(n)]
    return graph.layers([field for field, _ in plan.items], several, ids)


def with_subqueries_beside(plan: Project, keys: Mapping[int, int]) -> Project:
    """The same columns, with released values from subqueries of one row joined to every row."""
    child = plan.child
    beside: list[tuple[Subquery, Field]] = []

    def replaced(value: Scalar) -> Scalar:
        nonlocal child
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
