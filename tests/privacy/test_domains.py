"""How keys are enumerated: each declared value is looked at a few times, however many there are."""

from __future__ import annotations

from typing import ClassVar

from dpsql.plan.scalars import Call, Const, Field, Op, Ref
from dpsql.privacy.bounds import Fact
from dpsql.privacy.keys.domains import domain
from dpsql.types import BIGINT


class _Compared(int):
    """A number that counts how often it is compared."""

    comparisons: ClassVar[int] = 0

    def __eq__(self, other: object) -> bool:
        _Compared.comparisons += 1
        return int(self) == other

    __hash__ = int.__hash__


def test_looking_up_declared_values_takes_a_few_comparisons_for_each() -> None:
    declared = tuple(map(_Compared, range(2_000)))
    column = Field(0, "a", BIGINT)
    shifted = Call(Op.MOD, (Ref(column), Const(7, BIGINT)), BIGINT)
    _Compared.comparisons = 0
    assert domain(shifted, {0: Fact(domain=declared)}, 5_000) == (0, 1, 2, 3, 4, 5, 6)
    assert _Compared.comparisons < 10 * len(declared)
