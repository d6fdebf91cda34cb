"""What time it is, for the rows of a ledger: UTC, as text of one width, so that texts compare as times do."""

from __future__ import annotations

from datetime import UTC, datetime


def now() -> datetime:
    return datetime.now(UTC)


def timestamp() -> str:
    return stored(now())


def stored(time: datetime) -> str:
    return time.astimezone(UTC).isoformat(timespec="microseconds")
