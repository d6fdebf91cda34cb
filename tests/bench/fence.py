"""What others notice while one user has texts compiled that are dear to compile."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable

import psycopg

from tests.adversary.heavy_texts import TEXTS
from tests.bench.figures import Figure, Show
from tests.server.process import Connection, Serving, home, write_clinic

_SECTION = "fence"
_REPLAYED = "SELECT state, COUNT(*) FROM people GROUP BY state"
_SIZE = 300  # of each text of the corpus
_AT_ONCE = 4  # as many as one user may


def beside_heavy_texts(seconds: float, show: Show, arguments: tuple[str, ...] = ()) -> None:
    """Each with an idle server beside it: the median, and the longest."""
    with home() as folder, Serving(write_clinic(folder), *arguments) as server:
        with server.connect("bob") as bob:
            bob.execute(_REPLAYED)
            idle = _waits(server, bob, seconds)
            stop = threading.Event()
            threads = [threading.Thread(target=_attack, args=(server, stop, place)) for place in range(_AT_ONCE)]
            for thread in threads:
                thread.start()
            try:
                busy = _waits(server, bob, 5 * seconds)
            finally:
                stop.set()
                for thread in threads:
                    thread.join()
        for name, waited in busy.items():
            for kind, chosen in (("median", statistics.median), ("longest", max)):
                show(Figure(_SECTION, f"{name}, {kind}; beside: idle", chosen(waited), "ms", chosen(idle[name])))


def _attack(server: Serving, stop: threading.Event, place: int) -> None:
    """One text after the other, each free; from another place of the corpus in each thread."""
    texts = list(TEXTS.values())
    with server.connect("alice") as alice:
        alice.execute("SET statement_timeout = '5s'")
        for number in range(place * len(texts) // _AT_ONCE, 10 * len(texts)):
            if stop.is_set():
                return
            try:
                alice.execute(f"EXPLAIN {texts[number % len(texts)](_SIZE)}".encode())
            except psycopg.Error:
                continue


def _waits(server: Serving, bob: Connection, seconds: float) -> dict[str, list[float]]:
    numbers = iter(range(10**9))
    asked: dict[str, Callable[[], object]] = {
        "SELECT 1": lambda: bob.execute("SELECT 1").fetchall(),
        "a login": lambda: server.connect("bob").close(),
        "a replay": lambda: bob.execute(_REPLAYED).fetchall(),
        "a short EXPLAIN": lambda: bob.execute(
            f"EXPLAIN SELECT COUNT(*) FROM people WHERE income > {next(numbers)}".encode()
        ).fetchall(),
    }
    found: dict[str, list[float]] = {name: [] for name in asked}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for name, ask in asked.items():
            began = time.perf_counter()
            ask()
            found[name].append((time.perf_counter() - began) * 1_000)
    return found
