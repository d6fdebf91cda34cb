"""What limits may cut off: a margin is of the noise alone, so that numbers are marked and an answer says why.

All of it follows from query, policy and schema, never from whether a row was cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from fractions import Fraction

from dpsql.plan.nodes import Aggregate, Plan, Project, SetOperation, Window, nodes
from dpsql.plan.scalars import Agg, Aggregated, Field, Ref, Scalar, Subquery, Windowed, refs
from dpsql.plan.visit import every_part
from dpsql.privacy.bounds import NOTHING, Facts
from dpsql.privacy.rules.aggregates import Cells, Statistic, StatisticKind
from dpsql.privacy.stability import Stability

NOISE_ONLY = "*"  # beside a margin, where limits may cut off part of the number
NOISE_ALONE = f"± with {NOISE_ONLY} is of the noise alone"
UNCOVERED = "no margin covers what limits may cut off"


def limits(
    stability: Stability,
    cells: Cells,
    keys: int | None,
    statistics: Sequence[Statistic],
    *,
    of_rows: bool,
    searched: bool,
) -> Iterator[str]:
    """What may be cut off from some sums of a measurement, a few words each.

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


def noise_alone(found: Sequence[str], *, marked: bool) -> str:
    """The sentence about all that may be cut off; `marked` says whether a margin is shown with the mark."""
    *others, last = found
    return f"{NOISE_ALONE if marked else UNCOVERED}: {', '.join(others)}{' and ' if others else ''}{last}"


def made_of(plan: Plan, limited: Set[int]) -> frozenset[int]:
    """The fields that are made of numbers of which limits may cut off a part."""
    found = set(limited)
    for node in reversed(list(nodes(plan))):  # what a node is made of comes first
        found |= {field.id for field, value in _items(node) if _reads(value, found)}
    return frozenset(found)


def _items(node: Plan) -> Iterator[tuple[Field, Scalar]]:
    match node:
        case Project(items=items) | Window(items=items):
            yield from items
        case Aggregate(keys=keys, aggregates=aggregates):
            yield from keys
            yield from aggregates
        case SetOperation(left=left, right=right, fields=fields):
            for field, mine, its in zip(fields, left.fields, right.fields, strict=True):
                yield field, Ref(mine)
                yield field, Ref(its)
        case _:
            pass


def _reads(value: Scalar, found: Set[int]) -> bool:
    match value:
        case Aggregated(function=Agg.COUNT) | Windowed(function="count"):
            return False  # how many rows there are, whatever they show
        case _:
            return any(
                part.field.id in found
                if isinstance(part, Ref)
                else isinstance(part, Subquery) and part.plan.fields[0].id in found
                for part in every_part([value])
            )


def _many(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _text(value: Fraction) -> str:
    return f"{value.numerator:,}" if value.denominator == 1 else f"{float(value):.4g}"
