"""Made-up schemas, policies, rows and questions on PostgreSQL: no person moves a sum further than stated.

`python -m tests.property --postgres` goes on for as long as one likes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from hypothesis import given

from dpsql.errors import Error, InternalError
from grammar_tests.servers import VERSIONS, Server
from tests.property.generate import cases, thorough
from tests.property.postgres_world import PostgresWorld
from tests.property.world import Case, check_neighbours


@pytest.fixture(scope="module")
def here() -> Iterator[PostgresWorld]:
    with closing(Server(VERSIONS[-1])) as server, closing(PostgresWorld(server.url())) as made:
        yield made


def test_no_unit_moves_a_sum_further_than_stated(here: PostgresWorld) -> None:
    @thorough(60)
    @given(case=cases())
    def holds(case: Case) -> None:
        try:
            check_neighbours(case, here)
        except InternalError:
            raise
        except Error:
            return

    holds()
