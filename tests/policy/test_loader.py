"""The policy file is read exactly, and all that is wrong with it is said at once."""

from __future__ import annotations

import contextlib
import json
from datetime import date, datetime
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsql.errors import PolicyError
from dpsql.policy.address import PostgresAddress
from dpsql.policy.load import database_address, load
from dpsql.policy.model import Limits, Policy, UnitReference, UserPolicy
from dpsql.policy.problems import PolicyProblems, Problem, describe_problems

HEAD = '[database]\nurl = "duckdb:///clinic.duckdb"\n[privacy]\nepsilon = 4\n'
TABLE = '[tables.people]\nunit = "id"\n'

CLINIC = """\
[database]
url = "duckdb:///clinic.duckdb"
ledger = "books/clinic.ledger"

[privacy]
epsilon = 4.0            # all answers ever given, together
delta = 1e-6
accounting = "zcdp"      # or "basic"
query_epsilon = 0.1      # default price

[limits]
max_cells = 500
timeout = 2.5
memory = "512MB"
threads = 1
replay_days = 30

[tables.patients]
unit = "id"
[tables.patients.columns]
age    = { min = 0, max = 110 }
income = { min = -0.1, max = 500_000, step = 0.01, tight = false }
state  = { values = ["CA", "NY", "TX"], nullable_key = true }
born   = { min = 1900-01-01, max = 2029-12-31 }
seen   = { min = 2000-01-01T00:00:00, max = 2030-01-01 00:00:00 }
note   = {}

[tables.visits]
unit = "patient_id"
max_rows_per_unit = 50
max_groups_per_unit = 5
tight = true

[tables."billing.items"]
unit = { via = "visit_id", table = "visits", key = "id" }

[tables.hospitals]
public = true

[users.alice]
epsilon = 1.0
[users.bob]
"""


def loaded(folder: Path, text: str) -> Policy:
    file = folder / "dpsql.toml"
    file.write_text(text, encoding="utf-8")
    return load(file)


def found(folder: Path, text: str) -> list[tuple[int | None, str]]:
    with pytest.raises(PolicyProblems) as caught:
        loaded(folder, text)
    return [(problem.line, problem.message) for problem in caught.value.problems]


def the_problem(folder: Path, text: str) -> Problem:
    with pytest.raises(PolicyProblems) as caught:
        loaded(folder, text)
    (problem,) = caught.value.problems
    return problem


# --- what a right file means ---


def test_a_whole_policy_is_read(tmp_path: Path) -> None:
    policy = loaded(tmp_path, CLINIC)
    assert policy.database == "duckdb:///clinic.duckdb"
    assert policy.ledger == tmp_path / "books/clinic.ledger"
    assert policy.privacy.accounting == "zcdp"
    assert policy.limits == Limits(500, timeout=2.5, memory="512MB", threads=1, replay_days=30.0)
    assert list(policy.tables) == ["patients", "visits", "billing.items", "hospitals"]
    patients = policy.tables["patients"]
    assert (patients.unit, patients.max_rows_per_unit, patients.max_groups_per_unit, patients.line) == (
        "id",
        1,
        None,
        18,
    )
    assert patients.columns["age"].line == 21
    assert patients.columns["state"].values == ("CA", "NY", "TX")
    assert patients.columns["state"].nullable_key
    assert (patients.tight, patients.columns["age"].tight, patients.columns["income"].tight) == (None, None, False)
    assert patients.columns["note"].lower is None
    assert not patients.columns["note"].nullable_key
    visits = policy.tables["visits"]
    assert (visits.unit, visits.max_rows_per_unit, visits.max_groups_per_unit) == ("patient_id", 50, 5)
    assert visits.tight
    assert policy.tables["billing.items"].unit == UnitReference(("visit_id",), "visits", ("id",))
    assert policy.tables["hospitals"].public
    assert dict(policy.users) == {"alice": UserPolicy("alice", Fraction(1), 40), "bob": UserPolicy("bob", None, 42)}


