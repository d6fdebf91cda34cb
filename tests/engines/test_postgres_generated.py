"""Made-up schemas, policies, rows and questions on PostgreSQL: no person moves a sum further than stated.

`python -m tests.property --postgres` goes on for as long as one likes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from fractions import Fraction

import pytest
from hypothesis import given

from dpsql.errors import Error, InternalError
from dpsql.policy.model import Accounting, ColumnPolicy
from grammar_tests.servers import VERSIONS, Server
from tests.property.flavours import bounded
from tests.property.generate import cases, thorough
from tests.property.postgres_world import PostgresWorld
from tests.property.world import Case, Declared, check_neighbours


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


@pytest.mark.parametrize("accounting", ["basic", "zcdp"])
def test_clipped_sums_are_exact_beyond_what_doubles_hold(here: PostgresWorld, accounting: Accounting) -> None:
    """Where a sum is not exact, its digits depend on the order of rows, which neighbours have another one of."""
    most = 2**46
    columns = (bounded("big", 0, most, step=Fraction(1)), ColumnPolicy("flag"))
    declared = Declared(columns, max_rows=4, tight=True, accounting=accounting)
    rows = tuple(
        {
            "who": f"{who}",
            "k": f"{8 * who + i}",
            "big": f"{most - pow(3, 8 * who + i, 1_000_003)}",
            "flag": "TRUE" if i % 2 else "FALSE",
        }
        for who in range(200)
        for i in range(8)
    )
    check_neighbours(Case("SELECT flag, SUM(big) FROM t GROUP BY flag", declared, rows), here)
