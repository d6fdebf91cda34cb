"""Parts by themselves: the ledger's commits and the samplers."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import closing
from fractions import Fraction
from pathlib import Path

from dpsql.ledger import Ledger, Purchase
from dpsql.ledger.postgres import PostgresLedger
from dpsql.ledger.sqlite import SqliteLedger
from dpsql.noise.samplers import SystemSampler
from dpsql.policy.address import PostgresAddress
from dpsql.privacy.accounting import Price
from grammar_tests.servers import Server
from tests.bench.figures import Figure, Show, side_by_side

_SECTION = "parts"
_WRITERS = (1, 8, 64)
_MILLION = 1_000_000


def samplers(show: Show) -> None:
    """A million draws at a time."""
    sampler = SystemSampler()
    laws: dict[str, Callable[[], object]] = {
        "Laplace, scale 100": lambda: sampler.discrete_laplace(Fraction(100), _MILLION),
        "Laplace, scale 10^9": lambda: sampler.discrete_laplace(Fraction(10**9), _MILLION),
        "Gaussian, deviation 100": lambda: sampler.discrete_gaussian(Fraction(10**4), _MILLION),
        "Gaussian, deviation 10^9": lambda: sampler.discrete_gaussian(Fraction(10**18), _MILLION),
    }
    for name, taken in zip(laws, side_by_side(list(laws.values()), seconds=0), strict=True):
        show(Figure(_SECTION, f"a million draws: {name}", taken, "ms"))


def ledgers(seconds: float, show: Show) -> None:
    """Durable charges a second, of several who charge at once; beside: a bare append and fsync, one after the other."""
    with tempfile.TemporaryDirectory() as folder:
        synced = _syncs(Path(folder) / "plain", seconds)
        with closing(
            SqliteLedger.open(Path(folder) / "bench.ledger", create=True, **_OF_ALL)  # type: ignore[arg-type]
        ) as ledger:
            for writers in _WRITERS:
                rate = _charges(ledger, writers, seconds)
                show(Figure(_SECTION, f"charges, SQLite ledger, {writers} at once", rate, "/s", synced))
    with closing(Server(18)) as server:
        address = PostgresAddress(server.url())
        with closing(PostgresLedger.open(address, create=True, **_OF_ALL)) as on_server:  # type: ignore[arg-type]
            for writers in _WRITERS:
                rate = _charges(on_server, writers, seconds)
                show(Figure(_SECTION, f"charges, PostgreSQL ledger, {writers} at once", rate, "/s", synced))


_OF_ALL = {
    "dataset": "bench",
    "accounting": "basic",
    "total": Price(2**62, 0),
    "allowances": {"bench": None},
}


def _charges(ledger: Ledger, writers: int, seconds: float) -> float:
    done, began = [0] * writers, time.perf_counter()

    def charge(place: int) -> None:
        while time.perf_counter() < began + seconds:
            ledger.charge("bench", [Purchase(os.urandom(32), Price(1, 0), False)], sql="SELECT 1")
            done[place] += 1

    threads = [threading.Thread(target=charge, args=(place,)) for place in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(done) / (time.perf_counter() - began)


def _syncs(path: Path, seconds: float) -> float:
    done, until = 0, time.perf_counter() + seconds
    with path.open("wb") as file:
        while time.perf_counter() < until:
            file.write(b"x" * 4_096)
            file.flush()
            os.fsync(file.fileno())
            done += 1
    return done / seconds
