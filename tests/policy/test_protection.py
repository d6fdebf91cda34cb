"""Who is protected, as the ledger compares it: by the names of the database, and by all that leads to the owner."""

from __future__ import annotations

import dataclasses

import pytest

from dpsql import types
from dpsql.policy.bind import bind
from dpsql.policy.model import DatabaseSchema, TablePolicy, UnitReference
from dpsql.policy.protection import Protection, units_text
from tests.policy.test_catalog import database, policy, table_schema

PEOPLE = {"Id": types.BIGINT, "household": types.BIGINT, "email": types.TEXT, "EMAIL": types.TEXT}
VISITS = {"id": types.BIGINT, "person": types.BIGINT, "doctor": types.BIGINT}
UNIQUE = (frozenset({"Id"}), frozenset({"household"}))

BY_PERSON = TablePolicy("people", unit="id")
OF_PERSON = TablePolicy("visits", unit=UnitReference(("person",), "people", ("id",)))


def schema() -> DatabaseSchema:
    return database(
        table_schema(("main", "People"), dict(PEOPLE), UNIQUE),
        table_schema(("main", "visits"), dict(VISITS)),
        table_schema(("main", "towns"), {"name": types.TEXT}),
    )


def protection(*tables: TablePolicy) -> Protection:
    return bind(policy(*tables), schema()).protection


def differs(before: Protection, after: Protection) -> list[tuple[str, ...]]:
    return [difference.subject for difference in after.differences(before.units)]


def test_it_names_owners_paths_and_public_tables() -> None:
    found = protection(BY_PERSON, OF_PERSON, TablePolicy("towns", public=True))
    assert {subject: units_text(units) for subject, units in found.units.items()} == {
        (): "bigint",
        ("main", "People"): 'unit "Id"',
        ("main", "visits"): 'unit "person → main.People.Id → Id"',
        ("main", "towns"): "public",
    }


@pytest.mark.parametrize(
    "same",
    [
        TablePolicy("main.people", unit="ID"),
        dataclasses.replace(BY_PERSON, max_rows_per_unit=20, max_groups_per_unit=3, tight=True),
    ],
)
def test_spelling_bounds_and_limits_are_no_part_of_it(same: TablePolicy) -> None:
    assert protection(same) == protection(BY_PERSON)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (TablePolicy("people", unit="email"), TablePolicy("people", unit="EMAIL")),
        (TablePolicy("people", unit="id"), TablePolicy("people", unit="household")),
        (TablePolicy("people", unit="id"), TablePolicy("people", public=True)),
    ],
)
def test_another_owner_is_another_protection(before: TablePolicy, after: TablePolicy) -> None:
    assert differs(protection(before), protection(after)) == [("main", "People")]
    assert differs(protection(after), protection(before)) == [("main", "People")]


@pytest.mark.parametrize(
    "other",
    [
        TablePolicy("visits", unit="person"),
        TablePolicy("visits", unit=UnitReference(("doctor",), "people", ("id",))),
        TablePolicy("visits", unit=UnitReference(("person",), "people", ("household",))),
    ],
)
def test_another_way_to_the_owner_is_another_protection(other: TablePolicy) -> None:
    assert differs(protection(BY_PERSON, OF_PERSON), protection(BY_PERSON, other)) == [("main", "visits")]


def test_another_owner_at_the_end_of_a_path_is_another_protection_of_all_on_it() -> None:
    after = protection(TablePolicy("people", unit="household"), OF_PERSON)
    assert differs(protection(BY_PERSON, OF_PERSON), after) == [("main", "People"), ("main", "visits")]


def test_tables_that_come_and_go_are_no_difference_but_another_kind_of_unit_is() -> None:
    before = protection(BY_PERSON)
    assert differs(before, protection(TablePolicy("visits", unit="person"))) == []
    assert differs(before, protection(TablePolicy("towns", public=True))) == []
    assert differs(before, protection(TablePolicy("towns", unit="name"))) == [()]
