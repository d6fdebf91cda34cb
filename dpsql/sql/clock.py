"""The current time and time zone of a statement: one moment for the whole statement, passed in like a parameter.

An analyst could have written the same constant. The moment is the start of a minute, in UTC, so that a dashboard that
is reloaded within the minute asks the same question, at no cost.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from dpsql.plan.zones import UTC_ZONE, Zone


@dataclass(slots=True)
class Clock:
    """The moment and the time zone of a statement, and how often the statement has read them."""

    now: datetime
    zone: Zone = UTC_ZONE  # of the session
    reads: int = 0
    zone_reads: int = 0

    def read(self) -> datetime:
        self.reads += 1
        return self.now

    def read_zone(self) -> Zone:
        self.zone_reads += 1
        return self.zone
