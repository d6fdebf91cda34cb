"""Time zones: DuckDB, PostgreSQL and Python compute what PostgreSQL says, around every kind of change.

PostgreSQL's answers are those of its own zone data. Versions differ in a few changes of recent and coming years: only
those changes are asked about that both know, and each zone must keep nearly all of its own.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pytest

from dpsql.answering.open_dataset import build_dataset, open_backend
from dpsql.compliance.lab import ZeroNoise
from dpsql.lowering.dialect import Dialect
from dpsql.lowering.duckdb_dialect import DUCKDB
from dpsql.lowering.postgres_dialect import POSTGRES
from dpsql.lowering.relations import RelationWriter
from dpsql.plan.constants import NotConstant, evaluate
from dpsql.plan.nodes import Plan, Project, Scan
from dpsql.plan.zones import EPOCH, known_zone
from dpsql.policy.load import load
from dpsql.policy.model import Catalog
from dpsql.sql.clock import Clock
from dpsql.sql.parse import parse
from dpsql.sql.resolve import resolve
from dpsql.types import Kind, Value
from grammar_tests.servers import Server

ZONES = (
    "Pacific/Auckland", "Europe/Berlin", "America/New_York", "Asia/Kathmandu", "Australia/Lord_Howe",
    "Africa/Casablanca", "Pacific/Apia", "America/Santiago", "Europe/Dublin", "Asia/Tehran", "America/Nuuk",
    "Africa/Cairo", "Antarctica/Troll", "America/St_Johns", "Africa/Monrovia", "Asia/Manila", "UTC",
)  # fmt: skip

EXPRESSIONS = """
w AT TIME ZONE '{zone}'
ts AT TIME ZONE '{zone}'
timezone('{zone}', d)
ts AT TIME ZONE 'UTC' AT TIME ZONE '{zone}'
date_trunc('day', w AT TIME ZONE '{zone}')
date_trunc('day', ts AT TIME ZONE 'UTC' AT TIME ZONE '{zone}') AT TIME ZONE '{zone}'
date_trunc('minute', w)
date_trunc('hour', w)
date_trunc('day', w)
date_trunc('week', w)
date_trunc('month', w)
date_trunc('quarter', w)
date_trunc('year', w)
date_trunc('hour', w, '{zone}')
date_trunc('day', w, '{zone}')
date_trunc('month', d)
date_trunc('hour', d)
EXTRACT(hour FROM w)
EXTRACT(minute FROM w)
EXTRACT(dow FROM w)
EXTRACT(epoch FROM w)
EXTRACT(epoch FROM w - ts)
w::date
w::timestamp
ts::timestamptz
d::timestamptz
w::text
to_char(w, 'YYYY-MM-DD HH24:MI:SS')
w + INTERVAL '1 day'
w - INTERVAL '1 month'
w + INTERVAL '36 hours'
w - INTERVAL '1 month 2 days 3 hours'
d + INTERVAL '1 day'
w < ts
ts <= w
w = d
w >= '2021-03-28 02:30:00'
w >= TIMESTAMP '2021-10-31 02:30:00'
EXTRACT(year FROM AGE(TIMESTAMPTZ '2030-01-01 00:00:00+00', w))
date_bin('15 minutes', w, TIMESTAMPTZ '2001-01-01')
""".strip().splitlines()

_POLICY = """
[database]
url = "{url}"
ledger = "{ledger}"
[privacy]
epsilon = 9000.0
[tables.events]
unit = "id"
[tables.events.columns]
w = {{ min = 1800-01-01, max = 2900-12-31 }}
ts = {{ min = 1800-01-01, max = 2900-12-31 }}
d = {{ min = 1800-01-01, max = 2900-12-31 }}
[tables.narrow]
unit = "id"
[tables.narrow.columns]
w = {{ min = 2021-01-01, max = 2021-12-31 }}
ts = {{ min = 2021-01-01, max = 2021-12-31 }}
d = {{ min = 2021-01-01, max = 2021-12-31 }}
[tables.free]
unit = "id"
[tables.free.columns]
w = {{}}
ts = {{}}
d = {{}}
[users.alice]
"""
_TABLES = "CREATE SCHEMA IF NOT EXISTS main;" + "".join(
    f"CREATE TABLE main.{name} (id integer, w timestamp with time zone, ts timestamp, d date);"
    for name in ("events", "narrow", "free")
)


class Places:
    """The same empty tables on both engines, and PostgreSQL to tell the truth."""

    def __init__(self, server: Server, folder: Path) -> None:
        database = f"zones_{uuid.uuid4().hex[:8]}"
        server.create_database(database)
        with duckdb.connect(str(folder / "zones.duckdb")) as connection:
            connection.execute(_TABLES)
        self.postgres = psycopg.connect(server.url(database), autocommit=True)
        # In PostgreSQL's own schema, and under the name of DuckDB's, for the SQL of one catalog.
        self.postgres.execute(_TABLES + _TABLES.replace("main.", "public."))
        self.catalog = _catalog(folder, f"duckdb:///{folder / 'zones.duckdb'}")
        assert _types(self.catalog) == _types(_catalog(folder, server.url(database)))
        self.duckdb = duckdb.connect(":memory:")
        self.duckdb.execute("SET TimeZone = 'UTC'")
        self.duckdb.execute(_TABLES)

    def fill(self, rows: Sequence[tuple[datetime, datetime, date]]) -> None:
        self.postgres.execute("SET TimeZone = 'UTC'")
        for table in ("events", "narrow", "free"):
            self.postgres.execute(f"TRUNCATE main.{table}")
            self.duckdb.execute(f"DELETE FROM main.{table}")
            inside = [row for row in rows if table != "narrow" or all(part.year == 2021 for part in row)]
            values = [(i, *row) for i, row in enumerate(inside)]
            with self.postgres.cursor() as cursor:
                cursor.executemany(f"INSERT INTO main.{table} VALUES (%s, %s, %s, %s)", values)
            written = ", ".join(f"({i}, '{at}+00', '{ts}', '{d}')" for i, at, ts, d in values)
            self.duckdb.execute(f"INSERT INTO main.{table} VALUES {written}")

    def close(self) -> None:
        self.postgres.close()
        self.duckdb.close()


def _catalog(folder: Path, url: str) -> Catalog:
    path = folder / "dpsql.toml"
    path.write_text(_POLICY.format(url=url, ledger=f"{uuid.uuid4().hex}.ledger"))
    policy = load(path)
    with closing(build_dataset(policy, open_backend(policy), ZeroNoise(), new_ledger=True)) as dataset:
        return dataset.catalog


def _types(catalog: Catalog) -> list[Kind]:
    return [column.type.kind for column in catalog.tables["events"].columns.values()]


@pytest.fixture(scope="module")
def places(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    with closing(Places(server, tmp_path_factory.mktemp("zones"))) as made:
        yield made


def test_columns_are_instants(places: Places) -> None:
    assert _types(places.catalog) == [Kind.TIMESTAMPTZ, Kind.TIMESTAMP, Kind.DATE]


@pytest.mark.parametrize("zone", ZONES)
def test_engines_and_python_compute_as_postgresql(places: Places, zone: str) -> None:
    rows = _around_changes(places, zone)
    places.fill(rows)
    parts = [part.format(zone=zone) for part in EXPRESSIONS]
    asked = ", ".join(f"{part} AS e{i}" for i, part in enumerate(parts))
    for table in ("events", "narrow", "free"):
        plan = _plan(places.catalog, f"SELECT {asked} FROM {table}", zone)
        truth = _truth(places, plan, parts, table, zone)
        assert len(truth) > (3 if table == "narrow" and known_zone(zone).leaving.changes else 0)
        for name, found in (
            ("duckdb", places.duckdb.execute(_sql(DUCKDB, plan)).fetchall()),
            ("postgres", _in_utc(places, _sql(POSTGRES, plan))),
            ("python", _in_python(plan, [row for row in rows if table != "narrow" or _is_narrow(row)])),
        ):
            by_owner = sorted(found)
            for row, (owner, *values) in zip(truth, by_owner, strict=True):
                for part, value, expected in zip(parts, values, row, strict=True):
                    assert value is NotImplemented or _same(value, expected), (
                        f"{name}, {table}, {zone}: {part} of {rows[owner]} is {value}, in PostgreSQL {expected}"
                    )


def _plan(catalog: Catalog, sql: str, zone: str) -> Project:
    plan = resolve(parse(sql), catalog, clock=Clock(datetime(2021, 6, 1), known_zone(zone)))
    assert isinstance(plan, Project)
    return plan


def _sql(dialect: Dialect, plan: Plan) -> str:
    return RelationWriter(dialect, private=True).relation(plan)


def _in_utc(places: Places, sql: str) -> list[tuple[Any, ...]]:
    places.postgres.execute("SET TimeZone = 'UTC'")
    return places.postgres.execute(sql.encode()).fetchall()


def _in_python(plan: Project, rows: Sequence[tuple[datetime, datetime, date]]) -> list[tuple[Any, ...]]:
    assert isinstance(plan.child, Scan)
    fields = [field.id for field in plan.child.fields]
    columns = list(plan.child.columns)
    found: list[tuple[Any, ...]] = []
    for number, row in enumerate(rows):
        given: dict[str, Value] = dict(zip(("id", "w", "ts", "d"), (number, *row), strict=True))
        env: dict[int, Value] = {field: given[column] for field, column in zip(fields, columns, strict=True)}
        values: list[Any] = [number]
        for _, value in plan.items:
            try:
                values.append(evaluate(value, env))
            except NotConstant:
                values.append(NotImplemented)
        found.append(tuple(values))
    return found


def _truth(places: Places, plan: Project, parts: Sequence[str], table: str, zone: str) -> list[tuple[Any, ...]]:
    places.postgres.execute(f"SET TimeZone = '{zone}'")
    shown = [
        f"({part}) AT TIME ZONE 'UTC'" if value.type.kind is Kind.TIMESTAMPTZ else part
        for part, (_, value) in zip(parts, plan.items, strict=True)
    ]
    return places.postgres.execute(f"SELECT {', '.join(shown)} FROM main.{table} ORDER BY id".encode()).fetchall()


def _same(ours: object, theirs: object) -> bool:
    if isinstance(ours, int | float | Decimal) and isinstance(theirs, int | float | Decimal):
        return abs(float(ours) - float(theirs)) < 1e-5
    return ours == theirs


def _is_narrow(row: tuple[datetime, datetime, date]) -> bool:
    return all(part.year == 2021 for part in row)


_AROUND = [
    timedelta(0), timedelta(microseconds=-1), timedelta(minutes=-20), timedelta(minutes=20), timedelta(minutes=90),
    timedelta(hours=-1), timedelta(hours=1), timedelta(hours=-23), timedelta(hours=12), timedelta(days=1),
]  # fmt: skip


def _around_changes(places: Places, name: str) -> list[tuple[datetime, datetime, date]]:
    """Instants, and clock times, around changes of a zone that PostgreSQL knows as well; some at any time."""
    zone, chance = known_zone(name), random.Random(name)
    times = [at for at, _ in zone.leaving.changes]
    late = [at for at in times if at > 2_500_000_000]
    recent = [at for at in times if datetime(2021, 1, 1) <= EPOCH + timedelta(seconds=at) < datetime(2022, 1, 1)]
    asked = sorted({*chance.sample(times, min(10, len(times))), *late[-2:], *times[-2:], *recent})
    known = [at for at in asked if _agrees(places, name, at)]
    assert len(known) >= 0.8 * len(asked), name
    rows = []
    for at in known:
        moment = EPOCH + timedelta(seconds=at)
        before, after = (moment + timedelta(seconds=zone.leaving.at(second)) for second in (at - 1, at))
        for distance in _AROUND:
            local = chance.choice((before, after)) + distance
            rows.append((moment + distance, local, (local + timedelta(hours=1)).date()))
    for _ in range(15):
        moment = datetime(1900, 1, 1) + timedelta(seconds=chance.randrange(6_000_000_000))
        year_later = datetime(2021, 1, 2) + timedelta(minutes=chance.randrange(500_000))
        if _agrees(places, name, (moment - EPOCH) // timedelta(seconds=1)):
            rows.append((moment, moment + timedelta(hours=5), moment.date()))
        if _agrees(places, name, (year_later - EPOCH) // timedelta(seconds=1)):
            rows.append((year_later, year_later, year_later.date()))
    return rows


def _agrees(places: Places, name: str, at: int) -> bool:
    """Whether PostgreSQL's zone data says the same of some days around a moment."""
    zone = known_zone(name)
    seconds = [at + hours * 3600 - 1 + more for hours in (-800, -48, -24, 0, 24, 48, 800) for more in (0, 1)]
    found = places.postgres.execute(
        "SELECT extract(epoch FROM (timestamp 'epoch' + s * interval '1 second') AT TIME ZONE 'UTC' AT TIME ZONE %s)"
        " - s FROM unnest(%s::bigint[]) AS s",
        [name, seconds],
    ).fetchall()
    return [int(offset) for (offset,) in found] == [zone.leaving.at(second) for second in seconds]
