"""Fixtures for tests that ask a small dataset."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests import toy


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
