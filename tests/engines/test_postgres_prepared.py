"""Prepared copies in PostgreSQL: the same sums as without, a schema that nobody writes to, and what is refused."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from click.testing import CliRunner, Result

from dpsql.answering.open_dataset import bind_all, open_backend
from dpsql.answering.prepare_copies import prepare
from dpsql.cli import commands
from dpsql.compliance.cases import Case
from dpsql.compliance.lab import Lab, ToyDataset
from dpsql.compliance.suite import Rows, rows_of, run_on
from dpsql.compliance.toy import POLICIES
from dpsql.engines.base import Engine
from dpsql.engines.postgres.engine import PostgresEngine
from dpsql.errors import Error
from dpsql.policy.load import load
from dpsql.policy.model import PreparedPolicy
from dpsql.policy.prepared import COPIED_ROWS
from grammar_tests.servers import Server
from tests.engines.pair import ACCEPTED, Pair

CHOSEN = ACCEPTED if os.environ.get("DPSQL_ALL") else ACCEPTED[::5]


@dataclass
class Copies:
    """The toy data of a pair, prepared in the same databases."""

    folder: Path
    made: dict[str, PreparedPolicy]
    urls: dict[str, str]
    dirty: Engine
    datasets: dict[str, ToyDataset]

    def dataset(self, policy: str) -> ToyDataset:
        if policy not in self.datasets:
            self.datasets[policy] = ToyDataset(self.folder, policy, self.open("toy"))
        return self.datasets[policy]

    def open(self, name: str) -> Engine:
        return PostgresEngine(self.urls[name], memory="64MB", threads=1, prepared=self.made[name])

    def close(self) -> None:
        for dataset in self.datasets.values():
            dataset.close()
        self.dirty.close()


def _policy(folder: Path, name: str, url: str) -> Path:
    policy = folder / f"of_{name}.toml"
    text = "\n".join((POLICIES / part).read_text() for part in ("zcdp.toml", "tables.toml"))
    policy.write_text(text.replace('"duckdb:///toy.duckdb"', f'"{url}"\nledger = "{name}.ledger"'))
    return policy


@pytest.fixture(scope="module")
def copies(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Copies]:
    folder = tmp_path_factory.mktemp("copies")
    urls = {name: pair.url(name) for name in ("toy", "dirty")}
    made = {name: prepare(_policy(folder, name, url)).prepared for name, url in urls.items()}
    dirty = PostgresEngine(urls["dirty"], memory="64MB", threads=1, prepared=made["dirty"])
    dirty.schema()
    with closing(Copies(folder, made, urls, dirty, {})) as found:
        yield found


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in CHOSEN])
def test_exact_tables_are_the_same(case: Case, pair: Pair, copies: Copies) -> None:
    plain, prepared = pair.dataset(case.policy), copies.dataset(case.policy)
    expected, asked_plain = plain.answer(case)
    found, asked_prepared = prepared.answer(case)
    assert found.table.rows == expected.table.rows
    assert _shown(rows_of([t for each in prepared.engine.found for t in each])) == _shown(
        rows_of([t for each in plain.engine.found for t in each])
    )
    known_by = [[each.identity for each in given.release.measurements] for given in (expected, found)]
    assert known_by[0] == known_by[1]  # so that stored answers are found again
    for ours, theirs in zip(asked_prepared, asked_plain, strict=True):
        assert _shown(run_on(copies.dirty, ours)) == _shown(run_on(pair.dirty_postgres, theirs))


def _shown(tables: list[Rows]) -> list[Rows]:
    """A declared key that nobody has may be missing, or come with zeros."""
    return [{key: sums for key, sums in table.items() if any(sums)} for table in tables]


def test_owners_are_told_apart_by_the_copy(copies: Copies) -> None:
    sql = "SELECT v.kind, COUNT(*) FROM visits v JOIN items i ON v.id = i.visit_id GROUP BY 1"
    _, asked = copies.dataset("zcdp").answer(Case(ACCEPTED[0].path, 1, sql, ""))
    (query,) = (query for measurement in asked for query in measurement)
    assert COPIED_ROWS in query.sql
    assert {source[0] for source in query.sources} == {copies.made["toy"].copy}


def test_a_copy_refuses_to_be_written_to(copies: Copies) -> None:
    with psycopg.connect(copies.urls["toy"], autocommit=True) as connection:
        for statement in ("DELETE FROM {}.visits", "TRUNCATE {}.visits", "UPDATE {}.about SET version = '7'"):
            with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
                connection.execute(statement.format(copies.made["toy"].copy).encode())


def test_copies_are_no_tables_of_the_database(copies: Copies) -> None:
    with closing(PostgresEngine(copies.urls["toy"], memory="64MB", threads=1)) as engine:
        assert all(not schema.startswith("dpsql_prepared") for schema, _ in engine.schema().tables)


# --- on the command line ---


def run(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(commands, arguments, input=stdin, prog_name="dpsql")


@pytest.fixture
def shop(server: Server, lab: Lab, tmp_path: Path) -> Path:
    """A policy whose role may only read."""
    del lab
    name = f"shop_{os.urandom(4).hex()}"
    server.create_database(name)
    with server.connect(name) as connection:
        connection.execute("CREATE TABLE sales (id bigint PRIMARY KEY, person int, price int)")
        connection.execute("CREATE INDEX ON sales (price)")
        connection.execute("INSERT INTO sales SELECT i, i % 50, i % 7 FROM generate_series(1, 1000) AS t(i)")
        connection.execute("INSERT INTO sales VALUES (0, NULL, 1)")
        connection.execute(f"CREATE ROLE {name}_reader LOGIN".encode())
        connection.execute(f"GRANT SELECT ON sales TO {name}_reader".encode())
    policy = tmp_path / "dpsql.toml"
    policy.write_text(f"""[database]
