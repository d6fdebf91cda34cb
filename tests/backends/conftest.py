"""PostgreSQL servers for the tests of backends, one of each version for all workers together."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from grammar_tests.servers import VERSIONS, Server


def shared_folder(factory: pytest.TempPathFactory) -> Path:
    """One folder for all workers of a run."""
    base = factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


_started: dict[int, Server] = {}


@pytest.fixture(scope="session", params=VERSIONS, ids=lambda version: f"postgres{version}")
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Server:
    """Not closed, for another worker may still use it: it goes when the last of them exits."""
    version: int = request.param
    if version not in _started:
        _started[version] = Server(version, shared_folder(tmp_path_factory))
    return _started[version]
