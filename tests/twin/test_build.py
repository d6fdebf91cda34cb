"""How a policy becomes a schema, when it is built again, and what a user's own account shows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path

import psycopg
import pytest

from dpsql.engines.postgres.local_cluster import ADMIN, Cluster
from dpsql.errors import OperationalError, PolicyError
from dpsql.policy.model import Catalog, Column, Table
from dpsql.server.twin import Twin, start_twin
from dpsql.server.twin.account_views import BudgetRow, HistoryRow, refresh
from dpsql.server.twin.schema import bound_text, column_words, search_path, twin_tables
from dpsql.types import BIGINT, BOOLEAN, DATE, DOUBLE, INTERVAL, NUMERIC, TEXT, TIMESTAMP, Type, decimal, integer
from tests.twin.conftest import EMPTY, Connection
from tests.twin.reach import connect, server_folder, sqlstate, value

TYPES = {
    "small": (integer(3), "integer"),
    "clamped": (integer(3, big=True), "bigint"),
    "large": (BIGINT, "bigint"),
    "exact": (decimal(12, 4), "numeric(12,4)"),
    "wide": (NUMERIC, "numeric"),
    "float": (DOUBLE, "double precision"),
    "text": (TEXT, "text"),
    "flag": (BOOLEAN, "boolean"),
    "day": (DATE, "date"),
    "moment": (TIMESTAMP, "timestamp without time zone"),
    "span": (INTERVAL, "interval"),
}


def table(name: str, columns: Mapping[str, Type], *, schema: str = "main", owner: str | None = None) -> Table:
    declared = {key: Column(key, column_type) for key, column_type in columns.items()}
    return Table(name, (schema, name.rpartition(".")[2]), declared, owner, BIGINT if owner else None, bool(owner))


def catalog_of(*tables: Table, default: str = "main", aliases: Mapping[str, Table] | None = None) -> Catalog:
    named = {declared.name: declared for declared in tables}
    return Catalog({**(aliases or {}), **named}, max_cells=1, fingerprint="", default_schema=default)


def rebuilt(state: Path, catalog: Catalog) -> Twin:
    return start_twin(state, catalog, ["alice"])


def test_types_names_and_schemas(stopped: Path) -> None:
    odd = table('Größe "x" %s {0}', {"Spalte; DROP": TEXT, "weiß": integer(2)})
    typed = table("typed", {name: column_type for name, (column_type, _) in TYPES.items()}, owner="person")
    sales = table("sales.Orders", {"id": BIGINT, "fee": decimal(5, 2)}, schema="sales", owner="id")
    aliases = {"public.typed": typed, "main.typed": typed, f"public.{odd.name}": odd}
    twin = rebuilt(stopped, catalog_of(odd, typed, sales, aliases=aliases))
    with closing(connect(twin, "alice")) as alice:
        columns = "SELECT column_name, data_type FROM dpsql.policy WHERE table_name = 'typed'"
        expected = {"person": "bigint"} | {name: shown for name, (_, shown) in TYPES.items()}
        assert dict(alice.execute(columns.encode()).fetchall()) == expected
        real = "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = 'typed'::regclass"
        assert dict(alice.execute(f"{real} AND attnum > 0".encode()).fetchall()) == expected
        for name in ('"Größe ""x"" %s {0}"', 'public."Größe ""x"" %s {0}"', "main.typed", 'sales."Orders"'):
            assert sqlstate(alice, f"SELECT FROM {name}") == "42501"
        assert sqlstate(alice, "SELECT FROM sales.orders") == "42P01"
        assert sqlstate(alice, 'SELECT FROM "Orders"') == "42P01"
    twin.stop()


def test_a_real_schema_called_public_is_not_the_default_one() -> None:
    own = table("people", {"age": integer(3)}, owner="id")
    other = table("public.people", {"name": TEXT}, schema="public", owner="id")
    catalog = catalog_of(own, other, aliases={"main.people": own})
    assert [(found.schema, found.table) for found in twin_tables(catalog)] == [("main", own), ("public", other)]
    assert search_path(catalog) == ["main", "public"]


def test_a_default_schema_called_public_is_itself() -> None:
    people = table("people", {"age": integer(3)}, schema="public", owner="id")
    catalog = catalog_of(people, default="public", aliases={"public.people": people})
    assert [found.schema for found in twin_tables(catalog)] == ["public"]
    assert search_path(catalog) == ["public"]


def test_numbers_are_written_as_people_write_them() -> None:
    written = {Fraction(5): "5", Fraction(-1, 20): "-0.05", Fraction(10**30): "1" + "0" * 30, Fraction(1, 3): "1/3"}
    assert {number: bound_text(number) for number in written} == written


def test_long_lists_of_values_are_cut() -> None:
    column = Column("code", TEXT, values=tuple(f"v{number}" for number in range(25)), nullable_key=True)
    words = column_words(column, is_unit=False)
    assert words.startswith("One of: v0, v1,") and words.endswith(", v19, and 5 more. NULL is a key of its own.")


@pytest.mark.parametrize(
    "bad",
    [
        table("n" * 64, {"a": TEXT}),
        table("ö" * 32, {"a": TEXT}),
        table("people", {"c" * 64: TEXT}),
        table("people", {"ctid": TEXT}),
        table("pg_mine.people", {"a": TEXT}, schema="pg_mine"),
        table("dpsql.budget", {"a": TEXT}, schema="dpsql"),
    ],
    ids=lambda bad: bad.name[:20],
)
def test_names_that_postgresql_would_change_are_refused(bad: Table) -> None:
    with pytest.raises(PolicyError):
        twin_tables(catalog_of(bad))


@pytest.mark.parametrize("name", [ADMIN, "users_of_dpsql", "pg_monitor", "pg_mine", "public", "none", "n" * 64, ""])
def test_names_that_are_not_for_users_are_refused(twin: Twin, name: str) -> None:
    with pytest.raises(PolicyError):
        twin.set_users([name])


def test_another_policy_is_another_schema_and_the_same_one_is_kept(stopped: Path, catalog: Catalog) -> None:
    def number() -> object:
        twin = rebuilt(stopped, declared)
        with closing(twin.admin()) as admin:
            found = value(admin, "SELECT to_regclass('people')::oid")
        twin.stop()
        return found

    declared = catalog
    first = number()
    assert first is not None and number() == first
    people = catalog.tables["people"]
    wider = replace(people, max_rows_per_unit=2)
    declared = replace(catalog, tables={name: wider if t is people else t for name, t in catalog.tables.items()})
    assert number() not in (first, None)
    declared = EMPTY
    assert number() is None


def test_users_come_and_go(stopped: Path) -> None:
    twin = start_twin(stopped, EMPTY, ["alice", "bob"])
    with closing(connect(twin, "bob")) as bob, closing(connect(twin, "alice")) as alice:
        bob.execute("CREATE TEMP TABLE t (a int)")
        twin.set_users(["alice", "carol"])
        with pytest.raises(psycopg.OperationalError):
            bob.execute("SELECT 1")
        assert value(alice, "SELECT 1") == 1
    connect(twin, "carol").close()
    with pytest.raises(psycopg.OperationalError, match='role "bob" does not exist'):
        connect(twin, "bob")
    twin.stop()


BUDGET = BudgetRow("zcdp", 4.0, 1.0, 3.0, 0.5, 0.1, 0.4, 1e-6, 0.0, 1e-6, 1234)
TIME = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
PAID = HistoryRow(TIME, "paid", 0.5, 0.01, 0.0, "00000", None, "SELECT count(*)\n\t\\N\0 FROM people")
REFUSED = HistoryRow(TIME, "refused", None, None, None, "42501", "no", "SELECT *")


def test_an_account_shows_its_owner_only(twin: Twin, admin: Connection) -> None:
    refresh(admin, "alice", [BUDGET], [PAID, REFUSED])
    refresh(admin, "bob", [replace(BUDGET, left_epsilon=1.0)], [])
    refresh(admin, "alice", None, [PAID, REFUSED])
    with closing(connect(twin, "alice")) as alice, closing(connect(twin, "bob")) as bob:
        assert alice.execute("SELECT username, left_epsilon, queries_left FROM dpsql.budget").fetchall() == [
            ("alice", 3.0, 1234)
        ]
        assert bob.execute("SELECT left_epsilon FROM dpsql.budget").fetchall() == [(1.0,)]
        assert alice.execute("SELECT time, outcome, query FROM dpsql.history ORDER BY outcome").fetchall() == [
            (TIME, "paid", "SELECT count(*)\n\t\\N FROM people"),
            (TIME, "refused", "SELECT *"),
        ]
        assert bob.execute("SELECT * FROM dpsql.history").fetchall() == []
        # A condition of the analyst's own is not run on the rows of others.
        assert sqlstate(bob, "SELECT 1 FROM dpsql.budget WHERE 1 / (left_epsilon - 3) > 0") is None


# --- a database of the owner's ---


@pytest.fixture
def server(stopped: Path) -> Iterator[Cluster]:
    """The owner's server, where users need a password; with an empty database called "given"."""
    running = Cluster(stopped)
    running.start()
    hba = server_folder(stopped) / "config" / "pg_hba.conf"
    hba.write_text(f"local all {ADMIN} peer map=dpsql\nlocal all all scram-sha-256\n")
    with closing(running.connect("template1")) as connection:
        connection.execute("SELECT pg_reload_conf()")
        connection.execute("CREATE DATABASE given")
    yield running
    running.stop()


