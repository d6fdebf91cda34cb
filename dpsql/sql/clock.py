"""What time it is, and where, for the queries that ask: one moment for a whole statement, handed in like a parameter.

Whoever asks could have written the same constant. The moment is the beginning of a minute, in UTC, so that a dashboard
that is loaded again in the same minute asks the same question, which is free.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from dpsql.plan.zones import UTC_ZONE, Zone


@dataclass(slots=True)
class Clock:
    """The moment and the zone in which a statement is asked, and how often the statement has looked at them."""

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
