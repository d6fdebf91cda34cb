"""Reuse of answers: a coarser GROUP BY derived from a released table, and several releases of a query combined.

Every stored release with declared keys has small records of the questions that it also answers: those with fewer keys,
by adding up its cells. They are found by the question, without price and noise. All of it is post-processing of noisy
values.
"""

from __future__ import annotations

import itertools
import json
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from dpsql.answering.answer_store import StoredAnswer, decode, grains_of
from dpsql.ledger import Ledger, Purchase
from dpsql.policy.canonical import canonical, digest
from dpsql.privacy.accounting import Price
from dpsql.release import Measurement, QuerySettings
from dpsql.release.identity import EarlierAnswers
from dpsql.tables import Integers, NoisyTable, columns_of
from dpsql.types import Value

MOST_KEYS = 4  # keys of which all combinations are recorded
REMEMBERED = 1_000  # measurements in the cache of names
MOST_RECORDS = 1_000  # sums that are recorded for the same rows and keys

Cell = tuple[Value, ...]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Derived:
    """An answer derived from earlier ones, and what a user who never paid for these owes."""

    known: StoredAnswer
    purchases: tuple[Purchase, ...]
    is_no_wider: bool  # than a new answer would be


@dataclass(frozen=True, slots=True)
class _Part:
    """Where a sum is found: in which stored answer, at which index, under which of its keys; and its margin."""

    source: bytes
    place: int
    kept: tuple[int, ...]
    steps: float
    price: Price
    deviation: float


Older = tuple[_Part, ...]  # an earlier answer to the same question, sum by sum


