"""The PostgreSQL backend: what comes back is exact, nothing is changed, and a stopped call stays stopped."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import date, datetime
from decimal import Decimal

import psycopg
import pytest

from dpsql.effort import Cancellation
from dpsql.engines.base import Engine
from dpsql.engines.postgres.connections import MOST_CONNECTIONS
from dpsql.engines.postgres.engine import PostgresEngine
from dpsql.errors import Cancelled, EngineFailed, Error, InternalError, PolicyError, SchemaChanged
from dpsql.lowering.query import EngineQuery
from dpsql.tables import ExactTable
from dpsql.types import BIGINT, BOOLEAN, DATE, DOUBLE, NUMERIC, TEXT, TIMESTAMP, TIMESTAMPTZ, decimal, integer
from grammar_tests.servers import Server

SETUP = """
CREATE TABLE people (id integer PRIMARY KEY, name text, income bigint);
INSERT INTO people VALUES (1, 'Zoë', 10), (2, 'O''Hara', 20), (3, NULL, 30);
CREATE SCHEMA other;
CREATE TABLE other."odd ""name" (
    a integer NOT NULL, b integer NOT NULL, c integer, UNIQUE (a, b), UNIQUE (a, c), UNIQUE (c)
);
CREATE TYPE mood AS ENUM ('sad', 'happy');
CREATE DOMAIN age AS integer CHECK (VALUE >= 0);
CREATE TABLE kinds (
    f_bool boolean NOT NULL, f_small smallint, f_int integer, f_big bigint, f_dec numeric(20, 4), f_numeric numeric,
    f_wide numeric(60, 2), f_shifted numeric(5, 4), f_real real, f_double double precision, f_text text,
    f_varchar varchar(5), f_char char(5), f_uuid uuid, f_enum mood, f_domain age, f_date date, f_ts timestamp,
    f_ts0 timestamp(0), f_tz timestamptz, f_time time, f_bytes bytea, f_json jsonb, f_list integer[],
    f_span interval, f_money money
);
CREATE TABLE keys (a integer, b integer NOT NULL, c integer NOT NULL, d integer, e integer, f integer, g text);
CREATE UNIQUE INDEX one ON keys (a);
CREATE UNIQUE INDEX two ON keys (b, c);
CREATE UNIQUE INDEX nullable ON keys (a, c);
CREATE UNIQUE INDEX expression ON keys ((b + c));
CREATE UNIQUE INDEX partial ON keys (d) WHERE d > 0;
CREATE UNIQUE INDEX covering ON keys (e) INCLUDE (f);
CREATE INDEX plain ON keys (f);
ALTER TABLE keys ADD CONSTRAINT later UNIQUE (g) DEFERRABLE INITIALLY IMMEDIATE;
CREATE TABLE parents (id integer PRIMARY KEY);
CREATE TABLE children () INHERITS (parents);
CREATE TABLE parts (id integer PRIMARY KEY, x integer) PARTITION BY RANGE (id);
CREATE TABLE part PARTITION OF parts FOR VALUES FROM (0) TO (10);
CREATE VIEW adults AS SELECT id, name FROM people;
CREATE MATERIALIZED VIEW frozen AS SELECT id FROM people;
CREATE TABLE guarded (id integer PRIMARY KEY);
ALTER TABLE guarded ENABLE ROW LEVEL SECURITY;
CREATE TABLE hospitals (
    id integer, code uuid, opened date, seen timestamptz, beds numeric(5, 1), size mood, free numeric
);
INSERT INTO hospitals VALUES
    (1, '00000000-0000-0000-0000-000000000001', '1999-12-31', '2020-01-01 02:00+02', 12.5, 'sad', 1e400),
    (2, NULL, NULL, NULL, 'NaN', NULL, 'NaN'), (3, NULL, NULL, NULL, NULL, 'happy', 0.5);
