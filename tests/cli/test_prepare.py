"""`dpsql prepare`: what it writes, what then is read, and what it refuses."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import duckdb
import pytest
from click.testing import CliRunner, Result

import dpsql
from dpsql.cli import commands
from dpsql.errors import Error
from dpsql.policy.load import load

BY_KIND = "SELECT kind, COUNT(*) AS n FROM visits GROUP BY kind ORDER BY kind"
TOTAL = "SELECT COUNT(*) AS n FROM visits"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(commands, arguments, prog_name="dpsql")


def prepare(policy: Path, *more: str) -> Result:
    return run("prepare", "--policy", str(policy), *more)


def answer(policy: Path, sql: str) -> tuple[list[tuple[object, ...]], bool]:
    """The rows, and whether they were paid for."""
    with dpsql.connect(str(policy), user="alice") as connection:
        cursor = connection.cursor()
        cursor.execute(sql)
        assert cursor.cost is not None
        return list(cursor.fetchall()), not str(cursor.cost.charged).startswith("nothing")


def change(policy: Path, old: str, new: str) -> None:
    text = policy.read_text()
    assert old in text
    policy.write_text(text.replace(old, new))


def test_a_copy_is_made_and_named(clinic: Path) -> None:
    before = clinic.read_text()
    result = prepare(clinic)
    assert result.exit_code == 0, result.output
    assert "version 1, 2 private tables, 1 public table" in result.stdout
    assert "copying visits" in result.stderr
    prepared = load(clinic).prepared
    assert prepared is not None and prepared.version == 1
    copy = clinic.parent / prepared.copy
    assert copy.is_file() and not copy.stat().st_mode & 0o222
    assert [name for name in os.listdir(clinic.parent) if name.endswith((".new", ".tmp", ".wal"))] == []
    lines = [line for line in clinic.read_text().splitlines() if not line.startswith("prepared = ")]
    assert lines == before.splitlines()


def test_stored_answers_are_found_again(clinic: Path) -> None:
    rows, paid = answer(clinic, TOTAL)
    assert paid
    prepare(clinic)
    again, paid = answer(clinic, TOTAL)
    assert (again, paid) == (rows, False)


def test_what_is_asked_of_a_copy_is_what_was_there_when_it_was_made(clinic: Path) -> None:
    prepare(clinic)
    database = next(path for path in clinic.parent.glob("*.duckdb") if "prepared" not in path.name)
    with duckdb.connect(str(database)) as connection:
        connection.execute("DELETE FROM visits")
    (row,), _ = answer(clinic, TOTAL)
    assert isinstance(row[0], int) and row[0] > 200
    checked = run("check", str(clinic))
    assert "prepared-1.duckdb" in checked.stdout and "version 1, is read instead of the database" in checked.stdout
    assert "the database was written to after its copy was prepared" in checked.stdout


def test_the_next_one_is_another_version(clinic: Path) -> None:
    prepare(clinic)
    result = prepare(clinic)
    assert result.exit_code == 0, result.output
    assert "version 2" in result.stdout and "prepared-1.duckdb" in result.stdout.splitlines()[-1]
    prepared = load(clinic).prepared
    assert prepared is not None and prepared.version == 2
    assert "was written to after" not in run("check", str(clinic)).stdout


def test_off_reads_the_database_again(clinic: Path) -> None:
    before = clinic.read_text()
    prepare(clinic)
    assert "no longer names a copy" in prepare(clinic, "--off").stdout
    assert clinic.read_text() == before
    assert "names no prepared copy" in prepare(clinic, "--off").stdout


def test_explain_says_so(clinic: Path) -> None:
    prepare(clinic)
    result = run("explain", "--policy", str(clinic), TOTAL)
    assert "Prepared copy: units with at most 10 rows in visits are added up as they are" in result.stdout


def test_an_audit_asks_its_own_tables(clinic: Path) -> None:
    prepare(clinic)
    result = run("audit", "--trials", "1000", "--policy", str(clinic))
    assert result.exit_code == 0, result.output


def test_nothing_is_written_over(clinic: Path, tmp_path: Path) -> None:
    target = tmp_path / "mine.duckdb"
    target.write_text("mine")
    result = prepare(clinic, "--to", str(target))
    assert result.exit_code == 1 and "already exists" in result.stderr
    assert target.read_text() == "mine"
    assert load(clinic).prepared is None


def test_names_that_a_copy_adds_are_refused(clinic: Path) -> None:
    database = next(clinic.parent.glob("*.duckdb"))
    with duckdb.connect(str(database)) as connection:
        connection.execute("ALTER TABLE visits ADD COLUMN dpsql_rows INTEGER")
    result = prepare(clinic)
    assert result.exit_code == 1 and 'has a column "dpsql_rows"' in result.stderr


def test_columns_that_are_computed_when_read_are_left_out(clinic: Path) -> None:
    database = next(clinic.parent.glob("*.duckdb"))
    with duckdb.connect(str(database)) as connection:
        connection.execute("CREATE TABLE made (who INTEGER, x INTEGER, y DOUBLE AS (x * random()), z INTEGER[])")
    declared = '[tables.made]\nunit = "who"\n[tables.made.columns]\nx = { min = 0, max = 9 }\n'
    clinic.write_text(f"{clinic.read_text()}\n{declared}")
    result = prepare(clinic)
    assert result.exit_code == 0, result.output
    answer(clinic, "SELECT SUM(x) FROM made")


def test_a_copy_is_no_database(clinic: Path) -> None:
    """Its ledger would lie beside it, and forget what was spent."""
    database = next(clinic.parent.glob("*.duckdb")).name
    prepare(clinic)
    prepared = load(clinic).prepared
    assert prepared is not None
    prepare(clinic, "--off")
    change(clinic, database, prepared.copy)
    with pytest.raises(Error, match="is a prepared copy"):
        answer(clinic, TOTAL)


def test_another_copy_is_refused(clinic: Path) -> None:
    prepare(clinic)
    prepare(clinic)
    first, second = (clinic.parent / path for path in sorted(clinic.parent.glob("*.prepared-*.duckdb")))
    second.unlink()
    shutil.copy(first, second)
    with pytest.raises(Error, match="is not the one that the policy names"):
        answer(clinic, TOTAL)
    second.unlink()
    with pytest.raises(Error, match="there is no prepared copy at"):
        answer(clinic, TOTAL)


def test_a_copy_with_another_unit_is_refused(clinic: Path) -> None:
    prepare(clinic)
    change(clinic, 'unit = "patient_id"', 'unit = "id"')
    with pytest.raises(Error, match="had a different unit when the copy was prepared"):
        answer(clinic, TOTAL)


def test_a_table_declared_later_is_refused(clinic: Path) -> None:
    database = next(clinic.parent.glob("*.duckdb"))
    with duckdb.connect(str(database)) as connection:
        connection.execute("CREATE TABLE letters (person BIGINT)")
    prepare(clinic)
    clinic.write_text(clinic.read_text() + '\n[tables.letters]\nunit = "person"\n')
    with pytest.raises(Error, match="letters"):
        answer(clinic, TOTAL)


def test_the_rows_of_an_answer_are_the_same(clinic: Path, tmp_path: Path) -> None:
    result = prepare(clinic, "--to", str(tmp_path / "fast.duckdb"))
    assert result.exit_code == 0, result.output
    rows, _ = answer(clinic, BY_KIND)
    assert rows
