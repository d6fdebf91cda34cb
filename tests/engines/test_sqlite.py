"""An engine from outside, in a package of its own: it is found, asked, and held to what dpsql asks of every engine."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from types import MappingProxyType

import pytest
from click.testing import CliRunner, Result

from dpsql.cli import commands
from dpsql.compliance.suite import EngineCompliance, Gap
from dpsql.compliance.toys import ToyTable
from dpsql.docs.policy import of_engines
from dpsql.engines.registry import engine_kind
from dpsql.errors import SchemaChanged
from dpsql.policy.load import database_address, load
from dpsql.policy.model import Limits
from dpsql.policy.schemes import kind_named
from dpsql.types import Kind
from tests.engines.distribution import install

_POLICY = """
[database]
url = "sqlite:///clinic.sqlite"
[privacy]
epsilon = 100.0
delta = 1e-6
[users.alice]
[tables.people]
unit = "id"
[tables.people.columns]
age = { min = 0, max = 110 }
state = { values = ["CA", "NY", "TX"] }
"""
_PACKAGE = Path(__file__).parent / "sqlite_package"
_NATIVE = {Kind.DOUBLE: "REAL", Kind.TEXT: "TEXT"}


@pytest.fixture(scope="module", autouse=True)
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The package, as pip leaves it: a module on the path, and a distribution that registers its engine."""
    folder = tmp_path_factory.mktemp("site-packages")
    install(folder, "dpsql-sqlite", {"sqlite": "dpsql_sqlite:KIND"})
    paths = [str(folder), str(_PACKAGE)]
    sys.path[:0] = paths
    yield
    for path in paths:
        sys.path.remove(path)
    kind_named.cache_clear()


class SQLitePlace:
    kinds = frozenset((Kind.INTEGER, Kind.DOUBLE, Kind.TEXT))
    server = None

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def make(self, name: str, tables: Sequence[ToyTable]) -> str:
        path = self._folder / f"{name}.sqlite"
        with sqlite3.connect(path) as connection:
            for table in tables:
                columns = []
                for column in table.columns:
                    wide = column.type.precision > 10
                    native = _NATIVE.get(column.type.kind) or ("INTEGER" if wide else "INT")
                    columns.append(f'"{column.name}" {native}{"" if column.nullable else " NOT NULL"}')
                if table.key:
                    columns.append(f"PRIMARY KEY ({', '.join(table.key)})")
                connection.execute(f'CREATE TABLE "{table.name}" ({", ".join(columns)}) STRICT')
                marks = ", ".join("?" * len(table.columns))
                rows = [
                    [_cell(cell, c.type.kind) for cell, c in zip(row, table.columns, strict=True)] for row in table.rows
                ]
                connection.executemany(f'INSERT INTO "{table.name}" VALUES ({marks})', rows)
        connection.close()
        return f"sqlite:///{path}"

    def change(self, url: str) -> None:
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
            connection.execute("ALTER TABLE people ADD COLUMN years INT")
            connection.execute("ALTER TABLE people DROP COLUMN age")


def _cell(cell: str | None, kind: Kind) -> object:
    if cell is None:
        return None
    return int(cell) if kind is Kind.INTEGER else float(cell) if kind is Kind.DOUBLE else cell


class TestSQLite(EngineCompliance):
    endless = "WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r) SELECT COUNT(*) FROM r"
    failing = "SELECT json_extract(city, '$') FROM people"
    writing = ("DELETE FROM people", "CREATE TABLE t (a INT)", "ATTACH ':memory:' AS other", "PRAGMA query_only = OFF")
    wrong = ("sqlite:///nowhere.sqlite",)
    without = MappingProxyType({"server": "SQLite runs within the process of dpsql, and a file has no password"})
    gaps = (
        Gap(
            "this needs integers of 128 bits, which sqlite does not have",
            "an integer of SQLite has 64 bits",
            "SELECT kind, SUM(minutes) FROM visits GROUP BY kind",
        ),
        Gap(
            "arithmetic on doubles, which has no NaN, is not supported on sqlite",
            "NaN is NULL in SQLite",
            "SELECT COUNT(*) FROM people WHERE income * 2 > 5",
        ),
        Gap(
            "values of type numeric are not supported on sqlite",
            "SQLite has no decimals",
            "SELECT SUM((age / 2.0)::int) FROM people",
        ),
        Gap(
            "a cast from .* is not supported on sqlite",
            "nobody has written a total form",
            "SELECT COUNT(*) FROM people WHERE CAST(note AS integer) = 1",
        ),
        Gap(
            "[<>=]+ (ANY|ALL) over a subquery is not supported on sqlite",
            "SQLite has neither",
            "SELECT COUNT(*) FROM people p WHERE age < ANY (SELECT minutes FROM visits v WHERE v.patient_id = p.id)",
        ),
        Gap(
            r"\S.* (is|are) not supported on sqlite",
            "nobody has written a total form",
            "SELECT COUNT(*) FROM people WHERE ln(age) > 1",
        ),
    )

    @pytest.fixture(scope="class")
    @classmethod
    def place(cls, tmp_path_factory: pytest.TempPathFactory) -> SQLitePlace:
        return SQLitePlace(tmp_path_factory.mktemp("sqlite"))


