"""How far off an expression of noisy numbers is, to first order: what each error of its parts does to it.

Every error is written as a 95 % margin. Margins of independent errors add up as the sides of right angles do, which is
exact for Gaussian noise and a little wide for Laplace noise. What cannot be told is left out: no margin is better
than a wrong one.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial, reduce
from itertools import combinations

from dpsql.plan.inspect import free_fields
from dpsql.plan.nodes import Released, nodes
from dpsql.plan.scalars import Call, Case, Const, Op, Ref, Scalar, Subquery, children, refs, walk
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


def errors_of(value: Scalar, known: Known) -> Errors | None:
    """The errors of an expression over one row."""
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
        return {
            atom: Term(_half_way(value, atom, known), uniform, _totals(value, atom, known) if uniform else None)
            for atom in atoms
        }
    except _Untold:
        return None


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
    """The 95 % margin of a value with these errors; NULL where one of them cannot be told, or nothing is noisy."""
    return _call(Op.NULLIF, _size(errors), Const(0.0, DOUBLE))


def _size(errors: Errors) -> Scalar:
    dependent: dict[Hashable, list[Scalar]] = {}
    for atom, term in errors.items():
        dependent.setdefault(atom.origin if atom.part[:1] == ("chain",) else atom, []).append(term.value)
    # Whatever they have to do with each other, together they are no further off than their sum.
    sizes = [
        parts[0] if len(parts) == 1 else reduce(partial(_call, Op.ADD), [_call(Op.ABS, part) for part in parts])
        for parts in dependent.values()
    ]
    squares = [_call(Op.MUL, size, size) for size in sizes]
    return _call(Op.SQRT, reduce(lambda left, right: _call(Op.ADD, left, right), squares))


# --- one error at a time ---


def _half_way(value: Scalar, atom: Atom, known: Known) -> Scalar:
    """Half the way between the values that the error makes at both ends of its margin."""
    up, down = _moved(value, atom, Op.ADD, known), _moved(value, atom, Op.SUB, known)
    return _call(Op.DIV, _call(Op.SUB, up, down), Const(2.0, DOUBLE))


def _moved(node: Scalar, atom: Atom, way: Op, known: Known) -> Scalar:
    """The expression, in doubles and unrounded, with one error added to it.

    Which branch of a CASE is taken, and which argument of LEAST or COALESCE, is decided by the values as they are.
    """

    def moved(part: Scalar) -> Scalar:
        return _moved(part, atom, way, known)

    if not is_noisy(node, known):
        return double(node)
    match node:
        case Ref(field=field):
            errors = known[field.id]
            if errors is None:
                raise _Untold
            return _call(way, node, errors[atom].value) if atom in errors else double(node)
        case Call(op=Op.ADD | Op.SUB | Op.MUL | Op.NEG | Op.SQRT | Op.LN | Op.LOG10, args=args):
            return _with_own(node, Call(node.op, tuple(map(moved, args)), DOUBLE), atom, way, known)
        case Call(op=Op.DIV, args=(left, right)):
            quotient = _call(Op.DIV, moved(left), _same_side(right, moved(right)) if is_noisy(right, known) else right)
            return _with_own(node, quotient, atom, way, known)
        case Call(op=Op.ABS, args=(arg,)):
            positive = Call(Op.GE, (double(arg), Const(0.0, DOUBLE)), BOOLEAN)
            return Case(((positive, moved(arg)),), _call(Op.NEG, moved(arg)), DOUBLE)
        case Call(op=Op.ROUND | Op.TRUNC | Op.FLOOR | Op.CEIL | Op.CAST, args=(arg, *_)) if arg.type.is_numeric:
            return _with_own(node, moved(arg), atom, way, known)
        case Call(op=Op.LEAST | Op.GREATEST, args=args):
            # An exact bound is left out: what it cuts off may be where the truth is.
            *others, last = [arg for arg in args if is_noisy(arg, known)]
            taken = tuple((Call(Op.EQ, (arg, node), BOOLEAN), moved(arg)) for arg in others)
            return Case(taken, moved(last), DOUBLE) if taken else moved(last)
        case Call(op=Op.COALESCE, args=args):
            *others, last = args
            present = tuple((_not(_is_null(arg)), moved(arg)) for arg in others)
            return Case(present, moved(last), DOUBLE) if present else moved(last)
        case Call(op=Op.NULLIF, args=(arg, _)):
            return Case(((_is_null(node), Const(None, DOUBLE)),), moved(arg), DOUBLE)
        case Case(branches=branches, default=default):
            if _is_clamp(node, known):
                return moved(default)
            chosen_by_noise = any(is_noisy(when, known) for when, _ in branches)

            def branch(value: Scalar) -> Scalar:
                # A constant that noise has chosen may be the wrong one, by how much nobody knows.
                return Const(None, DOUBLE) if chosen_by_noise and not is_noisy(value, known) else moved(value)

            return Case(tuple((when, branch(then)) for when, then in branches), branch(default), DOUBLE)
        case _:
            raise _Untold


def _same_side(value: Scalar, moved: Scalar) -> Scalar:
    """NULL where the error carries a divisor across zero."""
    product = _call(Op.MUL, double(value), moved)
    return Case(((Call(Op.GT, (product, Const(0.0, DOUBLE)), BOOLEAN), moved),), Const(None, DOUBLE), DOUBLE)


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


def _with_own(node: Call, value: Scalar, atom: Atom, way: Op, known: Known) -> Scalar:
    if not _has_own(node, known) or atom != _own_atom(node):
        return value
    return _call(way, value, _own_error(node, known))


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
        sizes.append(_size(errors))
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
