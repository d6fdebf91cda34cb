"""Queries through dpsql beside the same queries on the raw engine, and the fixed cost of asking at all."""

from __future__ import annotations

from itertools import count

from dpsql.session import Session
from tests.bench.cases import CASES, SMALL, another_small
from tests.bench.datasets import ENGINES, Dataset
from tests.bench.figures import Figure, Show, side_by_side


def against_raw(engine: str, rows: int, seconds: float, show: Show) -> None:
    """Cached text, fresh answer, durable charge included."""
    with ENGINES[engine](rows) as dataset:
        session = _fresh(dataset)
        for case in CASES:
            private, raw = side_by_side(
                [lambda sql=case.private: session.execute(sql), lambda sql=case.beside: dataset.raw(sql)],  # type: ignore[misc]
                seconds=seconds,
            )
            show(Figure(engine, case.name, private, "ms", raw, rows))


def in_process(engine: str, seconds: float, show: Show) -> None:
    """A hundred rows: what is left is the cost of asking."""
    with ENGINES[engine](100) as dataset:
        numbers = count(1)
        fresh, replaying = _fresh(dataset), Session(dataset.engine, "bench")
        cold, cached, replayed, compiled, raw = side_by_side(
            [
                lambda: fresh.execute(another_small(next(numbers))),
                lambda: fresh.execute(SMALL),
                lambda: replaying.execute(SMALL),
                lambda: fresh.release(another_small(next(numbers))),
                lambda: dataset.raw(SMALL),
            ],
            seconds=seconds,
        )
        for name, value in (
            ("a new text, in process", cold),
            ("a known text, in process", cached),
            ("an answer replayed, in process", replayed),
            ("compiling a new text alone", compiled),
        ):
            show(Figure(f"{engine}, fixed", name, value, "ms", raw))


def _fresh(dataset: Dataset) -> Session:
    session = Session(dataset.engine, "bench")
    session.settings.fresh = True
    return session