CREATE TABLE calendar (day date);
INSERT INTO calendar VALUES ('infinity');
CREATE ROLE reader_{0} LOGIN;
GRANT USAGE ON SCHEMA public, other TO reader_{0};
GRANT SELECT ON ALL TABLES IN SCHEMA public, other TO reader_{0};
"""

# Runs for hours unless it is stopped.
ENDLESS = "SELECT count(*) FROM generate_series(1, 1000000000000) AS r(x) WHERE (x * x) % 7 = 3"
QUICK = EngineQuery("SELECT count(*) FROM public.people", 0)


class Place:
    """A database of its own, with a role that may only read."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.name = f"clinic_{uuid.uuid4().hex[:8]}"
        self.role = f"reader_{self.name}"
        server.create_database(self.name)
        with server.connect(self.name) as connection:
            connection.execute(SETUP.replace("{0}", self.name))

    def open(self, *, user: str | None = None) -> PostgresEngine:
        return PostgresEngine(self.server.url(self.name, user=user or self.role), memory="64MB", threads=1)

    def change(self, sql: str) -> None:
        with self.server.connect(self.name) as connection:
            connection.execute(sql)

    def running(self, text: str) -> int:
        """How many queries with this text the server works on."""
        with self.server.connect() as connection:
            row = connection.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND state = 'active' AND query LIKE %s",
                [self.name, f"%{text}%"],
            ).fetchone()
        assert row is not None
        return int(row[0])


@pytest.fixture(scope="module")
def place(server: Server) -> Place:
    return Place(server)


@pytest.fixture(scope="module")
def engine(place: Place) -> Iterator[PostgresEngine]:
    with closing(place.open()) as opened:
        opened.schema()
        yield opened


@pytest.fixture
def fresh(server: Server) -> Place:
    """For tests that change the schema."""
    return Place(server)


def run(engine: Engine, sql: str, keys: int = 0, **parameters: object) -> ExactTable:
    (table,) = engine.execute([EngineQuery(sql, keys, parameters)], timeout=30)
    return table


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("it did not happen")
        time.sleep(0.01)


# --- values ---


@pytest.mark.parametrize(
    ("type_name", "values"),
    [
        ("boolean", [True, False, None]),
        ("bigint", [2**63 - 1, -(2**63), None]),
        ("numeric", [Decimal("1234567890123456.7891"), Decimal("-0.0001"), Decimal(10**38 - 1), None]),
        ("double precision", [0.1, -1e308, 5e-324, None]),
        ("text", ["", "Zoë O'Hara 🦆", 'quote " \\ \n', "NULL", "$salt", None]),
        ("date", [date(1, 1, 1), date(2024, 2, 29), date(9999, 12, 31), None]),
        ("timestamp", [datetime(1, 1, 1), datetime(2024, 2, 29, 1, 2, 3, 456789), None]),
    ],
)
def test_keys_come_back_unchanged(engine: PostgresEngine, type_name: str, values: list[object]) -> None:
    sql = (
        f"SELECT k, CAST(i AS bigint) FROM unnest(CAST($values AS {type_name}[])) WITH ORDINALITY AS v(k, i) ORDER BY i"
    )
    table = run(engine, sql, keys=1, values=values)
    keys = [key[0] for key in table.keys]
    assert keys == values
    assert [type(key) for key in keys] == [type(value) for value in values]
    assert table.sums[0].tolist() == list(range(1, len(values) + 1))


@pytest.mark.parametrize("expression", ["sum(income)", "1.5", "1", "'1'", "count(*)::double precision"])
def test_a_sum_of_another_type_is_never_converted(engine: PostgresEngine, expression: str) -> None:
    with pytest.raises(InternalError, match="not a 64-bit integer"):
        run(engine, f"SELECT {expression} FROM public.people")


def test_a_sum_is_never_null(engine: PostgresEngine) -> None:
    with pytest.raises(InternalError, match="NULL"):
        run(engine, "SELECT x FROM (VALUES (1::bigint), (NULL)) AS v(x)")


def test_a_key_of_an_unknown_type_is_refused(engine: PostgresEngine) -> None:
    with pytest.raises(InternalError, match="key of a type"):
        run(engine, "SELECT ARRAY[1], 1::bigint", keys=1)