def test_numbers_are_exact(tmp_path: Path) -> None:
    policy = loaded(tmp_path, CLINIC)
    assert policy.privacy.delta == Fraction(1, 1_000_000)
    assert policy.privacy.query_epsilon == Fraction(1, 10)
    income = policy.tables["patients"].columns["income"]
    assert (income.lower, income.upper, income.step) == (Fraction(-1, 10), Fraction(500_000), Fraction(1, 100))


def test_dates_and_times_stay_apart(tmp_path: Path) -> None:
    columns = loaded(tmp_path, CLINIC).tables["patients"].columns
    assert type(columns["born"].lower) is date
    assert columns["seen"].upper == datetime(2030, 1, 1)


@pytest.mark.parametrize(
    ("given_lines", "accounting", "key_delta", "price", "largest"),
    [
        ("", "basic", "0", "0.1", "4"),
        ("delta = 1e-6", "zcdp", "0.0000005", "0.1", "4"),
        ('delta = 1e-6\naccounting = "basic"', "basic", "0.000001", "0.1", "4"),
        ("delta = 1e-6\nkey_delta = 0", "zcdp", "0", "0.1", "4"),
        ("max_query_epsilon = 0.05", "basic", "0", "0.05", "0.05"),
        ("query_epsilon = 4", "basic", "0", "4", "4"),
    ],
)
def test_defaults_of_privacy(
    tmp_path: Path, given_lines: str, accounting: str, key_delta: str, price: str, largest: str
) -> None:
    privacy = loaded(tmp_path, HEAD + given_lines + "\n" + TABLE).privacy
    assert privacy.accounting == accounting
    assert privacy.key_delta == Fraction(key_delta)
    assert privacy.query_epsilon == Fraction(price)
    assert privacy.max_query_epsilon == Fraction(largest)
    assert privacy.query_delta is None


def test_the_default_price_is_never_more_than_the_total(tmp_path: Path) -> None:
    assert loaded(tmp_path, HEAD.replace("4", "0.02") + TABLE).privacy.query_epsilon == Fraction(1, 50)


def test_the_database_lies_beside_the_policy_or_at_an_absolute_path(tmp_path: Path) -> None:
    assert database_address(loaded(tmp_path, HEAD + TABLE)).file == tmp_path / "clinic.duckdb"
    absolute = HEAD.replace("duckdb:///clinic", "duckdb:////data/clinic")
    assert database_address(loaded(tmp_path, absolute + TABLE)).file == Path("/data/clinic.duckdb")


# --- what is wrong, and where ---


def test_every_problem_is_reported_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = """\
[database]
[privacy]
epsilonn = 1
delta = "small"
[tables.people]
[tables.people.columns]
age = { min = 5, max = 3 }
[users.eve]
epsilon = -1
"""
    assert found(tmp_path, text) == [
        (1, '"url" is missing in [database]'),
        (2, '"epsilon" is missing in [privacy]'),
        (3, 'unknown key "epsilonn" in [privacy]'),
        (4, '"delta" in [privacy] must be a number, not a string'),
        (5, 'table "people" has no unit'),
        (7, '"min" in [tables.people.columns.age] is greater than "max"'),
        (9, '"epsilon" in [users.eve] must be greater than 0'),
    ]


def test_a_problem_is_shown_with_its_place_and_what_to_write(tmp_path: Path) -> None:
    problem = the_problem(tmp_path, HEAD + "deltaa = 0\n" + TABLE)
    assert str(problem) == f'{tmp_path}/dpsql.toml:5: unknown key "deltaa" in [privacy]\n  write: delta'


def test_the_report_counts_the_problems() -> None:
    one = Problem("dpsql.toml", 12, 'unknown key "x" in [privacy]', "write: epsilon")
    two = Problem("dpsql.toml", None, "section [database] is missing")
    assert describe_problems([one]) == (
        'dpsql.toml:12: unknown key "x" in [privacy]\n  write: epsilon\n1 problem in the policy'
    )
    assert describe_problems([one, two]).splitlines()[2:] == [
        "dpsql.toml: section [database] is missing",
        "2 problems in the policy",
    ]
    error = PolicyProblems([one, two])
    assert isinstance(error, PolicyError)
    assert error.problems == (two, one)
    assert str(error) == describe_problems([two, one])


