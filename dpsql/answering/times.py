"""Displays instants with the offset of the session's time zone.

Internally an instant is a naive datetime in UTC, in engines and in Python; only here does it get an offset.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone

from dpsql.answering.answer import Answer
from dpsql.plan.zones import Zone, second_of
from dpsql.types import Cell, Kind, Type


def in_zone(answer: Answer, zone: Zone) -> Answer:
    """The same answer with instants that have their offset."""
    table = answer.table
    places = [place for place, type_ in enumerate(table.types) if _is_instant(type_)]
    if not places:
        return answer
    rows = []
    for row in table.rows:
        changed = list(row)
        for place in places:
            changed[place] = _shown(row[place], zone)
        rows.append(tuple(changed))
    return replace(answer, table=replace(table, rows=rows))


def _is_instant(type_: Type) -> bool:
    return type_.kind is Kind.TIMESTAMPTZ or (type_.element is not None and _is_instant(type_.element))


def _shown(value: Cell, zone: Zone) -> Cell:
    if isinstance(value, tuple):
        return tuple(shown(item, zone) if isinstance(item, datetime) else item for item in value)
    return shown(value, zone) if isinstance(value, datetime) else value


def shown(instant: datetime, zone: Zone) -> datetime:
    """An instant with the zone's offset at that time; in UTC if that would leave the calendar."""
    in_utc = instant.replace(tzinfo=UTC)
    ahead = zone.leaving.at(second_of(instant))
    try:
        return in_utc.astimezone(timezone(timedelta(seconds=ahead))) if ahead else in_utc
    except (OverflowError, ValueError):
        return in_utc
