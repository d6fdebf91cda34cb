"""The DuckDB backend: what comes back is exact, nothing else gets out, and a stopped call stays stopped."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path

import duckdb
import numpy as np
import pytest

from dpsql.effort import Cancellation
from dpsql.engines.base import Engine
from dpsql.engines.duckdb.engine import DuckDBEngine
from dpsql.errors import Cancelled, EngineFailed, InternalError, PolicyError
from dpsql.lowering.query import EngineQuery
from dpsql.tables import ExactTable
from dpsql.types import BIGINT, BOOLEAN, DATE, DOUBLE, TEXT, TIMESTAMP, TIMESTAMPTZ, decimal, integer

SETUP = """
CREATE TABLE people (id INTEGER PRIMARY KEY, name VARCHAR, income BIGINT);
INSERT INTO people VALUES (1, 'Zoë', 10), (2, 'O''Hara', 20), (3, NULL, 30);
CREATE SCHEMA other;
CREATE TABLE other."odd ""name" (
    a INTEGER NOT NULL, b INTEGER NOT NULL, c INTEGER, UNIQUE (a, b), UNIQUE (a, c), UNIQUE (c)
);
CREATE TABLE kinds (
    f_bool BOOLEAN NOT NULL, f_tiny TINYINT, f_utiny UTINYINT, f_small SMALLINT, f_usmall USMALLINT, f_int INTEGER,
    f_uint UINTEGER, f_big BIGINT, f_ubig UBIGINT, f_huge HUGEINT, f_dec DECIMAL(20, 4), f_float FLOAT,
    f_double DOUBLE, f_text VARCHAR, f_uuid UUID, f_enum ENUM ('a', 'b'), f_date DATE, f_ts TIMESTAMP,
    f_ts_s TIMESTAMP_S, f_ts_ms TIMESTAMP_MS, f_ts_ns TIMESTAMP_NS, f_tz TIMESTAMPTZ, f_time TIME,
    f_blob BLOB, f_list INTEGER[], f_enums ENUM ('a', 'b')[]
);
CREATE TABLE indexed (a INTEGER, b INTEGER NOT NULL, c INTEGER NOT NULL, d INTEGER);
CREATE UNIQUE INDEX one ON indexed (a);
CREATE UNIQUE INDEX two ON indexed (b, c);
CREATE UNIQUE INDEX nullable ON indexed (a, c);
CREATE UNIQUE INDEX expression ON indexed ((b + c));
CREATE INDEX plain ON indexed (d);
CREATE VIEW adults AS SELECT id, name FROM people;
CREATE TABLE hospitals (id INTEGER, code UUID, opened DATE, beds UTINYINT, size ENUM ('small', 'large'));
INSERT INTO hospitals VALUES (1, '00000000-0000-0000-0000-000000000001', '1999-12-31', 12, 'small'),
    (2, NULL, NULL, NULL, NULL), (3, NULL, NULL, NULL, 'large');
