"""node-postgres, the driver under most JavaScript: one program takes all steps."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.server.connection import Address

PACKAGES = ["pg@8", "pg-cursor@2"]
EXPECTED = {
    "count": "48",
    "states": "CA|9 NY|9 TX|8",
    "fields": "state 25 n 20",
    "parameter": "13",
    "several statements": "1 48 2",
    "named statement": "13 46 13",
    "binary": "13",
    "cursor": "2 1 then 48",
    "transaction": "42703 at 35 then 25P02 at undefined then 48",
    "many at once": "48 48 48",
    "cancel": "57014 then 48",
    "instants": "2021-06-30T12:00:00.000Z 7 2021-07-31T12:00:00.000Z 6 2021-08-31T12:00:00.000Z 6"
    " 2021-09-30T11:00:00.000Z 7 0",
    "pool": "48 48 48 48 48",
    "refusal": "42501 at 8",
}
ONLY_DPSQL = "refusal"


@pytest.fixture(scope="module")
def steps(served: Address, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("node-postgres was not run: it needs node and npm")
    folder = tmp_path_factory.mktemp("node")
    command = [npm, "install", "--prefix", str(folder), "--no-audit", "--no-fund", "--prefer-offline", *PACKAGES]
    try:
        subprocess.run(command, cwd=folder, capture_output=True, timeout=60, check=True)
    except subprocess.SubprocessError:
        pytest.skip("node-postgres was not run: npm could not install it")
    environment = {
        **os.environ,
        "NODE_PATH": str(folder / "node_modules"),
        "TZ": "Pacific/Auckland",
        "PGHOST": served.host,
        "PGPORT": str(served.port),
        "PGUSER": served.user,
        "PGDATABASE": served.database,
        "PGPASSWORD": served.password or "",
    }
    program = Path(__file__).with_name("node.js")
    done = subprocess.run(
        [node, str(program)], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return dict(line.split(": ", 1) for line in done.stdout.splitlines())


@pytest.mark.parametrize("step", [step for step in EXPECTED if step != ONLY_DPSQL])
def test_step(steps: dict[str, str], step: str) -> None:
    assert steps[step] == EXPECTED[step]


def test_refusals(steps: dict[str, str], dpsql_only: None) -> None:
    assert steps[ONLY_DPSQL] == EXPECTED[ONLY_DPSQL]
