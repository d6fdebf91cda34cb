"""`dpsql demo`: the data is untidy and always the same, and the tour teaches what it says."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest
from click.testing import CliRunner, Result

import dpsql
from dpsql.cli import commands, demo_data


def run(*arguments: str) -> Result:
    return CliRunner().invoke(commands, arguments, prog_name="dpsql")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo, written once, before anybody asked it anything."""
    folder = tmp_path_factory.mktemp("written") / "demo"
    assert demo_data.write_demo(folder)
    return folder


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    return shutil.copytree(written, tmp_path / "demo")


@pytest.fixture(scope="module")
def data(written: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect(str(written / demo_data.DATABASE), read_only=True) as connection:
        yield connection


# --- the data ---


@pytest.mark.parametrize(
    "claim",
    [
        "SELECT COUNT(*) >= 100_000 FROM patients",
        "SELECT COUNT(*) > 3 * (SELECT COUNT(*) FROM patients) FROM visits",
        "SELECT MAX(n) > 100 FROM (SELECT COUNT(*) AS n FROM visits GROUP BY patient_id)",  # far more than count
        "SELECT COUNT(DISTINCT patient_id) < (SELECT COUNT(*) FROM patients) FROM visits",  # some never come
        "SELECT bool_and(patient_id BETWEEN 1 AND (SELECT MAX(id) FROM patients)) FROM visits",
        "SELECT COUNT(*) = COUNT(DISTINCT id) FROM visits",
        "SELECT MAX(age) = 999 AND MAX(income) = 1e9 FROM patients",  # out of range
        "SELECT MIN(fee) < 0 AND MAX(fee) > 500 AND MIN(seen) < '1901-01-01' FROM visits",
        "SELECT COUNT(*) FILTER (age IS NULL) > 100 AND COUNT(*) FILTER (sex IS NULL) > 100 FROM patients",
        "SELECT COUNT(*) FILTER (fee IS NULL) > 100 AND COUNT(*) FILTER (department IS NULL) > 100 FROM visits",
        "SELECT COUNT(DISTINCT town) > 500 FROM patients",
        "SELECT (SELECT COUNT(*) FROM hospitals) = 8 AND (SELECT COUNT(*) FROM regions) = 5",
        # Columns are independent draws, not one draw seen twice.
        "SELECT abs(corr(age, income)) < 0.05 FROM patients WHERE age < 900 AND income < 1e8",
        "SELECT abs(corr(age, id)) < 0.05 FROM patients WHERE age < 900",
    ],
)
def test_the_data_is_large_and_untidy(data: duckdb.DuckDBPyConnection, claim: str) -> None:
    assert data.cursor().execute(claim).fetchone() == (True,)


def test_the_data_is_the_same_every_time(data: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    assert demo_data.write_demo(tmp_path / "again")
    assert [path.name for path in sorted((tmp_path / "again").iterdir())] == [demo_data.DATABASE, demo_data.POLICY]
    with duckdb.connect(str(tmp_path / "again" / demo_data.DATABASE), read_only=True) as other:
        for table in ("patients", "visits", "hospitals", "regions"):
            sql = f"SELECT COUNT(*), bit_xor(hash(COLUMNS(*))) FROM {table}"
            assert data.cursor().execute(sql).fetchone() == other.execute(sql).fetchone()


def test_the_policy_is_right(folder: Path) -> None:
    result = run("check", str(folder / demo_data.POLICY))
    assert (result.exit_code, result.stderr) == (0, "")


# --- the tour ---


def test_the_tour_keeps_its_promises_twice(folder: Path) -> None:
    first = run("demo", str(folder))
    assert (first.exit_code, first.stderr) == (0, "")
    steps = re.split(r"\n\d\. .*\n", first.stdout)[1:]
    assert len(steps) == 6
    histogram, mean, refused, towns, too_dear, again = steps
    for sql, step in (("GROUP BY decade", histogram), ("AVG(age)", mean), ("SELECT town, income", refused)):
        assert sql in step
    assert histogram.count(" ±34") == 12 and "█" in histogram
    assert re.search(r": 4\d\.\d+ ±0\.\d+\* years\.", mean)
    assert "(SQLSTATE 42501)" in refused and "paid now" not in refused
    assert "Keys: unknown; returned where the noisy count of units is at least " in towns
    assert "paid now: epsilon 0.25" in towns and "paid now: nothing" in towns
    assert "(SQLSTATE 53400)" in too_dear and "░ left: epsilon 1.9" in too_dear
    assert "paid now: nothing" in again and histogram.split("price: ")[0] == again.split("price: ")[0]

    with dpsql.connect(folder / demo_data.POLICY) as connection:
        before = connection.budget
    assert before.left.epsilon > 1.9
    second = run("demo", str(folder))
    assert second.exit_code == 0 and "paid now: epsilon" not in second.stdout
    assert f'"{folder}" already exists: its data and ledger are used again' in second.stdout
    with dpsql.connect(folder / demo_data.POLICY) as connection:
        assert connection.budget == before


def test_what_to_try_next_works(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = run("demo", str(folder))
    lines = result.stdout.partition("What to try next\n")[2].splitlines()
    cd, *tries = [shlex.split(line) for line in lines if line.startswith("  ")]
    assert cd == ["cd", str(folder)]
    monkeypatch.chdir(folder)
    assert {words[1] for words in tries} == {"query", "explain", "shell", "budget", "demo"}
    for words in tries:
        if words[1] in ("query", "explain"):
            assert run(*words[1:]).exit_code == 0, words


# --- where it cannot be written ---


def test_the_folder_may_be_anything_but_must_be_writable(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = run("demo", str(tmp_path / "file" / "demo"))
    assert result.exit_code == 1
    assert result.stderr.splitlines() == [
        f'error: the demo cannot be written to "{tmp_path / "file" / "demo"}" (SQLSTATE 58000)',
        "hint: Choose a folder that can be written to and has 50 MB of free space: dpsql demo FOLDER",
    ]


@pytest.mark.parametrize("name", [demo_data.POLICY, demo_data.DATABASE])
def test_files_of_somebody_else_are_left_alone(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    result = run("demo", str(tmp_path))
    assert result.exit_code == 1
    assert result.stderr.startswith(f'error: "{tmp_path}" exists and is not a demo (SQLSTATE 58000)\nhint: ')
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(name, "mine")]


def test_a_run_that_fails_half_way_leaves_nothing_that_looks_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo_data, "_DATA", "CREATE TABLE patients (id INTEGER); SELECT * FROM missing")
    assert run("demo", str(tmp_path / "demo")).exit_code == 1
    assert list((tmp_path / "demo").iterdir()) == []
