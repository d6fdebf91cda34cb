"""The demo's synthetic clinic: its data, written by DuckDB, and a commented policy.

The data are the same every time: each value is a hash of its row number, not a random draw. They are as messy as real
data: ages of 999, fees of a million, visits in 1900, NULLs, and a few patients with hundreds of visits.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import duckdb

from dpsql.errors import OperationalError

DATABASE = "clinic.duckdb"
POLICY = "dpsql.toml"
PATIENTS = 120_000

_TOWNS = 600

_DATA = f"""
-- Draw k of row i: uniform on (0, 1), and normal with mean 0 and deviation 1.
CREATE TEMP MACRO uniform(i, k) AS (CAST(hash(i * 64 + k) >> 11 AS DOUBLE) + 5e-1) / 9007199254740992e0;
CREATE TEMP MACRO normal(i, k) AS sqrt(-2 * ln(uniform(i, k))) * cos(2 * pi() * uniform(i, k + 32));

CREATE TABLE regions (code VARCHAR PRIMARY KEY, name VARCHAR NOT NULL, inhabitants INTEGER NOT NULL);
INSERT INTO regions VALUES
    ('N', 'North', 1_240_000), ('E', 'East', 2_910_000), ('S', 'South', 2_080_000), ('W', 'West', 1_570_000),
    ('I', 'Islands', 180_000);

CREATE TABLE hospitals (id INTEGER PRIMARY KEY, name VARCHAR NOT NULL, region VARCHAR NOT NULL, beds INTEGER NOT NULL);
INSERT INTO hospitals VALUES
    (1, 'Royal East', 'E', 980), (2, 'Westwood', 'W', 610), (3, 'Harbour', 'S', 560), (4, 'Saint Agnes', 'N', 420),
    (5, 'Mill Lane', 'E', 310), (6, 'Southfield', 'S', 240), (7, 'Northgate', 'N', 150), (8, 'Lighthouse', 'I', 60);

