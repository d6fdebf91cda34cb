"""The toy data, its neighbours and PostgreSQL: made once for all cases of a worker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from dpsql.compliance.lab import Lab
from grammar_tests.neighbours import DuckDBNeighbourhood, Neighbourhood
from grammar_tests.oracle import Oracle


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with closing(Lab(tmp_path_factory.mktemp("lab"))) as made:
        yield made


@pytest.fixture(scope="session")
def clean(lab: Lab) -> Iterator[Neighbourhood]:
    with closing(DuckDBNeighbourhood(lab.directory / "toy.duckdb")) as made:
        yield made


@pytest.fixture(scope="session")
def dirty(lab: Lab) -> Iterator[Neighbourhood]:
    with closing(DuckDBNeighbourhood(lab.directory / "dirty.duckdb")) as made:
        yield made


@pytest.fixture(scope="session")
def oracle() -> Iterator[Oracle]:
    with closing(Oracle()) as made:
        yield made
