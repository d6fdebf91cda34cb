"""What a user cannot do in the twin: write, create, read files, see others, go elsewhere, become another."""

from __future__ import annotations

import threading
from contextlib import closing

import psycopg
import pytest

from dpsql.engines.postgres.local_cluster import ADMIN
from dpsql.server.twin import DATABASE, Twin
from tests.twin.conftest import Connection
from tests.twin.reach import connect, sqlstate, value

REFUSED = [
    "CREATE TABLE t (a int)",
    "CREATE TABLE public.t AS SELECT 1",
    "CREATE VIEW v AS SELECT 1",
    "CREATE SCHEMA s",
    "CREATE SCHEMA AUTHORIZATION alice",
    "CREATE TABLE dpsql.t (a int)",
    "CREATE TYPE public.t AS (a int)",
    "CREATE EXTENSION vector",
    "CREATE DATABASE d",
    "CREATE ROLE r",
    "CREATE PUBLICATION p",
    "CREATE STATISTICS s ON age, sex FROM people",
    "CREATE INDEX ON people (age)",
    "CREATE TRIGGER t BEFORE INSERT ON people EXECUTE FUNCTION suppress_redundant_updates_trigger()",
    "CREATE EVENT TRIGGER t ON sql_drop EXECUTE FUNCTION suppress_redundant_updates_trigger()",
    "CREATE RULE r AS ON SELECT TO people DO INSTEAD SELECT 1",
    "CREATE LANGUAGE l HANDLER plpgsql_call_handler",
    "CREATE FUNCTION pg_temp.f() RETURNS int LANGUAGE sql AS 'SELECT 1'",
    "CREATE FUNCTION pg_temp.f() RETURNS int LANGUAGE plpgsql AS 'BEGIN RETURN 1; END'",
    "CREATE FUNCTION pg_temp.f() RETURNS int LANGUAGE internal AS 'pg_backend_pid'",
    "DO 'BEGIN END'",
    "DROP TABLE people",
    "ALTER TABLE people ADD COLUMN a int",
    "COMMENT ON TABLE people IS 'mine'",
    "ALTER DEFAULT PRIVILEGES FOR ROLE dpsql_admin GRANT SELECT ON TABLES TO alice",
    "GRANT bob TO alice",
    "SET ROLE bob",
    "SET ROLE dpsql_admin",
    "SET ROLE users_of_dpsql",
    "SET SESSION AUTHORIZATION bob",
    "ALTER ROLE bob SET dpsql.epsilon = '1'",
    "ALTER ROLE bob PASSWORD 'x'",
    "ALTER ROLE alice SUPERUSER",
    "ALTER ROLE alice CREATEROLE",
    "ALTER ROLE ALL SET dpsql.epsilon = '1'",
    "ALTER ROLE alice SET track_activities = off",
    "ALTER DATABASE dpsql SET dpsql.epsilon = '1'",
    "ALTER SYSTEM SET work_mem = '1GB'",
    "SET log_statement = 'all'",
    "SET log_min_messages = 'debug5'",
    "SET temp_file_limit = -1",
    "SET session_preload_libraries = 'x'",
    "SHOW data_directory",
    "SHOW unix_socket_directories",
    "SELECT pg_read_file('/etc/passwd')",
    "SELECT pg_read_binary_file('PG_VERSION')",
    "SELECT pg_stat_file('PG_VERSION')",
    "SELECT pg_ls_dir('.')",
    "SELECT pg_ls_logdir()",
    "SELECT pg_ls_tmpdir()",
    "SELECT pg_current_logfile()",
    "SELECT pg_hba_file_rules()",
    "SELECT pg_reload_conf()",
    "COPY (SELECT 1) TO '/tmp/x'",
    "COPY (SELECT 1) TO PROGRAM 'true'",
    "CREATE TEMP TABLE t (a text); COPY t FROM '/etc/passwd'",
    "LOAD 'plpgsql'",
    "SELECT lo_create(1)",
    "SELECT lo_from_bytea(0, '')",
    "SELECT lo_import('/etc/passwd')",
    "SELECT pg_advisory_lock(1)",
    "SELECT pg_try_advisory_lock(1, 1)",
    "SELECT pg_advisory_xact_lock_shared(1)",
    "SELECT pg_notify('a', 'b')",
    "SELECT pg_export_snapshot()",
    "SELECT pg_logical_emit_message(true, 'a', 'b')",
    "SELECT pg_stat_get_backend_idset()",
    "SELECT pg_stat_get_backend_activity(1)",
    "SELECT dpsql_real_pg_stat_get_activity(NULL)",
    "SELECT dpsql_real_pg_lock_status()",
    "SELECT pg_terminate_backend(pg_backend_pid()) FROM pg_authid",
    "INSERT INTO dpsql.budget DEFAULT VALUES",
    "UPDATE dpsql.policy SET lower = '0'",
    "DELETE FROM dpsql.history",
    "UPDATE pg_class SET relname = relname",
    "SELECT rolpassword FROM pg_authid",
]


@pytest.mark.parametrize("statement", REFUSED)
def test_is_refused(alice: Connection, statement: str) -> None:
    assert sqlstate(alice, statement) == "42501"


