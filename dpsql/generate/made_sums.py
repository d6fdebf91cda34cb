"""Sums that are made of others: shapes are polynomials, so their sums are made of those of values and squares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dpsql.privacy.rules.aggregates import Statistic
from dpsql.privacy.shapes import Polynomial, polynomial


@dataclass(frozen=True, slots=True)
class MadeSum:
    """A statistic that is made of what is added up of the values of one of them: t, their sum, and q, of squares."""

    place: int  # of that one
    by: Polynomial
    rows: str  # how many values there are
    scale: int = 0  # of the values: so many decimal places

    def text(self, wide: str) -> str:
        """The sum, in an integer type of 128 bits."""
        parts = [(self.by.squares, self._whole(f"q{self.place}", 2 * self.scale, wide))]
        parts += [(self.by.times, self._whole(f"t{self.place}", self.scale, wide))]
        parts += [(self.by.plus, f"CAST({self.rows} AS {wide})")]
        (first, *others) = [part for part in parts if part[0]]
        texts = [first[1] if first[0] == 1 else f"{first[0]} * {first[1]}"]
        texts += [f"({times}) * {text}" for times, text in others]
        return texts[0] if len(texts) == 1 else f"({' + '.join(texts)})"

    def _whole(self, text: str, scale: int, wide: str) -> str:
        return f"CAST({text} * {10**scale} AS {wide})" if scale else text


def shapes_of_one_value(statistics: Sequence[Statistic]) -> dict[int, MadeSum]:
    """The statistics, by their place, that are shapes of the same values as others, with squares among them.

    Claim: what is made of the sums of how far values are above the lower end of their grid is what each shape adds up
    to; zero, or NULL, where there are no values.
    Because: every shape is a polynomial of the value, in whole numbers.
    Needs: squares of the width of the grid below 2**48 (checked when the statistic was made).
    """
    alike: dict[object, list[int]] = {}
    for i, s in enumerate(statistics):
        if s.value is not None:
            alike.setdefault((s.value, s.where, s.bounds, s.low, s.high, s.step), []).append(i)
    found: dict[int, MadeSum] = {}
    for places in alike.values():
        made = {i: polynomial(s.shape, s.low, s.high, s.centre) for i in places for s in [statistics[i]]}
        if len(places) > 1 and any(each.squares for each in made.values()):
            found |= {i: MadeSum(places[0], each.above(statistics[i].low), f"m{places[0]}") for i, each in made.items()}
    return found
