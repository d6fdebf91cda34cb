"""Fixtures for tests that ask a small dataset."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import settings

import dpsql
from dpsql.policy.model import LedgerLocation
from tests import toy
from tests.ledger_places import Server

# How long an example takes says how busy the machine is, and nothing else. The examples are always the same ones;
# with DPSQL_EXAMPLES=1, new ones each time.
settings.register_profile("dpsql", deadline=None, derandomize="DPSQL_EXAMPLES" not in os.environ)
settings.load_profile("dpsql")


@pytest.fixture(scope="session")
def clinic_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toy database, made once; tests work on copies."""
    path = tmp_path_factory.mktemp("clinic") / toy.DATABASE
    toy.create_database(path)
    return path


@pytest.fixture
def clinic(clinic_database: Path, tmp_path: Path) -> Path:
    """The policy file of a fresh copy of the toy dataset."""
    shutil.copy(clinic_database, tmp_path / toy.DATABASE)
    return toy.write_policy(tmp_path)


@pytest.fixture
def begun_ledger(clinic: Path) -> None:
    """The toy dataset has a ledger: one that is new would be told of."""
    dpsql.connect(clinic).close()


@pytest.fixture(scope="session")
def ledger_server() -> Iterator[Server]:
    """A PostgreSQL server that keeps ledgers; the same for all tests that leave it running."""
    with closing(Server()) as server:
        yield server


@pytest.fixture(params=["file", "server"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> LedgerLocation:
    """Where a new ledger may be kept, of each kind."""
    if request.param == "file":
        return tmp_path / "people.ledger"
    server: Server = request.getfixturevalue("ledger_server")
    return server.empty_database()