@pytest.fixture
def clinic(tmp_path: Path) -> Path:
    """A policy, and the SQLite file that it names."""
    with sqlite3.connect(tmp_path / "clinic.sqlite") as connection:
        connection.execute("CREATE TABLE people (id INT PRIMARY KEY, age INT, state TEXT) STRICT")
        rows = [(i, i % 100, ["CA", "NY", "TX"][i % 3]) for i in range(3_000)]
        connection.executemany("INSERT INTO people VALUES (?, ?, ?)", rows)
    connection.close()
    (tmp_path / "dpsql.toml").write_text(_POLICY)
    return tmp_path / "dpsql.toml"


def _run(*arguments: str) -> Result:
    return CliRunner().invoke(commands, arguments, prog_name="dpsql")


def test_from_a_policy_to_an_answer(clinic: Path) -> None:
    checked = _run("check", str(clinic))
    assert checked.exit_code == 0, checked.output
    sql = "SELECT state, COUNT(*) AS n, SUM(age) AS years FROM people GROUP BY state ORDER BY state"
    asked = _run("query", "--policy", str(clinic), "--user", "alice", "--format", "csv", "--epsilon", "50", sql)
    assert asked.exit_code == 0, asked.output
    rows = [line.split(",") for line in asked.stdout.splitlines()[1:4]]
    assert [row[0] for row in rows] == ["CA", "NY", "TX"]
    assert all(abs(int(row[1]) - 1_000) < 200 for row in rows)
    assert (clinic.parent / "clinic.sqlite.ledger").is_file()


def test_it_takes_keys_of_its_own(clinic: Path) -> None:
    """They are refused where they are misspelt, of another type or of another engine."""

    def told(line: str, url: str = "sqlite:///clinic.sqlite") -> str:
        written = _POLICY.replace('url = "sqlite:///clinic.sqlite"', f'url = "{url}"\n{line}')
        clinic.write_text(written)
        return _run("check", str(clinic)).output

    assert "unknown key" not in told('vfs = "unix-none"')
    assert database_address(load(clinic)).keys == {"vfs": "unix-none"}
    asked = _run("query", "--policy", str(clinic), "--user", "alice", "SELECT COUNT(*) FROM people")
    assert asked.exit_code == 0, asked.output
    assert 'unknown key "vsf"' in told('vsf = "unix-none"')
    assert "must be a string" in told("vfs = 1")
    assert 'unknown key "vfs"' in told('vfs = "unix-none"', "duckdb:///clinic.sqlite")
    assert "unknown key" not in told('vfs = "unix-none"', "lake:///clinic.sqlite")  # which nobody knows


def test_the_reference_lists_the_keys_of_an_engine() -> None:
    (section,) = of_engines([engine_kind("sqlite:///clinic.sqlite")])
    assert section.startswith("## `[database]` of SQLite") and "| `vfs` | a name |" in section


def test_what_it_lacks_is_refused_before_it_is_paid(clinic: Path) -> None:
    asked = _run("query", "--policy", str(clinic), "--user", "alice", "SELECT COUNT(*) FROM people WHERE ln(age) > 1")
    assert asked.exit_code == 1 and "ln is not supported on sqlite" in asked.stderr


def test_commands_that_it_has_no_part_in_say_so(clinic: Path) -> None:
    for command, message in (("prepare", "no copies can be prepared"), ("audit", "an audit needs synthetic databases")):
        told = _run(command, "--policy", str(clinic))
        assert told.exit_code == 1 and message in told.stderr, told.output


def test_a_table_that_changed_is_refused(clinic: Path) -> None:
    """By an engine whose data may change while it is open."""
    kind = engine_kind("sqlite:///clinic.sqlite")
    with closing(kind.open(kind.address("sqlite:///clinic.sqlite", clinic.parent, {}), Limits(), None)) as engine:
        engine.schema()
        with sqlite3.connect(clinic.parent / "clinic.sqlite") as connection:
            connection.execute("ALTER TABLE people ADD COLUMN name TEXT")
        connection.close()
        with pytest.raises(SchemaChanged):
            engine.ready([("main", "people")], timeout=10)