url = "{server.url(name, user=f"{name}_reader")}"
ledger = "shop.ledger"
[privacy]
epsilon = 10
delta = 1e-6
[users.alice]
[tables.sales]
unit = "person"
max_rows_per_unit = 10
tight = true
[tables.sales.columns]
price = {{ min = 0, max = 6 }}
""")
    (tmp_path / "writer").write_text(server.url(name))
    return policy


def _writer(policy: Path) -> str:
    return (policy.parent / "writer").read_text()


def test_a_schema_is_made_and_named(shop: Path) -> None:
    result = run("prepare", "--policy", str(shop), "--as", _writer(shop), "--yes")
    assert result.exit_code == 0, result.output
    assert '"dpsql_prepared_1": version 1, 1 private table, 0 public tables' in result.stdout
    with psycopg.connect(_writer(shop)) as connection:
        (row,) = connection.execute("SELECT COUNT(*), MIN(dpsql_rows), MAX(dpsql_rows) FROM dpsql_prepared_1.sales")
        assert row == (1000, 20, 20)
        indexes = connection.execute("SELECT FROM pg_indexes WHERE schemaname = 'dpsql_prepared_1'").fetchall()
        assert len(indexes) == 3
    checked = run("check", str(shop))
    assert 'prepared: "dpsql_prepared_1", version 1' in checked.stdout, checked.output
    assert "warnings" not in checked.stdout
    asked = run("query", "--policy", str(shop), "--new-ledger", "SELECT COUNT(*) FROM sales")
    assert asked.exit_code == 0, asked.output
    explained = run("explain", "--policy", str(shop), "SELECT COUNT(*) FROM sales")
    assert "Prepared copy: units with at most 10 rows in sales are added up as they are" in explained.stdout


def test_nothing_is_written_without_the_owners_word(shop: Path) -> None:
    assert run("prepare", "--policy", str(shop), "--as", _writer(shop), stdin="n\n").exit_code == 1
    assert load(shop).prepared is None
    with psycopg.connect(_writer(shop)) as connection:
        assert connection.execute("SELECT FROM pg_namespace WHERE nspname ~ '^dpsql'").fetchall() == []


def test_a_role_that_may_only_read(shop: Path) -> None:
    result = run("prepare", "--policy", str(shop), "--yes")
    assert result.exit_code == 1 and "the role may not create a schema" in result.stderr
    assert load(shop).prepared is None


def test_a_schema_that_is_there_is_left_alone(shop: Path) -> None:
    with psycopg.connect(_writer(shop), autocommit=True) as connection:
        connection.execute("CREATE SCHEMA dpsql_prepared_1")
    result = run("prepare", "--policy", str(shop), "--as", _writer(shop), "--yes")
    assert result.exit_code == 1 and 'the schema "dpsql_prepared_1" already exists' in result.stderr
    result = run("prepare", "--policy", str(shop), "--as", _writer(shop), "--yes", "--to", "public")
    assert result.exit_code == 1 and "must begin with" in result.stderr


def test_a_copy_that_is_gone_or_another_is_refused(shop: Path) -> None:
    for _ in range(2):
        assert run("prepare", "--policy", str(shop), "--as", _writer(shop), "--yes").exit_code == 0
    shop.write_text(shop.read_text().replace("dpsql_prepared_2", "dpsql_prepared_1"))
    _refused(shop, "is not the one that the policy names")
    shop.write_text(shop.read_text().replace("dpsql_prepared_1", "dpsql_prepared_3"))
    _refused(shop, "there is no prepared copy in the schema")


def _refused(policy: Path, text: str) -> None:
    declared = load(policy)
    with closing(open_backend(declared)) as engine, pytest.raises(Error, match=text):
        bind_all(declared, engine)
