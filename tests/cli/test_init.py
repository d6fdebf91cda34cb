"""From somebody else's data to a first private answer, as a new user goes: init, check, edit, check, query."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest
from click.testing import CliRunner, Result

from dpsql.cli import commands

SHOP = """
CREATE TYPE genre AS ENUM ('Rock', 'Jazz', 'Metal');
CREATE TABLE "Employee" ("EmployeeId" INTEGER PRIMARY KEY, "LastName" VARCHAR);
CREATE TABLE "Customer" (
    "CustomerId" INTEGER PRIMARY KEY, "FirstName" VARCHAR, "Email" VARCHAR, "Country" VARCHAR, "Age" INTEGER,
    "Newsletter" BOOLEAN, "Favourite" genre, "SupportRepId" INTEGER REFERENCES "Employee" ("EmployeeId")
);
CREATE TABLE "Invoice" (
    "InvoiceId" INTEGER PRIMARY KEY, "CustomerId" INTEGER REFERENCES "Customer" ("CustomerId"),
    "InvoiceDate" TIMESTAMP, "Total" DECIMAL(10, 2)
);
CREATE TABLE "InvoiceLine" (
    "InvoiceLineId" INTEGER PRIMARY KEY, "InvoiceId" INTEGER REFERENCES "Invoice" ("InvoiceId"), "Quantity" INTEGER
);
CREATE VIEW "Adults" AS SELECT * FROM "Customer" WHERE "Age" >= 18;
INSERT INTO "Employee" VALUES (1, 'Peacock');
INSERT INTO "Customer"
SELECT i, 'F' || i, i || '@example.org', ['Chile', 'Peru', 'Brazil'][1 + i % 3], 17 + i % 61, i % 2 = 0, 'Jazz', 1
FROM range(3000) AS t(i);
INSERT INTO "Invoice"
SELECT i, i % 2000, TIMESTAMP '2021-03-04' + to_hours(CAST(i AS INTEGER)), (i % 187) / 10 FROM range(9000) AS t(i);
"""


def run(*arguments: str) -> Result:
    return CliRunner().invoke(commands, arguments, prog_name="dpsql")


def transcript(*arguments: str) -> list[str]:
    """A command and what it shows, without the noise and the room it takes."""
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    shown = re.sub(r"-?[\d,]+ ±", "N ±", result.stdout)
    shown = re.sub("-{3,}", "--", shown)
    command = " ".join(f'"{part}"' if " " in part else part for part in arguments)
    return [f"$ dpsql {command}", *(re.sub(" {2,}", "  ", line) for line in shown.splitlines())]


def lines(text: str) -> list[str]:
    return text.strip("\n").splitlines()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, in which the commands run."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def shop(folder: Path) -> Path:
    path = folder / "shop.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute(SHOP)
    return path


def edit(policy: Path, *changes: tuple[str, str]) -> None:
    """What an owner does with the marks."""
    text = policy.read_text(encoding="utf-8")
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new, 1)
    policy.write_text(text, encoding="utf-8")


# --- the whole way ---


def test_from_a_database_to_a_first_answer(shop: Path) -> None:
    assert transcript("init", "shop.duckdb") == lines("""
$ dpsql init shop.duckdb
shop.duckdb:
  customer  private, unit "CustomerId" (a table of people)
  invoice  private, unit "CustomerId" (refers to "Customer")
  invoiceline  private, unit by reference (belongs to a person through "Invoice")
  employee  left out: is it public?
  adults  left out: it is a view

wrote dpsql.toml; lines marked TODO, for you to decide: 7
next: read it, fill it in, then run: dpsql check
""")
    policy = shop.with_name("dpsql.toml")
    drafted = policy.read_text(encoding="utf-8")
    assert (
        drafted[drafted.index("[tables.customer]") :]
        == """\
[tables.customer]
unit = "customerid"  # a table of people
[tables.customer.columns]
# firstname    = {}  # left out: may identify a person
# email        = {}  # left out: may identify a person
country      = {}  # or the keys to expect: { values = ["…", "…"] }
age          = {}  # TODO: smallest and largest value to expect, as in { min = 0, max = 100 }
newsletter   = { values = [false, true] }
favourite    = { values = ["Rock", "Jazz", "Metal"] }  # all values of its type
supportrepid = {}  # names a row of "Employee"

