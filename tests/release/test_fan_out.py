"""Joins with public tables: how many rows one row meets is counted, or the answer says that it was not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import duckdb
import pytest

import dpsql
from dpsql.plan.nodes import OneRow, Project, SetKind, SetOperation
from dpsql.plan.scalars import Call, Const, Field, Op, Ref, Scalar
from dpsql.privacy.keys.fan_out import fan_out
from dpsql.privacy.keys.public_rows import Rows, public_rows
from dpsql.types import BIGINT, BOOLEAN, TEXT

POLICY = """
[database]
url = "duckdb:///data.duckdb"

[privacy]
epsilon = 9_000
delta = 1e-3
query_epsilon = 1_000
max_query_epsilon = 2_000

[users.alice]

[tables.people]
unit = "id"

[tables.people.columns]
age = { min = 0, max = 99 }
tag = {}

[tables.small]
public = true

[tables.large]
public = true

[tables.large.columns]
place = { max_rows_per_value = 1 }
grade = { max_rows_per_value = 300 }
"""


@pytest.fixture
def cursor(tmp_path: Path) -> Iterator[dpsql.Cursor]:
    with duckdb.connect(str(tmp_path / "data.duckdb")) as data:
        data.execute("CREATE TABLE people (id int PRIMARY KEY, age int, tag int)")
        data.execute("INSERT INTO people SELECT i, i % 100, i % 3 FROM range(1000) AS r(i)")
        data.execute("CREATE TABLE small AS SELECT i AS place, i % 2 AS tag FROM range(5) AS r(i)")
        data.execute("CREATE TABLE large AS SELECT i AS place, i % 600 AS tag, i % 4 AS grade FROM range(1200) AS r(i)")
    (tmp_path / "dpsql.toml").write_text(POLICY)
    with closing(dpsql.connect(tmp_path / "dpsql.toml", user="alice")) as connection:
        yield connection.cursor()


def cut(cursor: dpsql.Cursor) -> list[str]:
    """The cautions that rows of a public table may be cut off."""
    return [caution for caution in cursor.cautions if "public table" in caution]


def to_tens(count: object) -> int:
    assert isinstance(count, int)
    return round(count, -1)


def test_every_row_that_is_met_counts(cursor: dpsql.Cursor) -> None:
    sql = "SELECT s.place, COUNT(*) FROM people p, small s WHERE p.age >= 10 GROUP BY 1 ORDER BY 1"
    assert [(place, to_tens(count)) for place, count in cursor.execute(sql).fetchall()] == [(i, 900) for i in range(5)]
    assert cut(cursor) == []
    cursor.execute("SELECT COUNT(*) FROM people p JOIN small s ON s.tag = p.tag")
    ((count,),) = cursor.fetchall()
    assert to_tens(count) == round(3 * 334 + 2 * 333, -1)


def test_where_nobody_counted_the_answer_says_so(cursor: dpsql.Cursor) -> None:
    cursor.execute("SELECT COUNT(*) AS n FROM people p JOIN large s ON s.tag = p.tag")
    ((count,),) = cursor.fetchall()
    assert to_tens(count) == 1000  # and not 2000
    (caution,) = cut(cursor)
    assert "large" in caution and "at most 1 row" in caution
    assert cursor.margins == (None,)


def test_the_policy_may_say_how_many(cursor: dpsql.Cursor) -> None:
    cursor.execute("SELECT COUNT(*) AS n FROM people p JOIN (SELECT grade AS g FROM large) s ON s.g = p.tag")
    ((count,),) = cursor.fetchall()
    assert round(to_tens(count), -3) == 300_000
    assert cut(cursor) == [] and cursor.margins != (None,)
    cursor.execute("SELECT COUNT(*) AS n FROM people p JOIN large s ON s.grade = p.tag AND s.place = p.age")
    assert cut(cursor) == []


@pytest.mark.parametrize(
    ("conditions", "most"),
    [
        ([], 6),
        ([("=", "a")], 3),
        ([(">=", "a")], 6),
        ([(">=", "a"), ("<=", "b")], 4),
        ([(">=", "a"), ("<", "b")], 2),
        ([("=", "c"), (">=", "a"), ("<", "b")], 1),
    ],
)
def test_rows_that_one_row_meets_are_counted(conditions: list[tuple[str, str]], most: int) -> None:
    rows = [(0, 10, "x"), (0, 10, "y"), (10, 20, "x"), (20, 30, "x"), (20, 30, None), (20, 20, "x")]
    fields = {name: Field(i, name, TEXT if name == "c" else BIGINT) for i, name in enumerate("abc")}
    mine = {name: Ref(Field(9 if name == "c" else 8, "x", field.type)) for name, field in fields.items()}
    found = Rows(frozenset({0, 1, 2}), [dict(enumerate(row)) for row in rows])
    compared: list[Scalar] = [
        Call(next(each for each in Op if each.value == op), (mine[name], Ref(fields[name])), BOOLEAN)
        for op, name in conditions
    ]
    assert fan_out(found, compared, list(fields.values())) == most


def test_what_was_read_does_not_bound_what_a_person_has(cursor: dpsql.Cursor) -> None:
    """Public tables may grow: one row of each place now is no reason to leave the steps of bounding out."""
    release = cursor.connection._session.release("SELECT COUNT(*) FROM people p JOIN small s ON s.place = p.tag")
    stability = release.measurements[0].derivation.conclusion
    assert (stability.rows, stability.single, stability.within) == (1, False, None)


def test_rows_of_values_are_those_that_are_written() -> None:
    """UNION ALL of constants, also where they nest deeply; UNION leaves one of those that are equal."""
    parts = [Project(OneRow(), ((Field(i, "x", BIGINT), Const(i % 3, BIGINT)),)) for i in range(300)]
    plan: Project | SetOperation = parts[0]
    for i, part in enumerate(parts[1:]):
        plan = SetOperation(SetKind.UNION_ALL, plan, part, (Field(1000 + i, "x", BIGINT),))
    found = public_rows(plan)
    assert found is not None and len(found.rows) == 300
    assert isinstance(plan, SetOperation)
    once = public_rows(SetOperation(SetKind.UNION, plan.left, plan.right, plan.fields))
    assert once is not None and len(once.rows) == 3
