"""No way to read a declared table in the twin gives an answer: PostgreSQL itself refuses, with 42501."""

from __future__ import annotations

import psycopg
import pytest

from dpsql.server.twin import Twin
from tests.twin.conftest import ODD_NAME, Connection
from tests.twin.reach import connect, sqlstate, value

READS = [
    "SELECT * FROM people",
    "SELECT count(*) FROM people",
    "SELECT 1 FROM people",
    "SELECT FROM people",
    "SELECT count(*) FROM people WHERE false",
    "SELECT * FROM people LIMIT 0",
    "SELECT ctid FROM people",
    "SELECT tableoid FROM people",
    "SELECT people FROM people",
    "SELECT id FROM people",
    "SELECT code FROM states",
    "SELECT count(*) FROM main.people",
    "SELECT count(*) FROM ONLY public.people",
    "SELECT EXISTS (SELECT FROM people)",
    "SELECT (SELECT max(age) FROM people)",
    "SELECT * FROM (VALUES (1)) AS v, LATERAL (SELECT age FROM people) AS p",
    "SELECT * FROM people TABLESAMPLE SYSTEM (1)",
    "SELECT * FROM people FOR UPDATE",
    "SELECT * FROM people FOR KEY SHARE",
    "WITH p AS MATERIALIZED (SELECT * FROM people) SELECT count(*) FROM p",
    "TABLE people",
    "COPY people TO STDOUT",
    "COPY people (age) TO STDOUT",
    "COPY (SELECT age FROM people) TO STDOUT",
    "EXPLAIN SELECT * FROM people",
    "EXPLAIN ANALYZE SELECT * FROM people",
    "PREPARE p AS SELECT count(*) FROM people; EXECUTE p",
    "BEGIN; DECLARE c CURSOR FOR SELECT count(*) FROM people; FETCH c",
    "CREATE TEMP TABLE t AS SELECT * FROM people",
    "CREATE TEMP TABLE t (LIKE people)",
    "CREATE TEMP TABLE t () INHERITS (people)",
    "SELECT * INTO TEMP t FROM people",
    "CREATE TEMP VIEW v AS SELECT count(*) FROM people; SELECT * FROM v",
    "CREATE FUNCTION pg_temp.f() RETURNS bigint LANGUAGE sql AS 'SELECT count(*) FROM public.people'",
    "CREATE FUNCTION pg_temp.f() RETURNS bigint RETURN (SELECT count(*) FROM public.people)",
    "DO 'BEGIN PERFORM count(*) FROM people; END'",
    "SET row_security = off; SELECT count(*) FROM people",
    "SELECT * FROM ts_stat('SELECT to_tsvector(state) FROM people')",
    "SELECT ts_rewrite('a'::tsquery, 'SELECT state::tsquery, sex::tsquery FROM people')",
    "INSERT INTO people (id) VALUES (1) RETURNING *",
    "UPDATE people SET age = 1",
    "DELETE FROM people",
    "MERGE INTO people USING (VALUES (1)) AS v (a) ON id = a WHEN MATCHED THEN DO NOTHING",
    "TRUNCATE people",
    "BEGIN; LOCK TABLE people IN ACCESS SHARE MODE",
    "SELECT * FROM pg_statistic",
    "SELECT * FROM dpsql_internal.budget",
    "SELECT * FROM dpsql_internal.policy",
]


@pytest.mark.parametrize("query", READS)
@pytest.mark.parametrize("user", ["alice", ODD_NAME])
def test_is_refused(twin: Twin, user: str, query: str) -> None:
    with connect(twin, user) as connection:
        assert sqlstate(connection, query) == "42501"


@pytest.mark.parametrize(
    "call",
    ["query_to_xml('SELECT 1 FROM people'", "table_to_xml('people'", "schema_to_xml('public'", "database_to_xml("],
)
def test_as_xml_is_refused(alice: Connection, call: str) -> None:
    """Also by a PostgreSQL that was made without XML (0A000), as ours is."""
    arguments = ", ".join(("true", "true", "''"))
    separator = "" if call.endswith("(") else ", "
    assert sqlstate(alice, f"SELECT {call}{separator}{arguments})") in ("42501", "0A000")


def test_what_names_a_table_but_never_reads_it_says_nothing(alice: Connection) -> None:
    """PostgreSQL checks rights when it begins to read."""
    assert value(alice, "WITH p AS (SELECT * FROM people) SELECT 1") == 1
    alice.execute("CREATE TEMP TABLE t AS TABLE people WITH NO DATA")
    alice.execute("CREATE TEMP VIEW v AS TABLE people")
    assert sqlstate(alice, "INSERT INTO t TABLE people") == "42501"
    assert sqlstate(alice, "TABLE v") == "42501"


def test_the_list_would_be_answered_with_the_right_to_read(admin: Connection) -> None:
    """Else a query that is refused for another reason would prove nothing."""
    admin.execute("BEGIN")
    admin.execute("GRANT SELECT ON ALL TABLES IN SCHEMA public TO alice")
    admin.execute("SET LOCAL ROLE alice")
    assert value(admin, "SELECT count(*) FROM people") == 0
    admin.execute("ROLLBACK")


def test_describing_needs_no_right(alice: Connection) -> None:
    """Parse and Describe of a query on a declared table say PostgreSQL's own types."""
    columns = "id, age, sex, income, smoker, joined"
    alice.pgconn.prepare(
        b"s", f"SELECT {columns}, count(*), avg(age), sum(age), $1::int FROM people GROUP BY id".encode()
    )
    described = alice.pgconn.describe_prepared(b"s")
    names = [alice.adapters.types[described.ftype(i)].name for i in range(described.nfields)]
    assert names == ["int4", "int4", "text", "float8", "bool", "date", "int8", "numeric", "int8", "int4"]
    assert alice.pgconn.exec_prepared(b"s", [b"1"]).error_field(psycopg.pq.DiagnosticField.SQLSTATE) == b"42501"
    alice.pgconn.prepare(b"v", b"SELECT fee, seen, kind, patient_id FROM main.visits")
    described = alice.pgconn.describe_prepared(b"v")
    assert [alice.adapters.types[described.ftype(i)].name for i in range(4)] == ["numeric", "timestamp", "text", "int4"]


def test_there_is_nothing_to_estimate_from(alice: Connection) -> None:
    for query in (
        "SELECT count(*) FROM pg_stats WHERE schemaname = 'public'",
        "SELECT count(*) FROM pg_stats_ext WHERE schemaname = 'public'",
        "SELECT pg_relation_size('people')",
        "SELECT sum(n_live_tup + n_tup_ins) FROM pg_stat_all_tables WHERE schemaname = 'public'",
        "SELECT greatest(max(reltuples), 0) FROM pg_class WHERE oid IN ('people'::regclass, 'visits'::regclass)",
    ):
        assert value(alice, query) == 0
