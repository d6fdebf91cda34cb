"""The fixed cost of asking at all, of dpsql and of other systems: a hundred rows, the same questions.

smartnoise-sql reads a pandas frame; pyqrlew writes SQL for a PostgreSQL server. Each is compared with dpsql on
DuckDB and on that server. dpsql's time includes its durable charge; the others keep no books.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from itertools import count
from pathlib import Path
from typing import NamedTuple

from dpsql.answering.session import Session
from tests.bench.datasets import BenchDataset, on_duckdb, on_postgres
from tests.bench.figures import Figure, Show
from tests.peers.environments import QRLEW, SMARTNOISE, NotInstalled, Peer, environment

_HERE = Path(__file__).parent
_ROWS, _REPEATS = 100, 20
_numbers = count()  # each makes a text that nobody has asked before
_BOUNDS = {"five": (0, 4), "income": (0, 500_000), "age": (0, 110)}
QUERIES = {
    "count": "SELECT COUNT(*) FROM people",
    "count by 5 keys": "SELECT five, COUNT(*) FROM people GROUP BY five",
    "count under a filter": "SELECT COUNT(*) FROM people WHERE age >= 65",
    "sum": "SELECT SUM(income) FROM people",
    "average by 5 keys": "SELECT five, AVG(income) FROM people GROUP BY five",
}


def fixed(folder: Path, show: Show) -> None:
    with on_duckdb(_ROWS) as file, on_postgres(_ROWS) as server:
        engines = {"duckdb": file, "postgres": server}
        names = ("id", *_BOUNDS)
        rows: Iterable[tuple[int, ...]] = file.raw(f"SELECT {', '.join(names)} FROM people")  # type: ignore[assignment]
        people = dict(zip(names, (list(column) for column in zip(*rows, strict=True)), strict=True))
        _compare(SMARTNOISE, "peer_smartnoise.py", folder, {"people": people}, engines, show)
        _compare(QRLEW, "peer_qrlew.py", folder, {"url": server.url}, engines, show)


def _compare(
    peer: Peer,
    script: str,
    folder: Path,
    data: dict[str, object],
    engines: dict[str, BenchDataset],
    show: Show,
) -> None:
    try:
        found = environment(peer, folder)
    except NotInstalled as fault:
        print(f"{peer.name} is left out: {fault}")
        return
    task = {"queries": QUERIES, "bounds": _BOUNDS, "repeats": _REPEATS, **data}
    for line in found.run(_HERE / script, task):
        for engine, dataset in engines.items():
            for text, ours in _ours(dataset, QUERIES[line["name"]]).items():
                title = f"{line['name']}; beside: dpsql on {engine}, {text}"
                show(Figure(peer.name, title, line["passed"], "ms", ours.passed))
                show(Figure(peer.name, f"{title}, processor", line["processor"], "ms", ours.processor))


class _Cost(NamedTuple):
    """Milliseconds of one question: on the clock, and of the processor in this process, whoever else is busy."""

    passed: float
    processor: float


def _ours(dataset: BenchDataset, sql: str) -> dict[str, _Cost]:
    session = Session(dataset.dataset, "bench")
    session.settings.fresh = True
    return {
        "a known text": _cost(lambda: session.execute(sql)),
        "a new text": _cost(lambda: session.execute(f"{sql} -- {next(_numbers)}")),
    }


def _cost(ask: Callable[[], object]) -> _Cost:
    ask()
    times, before = [], time.process_time()
    for _ in range(_REPEATS):
        started = time.perf_counter()
        ask()
        times.append((time.perf_counter() - started) * 1_000)
    return _Cost(statistics.median(times), (time.process_time() - before) / _REPEATS * 1_000)
