"""The fixed cost of asking at all, of dpsql and of other systems: a hundred rows, the same questions.

smartnoise-sql reads a pandas frame; pyqrlew writes SQL for a PostgreSQL server. Each is compared with dpsql on
DuckDB and on that server. dpsql's time includes its durable charge; the others keep no books.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from pathlib import Path

from dpsql.session import Session
from tests.bench.datasets import Dataset, on_duckdb, on_postgres
from tests.bench.figures import Figure, Show, side_by_side
from tests.peers.environments import QRLEW, SMARTNOISE, NotInstalled, Peer, environment

_HERE = Path(__file__).parent
_ROWS, _REPEATS = 100, 20
_BOUNDS = {"five": (0, 4), "income": (0, 500_000), "age": (0, 110)}
QUERIES = {
    "count": "SELECT COUNT(*) FROM people",
    "count by 5 keys": "SELECT five, COUNT(*) FROM people GROUP BY five",
    "count under a filter": "SELECT COUNT(*) FROM people WHERE age >= 65",
    "sum": "SELECT SUM(income) FROM people",
    "average by 5 keys": "SELECT five, AVG(income) FROM people GROUP BY five",
}


def fixed(folder: Path, seconds: float, show: Show) -> None:
    with on_duckdb(_ROWS) as file, on_postgres(_ROWS) as server:
        engines = {"duckdb": file, "postgres": server}
        names = ("id", *_BOUNDS)
        rows: Iterable[tuple[int, ...]] = file.raw(f"SELECT {', '.join(names)} FROM people")  # type: ignore[assignment]
        people = dict(zip(names, (list(column) for column in zip(*rows, strict=True)), strict=True))
        _compare(SMARTNOISE, "peer_smartnoise.py", folder, {"people": people}, engines, seconds, show)
        _compare(QRLEW, "peer_qrlew.py", folder, {"url": server.url}, engines, seconds, show)


def _compare(
    peer: Peer,
    script: str,
    folder: Path,
    data: dict[str, object],
    engines: dict[str, Dataset],
    seconds: float,
    show: Show,
) -> None:
    try:
        found = environment(peer, folder)
    except NotInstalled as fault:
        print(f"{peer.name} is left out: {fault}")
        return
    task = {"queries": QUERIES, "bounds": _BOUNDS, "repeats": _REPEATS, **data}
    for line in found.run(_HERE / script, task):
        name, theirs = line["name"], line["milliseconds"]
        for engine, dataset in engines.items():
            known, new = _ours(dataset, QUERIES[name], seconds / len(QUERIES))
            for text, ours in (("a known text", known), ("a new text", new)):
                show(Figure(peer.name, f"{name}; beside: dpsql on {engine}, {text}", theirs, "ms", ours))


def _ours(dataset: Dataset, sql: str, seconds: float) -> tuple[float, float]:
    session = Session(dataset.engine, "bench")
    session.settings.fresh = True
    numbers = count()
    known, new = side_by_side(
        [lambda: session.execute(sql), lambda: session.execute(f"{sql} -- {next(numbers)}")], seconds=seconds
    )
    return known, new