[tables.invoice]
unit = "customerid"  # refers to "Customer"
max_rows_per_unit = 1  # TODO: how many rows of one unit shall count?
[tables.invoice.columns]
# invoiceid   = {}  # left out: identifies single rows
invoicedate = {}  # TODO: first and last day to expect, as in { min = 2020-01-01, max = 2029-12-31 }
total       = {}  # TODO: smallest and largest value to expect, as in { min = 0, max = 100 }

[tables.invoiceline]
unit = { via = "invoiceid", table = "invoice", key = "invoiceid" }  # belongs to a person through "Invoice"
max_rows_per_unit = 1  # TODO: how many rows of one unit shall count?
[tables.invoiceline.columns]
# invoicelineid = {}  # left out: identifies single rows
quantity      = {}  # TODO: smallest and largest value to expect, as in { min = 0, max = 100 }

# TODO: is "employee" public? If everybody may see every row, remove the # below.
# It seems to hold people. A policy protects one kind of unit: these would not be protected.
# If each row belongs to one unit, name its column instead: unit = "COLUMN".
# [tables.employee]
# public = true

# "adults" is a view: declare the tables that it reads instead.

# Who may ask. All users together spend the dataset's epsilon.
[users.analyst]
# epsilon = 1.0      # this user's allowance
"""
    )
    edit(
        policy,
        ('{}  # or the keys to expect: { values = ["…", "…"] }', '{ values = ["Brazil", "Chile", "Peru"] }'),
        ("{}  # TODO: smallest", "{ min = 0, max = 110 }  # smallest"),
        ("max_rows_per_unit = 1  # TODO: how", "max_rows_per_unit = 20  # how"),
        ("{}  # TODO: first", "{ min = 2020-01-01, max = 2025-12-31 }  # first"),
    )
    assert transcript("check") == lines("""
$ dpsql check
dpsql.toml: ok, 3 private tables with 8 columns, 0 public tables with 0 columns

customer: unit "customerid", one row of each counts (the database enforces one row); COUNT(*) ±80
  column  type  clamped to  SUM  GROUP BY  COUNT per key
  --  --  --  --  --  --
  country  text  no  3 declared keys  ±80
  age  bigint  0 to 110  ±8,840  111 declared keys  ±80
  newsletter  boolean  no  2 declared keys  ±80
  favourite  text  no  3 declared keys  ±80
  supportrepid  bigint  no min and max  no  keys of about 252 units or more  ±80
  no SUM of country, newsletter, favourite: only numbers can be summed
  no SUM of supportrepid: column "supportrepid" of table "customer" has no declared bounds. Declare min and max for customer.supportrepid in the policy, or write LEAST and GREATEST around it.

invoice: unit "customerid", up to 20 rows of each count (the database enforces no limit); COUNT(*) ±1,607
  column  type  clamped to  SUM  GROUP BY  COUNT per key
  --  --  --  --  --  --
  invoicedate  timestamp  2020-01-01 to 2025-12-31  no  keys of about 382 to 1,705 units or more  ±2,273
  total  numeric(10,2)  no min and max  no  keys of about 382 to 1,705 units or more  ±2,273
  no SUM of invoicedate: only numbers can be summed
  no SUM of total: column "total" of table "invoice" has no declared bounds. Declare min and max for invoice.total in the policy, or write LEAST and GREATEST around it.
  note: rows of "invoice" whose "customerid" is NULL have no owner and do not count

invoiceline: unit "invoiceid → customerid", one row of each counts (the database enforces no limit); COUNT(*) ±80
  column  type  clamped to  SUM  GROUP BY  COUNT per key
  --  --  --  --  --  --
  quantity  bigint  no min and max  no  keys of about 252 units or more  ±80
  no SUM of quantity: column "quantity" of table "invoiceline" has no declared bounds. Declare min and max for invoiceline.quantity in the policy, or write LEAST and GREATEST around it.
  note: rows of "invoiceline" whose "invoiceid" or "customerid" of "invoice" is NULL have no owner and do not count

± is the 95 % margin of the noise at the default price of epsilon 0.1; the total of epsilon 4 pays for 995 such answers
the total protects each single person; for a group of 2: epsilon 8.783, delta 4.299e-05; of 5: epsilon 26.96, delta 0.1351 (dpsql budget --group)

