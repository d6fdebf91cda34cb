from __future__ import annotations

import os

import pytest


@pytest.fixture
def dpsql_only() -> None:
    """What only dpsql does is not asked of a plain PostgreSQL."""
    if "DPSQL_TEST_SERVER" in os.environ:
        pytest.skip("asks a server that is not dpsql")
