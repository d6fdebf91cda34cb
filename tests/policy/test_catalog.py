"""The policy joined with a schema: names, types narrowed to bounds, and all that does not fit."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from datetime import date, datetime, timedelta
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dpsql import types
from dpsql.policy.bind import bind
from dpsql.policy.model import (
    Bound,
    Catalog,
    Column,
    ColumnPolicy,
    ColumnSchema,
    DatabaseSchema,
    Limits,
    Policy,
    PrivacyPolicy,
    TablePolicy,
    TableSchema,
    UnitReference,
)
from dpsql.policy.problems import PolicyProblems
from dpsql.types import Kind, Type, Value

PRIVACY = PrivacyPolicy(Fraction(4), Fraction(0), "basic", Fraction(1, 10), None, Fraction(0), Fraction(4))

COLUMNS: dict[str, Type | None] = {
    "id": types.BIGINT,
    "partner": types.BIGINT,
    "age": types.integer(5),
    "fee": types.decimal(12, 2),
    "height": types.DOUBLE,
    "name": types.TEXT,
    "smoker": types.BOOLEAN,
    "born": types.DATE,
    "seen": types.TIMESTAMP,
    "place": None,
}


def table_schema(
    source: tuple[str, str],
    columns: dict[str, Type | None] = COLUMNS,
    unique: tuple[frozenset[str], ...] = (),
    is_view: bool = False,
) -> TableSchema:
    described = {
        name: ColumnSchema(name, column_type, "GEOMETRY" if column_type is None else str(column_type), nullable=True)
        for name, column_type in columns.items()
    }
    return TableSchema(source, described, frozenset(unique), is_view)


def database(*tables: TableSchema) -> DatabaseSchema:
    return DatabaseSchema({(table.source[0], table.source[1]): table for table in tables}, "main")


def policy(*tables: TablePolicy, privacy: PrivacyPolicy = PRIVACY, limits: Limits | None = None) -> Policy:
    declared = {table.name: table for table in tables}
    return Policy(Path("dpsql.toml"), "duckdb:///x", privacy, declared, {}, limits or Limits(), None)


def people(*columns: ColumnPolicy, name: str = "people", unit: str = "id", line: int = 10) -> TablePolicy:
    return TablePolicy(name, unit=unit, columns={column.name: column for column in columns}, line=line)


PEOPLE = table_schema(("main", "people"))


def bound_column(column: ColumnPolicy) -> Column:
    return bind(policy(people(column)), database(PEOPLE)).tables["people"].columns[column.name]


def found(declared: Policy, schema: DatabaseSchema) -> list[tuple[int | None, str]]:
    with pytest.raises(PolicyProblems) as caught:
        bind(declared, schema)
    return [(problem.line, problem.message) for problem in caught.value.problems]


# --- names ---


def test_a_table_of_the_default_schema_is_found_under_each_of_its_names() -> None:
    for name in ("people", "main.people"):
        catalog = bind(policy(people(name=name)), database(PEOPLE))
        assert set(catalog.tables) == {"people", "main.people", "public.people"}
        assert {table.source for table in catalog.tables.values()} == {("main", "people")}
        assert catalog.default_schema == "main"


def test_a_table_of_another_schema_is_found_under_its_full_name_only() -> None:
    schema = database(PEOPLE, table_schema(("sales", "people")), table_schema(("sales", "orders")))
    catalog = bind(policy(people(name="people"), people(name="sales.people"), people(name="sales.orders")), schema)
    assert catalog.tables["people"].source == ("main", "people")
    assert catalog.tables["sales.people"].source == ("sales", "people")
    assert "orders" not in catalog.tables


def test_public_is_no_alias_where_a_schema_has_that_name() -> None:
    schema = database(PEOPLE, table_schema(("public", "people")))
    assert "public.people" not in bind(policy(people()), schema).tables
    both = bind(policy(people(), people(name="public.people")), schema)
    assert both.tables["public.people"].source == ("public", "people")


def test_names_may_differ_in_case_if_only_one_fits() -> None:
    schema = database(table_schema(("main", "People"), {"Id": types.BIGINT, "Age": types.BIGINT}))
    table = bind(policy(people(ColumnPolicy("age"))), schema).tables["people"]
    assert (table.source, table.owner, list(table.columns)) == (("main", "People"), "id", ["age"])


def test_an_exact_name_goes_before_one_in_another_case() -> None:
    schema = database(table_schema(("main", "People")), PEOPLE)
    assert bind(policy(people()), schema).tables["people"].source == ("main", "people")
    assert found(policy(people(name="PEOPLE")), schema) == [(10, 'table "PEOPLE" may mean several tables')]


def test_the_unit_has_one_spelling() -> None:
    """Else `ID` would be the hidden owner and `id` an ordinary column."""
    table = bind(policy(people(ColumnPolicy("id"), unit="ID")), database(PEOPLE)).tables["people"]
    assert table.owner == "id"
    assert "id" in table.columns


# --- tables ---


def test_only_declared_columns_exist_and_they_keep_the_order_of_the_database() -> None:
    table = bind(policy(people(ColumnPolicy("name"), ColumnPolicy("age"))), database(PEOPLE)).tables["people"]
    assert list(table.columns) == ["age", "name"]
    assert table.is_private
    assert (table.owner, table.owner_type) == ("id", types.BIGINT)


def test_a_public_table_shows_all_columns_of_known_types() -> None:
    table = bind(policy(TablePolicy("people", public=True)), database(PEOPLE)).tables["people"]
    assert list(table.columns) == [name for name, column_type in COLUMNS.items() if column_type is not None]
    assert not table.is_private


@pytest.mark.parametrize(
    ("unique", "expected"),
    [
        ((), False),
        ((frozenset({"id"}),), True),
        ((frozenset({"id", "age"}),), False),
        ((frozenset({"age"}), frozenset({"id"})), True),
    ],
)
def test_the_unit_is_unique_only_where_it_is_a_key_by_itself(
    unique: tuple[frozenset[str], ...], expected: bool
) -> None:
    schema = database(table_schema(("main", "people"), unique=unique))
    declared = dataclasses.replace(people(), max_rows_per_unit=7)
    table = bind(policy(declared), schema).tables["people"]
    assert table.owner_unique is expected
    assert table.max_rows_per_unit == 7


def test_all_problems_are_reported_at_once() -> None:
    declared = policy(
        people(ColumnPolicy("agee", line=12), ColumnPolicy("place", line=13), unit="idd"),
        TablePolicy("nothing", public=True, line=20),
        TablePolicy("items", unit=UnitReference(("person",), "people", ("id",)), line=30),
    )
    schema = database(PEOPLE, table_schema(("main", "items")))
    assert found(declared, schema) == [
        (10, 'unit "idd" does not exist in table "people"'),
        (12, 'column "agee" does not exist in table "people"'),
        (13, 'column "place" has type GEOMETRY, which dpsql does not know'),
        (20, 'table "nothing" does not exist in the database'),
    ]


def test_the_nearest_name_is_suggested_to_the_owner() -> None:
    with pytest.raises(PolicyProblems) as caught:
        bind(policy(people(ColumnPolicy("agee"), unit="idd"), people(name="poeple")), database(PEOPLE))
    assert {problem.fix for problem in caught.value.problems} == {"write: age", 'write: "id"', "write: [tables.people]"}


@pytest.mark.parametrize("public", [True, False])
def test_a_view_cannot_be_declared(public: bool) -> None:
    """Not even as public: it may read a private table."""
    declared = TablePolicy("people", public=True, line=3) if public else people(line=3)
    view = table_schema(("main", "people"), is_view=True)
    assert found(policy(declared), database(view)) == [(3, '"people" is a view')]


@pytest.mark.parametrize("unit", ["height", "smoker", "place", "seen"])
def test_a_unit_needs_exact_equality(unit: str) -> None:
    ((line, message),) = found(policy(people(unit=unit)), database(PEOPLE))
    assert line == 10
    assert message.startswith(f'unit "{unit}" of table "people" is of type')


@pytest.mark.parametrize("unit", ["id", "fee", "name", "born"])
def test_these_units_are_compared_exactly(unit: str) -> None:
    assert bind(policy(people(unit=unit)), database(PEOPLE)).tables["people"].owner_type == COLUMNS[unit]


def test_a_table_is_declared_once() -> None:
    assert found(policy(people(), people(name="main.people", line=20)), database(PEOPLE)) == [
        (20, '"main.people" and "people" are the same table')
    ]


def test_a_column_is_declared_once() -> None:
    assert found(policy(people(ColumnPolicy("age"), ColumnPolicy("AGE", line=12))), database(PEOPLE)) == [
        (12, 'column "age" is declared twice')
    ]


def test_there_is_one_kind_of_unit() -> None:
    schema = database(PEOPLE, table_schema(("main", "visits")))
    assert found(policy(people(), people(name="visits", unit="name", line=20)), schema) == [
        (20, 'the units of "visits" and "people" have types that cannot be compared')
    ]
    # A conversion between them could fail for some row.
    assert len(found(policy(people(), people(name="visits", unit="fee")), schema)) == 1
    assert bind(policy(people(), people(name="visits", unit="id")), schema)


def test_a_private_table_needs_a_unit() -> None:
    assert found(policy(TablePolicy("people", line=1)), database(PEOPLE)) == [(1, 'table "people" has no unit')]


# --- columns ---


def test_a_column_whose_type_is_not_settled_cannot_be_declared() -> None:
    schema = database(table_schema(("main", "people"), {"id": types.BIGINT, "x": types.UNKNOWN}))
    assert found(policy(people(ColumnPolicy("x", line=12))), schema) == [
        (12, 'column "x" has type unknown, which dpsql does not know')
    ]


def test_a_public_table_needs_a_column_of_a_known_type() -> None:
    schema = database(table_schema(("main", "people"), {"x": None}))
    assert found(policy(TablePolicy("people", public=True, line=3)), schema) == [
        (3, 'table "people" has no column of a type that dpsql knows')
    ]


@pytest.mark.parametrize(
    ("name", "lower", "upper", "expected"),
    [
        ("age", 0, 110, types.integer(3)),
        ("age", 0, 99, types.integer(2)),
        ("age", 0, 100, types.integer(3)),
        ("age", -1000, 5, types.integer(4)),
        ("age", 0, 0, types.integer(1)),
        ("fee", 0, 100, types.decimal(5, 2)),
        ("fee", 0, Fraction("99.99"), types.decimal(4, 2)),
        ("fee", 0, Fraction("99.991"), types.decimal(5, 2)),  # rounded outward to 100.00
        ("fee", 0, Fraction("0.5"), types.decimal(2, 2)),
        ("height", 0, 3, types.DOUBLE),
    ],
)
def test_types_are_narrowed_to_bounds(name: str, lower: int, upper: int | Fraction, expected: Type) -> None:
    assert bound_column(ColumnPolicy(name, Fraction(lower), Fraction(upper))).type == expected


def test_without_bounds_a_column_keeps_its_type() -> None:
    for name, column_type in COLUMNS.items():
        if column_type is not None:
            assert bound_column(ColumnPolicy(name)).type == column_type


def test_bounds_of_a_decimal_are_rounded_outward_to_its_scale() -> None:
    column = bound_column(ColumnPolicy("fee", Fraction("-0.001"), Fraction("7.001")))
    assert (column.lower, column.upper) == (Fraction("-0.01"), Fraction("7.01"))


def test_dates_as_bounds_of_a_timestamp_include_the_whole_last_day() -> None:
    column = bound_column(ColumnPolicy("seen", date(2020, 1, 1), date(2020, 12, 31)))
    assert column.lower == datetime(2020, 1, 1)
    assert column.upper == datetime(2021, 1, 1) - timedelta(microseconds=1)


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("age", (1, -2000), types.integer(4)),
        ("age", (0,), types.integer(1)),
        ("fee", (1, 2), types.decimal(12, 2)),
        ("height", (1, 2), types.DOUBLE),
        ("name", ("a", "b"), types.TEXT),
        ("smoker", (True, False), types.BOOLEAN),
        ("born", (date(2020, 1, 1),), types.DATE),
    ],
)
def test_values_of_the_right_type(name: str, values: tuple[Value, ...], expected: Type) -> None:
    column = bound_column(ColumnPolicy(name, values=values, nullable_key=True))
    assert (column.type, column.values, column.nullable_key) == (expected, values, True)


DAY, MOMENT = date(2020, 1, 1), datetime(2020, 1, 1)
ONE, HALF = Fraction(1), Fraction(1, 2)


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (ColumnPolicy("name", ONE, ONE), 'column "name" is of type text, it takes no bounds'),
        (ColumnPolicy("smoker", ONE, ONE), 'column "smoker" is of type boolean, it takes no bounds'),
        (ColumnPolicy("name", DAY, DAY), 'column "name" is of type text, it takes no bounds'),
        (ColumnPolicy("age", DAY, DAY), 'column "age" is of type bigint, its bounds must be numbers'),
        (
            ColumnPolicy("height", MOMENT, MOMENT),
            'column "height" is of type double precision, its bounds must be numbers',
        ),
        (ColumnPolicy("born", ONE, ONE), 'column "born" is of type date, its bounds must be dates'),
        (ColumnPolicy("born", MOMENT, MOMENT), 'column "born" is of type date, its bounds must be dates'),
        (
            ColumnPolicy("seen", ONE, ONE),
            'column "seen" is of type timestamp, its bounds must be dates or dates with a time',
        ),
        (ColumnPolicy("age", HALF, ONE), 'column "age" is of type bigint, its bounds must be integers'),
        (
            ColumnPolicy("age", ONE, Fraction(2**63)),
            'column "age" is of type bigint, its bounds do not fit into 64 bits',
        ),
        (
            ColumnPolicy("fee", ONE, Fraction(10**36)),
            'column "fee" is of type numeric(12,2), its bounds need more than 38 digits',
        ),
        (ColumnPolicy("name", step=ONE), 'column "name" is of type text, "step" is for numbers only'),
        (ColumnPolicy("seen", step=ONE), 'column "seen" is of type timestamp, "step" is for numbers only'),
        (ColumnPolicy("age", values=("a",)), '"values" of column "age" are not of its type, which is bigint'),
        (ColumnPolicy("name", values=(1,)), '"values" of column "name" are not of its type, which is text'),
        (ColumnPolicy("smoker", values=(1, 0)), '"values" of column "smoker" are not of its type, which is boolean'),
        (ColumnPolicy("age", values=(True,)), '"values" of column "age" are not of its type, which is bigint'),
        (ColumnPolicy("seen", values=(DAY,)), '"values" of column "seen" are not of its type, which is timestamp'),
    ],
)
def test_declarations_that_do_not_fit_their_column(column: ColumnPolicy, message: str) -> None:
    declared = people(dataclasses.replace(column, line=12))
    assert found(policy(declared), database(PEOPLE)) == [(12, message)]


@pytest.mark.parametrize(
    "column",
    [
        ColumnPolicy("fee", Fraction(0), ONE, step=Fraction(1, 1000)),  # finer than the column's scale
        ColumnPolicy("age", Fraction(-(2**63)), Fraction(2**63 - 1)),
        ColumnPolicy("fee", Fraction(0), Fraction(10**36 - 1)),
    ],
)
def test_declarations_at_the_edge_of_what_fits(column: ColumnPolicy) -> None:
    assert bound_column(column).type.kind in (Kind.INTEGER, Kind.DECIMAL)


NUMBERS = st.fractions(max_denominator=10_000) | st.integers(-(10**40), 10**40).map(Fraction)


@settings(deadline=None, max_examples=60)
@given(
    column_type=st.integers(1, 19).map(types.integer)
    | st.integers(0, 38).flatmap(
        lambda scale: st.builds(types.decimal, st.integers(max(scale, 1), 38), st.just(scale))
    ),
    ends=st.tuples(NUMBERS, NUMBERS).map(sorted),
    value=NUMBERS,
)
def test_a_clamped_value_fits_the_narrowed_type(column_type: Type, ends: list[Fraction], value: Fraction) -> None:
    schema = database(table_schema(("main", "people"), {"id": types.BIGINT, "x": column_type}))
    try:
        catalog = bind(policy(people(ColumnPolicy("x", ends[0], ends[1]))), schema)
    except PolicyProblems:
        assume(False)
    column = catalog.tables["people"].columns["x"]
    assert isinstance(column.lower, Fraction)
    assert isinstance(column.upper, Fraction)
    assert column.lower <= ends[0] <= ends[1] <= column.upper
    assert column.type.kind is column_type.kind
    assert column.type.scale == column_type.scale
    grid = 10**column_type.scale
    on_scale = Fraction(math.floor(value * grid), grid)
    clamped = min(max(on_scale, column.lower), column.upper)
    assert (clamped * grid).denominator == 1
    assert abs(clamped * grid) < 10**column.type.precision


BOUNDS: st.SearchStrategy[Bound | None] = st.none() | NUMBERS | st.dates() | st.datetimes()
VALUES: st.SearchStrategy[Value] = st.text() | st.integers() | st.booleans() | st.dates()


@settings(deadline=None, max_examples=60)
@given(
    name=st.sampled_from([*COLUMNS, "ID", "nothing"]),
    unit=st.sampled_from([*COLUMNS, "nothing"]),
    lower=BOUNDS,
    upper=BOUNDS,
    step=st.none() | st.just(ONE),
    values=st.none() | st.lists(VALUES, min_size=1, max_size=3).map(tuple),
)
def test_any_declaration_is_bound_or_reported(
    name: str,
    unit: str,
    lower: Bound | None,
    upper: Bound | None,
    step: Fraction | None,
    values: tuple[Value, ...] | None,
) -> None:
    column = ColumnPolicy(name, lower, upper, step, values)
    with contextlib.suppress(PolicyProblems):
        assert bind(policy(people(column, unit=unit)), database(PEOPLE)).tables["people"].is_private


# --- the fingerprint ---

BASE = policy(
    people(
        ColumnPolicy("age", Fraction(0), Fraction(110)),
        ColumnPolicy("name", values=("a", "b")),
        ColumnPolicy("born", DAY, DAY),
        ColumnPolicy("fee", Fraction(0), Fraction(10), step=HALF),
    )
)


def fingerprint(declared: Policy, table: TableSchema = PEOPLE) -> str:
    return bind(declared, database(table, table_schema(("main", "visits")))).fingerprint


def with_column(column: ColumnPolicy) -> Policy:
    table = BASE.tables["people"]
    return policy(dataclasses.replace(table, columns={**table.columns, column.name: column}))


def with_table(changed: TablePolicy) -> Policy:
    return dataclasses.replace(BASE, tables={"people": changed})


TABLE = BASE.tables["people"]


@pytest.mark.parametrize(
    "changed",
    [
        with_column(ColumnPolicy("age", Fraction(0), Fraction(111))),
        with_column(ColumnPolicy("age", Fraction(1), Fraction(110))),
        with_column(ColumnPolicy("age", Fraction(0), Fraction(110), step=ONE)),
        with_column(ColumnPolicy("age", Fraction(0), Fraction(110), nullable_key=True)),
        with_column(ColumnPolicy("name", values=("b", "c"))),
        with_column(ColumnPolicy("name")),
        with_column(ColumnPolicy("born", DAY, date(2020, 1, 2))),
        with_column(ColumnPolicy("height")),
        with_table(dataclasses.replace(TABLE, unit="partner")),
        with_table(dataclasses.replace(TABLE, max_rows_per_unit=2)),
        with_table(dataclasses.replace(TABLE, max_groups_per_unit=2)),
        with_table(TablePolicy("people", public=True)),
        dataclasses.replace(BASE, tables={**BASE.tables, "visits": TablePolicy("visits", public=True)}),
        dataclasses.replace(BASE, limits=Limits(max_cells=5)),
        dataclasses.replace(BASE, privacy=dataclasses.replace(PRIVACY, accounting="zcdp")),
    ],
)
def test_the_fingerprint_changes_with_what_answers_depend_on(changed: Policy) -> None:
    assert fingerprint(changed) != fingerprint(BASE)


@pytest.mark.parametrize(
    "changed",
    [
        table_schema(("main", "people"), {**COLUMNS, "id": types.TEXT}),
        table_schema(("main", "people"), {**COLUMNS, "fee": types.decimal(12, 3)}),
        table_schema(("main", "People")),
    ],
)
def test_the_fingerprint_changes_with_the_database(changed: TableSchema) -> None:
    assert fingerprint(BASE, changed) != fingerprint(BASE)


def test_the_fingerprint_changes_with_the_name_that_analysts_use() -> None:
    assert fingerprint(policy(people(name="main.people"))) != fingerprint(policy(people()))


@pytest.mark.parametrize(
    "changed",
    [
        dataclasses.replace(BASE, privacy=dataclasses.replace(PRIVACY, epsilon=Fraction(8))),
        dataclasses.replace(BASE, limits=Limits(timeout=1.0)),
        dataclasses.replace(BASE, path=Path("other.toml")),
        with_table(dataclasses.replace(TABLE, line=99)),
        with_table(dataclasses.replace(TABLE, columns=dict(list(TABLE.columns.items())[::-1]))),
    ],
)
def test_the_fingerprint_stays_where_answers_stay(changed: Policy) -> None:
    assert fingerprint(changed) == fingerprint(BASE)


def test_the_fingerprint_does_not_depend_on_enforced_uniqueness() -> None:
    assert fingerprint(BASE, table_schema(("main", "people"), unique=(frozenset({"id"}),))) == fingerprint(BASE)


def test_the_catalog_carries_the_limit_of_cells() -> None:
    catalog: Catalog = bind(policy(people(), limits=Limits(max_cells=7)), database(PEOPLE))
    assert catalog.max_cells == 7
