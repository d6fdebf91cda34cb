"""MODE: the most common value, chosen by the exponential mechanism among every value that the argument can have."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from dpsql.errors import MissingDeclaration
from dpsql.plan.scalars import Aggregated, Call, Case, Const, Op, Scalar
from dpsql.privacy.bounds import Facts
from dpsql.privacy.keys.domains import domain
from dpsql.privacy.noise_laws import Law, Noise, loss_as_epsilon, most_common, rank_margin
from dpsql.privacy.rules.aggregates import Statistic
from dpsql.types import BIGINT, BOOLEAN, Kind, Value

# Values that are numbered one by one, each a branch of a CASE; whole numbers in a row number themselves.
MOST_NUMBERED = 1_000
MOST_WHOLE = 100_000


@dataclass(frozen=True, slots=True)
class Mode:
    """The value that most rows of a cell have; candidates are whole numbers (`numbered`)."""

    statistic: Statistic

    def noises(self, loss: Fraction, law: Law) -> tuple[Noise, ...]:
        return (most_common(self.statistic.sensitivity.l1, loss_as_epsilon(loss, law)),)

    def margin(self, noise: Noise, confidence: Fraction) -> int:
        """How many rows fewer than the most common value the chosen one may have."""
        return math.ceil(Fraction(rank_margin(noise, self.statistic.candidates, confidence), self.statistic.factor))


def candidates(call: Aggregated, facts: Facts) -> tuple[Value, ...]:
    """All values the argument can have, in order; NULL is none of them."""
    (arg,) = call.args
    found = tuple(value for value in domain(arg, facts, MOST_WHOLE) or () if value is not None)
    if not found or (len(found) > MOST_NUMBERED and not _is_row(found)):
        raise MissingDeclaration(
            f"the values that mode chooses among are not declared, or more than {MOST_NUMBERED:,}",
            hint="Declare values in the policy, or round, as in ORDER BY ROUND(x, -3) or date_trunc('month', x).",
            position=call.position,
        )
    return found


def numbered(arg: Scalar, values: tuple[Value, ...]) -> tuple[Scalar, int, int]:
    """The argument as a whole number, with the smallest and the largest; NULL where it is no candidate."""
    if arg.type.kind is Kind.INTEGER and _is_row(values):
        return arg, int(values[0]), int(values[-1])  # type: ignore[arg-type]
    branches = tuple(
        (Call(Op.EQ, (arg, Const(value, arg.type)), BOOLEAN), Const(i, BIGINT)) for i, value in enumerate(values)
    )
    return Case(branches, Const(None, BIGINT), BIGINT), 0, len(values) - 1


def numbered_subject(value: Scalar) -> Scalar | None:
    """What a CASE of `numbered` numbers, for those who read it."""
    if not (isinstance(value, Case) and value.default == Const(None, BIGINT)):
        return None
    when, then = value.branches[0]
    return when.args[0] if isinstance(when, Call) and when.op is Op.EQ and then == Const(0, BIGINT) else None


def back(number: Scalar, arg: Scalar, values: tuple[Value, ...]) -> Scalar:
    """The value that a number stands for."""
    if arg.type.kind is Kind.INTEGER and _is_row(values):
        return number
    branches = tuple(
        (Call(Op.EQ, (number, Const(i, BIGINT)), BOOLEAN), Const(value, arg.type)) for i, value in enumerate(values)
    )
    return Case(branches, Const(None, arg.type), arg.type)


def _is_row(values: tuple[Value, ...]) -> bool:
    """Whether they are whole numbers without a gap."""
    whole = [value for value in values if isinstance(value, int) and not isinstance(value, bool)]
    return len(whole) == len(values) and whole[-1] - whole[0] == len(whole) - 1
