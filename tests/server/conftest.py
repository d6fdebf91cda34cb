"""Servers for the tests of the wire: made once for all tests of a worker."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.server.connection import Address
from tests.server.plain import Plain
from tests.server.served import Served


@pytest.fixture(scope="session")
def plain() -> Iterator[Plain]:
    with Plain() as made:
        yield made


@pytest.fixture(scope="session")
def served() -> Iterator[Address]:
    """dpsql over the toy data; or the server named in DPSQL_TEST_SERVER, to see that a plain PostgreSQL passes too."""
    given = os.environ.get("DPSQL_TEST_SERVER")
    if given:
        yield Address.of(given)
        return
    with Served() as made:
        yield made.address