def test_parameters_in_quotation_marks_are_none(engine: PostgresEngine) -> None:
    sql = """SELECT '$p '' $p', "$p", CAST($p AS bigint) FROM (SELECT CAST('x$p' AS text) AS "$p") AS t"""
    table = run(engine, sql, keys=2, p=7)
    assert (table.keys, table.sums[0].tolist()) == ((("$p ' $p", "x$p"),), [7])
    with pytest.raises(InternalError, match="no value"):
        run(engine, "SELECT CAST($missing AS bigint)", other=1)


def test_queries_of_one_call_see_one_snapshot(fresh: Place) -> None:
    with closing(fresh.open()) as engine:
        engine.schema()

        slow = EngineQuery(f"{QUICK.sql}, pg_sleep(0.5)", 0)
        timer = threading.Timer(0.2, fresh.change, ["INSERT INTO people SELECT max(id) + 1 FROM people"])
        timer.start()
        tables = engine.execute([QUICK, slow, QUICK], timeout=30)
        timer.join()
        assert tables[0].sums[0].tolist() == tables[2].sums[0].tolist()
        assert engine.execute([QUICK], timeout=30)[0].sums[0].tolist() == [4]


# --- what a query cannot do ---


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO public.people VALUES (9)",
        "CREATE TABLE public.t (a int)",
        "CREATE TEMP TABLE t (a int)",
        "COPY public.people TO PROGRAM 'cat'",
        "SELECT nextval('public.s')",
        "SELECT 1::bigint; SELECT 2::bigint",
        "SELECT set_config('transaction_read_only', 'off', false), 1::bigint",
        "SELECT count(*) FROM people",  # names are looked up nowhere but in the schema they name
    ],
)
def test_a_transaction_only_reads_and_only_what_is_named(place: Place, sql: str) -> None:
    """Also where the role might do more."""
    place.change("CREATE SEQUENCE IF NOT EXISTS s")
    with closing(place.open(user="postgres")) as engine, pytest.raises(Error):
        run(engine, sql)
    with closing(place.open()) as engine:
        assert run(engine, QUICK.sql).sums[0].tolist() == [3]


def test_every_transaction_has_the_settings(place: Place) -> None:
    place.change(f"ALTER ROLE {place.role} SET TimeZone = 'Europe/Berlin'")
    place.change(f"ALTER ROLE {place.role} SET row_security = on")
    with closing(place.open()) as engine:
        shown = {
            name: run(engine, f"SELECT current_setting('{name}'), 1::bigint", keys=1).keys[0][0]
            for name in (
                "transaction_isolation",
                "transaction_read_only",
                "TimeZone",
                "DateStyle",
                "row_security",
                "search_path",
                "statement_timeout",
                "work_mem",
                "max_parallel_workers_per_gather",
            )
        }
    assert shown == {
        "transaction_isolation": "repeatable read",
        "transaction_read_only": "on",
        "TimeZone": "UTC",
        "DateStyle": "ISO, YMD",
        "row_security": "off",
        "search_path": "pg_catalog, pg_temp",
        "statement_timeout": "30s",
        "work_mem": "16MB",
        "max_parallel_workers_per_gather": "0",
    }


# --- opening ---