def test_granting_oneself_a_right_changes_nothing(alice: Connection) -> None:
    """PostgreSQL only warns."""
    alice.execute("GRANT SELECT ON people TO alice")
    assert sqlstate(alice, "SELECT FROM people") == "42501"


def test_what_sessions_need_is_allowed(alice: Connection) -> None:
    for statement in (
        "CREATE TEMP TABLE t (a int); INSERT INTO t VALUES (1); ANALYZE t; DROP TABLE t",
        "SET statement_timeout = '5s'; SHOW statement_timeout; RESET ALL",
        "SELECT pg_advisory_unlock_all(); CLOSE ALL; UNLISTEN *; RESET ALL",
        "DISCARD ALL",
        "SET dpsql.epsilon = '0.5'; SHOW dpsql.epsilon",
        "SELECT upper('straße ö'), 'ö' ~* 'Ö'",
    ):
        for part in statement.split("; "):
            alice.execute(part.encode())


def test_letters_beyond_ascii_are_letters(alice: Connection) -> None:
    assert value(alice, "SELECT upper('ö')") == "Ö"


@pytest.mark.parametrize("database", ["template1", "template0"])
def test_another_database_is_closed(twin: Twin, database: str) -> None:
    with pytest.raises(psycopg.OperationalError, match=r"permission denied|not currently accepting"):
        connect(twin, "alice", database=database)


@pytest.mark.parametrize("database", ["postgres", "public", "alice"])
def test_there_is_no_other_database(twin: Twin, database: str) -> None:
    with pytest.raises(psycopg.OperationalError, match=f'database "{database}" does not exist'):
        connect(twin, "alice", database=database)


def test_a_user_who_is_not_in_the_policy_is_not_let_in(twin: Twin) -> None:
    for stranger in ("carol", "users_of_dpsql"):
        with pytest.raises(psycopg.OperationalError):
            connect(twin, stranger)


LISTS = [
    "SELECT pid FROM pg_stat_activity",
    "SELECT pid FROM pg_stat_get_activity(NULL)",
    "SELECT DISTINCT pid FROM pg_locks",
    "SELECT DISTINCT pid FROM pg_lock_status()",
    "SELECT pid FROM pg_stat_ssl",
    "SELECT pid FROM pg_stat_gssapi",
    "SELECT pid FROM pg_stat_progress_copy",
    "SELECT pid FROM pg_stat_replication",
]


@pytest.mark.parametrize("query", LISTS)
def test_of_sessions_a_user_sees_the_own(twin: Twin, query: str) -> None:
    with (
        closing(connect(twin, "alice")) as first,
        closing(connect(twin, "alice")) as second,
        closing(connect(twin, "bob")) as other,
        closing(twin.admin()) as admin,
    ):
        for connection in (first, second, other):
            connection.execute("BEGIN; CREATE TEMP TABLE t (a int)")
        own = {first.info.backend_pid, second.info.backend_pid}
        seen = {pid for (pid,) in first.execute(query.encode())}
        assert seen <= own
        if "progress" not in query and "replication" not in query:
            assert seen == own
            # The list is one of all sessions, so what is missing was left out.
            assert other.info.backend_pid in {pid for (pid,) in admin.execute(query.encode())}


def test_own_sessions_are_shown_with_what_they_run(twin: Twin) -> None:
    with closing(connect(twin, "alice")) as first, closing(connect(twin, "alice")) as second:
        second.execute("SELECT 'hello' AS greeting")
        query = f"SELECT query FROM pg_stat_activity WHERE pid = {second.info.backend_pid} AND usename = 'alice'"
        assert value(first, query) == "SELECT 'hello' AS greeting"


def test_own_sessions_can_be_cancelled_by_number_and_others_not(twin: Twin) -> None:
    with closing(connect(twin, "alice")) as first, closing(connect(twin, "alice")) as second:
        with closing(connect(twin, "bob")) as other:
            for call in ("pg_cancel_backend", "pg_terminate_backend"):
                assert sqlstate(other, f"SELECT {call}({second.info.backend_pid})") == "42501"
        outcome: list[str | None] = []
        sleeper = threading.Thread(target=lambda: outcome.append(sqlstate(second, "SELECT pg_sleep(60)")))
        sleeper.start()
        sleeping = (
            f"SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND pid = {second.info.backend_pid}"
        )
        while value(first, sleeping) == 0:
            pass
        assert value(first, f"SELECT pg_cancel_backend({second.info.backend_pid})") is True
        sleeper.join()
        assert outcome == ["57014"]


def test_nobody_but_dpsql_is_the_superuser(alice: Connection, admin: Connection) -> None:
    assert admin.info.user == ADMIN and admin.info.dbname == DATABASE and admin.autocommit
    rows = alice.execute(
        "SELECT rolname FROM pg_roles WHERE rolsuper OR rolcreaterole OR rolcreatedb OR rolreplication"
    )
    assert rows.fetchall() == [(ADMIN,)]
    memberships = "SELECT count(*) FROM pg_auth_members WHERE member IN (SELECT oid FROM pg_roles WHERE rolcanlogin)"
    assert value(admin, f"{memberships} AND (set_option OR admin_option)") == 0