@pytest.mark.parametrize(
    ("lines", "line", "message", "fix"),
    [
        ("delta = 1", 5, '"delta" in [privacy] must be at least 0 and less than 1', None),
        ("delta = nan", 5, '"delta" in [privacy] must be a finite number', None),
        ("delta = true", 5, '"delta" in [privacy] must be a number, not a boolean', None),
        ("query_epsilon = 0", 5, '"query_epsilon" in [privacy] must be greater than 0', None),
        ("query_epsilon = inf", 5, '"query_epsilon" in [privacy] must be a finite number', None),
        ("query_epsilon = 1e999999999", 5, '"query_epsilon" in [privacy] is too large, too small or too long', None),
        ("query_epsilon = 1e-999999999", 5, '"query_epsilon" in [privacy] is too large, too small or too long', None),
        ("query_epsilon = 5", 5, '"query_epsilon" in [privacy] is more than one query may cost', None),
        ("max_query_epsilon = 5", 5, '"max_query_epsilon" in [privacy] is more than the dataset\'s total', None),
        ('accounting = "zcdp"', 5, 'accounting "zcdp" needs a delta greater than 0', 'write: accounting = "basic"'),
        ('accounting = "zCDP2"', 5, 'unknown accounting "zCDP2"', 'write: accounting = "zcdp"'),
        ("delta = 0.1\nkey_delta = 0.1", 6, '"key_delta" in [privacy] must be less than delta', None),
        ("delta = 0.1\nkey_delta = -1", 6, '"key_delta" in [privacy] must be 0 or more', None),
        (
            "key_delta = 0",
            5,
            '"key_delta" has no meaning under basic accounting: all of delta is for keys',
            "remove it",
        ),
        ("delta = 0.1\nquery_delta = 0.06", 6, '"query_delta" in [privacy] is more than is kept for keys', None),
        ("[privacy.more]", 5, 'unknown key "more" in [privacy]', None),
        ("[limits]\nthreads = 0", 6, '"threads" in [limits] must be 1 or more', None),
        ("[limits]\nmax_cells = 1.5", 6, '"max_cells" in [limits] must be an integer, not a number', None),
        ("[limits]\ntimeout = 1e9", 6, '"timeout" in [limits] must be greater than 0 and at most 86400 seconds', None),
        ("[limits]\nreplay_days = -1", 6, '"replay_days" in [limits] must be at least 0 and at most 36500 days', None),
        ('[limits]\nmemory = "lots"', 6, '"memory" in [limits] is not a memory size', 'write: memory = "2GB"'),
        ("[limit]\nthreads = 1", 5, "unknown section [limit]", "write: [limits]"),
        ("[[limits]]\nthreads = 1", 5, "limits is a list, not a table", "write: [limits]"),
        ("[users]\nann = 3", 6, "users.ann is an integer, not a table", "write: [users.ann]"),
        ("[users.ann]\nepsilon = 4.5", 6, '"epsilon" in [users.ann] is more than the dataset\'s total', None),
        ('[users.""]', 5, '"" is not a valid user name', None),
    ],
)
def test_wrong_settings(tmp_path: Path, lines: str, line: int, message: str, fix: str | None) -> None:
    problem = the_problem(tmp_path, f"{HEAD}{lines}\n{TABLE}")
    assert (problem.line, problem.message) == (line, message)
    assert fix is None or problem.fix == fix


