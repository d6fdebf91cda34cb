"""pgjdbc, the driver under DBeaver, Metabase and Tableau: one Java program takes all steps."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.server.connection import Address

DRIVER = Path("/usr/share/java/postgresql.jar")  # where Debian's libpostgresql-jdbc-java puts it
EXPECTED = {
    "count": "48",
    "states": "CA|9 NY|9 TX|8",
    "parameter": "13",
    "many uses": "[13]",
    "fetch size": "CA|9 NY|9 TX|8",
    "transaction": "48 48",
    "error": "42703 at 35",
    "several results": "[1, 48, 2]",
    "simple mode": "CA|9 NY|9 TX|8",
    "tables": "[Gifts, holidays, items, kinds, people, remarks, states, surveys, tariffs, visits]",
    "columns": "[code text, region text, population int8]",
    "other metadata": "PostgreSQL 16",
    "statement metadata": "n int8 int4",
    "batch": "10 13",
    "copy": "CA,9 NY,9 TX,8 2 13",
    "query timeout": "57014 13",
    "cancel": "57014 13",
    "instants": "2021-06-30T12:00:00Z 7 2021-07-31T12:00:00Z 6 2021-08-31T12:00:00Z 6 2021-09-30T11:00:00Z 7",
    "refusal": "42501 at 8",
}
ONLY_DPSQL = "refusal"


@pytest.fixture(scope="module")
def steps(served: Address) -> dict[str, str]:
    java = shutil.which("java")
    if java is None or not DRIVER.exists():
        pytest.skip("JDBC was not run: it needs java and libpostgresql-jdbc-java")
    url = f"jdbc:postgresql://{served.host}:{served.port}/{served.database}"
    program = Path(__file__).with_name("Jdbc.java")
    command = [
        java,
        "-XX:TieredStopAtLevel=1",
        "-Duser.timezone=Pacific/Auckland",
        "-cp",
        str(DRIVER),
        str(program),
    ]
    done = subprocess.run(
        [*command, url, served.user, served.password or ""],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(line.split(": ", 1) for line in done.stdout.splitlines())


@pytest.mark.parametrize("step", [step for step in EXPECTED if step != ONLY_DPSQL])
def test_step(steps: dict[str, str], step: str) -> None:
    assert steps[step] == EXPECTED[step]


def test_refusals(steps: dict[str, str], dpsql_only: None) -> None:
    assert steps[ONLY_DPSQL] == EXPECTED[ONLY_DPSQL]
