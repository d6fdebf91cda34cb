"""Queries through dpsql beside the same queries on the raw engine, and the fixed cost of asking at all."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count

from dpsql.answering.dataset import Dataset
from dpsql.answering.session import Session
from tests.bench.cases import CASES, SMALL, another_small
from tests.bench.datasets import ENGINES
from tests.bench.figures import Figure, Show, side_by_side


def against_raw(engine: str, rows: int, seconds: float, show: Show) -> None:
    """Cached text, fresh answer, durable charge included; what has to be bounded also over a prepared copy."""
    with ENGINES[engine](rows, prepared=True) as dataset:
        assert dataset.prepared is not None
        plain, prepared = _fresh(dataset.dataset), _fresh(dataset.prepared)
        for case in CASES:
            asked = [(engine, plain)]
            if case.is_bounded:
                asked.append((f"{engine}, prepared", prepared))
            actions: list[Callable[[], object]] = [partial(dataset.raw, case.beside)]
            actions += [partial(session.execute, case.private) for _, session in asked]
            raw, *private = side_by_side(actions, seconds=seconds)
            for (section, _), taken in zip(asked, private, strict=True):
                show(Figure(section, case.name, taken, "ms", raw, rows))


def in_process(engine: str, seconds: float, show: Show) -> None:
    """A hundred rows: what is left is the cost of asking."""
    with ENGINES[engine](100) as dataset:
        numbers = count(1)
        fresh, replaying = _fresh(dataset.dataset), Session(dataset.dataset, "bench")
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


def _fresh(engine: Dataset) -> Session:
    session = Session(engine, "bench")
    session.settings.fresh = True
    return session
