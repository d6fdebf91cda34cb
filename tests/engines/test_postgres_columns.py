"""Columns of types that only PostgreSQL has, holding what they may: zones, padding, enums, NaN, digits without end."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest

from dpsql.answering.answer import Answer
from dpsql.answering.dataset import Dataset
from dpsql.answering.open_dataset import build_dataset, open_backend
from dpsql.answering.session import Session
from dpsql.compliance.lab import ZeroNoise
from dpsql.policy.load import load
from dpsql.types import Value
from grammar_tests.servers import Server

SETUP = """
CREATE TYPE mood AS ENUM ('sad', 'happy', 'Ünruly');
CREATE DOMAIN share AS numeric(5, 2);
CREATE TABLE people (
    who uuid, seen timestamptz, code char(4), mood mood, owed numeric, part share, fee numeric(8, 2), x real,
    name varchar(20) COLLATE "C.utf8", day date
);
INSERT INTO people
SELECT ('00000000-0000-0000-0000-' || lpad(i::text, 12, '0'))::uuid,
       -- an hour before midnight in UTC, another day in Berlin
       timestamptz '2021-06-30 23:30:00+00' + (i % 2) * interval '1 hour',
       (ARRAY['a', 'ab', 'ab ', NULL])[1 + i % 4], (ARRAY['sad', 'happy', 'Ünruly']::mood[])[1 + i % 3],
       i, i % 10 + 0.55, 1.25, 0.5, (ARRAY['Zoë', 'zoe', 'ZOË'])[1 + i % 3], date '2021-01-01' + i % 2
FROM generate_series(1, 120) AS i;
-- What no promise holds for: each of these people counts, and none of these values adds up.
INSERT INTO people VALUES
('10000000-0000-0000-0000-000000000001', 'infinity', NULL, NULL, 'NaN', 'NaN', 'NaN', 'NaN', NULL, 'infinity'),
('10000000-0000-0000-0000-000000000002', '-infinity', NULL, NULL, 1e400, NULL, NULL, 'Infinity', NULL, '-infinity'),
('10000000-0000-0000-0000-000000000003', '4713-01-01 00:00:00+00 BC', NULL, NULL, 1e-400, NULL, NULL, '-Infinity', NULL,
 '4713-01-01 BC'),
('10000000-0000-0000-0000-000000000004', '294276-12-31 23:59:59+00', NULL, NULL, -1e400, NULL, NULL, 1e-45, NULL,
 '5874897-12-31'),
(NULL, '2021-06-30', 'a', 'sad', 1, 1, 1, 1, 'nobody', '2021-01-01');
"""

POLICY = """
[database]
url = "{url}"
ledger = "people.ledger"
[privacy]
epsilon = 9000.0
delta = 1e-6
accounting = "zcdp"
query_epsilon = 100.0
[tables.people]
unit = "who"
[tables.people.columns]
seen = {{ min = 2021-01-01, max = 2021-12-31 }}
code = {{ values = ["a", "ab"] }}
mood = {{ values = ["sad", "happy", "Ünruly"] }}
owed = {{ min = 0, max = 200, step = 1 }}
part = {{ min = 0, max = 10 }}
fee = {{ min = 0, max = 100 }}
x = {{ min = 0, max = 1, step = 0.1 }}
name = {{}}
day = {{ min = 2021-01-01, max = 2021-01-02 }}
[users.alice]
"""


@pytest.fixture(scope="module")
def dataset(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dataset]:
    database = f"columns_{uuid.uuid4().hex[:8]}"
    server.create_database(database)
    with server.connect(database) as connection:
        connection.execute(SETUP)
        connection.execute(f"ALTER DATABASE {database} SET TimeZone = 'Europe/Berlin'")
    path: Path = tmp_path_factory.mktemp("columns") / "dpsql.toml"
    path.write_text(POLICY.format(url=server.url(database)))
    policy = load(path)
    with closing(build_dataset(policy, open_backend(policy), ZeroNoise(), new_ledger=True)) as built:
        yield built


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT COUNT(*) FROM people", [(124,)]),
        # Zones: half of them on the first of July, in UTC as everywhere. What is no moment of the calendar is none.
        ("SELECT COUNT(*) FROM people WHERE seen >= '2021-07-01'", [(60,)]),
        ("SELECT COUNT(*) FROM people WHERE EXTRACT(hour FROM seen) = 23", [(60,)]),
        ("SELECT COUNT(*) FROM people WHERE seen IS NULL", [(4,)]),
        (
            "SELECT date_trunc('day', seen), COUNT(*) FROM people WHERE seen > '2021-06-29' AND seen < '2021-07-02'"
            " GROUP BY 1 HAVING COUNT(*) > 0 ORDER BY 1",
            [(datetime(2021, 6, 30, tzinfo=UTC), 60), (datetime(2021, 7, 1, tzinfo=UTC), 60)],
        ),
        # Padding is no part of the text.
        ("SELECT code, COUNT(*) FROM people GROUP BY code ORDER BY 1", [("a", 30), ("ab", 60)]),
        ("SELECT COUNT(*) FROM people WHERE LENGTH(code) = 2", [(60,)]),
        # Enums are their labels, compared as text.
        ("SELECT mood, COUNT(*) FROM people GROUP BY mood ORDER BY 1", [("happy", 40), ("sad", 40), ("Ünruly", 40)]),
        ("SELECT COUNT(*) FROM people WHERE mood < 'sad'", [(40,)]),
        # Digits without end, NaN and infinity: NULL, or clamped where it is a number after all.
        ("SELECT SUM(owed) FROM people", [(7260.0,)]),
        ("SELECT COUNT(owed), COUNT(part), COUNT(fee), COUNT(x) FROM people", [(121, 120, 120, 121)]),
        ("SELECT SUM(part) FROM people", [(606.0,)]),
        ("SELECT SUM(fee) FROM people", [(150.0,)]),
        ("SELECT SUM(x) FROM people", [(60.0,)]),
        # Text byte by byte, whatever the column's collation.
        (
            "SELECT name, COUNT(*) FROM people WHERE name > '' GROUP BY name ORDER BY 1",
            [("ZOË", 40), ("Zoë", 40), ("zoe", 40)],
        ),
        ("SELECT COUNT(*) FROM people WHERE name < 'a'", [(80,)]),
        ("SELECT COUNT(*) FROM people WHERE LOWER(name) = 'zoë'", [(80,)]),
        ("SELECT COUNT(*) FROM people WHERE name ILIKE 'zoë'", [(80,)]),
        ("SELECT COUNT(day) FROM people", [(120,)]),
        ("SELECT COUNT(DISTINCT who) FROM people WHERE who IN (SELECT who FROM people WHERE fee > 1)", [(120,)]),
        ("SELECT COUNT(DISTINCT who) FROM people WHERE who NOT IN (SELECT who FROM people WHERE fee > 1)", [(4,)]),
    ],
)
def test_answers_without_noise(dataset: Dataset, sql: str, expected: list[tuple[Value, ...]]) -> None:
    answer = Session(dataset, "alice").execute(sql)
    assert isinstance(answer, Answer)
    rows = [tuple(float(v) if isinstance(v, Decimal) else v for v in row) for row in answer.table.rows]
    assert rows == expected