NO_ADDRESS = '"url" in [database]: not the address of a database'
NO_FILE = '"url" in [database]: not the address of a DuckDB file'


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("mysql://me:secret@db/clinic", '"url" in [database]: no engine is installed for the scheme of this address'),
        ("duckdb://clinic.duckdb", NO_FILE),
        ("duckdb:///", NO_FILE),
        ("clinic.duckdb", NO_ADDRESS),
        ("", '"url" in [database] must be a string that is not empty and holds no NUL character'),
    ],
)
def test_wrong_addresses(tmp_path: Path, url: str, message: str) -> None:
    problem = the_problem(tmp_path, HEAD.replace("duckdb:///clinic.duckdb", url) + TABLE)
    assert (problem.line, problem.message) == (2, message)
    assert "secret" not in str(problem)


def test_a_ledger_may_be_on_a_server(tmp_path: Path) -> None:
    ledger = "postgresql://dpsql:secret@books.example/clinic"
    policy = loaded(tmp_path, HEAD.replace("[privacy]", f'ledger = "{ledger}"\n[privacy]') + TABLE)
    assert policy.ledger == PostgresAddress(ledger)
    assert "secret" not in repr(policy)


@pytest.mark.parametrize(
    "ledger", ["sqlite:///books", "postgresql://dpsql:secret@host", "mysql://dpsql:secret@host/db"]
)
def test_a_ledger_that_is_nowhere(tmp_path: Path, ledger: str) -> None:
    problem = the_problem(tmp_path, HEAD.replace("[privacy]", f'ledger = "{ledger}"\n[privacy]') + TABLE)
    assert problem.message == '"ledger" in [database] is neither a path nor the address of a PostgreSQL database'
    assert problem.line == 3
    assert "secret" not in str(problem)


def test_a_server_needs_a_ledger_to_be_named(tmp_path: Path) -> None:
    """There is no place beside the database for one, and a policy must not choose by where it lies itself."""
    head = HEAD.replace("duckdb:///clinic.duckdb", "postgresql://me:secret@db/clinic")
    problem = the_problem(tmp_path, head + TABLE)
    assert '"ledger"' in problem.message
    assert problem.fix is not None and "ledger =" in problem.fix
    policy = loaded(tmp_path, head.replace("[database]\n", '[database]\nledger = "clinic.ledger"\n') + TABLE)
    assert policy.ledger == tmp_path / "clinic.ledger"
    assert database_address(policy).name == "clinic"
    assert "secret" not in repr(policy)


@pytest.mark.parametrize(
    ("lines", "line", "message"),
    [
        ("unit = 3", 6, '"unit" in [tables.people] must be a string, not an integer'),
        ('unit = "id"\nmax_rows_per_unit = 0', 7, '"max_rows_per_unit" in [tables.people] must be 1 or more'),
        (
            'unit = "id"\nmax_groups_per_unit = true',
            7,
            '"max_groups_per_unit" in [tables.people] must be an integer, not a boolean',
        ),
        ('unit = "id"\ntight = 1', 7, '"tight" in [tables.people] must be true or false, not an integer'),
        ("public = true\ntight = true", 7, 'public table "people" takes no "tight"'),
        ('unit = "id"\npublic = "no"', 7, '"public" in [tables.people] must be true or false, not a string'),
        ('unit = "id"\npublic = true', 6, 'public table "people" takes no "unit"'),
        ("public = true\nmax_rows_per_unit = 3", 7, 'public table "people" takes no "max_rows_per_unit"'),
        ("public = false", 5, 'table "people" has no unit'),
        (
            'unit = { via = ["a", "b"], table = "people", key = "c" }',
            6,
            '"via" and "key" in [tables.people.unit] name different numbers of columns',
        ),
        (
            'unit = { via = ["a", ""], table = "people", key = "c" }',
            6,
            '"via" in [tables.people.unit] must be a string, or a list of strings that are not empty',
        ),
        (
            'unit = { via = ["a", "a"], table = "people", key = ["c", "d"] }',
            6,
            '"via" in [tables.people.unit] names the same column twice',
        ),
        ('unit = { via = "a", table = "b" }', 6, '"key" is missing in [tables.people.unit]'),
        (
            'unit = { via = "a", table = "b", key = "c" }',
            6,
            'the unit refers to table "b", which is not declared',
        ),
        (
            'unit = { via = "a", table = "people", key = "c" }',
            6,
            'the unit of table "people" refers back to itself',
        ),
        (
            'unit = { via = "a", table = "towns", key = "c" }\n[tables.towns]\npublic = true',
            6,
            'the unit refers to table "towns", which is public and has no unit',
        ),
        ('unit = "id"\ncolumns = 3', 7, "tables.people.columns is an integer, not a table"),
        ('unit = "id"\n[tables.a.b]\nunit = "c"', 7, "a table in a schema needs quotation marks"),
        ('unit = "id"\n[tables."a.b.c"]\nunit = "c"', 7, '"a.b.c" is not a valid table name'),
        ('unit = "id"\n[tables.".b"]\nunit = "c"', 7, '".b" is not a valid table name'),
    ],
)
def test_wrong_tables(tmp_path: Path, lines: str, line: int, message: str) -> None:
    problem = the_problem(tmp_path, f"{HEAD}[tables.people]\n{lines}\n")
    assert (problem.line, problem.message) == (line, message)