still to decide: 4 lines marked TODO
  dpsql.toml:43: total = {} # TODO: smallest and largest value to expect, as in { min = 0, max = 100 }
  dpsql.toml:47: max_rows_per_unit = 1 # TODO: how many rows of one unit shall count?
  dpsql.toml:50: quantity = {} # TODO: smallest and largest value to expect, as in { min = 0, max = 100 }
  dpsql.toml:52: # TODO: is "employee" public? If everybody may see every row, remove the # below.
""")  # noqa: E501
    assert transcript("query", "SELECT country, COUNT(*) AS customers FROM customer GROUP BY country") == lines("""
$ dpsql query "SELECT country, COUNT(*) AS customers FROM customer GROUP BY country"
country  customers
--  --
Brazil  N ±80
Chile  N ±80
Peru  N ±80
""")


def test_from_a_folder_of_csv_files_to_a_first_answer(folder: Path) -> None:
    exports = folder / "exports"
    exports.mkdir()
    people = "".join(f"{i},Name {i},{20 + i % 50},{i % 3 == 0}\n" for i in range(2000))
    (exports / "Patients.csv").write_text("patient id,full name,age,smoker\n" + people)
    (exports / "lab-results.csv").write_text(
        "patient id,taken,value\n" + "".join(f"{i % 1500},2024-02-{1 + i % 28:02},{i / 100}\n" for i in range(6000))
    )
    (exports / "notes.txt").write_text("not a table\n")
    assert transcript("init", "exports") == lines("""
$ dpsql init exports
imported into exports.duckdb:
  patients  4 columns of Patients.csv
  lab_results  3 columns of lab-results.csv
exports.duckdb:
  patients  private, unit "patient id" (a table of people)
  lab_results  private, unit "patient id" (refers to "patients", by its name)

wrote dpsql.toml; lines marked TODO, for you to decide: 4
next: read it, fill it in, then run: dpsql check
""")
    edit(
        folder / "dpsql.toml",
        ("{}  # TODO: smallest", "{ min = 0, max = 110 }  # smallest"),
        ("max_rows_per_unit = 1  # TODO: how", "max_rows_per_unit = 5  # how"),
        ("{}  # TODO: first", "{ min = 2024-01-01, max = 2024-12-31 }  # first"),
        ("{}  # TODO: smallest", "{ min = 0, max = 100, step = 0.1 }  # smallest"),
    )
    assert transcript("check") == lines("""
$ dpsql check
dpsql.toml: ok, 2 private tables with 4 columns, 0 public tables with 0 columns

patients: unit "patient id", one row of each counts (the database enforces no limit); COUNT(*) ±80
  column  type  clamped to  SUM  GROUP BY  COUNT per key
  --  --  --  --  --  --
  age  bigint  0 to 110  ±8,840  111 declared keys  ±80
  smoker  boolean  no  2 declared keys  ±80
  no SUM of smoker: only numbers can be summed
  note: rows of "patients" whose "patient id" is NULL have no owner and do not count

lab_results: unit "patient id", up to 5 rows of each count (the database enforces no limit); COUNT(*) ±402
  column  type  clamped to  SUM  GROUP BY  COUNT per key
  --  --  --  --  --  --
  taken  date  2024-01-01 to 2024-12-31  no  366 declared keys  ±402
  value  double precision  0 to 100  ±40,182  keys of about 370 to 826 units or more  ±569
  no SUM of taken: only numbers can be summed
  note: rows of "lab_results" whose "patient id" is NULL have no owner and do not count

± is the 95 % margin of the noise at the default price of epsilon 0.1; the total of epsilon 4 pays for 995 such answers
the total protects each single person; for a group of 2: epsilon 8.783, delta 4.299e-05; of 5: epsilon 26.96, delta 0.1351 (dpsql budget --group)
""")  # noqa: E501
    assert transcript("query", "SELECT smoker, COUNT(*) AS people FROM patients GROUP BY smoker") == lines("""
