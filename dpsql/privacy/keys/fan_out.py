"""How many public rows one private row may meet in a join: counted over the rows of the public relation.

Claim: no private row joins more public rows than this, as long as the public tables have not changed since they were
read.
Because: the public rows that one private row joins agree in every column that is compared with it by =, and their
ranges hold the same value of whatever is compared with it by <, <=, > or >=. The largest number of such rows is
counted.
Needs: nothing for privacy. What a unit adds is clipped to this many rows whatever the tables hold later; if a table has
grown since, some rows may be cut off.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from dpsql.plan.constants import NotConstant, evaluate_rows
from dpsql.plan.scalars import Call, Field, Op, Scalar, refs
from dpsql.privacy.bounds import as_number
from dpsql.privacy.keys.public_rows import Row, Rows
from dpsql.types import Value

_MIRRORED = {Op.LT: Op.GT, Op.LE: Op.GE, Op.GT: Op.LT, Op.GE: Op.LE}

# A position among all values: a number or a text, and whether it is just after it.
_Place = tuple[Fraction | str, int]


@dataclass(slots=True)
class _Range:
    """The values of a private expression that a public row joins: from `low` to just before `high`."""

    low: _Place | None = None
    high: _Place | None = None

    @property
    def is_empty(self) -> bool:
        return self.low is not None and self.high is not None and self.low >= self.high

    def narrowed(self, op: Op, place: Fraction | str) -> None:
        if op in (Op.GT, Op.GE):
            low = (place, 1 if op is Op.GT else 0)
            self.low = low if self.low is None else max(self.low, low)
        else:
            high = (place, 0 if op is Op.LT else 1)
            self.high = high if self.high is None else min(self.high, high)


@dataclass(slots=True)
class _Met:
    """Public rows by what the join compares: values of columns, and ranges of private expressions."""

    rows: list[Row]
    same: list[list[Hashable]] = field(default_factory=list)  # for each row, the values compared by =
    ranges: dict[Scalar, list[_Range]] = field(default_factory=dict)


def fan_out(found: Rows, conditions: Sequence[Scalar], fields: Sequence[Field], apart: Sequence[Scalar] = ()) -> int:
    """The most rows of a public relation that one private row joins, among rows with the same values of `apart`."""
    here = {f.id for f in fields}
    met = _Met([*found.rows], [[] for _ in found.rows])
    alive = [True] * len(met.rows)
    for condition in conditions:
        reads = {ref.field.id for ref in refs(condition)}
        if not reads & here:
            continue
        if reads <= here:
            _keep(alive, _values(condition, met.rows), lambda value: value is True)
        elif isinstance(condition, Call):
            _compare(condition, here, met, alive)
    for value in apart:
        for same, shown in zip(met.same, _values(value, met.rows) or [None] * len(met.rows), strict=True):
            same.append(shown)
    groups: dict[tuple[Hashable, ...], list[int]] = {}
    for i, same in enumerate(met.same):
        if alive[i]:
            groups.setdefault(tuple(same), []).append(i)
    return max((_most(group, met) for group in groups.values()), default=0)


def _values(value: Scalar, rows: Iterable[Row]) -> list[Value] | None:
    try:
        return evaluate_rows(value, rows)
    except NotConstant:
        return None


def _keep(alive: list[bool], values: list[Value] | None, test: object) -> None:
    if values is not None:
        assert callable(test)
        for i, value in enumerate(values):
            alive[i] = alive[i] and test(value)


def _compare(condition: Call, here: set[int], met: _Met, alive: list[bool]) -> None:
    """A comparison of a public value with a private one: rows whose value is NULL join no row."""
    if len(condition.args) != 2 or (condition.op is not Op.EQ and condition.op not in _MIRRORED):
        return
    sides = [{ref.field.id for ref in refs(arg)} for arg in condition.args]
    if sides[0] and sides[0] <= here and not sides[1] & here:
        public, private, op = *condition.args, _MIRRORED.get(condition.op, condition.op)
    elif sides[1] and sides[1] <= here and not sides[0] & here:
        (private, public), op = condition.args, condition.op
    else:
        return
    values = _values(public, met.rows)
    if values is None:
        return
    _keep(alive, values, lambda value: value is not None)
    if op is Op.EQ:
        for same, value in zip(met.same, values, strict=True):
            same.append(value)
        return
    places = [value if isinstance(value, str) else as_number(value) for value in values]
    if all(place is not None or value is None for place, value in zip(places, values, strict=True)):
        ranges = met.ranges.setdefault(private, [_Range() for _ in met.rows])
        for found, place in zip(ranges, places, strict=True):
            if place is not None:
                found.narrowed(op, place)


def _most(group: Sequence[int], met: _Met) -> int:
    """The most rows of a group whose ranges have a value in common, by the most selective expression."""
    return min((_overlap([ranges[i] for i in group]) for ranges in met.ranges.values()), default=len(group))


def _overlap(ranges: Iterable[_Range]) -> int:
    known = [found for found in ranges if not found.is_empty]
    # At each position ranges end before others begin; those without a lower end are there from the start.
    begins = sorted(found.low for found in known if found.low is not None)
    ends = sorted(found.high for found in known if found.high is not None)
    now = most = len(known) - len(begins)
    ended = 0
    for begin in begins:
        now += 1
        while ended < len(ends) and ends[ended] <= begin:
            ended += 1
        most = max(most, now - ended)
    return most