def test_a_circle_of_references_is_reported_for_each_table_on_it(tmp_path: Path) -> None:
    text = HEAD + "".join(
        f'[tables.{name}]\nunit = {{ via = "x", table = "{target}", key = "id" }}\n'
        for name, target in (("a", "b"), ("b", "c"), ("c", "b"))
    )
    assert found(tmp_path, text) == [
        (8, 'the unit of table "b" refers back to itself'),
        (10, 'the unit of table "c" refers back to itself'),
    ]


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ("true", 'column "c" must be a table in braces, even if it is empty'),
        ("{ min = 0 }", '[C] has "min" without "max"'),
        ("{ max = 0 }", '[C] has "max" without "min"'),
        ("{ min = 1, max = 0 }", '"min" in [C] is greater than "max"'),
        ("{ min = 2020-01-02, max = 2020-01-01 }", '"min" in [C] is greater than "max"'),
        ("{ min = 0, max = nan }", '"max" in [C] must be a finite number'),
        ("{ min = -inf, max = 0 }", '"min" in [C] must be a finite number'),
        ("{ min = 0, max = 1e301 }", '"max" in [C] is too large, too small or too long'),
        ("{ min = 0, max = 2020-01-01 }", '"min" and "max" in [C] are of different types'),
        ("{ min = 2020-01-01, max = 2020-01-01T00:00:00 }", '"min" and "max" in [C] are of different types'),
        (
            "{ min = 2020-01-01T00:00:00Z, max = 2021-01-01T00:00:00 }",
            '"min" in [C] must be a date and time without an offset',
        ),
        (
            "{ min = 10:00:00, max = 2021-01-01T00:00:00 }",
            '"min" in [C] must be a number, a date or a date and time, not a time',
        ),
        ("{ min = false, max = 1 }", '"min" in [C] must be a number, a date or a date and time, not a boolean'),
        ("{ min = 0, max = 1, step = 0 }", '"step" in [C] must be greater than 0'),
        ("{ min = 2020-01-01, max = 2021-01-01, step = 1 }", '"step" in [C] is for numbers only'),
        ('{ values = ["a"], step = 1 }', '"step" in [C] is for numbers only'),
        ("{ values = [1], min = 0, max = 1 }", '[C] has both "values" and "min" or "max"'),
        ("{ values = [] }", '"values" in [C] must not be empty'),
        ("{ values = 3 }", '"values" in [C] must be a list, not an integer'),
        ("{ values = [1, 2, 1] }", '"values" in [C] names the same value twice'),
        ("{ values = [1, true] }", '"values" in [C] must hold values of one type'),
        ("{ values = [0.5] }", '"values" in [C] must hold strings, integers, booleans or dates, not a number'),
        ("{ values = [[1]] }", '"values" in [C] must hold strings, integers, booleans or dates, not a list'),
        ("{ values = [9223372036854775808] }", '"values" in [C] holds an integer that does not fit into 64 bits'),
        ('{ values = ["\\u0000"] }', '"values" in [C] holds a NUL character'),
        ("{ min = 0, max = 9, tight = 1 }", '"tight" in [C] must be true or false, not an integer'),
        ("{ tight = true }", '"tight" in [C] is for columns with "min" and "max"'),
        ("{ max_rows_per_value = 3 }", '"max_rows_per_value" in [C] is for public tables only'),
        ("{ nullable_key = 1 }", '"nullable_key" in [C] must be true or false, not an integer'),
        ("{ minimum = 1 }", 'unknown key "minimum" in [C]'),
    ],
)
def test_wrong_columns(tmp_path: Path, column: str, message: str) -> None:
    problem = the_problem(tmp_path, f"{HEAD}{TABLE}[tables.people.columns]\na = {{}}\nc = {column}\n")
    assert (problem.line, problem.message) == (9, message.replace("[C]", "[tables.people.columns.c]"))


