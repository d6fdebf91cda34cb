"""The toy clinic: clean data within all declared bounds, and dirty data that breaks them.

On the clean data PostgreSQL and dpsql without noise must agree: values lie on the declared steps, nobody has more
rows or groups than declared, and every unknown key is shared by enough people to pass its threshold.
"""

from __future__ import annotations

import re
from datetime import date, datetime, timedelta

import duckdb

from dpsql.compliance.data import data

TOY = data("toy")
POLICIES = data("policies")
PEOPLE = 48

# The column that identifies the owner of a row.
OWNERS = {"people": "id", "visits": "patient_id", "surveys": "person_id", "Gifts": "giver"}
# Tables with units by reference: each row with its owner, NULL for rows without one.
OWNED_BY_REFERENCE = {
    "items": """SELECT i.*, v.patient_id AS owner_of_row FROM main.items AS i
        LEFT JOIN main.visits AS v ON v.id = i.visit_id""",
    "remarks": """SELECT r.*, v.patient_id AS owner_of_row FROM main.remarks AS r
        LEFT JOIN main.items AS i ON (i.visit_id, i.line) = (r.visit, r.line)
        LEFT JOIN main.visits AS v ON v.id = i.visit_id""",
}

Cell = bool | int | float | str | date | datetime | None
Row = tuple[Cell, ...]


def schema() -> str:
    return (TOY / "schema.sql").read_text()


def wide(tables: str) -> str:
    """The tables of the policies with limits that cut nothing off, and NULL as a key everywhere."""
    tables = re.sub(r"^(max_rows_per_unit|max_groups_per_unit|tight) = .*\n", "", tables, flags=re.MULTILINE)
    tables = re.sub(r"^(unit = .*)$", r"\1\nmax_rows_per_unit = 400\ntight = true", tables, flags=re.MULTILINE)
    return re.sub(r"^(\w+ = \{)(.*[a-z].*|)\}$", _nullable, tables, flags=re.MULTILINE)


def bounded(tables: str) -> str:
    """The same with bounds on key columns, narrower than their values."""
    tables = re.sub(r"^id = \{\}$", "id = { min = 3, max = 60 }", tables, flags=re.MULTILINE)
    return tables.replace("[tables.items.columns]\n", "[tables.items.columns]\nvisit_id = { min = 3, max = 60 }\n")


TABLES = {"wide": wide, "bounded": bounded}


def policy_text(policy: str) -> str:
    """One of the policies, with the tables that it declares."""
    tables = TABLES.get(policy, str)((POLICIES / "tables.toml").read_text())
    return "\n".join(((POLICIES / f"{policy}.toml").read_text(), tables))


def dirty() -> str:
    """Statements that fill the private tables, in DuckDB's SQL."""
    return (TOY / "dirty.sql").read_text()


def clean() -> dict[str, list[Row]]:
    """The rows of the private tables."""
    return {
        "people": [_person(i) for i in range(1, PEOPLE + 1)],
        "visits": _visits(),
        "surveys": [_survey(i) for i in range(1, PEOPLE + 1) if i % 8],
        "items": _items(),
        "remarks": [
            (visit, line, ["good", "bad"][number % 2], number * 7 % 90)
            for number, (visit, line, *_) in enumerate(_items())
            if number % 5
        ],
        "Gifts": [_gift(i, n) for i in range(1, PEOPLE + 1) if i % 3 == 0 for n in range(1 + i % 5)],
        "secrets": [(1, 1)],
    }


def fill_clean(connection: duckdb.DuckDBPyConnection) -> None:
    connection.execute(schema())
    for table, rows in clean().items():
        marks = ", ".join("?" * len(rows[0]))
        connection.executemany(f'INSERT INTO "{table}" VALUES ({marks})', rows)


def fill_dirty(connection: duckdb.DuckDBPyConnection) -> None:
    connection.execute(schema())
    connection.execute(dirty())


def units(connection: duckdb.DuckDBPyConnection) -> list[int]:
    """Everyone who has a row anywhere."""
    parts = [f'SELECT "{owner}" AS unit FROM "{table}"' for table, owner in OWNERS.items()]
    sql = f"SELECT DISTINCT unit FROM ({' UNION ALL '.join(parts)}) WHERE unit IS NOT NULL ORDER BY unit"
    return [unit for (unit,) in connection.execute(sql).fetchall()]


def _nullable(line: re.Match[str]) -> str:
    if line[1].startswith("unit") or "nullable_key" in line[2]:
        return line[0]
    rest = re.sub(r",? tight = \w+", "", line[2].strip())
    return f"{line[1]} {rest}{', ' if rest else ''}nullable_key = true }}"


# --- rows: computed from the number of the person, so that they are the same everywhere ---


def _person(i: int) -> Row:
    age = 18 + i * 37 % 73
    return (
        i,
        f"person {i}",
        age,
        "fm"[i % 2],
        ["CA", "NY", "TX"][i % 3],
        ["Lima", "Oslo", "Paris", None][i // 2 % 4],
        None if i % 12 == 5 else float(i * 7919 % 120_000),
        # A multiple of a quarter, exact in binary: sums agree in every type.
        None if i % 16 == 3 else 150 + i * 13 % 45 + i % 4 * 0.25,
        None if i % 10 == 7 else i % 4,
        (i * 31 % 41 - 20) * 1000,
        i * 2.5,
        [True, False, None][i // 4 % 3],
        date(2018, 1, 1) + timedelta(days=i * 53),
        datetime(2024 - age, 1, 1) + timedelta(days=i * 7, hours=i % 24, minutes=i % 60),
        ["fine", "needs care", "A_b%c", "", "Über"][i % 5],
    )


def _visits() -> list[Row]:
    rows: list[Row] = []
    for person in range(1, PEOPLE + 1):
        for n in range(person % 7):
            number = len(rows) + 1
            day = date(2021, 1, 1) + timedelta(days=number * 97 % 730)
            rows.append(
                (
                    number,
                    person,
                    ["checkup", "lab", "surgery"][number % 3],
                    ["north", "south", "east"][(person + n % 2) % 3],
                    None if number % 17 == 0 else 10 + number * 29 % 900 + number % 4 * 0.25,
                    None if number % 19 == 0 else number * 7 % 81 / 4 - 10,
                    5 + number * 23 % 200,
                    None if number % 13 == 0 else number % 4 == 0,
                    day,
                    datetime(day.year, day.month, day.day, 8 + number % 9, number % 60),
                )
            )
    return rows


def _items() -> list[Row]:
    rows: list[Row] = []
    for visit in range(1, len(_visits()) + 1):
        for line in range(1, 1 + visit % 3):
            number = len(rows) + 1
            article = ["pill", "plaster", "syringe"][number % 3]
            quantity = None if number % 11 == 0 else number % 5
            # Multiples of a quarter, exact in every type.
            rows.append((visit, line, article, 1 + number * 13 % 80 + number % 4 * 0.25, quantity, number % 17 * 0.25))
    return rows


def _survey(i: int) -> Row:
    return (i, 1 + i * 3 % 5, None if i % 9 == 4 else i % 48 / 2, ["yes", "no", "maybe"][i % 3])


def _gift(giver: int, n: int) -> Row:
    return (giver, (giver * 17 + n * 101) % 500, ["book", "toy"][n % 2], ["corner", "market"][(giver // 3 + n) % 2])
