"""The draft of a policy: whose rows a table is taken to hold, what is marked, and that it always loads."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, datetime
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType

import pytest

from dpsql.policy.bind import bind
from dpsql.policy.draft import Suggestions, draft, marks, round_outward, round_up, wants_bounds
from dpsql.policy.load import load
from dpsql.policy.model import Catalog, ColumnSchema, DatabaseSchema, TableSchema
from dpsql.policy.propose import Proposal, Reference, SchemaDetails, propose
from dpsql.types import BIGINT, BOOLEAN, DATE, DOUBLE, TEXT, Type

TYPES: dict[str, Type | None] = {
    "int": BIGINT,
    "text": TEXT,
    "double": DOUBLE,
    "date": DATE,
    "bool": BOOLEAN,
    "blob": None,
}


def table(name: str, columns: str, *unique: str, schema: str = "main", view: bool = False) -> TableSchema:
    """A table from a line like "id int, name text"."""
    pairs = [column.rsplit(" ", 1) for column in columns.split(", ")]
    fields = {name: ColumnSchema(name, TYPES[kind], kind.upper(), True) for name, kind in pairs}
    return TableSchema((schema, name), fields, frozenset(frozenset({key}) for key in unique), view)


def database(*tables: TableSchema) -> DatabaseSchema:
    return DatabaseSchema({(t.source[0], t.source[1]): t for t in tables}, "main")


def proposed(*tables: TableSchema, details: SchemaDetails | None = None) -> dict[str, Proposal]:
    found = propose(database(*tables), details or SchemaDetails())
    return {proposal.table.source[-1]: proposal for proposal in found}


def units(*tables: TableSchema, details: SchemaDetails | None = None) -> dict[str, str | None]:
    return {name: proposal.unit for name, proposal in proposed(*tables, details=details).items()}


def drafted(schema: DatabaseSchema, details: SchemaDetails | None = None, given: Suggestions | None = None) -> str:
    details = details or SchemaDetails()
    return draft("duckdb:///a.duckdb", schema, details, propose(schema, details), given)


def loaded(text: str, schema: DatabaseSchema, tmp_path: Path) -> Catalog:
    path = tmp_path / "dpsql.toml"
    path.write_text(text, encoding="utf-8")
    return bind(load(path), schema)


# --- whose rows ---


@pytest.mark.parametrize(
    ("people", "visits"),
    [
        ("id", "patient_id"),
        ("patient_id", "patient_id"),
        ("PatientID", "patientId"),
        ("pat_key", "pat_key"),
        ("id", "sender_patient_id"),
    ],
)
def test_names_stand_for_missing_foreign_keys(people: str, visits: str) -> None:
    found = units(table("Patients", f"{people} int, age int"), table("visits", f"id int, {visits} int"))
    assert found == {"Patients": people, "visits": visits}


def test_short_prefixes_of_a_whole_table_are_no_part_of_its_names() -> None:
    found = proposed(
        table("customer", "c_custkey int, c_nationkey int"),
        table("orders", "o_orderkey int, o_custkey int"),
        table("lineitem", "l_orderkey int, l_suppkey int"),
        table("nation", "n_nationkey int, n_name text"),
        table("supplier", "s_suppkey int, s_name text"),
    )
    assert {name: p.unit for name, p in found.items() if p.unit} == {"customer": "c_custkey", "orders": "o_custkey"}
    assert found["lineitem"].via == Reference(
        ("main", "lineitem"), "l_orderkey", ("main", "orders"), "o_orderkey", declared=False
    )
    assert list(found) == ["customer", "orders", "lineitem", "nation", "supplier"]


def test_declared_foreign_keys_need_no_names() -> None:
    details = SchemaDetails(
        {("main", "members"): ("nr",), ("main", "loans"): ("x",)},
        (
            Reference(("main", "loans"), "who", ("main", "members"), "nr"),
            Reference(("main", "fines"), "what", ("main", "loans"), "x"),
        ),
    )
    found = proposed(
        table("fines", "what int, n int"),
        table("loans", "x int, who int", "x"),
        table("members", "nr int, n int", "nr"),
        details=details,
    )
    assert (found["members"].unit, found["loans"].unit) == ("nr", "who")
    assert found["fines"].unit is None and found["fines"].via is not None


def test_the_people_most_tables_refer_to_are_the_unit() -> None:
    found = proposed(
        table("employees", "id int, x int"),
        table("customers", "id int, x int"),
        table("orders", "customer_id int, employee_id int"),
        table("returns", "customer_id int, x int"),
    )
    assert found["customers"].unit == "id" and found["orders"].unit == "customer_id"
    assert found["employees"].unit is None and found["employees"].holds_people


def test_without_a_table_of_people_a_column_may_name_them() -> None:
    found = units(
        table("visits", "patient_id int, n int"), table("labs", "PatientId int, n int"), table("codes", "c int")
    )
    assert found == {"visits": "patient_id", "labs": "PatientId", "codes": None}
    assert units(table("readings", "at date, celsius double")) == {"readings": None}


def test_a_unit_has_values_that_can_be_told_apart() -> None:
    assert units(table("people", "id double, n int")) == {"people": None}
    # An integer never equals a text.
    found = proposed(table("people", "id int, n int"), table("visits", "person_id text, n int"))
    assert found["visits"].unit is None and found["visits"].via is None


def test_a_key_is_what_others_refer_to() -> None:
    found = units(table("users", "email text, id int", "email"), table("logins", "user_id int, n int"))
    assert found == {"users": "id", "logins": "user_id"}
    assert units(table("users", "email text, n int", "email")) == {"users": "email"}


def test_a_table_that_refers_to_itself_and_a_circle_end() -> None:
    details = SchemaDetails(
        references=(
            Reference(("main", "employees"), "boss_id", ("main", "employees"), "id"),
            Reference(("main", "a"), "b_id", ("main", "b"), "id"),
            Reference(("main", "b"), "a_id", ("main", "a"), "id"),
        )
    )
    found = units(
        table("employees", "id int, boss_id int"),
        table("a", "id int, b_id int"),
        table("b", "id int, a_id int"),
        details=details,
    )
    assert found == {"employees": "id", "a": None, "b": None}


# --- the text ---

CLINIC = database(
    table(
        "Patients",
        "id int, Full_Name text, age int, smoker bool, mood text, photo blob, zip_code int, ssn text",
        "id",
        "ssn",
    ),
    table("messages", "sender_patient_id int, receiver_patient_id int, sent date"),
    table("hospitals", "id int, name text", "id"),
    table("adults", "id int", view=True),
    table("doctors", "id int", schema="staff"),
)
CLINIC_DETAILS = SchemaDetails(enums={(("main", "Patients"), "mood"): ("bad", 'so "so"')})


def test_a_draft_loads_and_shows_nothing_by_a_guess(tmp_path: Path) -> None:
    text = drafted(CLINIC, CLINIC_DETAILS)
    catalog = loaded(text, CLINIC, tmp_path)
    assert {t.name for t in catalog.tables.values()} == {"patients", "messages"}
    assert all(t.is_private for t in catalog.tables.values())
    columns = catalog.tables["patients"].columns
    assert list(columns) == ["age", "smoker", "mood", "zip_code"]
    assert columns["smoker"].values == (False, True)
    assert columns["mood"].values == ("bad", 'so "so"')
    assert all(column.lower is None for column in columns.values())
    assert list(catalog.tables["messages"].columns) == ["sent"]


def test_what_the_owner_must_decide_is_marked() -> None:
    text = drafted(CLINIC, CLINIC_DETAILS)
    found = [line for _, line in marks(text)]
    assert [line.partition("TODO: ")[2].split(",")[0].split("?")[0] for line in found] == [
        "smallest and largest value to expect",
        '"receiver_patient_id" may name people too',
        "how many rows of one unit shall count",
        "first and last day to expect",
        'is "hospitals" public',
        'is "staff.doctors" public',
    ]
    lines = text.splitlines()
    assert all(lines[number - 1].strip() == line for number, line in marks(text))
    assert '# "adults" is a view: declare the tables that it reads instead.' in lines


def test_an_owner_who_removes_the_marks_of_a_public_table_has_one(tmp_path: Path) -> None:
    text = drafted(CLINIC).replace("# [tables.hospitals]\n# public", "[tables.hospitals]\npublic")
    text = text.replace('# [tables."staff.doctors"]\n# public', '[tables."staff.doctors"]\npublic')
    catalog = loaded(text, CLINIC, tmp_path)
    assert not catalog.tables["hospitals"].is_private and not catalog.tables["staff.doctors"].is_private


def test_suggestions_are_written_and_stay_marked(tmp_path: Path) -> None:
    people, messages = ("main", "Patients"), ("main", "messages")
    given = Suggestions(
        {
            (people, "age"): (Fraction(-1, 2), Fraction(120_000)),
            (messages, "sent"): (date(2020, 1, 1), date(2021, 12, 31)),
        },
        {messages: 20},
    )
    schema = database(table("Patients", "id int, age double", "id"), *list(CLINIC.tables.values())[1:])
    text = drafted(schema, given=given)
    assert "\nage = { min = -0.5, max = 120_000 }  # TODO: confirm; suggested from the data\n" in text
    assert "\nmax_rows_per_unit = 20  # TODO: confirm; suggested from the data\n" in text
    catalog = loaded(text, schema, tmp_path)
    assert catalog.tables["messages"].columns["sent"].upper == date(2021, 12, 31)
    assert [wants_bounds(proposal) for proposal in propose(schema, SchemaDetails())][:2] == [["age"], ["sent"]]


def test_any_name_can_be_drafted(tmp_path: Path) -> None:
    strange = [
        "a b",
        'say "x"',
        "line\nbreak",
        "tab\t",
        "del\x7f",
        "ünï",
        "#",
        "'",
        "\\",
        "true",
        "1",
        "A",
        "a",
        "ESC\x1b[2J",
    ]
    fields = {name: ColumnSchema(name, TEXT, "VARCHAR", True) for name in ["id", *strange]}
    fields["odd"] = ColumnSchema("odd", None, 'STRUCT("a\nb" INTEGER)', True)
    tables = [TableSchema(("main", name), fields, frozenset()) for name in ["people", *strange, "a.b"]]
    tables += [
        TableSchema(("s\n\x7f", "t"), fields, frozenset()),
        TableSchema(("main", "v\nw"), fields, frozenset(), True),
    ]
    schema = database(*tables)
    person = Reference(("main", "A"), "a b", ("main", "people"), "id")
    text = drafted(schema, SchemaDetails(MappingProxyType({}), (person,)))
    catalog = loaded(text, schema, tmp_path)
    assert set(strange) <= set(catalog.tables["people"].columns) | {"ESC\x1b[2J"}
    assert "esc\x1b[2j" in catalog.tables["people"].columns
    assert catalog.tables["A"].owner == "a b"
    # What is commented out is right as well, once the owner has removed the marks.
    shown = "\n".join(
        line.removeprefix("# ") if line.startswith(("# [", "# public")) else line for line in text.split("\n")
    )
    assert "tab\t" in loaded(shown, schema, tmp_path).tables


def test_a_long_enum_is_not_listed() -> None:
    schema = database(table("people", "id int, colour text"))
    many = SchemaDetails(enums={(("main", "people"), "colour"): tuple(map(str, range(1000)))})
    assert "an enum of 1000 values" in drafted(schema, many)


# --- rounding ---


@pytest.mark.parametrize(
    ("low", "high", "bounds"),
    [
        (3, 97, (0, 100)),
        (0, 104, (0, 120)),
        (1951, 2019, (1950, 2020)),
        (0, 99_963, (0, 100_000)),
        (-999, 9_999, (-2_000, 10_000)),
        (0, 1, (0, 1)),
        (0, 0, (0, 1)),
        (42, 42, (40, 45)),
        (Decimal("0.01"), Decimal("29.90"), (0, 30)),
        (0.002, 0.098, (0, Fraction(1, 10))),
        (5e-324, 1e-323, (0, Fraction(1, 10**9))),
        (date(1999, 5, 17), date(2021, 2, 3), (date(1999, 1, 1), date(2021, 12, 31))),
        (datetime(1999, 5, 17, 12), datetime(1999, 5, 18), (date(1999, 1, 1), date(1999, 12, 31))),
    ],
)
def test_extremes_are_rounded_outward(low: object, high: object, bounds: tuple[object, object]) -> None:
    assert round_outward(low, high) == bounds  # type: ignore[arg-type]


def test_useless_bounds_are_not_suggested() -> None:
    assert round_outward(0, 2**62) is None
    assert round_outward(-1e300, 1.0) is None


@pytest.mark.parametrize(("count", "rounded"), [(1, 1), (2, 2), (3, 5), (5, 5), (7, 10), (11, 20), (999, 1000)])
def test_counts_are_rounded_up(count: int, rounded: int) -> None:
    assert round_up(count) == rounded


def test_people_who_refer_to_each_other_are_not_referred_to_by_other_tables() -> None:
    managers = SchemaDetails(
        references=(
            Reference(("main", "employees"), "manager", ("main", "employees"), "id"),
            Reference(("main", "orders"), "account", ("main", "accounts"), "id"),
        )
    )
    found = units(
        table("employees", "id int, manager int", "id"),
        table("accounts", "id int", "id"),
        table("orders", "id int, account int", "id"),
        details=managers,
    )
    assert found == {"accounts": "id", "orders": "account", "employees": None}


def test_partitions_are_not_tables_of_their_own() -> None:
    schema = database(table("events", "id int, patient_id int"), table("events_2024", "id int, patient_id int"))
    details = SchemaDetails(parts=frozenset({("main", "events_2024")}))
    assert [proposal.table.source[-1] for proposal in propose(schema, details)] == ["events"]
    assert '# "events_2024" is a part of another table, which has its rows.' in drafted(schema, details)


def test_names_keep_their_case_where_it_matters(tmp_path: Path) -> None:
    people = table("People", "PersonID int, Age int", "PersonID")
    assert "[tables.people]" in drafted(database(people))
    kept = drafted(database(replace(people, case_matters=True)))
    assert "[tables.People]" in kept and 'unit = "PersonID"' in kept and "\nAge = " in kept
    assert "People" in loaded(kept, database(people), tmp_path).tables