def test_bounds_in_quotation_marks_are_told_to_stand_without(tmp_path: Path) -> None:
    columns = '[tables.people.columns]\nc = { min = "2020-01-01", max = 2021-01-01 }\n'
    assert the_problem(tmp_path, f"{HEAD}{TABLE}{columns}").fix == "write it without quotation marks"


def test_a_wrong_value_is_found_on_its_own_line(tmp_path: Path) -> None:
    text = f'{HEAD}{TABLE}columns.state.values = [\n  "CA", # "NY"\n  "NY",\n  "CA",\n]\n'
    assert the_problem(tmp_path, text).line == 10


def test_a_missing_section_is_reported(tmp_path: Path) -> None:
    assert found(tmp_path, "") == [
        (None, "section [database] is missing"),
        (None, "section [privacy] is missing"),
        (None, "no table is declared"),
    ]


# --- files that are no TOML ---


@pytest.mark.parametrize(
    ("data", "line", "message"),
    [
        (b"[privacy]\n\nepsilon = \n", 3, "not valid TOML: invalid value"),
        (b"a = 1\na = 2\n", 2, "not valid TOML: cannot overwrite a value"),
        (b"a = 1\nb", 2, "not valid TOML: expected '=' after a key in a key/value pair"),
        (b"a = 1\nb = '\xff'", 2, "the policy file is not UTF-8 text"),
        (b"a = " + b"9" * 5000, None, "the policy file holds a number with too many digits"),
        (b"a = 1e" + b"9" * 30, None, "the policy file holds a number with too many digits"),
        (b"a = " + b"[" * 5000 + b"]" * 5000, None, "the policy file is nested too deeply"),
    ],
)
def test_a_file_that_cannot_be_parsed(tmp_path: Path, data: bytes, line: int | None, message: str) -> None:
    file = tmp_path / "dpsql.toml"
    file.write_bytes(data)
    with pytest.raises(PolicyProblems) as caught:
        load(file)
    (problem,) = caught.value.problems
    assert (problem.line, problem.message) == (line, message)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(PolicyProblems, match="the policy file does not exist"):
        load(tmp_path / "none.toml")
    with pytest.raises(PolicyProblems, match="the policy file cannot be read"):
        load(tmp_path)


# --- whatever stands in the file, the owner gets a report and no traceback ---

Tree = str | dict[str, "Tree"] | list["Tree"]


def in_quotes(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "")


SCALARS: st.SearchStrategy[Tree] = (
    st.sampled_from(["true", "false", "0", "1", "-1", "0.5", "1e-6", "nan", "-inf", "1e400", "1e-999999999"])
    | st.sampled_from(["10:00:00", "2020-01-01"])
    | st.sampled_from(["2020-01-01T00:00:00", "2020-01-01 00:00:00Z", "''", "'zcdp'", "'basic'", "'people'", "'1GB'"])
    | st.sampled_from(["'duckdb:///x.duckdb'", "'postgresql://x'", "'''\n[x]\n'''''", '"""\n# """'])
    | st.text(max_size=3).map(in_quotes)
    | st.integers().map(str)
)
JUNK: st.SearchStrategy[Tree] = st.recursive(
    SCALARS,
    lambda inner: st.dictionaries(st.text(max_size=3), inner, max_size=3) | st.lists(inner, max_size=3),
    max_leaves=5,
)
NAMES = st.sampled_from(["people", "visits", "sales.orders", "a.b.c", "columns"]) | st.text(max_size=3)