@pytest.mark.parametrize("url", ["postgresql://user:s3cret@host:port/db", "postgresql://u:s3cret@h/d?colour=red"])
def test_an_address_that_cannot_be_read_is_not_repeated(url: str, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(PolicyError) as caught:
        PostgresEngine(url, memory="64MB", threads=1)
    assert caught.value.__context__ is None
    assert "s3cret" not in f"{caplog.text} {caught.value} {caught.value.hint}"


def test_another_encoding_is_refused(server: Server) -> None:
    name = f"latin_{uuid.uuid4().hex[:8]}"
    with server.connect() as connection:
        connection.execute(f"CREATE DATABASE {name} ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    with pytest.raises(PolicyError, match="encoding LATIN1"):
        PostgresEngine(server.url(name), memory="64MB", threads=1)


# --- stopping ---


def test_a_call_that_waits_for_a_lock_is_stopped(fresh: Place) -> None:
    with closing(fresh.open()) as engine, psycopg.connect(fresh.server.url(fresh.name)) as other:
        engine.schema()
        other.execute("LOCK TABLE people IN ACCESS EXCLUSIVE MODE")
        query = EngineQuery(QUICK.sql, 0, sources=(("public", "people"),))
        with pytest.raises(Cancelled):
            engine.execute([query], timeout=0.2)
        other.rollback()
        assert engine.execute([query], timeout=30)[0].sums[0].tolist() == [3]


def test_calls_wait_for_a_connection_and_can_be_stopped_while_they_do(place: Place) -> None:
    with closing(place.open()) as engine:
        switch = Cancellation()
        outcomes: list[str] = []

        def ask() -> None:
            try:
                engine.execute([EngineQuery(ENDLESS, 0)], timeout=60, cancellation=Watching(switch))
            except Error as error:
                outcomes.append(str(error))

        switches: list[Cancellation] = []

        class Watching(Cancellation):
            def __init__(self, _: Cancellation) -> None:
                super().__init__()
                switches.append(self)

        threads = [threading.Thread(target=ask) for _ in range(MOST_CONNECTIONS + 2)]
        for thread in threads:
            thread.start()
        wait_until(lambda: place.running("generate_series(1, 1000000000000)") == MOST_CONNECTIONS)
        wait_until(lambda: len(switches) == len(threads))
        for each in switches:
            each.cancel()
        for thread in threads:
            thread.join()
        assert outcomes == ["canceling statement due to user request"] * len(threads)


# --- a server that goes away ---


def test_connections_that_the_server_dropped_are_replaced(place: Place, engine: PostgresEngine) -> None:
    assert run(engine, QUICK.sql).sums[0].tolist() == [3]
    with place.server.connect() as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s AND usename = %s",
            [place.name, place.role],
        )
    assert run(engine, QUICK.sql).sums[0].tolist() == [3]


def test_a_closed_backend_keeps_no_connection(place: Place) -> None:
    engine = place.open()
    run(engine, QUICK.sql)
    engine.close()
    run(engine, QUICK.sql)  # calls that still run may finish
    assert engine._connections._idle == []


# --- the catalog ---


def test_types_are_mapped(engine: PostgresEngine) -> None:
    columns = engine.schema().tables["public", "kinds"].columns
    assert {name: column.type for name, column in columns.items()} == {
        "f_bool": BOOLEAN,
        "f_small": integer(5),
        "f_int": integer(10),
        "f_big": BIGINT,
        "f_dec": decimal(20, 4),
        "f_numeric": NUMERIC,
        "f_wide": NUMERIC,
        "f_shifted": decimal(5, 4),
        "f_real": DOUBLE,
        "f_double": DOUBLE,
        "f_text": TEXT,
        "f_varchar": TEXT,
        "f_char": TEXT,
        "f_uuid": TEXT,
        "f_enum": TEXT,
        "f_domain": integer(10),
        "f_date": DATE,
        "f_ts": TIMESTAMP,
        "f_ts0": TIMESTAMP,
        "f_tz": TIMESTAMPTZ,
        "f_time": None,
        "f_bytes": None,
        "f_json": None,
        "f_list": None,
        "f_span": None,
        "f_money": None,
    }
    assert list(columns)[:3] == ["f_bool", "f_small", "f_int"]
    assert not columns["f_bool"].nullable
    assert columns["f_small"].nullable
    assert columns["f_list"].native == "integer[]"


def test_a_column_that_is_computed_when_read_is_unknown(fresh: Place) -> None:
    """Its expression may fail for some rows. One that is stored was computed before."""
    stored = "CREATE TABLE made (id integer, x integer, y integer GENERATED ALWAYS AS (100 / x) STORED)"
    fresh.change(stored)
    with closing(fresh.open()) as engine:
        assert engine.schema().tables["public", "made"].columns["y"].type == integer(10)
    with fresh.server.connect() as connection:
        if connection.info.server_version < 180000:
            return
    fresh.change(f"DROP TABLE made; {stored.replace('STORED', 'VIRTUAL')}")
    with closing(fresh.open()) as engine:
        assert engine.schema().tables["public", "made"].columns["y"].type is None


def test_schemas_views_and_uniqueness_are_read(engine: PostgresEngine) -> None:
    schema = engine.schema()
    tables = schema.tables
    assert schema.default_schema == "public"
    assert ("other", 'odd "name') in tables
    assert not any(name.startswith("pg_") or name == "information_schema" for name, _ in tables)
    assert tables["public", "people"].unique == {frozenset({"id"})}
    assert [tables["public", name].is_view for name in ("people", "adults", "frozen")] == [False, True, True]
    # (a, c) is not among them: rows that have NULL in c may repeat a.
    assert tables["other", 'odd "name'].unique == {frozenset({"a", "b"}), frozenset({"c"})}
    # Neither a partial index nor one over an expression, nor a constraint that may be checked later.
    assert tables["public", "keys"].unique == {frozenset({"a"}), frozenset({"b", "c"}), frozenset({"e"})}
    # Children repeat their parents' keys; partitions cannot.
    assert tables["public", "parents"].unique == frozenset()
    assert tables["public", "parts"].unique == {frozenset({"id"})}


def test_a_foreign_table_is_no_table_of_ours_nor_is_one_that_has_such_parts(fresh: Place) -> None:
    """What the server sends to another one is not what was generated, and what fails there is not total."""
    fresh.change(
        "CREATE FOREIGN DATA WRAPPER far; CREATE SERVER away FOREIGN DATA WRAPPER far;"
        "CREATE FOREIGN TABLE alone (id integer) SERVER away;"
        "CREATE TABLE years (id integer, y integer) PARTITION BY LIST (y);"
        "CREATE TABLE newer PARTITION OF years FOR VALUES IN (2, 3) PARTITION BY LIST (y);"
        "CREATE FOREIGN TABLE third PARTITION OF newer FOR VALUES IN (3) SERVER away;"
        "CREATE TABLE heirs (id integer); CREATE FOREIGN TABLE heir () INHERITS (heirs) SERVER away"
    )
    with closing(fresh.open()) as engine:
        tables = engine.schema().tables
    for name in ("alone", "years", "newer", "third", "heirs"):
        obstacle = tables["public", name].obstacle
        assert obstacle is not None and "foreign" in obstacle, name
    assert tables["public", "parts"].obstacle is None and tables["public", "parents"].obstacle is None


def test_nulls_that_count_as_equal_make_a_key_unique(fresh: Place) -> None:
    fresh.change("CREATE TABLE pairs (a integer, b integer, UNIQUE NULLS NOT DISTINCT (a, b))")
    with closing(fresh.open()) as engine:
        assert engine.schema().tables["public", "pairs"].unique == {frozenset({"a", "b"})}


def test_an_index_that_failed_to_be_built_enforces_nothing(fresh: Place) -> None:
    fresh.change("CREATE TABLE twice (id integer); INSERT INTO twice VALUES (1), (1)")
    with pytest.raises(psycopg.errors.UniqueViolation):
        fresh.change("CREATE UNIQUE INDEX CONCURRENTLY half ON twice (id)")
    with closing(fresh.open()) as engine:
        assert engine.schema().tables["public", "twice"].unique == frozenset()


def test_row_security_is_an_obstacle_to_whom_it_applies(place: Place) -> None:
    with closing(place.open()) as engine:
        obstacle = engine.schema().tables["public", "guarded"].obstacle
        assert obstacle is not None
        assert "row-level security" in obstacle
        with pytest.raises(EngineFailed):
            run(engine, "SELECT count(*) FROM public.guarded")
    with closing(place.open(user="postgres")) as engine:
        assert engine.schema().tables["public", "guarded"].obstacle is None


def test_a_public_table_is_read_by_column_up_to_one_row_past_the_limit(engine: PostgresEngine) -> None:
    source = ("public", "hospitals")
    assert engine.read_public(source, ["code", "opened", "seen", "beds", "size", "free"], limit=1) == [
        ["00000000-0000-0000-0000-000000000001", None],
        [date(1999, 12, 31), None],
        [datetime(2020, 1, 1), None],
        [Decimal("12.5"), None],
        ["sad", None],
        [None, None],
    ]
    assert engine.read_public(source, ["free"], limit=9) == [[None, None, 0.5]]


def test_a_public_date_python_cannot_hold_is_reported(engine: PostgresEngine) -> None:
    with pytest.raises(PolicyError, match='public column "day"'):
        engine.read_public(("public", "calendar"), ["day"], limit=9)


# --- a schema that changes ---

PEOPLE = EngineQuery(QUICK.sql, 0, sources=(("public", "people"),))


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE people ALTER income TYPE numeric",
        "ALTER TABLE people ALTER name TYPE varchar(50)",
        "ALTER TABLE people DROP COLUMN income",
        "ALTER TABLE people DROP COLUMN income, ADD COLUMN income bigint",
        "ALTER TABLE people DROP CONSTRAINT people_pkey",
        "CREATE TABLE heirs () INHERITS (people)",
        "ALTER TABLE people RENAME TO folks; CREATE TABLE people (LIKE folks INCLUDING ALL)",
        "DROP TABLE people CASCADE; CREATE VIEW people AS SELECT 1 AS id, 'x'::text AS name, 2::bigint AS income",
        "DROP TABLE people CASCADE",
        "ALTER TABLE people ENABLE ROW LEVEL SECURITY",
    ],
)
def test_a_table_that_changed_is_refused_until_the_schema_is_read_again(fresh: Place, change: str) -> None:
    fresh.change("DROP VIEW adults; DROP MATERIALIZED VIEW frozen")
    with closing(fresh.open()) as engine:
        engine.schema()
        engine.execute([PEOPLE], timeout=30)
        engine.ready(PEOPLE.sources, timeout=30)
        fresh.change(change + f"; GRANT SELECT ON ALL TABLES IN SCHEMA public TO {fresh.role}")
        with pytest.raises((SchemaChanged, EngineFailed)):
            engine.execute([PEOPLE], timeout=30)