class AnswerReuse:
    """`changing`: the data change, as answers expire or copies were prepared again.

    A combination of two states of the data would be right for neither. Whether the data did change is not checked, for
    that would reveal it.
    """

    def __init__(self, ledger: Ledger, *, changing: bool) -> None:
        self._ledger = ledger
        self._made: OrderedDict[int, tuple[Measurement, dict[tuple[object, ...], Any]]] = OrderedDict()  # by identity
        self._lock = threading.Lock()
        self._changing = changing

    def find(self, measurement: Measurement, stages: EarlierAnswers, asked: QuerySettings) -> Derived | None:
        """The answer that stored ones determine, if it is accurate enough for the request.

        Claim: its values are those that would be released, with other noise; it reveals nothing that was not released.
        Because: a person is in at most one cell of the source, and every row in one, those without declared keys in the
        remainder. So a cell here is the sum of those cells there that agree with it in its keys.
        Needs: the text of a question names its meaning; additive sums over declared keys, of one row per person.
        """
        parts = self._parts(measurement, stages)
        if parts is not None and self._changing and len({part.source for part in parts}) > 1:
            return None
        if parts is None or not _suffices(measurement, [part.steps for part in parts], asked):
            return None
        sources = self._sources(parts)
        if any(part.source not in sources for part in parts):
            return None
        named = [(part.source.hex(), sources[part.source].instance, part.place, part.kept) for part in parts]
        columns = [_values(measurement, part, sources[part.source].table) for part in parts]
        table = NoisyTable(measurement.every_cell, tuple(columns))
        steps = tuple(part.steps for part in parts)
        bought = {part.source: part.price for part in parts}
        purchases = tuple(Purchase(key, price, replay=True) for key, price in bought.items())
        known = StoredAnswer(digest(canonical(named)).hex(), table, steps)
        return Derived(known, purchases, is_no_wider(measurement, steps))

    def older(self, measurement: Measurement, stages: EarlierAnswers, user: str) -> Older | None:
        """The old answer to a question, with which a new one may be combined; call it before the new one is paid for.

        Only if the user has paid for the old one: an expensive answer must not come at the price of a cheap one. Once
        the new one is paid for, the same question at the same price counts as paid, whoever bought it before.
        """
        parts = None if measurement.is_combined or self._changing else self._parts(measurement, stages)
        if parts is None or not all(self._ledger.has_paid(user, source) for source in {part.source for part in parts}):
            return None
        return tuple(parts)

    def combined(self, measurement: Measurement, bought: StoredAnswer, older: Older) -> StoredAnswer:
        """The inverse-variance weighted mean of the new answer and the old one."""
        sources = self._sources(older)
        columns: list[Integers] = []
        steps: list[float] = []
        deviations: list[float] = []
        for i, (new, part) in enumerate(zip(bought.table.sums, older, strict=True)):
            margin: float = measurement.steps(i)
            deviation = measurement.deviation(i)
            if margin and part.steps and part.source in sources:
                share = _share(deviation, part.deviation)
                new = _weighted(new, share, _values(measurement, part, sources[part.source].table))
                margin, deviation = (
                    # Rounding to whole steps adds an error of at most half a step.
                    math.hypot(share * one, (1 - share) * other, 0.5)
                    for one, other in ((margin, part.steps), (deviation, part.deviation))
                )
            columns.append(new)
            steps.append(margin)
            deviations.append(deviation)
        table = NoisyTable(bought.table.keys, tuple(columns))
        return StoredAnswer(bought.instance, table, tuple(steps), tuple(deviations))

    def beside(
        self, measurement: Measurement, stages: EarlierAnswers, key: bytes, answer: StoredAnswer
    ) -> dict[bytes, bytes]:
        """The records of which questions an answer determines, to be stored with it; a closer answer to one stays."""
        if measurement.is_combined or not _is_source(measurement):
            return {}
        found: dict[bytes, bytes] = {}
        places = {kept: self._place(measurement, kept, stages) for kept in _choices(measurement)}
        stored = self._ledger.lookup_all(places.values())
        for kept, place in places.items():
            records = _read(stored.get(place))
            for i in range(len(measurement.statistics)):
                margin = measurement.steps(i) if answer.steps is None else answer.steps[i]
                deviation = measurement.deviation(i) if answer.deviations is None else answer.deviations[i]
                wider = math.sqrt(self._cells(measurement, kept))
                part = _Part(key, i, kept, margin * wider, measurement.price, deviation * wider)
                name = self._name(measurement, kept, i)
                old = records.get(name)
                if (
                    old is None
                    or old.steps >= part.steps
                    or old.source == key
                    or self._ledger.lookup(old.source) is None
                ):
                    records[name] = part
            found[place] = _written(_dearest(records))
        return found

    # --- records ---

    def _parts(self, measurement: Measurement, stages: EarlierAnswers) -> list[_Part] | None:
        if not _is_source(measurement):
            return None
        kept = measurement.order_of_keys
        records = _read(self._ledger.lookup(self._place(measurement, kept, stages)))
        if not records:
            return None
        parts = [records.get(self._name(measurement, kept, i)) for i in range(len(measurement.statistics))]
        known = [part for part in parts if part is not None]
        return known if len(known) == len(parts) else None

    def _place(self, measurement: Measurement, kept: tuple[int, ...], stages: EarlierAnswers) -> bytes:
        """The ledger key of the records of a question, whichever sums it asks for."""

        def place() -> bytes:
            assert measurement.question is not None
            return measurement.question.place(kept, stages)

        return place() if stages else self._once(measurement, ("place", kept), place)

    def _name(self, measurement: Measurement, kept: tuple[int, ...], statistic: int) -> str:
        return self._once(measurement, ("name", kept, statistic), lambda: _name(measurement, kept, statistic))

    def _cells(self, measurement: Measurement, kept: tuple[int, ...]) -> int:
        """How many cells are added up into one cell of these keys."""
        dropped = [i for i in measurement.order_of_keys if i not in kept]
        return self._once(
            measurement,
            ("cells", kept),
            lambda: math.prod(len({cell[i] for cell in measurement.every_cell}) for i in dropped),
        )

    def _once(self, measurement: Measurement, what: tuple[object, ...], make: Callable[[], T]) -> T:
        """What a measurement determines by itself, cached as long as the measurement."""
        with self._lock:
            of, known = self._made.get(id(measurement), (None, {}))
            if of is not measurement:
                known = {}
                self._made[id(measurement)] = measurement, known
                while len(self._made) > REMEMBERED:
                    self._made.popitem(last=False)
        if what not in known:
            known[what] = make()
        made: T = known[what]
        return made

    def _sources(self, parts: Iterable[_Part]) -> dict[bytes, StoredAnswer]:
        """The answers that contain the parts, as far as they still exist."""
        stored = self._ledger.lookup_all({part.source for part in parts})
        return {key: decode(answer) for key, answer in stored.items()}


