"""Time zones in SQL: offsets that `plan.zones` knows, written as steps from one moment to the next."""

from __future__ import annotations

from datetime import datetime, timedelta

from dpsql.lowering.dialect import Dialect
from dpsql.plan.constants import FINE_UNITS
from dpsql.plan.scalars import Call, Op
from dpsql.plan.zones import Steps, known_zone, moment_at, years_alike
from dpsql.types import Kind


def zoned(dialect: Dialect, node: Call, text: str, bounds: tuple[datetime, datetime]) -> str:
    """What TO_ZONE, FROM_ZONE and ZONED_TRUNC make of a moment that lies between two.

    Claim: defined for every moment of the calendar; NULL where the result would leave it.
    Because: before the first change and after the last one the offset is that of the first and the last step, and a
    moment near an end of the calendar is dropped before seconds are added.
    """
    unit, _, name = node.option.rpartition(" ")
    zone = known_zone(name)
    steps = (zone.arriving if node.op is Op.FROM_ZONE else zone.leaving).between(*bounds)
    if node.op is not Op.ZONED_TRUNC:
        return dialect.once(text, _mentions(steps), lambda moment: _moved(dialect, moment, steps))
    into_unit = steps.modulo(FINE_UNITS[unit])
    if not into_unit.first and not into_unit.changes:
        return dialect.date_trunc.format(text, part=unit)
    return dialect.once(text, 3 * _mentions(into_unit), lambda moment: _truncated(dialect, moment, unit, into_unit))


def _mentions(steps: Steps) -> int:
    """How often a moment is written to move it, at most."""
    return 4 + len(steps.changes)


def _moved(dialect: Dialect, moment: str, steps: Steps) -> str:
    return dialect.form(Op.ADD_SECONDS).format(_inside(dialect, moment, steps), _seconds(dialect, moment, steps))


def _truncated(dialect: Dialect, moment: str, unit: str, steps: Steps) -> str:
    """With the part of the offset that is no whole number of units: added before, and taken away after."""
    seconds = _seconds(dialect, moment, steps)
    moved = dialect.form(Op.ADD_SECONDS).format(_inside(dialect, moment, steps), seconds)
    return dialect.form(Op.ADD_SECONDS).format(dialect.date_trunc.format(moved, part=unit), f"-({seconds})")


def _seconds(dialect: Dialect, moment: str, steps: Steps) -> str:
    if not steps.changes:
        seconds = str(steps.first)
    elif steps.repeats is None:
        seconds = dialect.offset(moment, steps)
    else:
        earlier = _in_known_year(dialect, moment, steps.repeats)
        seconds = dialect.once(earlier, len(steps.changes), lambda text: dialect.offset(text, steps))
    return f"CAST({seconds} AS {dialect.types[Kind.INTEGER]})"  # in microseconds they need its width


def _in_known_year(dialect: Dialect, moment: str, end: int) -> str:
    """The same moment of a year of the same kind, if its own is not before this one."""
    start = dialect.date_trunc.format(moment, part="year")
    leap = f"CASE WHEN extract(doy FROM {start} + INTERVAL '365 days') = 366 THEN 7 ELSE 0 END"
    kind = f"CAST(extract(isodow FROM {start}) AS {dialect.types[Kind.INTEGER]}) % 7 + {leap}"
    years = " ".join(f"WHEN {number} THEN {_new_year(dialect, year)}" for number, year in years_alike(end).items())
    alike = f"(CASE {kind} {years} END + ({moment} - {start}))"
    return f"(CASE WHEN {moment} < {_new_year(dialect, end)} THEN {moment} ELSE {alike} END)"


def _new_year(dialect: Dialect, year: int) -> str:
    return dialect.moment_constant(datetime(year, 1, 1))


def _inside(dialect: Dialect, moment: str, steps: Steps) -> str:
    if steps.inside is None:
        return moment
    first, last = map(moment_at, steps.inside)
    low, high = map(dialect.moment_constant, (first, last + timedelta(microseconds=999_999)))
    return f"(CASE WHEN {moment} >= {low} AND {moment} <= {high} THEN {moment} END)"
