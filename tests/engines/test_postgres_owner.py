"""From a PostgreSQL database to a first answer: init, check, query; what is refused, and what is only warned of."""

from __future__ import annotations

import re
import uuid
from datetime import date
from fractions import Fraction
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import dpsql
from dpsql.cli import commands
from dpsql.engines.postgres.connections import without_password
from dpsql.engines.postgres.survey import allowed_range, allowed_values
from dpsql.errors import SchemaChanged
from grammar_tests.servers import Server

SETUP = """
CREATE TYPE size AS ENUM ('small', 'large');
CREATE DOMAIN percent AS integer CHECK (VALUE BETWEEN 0 AND 100);
CREATE TABLE patients (
    id integer PRIMARY KEY,
    age integer CHECK (age BETWEEN 0 AND 120),
    state varchar(2) CHECK (state IN ('CA', 'NY', 'TX')),
    income double precision,
    fitness percent,
    built size,
    joined date CHECK (joined >= '2018-01-01' AND joined < '2030-01-01'),
    email text
);
COMMENT ON TABLE patients IS 'Everybody we treat';
COMMENT ON COLUMN patients.income IS E'per year,\\nbefore tax  # TODO: "net"';
INSERT INTO patients SELECT i, i % 100, (ARRAY['CA', 'NY', 'TX'])[1 + i % 3], (i * 37) % 100000, i % 101,
    (ARRAY['small', 'large']::size[])[1 + i % 2], date '2020-01-01' + i % 1000 FROM generate_series(1, 600) AS i;
CREATE TABLE visits (
    id integer PRIMARY KEY, patient_id integer REFERENCES patients, fee numeric(8, 2), seen timestamptz
);
INSERT INTO visits SELECT i, 1 + i % 300, (i % 300) / 10.0, timestamptz '2021-01-01' + i * interval '1 hour'
FROM generate_series(1, 1500) AS i;
CREATE TABLE states (code text PRIMARY KEY, region text);
INSERT INTO states VALUES ('CA', 'west'), ('NY', 'east'), ('TX', 'south');
CREATE VIEW adults AS SELECT * FROM patients WHERE age > 17;
CREATE TABLE hidden (id integer);
ALTER TABLE hidden ENABLE ROW LEVEL SECURITY;
"""


class Clinic:
    def __init__(self, server: Server, folder: Path) -> None:
        self.server, self.folder = server, folder
        self.name = f"clinic_{uuid.uuid4().hex[:8]}"
        self.role = f"role_{self.name}"
        server.create_database(self.name)
        self.change(SETUP)
        self.change(f"CREATE ROLE {self.role} LOGIN; GRANT SELECT ON ALL TABLES IN SCHEMA public TO {self.role}")
        self.url = server.url(self.name, user=self.role)

    def change(self, sql: str) -> None:
        with self.server.connect(self.name) as connection:
            connection.execute(sql)

    def edit(self, before: str, after: str) -> None:
        policy = self.folder / "dpsql.toml"
        text = policy.read_text()
        assert before in text
        policy.write_text(text.replace(before, after))


