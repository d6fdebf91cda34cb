"""What declared limits may cut off: a margin is of the noise alone, and an answer says so.

It follows from query, policy and schema, never from whether a row was cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction

from dpsql.plan.scalars import Scalar, refs
from dpsql.privacy.bounds import NOTHING, Facts
from dpsql.privacy.rules.aggregates import Cells, Statistic, StatisticKind
from dpsql.privacy.stability import Stability

NOISE_ALONE = "± is of the noise alone"


def limits(
    stability: Stability,
    cells: Cells,
    keys: int | None,
    statistics: Sequence[Statistic],
    *,
    of_rows: bool,
    searched: bool,
) -> Iterator[str]:
    """What may be cut off from the sums of a measurement, a few words each.

    `keys` is how many cells there are, if that is known; `of_rows` says whether rows are looked at, or only owners,
    and `searched` whether some sums have a clip that is chosen. Nothing is said of one row per unit that the engine
    enforces, nor of values that no bounds are declared for.
    """
    if of_rows and not stability.single:
        yield f"at most {_many(stability.rows, 'row')} of one unit count" + ("s" if stability.rows == 1 else "")
    elif cells.keyed and not cells.among and not stability.single and (keys is None or cells.groups < keys):
        yield f"one unit counts in at most {_many(cells.groups, 'key')}"
    if searched:
        yield "a clip is chosen that may cut off as much as the noise adds"
    facts = stability.facts
    for value in dict.fromkeys(
        s.value for s in statistics if s.value is not None and s.kind is not StatisticKind.DISTINCT
    ):
        yield from _clamps(value, facts)


def _clamps(value: Scalar, facts: Facts) -> Iterator[str]:
    for ref in refs(value):
        fact = facts.get(ref.field.id, NOTHING)
        low, high = fact.interval.low, fact.interval.high
        if fact.origin is None or low is None or high is None or not ref.field.type.is_numeric:
            continue
        yield f'"{fact.origin[1]}" is clamped to [{_text(low)}, {_text(high)}]'


def noise_alone(found: Sequence[str]) -> str:
    """The sentence about all that may be cut off."""
    *others, last = found
    return f"{NOISE_ALONE}: {', '.join(others)}{' and ' if others else ''}{last}"


def _many(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _text(value: Fraction) -> str:
    return f"{value.numerator:,}" if value.denominator == 1 else f"{float(value):.4g}"
