"""What stored answers are known by: which questions share one, and which edits of a policy lose it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from datetime import date, datetime
from fractions import Fraction
from pathlib import Path

import pytest

from dpsql import types
from dpsql.lowering.duckdb_dialect import DUCKDB
from dpsql.lowering.postgres_dialect import POSTGRES
from dpsql.plan.identity import WRITTEN
from dpsql.policy import model
from dpsql.policy.bind import bind
from dpsql.policy.fingerprint import FIELDS, Decides, facts_of
from dpsql.policy.model import (
    Catalog,
    ColumnPolicy,
    ColumnSchema,
    DatabaseSchema,
    Limits,
    Policy,
    PreparedPolicy,
    PrivacyPolicy,
    ServerPolicy,
    TablePolicy,
    TableSchema,
    UnitReference,
    UserPolicy,
    ViewPolicy,
)
from dpsql.privacy.accounting import Accountant
from dpsql.release import BoundMode, QuerySettings, compile_release
from dpsql.sql.clock import Clock
from dpsql.sql.parse import parse
from dpsql.sql.resolve import resolve
from dpsql.types import Value

SCHEMA = {
    "people": {
        "id": types.BIGINT,
        "age": types.integer(5),
        "income": types.DOUBLE,
        "state": types.TEXT,
        "sex": types.TEXT,
        "joined": types.TIMESTAMP,
    },
    "visits": {"number": types.BIGINT, "patient_id": types.BIGINT, "fee": types.decimal(10, 2), "kind": types.TEXT},
    "states": {"code": types.TEXT, "region": types.TEXT},
    "other": {"id": types.BIGINT, "age": types.integer(5)},
}
STATES: list[list[Value]] = [["CA", "NY"], ["west", "east"]]


def _column(name: str, low: int | None = None, high: int | None = None, **others: object) -> ColumnPolicy:
    bounds = (None if low is None else Fraction(low), None if high is None else Fraction(high))
    return ColumnPolicy(name, *bounds, **others)  # type: ignore[arg-type]


def _columns(*columns: ColumnPolicy) -> Mapping[str, ColumnPolicy]:
    return {column.name: column for column in columns}


PEOPLE = TablePolicy(
    "people",
    unit="id",
    columns=_columns(
        _column("age", 0, 110),
        _column("income", 0, 1000, step=Fraction(1)),
        _column("state", values=("CA", "NY")),
        _column("sex"),
        ColumnPolicy("joined", date(2019, 1, 1), date(2024, 12, 31)),
    ),
)
VISITS = TablePolicy(
    "visits",
    unit=UnitReference(("patient_id",), "people", ("id",)),
    max_rows_per_unit=10,
    columns=_columns(_column("fee", 0, 100), _column("kind")),
)
STATES_TABLE = TablePolicy("states", public=True)
OTHER = TablePolicy("other", unit="id", columns=_columns(_column("age", 0, 110)))
PRIVACY = PrivacyPolicy(
    Fraction(10), Fraction(1, 10**6), "zcdp", Fraction(1), None, Fraction(1, 10**7), Fraction(4), pure=True
)
TABLES = {table.name: table for table in (PEOPLE, VISITS, STATES_TABLE, OTHER)}
USUAL = QuerySettings()
POLICY = Policy(Path("dpsql.toml"), "duckdb:///x", PRIVACY, TABLES, {}, Limits(), None)


def catalog_of(policy: Policy, states: list[list[Value]] = STATES, **changed: Mapping[str, types.Type]) -> Catalog:
    schema = DatabaseSchema(
        {
            ("main", name): TableSchema(
                ("main", name),
                {c: ColumnSchema(c, type_, str(type_), nullable=True) for c, type_ in columns.items()},
                frozenset({frozenset({"id"})}) if name == "people" else frozenset(),
            )
            for name, columns in {**SCHEMA, **changed}.items()
        },
        "main",
    )

    def read(source: tuple[str, ...], columns: object, limit: int) -> list[list[Value]]:
        del columns, limit
        return states if source[1] == "states" else [[] for _ in SCHEMA[source[1]]]

    return bind(policy, schema, lambda *_: True, read)


def known_by(
    sql: str,
    policy: Policy = POLICY,
    parameters: tuple[Value, ...] = (),
    settings: QuerySettings = USUAL,
    clips: BoundMode = "declared",
    catalog: Catalog | None = None,
) -> list[object]:
    """The identities of all that a query buys, with those of its stages."""
    catalog = catalog or catalog_of(policy)
    plan = resolve(parse(sql), catalog, parameters, Clock(datetime(2024, 1, 2, 3, 4)))
    release = compile_release(plan, catalog, Accountant(policy.privacy), settings, DUCKDB, clips)
    return [
        (each.identity, [release.stages[stage].asked for stage in each.stages], each.clips)
        for each in release.measurements
    ]


# --- texts ---

SAME = [
    ("SELECT COUNT(*) FROM people", "select  count( * ) -- all\n as n from people p"),
    (
        "SELECT AVG(age) FROM people WHERE sex = 'f'",
        "SELECT AVG(q.years) FROM (SELECT age AS years, sex s FROM people) q WHERE s='f'",
    ),
    (
        "SELECT COUNT(*) FROM people WHERE sex = 'f' AND age > 3",
        "SELECT COUNT(*) FROM people WHERE age > 3 AND 'f' = sex",
    ),
    (
        "SELECT COUNT(*) FROM people WHERE age > 3 AND (sex = 'f' OR age < 9)",
        "SELECT COUNT(*) FROM (SELECT * FROM people WHERE age < 9 OR sex = 'f') t WHERE age > 3",
    ),
    (
        "SELECT state, COUNT(*) FROM people GROUP BY state",
        "SELECT COUNT(*) + 1, state FROM main.people GROUP BY 2 ORDER BY 1 DESC LIMIT 1",
    ),
    (
        "SELECT state, COUNT(*) FROM people GROUP BY state",
        "WITH x AS (SELECT state, age, income FROM people) SELECT state, COUNT(*) FROM x GROUP BY state",
    ),
    ("SELECT COUNT(*) FROM people WHERE age > 3", "SELECT COUNT(*) FROM old WHERE age > 3"),
    (
        "SELECT SUM(fee) FROM people p JOIN visits v ON p.id = v.patient_id WHERE p.age > 30",
        "SELECT SUM(b.fee) AS x FROM people AS a INNER JOIN visits AS b ON b.patient_id = a.id WHERE a.age > 30",
    ),
    (
        "SELECT COUNT(*) FROM people WHERE EXISTS (SELECT 1 FROM visits v WHERE v.patient_id = people.id)",
        "SELECT COUNT(*) FROM people WHERE EXISTS (SELECT kind, fee FROM visits w WHERE w.patient_id = people.id)",
    ),
    (
        "SELECT COUNT(*) FROM people WHERE age > (SELECT AVG(age) FROM people)",
        "SELECT COUNT(*) AS a FROM people WHERE age > (SELECT AVG(x.age) AS b FROM people x)",
    ),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_questions_that_say_the_same_share_their_answer(one: str, other: str) -> None:
    policy = replace(POLICY, views={"old": ViewPolicy("old", "SELECT age, sex FROM people")})
    assert known_by(one, policy) == known_by(other, policy)


APART = [
    "SELECT COUNT(*) FROM people",
    "SELECT COUNT(*) FROM other",
    "SELECT COUNT(age) FROM people",
    "SELECT COUNT(income) FROM people",
    "SELECT COUNT(*) FROM people WHERE age > 3",
    "SELECT COUNT(*) FROM people WHERE age >= 3",
    "SELECT COUNT(*) FROM people WHERE age > 3.0",
    "SELECT COUNT(*) FROM people WHERE age > 4",
    "SELECT COUNT(*) FROM people WHERE age > 3 OR sex = 'f'",
    "SELECT COUNT(*) FROM people WHERE age > 3 AND sex = 'f'",
    "SELECT COUNT(*) FROM people WHERE age > 3 AND state = 'f'",
    "SELECT COUNT(*) FROM people WHERE NOT age > 3",
    "SELECT COUNT(*) FROM people WHERE NOT (age > 3 AND sex = 'f')",
    "SELECT COUNT(*) FROM people WHERE NOT (age > 3 OR sex = 'f')",
    "SELECT COUNT(*) FROM people WHERE sex LIKE 'f%'",
    "SELECT COUNT(*) FROM people WHERE sex ILIKE 'f%'",
    "SELECT COUNT(*) FROM people WHERE sex = '3'",
    "SELECT COUNT(*) FROM people WHERE EXTRACT(hour FROM joined) = 3",
    "SELECT COUNT(*) FROM people WHERE EXTRACT(day FROM joined) = 3",
    "SELECT COUNT(*) FROM people WHERE EXTRACT(hour FROM joined AT TIME ZONE 'Europe/Berlin') = 3",
    "SELECT COUNT(*) FROM people WHERE EXTRACT(hour FROM joined AT TIME ZONE 'Europe/London') = 3",
    "SELECT SUM(age) FROM people",
    "SELECT AVG(age) FROM people",
    "SELECT MEDIAN(age) FROM people",
    "SELECT MAX(age) FROM people",
    "SELECT SUM(fee) FROM visits",
    "SELECT COUNT(*) FROM visits",
    "SELECT COUNT(DISTINCT patient_id) FROM visits",
    "SELECT COUNT(DISTINCT kind) FROM visits",
    "SELECT state, COUNT(*) FROM people GROUP BY state",
    "SELECT sex, COUNT(*) FROM people GROUP BY sex",
    "SELECT state, sex, COUNT(*) FROM people GROUP BY state, sex",
    "SELECT sex, state, COUNT(*) FROM people GROUP BY sex, state",
    "SELECT state, COUNT(*) FROM people GROUP BY state HAVING state <> 'CA' AND COUNT(*) > 3",
    "SELECT kind, COUNT(*) FROM visits GROUP BY kind",
    "SELECT kind, COUNT(DISTINCT patient_id) FROM visits GROUP BY kind",
    "SELECT COUNT(*) FROM people p JOIN visits v ON p.id = v.patient_id",
    "SELECT COUNT(*) FROM people p LEFT JOIN visits v ON p.id = v.patient_id",
    "SELECT COUNT(*) FROM visits v JOIN visits w ON v.patient_id = w.patient_id AND v.fee < w.fee",
    "SELECT COUNT(*) FROM visits v JOIN visits w ON v.patient_id = w.patient_id AND v.fee < v.fee",
    "SELECT COUNT(*) FROM visits v JOIN visits w ON v.patient_id = w.patient_id WHERE v.fee < 3 AND w.fee < 4",
    "SELECT COUNT(*) FROM visits v JOIN visits w ON v.patient_id = w.patient_id WHERE v.fee < 4 AND w.fee < 3",
    "SELECT COUNT(*) FROM people WHERE id IN (SELECT patient_id FROM visits)",
    "SELECT COUNT(*) FROM people WHERE id NOT IN (SELECT patient_id FROM visits WHERE patient_id IS NOT NULL)",
    "SELECT COUNT(*) FROM people WHERE age > (SELECT AVG(age) FROM people)",
    "SELECT COUNT(*) FROM people WHERE age > (SELECT MAX(age) FROM people)",
    "SELECT COUNT(*) FROM people WHERE age > (SELECT AVG(age) + 1 FROM people)",
    "SELECT region, COUNT(*) FROM people JOIN states ON state = code GROUP BY region",
]


def test_questions_that_say_something_else_share_nothing() -> None:
    catalog = catalog_of(POLICY)
    found = {sql: known_by(sql, catalog=catalog)[-1] for sql in APART}
    groups: dict[str, list[str]] = {}
    for sql, identity in found.items():
        groups.setdefault(repr(identity), []).append(sql)
    same = [group for group in groups.values() if len(group) > 1]
    # HAVING looks at the answer.
    having = [sql for sql in APART if "GROUP BY state" in sql and "sex" not in sql]
    assert same == [having]


def test_price_noise_engine_and_parameters_are_part_of_a_question() -> None:
    sql, catalog = "SELECT COUNT(*) FROM people WHERE age > $1", catalog_of(POLICY)
    plans = [
        (QuerySettings(), 3),
        (QuerySettings(), 4),
        (QuerySettings(epsilon=Fraction(1, 2)), 3),
        (QuerySettings(pure=True), 3),
    ]
    found = {repr(known_by(sql, catalog=catalog, settings=each, parameters=(value,))) for each, value in plans}
    assert len(found) == len(plans)
    asked = resolve(parse("SELECT COUNT(*) FROM people"), catalog)
    kinds = [compile_release(asked, catalog, Accountant(PRIVACY), QuerySettings(), each) for each in (DUCKDB, POSTGRES)]
    assert kinds[0].measurements[0].identity != kinds[1].measurements[0].identity


def test_a_price_that_was_paid_for_a_search_is_no_part_of_it() -> None:
    loose = replace(POLICY, tables={**TABLES, "visits": replace(VISITS, max_rows_per_unit=1000, tight=False)})
    sql = "SELECT SUM(fee) FROM visits"
    cheap, dear = (
        known_by(sql, loose, settings=QuerySettings(epsilon=Fraction(each)), clips="searched") for each in (1, 2)
    )
    assert cheap[0] == dear[0] and cheap[1] != dear[1]


# --- policies ---

PROBE = "SELECT state, SUM(income) FROM people WHERE age > 30 GROUP BY state"


def with_people(**changes: object) -> Policy:
    return replace(POLICY, tables={**TABLES, "people": replace(PEOPLE, **changes)})  # type: ignore[arg-type]


def with_column(name: str, **changes: object) -> Policy:
    columns = {**PEOPLE.columns, name: replace(PEOPLE.columns[name], **changes)}  # type: ignore[arg-type]
    return with_people(columns=columns)


def with_table(table: TablePolicy) -> Policy:
    return replace(POLICY, tables={**TABLES, table.name: table})


def without(*names: str) -> Policy:
    return with_people(columns={name: column for name, column in PEOPLE.columns.items() if name not in names})


LOSES: dict[str, Policy] = {
    "lower": with_column("age", lower=Fraction(1)),
    "upper": with_column("income", upper=Fraction(2000)),
    "step": with_column("income", step=Fraction(2)),
    "values": with_column("state", values=("CA", "NY", "TX")),
    "order of values": with_column("state", values=("NY", "CA")),
    "nullable_key": with_column("state", nullable_key=True),
    "tight column": with_column("income", tight=True),
    "tight table": with_people(tight=True),
    "max_rows_per_unit": with_people(max_rows_per_unit=2),
    "max_groups_per_unit": with_people(max_groups_per_unit=1),
    "accounting": replace(POLICY, privacy=replace(PRIVACY, accounting="basic", pure=False)),
}
KEEPS: dict[str, Policy] = {
    "another column": with_column("sex", values=("f", "m")),
    "a bound of another column": with_column("joined", upper=date(2025, 1, 1)),
    "without other columns": without("sex", "joined"),
    "another table": with_table(replace(OTHER, max_rows_per_unit=7)),
    "bounds of another table": with_table(replace(VISITS, columns=_columns(_column("fee", 0, 50), _column("kind")))),
    "a table less": replace(POLICY, tables={name: table for name, table in TABLES.items() if name != "other"}),
    "the name of a table": replace(POLICY, tables={"main.people": replace(PEOPLE, name="main.people")}),
    "order of columns": with_people(columns=dict(list(PEOPLE.columns.items())[::-1])),
    "a view": replace(POLICY, views={"v": ViewPolicy("v", "SELECT age FROM people")}),
    "lines": with_people(line=99),
    "the total": replace(POLICY, privacy=replace(PRIVACY, epsilon=Fraction(20))),
    "prices of others": replace(POLICY, privacy=replace(PRIVACY, max_query_epsilon=Fraction(5))),
    "users": replace(POLICY, users={"bob": UserPolicy("bob")}),
    "limits": replace(POLICY, limits=Limits(timeout=1.0, max_cells=50, replay_days=3.0)),
    "server": replace(POLICY, server=ServerPolicy(port=1)),
    "path": replace(POLICY, path=Path("other.toml")),
}


@pytest.mark.parametrize("changed", LOSES.values(), ids=LOSES.keys())
def test_a_declaration_that_decides_the_answer_is_part_of_it(changed: Policy) -> None:
    assert known_by(PROBE, changed) != known_by(PROBE)


@pytest.mark.parametrize("changed", KEEPS.values(), ids=KEEPS.keys())
def test_an_edit_elsewhere_keeps_the_answer(changed: Policy) -> None:
    assert known_by(PROBE, changed) == known_by(PROBE)


@pytest.mark.parametrize("name", ["main.people", "people"])
def test_a_renamed_view_keeps_its_answers(name: str) -> None:
    found = [
        known_by(f"SELECT COUNT(*) FROM {view}", replace(POLICY, views={view: ViewPolicy(view, text)}))
        for view, text in (("old", f"SELECT age FROM {name}"), ("new", f"-- more\nSELECT age, sex FROM {name}"))
    ]
    assert found[0] == found[1] == known_by("SELECT COUNT(*) FROM people")


def test_whose_a_row_is_is_part_of_an_answer() -> None:
    direct = with_table(replace(VISITS, unit="patient_id"))
    assert known_by("SELECT SUM(fee) FROM visits", direct) != known_by("SELECT SUM(fee) FROM visits")
    assert known_by("SELECT SUM(age) FROM people", direct) == known_by("SELECT SUM(age) FROM people")


def test_what_the_database_says_of_a_column_is_part_of_its_answers() -> None:
    changed = catalog_of(POLICY, people={**SCHEMA["people"], "income": types.decimal(12, 2)})
    assert known_by("SELECT SUM(income) FROM people", catalog=changed) != known_by("SELECT SUM(income) FROM people")
    assert known_by("SELECT SUM(age) FROM people", catalog=changed) == known_by("SELECT SUM(age) FROM people")


@pytest.mark.parametrize(
    "states",
    [
        [["CA", "TX"], ["west", "east"]],
        [["CA", "NY"], ["west", "west"]],
        [["CA", "NY", "NY"], ["west", "east", "east"]],
    ],
)
def test_what_a_public_table_holds_is_part_of_answers_that_read_it(states: list[list[Value]]) -> None:
    reads = "SELECT COUNT(*) FROM people JOIN states ON state = code WHERE region <> 'x'"
    stage = "SELECT COUNT(*) FROM people WHERE state IN (SELECT code FROM states)"
    for sql in (reads, stage):
        assert known_by(sql, catalog=catalog_of(POLICY, states)) != known_by(sql)
    assert known_by(PROBE, catalog=catalog_of(POLICY, states)) == known_by(PROBE)


def test_rows_of_a_public_table_have_no_order() -> None:
    turned = [column[::-1] for column in STATES]
    assert facts_of(catalog_of(POLICY, turned).tables["states"]) == facts_of(catalog_of(POLICY).tables["states"])


def test_a_prepared_copy_changes_nothing() -> None:
    prepared = replace(POLICY, prepared=PreparedPolicy("copy", 1, "x"))
    table = catalog_of(POLICY).tables["people"]
    copied = replace(table, copy=model.Copy(("dpsql", "people"), "id", 1))
    assert facts_of(copied) == facts_of(table)
    assert FIELDS[Policy]["prepared"] is Decides.NOTHING and prepared.prepared is not None


# --- nothing is forgotten ---

DECLARATIONS = [
    each
    for each in vars(model).values()
    if dataclasses.is_dataclass(each) and isinstance(each, type) and each.__module__ == model.__name__
]
# How the database describes itself, before it is joined with the policy.
SCHEMAS = {model.ColumnSchema, model.TableSchema, model.DatabaseSchema}


def test_of_each_field_of_the_policy_it_is_said_what_it_decides() -> None:
    assert set(FIELDS) == set(DECLARATIONS) - SCHEMAS
    for of, listed in FIELDS.items():
        names = [each.name for each in fields(of)]
        assert sorted(listed) == sorted(names), f"say in FIELDS what the fields of {of.__name__} decide"


def test_nodes_that_are_written_by_hand_have_no_other_fields() -> None:
    for of, written in WRITTEN.items():
        names = tuple(each.name for each in fields(of))
        assert names == written, f"PlanText must write, or leave out on purpose, all that a {of.__name__} says"


# Another value of each field of the bound declarations that is listed as deciding answers.
CHANGES: dict[str, Callable[[model.Table], model.Table]] = {
    "source": lambda table: replace(table, source=("main", "persons")),
    "owner": lambda table: replace(table, owner="age"),
    "owner_type": lambda table: replace(table, owner_type=types.TEXT),
    "max_rows_per_unit": lambda table: replace(table, max_rows_per_unit=3),
    "max_groups_per_unit": lambda table: replace(table, max_groups_per_unit=3),
    "tight": lambda table: replace(table, tight=False),
    "path": lambda table: replace(table, path=(model.Step(("age",), "x", ("main", "x"), ("k",), (types.BIGINT,)),)),
    "contents": lambda table: replace(table, contents={"age": (1,)}),
    "rows": lambda table: replace(table, rows=((1,),)),
    "combinations": lambda table: replace(table, combinations=(("age",), ((1,),))),
}


def test_every_field_of_a_table_that_decides_answers_changes_its_facts() -> None:
    listed = {name for name, decides in FIELDS[model.Table].items() if decides is Decides.ANSWERS}
    assert set(CHANGES) == listed
    table = catalog_of(POLICY).tables["people"]
    found = {facts_of(change(table)).table for change in CHANGES.values()} | {facts_of(table).table}
    assert len(found) == len(CHANGES) + 1


COLUMN_CHANGES = {
    "name": "years",
    "type": types.integer(9),
    "lower": Fraction(1),
    "upper": Fraction(200),
    "step": Fraction(2),
    "values": (1, 2),
    "nullable_key": True,
    "tight": False,
    "max_rows_per_value": 2,
}


def test_every_field_of_a_column_that_decides_answers_changes_its_facts() -> None:
    listed = {name for name, decides in FIELDS[model.Column].items() if decides is Decides.ANSWERS}
    assert set(COLUMN_CHANGES) == listed
    table = catalog_of(POLICY).tables["people"]
    found = {facts_of(table).columns["age"]}
    for name, value in COLUMN_CHANGES.items():
        changed = replace(table.columns["age"], **{name: value})  # type: ignore[arg-type]
        found.add(facts_of(replace(table, columns={"age": changed})).columns["age"])
    assert len(found) == len(COLUMN_CHANGES) + 1
