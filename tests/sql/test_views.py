"""Views of the policy: read when the database is opened, so that a wrong one is the owner's problem."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

import dpsql
from dpsql.answering.open_dataset import check
from dpsql.policy.problems import PolicyProblems

POLICY = """
[database]
url = "duckdb:///clinic.duckdb"
[privacy]
epsilon = 100
query_epsilon = 10
[tables.people]
unit = "id"
[tables.people.columns]
age = { min = 0, max = 110 }
"""


@pytest.fixture
def clinic(tmp_path: Path) -> Path:
    with duckdb.connect(str(tmp_path / "clinic.duckdb")) as connection:
        connection.execute("CREATE TABLE people AS SELECT i AS id, i % 100 AS age FROM range(1000) AS r(i)")
    return tmp_path / "dpsql.toml"


def faults(path: Path, views: str) -> list[str]:
    path.write_text(POLICY + views)
    with pytest.raises(PolicyProblems) as caught:
        check(path)
    return [problem.message for problem in caught.value.problems]


def test_a_view_is_asked_like_a_table(clinic: Path) -> None:
    clinic.write_text(POLICY + '[views.old]\nsql = "SELECT age FROM people WHERE age >= 65"\n[users.alice]\n')
    with dpsql.connect(clinic, user="alice") as connection:
        cursor = connection.cursor()
        cursor.execute("SELECT COUNT(*) FROM old WHERE age < 90")
        ((count,),) = cursor.fetchall()
        assert isinstance(count, int) and 200 < count < 300


def test_a_view_may_read_another(clinic: Path) -> None:
    clinic.write_text(
        POLICY + '[views."a.old"]\nsql = "SELECT age FROM b WHERE age > 64"\n[views.b]\nsql = "SELECT * FROM people"\n'
    )
    assert check(clinic).release("SELECT COUNT(*) FROM a.old").measurements


@pytest.mark.parametrize(
    ("views", "message"),
    [
        ("[views.v]\nsql = 'SELECT nothing FROM people'", 'view "v" cannot be read: column "nothing" does not exist'),
        ("[views.v]\nsql = 'SELECT FROM'", 'view "v" cannot be read'),
        ("[views.v]\nsql = 'SELECT 1 FROM v'", 'view "v" cannot be read: view "v" refers back to itself'),
        ("[views.v]\nsql = 'SELECT $1'", 'view "v" cannot be read: there is no parameter $1'),
        ("[views.v]\nsql = 'DELETE FROM people'", 'view "v" cannot be read'),
        ("[views.people]\nsql = 'SELECT 1'", '"people" is declared as a table and as a view'),
        ("[views.v]\nquery = 'SELECT 1'", '"sql" is missing in [views.v]'),
        ('[views."a.b.c"]\nsql = "SELECT 1"', '"a.b.c" is not a valid view name'),
    ],
)
def test_what_is_wrong_with_a_view(clinic: Path, views: str, message: str) -> None:
    assert any(fault.startswith(message) for fault in faults(clinic, views))


def test_views_that_refer_to_each_other(clinic: Path) -> None:
    found = faults(clinic, "[views.a]\nsql = 'SELECT * FROM b'\n[views.b]\nsql = 'SELECT * FROM a'\n")
    assert found == [f'view "{name}" cannot be read: view "{name}" refers back to itself' for name in "ab"]
