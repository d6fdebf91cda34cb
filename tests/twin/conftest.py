"""A twin of the toy clinic, made once, and folders that an unprivileged user can reach."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from psycopg.rows import TupleRow

from dpsql.answering.open_dataset import check
from dpsql.policy.model import Catalog
from dpsql.server.twin import Twin, start_twin
from tests import toy
from tests.twin.reach import connect

Connection = psycopg.Connection[TupleRow]
ODD_NAME = 'Bób "the x" 雪'
EMPTY = Catalog(tables={}, max_cells=1, fingerprint="")
USERS = ("alice", "bob", ODD_NAME)


def new_state() -> Path:
    """pytest's own folders cannot be entered by the user that the server runs as when tests run as root."""
    folder = Path(tempfile.mkdtemp(prefix="twin"))
    folder.chmod(0o711)
    return folder


@pytest.fixture
def state() -> Iterator[Path]:
    """A folder with nothing in it."""
    folder = new_state()
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def used_state() -> Iterator[Path]:
    folder = new_state()
    start_twin(folder, EMPTY, ["alice"]).stop()
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def stopped(state: Path, used_state: Path) -> Path:
    """The state of a twin of nothing that was used before: starting it is quick."""
    subprocess.run(["cp", "-a", f"{used_state}/.", state], check=True)
    return state


@pytest.fixture(scope="session")
def catalog(clinic_database: Path) -> Catalog:
    return check(toy.write_policy(clinic_database.parent)).catalog


@pytest.fixture(scope="session")
def twin(catalog: Catalog) -> Iterator[Twin]:
    folder = new_state()
    running = start_twin(folder, catalog, USERS)
    yield running
    running.stop()
    shutil.rmtree(folder)


@pytest.fixture
def alice(twin: Twin) -> Iterator[Connection]:
    with closing(connect(twin, "alice")) as connection:
        yield connection


@pytest.fixture
def admin(twin: Twin) -> Iterator[Connection]:
    with closing(twin.admin()) as connection:
        yield connection