@pytest.fixture
def clinic(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clinic:
    monkeypatch.chdir(tmp_path)
    return Clinic(server, tmp_path)


def run(*words: str) -> Result:
    return CliRunner().invoke(commands, words, prog_name="dpsql")


def test_from_a_database_to_a_first_answer(clinic: Clinic) -> None:
    secret = clinic.url.replace(f"{clinic.role}@", f"{clinic.role}:s3cret@")
    drafted = run("init", secret)
    assert drafted.exit_code == 0, drafted.output
    text = Path("dpsql.toml").read_text()
    assert "s3cret" not in text + drafted.output
    assert "PGPASSWORD" in drafted.output
    assert f'ledger = "{clinic.name}.ledger"' in text
    for line in (
        "# Everybody we treat",
        'unit = "id"  # a table of people',
        "age     = { min = 0, max = 120 }  # from its CHECK",
        'state   = { values = ["CA", "NY", "TX"] }  # its CHECK allows no others',
        '# per year, before tax # TODO \\"net\\"',
        "fitness = { min = 0, max = 100 }  # from its CHECK",
        'built   = { values = ["small", "large"] }  # all values of its type',
        "joined  = { min = 2018-01-01, max = 2030-01-01 }  # from its CHECK",
        '# "adults" is a view: declare the tables that it reads instead.',
    ):
        assert line in text, text
    assert '# "hidden" has row-level security' in text
    checked = run("check")
    assert checked.exit_code == 0, checked.output
    assert "warnings" not in checked.output
    assert run("query", "SELECT COUNT(*) FROM patients").exit_code == 1  # nobody said that a ledger may be made
    asked = run("query", "--new-ledger", "SELECT state, COUNT(*), AVG(age) FROM patients GROUP BY state")
    assert asked.exit_code == 0, asked.output
    assert asked.output.count("±") >= 3


def test_partitions_and_their_indexes_are_no_tables_of_their_own(clinic: Clinic) -> None:
    clinic.change("CREATE TABLE calls (id integer, at date) PARTITION BY RANGE (at); CREATE INDEX ON calls (at)")
    clinic.change("CREATE TABLE calls_2021 PARTITION OF calls FOR VALUES FROM ('2021-01-01') TO ('2022-01-01')")
    drafted = run("init", clinic.url)
    assert drafted.exit_code == 0, drafted.output
    assert re.search(r"calls_2021 +left out: it is a part of another table", drafted.output)
    assert "calls_2021_at_idx" not in drafted.output


def test_extremes_are_suggested_from_the_data(clinic: Clinic) -> None:
    assert run("init", clinic.url, "--suggest-bounds").exit_code == 0
    text = Path("dpsql.toml").read_text()
    assert "income  = { min = 0, max = 25_000 }" in text, text
    assert "seen = { min = 2021-01-01, max = 2021-12-31 }" in text
    assert "max_rows_per_unit = 5  # TODO: confirm" in text


def test_check_warns_of_a_role_that_can_do_more(clinic: Clinic) -> None:
    assert run("init", clinic.url).exit_code == 0
    clinic.change(f"GRANT UPDATE ON patients TO {clinic.role}")
    checked = run("check")
    assert checked.exit_code == 0
    assert f'role "{clinic.role}" may change "public.patients"' in checked.output


def test_check_refuses_what_row_security_hides(clinic: Clinic) -> None:
    assert run("init", clinic.url).exit_code == 0
    clinic.change("ALTER TABLE visits ENABLE ROW LEVEL SECURITY")
    checked = run("check")
    assert checked.exit_code == 1
    assert '"visits" has row-level security' in checked.output


def test_check_says_which_right_is_missing(clinic: Clinic) -> None:
    assert run("init", clinic.url).exit_code == 0
    clinic.change(f"REVOKE SELECT ON visits FROM {clinic.role}")
    assert f"GRANT SELECT ON public.visits TO {clinic.role}" in run("check").output


def test_answers_stop_when_a_table_changes_and_only_the_first_is_paid(clinic: Clinic) -> None:
    assert run("init", clinic.url).exit_code == 0
    with dpsql.connect("dpsql.toml", user="analyst", new_ledger=True) as connection:
        cursor = connection.cursor()
        cursor.execute("SELECT COUNT(*) FROM patients")
        before = cursor.fetchall()
        clinic.change("DROP VIEW adults; ALTER TABLE patients ALTER age TYPE bigint")
        with pytest.raises(SchemaChanged) as caught:
            cursor.execute("SELECT AVG(age) FROM patients")
        assert caught.value.sqlstate == "55000"
        spent = connection.cursor()
        with pytest.raises(SchemaChanged):
            cursor.execute("SELECT SUM(age) FROM patients")
        spent.execute("SELECT COUNT(*) FROM patients")
        assert spent.fetchall() == before  # a stored answer is still an answer
    with dpsql.connect("dpsql.toml", user="analyst") as connection:
        cursor = connection.cursor()
        cursor.execute("SELECT AVG(age) FROM patients")
        assert cursor.fetchone() is not None


def test_a_public_table_joins_what_was_released(clinic: Clinic) -> None:
    assert run("init", clinic.url).exit_code == 0
    clinic.edit("# [tables.states]\n# public = true", "[tables.states]\npublic = true")
    with dpsql.connect("dpsql.toml", user="analyst", new_ledger=True) as connection:
        cursor = connection.cursor()
        cursor.execute(
            "SELECT s.region, p.n FROM (SELECT state, COUNT(*) AS n FROM patients GROUP BY state) AS p"
            " JOIN states AS s ON s.code = p.state ORDER BY 1"
        )
        assert [row[0] for row in cursor.fetchall()] == ["east", "south", "west"]


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgresql://ann@db/clinic", ("postgresql://ann@db/clinic", "clinic")),
        (
            "postgresql://ann:s3@db:5433/clinic?sslmode=require",
            ("postgresql://ann@db:5433/clinic?sslmode=require", "clinic"),
        ),
        ("postgresql:///clinic?host=/run/pg&password=s3", ("postgresql:///clinic?host=/run/pg", "clinic")),
        ("postgresql://ann:s3@db", ("postgresql://ann@db", "ann")),
    ],
)
def test_a_password_is_left_out_of_what_is_written(url: str, expected: tuple[str, str]) -> None:
    assert without_password(url) == expected


@pytest.mark.parametrize(
    ("checks", "expected"),
    [
        (["((age >= 0) AND (age <= 120))"], (0, 120)),
        (["(age > 0)", "(age < 5)"], (0, 5)),
        (["((price >= (0)::numeric) AND (price <= 99.5))"], (0, Fraction(199, 2))),
        (["((x >= ('-5'::integer)::double precision) AND (x <= (5)::double precision))"], (-5, 5)),
        (['(("Odd Name" >= 1) AND ("Odd Name" <= 2))'], (1, 2)),
        (["((d >= '2020-01-01'::date) AND (d <= '2020-12-31'::date))"], (date(2020, 1, 1), date(2020, 12, 31))),
        (["((VALUE >= 0) AND (VALUE <= 100))"], (0, 100)),
        (["(age >= 0)"], None),
        (["((age >= 0) OR (age <= 120))"], None),
        (["((age >= 0) AND (age <= length(name)))"], None),
        (["((age >= 120) AND (age <= 0))"], None),
    ],
)
def test_ranges_of_checks_are_understood(checks: list[str], expected: object) -> None:
    assert allowed_range(checks) == expected


@pytest.mark.parametrize(
    ("check", "expected"),
    [
        ("(state = ANY (ARRAY['CA'::text, 'O''Hara'::text]))", ("CA", "O'Hara")),
        ("((state)::text = ANY ((ARRAY['CA'::character varying, 'NY'::character varying])::text[]))", ("CA", "NY")),
        ("((state = 'a'::text) OR (state = 'b'::text))", None),
        ("(state <> ALL (ARRAY['x'::text]))", None),
    ],
)
def test_lists_of_checks_are_understood(check: str, expected: tuple[str, ...] | None) -> None:
    assert allowed_values([check]) == expected