def _values(measurement: Measurement, part: _Part, source: NoisyTable) -> Integers:
    """A sum for every cell, added up from the stored answer."""
    own, cells = measurement.order_of_keys, measurement.every_cell
    if part.kept == own and source.keys == cells:
        return source.sums[part.place]
    places = dict(zip(_only(own, cells), itertools.count()))
    at = map(places.get, _only(part.kept, source.keys), itertools.repeat(-1))
    where = np.fromiter(at, np.int64, len(source))
    found = np.zeros(len(cells), dtype=np.int64)
    np.add.at(found, where[where >= 0], source.sums[part.place][where >= 0])
    return found


def _only(kept: Sequence[int], keys: Sequence[Cell]) -> Sequence[Cell]:
    """The keys at some indexes, for each cell."""
    columns = columns_of(keys)
    return list(zip(*(columns[i] for i in kept), strict=True)) if kept and columns else [()] * len(keys)


def _is_source(measurement: Measurement) -> bool:
    return measurement.question is not None and bool(measurement.statistics)


def _choices(measurement: Measurement) -> Iterator[tuple[int, ...]]:
    """Which sets of keys may be kept: all but some of those whose other values are in the remainder too."""
    own = measurement.order_of_keys
    yield own
    loose = [i for i in own if measurement.keys[i].remainder]
    if len(own) > MOST_KEYS:
        loose = loose if len(loose) == len(own) else []
        yield from [()] if loose else []
        return
    for count in range(1, len(loose) + 1):
        for dropped in itertools.combinations(loose, count):
            yield tuple(i for i in own if i not in dropped)


def _suffices(measurement: Measurement, steps: Sequence[float], asked: QuerySettings) -> bool:
    """A request with an error, a price or its kind needs a match; any other takes what exists."""
    return (asked.margin is None and asked.epsilon is None and not asked.pure) or is_no_wider(measurement, steps)


def is_no_wider(measurement: Measurement, steps: Sequence[float]) -> bool:
    """Whether these margins are at most those of a new answer."""
    for i, margin in enumerate(steps):
        if margin > measurement.steps(i):
            return False
        if i in measurement.chained and math.sqrt(len(measurement.running_steps(i))) * margin > max(
            measurement.running_steps(i)
        ):
            return False
    return True


def _share(its_deviation: float, old_deviation: float) -> float:
    """The new answer's weight in the mean: by inverse variance, whichever distribution each noise has."""
    return old_deviation**2 / (its_deviation**2 + old_deviation**2)


def _weighted(new: Integers, share: float, old: Integers) -> Integers:
    """The weighted mean, in integers: between both values, so that nothing overflows."""
    moved: Integers = np.rint(share * (new - old)).astype(np.int64)
    return old + moved


def _name(measurement: Measurement, kept: tuple[int, ...], statistic: int) -> str:
    assert measurement.question is not None
    return measurement.question.name(kept, measurement.statistics[statistic])


def _dearest(records: dict[str, _Part]) -> dict[str, _Part]:
    """The records to keep: the most expensive, among equals the newest.

    All of them are read for every query of the same rows and keys: many cheap sums must neither slow that down nor
    displace expensive ones.
    """
    newest_first = list(reversed(records.items()))
    kept = sorted(newest_first, key=lambda item: -item[1].price.loss)[:MOST_RECORDS]
    return dict(reversed(kept))


def _read(stored: bytes | None) -> dict[str, _Part]:
    return {
        name: _Part(bytes.fromhex(source), at, tuple(kept), steps, Price(*price), *(deviation or [steps / 1.96]))
        for name, (source, at, kept, steps, price, *deviation) in json.loads(stored or b"{}").items()
    }


def _written(records: dict[str, _Part]) -> bytes:
    document = {
        name: [part.source.hex(), part.place, part.kept, part.steps, grains_of(part.price), part.deviation]
        for name, part in records.items()
    }
    return json.dumps(document, separators=(",", ":")).encode()
