"""Units by reference: the way from a row to its owner must be there, of one type, and lead to one row."""

from __future__ import annotations

import dataclasses

import pytest

from dpsql import types
from dpsql.policy.bind import bind
from dpsql.policy.model import ColumnPolicy, DatabaseSchema, TablePolicy, UnitReference
from dpsql.policy.problems import PolicyProblems
from dpsql.types import Type
from tests.policy.test_catalog import database, policy, table_schema

ID = frozenset({"id"})
VISITS: dict[str, Type | None] = {
    "id": types.BIGINT,
    "patient": types.BIGINT,
    "code": types.TEXT,
    "score": types.DOUBLE,
}
ITEMS: dict[str, Type | None] = {"visit": types.integer(5), "line": types.BIGINT, "name": types.TEXT}
NOTES: dict[str, Type | None] = {"visit": types.BIGINT, "line": types.BIGINT}


def schema(*, unique: tuple[frozenset[str], ...] = (ID,)) -> DatabaseSchema:
    return database(
        table_schema(("main", "visits"), VISITS, unique),
        table_schema(("main", "items"), ITEMS, (frozenset({"visit", "line"}),)),
        table_schema(("main", "notes"), NOTES),
    )


def visits(**more: object) -> TablePolicy:
    return dataclasses.replace(TablePolicy("visits", unit="patient", line=1), **more)  # type: ignore[arg-type]


def items(via: tuple[str, ...] = ("visit",), key: tuple[str, ...] = ("id",)) -> TablePolicy:
    return TablePolicy("items", unit=UnitReference(via, "visits", key), line=5)


def problems(*tables: TablePolicy, found: DatabaseSchema | None = None) -> list[str]:
    with pytest.raises(PolicyProblems) as caught:
        bind(policy(*tables), found or schema())
    return [problem.message for problem in caught.value.problems]


def test_the_owner_stands_at_the_end_of_the_path() -> None:
    notes = TablePolicy("notes", unit=UnitReference(("visit", "line"), "items", ("visit", "line")))
    tables = bind(policy(notes, items(), visits()), schema()).tables
    found = tables["notes"]
    assert found.owner == "patient" and found.owner_type == types.BIGINT
    assert [(step.via, step.table, step.key) for step in found.path] == [
        (("visit", "line"), "items", ("visit", "line")),
        (("visit",), "visits", ("id",)),
    ]
    assert found.unit_text == "visit, line → visit → patient"
    assert tables["visits"].keys == {("id",): (types.BIGINT,)}
    assert not found.owner_unique


def test_one_row_per_unit_follows_from_both_steps() -> None:
    single = (ID, frozenset({"patient"}))
    one_each = database(
        table_schema(("main", "visits"), VISITS, single),
        table_schema(("main", "items"), ITEMS, (frozenset({"visit"}),)),
    )
    assert bind(policy(visits(), items()), one_each).tables["items"].owner_unique
    assert not bind(policy(visits(), items()), schema(unique=single)).tables["items"].owner_unique


def test_a_key_that_is_not_unique_is_refused() -> None:
    assert problems(visits(), items(), found=schema(unique=())) == [
        'id is not unique in table "visits": a row could have two owners'
    ]


def test_uniqueness_may_be_verified_where_data_cannot_change() -> None:
    asked = []

    def is_unique(source: tuple[str, ...], columns: tuple[str, ...]) -> bool:
        asked.append((source, columns))
        return True

    tables = bind(policy(visits(), items()), schema(unique=()), is_unique).tables
    assert asked == [(("main", "visits"), ("id",))]
    assert ID in tables["visits"].unique


def test_a_wider_key_than_is_unique_will_do() -> None:
    both = items(("visit", "name"), ("id", "code"))
    assert bind(policy(visits(), both), schema()).tables["items"].path


@pytest.mark.parametrize(
    ("via", "key", "message"),
    [
        ("vist", "id", 'column "vist" of the reference does not exist in table "items"'),
        ("visit", "idd", 'column "idd" of the reference does not exist in table "visits"'),
        ("visit", "code", '"visit" and "code" have types that cannot be compared: bigint and text'),
        ("visit", "score", 'key "score" of table "visits" is of type double precision'),
    ],
)
def test_what_does_not_fit(via: str, key: str, message: str) -> None:
    assert message in problems(visits(), items((via,), (key,)))


def test_names_keep_the_spelling_of_the_policy() -> None:
    declared = dataclasses.replace(items(("VISIT",), ("Id",)), columns={"Visit": ColumnPolicy("Visit")})
    (step,) = bind(policy(visits(), declared), schema()).tables["items"].path
    assert (step.via, step.key) == (("Visit",), ("Id",))