CREATE TABLE patients (
    id INTEGER PRIMARY KEY, age INTEGER, sex VARCHAR, region VARCHAR, town VARCHAR, income DOUBLE, insured BOOLEAN,
    joined DATE
);
INSERT INTO patients
SELECT
    i,
    CASE WHEN odd < 0.02 THEN NULL WHEN odd > 0.9995 THEN 999
         ELSE CAST(greatest(0, least(104, 41 + 22 * normal(i, 2))) AS INTEGER) END,
    CASE WHEN sex < 0.505 THEN 'f' WHEN sex < 0.985 THEN 'm' END,
    CASE WHEN region < 0.16 THEN 'N' WHEN region < 0.52 THEN 'E' WHEN region < 0.78 THEN 'S'
         WHEN region < 0.975 THEN 'W' ELSE 'I' END,
    list_extract(['Ash', 'Black', 'Bridge', 'Clay', 'Cold', 'Deer', 'East', 'Elm', 'Fair', 'Glen', 'Hart', 'Holly',
                  'Kings', 'Long', 'Mill', 'New', 'North', 'Oak', 'Ox', 'Raven', 'Sand', 'Stone', 'Win', 'Wolf',
                  'Wood'], 1 + town % 25)
        || list_extract(['ford', 'ton', 'ham', 'bury', 'field', 'wick', 'mouth', 'stead', 'ley', 'worth', 'bridge',
                         'dale', 'gate', 'haven', 'hill', 'port', 'pool', 'well', 'cliff', 'marsh', 'moor', 'shaw',
                         'side', 'thorpe'], 1 + town // 25),
    CASE WHEN rich < 0.06 THEN NULL WHEN rich > 0.9998 THEN 1e9 ELSE round(exp(10.4 + 0.55 * normal(i, 4)), 2) END,
    CASE WHEN insured < 0.99 THEN insured < 0.86 END,
    DATE '2016-01-01' + CAST(floor(3650 * sqrt(uniform(i, 6))) AS INTEGER)
FROM (
    SELECT i, uniform(i, 1) AS odd, uniform(i, 3) AS rich, uniform(i, 5) AS insured, uniform(i, 7) AS sex,
           uniform(i, 8) AS region,
           -- A few large towns and many small ones.
           CAST(floor({_TOWNS} * pow(uniform(i, 9), 3)) AS INTEGER) AS town
    FROM range(1, {PATIENTS} + 1) AS numbers(i)
);

CREATE TABLE visits (
    id INTEGER, patient_id INTEGER, hospital_id INTEGER, department VARCHAR, fee DECIMAL(10, 2), seen TIMESTAMP
);
INSERT INTO visits
SELECT
    id,
    i,
    1 + CAST(floor(8 * pow(uniform(id, 1), 1.5)) AS INTEGER),
    CASE WHEN department < 0.38 THEN 'general' WHEN department < 0.58 THEN 'emergency'
         WHEN department < 0.72 THEN 'surgery' WHEN department < 0.84 THEN 'paediatrics'
         WHEN department < 0.93 THEN 'cardiology' WHEN department < 0.98 THEN 'oncology' END,
    CASE WHEN odd < 0.03 THEN NULL WHEN odd < 0.04 THEN -25.00 WHEN odd > 0.9999 THEN 1_000_000.00
         ELSE CAST(round(exp(4.1 + 0.7 * normal(id, 4)), 2) AS DECIMAL(10, 2)) END,
    CASE WHEN seen < 0.0005 THEN TIMESTAMP '1900-01-01'
         ELSE TIMESTAMP '2022-01-01' + to_seconds(CAST(floor(126_230_400 * seen) AS BIGINT)) END
FROM (
    SELECT i, id, uniform(id, 2) AS department, uniform(id, 3) AS odd, uniform(id, 5) AS seen
    FROM (
        -- Most patients come now and then; one in a thousand comes all the time.
        SELECT i, unnest(range(i * 1000, i * 1000 + CASE
                   WHEN uniform(i, 10) < 0.001 THEN 200 + CAST(floor(200 * uniform(i, 11)) AS INTEGER)
                   ELSE CAST(floor(-4 * ln(uniform(i, 11))) AS INTEGER) END)) AS id
        FROM range(1, {PATIENTS} + 1) AS numbers(i)
    )
);
"""

_POLICY = f"""\
# A policy declares who is protected, which values columns have, and how much all answers together may reveal.
# `dpsql check` finds the mistakes in it.

[database]
url = "duckdb:///{DATABASE}"   # beside this file

[privacy]
epsilon = 4.0                  # the total for all answers, ever
delta = 1e-6                   # a part of it pays for keys that are not declared, such as towns
query_epsilon = 0.25           # the default price of a query

# One row per patient: the patient is the unit that dpsql protects, with all rows.
[tables.patients]
unit = "id"
[tables.patients.columns]
age     = {{ min = 0, max = 110 }}                        # an age of 999 counts as 110
sex     = {{ values = ["f", "m"] }}                       # declared keys: all are shown, at no extra price
region  = {{ values = ["N", "E", "S", "W", "I"] }}
town    = {{}}                                            # keys not declared: towns with few patients are suppressed
income  = {{ min = 0, max = 200_000, step = 1 }}          # values beyond the bounds are clamped
insured = {{}}
joined  = {{ min = 2016-01-01, max = 2025-12-31 }}

# Many rows per patient, of which at most 20 count. A higher limit needs more noise, a lower one loses more visits.
[tables.visits]
unit = "patient_id"
max_rows_per_unit = 20
[tables.visits.columns]
hospital_id = {{ min = 1, max = 8 }}
department  = {{ values = ["general", "emergency", "surgery", "paediatrics", "cardiology", "oncology"] }}
fee         = {{ min = 0, max = 500 }}
seen        = {{ min = 2022-01-01, max = 2025-12-31 }}

# Public tables belong to no unit: they are read exactly.
[tables.hospitals]
public = true

[tables.regions]
public = true

# A user has an allowance, a part of the total.
[users.analyst]
epsilon = 2.0
"""


def write_demo(folder: Path) -> bool:
    """Write the dataset and its policy. Returns False, and changes nothing, if they exist already.

    The ledger is beside the data and stays with it: what was spent stays spent.
    """
    database, policy = folder / DATABASE, folder / POLICY
    if database.exists() and policy.exists():
        return False
    if database.exists() or policy.exists():
        raise OperationalError(
            f'"{folder}" exists and is not a demo', hint="Choose a folder that does not exist yet: dpsql demo FOLDER"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        policy.write_text(_POLICY, "utf-8")
        _write_database(database)
    except BaseException as error:
        with suppress(OSError):
            policy.unlink()
        if isinstance(error, OSError | duckdb.Error):
            raise OperationalError(
                f'the demo cannot be written to "{folder}"',
                hint="Choose a folder that can be written to and has 50 MB of free space: dpsql demo FOLDER",
            ) from error
        raise
    return True


def _write_database(path: Path) -> None:
    """Write to a temporary name first, so that an interrupted run leaves nothing that looks finished."""
    unfinished = path.with_name(f"{path.name}.unfinished")
    try:
        unfinished.unlink(missing_ok=True)
        with duckdb.connect(str(unfinished)) as connection:
            connection.execute(_DATA)
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