def given(server: Cluster, database: str = "given") -> str:
    return f"host={server.socket.parent} user={ADMIN} dbname={database}"


def test_a_twin_in_a_database_of_the_owners(server: Cluster, catalog: Catalog, tmp_path: Path) -> None:
    """Settings outlive it, as does a password that a user changes: the next start sets it again."""
    first = start_twin(tmp_path, catalog, ["carol"], address=given(server))
    assert first.database == "given"
    with closing(connect(first, "carol")) as carol:
        assert sqlstate(carol, "SELECT count(*) FROM people") == "42501"
        assert value(carol, "SELECT has_table_privilege('people', 'select')") is True
        with pytest.raises(psycopg.OperationalError, match="permission denied"):
            connect(first, "carol", database="dpsql")
        carol.execute("ALTER ROLE carol SET dpsql.epsilon = '2'")
        carol.execute("ALTER ROLE carol PASSWORD 'known'")
    second = start_twin(tmp_path, catalog, ["carol"], address=given(server))
    assert second.address("carol") == first.address("carol")
    assert str(second.address("carol").password) not in repr(second.address("carol"))
    with closing(connect(first, "carol")) as carol:
        assert value(carol, "SHOW dpsql.epsilon") == "2"
    second.rebuild(EMPTY)
    with closing(connect(second, "carol")) as carol:
        assert sqlstate(carol, "SELECT count(*) FROM people") == "42P01"
        assert sqlstate(carol, "SELECT * FROM dpsql_kept.secret") == "42501"
    second.stop()
    assert server.pid is not None


