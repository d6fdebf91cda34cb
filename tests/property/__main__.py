"""Neighbours of made-up databases for as long as one likes: python -m tests.property [--seconds N] [--postgres].

Schema, policy, rows and question are all made up. A case in which a person moves a sum further than stated, or an
engine fails, is made as small as it stays one, and printed as a grammar case with its policy and rows.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, closing

from hypothesis import HealthCheck, given, seed, settings

from dpsql.errors import Error, InternalError
from grammar_tests.servers import VERSIONS, Server
from tests.property.generate import cases
from tests.property.postgres_world import PostgresWorld
from tests.property.world import Case, World, check_neighbours

ROUND = 200  # cases between looks at the clock


def tried(here: World | None, number: int, tally: Counter[str]) -> tuple[Case, Exception] | None:
    """The smallest case of a round that fails, and how it does."""
    last: list[Case] = []

    @seed(number)
    @settings(
        max_examples=ROUND,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        print_blob=False,
        report_multiple_bugs=False,
    )
    @given(case=cases())
    def holds(case: Case) -> None:
        last[:] = [case]
        tally["asked"] += 1
        try:
            check_neighbours(case, here)
        except InternalError:
            raise
        except Error:
            tally["refused"] += 1

    try:
        holds()
    except Exception as error:
        return last[0], error  # hypothesis tries the smallest once more at last
    return None


def search(here: World | None, seconds: float, number: int, say: Callable[[str], None]) -> bool:
    """Whether a case was found; it is said."""
    tally: Counter[str] = Counter()
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = tried(here, number, tally)
        if found is not None:
            case, error = found
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            say(f"# {reason}\n{case!r}")
            return True
        number += 1
    say(f"{tally['asked']:,} cases, {tally['refused']:,} of them refused; no person moved a sum too far")
    return False


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.property")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--postgres", action="store_true", help="on a PostgreSQL of its own, instead of DuckDB")
    options = parser.parse_args()
    with ExitStack() as stack:
        here: World | None = None
        if options.postgres:
            server = stack.enter_context(closing(Server(VERSIONS[-1])))
            here = stack.enter_context(closing(PostgresWorld(server.url())))
        found = search(here, options.seconds, options.seed, lambda text: print(text, flush=True))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