def shaped(keys: str, value: st.SearchStrategy[Tree] = JUNK) -> st.SearchStrategy[Tree]:
    """Some of the keys that a section knows, any value under each, now and then something else altogether."""
    section: st.SearchStrategy[Tree] = st.fixed_dictionaries({}, optional=dict.fromkeys(keys.split(), value))
    return st.one_of(section, section, section, JUNK)


def named(value: st.SearchStrategy[Tree]) -> st.SearchStrategy[Tree]:
    return st.dictionaries(NAMES, value, max_size=3) | JUNK


COLUMN = shaped("min max step values nullable_key tight max_rows_per_value", JUNK | st.lists(SCALARS, max_size=3))
TABLES = named(
    st.fixed_dictionaries(
        {},
        optional={
            "unit": JUNK | shaped("via table key", st.sampled_from(["'people'", "'visits'", "'columns'"])),
            "public": JUNK,
            "max_rows_per_unit": JUNK,
            "columns": named(COLUMN),
        },
    )
)
FILES: st.SearchStrategy[dict[str, Tree]] = st.fixed_dictionaries(
    {},
    optional={
        "database": shaped("url ledger"),
        "privacy": shaped("epsilon delta accounting query_epsilon query_delta key_delta max_query_epsilon"),
        "limits": shaped("max_cells timeout memory threads replay_days"),
        "tables": TABLES,
        "users": named(shaped("epsilon")),
        "other": JUNK,
    },
)


def written(tree: Tree) -> str:
    if isinstance(tree, dict):
        return "{" + ", ".join(f"{in_quotes(key)} = {written(value)}" for key, value in tree.items()) + "}"
    if isinstance(tree, list):
        return "[\n" + ",\n".join(map(written, tree)) + "]"
    return tree


@settings(deadline=None, max_examples=60)
@given(FILES)
def test_junk_gives_problems_and_nothing_else(tmp_path_factory: pytest.TempPathFactory, tree: dict[str, Tree]) -> None:
    text = "\n".join(f"{in_quotes(key)} = {written(value)}" for key, value in tree.items())
    never_raises_anything_else(tmp_path_factory, text.encode("utf-8", "replace"))


@settings(deadline=None, max_examples=60)
@given(st.binary() | st.text("[]{}=.,\"'#\\\n ab1-", max_size=60).map(str.encode))
def test_random_bytes_give_problems_and_nothing_else(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    never_raises_anything_else(tmp_path_factory, data)


def never_raises_anything_else(factory: pytest.TempPathFactory, data: bytes) -> None:
    file = factory.getbasetemp() / "junk.toml"
    file.write_bytes(data)
    with contextlib.suppress(PolicyProblems):
        load(file)


# --- passwords ---


def test_a_password_is_a_verifier_and_is_not_shown(tmp_path: Path) -> None:
    verifier = f"SCRAM-SHA-256$4096:c2FsdA==${'A' * 43}=:{'B' * 43}="
    policy = loaded(tmp_path, HEAD + TABLE + f'[users.alice]\npassword = "{verifier}"\n')
    assert policy.users["alice"].password == verifier
    assert "SCRAM" not in repr(policy) and verifier not in repr(policy)


@pytest.mark.parametrize("password", ['"hunter2"', '"SCRAM-SHA-256$hunter2"', "42", '""'])
def test_what_is_no_verifier_is_reported_and_not_repeated(tmp_path: Path, password: str) -> None:
    problem = the_problem(tmp_path, HEAD + TABLE + f"[users.alice]\npassword = {password}\n")
    assert problem.line == (HEAD + TABLE).count("\n") + 2
    assert "hunter2" not in str(problem) and "42" not in str(problem.message)