def test_what_is_not_ours_is_not_touched(server: Cluster, tmp_path: Path) -> None:
    with closing(server.connect("given")) as connection:
        connection.execute("CREATE TABLE precious (a int)")
        with pytest.raises(OperationalError, match="neither empty"):
            start_twin(tmp_path, EMPTY, [], address=given(server))
        connection.execute("DROP TABLE precious")
        connection.execute("CREATE SCHEMA precious")
        with pytest.raises(OperationalError, match="neither empty"):
            start_twin(tmp_path, EMPTY, [], address=given(server))
        connection.execute("DROP SCHEMA precious")
        connection.execute("CREATE ROLE dba PASSWORD 'x'")
        for name in ("dba", "alice", ADMIN):  # alice belongs to the other twin on this server
            with pytest.raises(PolicyError):
                start_twin(tmp_path, EMPTY, [name], address=given(server))
        assert value(connection, "SELECT rolcanlogin FROM pg_roles WHERE rolname = 'dba'") is False


def test_a_database_that_cannot_be_used_is_refused(server: Cluster, tmp_path: Path) -> None:
    with pytest.raises(OperationalError, match="cannot be reached") as refused:
        start_twin(tmp_path, EMPTY, [], address=f"{given(server, 'nowhere')} password=hunter2")
    assert "hunter2" not in f"{refused.value} {refused.value.detail} {refused.value.hint}"
    with closing(server.connect("given")) as connection:
        connection.execute("CREATE ROLE mere LOGIN PASSWORD 'x'")
    with pytest.raises(OperationalError, match="superuser"):
        start_twin(tmp_path, EMPTY, [], address=given(server).replace(ADMIN, "mere") + " password=x")
    with closing(server.connect("template1")) as connection:
        connection.execute("CREATE DATABASE old TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'")
    with pytest.raises(OperationalError, match="UTF-8"):
        start_twin(tmp_path, EMPTY, [], address=given(server, "old"))
