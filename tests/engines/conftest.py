"""PostgreSQL servers for the tests of backends, one of each version for all workers together."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from dpsql.compliance.lab import Lab
from grammar_tests.servers import VERSIONS, Server
from tests.engines.pair import Pair


def shared_folder() -> Path | None:
    """One folder for all workers of a run, outside pytest's own, which the server's user may not enter."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    if run is None:
        return None
    folder = Path(tempfile.gettempdir()) / f"dpsql-{run[:12]}"
    folder.mkdir(exist_ok=True)
    return folder


_started: dict[int, Server] = {}


def pytest_sessionfinish() -> None:
    """Workers end without the farewells of Python, so servers are closed here; the last worker deletes them."""
    while _started:
        _started.popitem()[1].close()


@pytest.fixture(scope="session", params=VERSIONS, ids=lambda version: f"postgres{version}")
def server(request: pytest.FixtureRequest) -> Server:
    """Kept until the session ends, for tests of both versions may take turns."""
    version: int = request.param
    if version not in _started:
        _started[version] = Server(version, shared_folder())
    return _started[version]


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with closing(Lab(tmp_path_factory.mktemp("lab"))) as made:
        yield made


@pytest.fixture(scope="session")
def pair(lab: Lab, server: Server) -> Iterator[Pair]:
    with closing(Pair(lab, server)) as made:
        yield made
