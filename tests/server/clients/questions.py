"""What all clients ask, and the answers."""

from __future__ import annotations

from datetime import UTC, datetime

COUNT = "SELECT count(*) AS n FROM people"
PEOPLE = 48

STATES = "SELECT state, count(*) AS n FROM people WHERE age > 40 GROUP BY state ORDER BY state"
STATE_ROWS = [("CA", 9), ("NY", 9), ("TX", 8)]

OLDER = "SELECT count(*) AS n FROM people WHERE age > {}"  # with a client's own placeholder
OLDER_THAN_65 = 13

TABLES = {"Gifts", "holidays", "items", "kinds", "people", "remarks", "states", "surveys", "tariffs", "visits"}

UNKNOWN_COLUMN = "SELECT count(*) FROM people WHERE nothing = 1"
UNKNOWN_COLUMN_AT = 35

REFUSED = "SELECT age FROM people"  # by dpsql alone
REFUSED_AT = 8

# The middle part is public, and longer than anyone waits.
ENDLESS = "SELECT (SELECT count(*) FROM people) AS n, (SELECT count(*) FROM {}) AS endless".format(
    " CROSS JOIN ".join(f"states s{i}" for i in range(30))
)

# Instants of a zone whose summer begins within: the months of a winter in New Zealand.
ZONE = "Pacific/Auckland"
MONTHS = (
    "SELECT date_trunc('month', seen::timestamptz) AS month, count(*) AS n FROM visits"
    " WHERE seen::timestamptz >= {} AND seen::timestamptz < {} GROUP BY 1 HAVING count(*) > 0 ORDER BY 1"
)
MONTHS_FROM, MONTHS_UNTIL = datetime(2021, 6, 30, 12, tzinfo=UTC), datetime(2021, 10, 31, 11, tzinfo=UTC)
MONTH_ROWS = [
    (datetime(2021, 6, 30, 12, tzinfo=UTC), 7),
    (datetime(2021, 7, 31, 12, tzinfo=UTC), 6),
    (datetime(2021, 8, 31, 12, tzinfo=UTC), 6),
    (datetime(2021, 9, 30, 11, tzinfo=UTC), 7),
]