def test_a_change_is_reported_before_the_next_query_is_paid(fresh: Place) -> None:
    with closing(fresh.open()) as engine:
        engine.schema()
        fresh.change("ALTER TABLE people ALTER income TYPE numeric")
        with pytest.raises(SchemaChanged, match='table "people" was changed') as caught:
            engine.execute([PEOPLE], timeout=30)
        assert caught.value.hint is not None
        assert "dpsql check" in caught.value.hint
        with pytest.raises(SchemaChanged):
            engine.ready(PEOPLE.sources, timeout=30)
        engine.schema()
        engine.ready(PEOPLE.sources, timeout=30)
        assert engine.execute([PEOPLE], timeout=30)[0].sums[0].tolist() == [3]


def test_what_does_not_matter_may_change(fresh: Place) -> None:
    with closing(fresh.open()) as engine:
        engine.schema()
        fresh.change("ALTER TABLE people ADD COLUMN more text; CREATE INDEX i ON people (income); DROP TABLE guarded")
        assert engine.execute([PEOPLE], timeout=30)[0].sums[0].tolist() == [3]


# --- warnings ---


def test_a_role_that_may_only_read_gives_no_warning(engine: PostgresEngine) -> None:
    assert engine.warnings([("public", "people")]) == []


def test_what_the_owner_should_know_is_said(fresh: Place) -> None:
    fresh.change(f"GRANT INSERT ON people TO {fresh.role}; REVOKE SELECT ON keys FROM {fresh.role}")
    fresh.change(f"REVOKE USAGE ON SCHEMA other FROM {fresh.role}")
    sources = [("public", name) for name in ("people", "keys", "parents", "part")] + [("other", 'odd "name')]
    with closing(fresh.open()) as engine:
        found = engine.warnings(sources)
    assert any("may change" in warning and "public.people" in warning for warning in found)
    assert any(f"GRANT SELECT ON public.keys TO {fresh.role}" in warning for warning in found)
    assert any("inherit from it" in warning and "public.parents" in warning for warning in found)
    assert any("part of another table" in warning and "public.part" in warning for warning in found)
    assert any(f"GRANT USAGE ON SCHEMA other TO {fresh.role}" in warning for warning in found)
    with closing(fresh.open(user="postgres")) as engine:
        (warning, *_) = engine.warnings([("public", "guarded")])
    assert "superuser" in warning
