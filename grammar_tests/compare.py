"""Whether two answers are the same: PostgreSQL's and ours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal

from dpsql.release import Release

RELATIVE = 1e-6
ABSOLUTE = 1e-6

Row = Sequence[object]


def difference(release: Release, ours: Sequence[Row], theirs: Sequence[Row], *, ordered: bool) -> str | None:
    """What is wrong with our rows, or None. Declared keys that nobody has may be there with zeros."""
    rest = list(ours)
    kept: list[Row] = []
    for row in theirs:
        # A row that agrees in its NULLs as well comes first: a sum that is zero must not be taken for a NULL key.
        alike = [i for i, mine in enumerate(rest) if _same_row(mine, row)]
        place = next((i for i in alike if _same_nulls(rest[i], row)), alike[0] if alike else None)
        if place is None:
            return f"PostgreSQL has {tuple(row)}, which is missing among {[tuple(mine) for mine in rest]}"
        kept.append(rest.pop(place))
    extra = [tuple(row) for row in rest if not _is_zero(release, row)]
    if extra:
        return f"PostgreSQL does not have {extra}"
    if ordered:
        zeros = [id(row) for row in rest]
        shown = [row for row in ours if id(row) not in zeros]
        for mine, row in zip(shown, theirs, strict=True):
            if not _same_row(mine, row):
                return f"another order: {tuple(mine)} stands where PostgreSQL has {tuple(row)}"
    return None


def _is_zero(release: Release, row: Row) -> bool:
    """A declared key without rows: its counts and sums are zero, its ratios NULL."""
    declared = any(measurement.keys and measurement.cells is not None for measurement in release.measurements)
    known = [i for i, output in enumerate(release.outputs) if output.margin is not None or output.ratio]
    places = known or range(len(row))
    empty = [row[i] is None or (not isinstance(row[i], bool) and row[i] == 0) for i in places]
    return declared and (all(empty) if known else any(empty))


def _same_row(ours: Row, theirs: Row) -> bool:
    return len(ours) == len(theirs) and all(_same(a, b) for a, b in zip(ours, theirs, strict=True))


def _same_nulls(ours: Row, theirs: Row) -> bool:
    return [value is None for value in ours] == [value is None for value in theirs]


def _same(ours: object, theirs: object) -> bool:
    # The sum of no rows is NULL in SQL; ours is a noisy zero.
    if theirs is None:
        return ours is None or (_is_number(ours) and ours == 0)
    if isinstance(ours, bool) or isinstance(theirs, bool):
        return ours is theirs
    if isinstance(ours, list | tuple) and isinstance(theirs, list | tuple):
        return len(ours) == len(theirs) and all(map(_same, ours, theirs))
    if _is_number(ours) and _is_number(theirs):
        return math.isclose(float(ours), float(theirs), rel_tol=RELATIVE, abs_tol=ABSOLUTE)  # type: ignore[arg-type]
    return _plain(ours) == _plain(theirs)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def _plain(value: object) -> object:
    """Instants in UTC, without a zone; a date is its midnight."""
    if isinstance(value, datetime):
        return value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)
    if isinstance(value, date):
        return datetime(value.year, value.month, value.day)
    return value