$ dpsql query "SELECT smoker, COUNT(*) AS people FROM patients GROUP BY smoker"
smoker  people
--  --
false  N ±80*
true  N ±80*
""")


def test_from_tpc_h_to_a_first_answer(folder: Path) -> None:
    generator = Path(sys.executable).with_name("tpchgen-cli")
    command = [str(generator), "parquet", "--scale-factor", "0.001", "--output-dir", "tpch"]
    subprocess.run(command, check=True, capture_output=True)
    shown = transcript("init", "duckdb:///tpch", "--suggest-bounds")
    assert shown[11:19] == lines("""
  customer  private, unit "c_custkey" (a table of people)
  orders  private, unit "o_custkey" (refers to "customer", by its name)
  lineitem  private, unit by reference (belongs to a person through "orders")
  nation  left out: is it public?
  part  left out: is it public?
  partsupp  left out: is it public?
  region  left out: is it public?
  supplier  left out: is it public?
""")
    edit(
        folder / "dpsql.toml",
        ("# [tables.nation]\n# public", "[tables.nation]\npublic"),
        ("c_nationkey  = {}", "c_nationkey  = { min = 0, max = 24 }"),
    )
    shown = transcript("check")
    (price,) = (line for line in shown if line.startswith("  o_totalprice  "))
    assert price.startswith("  o_totalprice  numeric(8,2)  0 to 300,000  ±")
    assert "public, every row is visible:" in shown
    answer = transcript(
        "query",
        "SELECT n_name, customers FROM (SELECT c_nationkey, COUNT(*) AS customers FROM customer GROUP BY c_nationkey) c"
        " JOIN nation ON c_nationkey = n_nationkey",
    )
    assert answer[1].split() == ["n_name", "customers"] and len(answer) == 3 + 25


# --- bounds from the data ---


def test_no_bound_comes_from_the_data_unasked(shop: Path) -> None:
    assert run("init", "shop.duckdb").exit_code == 0
    assert "min =" not in re.sub("#.*", "", shop.with_name("dpsql.toml").read_text(encoding="utf-8"))


def test_suggested_bounds_are_round_and_said_to_reveal(shop: Path) -> None:
    result = run("init", "shop.duckdb", "--suggest-bounds")
    assert "--suggest-bounds read the data: the extremes of 3 columns" in result.stdout
    assert "analysts can see them" in result.stdout
    text = shop.with_name("dpsql.toml").read_text(encoding="utf-8")
    for line in (
        "age          = { min = 10, max = 80 }  # TODO: confirm; suggested from the data",
        "total       = { min = 0, max = 20 }  # TODO: confirm; suggested from the data",
        "invoicedate = { min = 2021-01-01, max = 2022-12-31 }  # TODO: confirm; suggested from the data",
        "max_rows_per_unit = 5  # TODO: confirm; suggested from the data",
    ):
        assert line in text.splitlines()
    assert "as asked, extremes of the data" in text
    assert run("check").exit_code == 0


def test_strange_extremes_are_no_bounds(folder: Path) -> None:
    with duckdb.connect("strange.duckdb") as connection:
        connection.execute("""
            CREATE TABLE people (
                id INTEGER PRIMARY KEY, nan DOUBLE, inf DOUBLE, nothing INTEGER, huge BIGINT, late DATE,
                zoned TIMESTAMPTZ, small DECIMAL(5, 3), far DATE
            );
            INSERT INTO people VALUES
                (1, 'nan', 'inf', NULL, 1, 'infinity', '2020-05-05 12:00:00+02', 0.001, DATE '20000-01-01'),
                (2, 3.5, 2.5, NULL, 9223372036854775807, '2020-05-05', NULL, 0.002, NULL);
        """)
    assert run("init", "strange.duckdb", "--suggest-bounds").exit_code == 0
    found = [line for line in Path("dpsql.toml").read_text(encoding="utf-8").splitlines() if " = { min = " in line]
    active = [" ".join(line.split("#")[0].split()) for line in found if not line.startswith("#")]
    assert [line for line in active if not line.endswith("{}")] == [
        "nan = { min = 3.5, max = 4 }",
        "inf = { min = 2.5, max = 3 }",
        "late = { min = 2020-01-01, max = 2020-12-31 }",
        "zoned = { min = 2020-01-01, max = 2020-12-31 }",
        "small = { min = 0.001, max = 0.002 }",
    ]
    assert run("check").exit_code == 0


# --- what is there already stays ---


def test_an_existing_policy_is_not_written_over(shop: Path) -> None:
    policy = shop.with_name("dpsql.toml")
    policy.write_text("mine")
    result = run("init", "shop.duckdb")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith('error: "dpsql.toml" already exists ')
    assert policy.read_text() == "mine"
    assert run("init", "shop.duckdb", "--output", "other.toml").exit_code == 0
    assert run("check", "other.toml").exit_code == 0


def test_an_existing_import_is_not_written_over(folder: Path) -> None:
    (folder / "data").mkdir()
    (folder / "data" / "people.csv").write_text("id,age\n1,2\n")
    (folder / "data.duckdb").write_text("mine")
    result = run("init", "data")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "already exists" in result.stderr and "run: dpsql init " in result.stderr
    assert (folder / "data.duckdb").read_text() == "mine"
    assert not (folder / "dpsql.toml").exists()


def test_a_failed_import_leaves_nothing_behind(folder: Path) -> None:
    (folder / "data").mkdir()
    (folder / "data" / "people.csv").write_text("id,age\n1,2\n")
    (folder / "data" / "visits.parquet").write_bytes(b"no parquet")
    result = run("init", "data/")
    assert (result.exit_code, result.stdout) == (1, "")
    assert 'visits.parquet" cannot be read (log id ' in result.stderr
    assert [path.name for path in folder.iterdir()] == ["data"]


def test_two_files_cannot_become_one_table(folder: Path) -> None:
    (folder / "people.csv").write_text("id,age\n1,2\n")
    (folder / "People.tsv").write_text("id\tage\n1\t2\n")
    result = run("init", ".", "--output", "dpsql.toml")
    assert result.exit_code == 1
    assert '"People.tsv" and "people.csv" would both become table "people"' in result.stderr


# --- what cannot be drafted ---


@pytest.mark.parametrize(
    ("database", "message"),
    [
        ("missing.duckdb", 'error: there is no database at "missing.duckdb"'),
        ("duckdb:///missing.duckdb", 'error: there is no database at "missing.duckdb"'),
        ("text.duckdb", 'error: the database at "text.duckdb" cannot be opened'),
        ("empty.duckdb", 'error: there is no table in "empty.duckdb"'),
        ("files", 'error: there is no parquet or CSV file in "files"'),
        ("postgresql://owner:secret@:0/db", "error: the PostgreSQL database cannot be reached"),
        ("postgresql://owner:secret@host:port/db", "error: the PostgreSQL database cannot be reached"),
        ("mysql://owner:secret@host/db", "error: no engine is installed for the scheme of this address"),
        ("duckdb://owner:secret@host/db", "error: not the address of a database"),
    ],
)
def test_what_is_no_database_is_refused(folder: Path, database: str, message: str) -> None:
    (folder / "text.duckdb").write_text("This is a text, and no database at all. " * 500)
    duckdb.connect("empty.duckdb").close()
    (folder / "files").mkdir()
    result = run("init", database)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(message)
    assert "hint: " in result.stderr and "secret" not in result.stderr
    assert not (folder / "dpsql.toml").exists()


def test_a_policy_that_cannot_be_written_is_refused(shop: Path) -> None:
    result = run("init", "shop.duckdb", "--output", "nowhere/dpsql.toml")
    assert result.exit_code == 1
    assert result.stderr.startswith('error: there is no folder "nowhere"')


def test_a_database_elsewhere_is_found_from_the_policy(shop: Path) -> None:
    (shop.parent / "policies").mkdir()
    assert run("init", "shop.duckdb", "--output", "policies/shop.toml").exit_code == 0
    result = run("check", "policies/shop.toml")
    assert (result.exit_code, result.stderr) == (0, "")


def test_a_database_without_people_is_left_to_its_owner(folder: Path) -> None:
    with duckdb.connect("weather.duckdb") as connection:
        connection.execute("CREATE TABLE readings (taken TIMESTAMP, celsius DOUBLE)")
    result = run("init", "weather.duckdb")
    assert result.exit_code == 0
    assert "no column seems to identify a person: decide whose the rows of each table are\n" in result.stdout
    result = run("check")
    assert result.exit_code == 1
    assert result.stderr.startswith("dpsql.toml: no table is declared\n  write: [tables.NAME]\n")
