"""What time it is, for the queries that ask: one moment for a whole statement, handed in like a parameter.

Whoever asks could have written the same constant. The moment is the beginning of a minute, in UTC, so that a dashboard
that is loaded again in the same minute asks the same question, which is free.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(slots=True)
class Clock:
    """The moment at which a statement is asked, and how often the statement has looked at it."""

    now: datetime
    reads: int = 0

    def read(self) -> datetime:
        self.reads += 1
        return self.now
