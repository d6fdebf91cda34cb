"""What tools find in the twin: tables, columns, types, keys, comments and privileges, each in its own way."""

from __future__ import annotations

import itertools
import os
import subprocess

import pytest
from psycopg.pq import DiagnosticField as Field

from dpsql.engines.postgres.local_cluster import find_binaries
from dpsql.server.twin import Twin
from tests.twin.conftest import ODD_NAME, Connection
from tests.twin.reach import connect, sqlstate, value


def psql(twin: Twin, user: str, *commands: str) -> str:
    address = twin.address(user)
    assert address.path is not None
    asked = itertools.chain.from_iterable(("-c", command) for command in commands)
    ran = subprocess.run(
        [find_binaries().root / "bin" / "psql", "-X", "-v", "ON_ERROR_STOP=1", *asked],
        env={
            "PGHOST": os.path.dirname(address.path),
            "PGPORT": str(address.port),
            "PGUSER": user,
            "PGDATABASE": address.database,
            "PGCLIENTENCODING": "UTF8",
        },
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_the_policy_is_documented_in_psql(twin: Twin) -> None:
    shown = psql(twin, "alice", r"\d+ people", r"\d+ visits", r"\dt+", r"\d+ states")
    for words in (
        "Clamped to 0 .. 500000. Rounded to multiples of 1.",
        "One of: CA, NY, TX.",
        "The unit: for COUNT(DISTINCT id)",
        '"people_pkey" PRIMARY KEY, btree (id)',
        "numeric(5,2)",
        "timestamp without time zone",
        "Private: only aggregates are answered. The unit is patient_id; at most 10 rows of a unit count.",
        "Public: answered exactly, at no cost.",
    ):
        assert words in shown


def test_every_listing_of_psql_works(twin: Twin) -> None:
    listings = "l+ du+ dp dn+ dt df+ dT di+ dx+ drds dconfig ddp dL dC do dO dy db des dew".split()
    shown = psql(twin, ODD_NAME, *(f"\\{listing}" for listing in listings), r"\dv *.*", r"\conninfo")
    assert ODD_NAME in shown


def test_information_schema(alice: Connection) -> None:
    tables = alice.execute(
        "SELECT table_schema, table_name, table_type FROM information_schema.tables"
        " WHERE table_schema NOT IN ('pg_catalog', 'information_schema') ORDER BY 1, 2"
    ).fetchall()
    assert tables == [
        ("dpsql", "budget", "VIEW"),
        ("dpsql", "history", "VIEW"),
        ("dpsql", "policy", "VIEW"),
        ("public", "people", "BASE TABLE"),
        ("public", "states", "BASE TABLE"),
        ("public", "visits", "BASE TABLE"),
    ]
    columns = alice.execute(
        "SELECT column_name, data_type, is_nullable, ordinal_position FROM information_schema.columns"
        " WHERE table_name = 'people' ORDER BY ordinal_position"
    ).fetchall()
    assert columns == [
        ("id", "integer", "NO", 1),
        ("age", "integer", "YES", 2),
        ("sex", "text", "YES", 3),
        ("state", "text", "YES", 4),
        ("income", "double precision", "YES", 5),
        ("smoker", "boolean", "YES", 6),
        ("joined", "date", "YES", 7),
    ]
    keys = "SELECT count(*) FROM information_schema.table_constraints WHERE constraint_type = 'PRIMARY KEY'"
    assert isinstance(value(alice, keys), int)


def _asked(function: str, *, columns: bool) -> list[str]:
    """A call of every overload, for the privilege `%s`."""
    users = ["", "current_user, ", "'alice'::name, ", "(SELECT oid FROM pg_roles WHERE rolname = 'alice'), "]
    tables = ["""'"public"."people"'""", "'people'::regclass::oid"]
    fields = ["'age', ", "2::smallint, "] if columns else [""]
    return [f"SELECT {function}({user}{table}, {field}%s)" for user in users for table in tables for field in fields]


ASKED = [
    *_asked("has_table_privilege", columns=False),
    *_asked("has_any_column_privilege", columns=False),
    *_asked("has_column_privilege", columns=True),
]


@pytest.mark.parametrize("query", ASKED)
def test_tools_are_told_that_declared_tables_can_be_read(alice: Connection, query: str) -> None:
    for privilege, told in (
        ("select", True),
        ("SELECT", True),
        ("insert, Select", True),
        ("insert", False),
        ("UPDATE", False),
        ("select with grant option", False),
        ("references", True),
    ):
        assert value(alice, query % f"'{privilege}'") is told
    assert value(alice, query % "NULL") is None
    assert sqlstate(alice, query % "'selection'") == "22023"


def test_of_other_tables_tools_are_told_the_truth(alice: Connection) -> None:
    told = {
        "has_table_privilege('pg_class', 'select')": True,
        "has_table_privilege('pg_authid', 'select')": False,
        "has_any_column_privilege('pg_authid', 'select')": False,
        "has_column_privilege('pg_authid', 'rolpassword', 'select')": False,
        "has_table_privilege('dpsql.budget', 'select')": True,
        "has_table_privilege('dpsql.budget', 'insert')": False,
        "has_table_privilege('main.people', 'select')": False,
        "has_table_privilege(0::oid, 'select')": None,
        "has_column_privilege('people', 99::smallint, 'select')": None,
        "has_schema_privilege('public', 'usage')": True,
        "has_schema_privilege('public', 'create')": False,
        "has_schema_privilege('dpsql_internal', 'usage')": False,
        "has_database_privilege('dpsql', 'create')": False,
        "has_database_privilege('dpsql', 'temp')": True,
        "has_database_privilege('template1', 'connect')": False,
    }
    assert {call: value(alice, f"SELECT {call}") for call in told} == told
    assert sqlstate(alice, "SELECT has_table_privilege('nowhere', 'select')") == "42P01"
    assert sqlstate(alice, "SELECT has_column_privilege('people', 'nothing', 'select')") == "42703"
    assert sqlstate(alice, "SELECT has_table_privilege('nobody at all', 'people', 'select')") == "42704"
    alice.execute("CREATE TEMP TABLE mine (a int)")
    assert value(alice, "SELECT has_table_privilege('mine', 'select, insert')") is True


def test_names_that_the_engine_takes_are_taken(alice: Connection) -> None:
    for name in ("people", "public.people", "main.people", '"public"."people"'):
        alice.pgconn.prepare(b"", f"SELECT age FROM {name}".encode())
        assert alice.pgconn.describe_prepared(b"").nfields == 1
    assert sqlstate(alice, "SELECT * FROM nowhere.people") == "42P01"


def test_the_policy_can_be_queried(twin: Twin) -> None:
    with connect(twin, ODD_NAME) as connection:
        rows = connection.execute(
            "SELECT column_name, data_type, protection, lower, upper, step, allowed_values, max_rows_per_unit"
            " FROM dpsql.policy WHERE table_name = 'people' AND column_name IN ('id', 'income', 'state')"
        ).fetchall()
    assert sorted(rows) == [
        ("id", "integer", "unit", None, None, None, None, 1),
        ("income", "double precision", "private", "0", "500000", "1", None, 1),
        ("state", "text", "private", None, None, None, ["CA", "NY", "TX"], 1),
    ]


def test_a_refusal_carries_all_its_parts(alice: Connection) -> None:
    for detail, hint in itertools.product((None, "A detail."), (None, "A hint, 100 %.")):
        result = alice.pgconn.exec_params(
            b"CALL dpsql.refuse($1, $2, $3, $4)",
            [b"55000", b"no % such thing", *(None if part is None else part.encode() for part in (detail, hint))],
        )
        found = [result.error_field(f) for f in (Field.SQLSTATE, Field.MESSAGE_PRIMARY)]
        assert found == [b"55000", b"no % such thing"]
        assert result.error_field(Field.MESSAGE_DETAIL) == (detail and detail.encode())
        assert result.error_field(Field.MESSAGE_HINT) == (hint and hint.encode())