CREATE TABLE flags (flag BOOLEAN);
INSERT INTO flags VALUES (NULL);
CREATE TABLE calendar (day DATE);
INSERT INTO calendar VALUES ('12000-01-01');
"""

# Spelled out once more: some cover for each other, so a gap would not show in what a statement can do.
LOCK_DOWN = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "allow_extension_repositories": "forbidden",
    "allow_persistent_secrets": "false",
    "python_enable_replacements": "false",
    "temp_directory": "",
    "TimeZone": "UTC",
    "error_on_division_by_zero": "false",
    "disabled_optimizers": "common_subplan,grouping_sets",
    "allowed_configs": "[]",
    "enable_external_access": "false",
    "lock_configuration": "true",
}

# Runs for minutes unless it is stopped.
ENDLESS = "SELECT count(*) FROM range(1000000000000) AS r(x) WHERE (x * x) % 7 = 3"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("duckdb") / "clinic.duckdb"
    with duckdb.connect(str(file)) as connection:
        connection.execute(SETUP)
    return file


@pytest.fixture(scope="module")
def engine(path: Path) -> Iterator[DuckDBEngine]:
    opened = DuckDBEngine(path, memory="200MB", threads=2)
    yield opened
    opened.close()


def run(engine: Engine, sql: str, keys: int = 0, **parameters: object) -> ExactTable:
    (table,) = engine.execute([EngineQuery(sql, keys, parameters)], timeout=30)
    return table


# --- values ---


@pytest.mark.parametrize(
    ("type_name", "values"),
    [
        ("BOOLEAN", [True, False, None]),
        ("TINYINT", [-128, 127, None]),
        ("BIGINT", [2**63 - 1, -(2**63), None]),
        ("UBIGINT", [2**64 - 1, None]),
        ("HUGEINT", [2**127 - 1, 2**53 + 1, None]),
        ("DECIMAL(20, 4)", [Decimal("1234567890123456.7891"), Decimal("-0.0001"), None]),
        ("DECIMAL(38, 0)", [Decimal(10**38 - 1), None]),
        ("DOUBLE", [0.1, -1e308, 5e-324, None]),
        ("VARCHAR", ["", "Zoë O'Hara 🦆", 'quote " \\ \n', "NULL", None]),
        ("DATE", [date(1, 1, 1), date(2024, 2, 29), date(9999, 12, 31), None]),
        ("TIMESTAMP", [datetime(1, 1, 1), datetime(2024, 2, 29, 1, 2, 3, 456789), None]),
    ],
)
@pytest.mark.parametrize("beside", ["", "DATE '2020-01-01',"], ids=["alone", "beside a date"])
def test_keys_come_back_unchanged(engine: DuckDBEngine, type_name: str, values: list[object], beside: str) -> None:
    sql = f"""
        SELECT {beside} k, CAST(i AS BIGINT) FROM (
            SELECT unnest(CAST($values AS {type_name}[])) AS k, unnest(range(len($values))) AS i
        ) ORDER BY i
    """
    table = run(engine, sql, keys=2 if beside else 1, values=values)
    keys = [key[-1] for key in table.keys]
    assert keys == values
    assert [type(key) for key in keys] == [type(value) for value in values]
    assert table.sums[0].dtype == np.int64
    assert table.sums[0].tolist() == list(range(len(values)))


def test_columns_of_one_name_stay_apart(engine: DuckDBEngine) -> None:
    table = run(engine, "SELECT 1::BIGINT AS n, 2::BIGINT AS n_1, 3::BIGINT AS n, 4::BIGINT AS N")
    assert [column.tolist() for column in table.sums] == [[1], [2], [3], [4]]


def test_a_bare_null_is_a_key(engine: DuckDBEngine) -> None:
    assert run(engine, "SELECT NULL, count(*) FROM people", keys=1).keys == ((None,),)


@pytest.mark.parametrize("key", ["k", "DATE '2020-01-01', k"], ids=["columns", "rows"])
def test_an_empty_result_keeps_its_shape(engine: DuckDBEngine, key: str) -> None:
    sql = f"SELECT {key}, count(*), count(*) FROM (SELECT name AS k FROM people WHERE false) GROUP BY ALL"
    table = run(engine, sql, keys=key.count(",") + 1)
    assert table.keys == ()
    assert [(column.dtype.name, len(column)) for column in table.sums] == [("int64", 0)] * 2


@pytest.mark.parametrize("type_name", ["DATE", "TIMESTAMP"])
@pytest.mark.parametrize("strange", ["12000-01-01", "0044-03-15 (BC)", "290000-01-01"])
def test_groups_at_times_python_cannot_hold_are_dropped(engine: DuckDBEngine, type_name: str, strange: str) -> None:
    sql = f"""
        SELECT CAST(k AS {type_name}), CAST(n AS BIGINT)
        FROM (VALUES ('2020-01-01', 1), ('{strange}', 2), (NULL, 3)) AS v(k, n)
    """
    table = run(engine, sql, keys=1)
    assert table.sums[0].tolist() == [1, 3]
    assert len(table) == 2


def test_an_infinite_date_is_no_error(engine: DuckDBEngine) -> None:
    run(engine, "SELECT CAST(k AS DATE), 1::BIGINT FROM (VALUES ('infinity'), ('-infinity')) AS v(k)", keys=1)


@pytest.mark.parametrize("expression", ["sum(income)", "1.5", "1", "'1'", "count(*)::DOUBLE"])
def test_a_sum_of_another_type_is_never_converted(engine: DuckDBEngine, expression: str) -> None:
    with pytest.raises(InternalError, match="not a 64-bit integer"):
        run(engine, f"SELECT {expression} FROM people")


@pytest.mark.parametrize("key", ["'k'", "DATE '2020-01-01'"], ids=["columns", "rows"])
def test_a_sum_is_never_null(engine: DuckDBEngine, key: str) -> None:
    with pytest.raises(InternalError, match="NULL"):
        run(engine, f"SELECT {key}, x FROM (VALUES (1::BIGINT), (NULL)) AS v(x)", keys=1)


def test_a_key_of_an_unknown_type_is_refused(engine: DuckDBEngine) -> None:
    with pytest.raises(InternalError, match="key of a type"):
        run(engine, "SELECT [1], 1::BIGINT", keys=1)


def test_only_parameters_that_a_statement_names_are_handed_over(engine: DuckDBEngine) -> None:
    queries = [EngineQuery(f"SELECT $p{i}::BIGINT", 0, {"p0": 10, "p1": 11}) for i in range(2)]
    tables = engine.execute([*queries, EngineQuery("SELECT 12::BIGINT", 0, {"p0": 10})], timeout=30)
    assert [table.sums[0].tolist() for table in tables] == [[10], [11], [12]]
    with pytest.raises(InternalError):
        run(engine, "SELECT $missing::BIGINT", other=1)


def test_queries_of_one_call_see_one_snapshot(engine: DuckDBEngine) -> None:
    now = EngineQuery("SELECT epoch_us(now())", 0)  # the start of the transaction
    first, second = engine.execute([now, now], timeout=30)
    assert first.sums[0].tolist() == second.sums[0].tolist()


@pytest.mark.parametrize(
    "sql", ["SELECT 1::BIGINT; SELECT 2::BIGINT", "", "CREATE TEMP TABLE t (a INT)", "EXPLAIN SELECT 1::BIGINT"]
)
def test_only_one_select_is_run(engine: DuckDBEngine, sql: str) -> None:
    with pytest.raises(InternalError):
        run(engine, sql)


# --- the lock-down ---


@pytest.mark.parametrize(
    "sql",
    [
        "COPY people TO '{tmp}/out.csv'",
        "EXPORT DATABASE '{tmp}/out'",
        "SELECT * FROM read_csv('{tmp}/in.csv')",
        "SELECT * FROM read_text('{tmp}/in.csv')",
        "SELECT * FROM '{tmp}/in.csv'",
        "SELECT * FROM glob('{tmp}/*')",
        "ATTACH '{tmp}/new.duckdb'",
        "ATTACH ':memory:' AS elsewhere",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET memory_limit = '9GB'",
        "SET threads = 64",
        "SET GLOBAL enable_external_access = true",
        "SET lock_configuration = false",
        "SET allowed_configs = ['memory_limit']",
        "RESET memory_limit",
        "SET TimeZone = 'Europe/Berlin'",
        "SET temp_directory = '{tmp}'",
        "SET python_enable_replacements = true",
        "PRAGMA enable_profiling",
        "PRAGMA memory_limit = '9GB'",
        "CALL enable_logging()",
        "SELECT getenv('HOME')",
        "SELECT * FROM python_variable",
        "CREATE TABLE t (a INT)",
        "DELETE FROM people",
    ],
)
def test_the_database_is_locked_down(engine: DuckDBEngine, tmp_path: Path, sql: str) -> None:
    (tmp_path / "in.csv").write_text("a\n1\n")
    before = sorted(tmp_path.iterdir())
    python_variable = {"a": np.array([1])}
    # Below execute(), which would refuse most of these before the engine sees them.
    with engine._connection.cursor() as cursor, pytest.raises(duckdb.Error):
        cursor.execute(sql.format(tmp=tmp_path)).fetchall()
    assert sorted(tmp_path.iterdir()) == before
    assert len(python_variable) == 1


def test_a_query_larger_than_memory_fails_and_leaves_no_file(engine: DuckDBEngine, path: Path) -> None:
    before = sorted(path.parent.iterdir())
    with pytest.raises(EngineFailed):
        run(engine, "SELECT count(DISTINCT repeat('x', 10000) || x) FROM range(100000) AS r(x)")
    assert sorted(path.parent.iterdir()) == before


def test_every_cursor_has_the_settings(engine: DuckDBEngine) -> None:
    expected = {
        **LOCK_DOWN,
        "access_mode": "read_only",
        "allow_unsigned_extensions": "false",
        "allowed_directories": "[]",
        "enable_logging": "0",
        "enable_profiling": None,
        "enable_progress_bar": "false",
        "log_query_path": "",
        "memory_limit": "190.7 MiB",
        "threads": "2",
    }
    with engine._connection.cursor() as cursor:
        in_force = dict(cursor.execute("SELECT name, value FROM duckdb_settings()").fetchall())
    assert {name: in_force[name] for name in expected} == expected
    expected["disabled_optimizers"] = "statistics_propagation,common_subplan,grouping_sets"
    expected["access_mode"] = "automatic"  # of the engine's own database, which is gone
    with engine._careful.cursor() as cursor:
        in_force = dict(cursor.execute("SELECT name, value FROM duckdb_settings()").fetchall())
        assert {name: in_force[name] for name in expected} == expected
        databases = cursor.execute(
            "SELECT database_name, readonly FROM duckdb_databases() WHERE NOT internal"
        ).fetchall()
    assert databases == [("clinic", True)]


def test_division_by_zero_is_no_error(engine: DuckDBEngine) -> None:
    table = run(engine, "SELECT count(1 // x) + count(1 % x) FROM (VALUES (0), (1)) AS v(x)")
    assert table.sums[0].tolist() == [2]


def test_a_file_may_be_opened_twice_in_one_process(engine: DuckDBEngine, path: Path) -> None:
    second = DuckDBEngine(path, memory="200MB", threads=2)
    second.close()
    assert run(engine, "SELECT count(*) FROM people").sums[0].tolist() == [3]


def test_nobody_writes_to_a_file_that_is_open(engine: DuckDBEngine, path: Path) -> None:
    """A process gives up its lock on a file with the first of its handles that it closes."""
    DuckDBEngine(path, memory="200MB", threads=2).close()
    writing = f"import duckdb; duckdb.connect({str(path)!r}).execute('CREATE TABLE written (x INTEGER)')"
    found = subprocess.run([sys.executable, "-c", writing], capture_output=True, text=True, check=False)
    assert "Conflicting lock" in found.stderr
    assert run(engine, "SELECT count(*) FROM people").sums[0].tolist() == [3]


def test_a_missing_file_is_reported_and_not_created(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match=r"there is no database at .*nothing\.duckdb"):
        DuckDBEngine(tmp_path / "nothing.duckdb", memory="200MB", threads=1)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_database_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "notes.txt").write_text("not a database")
    with pytest.raises(PolicyError, match="cannot be opened") as caught:
        DuckDBEngine(tmp_path / "notes.txt", memory="200MB", threads=1)
    assert caught.value.__context__ is None
    assert "not a valid DuckDB database" in caplog.text


@pytest.mark.parametrize("weak_setting", [name for name in LOCK_DOWN if name != "lock_configuration"])
def test_a_database_that_others_locked_less_tightly_is_refused(tmp_path: Path, weak_setting: str) -> None:
    file = tmp_path / "weak.duckdb"
    duckdb.connect(str(file)).close()
    config: dict[str, str | bool | int | float | list[str]] = {"memory_limit": "200MB", "threads": 1}
    with duckdb.connect(str(file), read_only=True, config=config) as others:
        for name, value in LOCK_DOWN.items():
            if name != weak_setting:
                others.execute(f"SET GLOBAL {name} = '{value}'")
            elif name == "allowed_configs":
                others.execute("SET GLOBAL allowed_configs = '[threads]'")
        with pytest.raises(PolicyError, match=f'does not honour the setting "{weak_setting}"'):
            DuckDBEngine(file, memory="200MB", threads=1)


# --- errors, timeouts and cancellation ---


BY_STATISTICS = "SELECT count(*) FROM flags WHERE CASE WHEN COALESCE(flag, FALSE) THEN 'x' END >= 'a'"


def test_a_query_that_fails_on_statistics_is_run_without_them(engine: DuckDBEngine) -> None:
    """It fails for some rows and not for others: if anybody saw that, it would tell."""
    with engine._connection.cursor() as cursor, pytest.raises(duckdb.Error):
        cursor.execute(BY_STATISTICS)
    assert run(engine, BY_STATISTICS).sums[0].tolist() == [0]


@pytest.mark.parametrize("schema", ["data", "memory", "dpsql"])
@pytest.mark.parametrize("name", ["clinic", "memory_", "it's"])
def test_names_mean_the_same_without_statistics(tmp_path: Path, name: str, schema: str) -> None:
    """A schema with the name of a catalog of the engine would not be found."""
    file = tmp_path / f"{name}.duckdb"
    with duckdb.connect(str(file)) as connection:
        connection.execute(f"CREATE SCHEMA {schema}")
        connection.execute(f"CREATE TABLE {schema}.flags AS SELECT CAST(NULL AS BOOLEAN) AS flag")
    with closing(DuckDBEngine(file, memory="200MB", threads=1)) as engine:
        sql = BY_STATISTICS.replace("FROM flags", f'FROM "{schema}"."flags"')
        with engine._connection.cursor() as cursor, pytest.raises(duckdb.InvalidInputException):
            cursor.execute(sql)
        assert run(engine, sql).sums[0].tolist() == [0]


def test_a_file_may_have_the_name_of_a_catalog(tmp_path: Path) -> None:
    file = tmp_path / "memory.duckdb"
    with duckdb.connect(str(file)) as connection:
        connection.execute("CREATE TABLE flags AS SELECT CAST(NULL AS BOOLEAN) AS flag")
    with closing(DuckDBEngine(file, memory="200MB", threads=1)) as engine:
        assert run(engine, BY_STATISTICS).sums[0].tolist() == [0]


def test_what_ends_the_second_try_tells_nothing_of_the_first(engine: DuckDBEngine) -> None:
    failing = "SELECT CAST(name AS BIGINT) FROM people"
    with pytest.raises(EngineFailed) as failed:
        run(engine, failing)
    assert failed.value.__context__ is None
    switch = Cancellation()

    class CancelledInBetween(list[EngineQuery]):
        """The first try fails; the second is cancelled before it begins."""

        tries = 0

        def __iter__(self) -> Iterator[EngineQuery]:
            self.tries += 1
            if self.tries > 1:
                switch.cancel()
            yield EngineQuery(failing, 0)

    with pytest.raises(Cancelled) as cancelled:
        engine.execute(CancelledInBetween([EngineQuery(failing, 0)]), timeout=30, cancellation=switch)
    assert "Zoë" not in repr(cancelled.value.__context__)


def test_an_engine_that_has_given_up_is_not_missed(path: Path) -> None:
    with closing(DuckDBEngine(path, memory="200MB", threads=2)) as engine:
        engine._connection.close()
        assert run(engine, "SELECT count(*) FROM people").sums[0].tolist() == [3]
        assert engine.read_public(("main", "hospitals"), ["id"], 5) == [[1, 2, 3]]
        assert engine.is_unique(("main", "people"), ("id",))
        with pytest.raises(Cancelled, match="statement timeout"):
            engine.execute([EngineQuery(ENDLESS, 0)], timeout=0.05)


# --- the catalog ---


def test_types_are_mapped(engine: DuckDBEngine) -> None:
    columns = engine.schema().tables["main", "kinds"].columns
    assert {name: column.type for name, column in columns.items()} == {
        "f_bool": BOOLEAN,
        "f_tiny": integer(5),
        "f_utiny": integer(5),
        "f_small": integer(5),
        "f_usmall": integer(5),
        "f_int": integer(10),
        "f_uint": integer(10),
        "f_big": BIGINT,
        "f_ubig": None,
        "f_huge": None,
        "f_dec": decimal(20, 4),
        "f_float": DOUBLE,
        "f_double": DOUBLE,
        "f_text": TEXT,
        "f_uuid": TEXT,
        "f_enum": TEXT,
        "f_date": DATE,
        "f_ts": TIMESTAMP,
        "f_ts_s": TIMESTAMP,
        "f_ts_ms": TIMESTAMP,
        "f_ts_ns": TIMESTAMP,
        "f_tz": TIMESTAMPTZ,
        "f_time": None,
        "f_blob": None,
        "f_list": None,
        "f_enums": None,
    }
    assert list(columns)[:3] == ["f_bool", "f_tiny", "f_utiny"]
    assert not columns["f_bool"].nullable
    assert columns["f_tiny"].nullable
    assert columns["f_list"].native == "INTEGER[]"


def test_a_timestamp_with_time_zone_is_read_in_utc_whatever_its_value(engine: DuckDBEngine) -> None:
    sql = """
        SELECT CAST(CAST(t AS TIMESTAMPTZ) AS TIMESTAMP) = CAST(u AS TIMESTAMP), count(*) FROM (VALUES
            ('2020-07-01 00:00:00+02', '2020-06-30 22:00:00'), ('infinity', 'infinity'), ('-infinity', '-infinity'),
            ('294247-01-10 04:00:54.775806+00', '294247-01-10 04:00:54.775806'),
            ('290309-12-22 (BC) 00:00:00+00', '290309-12-22 (BC) 00:00:00')
        ) AS v(t, u) GROUP BY 1
    """
    table = run(engine, sql, keys=1)
    assert (table.keys, table.sums[0].tolist()) == (((True,),), [5])


def test_a_column_that_is_computed_when_read_is_unknown(tmp_path: Path) -> None:
    """Its expression may be another number at each reading, so that what is taken off is not what was added."""
    path = tmp_path / "made.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute(
            "CREATE TABLE made (id INTEGER, x INTEGER DEFAULT 7, y DOUBLE AS (x * random()), z AS (x + 1))"
        )
    with closing(DuckDBEngine(path, memory="1GB", threads=1)) as engine:
        columns = engine.schema().tables["main", "made"].columns
    assert {name: column.type for name, column in columns.items()} == {
        "id": integer(10),
        "x": integer(10),
        "y": None,
        "z": None,
    }
    assert columns["y"].native == "DOUBLE, generated when read"


@pytest.mark.parametrize(
    "macro",
    ["abs(x)", "Sum(x)", "md5(x)", "count_star()", "row_number()", '"+"(a, b)', "sqrt(x)", "duckdb_functions()"],
)
def test_a_macro_in_place_of_a_function_of_the_engine_is_refused(tmp_path: Path, macro: str) -> None:
    """DuckDB would take the macro wherever generated SQL calls the function: no clip would be what it says."""
    path = tmp_path / "macros.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute(f"CREATE TABLE t (x INTEGER); CREATE MACRO {macro} AS 0")
        connection.execute("CREATE MACRO of_our_own(x) AS x")
    name = macro.split("(")[0].strip('"')
    with pytest.raises(PolicyError, match="macro") as refused:
        DuckDBEngine(path, memory="1GB", threads=1)
    assert name in str(refused.value) and "of_our_own" not in str(refused.value)
    with duckdb.connect(str(path)) as connection:  # nobody holds the file any more
        connection.execute(f"DROP MACRO {macro.split('(')[0]}; CREATE SCHEMA aside; CREATE MACRO aside.{macro} AS 0")
    DuckDBEngine(path, memory="1GB", threads=1).close()


def test_schemas_views_and_uniqueness_are_read(engine: DuckDBEngine) -> None:
    schema = engine.schema()
    assert schema.default_schema == "main"
    assert set(schema.tables) == {
        ("main", "people"),
        ("main", "kinds"),
        ("main", "adults"),
        ("main", "indexed"),
        ("main", "hospitals"),
        ("main", "calendar"),
        ("main", "flags"),
        ("other", 'odd "name'),
    }
    assert schema.tables["main", "people"].unique == {frozenset({"id"})}
    assert not schema.tables["main", "people"].is_view
    assert schema.tables["main", "adults"].is_view
    assert schema.tables["main", "adults"].unique == frozenset()
    # (a, c) is not among them: rows that have NULL in c may repeat a.
    assert schema.tables["other", 'odd "name'].unique == {frozenset({"a", "b"}), frozenset({"c"})}
    assert schema.tables["main", "indexed"].unique == {frozenset({"a"}), frozenset({"b", "c"})}


def test_a_public_table_is_read_by_column_up_to_one_row_past_the_limit(engine: DuckDBEngine) -> None:
    names = ["code", "opened", "beds", "size"]
    assert engine.read_public(("main", "hospitals"), names, limit=1) == [
        ["00000000-0000-0000-0000-000000000001", None],
        [date(1999, 12, 31), None],
        [12, None],
        ["small", None],
    ]
    assert len(engine.read_public(("main", "hospitals"), ["id"], limit=9)[0]) == 3
    assert engine.read_public(("other", 'odd "name'), ["a"], limit=9) == [[]]


def test_a_public_date_python_cannot_hold_is_reported(engine: DuckDBEngine) -> None:
    with pytest.raises(PolicyError, match='public column "day"'):
        engine.read_public(("main", "calendar"), ["day"], limit=9)


def test_a_closed_backend_fails_with_our_error(path: Path) -> None:
    closed = DuckDBEngine(path, memory="200MB", threads=2)
    closed.close()
    with pytest.raises(EngineFailed):
        run(closed, "SELECT 1::BIGINT")
