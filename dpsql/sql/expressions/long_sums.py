"""Long sums as balanced trees: a hundred terms that nest to the left would nest a hundred deep."""

from __future__ import annotations

from dpsql.plan.scalars import Call, Op, Scalar
from dpsql.sql.typing import arithmetic_type, coerce

LONG = 16  # operators; shorter sums are computed in the order in which they are written


def balanced(total: Scalar) -> Scalar:
    """The same number: all that is added, less all that is subtracted, each summed in pairs, in pairs of pairs, ….

    NULL where a term is NULL, as before. What is between is smaller, so that it needs fewer digits; a sum of which
    only a part would leave its type has a value.
    """
    added: list[Scalar] = []
    subtracted: list[Scalar] = []
    while isinstance(total, Call) and total.op in (Op.ADD, Op.SUB):
        left, right = total.args
        (added if total.op is Op.ADD else subtracted).append(right)
        total = left
    added.append(total)
    value = _in_pairs(added[::-1])
    return _plus(Op.SUB, value, _in_pairs(subtracted[::-1])) if subtracted else value


def _in_pairs(terms: list[Scalar]) -> Scalar:
    while len(terms) > 1:
        paired = [_plus(Op.ADD, left, right) for left, right in zip(terms[::2], terms[1::2], strict=False)]
        terms = [*paired, *terms[2 * len(paired) :]]
    return terms[0]


def _plus(op: Op, left: Scalar, right: Scalar) -> Scalar:
    type_ = arithmetic_type(op, left.type, right.type)
    assert type_ is not None
    return Call(op, (coerce(left, type_), coerce(right, type_)), type_)
